"""The lock of a storage for one writer; the operating system releases it when the process dies."""

from __future__ import annotations

import fcntl
import os

from eddyline.errors import StorageError
from eddyline.storage.files import Files

NAME = "lock"

# Within a process, a newer engine takes the lock over from an older one.
_holders: dict[str, StorageLock] = {}


class StorageLock:
    """Tries to lock the storage for writing; `held` tells whether it succeeded."""

    def __init__(self, files: Files) -> None:
        self._handle: int | None = None
        self._root = files.root
        try:
            files.make_folder("")
        except OSError as error:
            raise StorageError(
                f"the storage folder can't be made: {error}",
                condition="UNUSABLE_STORAGE",
                hint="give a folder that this process may write to",
            ) from error
        older = _holders.pop(self._root, None)
        if older is not None:
            older.release()
        handle = os.open(files.path(NAME), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return
        self._handle = handle
        _holders[self._root] = self

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._handle is not None

    def release(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if _holders.get(self._root) is self:
            del _holders[self._root]


def in_use(files: Files) -> bool:
    """Whether any engine, of this process or another, holds the lock of a storage."""
    try:
        handle = os.open(files.path(NAME), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(handle)
