"""Laws of the kernels and operators: against slow models, at once against one by one. No JVM."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.changes import HASH, WEIGHT
from eddyline.operators import top
from eddyline.operators.aggregate import Reduce
from eddyline.operators.collect import Apply, Materialize
from eddyline.operators.join import Join, JoinKind
from eddyline.operators.recompute import Regroup
from eddyline.operators.top import Top
from eddyline.state.arrangement import Arrangement, Layout, compaction_start
from eddyline.state.kernels import Measure, consolidate, key_hashes
from eddyline.storage.files import Files

settings.register_profile("laws", deadline=None, max_examples=40)
settings.load_profile("laws")

KEYS = st.integers(0, 4)
VALUES = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), -2.25]))
CHANGES = st.lists(st.tuples(KEYS, VALUES, st.integers(-2, 3)), max_size=12)
BATCHES = st.lists(CHANGES, min_size=1, max_size=5)


def bits(value):
    """A value whose equality is bitwise, NaN equal to NaN."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    return value


def collection(changes, names=("c0", "c1")):
    table = pa.table(
        {
            names[0]: pa.array([change[0] for change in changes], pa.int64()),
            names[1]: pa.array([change[1] for change in changes], pa.float64()),
            WEIGHT: pa.array([change[2] for change in changes], pa.int64()),
        }
    )
    # few hashes, so that keys collide
    return table.add_column(0, HASH, pa.array(np.array(table[names[0]]) % 2, pa.int64()))


def counted(tables, columns):
    found = Counter()
    for table in tables:
        for row in table.to_pylist():
            found[tuple(bits(row[name]) for name in columns)] += row[WEIGHT]
    return {row: weight for row, weight in found.items() if weight}


def positive(batches):
    """Batches cut so that no row is retracted that isn't there."""
    held = Counter()
    kept = []
    for batch in batches:
        part = []
        for key, value, weight in batch:
            row = (key, bits(value))
            weight = max(weight, -held[row])
            held[row] += weight
            part.append((key, value, weight))
        kept.append(part)
    return kept


class Bucket:
    """An operator over one bucket, its state on disk."""

    def __init__(self, operator, folder, fan_in=3):
        self.operator, self.fan_in = operator, fan_in
        self.files = Files(str(folder))
        self.runs = dict.fromkeys(operator.layouts, ())
        self.number = 0

    def step(self, delta):
        state = {
            slot: Arrangement(self.files, layout, self.runs[slot])
            for slot, layout in self.operator.layouts.items()
        }
        step = self.operator.step(delta, state)
        output = [table for table in step.output if table.num_rows]
        for slot, rows in step.appends.items():
            name = f"{slot}-{self.number}"
            self.runs[slot], _ = state[slot].extend(name, rows, self.fan_in)
        self.number += 1
        return output


@given(BATCHES)
def test_consolidation_is_addition_of_bags(batches):
    tables = [collection(batch) for batch in batches]
    layout = Layout(("c0", "c1"))
    done = layout.consolidate(pa.concat_tables(tables))
    assert counted([done], ["c0", "c1"]) == counted(tables, ["c0", "c1"])
    assert 0 not in done[WEIGHT].to_pylist()


@given(BATCHES, st.integers(2, 4))
def test_an_arrangement_holds_the_sum_of_its_deltas(tmp_path_factory, batches, fan_in):
    bucket = Bucket(Materialize(2), tmp_path_factory.mktemp("a"), fan_in)
    for batch in batches:
        bucket.step(collection(batch))
    arrangement = Arrangement(bucket.files, bucket.operator.layouts["rows"], bucket.runs["rows"])
    whole = counted([collection(batch) for batch in batches], ["c0", "c1"])
    scanned = arrangement.scan()
    assert (counted([scanned], ["c0", "c1"]) if scanned else {}) == whole
    found = arrangement.lookup(np.array([1]))
    expected = {row: weight for row, weight in whole.items() if row[0] % 2 == 1}
    assert (counted([found], ["c0", "c1"]) if found else {}) == expected


@given(st.lists(st.integers(1, 200), max_size=300), st.integers(2, 8))
def test_compaction_keeps_few_runs_and_rewrites_each_row_seldom(sizes, fan_in):
    runs, written = [], 0
    for size in sizes:
        runs.append(size)
        start = compaction_start(runs, fan_in)
        if start is not None:
            runs[start:] = [sum(runs[start:])]
            written += runs[-1]
    total = sum(sizes)
    tiers = math.log(max(total, 1), fan_in) + 2
    assert len(runs) <= fan_in * tiers
    assert written <= total * tiers * 2


@given(st.lists(st.tuples(st.floats(-1e300, 1e300), st.sampled_from([1, -1, 3, -2])), max_size=40))
def test_sums_of_doubles_are_exact_to_a_hundred_bits(values):
    pairs = pa.array(
        [{"hi": value, "lo": float(weight)} for value, weight in values],
        pa.struct([("hi", pa.float64()), ("lo", pa.float64())]),
    )
    delta = pa.table(
        {HASH: np.zeros(len(values), np.int64), "m0": pairs, WEIGHT: np.ones(len(values), np.int64)}
    )
    if not values:
        return
    expanded = Reduce(0, (Measure.EXACT,))._expand_exact(delta)
    done = consolidate(
        expanded.append_column("c0", pa.array([0] * len(values))),
        ["c0"],
        [("m0", Measure.EXACT), (WEIGHT, Measure.SUM)],
    )
    exact = sum((Fraction(value) * weight for value, weight in values), Fraction(0))
    largest = max(abs(Fraction(value) * weight) for value, weight in values)
    got = done["m0"].to_pylist()[0]
    error = abs(Fraction(got["hi"]) + Fraction(got["lo"]) - exact)
    assert error <= largest * len(values) ** 2 / 2**100 + Fraction(2) ** -1000


@given(BATCHES)
def test_a_linear_aggregate_replayed_is_the_aggregate(tmp_path_factory, batches):
    """Sum and count by key; deletes and appends replay to the groups that are there."""
    bucket = Bucket(Reduce(1, (Measure.SUM,)), tmp_path_factory.mktemp("r"))
    shown, rows = Counter(), Counter()
    for batch in positive([[(k, 1.0, w) for k, _, w in batch] for batch in batches]):
        plain = collection(batch).rename_columns([HASH, "k0", "c1", WEIGHT]).drop_columns(["c1"])
        values = pa.array([key * weight for key, _, weight in batch], pa.int64())
        delta = plain.append_column("m0", values)
        if delta.num_rows:
            for table in bucket.step(delta):
                for row in table.to_pylist():
                    shown[(row["k0"], row["m0"])] += row[WEIGHT]
                    assert shown[(row["k0"], row["m0"])] in (0, 1, -1)
        for key, _, weight in batch:
            rows[key] += weight
        assert {k for k, n in shown.items() if n} == {(k, k * n) for k, n in rows.items() if n}


@given(BATCHES)
def test_recompute_gives_both_versions_of_the_touched_groups(tmp_path_factory, batches):
    bucket = Bucket(Regroup(2), tmp_path_factory.mktemp("g"))
    held = Counter()
    for batch in positive(batches):
        before = dict(held)
        for key, value, weight in batch:
            held[(key, bits(value))] += weight
        output = bucket.step(collection(batch))
        versions = {-1: Counter(), 1: Counter()}
        for table in output:
            for row in table.to_pylist():
                versions[row[WEIGHT]][(row["c0"], bits(row["c1"]))] += 1
        changed = {r[0] % 2 for r in held if held[r] != before.get(r, 0)}
        for version, whole in ((-1, before), (1, held)):
            touched = {r: n for r, n in whole.items() if r[0] % 2 in changed and n}
            assert dict(versions[version]) == touched


SIDES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 1), KEYS, st.sampled_from([1.0, 2.0]), st.integers(-1, 2)),
        max_size=8,
    ),
    min_size=1,
    max_size=5,
)


@given(SIDES, st.sampled_from(list(JoinKind)))
def test_a_join_replayed_is_the_join(tmp_path_factory, batches, kind):
    bucket = Bucket(Join(kind, 1, 2, 2), tmp_path_factory.mktemp("j"))
    sides = (Counter(), Counter())
    shown = Counter()
    for batch in batches:
        lines = []
        for side, key, value, weight in batch:
            weight = max(weight, -sides[side][(key, value)])
            sides[side][(key, value)] += weight
            lines.append((side, key, value, weight))
        if not lines:
            continue
        own = {side: [line[0] == side for line in lines] for side in (0, 1)}

        def column(place, side, kind, lines=lines, own=own):
            return pa.array(
                [
                    line[place] if mine else None
                    for line, mine in zip(lines, own[side], strict=True)
                ],
                kind,
            )

        delta = pa.table(
            {
                HASH: pa.array([line[1] % 2 for line in lines], pa.int64()),
                "side": pa.array([line[0] for line in lines], pa.int32()),
                "matchable": pa.array([line[1] != 4 for line in lines]),  # key 4 stands for null
                "k0": pa.array([line[1] for line in lines], pa.int64()),
                "l0": column(1, 0, pa.int64()),
                "l1": column(2, 0, pa.float64()),
                "r0": column(1, 1, pa.int64()),
                "r1": column(2, 1, pa.float64()),
                WEIGHT: pa.array([line[3] for line in lines], pa.int64()),
            }
        )
        for table in bucket.step(delta):
            for row in table.to_pylist():
                shown[tuple(v for n, v in row.items() if n != WEIGHT)] += row[WEIGHT]
        assert {r: n for r, n in shown.items() if n} == naive_join(kind, *sides)


def naive_join(kind, left, right):
    found = Counter()
    left = {row: n for row, n in left.items() if n}
    right = {row: n for row, n in right.items() if n}
    for row, n in left.items():
        matches = {r: m for r, m in right.items() if r[0] == row[0] != 4}
        if kind is JoinKind.EXISTS:
            found[(*row, bool(matches))] += n
            continue
        for other, m in matches.items():
            found[(*row, *other)] += n * m
        if not matches and kind.keeps_left:
            found[(*row, None, None)] += n
    if kind.keeps_right:
        for row, n in right.items():
            if not any(r[0] == row[0] != 4 for r in left):
                found[(None, None, *row)] += n
    return dict(found)


@given(BATCHES, st.integers(0, 4), st.integers(0, 3), st.booleans())
def test_a_top_replayed_is_the_top(tmp_path_factory, batches, limit, offset, descending):
    with patch.object(top, "HEAD_SLACK", 1):  # so that the head runs dry
        operator = Top(limit, offset, 2, (descending,), (descending,))
        bucket = Bucket(operator, tmp_path_factory.mktemp("t"))
        held, shown = Counter(), Counter()
        for batch in positive([[(k, 1.0, w) for k, _, w in batch] for batch in batches]):
            for key, _, weight in batch:
                held[key] += weight
            delta = collection(batch)
            delta = delta.append_column("s0", delta["c0"])
            for table in bucket.step(delta):
                for row in table.to_pylist():
                    shown[row["c0"]] += row[WEIGHT]
            ordered = sorted(held.elements(), reverse=descending)[offset : offset + limit]
            assert {k: n for k, n in shown.items() if n} == dict(Counter(ordered))


OPERATIONS = st.lists(
    st.lists(
        st.tuples(KEYS, st.sampled_from([1.0, 2.0]), st.sampled_from(["append", "delete"])),
        max_size=8,
    ),
    min_size=1,
    max_size=5,
)


@given(OPERATIONS, st.booleans())
def test_operations_applied_are_those_of_a_table(tmp_path_factory, batches, keyed):
    operator = Apply(2, (0,) if keyed else ())
    bucket = Bucket(operator, tmp_path_factory.mktemp("o"))
    table, bag, number = {}, Counter(), 0
    for batch in batches:
        delta = collection([(key, value, 1) for key, value, _ in batch])
        numbers = pa.array(range(number, number + len(batch)), pa.int64())
        delta = delta.append_column("seq", numbers)
        delta = delta.append_column("op", pa.array([line[2] for line in batch], pa.string()))
        number += len(batch)
        for key, value, operation in batch:
            if operation == "append":
                table[key] = value
                bag[(key, value)] += 1
            else:
                table.pop(key, None)
                bag[(key, value)] = max(0, bag[(key, value)] - 1)
        if batch:
            bucket.step(delta)
        arrangement = Arrangement(bucket.files, operator.layouts["rows"], bucket.runs["rows"])
        scanned = arrangement.scan()
        found = Counter()
        for row in scanned.to_pylist() if scanned else ():
            found[(row["c0"], row["c1"])] += row[WEIGHT]
        expected = Counter(table.items()) if keyed else +bag
        assert +found == expected


def test_the_hash_of_a_key_never_changes():
    """It is in the state on disk."""
    table = pa.table(
        {"a": pa.array([1, None]), "b": pa.array(["x", None]), "c": pa.array([0.5, None])}
    )
    assert key_hashes(table, ["a", "b", "c"]).tolist() == [
        -7651446864290363901,
        -2943889235046744046,
    ]
