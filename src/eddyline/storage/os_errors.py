"""Translates errors of the operating system into errors of Eddyline."""

from __future__ import annotations

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
