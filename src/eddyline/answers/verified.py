"""When each view was last compared with offline SQL, and whether it was equal: `verified.json` in the storage."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW
from eddyline.errors import EddylineError
from eddyline.storage.files import Files

if TYPE_CHECKING:
    from eddyline.answers.verify import Report

NAME = "verified.json"


def keep_verified(files: Files, catalog: Catalog, report: Report) -> None:
    """Store what a verification has found of each compared view, for `verified`.

    Where the storage can't be written nothing is stored: the report itself is what counts. Of two verifications that end at
    the same time one may be forgotten.
    """
    known = _read(files)
    ids = {entry.name: entry.id for entry in catalog.entries if entry.kind == VIEW}
    moment = time.time_ns() // 1000
    found = {
        ids[name]: {
            "epoch": report.paused.get(name, report.epoch),
            "at": moment,
            "equal": one.equal,
            "differences": known.get(ids[name], {}).get("differences", 0) + (not one.equal),
        }
        for name, one in report.views.items()
        if name in ids
    }
    if found and os.access(files.root, os.W_OK):
        kept = {view: one for view, one in known.items() if view in ids.values()}
        with suppress(EddylineError, OSError):
            files.write_json(NAME, {**kept, **found}, durable=False)


def verified(files: Files) -> dict[str, dict[str, Any]]:
    """Return, by the id of a view, `epoch`, `at` (ISO 8601, UTC) and `equal` of its last verification.

    `differences` is how many verifications have found it different from offline SQL so far.
    """
    return {
        view: {"differences": 0, **one, "at": _iso(one["at"])} for view, one in _read(files).items()
    }


def _read(files: Files) -> Mapping[str, dict[str, Any]]:
    with suppress(EddylineError):  # it is damaged, or can't be read: it is written anew
        if files.exists(NAME):
            found: Mapping[str, dict[str, Any]] = files.read_json(NAME)
            return found
    return {}


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="seconds")
