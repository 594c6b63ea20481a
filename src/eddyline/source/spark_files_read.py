"""The files that Spark's source of files has read: it reads each once, also one that can't be read or grows later."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from eddyline.source.log_files import SET_ASIDE
from eddyline.source.redo_log import RedoLog

_CHANGED = (
    "it has changed since Spark's reader read it, which reads each file once: what was added isn't read; "
    "write it as a new file"
)
STANDING_S = 10.0
"""A file that can't be read is left out once it hasn't changed for so long: it may be half written."""

_CHUNK = 1 << 22

_LOG = logging.getLogger("eddyline.sources")


class FilesRead:
    """Finds files that have changed since Spark read them, by the log in its checkpoint, and those that it can't read.

    Args:
        stream: name of the stream, for warnings.
        log: redo log of the stream, beside which these files are stored for its status.
        checkpoint: absolute path of Spark's checkpoint.
    """

    def __init__(self, stream: str, log: RedoLog, checkpoint: str) -> None:
        self._stream, self._log, self._checkpoint = stream, log, checkpoint
        # by path when a file was last changed, as Spark saw it, in milliseconds since 1970
        self._times: dict[str, int] = {}
        self._batches: set[Path] = set()  # the files of Spark's log at the last look
        self._faults: dict[str, dict[str, Any]] | None = None  # None: not read yet

    def look(self) -> None:
        """Warn of files that have changed since they were read, and store them; forget those that are gone."""
        for path, time_ms in self._new_entries():
            self._times[path] = max(time_ms, self._times.get(path, 0))
        left_out = {path: why for path, why in self._left_out().items() if os.path.exists(path)}
        self._store({**dict(self._found()), **left_out})

    @property
    def addresses_left_out(self) -> list[str]:
        """The addresses of the files that are left out, in both of Spark's spellings."""
        whole = [fault["address"] for fault in self._left_out().values()]
        return [*whole, *(address.replace("file:///", "file:/", 1) for address in whole)]

    def leave_out(self, address: str, why: str) -> bool:
        """Leave a local file out from now on, and store it, if its content is at fault; return whether it is.

        Else the system doesn't let it read now, it may still be written, or it is left out already.

        Args:
            address: under which Spark has failed on it.
            why: the reason.
        """
        path = local_path(address)
        if path is None or path in self._left_out():
            return False
        try:
            with open(path, "rb") as stream:
                status = os.fstat(stream.fileno())
                if time.time() - status.st_mtime < STANDING_S:
                    return False
                while stream.read(_CHUNK):
                    pass
        except OSError:
            return False
        now = {"size": status.st_size, "modified": status.st_mtime_ns, "address": address}
        fault = f"it can't be read: {why}; write its rows as a new file"
        self._store({**self._stored(), path: {**now, "fault": fault}})
        return True

    def _left_out(self) -> dict[str, dict[str, Any]]:
        return {path: fault for path, fault in self._stored().items() if "address" in fault}

    def _stored(self) -> dict[str, dict[str, Any]]:
        if self._faults is None:
            files, name = self._log.files, f"{self._log.folder}/{SET_ASIDE}"
            self._faults = files.read_json(name) if files.exists(name) else {}
        return self._faults

    def _store(self, faults: dict[str, dict[str, Any]]) -> None:
        before = self._stored()
        for path in faults.keys() - before.keys():
            _LOG.warning("stream %s: file %s: %s", self._stream, path, faults[path]["fault"])
        if faults != before:
            self._log.files.write_json(f"{self._log.folder}/{SET_ASIDE}", faults)
            self._faults = faults

    def _found(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path, time_ms in self._times.items():
            with suppress(OSError):  # it is gone
                status = os.stat(path)
                if status.st_mtime_ns // 1_000_000 > time_ms:
                    now = {"size": status.st_size, "modified": status.st_mtime_ns}
                    yield path, {**now, "fault": _CHANGED}

    def _new_entries(self) -> Iterator[tuple[str, int]]:
        """Yield the files that were read since the last look, and the times of their last change until then."""
        before, self._batches = self._batches, set(Path(self._checkpoint).glob("sources/*/[0-9]*"))
        for batch in self._batches - before:
            # compacted meanwhile; a log of another kind of source
            with suppress(OSError, ValueError):
                for line in batch.read_text(encoding="utf-8").splitlines()[1:]:
                    entry = json.loads(line)
                    if not (isinstance(entry, dict) and entry.keys() >= {"path", "timestamp"}):
                        break
                    if (path := local_path(entry["path"])) is not None:
                        yield path, int(entry["timestamp"])


def local_path(address: str) -> str | None:
    """Return the path of a file of this machine by its URL; None for another one.

    Example:
        >>> local_path("file:///in/a%20b.csv"), local_path("s3://bucket/a.csv")
        ('/in/a b.csv', None)
    """
    parts = urlparse(address)
    return unquote(parts.path) if parts.scheme in ("", "file") else None
