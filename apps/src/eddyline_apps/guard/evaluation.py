"""Compare whom the guard would block with labelled addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

from eddyline.errors import DataError
from eddyline_apps.addresses import parsed_address

SHOWN_MAX = 10
ATTACK, NORMAL = ("1", "attack", "attacker", "bad"), ("0", "normal", "visitor", "good")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well addresses were told apart.

    Attributes:
        caught: attackers that are blocked.
        missed: attackers that aren't.
        wrong: others that are blocked.
    """

    caught: tuple[str, ...]
    missed: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def precision(self) -> float | None:
        """Share of attackers among those who are blocked; None if nobody is."""
        blocked = len(self.caught) + len(self.wrong)
        return len(self.caught) / blocked if blocked else None

    @property
    def recall(self) -> float | None:
        """Share of the attackers that are blocked; None if there are none."""
        attackers = len(self.caught) + len(self.missed)
        return len(self.caught) / attackers if attackers else None


def read_labels(path: Path) -> dict[str, bool]:
    """Read a file of labels: address -> whether it is an attacker's.

    Each line is an address and, after a comma, tab or space, `attack` or `normal` (or 1 or 0); an address alone
    is an attacker's. Empty lines and those that begin with # are skipped.

    Raises:
        DataError: BAD_LABELS, naming the file and the line.
    """
    labels: dict[str, bool] = {}
    first: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: the labels can't be read: {error}",
            condition="BAD_LABELS",
            hint="give a file of text in UTF-8",
        ) from error
    for number, line in enumerate(lines, start=1):
        text = line.lower().strip()
        if not text or text.startswith("#"):
            continue
        words = [word.strip() for word in text.split(",")] if "," in text else text.split()
        label = words[1] if len(words) > 1 else ATTACK[0]
        address = parsed(words[0])
        if address is None or len(words) > 2 or label not in ATTACK + NORMAL:
            raise DataError(
                f"{path}, line {number}: this is no label: {line[:80]!r}",
                condition="BAD_LABELS",
                hint="write an address, and after a comma `attack` or `normal`",
            )
        name, attack = str(address), label in ATTACK
        if labels.setdefault(name, attack) != attack:
            raise DataError(
                f"{path}, line {number}: {name} has another label in line {first[name]}",
                condition="BAD_LABELS",
                hint="leave one of them out",
            )
        first.setdefault(name, number)
    return labels


def parsed(word: str) -> IPv4Address | IPv6Address | None:
    """Return an address; None if the word is none."""
    try:
        return parsed_address(word)
    except ValueError:
        return None


def report(found: Evaluation) -> str:
    """Return the result as text."""

    def share(number: float | None) -> str:
        return "-" if number is None else f"{number:.4f}"

    lines = [f"precision {share(found.precision)}", f"recall    {share(found.recall)}"]
    for name in ("caught", "missed", "wrong"):
        addresses = getattr(found, name)
        some = ", ".join(addresses[:SHOWN_MAX]) + ", ..." * (len(addresses) > SHOWN_MAX)
        lines.append(f"{name:<9} {len(addresses):,}" + f": {some}" * bool(addresses))
    return "\n".join(lines)


def evaluate(labels: Mapping[str, bool], seen: Iterable[str], targets: Iterable[str]) -> Evaluation:
    """Compare the targets of the block list with the labels.

    Args:
        seen: words of the log that can be addresses. Addresses without a label count as normal.
        targets: addresses and networks that were blocked. A network blocks those of its
            addresses that were seen or have a label.
    """
    known = {address for one in {*labels, *seen} if (address := parsed(one)) is not None}
    networks = [ip_network(target) for target in targets]
    single = {one.network_address for one in networks if one.num_addresses == 1}
    wide = [one for one in networks if one.num_addresses > 1]
    blocked = {one for one in known if one in single or any(one in network for network in wide)}
    attackers = {ip_address(one) for one, attack in labels.items() if attack}
    return Evaluation(
        tuple(map(str, sorted(blocked & attackers, key=int))),
        tuple(map(str, sorted(attackers - blocked, key=int))),
        tuple(map(str, sorted(blocked - attackers, key=int))),
    )
