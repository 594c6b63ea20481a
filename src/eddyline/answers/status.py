"""What a storage holds, in numbers: sources with their clocks, views with their state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from eddyline.catalog.entries import PIPELINE, REJECTS, VIEW, Catalog, Entry
from eddyline.intake.watermarks import Watermarks
from eddyline.operators.base import numbered
from eddyline.operators.result import ROWS
from eddyline.state.arrangement import Arrangement, Layout
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest
from eddyline.storage.files import Files

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def state_size(manifest: Manifest, entry: Entry) -> tuple[int, int]:
    """Rows and bytes on disk of a table or view, its result and its operators' state."""
    runs = [run for own in manifest.of(entry.id).values() for run in own]
    return sum(run.rows for run in runs), sum(run.bytes for run in runs)


def stored_rows(files: Files, manifest: Manifest, entry: Entry) -> Iterator[pa.Table]:
    """The rows of a table or view as of an epoch, `c0..`, without Spark."""
    columns = numbered("c", len(entry.columns))
    for runs in manifest.arrangements.get(manifest.result(entry.id, ROWS), {}).values():
        rows = Arrangement(files, Layout(columns), runs).scan()
        if rows is not None:
            yield rows.select(columns)


def storage_status(files: Files, catalog: Catalog, manifest: Manifest) -> dict[str, Any]:
    """See `Engine.status`; without the pipelines."""
    retained = committed_epochs(files)
    known = {manifest.epoch: manifest}
    watermarks = Watermarks.behind(manifest, catalog)
    sources, views = [], []
    for entry in catalog.entries:
        if entry.late_of or entry.format in (PIPELINE, REJECTS):  # told with their streams
            continue
        if entry.kind != VIEW:
            position = manifest.positions.get(entry.id, 0)
            source = {"name": entry.name, "kind": entry.kind, "position": position}
            if entry.event_time:
                clock = manifest.clocks.get(entry.id)
                source["watermark"] = _moment(watermarks.of(entry))
                source["late_rows"] = clock.late if clock else 0
            letters = catalog.letters_of(entry)
            if letters is not None:
                found = stored_rows(files, manifest, letters)
                source["dead_letters"] = sum(rows.num_rows for rows in found)
            sources.append(source)
            continue
        rows, size = state_size(manifest, entry)
        since = next((epoch for epoch in retained if epoch >= entry.since), manifest.epoch)
        if since not in known:
            known[since] = read_manifest(files, since)
        views.append(
            {
                "name": entry.name,
                "state_rows": rows,
                "state_bytes": size,
                "state_growth": _growth(entry, known[since], manifest),
                "level": catalog.level(entry),
                "paused": entry.paused,
            }
        )
    return {"epoch": manifest.epoch, "sources": sources, "views": views}


def _growth(entry: Entry, earlier: Manifest, now: Manifest) -> float | None:
    """Rows an epoch by which the operators' state has grown, the result apart; None if not known."""
    epochs = now.epoch - earlier.epoch
    grown = operator_rows(entry, now) - operator_rows(entry, earlier)
    return grown / epochs if epochs > 0 else None


def operator_rows(entry: Entry, manifest: Manifest) -> int:
    """Rows of a view's state besides its result."""
    result = manifest.result(entry.id, ROWS)
    held = [runs for name, runs in manifest.of(entry.id).items() if name != result]
    return sum(run.rows for runs in held for run in runs)


def _moment(micros: int | None) -> str | None:
    return None if micros is None else (_EPOCH + timedelta(microseconds=micros)).isoformat()
