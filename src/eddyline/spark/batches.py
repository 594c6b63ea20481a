"""How rows are divided on their way to Spark."""

from __future__ import annotations

import pyarrow as pa

BATCH_BYTES = 16 << 20
"""About how many bytes of rows go to Spark in one batch."""


def batch_rows(table: pa.Table) -> int:
    """Return how many of a table's rows go to Spark in one batch, one at least, by their average length.

    The JVM holds a batch in its direct memory, of which it has as much as heap.

    Example:
        >>> batch_rows(pa.table({"x": pa.array(range(4 << 20), pa.int64())}))
        2097152
    """
    rows: int = table.num_rows * BATCH_BYTES // max(table.nbytes, 1)
    return max(rows, 1)
