"""Runs: immutable Arrow IPC files, sorted by key hash, and memory-mapped for reading."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from eddyline.errors import StateError
from eddyline.storage.files import Files, Summing, checksum

OPEN_RUNS_MAX = 2048


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


def write_run(files: Files, name: str, table: pa.Table) -> Run:
    """Write a table, which must be sorted by key hash, as a run."""
    crc = 0

    def fill(stream: BinaryIO) -> None:
        nonlocal crc
        summing = Summing(stream)
        with pa.ipc.new_file(pa.PythonFile(summing, mode="w"), table.schema) as writer:
            writer.write_table(table.combine_chunks())
        crc = summing.crc

    size = files.write(name, fill)
    return Run(name, table.num_rows, size, crc)


_open_runs: OrderedDict[str, pa.Table] = OrderedDict()


def read_run(files: Files, run: Run) -> pa.Table:
    """Map a run into memory and return its rows.

    Raises:
        StateError: the file is missing, truncated or not an Arrow file.
    """
    path = files.path(run.name)
    table = _open_runs.get(path)
    if table is None:
        try:
            source = pa.memory_map(path)
            if source.size() != run.bytes:
                raise _damaged(run, f"it has {source.size()} bytes")
            table = pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise _damaged(run, str(error)) from error
        _open_runs[path] = table
        while len(_open_runs) > OPEN_RUNS_MAX:
            _open_runs.popitem(last=False)
    else:
        _open_runs.move_to_end(path)
    return table


def verify_run(files: Files, run: Run) -> None:
    """Compare a run's bytes with its checksum.

    Raises:
        StateError: they differ, or the file can't be read.
    """
    try:
        found = checksum(files.path(run.name))
    except OSError as error:
        raise _damaged(run, str(error)) from error
    if found != run.crc:
        raise _damaged(run, "its checksum differs")


def _damaged(run: Run, why: str) -> StateError:
    return StateError(
        f"a run of the state is damaged: {why}; expected {run.bytes} bytes, CRC {run.crc:08x}",
        condition="DAMAGED_RUN",
        file=run.name,
        hint="restore the file from a copy",
    )
