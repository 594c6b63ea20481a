"""The laws of operators that keep rows in order: the first ones of groups, and those around changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.operators import percentiles
from eddyline.operators.aggregate import Reduce
from eddyline.operators.neighbours import Neighbours
from eddyline.operators.percentiles import Fractions
from eddyline.operators.top import Top
from eddyline.state import around, front
from eddyline.state.front import Ties
from eddyline.state.grouping import sorted_places
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
    words,
    z_set,
)

SHOWN = ("c1", "s0", "s1", "c0")


@laws
@given(
    epochs=epochs_of(st.tuples(st.sampled_from("ab"), floats, small, words), size=9),
    limit=st.integers(0, 4),
    offset=st.integers(0, 3),
    descending=st.tuples(st.booleans(), st.booleans()),
    nulls_last=st.tuples(st.booleans(), st.booleans()),
    ties=st.sampled_from(Ties),
    at_first=st.sampled_from([1, 2, 4]),
)
def test_top_rows_follow_from_the_rows(
    epochs: list[list[Change]],
    limit: int,
    offset: int,
    descending: tuple[bool, bool],
    nulls_last: tuple[bool, bool],
    ties: Ties,
    at_first: int,
) -> None:
    def before(row: Row) -> list[Any]:
        parts: list[Any] = []
        for value, down, last in zip(row[1:3], descending, nulls_last, strict=True):
            number = 0 if value is None else math.inf if math.isnan(value) else value
            size = (1 if isinstance(value, float) and math.isnan(value) else 0, number + 0.0)
            parts.append((value is None) == last)
            parts.append(tuple(-part for part in size) if down else size)
        return parts

    if ties is not Ties.ROW_NUMBER:
        offset = 0
    append_only = all(weight > 0 for epoch in epochs for _, weight in epoch)
    operator = Top(limit, offset, 2, descending, nulls_last, 1, ties, append_only)
    bucket, output = Bucket(operator), list[Change]()
    with patch.multiple(front, FIRST_READ=at_first, MOST_AT_FIRST=at_first):
        for number, epoch in enumerate(epochs, start=1):
            delta = table(
                {
                    "h": (pa.int64(), [crude_hash(row[:1]) for row, _ in epoch]),
                    "k0": (pa.string(), [row[0] for row, _ in epoch]),
                    "s0": (pa.float64(), [row[1] for row, _ in epoch]),
                    "s1": (pa.int64(), [row[2] for row, _ in epoch]),
                    "c0": (pa.string(), [row[3] for row, _ in epoch]),
                    "c1": (pa.string(), [row[0] for row, _ in epoch]),
                    "w": (pa.int64(), [w for _, w in epoch]),
                }
            )
            for part in bucket.feed(delta):
                output += weighted(part, SHOWN)
            held = integrated(epochs[:number])
            found = z_set(output)
            if append_only and ties is not Ties.ROW_NUMBER:  # what can't come up isn't kept
                kept = [(row, w) for t in bucket.tables["rows"] for row, w in weighted(t, SHOWN)]
                assert z_set(kept) == found
            assert not found or min(found.values()) > 0
            assert not Counter(found) - Counter(map(identity, held))  # only rows that are there
            # where rows sort alike any of them will do
            there = {identity(row): (row[0], before(row)) for row in held}
            for group in "ab":
                rows = sorted(before(row) for row in held if row[0] == group)
                if ties is Ties.ROW_NUMBER:
                    wanted = rows[offset : offset + limit]
                elif ties is Ties.RANK:
                    wanted = [row for row in rows if rows.index(row) < limit]
                else:
                    levels = [row for i, row in enumerate(rows) if row not in rows[:i]]
                    wanted = [row for row in rows if levels.index(row) < limit]
                given = [there[row] for row, n in found.items() for _ in range(n)]
                assert sorted(order for of, order in given if of == group) == wanted


def neighbours_delta(epoch: list[Change], sort: pa.DataType) -> pa.Table:
    """Changes of rows of a partition, two sort keys and a value."""
    return table(
        {
            "h": (pa.int64(), [crude_hash(row[:1]) for row, _ in epoch]),
            "k0": (pa.string(), [row[0] for row, _ in epoch]),
            "s0": (sort, [row[1] for row, _ in epoch]),
            "s1": (pa.int64(), [row[2] for row, _ in epoch]),
            "c0": (pa.string(), [row[0] for row, _ in epoch]),
            "c1": (sort, [row[1] for row, _ in epoch]),
            "c2": (pa.string(), [row[3] for row, _ in epoch]),
            "w": (pa.int64(), [w for _, w in epoch]),
        }
    )


def surroundings(rows: list[Row], operator: Neighbours) -> list[Row]:
    """Each row with those of its frame, as a window function sees them."""
    before, after = operator.before, operator.after
    if not operator.by_value:
        return [(row, rows[max(i - before, 0) : i + after + 1]) for i, row in enumerate(rows)]
    sign = -1 if operator.descending[0] else 1

    def sees(row: Row, other: Row) -> bool:
        if row[1] is None or other[1] is None:
            return row[1] is other[1]
        return -before <= sign * (other[1] - row[1]) <= after

    return [(row, [other for other in rows if sees(row, other)]) for row in rows]


@laws
@given(
    data=st.data(),
    before=st.integers(0, 3),
    after=st.integers(0, 2),
    kind=st.sampled_from(["int", "double", "string"]),
    descending=st.tuples(st.booleans(), st.booleans()),
    nulls_last=st.tuples(st.booleans(), st.booleans()),
    at_first=st.sampled_from([1, 2, 8]),
)
def test_what_is_seen_around_each_row_follows_from_the_rows(
    data: st.DataObject,
    before: int,
    after: int,
    kind: str,
    descending: tuple[bool, bool],
    nulls_last: tuple[bool, bool],
    at_first: int,
) -> None:
    sort, values = KINDS[kind]
    values = st.one_of(values, st.integers(0, 40)) if kind == "int" else values
    row = st.tuples(st.sampled_from("abcd"), values, small, words)
    epochs = data.draw(epochs_of(row, size=12))
    operator = Neighbours(before, after, False, 1, 3, descending, nulls_last)
    with patch.object(around, "FIRST_READ", at_first):
        check_surroundings(operator, sort, epochs)


@laws
@given(
    epochs=epochs_of(
        st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 30), st.just(0), words),
        size=12,
    ),
    before=st.integers(0, 5),
    after=st.integers(0, 3),
    descending=st.booleans(),
    nulls_last=st.booleans(),
)
def test_what_is_seen_within_a_range_follows_from_the_rows(
    epochs: list[list[Change]], before: int, after: int, descending: bool, nulls_last: bool
) -> None:
    operator = Neighbours(before, after, True, 1, 3, (descending,), (nulls_last,))
    check_surroundings(operator, pa.int64(), epochs)


@pytest.mark.parametrize("seed", range(4))
def test_a_change_in_a_large_partition_is_seen_by_the_rows_around_it(seed: int) -> None:
    random = Random(seed)
    held = [("a", place, 0, "x") for place in random.sample(range(1000), 300)]
    epochs: list[list[Change]] = [[(row, 1) for row in held]]
    for _ in range(12):
        gone = random.sample(held, random.randint(0, 8))
        come = [("a", random.randrange(1000), random.randrange(3), "y") for _ in range(6)]
        held = [row for row in held if row not in gone] + come
        epochs.append([*((row, -1) for row in gone), *((row, 1) for row in come)])
    down, reach = random.random() < 0.5, (random.randint(0, 3), random.randint(0, 2))
    for by_value in (False, True):
        order = ((down,), (False,)) if by_value else ((down, False), (False, True))
        operator = Neighbours(*reach, by_value, 1, 3, *order)
        with patch.object(around, "FIRST_READ", 1):
            check_surroundings(operator, pa.int64(), epochs, most=80 * (sum(reach) + 1))


def check_surroundings(
    operator: Neighbours, sort: pa.DataType, epochs: list[list[Change]], most: int | None = None
) -> None:
    """The changes of what is seen around rows add up to what is seen around those that are there.

    Args:
        most: how many rows an epoch after the first may put out.
    """
    layout = operator.layouts["rows"]
    bucket, output = Bucket(operator), list[Change]()
    for number, epoch in enumerate(epochs, start=1):
        for part in bucket.feed(neighbours_delta(epoch, sort)):
            assert most is None or number == 1 or part.num_rows <= most
            names = ("c0", "c1", "c2", "stretch", "place", "shown")
            emitted = sorted(weighted(part, names), key=lambda one: one[0][3:5])
            stretches: dict[tuple[str, int], list[tuple[Row, bool, int]]] = {}
            for (*values, stretch, _, shown), weight in emitted:
                stretches.setdefault((values[0], stretch), []).append(
                    (tuple(values), shown, weight)
                )
            for rows in stretches.values():
                seen = surroundings([row for row, _, _ in rows], operator)
                pairs = zip(seen, rows, strict=True)
                output += [(all_of_it, w) for all_of_it, (_, shown, w) in pairs if shown]
        held = integrated(epochs[:number])
        wanted: list[Row] = []
        for partition in "abcd":
            own = [one for one in held if one[0] == partition]
            full = neighbours_delta([(one, 1) for one in own], sort)
            places = sorted_places(full, layout.identity, layout.order)
            in_order = [(own[p][0], own[p][1], own[p][3]) for p in places]
            wanted += surroundings(in_order, operator)
        assert z_set(output) == z_set((row, 1) for row in wanted)


@laws
@given(
    epochs=epochs_of(st.tuples(st.sampled_from("abcd"), st.one_of(small, floats)), size=9),
    fractions=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.75, 1.0]), min_size=1, max_size=3),
    by_difference=st.booleans(),
    hashed=st.sampled_from([crude_hash, lambda key: -ord(key[0])]),
    in_one=st.sampled_from([0, 3, 1000]),
)
def test_percentiles_follow_from_the_rows(
    epochs: list[list[Change]],
    fractions: list[float],
    by_difference: bool,
    hashed: Callable[[Row], int],
    in_one: int,
) -> None:
    def order(value: float) -> tuple[bool, float, float]:
        nan = math.isnan(value)
        return nan, 0.0 if nan else value, 0.0 if nan else math.copysign(1.0, value)

    def percentile(values: list[float], fraction: float) -> float | None:
        """As Spark's class Percentile has it."""
        if not values:
            return None
        position = (len(values) - 1) * fraction
        low, high = values[math.floor(position)], values[math.ceil(position)]
        if low == high or order(low) == order(high):
            return low
        if by_difference:
            return low + (position - math.floor(position)) * (high - low)
        return (math.ceil(position) - position) * low + (position - math.floor(position)) * high

    operator = Reduce(1, (), (), (Fractions(tuple(fractions), by_difference),))
    bucket, output = Bucket(operator), list[Change]()
    for number, epoch in enumerate(epochs, start=1):
        delta = table(
            {
                "h": (pa.int64(), [hashed(row[:1]) for row, _ in epoch]),
                "k0": (pa.string(), [row[0] for row, _ in epoch]),
                "q0": (pa.float64(), [row[1] for row, _ in epoch]),
                "w": (pa.int64(), [w for _, w in epoch]),
            }
        )
        with patch.object(percentiles, "_SORTED_ROWS", in_one):
            for part in bucket.feed(delta):
                output += weighted(part, ("k0", *operator.percentiles))
        held = integrated(epochs[:number])
        wanted = []
        for group in {row[0] for row in held}:
            values = [float(row[1]) for row in held if row[0] == group and row[1] is not None]
            found = [percentile(sorted(values, key=order), fraction) for fraction in fractions]
            wanted.append(((group, *found), 1))
        assert z_set(output) == z_set(wanted)


@laws
@given(
    epochs=epochs_of(st.tuples(floats, words), size=9),
    limit=st.integers(0, 4),
    offset=st.integers(0, 3),
    at_first=st.sampled_from([1, 2, 4]),
)
def test_a_limit_without_an_order_follows_from_the_rows(
    epochs: list[list[Change]], limit: int, offset: int, at_first: int
) -> None:
    def fed(bucket: Bucket, changes: list[Change]) -> list[Change]:
        delta = {
            "h": (pa.int64(), [0] * len(changes)),
            "c0": (pa.float64(), [row[0] for row, _ in changes]),
            "c1": (pa.string(), [row[1] for row, _ in changes]),
            "w": (pa.int64(), [weight for _, weight in changes]),
        }
        return [line for part in bucket.feed(table(delta)) for line in weighted(part, ("c0", "c1"))]

    operator = Top(limit, offset, 2)
    bucket, output = Bucket(operator), list[Change]()
    with patch.multiple(front, FIRST_READ=at_first, MOST_AT_FIRST=at_first):
        for number, epoch in enumerate(epochs, start=1):
            output += fed(bucket, epoch)
            held = integrated(epochs[:number])
            found = z_set(output)
            assert not Counter(found) - Counter(map(identity, held))
            assert sum(found.values()) == min(max(len(held) - offset, 0), limit)
            assert found == z_set(fed(Bucket(operator), [(row, 1) for row in held]))
