"""Views that are set aside because they fail: what readers get instead of rows."""

from __future__ import annotations

from eddyline.catalog.entries import Entry
from eddyline.changes import ViewId
from eddyline.errors import EngineError
from eddyline.state.manifest import Failure, Manifest


def view_failing(failure: Failure) -> EngineError:
    """Return the error for a view that is set aside."""
    return EngineError(
        failure.message,
        condition="VIEW_FAILING",
        hint="mend the rows, or mend or register the function, and the view comes back by itself; "
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
