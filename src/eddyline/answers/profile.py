"""A profile of the last epochs of a storage: rows and time by view and operator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from eddyline.catalog.catalog import Catalog
from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.state.manifest import committed_epochs, read_manifest
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class Spent:
    """The work of a view, or of one of its operators, in some epochs.

    Attributes:
        view: name of the view or table.
        operator: name of the operator, as `explain` shows it; empty for the whole view.
        epochs: in how many epochs it has run.
        in_driver: in how many of them in the driver, without a Spark job; None for an operator.
        rows_in: rows read; changes that an operator got.
        touched: stored rows that operators have read.
        rows_out: changes written.
        seconds: of a view by the clock; of an operator of all its tasks, which may run side by side.
    """

    view: str
    operator: str
    epochs: int
    in_driver: int | None
    rows_in: int
    touched: int
    rows_out: int
    seconds: float


def profile(files: Files, catalog: Catalog, epochs: int) -> tuple[list[Epoch], list[Spent]]:
    """Return the last committed epochs, and the work of views and operators in them, the slowest first.

    Each view is followed by its operators. Epochs of older versions, which hold no times, count as 0 seconds.

    Args:
        epochs: how many epochs at most.
    """
    found: dict[str, dict[str, int]] = {}
    read: list[Epoch] = []
    for epoch in committed_epochs(files)[-epochs:]:
        with suppress(StateError):  # it has just been retired
            counters = read_manifest(files, epoch).counters
            read.append(epoch)
            for name, counts in counters.items():
                total = found.setdefault(name, {"epochs": 0})
                total["epochs"] += 1
                for key, count in counts.items():
                    total[key] = total.get(key, 0) + count
    views = [entry.name for entry in catalog.entries if entry.name in found]
    views.sort(key=lambda name: -found[name].get("us", 0))
    rows: list[Spent] = []
    for view in views:
        own = [name for name in found if name.startswith(f"{view}/")]
        own.sort(key=lambda name: -found[name].get("us", 0))
        parts = [_spent(view, name.removeprefix(f"{view}/"), found[name]) for name in own]
        rows += [_spent(view, "", found[view], sum(part.touched for part in parts)), *parts]
    return read, rows


def folded(rows: Sequence[Spent]) -> list[str]:
    """Return the rows as folded stacks, `view;operator microseconds`, which draw a flame graph.

    Time outside of its operators (reading, Spark's own operators, shuffles) counts for the view itself.

    Example:
        >>> folded([Spent("v", "", 1, 1, 5, 2, 1, 0.5), Spent("v", "join", 1, None, 5, 2, 1, 0.2)])
        ['v 300000', 'v;join 200000']
    """
    lines = []
    for row in rows:
        spent = row.seconds
        if not row.operator:
            own = [one.seconds for one in rows if one.view == row.view and one.operator]
            spent = max(0.0, spent - sum(own))
        stack = f"{row.view};{row.operator}" if row.operator else row.view
        lines.append(f"{stack} {round(spent * 1e6)}")
    return lines


def _spent(view: str, operator: str, total: dict[str, int], touched: int = 0) -> Spent:
    return Spent(
        view,
        operator,
        total["epochs"],
        None if operator else total.get("short", 0),
        total.get("in", 0),
        total.get("touched", touched),
        total.get("out", 0),
        total.get("us", 0) / 1e6,
    )
