"""Helpers for functions that run in Spark's Python workers."""

from __future__ import annotations

import functools
import gc
import os
import sys
import traceback
from collections.abc import Iterator

import pyarrow as pa

# a worker runs scans and kernels: what both need is loaded before `prepare_worker` freezes it
import eddyline.source.segment_readers  # noqa: F401
from eddyline.state.retyping import cast_to

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a task has one core


@functools.cache
def prepare_worker() -> None:
    """Prepare this Python worker for many short tasks; call it at the start of each task.

    PySpark's worker collects garbage after each task, which takes 60 ms for the loaded modules alone,
    so these are frozen. Also suppresses the traceback about a closed connection that a worker prints
    when Spark ends it while it is idle.
    """
    gc.collect()
    gc.freeze()
    daemon = sys.modules["__main__"]
    if getattr(daemon, "traceback", None) is traceback:
        daemon.traceback = _Traceback  # type: ignore[attr-defined]


class _Traceback:
    """Stands in for the module `traceback` in PySpark's daemon; silent about broken pipes."""

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


def batches_of(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a table's rows in the column names and types that Spark expects."""
    if table.num_rows:  # PySpark may lose the batches after an empty one
        yield from (batch for batch in cast_to(table, schema).to_batches() if batch.num_rows)
