"""The plans that an epoch runs. After a start, a view is compiled when its input first changes."""

from __future__ import annotations

from collections.abc import Collection

from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import VIEW, Entry
from eddyline.catalog.expectations import is_ended
from eddyline.changes import Epoch, ViewId
from eddyline.errors import QueryError
from eddyline.runtime.plans import EpochPlan
from eddyline.runtime.view_failures import not_compiled
from eddyline.spark.jvm import is_unanswered
from eddyline.state.manifest import Failure


def is_live(workspace: Workspace, entry: Entry) -> bool:
    """Return whether an entry is a view that epochs keep up to date: not paused, not failing."""
    return entry.kind == VIEW and not entry.paused and entry.id not in workspace.manifest.failing


def at_rest(workspace: Workspace, view: Entry) -> bool:
    """Return whether a view stays as it is until its input changes, and so needn't be compiled.

    Its state was then written by the same versions and options, over relations that are defined as they were, and neither
    time nor the functions that the user has registered change its rows.
    """
    known = workspace.known_plan(view)
    if known is not None:
        return bool(known.plan.maker)
    maker = workspace.compiler.maker_of(view.upstream, workspace.catalog)
    return workspace.manifest.makers.get(view.id) == maker


def live_plans(
    workspace: Workspace, changed: Collection[str] | None = None
) -> tuple[dict[str, EpochPlan], dict[ViewId, Failure]]:
    """Return the plans of all tables and live views by name, and why views can't be compiled.

    A view that was compiled in another process may call a function that this one doesn't know.

    Args:
        changed: ids of the sources with new input. Views at rest that read no other relations are left out, unless they
            are compiled already. None to leave out none.
    """
    plans: dict[str, EpochPlan] = {}
    aside: dict[ViewId, Failure] = {}
    since = Epoch(workspace.manifest.epoch + 1)
    moving: set[str] = set()  # names of the relations whose rows may change
    for entry in workspace.catalog.entries:
        if entry.kind != VIEW and changed is not None and entry.source in changed:
            moving.add(entry.name)
        live = is_live(workspace, entry)
        if not (entry.arranged or live) or is_ended(entry, workspace.catalog):
            continue
        if live:
            reached = changed is None or not moving.isdisjoint(entry.upstream)
            if reached or not at_rest(workspace, entry):
                moving.add(entry.name)
            elif workspace.known_plan(entry) is None:
                continue
        try:
            plans[entry.name] = workspace.plan(entry).plan
        except QueryError as error:
            if entry.kind != VIEW or is_unanswered(error.__cause__):
                raise
            read = [failure.view for failure in aside.values() if failure.view in entry.upstream]
            upstream = read[0] if read else ""
            aside[ViewId(entry.id)] = not_compiled(entry.name, since, error, upstream)
    return plans, aside
