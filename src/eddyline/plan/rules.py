"""The rule by which each aggregate function is maintained: `RULES`. Pure decisions, no JVM.

The first rule that accepts a call decides. A rule without `keep` makes Spark recompute the groups
that changed, which is exact for every function; its name tells why. The last rule accepts all
functions that no other rule names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eddyline.state.kernels import Measure

INTEGERS = frozenset(("tinyint", "smallint", "int", "bigint"))
FLOATS = frozenset(("float", "double"))
# Types whose order is the same in Spark and in Polars; decimals are too.
_ORDERED = INTEGERS | {"string", "date", "timestamp", "timestamp_ntz", "boolean"}
_SUMMED_PRECISION_MAX = 27  # of more digits the product with a weight would lose some
_DOUBLE_DIGITS = 15  # that a double holds
_INTEGER_DIGITS = 18  # of any number that a BIGINT can hold


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate call as the rules see it.

    Attributes:
        function: class name of the function in Catalyst.
        types: simple names of the argument types, such as `decimal(10,2)`.
        distinct: it aggregates distinct arguments.
        append_only: no row of its input is ever retracted.
        fractions: of a percentile, if they are constants.
    """

    function: str
    types: tuple[str, ...]
    distinct: bool = False
    append_only: bool = False
    fractions: tuple[float, ...] = ()

    @property
    def argument(self) -> str:
        """The type of the only argument; empty if there are none or several."""
        return self.types[0] if len(self.types) == 1 else ""

    @property
    def is_decimal(self) -> bool:
        """Whether the only argument is a decimal."""
        return self.argument.startswith("decimal(")

    @property
    def precision_and_scale(self) -> tuple[int, int]:
        """The digits of a decimal argument, and those of them after the point."""
        precision, scale = self.argument.removeprefix("decimal(").removesuffix(")").split(",")
        return int(precision), int(scale)


@dataclass(frozen=True, slots=True)
class Accumulators:
    """The state of a linear aggregate: contributions of a row, and the buffers that Spark finishes.

    `{v}` stands for the argument's column, `{on}` for "this row counts", `{m}` for the accumulators
    in their order; contributions are summed over the delta with the weight `w` in them.

    Attributes:
        largest: for a maximum (True) or minimum (False) over rows that can be retracted: all values
            are stored in order, and `{x}` stands for the first. None for all others.
        fractions: of a percentile: all values are stored, and `{q}` stands for the percentiles at these fractions.
    """

    measures: tuple[Measure, ...]
    contributions: tuple[str, ...]
    buffers: tuple[str, ...]
    largest: bool | None = None
    fractions: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of `RULES`.

    Attributes:
        name: what the rule does, for `explain`.
        functions: class names in Catalyst; empty for every function.
        accepts: returns whether the rule applies to a call of these functions.
        keep: returns the accumulators; None if Spark recomputes the groups that changed.
    """

    name: str
    functions: tuple[str, ...]
    accepts: Callable[[Call], bool]
    keep: Callable[[Call], Accumulators] | None = None


def rule_of(call: Call) -> Rule:
    """Return the row of `RULES` that decides about a call."""
    return next(
        rule
        for rule in RULES
        if (not rule.functions or call.function in rule.functions) and rule.accepts(call)
    )


def linear(call: Call) -> Accumulators | None:
    """Return how a call is kept in accumulators; None if Spark recomputes its groups."""
    keep = rule_of(call).keep
    return None if keep is None else keep(call)


_COUNT = "if({on}, w, 0L)"
_NULL_OR_FIRST = "if({m1} = 0, null, {m0})"  # the accumulator, null without any value


def _count(_: Call) -> Accumulators:
    return Accumulators((Measure.SUM,), (_COUNT,), ("{m0}",))


def _integers(call: Call) -> Accumulators:
    """Sums of BIGINT: modulo 2^64, from contributions in two words, whose sums don't overflow."""
    if call.function == "Sum":
        words = (
            "named_struct('high', if({on}, shiftright(cast({v} as bigint), 32) * w, 0L),"
            " 'low', if({on}, (cast({v} as bigint) & 4294967295L) * w, 0L))"
        )
        return Accumulators((Measure.INTEGER, Measure.SUM), (words, _COUNT), (_NULL_OR_FIRST,))
    value, zero = "{v} * w", "0L"
    if call.argument == "bigint":
        value = "cast(cast({v} as decimal(20,0)) * cast(w as decimal(10,0)) as decimal(38,0))"
        zero = "cast(0 as decimal(38,0))"
    contributions = (f"if({{on}}, {value}, {zero})", _COUNT)
    return Accumulators((Measure.SUM, Measure.SUM), contributions, ("{m0}", "{m1}"))


def _decimals(call: Call) -> Accumulators:
    kept = f"decimal(38,{call.precision_and_scale[1]})"
    value = f"if({{on}}, cast({{v}} * cast(w as decimal(10,0)) as {kept}), cast(0 as {kept}))"
    buffers = ("{m0}", "{m1}") if call.function == "Average" else ("{m0}", "{m1} = 0")
    return Accumulators((Measure.SUM, Measure.SUM), (value, _COUNT), buffers)


def _wide_decimals(call: Call) -> Accumulators:
    """Sums in two words, high * 10^c + low, each short enough for the product with a weight.

    The words are put together as the digits of an integer: Spark's types for products and sums of
    decimals of 38 digits would cut the scale.
    """
    precision, scale = call.precision_and_scale
    c = max(precision - scale - _INTEGER_DIGITS, 0)
    word, digits = f"{10**c}BD", max(c + scale, 1)
    weight = "cast(w as decimal(10,0))"
    high = f"cast(cast({{v}} div {word} as decimal(19,0)) * {weight} as decimal(38,0))"
    low = (
        f"cast(cast({{v}} % {word} as decimal({digits},{scale})) * {weight} as decimal(38,{scale}))"
    )
    contributions = (
        f"if({{on}}, {high}, cast(0 as decimal(38,0)))",
        f"if({{on}}, {low}, cast(0 as decimal(38,{scale})))",
        _COUNT,
    )
    # less than one word is left in the low one, and then both get the same sign
    top = f"({{m0}} + cast({{m1}} div {word} as decimal(19,0)))"
    rest = (
        f"cast(cast({{m1}} % {word} as decimal({digits},{scale})) * {10**scale}BD as decimal(38,0))"
    )
    borrowed = f"case when {top} > 0 and {rest} < 0 then 1 when {top} < 0 and {rest} > 0 then -1 else 0 end"
    whole = f"{10 ** (c + scale)}BD"
    integer = f"try_add(try_multiply({top} - {borrowed}, {whole}), {rest} + ({borrowed}) * {whole})"
    total = f"cast(concat(cast({integer} as string), 'E-{scale}') as decimal(38,{scale}))"
    last = "{m2}" if call.function == "Average" else "{m2} = 0"
    return Accumulators((Measure.SUM,) * 3, contributions, (total, last))


def _doubles(call: Call) -> Accumulators:
    """An exact pair for the finite values, and counts of NaN and the infinities."""
    value = "cast({v} as double)"
    infinite = "double('Infinity')"
    finite = f"{{on}} and not isnan({value}) and abs({value}) <> {infinite}"
    contributions = (
        f"named_struct('hi', if({finite}, {value}, 0D), 'lo', if({finite}, cast(w as double), 0D))",
        f"if({{on}} and isnan({value}), w, 0L)",
        f"if({{on}} and {value} = {infinite}, w, 0L)",
        f"if({{on}} and {value} = -{infinite}, w, 0L)",
        _COUNT,
    )
    total = (
        "case when {m1} > 0 or ({m2} > 0 and {m3} > 0) then double('NaN')"
        f" when {{m2}} > 0 then {infinite} when {{m3}} > 0 then -{infinite} else {{m0}}.hi end"
    )
    buffers: tuple[str, ...] = (f"if({{m4}} = 0, null, {total})",)
    if call.function == "Average":
        buffers = (total, "{m4}")
    return Accumulators((Measure.EXACT, *(Measure.SUM,) * 4), contributions, buffers)


def _variance(_: Call) -> Accumulators:
    """Sums of values and squares, exact; n * m2 = n * sum of squares - square of the sum.

    The difference loses nothing to cancellation, because both products come with their rounding
    errors (Dekker's splitting, see `two_product`), here as expressions of Spark.
    """
    finite = "{on} and not isnan({v}) and abs({v}) <> double('Infinity')"
    weight = f"if({finite}, cast(w as double), 0D)"
    error = f"if(abs({{v}}) < {_ROOT_MAX}, {_product_error('{v}', '{v}')}, 0D)"
    contributions = tuple(
        f"named_struct('hi', if({finite}, {value}, 0D), 'lo', {weight})"
        for value in ("{v}", "{v} * {v}", error)
    )
    sums, squares, odd, count = "{m0}", "{m1}", "{m3}", "{m4}"
    n = f"cast({count} as double)"
    moment = (
        f"case when {odd} > 0 then double('NaN') when {count} = 0 then 0D"
        f" when {squares}.hi = double('Infinity') then if({count} = 1, 0D, double('Infinity'))"
        f" when {squares}.hi > 1E200D then {_moment(n, _DOWN)} / {_DOWN} / {_DOWN}"
        f" else {_moment(n)} end"
    )
    mean = f"if({odd} > 0, double('NaN'), if({count} = 0, 0D, {sums}.hi / {n}))"
    return Accumulators(
        (Measure.EXACT, Measure.EXACT, Measure.EXACT, Measure.SUM, Measure.SUM),
        (*contributions, f"if({{on}} and not ({finite}), w, 0L)", _COUNT),
        (n, mean, moment),
    )


_ROOT_MAX = "1.3407807929942596E154D"  # of larger values the square is infinite
_DOWN = "4.909093465297727E-91D"  # 2^-300


def _moment(n: str, scale: str = "") -> str:
    """Return SQL for m2, of values multiplied with `scale`, a power of two."""

    def scaled(term: str, times: int) -> str:
        return "(" + " * ".join([term, *[scale] * times]) + ")" if scale else term

    total, rest = scaled("{m0}.hi", 1), scaled("{m0}.lo", 1)
    squares, less = scaled("{m1}.hi", 2), scaled("({m1}.lo + {m2}.hi)", 2)
    square_error = f"({_product_error(total, total)} + 2D * {total} * {rest})"
    squares_error = f"({_product_error(n, squares)} + {n} * {less})"
    difference = f"({n} * {squares} - {total} * {total}) + ({squares_error} - {square_error})"
    return f"greatest(0D, ({difference}) / {n})"


def _product_error(a: str, b: str) -> str:
    """Return SQL for what a * b loses to rounding."""

    def high(x: str) -> str:
        return f"(134217729D * {x} - (134217729D * {x} - {x}))"

    def low(x: str) -> str:
        return f"({x} - {high(x)})"

    return (
        f"((({high(a)} * {high(b)} - {a} * {b}) + {high(a)} * {low(b)} + {low(a)} * {high(b)})"
        f" + {low(a)} * {low(b)})"
    )


def _parity(call: Call) -> Accumulators:
    """Values that occur an even number of times cancel out."""
    odd = "if({on} and w % 2 <> 0, {v}, cast(0 as " + call.argument + "))"
    return Accumulators((Measure.XOR, Measure.SUM), (odd, _COUNT), (_NULL_OR_FIRST,))


def _running_extreme(call: Call) -> Accumulators:
    measure = Measure.MAX if call.function == "Max" else Measure.MIN
    return Accumulators((measure,), ("if({on}, {v}, null)",), ("{m0}",))


def _sorted_extreme(call: Call) -> Accumulators:
    return Accumulators((), (), ("{x}",), largest=call.function == "Max")


def _percentiles(call: Call) -> Accumulators:
    return Accumulators((), (), ("{q}",), fractions=call.fractions)


def _any_call(_: Call) -> bool:
    return True


def is_ordered(call: Call) -> bool:
    """Return whether the values of the only argument sort in the operators as they do in Spark."""
    return call.argument in _ORDERED or call.argument in FLOATS or call.is_decimal


def _is_kept_so_far(call: Call) -> bool:
    return call.append_only and is_ordered(call) and call.argument not in FLOATS


def _is_double(call: Call) -> bool:
    """Return whether the values are doubles, or have the same order and equality as such."""
    exact = call.is_decimal and call.precision_and_scale[0] <= _DOUBLE_DIGITS
    return call.argument in FLOATS or call.argument in INTEGERS or exact


def _is_short(call: Call) -> bool:
    return call.precision_and_scale[0] <= _SUMMED_PRECISION_MAX


_SUMS = ("Sum", "Average")
_EXTREMES = ("Min", "Max")

RULES: tuple[Rule, ...] = (
    Rule("sum of weights", ("Count",), _any_call, _count),
    Rule("sum of integers", _SUMS, lambda call: call.argument in INTEGERS, _integers),
    Rule("sum of decimals", _SUMS, lambda call: call.is_decimal and _is_short(call), _decimals),
    Rule(
        "sum of decimals in two words",
        _SUMS,
        lambda call: call.is_decimal and call.precision_and_scale[1] <= _SUMMED_PRECISION_MAX,
        _wide_decimals,
    ),
    Rule(
        "recompute: the product with a weight would lose digits",
        _SUMS,
        lambda call: call.is_decimal,
    ),
    Rule("exact sum of doubles", _SUMS, lambda call: call.argument in FLOATS, _doubles),
    Rule(
        "exact sums of doubles and their squares",
        ("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp"),
        lambda call: call.argument == "double",
        _variance,
    ),
    Rule("parity of each bit", ("BitXorAgg",), lambda call: bool(call.argument), _parity),
    Rule("recompute: extremes of DISTINCT values", _EXTREMES, lambda call: call.distinct),
    Rule(
        "extreme so far",
        _EXTREMES,
        _is_kept_so_far,
        _running_extreme,
    ),
    Rule(
        "extreme of sorted values",
        _EXTREMES,
        is_ordered,
        _sorted_extreme,
    ),
    Rule("recompute: percentiles of DISTINCT values", ("Percentile",), lambda call: call.distinct),
    Rule(
        "percentiles of sorted values",
        ("Percentile",),
        lambda call: bool(call.fractions) and _is_double(call),
        _percentiles,
    ),
    Rule("recompute: the result doesn't follow from sums", (), _any_call),
)
