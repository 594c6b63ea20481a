"""Runs: immutable Arrow IPC files, sorted by key hash, and memory-mapped for reading."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from eddyline.errors import StateError
from eddyline.state.retyping import with_nullable_fields
from eddyline.storage.files import Files, Summing, checksum, unreadable

OPEN_RUNS_MAX = 2048
OPEN_BYTES_MAX = 4 << 30
BUFFERED_BYTES_MAX = 1 << 20
"""Runs up to this size are written by one call, and stay in memory for the next epoch."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run file as in the manifest: name in the storage, rows, bytes, CRC-32."""

    name: str
    rows: int
    bytes: int
    crc: int

    def as_list(self) -> list[Any]:
        """Return the entry for the manifest."""
        return [self.name, self.rows, self.bytes, self.crc]


def ipc_bytes(rows: pa.Table) -> bytes:
    """Return rows as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = out.getvalue().to_pybytes()
    return data


def write_run(files: Files, name: str, table: pa.Table) -> Run:
    """Write a table, which must be sorted by key hash, as a run."""
    if table.nbytes <= BUFFERED_BYTES_MAX:
        sink = pa.BufferOutputStream()
        _write_table(sink, table)
        content = sink.getvalue()
        size = files.write(name, lambda stream: stream.write(content))
        # the next epoch reads it
        _open_runs.add(files.path(name), _rows_in(content), size)
        return Run(name, table.num_rows, size, zlib.crc32(content))
    crc = 0

    def fill(stream: BinaryIO) -> None:
        nonlocal crc
        summing = Summing(stream)
        _write_table(pa.PythonFile(summing, mode="w"), table)
        crc = summing.crc

    size = files.write(name, fill)
    return Run(name, table.num_rows, size, crc)


def _write_table(sink: pa.NativeFile, table: pa.Table) -> None:
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _rows_in(content: pa.NativeFile | pa.Buffer) -> pa.Table:
    return with_nullable_fields(pa.ipc.open_file(content).read_all())


class OpenRuns:
    """A cache of the mapped runs of this process, by path, the last used at the end.

    A deleted file uses disk space as long as it is mapped, so `keep` drops the runs that the state no longer
    needs.
    """

    def __init__(self) -> None:
        self._tables: OrderedDict[str, tuple[pa.Table, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()  # the driver reads from several threads

    def get(self, path: str) -> pa.Table | None:
        with self._lock:
            found = self._tables.get(path)
            if found is None:
                return None
            self._tables.move_to_end(path)
            return found[0]

    def add(self, path: str, table: pa.Table, size: int) -> None:
        with self._lock:
            self._drop(path)
            self._tables[path] = table, size
            self._bytes += size
            while len(self._tables) > 1 and (
                len(self._tables) > OPEN_RUNS_MAX or self._bytes > OPEN_BYTES_MAX
            ):
                self._drop(next(iter(self._tables)))

    def keep(self, root: str, needed: Collection[str]) -> None:
        """Drop the runs of a storage except the needed ones, given by their names."""
        with self._lock:
            inside = [path for path in self._tables if path.startswith(f"{root}/")]
            for path in inside:
                if path.removeprefix(f"{root}/") not in needed:
                    self._drop(path)

    def _drop(self, path: str) -> None:
        found = self._tables.pop(path, None)
        if found is not None:
            self._bytes -= found[1]


_open_runs = OpenRuns()


def read_run(files: Files, run: Run) -> pa.Table:
    """Map a run into memory and return its rows; their inner values may be null, by their types.

    Raises:
        StateError: the file is missing, truncated or not an Arrow file.
        StorageError: it can't be read now.
    """
    path = files.path(run.name)
    table = _open_runs.get(path)
    if table is None:
        try:
            source = pa.memory_map(path)
            if source.size() != run.bytes:
                raise _damaged(run, f"it has {source.size()} bytes")
            table = _rows_in(source)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise _damaged(run, str(error)) from error
        except OSError as error:
            if error.errno is None:  # Arrow's message for impossible lengths
                raise _damaged(run, str(error)) from error
            raise unreadable(run.name, error) from error
        _open_runs.add(path, table, run.bytes)
    return table


def keep_open(files: Files, runs: Iterable[Run]) -> None:
    """Unmap all runs of a storage except these; a later read maps them again."""
    _open_runs.keep(files.root, {run.name for run in runs})


def verify_run(files: Files, run: Run) -> None:
    """Compare a run's bytes with its checksum.

    Raises:
        StateError: they differ, or the file can't be read.
    """
    try:
        found = checksum(files.path(run.name))
    except FileNotFoundError as error:
        raise _damaged(run, str(error)) from error
    except OSError as error:
        raise unreadable(run.name, error) from error
    if found != run.crc:
        raise _damaged(run, "its checksum differs")


def _damaged(run: Run, why: str) -> StateError:
    return StateError(
        f"a run of the state is damaged: {why}; expected {run.bytes} bytes, CRC {run.crc:08x}",
        condition="DAMAGED_RUN",
        file=run.name,
        hint="restore the file from a copy",
    )
