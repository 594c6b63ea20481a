"""The changes of a view between epochs: where they are stored, and whether all are retained."""

from __future__ import annotations

from collections.abc import Sequence

from eddyline.answers.changelog import CDF, RETRACT
from eddyline.answers.reader import EpochChanges
from eddyline.catalog.entries import TABLE, Entry
from eddyline.changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    OPERATION,
    Epoch,
    ViewId,
)
from eddyline.errors import QueryError, StateError
from eddyline.state.manifest import (
    ROWS,
    Manifest,
    committed_at,
    committed_epochs,
    read_manifest,
    runs_of,
    without_gaps,
)
from eddyline.state.runs import Run
from eddyline.storage.files import Files


def changed_runs(
    files: Files, entry: Entry, manifest: Manifest, after: int | None
) -> list[tuple[Epoch, tuple[Run, ...]]]:
    """Return the runs with a view's changes, by epoch.

    From the beginning (`after` is None or 0), changes before the oldest retained epoch are
    returned as one append of all its rows.

    Raises:
        StateError: the epochs after `after` are no longer retained.
    """
    view = ViewId(entry.id)
    start = Epoch(max(after or 0, 0))
    ended = next((end for name, end in manifest.replaced.get(view, ()) if not name), Epoch(0))
    if entry.kind == TABLE:  # an altered one begins anew
        ended = max(ended, Epoch(entry.since))
    if 0 < start < ended:
        why = f"the {entry.kind} was replaced in epoch {ended} by one with other columns"
        raise changes_expired(entry.name, start, manifest.epoch, why)
    retained = [e for e in without_gaps(committed_epochs(files)) if e <= manifest.epoch]
    if start and retained and start < retained[0] - 1:
        raise changes_expired(entry.name, start, manifest.epoch)
    epochs = []
    for epoch in (epoch for epoch in retained if epoch > start and epoch >= ended):
        known = read_manifest(files, epoch)
        cut = epoch == retained[0] and start < epoch - 1
        result = known.result(manifest.holder(view, epoch), ROWS)
        buckets = (known.arrangements if cut else known.deltas).get(result, {})
        runs = tuple(runs_of(buckets))
        if runs:
            epochs.append((epoch, runs))
    return epochs


def changes_expired(view: str, after: int, committed: Epoch, why: str = "") -> StateError:
    """Return the error CHANGES_EXPIRED for the changes after an epoch.

    Args:
        why: the reason; empty if they are no longer retained.
    """
    return StateError(
        why or f"the changes after epoch {after} are no longer all retained",
        condition="CHANGES_EXPIRED",
        view=view,
        hint=f"read snapshot({committed}) in place of what you hold, and go on with "
        f"changes(after={committed}). A reader with a name holds its epochs, up to the options "
        "held_epochs and held_bytes",
    )


_ADDED = {CDF: (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP), RETRACT: (OPERATION, "epoch")}


def check_feed(entry: Entry, form: str = CDF) -> None:
    """Raise QueryError if a column of a view has the name of one that a form of its changes adds."""
    own = {name.lower(): name for name in entry.columns.names}
    for name in _ADDED.get(form, ()):
        if name in own:
            raise QueryError(
                f"{entry.kind} {entry.name} has a column {own[name]}, which the form {form} of its changes adds",
                condition="DUPLICATE_COLUMN",
                hint="give the column another name with AS in a view, or read another form: retract, update, cdf",
            )


def epoch_changes(
    files: Files,
    runs: Sequence[tuple[Epoch, tuple[Run, ...]]],
    columns: int,
    form: str,
    key: tuple[int, ...] | None,
) -> list[EpochChanges]:
    """Return the changes that `changed_runs` has found, in one of the forms of `View.changes`.

    Args:
        columns: number of the view's columns.
        key: places of the columns by which rows are paired.
    """
    return [
        EpochChanges(
            files, epoch, own, columns, form, key, committed_at(files, epoch) if form == CDF else 0
        )
        for epoch, own in runs
    ]
