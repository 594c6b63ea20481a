"""The laws of kernels, operators and arrangements, against models that a reader can check by eye.

No JVM: an operator is a value with one verb, so it can be fed here as Spark feeds it there. The
law behind most tests: what an operator gives out, added up, follows from what it took in, added
up; however the input was cut into epochs.
"""

from __future__ import annotations

import datetime
import decimal
import math
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain, pairwise, product
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eddyline.answers.changelog import retract_form
from eddyline.answers.difference import difference
from eddyline.answers.reader import SnapshotBucket, SnapshotReader
from eddyline.changes import APPEND, DELETE, REJECTED, REPLACED, Epoch
from eddyline.errors import DataError, StateError, StorageError
from eddyline.operators.aggregate import Reduce
from eddyline.operators.base import numbered
from eddyline.operators.hold import Hold
from eddyline.operators.neighbours import Neighbours
from eddyline.operators.recompute import Regroup
from eddyline.operators.result import Apply, Materialize
from eddyline.operators.top import Top
from eddyline.state import arrangement, front, grouping
from eddyline.state.arrangement import Arrangement, Layout, RunWriter, merge_starts
from eddyline.state.doubles import (
    HIGHEST,
    LOWEST,
    carried,
    digits_of,
    rounded,
    two_product,
    two_sum,
)
from eddyline.state.expiry import ExpiryColumn, without_expired
from eddyline.state.grouping import SortKey, group_rows, ranked, sorted_places
from eddyline.state.kernels import (
    Measure,
    consolidate,
    distinct_hashes,
    indices_of,
    key_hashes,
    merged_if_repetitive,
    ranges,
    repeat,
)
from eddyline.state.runs import Run
from eddyline.state.slices import CACHED_BYTES, SLICE_BYTES, in_slices, sliced
from eddyline.storage.files import Files
from laws import (
    KINDS,
    Bucket,
    Change,
    Held,
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

# -- kernels --------------------------------------------------------------------------------------


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


@laws
@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=3))
def test_merged_runs_are_their_rows_added_up(data: st.DataObject, kinds: list[str]) -> None:
    names = numbered("c", len(kinds))
    layout = Layout(names)
    buckets = data.draw(
        st.sampled_from([2, 1000])
    )  # of the hash: most of them, or none, are shared
    row = st.tuples(*(KINDS[kind][1] for kind in kinds), st.integers(-2, 2))
    runs = []
    for drawn in data.draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=4)):
        rows = [*{repr(r[:-1]): r for r in drawn}.values()]  # no two with the same values
        run = table(
            {
                "h": (pa.int64(), [zlib.crc32(repr(r[:-1]).encode()) % buckets for r in rows]),
                **{
                    n: (KINDS[k][0], [r[i] for r in rows])
                    for i, (n, k) in enumerate(zip(names, kinds, strict=True))
                },
                "w": (pa.int64(), [r[-1] for r in rows]),
            }
        )
        runs.append(layout.sorted(run))
    wanted = ("h", *names, "w")
    added = weighted(layout.consolidate(pa.concat_tables(runs)), wanted)
    least = data.draw(st.sampled_from([arrangement._SMALL_ROWS, 0, 3]))
    with patch.object(arrangement, "_SMALL_ROWS", least):
        merged = layout.merge(runs)
    assert merged.schema == runs[0].schema
    assert Counter(map(repr, weighted(merged, wanted))) == Counter(map(repr, added))
    fewer = [*data.draw(st.permutations(names)), "w"][data.draw(st.integers(0, len(names))) :]
    with patch.object(arrangement, "_SMALL_ROWS", least):
        some = layout.merge(runs, fewer)
    assert some.column_names == fewer
    assert z_set(weighted(some, fewer)) == z_set(weighted(merged, fewer))


def test_only_keys_in_several_runs_are_compared() -> None:
    hashes = np.arange(20_000)
    large = pa.table({"h": hashes, "c0": hashes, "w": np.ones(20_000, np.int64)})
    gone = large.slice(7, 3).set_column(2, "w", pa.array([-1, -1, -1]))
    compared = []

    def spied(rows: pa.Table, *how: Any) -> pa.Table:
        compared.append(rows.num_rows)
        return consolidate(rows, *how)

    with patch.object(arrangement, "consolidate", spied):
        merged = Layout(("c0",)).merge([large, gone])
    assert merged.num_rows == 20_000 - 3
    assert compared == [3 + 3]


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


# -- arrangements ---------------------------------------------------------------------------------


def extended(
    held: Arrangement, name: str, rows: pa.Table, fan_in: int, most: int = SLICE_BYTES
) -> tuple[Run, ...]:
    """Write rows as a run in parts, and return the runs with it."""
    writer = RunWriter(held.files, name, held.layout, most)
    pieces = [*in_slices([held.layout.sorted(rows)], most)] if most < SLICE_BYTES else [[rows]]
    for (piece,) in pieces:
        writer.add(piece)
    added = writer.finish()
    assert sum(part.rows for part in added) == rows.num_rows
    return held.extend(f"{name}.merged", added, fan_in, most=most)[0]


@laws
@given(
    deltas=st.lists(st.lists(st.tuples(st.integers(0, 5), small, st.integers(-2, 2))), max_size=9),
    fan_in=st.integers(2, 4),
    wanted=st.sets(st.integers(0, 6)),
    most=st.sampled_from([1, 100, SLICE_BYTES]),
)
def test_an_arrangement_is_a_z_set_however_it_is_compacted_and_cut(
    deltas: list[list[tuple[int, int | None, int]]], fan_in: int, wanted: set[int], most: int
) -> None:
    layout = Layout(("c0",))
    with tempfile.TemporaryDirectory() as folder:
        held = Arrangement(Files(folder), layout, ())
        model: list[tuple[Row, int]] = []
        for number, delta in enumerate(deltas):
            rows = table(
                {
                    "h": (pa.int64(), [h for h, _, _ in delta]),
                    "c0": (pa.int64(), [v for _, v, _ in delta]),
                    "w": (pa.int64(), [w for _, _, w in delta]),
                }
            )
            model += [((h, v), w) for h, v, w in delta]
            refusable = min(z_set(model).values(), default=0) < 0
            try:
                runs = extended(held, f"run{number}", layout.consolidate(rows), fan_in, most)
            except StateError:  # a merge of all runs refuses negative weights
                assert refusable
                return
            held = Arrangement(Files(folder), layout, runs)
        assert z_set(weighted(held.scan(), ["h", "c0"])) == z_set(model)
        found = held.lookup(np.array(sorted(wanted), np.int64))
        chosen = [(row, weight) for row, weight in model if row[0] in wanted]
        assert z_set(weighted(found, ["h", "c0"])) == z_set(chosen)


@laws
@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), max_size=6),
    st.integers(1, 200),
)
def test_slices_have_all_rows_each_hash_in_one_and_in_order(
    batches: list[list[int]], most: int
) -> None:
    given_rows = [
        pa.record_batch({"h": pa.array(one, pa.int64()), "c0": [f"{h} {n}" for h in one]})
        for n, one in enumerate(batches)
    ]
    found = [table.to_pydict() for table in sliced(given_rows, most)]
    flat = [row for one in found for row in zip(one["h"], one["c0"], strict=True)]
    wanted = [row for b in given_rows for row in zip(*b.to_pydict().values(), strict=True)]
    assert sorted(flat) == sorted(wanted)
    spans = [(min(one["h"]), max(one["h"])) for one in found]
    assert all(one[1] < other[0] for one, other in pairwise(spans))


@pytest.mark.parametrize("most", [200_000, 100_000])  # sorted in memory, and spilled
def test_slices_are_no_larger_than_asked_and_leave_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    hashes = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 100_000)
    batches = pa.table({"h": hashes}).to_batches(1000)
    sizes = []
    for rows in sliced(batches, most):
        sizes.append(rows.nbytes)
        assert not [*tmp_path.iterdir()]  # they have no name
    assert sum(sizes) == 800_000
    assert 800_000 // most <= len(sizes) <= 800_000 // most + 2
    assert max(sizes) <= most * 1.05


def test_slices_in_memory_are_sorted_and_fit_a_cache() -> None:
    hashes = np.random.default_rng(1).integers(-1000, 1000, 2_000_000)
    batches = pa.table({"h": hashes}).to_batches(1 << 16)
    slices = [rows["h"].to_numpy() for rows in sliced(batches, 5 << 20)]
    assert np.array_equal(np.concatenate(slices), np.sort(hashes))
    assert max(one.nbytes for one in slices) <= CACHED_BYTES * 1.05
    assert all(one[-1] < other[0] for one, other in pairwise(slices))


@pytest.mark.parametrize("rows", [1, 10, 100])
def test_slices_of_long_rows_are_even(rows: int) -> None:
    hashes = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1000)
    batches = pa.table({"h": hashes, "c0": ["x" * 10_000] * 1000}).to_batches(rows)
    sizes = [part.num_rows for part in sliced(batches, 3_000_000)]
    assert sum(sizes) == 1000
    assert max(sizes) <= 2 * min(sizes)


def test_slices_that_find_no_room_on_the_disk_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/dev/null/folder")
    batches = pa.table({"h": [1, 2, 3]}).to_batches(1)
    with pytest.raises(StorageError, match="/dev/null/folder") as refused:
        [*sliced(batches, 1)]
    assert refused.value.condition == "WRITE_FAILED"


@laws
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(2, 8))
def test_compaction_leaves_few_runs_and_rewrites_each_row_once_a_tier(
    sizes: list[int], fan_in: int
) -> None:
    runs: list[int] = []
    rewritten = 0
    for size in sizes:
        runs.append(size)
        starts = list(merge_starts(runs, fan_in))
        assert starts == sorted(starts, reverse=True)
        if starts:
            start = starts[-1]
            assert len(runs) - start >= fan_in
            rewritten += sum(runs[start:])
            runs[start:] = [sum(runs[start:])]
    total = sum(sizes)
    tiers = 1 + math.floor(math.log(max(total, 1), fan_in) + 1e-9)
    assert len(runs) <= (fan_in - 1) * tiers
    assert rewritten <= total * tiers


@laws
@given(st.lists(st.tuples(st.tuples(words, floats), st.integers(-2, 2))))
def test_condensed_rows_are_the_same_rows(changes: list[Change]) -> None:
    rows = rows_delta(changes, 2, ("string", "double")).drop_columns(["h"])
    found = merged_if_repetitive(rows)
    assert found.schema.equals(rows.schema)
    assert z_set(weighted(found, ("c0", "c1"))) == z_set(changes)
    assert merged_if_repetitive(pa.concat_tables([rows] * 5)).num_rows <= rows.num_rows
    total = [sum(weight for _, weight in changes)] if changes else []
    assert merged_if_repetitive(rows.select(["w"]))["w"].to_pylist() == total


# -- operators ------------------------------------------------------------------------------------

keyed = st.tuples(words, floats, small)  # key, key, value


def reduce_delta(changes: list[Change]) -> pa.Table:
    """What Spark gives to `Reduce`: contributions of each change, not yet summed by group."""
    keys = [row[:2] for row, _ in changes]
    return table(
        {
            "h": (pa.int64(), [crude_hash(key) for key in keys]),
            "k0": (pa.string(), [key[0] for key in keys]),
            "k1": (pa.float64(), [key[1] for key in keys]),
            "m0": (pa.int64(), [(row[2] or 0) * w for row, w in changes]),
            "m1": (pa.int64(), [(row[2] or 0) if w % 2 else 0 for row, w in changes]),
            "m2": (
                pa.struct([("hi", pa.float64()), ("lo", pa.float64())]),
                [{"hi": (row[2] or 0) / 10, "lo": float(w)} for row, w in changes],
            ),
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


def reduced(rows: list[Row]) -> list[Change]:
    """The groups of the rows, with the sums of their values."""
    groups: dict[str, tuple[Row, list[int]]] = {}
    for row in rows:
        groups.setdefault(identity(row[:2]), (row[:2], []))[1].append(row[2] or 0)
    found = []
    for key, values in groups.values():
        xor = 0
        for value in values:
            xor ^= value
        found.append(((*key, sum(values), xor, round(sum(values) / 10, 6)), 1))
    return found


def rounded_change(change: Change) -> Change:
    (*rest, exact), weight = change
    return (*rest, round(exact["hi"], 6) + 0.0), weight


@laws
@given(epochs_of(keyed))
def test_sums_by_group_follow_from_the_rows(epochs: list[list[Change]]) -> None:
    operator = Reduce(2, (Measure.SUM, Measure.XOR, Measure.EXACT))
    names = ("k0", "k1", "m0", "m1", "m2")
    for cut in (epochs, [[*chain(*epochs)]], [[change] for epoch in epochs for change in epoch]):
        bucket, output = Bucket(operator), list[Change]()
        for number, epoch in enumerate(cut, start=1):
            for part in bucket.feed(reduce_delta(epoch)):
                output += [rounded_change(change) for change in weighted(part, names)]
            assert z_set(output) == z_set(reduced(integrated(cut[:number])))


LIMIT = 2**63
limits = st.one_of(
    st.sampled_from([LIMIT - 1, -LIMIT, LIMIT // 2, 1, -1, 2**32, -(2**32), 2**31, 0]),
    st.integers(-LIMIT, LIMIT - 1),
)


def integer_delta(changes: Sequence[Change]) -> pa.Table:
    """The input of a sum of BIGINT by k0, in two words."""
    words_type = pa.struct([("high", pa.int64()), ("low", pa.int64())])
    return table(
        {
            "h": (pa.int64(), [crude_hash(row[:1]) for row, _ in changes]),
            "k0": (pa.string(), [row[0] for row, _ in changes]),
            "m0": (
                words_type,
                [{"high": (v >> 32) * w, "low": (v % 2**32) * w} for (_, v), w in changes],
            ),
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


@laws
@given(epochs_of(st.tuples(words, limits)), st.booleans())
def test_sums_of_integers_wrap_around_or_are_refused(
    epochs: list[list[Change]], checked: bool
) -> None:
    bucket, output = Bucket(Reduce(1, (Measure.INTEGER,), checked=checked)), list[Change]()
    for number, epoch in enumerate(epochs, start=1):
        sums: dict[str | None, int] = {}
        for key, value in integrated(epochs[:number]):
            sums[key] = sums.get(key, 0) + value
        touched = {key for (key, _), _ in epoch}
        beyond = {key for key in touched & {*sums} if not -LIMIT <= sums[key] < LIMIT}
        if checked and beyond:
            with pytest.raises(DataError) as refused:
                bucket.feed(integer_delta(epoch))
            assert refused.value.condition == "ARITHMETIC_OVERFLOW"
            assert refused.value.context["group"][0] in beyond
            return
        for part in bucket.feed(integer_delta(epoch)):
            output += weighted(part, ("k0", "m0"))
        wrapped = [((key, (s + LIMIT) % (2 * LIMIT) - LIMIT), 1) for key, s in sums.items()]
        assert z_set(output) == z_set(wrapped)


def test_a_sum_over_all_rows_is_refused_too() -> None:
    bucket = Bucket(Reduce(0, (Measure.INTEGER,), checked=True))
    rows = integer_delta([((None, LIMIT - 1), 1), ((None, 1), 1)]).drop_columns(["k0"])
    with pytest.raises(DataError, match=r"ARITHMETIC_OVERFLOW.*\(operator aggregate\)"):
        bucket.feed(rows)


extremes = st.one_of(
    st.sampled_from([1.7976931348623157e308, 1.5e308, -1.5e308, 2.0**64, 2.0**80, 1e300, 1e280]),
    st.sampled_from([1.0, -4.5, 0.1, 5e-324, 2.0**64 * (1 - 2.0**-53), -(2.0**65), 1e25]),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=2.0**64),
)


def double_delta(changes: Sequence[Change]) -> pa.Table:
    """The input of a sum of DOUBLE by k0, which is null for groups by no key."""
    return table(
        {
            "h": (pa.int64(), [crude_hash(row[:1]) for row, _ in changes]),
            "k0": (pa.string(), [row[0] for row, _ in changes]),
            "m0": (
                pa.struct([("hi", pa.float64()), ("lo", pa.float64())]),
                [{"hi": row[1], "lo": float(w)} for row, w in changes],
            ),
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


def as_double(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


# a pair of doubles keeps 1e-12 of what has gone, and rounds 0.1 otherwise after a compaction
LARGE_AND_GONE = [
    [((None, 2.0**64 * (1 - 2.0**-53)), 1), ((None, 1.0), 2)],
    [
        ((None, 2.0**64 * (1 - 2.0**-53)), -1),
        ((None, 1.0), -1),
        ((None, 1.0), -1),
        ((None, 0.1), 1),
    ],
]


@laws
@given(epochs_of(st.tuples(words, extremes)))
@example(LARGE_AND_GONE)
def test_sums_of_doubles_pass_the_range_and_forget_what_is_retracted(
    epochs: list[list[Change]],
) -> None:
    bucket, output = Bucket(Reduce(1, (Measure.EXACT,))), list[Change]()
    back = [[(row, -1) for row in integrated(epochs)]]
    for number, epoch in enumerate(epochs + back, start=1):
        for part in bucket.feed(double_delta(epoch)):
            output += [((k, m["hi"]), w) for (k, m), w in weighted(part, ("k0", "m0"))]
        held = integrated((epochs + back)[:number])
        sums: dict[str | None, Fraction] = {}
        for key, value in held:
            sums[key] = sums.get(key, Fraction(0)) + Fraction(value)
        found = Counter[Row]()
        for row, weight in output:
            found[row] += weight
        shown = {row[0]: row[1] for row, weight in found.items() if weight}
        assert {*found.values()} <= {0, 1}
        assert shown.keys() == sums.keys()
        for key, total in sums.items():
            assert math.isclose(shown[key], as_double(total), rel_tol=1e-15, abs_tol=1e-320)
    for slot, rows in bucket.tables.items():  # nothing is left behind
        kept = bucket.operator.layouts[slot]
        assert not rows or kept.consolidate(pa.concat_tables(rows)).num_rows == 0


def test_infinite_contributions_are_counted() -> None:
    """Squares of large values are infinite."""
    bucket, output = Bucket(Reduce(1, (Measure.EXACT,))), list[Any]()
    a, b, c = (("a", math.inf), 2), (("a", 1.5), 1), (("b", 1.0), 1)
    for epoch in ([a], [b, c], [(a[0], -1)], [(a[0], -1)]):
        for part in bucket.feed(double_delta(epoch)):
            output.append([(k, m["hi"], w) for (k, m), w in weighted(part, ("k0", "m0"))])
    assert output == [
        [("a", math.inf, 1)],
        [("b", 1.0, 1)],
        [],
        [("a", math.inf, -1), ("a", 1.5, 1)],
    ]


@laws
@given(st.lists(st.lists(st.tuples(words, small), min_size=1), min_size=1, max_size=4))
def test_extremes_of_an_append_only_input(epochs: list[list[Row]]) -> None:
    bucket, output, seen = (
        Bucket(Reduce(1, (Measure.MIN, Measure.MAX))),
        list[Change](),
        list[Row](),
    )
    for epoch in epochs:
        seen += epoch
        values = [value for _, value in epoch]
        delta = table(
            {
                "h": (pa.int64(), [crude_hash(row[:1]) for row in epoch]),
                "k0": (pa.string(), [row[0] for row in epoch]),
                "m0": (pa.int64(), values),
                "m1": (pa.int64(), values),
                "w": (pa.int64(), [1] * len(epoch)),
            }
        )
        for part in bucket.feed(delta):
            output += weighted(part, ("k0", "m0", "m1"))
        wanted = []
        for key in {row[0] for row in seen}:
            group = [value for k, value in seen if k == key and value is not None]
            wanted.append(((key, min(group, default=None), max(group, default=None)), 1))
        assert z_set(output) == z_set(wanted)


@laws
@given(epochs_of(st.tuples(floats, words)))
def test_distinct_rows(epochs: list[list[Change]]) -> None:
    bucket, output = Bucket(Reduce(2)), list[Change]()
    for number, epoch in enumerate(epochs, start=1):
        delta = table(
            {
                "h": (pa.int64(), [crude_hash(row) for row, _ in epoch]),
                "k0": (pa.float64(), [row[0] for row, _ in epoch]),
                "k1": (pa.string(), [row[1] for row, _ in epoch]),
                "w": (pa.int64(), [w for _, w in epoch]),
            }
        )
        for part in bucket.feed(delta):
            output += weighted(part, ("k0", "k1"))
        there = {identity(row) for row in integrated(epochs[:number])}
        assert z_set(output) == dict.fromkeys(there, 1)


def rows_delta(changes: list[Change], keys: int, kinds: Sequence[str]) -> pa.Table:
    return table(
        {
            "h": (pa.int64(), [crude_hash(row[:keys]) for row, _ in changes]),
            **{
                f"c{i}": (KINDS[kind][0], [row[i] for row, _ in changes])
                for i, kind in enumerate(kinds)
            },
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


@example([[(("a", 1.5), 1), (("a", 0.0), 1)], *([(("a", 1.5), w)] for w in (-1, 1, 1))])
@laws
@given(epochs_of(st.tuples(words, floats)))
def test_regroup_gives_both_versions_of_the_touched_groups(epochs: list[list[Change]]) -> None:
    bucket = Bucket(Regroup(2))
    given_last: dict[int, list[str]] = {}
    for number, epoch in enumerate(epochs, start=1):
        output = [
            change
            for part in bucket.feed(rows_delta(epoch, 1, ("string", "double")))
            for change in weighted(part, ("c0", "c1"))
        ]
        net = z_set(epoch)
        touched = {crude_hash(row[:1]) for row, _ in epoch if identity(row) in net}
        for version, upto in ((-1, number - 1), (1, number)):
            found = Counter(identity(row) for row, w in output if w == version)
            wanted = [r for r in integrated(epochs[:upto]) if crude_hash(r[:1]) in touched]
            assert found == Counter(identity(row) for row in wanted)
            # what depends on the order of rows is taken back as it was given
            in_order = {
                key: [identity(r) for r, w in output if w == version and crude_hash(r[:1]) == key]
                for key in touched
            }
            if version < 0:
                assert in_order == {key: given_last.get(key, []) for key in touched}
            given_last |= in_order


visits = st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(1, 6))


@laws
@given(st.lists(visits), st.integers(0, 40))
def test_a_session_leaves_the_state_as_a_whole(
    rows: list[tuple[str, int, int]], limit: int
) -> None:
    span = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
    given = table(
        {
            "h": (pa.int64(), [crude_hash((key,)) for key, _, _ in rows]),
            "c0": (span, [{"start": start, "end": start + size} for _, start, size in rows]),
            "c1": (pa.int64(), list(range(len(rows)))),
            "w": (pa.int64(), [1] * len(rows)),
        }
    )
    place = ExpiryColumn("rows", "c0", "end", sessions=True)
    kept = set(without_expired(given, [(place, limit)], whole=True)["c1"].to_pylist())
    assert without_expired(given, [(place, limit)], whole=False).num_rows == len(rows)
    for group in {crude_hash((key,)) for key, _, _ in rows}:
        mine = sorted(
            (start, start + size, i)
            for i, (key, start, size) in enumerate(rows)
            if crude_hash((key,)) == group
        )
        chain: list[int] = []
        reach = 0
        for start, end, i in [*mine, (1000, 1001, -1)]:
            if chain and start > reach:
                assert all((one in kept) == (reach >= limit) for one in chain)
                chain, reach = [], 0
            chain.append(i)
            reach = max(reach, end)


@laws
@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.none() | st.integers(0, 9), words)), st.integers(0, 3))
    )
)
def test_held_rows_come_once_when_they_are_final(epochs: list[tuple[list[Row], int]]) -> None:
    tables: list[pa.Table] = []
    output: list[Change] = []
    emitted: list[Change] = []
    layout, bound, held = Hold(2, "c0", "").layouts["pending"], 0, list[Row]()
    for rows, step in epochs:
        rows = [row for row in rows if row[0] is None or row[0] >= bound]
        changes = [(row, 1) for row in rows]
        if held and step == 1:  # what isn't final yet can be retract_form
            changes.append((held.pop(), -1))
        held += rows
        bound += step
        delta = None
        if changes:
            delta = table(
                {
                    "h": (pa.int64(), [0] * len(changes)),
                    "c0": (pa.timestamp("us"), [row[0] for row, _ in changes]),
                    "c1": (pa.string(), [row[1] for row, _ in changes]),
                    "w": (pa.int64(), [w for _, w in changes]),
                }
            )
        pending = Held(layout, tables)
        done = Hold(2, "c0", "", bound).step(delta, {"pending": pending})
        due = [at < bound for rows in tables for at in rows["h"].to_pylist()]
        assert pending.touched == sum(due)  # no other row is read
        for part in done.output:
            values = part.set_column(0, "c0", part["c0"].cast(pa.int64()))
            output += weighted(values, ("c0", "c1"))
        tables += [rows for rows in done.appends.values() if rows.num_rows]
        emitted += [(row, 1) for row in held if row[0] is not None and row[0] < bound]
        held = [row for row in held if row[0] is None or row[0] >= bound]
        assert all(weight > 0 for _, weight in output)
        assert z_set(output) == z_set(emitted)


@laws
@given(
    epochs=epochs_of(st.tuples(words, floats, small), size=9), at_first=st.sampled_from([1, 2, 4])
)
def test_extremes_of_rows_that_can_go(epochs: list[list[Change]], at_first: int) -> None:
    bucket, output = Bucket(Reduce(1, (Measure.SUM,), (False, True))), list[Change]()
    with patch.multiple(front, FIRST_READ=at_first, MOST_AT_FIRST=at_first):
        for number, epoch in enumerate(epochs, start=1):
            delta = table(
                {
                    "h": (pa.int64(), [crude_hash(row[:1]) for row, _ in epoch]),
                    "k0": (pa.string(), [row[0] for row, _ in epoch]),
                    "m0": (pa.int64(), [(row[2] or 0) * w for row, w in epoch]),
                    "x0": (pa.float64(), [row[1] for row, _ in epoch]),
                    "x1": (pa.int64(), [row[2] for row, _ in epoch]),
                    "w": (pa.int64(), [w for _, w in epoch]),
                }
            )
            for part in bucket.feed(delta):
                rows = weighted(part, ("k0", "m0", "x0", "x1"))
                # -0.0 and 0.0 are the same to min and max
                output += [((k, m, x if x is None else x + 0.0, y), w) for (k, m, x, y), w in rows]
            groups: dict[Any, list[Row]] = {}
            for row in integrated(epochs[:number]):
                groups.setdefault(row[0], []).append(row)
            wanted = []
            for key, rows in groups.items():
                firsts = [row[1] + 0.0 for row in rows if row[1] is not None]
                least = min(firsts, default=None, key=lambda x: (math.isnan(x), x))
                seconds = [row[2] for row in rows if row[2] is not None]
                wanted.append(((key, sum(seconds), least, max(seconds, default=None)), 1))
            assert z_set(output) == z_set(wanted)


operation = st.tuples(st.sampled_from([APPEND, DELETE, REPLACED, REJECTED]), small, floats)


@pytest.mark.parametrize("key", [(), (0,)])
@laws
@given(epochs=st.lists(st.lists(operation, min_size=1, max_size=6), min_size=1, max_size=4))
def test_operations_on_a_table_apply_in_their_order(
    key: tuple[int, ...], epochs: list[list[tuple[str, int | None, float | None]]]
) -> None:
    bucket = Bucket(Apply(2, key))
    model: list[Row] = []
    first = 0
    for epoch in epochs:
        entries = [first + i // 3 for i in range(len(epoch))]  # of the log, of up to 3 operations
        first = entries[-1] + 1
        delta = table(
            {
                "h": (pa.int64(), [crude_hash([k] if key else [k, v]) for _, k, v in epoch]),
                "seq": (pa.int64(), [(entry << 32) + i for i, entry in enumerate(entries)]),
                "op": (pa.string(), [op for op, _, _ in epoch]),
                "c0": (pa.int64(), [k for _, k, _ in epoch]),
                "c1": (pa.float64(), [v for _, _, v in epoch]),
                "w": (pa.int64(), [1] * len(epoch)),
            }
        )
        assert bucket.feed(delta.take(pa.array(range(len(epoch))[::-1]))) == []
        for place, (op, k, v) in enumerate(epoch):
            own = [
                later
                for entry, (later, other, _) in list(zip(entries, epoch, strict=True))[place + 1 :]
                if entry == entries[place] and other == k
            ]
            after = own[:1] in ([APPEND], [REJECTED])  # the row after an update
            if op == REJECTED or (key and op == REPLACED and after):
                continue
            same = [
                r
                for r in model
                if identity(r[:1] if key else r) == identity([k] if key else [k, v])
            ]
            if (key or op != APPEND) and same:
                # not by ==, for which 0.0 is -0.0
                model = [row for row in model if row is not same[0]]
            if op == APPEND:
                model.append((k, v))
        held = bucket.operator.layouts["rows"].consolidate(pa.concat_tables(bucket.tables["rows"]))
        assert z_set(weighted(held, ("c0", "c1"))) == z_set([(row, 1) for row in model])


@laws
@given(epochs_of(st.tuples(words, floats)))
def test_a_view_holds_what_came_in(epochs: list[list[Change]]) -> None:
    bucket = Bucket(Materialize(2))
    for epoch in epochs:
        assert bucket.feed(rows_delta(epoch, 2, ("string", "double"))) == []
    held = bucket.operator.layouts["rows"].consolidate(pa.concat_tables(bucket.tables["rows"]))
    assert z_set(weighted(held, ("c0", "c1"))) == z_set([(r, 1) for r in integrated(epochs)])


def test_what_is_not_there_can_not_be_retracted() -> None:
    gone: list[Change] = [(("a", 1.5), -1)]
    gone_rows = rows_delta(gone, 1, ("string", "double"))
    for operator, delta in (
        (Regroup(2), gone_rows),
        (Reduce(1, (), (True,)), gone_rows.rename_columns(["h", "k0", "x0", "w"])),
        (Top(1, 0, 1, (True,), (True,)), gone_rows.rename_columns(["h", "s0", "c0", "w"])),
        (
            Neighbours(1, 0, False, 0, 1, (True,), (True,)),
            gone_rows.rename_columns(["h", "s0", "c0", "w"]),
        ),
        (Reduce(2, (Measure.SUM, Measure.XOR, Measure.EXACT)), reduce_delta([(("a", 1.5, 1), -1)])),
    ):
        with pytest.raises(StateError) as refused:
            Bucket(operator).feed(delta)
        assert refused.value.condition == "NEGATIVE_WEIGHT"


def test_a_result_with_a_negative_weight_is_refused_by_readers_and_when_it_is_compacted() -> None:
    schema = pa.schema([("c0", pa.int64())])
    with tempfile.TemporaryDirectory() as root:
        files = Files(root)
        layout = Materialize(1).layouts["rows"]
        runs: tuple[Run, ...] = ()
        for number, (value, weight) in enumerate([(5, 2), (6, 1), (5, -3)]):
            rows = rows_delta([((value,), weight)], 1, ("int",))
            bucket = Arrangement(files, layout, runs)
            runs = extended(bucket, f"run{number}", rows, 9)
        reader = SnapshotReader((SnapshotBucket(files, "v", runs, 1, Epoch(1)),), schema)
        with pytest.raises(StateError) as refused:
            [*reader([pa.record_batch({"number": [0]})])]
        assert refused.value.condition == "NEGATIVE_WEIGHT"
        assert refused.value.context["view"] == "v"
        assert refused.value.context["row"] == {"c0": 5, "w": -1}
        with pytest.raises(StateError, match="an arrangement holds a row less than zero times"):
            extended(Arrangement(files, layout, runs), "last", rows.slice(0, 1), 2)
        made_good = rows_delta([((5,), 1)], 1, ("int",))
        runs = extended(Arrangement(files, layout, runs), "good", made_good, 2)
        assert sum(run.rows for run in runs) == 1


def test_a_group_without_rows_leaves_the_state_although_its_sum_was_rounded() -> None:
    operator = Reduce(1, (Measure.EXACT,))
    layouts = operator.layouts
    values = (0.1, 5e-324, 1.0)
    with tempfile.TemporaryDirectory() as root:
        runs: dict[str, tuple[Run, ...]] = dict.fromkeys(layouts, ())
        for number, weight in enumerate([1, -1]):
            for place, value in enumerate(values):
                state = {s: Arrangement(Files(root), layouts[s], runs[s]) for s in layouts}
                step = operator.step(double_delta([(("a", value), weight)]), state)
                assert len([*step.output]) == 1
                for slot, rows in step.appends.items():
                    runs[slot] = extended(state[slot], f"{slot}{number}{place}", rows, 2)
    assert runs == {"groups": (), "digits": ()}


# -- changelogs -----------------------------------------------------------------------------------


@laws
@given(st.lists(st.tuples(st.tuples(words, floats), st.integers(-2, 2))))
def test_a_changelog_in_retract_form_says_each_copy_once(changes: list[Change]) -> None:
    rows = rows_delta(changes, 2, ("string", "double")).drop_columns(["h"])
    lines = retract_form(rows, ("c0", "c1"))
    signs = {APPEND: 1, DELETE: -1}
    said = [((a, b), signs[op]) for a, b, op in zip(*lines.to_pydict().values(), strict=True)]
    assert z_set(said) == z_set(changes)
    assert [sign for _, sign in said] == sorted(sign for _, sign in said)  # deletes first


@laws
@given(st.lists(st.tuples(words, floats), max_size=4), st.randoms(), st.booleans())
def test_two_results_are_equal_as_multisets(rows: list[Row], random: Any, nudged: bool) -> None:
    shuffled = random.sample(rows, len(rows))
    close = [(a, b * (1 + 1e-12) if nudged and b is not None else b) for a, b in shuffled]
    one, other = (
        rows_delta([(row, 1) for row in side], 2, ("string", "double")).select(["c0", "c1"])
        for side in (rows, close)
    )
    assert difference(one, other).equal
    more = pa.concat_tables(
        [other, table({"c0": (pa.string(), ["z"]), "c1": (pa.float64(), [1.0])})]
    )
    found = difference(one, more)
    assert not found.equal
    assert "z" in [row["c0"] for row in found.right_only]


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
