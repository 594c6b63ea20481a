"""Rows that a view's plan reads more than once: one Spark job writes them into files, a later one reads these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
from pyspark import TaskContext

from eddyline.runtime.context import EpochContext
from eddyline.runtime.worker import batches_of, prepare_worker
from eddyline.storage.files import Files

_SHARED = "shared"


@dataclass(frozen=True, slots=True)
class SharedRows:
    """The files of rows that are shared within a view's plan, in the folder of an attempt at an epoch.

    Attributes:
        node, name: id of the view, and the name of the rows in its plan; empty for all of the view.
    """

    files: Files
    node: str
    name: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of the names of the files."""
        return f"{self.node}.{_SHARED}." + (f"{self.name}." if self.name else "")

    def names(self, folder: str) -> list[str]:
        """Return the names of the existing files, sorted."""
        found = self.files.names(folder)
        return [f"{folder}/{name}" for name in found if name.startswith(self.prefix)]

    def remove(self, folder: str) -> None:
        """Remove the files."""
        for name in self.names(folder):
            self.files.remove(name)


@dataclass(frozen=True, slots=True)
class SharedWriter:
    """Writes the rows of each task of a job into a file.

    A task that Spark runs twice writes the same rows, which replace the first ones.
    """

    rows: SharedRows
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches; yield nothing."""
        prepare_worker()
        task = TaskContext.get()
        assert task is not None

        def fill(stream: BinaryIO) -> None:
            with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), self.schema) as writer:
                for batch in batches:
                    for part in batches_of(pa.Table.from_batches([batch]), self.schema):
                        writer.write_batch(part)

        name = f"{EpochContext.current().folder}/{self.rows.prefix}{task.partitionId()}.arrow"
        self.rows.files.write(name, fill, durable=False)
        yield from ()


@dataclass(frozen=True, slots=True)
class SharedReader:
    """Reads the files that an earlier job of the same attempt has written.

    Attributes:
        tasks: how many tasks read them; each has its share of the files.
    """

    rows: SharedRows
    schema: pa.Schema
    tasks: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files.

        Args:
            batches: hold the task's number.
        """
        prepare_worker()
        names = self.rows.names(EpochContext.current().folder)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for name in names[number :: self.tasks]:
                    with pa.memory_map(self.rows.files.path(name)) as source:
                        yield from batches_of(pa.ipc.open_file(source).read_all(), self.schema)
