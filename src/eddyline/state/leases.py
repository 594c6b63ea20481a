"""Leases: a reader of any process retains an epoch until it is done, dies, or its lease expires."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from eddyline.changes import Epoch
from eddyline.state.manifest import Manifest, last_committed, manifest_name, read_manifest
from eddyline.storage.files import Files
from eddyline.storage.lock import is_locked
from eddyline.storage.os_errors import storage_errors

FOLDER = "leases"
GATE = "gate"
ALIVE = ".alive"
TIMED = ".for"  # then the seconds for which a lease without a living reader holds


class Leases:
    """The leases of one reader.

    A lease is the empty file `leases/<epoch>-<reader>`: it retains that epoch and all after it. The reader
    holds a lock on `leases/<reader>.alive`, which the operating system releases when its process dies.
    In a storage that can't be written there are no leases. A lease of `hold_for` needs no living reader: it
    has a time in its name. The time of a lease doesn't end while the reader holds a lock on its file, too.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self._reader = uuid.uuid4().hex
        self._alive: int | None = None
        self._untimed: dict[Epoch, int] = {}  # the locked files

    def hold(self, epoch: Epoch, *, untimed: bool = False) -> bool:
        """Retain an epoch; return False if it is not committed or gone already.

        Args:
            untimed: the time of the lease begins with `begin_time`.
        """
        if epoch == 0:
            return True  # the empty storage has no files
        name = manifest_name(epoch)
        try:
            with _gate(self.files, fcntl.LOCK_SH):
                if self._alive is None:
                    self._begin()
                path = self.files.path(self._lease(epoch))
                handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
                if untimed and epoch not in self._untimed:
                    self._untimed[epoch] = handle
                    fcntl.flock(handle, fcntl.LOCK_EX)
                else:
                    os.close(handle)
                os.utime(path)
                held = self.files.exists(name)
        except OSError:
            return self.files.exists(name)
        if not held:
            self.release(epoch)
        return held

    def begin_time(self, epoch: Epoch) -> None:
        """Begin the time of an untimed lease."""
        renew(self.files, self._lease(epoch))
        self._unlock(epoch)

    def release(self, epoch: Epoch) -> None:
        """End the lease of an epoch."""
        self._unlock(epoch)
        with suppress(OSError):
            os.unlink(self.files.path(self._lease(epoch)))

    def _begin(self) -> None:
        path = self.files.path(f"{FOLDER}/{self._reader}{ALIVE}")
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._alive = handle
        weakref.finalize(self, _end, handle, path)

    def _unlock(self, epoch: Epoch) -> None:
        handle = self._untimed.pop(epoch, None)
        if handle is not None:
            os.close(handle)

    def _lease(self, epoch: Epoch) -> str:
        return f"{FOLDER}/{epoch:012d}-{self._reader}"


def hold_for(files: Files, epoch: Epoch, seconds: int) -> str | None:
    """Retain an epoch for a time, also after this process has ended.

    The engine's option `lease_seconds` is the longest time.

    Returns:
        The name of the lease, for `renew`; None if the epoch is not committed or no longer retained.
    """
    name = f"{FOLDER}/{epoch:012d}-{uuid.uuid4().hex}{TIMED}{seconds}"
    if epoch == 0:
        return name  # the empty storage has no files
    try:
        with _gate(files, fcntl.LOCK_SH):
            os.close(os.open(files.path(name), os.O_WRONLY | os.O_CREAT, 0o644))
            held = files.exists(manifest_name(epoch))
    except OSError:
        return name if files.exists(manifest_name(epoch)) else None
    if held:
        return name
    release(files, name)
    return None


def renew(files: Files, name: str) -> None:
    """Restart the time of a lease; does nothing if it has ended."""
    with suppress(OSError):
        os.utime(files.path(name))


def release(files: Files, name: str) -> None:
    """End a lease of `hold_for` before its time."""
    with suppress(OSError):
        os.unlink(files.path(name))


@contextmanager
def pinned(files: Files, epoch: Epoch | None = None) -> Iterator[Manifest]:
    """Yield the manifest of a committed epoch, and retain its files during the context.

    Args:
        epoch: None for the last committed one.

    Raises:
        StateError: the epoch is not retained.
    """
    leases = Leases(files)
    while True:
        manifest = last_committed(files) if epoch is None else read_manifest(files, epoch)
        if leases.hold(manifest.epoch):
            break
    try:
        yield manifest
    finally:
        leases.release(manifest.epoch)


@contextmanager
def retiring(files: Files, seconds: float) -> Iterator[tuple[bool, Epoch | None]]:
    """Block new leases while the caller removes manifests.

    Args:
        seconds: how long a lease holds at most.

    Yields:
        Whether the caller may remove manifests now (not while a reader takes a lease), and the first
        epoch that a lease retains; None if there is none.
    """
    try:
        with _gate(files, fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield True, _first_leased(files, seconds)
    except BlockingIOError:
        yield False, None
    except OSError:
        with storage_errors(FOLDER):
            raise


def _first_leased(files: Files, seconds: float) -> Epoch | None:
    """Return the first epoch that a reader retains; remove leases that have ended."""
    names = files.names(FOLDER)
    living = set()
    for name in names:
        if name.endswith(ALIVE):
            if is_locked(files.path(f"{FOLDER}/{name}")):
                living.add(name.removesuffix(ALIVE))
            else:
                files.remove(f"{FOLDER}/{name}")
    for name in names:
        number, _, reader = name.partition("-")
        if not number.isdigit():
            continue
        reader, timed, own = reader.partition(TIMED)
        most = min(seconds, int(own)) if timed else seconds
        known = timed or reader in living
        locked = is_locked(files.path(f"{FOLDER}/{name}"))
        if known and (locked or not _older(files, name, most)):
            return Epoch(int(number))
        files.remove(f"{FOLDER}/{name}")
    return None


def _older(files: Files, name: str, seconds: float) -> bool:
    try:
        return time.time() - os.stat(files.path(f"{FOLDER}/{name}")).st_mtime > seconds
    except FileNotFoundError:  # it has just ended
        return True


@contextmanager
def _gate(files: Files, kind: int) -> Iterator[None]:
    """Lock the folder of leases, for one that retires epochs or for many that take leases."""
    with suppress(FileExistsError):
        os.mkdir(files.path(FOLDER))  # not that of the storage, which may be unmounted
    handle = os.open(files.path(f"{FOLDER}/{GATE}"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)


def _end(handle: int, path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
    os.close(handle)
