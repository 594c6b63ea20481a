"""Which incremental rule an operator gets, and what no live view can keep. Pure decisions, no JVM."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eddyline.state.kernels import Measure

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FLOATS = ("float", "double")
_VARIANCES = ("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp")


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate call as the rules see it.

    Attributes:
        function: class name of the function in Catalyst.
        types: simple names of the argument types, such as `decimal(10,2)`.
        distinct: whether it aggregates distinct arguments.
    """

    function: str
    types: tuple[str, ...]
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Accumulators:
    """How a linear aggregate is kept: contributions of a row, and the buffers Spark finishes.

    `{v}` stands for the argument's column, `{on}` for "this row counts", `{m}` for the accumulators
    in their order; contributions are summed over the delta with the weight `w` in them.

    Attributes:
        largest: of a minimum or maximum over rows that can go, which of the two: all its values
            are kept in order, and `{x}` stands for the wanted one. None for everything else.
    """

    measures: tuple[Measure, ...]
    contributions: tuple[str, ...]
    buffers: tuple[str, ...]
    largest: bool | None = None


def linear(call: Call, append_only: bool) -> Accumulators | None:
    """How an aggregate is kept whose value follows from sums over its input, or from order; else None.

    Minimum and maximum follow from the old value and the delta only while nothing is deleted;
    otherwise all values are kept.
    """
    count = "if({on}, w, 0L)"
    if call.function == "Count":
        return Accumulators((Measure.SUM,), (count,), ("{m0}",))
    if len(call.types) != 1:
        return None
    argument = call.types[0]
    if call.function in ("Sum", "Average"):
        finish: tuple[str, ...] = ("if({m1} = 0, null, {m0})",)
        if call.function == "Average":
            finish = ("{m0}", "{m1}")
        if argument in INTEGERS:
            wide = argument == "bigint" and call.function == "Average"
            value = "cast({v} as decimal(20,0)) * cast(w as decimal(10,0))" if wide else "{v} * w"
            zero = "cast(0 as decimal(38,0))" if wide else "0L"
            value = f"cast({value} as decimal(38,0))" if wide else value
            measures = (Measure.SUM, Measure.SUM)
            return Accumulators(measures, (f"if({{on}}, {value}, {zero})", count), finish)
        if argument.startswith("decimal("):
            precision, scale = (int(part) for part in argument[8:-1].split(","))
            if precision > 27:  # the product with a weight would lose digits
                return None
            kept = f"decimal(38,{scale})"
            value = (
                f"if({{on}}, cast({{v}} * cast(w as decimal(10,0)) as {kept}), cast(0 as {kept}))"
            )
            if call.function == "Sum":
                finish = ("{m0}", "{m1} = 0")
            return Accumulators((Measure.SUM, Measure.SUM), (value, count), finish)
        if argument in FLOATS:
            return _double(call.function)
        return None
    if call.function in _VARIANCES and argument == "double":
        return _variance()
    if call.function == "BitXorAgg":
        odd = "if({on} and w % 2 <> 0, {v}, cast(0 as " + argument + "))"
        return Accumulators((Measure.XOR, Measure.SUM), (odd, count), ("if({m1} = 0, null, {m0})",))
    if call.function in ("Min", "Max") and not call.distinct:
        largest = call.function == "Max"
        if append_only and _ordered_in_polars(argument):
            measure = Measure.MAX if largest else Measure.MIN
            return Accumulators((measure,), ("if({on}, {v}, null)",), ("{m0}",))
        if _ordered_in_polars(argument) or argument in FLOATS:
            return Accumulators((), (), ("{x}",), largest)
    return None


def _double(function: str) -> Accumulators:
    """Doubles: an exact pair for the finite values, and counts of NaN and the infinities."""
    value = "cast({v} as double)"
    infinite = "double('Infinity')"
    finite = f"{{on}} and not isnan({value}) and abs({value}) <> {infinite}"
    contributions = (
        f"named_struct('hi', if({finite}, {value}, 0D), 'lo', if({finite}, cast(w as double), 0D))",
        f"if({{on}} and isnan({value}), w, 0L)",
        f"if({{on}} and {value} = {infinite}, w, 0L)",
        f"if({{on}} and {value} = -{infinite}, w, 0L)",
        "if({on}, w, 0L)",
    )
    total = (
        "case when {m1} > 0 or ({m2} > 0 and {m3} > 0) then double('NaN')"
        f" when {{m2}} > 0 then {infinite} when {{m3}} > 0 then -{infinite} else {{m0}}.hi end"
    )
    buffers: tuple[str, ...] = (f"if({{m4}} = 0, null, {total})",)
    if function == "Average":
        buffers = (total, "{m4}")
    return Accumulators((Measure.EXACT, *(Measure.SUM,) * 4), contributions, buffers)


def _variance() -> Accumulators:
    """Sums of values and squares, exact; n * m2 = n * sum of squares - square of the sum.

    The difference loses nothing to cancellation, because both products come with their rounding
    errors (Dekker's splitting, see `two_product`), here as expressions of Spark.
    """
    finite = "{on} and not isnan({v}) and abs({v}) <> double('Infinity')"
    weight = f"if({finite}, cast(w as double), 0D)"
    contributions = tuple(
        f"named_struct('hi', if({finite}, {value}, 0D), 'lo', {weight})"
        for value in ("{v}", "{v} * {v}", _product_error("{v}", "{v}"))
    )
    sums, squares, errors, odd, count = (f"{{m{i}}}" for i in range(5))
    n = f"cast({count} as double)"
    less = f"({squares}.lo + {errors}.hi)"
    square = f"{sums}.hi * {sums}.hi"
    square_error = f"({_product_error(f'{sums}.hi', f'{sums}.hi')} + 2D * {sums}.hi * {sums}.lo)"
    scaled_error = f"({_product_error(n, f'{squares}.hi')} + {n} * {less})"
    scaled = f"({n} * {squares}.hi - {square}) + ({scaled_error} - {square_error})"
    moment = f"if({odd} > 0, double('NaN'), if({count} = 0, 0D, greatest(0D, ({scaled}) / {n})))"
    mean = f"if({odd} > 0, double('NaN'), if({count} = 0, 0D, {sums}.hi / {n}))"
    return Accumulators(
        (Measure.EXACT, Measure.EXACT, Measure.EXACT, Measure.SUM, Measure.SUM),
        (*contributions, f"if({{on}} and not ({finite}), w, 0L)", "if({on}, w, 0L)"),
        (n, mean, moment),
    )


def _product_error(a: str, b: str) -> str:
    """SQL: what a * b loses to rounding."""

    def high(x: str) -> str:
        return f"(134217729D * {x} - (134217729D * {x} - {x}))"

    def low(x: str) -> str:
        return f"({x} - {high(x)})"

    return (
        f"((({high(a)} * {high(b)} - {a} * {b}) + {high(a)} * {low(b)} + {low(a)} * {high(b)})"
        f" + {low(a)} * {low(b)})"
    )


def _ordered_in_polars(name: str) -> bool:
    return name in (*INTEGERS, "string", "date", "timestamp", "timestamp_ntz", "boolean") or (
        name.startswith("decimal(")
    )


# Leaf expressions whose value changes with the moment or the machine, and the way out.
_CLOCK = "write the moment as a literal, or give it as a column of a table that you update"
_RANDOM = "compute it before the row enters the stream, or hash a key of the row instead"
_QUANTILES = "use approx_percentile or percentile"
REFUSED_EXPRESSIONS: dict[str, tuple[str, str]] = {
    "CurrentTimestamp": ("a live view would have to change without any new row", _CLOCK),
    "CurrentTimestampLike": ("a live view would have to change without any new row", _CLOCK),
    "Now": ("a live view would have to change without any new row", _CLOCK),
    "LocalTimestamp": ("a live view would have to change without any new row", _CLOCK),
    "CurrentDate": ("a live view would have to change without any new row", _CLOCK),
    "CurDateExpressionBuilder": ("a live view would have to change without any new row", _CLOCK),
    "CurrentTime": ("a live view would have to change without any new row", _CLOCK),
    "Rand": ("it isn't deterministic", _RANDOM),
    "Randn": ("it isn't deterministic", _RANDOM),
    "RandStr": ("it isn't deterministic", _RANDOM),
    "Uniform": ("it isn't deterministic", _RANDOM),
    "Uuid": ("it isn't deterministic", _RANDOM),
    "Shuffle": ("it isn't deterministic", _RANDOM),
    "MonotonicallyIncreasingID": ("it isn't deterministic", _RANDOM),
    "SparkPartitionID": ("it depends on where the row is processed", _RANDOM),
    "InputFileName": ("it depends on where the row is read", _RANDOM),
    "Measure": ("it is known in metric views only", "write the aggregate out"),
    "InputFileBlockStart": ("it depends on where the row is read", _RANDOM),
    "InputFileBlockLength": ("it depends on where the row is read", _RANDOM),
    **dict.fromkeys(
        ("CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentPath", "SparkVersion"),
        ("it depends on who runs the engine, and where", "write the value as a literal"),
    ),
    **{
        f"Kll{what}{kind}": ("the sketch draws random numbers when it is merged", _QUANTILES)
        for what in ("SketchAgg", "MergeAgg", "SketchMerge")
        for kind in ("Bigint", "Double", "Float")
    },
}

# What Spark takes for the time of the day on which a text becomes a date or timestamp.
MOVING_MOMENTS = re.compile(r"\s*(now|today|tomorrow|yesterday)\s*", re.IGNORECASE)

REFUSED_NODES: dict[str, tuple[str, str]] = {
    "Sample": (
        "TABLESAMPLE isn't deterministic",
        "filter by a hash of a key: WHERE xxhash64(k) % 10 = 0",
    ),
    "Tail": (
        "the last rows of a table without order aren't defined",
        "use ORDER BY ... DESC LIMIT",
    ),
    "UnionLoop": (
        "recursive queries can't be kept live yet",
        "unroll the recursion to a fixed depth with joins",
    ),
    "EventTimeWatermark": ("watermarks are not known here yet", "leave withWatermark away"),
    "DeduplicateWithinWatermark": ("watermarks are not known here yet", "use SELECT DISTINCT"),
}

# Types that can't travel between Spark and the kernels, with the way out.
REFUSED_TYPES: dict[str, str] = {
    "interval": "cast it, for example to days or to a string",
    "interval year": "cast it to a number of months",
    "interval month": "cast it to a number of months",
    "interval year to month": "cast it to a number of months",
    # kernels compare bytes, a collation doesn't
    "string collate ": "use lower(x) instead, or x COLLATE UTF8_BINARY",
}
