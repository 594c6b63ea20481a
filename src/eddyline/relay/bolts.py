"""Bolts: functions that know nothing of acks; and the chain of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.errors import EngineError
from eddyline.options import check_number
from eddyline.relay.acker import Places
from eddyline.relay.calls import LateError, Reasons, call, each, reason, side_by_side
from eddyline.relay.keys import groups
from eddyline.relay.records import KEY
from eddyline.relay.trees import Made, Rows, Trees, Worked

TTL_S = 60.0
MAX_ATTEMPTS = 5
CONCURRENCY = 32
RETRY_DELAY_S = 1.0
TIME_MAX_S = 30 * 24 * 3600

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
        retry_delay: seconds until a record that has failed here is tried again.
        concurrency: calls that may wait side by side, of coroutine functions.
        once: a vectorised function that raises has failed for all its rows. Otherwise it is called
            with halves of them until the bad ones are found.
    """

    function: Callable[[Any], Any]
    name: str
    kind: str
    ttl: float = TTL_S
    max_attempts: int = MAX_ATTEMPTS
    retry_delay: float = RETRY_DELAY_S
    concurrency: int = CONCURRENCY
    once: bool = False

    def __post_init__(self) -> None:
        of = f"of bolt {self.name}"
        check_number(f"ttl {of}", self.ttl, 0.001, TIME_MAX_S, whole=False)
        check_number(f"max_attempts {of}", self.max_attempts, 1)
        check_number(f"retry_delay {of}", self.retry_delay, 0, TIME_MAX_S, whole=False)
        check_number(f"concurrency {of}", self.concurrency, 1)

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
        keys = records[KEY]
        if not self.acks:
            owners = np.arange(records.num_rows)
            for bolt in self.bolts:
                made = _made(bolt, rows, lambda: (groups(keys, owners), []))  # noqa: B023
                rows = made.rows
                owners = _first_inputs(made, owners)
            none = np.zeros(records.num_rows, bool)
            return Worked(rows, np.full(records.num_rows, -1, np.int16), {}, none)
        trees = Trees(records.num_rows, self._random)
        for number, bolt in enumerate(self.bolts):
            rows = trees.emit(_made(bolt, rows, partial(trees.groups, keys)), number)
        return trees.end(rows)


def _made(bolt: Bolt, rows: Rows, by_key: Callable[[], tuple[list[Places], list[Places]]]) -> Made:
    """What a bolt makes of rows; `by_key` gives those to be joined, and those that must wait."""
    if not len(rows):
        return Made([], np.empty(0, np.int64), np.empty(0, np.int64), {})
    if bolt.kind == TABLE or bolt.kind == FIT:
        return _of_table(bolt, rows)
    given = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    if bolt.kind == ASYNC:
        return _flat(*side_by_side(bolt.function, given, bolt.ttl, bolt.concurrency))
    if bolt.kind == GROUP:
        joined, waiting = by_key()
        parts = [[given[place] for place in group] for group in joined]
        made = _flat(*each(bolt.function, parts, bolt.ttl), joined)
        made.failed.update((int(place), None) for group in waiting for place in group)
        return made
    return _flat(*each(bolt.function, given, bolt.ttl))


def _of_table(bolt: Bolt, rows: Rows) -> Made:
    """The vectorised function, on all rows, or on ever smaller parts to find the bad ones."""
    parts: list[tuple[int, Made]] = []
    failed: Reasons = {}
    waiting = [(0, len(rows))]
    patience = len(rows).bit_length()  # halves that may be late, until one slow row is found
    while waiting:
        start, count = waiting.pop()
        part = rows.slice(start, count) if isinstance(rows, pa.Table) else rows[start:][:count]
        again = not bolt.once
        try:
            parts.append((start, call(partial(_emitted, bolt), part, bolt.ttl)))
            continue
        except LateError as error:
            why, again, patience = str(error), again and patience > 0, patience - 1
        except Exception as error:  # noqa: BLE001  # of the user's function
            why = reason(error)
        if count == 1 or not again:
            failed.update(dict.fromkeys(range(start, start + count), why))
        else:
            half = count // 2
            waiting += [(start + half, count - half), (start, half)]  # the first one next
    return _joined(parts, failed)


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
