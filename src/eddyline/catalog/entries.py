"""The catalog of a storage: its tables, streams and views. `store.py` makes it durable."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eddyline.changes import Epoch, ViewId
from eddyline.errors import CatalogError
from eddyline.source.received import given_places

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TABLE, STREAM, VIEW, SINK = "table", "stream", "view", "sink"
FRAME = "dataframe"  # format of a view that a DataFrame defines
LATE = "__late"  # suffix of the stream of late rows
DEAD = "__dead"  # suffix of the stream of dead letters of a pipeline or stream
PIPELINE = "pipeline"  # role of a pipeline's dead letters; the entry also represents the pipeline
REJECTS = "rejects"  # role of the dead letters of a stream that Spark reads
KEPT_OUT = "kept out"  # role of what the expectations of a stream of operations keep out of it
KEPT = "__kept_out"  # suffix of that stream
LATE_ROWS = "late"  # role of the late rows of a stream
INTO = "into"  # option of role PIPELINE: name of the stream that the pipeline writes
OF = "of"  # option of these two roles: id of the stream
MAX_AHEAD = "max_ahead"  # option of a stream with a watermark: see `Entry.max_ahead`
IDLE_TIMEOUT = "idle_timeout"  # option of a stream with a watermark: see `Entry.idle_timeout`
TIME_OPTIONS = (MAX_AHEAD, IDLE_TIMEOUT)  # options that the engine itself reads, in microseconds
RETAIN = "retain"  # another one, see `intake/retention.py`
EXPECTATIONS = "row expectations"  # option of a stream or view: see `catalog/expectations.py`
LOGGED = "log columns"  # option of a stream whose columns have changed: see `catalog/logged.py`
LEFT = "left"  # in the metadata of a column of a log that the stream no longer has
LATER = "later"  # in that of a column which a stream of operations got later: it comes after `OP`
COMPANION = "companion of"  # option of a view that belongs to a relation: its name in lower case
REASON = "reason"  # the last column of a stream of late rows, unless the stream has one


@dataclass(frozen=True, slots=True)
class Entry:
    """One definition.

    Attributes:
        id: part of its file names; never reused.
        kind: table, stream, view or sink.
        schema: JSON of the columns' StructType.
        key: names of the primary key's columns.
        query: the SQL of a view; for one of a DataFrame the text of its plan, to compare with.
        upstream: names of the relations that a view reads; the name of the view that a sink follows.
        format: the name after USING of a stream or sink, or the role of a stream of dead letters;
            empty for a stream of a DataFrame, or one that a pipeline writes. `FRAME` for a view of
            a DataFrame, empty for one of SQL.
        options: the OPTIONS of a stream or sink; `RETAIN` and `TIME_OPTIONS` as microseconds. For a view of a
            DataFrame the versions of `spark` and `python` that the text of its plan is of.
        operation: the column of a stream that holds + or -.
        event_time: the column from which a stream's watermark is computed; empty without one.
        delay: how many microseconds the watermark lags behind the latest event time.
        late_of: the id of the stream whose late rows these are; empty for other relations.
        result: the arrangement that holds a view's rows; behind it, for a view with ORDER BY, `asc` or
            `desc` and `first` or `last`, the place of nulls, for each sort key. Empty for views with ORDER BY
            of older versions.
        final: whether a view has EMIT FINAL.
        since: the epoch that computed a view's first rows, or computed them again after a pause.
        paused: the epoch whose result a paused view keeps; 0 for one that is not paused. 1 for a
            paused sink.
        paused_with: the upstream view with which it was paused; empty if paused directly.
    """

    id: str
    kind: str
    name: str
    schema: str
    key: tuple[str, ...] = ()
    query: str = ""
    upstream: tuple[str, ...] = ()
    format: str = ""
    options: dict[str, str] = field(default_factory=dict)
    operation: str = ""
    since: int = 0
    event_time: str = ""
    delay: int = 0
    late_of: str = ""
    final: bool = False
    result: str = ""
    paused: int = 0
    paused_with: str = ""

    @property
    def columns(self) -> StructType:
        """The columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.schema))

    @property
    def given_columns(self) -> StructType:
        """The columns whose values the source of a stream gives: all but `_received_at`."""
        from pyspark.sql.types import StructType

        columns = self.columns
        return StructType([columns[place] for place in source_places(columns)])

    @property
    def source(self) -> str:
        """The id of its redo log and position, which late rows and those kept out share with their stream."""
        return self.options[OF] if self.role == KEPT_OUT else self.late_of or self.id

    @property
    def time_place(self) -> int | None:
        """The place of the event-time column; None without a watermark."""
        return self.columns.names.index(self.event_time) if self.event_time else None

    @property
    def max_ahead(self) -> int | None:
        """How many microseconds an event time may be ahead of its receipt; None for no limit.

        Streams that were made before this option existed have no limit.
        """
        given = self.options.get(MAX_AHEAD) if self.event_time else None
        return None if given is None else int(given)

    @property
    def idle_timeout(self) -> int | None:
        """After how many microseconds without rows the stream is idle; None if it never is."""
        given = self.options.get(IDLE_TIMEOUT) if self.event_time else None
        return None if given is None else int(given)

    @property
    def sorts(self) -> list[tuple[bool, bool]] | None:
        """Whether each sort key of a view is descending, and nulls are last; None if that isn't known.

        The keys are stored in the columns behind the view's own.
        """
        if self.kind == VIEW and not self.result:
            return None
        words = self.result.split()[1:]
        pairs = zip(words[::2], words[1::2], strict=True)
        return [(direction == "desc", nulls == "last") for direction, nulls in pairs]

    @property
    def gives_reasons(self) -> bool:
        """Whether these are late rows, with the reason of each in the last column."""
        return bool(self.late_of) and self.max_ahead is not None

    @property
    def source_options(self) -> dict[str, str]:
        """The options that its source reads."""
        own = (EXPECTATIONS, LOGGED, RETAIN, *(TIME_OPTIONS if self.event_time else ()))
        return {name: value for name, value in self.options.items() if name not in own}

    @property
    def role(self) -> str:
        """`PIPELINE`, `REJECTS`, `KEPT_OUT` or `LATE_ROWS` for a stream that belongs to another; else empty."""
        if self.late_of:
            return LATE_ROWS
        roles = PIPELINE, REJECTS, KEPT_OUT
        return self.format if self.kind == STREAM and self.format in roles else ""

    @property
    def holds_letters(self) -> bool:
        """Whether its rows are dead letters."""
        return self.role in (PIPELINE, REJECTS)

    @property
    def takes_input(self) -> bool:
        """Whether a source or a pipeline can write it; false for streams of late rows and dead letters."""
        return self.kind == STREAM and not self.role

    @property
    def reopens(self) -> bool:
        """Whether format and options suffice to open its source again."""
        return self.takes_input and bool(self.format)

    @property
    def attached_to(self) -> str:
        """The id of the entry that the source of its rows is attached to."""
        return self.options[OF] if self.role == REJECTS else self.id

    def writes(self, stream: Entry) -> bool:
        """Return whether this represents the pipeline that writes a stream."""
        into = self.options.get(INTO, "") if self.role == PIPELINE else ""
        return into.lower() == stream.name.lower()

    @property
    def of_frame(self) -> bool:
        """Whether it is a view that a DataFrame defines."""
        return self.kind == VIEW and self.format == FRAME

    @property
    def arranged(self) -> bool:
        """Whether its rows are in an arrangement, because operations change them."""
        return self.kind == TABLE or (self.kind == STREAM and bool(self.operation or self.key))


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
            wanted = " or ".join(kinds) or "table, stream or view"
            known = ", ".join(e.name for e in self.entries if not kinds or e.kind in kinds)
            raise CatalogError(
                f"there is no {wanted} named {name}",
                condition="NOT_FOUND",
                hint=f"known: {known or 'none yet'}",
            )
        return entry

    def add(self, entry: Entry) -> Catalog:
        """Return the catalog with one more definition, and assign its id."""
        numbered = replace(entry, id=f"{entry.kind[0]}{self.next_id}")
        added = replace(self, entries=(*self.entries, numbered), next_id=self.next_id + 1)
        if not entry.event_time or entry.late_of:
            return added
        late = Entry(
            "", STREAM, entry.name + LATE, entry.schema, event_time=entry.event_time,
            options={name: entry.options[name] for name in TIME_OPTIONS if name in entry.options},
            delay=entry.delay, late_of=numbered.id,
        )  # fmt: skip
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
        """Return the views that belong to a stream or view, upstream first; they are dropped with it."""
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

    def in_order(self) -> Catalog:
        """Return the catalog with each view behind all that it reads, else in the same order."""
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
        """Return for each stream with a watermark, by id, those that a view reads together with it."""
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


def source_places(columns: StructType) -> list[int]:
    """Return the places of a log's columns whose values the source gives."""
    return [place for place in given_places(columns.names) if LEFT not in columns[place].metadata]


def _with_reason(late: Entry) -> Entry:
    """Return a stream of late rows with one more column: why each row isn't in its stream."""
    document = json.loads(late.schema)
    used = {field["name"].lower() for field in document["fields"]}
    name = REASON
    while name in used:
        name += "_"
    document["fields"].append({"name": name, "type": "string", "nullable": True, "metadata": {}})
    return replace(late, schema=json.dumps(document))
