"""The files that Spark's source of files has read: it reads each once, also where it grows later."""

from __future__ import annotations

import json
import logging
import os
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
_LOG = logging.getLogger("eddyline.sources")


class FilesRead:
    """Finds files that have changed since Spark read them, by the log in its checkpoint.

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
        """Warn of files that have changed since they were read, and store them."""
        for path, time_ms in self._new_entries():
            self._times[path] = max(time_ms, self._times.get(path, 0))
        files, name = self._log.files, f"{self._log.folder}/{SET_ASIDE}"
        if self._faults is None:
            self._faults = files.read_json(name) if files.exists(name) else {}
        faults = dict(self._found())
        for path in faults.keys() - self._faults.keys():
            _LOG.warning("stream %s: file %s: %s", self._stream, path, _CHANGED)
        if faults != self._faults:
            files.write_json(name, faults)
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
                    address = urlparse(entry["path"])
                    if address.scheme in ("", "file"):
                        yield unquote(address.path), int(entry["timestamp"])
