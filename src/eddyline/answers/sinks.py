"""The status of sinks, from the storage alone: also while another process runs the engine."""

from __future__ import annotations

from typing import Any

from eddyline.catalog.catalog import Catalog
from eddyline.changes import Epoch
from eddyline.sink.outbox import Outbox
from eddyline.storage.files import Files

IDENTITY = "identity.json"
"""The file in the folder of sinks that holds the id of the storage."""


def sinks_status(files: Files, catalog: Catalog, committed: Epoch) -> list[dict[str, Any]]:
    """Return each sink's view, format and state, the epoch that it holds, and how many it is behind."""
    found = []
    for sink in catalog.sinks:
        cursor = Outbox(files, sink.id).cursor()
        epoch = 0 if cursor is None else cursor.epoch
        found.append(
            {
                "sink": sink.name,
                "view": sink.upstream[0],
                "format": sink.format,
                "state": "paused" if sink.paused else "live",
                "epoch": epoch,
                "behind": max(committed - epoch, 0),
            }
        )
    return found
