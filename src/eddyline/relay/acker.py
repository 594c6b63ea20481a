"""The acker: tells when the whole tree of a record is done, at 20 bytes a tree, whatever its size.

The algorithm is Apache Storm's ("Guaranteeing message processing"): every edge of a tree has a
random 64-bit id, which is XORed into the entry of the tree's root once when it is made and once
when it is acknowledged. The entry is zero when all of them are, and before that with a probability
of 2^-64. Messages are folded by the batch, in any order, without a loop over them.

The messages of one root:

- init [root, XOR of the ids of its first edges, task]: the task that is to be told how it ends;
- ack [root, XOR of the edges of an input and of the edges to all outputs made from it];
- fail [root].

**Time** is not known here: `rotate` is called at each time-out, and what was there at the call
before has timed out. So a root is given up between one and two time-outs after its first message,
however busy its tree is.

**Losses.** A tree of which any message is lost times out, and its source repeats the record.

**Duplicates.** An ack that comes twice cancels itself, so its tree times out: work may be repeated,
but no tree is told done before all of its messages have come. (The init is counted once, so the
root's own ack must have come an odd number of times to cancel it, hence its children's too, and so
down the tree.) A second init of a root that is known, and a second fail, change nothing. What comes
for a root that is over is held as an unknown root until it times out, and told to no one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ids = npt.NDArray[np.uint64]
Tasks = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

# Outcomes of a root.
DONE, FAILED, TIMED_OUT = 0, 1, 2

# What an entry has in place of the task, as long as that isn't known.
UNKNOWN, FAILED_EARLY, GONE = -1, -2, -3

RUN_RATIO = 4  # a bucket's runs of roots shrink by this much, so there are few to search


def new_ids(count: int, random: np.random.Generator) -> Ids:
    """Random ids of 64 bits, none of them zero."""
    return random.integers(1, 1 << 64, count, dtype=np.uint64)


def acker_of(roots: Any, ackers: int) -> Places:
    """Which of many ackers keeps each root: its id modulo their number."""
    return (as_ids(roots) % np.uint64(ackers)).astype(np.int64)


def as_ids(values: Any) -> Ids:
    """Integers of 64 bits as unsigned ones, bit by bit (Spark has signed ones).

    Raises:
        TypeError: these aren't integers: nulls, or numbers that a conversion has rounded.
    """
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = values.to_numpy()
    # numpy would make doubles of a list that has both small and large integers
    found: npt.NDArray[Any] = (
        values if isinstance(values, np.ndarray) else np.array(values, np.uint64)
    )
    if found.dtype.kind not in "iu":
        raise TypeError(f"ids are integers of 64 bits, not {found.dtype}")
    ids: Ids = found.view(np.uint64) if found.dtype == np.int64 else found.astype(np.uint64)
    return ids


@dataclass(frozen=True, slots=True)
class Told:
    """How roots have ended, to be told to the tasks that made them.

    Attributes:
        roots: their ids.
        tasks: the task of each.
        outcomes: `DONE`, `FAILED` or `TIMED_OUT`, each.
    """

    roots: Ids
    tasks: Tasks
    outcomes: npt.NDArray[np.uint8]

    def of(self, outcome: int) -> Ids:
        """The roots that have ended so."""
        found: Ids = self.roots[self.outcomes == outcome]
        return found

    @classmethod
    def all(cls, parts: Iterable[Told]) -> Told:
        """All of them together."""
        found = [part for part in parts if len(part.roots)] or [_told_nothing()]
        return cls(
            np.concatenate([part.roots for part in found]),
            np.concatenate([part.tasks for part in found]),
            np.concatenate([part.outcomes for part in found]),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """Where the roots are: `started = done + failed + timed_out + in_flight`, at every moment.

    Attributes:
        started: roots whose init has come.
        done, failed, timed_out: roots that were told.
        in_flight: roots that are known and not told.
        unknown: roots held of which no init has come.
        late: unknown roots that were dropped.
        repeated: inits that were ignored, because their root was known.
    """

    started: int = 0
    done: int = 0
    failed: int = 0
    timed_out: int = 0
    in_flight: int = 0
    unknown: int = 0
    late: int = 0
    repeated: int = 0


class Acker:
    """Folds messages into the entries {root, value, task} of the roots that are under way.

    Example:
        >>> acker = Acker()
        >>> _ = acker.init([66], [8], [11])  # the source sends a tuple with id 8
        >>> _ = acker.ack([66], [8 ^ 4 ^ 7])  # bolt 1 has made 4 and 7 of it
        >>> _ = acker.ack([66], [4])
        >>> told = acker.ack([66], [7])
        >>> told.roots.tolist(), told.tasks.tolist(), told.outcomes.tolist() == [DONE]
        ([66], [11], True)
    """

    def __init__(self) -> None:
        self._buckets = [_Bucket(), _Bucket()]  # the one that is filled, the one that goes next
        self._started = self._late = self._repeated = 0
        self._ended = [0, 0, 0]

    def init(self, roots: Any, values: Any, tasks: Any) -> Told:
        """Messages of sources: roots, the XOR of the ids of their first edges, tasks (from 0 on)."""
        return self.fold(init=(roots, values, tasks))

    def ack(self, roots: Any, values: Any) -> Told:
        """Messages of bolts: roots, and what is to be XORed into them."""
        return self.fold(ack=(roots, values))

    def fail(self, roots: Any) -> Told:
        """Messages of bolts: roots that have failed."""
        return self.fold(fail=roots)

    def fold(
        self,
        init: tuple[Any, Any, Any] | None = None,
        ack: tuple[Any, Any] | None = None,
        fail: Any = None,
    ) -> Told:
        """All messages of a batch at once; what has ended by them. Of equal inits the first counts.

        A root that is both complete and failed in one batch has failed.
        """
        messages, repeated = _folded(init, ack, fail)
        self._repeated += repeated
        unseen = np.ones(len(messages.roots), bool)
        told = []
        for bucket in self._buckets:
            for run in bucket.runs:
                places = np.flatnonzero(unseen)
                slots, found = run.find(messages.roots[places])
                places, slots = places[found], slots[found]
                unseen[places] = False
                told.append(self._update(run, slots, messages, places))
                bucket.gone += len(told[-1].roots)
        places = np.flatnonzero(unseen)
        new = _new_run(messages.roots[places])
        told.append(self._update(new, np.arange(len(places)), messages, places))
        self._buckets[0].add(new)
        return self._tell(told)

    def rotate(self) -> Told:
        """Let a time-out pass: what has been here since the call before has timed out."""
        old = _joined(self._buckets.pop().runs)
        self._buckets.insert(0, _Bucket())
        known = old.tasks >= 0
        self._late += int(len(known) - np.count_nonzero(known))
        roots = old.roots[known]
        return self._tell([Told(roots, old.tasks[known], np.full(len(roots), TIMED_OUT, np.uint8))])

    @property
    def account(self) -> Account:
        """Where all roots are."""
        tasks = [run.tasks for bucket in self._buckets for run in bucket.runs]
        held = sum(int(np.count_nonzero(part != GONE)) for part in tasks)
        known = sum(int(np.count_nonzero(part >= 0)) for part in tasks)
        done, failed, timed_out = self._ended
        return Account(
            started=self._started,
            done=done,
            failed=failed,
            timed_out=timed_out,
            in_flight=known,
            unknown=held - known,
            late=self._late,
            repeated=self._repeated,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, of those too that are over and not yet removed."""
        return sum(run.nbytes for bucket in self._buckets for run in bucket.runs)

    def _update(self, run: _Run, slots: Places, messages: _Messages, places: Places) -> Told:
        """Fold messages into slots of a run, and mark as gone what has ended by that."""
        values, tasks = run.values[slots], run.tasks[slots]
        known, came = tasks >= 0, messages.tasks[places]
        failed = messages.failed[places] | (tasks == FAILED_EARLY)
        values ^= messages.acks[places] ^ np.where(known, 0, messages.inits[places])
        self._repeated += int(np.count_nonzero(known & (came >= 0)))
        self._started += int(np.count_nonzero(~known & (came >= 0)))
        tasks = np.where(known, tasks, came)
        ended = (tasks >= 0) & (failed | (values == 0))
        run.values[slots] = values
        run.tasks[slots] = np.select([ended, failed & (tasks < 0)], [GONE, FAILED_EARLY], tasks)
        outcomes = np.where(failed[ended], FAILED, DONE).astype(np.uint8)
        return Told(run.roots[slots[ended]], tasks[ended], outcomes)

    def _tell(self, told: list[Told]) -> Told:
        everything = Told.all(told)
        for outcome, count in enumerate(np.bincount(everything.outcomes, minlength=3).tolist()):
            self._ended[outcome] += count
        return everything


class Ackers:
    """Many ackers as one: each keeps the roots whose id, modulo their number, is its own."""

    def __init__(self, count: int) -> None:
        self.ackers = [Acker() for _ in range(count)]

    def fold(
        self,
        init: tuple[Any, Any, Any] | None = None,
        ack: tuple[Any, Any] | None = None,
        fail: Any = None,
    ) -> Told:
        """As `Acker.fold`."""
        parts = (self._split(*(init or ())), self._split(*(ack or ())), self._split(fail))
        return Told.all(
            acker.fold(of_init or None, of_ack or None, *of_fail)
            for acker, of_init, of_ack, of_fail in zip(self.ackers, *parts, strict=True)
        )

    def rotate(self) -> Told:
        """As `Acker.rotate`."""
        return Told.all(acker.rotate() for acker in self.ackers)

    def _split(self, roots: Any = None, *columns: Any) -> list[tuple[Any, ...]]:
        count = len(self.ackers)
        if roots is None:
            return [()] * count
        owners = acker_of(roots, count)
        arrays = [as_ids(roots), *(as_ids(column) for column in columns)]
        return [tuple(array[owners == owner] for array in arrays) for owner in range(count)]


@dataclass(frozen=True, slots=True)
class Anchors:
    """Which edges lead to which tuples: a tuple that is made of several has an edge from each.

    Attributes:
        tuples: numbers of tuples.
        roots: of whose tree the edge is a part.
        edges: its id.
    """

    tuples: Places
    roots: Ids
    edges: Ids

    @classmethod
    def of_records(cls, count: int, random: np.random.Generator) -> Anchors:
        """The first edges of new records, numbered from 0: a root and an edge for each.

        They are told to the acker with `init(anchors.roots, anchors.edges, tasks)`.
        """
        return cls(np.arange(count), new_ids(count, random), new_ids(count, random))

    def emit(
        self, outputs: Any, inputs: Any, random: np.random.Generator
    ) -> tuple[Anchors, tuple[Ids, Ids]]:
        """What a bolt has made of these tuples, all of which it acknowledges by that.

        Args:
            outputs: numbers of the tuples that it made; one that is made of several inputs is
                there once for each, one that is anchored to none isn't there.
            inputs: for each of them a tuple that it was made of.
            random: source of the ids.

        Returns:
            The anchors of the outputs, and the messages for `Acker.ack`. An output has an edge for
            each root of each of its inputs.
        """
        made = self.follow(outputs, inputs, random)
        roots = np.concatenate([self.roots, made.roots])
        return made, xor_by_root(roots, np.concatenate([self.edges, made.edges]))

    def follow(self, outputs: Any, inputs: Any, random: np.random.Generator) -> Anchors:
        """The anchors of what was made of these tuples; arguments as those of `emit`."""
        wanted, places = np.asarray(inputs, np.int64), np.arange(len(self.tuples))
        if np.array_equal(wanted, places) and np.array_equal(self.tuples, places):
            # one made of each
            return Anchors(np.asarray(outputs, np.int64), self.roots, new_ids(len(wanted), random))
        order = np.argsort(self.tuples, kind="stable")
        held = self.tuples[order]
        start, end = np.searchsorted(held, wanted), np.searchsorted(held, wanted, "right")
        counts = end - start
        link = np.repeat(np.arange(len(wanted)), counts)
        source = order[np.arange(len(link)) - np.repeat(np.cumsum(counts) - counts - start, counts)]
        edges = new_ids(len(link), random)
        return Anchors(np.asarray(outputs, np.int64)[link], self.roots[source], edges)


def xor_by_root(roots: Ids, values: Ids) -> tuple[Ids, Ids]:
    """The roots, each once and in order, and the XOR of the values of each."""
    order, first = _groups(roots)
    if not len(first):
        return roots, values
    return roots[order[first]], np.bitwise_xor.reduceat(values[order], first)


def _told_nothing() -> Told:
    return Told(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.uint8))


@dataclass(slots=True)
class _Run:
    """Entries in the order of their roots; each root once."""

    roots: Ids
    values: Ids
    tasks: Tasks

    @property
    def nbytes(self) -> int:
        return self.roots.nbytes + self.values.nbytes + self.tasks.nbytes

    def find(self, roots: Ids) -> tuple[Places, npt.NDArray[np.bool_]]:
        """The slots of roots, and which of them are here."""
        if not len(self.roots):
            return np.zeros(len(roots), np.int64), np.zeros(len(roots), bool)
        slots = np.minimum(np.searchsorted(self.roots, roots), len(self.roots) - 1)
        return slots, (self.roots[slots] == roots) & (self.tasks[slots] != GONE)


@dataclass(slots=True)
class _Bucket:
    """What came between two rotations, in runs that get smaller; `gone` entries wait in them."""

    runs: list[_Run] = field(default_factory=list)
    gone: int = 0

    def add(self, run: _Run) -> None:
        """Take new entries in, and merge runs of about one size."""
        keep, size = len(self.runs), len(run.roots)
        while keep and len(self.runs[keep - 1].roots) < RUN_RATIO * size:
            keep -= 1
            size += len(self.runs[keep].roots)
        if 2 * self.gone > sum(len(held.roots) for held in self.runs):
            keep = 0
        elif not size:
            return
        self.runs[keep:] = [_joined([*self.runs[keep:], run])]
        if not keep:
            self.gone = 0


def _new_run(roots: Ids) -> _Run:
    """Entries of roots of which nothing is known yet."""
    return _Run(roots, np.zeros(len(roots), np.uint64), np.full(len(roots), UNKNOWN, np.int32))


def _joined(runs: Sequence[_Run]) -> _Run:
    """One run of several, without what is gone."""
    if not runs:
        return _new_run(np.empty(0, np.uint64))
    tasks = np.concatenate([run.tasks for run in runs])
    held = np.flatnonzero(tasks != GONE)
    roots = np.concatenate([run.roots for run in runs])[held]
    order = np.argsort(roots, kind="stable")  # runs are sorted: the stable sort merges them
    held = held[order]
    return _Run(roots[order], np.concatenate([run.values for run in runs])[held], tasks[held])


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages of a batch, folded: each root once, in order."""

    roots: Ids
    inits: Ids
    acks: Ids
    tasks: Tasks
    failed: npt.NDArray[np.bool_]


def _folded(
    init: tuple[Any, Any, Any] | None, ack: tuple[Any, Any] | None, fail: Any
) -> tuple[_Messages, int]:
    """The messages by root, and how many inits were there twice."""
    empty = np.empty(0, np.uint64)
    init_roots, init_values, init_tasks = init or (empty, empty, empty)
    ack_roots, ack_values = ack or (empty, empty)
    starts, first = np.unique(as_ids(init_roots), return_index=True)
    repeated = len(init_roots) - len(starts)
    parts = [starts, as_ids(ack_roots), as_ids(empty if fail is None else fail)]
    sizes = [len(part) for part in parts]
    roots = np.concatenate(parts)
    inits = np.zeros(len(roots), np.uint64)
    acks = np.zeros(len(roots), np.uint64)
    tasks = np.full(len(roots), UNKNOWN, np.int32)
    inits[: sizes[0]] = as_ids(init_values)[first]
    tasks[: sizes[0]] = as_ids(init_tasks)[first]
    acks[sizes[0] : sizes[0] + sizes[1]] = as_ids(ack_values)
    failed = np.zeros(len(roots), bool)
    failed[sizes[0] + sizes[1] :] = True
    order, group = _groups(roots)
    if not len(group):
        return _Messages(roots, inits, acks, tasks, failed), repeated
    return (
        _Messages(
            roots[order[group]],
            np.bitwise_xor.reduceat(inits[order], group),
            np.bitwise_xor.reduceat(acks[order], group),
            np.maximum.reduceat(tasks[order], group),
            np.logical_or.reduceat(failed[order], group),
        ),
        repeated,
    )


def _groups(roots: Ids) -> tuple[Places, Places]:
    """An order in which equal roots stand together, and where in it each of them begins."""
    order = np.argsort(roots)
    ordered = roots[order]
    begins = np.ones(len(ordered), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    return order, np.flatnonzero(begins)
