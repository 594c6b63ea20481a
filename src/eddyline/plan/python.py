"""Python functions in views: outputs are stored, so that they are retracted exactly as they were emitted.

A function may change between two runs of a program, or fail where it once worked. So if rows can
be retracted the outputs are stored (`operators/replace.py`), and the function is called for the new
version of the touched rows only: for rows of the old version a wrapper returns null.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import numbered
from eddyline.operators.replace import SLOT, Replace
from eddyline.plan.build import Build, Delta
from eddyline.plan.eventtime import Bound, Expiry, attribute_bounds
from eddyline.plan.logical import (
    Expression,
    Plan,
    children_of,
    find,
    id_of,
    kind,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.refusals import PYTHON_FORM
from eddyline.plan.render import text

OUTPUTS_KEPT = "Python called for new versions, outputs kept"
FUNCTIONS = ("PythonUDF", "PythonUDAF")
_BY_ROW = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
_AGGREGATES = (
    PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF,
    PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF,
)


def by_row(function: Callable[..., Any], skip: Any, *values: Any) -> Any:
    """Call a function of one row."""
    return None if skip else function(*values)


def by_series(
    function: Callable[..., Any], fields: Sequence[str], skip: pd.Series, *values: Any
) -> Any:
    """Call a function of pandas Series (or DataFrames for structs)."""
    if not skip.any():
        return function(*values)
    if skip.all():
        nothing = pd.Series([None] * len(skip), dtype=object)
        return pd.DataFrame(dict.fromkeys(fields, nothing)) if fields else nothing
    return _spread_series(function(*_without(skip, values)), skip)


def _without(skip: Any, values: Sequence[Any]) -> list[Any]:
    """Return Series, DataFrames or Arrow arrays without the rows that are skipped."""
    if isinstance(skip, pd.Series):
        return [value[~skip].reset_index(drop=True) for value in values]
    kept = pc.invert(skip)
    return [value.filter(kept) for value in values]


def _spread_series(given: Any, skip: pd.Series) -> Any:
    given = given.astype(object)  # integers must not become floats because of nulls
    given.index = skip.index[~skip]
    return given.reindex(skip.index)


def by_arrays(function: Callable[..., Any], skip: pa.Array, *values: pa.Array) -> pa.Array:
    """Call a function of Arrow arrays."""
    return _spread_array(function(*_without(skip, values)), skip)


def _spread_array(given: pa.Array, skip: pa.Array) -> pa.Array:
    flags = skip.to_numpy(zero_copy_only=False)
    return given.take(pa.array((~flags).cumsum() - 1, mask=flags))


def by_batches(
    function: Callable[..., Any], batches: Iterator[Any], spread: Callable[[Any, Any], Any]
) -> Iterator[Any]:
    """Call a function of an iterator of batches; yield one output batch for each."""
    skips: deque[Any] = deque()

    def kept() -> Iterator[Any]:
        for skip, *values in batches:
            skips.append(skip)
            rest = _without(skip, values)
            yield rest[0] if len(rest) == 1 else tuple(rest)

    for given in function(kept()):
        yield spread(given, skips.popleft())


def of_group(function: Callable[..., Any], skip: Any, *values: Any) -> Any:
    """Call an aggregate of a group, whose rows are all skipped or none is."""
    return None if any(skip[:1].tolist()) else function(*values)


@dataclass(frozen=True, slots=True)
class Skipping:
    """A user's function with a first argument that marks the rows for which it is not called.

    Attributes:
        kind: a PythonEvalType.
        fields: of the struct that it returns; none if it returns a plain value.
    """

    function: Callable[..., Any]
    kind: int
    fields: tuple[str, ...]

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's output, and null for the rows that are skipped."""
        if self.kind in _BY_ROW:
            return by_row(self.function, *arguments)
        if self.kind == PythonEvalType.SQL_SCALAR_PANDAS_UDF:
            return by_series(self.function, self.fields, *arguments)
        if self.kind == PythonEvalType.SQL_SCALAR_ARROW_UDF:
            return by_arrays(self.function, *arguments)
        if self.kind == PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF:
            return by_batches(self.function, arguments[0], _spread_series)
        if self.kind == PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF:
            return by_batches(self.function, arguments[0], _spread_array)
        return of_group(self.function, *arguments)


KNOWN = frozenset(
    (
        *_BY_ROW,
        *_AGGREGATES,
        PythonEvalType.SQL_SCALAR_PANDAS_UDF,
        PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
    )
)


def calls_python(expressions: Sequence[Expression]) -> bool:
    """Return whether one of the expressions calls a Python function."""
    return any(find(e, lambda name: name in FUNCTIONS) for e in expressions)


def skipping(build: Build, root: Expression, skip: Expression) -> Expression:
    """Return the expression with no Python function called for the rows where `skip` holds."""
    catalyst = build.catalyst

    def change(call: Expression) -> Expression | None:
        inner = call
        if kind(call) == "AggregateExpression":
            inner = call.aggregateFunction()
        if kind(inner) not in FUNCTIONS:
            return None
        if inner.evalType() not in KNOWN:
            raise build.refused(PYTHON_FORM.about(name=inner.name()), text(root))
        result, form = type_of(inner), inner.evalType()
        fields = tuple(result.names) if isinstance(result, StructType) else ()
        wrapped = Skipping(catalyst.python_function(inner), form, fields)
        known = UserDefinedFunction(wrapped, result, name=inner.name(), evalType=form)
        given = [skip, *(skipping(build, child, skip) for child in children_of(inner))]
        return catalyst.python_call(known, given, call)

    return catalyst.rewrite(root, change)


def kept_rule(rule: str, *, python: bool) -> str:
    """Return the rule that `explain` shows where `keep_outputs` stores what a rule gives."""
    return f"{rule}, {OUTPUTS_KEPT if python else 'outputs kept'}"


def keep_outputs(
    build: Build,
    plan: Plan,
    version: Expression,
    keys: Sequence[Expression],
    bounds: Mapping[int, Bound],
) -> tuple[Plan, Expression]:
    """Retract the stored outputs of each touched group and append its new ones.

    Args:
        plan: the columns of a node for both versions of the touched groups, and the version.
        keys: attributes of the plan, or expressions over them; the groups.
        bounds: of the keys, by their places.

    Returns:
        the plan of the columns, and the weight's attribute.
    """
    columns = [a for a in output_of(plan) if not a.semanticEquals(version)]
    names, key_names = numbered("c", len(columns)), numbered("k", len(keys))
    delta = Delta(plan, version, Node("Outputs", "kept"))
    inputs = [*zip(keys, key_names, strict=True), *zip(columns, names, strict=True)]
    frame = build.normalised(build.named(delta, inputs), key_names)
    places = {id_of(column): name for column, name in zip(columns, names, strict=True)}
    kept = attribute_bounds(keys, bounds)
    expiry = [Expiry(SLOT, places[key], bound) for key, bound in kept.items() if key in places]
    hashed = build.hashed(frame, key_names, names)
    bound, others = build.rebound(replaced(build, hashed, expiry, single=not keys), columns)
    return bound, others[-1]


def replaced(
    build: Build, hashed: DataFrame, expiry: Sequence[Expiry] = (), *, single: bool
) -> DataFrame:
    """Replace the stored rows of each touched group.

    Args:
        hashed: the hash of the group, `c0..`, and the version.
    """
    rows = build.shuffled(hashed, single=single)
    out = [field for field in rows.schema if field.name not in (HASH, WEIGHT)]
    return build.run(rows, Replace(len(out)), out, single=single, expiry=expiry)
