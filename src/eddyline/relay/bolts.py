"""Bolts: functions that know nothing of acks; and the chain of them, which tracks every record's tree.

Each record is the root of a tree of rows: what a bolt makes of a row is anchored to it, and a row made
of several is anchored to them all. A record is done when the XOR of all edges of its tree is zero
(`acker.py`); a record of whose tree any row has failed has failed, and nothing made of it counts.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.errors import EngineError
from eddyline.relay.acker import Anchors, Places, new_ids

TTL_S = 60.0
MAX_ATTEMPTS = 5
CONCURRENCY = 32
REASON_CHARACTERS = 500
LOOK_S = 0.05
LATE_MAX = 3  # calls of a tuple, one behind the other, that may run out of time

Rows: TypeAlias = "list[Any] | pa.Table"
Reasons: TypeAlias = dict[int, str | None]  # None: it was not tried

RECORD, ASYNC, TABLE, GROUP, FIT = "record", "async", "table", "group", "fit"


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a vectorised bolt gives back where its rows don't go one to one.

    Attributes:
        rows: what it has made.
        inputs: for each of them the place of the row that it was made of, or a list of places;
            None: rows go one to one, without those that have failed.
        failed: places of rows that have failed, and why.

    Example:
        >>> table = pa.table({"v": [1, 2, 3]})
        >>> Emitted(table.slice(0, 1), inputs=[[0, 2]], failed={1: "odd"}).failed
        {1: 'odd'}
    """

    rows: pa.Table
    inputs: Any = None
    failed: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bolt:
    """One step of a pipeline.

    Attributes:
        function: what it does.
        name: tells it from others, in dead letters too.
        kind: `record` (a row), `async` (a coroutine function of a row), `table` (a pyarrow Table),
            `group` (the list of rows of one key), `fit` (rows as they are: the last step).
        ttl: seconds that a call may take.
        max_attempts: a record that has failed so often, here the last time, is a dead letter.
        concurrency: calls that may wait side by side, of coroutine functions.
        once: a vectorised function that raises has failed for all its rows. Otherwise it is called
            with halves of them until the bad ones are found.
    """

    function: Callable[[Any], Any]
    name: str
    kind: str
    ttl: float = TTL_S
    max_attempts: int = MAX_ATTEMPTS
    concurrency: int = CONCURRENCY
    once: bool = False

    def __post_init__(self) -> None:
        for what in ("ttl", "max_attempts", "concurrency"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise EngineError(
                    f"{what} of bolt {self.name} is {value!r}",
                    condition="BAD_OPTION",
                    hint="give a number above 0",
                )

    @classmethod
    def of(
        cls,
        function: Callable[[Any], Any],
        name: str | None,
        *,
        vectorised: bool = False,
        by_key: bool = False,
        **settings: Any,
    ) -> Bolt:
        """A bolt of a user's function; EngineError if it can't be one."""
        shown: str = name or getattr(function, "__name__", None) or type(function).__name__
        if not callable(function):
            raise EngineError(
                f"bolt {shown} is not a function",
                condition="BAD_BOLT",
                hint="give a function of one row",
            )
        called = function if inspect.isroutine(function) else type(function).__call__
        waits = inspect.iscoroutinefunction(called)
        if vectorised + by_key + waits > 1:
            raise EngineError(
                f"bolt {shown} can't be more than one of vectorised, by_key and a coroutine function",
                condition="BAD_BOLT",
                hint="make two bolts of it",
            )
        kind = TABLE if vectorised else GROUP if by_key else ASYNC if waits else RECORD
        return cls(function, shown, kind, **settings)


@dataclass(slots=True)
class Made:
    """What a bolt has made of rows.

    Attributes:
        rows: the outputs.
        outputs, inputs: pairs of places: this output was made of this input.
        failed: reasons by the place of an input.
    """

    rows: Rows
    outputs: Places
    inputs: Places
    failed: Reasons


@dataclass(slots=True)
class Worked:
    """What a chain has made of records.

    Attributes:
        rows: the outputs of records that are done.
        bolts: for each record the number of the bolt where it failed; -1: it is done, or held.
        reasons: for each record that failed, why.
        held: records that did nothing wrong, but shared a row with one that failed, or were not
            tried, because calls before them got no answer.
    """

    rows: Rows
    bolts: npt.NDArray[np.int16]
    reasons: dict[int, str]
    held: npt.NDArray[np.bool_]

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        """Which records are done."""
        done: npt.NDArray[np.bool_] = (self.bolts < 0) & ~self.held
        return done


class Chain:
    """Bolts one after the other, in one process.

    Args:
        bolts: at least one.
        acks: whether trees are tracked. Without, what fails is left out and nothing is told.

    Example:
        >>> from eddyline.relay.records import as_read, new_records
        >>> chain = Chain([Bolt.of(lambda row: int(row["payload"]), "parse")])
        >>> worked = chain.run(as_read(new_records([b"7", b"seven"]), [0, 1], 0))
        >>> worked.rows, worked.done.tolist()
        ([7], [True, False])
    """

    def __init__(self, bolts: Sequence[Bolt], *, acks: bool = True) -> None:
        self.bolts = tuple(bolts)
        self.acks = acks
        self.joins = any(bolt.kind == GROUP for bolt in self.bolts)
        self._random = np.random.default_rng()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Chain, acks=self.acks), (self.bolts,)

    def run(self, records: pa.Table) -> Worked:
        """The bolts' work on records of schema `RECORDS`."""
        rows: Rows = records
        keys = records["key"]
        if not self.acks:
            owners, none = np.arange(records.num_rows), np.zeros(records.num_rows, bool)
            for bolt in self.bolts:
                made = self._call(bolt, rows, keys, lambda: owners, none)  # noqa: B023
                rows = made.rows
                owners = _first_inputs(made, owners)
            return Worked(rows, np.full(records.num_rows, -1, np.int16), {}, none)
        trees = _Trees(records.num_rows, self._random)
        for number, bolt in enumerate(self.bolts):
            made = self._call(bolt, rows, keys, trees.owners, trees.of_failed(keys))
            rows = trees.emit(made, number)
        return trees.end(rows)

    def _call(
        self,
        bolt: Bolt,
        rows: Rows,
        keys: pa.ChunkedArray,
        owners: Callable[[], Places],
        incomplete: npt.NDArray[np.bool_],
    ) -> Made:
        """What a bolt makes of rows.

        Args:
            keys: of the records.
            owners: gives the record of each row.
            incomplete: the records of whose key not all have come so far: they aren't joined.
        """
        if not len(rows):
            return Made([], np.empty(0, np.int64), np.empty(0, np.int64), {})
        if bolt.kind == TABLE or bolt.kind == FIT:
            return self._table(bolt, rows)
        given = rows.to_pylist() if isinstance(rows, pa.Table) else rows
        if bolt.kind == ASYNC:
            return _flat(*_awaited(bolt, given))
        if bolt.kind == GROUP:
            mine = owners()
            groups: list[Places] = []
            waiting: list[Places] = []
            for group in _groups(keys, mine):
                (waiting if incomplete[mine[group[0]]] else groups).append(group)
            parts = [[given[place] for place in group] for group in groups]
            made = _flat(*self._each(bolt, parts), groups)
            made.failed.update((int(place), None) for group in waiting for place in group)
            return made
        return _flat(*self._each(bolt, given))

    def _each(self, bolt: Bolt, given: Sequence[Any]) -> tuple[list[list[Any]], Reasons]:
        """The function of one row after the other: lists of outputs, and reasons of failures."""
        made: list[list[Any]] = []
        failed: Reasons = {}
        late = 0  # one behind the other
        while len(made) < len(given):
            if late == LATE_MAX:  # no answer at all: the others needn't wait for theirs
                failed.update(dict.fromkeys(range(len(made), len(given))))
                made += [[]] * (len(given) - len(made))
                break
            calls = _Calls(bolt.function, given, len(made))
            answered = hands().wait(calls, bolt.ttl)
            late = late + 1 if answered == len(made) else 1
            made += calls.made[: answered - len(made)]
            failed.update((place, why) for place, why in calls.failed.items() if place < answered)
            if answered < len(given):
                failed[answered] = _late(bolt.ttl)
                made.append([])
        return made, failed

    def _table(self, bolt: Bolt, rows: Rows) -> Made:
        """The vectorised function, on all rows, or on ever smaller parts to find the bad ones."""
        parts: list[tuple[int, Made]] = []
        failed: Reasons = {}
        waiting = [(0, len(rows))]
        patience = len(rows).bit_length()  # halves that may be late, until one slow row is found
        while waiting:
            start, count = waiting.pop()
            part = rows.slice(start, count) if isinstance(rows, pa.Table) else rows[start:][:count]
            why, again = "", not bolt.once
            try:
                calls = _Calls(lambda part: _emitted(bolt, part), [part], 0, whole=True)
                if not hands().wait(calls, bolt.ttl):
                    why, again, patience = _late(bolt.ttl), again and patience > 0, patience - 1
                else:
                    parts.append((start, calls.made[0][0]))
            except Exception as error:  # noqa: BLE001  # of the user's function
                why = reason(error)
            if why and (count == 1 or not again):
                failed.update(dict.fromkeys(range(start, start + count), why))
            elif why:
                half = count // 2
                waiting += [(start + half, count - half), (start, half)]  # the first one next
        return _joined(parts, failed)


class Hands:
    """The thread in which functions are called; one that doesn't come back is left to itself."""

    def __init__(self) -> None:
        self._work: SimpleQueue[_Calls] | None = None

    def wait(self, calls: _Calls, ttl: float) -> int:
        """How many calls have been answered when all are, or the next one takes longer than `ttl`.

        Raises:
            Exception: what a call on the whole has raised.
        """
        if self._work is None:
            self._work = SimpleQueue()
            threading.Thread(target=_work, args=(self._work,), daemon=True).start()
        self._work.put(calls)
        while not calls.over.wait(min(LOOK_S, ttl)):
            answered, since = calls.state
            if since and time.monotonic() - since > ttl and calls.state[0] == answered:
                self._work = None
                calls.abandoned = True
                return answered
        if calls.error is not None:
            raise calls.error
        return len(calls.given)


def reason(error: BaseException) -> str:
    """What a dead letter says of an error."""
    if isinstance(error, TimeoutError) and not str(error):
        return "TimeoutError: no answer in time"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:REASON_CHARACTERS]


def rounds(keys: pa.ChunkedArray) -> list[Places]:
    """Places of rows, so that in each round a key is there once, in order; without a key: first.

    Example:
        >>> [part.tolist() for part in rounds(pa.chunked_array([["a", "b", "a", None, None]]))]
        [[0, 1, 3, 4], [2]]
    """
    codes = keys.combine_chunks().dictionary_encode().indices
    keyless = codes.is_null().to_numpy(zero_copy_only=False)
    numbers = codes.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    order = order[~keyless[order]]
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else ordered
    sizes = np.diff(np.r_[starts, len(ordered)])
    turn = np.zeros(len(numbers), np.int64)
    turn[order] = np.arange(len(ordered)) - np.repeat(starts, sizes)
    by_turn = np.argsort(turn, kind="stable")
    cuts = np.searchsorted(turn[by_turn], np.arange(1, turn.max(initial=0) + 1))
    return np.split(by_turn, cuts)


class _Trees:
    """The trees of some records, while bolts work on their rows.

    A root's id is the place of its record, so what an acker keeps of all roots is one array.
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self._random = random
        roots = np.arange(count, dtype=np.uint64)
        self._anchors = Anchors(np.arange(count), roots, new_ids(count, random))
        self._values = self._anchors.edges.copy()
        self._bolts = np.full(count, -1, np.int16)
        self._reasons: dict[int, str] = {}
        self._held = np.zeros(count, bool)

    def owners(self) -> Places:
        """The record of each row; of a row of several the first one."""
        tuples = self._anchors.tuples
        owners = np.zeros(int(tuples.max(initial=-1)) + 1, np.int64)
        owners[tuples[::-1]] = _places(self._anchors)[::-1]
        return owners

    def of_failed(self, keys: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """The records of a key of which one has failed, or is held."""
        bad = (self._bolts >= 0) | self._held
        if not bad.any():
            return bad
        failed = keys.filter(pa.array(bad)).drop_null().combine_chunks()
        found: npt.NDArray[np.bool_] = pc.is_in(keys, failed).to_numpy()
        return found

    def emit(self, made: Made, bolt: int) -> Rows:
        """Take in what a bolt has made; the rows that go on."""
        before = self._anchors
        self._anchors = before.follow(made.outputs, made.inputs, self._random)
        self._acknowledge(before)
        self._acknowledge(self._anchors)
        if not made.failed:
            return made.rows
        failed = np.fromiter(made.failed, np.int64)
        links = np.flatnonzero(np.isin(before.tuples, failed))
        for link, place in zip(links, _places(before)[links].tolist(), strict=True):
            why = made.failed[int(before.tuples[link])]
            if why is None:
                self._held[place] = True
            elif self._bolts[place] < 0:
                self._bolts[place] = bolt
                self._reasons[place] = why
        return self._without_failed(made.rows)

    def end(self, rows: Rows) -> Worked:
        """All rows are where they should be: acknowledge them, and say what is done."""
        self._acknowledge(self._anchors)
        worked = Worked(rows, self._bolts, self._reasons, self._held)
        assert not np.any(self._values[worked.done]), "a row was neither acknowledged nor failed"
        return worked

    def _acknowledge(self, anchors: Anchors) -> None:
        """Fold each edge into its root's value: once when it is made, and once when it is done."""
        np.bitwise_xor.at(self._values, _places(anchors), anchors.edges)

    def _without_failed(self, rows: Rows) -> Rows:
        """The rows of no record that failed; whose rows are left out by that is held."""
        anchors, places = self._anchors, _places(self._anchors)
        bad = (self._bolts >= 0) | self._held
        while True:
            dropped = np.isin(anchors.tuples, anchors.tuples[bad[places]])
            more = places[dropped & ~bad[places]]
            if not len(more):
                break
            self._held[more] = bad[more] = True
        links = np.flatnonzero(~dropped)
        # a row that is anchored to nothing stays
        gone = np.unique(anchors.tuples[dropped])
        kept = np.setdiff1d(np.arange(len(rows)), gone, assume_unique=True)
        tuples = np.searchsorted(kept, anchors.tuples[links])
        self._anchors = Anchors(tuples, anchors.roots[links], anchors.edges[links])
        if isinstance(rows, pa.Table):
            return rows.take(pa.array(kept))
        return [rows[place] for place in kept.tolist()]


def _places(anchors: Anchors) -> Places:
    """The places of the records that the roots of edges are."""
    places: Places = anchors.roots.view(np.int64)
    return places


class _Calls:
    """Calls of a function in another thread.

    Attributes:
        state: how many calls are over, and since when the next one runs.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        given: Sequence[Any],
        start: int,
        *,
        whole: bool = False,
    ) -> None:
        self.function = function
        self.given = given
        self.start = start
        self.whole = whole
        self.made: list[list[Any]] = []
        self.failed: dict[int, str] = {}
        self.error: Exception | None = None
        self.state = (0 if whole else start, 0.0)
        self.abandoned = False
        self.over = threading.Event()

    def run(self) -> None:
        for place in range(self.start, len(self.given)):
            self.state = (place, time.monotonic())
            outputs: list[Any] = []
            try:
                outputs = _as_list(self.function(self.given[place]))
            except Exception as error:  # noqa: BLE001  # of the user's function
                if self.whole:
                    self.error = error
                self.failed[place] = reason(error)
            if self.abandoned:
                return
            self.made.append(outputs)
        self.over.set()


def _work(work: SimpleQueue[_Calls]) -> None:
    while True:
        calls = work.get()
        calls.run()
        if calls.abandoned:
            return


def _as_list(made: Any) -> list[Any]:
    """What a function gives back: nothing, a row, or a list or an iterator of rows."""
    if made is None:
        return []
    if isinstance(made, list):
        return made
    return list(made) if isinstance(made, Iterator) else [made]


def _late(ttl: float) -> str:
    return f"TimeoutError: no answer within {ttl:g} s"


def _flat(made: list[list[Any]], failed: Reasons, groups: Sequence[Places] | None = None) -> Made:
    """Lists of outputs by call as one; `groups`: the inputs of each call, if not one each."""
    counts = np.fromiter((len(outputs) for outputs in made), np.int64, len(made))
    rows = [row for outputs in made for row in outputs]
    calls = np.repeat(np.arange(len(made)), counts)
    if groups is None:
        return Made(rows, np.arange(len(rows)), calls, failed)
    sizes = np.fromiter((len(group) for group in groups), np.int64, len(groups))
    outputs = np.repeat(np.arange(len(rows)), sizes[calls])
    inputs = np.concatenate([np.empty(0, np.int64), *(groups[call] for call in calls.tolist())])
    all_failed = {int(place): why for call, why in failed.items() for place in groups[call]}
    return Made(rows, outputs, inputs, all_failed)


def _groups(keys: pa.ChunkedArray, owners: Places) -> list[Places]:
    """Places of rows whose records have one key; without a key each is for itself."""
    mine = keys.take(pa.array(owners)).combine_chunks().dictionary_encode().indices
    codes = mine.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    keyless = codes < 0
    codes[keyless] = len(codes) + np.arange(np.count_nonzero(keyless))
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _emitted(bolt: Bolt, rows: Rows) -> Made:
    """One call of a vectorised function."""
    count = len(rows)
    if bolt.kind == TABLE and not isinstance(rows, pa.Table):
        rows = pa.Table.from_pylist(rows)
    made = bolt.function(rows)
    if made is None:
        return Made([], np.empty(0, np.int64), np.empty(0, np.int64), {})
    emitted = made if isinstance(made, Emitted) else Emitted(made)
    if not isinstance(emitted.rows, pa.Table):
        raise TypeError(f"a vectorised bolt gives a pyarrow Table, not {type(made).__name__}")
    made_count = emitted.rows.num_rows
    failed: Reasons = {int(place): why for place, why in emitted.failed.items()}
    if emitted.inputs is None:
        inputs = np.setdiff1d(np.arange(count), np.fromiter(failed, np.int64, len(failed)))
        if len(inputs) != made_count:
            raise ValueError(f"{made_count} rows of {len(inputs)}: which is made of which?")
        outputs = np.arange(made_count)
    else:
        given = emitted.inputs
        links = given if isinstance(given, pa.Array) else pa.array(given)
        outputs = np.arange(made_count)
        if pa.types.is_list(links.type):
            outputs = links.value_parent_indices().to_numpy(zero_copy_only=False)
            inputs = links.flatten().to_numpy(zero_copy_only=False)
        else:
            inputs = links.to_numpy(zero_copy_only=False)
        if len(links) != made_count or np.any((inputs < 0) | (inputs >= count)):
            raise ValueError(f"inputs must name places of the {count} rows, for each row made")
    return Made(emitted.rows, outputs.astype(np.int64), inputs.astype(np.int64), failed)


def _joined(parts: Sequence[tuple[int, Made]], failed: Reasons) -> Made:
    """What was made of parts that begin at some place, as one."""
    tables, outputs, inputs, before = [], [], [], 0
    for start, made in parts:
        if len(made.rows):
            tables.append(made.rows)
        outputs.append(made.outputs + before)
        inputs.append(made.inputs + start)
        failed.update((place + start, why) for place, why in made.failed.items())
        before += len(made.rows)
    empty = np.empty(0, np.int64)
    return Made(
        pa.concat_tables(tables, promote_options="permissive") if tables else [],
        np.concatenate([empty, *outputs]),
        np.concatenate([empty, *inputs]),
        failed,
    )


def _first_inputs(made: Made, owners: Places) -> Places:
    """The record of each output; 0 for one that is made of nothing."""
    found = np.zeros(len(made.rows), np.int64)
    found[made.outputs[::-1]] = owners[made.inputs[::-1]]
    return found


# --- what a thread that runs chains keeps for them all ---

_kept = threading.local()


def hands() -> Hands:
    """The hands of this thread."""
    if not hasattr(_kept, "hands"):
        _kept.hands = Hands()
    return _kept.hands  # type: ignore[no-any-return]


def _awaited(bolt: Bolt, given: Sequence[Any]) -> tuple[list[list[Any]], Reasons]:
    """As `Chain._each`, for coroutine functions, side by side."""
    made: list[list[Any]] = [[] for _ in given]
    failed: Reasons = dict.fromkeys(range(len(given)), _late(bolt.ttl))

    async def one(place: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            limit = asyncio.timeout(bolt.ttl)
            try:
                async with limit:
                    outputs = _as_list(await bolt.function(given[place]))
                made[place] = outputs
                del failed[place]
            except Exception as error:  # noqa: BLE001  # of the user's function
                if not limit.expired():
                    failed[place] = reason(error)

    async def everything() -> None:
        gate = asyncio.Semaphore(bolt.concurrency)
        await asyncio.gather(*(one(place, gate) for place in range(len(given))))

    turns = math.ceil(len(given) / bolt.concurrency)
    future = _submit(everything())
    try:
        future.result(bolt.ttl * (turns + 1))
    except TimeoutError:  # something holds the loop: leave it, with what it has not answered
        _kept.loop = None
        return [list(outputs) for outputs in made], dict(failed)
    return made, failed


def _submit(work: Coroutine[Any, Any, None]) -> Future[None]:
    """Run a coroutine in this thread's loop, which stays: clients may be kept between calls."""
    loop = getattr(_kept, "loop", None)
    if loop is None:
        loop = _kept.loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, loop)
