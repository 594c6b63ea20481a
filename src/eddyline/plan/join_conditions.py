"""What a join demands of a pair of rows apart from equal keys, in a form that the operators can evaluate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import DataType

from eddyline.operators.conditional_join import Sign
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Expression, children_of, id_of, items, kind, type_of
from eddyline.spark.schema import widens

Compared = tuple[Expression, Sign, Expression]
"""An expression over the left rows, and one over the right rows."""

_SIGNS = {
    "EqualTo": Sign.EQUAL,
    "EqualNullSafe": Sign.SAME,
    "LessThan": Sign.LESS,
    "LessThanOrEqual": Sign.AT_MOST,
    "GreaterThan": Sign.MORE,
    "GreaterThanOrEqual": Sign.AT_LEAST,
}
_NOT = {Sign.EQUAL: Sign.DIFFERENT, Sign.SAME: Sign.DISTINCT}
_TURNED = {
    Sign.LESS: Sign.MORE,
    Sign.MORE: Sign.LESS,
    Sign.AT_MOST: Sign.AT_LEAST,
    Sign.AT_LEAST: Sign.AT_MOST,
}
_ORDERED = frozenset(
    {
        "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp",
        "timestamp_ntz", "string", "binary",
    }
)  # fmt: skip
"""Types whose values the operators compare as Spark does; so are decimals. A text with a collation isn't one."""
_NEVER_FAILS = frozenset(
    {
        "Alias", "And", "AttributeReference", "CaseWhen", "Coalesce", "Contains", "EndsWith",
        "EqualNullSafe", "EqualTo", "GetStructField", "GreaterThan", "GreaterThanOrEqual", "If",
        "In", "InSet", "IsNaN", "IsNotNull", "IsNull", "KnownFloatingPointNormalized",
        "KnownNotNull", "Length", "LessThan", "LessThanOrEqual", "Literal", "Lower", "Not",
        "NormalizeNaNAndZero", "Or", "StartsWith", "StringTrim", "Substring",
        "TimestampAddInterval", "Upper",
    }
)  # fmt: skip
"""Expressions without errors of their own: they are evaluated for each row, where a join of Spark evaluates them for pairs.
The sum of a timestamp and an interval fails only near the year 294,247."""
_WHOLE = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class PairCondition:
    """The parts of a condition, which must all hold.

    Attributes:
        left, right: what a row of a side has to meet by itself.
        compared: comparisons of two rows.
        others: what only Spark can evaluate, over pairs.
    """

    left: list[Expression] = field(default_factory=list)
    right: list[Expression] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    others: list[Expression] = field(default_factory=list)

    @property
    def is_not_in(self) -> bool:
        """Whether this is all that `NOT IN (SELECT ...)` compares: two values, which may be null."""
        signs = [sign for _, sign, _ in self.compared]
        more = self.left or self.right or self.others
        return signs == [Sign.EQUAL_OR_UNKNOWN] and not more


def pair_condition(
    condition: Expression | None, left: Sequence[Expression], right: Sequence[Expression]
) -> PairCondition:
    """Take apart what a join demands apart from equal keys.

    Args:
        condition: None if it demands no more.
        left, right: the columns of each side.
    """
    sides = _ids(left), _ids(right)
    found = PairCondition()
    for part in [] if condition is None else _conjuncts(condition):
        read = _read(part)
        if not part.deterministic() or not _never_fails(part):
            found.others.append(part)
        elif read <= sides[0]:
            found.left.append(part)
        elif read <= sides[1]:
            found.right.append(part)
        elif compared := _compared(part, sides):
            found.compared.append(compared)
        else:
            found.others.append(part)
    return found


def conjunction(catalyst: Catalyst, parts: Sequence[Expression]) -> Expression | None:
    """Return `parts[0] AND parts[1] AND ...`; None for no parts."""
    found: Expression | None = None
    for part in parts:
        found = part if found is None else catalyst.expression("And", found, part)
    return found


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if kind(condition) == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _compared(part: Expression, sides: tuple[set[int], set[int]]) -> Compared | None:
    """Return a comparison of the sides; None if it is another expression over both."""
    sign, pair = _signed(part)
    if sign is None:
        return None
    one, two = pair.left(), pair.right()
    if not _is_ordered(one):
        return None
    if _read(one) <= sides[0] and _read(two) <= sides[1]:
        return one, sign, two
    if _read(one) <= sides[1] and _read(two) <= sides[0]:
        return two, _TURNED.get(sign, sign), one
    return None


def _signed(part: Expression) -> tuple[Sign | None, Expression]:
    """Return how a comparison compares, and the expression that has both operands; no sign for other expressions."""
    name = kind(part)
    if name == "Not":
        sign, pair = _signed(part.child())
        return (_NOT.get(sign) if sign else None), pair
    if name == "Or" and kind(part.right()) == "IsNull":
        equal, unknown = part.left(), children_of(part.right())[0]
        if kind(equal) == "EqualTo" and equal.semanticEquals(unknown):
            return Sign.EQUAL_OR_UNKNOWN, equal
    return _SIGNS.get(name), part


def _never_fails(expression: Expression) -> bool:
    name = kind(expression)
    if name == "Cast":
        child = children_of(expression)[0]
        return _holds_all(type_of(expression), type_of(child)) and _never_fails(child)
    return name in _NEVER_FAILS and all(map(_never_fails, children_of(expression)))


def _holds_all(new: DataType, old: DataType) -> bool:
    """Return whether a cast to a type never fails, nor overflows."""
    one, two = old.simpleString(), new.simpleString()
    rounds = one in _WHOLE and two in ("float", "double")
    later = one == "date" and two.startswith("timestamp")
    return two == "string" or rounds or later or widens(old, new)


def _is_ordered(expression: Expression) -> bool:
    name = type_of(expression).simpleString()
    return name in _ORDERED or name.startswith("decimal(")


def _read(expression: Expression) -> set[int]:
    return _ids(items(expression.references().toSeq()))


def _ids(columns: Sequence[Expression]) -> set[int]:
    return {id_of(column) for column in columns}
