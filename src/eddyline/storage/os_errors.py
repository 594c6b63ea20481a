"""Translates errors of the operating system into errors of Eddyline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from eddyline.errors import StorageError


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Translate OSError into StorageError WRITE_FAILED, naming the file."""
    try:
        yield
    except FileExistsError:
        raise  # no failure of the disk
    except OSError as error:
        raise StorageError(
            f"the storage can't be written: {error}",
            condition="WRITE_FAILED",
            file=name,
            hint="mend the cause and make the same call again: nothing is half written",
        ) from error


def is_of_system(error: BaseException) -> bool:
    """Return whether the operating system has raised an error: then nothing is known of a file's content.

    An OSError without an errno comes from a decoder, and tells of the content.
    """
    return isinstance(error, OSError) and error.errno is not None


@contextmanager
def input_errors(path: str) -> Iterator[None]:
    """Translate errors of the operating system into StorageError READ_FAILED, naming the file of a stream."""
    try:
        yield
    except OSError as error:
        if not is_of_system(error):
            raise
        raise StorageError(
            f"a file of a stream can't be read now: {os.strerror(error.errno or 0)}",
            condition="READ_FAILED",
            file=path,
            hint="mend the cause (the disk, permissions, too many open files); nothing of the epoch was committed",
        ) from error
