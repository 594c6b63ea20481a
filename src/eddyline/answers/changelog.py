"""Changes: net deltas, changelogs in retract and update form, and the comparison of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.changes import APPEND, DELETE, HASH, WEIGHT
from eddyline.state.kernels import Measure, consolidate, identities, in_types_of, repeat

SHOWN_ROWS = 5


def net(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows with weights, equal rows brought together, those without change dropped."""
    hashed = rows.add_column(0, HASH, pa.array(np.zeros(rows.num_rows, np.int64)))
    done = consolidate(hashed, columns, [(WEIGHT, Measure.SUM)])
    return done.drop_columns([HASH])


def retracted(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Net changes as rows with `op`: first the deletes, then the appends, each as often as it is."""
    weights = rows[WEIGHT].to_numpy()
    parts = []
    for operation, counts in ((DELETE, -weights), (APPEND, weights)):
        copies = repeat(rows, counts).select(list(columns))
        parts.append(
            copies.append_column("op", pa.array([operation] * copies.num_rows, pa.string()))
        )
    return pa.concat_tables(parts)


def paired(
    rows: pa.Table, columns: Sequence[str], key: Sequence[int] | None, kind: pa.StructType
) -> pa.Table:
    """Net changes as `before, after`: a delete and an append of the same key become one record.

    Args:
        rows: columns and weights.
        key: places of the key's columns; None where the view has no key: nothing is paired.
        kind: Arrow type of a row.
    """
    weights = rows[WEIGHT].to_numpy()
    gone = repeat(rows.filter(pa.array(weights < 0)), -weights[weights < 0])
    come = repeat(rows.filter(pa.array(weights > 0)), weights[weights > 0])
    lines: list[tuple[int | None, int | None]]
    if key is None:
        lines = [(i, None) for i in range(gone.num_rows)] + [
            (None, i) for i in range(come.num_rows)
        ]
    else:
        names = [columns[place] for place in key]
        lines = _matched(gone, come, names)
    before = pa.array([line[0] for line in lines], pa.int64())
    after = pa.array([line[1] for line in lines], pa.int64())
    return pa.table(
        {
            "before": _structs(gone, columns, kind).take(before),
            "after": _structs(come, columns, kind).take(after),
        }
    )


def _matched(
    gone: pa.Table, come: pa.Table, names: list[str]
) -> list[tuple[int | None, int | None]]:
    sides = []
    for table, name in ((gone, "before"), (come, "after")):
        frame = identities(table, names).with_columns(pl.lit(0).alias("one"))
        frame = frame.with_row_index(name)
        place = pl.int_range(pl.len()).over([*names, "one"]).alias("place")
        sides.append(frame.with_columns(place))
    joined = sides[0].join(
        sides[1],
        on=[*names, "one", "place"],
        how="full",
        nulls_equal=True,
        maintain_order="left_right",
    )
    return list(zip(joined["before"].to_list(), joined["after"].to_list(), strict=True))


def _structs(rows: pa.Table, columns: Sequence[str], kind: pa.StructType) -> pa.Array:
    if rows.num_rows == 0:
        return pa.nulls(0, kind)
    parts = [
        rows[name].combine_chunks().cast(field.type)
        for name, field in zip(columns, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind))


@dataclass(frozen=True, slots=True)
class Difference:
    """How two multisets of rows differ.

    Attributes:
        left_rows, right_rows: their sizes.
        left_only, right_only: rows of one that the other lacks, at most five of each.
    """

    left_rows: int
    right_rows: int
    left_only: tuple[dict[str, Any], ...]
    right_only: tuple[dict[str, Any], ...]

    @property
    def equal(self) -> bool:
        """Whether there is none."""
        return not self.left_only and not self.right_only


def difference(left: pa.Table, right: pa.Table) -> Difference:
    """Compare two tables as multisets of rows; columns by position.

    Floating point numbers are equal within a relative 1e-9: the order in which offline Spark adds
    them up is not defined. Everything else must be identical.
    """
    columns = [f"c{i}" for i in range(left.num_columns)]
    one = pa.table(left.columns, names=columns)
    two = in_types_of(pa.table(right.columns, names=columns), one.schema)
    both = pa.concat_tables(
        [
            one.append_column(WEIGHT, pa.array(np.ones(one.num_rows, np.int64))),
            two.append_column(WEIGHT, pa.array(np.full(two.num_rows, -1))),
        ]
    )
    rest = net(both, columns)
    weights = rest[WEIGHT].to_numpy()
    left_rest = repeat(rest.filter(pa.array(weights > 0)), weights[weights > 0])
    right_rest = repeat(rest.filter(pa.array(weights < 0)), -weights[weights < 0])
    left_rows = _sorted_rows(left_rest.select(columns))
    right_rows = _sorted_rows(right_rest.select(columns))
    if len(left_rows) == len(right_rows) and all(
        _close(a, b) for a, b in zip(left_rows, right_rows, strict=True)
    ):
        left_rows, right_rows = [], []
    return Difference(
        left.num_rows,
        right.num_rows,
        tuple(dict(zip(left.column_names, row, strict=True)) for row in left_rows[:SHOWN_ROWS]),
        tuple(dict(zip(left.column_names, row, strict=True)) for row in right_rows[:SHOWN_ROWS]),
    )


def _sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = [tuple(_in_order(value) for value in row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (repr(_coarse(row)), _floats(row)))


def _in_order(value: Any) -> Any:
    """The value with the entries of its maps, which have no order, sorted."""
    if isinstance(value, dict):
        return {key: _in_order(part) for key, part in value.items()}
    if isinstance(value, list):
        parts = [_in_order(part) for part in value]
        is_map = all(isinstance(part, tuple) for part in parts)
        return sorted(parts, key=repr) if is_map else parts
    if isinstance(value, tuple):
        return tuple(_in_order(part) for part in value)
    return value


def _coarse(value: Any) -> Any:
    if isinstance(value, float):
        return "f" if math.isfinite(value) else repr(value)
    if isinstance(value, list | tuple):
        return [_coarse(part) for part in value]
    if isinstance(value, dict):
        return [(key, _coarse(part)) for key, part in value.items()]
    return value


def _floats(value: Any) -> list[float]:
    if isinstance(value, float):
        return [value] if math.isfinite(value) else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for part in value for number in _floats(part)]
    return []


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    return bool(a == b)
