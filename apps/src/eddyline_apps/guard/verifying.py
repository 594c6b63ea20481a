"""Whether addresses belong to search engines, by reverse DNS.

The name of an address has to end in a listed domain, and has to lead back to the address: whoever has an address chooses
its name freely, but not what addresses the names of another's domain have.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any, NamedTuple

from eddyline.errors import EngineError, missing_package

DOMAINS: tuple[str, ...] = (
    "googlebot.com",
    "google.com",
    "search.msn.com",
    "applebot.apple.com",
    "yandex.com",
    "yandex.net",
    "yandex.ru",
    "crawl.baidu.com",
    "crawl.baidu.jp",
    "crawl.yahoo.net",
    "seznam.cz",
    "qwant.com",
    "mojeek.com",
)
"""Of Google, Bing, Apple, Yandex, Baidu, Yahoo, Seznam, Qwant and Mojeek, as their documentation names them."""

DNS = "reverse DNS"
"""Who has decided that a search engine is allowed, in the table of decisions."""

LOOKUPS_MAX = 32
"""Addresses that are looked up at once."""

NAMES_MAX = 5
"""Names of an address that are tried."""

NAME_LENGTH = 100
KNOWN_MAX = 10_000
ANSWERED_S, UNANSWERED_S = 3600, 60
"""How long an answer is remembered, and that there was none."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How addresses are verified.

    Attributes:
        domains: in lower case, without a dot at either end.
        nameserver: the address and port of a name server; None for those of the system.
        timeout_s: for all look-ups of a round together.
    """

    domains: tuple[str, ...] = DOMAINS
    nameserver: tuple[str, int] | None = None
    timeout_s: float = 2.0


class Answer(NamedTuple):
    """What DNS says of an address.

    Attributes:
        name: the verified name; empty if there is none.
        note: why there is none, where that is worth telling: no answer, or a wrong name.
    """

    name: str = ""
    note: str = ""


class Verifier:
    """Verifies addresses, and remembers answers.

    Raises:
        EngineError: MISSING_PACKAGE; BAD_OPTION: the system has no name server, and the settings name none.
    """

    def __init__(self, settings: Verification) -> None:
        try:
            resolving: Any = importlib.import_module("dns.asyncresolver")
            self._dns: Any = importlib.import_module("dns.resolver")
            self._failure: Any = importlib.import_module("dns.exception").DNSException
        except ImportError as error:
            raise missing_package("verifying search engines", "dnspython", "apps") from error
        self._settings = settings
        try:
            self._resolver = resolving.Resolver(configure=settings.nameserver is None)
        except self._failure as error:
            raise EngineError(
                f"search engines can't be verified: {error}",
                condition="BAD_OPTION",
                hint="give a nameserver in verify",
            ) from error
        if settings.nameserver is not None:
            self._resolver.nameservers = [settings.nameserver[0]]
            self._resolver.port = settings.nameserver[1]
        self._resolver.timeout = settings.timeout_s / 2  # asked twice: a packet may be lost
        self._known: dict[str, tuple[datetime, Answer]] = {}

    def known(self, address: str, now: datetime) -> bool:
        """Return whether an answer is remembered, so that nothing is looked up."""
        until, _ = self._known.get(address, (now, None))
        return until > now

    def verify(self, addresses: Sequence[str], now: datetime) -> Mapping[str, Answer]:
        """Return what DNS says of addresses; within the settings' time, whatever DNS does.

        Args:
            addresses: `LOOKUPS_MAX` at most that aren't known.
        """
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        new = [one for one in dict.fromkeys(addresses) if not self.known(one, now)]
        found = {}
        if new:
            with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop of its own
                found = pool.submit(lambda: asyncio.run(self._round(new))).result()
        for address, (answer, seconds) in found.items():
            self._known[address] = (now + timedelta(seconds=seconds), answer)
        return {one: self._known[one][1] for one in addresses}

    async def _round(self, addresses: Sequence[str]) -> dict[str, tuple[Answer, int]]:
        tasks = {one: asyncio.create_task(self._of(one)) for one in addresses}
        await asyncio.wait(tasks.values(), timeout=self._settings.timeout_s)
        found = {}
        for address, task in tasks.items():
            if task.done():
                found[address] = task.result()
            else:
                task.cancel()
                why = f"DNS didn't answer in {self._settings.timeout_s:g} s"
                found[address] = (Answer(note=f"its name isn't known: {why}"), UNANSWERED_S)
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        return found

    async def _of(self, address: str) -> tuple[Answer, int]:
        """Return the answer for an address, and how long it is remembered."""
        try:
            return await self._answer(address), ANSWERED_S
        except (self._failure, OSError) as error:
            return Answer(note=f"its name isn't known: {str(error)[:NAME_LENGTH]}"), UNANSWERED_S

    async def _answer(self, address: str) -> Answer:
        wanted = ip_address(address)
        try:
            pointers = await self._resolver.resolve_address(
                address, lifetime=self._settings.timeout_s
            )
        except (self._dns.NXDOMAIN, self._dns.NoAnswer):
            return Answer()
        names = [one.target.to_text(omit_final_dot=True).lower() for one in pointers]
        listed = [name for name in names if self._is_listed(name)][:NAMES_MAX]
        for name in listed:
            try:
                found = await self._resolver.resolve(
                    f"{name}.",
                    "A" if wanted.version == 4 else "AAAA",
                    lifetime=self._settings.timeout_s,
                )
            except (self._dns.NXDOMAIN, self._dns.NoAnswer):
                continue
            if any(ip_address(one.address) == wanted for one in found):
                return Answer(name=name[:NAME_LENGTH])
        if not listed:
            return Answer()
        return Answer(note=f"its name is {listed[0][:NAME_LENGTH]}, which has other addresses")

    def _is_listed(self, name: str) -> bool:
        return any(name == one or name.endswith(f".{one}") for one in self._settings.domains)
