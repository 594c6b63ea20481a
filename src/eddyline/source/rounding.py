"""Times that are rounded down when they are read, because nothing asks for more than the interval that they lie in."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from eddyline.source.conditions import column_of

_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Rounding:
    """How times of a column are rounded down: to `start` and a multiple of `step`, in microseconds."""

    column: str
    step: int
    start: int = 0

    def applied(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return rows with rounded times, in the type that the column has in the plan's schema.

        Rows of which one has a time more than 140,000 years away stay as they are: Spark refuses a window of the very first or last times.
        """
        place, column = rows.column_names.index(self.column), column_of(rows, schema, self.column)
        times = column.cast(pa.int64()).fill_null(0).to_numpy()
        if len(times) and (times.min() < -_MOST or times.max() > _MOST):
            return rows
        rounded = times - (times - self.start) % self.step
        missing = column.is_null().to_numpy() if column.null_count else None
        return rows.set_column(
            place, self.column, pa.array(rounded, mask=missing).view(column.type)
        )
