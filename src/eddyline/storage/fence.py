"""The fence of a storage: only the process that opened it last for writing may commit.

Normally the lock prevents a second writer. Where it can't (a file system without locks, a folder copied under a
running engine), the fence makes the older writer fail, so that the newer one can go on.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from eddyline.errors import StateError
from eddyline.storage.os_errors import storage_errors

NAME = "writer"
LENGTH = 32


@dataclass(frozen=True, slots=True)
class Fence:
    """The right of one writer to commit.

    Attributes:
        root: the storage folder.
        writer: the writer's id, which is never given to another one.
    """

    root: str
    writer: str

    @classmethod
    def raised(cls, root: str) -> Fence:
        """Make a new writer the only one that may commit; wait for a running commit to finish."""
        fence = cls(root, uuid.uuid4().hex)
        with _opened(fence._path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as handle:
            os.pwrite(handle, fence.writer.encode(), 0)
        return fence

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Block newer writers during the context, in which the caller commits.

        Raises:
            StateError: FENCED, a newer writer has opened the storage.
        """
        with _opened(self._path, os.O_RDONLY, fcntl.LOCK_SH) as handle:
            if os.pread(handle, LENGTH, 0) != self.writer.encode():
                raise StateError(
                    "another engine has opened this storage for writing since",
                    condition="FENCED",
                    storage=self.root,
                    hint="stop this engine, and see why the file `lock` let both write; what was "
                    "committed stays, and this engine commits nothing any more",
                )
            yield

    @property
    def _path(self) -> str:
        return os.path.join(self.root, NAME)


@contextmanager
def _opened(path: str, flags: int, kind: int) -> Iterator[int]:
    """Open and lock a file."""
    with storage_errors(NAME):
        handle = os.open(path, flags, 0o644)
    try:
        fcntl.flock(handle, kind)
        yield handle
    finally:
        os.close(handle)
