"""The laws of kernels: equal rows, order, hashes and exact sums, against models that a reader can check by eye."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.state import grouping
from eddyline.state.doubles import (
    HIGHEST,
    LOWEST,
    carried,
    digits_of,
    rounded,
    two_product,
    two_sum,
)
from eddyline.state.grouping import SortKey, group_rows, ranked, sorted_places
from eddyline.state.kernels import (
    Measure,
    consolidate,
    distinct_hashes,
    indices_of,
    key_hashes,
    ranges,
    repeat,
)
from laws import (
    KINDS,
    Row,
    as_double,
    crude_hash,
    floats,
    identity,
    laws,
    small,
    table,
    weighted,
    z_set,
)


@laws
@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
def test_consolidate_adds_up_equal_rows_of_every_type(
    data: st.DataObject, kinds: list[str]
) -> None:
    rows = data.draw(st.lists(st.tuples(*(KINDS[kind][1] for kind in kinds)), max_size=8))
    rows = rows + rows[: data.draw(st.integers(0, 3))]
    weights = data.draw(st.lists(st.integers(-2, 2), min_size=len(rows), max_size=len(rows)))
    names = [f"c{i}" for i in range(len(kinds))]
    given_rows = table(
        {
            "h": (pa.int64(), [crude_hash(row) for row in rows]),
            **{
                name: (KINDS[kind][0], [row[i] for row in rows])
                for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
            },
            "w": (pa.int64(), weights),
        }
    )
    once = consolidate(given_rows, names, [("w", Measure.SUM)])
    assert once.schema == given_rows.schema
    found = weighted(once, names)
    assert z_set(found) == z_set(weighted(given_rows, names))
    assert len(found) == len(z_set(found))  # one row for each
    again = consolidate(once, names, [("w", Measure.SUM)])
    assert repr(weighted(again, names)) == repr(found)
    cut = data.draw(st.integers(0, len(rows)))
    chunked = pa.concat_tables([given_rows.slice(0, cut), given_rows.slice(cut)])
    assert repr(weighted(consolidate(chunked, names, [("w", Measure.SUM)]), names)) == repr(found)


@pytest.mark.parametrize("ordered", [False, True])
def test_columns_of_rows_that_differ_are_not_numbered(ordered: bool) -> None:
    numbers = np.random.default_rng(1).permutation(20_000)
    hashes = np.sort(numbers // 4) if ordered else numbers // 4
    rows = pa.table({"h": hashes, "k0": hashes.astype(str), "c0": numbers})
    with patch.object(grouping, "_numbered", side_effect=AssertionError):
        groups = group_rows(rows, rows.column_names)
    assert len(groups) == 20_000


HUGE = decimal.Decimal(2**64)
GROUPED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **KINDS,
    "key": (pa.int64(), st.integers(-2, 3)),
    "date": (pa.date32(), st.dates(datetime.date(2026, 1, 1), datetime.date(2026, 1, 3))),
    # whose lower halves are the same
    "decimal": (pa.decimal128(38, 0), st.sampled_from([HUGE, 2 * HUGE, decimal.Decimal(0)])),
}


@settings(laws, max_examples=200)
@given(
    data=st.data(),
    kinds=st.lists(st.sampled_from(sorted(GROUPED)), max_size=3),
    size=st.sampled_from([0, 20, 60]),
    pieces=st.sampled_from([None, 1, 2]),
    spread=st.sampled_from([None, 20, 1000]),
    sample=st.sampled_from([grouping._SAMPLE, 1, 4]),  # so that few rows are taken for many
)
def test_groups_are_the_rows_that_are_equal(
    data: st.DataObject,
    kinds: list[str],
    size: int,
    pieces: int | None,
    spread: int | None,
    sample: int,
) -> None:
    if pieces is not None:  # the first column is sorted in each
        kinds = ["key", *kinds]
    row = st.tuples(*(GROUPED[kind][1] for kind in kinds))
    rows = data.draw(st.lists(row, min_size=size, max_size=size + 12))
    if spread is not None:
        kinds, random = [*kinds, "key"], Random(size)
        rows = [(*row, random.randrange(spread)) for row in rows]
    if pieces is not None:
        half = len(rows) // pieces
        rows = [
            row for part in (rows[:half], rows[half:]) for row in sorted(part, key=lambda r: r[0])
        ]
    columns = {
        f"c{i}": (GROUPED[kind][0], [row[i] for row in rows]) for i, kind in enumerate(kinds)
    }
    given_rows = table({**columns, "n": (pa.int64(), range(len(rows)))})
    cut = data.draw(st.integers(0, len(rows)))
    chunked = pa.concat_tables([given_rows.slice(0, cut), given_rows.slice(cut)])
    behind = pa.concat_tables([given_rows.slice(0, 1), given_rows]).combine_chunks()
    sliced = behind.slice(min(1, len(rows)))  # its arrays have offsets
    first: dict[str, int] = {}
    of = [first.setdefault(identity(row), len(first)) for row in rows]
    for one in (given_rows, chunked, sliced):
        with patch.object(grouping, "_SAMPLE", sample):
            groups = group_rows(one, list(columns))
        assert groups.of.tolist() == of
        assert groups.first.tolist() == [of.index(number) for number in range(len(first))]
        totals = [sum(place for place, at in enumerate(of) if at == n) for n in range(len(first))]
        assert groups.sums(np.arange(len(rows))).tolist() == totals


ORDERED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{kind: KINDS[kind] for kind in ("int", "double", "string")},
    "float": (pa.float32(), floats),
    "boolean": (pa.bool_(), st.one_of(st.none(), st.booleans())),
    "decimal": (
        pa.decimal128(38, 2),
        st.one_of(st.none(), st.decimals(-(10**30), 10**30, places=2)),
    ),
    "date": (pa.date32(), st.one_of(st.none(), st.dates())),
    "binary": (pa.binary(), st.one_of(st.none(), st.binary(max_size=2))),
}


@laws
@given(
    data=st.data(), kind=st.sampled_from(sorted(ORDERED)), down=st.booleans(), last=st.booleans()
)
def test_ranks_sort_as_values_do(data: st.DataObject, kind: str, down: bool, last: bool) -> None:
    """NaN is the largest, and equal to itself; nulls come first or last, whatever the direction."""
    values = data.draw(st.lists(ORDERED[kind][1], max_size=8))
    ranks = ranked(pa.array(values, ORDERED[kind][0]), descending=down, nulls_last=last)

    def place(value: Any) -> tuple[int, int, Any]:
        if value is None:
            return (1 if last else -1, 0, 0)
        if isinstance(value, float):
            return (0, *((1, 0.0) if math.isnan(value) else (0, value)))
        return (0, 0, value)

    for one, other in product(range(len(values)), repeat=2):
        a, b = place(values[one]), place(values[other])
        before = a > b if down and values[one] is not None and values[other] is not None else a < b
        assert (ranks[one] < ranks[other]) == before
        assert (ranks[one] == ranks[other]) == (a == b)


@laws
@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
def test_rows_are_sorted_in_one_order_however_they_lie(
    data: st.DataObject, kinds: list[str]
) -> None:
    rows = data.draw(st.lists(st.tuples(*(KINDS[kind][1] for kind in kinds)), max_size=8))
    columns = [f"c{i}" for i in range(len(kinds))]

    def sorted_texts(order: Sequence[Row]) -> list[str]:
        given_rows = table(
            {
                "h": (pa.int64(), [crude_hash(row) for row in order]),
                **{
                    name: (KINDS[kind][0], [row[i] for row in order])
                    for i, (name, kind) in enumerate(zip(columns, kinds, strict=True))
                },
            }
        )
        places = sorted_places(given_rows, columns, [SortKey("c0", True, True)])
        assert (np.diff(given_rows["h"].to_numpy()[places]) >= 0).all()
        return [identity(order[place]) for place in places]

    shuffled = data.draw(st.permutations(rows))
    assert sorted_texts(rows) == sorted_texts(shuffled)


@laws
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_equal_rows_have_equal_hashes_wherever_they_lie(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(KINDS[kind][1], min_size=1, max_size=6))
    column = table({"c0": (KINDS[kind][0], values)})
    hashes = key_hashes(column, ["c0"])
    for i, one in enumerate(values):
        for j, other in enumerate(values):
            if identity([one]) == identity([other]):
                assert hashes[i] == hashes[j]
    cut = data.draw(st.integers(0, len(values)))
    parts = pa.concat_tables([column.slice(cut), column.slice(0, cut)])
    assert list(key_hashes(parts, ["c0"])) == [*hashes[cut:], *hashes[:cut]]


finite = st.floats(-1e120, 1e120, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)


@laws
@given(st.lists(st.tuples(finite, finite), min_size=1))
def test_sums_and_products_come_with_their_exact_error(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    for operation, exact in ((two_sum, lambda x, y: x + y), (two_product, lambda x, y: x * y)):
        high, low = operation(a, b)
        for i, (x, y) in enumerate(pairs):
            assert Fraction(float(high[i])) + Fraction(float(low[i])) == exact(
                Fraction(x), Fraction(y)
            )


anything = st.floats(allow_nan=False, allow_infinity=False)


@laws
@given(st.lists(st.tuples(anything, st.integers(-(2**53), 2**53))), st.randoms())
def test_sums_of_digits_are_exact_in_any_order(
    terms: list[tuple[float, int]], order: Random
) -> None:
    """Two orders of addition, carried at different moments, give the same digits: the exact sum."""
    found = []
    for _ in range(2):
        total, pending = np.zeros((2, HIGHEST - LOWEST + 1, 1), np.int64)
        for value, weight in order.sample(terms, len(terms)):
            for _, at, digits in digits_of(np.array([value]), np.array([float(weight)])):
                pending[at - LOWEST, 0] += digits
            if order.random() < 0.5:
                total, pending = carried(total + pending), np.zeros_like(pending)
        found.append(carried(total + pending))
    assert (found[0] == found[1]).all()
    wanted = sum((Fraction(value) * weight for value, weight in terms), Fraction(0))
    digits = [int(digit) for digit in found[0][:, 0]]
    assert sum(d * Fraction(2) ** (32 * (LOWEST + p)) for p, d in enumerate(digits)) == wanted
    (high,), (low,) = rounded(found[0], LOWEST)
    assert math.isclose(high, as_double(wanted), rel_tol=2**-52, abs_tol=1e-320)
    if math.isfinite(high) and abs(high) > 1e-200:
        assert abs(Fraction(high) + Fraction(low) - wanted) <= abs(wanted) / 2**100


@laws
@given(st.lists(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_spans_finds_all_places_of_the_wanted_hashes(hashes: list[int], wanted: set[int]) -> None:
    ordered = np.array(sorted(hashes), np.int64)
    found = indices_of(ordered, np.array(sorted(wanted), np.int64))
    assert list(found) == [i for i, value in enumerate(ordered) if value in wanted]


@laws
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4))))
def test_ranges_is_a_concatenation_of_ranges(parts: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in parts], np.int64)
    lengths = np.array([length for _, length in parts], np.int64)
    wanted = [place for start, length in parts for place in range(start, start + length)]
    assert list(ranges(starts, lengths)) == wanted


@laws
@given(st.lists(st.tuples(small, st.integers(-2, 3))))
def test_repeat_gives_each_row_as_often_as_its_weight(rows: list[tuple[int | None, int]]) -> None:
    given_rows = table({"c0": (pa.int64(), [value for value, _ in rows])})
    found = repeat(given_rows, np.array([weight for _, weight in rows], np.int64))
    assert found["c0"].to_pylist() == [v for v, weight in rows for _ in range(weight)]


def test_hashes_of_a_table_are_sorted_and_distinct() -> None:
    assert list(distinct_hashes(table({"h": (pa.int64(), [3, -1, 3])}))) == [-1, 3]


def test_the_hash_of_a_key_never_changes() -> None:
    """It is in the state on disk."""
    rows = table(
        {
            "a": (pa.int64(), [1, None]),
            "b": (pa.string(), ["x", None]),
            "c": (pa.float64(), [0.5, None]),
        }
    )
    assert key_hashes(rows, ["a", "b", "c"]).tolist() == [
        -7651446864290363901,
        -2943889235046744046,
    ]
