"""The health of an engine's background run: `run.json` in the storage, which the engine keeps up to date for others.

Its content is that of `Engine.status()["run"]`. Where no engine holds the storage it says nothing.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eddyline.errors import EddylineError
from eddyline.storage.files import Files
from eddyline.storage.lock import in_use

NAME = "run.json"
RUNNING, RETRYING, ENDED, STOPPED = STATES = ("running", "retrying", "ended", "stopped")
"""What `state` of the health may be."""

BYTES = 4096
"""The size of the file, always the same: the run most often fails on a full disk, where a file can't grow or be made."""
ERROR_LENGTH = 500
"""So many characters of an error fit into the file, however they are escaped."""
READS, READ_AGAIN_S = 5, 0.002
"""How often the file is read if it is being written at that moment."""


@dataclass(slots=True)
class StoredHealth:
    """Stores the health of this process's run in a storage when it changes. Errors of writing are ignored."""

    files: Files
    _stored: Mapping[str, Any] | None = None

    def store(self, health: Mapping[str, Any]) -> None:
        """Write the health, unless the file has it already."""
        if health == self._stored:
            return
        short = {**health, "error": health["error"][:ERROR_LENGTH]} if "error" in health else health
        body = json.dumps(short, ensure_ascii=False).encode(errors="replace").ljust(BYTES - 9)
        with suppress(EddylineError, OSError), self.files.committing():  # the next one tries again
            self.files.overwrite(NAME, b"%08x " % zlib.crc32(body) + body)
            self._stored = health

    def forget(self) -> None:
        """Remove the file, which may be that of an engine that was killed."""
        self._stored = None
        if self.files.exists(NAME):
            with suppress(EddylineError, OSError), self.files.committing():
                self.files.remove(NAME)


def stored_health(files: Files) -> dict[str, Any]:
    """Return the health of the run of the engine that holds the storage, as `Engine.status()["run"]`.

    `stopped` if no engine runs, none runs in the background, or the file can't be read.
    """
    for _ in range(READS if in_use(files) and files.exists(NAME) else 0):
        try:
            found: dict[str, Any] = files.read_json(NAME)
        except EddylineError:
            time.sleep(READ_AGAIN_S)
        else:
            return found
    return {"state": STOPPED}


def trouble(health: Mapping[str, Any]) -> str:
    """Return what is wrong with a run, for people; empty if nothing is.

    Example:
        >>> trouble({"state": "retrying", "error": "disk full", "failures": 3})
        'the background run fails, 3 times in a row, and tries again: disk full'
        >>> trouble({"state": "ended", "error": "state is damaged"}), trouble({"state": "running"})
        ('the background run has ended: state is damaged', '')
    """
    if health["state"] == ENDED:
        return f"the background run has ended: {health['error']}"
    if health["state"] == RETRYING:
        count = health["failures"]
        times = "once" if count == 1 else f"{count} times in a row"
        return f"the background run fails, {times}, and tries again: {health['error']}"
    return ""
