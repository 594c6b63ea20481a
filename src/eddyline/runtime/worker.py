"""Helpers for functions that run in Spark's Python workers."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

# a worker runs scans and kernels: what both need is loaded before `prepare_worker` freezes it
import eddyline.source.segment_readers  # noqa: F401
from eddyline.spark.batches import batch_rows
from eddyline.state.retyping import cast_to

CPU = "cpu"
"""In the report of a task: the microseconds of CPU time of its Python thread."""

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
    # the program that forked this process, or what that imports
    daemon = sys.modules.get("pyspark.daemon", sys.modules["__main__"])
    if getattr(daemon, "traceback", None) is traceback:
        daemon.traceback = _Traceback  # type: ignore[attr-defined]


class CpuOfTask:
    """Measures the CPU time of this thread, which runs one task at a time, and adds it to the task's reports as `cpu`."""

    def __init__(self) -> None:
        self._since = time.thread_time_ns()

    def reporting(
        self, report: Callable[[dict[str, Any]], object]
    ) -> Callable[[dict[str, Any]], object]:
        """Return `report` for documents with `cpu`: the microseconds since the last one, or since the beginning."""

        def with_cpu(document: dict[str, Any]) -> object:
            now = time.thread_time_ns()
            spent, self._since = now - self._since, now
            return report({**document, CPU: spent // 1000})

        return with_cpu


class _Traceback:
    """Stands in for the module `traceback` in PySpark's daemon; silent about broken pipes."""

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


def batches_of(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a table's rows in the column names and types that Spark expects, in batches of about `BATCH_BYTES`."""
    if table.num_rows:  # PySpark may lose the batches after an empty one
        rows = cast_to(table, schema)
        yield from (batch for batch in rows.to_batches(batch_rows(rows)) if batch.num_rows)
