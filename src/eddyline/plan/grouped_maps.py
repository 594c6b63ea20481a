"""Lowering of `groupBy(...).applyInPandas` and `applyInArrow`: the function is called for each touched group.

The rows of each group are stored, and what the function returned for it. A group that an epoch touches gets the function's
new rows in place of its old ones, which are retracted as they were emitted (`operators/replace.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getfullargspec
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.util import PythonEvalType

from eddyline.changes import HASH, WEIGHT
from eddyline.operators.base import numbered
from eddyline.plan.build import PARTITION_BY_TIME, Build, Delta, until
from eddyline.plan.logical import (
    GroupedMap,
    children_of,
    id_of,
    items,
    kind,
    output_of,
    type_of,
)
from eddyline.plan.nodes import Node
from eddyline.plan.python import OUTPUTS_KEPT, replaced
from eddyline.plan.recompute import versions
from eddyline.plan.refusals import GROUPED_ITERATOR
from eddyline.plan.render import node_text, texts
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import zone_of

IN_PANDAS, IN_ARROW = "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"
_FORMS = {
    IN_PANDAS: PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF,
    IN_ARROW: PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF,
}


@dataclass(frozen=True, slots=True)
class _OfGroups:
    """A user's function of groups, for groups in one version.

    It is called with the key of a group, whose last two parts are the hash of the group and the version, and with
    its rows: those of `versions`. The output has the hash, the columns of the user's function, and the version as the weight.
    A version before the epoch gives one row, which marks the group as touched.

    Attributes:
        given: names of the columns that the function expects, in the order of `c0..`.
        result: the columns that it returns.
    """

    function: Callable[..., Any]
    given: tuple[str, ...]
    result: StructType

    def call(self, key: tuple[Any, ...], rows: Any) -> Any:
        """Call the user's function, with the key if it takes two arguments, as Spark decides it."""
        two = len(getfullargspec(self.function).args) == 2
        found = self.function(key[:-2], rows) if two else self.function(rows)
        if not isinstance(found, type(rows)):
            wanted = type(rows).__name__
            raise TypeError(f"the function returned {type(found).__name__}, not a {wanted}")
        return found

    def wrong(self, names: list[Any]) -> ValueError:
        """Return the error for an output with other columns."""
        return ValueError(f"the function returned the columns {names}, not {self.result.names}")


@dataclass(frozen=True, slots=True)
class InPandas(_OfGroups):
    """The function of `applyInPandas`."""

    def __call__(self, key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        """Return the output of a group in one version."""
        names, columns = self.result.names, numbered("c", len(self.result))
        if key[-1] < 0:
            marker = {name: pd.Series([None], dtype=object) for name in columns}
            return pd.DataFrame({HASH: [key[-2]], **marker, WEIGHT: [-1]})
        own = rows[[*numbered("c", len(self.given))]].set_axis(list(self.given), axis=1)
        found = self.call(key, own)
        if found.empty and not len(found.columns):
            found = pd.DataFrame(columns=names)
        given = list(found.columns)
        if any(isinstance(name, str) for name in given):
            if sorted(map(str, given)) != sorted(names):
                raise self.wrong(given)
            found = found[names]
        elif len(given) != len(names):
            raise self.wrong(given)
        found = found.set_axis(list(columns), axis=1)
        return found.assign(**{HASH: key[-2], WEIGHT: 1})[[HASH, *columns, WEIGHT]]


@dataclass(frozen=True, slots=True)
class InArrow(_OfGroups):
    """The function of `applyInArrow`.

    Attributes:
        kinds: Arrow types of the columns that it returns.
    """

    kinds: tuple[pa.DataType, ...] = ()

    def __call__(self, key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        """Return the output of a group in one version."""
        names, columns = self.result.names, numbered("c", len(self.result))
        if key[-1].as_py() < 0:
            found = pa.table([pa.nulls(1, kind) for kind in self.kinds], names=list(columns))
        else:
            own = rows.select([*numbered("c", len(self.given))]).rename_columns(list(self.given))
            found = self.call(key, own)
            if not (found.num_columns or found.num_rows):
                found = pa.table([pa.nulls(0, kind) for kind in self.kinds], names=names)
            if sorted(found.column_names) != sorted(names):
                raise self.wrong(found.column_names)
            found = found.select(names).rename_columns(list(columns))
        marks = [pa.repeat(one.cast(pa.int64()), found.num_rows) for one in key[-2:]]
        return pa.table([marks[0], *found.columns, marks[1]], names=[HASH, *columns, WEIGHT])


def grouped_map(build: Build, node: GroupedMap, child: Delta) -> Delta:
    """Lower a function of whole groups."""
    catalyst, name = build.catalyst, kind(node)
    keys, call = items(node.groupingAttributes()), node.functionExpr()
    if call.evalType() != _FORMS[name]:
        raise build.refused(GROUPED_ITERATOR, node_text(node))
    given = children_of(call)
    columns = list({id_of(column): column for column in [*given, *keys]}.values())
    rows = versions(build, child, keys, columns)
    key_names, names = numbered("k", len(keys)), numbered("c", len(given))
    inputs = [*zip(keys, key_names, strict=True), *zip(given, names, strict=True)]
    named = Delta(rows.plan, rows.version, Node("Groups", "touched"))
    frame = build.normalised(build.named(named, inputs), key_names)
    grouped = build.hashed(frame, key_names, [*key_names, *names]).groupBy(*key_names, HASH, WEIGHT)
    out = output_of(node)
    result = StructType([StructField(one.name(), type_of(one)) for one in out])
    schema = StructType([StructField(HASH, LongType())])
    for place, field in enumerate(result):
        schema.add(f"c{place}", field.dataType)
    schema.add(WEIGHT, LongType())
    function = catalyst.python_function(call), tuple(one.name() for one in given), result
    if name == IN_PANDAS:
        called = grouped.applyInPandas(_plain(InPandas(*function)), schema)
    else:
        kinds = tuple(arrow_schema(result, zone_of(catalyst.session)).types)
        called = grouped.applyInArrow(_plain(InArrow(*function, kinds)), schema)
    done = replaced(build, called, single=not keys)
    plan, others = build.rebound(done, out)
    if child.endless and not rows.expiry:
        build.grows(f"the rows by {', '.join(texts(keys)) or 'nothing'}", PARTITION_BY_TIME)
    shown = Node(
        "Function of groups",
        OUTPUTS_KEPT,
        node_text(node),
        texts(keys),
        until("input rows by group", rows.expiry) + ", outputs",
        shuffle=True,
        children=(child.node,),
    )
    return Delta(plan, others[-1], shown, single=not keys, endless=child.endless)


def _plain(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a plain function: Spark counts the arguments of the methods of an object otherwise."""

    def of_group(key: Any, rows: Any) -> Any:
        return function(key, rows)

    return of_group
