"""The status of a storage: positions and watermarks of its sources, state of its views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.compute as pc

from eddyline.answers.named_readers import readers_status
from eddyline.answers.state_sizes import operator_rows, state_size
from eddyline.answers.verified import verified
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import RETAIN, VIEW, Entry
from eddyline.catalog.expectations import VIOLATIONS, expectations_of
from eddyline.changes import WEIGHT, ViewId
from eddyline.errors import StateError
from eddyline.intake.watermarks import Watermarks
from eddyline.source.lag import Lags
from eddyline.source.log_expiry import expired
from eddyline.source.log_files import SET_ASIDE
from eddyline.source.redo_log import last_received
from eddyline.state.fillings import progress
from eddyline.state.manifest import ROWS, Manifest, committed_epochs, read_manifest, runs_of
from eddyline.state.runs import read_run
from eddyline.storage.files import Files

LIVE = "live"  # the state of a view that epochs keep up to date
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bucket_count(catalog: Catalog, manifest: Manifest) -> int:
    """Return the number of buckets of a storage as of an epoch."""
    return manifest.buckets or catalog.buckets


def row_count(files: Files, manifest: Manifest, relation: str) -> int:
    """Return the number of rows of a table or view by its id; reads only their weights."""
    held = manifest.arrangements.get(manifest.result(relation, ROWS), {})
    weights = (read_run(files, run)[WEIGHT] for run in runs_of(held))
    return sum(pc.sum(column).as_py() or 0 for column in weights)


def violations(
    files: Files, catalog: Catalog, manifest: Manifest, relation: Entry
) -> dict[str, int | None]:
    """Return how many rows violate each expectation of a stream or view, by its name.

    None where that isn't known, because the view that counts is set aside or isn't made yet.
    """
    found: dict[str, int | None] = {one.name: None for one in expectations_of(relation)}
    counter = catalog.find(relation.name + VIOLATIONS) if found else None
    if counter is None or counter.id in manifest.failing:
        return found
    held = manifest.arrangements.get(manifest.result(counter.id, ROWS), {})
    for run in runs_of(held):
        rows = read_run(files, run)
        for name, count, weight in zip(
            rows["c0"].to_pylist(), rows["c1"].to_pylist(), rows[WEIGHT].to_pylist(), strict=True
        ):
            if name in found:
                found[name] = (found[name] or 0) + count * weight
    return found


def violations_text(counts: Mapping[str, int | None]) -> str:
    """Return numbers of violations for people."""
    known = ((name, "?" if count is None else count) for name, count in counts.items())
    return ", ".join(f"{name}: {count}" for name, count in known)


def files_set_aside(sources: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield the files that streams have set aside: the stream's name, the path, and why.

    Args:
        sources: as `storage_status` returns them.
    """
    for source in sources:
        for path, why in source.get("set_aside", {}).items():
            yield source["name"], path, why


def set_aside(files: Files, stream: Entry) -> dict[str, str]:
    """Return by path why a stream has set files aside; reads no state."""
    name = f"logs/{stream.id}/{SET_ASIDE}"
    faults = files.read_json(name) if files.exists(name) else {}
    return {path: known["fault"] for path, known in faults.items()}


def storage_status(
    files: Files, catalog: Catalog, manifest: Manifest, lags: Lags
) -> dict[str, Any]:
    """Return the status of `Engine.status` without the pipelines.

    Args:
        lags: of the sources, from `stored_lags`.
    """
    watermarks = Watermarks.of_next_epoch(manifest, catalog)
    retained = committed_epochs(files)
    earlier = {manifest.epoch: manifest}
    sources, views, compared = [], [], verified(files)
    for entry in catalog.entries:
        if entry.kind == VIEW:
            since = next((epoch for epoch in retained if epoch >= entry.since), manifest.epoch)
            if since not in earlier:
                with suppress(StateError):  # it has just been retired
                    earlier[since] = read_manifest(files, since)
            status = _view(catalog, entry, earlier.get(since, manifest), manifest)
            if counts := violations(files, catalog, manifest, entry):
                status["violations"] = counts
            if entry.id in compared:
                status["verified"] = compared[entry.id]
            views.append(status)
        elif not entry.role:
            # the others belong to a stream or pipeline, whose status has their numbers
            source = _source(files, catalog, entry, watermarks, manifest)
            if entry.id in lags:
                source["lag"] = lags[entry.id]
            sources.append(source)
    readers = readers_status(files, catalog, manifest.epoch)
    return {
        "epoch": manifest.epoch,
        "buckets": bucket_count(catalog, manifest),
        "sources": sources,
        "views": views,
        "readers": readers,
        "fillings": progress(files),
    }


def _source(
    files: Files, catalog: Catalog, entry: Entry, watermarks: Watermarks, manifest: Manifest
) -> dict[str, Any]:
    position = manifest.positions.get(entry.id, 0)
    status = {"name": entry.name, "kind": entry.kind, "position": position}
    if entry.event_time:
        clock = manifest.clocks.get(entry.id)
        status["watermark"] = _timestamp(watermarks.of(entry))
        status["late_rows"] = clock.late if clock else 0
        status["ahead_rows"] = clock.ahead if clock else 0
        ahead = entry.max_ahead
        status["max_ahead"] = None if ahead is None else str(timedelta(microseconds=ahead))
        status["idle"] = clock.idle if clock else False
    if retain := entry.options.get(RETAIN):
        status["retain"] = str(timedelta(microseconds=int(retain)))
        gone = expired(files, entry.id)
        status["expired_before"] = _timestamp(gone.before) if gone.end else None
    with suppress(StateError):  # the entry has just been forgotten
        if (received := last_received(files, entry.source)) is not None:
            status["received_at"] = _timestamp(received)
    if faults := set_aside(files, entry):
        status["set_aside"] = faults
    letters = catalog.letters_of(entry)
    if letters is not None:
        status["dead_letters"] = row_count(files, manifest, letters.id)
    if counts := violations(files, catalog, manifest, entry):
        status["violations"] = counts
    return status


def _view(catalog: Catalog, entry: Entry, earlier: Manifest, now: Manifest) -> dict[str, Any]:
    rows, size = state_size(now, entry)
    return {
        "name": entry.name,
        "state_rows": rows,
        "state_bytes": size,
        "state_growth": _growth(entry, earlier, now),
        "level": catalog.level(entry),
        "paused": entry.paused,
        **view_state(entry, now),
    }


def view_state(entry: Entry, now: Manifest) -> dict[str, Any]:
    """Return a view's `state`; for a failing one also `error`, `since` (the first epoch it missed), `rows` at fault."""
    if entry.paused:
        return {"state": "paused", "since": entry.paused}
    failure = now.failing.get(ViewId(entry.id))
    if failure is None:
        return {"state": LIVE}
    return {
        "state": "failing",
        "error": failure.message,
        "since": failure.since,
        "rows": list(failure.rows),
    }


def state_text(view: Mapping[str, Any]) -> str:
    """Return the `state` of a view with the epoch since which it has been so."""
    since = f" since epoch {view['since']}" if "since" in view else ""
    return f"{view['state']}{since}"


def _growth(entry: Entry, earlier: Manifest, now: Manifest) -> float | None:
    """Return the growth of the operators' state in rows an epoch; None if not known."""
    epochs = now.epoch - earlier.epoch
    grown = operator_rows(entry, now) - operator_rows(entry, earlier)
    return grown / epochs if epochs > 0 else None


def _timestamp(micros: int | None) -> str | None:
    return None if micros is None else (_EPOCH + timedelta(microseconds=micros)).isoformat()
