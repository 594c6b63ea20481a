"""Bolts: users' functions, which need not deal with acks; and chains of bolts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.arguments import check_number
from eddyline.errors import EngineError, encodable
from eddyline.relay.acker import Indices
from eddyline.relay.calls import (
    REASON_CHARACTERS,
    CallTimeoutError,
    Reasons,
    call,
    call_concurrently,
    call_each,
    failure_reason,
)
from eddyline.relay.keys import group_by_key
from eddyline.relay.records import KEY
from eddyline.relay.trees import BoltOutput, ChainOutput, Rows, Trees

TTL_S = 60.0
MAX_ATTEMPTS = 5
CONCURRENCY = 32
RETRY_DELAY_S = 1.0
TIME_MAX_S = 30 * 24 * 3600
ATTEMPTS_LIMIT = 1_000_000_000  # of `max_attempts`: a record has as many only after years
CONCURRENCY_LIMIT = 10_000

RECORD, ASYNC, TABLE, GROUP, FIT = "record", "async", "table", "group", "fit"


@dataclass(frozen=True, slots=True)
class Emitted:
    """The return value of a vectorised bolt whose rows don't map one to one.

    Attributes:
        rows: the output rows.
        inputs: for each output row, the index of the input row that it was made from, or a list of
            indices. None: one output row for each input row that didn't fail, in order.
        failed: why input rows failed, by their index.

    An index that is no whole number, or outside the input rows, is an error of the bolt.

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
        function: the function to call.
        name: identifies the bolt, also in dead letters.
        kind: the argument of the function: `record` (a row), `async` (a row; a coroutine function),
            `table` (a pyarrow Table), `group` (the list of rows of one key), `fit` (the rows as
            they are; the last step of a pipeline).
        ttl: time limit of a call, in seconds.
        max_attempts: a record that fails here in this attempt or later becomes a dead letter.
        retry_delay: seconds until a record that failed here is retried.
        concurrency: maximum number of concurrent calls of a coroutine function.
        once: if a vectorised function raises, fail all its rows. Otherwise the function is called
            again with halves of the rows until the bad ones are found.
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
        check_number(f"max_attempts {of}", self.max_attempts, 1, ATTEMPTS_LIMIT)
        check_number(f"retry_delay {of}", self.retry_delay, 0, TIME_MAX_S, whole=False)
        check_number(f"concurrency {of}", self.concurrency, 1, CONCURRENCY_LIMIT)

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
        """Return a bolt for a user's function.

        Raises:
            EngineError: it is not a function, or the options contradict each other.
        """
        shown: str = name or getattr(function, "__name__", None) or type(function).__name__
        if not callable(function):
            raise EngineError(
                f"bolt {shown} is not a function",
                condition="BAD_BOLT",
                hint="give a function of one row",
            )
        called = (function, type(function).__call__)  # inspect looks into a partial, too
        if any(map(inspect.isasyncgenfunction, called)):
            raise EngineError(
                f"bolt {shown} is an asynchronous generator",
                condition="BAD_BOLT",
                hint="collect the rows in a list, and return that",
            )
        is_coroutine = any(map(inspect.iscoroutinefunction, called))
        if vectorised + by_key + is_coroutine > 1:
            raise EngineError(
                f"bolt {shown} can't be more than one of vectorised, by_key and a coroutine function",
                condition="BAD_BOLT",
                hint="make two bolts of it",
            )
        kind = TABLE if vectorised else GROUP if by_key else ASYNC if is_coroutine else RECORD
        return cls(function, shown, kind, **settings)


class BoltChain:
    """A sequence of bolts, run in one process.

    Args:
        bolts: at least one bolt.
        acks: whether to track trees. Otherwise failed rows are dropped and never reported.

    Example:
        >>> from eddyline.relay.records import as_read, new_records
        >>> chain = BoltChain([Bolt.of(lambda row: int(row["payload"]), "parse")])
        >>> output = chain.run(as_read(new_records([b"7", b"seven"]), [0, 1], 0))
        >>> output.rows, output.done.tolist()
        ([7], [True, False])
    """

    def __init__(self, bolts: Sequence[Bolt], *, acks: bool = True) -> None:
        self.bolts = tuple(bolts)
        self.acks = acks
        self.joins = any(bolt.kind == GROUP for bolt in self.bolts)
        self._random = np.random.default_rng()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(BoltChain, acks=self.acks), (self.bolts,)

    def run(self, records: pa.Table) -> ChainOutput:
        """Run the bolts over records of schema `RECORDS`."""
        rows: Rows = records
        keys = records[KEY]
        if not self.acks:
            owners = np.arange(records.num_rows)
            for bolt in self.bolts:
                output = _run_bolt(bolt, rows, lambda: (group_by_key(keys, owners), []))  # noqa: B023
                rows = output.rows
                owners = _output_owners(output, owners)
            none = np.zeros(records.num_rows, bool)
            return ChainOutput(rows, np.full(records.num_rows, -1, np.int16), {}, none)
        trees = Trees(records.num_rows, self._random)
        for number, bolt in enumerate(self.bolts):
            rows = trees.apply(_run_bolt(bolt, rows, partial(trees.groups, keys)), number)
        return trees.finish(rows)


def _run_bolt(
    bolt: Bolt, rows: Rows, groups: Callable[[], tuple[list[Indices], list[Indices]]]
) -> BoltOutput:
    """Run a bolt over rows; `groups` returns those of complete keys and of incomplete keys."""
    if not len(rows):
        return BoltOutput([], np.empty(0, np.int64), np.empty(0, np.int64), {})
    if bolt.kind == TABLE or bolt.kind == FIT:
        return _run_vectorised(bolt, rows)
    arguments, unreadable = _python_rows(rows)
    calls: list[Indices] | None = None  # the rows of each call; None: one call for each row
    held: list[Indices] = []
    if bolt.kind == GROUP:
        complete, held = groups()
        broken = [any(int(row) in unreadable for row in group) for group in complete]
        calls = [group for group, bad in zip(complete, broken, strict=True) if not bad]
        held += [group for group, bad in zip(complete, broken, strict=True) if bad]
        arguments = [[arguments[row] for row in group] for group in calls]
    elif unreadable:
        calls = [np.array([row]) for row in range(len(arguments)) if row not in unreadable]
        arguments = [arguments[row] for (row,) in calls]
    if bolt.kind == ASYNC:
        results = call_concurrently(bolt.function, arguments, bolt.ttl, bolt.concurrency)
    else:
        results = call_each(bolt.function, arguments, bolt.ttl)
    output = _flatten(*results, calls)
    output.failed.update((int(row), None) for group in held for row in group)
    output.failed.update(unreadable)
    return output


def _python_rows(rows: Rows) -> tuple[list[Any], Reasons]:
    """Return the rows of a table as dicts, with None for those that Python has no values for, and why, by index."""
    if not isinstance(rows, pa.Table):
        return rows, {}
    try:
        return rows.to_pylist(), {}
    except (ValueError, OverflowError):  # such as a date after the year 9999
        found: list[Any] = []
        unreadable: Reasons = {}
    for index in range(rows.num_rows):
        try:
            found += rows.slice(index, 1).to_pylist()
        except (ValueError, OverflowError) as error:
            found.append(None)
            unreadable[index] = failure_reason(error)
    return found, unreadable


def _run_vectorised(bolt: Bolt, rows: Rows) -> BoltOutput:
    """Call a vectorised function on all rows, and on halves of those that fail."""
    parts: list[tuple[int, BoltOutput]] = []
    failed: Reasons = {}
    waiting = [(0, len(rows))]
    timeouts_left = len(rows).bit_length()  # enough halvings to find one slow row
    while waiting:
        start, count = waiting.pop()
        part = rows.slice(start, count) if isinstance(rows, pa.Table) else rows[start:][:count]
        retry = not bolt.once
        try:
            parts.append((start, call(partial(_call_vectorised, bolt), part, bolt.ttl)))
            continue
        except CallTimeoutError as error:
            why, retry = str(error), retry and timeouts_left > 0
            timeouts_left -= 1
        except Exception as error:  # noqa: BLE001  # of the user's function
            why = failure_reason(error)
        if count == 1 or not retry:
            failed.update(dict.fromkeys(range(start, start + count), why))
        else:
            half = count // 2
            waiting += [(start + half, count - half), (start, half)]  # the first half next
    return _concat(parts, failed)


def _flatten(
    results: list[list[Any]], failed: Reasons, groups: Sequence[Indices] | None = None
) -> BoltOutput:
    """Return the outputs of many calls as one.

    Args:
        results: the output rows of each call.
        failed: why calls failed, by their index.
        groups: the input rows of each call; None: one row for each call.
    """
    counts = np.fromiter((len(result) for result in results), np.int64, len(results))
    rows = [row for result in results for row in result]
    calls = np.repeat(np.arange(len(results)), counts)
    if groups is None:
        return BoltOutput(rows, np.arange(len(rows)), calls, failed)
    sizes = np.fromiter((len(group) for group in groups), np.int64, len(groups))
    outputs = np.repeat(np.arange(len(rows)), sizes[calls])
    inputs = np.concatenate([np.empty(0, np.int64), *(groups[call] for call in calls.tolist())])
    all_failed = {int(row): why for call, why in failed.items() for row in groups[call]}
    return BoltOutput(rows, outputs, inputs, all_failed)


def _call_vectorised(bolt: Bolt, rows: Rows) -> BoltOutput:
    """Call a vectorised function once, and check what it returns.

    Raises:
        TypeError: it didn't return a table.
        ValueError: it isn't clear which output row was made from which input row.
    """
    count = len(rows)
    if bolt.kind == TABLE and not isinstance(rows, pa.Table):
        rows = _as_table(rows)
    returned = bolt.function(rows)
    if returned is None:
        return BoltOutput([], np.empty(0, np.int64), np.empty(0, np.int64), {})
    emitted = returned if isinstance(returned, Emitted) else Emitted(returned)
    if not isinstance(emitted.rows, pa.Table):
        raise TypeError(f"a vectorised bolt gives a pyarrow Table, not {type(returned).__name__}")
    emitted_count = emitted.rows.num_rows
    if not all(map(partial(_is_place, count), emitted.failed)):
        raise ValueError(f"failed must name places of the {count} rows")
    failed: Reasons = {int(row): _given_reason(why) for row, why in emitted.failed.items()}
    if emitted.inputs is None:
        inputs = np.setdiff1d(np.arange(count), np.fromiter(failed, np.int64, len(failed)))
        if len(inputs) != emitted_count:
            raise ValueError(f"{emitted_count} rows of {len(inputs)}: which is made of which?")
        outputs = np.arange(emitted_count)
    else:
        links = emitted.inputs
        if not isinstance(links, pa.Array):
            links = pa.array(links)
        outputs, places = np.arange(emitted_count), links
        if pa.types.is_list(links.type):
            outputs = links.value_parent_indices().to_numpy(zero_copy_only=False)
            places = links.flatten()
        inputs = places.to_numpy(zero_copy_only=False)
        whole = pa.types.is_integer(places.type) or not len(places)
        whole = whole and not links.null_count and not places.null_count
        clear = whole and len(links) == emitted_count
        if not clear or np.any((inputs < 0) | (inputs >= count)):
            raise ValueError(f"inputs must name places of the {count} rows, for each row made")
    rows = emitted.rows if emitted.rows.num_columns else emitted.rows.to_pylist()
    return BoltOutput(rows, outputs.astype(np.int64), inputs.astype(np.int64), failed)


def _is_place(count: int, place: object) -> bool:
    """Return whether a value is the index of one of so many rows."""
    if isinstance(place, bool) or not isinstance(place, int | np.integer):
        return False
    return 0 <= int(place) < count


def _given_reason(why: object) -> str:
    """Return the reason that a function gives for a row, whatever it is, as text for a dead letter."""
    return encodable(str(why))[:REASON_CHARACTERS]


def _concat(parts: Sequence[tuple[int, BoltOutput]], failed: Reasons) -> BoltOutput:
    """Return the outputs for parts of the rows, each with its first row, as one."""
    made, outputs, inputs, before = [], [], [], 0
    for start, output in parts:
        if len(output.rows):
            made.append(output.rows)
        outputs.append(output.outputs + before)
        inputs.append(output.inputs + start)
        failed.update((row + start, why) for row, why in output.failed.items())
        before += len(output.rows)
    empty = np.empty(0, np.int64)
    return BoltOutput(
        _joined(made),
        np.concatenate([empty, *outputs]),
        np.concatenate([empty, *inputs]),
        failed,
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of parts: as one table, or as dicts if a part has dicts, or a column has types of which none holds all values."""
    tables = [part for part in parts if isinstance(part, pa.Table)]
    if parts and len(tables) == len(parts):
        with suppress(pa.ArrowException):
            return pa.concat_tables(tables, promote_options="permissive")
    as_dicts = (part.to_pylist() if isinstance(part, pa.Table) else part for part in parts)
    return [row for part in as_dicts for row in part]


def _as_table(rows: list[Any]) -> pa.Table:
    """Return dicts as a table with the columns of all of them, and as many rows if they are all empty."""
    names = dict.fromkeys(name for row in rows for name in row.keys())  # noqa: SIM118  # a row may be no dict
    if names:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    return pa.table({"none": pa.nulls(len(rows))}).select([])


def _output_owners(output: BoltOutput, owners: Indices) -> Indices:
    """Return the (first) record that each output row was made from; 0 if from none."""
    found = np.zeros(len(output.rows), np.int64)
    found[output.outputs[::-1]] = owners[output.inputs[::-1]]
    return found
