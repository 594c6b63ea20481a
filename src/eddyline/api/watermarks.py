"""Computes the new event time of a stream whose watermark is reset."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import Entry
from eddyline.intake.event_time import DEFAULT_MAX_AHEAD, latest_time, parsed_time, refused
from eddyline.state.manifest import Clock


def reset_clock(workspace: Workspace, stream: Entry, to: datetime | str | None) -> Clock:
    """Return the event time of a stream with a new watermark.

    Args:
        to: the watermark; None to compute it from the accepted rows that aren't too far ahead of now.

    Raises:
        DataError: the stream has no watermark, or can't have this one.
    """
    if not stream.event_time or stream.late_of:
        raise refused(stream, "it declares none", "name a stream with WATERMARK FOR")
    manifest = workspace.manifest
    known = manifest.clocks.get(stream.id, Clock(None))
    position = manifest.positions.get(stream.id, 0)
    active = None if known.active is None else workspace.clock()
    latest = _latest(workspace, stream, to)
    return replace(known, latest=latest, reset=position, active=active, idle=False)


def _latest(workspace: Workspace, stream: Entry, to: datetime | str | None) -> int | None:
    """Return the latest event time from which the new watermark follows; None for none."""
    ahead = DEFAULT_MAX_AHEAD if stream.max_ahead is None else stream.max_ahead
    limit = workspace.sources.local_time(stream)(workspace.clock()) + ahead
    session = workspace.session()
    if to is None:
        rows = workspace.results.content(stream, workspace.manifest, session)
        return latest_time(rows, stream, limit)
    text = to.isoformat() if isinstance(to, datetime) else to
    watermark = parsed_time(text, stream, session)
    if watermark > limit:
        way_out = "choose an earlier moment: every row below it would be late"
        raise refused(stream, f"{text} is more than max_ahead after now", way_out)
    return watermark + stream.delay
