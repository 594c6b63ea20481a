"""Finds the rows on which a view fails, by bisection: its plan runs on ever smaller parts of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from eddyline.errors import EddylineError
from eddyline.runtime.pieces import in_two
from eddyline.runtime.plans import EpochPlan
from eddyline.runtime.sizes import UNKNOWN, rows_of
from eddyline.source.segments import Segment
from eddyline.state.manifest import Manifest
from eddyline.storage.files import Files

PROBES_MAX = 32
"""Runs of the plan at most, until what is found so far is returned."""

ROWS_SHOWN, ROW_LENGTH = 3, 300
"""How many rows at fault are stored of a failing view, and how much of each."""

Piece = tuple[str, Segment]
"""A part of the input: name of the leaf that reads it, and the segment."""


@dataclass(frozen=True, slots=True)
class _Found:
    message: str
    rows: tuple[str, ...]
    reads: frozenset[str]


@dataclass(slots=True)
class Searches:
    """Decides when the rows at fault of a view are searched again, as that runs its plan many times.

    Attributes:
        found: of the failing views whose rows are known, and still in the input: the error, the rows, and the
            relations that each reads.
    """

    found: dict[str, _Found] = field(default_factory=dict)

    def rows(
        self, plan: EpochPlan, message: str, search: Callable[[], tuple[str, ...]], *, again: bool
    ) -> tuple[str, ...]:
        """Return the rows at fault of a view that fails: those known before, if they can't have changed.

        Args:
            message: its error.
            search: finds the rows.
            again: whether it failed in the last epoch, too.
        """
        known = self.found.get(plan.id)
        if again and known is not None and known.message == message:
            return known.rows
        rows = search()
        reads = frozenset(leaf.relation.lower() for leaf in plan.leaves)
        self.found[plan.id] = _Found(message, rows, reads)
        return rows

    def forget(self, base: Manifest, manifest: Manifest) -> None:
        """Forget the views that are live again, and those whose rows at fault an epoch may have deleted."""
        counters = manifest.counters.items()
        deleted = {name.lower() for name, counts in counters if counts.get("deleted")}
        for view, known in list(self.found.items()):
            if view not in manifest.failing or (view in base.failing and known.reads & deleted):
                del self.found[view]


def pieces_at_fault(
    files: Files, pieces: Sequence[Piece], fails: Callable[[Sequence[Piece]], bool]
) -> list[Piece]:
    """Return a small part of the input on which a plan still fails.

    The input of each leaf in turn is left out, or halved repeatedly, as long as the plan still fails on the
    rest. Rows that fail only in combination stay together.

    Args:
        pieces: the whole input, on which the plan fails.
        fails: runs the plan on a part of the input; whether it fails.

    Example:
        >>> rows = [("leaf0", Segment("run", "a", 8)), ("leaf1", Segment("run", "b", 8))]
        >>> def fails(part): return any(s.start <= 5 < s.start + s.rows for _, s in part)
        >>> [(leaf, s.start, s.rows) for leaf, s in pieces_at_fault(Files("."), rows, fails)]
        [('leaf1', 5, 1)]
    """
    found, left = list(pieces), PROBES_MAX

    def still_fails(part: Sequence[Piece]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(part)

    for leaf in dict.fromkeys(leaf for leaf, _ in pieces):
        rest = [piece for piece in found if piece[0] != leaf]
        own = [piece for piece in found if piece[0] == leaf]
        if rest and still_fails(rest):
            found = rest
            continue
        while half := next((h for h in _halves(files, own) if still_fails([*rest, *h])), None):
            own = half
        found = [*rest, *own]
    return found


def as_texts(
    pieces: Sequence[Piece], first_rows: Callable[[str, Segment, int], Sequence[object]]
) -> list[str]:
    """Return pieces of input as texts: of each relation its rows if they are few, else how many there are.

    Args:
        pieces: each with the name of its relation in place of a leaf.
        first_rows: returns up to so many of the first rows of a segment of a relation.

    Example:
        >>> pieces = [("t", Segment("run", "a", 1)), ("s", Segment("run", "b", 8))]
        >>> as_texts(pieces, lambda relation, segment, most: [{"id": 7}] * min(segment.rows, most))
        ["t {'id': 7}", 's: among 8 rows']
    """
    shown: list[str] = []
    for relation in dict.fromkeys(relation for relation, _ in pieces):
        segments, rows = [segment for name, segment in pieces if name == relation], list[str]()
        with suppress(EddylineError):  # the view is set aside in any case, with its error
            for segment in segments:
                found = first_rows(relation, segment, ROWS_SHOWN + 1)
                rows += [f"{relation} {row}" for row in found]
                if len(rows) > ROWS_SHOWN:
                    rows = [f"{relation}: {_among(segments)}"]
                    break
        shown += rows
    return [row[:ROW_LENGTH] for row in shown[:ROWS_SHOWN]]


def _among(segments: Sequence[Segment]) -> str:
    """Return how many rows some segments have."""
    rows = rows_of(segments)
    if rows >= UNKNOWN:
        return "among rows that weren't counted"
    return f"among {'' if all(one.rows for one in segments) else 'about '}{rows} rows"


def _halves(files: Files, pieces: list[Piece]) -> list[list[Piece]]:
    """Return two halves of the pieces; none if they can't be cut further."""
    if len(pieces) > 1:
        middle = len(pieces) // 2
        return [pieces[:middle], pieces[middle:]]
    [(leaf, segment)] = pieces
    try:
        return [[(leaf, half)] for half in in_two(files, segment)]
    except (OSError, EddylineError, pa.ArrowException):  # the view is set aside in any case
        return []
