"""Decisions by hand: block an address for a time, or allow it, whatever the rules say. Each is kept for ever."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from eddyline.answers.quick import quick_answer
from eddyline.catalog.catalog import Catalog
from eddyline.errors import CatalogError, DataError
from eddyline.source.inbox import FOLDER, commit_batch, write_files
from eddyline.storage.files import Files
from eddyline_apps.guard.sections import DAY_S, seconds_of
from eddyline_apps.guard.tables import Network, allowed_row, network_of, unmapped

BLOCK, ALLOW = "block", "allow"
LONGEST_S = 365 * DAY_S
WHO_LENGTH, REASON_LENGTH = 80, 500
WIDEST = {4: 16, 6: 32}
"""The shortest prefix of a network that a person may decide on: a typo must not shut out half of the world."""

_ROWS = pa.schema(
    [
        ("id", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("who", pa.string()),
        ("action", pa.string()),
        ("target", pa.string()),
        ("first_key", pa.string()),
        ("last_key", pa.string()),
        ("until", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What someone has decided.

    Attributes:
        action: BLOCK or ALLOW.
        seconds: how long it counts.
        who: a name.
        reason: for those who read the audit.
    """

    action: str
    target: Network
    seconds: int
    who: str
    reason: str


def parse_decision(action: str, target: str, time: str, who: str, reason: str) -> Decision:
    """Check what someone has typed.

    Args:
        time: such as `1 h`.

    Raises:
        DataError: BAD_OPTION, naming what is wrong.

    Example:
        >>> parse_decision("block", "192.0.2.7", "1h", "ann", "scans").target
        IPv4Network('192.0.2.7/32')
    """
    try:
        network = unmapped(network_of(target.strip()))
    except ValueError as error:
        raise _wrong(f"{target[:80]!r} can't be decided on: {error}", "give an address or a network such as 192.0.2.0/24") from None  # fmt: skip
    if network.prefixlen < WIDEST[network.version]:
        raise _wrong(f"{network} is too wide", f"give networks of /{WIDEST[network.version]} at most")  # fmt: skip
    seconds = seconds_of(time.strip(), most=LONGEST_S)
    if seconds is None:
        raise _wrong(f"{time[:80]!r} isn't a time", "write it like 10 min, 2 h or 1 day; 365 days at most")  # fmt: skip
    return Decision(
        action, network, seconds, _line("name", who, WHO_LENGTH), _line("reason", reason, REASON_LENGTH)
    )  # fmt: skip


def decide(files: Files, catalog: Catalog, decision: Decision, now: datetime) -> str:
    """Give a decision to the guard of a storage; return its target as the list shows it.

    It is durable then, and needs no Spark. The guard takes it with its next epoch, or when it starts.

    Raises:
        CatalogError: NOT_FOUND: the storage has no guard, or one whose views take no decisions.
        DataError: BAD_OPTION: the target is on the allow-list, which is never blocked.
    """
    if catalog.find("by_hand") is None:
        raise CatalogError(
            "there is no view by_hand in this storage, which decisions by hand need",
            condition="NOT_FOUND",
            hint="give the storage of a guard; one with views of its own needs by_hand, exempt and "
            "blocked_by_hand of guard.sql",
        )
    target, first, last = allowed_row(decision.target)
    if decision.target.num_addresses == 1:
        target = str(decision.target.network_address)  # as logs have it
    if decision.action == BLOCK:
        answer = quick_answer(files, catalog, "SELECT network, first_key, last_key FROM allowed")
        for network, begin, end in () if answer is None else answer.texts():
            if first <= (end or "") and (begin or "") <= last:
                raise _wrong(f"{target} overlaps with {network} of the allow-list", "change `allow` of the configuration, and start the guard again")  # fmt: skip
    until = now + timedelta(seconds=decision.seconds)
    identity = uuid.uuid4().hex
    row = (identity, now, decision.who, decision.action, target, first, last, until, decision.reason)  # fmt: skip
    rows = pa.table([[value] for value in row], schema=_ROWS)
    table = catalog.get("decisions").id
    files.make_folder(f"{FOLDER}/{table}")
    written = write_files(files, table, identity, [rows])
    commit_batch(files, table, identity, None, written)
    return target


def _line(name: str, text: str, length: int) -> str:
    found = text.strip()
    if not found or len(found) > length or not found.isprintable():
        raise _wrong(f"the {name} isn't a line of text", f"give 1 to {length} characters")
    return found


def _wrong(what: str, way_out: str) -> DataError:
    return DataError(what, condition="BAD_OPTION", hint=way_out)
