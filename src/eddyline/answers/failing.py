"""Which view holds the rows of an epoch, and the errors for readers of a failing view."""

from __future__ import annotations

from eddyline.catalog.entries import Entry
from eddyline.changes import ViewId
from eddyline.errors import EngineError, StateError
from eddyline.state.manifest import Failure, Manifest


def view_failing(failure: Failure) -> EngineError:
    """Return the error for a view that is set aside."""
    return EngineError(
        failure.message,
        condition="VIEW_FAILING",
        hint="mend the rows, mend or register the function, or define the view of a DataFrame again, and it comes back by itself; "
        "snapshot(last_good=True) reads the rows of its last good epoch",
        since=failure.since,
        rows="; ".join(failure.rows) or None,
    )


def check_live(entry: Entry, manifest: Manifest) -> None:
    """Raise EngineError VIEW_FAILING if a view is set aside in an epoch."""
    check_holder(ViewId(entry.id), manifest)


def check_holder(view: ViewId, manifest: Manifest) -> None:
    """Raise EngineError VIEW_FAILING if the view that held rows in an epoch was set aside in it."""
    failure = manifest.failing.get(view)
    if failure is not None:
        raise view_failing(failure)


def holder_as_of(entry: Entry, then: Manifest, now: Manifest) -> ViewId:
    """Return the id of the entry, or of its predecessor, that held the rows in an earlier epoch.

    Args:
        then: that epoch.
        now: the last committed epoch.

    Raises:
        StateError: NO_SUCH_EPOCH: the view was made later, or had other columns.
    """
    view = ViewId(entry.id)
    holder = now.holder(view, then.epoch)
    resumed = view in now.rebuilt  # `since` is then not its first epoch
    if not holder or (holder == view and then.epoch < entry.since and not resumed):
        raise StateError(
            f"view {entry.name}, as it is now, has no rows as of epoch {then.epoch}",
            condition="NO_SUCH_EPOCH",
            hint=f"ask for epoch {entry.since} or a later one",
        )
    return ViewId(holder)
