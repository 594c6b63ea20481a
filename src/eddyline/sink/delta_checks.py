"""Which rows a Delta table refuses: by its CHECK constraints, its invariants, its columns that are never null, and far dates.

delta-rs refuses a whole write if one row violates a constraint, and doesn't name the constraint. The constraints
are SQL, so delta-rs's own query engine evaluates them, as its writer does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.sink.texts import far_places

if TYPE_CHECKING:
    from deltalake import DeltaTable

CONSTRAINT, INVARIANT = "delta.constraints.", "delta.invariants"

FIRST_DATE, LAST_DATE = -96_465_292, 95_026_236
"""The dates that delta-rs can write, as days since 1970: from -262143-01-01 to 262142-12-31."""

_PLACE = "eddyline_place"


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must be true for each row.

    Attributes:
        name: what a dead letter says of it.
        expression: SQL; a row for which it is false or null violates it.
    """

    name: str
    expression: str


def checks_of(table: DeltaTable) -> list[Check]:
    """Return the constraints and invariants of a table."""
    found = [
        Check(f"the constraint {name.removeprefix(CONSTRAINT)}: {expression}", expression)
        for name, expression in sorted(table.metadata().configuration.items())
        if name.startswith(CONSTRAINT)
    ]
    for field in table.schema().fields:
        if INVARIANT in field.metadata:
            expression = json.loads(field.metadata[INVARIANT])["expression"]["expression"]
            found.append(Check(f"the invariant of column {field.name}: {expression}", expression))
    return found


def violations(
    deltalake: Any, table: DeltaTable, rows: pa.Table, *, whole: bool, nullable: bool = False
) -> npt.NDArray[np.object_]:
    """Return for each row what it violates, None if the table takes it.

    Args:
        deltalake: the package.
        rows: with the names that the table has.
        whole: columns that only the table has become null; else they keep what they hold, and conditions on them
            aren't checked.
        nullable: whether null is allowed in each column.
    """
    found = np.full(rows.num_rows, None, object)
    if not rows.num_rows:
        return found
    schema = pa.schema(table.schema().to_arrow())
    for name, at in far_dates(rows):
        found[at] = f"the column {name} has a date outside of the years -262143 to 262142"
    written = pc.is_null(pa.array(found, pa.string()))
    if whole:
        for field in schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    for field in () if nullable else schema:
        if field.name in rows.column_names:
            for name, at in _forbidden_nulls(field.name, field, rows[field.name].combine_chunks()):
                found[at] = f"the column {name} is never null"
    checks = checks_of(table)
    if not checks:
        return found
    rows = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
    with TemporaryDirectory(prefix="eddyline-") as folder:
        deltalake.write_deltalake(folder, rows.filter(written))
        asked = deltalake.QueryBuilder().register("written", deltalake.DeltaTable(folder))
        for check in checks:
            query = f"SELECT {_PLACE} FROM written WHERE ({check.expression}) IS NOT TRUE"
            try:
                bad = pa.table(asked.execute(query).read_all())
            except deltalake.exceptions.DeltaError:
                if whole:
                    raise
                continue  # it reads columns that only the table has
            found[bad[_PLACE].to_numpy()] = check.name
    return found


def far_dates(rows: pa.Table) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """Return the places of rows with a date that delta-rs can't write, with the names of the columns."""
    return [
        (name, at)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if _has_dates(column.type) and len(at := _far(column.combine_chunks()))
    ]


def writable(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows delta-rs can write."""
    mask = np.ones(rows.num_rows, np.bool_)
    for _, at in far_dates(rows):
        mask[at] = False
    return mask


def _has_dates(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_dates(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_date32(kind))


def _far(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the places of values with a far date in them."""
    kind = values.type
    if pa.types.is_date32(kind):
        far = far_places(values, (FIRST_DATE, LAST_DATE))
        return np.flatnonzero([] if far is None else far.to_numpy(zero_copy_only=False))
    if pa.types.is_struct(kind):
        inner = [_far(pc.struct_field(values, [place])) for place in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inner = [_of_lists(values, _far(_within(values, values.values)))]
    elif pa.types.is_map(kind):
        inner = [
            _of_lists(values, _far(_within(values, part))) for part in (values.keys, values.items)
        ]
    else:
        inner = []
    return np.unique(np.concatenate([np.empty(0, np.int64), *inner]))


def _forbidden_nulls(
    name: str, field: pa.Field, values: pa.Array
) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """Return the places of rows with a null where a field, or one inside of it, has none.

    Args:
        name: of the field, with those around it.
    """
    found = []
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    if not field.nullable and nulls.any():
        found.append((name, np.flatnonzero(nulls)))
    kind = field.type
    if pa.types.is_struct(kind):
        for place, inner in enumerate(kind):
            child = pc.struct_field(values, [place])
            found += _forbidden_nulls(f"{name}.{inner.name}", inner, child)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        inner, path = (
            (kind.item_field, f"{name}.value")
            if pa.types.is_map(kind)
            else (kind.value_field, f"{name}.element")
        )
        children = values.items if pa.types.is_map(kind) else values.values
        for where, at in _forbidden_nulls(path, inner, _within(values, children)):
            found.append((where, _of_lists(values, at)))
    return found


def _within(values: pa.Array, children: pa.Array) -> pa.Array:
    """Return the elements of lists or maps, as these may be a part of others."""
    offsets = values.offsets.to_numpy()
    return children.slice(offsets[0], offsets[-1] - offsets[0])


def _of_lists(values: pa.Array, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places of the lists or maps that hold some elements; a list that is null holds none."""
    of = np.repeat(np.arange(len(values)), np.diff(values.offsets.to_numpy()))
    lists = np.unique(of[at])
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = lists[~nulls[lists]]
    return found
