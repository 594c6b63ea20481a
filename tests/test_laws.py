"""The laws of operators, against models that a reader can check by eye.

No JVM: an operator is a value with one verb, so it can be fed here as Spark feeds it there. The
law behind most tests: what an operator gives out, added up, follows from what it took in, added
up; however the input was cut into epochs.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eddyline.answers.changelog import retract_form
from eddyline.answers.difference import difference
from eddyline.answers.reader import SnapshotBucket, SnapshotReader
from eddyline.changes import APPEND, DELETE, REJECTED, REPLACED, Epoch
from eddyline.errors import DataError, StateError
from eddyline.operators.aggregate import Reduce
from eddyline.operators.hold import Hold
from eddyline.operators.neighbours import Neighbours
from eddyline.operators.recompute import Regroup
from eddyline.operators.result import Apply, Materialize
from eddyline.operators.top import Top
from eddyline.state import front
from eddyline.state.arrangement import Arrangement
from eddyline.state.expiry import ExpiryColumn, without_expired
from eddyline.state.kernels import (
    Measure,
)
from eddyline.state.runs import Run
from eddyline.storage.files import Files
from laws import (
    Bucket,
    Change,
    Held,
    Row,
    as_double,
    crude_hash,
    epochs_of,
    extended,
    floats,
    identity,
    integrated,
    laws,
    rows_delta,
    small,
    table,
    weighted,
    words,
    z_set,
)

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
