"""Cuts rows into ranges of the key hash, so that a task needs memory only for a slice of its rows.

All rows of a key have the same hash, so an operator can process each slice independently.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import IO

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH
from eddyline.state.grouping import block_starts
from eddyline.state.kernels import ordered
from eddyline.storage.os_errors import storage_errors

SLICE_BYTES = 64 << 20
"""The bytes of rows in a slice where no option says otherwise."""
HELD_SLICES = 4
"""So many slices of a task's input wait in memory."""
CACHED_BYTES = 4 << 20
"""About how many bytes a slice of them has at most: what fits into a processor's cache is sorted and compared faster."""
RANGES = 64
_SAMPLE_ROWS = 1024
_SHIFT = 64 - RANGES.bit_length() + 1


def in_slices(tables: Sequence[pa.Table], most: int) -> Iterator[list[pa.Table]]:
    """Cut tables, each sorted by hash, at the same hashes; yield the pieces of each slice, lowest hashes first.

    Args:
        most: about how many bytes a slice has; more if a single hash has more.
    """
    slices = -(-sum(table.nbytes for table in tables) // most)
    if slices <= 1:
        if tables:
            yield list(tables)
        return
    for spans in spans_of_hashes([table[HASH].to_numpy() for table in tables], slices):
        yield [
            table.slice(start, end - start)
            for table, (start, end) in zip(tables, spans, strict=True)
        ]


def spans_of_hashes(hashes: Sequence[np.ndarray], most: int) -> Iterator[list[tuple[int, int]]]:
    """Cut sorted arrays at the same hashes; yield for each slice where it begins and ends in each array.

    Args:
        most: the number of slices; fewer if there are fewer hashes.
    """
    longest = max(hashes, key=len)
    yield from spans_between(hashes, np.unique(longest[np.arange(1, most) * len(longest) // most]))


def spans_between(
    hashes: Sequence[np.ndarray], bounds: np.ndarray
) -> Iterator[list[tuple[int, int]]]:
    """Cut sorted arrays before each of the sorted bounds; yield for each slice where it begins and ends in each array."""
    cuts = [pairwise([0, *np.searchsorted(own, bounds).tolist(), len(own)]) for own in hashes]
    for spans in zip(*cuts, strict=True):
        yield list(spans)


def sliced(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Yield rows in slices, lowest hashes first; if they have more bytes than four slices, all are spilled to the disk.

    Rows that aren't spilled come in slices of at most about 4 MB, each sorted by hash.

    Args:
        batches: rows with the column `h`, in any order.
        most: about how many bytes a slice has; more if a single hash has more, or if there are more than
            64 times as many bytes.

    Raises:
        StorageError: the disk for temporary files is full, or fails.
    """
    held: list[pa.Table] = []
    size = 0
    with ExitStack() as stack:
        spilled: _Spilled | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = pa.Table.from_batches([batch])
            held.append(ordered(rows, HASH) if spilled is None else rows)
            size += batch.nbytes
            if size > (HELD_SLICES * most if spilled is None else most):
                spilled = spilled or _Spilled(batch.schema, stack)
                spilled.add(held, most)
                size = 0
        if spilled is None:
            if held:
                yield from _sorted_slices(held, -(-size // min(most, CACHED_BYTES)))
            return
        spilled.add(held, most)
        yield from spilled.slices(most)


def _sorted_slices(tables: Sequence[pa.Table], slices: int) -> Iterator[pa.Table]:
    """Yield the rows of tables that are sorted by hash in so many slices, which are sorted, too."""
    hashes = [table[HASH].to_numpy() for table in tables]
    every = np.concatenate(hashes)
    sample = np.sort(every[:: max(len(every) // (slices * _SAMPLE_ROWS), 1)])
    bounds = np.unique(sample[np.arange(1, slices) * len(sample) // slices])
    for spans in spans_between(hashes, bounds):
        pieces = [
            table.slice(start, end - start)
            for table, (start, end) in zip(tables, spans, strict=True)
            if end > start
        ]
        if pieces:
            yield ordered(pa.concat_tables(pieces).combine_chunks(), HASH)


class _Spilled:
    """Rows spilled to temporary files, one for each range of the hash; they vanish with the process, even if killed."""

    def __init__(self, schema: pa.Schema, stack: ExitStack) -> None:
        self._schema = schema
        self._stack = stack  # closes the files
        self._files: dict[int, IO[bytes]] = {}
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._bytes = [0] * RANGES
        self._folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None

    def add(self, held: list[pa.Table], most: int) -> None:
        """Write rows into the files of their hashes, and empty the list.

        Args:
            most: about how many bytes are copied at once.
        """
        while held:
            part, size = [held.pop(0)], 0
            while held and (size := size + part[-1].nbytes) < most:
                part.append(held.pop(0))
            self._add(pa.concat_tables(part).combine_chunks())

    def _add(self, table: pa.Table) -> None:
        ranges = (table[HASH].to_numpy() >> _SHIFT).astype(np.int8)  # from -32 to 31
        places = np.argsort(ranges, kind="stable")
        table, ranges = table.take(pa.array(places)), ranges[places]
        starts = np.flatnonzero(block_starts(ranges))
        with storage_errors(self._folder or tempfile.gettempdir()):
            for start, end in zip(starts, [*starts[1:], len(ranges)], strict=True):
                self._append(int(ranges[start]) + RANGES // 2, table.slice(start, end - start))

    def _append(self, number: int, rows: pa.Table) -> None:
        if number not in self._writers:
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # the stack closes it
            self._files[number] = self._stack.enter_context(file)
            self._writers[number] = pa.ipc.new_stream(file, self._schema)
        self._writers[number].write_table(rows)
        self._bytes[number] += rows.nbytes

    def slices(self, most: int) -> Iterator[pa.Table]:
        """Yield all rows, in slices."""
        with storage_errors(self._folder or tempfile.gettempdir()):
            for writer in self._writers.values():
                writer.close()
        found: list[int] = []
        for number in sorted(self._files):
            if found and sum(self._bytes[one] for one in (*found, number)) > most:
                yield self._read(found)
                found = []
            found.append(number)
        yield self._read(found)

    def _read(self, numbers: Sequence[int]) -> pa.Table:
        tables = []
        for number in numbers:
            with self._files.pop(number) as file:
                file.seek(0)
                tables.append(pa.ipc.open_stream(file).read_all())
        return pa.concat_tables(tables)
