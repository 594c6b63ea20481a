"""Event time: the least value that a column can still have, once a watermark has passed.

A stream's watermark W is the largest event time seen in earlier epochs less the declared delay; rows
below it are late and left out. So in every change from now on the event-time column is null or >= W,
an expression that rises with it is >= its value at W, a window of it ends after W. A group whose key
is below such a bound never changes again: its state may go. (Akidau et al., "The Dataflow Model",
PVLDB 8(12), 2015, call the bound the low watermark.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import TimestampNTZType, TimestampType

from eddyline.plan.catalyst import Catalyst, Expression, items, kind, type_of

END = "end"  # the field of a window that is compared

# Expressions that never fall when their one argument that isn't constant rises.
_RISING = frozenset(
    (
        "AddMonths",
        "Ceil",
        "DateAdd",
        "DateAddYMInterval",
        "DateFromUnixDate",
        "DateSub",
        "Floor",
        "KnownNotNull",
        "KnownNullable",
        "LastDay",
        "MicrosToTimestamp",
        "MillisToTimestamp",
        "PreciseTimestampConversion",
        "SecondsToTimestamp",
        "TruncDate",
        "TruncTimestamp",
        "UnixDate",
        "UnixMicros",
        "UnixMillis",
        "UnixSeconds",
        "UnixTimestamp",
        "Year",
    )
)
_BY_INTERVAL = frozenset(("TimestampAddInterval", "DateAddInterval"))
_SHORT_UNITS = frozenset(
    ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "DAYOFYEAR", "WEEK")
)
_SUMS = frozenset(("Add", "Subtract"))
_PRODUCTS = frozenset(("Multiply", "Divide", "IntegralDivide"))
_ORDERED_TYPES = ("timestamp", "timestamp_ntz", "date", "bigint", "int", "smallint", "double")
_WIDE = frozenset(("timestamp", "timestamp_ntz", "date", "bigint", "double"))


@dataclass(frozen=True, slots=True)
class Function:
    """A rising expression, and the place in it where its argument comes in."""

    expression: Expression
    argument: Expression


@dataclass(frozen=True, slots=True)
class Term:
    """A value that follows from a stream's watermark: by shifts (microseconds) and functions, in order."""

    stream: str
    steps: tuple[int | Function, ...] = ()

    def then(self, *steps: int | Function) -> Term:
        """With further steps behind."""
        return replace(self, steps=(*self.steps, *steps))

    def value(self, catalyst: Catalyst, watermark: int) -> int:
        """The value for a watermark (microseconds since 1970), as Spark keeps values of its type."""
        at = watermark
        for step in self.steps:
            if isinstance(step, int):
                at += step
            else:
                at = catalyst.least_from(step.expression, step.argument, at)
        return at


@dataclass(frozen=True, slots=True)
class Bound:
    """No change from now on has a value below the least of some terms; null it may be.

    Attributes:
        field: the field of a struct that the bound is about; empty for the value itself.
        length: of a window in microseconds, where all have the same; None where not.
    """

    terms: tuple[Term, ...]
    field: str = ""
    length: int | None = None

    def then(self, *steps: int | Function) -> Bound:
        """The bound of what the steps make of a plain value."""
        return Bound(tuple(term.then(*steps) for term in self.terms))

    def least(self, catalyst: Catalyst, watermarks: Mapping[str, int]) -> int | None:
        """The bound for given watermarks by stream; None while one of them has none yet."""
        if any(term.stream not in watermarks for term in self.terms):
            return None
        return min(term.value(catalyst, watermarks[term.stream]) for term in self.terms)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams whose watermarks it follows."""
        return tuple(dict.fromkeys(term.stream for term in self.terms))


Bounds = Mapping[int, Bound]
NO_BOUNDS: Bounds = {}


@dataclass(frozen=True, slots=True)
class Expiry:
    """Rows of an arrangement whose `column` is below a bound are never looked up again.

    Attributes:
        sessions: rows leave with their whole session only: a chain of overlapping structs.
    """

    slot: str
    column: str
    bound: Bound
    sessions: bool = False


def stream_bound(stream: str) -> Bound:
    """The bound of a stream's event-time column."""
    return Bound((Term(stream),))


def lowest(*bounds: Bound | None) -> Bound | None:
    """What holds of a value that follows one of the bounds, not known which; None if one is missing."""
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or len({bound.field for bound in known}) != 1:
        return None
    lengths = {bound.length for bound in known}
    terms = tuple(dict.fromkeys(term for bound in known for term in bound.terms))
    return Bound(terms, known[0].field, lengths.pop() if len(lengths) == 1 else None)


def bound_of(catalyst: Catalyst, expression: Expression, bounds: Bounds) -> Bound | None:
    """The bound of an expression, given those of the attributes it is made of; None if there is none."""
    name = kind(expression)
    if name == "AttributeReference":
        return bounds.get(expression.exprId().id())
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
    """The one argument with which a rising expression rises; None for any other expression."""
    children = items(expression.children())
    varying = [child for child in children if not child.foldable()]
    if name == "Subtract" and _is_remainder(children[1], children[0]):
        return children[0]
    if len(varying) != 1:
        return None
    if name == "Cast":
        rises = type_of(expression).simpleString() in _WIDE
    elif name in _SUMS:
        rises = name == "Add" or varying[0] is children[0]
    elif name in _PRODUCTS:
        constant = children[1].eval(None) if varying[0] is children[0] else None
        rises = isinstance(constant, int | float) and constant > 0
    elif name in _BY_INTERVAL:  # by months it doesn't rise: their days are cut off, their hours not
        rises = any(type_of(child).typeName() == "daytimeinterval" for child in children)
    elif name == "TimestampAdd":
        rises = str(expression.unit()).upper() in _SHORT_UNITS
    else:
        rises = name in _RISING
    return varying[0] if rises else None


def _is_remainder(expression: Expression, value: Expression) -> bool:
    """Whether an expression is `value - c` modulo m, as Spark's `window` writes it."""
    if kind(expression) != "CaseWhen" or not expression.elseValue().isDefined():
        return False
    rest = expression.elseValue().get()
    if kind(rest) != "Remainder" or not str(rest.right()).isdigit():
        return False
    shown, modulus = str(rest), str(rest.right())
    inner = rest.left()
    return (
        kind(inner) == "Subtract"
        and inner.left() == value
        and inner.right().foldable()
        and str(expression)
        == f"CASE WHEN ({shown} < 0) THEN ({shown} + {modulus}) ELSE {shown} END"
    )


def _field(bound: Bound | None, expression: Expression) -> Bound | None:
    """The bound of a window's start or end."""
    if bound is None or bound.field != END:
        return None
    if expression.ordinal() == 1:
        return Bound(bound.terms)
    return None if bound.length is None else bound.then(-bound.length)


def _window(
    catalyst: Catalyst, struct: Expression, shown: Expression, bounds: Bounds
) -> Bound | None:
    """The bound of what Spark's `window` or `session_window` has become."""
    tumbling, session = catalyst.is_window(shown), catalyst.is_session(shown.toAttribute())
    if not (tumbling or session):
        return None
    conversions, inner = 0, items(struct.children())[1]
    while conversions < 2:
        conversions += kind(inner) == "PreciseTimestampConversion"
        children = items(inner.children())
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
    """The bounds of a projection's outputs."""
    if not bounds:
        return NO_BOUNDS
    found = {}
    for output in outputs:
        bound = bound_of(catalyst, output, bounds)
        if bound is not None:
            found[output.exprId().id()] = bound
    return found


def expanded(
    catalyst: Catalyst,
    projections: Sequence[Sequence[Expression]],
    outputs: Sequence[Expression],
    bounds: Bounds,
) -> Bounds:
    """The bounds of the outputs of several projections of each row."""
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
            found[output.exprId().id()] = bound
    return found


def same_places(
    outputs: Sequence[Expression], inputs: Sequence[Sequence[Expression]], bounds: Sequence[Bounds]
) -> Bounds:
    """The bounds of a union's outputs."""
    found = {}
    for place, output in enumerate(outputs):
        bound = lowest(
            *(
                known.get(one[place].exprId().id())
                for one, known in zip(inputs, bounds, strict=True)
            )
        )
        if bound is not None:
            found[output.exprId().id()] = bound
    return found


def key_bounds(catalyst: Catalyst, keys: Sequence[Expression], bounds: Bounds) -> dict[int, Bound]:
    """The bounds of grouping keys, by their places."""
    found = (
        {place: bound_of(catalyst, key, bounds) for place, key in enumerate(keys)} if bounds else {}
    )
    return {place: bound for place, bound in found.items() if bound is not None}


def attribute_bounds(attributes: Sequence[Expression], kept: Mapping[int, Bound]) -> Bounds:
    """The bounds of those keys that are attributes, by their ids."""
    return {
        attributes[place].exprId().id(): bound
        for place, bound in kept.items()
        if kind(attributes[place]) in ("AttributeReference", "Alias")
    }
