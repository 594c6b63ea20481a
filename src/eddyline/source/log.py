"""The redo log: what came in, kept before it is processed, in numbered entries by source."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import OPERATION
from eddyline.errors import StateError
from eddyline.source.segments import LOG, Segment, verify_segment
from eddyline.storage.files import Files, Summing

SEQUENCE_SHIFT = 32  # an entry's operations are numbered from entry << 32 on
NUMBER_DIGITS = 12  # the number of an entry begins the names of its files
START = "start"
MARK = "watermark-"
BAD = ["payload", "error"]  # of a record that is kept apart
LOGGED = "file string, rows long, crc long, dead boolean"


class RedoLog:
    """The entries of one source: JSON documents that name segments; an entry is there or not.

    An entry's number is given by the caller: a table counts on, a stream uses the number of
    Spark's micro-batch, so that a batch which Spark repeats is recognised and skipped.
    """

    def __init__(self, files: Files, source: str) -> None:
        self.files = files
        self.folder = f"logs/{source}"
        self._known: dict[int, int] = {}
        files.make_folder(self.folder)

    def start(self) -> int:
        """The number from which on entries are kept: those before it were forgotten."""
        name = f"{self.folder}/{START}"
        return int(self.files.read_json(name)) if self.files.exists(name) else 0

    def end(self) -> int:
        """One more than the number of the last entry; `start()` for an empty log."""
        numbers = self._numbers()
        return numbers[-1] + 1 if numbers else self.start()

    def has(self, number: int) -> bool:
        """Whether there is, or was, an entry of that number."""
        return self.files.exists(self._entry(number)) or number < self.start()

    def append(self, number: int, segments: Iterable[Segment]) -> None:
        """Make an entry; durable when this returns."""
        numbered = []
        sequence = number << SEQUENCE_SHIFT
        for segment in segments:
            numbered.append({**segment.as_dict(), "sequence": sequence})
            del numbered[-1]["watermark"]  # not known before the entry is processed
            sequence += segment.rows
        self.files.write_json(self._entry(number), numbered)

    def append_tables(self, tables: Iterable[pa.Table]) -> None:
        """Make the next entry of tables (`c0..`, and `op` for operations), one after the other."""
        number = self.end()
        self.clear(number)
        segments = [write_rows(self.files, _new_file(self.folder, number), t) for t in tables]
        self.append(number, segments)

    def clear(self, number: int) -> None:
        """Remove the files that an earlier try at this entry, which isn't there yet, has left."""
        prefix = f"{number:012d}-"
        for name in self.files.names(self.folder):
            if name.startswith(prefix):
                self.files.remove(f"{self.folder}/{name}")

    def segments(self, first: int, end: int) -> list[Segment]:
        """All segments of the entries from `first` up to but not including `end`.

        Raises:
            StateError: an entry is damaged, or the log was forgotten from `first` on.
        """
        if first < end and first < self.start():
            raise StateError(
                f"the redo log begins at entry {self.start()}, needed is {first}",
                condition="LOG_TOO_SHORT",
                file=self.folder,
                hint="restore the manifest of a later epoch from a copy",
            )
        marks = self._marks()
        found = []
        for number in self._numbers():
            if first <= number < end:
                watermark = _mark_of(marks, number)
                segments = self.files.read_json(self._entry(number))
                found += [Segment(**segment, watermark=watermark) for segment in segments]
        return found

    def mark(self, first: int, watermark: int) -> None:
        """Note the watermark (microseconds since 1970) that holds for the entries from `first` on.

        Marks behind `first` are of epochs that were never committed, or are lost: they go.
        """
        marks = self._marks()
        for number in [number for number in marks if number > first]:
            self.files.remove(self._mark(number))
            del marks[number]
            self._known.pop(number, None)
        if _mark_of(marks, first) != watermark:
            self.files.write_json(self._mark(first), watermark)
            self._known[first] = watermark

    def verify(self, first: int) -> None:
        """Whether all from `first` on is there and sound; StateError otherwise."""
        for segment in self.segments(first, max(self.end(), first + 1)):
            verify_segment(self.files, segment)

    def skip(self, first: int) -> None:
        """Remove the entries from `first` on, which were never processed: they don't count."""
        for number in self._numbers():
            if number >= first:
                self.files.remove(self._entry(number))
        if self.end() < first:
            self.files.write_json(f"{self.folder}/{START}", first)

    def forget(self, end: int) -> None:
        """Remove the entries before `end`: what they hold is committed elsewhere."""
        if self.start() < end:
            self.files.write_json(f"{self.folder}/{START}", end)
            self.tidy()

    def tidy(self) -> None:
        """Remove what isn't needed: forgotten entries, and files that no entry names."""
        self.files.remove_unfinished(self.folder)
        start, entries = self.start(), set(self._numbers())
        for name in self.files.names(self.folder):
            number = name[:NUMBER_DIGITS]
            if number.isdigit() and (int(number) < start or int(number) not in entries):
                self.files.remove(f"{self.folder}/{name}")

    def _numbers(self) -> list[int]:
        names = self.files.names(self.folder)
        return [int(name[:NUMBER_DIGITS]) for name in names if name.endswith(".json")]

    def _marks(self) -> dict[int, int]:
        """The marks by number, in order."""
        names = self.files.names(self.folder)
        numbers = [int(name.removeprefix(MARK)) for name in names if name.startswith(MARK)]
        for number in numbers:
            if number not in self._known:
                self._known[number] = int(self.files.read_json(self._mark(number)))
        return {number: self._known[number] for number in numbers}

    def _mark(self, number: int) -> str:
        return f"{self.folder}/{MARK}{number:012d}"

    def _entry(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"


def _mark_of(marks: dict[int, int], number: int) -> int | None:
    """The watermark that holds for an entry."""
    numbers = list(marks)
    at = bisect_right(numbers, number)
    return marks[numbers[at - 1]] if at else None


def _new_file(folder: str, number: int) -> str:
    return f"{folder}/{number:012d}-{uuid.uuid4().hex[:8]}.arrow"


def as_operations(rows: pa.Table, operation: str) -> pa.Table:
    """Rows as the redo log has operations on them: `c0.., op`."""
    kinds = pa.array([operation] * rows.num_rows, pa.string())
    plain = rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])
    return plain.append_column(OPERATION, kinds)


def write_rows(files: Files, name: str, table: pa.Table) -> Segment:
    """Write rows as a file of the log."""
    crc = 0

    def fill(stream: BinaryIO) -> None:
        nonlocal crc
        summing = Summing(stream)
        with pa.ipc.new_file(pa.PythonFile(summing, mode="w"), table.schema) as writer:
            writer.write_table(table)
        crc = summing.crc

    files.write(name, fill)
    return Segment(LOG, name, table.num_rows, crc=crc)


@dataclass(frozen=True, slots=True)
class LogTask:
    """Writes the rows of a micro-batch into files of the redo log, one or two a task.

    Input: `c0..` and for a stream of operations `op`; where records may be bad, `payload` and
    `error` behind them, which are null for good ones. Output: one row a file: `LOGGED`.
    """

    files: Files
    folder: str
    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The files' names and numbers of rows, and whether the rows are bad records."""
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        rows, dead = pa.Table.from_batches(received), None
        if "error" in rows.column_names:
            bad = pc.is_valid(rows["error"])
            rows, dead = rows.filter(pc.invert(bad)), rows.filter(bad).select(BAD)
            rows = rows.drop_columns(BAD)
        for table in (rows, dead):
            if table is not None and table.num_rows:
                segment = write_rows(self.files, _new_file(self.folder, self.number), table)
                told = [segment.file, segment.rows, segment.crc, table is dead]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([value]) for value in told], names=["file", "rows", "crc", "dead"]
                )
