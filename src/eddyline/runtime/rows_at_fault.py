"""Finds the rows on which a view fails, by bisection: its plan runs on ever smaller parts of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eddyline.source.segments import LOG, RUN, Segment

PROBES_MAX = 32
"""Runs of the plan at most, until what is found so far is returned."""

Piece = tuple[str, Segment]
"""A part of the input: name of the leaf that reads it, and the segment."""


def pieces_at_fault(
    pieces: Sequence[Piece], fails: Callable[[Sequence[Piece]], bool]
) -> list[Piece]:
    """Return a small part of the input on which a plan still fails.

    The input of each leaf in turn is left out, or halved repeatedly, as long as the plan still fails on the
    rest. Rows that fail only in combination stay together.

    Args:
        pieces: the whole input, on which the plan fails.
        fails: runs the plan on a part of the input; whether it fails.

    Example:
        >>> rows = [("leaf0", Segment(RUN, "a", 8)), ("leaf1", Segment(RUN, "b", 8))]
        >>> def fails(part): return any(s.start <= 5 < s.start + s.rows for _, s in part)
        >>> [(leaf, s.start, s.rows) for leaf, s in pieces_at_fault(rows, fails)]
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
        while half := next((h for h in _halves(own) if still_fails([*rest, *h])), None):
            own = half
        found = [*rest, *own]
    return found


def _halves(pieces: list[Piece]) -> list[list[Piece]]:
    """Return two halves of the pieces; none if they can't be cut further."""
    if len(pieces) > 1:
        middle = len(pieces) // 2
        return [pieces[:middle], pieces[middle:]]
    [(leaf, segment)] = pieces
    if segment.kind not in (RUN, LOG) or segment.rows < 2:
        return []
    rows = segment.rows // 2
    rest = replace(
        segment,
        rows=segment.rows - rows,
        start=segment.start + rows,
        sequence=segment.sequence + rows,
    )
    return [[(leaf, replace(segment, rows=rows))], [(leaf, rest)]]
