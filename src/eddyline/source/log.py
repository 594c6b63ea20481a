"""The redo log: what came in, kept before it is processed, in numbered entries by source."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from eddyline.source.segments import LOG, Segment
from eddyline.storage.files import Files

SEQUENCE_SHIFT = 32  # an entry's operations are numbered from entry << 32 on


class RedoLog:
    """The entries of one source: JSON documents that name segments; an entry is there or not.

    An entry's number is given by the caller: a table counts on, a stream uses the number of
    Spark's micro-batch, so that a batch which Spark repeats is recognised and skipped.
    """

    def __init__(self, files: Files, source: str) -> None:
        self.files = files
        self.folder = f"logs/{source}"
        files.make_folder(self.folder)

    def end(self) -> int:
        """One more than the number of the last entry; 0 for an empty log."""
        names = [name for name in self.files.names(self.folder) if name.endswith(".json")]
        return int(names[-1].removesuffix(".json")) + 1 if names else 0

    def has(self, number: int) -> bool:
        """Whether there is an entry of that number."""
        return self.files.exists(self._entry(number))

    def append(self, number: int, segments: Iterable[Segment]) -> None:
        """Make an entry; durable when this returns."""
        numbered = []
        sequence = number << SEQUENCE_SHIFT
        for segment in segments:
            numbered.append({**segment.as_dict(), "sequence": sequence})
            sequence += segment.rows
        self.files.write_json(self._entry(number), numbered)

    def append_table(self, number: int, rows: pa.Table) -> None:
        """Make an entry of rows (`c0..`, and `op` for operations)."""
        name = f"{self.folder}/{number:012d}-{uuid.uuid4().hex[:8]}.arrow"
        self.append(number, [write_rows(self.files, name, rows)])

    def segments(self, first: int, end: int) -> list[Segment]:
        """All segments of the entries from `first` up to but not including `end`."""
        found = []
        for name in self.files.names(self.folder):
            if name.endswith(".json") and first <= int(name.removesuffix(".json")) < end:
                found += self.files.read_json(f"{self.folder}/{name}")
        return [Segment(**segment) for segment in found]

    def forget(self, end: int) -> None:
        """Remove the entries before `end`: what they hold is committed elsewhere."""
        for name in self.files.names(self.folder):
            if int(name[:12]) < end and name.endswith(".json"):
                for segment in self.files.read_json(f"{self.folder}/{name}"):
                    if segment["kind"] == LOG:
                        self.files.remove(segment["file"])
                self.files.remove(f"{self.folder}/{name}")

    def _entry(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"


def write_rows(files: Files, name: str, table: pa.Table) -> Segment:
    """Write rows as a file of the log."""

    def fill(stream: object) -> None:
        with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), table.schema) as writer:
            writer.write_table(table)

    files.write(name, fill)
    return Segment(LOG, name, table.num_rows)


@dataclass(frozen=True, slots=True)
class LogTask:
    """Writes the rows of a micro-batch into files of the redo log, one a task.

    Input: `c0..` and for a stream of operations `op`. Output: one row a file, its segment.
    """

    files: Files
    folder: str
    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The files' names and numbers of rows."""
        received = [batch for batch in batches if batch.num_rows]
        if received:
            name = f"{self.folder}/{self.number:012d}-{uuid.uuid4().hex[:8]}.arrow"
            segment = write_rows(self.files, name, pa.Table.from_batches(received))
            yield pa.RecordBatch.from_pydict(
                {"file": [segment.file], "rows": pa.array([segment.rows], pa.int64())}
            )
