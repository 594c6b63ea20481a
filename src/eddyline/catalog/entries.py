"""What is defined in a storage: tables, streams and views. `store.py` keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eddyline.changes import Epoch, ViewId
from eddyline.errors import CatalogError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TABLE, STREAM, VIEW = "table", "stream", "view"
LATE = "__late"  # behind the name of a stream: its rows that came behind the watermark
DEAD = "__dead"  # behind the name of a pipeline or stream: the stream of its dead letters
PIPELINE = "pipeline"  # the format of that stream, which stands for the pipeline
QUEUE = "queue"  # the format of a stream of documents that a queue holds
INTO = "into"  # its option that names the stream which the pipeline feeds
REJECTS = "rejects"  # the format of the dead letters of a stream that Spark reads
OF = "of"  # its option that tells the id of that stream
DECODED = ("csv", "json", "xml")  # the formats whose readers know malformed records,
DROP_MALFORMED = "DROPMALFORMED"  # and the mode in which they drop them


@dataclass(frozen=True, slots=True)
class Entry:
    """One definition.

    Attributes:
        id: names its files; never used again for another definition.
        kind: table, stream or view.
        schema: JSON of the columns' StructType.
        key: names of the primary key's columns.
        query: SQL of a view.
        upstream: names that a view reads.
        format, options: of a stream defined in SQL; empty for one made of a DataFrame.
        operation: the column of a stream that holds +/-.
        event_time, delay: of a stream with a watermark the column that tells the time, and by how
            many microseconds the watermark stays behind the latest.
        late_of: of the late rows of a stream: its id.
        result: of a view the arrangement that holds its rows; empty if they have an order.
        final: a view gives each row once, when nothing can change it any more.
        since: the epoch that gave a view its first rows, or made them anew after a pause.
        paused: the epoch whose result a paused view keeps; 0 for one that is not paused.
        paused_with: the view it reads whose pause it shares; empty for one paused by itself.
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
    def source(self) -> str:
        """The id under which its redo log and position are: those late share their stream's."""
        return self.late_of or self.id

    @property
    def time_place(self) -> int | None:
        """The place of the event time's column; None without a watermark."""
        return self.columns.names.index(self.event_time) if self.event_time else None

    @property
    def rejects(self) -> bool:
        """Whether Spark reads records for it that may be bad, and are kept apart."""
        if self.format in (PIPELINE, REJECTS) or self.kind != STREAM:
            return False
        return bool(self.operation) or self.drops_malformed

    @property
    def drops_malformed(self) -> bool:
        """Whether its reader is told to drop what it can't decode."""
        modes = [value for name, value in self.options.items() if name.lower() == "mode"]
        return self.format.lower() in DECODED and [m.upper() for m in modes] == [DROP_MALFORMED]

    def feeds(self, entry: Entry) -> bool:
        """Whether this is a pipeline into that stream."""
        return self.options.get(INTO, "").lower() == entry.name.lower()

    @property
    def arranged(self) -> bool:
        """Whether its rows are kept as an arrangement, because operations change them."""
        return self.kind == TABLE or (self.kind == STREAM and bool(self.operation or self.key))


@dataclass(frozen=True, slots=True)
class Catalog:
    """All definitions, upstream before downstream, and what was fixed when the storage was made."""

    buckets: int
    entries: tuple[Entry, ...] = ()
    next_id: int = 1

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all definitions."""
        return frozenset(entry.id for entry in self.entries)

    def find(self, name: str) -> Entry | None:
        """The definition of a name (letter case doesn't matter, as in Spark)."""
        wanted = name.lower()
        return next((entry for entry in self.entries if entry.name.lower() == wanted), None)

    def get(self, name: str, *kinds: str) -> Entry:
        """The definition of a name; CatalogError if there is none of these kinds."""
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
        """With one more definition, whose id is made here."""
        numbered = replace(entry, id=f"{entry.kind[0]}{self.next_id}")
        added = replace(self, entries=(*self.entries, numbered), next_id=self.next_id + 1)
        if not entry.event_time or entry.late_of:
            return added
        late = Entry(
            "", STREAM, entry.name + LATE, entry.schema,
            event_time=entry.event_time, delay=entry.delay, late_of=numbered.id,
        )  # fmt: skip
        return added.add(late)

    def committed(self, entry: Entry, epoch: int) -> Catalog:
        """With the epoch that gave a view its first rows."""
        entries = tuple(replace(e, since=epoch) if e is entry else e for e in self.entries)
        return replace(self, entries=entries)

    def drop(self, name: str) -> Catalog:
        """Without a definition; CatalogError if views read it."""
        entry = self.get(name)
        if entry.late_of or entry.format == REJECTS:
            raise CatalogError(
                f"{entry.name} belongs to its stream",
                condition="NOT_FOUND",
                hint=f"drop {entry.name.removesuffix(LATE).removesuffix(DEAD)}",
            )
        feeding = [e.name for e in self.entries if e.format == PIPELINE and e.feeds(entry)]
        if feeding:
            raise CatalogError(
                f"{entry.kind} {entry.name} is fed by a pipeline",
                condition="STILL_FED",
                hint=f"drop {feeding[0]} first: that ends the pipeline",
            )
        letters = self.letters_of(entry)
        gone = [entry.name, entry.name + LATE, *([letters.name] if letters else [])]
        readers = [reader for name in gone for reader in self.readers(name)]
        if readers:
            raise CatalogError(
                f"{entry.kind} {entry.name} is read by {', '.join(readers)}",
                condition="STILL_READ",
                hint="drop these views first",
            )
        kept = tuple(e for e in self.entries if e.source != entry.id and e is not letters)
        return replace(self, entries=kept)

    def letters_of(self, stream: Entry) -> Entry | None:
        """The dead letters of a stream that Spark reads."""
        letters = (e for e in self.entries if e.format == REJECTS)
        return next((e for e in letters if e.options[OF] == stream.id), None)

    def readers(self, name: str) -> list[str]:
        """The views that read a name directly."""
        return [
            entry.name
            for entry in self.entries
            if name.lower() in (upstream.lower() for upstream in entry.upstream)
        ]

    def level(self, entry: Entry) -> int:
        """Distance from the sources."""
        above = [self.level(self.get(name)) for name in entry.upstream]
        return 1 + max(above, default=0) if entry.kind == VIEW else 0

    def pause(self, name: str, epoch: int) -> Catalog:
        """With a view that takes no more changes from an epoch on, and with it all that read it."""
        chosen = self.get(name, VIEW)
        changed = {chosen.name: replace(chosen, paused=chosen.paused or epoch, paused_with="")}
        for entry in self.entries:
            with_it = [above for above in entry.upstream if above in changed]
            if with_it and not entry.paused:
                changed[entry.name] = replace(entry, paused=epoch, paused_with=with_it[0])
        return self._with(changed)

    def resume(self, name: str) -> Catalog:
        """Without the pause of a view, and of those that were paused with it.

        A reader stays paused where it also reads another view that is.
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

    def resumed_by(self, rebuilt: Mapping[ViewId, Epoch]) -> Catalog:
        """Without the pauses that epochs have ended: their commit ends them, not the catalog's.

        Args:
            rebuilt: by id, the epoch that made the state of a view anew.
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
        """A paused view that a view reads; empty if there is none."""
        above = (changed.get(name, self.get(name)) for name in entry.upstream)
        return next((known.name for known in above if known.paused), "")

    def _with(self, changed: Mapping[str, Entry]) -> Catalog:
        return replace(self, entries=tuple(changed.get(e.name, e) for e in self.entries))
