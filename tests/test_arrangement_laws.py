"""The laws of arrangements: runs, merges and slices, against models that a reader can check by eye."""

from __future__ import annotations

import math
import tempfile
import zlib
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.errors import StateError, StorageError
from eddyline.operators.base import numbered
from eddyline.state import arrangement
from eddyline.state.arrangement import Arrangement, Layout, merge_starts
from eddyline.state.kernels import (
    consolidate,
    merged_if_repetitive,
)
from eddyline.state.slices import CACHED_BYTES, SLICE_BYTES, sliced
from eddyline.storage.files import Files
from laws import (
    KINDS,
    Change,
    Row,
    extended,
    floats,
    laws,
    rows_delta,
    small,
    table,
    weighted,
    words,
    z_set,
)


@laws
@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=3))
def test_merged_runs_are_their_rows_added_up(data: st.DataObject, kinds: list[str]) -> None:
    names = numbered("c", len(kinds))
    layout = Layout(names)
    hashes = data.draw(st.sampled_from([2, 1000]))  # rows share them, or hardly any does
    row = st.tuples(*(KINDS[kind][1] for kind in kinds), st.integers(-2, 2))
    runs = []
    for drawn in data.draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=4)):
        rows = [*{repr(r[:-1]): r for r in drawn}.values()]  # no two with the same values
        run = table(
            {
                "h": (pa.int64(), [zlib.crc32(repr(r[:-1]).encode()) % hashes for r in rows]),
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
