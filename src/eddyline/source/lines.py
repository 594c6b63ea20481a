"""Lines of JSON files as columns, equal to what Spark's reader returns in the mode PERMISSIVE."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from eddyline.source.compression import is_compressed, open_file
from eddyline.source.json import BLOCK_BYTES, BY_POLARS, JsonDecoder
from eddyline.source.scanner import BOM
from eddyline.storage.os_errors import input_errors

PART_BYTES = 32 << 20
"""The length of the parts in which a file is read. Such a part may end within a line; a shorter one ends with the file as
it was when it was logged, or at the end of a line."""

_ANY = 1 << 62


def readable(schema: pa.Schema) -> bool:
    """Return whether JSON files with these columns are decoded here, rather than by Spark."""
    return all(field.type in BY_POLARS or pa.types.is_timestamp(field.type) for field in schema)


def read_json(path: str, schema: pa.Schema, start: int = 0, length: int = 0) -> Iterator[pa.Table]:
    """Decode the lines of a file that begin within `length` bytes from `start` on; 0: up to its end.

    The last line of `PART_BYTES` bytes is read to its end; that of less only as far as the bytes go: what was written
    after them doesn't count. A compressed file is one part, whatever its length. Values that can't be converted are null.

    Raises:
        DataError: BAD_FILE, it can't be decompressed.
        StorageError: READ_FAILED, it can't be read now.
    """
    if is_compressed(path):
        if start:
            return
        length = _ANY
    decoder = JsonDecoder(schema, "UTC")
    at, end = 0, start + (length or _ANY)
    exact = length not in (0, PART_BYTES)
    with input_errors(path), open_file(path) as stream:
        if start:
            stream.seek(start - 1)
            at = start - 1 + len(stream.readline())  # that line belongs to the part before
        while at < end and (block := stream.read(min(BLOCK_BYTES, end - at))):
            if not block.endswith(b"\n"):
                block += stream.readline(end - at - len(block) if exact else -1)
            yield from decoder.tables(_unix(block if at else block.removeprefix(BOM)))
            at += len(block)


def line_starts(path: str, start: int = 0, length: int = 0) -> np.ndarray:
    """Return where the lines begin that `read_json` reads of these bytes; nothing for a compressed file."""
    if is_compressed(path):
        return np.empty(0, np.int64)
    before = max(start - 1, 0)  # the byte that tells whether a line begins at the first one
    with open(path, "rb") as stream:
        stream.seek(before)
        block = np.frombuffer(stream.read(start + length - 1 - before if length else -1), np.uint8)
    starts = np.flatnonzero(block == ord("\n")) + before + 1
    return starts if start else np.concatenate([[0], starts])


def part_end(path: str, start: int, length: int) -> int:
    """Return where the last line ends that `read_json` reads of these bytes of a file that isn't compressed."""
    end = start + length
    if length != PART_BYTES:
        return end
    with open(path, "rb") as stream:
        stream.seek(end - 1)
        return end - 1 + len(stream.readline())


def _unix(block: bytes) -> bytes:
    """End all lines with a line feed: Hadoop's reader also ends them at carriage returns."""
    if b"\r" not in block:
        return block
    return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
