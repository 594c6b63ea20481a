"""Relative paths in the options of streams and sinks: made absolute when these are created, so that all processes find the same files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from eddyline.catalog.entries import Entry
from eddyline.intake.formats import PATH

_FILES = (
    "avro", "binaryfile", "csv", "delta", "eddyline", "json", "jsonl", "orc", "parquet", "queue", "tail", "text", "xml",
)  # fmt: skip
"""Formats whose path is one of the file system; that of others may be anything."""
# absolute, a URI, or with a reference to a secret
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:|.*\$\{")


def with_absolute_path(
    format: str, options: Mapping[str, str], present: Entry | None
) -> dict[str, str]:
    """Return options with the path in the folder of this process, if it is relative.

    Args:
        format: of the stream or sink.
        present: the one that has the name already; a relative path of an earlier version stays as it is.

    Example:
        >>> with_absolute_path("json", {"path": "/data"}, None)
        {'path': '/data'}
    """
    given = dict(options)
    kept = path_of(present.options) if present else ""
    for name, path in options.items():
        if name.lower() != PATH or format.lower() not in _FILES or path == kept:
            continue
        if path.strip() and not _ELSEWHERE.match(path):
            given[name] = os.path.abspath(path)
    return given


def path_of(options: Mapping[str, str]) -> str:
    """Return the path among options; empty if there is none."""
    return next((value for name, value in options.items() if name.lower() == PATH), "")
