"""The acker: detects when the whole tree of a record is done, with 20 bytes a tree of any size.

The algorithm is Apache Storm's ("Guaranteeing message processing"). Every edge of a tree has a
random 64-bit id. The id is XORed into the entry of the tree's root twice: when the edge is made and
when it is acknowledged. The entry is zero once all edges are acknowledged; before that it is zero
with a probability of 2^-64. Messages are folded in batches, in any order, without a Python loop.

The messages of one root:

- init [root, XOR of the ids of its first edges, task]: the task to which the outcome is reported;
- ack [root, XOR of the edge of an input and of the edges of all outputs made from it];
- fail [root].

**Time-outs.** The acker has no clock. The caller calls `rotate` at each time-out; roots that were
there at the call before time out. So a root times out between one and two time-outs after its first
message, however active its tree is.

**Losses.** If any message of a tree is lost, the tree times out, and the source replays the record.

**Duplicates.** A duplicate ack cancels the first one, so its tree times out: work may be repeated,
but no tree is reported done before all of its messages have arrived. (The init counts once, so the
root's own ack must arrive an odd number of times to cancel it; the same holds for its children, and
so on down the tree.) A duplicate init or fail changes nothing. Messages for a root that has ended
are kept as an unknown root until that times out, and reported to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eddyline.arguments import check_number

Ids = npt.NDArray[np.uint64]
Tasks = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

# Outcomes of a root.
DONE, FAILED, TIMED_OUT = 0, 1, 2

# Values of an entry's task before its init has arrived, and after the root has ended.
UNKNOWN, FAILED_EARLY, ENDED = -1, -2, -3

RUN_RATIO = 4  # each run of a bucket is smaller than the one before by this factor, so few exist


def new_ids(count: int, random: np.random.Generator) -> Ids:
    """Return random 64-bit ids, none of them zero."""
    return random.integers(1, 1 << 64, count, dtype=np.uint64)


def acker_of(roots: Any, ackers: int) -> Indices:
    """Return the index of the acker of each root: its id modulo the number of ackers."""
    return (as_ids(roots) % np.uint64(ackers)).astype(np.int64)


def as_ids(values: Any) -> Ids:
    """Reinterpret 64-bit integers as unsigned ones (Spark has only signed ones).

    Raises:
        TypeError: the values aren't integers: there are nulls, or a conversion made them floats.
    """
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = values.to_numpy()
    if not isinstance(values, np.ndarray):
        values = list(values)
        other = {type(value) for value in values if type(value) is not int}
        if wrong := [kind for kind in other if not issubclass(kind, np.integer)]:
            raise TypeError(
                f"roots, values and tasks are integers of 64 bits, not {wrong[0].__name__}"
            )
    # numpy converts a list of both small and large integers to doubles
    found: npt.NDArray[Any] = (
        values if isinstance(values, np.ndarray) else np.array(values, np.uint64)
    )
    if found.dtype.kind not in "iu":
        raise TypeError(f"roots, values and tasks are integers of 64 bits, not {found.dtype}")
    ids: Ids = found.view(np.uint64) if found.dtype == np.int64 else found.astype(np.uint64)
    return ids


@dataclass(frozen=True, slots=True)
class EndedRoots:
    """Roots that have ended, with the outcomes to report to their tasks.

    Attributes:
        roots: ids of the roots.
        tasks: the task of each root.
        outcomes: `DONE`, `FAILED` or `TIMED_OUT` for each root.
    """

    roots: Ids
    tasks: Tasks
    outcomes: npt.NDArray[np.uint8]

    @classmethod
    def concat(cls, parts: Iterable[EndedRoots]) -> EndedRoots:
        """Return the roots of all parts."""
        found = [part for part in parts if len(part.roots)] or [_no_ended_roots()]
        return cls(
            np.concatenate([part.roots for part in found]),
            np.concatenate([part.tasks for part in found]),
            np.concatenate([part.outcomes for part in found]),
        )


@dataclass(frozen=True, slots=True)
class AckerCounts:
    """Counts of roots; `started = done + failed + timed_out + in_flight` always holds.

    Attributes:
        started: roots whose init has arrived.
        done, failed, timed_out: roots that have ended, by outcome.
        in_flight: started roots that have not ended.
        unknown: roots with messages but no init yet.
        late: unknown roots that timed out.
        repeated: inits that were ignored because their root had started already.
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
    """Folds messages into one entry {root, value, task} for each root in flight.

    Example:
        >>> acker = Acker()
        >>> _ = acker.init([66], [8], [11])  # the source sends a tuple with id 8
        >>> _ = acker.ack([66], [8 ^ 4 ^ 7])  # bolt 1 made 4 and 7 from it
        >>> _ = acker.ack([66], [4])
        >>> ended = acker.ack([66], [7])
        >>> ended.roots.tolist(), ended.tasks.tolist(), ended.outcomes.tolist() == [DONE]
        ([66], [11], True)
    """

    def __init__(self) -> None:
        self._buckets = [_Bucket(), _Bucket()]  # the current one, and the one that times out next
        self._started = self._late = self._repeated = 0
        self._ended = [0, 0, 0]

    def init(self, roots: Any, values: Any, tasks: Any) -> EndedRoots:
        """Start roots: their ids, the XOR of the ids of their first edges, and their tasks (>= 0)."""
        return self.fold(init=(roots, values, tasks))

    def ack(self, roots: Any, values: Any) -> EndedRoots:
        """Acknowledge edges: the ids of roots, and the values to XOR into their entries."""
        return self.fold(ack=(roots, values))

    def fail(self, roots: Any) -> EndedRoots:
        """Fail roots."""
        return self.fold(fail=roots)

    def fold(
        self,
        init: tuple[Any, Any, Any] | None = None,
        ack: tuple[Any, Any] | None = None,
        fail: Any = None,
    ) -> EndedRoots:
        """Fold a batch of messages and return the roots that ended with it.

        Of several inits of one root the first counts. A root that is both complete and failed in
        one batch has failed.
        """
        messages, repeated = _combine(init, ack, fail)
        self._repeated += repeated
        unseen = np.ones(len(messages.roots), bool)
        ended = []
        for bucket in self._buckets:
            for run in bucket.runs:
                places = np.flatnonzero(unseen)
                slots, found = run.find(messages.roots[places])
                places, slots = places[found], slots[found]
                unseen[places] = False
                ended.append(self._update(run, slots, messages, places))
                bucket.ended += len(ended[-1].roots)
        places = np.flatnonzero(unseen)
        new = _new_run(messages.roots[places])
        ended.append(self._update(new, np.arange(len(places)), messages, places))
        self._buckets[0].add(new)
        return self._counted(ended)

    def rotate(self) -> EndedRoots:
        """Time out the roots that were there at the previous call, and return them."""
        old = _merge(self._buckets.pop().runs)
        self._buckets.insert(0, _Bucket())
        known = old.tasks >= 0
        self._late += int(len(known) - np.count_nonzero(known))
        roots = old.roots[known]
        return self._counted(
            [EndedRoots(roots, old.tasks[known], np.full(len(roots), TIMED_OUT, np.uint8))]
        )

    @property
    def counts(self) -> AckerCounts:
        """Counts of all roots."""
        tasks = [run.tasks for bucket in self._buckets for run in bucket.runs]
        held = sum(int(np.count_nonzero(part != ENDED)) for part in tasks)
        known = sum(int(np.count_nonzero(part >= 0)) for part in tasks)
        done, failed, timed_out = self._ended
        return AckerCounts(
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
        """Bytes of all entries, including ended ones that aren't removed yet."""
        return sum(run.nbytes for bucket in self._buckets for run in bucket.runs)

    def _update(
        self, run: _Run, slots: Indices, messages: _Messages, places: Indices
    ) -> EndedRoots:
        """Fold messages into slots of a run, and mark the roots that ended."""
        values, tasks = run.values[slots], run.tasks[slots]
        known, started = tasks >= 0, messages.tasks[places]
        failed = messages.failed[places] | (tasks == FAILED_EARLY)
        values ^= messages.acks[places] ^ np.where(known, 0, messages.inits[places])
        self._repeated += int(np.count_nonzero(known & (started >= 0)))
        self._started += int(np.count_nonzero(~known & (started >= 0)))
        tasks = np.where(known, tasks, started)
        ended = (tasks >= 0) & (failed | (values == 0))
        run.values[slots] = values
        run.tasks[slots] = np.select([ended, failed & (tasks < 0)], [ENDED, FAILED_EARLY], tasks)
        outcomes = np.where(failed[ended], FAILED, DONE).astype(np.uint8)
        return EndedRoots(run.roots[slots[ended]], tasks[ended], outcomes)

    def _counted(self, parts: list[EndedRoots]) -> EndedRoots:
        ended = EndedRoots.concat(parts)
        for outcome, count in enumerate(np.bincount(ended.outcomes, minlength=3).tolist()):
            self._ended[outcome] += count
        return ended


class Ackers:
    """Several ackers behind one interface; `acker_of` assigns each root to one of them."""

    def __init__(self, count: int) -> None:
        check_number("count", count, 1)
        self.ackers = [Acker() for _ in range(count)]

    def fold(
        self,
        init: tuple[Any, Any, Any] | None = None,
        ack: tuple[Any, Any] | None = None,
        fail: Any = None,
    ) -> EndedRoots:
        """Fold a batch of messages; see `Acker.fold`."""
        failed = () if fail is None else (fail,)
        parts = (self._split(*(init or ())), self._split(*(ack or ())), self._split(*failed))
        return EndedRoots.concat(
            acker.fold(of_init or None, of_ack or None, *of_fail)
            for acker, of_init, of_ack, of_fail in zip(self.ackers, *parts, strict=True)
        )

    def rotate(self) -> EndedRoots:
        """Time out roots; see `Acker.rotate`."""
        return EndedRoots.concat(acker.rotate() for acker in self.ackers)

    @property
    def counts(self) -> AckerCounts:
        """Counts of the roots of all ackers."""
        parts = [astuple(acker.counts) for acker in self.ackers]
        return AckerCounts(*map(sum, zip(*parts, strict=True)))

    def _split(self, *columns: Any) -> list[tuple[Any, ...]]:
        """Split columns, of which the first holds the roots, by acker."""
        count = len(self.ackers)
        if not columns:
            return [()] * count
        arrays = [as_ids(column) for column in columns]
        owners = acker_of(arrays[0], count)
        return [tuple(array[owners == owner] for array in arrays) for owner in range(count)]


@dataclass(frozen=True, slots=True)
class Anchors:
    """Edges that lead to tuples: a tuple made from several inputs has an edge from each.

    Attributes:
        tuples: for each edge, the number of its tuple.
        roots: for each edge, the root of its tree.
        edges: ids of the edges.
    """

    tuples: Indices
    roots: Ids
    edges: Ids

    @classmethod
    def of_records(cls, count: int, random: np.random.Generator) -> Anchors:
        """Return a new root and edge for each of `count` records, numbered from 0.

        Start them with `acker.init(anchors.roots, anchors.edges, tasks)`.
        """
        return cls(np.arange(count), new_ids(count, random), new_ids(count, random))

    def emit(
        self, outputs: Any, inputs: Any, random: np.random.Generator
    ) -> tuple[Anchors, tuple[Ids, Ids]]:
        """Acknowledge these tuples, and anchor the outputs that a bolt made from them.

        Args:
            outputs: numbers of the output tuples; once for each input if there are several, not
                at all if the output is unanchored.
            inputs: for each of `outputs`, the number of an input tuple.
            random: source of the ids.

        Returns:
            The anchors of the outputs, and the arguments for `Acker.ack`. An output has an edge for
            each root of each of its inputs.
        """
        made = self.derive(outputs, inputs, random)
        roots = np.concatenate([self.roots, made.roots])
        return made, xor_by_root(roots, np.concatenate([self.edges, made.edges]))

    def derive(self, outputs: Any, inputs: Any, random: np.random.Generator) -> Anchors:
        """Return the anchors of outputs made from these tuples; arguments as for `emit`."""
        wanted, places = np.asarray(inputs, np.int64), np.arange(len(self.tuples))
        if np.array_equal(wanted, places) and np.array_equal(self.tuples, places):
            # each output has one input
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
    """Return the distinct roots in order, and the XOR of the values of each."""
    order, first = _groups(roots)
    if not len(first):
        return roots, values
    return roots[order[first]], np.bitwise_xor.reduceat(values[order], first)


def _no_ended_roots() -> EndedRoots:
    return EndedRoots(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.uint8))


@dataclass(slots=True)
class _Run:
    """Entries sorted by root; each root once."""

    roots: Ids
    values: Ids
    tasks: Tasks

    @property
    def nbytes(self) -> int:
        return self.roots.nbytes + self.values.nbytes + self.tasks.nbytes

    def find(self, roots: Ids) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """Return the slot of each root, and whether the root is in flight there."""
        if not len(self.roots):
            return np.zeros(len(roots), np.int64), np.zeros(len(roots), bool)
        slots = np.minimum(np.searchsorted(self.roots, roots), len(self.roots) - 1)
        return slots, (self.roots[slots] == roots) & (self.tasks[slots] != ENDED)


@dataclass(slots=True)
class _Bucket:
    """The entries that were added between two rotations.

    Attributes:
        runs: the entries, in runs of decreasing size.
        ended: number of ended entries that are still in the runs.
    """

    runs: list[_Run] = field(default_factory=list)
    ended: int = 0

    def add(self, run: _Run) -> None:
        """Add new entries, and merge runs of similar size."""
        keep, size = len(self.runs), len(run.roots)
        while keep and len(self.runs[keep - 1].roots) < RUN_RATIO * size:
            keep -= 1
            size += len(self.runs[keep].roots)
        if 2 * self.ended > sum(len(held.roots) for held in self.runs):
            keep = 0
        elif not size:
            return
        self.runs[keep:] = [_merge([*self.runs[keep:], run])]
        if not keep:
            self.ended = 0


def _new_run(roots: Ids) -> _Run:
    """Return empty entries for new roots."""
    return _Run(roots, np.zeros(len(roots), np.uint64), np.full(len(roots), UNKNOWN, np.int32))


def _merge(runs: Sequence[_Run]) -> _Run:
    """Merge runs, without the ended entries."""
    if not runs:
        return _new_run(np.empty(0, np.uint64))
    tasks = np.concatenate([run.tasks for run in runs])
    held = np.flatnonzero(tasks != ENDED)
    roots = np.concatenate([run.roots for run in runs])[held]
    order = np.argsort(roots, kind="stable")  # the runs are sorted, so a stable sort merges them
    held = held[order]
    return _Run(roots[order], np.concatenate([run.values for run in runs])[held], tasks[held])


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages of a batch, combined by root; roots are distinct and sorted."""

    roots: Ids
    inits: Ids
    acks: Ids
    tasks: Tasks
    failed: npt.NDArray[np.bool_]


def _combine(
    init: tuple[Any, Any, Any] | None, ack: tuple[Any, Any] | None, fail: Any
) -> tuple[_Messages, int]:
    """Combine messages by root; return them and the number of duplicate inits."""
    empty = np.empty(0, np.uint64)
    init_roots, init_values, init_tasks = init or (empty, empty, empty)
    ack_roots, ack_values = ack or (empty, empty)
    starts, first = np.unique(as_ids(init_roots), return_index=True)
    repeated = len(init_roots) - len(starts)
    if not len(init_roots) == len(init_values) == len(init_tasks):
        raise ValueError("roots, values and tasks of an init have different lengths")
    if len(ack_roots) != len(ack_values):
        raise ValueError("roots and values of an ack have different lengths")
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


def _groups(roots: Ids) -> tuple[Indices, Indices]:
    """Return a sort order of the roots, and where in it each distinct root begins."""
    order = np.argsort(roots)
    ordered = roots[order]
    begins = np.ones(len(ordered), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    return order, np.flatnonzero(begins)
