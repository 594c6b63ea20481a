"""Event time: lower bounds of the values that a column can have in later changes, given by watermarks.

A stream's watermark W is the largest event time seen in earlier epochs less the declared delay; rows
below it are late and ignored. So in every later change the event-time column is null or >= W, an
expression that rises with it is >= its value at W, a window of it ends after W. A group whose key is
below such a bound never changes again, so its state can be dropped. (Akidau et al., "The Dataflow Model",
PVLDB 8(12), 2015, call the bound the low watermark.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import TimestampNTZType, TimestampType

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Expression, children_of, id_of, kind, type_of

END = "end"  # the field of a window that is compared

_ORDERED_TYPES = ("timestamp", "timestamp_ntz", "date", "bigint", "int", "smallint", "double")


@dataclass(frozen=True, slots=True)
class Function:
    """A monotonic expression, which never falls as its argument rises, and that argument."""

    expression: Expression
    argument: Expression

    def __repr__(self) -> str:
        """Return the expression: a plan's fingerprint must not hold the ids of Java objects."""
        return f"Function({self.expression.toString()})"


@dataclass(frozen=True, slots=True)
class Term:
    """A value computed from a stream's watermark by shifts (microseconds) and functions, in order."""

    stream: str
    steps: tuple[int | Function, ...] = ()

    def then(self, *steps: int | Function) -> Term:
        """Return the term with further steps."""
        return replace(self, steps=(*self.steps, *steps))

    def value(self, catalyst: Catalyst, watermark: int) -> int:
        """Return the value for a watermark (microseconds since 1970), as Spark stores its type."""
        at = watermark
        for step in self.steps:
            if isinstance(step, int):
                at += step
            else:
                at = catalyst.least_from(step.expression, step.argument, at)
        return at


@dataclass(frozen=True, slots=True)
class Bound:
    """A guarantee: in every later change the value is null, or at least the minimum of some terms.

    Attributes:
        field: the field of a struct that the bound applies to; empty for the value itself.
        length: length of a window in microseconds; None if windows differ in length.
    """

    terms: tuple[Term, ...]
    field: str = ""
    length: int | None = None

    def then(self, *steps: int | Function) -> Bound:
        """Return the bound of a plain value after further steps."""
        return Bound(tuple(term.then(*steps) for term in self.terms))

    def least(self, catalyst: Catalyst, watermarks: Mapping[str, int]) -> int | None:
        """Return the bound for watermarks by stream; None while one of the streams has none."""
        if any(term.stream not in watermarks for term in self.terms):
            return None
        return min(term.value(catalyst, watermarks[term.stream]) for term in self.terms)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams on whose watermarks the bound depends."""
        return tuple(dict.fromkeys(term.stream for term in self.terms))


Bounds = Mapping[int, Bound]
NO_BOUNDS: Bounds = {}


@dataclass(frozen=True, slots=True)
class Expiry:
    """The rows of an arrangement whose `column` is below a bound; they are never looked up again.

    Attributes:
        sessions: the rows of a session, a chain of overlapping structs, expire together.
    """

    slot: str
    column: str
    bound: Bound
    sessions: bool = False


def stream_bound(stream: str) -> Bound:
    """Return the bound of a stream's event-time column."""
    return Bound((Term(stream),))


def lowest(*bounds: Bound | None) -> Bound | None:
    """Return the bound of a value that has one of several bounds; None if one is missing."""
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or len({bound.field for bound in known}) != 1:
        return None
    lengths = {bound.length for bound in known}
    terms = tuple(dict.fromkeys(term for bound in known for term in bound.terms))
    return Bound(terms, known[0].field, lengths.pop() if len(lengths) == 1 else None)


def bound_of(catalyst: Catalyst, expression: Expression, bounds: Bounds) -> Bound | None:
    """Return the bound of an expression over attributes with bounds; None if it has none."""
    name = kind(expression)
    if name == "AttributeReference":
        return bounds.get(id_of(expression))
    if name == "Alias":
        if kind(expression.child()) == "CreateNamedStruct":
            return _window(catalyst, expression.child(), expression, bounds)
        return bound_of(catalyst, expression.child(), bounds)
    if name == "GetStructField":
        return _field(bound_of(catalyst, expression.child(), bounds), expression)
    below = _argument(name, expression)
    if below is None:
        return None
    bound = bound_of(catalyst, below, bounds)
    if bound is None or bound.field or type_of(expression).simpleString() not in _ORDERED_TYPES:
        return None
    return bound.then(Function(*catalyst.function_of(expression, below)))


def _argument(name: str, expression: Expression) -> Expression | None:
    """Return the argument with which an expression rises; None if it doesn't rise with one."""
    children = children_of(expression)
    varying = [child for child in children if not child.foldable()]
    if name == "Subtract" and remainder(children[1], children[0]):
        return children[0]
    if len(varying) != 1:
        return None
    rises = _RISING.get(name)
    return varying[0] if rises is not None and rises(expression, children, varying[0]) else None


Rises = Callable[[Expression, Sequence[Expression], Expression], bool]

_WIDE_TYPES = frozenset(("timestamp", "timestamp_ntz", "date", "bigint", "double"))
_SHORT_UNITS = frozenset(
    ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "DAYOFYEAR", "WEEK")
)


def _always(_: Expression, __: Sequence[Expression], ___: Expression) -> bool:
    return True


def _to_wide_type(expression: Expression, _: Sequence[Expression], __: Expression) -> bool:
    return type_of(expression).simpleString() in _WIDE_TYPES


def _as_first(_: Expression, children: Sequence[Expression], varying: Expression) -> bool:
    return varying is children[0]


def _by_positive(_: Expression, children: Sequence[Expression], varying: Expression) -> bool:
    constant = children[1].eval(None) if varying is children[0] else None
    return isinstance(constant, int | float) and constant > 0


def _by_days(_: Expression, children: Sequence[Expression], __: Expression) -> bool:
    """Months are excluded: Jan 30 20:00 is before Jan 31 10:00, but a month later it is after it."""
    return any(type_of(child).typeName() == "daytimeinterval" for child in children)


def _by_short_unit(expression: Expression, _: Sequence[Expression], __: Expression) -> bool:
    return str(expression.unit()).upper() in _SHORT_UNITS


# By class name in Catalyst: when an expression never falls as its one varying argument rises.
_RISING: dict[str, Rises] = {
    "Cast": _to_wide_type,
    "Add": _always,
    "Subtract": _as_first,
    "Multiply": _by_positive,
    "Divide": _by_positive,
    "IntegralDivide": _by_positive,
    "TimestampAddInterval": _by_days,
    "DateAddInterval": _by_days,
    "TimestampAdd": _by_short_unit,
    "AddMonths": _always,
    "Ceil": _always,
    "DateAdd": _always,
    "DateAddYMInterval": _always,
    "DateFromUnixDate": _always,
    "DateSub": _as_first,
    "Floor": _always,
    "KnownNotNull": _always,
    "KnownNullable": _always,
    "LastDay": _always,
    "MicrosToTimestamp": _always,
    "MillisToTimestamp": _always,
    "PreciseTimestampConversion": _always,
    "SecondsToTimestamp": _always,
    "TruncDate": _always,
    "TruncTimestamp": _always,
    "UnixDate": _always,
    "UnixMicros": _always,
    "UnixMillis": _always,
    "UnixSeconds": _always,
    "UnixTimestamp": _always,
    "Year": _always,
}


def remainder(expression: Expression, value: Expression) -> tuple[int, int] | None:
    """Return m and c of an expression that is `value - c` modulo m, as Spark's `window` writes it; None for another."""
    if kind(expression) != "CaseWhen" or not expression.elseValue().isDefined():
        return None
    rest = expression.elseValue().get()
    if kind(rest) != "Remainder" or not str(rest.right()).isdigit():
        return None
    shown, modulus = str(rest), str(rest.right())
    inner = rest.left()
    same = (
        kind(inner) == "Subtract"
        and inner.left() == value
        and inner.right().foldable()
        and str(expression)
        == f"CASE WHEN ({shown} < 0) THEN ({shown} + {modulus}) ELSE {shown} END"
    )
    return (int(modulus), int(inner.right().eval(None))) if same else None


def _field(bound: Bound | None, expression: Expression) -> Bound | None:
    """Return the bound of a window's start or end."""
    if bound is None or bound.field != END:
        return None
    if expression.ordinal() == 1:
        return Bound(bound.terms)
    return None if bound.length is None else bound.then(-bound.length)


def _window(
    catalyst: Catalyst, struct: Expression, shown: Expression, bounds: Bounds
) -> Bound | None:
    """Return the bound of the struct that Spark's `window` or `session_window` returns."""
    tumbling, session = catalyst.is_window(shown), catalyst.is_session(shown.toAttribute())
    if not (tumbling or session):
        return None
    conversions, inner = 0, children_of(struct)[1]
    while conversions < 2:
        conversions += kind(inner) == "PreciseTimestampConversion"
        children = children_of(inner)
        if not children:
            return None
        inner = children[0]
    bound = bound_of(catalyst, inner, bounds)
    if bound is None or bound.field or type_of(inner) not in (TimestampType(), TimestampNTZType()):
        return None
    if session:  # an old session that a row joins ends at that row's time at the earliest
        return Bound(bound.terms, END)
    return Bound(tuple(term.then(1) for term in bound.terms), END, catalyst.window_length(struct))


def projected(catalyst: Catalyst, outputs: Iterable[Expression], bounds: Bounds) -> Bounds:
    """Return the bounds of a projection's outputs."""
    if not bounds:
        return NO_BOUNDS
    found = {}
    for output in outputs:
        bound = bound_of(catalyst, output, bounds)
        if bound is not None:
            found[id_of(output)] = bound
    return found


def expanded(
    catalyst: Catalyst,
    projections: Sequence[Sequence[Expression]],
    outputs: Sequence[Expression],
    bounds: Bounds,
) -> Bounds:
    """Return the bounds of the outputs of several projections of each row."""
    if not bounds:
        return NO_BOUNDS
    found = {}
    for place, output in enumerate(outputs):
        given = []
        for projection in projections:
            value = projection[place]
            if kind(value) == "CreateNamedStruct":
                given.append(_window(catalyst, value, output, bounds))
            elif not value.foldable() or value.eval(None) is not None:
                given.append(bound_of(catalyst, value, bounds))
        bound = lowest(*given) if given else None
        if bound is not None:
            found[id_of(output)] = bound
    return found


def same_places(
    outputs: Sequence[Expression], inputs: Sequence[Sequence[Expression]], bounds: Sequence[Bounds]
) -> Bounds:
    """Return the bounds of a union's outputs."""
    found = {}
    for place, output in enumerate(outputs):
        bound = lowest(
            *(known.get(id_of(one[place])) for one, known in zip(inputs, bounds, strict=True))
        )
        if bound is not None:
            found[id_of(output)] = bound
    return found


def key_bounds(catalyst: Catalyst, keys: Sequence[Expression], bounds: Bounds) -> dict[int, Bound]:
    """Return the bounds of grouping keys, by their places."""
    found = (
        {place: bound_of(catalyst, key, bounds) for place, key in enumerate(keys)} if bounds else {}
    )
    return {place: bound for place, bound in found.items() if bound is not None}


def attribute_bounds(attributes: Sequence[Expression], kept: Mapping[int, Bound]) -> Bounds:
    """Return the bounds of those keys that are attributes, by their ids."""
    return {
        id_of(attributes[place]): bound
        for place, bound in kept.items()
        if kind(attributes[place]) in ("AttributeReference", "Alias")
    }
