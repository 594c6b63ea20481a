"""Faults of the disk at any effect of a storage."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
import weakref

from pyspark import TaskContext

from eddyline.storage.files import Files


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
