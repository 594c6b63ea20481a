"""How large the state of a table or view is."""

from __future__ import annotations

from eddyline.catalog.entries import Entry
from eddyline.state.manifest import ROWS, Manifest, runs_of


def state_size(manifest: Manifest, entry: Entry) -> tuple[int, int]:
    """Return the rows and bytes on disk of a table or view: its result and its operators' state."""
    runs = [run for own in manifest.of(entry.id).values() for run in own]
    return sum(run.rows for run in runs), sum(run.bytes for run in runs)


def operator_sizes(manifest: Manifest) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the rows and bytes on disk of each operator, by the id of its table or view, then by its name in the plan.

    Goes over all runs once.
    """
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name, buckets in manifest.arrangements.items():
        owner, operator, *_ = name.split("/")
        sizes = found.setdefault(owner, {})
        rows, size = sizes.get(operator, (0, 0))
        for run in runs_of(buckets):
            rows, size = rows + run.rows, size + run.bytes
        sizes[operator] = rows, size
    return found


def operator_rows(entry: Entry, manifest: Manifest) -> int:
    """Return the number of rows in the state of a view's operators, without its result."""
    result = manifest.result(entry.id, ROWS)
    held = [runs for name, runs in manifest.of(entry.id).items() if name != result]
    return sum(run.rows for runs in held for run in runs)
