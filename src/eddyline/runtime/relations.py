"""Relations as plans see them: columns, bounds of event times, and where their rows are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql.types import StructType

from eddyline.catalog.altered import Seen
from eddyline.catalog.entries import STREAM, VIEW, Entry
from eddyline.catalog.logged import logged
from eddyline.plan.build import Relation
from eddyline.plan.eventtime import stream_bound
from eddyline.plan.lower import Compiled


def relation_of(entry: Entry, compiled: Callable[[Entry], Compiled]) -> Relation:
    """Return the properties of a table, stream or view that a plan over it needs.

    Args:
        compiled: returns the compiled form of a view.
    """
    if entry.kind == VIEW:
        view = compiled(entry)
        return Relation(
            entry.name,
            entry.columns,
            view.append_only,
            view.endless,
            dict(view.bounds),
            key=view.key,
        )
    stream = entry.kind == STREAM and not entry.arranged
    late = bool(entry.late_of)
    place = entry.time_place
    bounds = {} if place is None or late else {place: stream_bound(entry.name)}
    names = entry.columns.names
    key = tuple(names.index(name) for name in entry.key) if entry.key else None
    relation = Relation(
        entry.name,
        entry.columns,
        stream,
        stream,
        bounds,
        place,
        late,
        key,
        entry.gives_reasons,
    )
    return in_log(relation, entry) if stream else relation


def plain(name: str, columns: StructType) -> Relation:
    """Return a relation without watermark or key, whose stored rows are all read."""
    return Relation(name, columns, append_only=False)


def in_log(relation: Relation, entry: Entry) -> Relation:
    """Return a relation whose rows are read from the log of a stream; that of a table as it is."""
    if entry.kind != STREAM:
        return relation
    log = logged(entry)
    return replace(relation, places=log.places, stored=log.names)


def as_seen(relation: Relation, seen: Seen, known: Entry) -> Relation:
    """Return an altered relation with the columns that a view still sees."""
    names, own = known.columns.names, relation.places
    places = tuple(-1 if name is None else names.index(name) for name in seen.names)
    at = {name: place for place, name in enumerate(seen.names) if name is not None}
    return replace(
        relation,
        schema=seen.columns,
        key=seen.key or None,
        places=places if own is None else tuple(p if p < 0 else own[p] for p in places),
        bounds={at[names[p]]: bound for p, bound in relation.bounds.items() if names[p] in at},
        time=None if relation.time is None else at[names[relation.time]],
    )
