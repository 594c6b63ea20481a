"""Opens files that may be compressed; the suffix of the name decides, as in Spark's readers."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO

import pyarrow as pa

from eddyline.errors import DataError
from eddyline.storage.os_errors import is_of_system

_OPEN: Mapping[str, Callable[[str], IO[bytes]]] = {
    ".gz": lambda path: io.BufferedReader(gzip.open(path)),  # noqa: SIM115
    ".bz2": lambda path: io.BufferedReader(bz2.open(path)),  # noqa: SIM115
    ".deflate": lambda path: io.BytesIO(zlib.decompress(_read(path))),
    ".zst": lambda path: io.BufferedReader(pa.CompressedInputStream(path, "zstd")),
}
_ONLY_HADOOP = (".lz4", ".snappy")
READABLE = tuple(_OPEN)
"""The ends of the names of compressed files that can be read."""


def is_compressed(path: str) -> bool:
    """Return whether a file is decompressed, so that it can't be read in parts."""
    return _ending(path) in (*_OPEN, *_ONLY_HADOOP)


@contextmanager
def open_file(path: str) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed.

    Raises:
        DataError: while it is open, it can't be decompressed.
        OSError: it has an errno: the file can't be read now.
    """
    ending = _ending(path)
    try:
        if ending in _ONLY_HADOOP:
            raise ValueError(f"only Hadoop writes {ending}; use .gz, .bz2, .deflate or .zst")
        with _OPEN[ending](path) if ending in _OPEN else open(path, "rb") as stream:
            yield stream
    except (EOFError, ValueError, OSError, zlib.error) as error:
        if is_of_system(error) or not is_compressed(path):
            raise
        raise DataError(
            f"a file of a stream can't be decompressed: {error}",
            condition="BAD_FILE",
            file=path,
            hint="mend or replace the file; nothing of the epoch was committed",
        ) from error


def compression_fault(path: str) -> str:
    """Return the reason why a file can't be decompressed; empty if it can, or isn't compressed.

    Raises:
        OSError: it has an errno: the file can't be read now, and nothing is known of its content.
    """
    if not is_compressed(path):
        return ""
    try:
        with open_file(path) as stream:
            while stream.read(1 << 20):
                pass
    except DataError as error:
        return str(error.__cause__)
    return ""


def _ending(path: str) -> str:
    return os.path.splitext(path)[1]


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()
