"""The laws of running functions: what is kept with each row is what Spark computes over the whole partition."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from itertools import groupby
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.errors import DataError
from eddyline.operators.running import Call, Function, Running
from eddyline.state import around
from eddyline.state.grouping import sorted_places
from eddyline.state.running_totals import totals, totals_of_doubles
from laws import (
    KINDS,
    Bucket,
    Change,
    Row,
    crude_hash,
    epochs_of,
    floats,
    identity,
    integrated,
    laws,
    small,
    table,
    weighted,
    z_set,
)

DECIMAL = pa.decimal128(28, 2)
decimals = st.one_of(
    st.none(), st.integers(-(10**28) + 1, 10**28 - 1).map(lambda n: Decimal(n).scaleb(-2))
)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{kind: KINDS[kind] for kind in ("int", "double", "string")},
    "float": (pa.float32(), floats),
    "decimal": (DECIMAL, decimals),
    "byte": (pa.int8(), st.one_of(st.none(), st.integers(-128, 127))),
    "boolean": (pa.bool_(), st.one_of(st.none(), st.booleans())),
}
SUMMED = ("int", "double", "float", "decimal", "byte")
CALLS = (
    Call(Function.RANK),
    Call(Function.DENSE_RANK),
    Call(Function.COUNT),
    Call(Function.COUNT, peers=True),
    *(
        Call(function, 1, peers)
        for function in (
            Function.COUNT,
            Function.SUM,
            Function.MIN,
            Function.MAX,
            Function.FIRST,
            Function.LAST,
            Function.FIRST_PRESENT,
            Function.LAST_PRESENT,
        )
        for peers in (False, True)
    ),
)


def delta_of(epoch: list[Change], sort: pa.DataType, value: pa.DataType) -> pa.Table:
    """Changes of rows of a partition, two sort keys and a value."""
    return table(
        {
            "h": (pa.int64(), [crude_hash(row[:1]) for row, _ in epoch]),
            "k0": (pa.string(), [row[0] for row, _ in epoch]),
            "s0": (sort, [row[1] for row, _ in epoch]),
            "s1": (pa.int64(), [row[2] for row, _ in epoch]),
            "c0": (pa.string(), [row[0] for row, _ in epoch]),
            "c1": (value, [row[3] for row, _ in epoch]),
            "w": (pa.int64(), [w for _, w in epoch]),
        }
    )


def sort_key(row: Row) -> str:
    """What makes rows peers."""
    return repr(["NaN" if v != v else v + 0 if isinstance(v, float) else v for v in row[1:3]])


def extreme(values: list[Any], sign: int) -> Any:
    """The first of the largest (+1) or smallest (-1) values, NaN being larger than all others."""
    found = None
    for value in (one for one in values if one is not None):
        size = (1, 0) if value != value else (0, value)
        if found is None or (size > found[1] if sign > 0 else size < found[1]):
            found = value, size
    return None if found is None else found[0]


def result(call: Call, rows: list[Row], at: int) -> Any:
    """What a function gives for a row of a partition."""
    keys = [sort_key(row) for row in rows]
    if call.function is Function.RANK:
        return keys.index(keys[at]) + 1
    if call.function is Function.DENSE_RANK:
        return len([*groupby(keys[: at + 1])])
    end = at + 1
    while call.peers and end < len(rows) and keys[end] == keys[at]:
        end += 1
    values = [row[3] for row in rows[:end]]
    there = [value for value in values if value is not None]
    match call.function:
        case Function.COUNT:
            return len(there if call.column >= 0 else values)
        case Function.SUM:
            with localcontext(Context(prec=60)):
                return sum(there[1:], there[0] + 0) if there else None
        case Function.FIRST:
            return values[0]
        case Function.LAST:
            return values[-1]
        case Function.FIRST_PRESENT:
            return next(iter(there), None)
        case Function.LAST_PRESENT:
            return next(reversed(there), None)
    return extreme(values, 1 if call.function is Function.MAX else -1)


@laws
@given(
    data=st.data(),
    sort=st.sampled_from(["int", "double", "string"]),
    kind=st.sampled_from([*VALUES]),
    descending=st.tuples(st.booleans(), st.booleans()),
    nulls_last=st.tuples(st.booleans(), st.booleans()),
    at_first=st.sampled_from([1, 2]),
)
def test_running_functions_follow_from_the_rows(
    data: st.DataObject,
    sort: str,
    kind: str,
    descending: tuple[bool, bool],
    nulls_last: tuple[bool, bool],
    at_first: int,
) -> None:
    sort_type, sorts = KINDS[sort]
    value_type, values = VALUES[kind]
    epochs = data.draw(epochs_of(st.tuples(st.sampled_from("abcd"), sorts, small, values), size=9))
    calls = tuple(c for c in CALLS if c.function is not Function.SUM or kind in SUMMED)
    operator = Running(calls, 1, 2, descending, nulls_last)
    layout = operator.layouts["rows"]
    names = ("c0", "c1", "place", *(f"a{i}" for i in range(len(calls))))
    bucket, output = Bucket(operator), list[Change]()
    with patch.object(around, "FIRST_READ", at_first):
        for number, epoch in enumerate(epochs, start=1):
            for part in bucket.feed(delta_of(epoch, sort_type, value_type)):
                output += weighted(part, names)
            held = integrated(epochs[:number])
            wanted: list[Row] = []
            for partition in "abcd":
                own = [one for one in held if one[0] == partition]
                full = delta_of([(one, 1) for one in own], sort_type, value_type)
                # as they were stored: a float of 32 bits, a decimal with two digits
                stored = list(
                    zip(*(full[c].to_pylist() for c in ("k0", "s0", "s1", "c1")), strict=True)
                )
                places = sorted_places(full, ("k0", "s0", "s1", "c0", "c1"), layout.order)
                rows = [stored[place] for place in places]
                wanted += [
                    (row[0], row[3], at + 1, *(result(call, rows, at) for call in calls))
                    for at, row in enumerate(rows)
                ]
            assert z_set(output) == z_set((row, 1) for row in wanted)


def test_only_rows_from_the_first_change_on_are_put_out() -> None:
    operator = Running((Call(Function.SUM, 1),), 1, 2, (False, False), (True, True))
    bucket = Bucket(operator)
    first: list[Change] = [(("a", n, 0, 1), 1) for n in range(1000)]
    bucket.feed(delta_of(first, pa.int64(), pa.int64()))
    (part,) = bucket.feed(delta_of([(("a", 998, 1, 5), 1)], pa.int64(), pa.int64()))
    assert sorted(weighted(part, ("place", "a0"))) == [
        ((1000, 1000), -1),
        ((1000, 1004), 1),
        ((1001, 1005), 1),
    ]


def test_a_result_that_stays_is_not_put_out() -> None:
    operator = Running((Call(Function.MAX, 1),), 1, 2, (False, False), (True, True), placed=False)
    bucket = Bucket(operator)
    bucket.feed(delta_of([(("a", n, 0, n), 1) for n in range(100)], pa.int64(), pa.int64()))
    (part,) = bucket.feed(delta_of([(("a", 50, 1, 7), 1)], pa.int64(), pa.int64()))
    assert weighted(part, ("c1", "a0")) == [((7, 50), 1)]


@pytest.mark.parametrize("checked", [True, False])
def test_a_sum_beyond_64_bits_is_an_error_or_wraps_around(checked: bool) -> None:
    operator = Running((Call(Function.SUM, 1),), 1, 2, (False, False), (True, True), True, checked)
    delta = delta_of([(("a", n, 0, 2**62), 1) for n in range(2)], pa.int64(), pa.int64())
    if checked:
        with pytest.raises(DataError, match="ARITHMETIC_OVERFLOW"):
            Bucket(operator).feed(delta)
    else:
        (part,) = Bucket(operator).feed(delta)
        assert sorted(part["a0"].to_pylist()) == [-(2**63), 2**62]


@given(
    st.lists(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40), min_size=1, max_size=30)
)
def test_doubles_are_added_one_after_the_other(segments: list[list[float]]) -> None:
    start = np.cumsum([0, *(len(one) for one in segments[:-1])])
    found = totals_of_doubles(np.array([v for one in segments for v in one]), start)
    wanted = []
    for one in segments:
        total = one[0]
        wanted.append(total)
        for value in one[1:]:
            total += value
            wanted.append(total)
    assert identity(found.tolist()) == identity(wanted)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), min_size=1, max_size=9))
def test_integers_are_added_modulo_the_words_of_a_machine(segments: list[list[int]]) -> None:
    start = np.cumsum([0, *(len(one) for one in segments[:-1])])
    found = totals(np.array([v for one in segments for v in one], np.int64), start)
    wanted = [sum(one[: i + 1]) for one in segments for i in range(len(one))]
    assert [int(one) for one in found] == [(w + 2**63) % 2**64 - 2**63 for w in wanted]
