"""The catalog of a storage: its tables, streams, views and sinks. `store.py` makes it durable."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from eddyline.catalog.entries import (
    COMPANION,
    DEAD,
    KEPT,
    KEPT_OUT,
    LATE,
    LATE_ROWS,
    LOGGED,
    OF,
    REASON,
    REJECTS,
    STREAM,
    TIME_OPTIONS,
    VIEW,
    Entry,
)
from eddyline.changes import Epoch, ViewId
from eddyline.errors import CatalogError


@dataclass(frozen=True, slots=True)
class Catalog:
    """All definitions, and the settings fixed with the storage.

    Attributes:
        entries: tables, streams and views, upstream before downstream.
        sinks: sinks, whose names are apart from those of `entries`.
    """

    buckets: int
    entries: tuple[Entry, ...] = ()
    next_id: int = 1
    sinks: tuple[Entry, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all definitions."""
        return frozenset(entry.id for entry in self.entries)

    def find(self, name: str) -> Entry | None:
        """Return the definition of a name; letter case doesn't matter, as in Spark."""
        wanted = name.lower()
        return next((entry for entry in self.entries if entry.name.lower() == wanted), None)

    def get(self, name: str, *kinds: str) -> Entry:
        """Return the definition of a name; CatalogError if none of these kinds has it."""
        entry = self.find(name)
        if entry is None or (kinds and entry.kind not in kinds):
            other = "" if entry is None else f"{name} is a {entry.kind}; "
            wanted = " or ".join(kinds) or "table, stream or view"
            known = ", ".join(e.name for e in self.entries if not kinds or e.kind in kinds)
            raise CatalogError(
                f"there is no {wanted} named {name}",
                condition="NOT_FOUND",
                hint=f"{other}known: {known or 'none yet'}",
            )
        return entry

    def add(self, entry: Entry) -> Catalog:
        """Return the catalog with one more definition, and assign its id.

        Raises:
            CatalogError: NAME_TAKEN: the stream of its late rows would have the name of another definition.
        """
        numbered = replace(entry, id=f"{entry.kind[0]}{self.next_id}")
        added = replace(self, entries=(*self.entries, numbered), next_id=self.next_id + 1)
        if not entry.event_time or entry.late_of:
            return added
        late = Entry(
            "", STREAM, entry.name + LATE, entry.schema, event_time=entry.event_time,
            options={name: entry.options[name] for name in TIME_OPTIONS if name in entry.options},
            delay=entry.delay, late_of=numbered.id,
        )  # fmt: skip
        if (other := self.find(late.name)) is not None:
            raise CatalogError(
                f"the late rows of stream {entry.name} need the name {late.name}, which {other.kind} {other.name} has",
                condition="NAME_TAKEN",
                hint="give the stream another name, or drop that one first",
            )
        return added.add(_with_reason(late) if late.gives_reasons else late)

    def find_sink(self, name: str) -> Entry | None:
        """Return the definition of a sink."""
        return next((sink for sink in self.sinks if sink.name.lower() == name.lower()), None)

    def get_sink(self, name: str) -> Entry:
        """Return the definition of a sink; CatalogError if there is none."""
        found = self.find_sink(name)
        if found is None:
            raise CatalogError(
                f"there is no sink named {name}",
                condition="NOT_FOUND",
                hint=f"known: {', '.join(sink.name for sink in self.sinks) or 'none yet'}",
            )
        return found

    def add_sink(self, sink: Entry) -> Catalog:
        """Return the catalog with one more sink, and assign its id."""
        numbered = replace(sink, id=f"k{self.next_id}")
        return replace(self, sinks=(*self.sinks, numbered), next_id=self.next_id + 1)

    def set_sink(self, sink: Entry) -> Catalog:
        """Return the catalog with the definition of a sink, by its id, replaced."""
        return replace(self, sinks=tuple(sink if one.id == sink.id else one for one in self.sinks))

    def drop_sink(self, name: str) -> Catalog:
        """Return the catalog without a sink and its dead letters; CatalogError if views read these."""
        sink = self.get_sink(name)
        letters = self.letters_of(sink)
        if letters is not None and (readers := self.readers(letters.name)):
            raise CatalogError(
                f"the dead letters of sink {name} are read by {', '.join(readers)}",
                condition="STILL_READ",
                hint="drop these views first",
            )
        return replace(
            self,
            entries=tuple(entry for entry in self.entries if entry is not letters),
            sinks=tuple(one for one in self.sinks if one is not sink),
        )

    def followers(self, view: str) -> list[str]:
        """Return the names of the sinks that follow a view."""
        return [sink.name for sink in self.sinks if sink.upstream[0].lower() == view.lower()]

    def committed(self, entry: Entry, epoch: int) -> Catalog:
        """Return the catalog with a view, and the epoch that computed its first rows."""
        entries = tuple(replace(e, since=epoch) if e is entry else e for e in self.entries)
        return replace(self, entries=entries)

    def drop(self, name: str, *, replaced: bool = False) -> Catalog:
        """Return the catalog without a definition; CatalogError if views read it.

        Args:
            replaced: another view takes its name, which views then read and sinks follow.
        """
        entry = self.get(name)
        if entry.role in (LATE_ROWS, REJECTS, KEPT_OUT):
            raise CatalogError(
                f"{entry.name} belongs to its stream",
                condition="NOT_FOUND",
                hint=f"drop {entry.name.removesuffix(LATE).removesuffix(DEAD).removesuffix(KEPT)}",
            )
        followers = () if replaced else self.followers(entry.name)
        if followers:
            raise CatalogError(
                f"view {entry.name} is followed by sink {', '.join(followers)}",
                condition="STILL_READ",
                hint="drop the sink first; what it has delivered stays in its target",
            )
        pipeline, letters = self.pipeline_into(entry), self.letters_of(entry)
        if pipeline is not None and pipeline is not letters:
            raise CatalogError(
                f"{entry.kind} {entry.name} is fed by a pipeline",
                condition="STILL_FED",
                hint=f"drop {pipeline.name} first: that ends the pipeline",
            )
        family = [one.name for one in self.companions(entry.name)]
        owner = self.find(entry.options.get(COMPANION, ""))
        if owner is not None and not replaced:
            raise CatalogError(
                f"view {entry.name} belongs to {owner.kind} {owner.name}",
                condition="STILL_READ",
                hint=f"drop {owner.name}, and it goes as well",
            )
        own = [entry.name, entry.name + LATE, entry.name + KEPT]
        gone = [*own, *([letters.name] if letters else []), *family]
        readers = [reader for name in gone for reader in self.readers(name) if reader not in gone]
        if readers and not replaced:
            raise CatalogError(
                f"{entry.kind} {entry.name} is read by {', '.join(readers)}",
                condition="STILL_READ",
                hint="drop these views first",
            )
        kept = tuple(e for e in self.entries if e.source != entry.id and e is not letters)
        return replace(self, entries=tuple(e for e in kept if e.name not in family))

    def with_columns(self, stream: Entry) -> Catalog:
        """Return the catalog with a stream that has other columns, and its late rows with the same."""
        changed = {stream.name: stream}
        for late in [entry for entry in self.entries if entry.late_of == stream.id]:
            options = {name: text for name, text in late.options.items() if name != LOGGED}
            if LOGGED in stream.options:
                options[LOGGED] = stream.options[LOGGED]
            plain = replace(
                late, schema=stream.schema, options=options, event_time=stream.event_time
            )
            changed[late.name] = _with_reason(plain) if late.gives_reasons else plain
        return self._with(changed)

    def without(self, gone: Collection[Entry]) -> Catalog:
        """Return the catalog without these entries, whatever reads them."""
        return replace(self, entries=tuple(e for e in self.entries if e not in gone))

    def companions(self, name: str) -> list[Entry]:
        """Return the companion views of a stream or view, upstream first; they are dropped with it."""
        return [e for e in self.entries if e.options.get(COMPANION) == name.lower()]

    def letters_of(self, stream: Entry) -> Entry | None:
        """Return the stream of a stream's dead letters, which is dropped with it."""
        rejects = (e for e in self.entries if e.role == REJECTS)
        found = next((e for e in rejects if e.options[OF] == stream.id), None)
        return self.pipeline_into(stream) if found is None and stream.reopens else found

    def pipeline_into(self, stream: Entry) -> Entry | None:
        """Return the entry of the pipeline that writes a stream."""
        return next((e for e in self.entries if e.writes(stream)), None)

    def readers(self, name: str) -> list[str]:
        """Return the views that read a name directly."""
        return [
            entry.name
            for entry in self.entries
            if name.lower() in (upstream.lower() for upstream in entry.upstream)
        ]

    def with_entries(self, changed: Iterable[Entry]) -> Catalog:
        """Return the catalog with some entries, by their ids, replaced."""
        now = {entry.id: entry for entry in changed}
        return replace(self, entries=tuple(now.get(entry.id, entry) for entry in self.entries))

    def below(self, name: str) -> list[Entry]:
        """Return the views that read a name, also through other views, upstream first."""
        found = {name.lower()}
        views = []
        for entry in self.entries:
            if not found.isdisjoint(upstream.lower() for upstream in entry.upstream):
                found.add(entry.name.lower())
                views.append(entry)
        return views

    def read_by(self, views: Iterable[Entry]) -> list[Entry]:
        """Return some views and what they read, also through other views, upstream first."""
        found = {view.name.lower() for view in views}
        for entry in reversed(self.entries):
            if entry.name.lower() in found:
                found.update(map(str.lower, entry.upstream))
        return [entry for entry in self.entries if entry.name.lower() in found]

    def in_order(self) -> Catalog:
        """Return the catalog with each view after its upstream relations, otherwise in the same order."""
        known = {entry.name.lower(): entry for entry in self.entries}
        ordered: dict[str, Entry] = {}

        def put(entry: Entry) -> None:
            for name in entry.upstream:
                if name.lower() in known:
                    put(known[name.lower()])
            ordered.setdefault(entry.name.lower(), entry)

        for entry in self.entries:
            put(entry)
        return replace(self, entries=tuple(ordered.values()))

    def joined(self) -> dict[str, set[str]]:
        """Return for each stream with a watermark, by id, the others that some view combines with it."""
        found: dict[str, set[str]] = {}
        read: dict[str, set[str]] = {}  # by name of a relation the streams that it is made from
        for entry in self.entries:
            own = {entry.id} if entry.event_time and not entry.late_of else set()
            read[entry.name] = own.union(*(read.get(name, ()) for name in entry.upstream))
            for stream in read[entry.name]:
                found.setdefault(stream, set()).update(read[entry.name] - {stream})
        return found

    def level(self, entry: Entry) -> int:
        """Return the distance from the sources: 0 for tables and streams, 1 for views that read only these."""
        above = [self.level(self.get(name)) for name in entry.upstream]
        return 1 + max(above, default=0) if entry.kind == VIEW else 0

    def pause(self, name: str, epoch: int) -> Catalog:
        """Return the catalog with a view, and all that read it, paused as of an epoch."""
        chosen = self.get(name, VIEW)
        changed = {chosen.name: replace(chosen, paused=chosen.paused or epoch, paused_with="")}
        for entry in self.entries:
            with_it = [above for above in entry.upstream if above in changed]
            if with_it and not entry.paused:
                changed[entry.name] = replace(entry, paused=epoch, paused_with=with_it[0])
        return self._with(changed)

    def resume(self, name: str) -> Catalog:
        """Return the catalog without the pause of a view, and of those that were paused with it.

        A view that also reads another paused view stays paused.
        """
        chosen = self.get(name, VIEW)
        above = self._paused_above(chosen, {})
        if above:
            raise CatalogError(
                f"view {chosen.name} reads {above}, which is paused",
                condition="UPSTREAM_PAUSED",
                hint=f"resume {above} first",
            )
        changed = {chosen.name: replace(chosen, paused=0, paused_with="")}
        for entry in self.entries:
            if entry.paused_with not in changed or changed[entry.paused_with].paused:
                continue
            changed[entry.name] = replace(
                entry,
                paused=entry.paused if (still := self._paused_above(entry, changed)) else 0,
                paused_with=still,
            )
        return self._with(changed)

    def without_ended_pauses(self, rebuilt: Mapping[ViewId, Epoch]) -> Catalog:
        """Return the catalog without the pauses that committed epochs have ended.

        The commit of an epoch ends a pause, before the catalog is written.

        Args:
            rebuilt: by id, the epoch that computed the state of a view again.
        """
        over: dict[str, Entry] = {}
        for entry in self.entries:
            epoch = rebuilt.get(ViewId(entry.id), 0)
            if epoch > max(entry.paused, entry.since):
                over[entry.name] = replace(entry, paused=0, paused_with="", since=epoch)
            elif entry.paused_with in over:
                still = self._paused_above(entry, over)
                over[entry.name] = replace(entry, paused_with=still)
        return self._with(over) if over else self

    def _paused_above(self, entry: Entry, changed: Mapping[str, Entry]) -> str:
        """Return the name of a paused view that a view reads; empty if there is none."""
        above = (changed.get(name, self.get(name)) for name in entry.upstream)
        return next((known.name for known in above if known.paused), "")

    def _with(self, changed: Mapping[str, Entry]) -> Catalog:
        return replace(self, entries=tuple(changed.get(e.name, e) for e in self.entries))


def _with_reason(late: Entry) -> Entry:
    """Return a stream of late rows with one more column: why each row isn't in its stream."""
    document = json.loads(late.schema)
    used = {field["name"].lower() for field in document["fields"]}
    name = REASON
    while name in used:
        name += "_"
    document["fields"].append({"name": name, "type": "string", "nullable": True, "metadata": {}})
    return replace(late, schema=json.dumps(document))
