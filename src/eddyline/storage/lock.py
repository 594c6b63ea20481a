"""The lock of a storage for one writer; the operating system releases it when the process dies."""

from __future__ import annotations

import fcntl
import gc
import os
import time
import weakref

from eddyline.errors import EngineError, StorageError
from eddyline.storage.files import Files

NAME = "lock"
PROBES_S = 30.0
"""How long to wait for others that only look whether the lock is held, and may be stopped while they look."""

# the locks that this process holds, by process (a fork copies them) and folder
_holders: weakref.WeakValueDictionary[tuple[int, str], StorageLock] = weakref.WeakValueDictionary()


class StorageLock:
    """Tries to lock the storage for writing; `held` tells whether it succeeded.

    Args:
        take_over: release the lock that another object of this process holds; else that is an error.

    Raises:
        EngineError: STORAGE_IN_USE, another object of this process holds the lock.
        StorageError: the folder can't be used.
    """

    def __init__(self, files: Files, *, take_over: bool = False) -> None:
        self._release: weakref.finalize[..., StorageLock] | None = None
        try:
            files.make_folder("")
        except StorageError as error:
            raise _unusable(error) from error
        self._key = _key(files)
        self._meet_holder(files, take_over=take_over)
        try:
            handle = os.open(files.path(NAME), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(error) from error
        if not _locked(handle):
            os.close(handle)
            return
        self._release = weakref.finalize(self, os.close, handle)
        _holders[self._key] = self

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._release is not None and self._release.alive

    @property
    def released(self) -> bool:
        """Whether this object has held the lock, and doesn't any more."""
        return self._release is not None and not self._release.alive

    def release(self) -> None:
        """Release the lock."""
        if self._release is not None:
            self._release()
        if _holders.get(self._key) is self:
            del _holders[self._key]

    def _meet_holder(self, files: Files, *, take_over: bool) -> None:
        """Handle the case that another object of this process holds the lock: take it over, or raise."""
        if self._key in _holders and not take_over:
            gc.collect()  # nothing may refer to it any more
        older = _holders.get(self._key)
        if older is None:
            return
        if not take_over:
            raise EngineError(
                f"this process has already an engine on the storage {files.root}",
                condition="STORAGE_IN_USE",
                hint="use that one, or stop() it first; Engine(storage, read_only=True) reads beside it",
            )
        older.release()


def _unusable(error: Exception) -> StorageError:
    return StorageError(
        f"the storage folder can't be written: {error}",
        condition="UNUSABLE_STORAGE",
        hint="give a folder that this process may write to; Engine(storage, read_only=True) only reads",
    )


def _locked(handle: int) -> bool:
    """Lock a file for this process; return False if another one has locked it for writing."""
    end = time.monotonic() + PROBES_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if _held_by_other(handle) or time.monotonic() > end:
                return False
        else:
            return True
        time.sleep(0.001)


def _held_by_other(handle: int) -> bool:
    """Return whether another process has locked a file for writing; a shared lock doesn't count."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def in_use(files: Files) -> bool:
    """Whether any engine, of this process or another, holds the lock of a storage."""
    return is_locked(files.path(NAME))


def held_elsewhere(files: Files) -> bool:
    """Whether another process holds the lock of a folder."""
    return _key(files) not in _holders and in_use(files)


def _key(files: Files) -> tuple[int, str]:
    return os.getpid(), os.path.realpath(files.root)


def is_locked(path: str) -> bool:
    """Whether a file is locked for writing; false if it isn't there."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _held_by_other(handle)
    finally:
        os.close(handle)
