"""The comparison of two results as multisets of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.answers.changelog import net_changes
from eddyline.changes import WEIGHT
from eddyline.state.kernels import repeat
from eddyline.state.retyping import cast_to

SHOWN_ROWS = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two multisets of rows.

    Attributes:
        left_rows, right_rows: the number of rows of each.
        left_only, right_only: rows that only one of them has, at most five of each.
    """

    left_rows: int
    right_rows: int
    left_only: tuple[dict[str, Any], ...]
    right_only: tuple[dict[str, Any], ...]

    @property
    def equal(self) -> bool:
        """Whether the two are equal."""
        return not self.left_only and not self.right_only


def difference(left: pa.Table, right: pa.Table) -> Difference:
    """Compare two tables as multisets of rows; columns by position.

    Floating point numbers are equal within a relative 1e-9, because Spark doesn't define the order
    in which it adds them up. Everything else must be identical.
    """
    columns = [f"c{i}" for i in range(left.num_columns)]
    one = pa.table(left.columns, names=columns)
    two = cast_to(pa.table(right.columns, names=columns), one.schema)
    both = pa.concat_tables(
        [
            one.append_column(WEIGHT, pa.array(np.ones(one.num_rows, np.int64))),
            two.append_column(WEIGHT, pa.array(np.full(two.num_rows, -1))),
        ]
    )
    rest = net_changes(both, columns)
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
    rows = [tuple(_with_sorted_maps(value) for value in row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (repr(_without_floats(row)), _floats(row)))


def _with_sorted_maps(value: Any) -> Any:
    """Sort the entries of a value's maps, which have no defined order."""
    if isinstance(value, dict):
        return {key: _with_sorted_maps(part) for key, part in value.items()}
    if isinstance(value, list):
        parts = [_with_sorted_maps(part) for part in value]
        is_map = all(isinstance(part, tuple) for part in parts)
        return sorted(parts, key=repr) if is_map else parts
    if isinstance(value, tuple):
        return tuple(_with_sorted_maps(part) for part in value)
    return value


def _without_floats(value: Any) -> Any:
    """Replace the finite floats in a value by a placeholder, so that nearly equal rows sort alike."""
    if isinstance(value, float):
        return "f" if math.isfinite(value) else repr(value)
    if isinstance(value, list | tuple):
        return [_without_floats(part) for part in value]
    if isinstance(value, dict):
        return [(key, _without_floats(part)) for key, part in value.items()]
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
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and _close(list(a.values()), [b[key] for key in a])
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b)
