"""Streams of the records of Kafka topics: `USING kafka`.

Before each entry of the redo log the offsets after it are written, under the number of the next entry.
They become valid once the entry is in the log. Until then they say which records the entry will have, so that
the same ones are read after a crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

from eddyline.errors import DataError, EngineError
from eddyline.source.dead_letters import DeadLetters, Rejects
from eddyline.source.kafka_rows import Decode, Message
from eddyline.source.lag import LOOK_AGAIN_S, ROWS, Unread
from eddyline.source.log_files import new_file, write_rows
from eddyline.source.positions import Positions
from eddyline.source.redo_log import RedoLog
from eddyline.source.source_thread import SourceThread, ThreadedSource

ENTRY_RECORDS, ENTRY_BYTES = 200_000, 32 << 20
"""An entry ends when it has so many records, or so many bytes of values."""

CHECK_S = 5.0
"""In the background new topics and partitions are looked for after so long."""

Partition: TypeAlias = tuple[str, int]
"""A topic, and a number."""

EARLIEST, LATEST = -2, -1

SHOWN = 10
"""So many names of topics an error shows."""

_AGAIN = (
    "drop the stream with its views and create them again: it begins at its startingOffsets. What was "
    "received before stays readable until then"
)
_LOG = logging.getLogger("eddyline.sources")


class StoppedError(Exception):
    """The stream is being stopped."""


@dataclass(frozen=True, slots=True)
class Described:
    """A topic as brokers describe it: its id, empty if they have none, and the number of its partitions."""

    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Topic:
    """The position in a topic.

    Attributes:
        id: its id on the brokers; empty if they have none.
        offsets: for each partition, that of the next record to read.
    """

    id: str
    offsets: tuple[int, ...]


State: TypeAlias = dict[str, Topic]


class Topics(Protocol):
    """The topics on their brokers. All calls raise EngineError STREAM_FAILED if brokers can't be used."""

    def describe(self, known: Iterable[str]) -> dict[str, Described | None]:
        """Return the topics to read, and the known ones; None for a topic that doesn't exist."""

    def offsets(self, partitions: Iterable[Partition], which: int) -> dict[Partition, int]:
        """Return for each partition its first offset (`EARLIEST`), or that after all committed records (`LATEST`)."""

    def read(
        self, after: Mapping[Partition, int], ends: Mapping[Partition, int], most: int | None
    ) -> tuple[Sequence[Message], dict[Partition, int]]:
        """Return committed records, those of each partition in order, and the offsets after them.

        Args:
            after: for each partition, where to begin.
            ends: for some partitions, the offset up to which there are records to wait for.
            most: return about so many at most, perhaps some from these offsets on; None: all before
                these offsets, and no others.

        Raises:
            EngineError: SOURCE_LOST, there are no records at an offset any more.
            StoppedError: the stream is being stopped.
        """

    def close(self) -> None:
        """Disconnect."""


@dataclass(slots=True)
class KafkaStream(ThreadedSource):
    """The records of topics, copied into the redo log.

    Attributes:
        name: name of the stream.
        starting: where to begin: `EARLIEST`, `LATEST`, or an offset of some partitions, which may be one of these
            two; others then begin at their first record.
        decode: makes rows of records.
        limit: the number of records of an entry at most, and an epoch takes one; None for no limit.
        reached: connects to the topics; called when they are first needed, as a secret may be missing.
        log: redo log of the stream.
        folder: folder of the offsets in the storage.
        rejects: records that can't be decoded; None if all can.
    """

    name: str
    starting: int | Mapping[Partition, int]
    decode: Decode
    limit: int | None
    reached: Callable[[threading.Event], Topics]
    log: RedoLog
    folder: str
    rejects: Rejects | None
    _topics: Topics | None = field(default=None, init=False)
    _state: State | None = field(default=None, init=False)  # None: not read yet
    _begun: State | None = field(default=None, init=False)  # after an entry that wasn't finished
    _next: int = field(default=-1, init=False)  # the number of the entry that follows `_state`
    _checked: float = field(default=0.0, init=False)
    _unread: Unread | None = field(default=None, init=False)
    _positions: Positions = field(init=False)
    _thread: SourceThread = field(init=False)

    def __post_init__(self) -> None:
        self._positions = Positions(self.name, self.log, self.folder)
        self._thread = SourceThread(f"eddyline-kafka-{self.name}", self._copy)

    @property
    def steps(self) -> bool:
        """Whether an epoch processes one entry, as its number of records is limited."""
        return self.limit is not None

    @property
    def dead_letters(self) -> DeadLetters | None:
        """Records that can't be decoded."""
        return self.rejects

    @property
    def topics(self) -> Topics:
        """The topics; the brokers are connected on first use."""
        if self._topics is None:
            self._topics = self.reached(self._thread.stopped)
        return self._topics

    def pull(self) -> None:
        """Copy all records that are committed now."""
        self._checked = 0.0
        self._thread.run_now()

    def follow(self, interval_s: float) -> None:
        """Copy new records in a thread, so that no other stream waits for this one's brokers."""
        self._thread.run_in_background()

    def stop(self) -> None:
        """Stop the thread, and disconnect."""
        self._thread.stop()
        self._close()

    def unread(self) -> Unread | None:
        """Return the records up to the end of the partitions; markers of transactions count, too."""
        return self._unread

    def _close(self) -> None:
        topics, self._topics = self._topics, None
        if topics is not None:
            topics.close()

    def _copy(self) -> None:
        try:
            state = self._stored_position()
            if self._begun is not None:
                state = self._complete_entry(state, self._begun)
            if time.monotonic() >= self._checked + CHECK_S:
                state = self._with_new_partitions(state)
                self._checked = time.monotonic()
            ends = self.topics.offsets(_offsets(state), LATEST)
            latest, asked = ends, time.monotonic()
            self._measure(latest)
            while not self._thread.stopped.is_set() and self._copy_entry(ends):
                if time.monotonic() >= asked + LOOK_AGAIN_S:
                    latest, asked = self.topics.offsets(ends, LATEST), time.monotonic()
                self._measure(latest)
        except StoppedError:
            pass
        except BaseException:
            self._close()  # connected again by the next try
            raise

    def _measure(self, latest: Mapping[Partition, int]) -> None:
        """Keep how many records there are after the position."""
        self._thread.reached()
        assert self._state is not None
        after = _offsets(self._state)
        amount = sum(max(end - after[one], 0) for one, end in latest.items())
        self._unread = Unread(amount, ROWS, sum(after.values()))

    def _stored_position(self) -> State:
        """Return the stored position; on the first call store the one to begin at."""
        number = self.log.end()
        if self._state is None or self._next != number:
            stored, begun = self._positions.read(number), self._positions.begun(number)
            self._state = None if stored is None else _state(stored)
            self._begun = None if begun is None or stored is None else _state(begun)
            self._next = number
        if self._state is None:
            self._store(self._initial_position())
        assert self._state is not None
        return self._state

    def _initial_position(self) -> State:
        """Return the position at which a new stream begins."""
        found = self._there(self.topics.describe(()))
        offsets = starting_offsets(self.name, self.topics, found, self.starting)
        return _with_offsets({}, found, offsets)

    def _with_new_partitions(self, state: State) -> State:
        """Add new partitions to the position; they begin at their first record."""
        found = self._existing_topics(state)
        known = _offsets(state)
        new = [one for one in _partitions(found) if one not in known]
        if new:
            state = _with_offsets(state, found, self.topics.offsets(new, EARLIEST))
            self._store(state)
            _LOG.info("stream %s reads %d more partitions", self.name, len(new))
        return state

    def _existing_topics(self, state: State) -> dict[str, Described]:
        """Return the existing topics; raise DataError if one was deleted and created again."""
        found = self._there(self.topics.describe(state))
        for name, known in state.items():
            if known.id and found[name].id and known.id != found[name].id:
                raise self._changed(f"topic {name} has been deleted and created again")
            if found[name].partitions < len(known.offsets):
                raise self._changed(f"topic {name} has fewer partitions than before")
        return found

    def _there(self, found: Mapping[str, Described | None]) -> dict[str, Described]:
        for name, one in found.items():
            if one is None:
                raise self._changed(f"topic {name} isn't there")
        return {name: one for name, one in found.items() if one is not None}

    def _complete_entry(self, before: State, begun: State) -> State:
        """Complete an interrupted entry with exactly the records that it was to have; return the position after it."""
        after = _offsets(before)
        wanted = {one: end for one, end in _offsets(begun).items() if after[one] < end}
        if wanted:
            messages, offsets = self.topics.read(after, wanted, None)
            self._existing_topics(before)
            before = _with_offsets(before, None, offsets)
            self._append(messages, before)
        self._begun = None
        return before

    def _copy_entry(self, ends: Mapping[Partition, int]) -> bool:
        """Copy the records of an entry; return whether there may be more.

        Args:
            ends: the offsets after all records that are committed now.
        """
        state = self._state
        assert state is not None
        after = _offsets(state)
        for (topic, number), end in ends.items():
            if end < after[topic, number]:
                self._existing_topics(state)
                read = f"ends at offset {end}, and was read up to {after[topic, number]}"
                raise lost(self.name, f"partition {number} of topic {topic} {read}")
        wanted = {one: end for one, end in ends.items() if after[one] < end}
        if not wanted:
            return False
        messages, offsets = self.topics.read(after, wanted, self.limit or ENTRY_RECORDS)
        self._existing_topics(state)  # so the records that were read belong to the known topics
        self._append(messages, _with_offsets(state, None, offsets))
        return True

    def _append(self, messages: Sequence[Message], state: State) -> None:
        """Write an entry, and before it the position that holds after it; without records only the position."""
        number, files = self._next, self.log.files
        rows, dead = self.decode(messages)
        self._state = None  # unless this succeeds, it is read again
        if rows.num_rows or dead.num_rows:
            document = _document(state)
            self.log.clear(number)
            segments = []
            if rows.num_rows:
                segments = [write_rows(files, new_file(self.log.folder, number), rows)]
            if dead.num_rows and self.rejects is not None:
                self._positions.write(number + 1, document)  # a repetition has the same letters
                self.rejects.put(number, dead)
            self._positions.append(number, segments, document)
            self._next, self._state = number + 1, state
        else:
            self._store(state)

    def _store(self, state: State) -> None:
        """Store the current position."""
        self._state = None
        self._positions.write(self._next, _document(state))
        self._state = state

    def _changed(self, why: str) -> DataError:
        return DataError(
            f"stream {self.name} gets no more records: {why}",
            condition="SOURCE_CHANGED",
            stream=self.name,
            hint=_AGAIN,
        )


def starting_offsets(
    stream: str,
    topics: Topics,
    found: Mapping[str, Described],
    starting: int | Mapping[Partition, int],
) -> dict[Partition, int]:
    """Return the offsets at which a new stream begins.

    Args:
        stream: its name.
        found: the topics to read.
        starting: see `KafkaStream`.

    Raises:
        DataError: BAD_STREAM, `starting` has a topic, a partition or an offset that isn't there.
    """
    partitions = _partitions(found)
    if isinstance(starting, int):
        return topics.offsets(partitions, starting)
    for topic, number in starting:
        if topic not in found:
            shown = ", ".join([*sorted(found)[:SHOWN], "..."][: len(found)]) or "no topics"
            why = f"startingOffsets has topic {topic}, and the stream reads {shown}"
            raise bad_stream(stream, why, "create it with names of these topics in startingOffsets")
        count = found[topic].partitions
        if number not in range(count):
            raise bad_stream(
                stream,
                f"startingOffsets has partition {number} of topic {topic}, whose partitions are 0 to {count - 1}",
                "create it with numbers of these partitions in startingOffsets",
            )
    first, last = (topics.offsets(partitions, which) for which in (EARLIEST, LATEST))
    offsets = dict(first)
    for (topic, number), offset in starting.items():
        begin, end = first[topic, number], last[topic, number]
        if offset >= 0 and not begin <= offset <= end:
            raise bad_stream(
                stream,
                f"startingOffsets has offset {offset} of partition {number} of topic {topic}, which has records "
                f"from offset {begin} on, and the next one gets offset {end}",
                f"create it with an offset from {begin} to {end}, with -2 for the first record or -1 for the next one",
            )
        offsets[topic, number] = {EARLIEST: begin, LATEST: end}.get(offset, offset)
    return offsets


def bad_stream(stream: str, why: str, way_out: str) -> DataError:
    """Return the error BAD_STREAM: an option of a stream is wrong."""
    return DataError(
        f"stream {stream} can't read from Kafka: {why}",
        condition="BAD_STREAM",
        stream=stream,
        hint=way_out,
    )


def lost(stream: str, why: str) -> EngineError:
    """Return the error SOURCE_LOST: retention has deleted records that the stream hasn't read."""
    return EngineError(
        f"stream {stream} can't go on without a gap: {why}",
        condition="SOURCE_LOST",
        stream=stream,
        hint=_AGAIN,
    )


def _partitions(topics: Mapping[str, Described]) -> list[Partition]:
    return [(name, number) for name, one in topics.items() for number in range(one.partitions)]


def _offsets(state: State) -> dict[Partition, int]:
    return {
        (name, number): offset
        for name, topic in state.items()
        for number, offset in enumerate(topic.offsets)
    }


def _with_offsets(
    state: State, found: Mapping[str, Described] | None, offsets: Mapping[Partition, int]
) -> State:
    """Return a position with other offsets for some partitions.

    Args:
        found: the topics as they are described; None if no partition is new.
    """
    counts = {name: len(topic.offsets) for name, topic in state.items()}
    ids = {name: topic.id for name, topic in state.items()}
    for name, one in (found or {}).items():
        counts[name], ids[name] = one.partitions, one.id or ids.get(name, "")
    merged = _offsets(state) | dict(offsets)
    return {
        name: Topic(ids[name], tuple(merged[name, number] for number in range(count)))
        for name, count in counts.items()
    }


def _document(state: State) -> dict[str, Any]:
    return {"topics": {name: asdict(topic) for name, topic in state.items()}}


def _state(document: Mapping[str, Any]) -> State:
    return {
        name: Topic(one["id"], tuple(one["offsets"])) for name, one in document["topics"].items()
    }
