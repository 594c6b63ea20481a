"""How large the state of a table or view is."""

from __future__ import annotations

from eddyline.catalog.entries import Entry
from eddyline.state.manifest import ROWS, Manifest


def state_size(manifest: Manifest, entry: Entry) -> tuple[int, int]:
    """Return the rows and bytes on disk of a table or view: its result and its operators' state."""
    runs = [run for own in manifest.of(entry.id).values() for run in own]
    return sum(run.rows for run in runs), sum(run.bytes for run in runs)


def operator_sizes(manifest: Manifest, entry: Entry) -> dict[str, tuple[int, int]]:
    """Return the rows and bytes on disk of each operator of a table or view, by its name in the plan."""
    found: dict[str, tuple[int, int]] = {}
    for name, runs in manifest.of(entry.id).items():
        operator = name.split("/")[1]
        rows, size = found.get(operator, (0, 0))
        rows, size = rows + sum(run.rows for run in runs), size + sum(run.bytes for run in runs)
        found[operator] = rows, size
    return found


def operator_rows(entry: Entry, manifest: Manifest) -> int:
    """Return the number of rows in the state of a view's operators, without its result."""
    result = manifest.result(entry.id, ROWS)
    held = [runs for name, runs in manifest.of(entry.id).items() if name != result]
    return sum(run.rows for runs in held for run in runs)
