"""The two sides of a join, and what its condition implies about their event times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from eddyline.operators.pairing import LEFT, RIGHT
from eddyline.plan.build import Delta
from eddyline.plan.catalyst import DAY, Catalyst
from eddyline.plan.eventtime import Bound, Expiry, bound_of, lowest
from eddyline.plan.logical import Expression, children_of, id_of, items, kind


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One input of a join.

    Attributes:
        columns: those that are needed.
        compared: further expressions that the operator only compares.
        matchable: what a row has to meet to have a match; None if any row may have one.
    """

    delta: Delta
    columns: list[Expression]
    keys: list[Expression]
    compared: Sequence[Expression] = ()
    matchable: Expression | None = None

    def place(self, expression: Expression) -> int | None:
        """Return the place of an expression among the columns; None if it is no column."""
        if kind(expression) != "AttributeReference":
            return None
        ids = [id_of(column) for column in self.columns]
        wanted = id_of(expression)
        return ids.index(wanted) if wanted in ids else None

    def bound(self, catalyst: Catalyst, expression: Expression) -> Bound | None:
        """Return the bound of an expression over this side."""
        return bound_of(catalyst, expression, self.delta.bounds)


@dataclass(slots=True)
class TimeOfPairs:
    """What a join's condition implies about event time.

    Attributes:
        expiry: the rows that can't pair with any later row, nor be retracted, and may be dropped.
        bounds: of the output's columns.
    """

    expiry: list[Expiry] = field(default_factory=list)
    bounds: dict[int, Bound] = field(default_factory=dict)


def time_of_pairs(
    catalyst: Catalyst,
    left: JoinSide,
    right: JoinSide,
    condition: Expression | None,
    *,
    by_pairs: bool,
    keyed: bool,
) -> TimeOfPairs:
    """Return which rows a join may drop, and the bounds of its output.

    Args:
        by_pairs: whether a row's flag and pairs need no partner any more once no later row can pair with it. Else the
            operator asks for the partners of a key at any later change of it.
        keyed: whether the state holds the keys apart from the columns.
    """
    found = TimeOfPairs()
    if not by_pairs:
        _by_common_keys(catalyst, found, left, right)
        return found
    for number, (one, two) in enumerate(zip(left.keys, right.keys, strict=True)):
        stored = f"k{number}" if keyed else ""
        _by_partner(catalyst, found, LEFT, left, one, right.bound(catalyst, two), stored)
        _by_partner(catalyst, found, RIGHT, right, two, left.bound(catalyst, one), stored)
    if condition is not None:
        _by_comparisons(catalyst, found, left, right, condition)
    return found


def _by_common_keys(
    catalyst: Catalyst, found: TimeOfPairs, left: JoinSide, right: JoinSide
) -> None:
    """Add the rows of both sides whose key is at or above a bound on both."""
    for number, (one, two) in enumerate(zip(left.keys, right.keys, strict=True)):
        both = lowest(left.bound(catalyst, one), right.bound(catalyst, two))
        if both is None:
            continue
        found.expiry.extend(Expiry(slot, f"k{number}", both) for slot in (LEFT, RIGHT))
        for side, key in ((left, one), (right, two)):
            if side.place(key) is not None:
                found.bounds[id_of(key)] = both


def _by_partner(
    catalyst: Catalyst,
    found: TimeOfPairs,
    slot: str,
    side: JoinSide,
    column: Expression,
    partner: Bound | None,
    stored: str = "",
) -> None:
    """Add the rows of a side whose `column` must be at or above a bound of the partner's rows.

    Args:
        stored: the column of the state that holds its value; empty if only the side's columns are stored.
    """
    place = side.place(column)
    if place is None and not stored:
        return
    either = lowest(side.bound(catalyst, column), partner)
    kept = partner if side.delta.append_only else either
    if kept is not None:
        found.expiry.append(Expiry(slot, stored or f"{slot[0]}{place}", kept))
    if either is not None and place is not None:
        found.bounds[id_of(column)] = either


def _by_comparisons(
    catalyst: Catalyst, found: TimeOfPairs, left: JoinSide, right: JoinSide, condition: Expression
) -> None:
    """Add the rows whose time the condition compares with the time of the other side."""
    for larger, smaller in _orders(condition):
        column, shift = _shifted(larger)
        for slot, mine, other in ((LEFT, left, right), (RIGHT, right, left)):
            if mine.place(column) is None or not _is_over(smaller, other):
                continue
            least = other.bound(catalyst, smaller)
            if least is not None and not least.field:
                partner = least.then(-_most(catalyst, column, shift)) if shift else least
                _by_partner(catalyst, found, slot, mine, column, partner)


def _orders(condition: Expression) -> Iterator[tuple[Expression, Expression]]:
    """Yield the comparisons that must all hold, as (larger or equal, smaller)."""
    name = kind(condition)
    if name == "And":
        yield from _orders(condition.left())
        yield from _orders(condition.right())
    elif name in ("GreaterThan", "GreaterThanOrEqual"):
        yield condition.left(), condition.right()
    elif name in ("LessThan", "LessThanOrEqual"):
        yield condition.right(), condition.left()


def _most(catalyst: Catalyst, column: Expression, shift: int) -> int:
    """Return the most microseconds by which an interval moves a time: whole days are added to local time."""
    local = column.dataType().simpleString() == "timestamp"
    if abs(shift) < DAY or not local or catalyst.zone_rules.isFixedOffset():
        return shift
    return shift + DAY


def _shifted(expression: Expression) -> tuple[Expression, int]:
    """Return `column + interval` as the column and microseconds; any other expression and 0."""
    if kind(expression) == "TimestampAddInterval":
        column, interval = children_of(expression)
        shift = interval.eval(None) if interval.foldable() else None
        if isinstance(shift, int):
            return column, shift
    return expression, 0


def _is_over(expression: Expression, side: JoinSide) -> bool:
    ids = {id_of(column) for column in side.columns}
    return all(id_of(e) in ids for e in items(expression.references().toSeq()))
