"""Help for tests of programs that use Eddyline: offline results to compare with, and disk faults."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eddyline.answers.difference import Difference, difference
from eddyline.changes import APPEND, Epoch
from eddyline.spark.session import cloned, frame
from eddyline.storage.files import Files

Row = tuple[Any, ...]


@dataclass(slots=True)
class PlainTable:
    """A plain list of rows with the insert and delete semantics of a table, to compare with.

    Without a primary key it is a multiset: a delete removes one equal row, if one exists.

    Example:
        >>> table = PlainTable("id INT, v INT", (0,))
        >>> table.insert([(1, 5), (1, 6)])
        >>> table.rows
        [(1, 6)]
    """

    schema: str | StructType
    key: tuple[int, ...] = ()
    rows: list[Row] = field(default_factory=list)

    def insert(self, rows: Iterable[Row]) -> None:
        """Append rows; with a primary key each replaces the row of its key."""
        for row in rows:
            if self.key:
                self.delete([row])
            self.rows.append(row)

    def delete(self, rows: Iterable[Row]) -> None:
        """Delete rows by primary key; without a key, one equal row for each."""
        for row in rows:
            wanted = self._identity(row)
            for place, held in enumerate(self.rows):
                if self._identity(held) == wanted:
                    del self.rows[place]
                    break

    def _identity(self, row: Row) -> str:
        # as text, in which NaN equals NaN, 0.0 differs from -0.0, and a list can be compared
        return repr([row[place] for place in self.key] if self.key else row)


class Offline:
    """Offline Spark over plain tables: the results that live views must equal.

    Example:
        >>> offline = Offline(spark, {"t": PlainTable("k STRING", rows=[("a",), ("a",)])})
        >>> offline.result("SELECT k, count(*) AS n FROM t GROUP BY k").to_pylist()
        [{'k': 'a', 'n': 2}]
    """

    def __init__(self, spark: SparkSession, tables: dict[str, PlainTable]) -> None:
        self.session = cloned(spark)
        self.tables = tables
        self.views: dict[str, str] = {}

    def view(self, name: str, query: str) -> None:
        """Name a query, so that other queries can read it."""
        self.views[name] = query

    def load(self) -> None:
        """Load the current rows of the tables; later results use these rows."""
        for name, table in self.tables.items():
            self._frame(table).createOrReplaceTempView(name)
        for name, query in self.views.items():
            self.session.sql(query).createOrReplaceTempView(name)

    def result(self, query: str) -> pa.Table:
        """Run a query offline over the most recently loaded rows."""
        return self.session.sql(query).toArrow()

    def compared(self, name: str, live: DataFrame | pa.Table) -> Difference:
        """Compare a live result (left) with the view's offline result (right)."""
        left = live if isinstance(live, pa.Table) else live.toArrow()
        return difference(left, self.result(self.views[name]))

    def _frame(self, table: PlainTable) -> DataFrame:
        return frame(self.session, table.rows, table.schema)


def replayed(changes: Iterable[Sequence[Any]]) -> list[Row]:
    """Replay a changelog in retract form from an empty table, and return the rows.

    Args:
        changes: rows of `view.changes()`, each ending in `op` and `epoch`.

    Raises:
        AssertionError: a change retracts a row that the table doesn't hold.
    """
    held: dict[str, list[Row]] = {}
    # the order within an epoch is undefined: an epoch can delete what it appends
    for *values, operation, _ in sorted(changes, key=lambda row: (row[-1], row[-2])):
        rows = held.setdefault(repr(values), [])
        if operation == "append":
            rows.append(tuple(values))
        elif rows:
            rows.pop()
        else:
            raise AssertionError(f"{tuple(values)} is retracted, but not there")
    return [row for rows in held.values() for row in rows]


class MemorySink:
    """A sink that keeps the rows of a view, as of an epoch, in memory.

    It commits rows and epoch together, as a database does, and raises AssertionError for changes
    that don't fit the rows it holds.

    Attributes:
        epoch: the epoch of the rows; None before the first delivery.
        rows: all rows; equal rows are repeated.
        received: for each call so far its name, `replace` or `deliver`, and the epoch.
    """

    def __init__(self) -> None:
        self.epoch: Epoch | None = None
        self.received: list[tuple[str, Epoch]] = []
        self._held: dict[str, tuple[Row, int]] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for row, count in self._held.values() for _ in range(count)]

    def committed(self) -> Epoch | None:
        return self.epoch

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        if self.epoch != base or epoch <= base:
            raise AssertionError(
                f"changes from {base} to {epoch} come to a target with {self.epoch}"
            )
        self._commit("deliver", epoch, dict(self._held), changes)

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        if self.epoch != base:
            raise AssertionError(f"a target with {self.epoch} is replaced as if it had {base}")
        self._commit("replace", epoch, {}, rows)

    def close(self) -> None:
        pass

    def _commit(
        self, call: str, epoch: Epoch, held: dict[str, tuple[Row, int]], changes: pa.Table
    ) -> None:
        for *values, operation, weight in zip(
            *(c.to_pylist() for c in changes.columns), strict=True
        ):
            row = tuple(values)
            count = held.get(repr(row), (row, 0))[1] + weight
            if count < 0 or (operation == APPEND) != (weight > 0):
                raise AssertionError(f"{operation} of {row} with weight {weight} doesn't fit")
            held[repr(row)] = row, count
        self.epoch, self._held = epoch, {text: own for text, own in held.items() if own[1]}
        self.received.append((call, epoch))


class Crash(OSError):  # noqa: N818  # named for what a test simulates
    """`FaultyFiles` failed a write to the disk."""


def kill() -> None:
    """End this process with SIGKILL: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


_ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO, "read_only": errno.EROFS}


class FaultyFiles(Files):
    """Files of a storage that fail at the n-th effect on the disk.

    An effect is a write, rename, removal or commit. They are counted over the driver and Spark's
    Python workers, in a file outside the storage.

    Args:
        root: the storage folder.
        fail_at: number of the effect, from 1; 0 only counts.
        kind: `fail`: that effect raises Crash; `crash`: so do all later ones, as if the process had
            died; `kill`: its process gets SIGKILL. `full`, `broken` and `read_only`: that effect and
            all later ones raise the error of a disk that is full (removals still work), of one
            that is broken (EIO), and of one that was mounted read-only.
        within: `driver` or `worker` counts only the effects there; `any` counts all.

    Example:
        >>> files = FaultyFiles(tempfile.mkdtemp(), fail_at=2)
        >>> files.write("a", lambda stream: stream.write(b"1"))
        Traceback (most recent call last):
        eddyline.errors.StorageError: [WRITE_FAILED] the storage can't be written: ...
        >>> files.effects()[:2]
        ['write a', 'rename a']
    """

    def __init__(
        self, root: str, fail_at: int = 0, kind: str = "fail", within: str = "any"
    ) -> None:
        super().__init__(root)
        handle, self.control = tempfile.mkstemp(prefix="eddyline-faults-")
        os.close(handle)
        weakref.finalize(self, os.unlink, self.control)
        self.arm(fail_at, kind, within)

    def arm(self, fail_at: int, kind: str = "fail", within: str = "any") -> None:
        """Restart the count, and schedule another fault."""
        with open(self.control, "r+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.truncate()
            stream.write(f"{fail_at} {kind} {within}\n")

    def effects(self) -> list[str]:
        """Return the effects since the count began, including the failed one."""
        with open(self.control, encoding="utf-8") as stream:
            return stream.read().splitlines()[1:]

    def hit(self) -> bool:
        """Return whether the fault has happened."""
        with open(self.control, encoding="utf-8") as stream:
            fail_at = int(stream.readline().split()[0])
            return 0 < fail_at <= len(stream.readlines())

    def append(self, name: str, data: bytes | memoryview, at: int) -> None:
        """Append in two effects, so that a fault can leave the first half."""
        half = len(data) // 2
        super().append(name, data[:half], at)
        super().append(name, data[half:], at + half)

    def step(self, what: str, name: str) -> None:
        """Count an effect, and fail if the fault is due."""
        with open(self.control, "r+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            order, *made = stream.read().splitlines()
            fail_at, kind, within = order.split()
            if within not in ("any", "driver" if TaskContext.get() is None else "worker"):
                return
            stream.write(f"{what} {name}\n")
        past = len(made) + 1 - int(fail_at)
        if fail_at == "0" or past < 0 or (past and kind not in ("crash", *_ERRORS)):
            return
        if kind == "kill":
            kill()
        if kind in _ERRORS:
            if (kind, what) in (("full", "remove"), ("full", "cut")):
                return
            raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), name)
        raise Crash(f"effect {fail_at} on the disk fails: {what} {name}")
