"""How much input an epoch of a view has, before it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from eddyline.source.segments import BUCKET_RUNS, Segment
from eddyline.storage.files import Files

UNKNOWN = 1 << 62  # rows of a segment that can't be estimated

_BYTES_A_ROW = 100  # of a file whose rows aren't counted

SHORT_ROW_BYTES, FEW_BYTES = 1 << 10, 1 << 27
"""Rows of up to so many bytes on average are short; so is an input of so many bytes in all."""


def rows_of(segments: Iterable[Segment]) -> int:
    """Return how many rows some segments have; an estimate for files."""
    return sum(map(_rows, segments))


def has_short_rows(files: Files, segments: Iterable[Segment]) -> bool:
    """Return whether many rows of some segments fit into memory at once, whichever these are."""
    counted, bytes_of_counted, others = 0, 0, 0
    for segment in segments:
        size = _bytes(files, segment)
        if segment.rows or segment.kind == BUCKET_RUNS:
            counted, bytes_of_counted = counted + _rows(segment), bytes_of_counted + size
        else:
            others += size
    if bytes_of_counted + others <= FEW_BYTES:
        return True
    return others <= FEW_BYTES and bytes_of_counted <= SHORT_ROW_BYTES * counted


def _rows(segment: Segment) -> int:
    if segment.kind == BUCKET_RUNS:
        return sum(rows for _, rows in json.loads(segment.file))
    if segment.rows or not segment.bytes:
        return segment.rows or UNKNOWN
    return segment.bytes // _BYTES_A_ROW


def _bytes(files: Files, segment: Segment) -> int:
    """Return the bytes of a segment's file or files; 0 for generated rows."""
    if segment.bytes:
        return segment.bytes
    names = [segment.file]
    if segment.kind == BUCKET_RUNS:
        names = [name for name, _ in json.loads(segment.file)]
    total = 0
    for name in names:
        try:
            total += os.path.getsize(files.path(name))
        except OSError:
            continue  # generated rows, or the reader says what is wrong
    return total
