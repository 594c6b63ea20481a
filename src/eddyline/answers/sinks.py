"""The status of sinks, from the storage alone: also while another process runs the engine.

A sink that fails is known by the error that its engine has stored, until a delivery has succeeded.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from eddyline.catalog.catalog import Catalog
from eddyline.changes import Epoch
from eddyline.sink.outbox import OutageFile, Outbox
from eddyline.storage.files import Files

IDENTITY = "identity.json"
"""The file in the folder of sinks that holds the id of the storage."""


def sinks_status(files: Files, catalog: Catalog, committed: Epoch) -> list[dict[str, Any]]:
    """Return each sink's view, format and state, the epoch that it holds, and how many it is behind.

    One that fails has `error`, too, its `condition`, and `failing_since`, in ISO format.
    """
    found = []
    for sink in catalog.sinks:
        cursor = Outbox(files, sink.id).cursor()
        outage = None if sink.paused else OutageFile(files, sink.id).read()
        epoch = 0 if cursor is None else cursor.epoch
        status: dict[str, Any] = {
            "sink": sink.name,
            "view": sink.upstream[0],
            "format": sink.format,
            "state": "paused" if sink.paused else "failing" if outage else "live",
            "epoch": epoch,
            "behind": max(committed - epoch, 0),
        }
        if outage is not None:
            since = datetime.fromtimestamp(outage.since / 1e6, UTC)
            status |= {
                "error": outage.message,
                "condition": outage.condition,
                "failing_since": since.isoformat(timespec="seconds"),
            }
        found.append(status)
    return found
