"""Live equals offline at every epoch, for every shape of query, under random changes.

The oracle is offline Spark over plain lists of rows, which the engine has no part in.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import eddyline as el
import shapes
from eddyline.testing import Offline, PlainTable, replayed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

UTC = UTC
KEYS = st.one_of(st.none(), st.sampled_from("abcA"))
SMALL = st.one_of(st.none(), st.integers(1, 4))
QUARTERS = [0.0, -0.0, 0.25, 1.5, -2.75, 1e6, float("nan")]
MOMENTS = st.builds(
    lambda day, hour, minute: datetime(2024, 1, day, hour, minute, tzinfo=UTC),
    st.integers(1, 2),
    st.integers(0, 23),
    st.sampled_from([0, 30]),
)
ROWS = {
    "t": st.tuples(
        st.integers(1, 8),
        KEYS,
        SMALL,
        st.one_of(st.none(), st.sampled_from([-5, 0, 1, 2, 3, 9, 2**40])),
        st.one_of(st.none(), st.sampled_from(QUARTERS)),
        st.one_of(
            st.none(), st.sampled_from([Decimal(d) for d in ("0.00", "1.50", "-2.25", "99.99")])
        ),
        st.one_of(st.none(), st.builds(date, st.just(2024), st.just(1), st.integers(1, 3))),
        st.one_of(st.none(), MOMENTS),
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=3)),
        st.one_of(st.none(), st.tuples(SMALL, st.one_of(st.none(), st.sampled_from("ab")))),
        st.one_of(
            st.none(), st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=2)
        ),
        st.one_of(st.none(), st.booleans()),
    ),
    "u": st.tuples(st.integers(1, 6), KEYS, SMALL, st.one_of(st.none(), st.sampled_from(QUARTERS))),
    "p": st.tuples(st.integers(1, 5), KEYS, SMALL),
    shapes.STREAM: st.tuples(KEYS, st.integers(-2, 4), st.integers(0, 2**40), MOMENTS),
}
# per table: rows to append, and places of rows to delete (modulo what is there)
CHANGES = st.fixed_dictionaries(
    {
        name: st.tuples(
            st.lists(rows, max_size=6),
            st.lists(st.integers(0, 99), max_size=0 if name == shapes.STREAM else 4),
        )
        for name, rows in ROWS.items()
    }
)
# Hypothesis begins with the simplest example, which has no rows
SOME_CHANGES = CHANGES.filter(lambda changes: all(appended for appended, _ in changes.values()))
EPOCHS = settings(
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Twins:
    """An engine, and the same tables as plain lists."""

    def __init__(
        self, folder: Path, spark: SparkSession, names: list[str], options: el.Options | None = None
    ):
        self.folder, self.spark, self.options = folder, spark, options
        self.input = folder / "in"
        self.input.mkdir(parents=True)
        self.files = 0
        self.plain = {
            n: PlainTable(ddl, (0,) if key else ()) for n, (ddl, key) in shapes.TABLES.items()
        }
        self.plain[shapes.STREAM] = PlainTable(shapes.STREAM_COLUMNS)
        self.offline = Offline(spark, self.plain)
        self.engine = self.open()
        self.views = {}
        for name in names:
            self.views[name] = self.engine.view(name, shapes.SHAPES[name])
            self.offline.view(name, shapes.SHAPES[name])

    def open(self) -> el.Engine:
        engine = el.Engine(str(self.folder / "storage"), spark=self.spark, options=self.options)
        self.tables = {n: engine.table(n, ddl, key) for n, (ddl, key) in shapes.TABLES.items()}
        options = {"path": str(self.input)}
        engine.create_stream(shapes.STREAM, shapes.STREAM_COLUMNS, "json", options)
        return engine

    def restart(self) -> None:
        self.engine.stop()
        self.engine = self.open()
        self.views = {name: self.engine.view(name, shapes.SHAPES[name]) for name in self.views}

    def change(self, changes) -> None:
        for name, (appended, places) in changes.items():
            held = self.plain[name].rows
            deleted = [held[place % len(held)] for place in dict.fromkeys(places)] if held else []
            if name == shapes.STREAM:
                self.plain[name].insert(appended)
                self.arrive(appended)
                continue
            if deleted:
                self.plain[name].delete(deleted)
                self.tables[name].delete(deleted)
            if appended:
                self.plain[name].insert(appended)
                self.tables[name].insert(appended)

    def arrive(self, rows) -> None:
        if not rows:
            return
        lines = [
            json.dumps({"k": k, "v": v, "n": n, "ts": ts.strftime("%Y-%m-%dT%H:%M:%SZ")})
            for k, v, n, ts in rows
        ]
        hidden = self.input / f".{self.files}"
        hidden.write_text("\n".join(lines) + "\n")
        os.rename(hidden, self.input / f"{self.files}.json")
        self.files += 1

    def differences(self, *, replay: bool = True) -> list[str]:
        self.offline.load()

        def check(name: str) -> str | None:
            live = self.views[name].snapshot().toArrow()
            found = self.offline.compared(name, live)
            if not found.equal:
                return f"{name}: only live {found.left_only}, only offline {found.right_only}"
            if replay:
                rows = replayed([tuple(row) for row in self.views[name].changes().collect()])
                if len(rows) != live.num_rows:
                    return f"{name}: the changelog replays to {len(rows)} rows, not {live.num_rows}"
            return None

        with ThreadPoolExecutor(3) as pool:
            return [text for text in pool.map(check, self.views) if text]


def closed(names: list[str]) -> list[str]:
    """The shapes with those that they read, in the order of the catalogue."""
    wanted = set(names)
    for name in reversed(list(shapes.SHAPES)):
        if name in wanted:
            wanted |= {
                n
                for n in shapes.SHAPES
                if n != name and re.search(rf"\b{n}\b", shapes.SHAPES[name])
            }
    return [name for name in shapes.SHAPES if name in wanted]


def every(step: int, start: int = 0) -> list[str]:
    """Each `step`-th shape of each family."""
    return [name for family in shapes.FAMILIES.values() for name in list(family)[start::step]]


def twins(request, factory, spark, names, options=None) -> Iterator[Twins]:
    made = Twins(factory.mktemp("shapes"), spark, closed(names), options)
    yield made
    made.engine.stop()


# what went wrong once, and no other test of the default run would tell
ALWAYS = (
    *("subquery_in_outer", "scalar_beside_groups", "scalar_over_top", "never_joined"),
    *("global_distinct_list", "global_distinct_numbers", "global_list_and_distinct"),
    *("scalar_of_key", "scalar_per_row", "scalar_per_row_between"),
    *("scalar_latest", "lateral_rest", "exists_one"),
    *("struct_key", "union_structs", "first_with_its_number", "first_ranks"),
)


@pytest.fixture(scope="module")
def sample(request, tmp_path_factory, spark):
    yield from twins(request, tmp_path_factory, spark, [*every(6), *ALWAYS])


@pytest.fixture(scope="module")
def whole(request, tmp_path_factory, spark):
    yield from twins(request, tmp_path_factory, spark, list(shapes.SHAPES))


@pytest.fixture(
    scope="module",
    params=[
        "generic rule",
        "colliding hashes",
        "one bucket, two-way merges",
        "slices of a few rows",
    ],
)
def otherwise(request, tmp_path_factory, spark):
    options = {
        "generic rule": el.Options(native_rules=0),
        "colliding hashes": el.Options(hash_bits=1),
        "one bucket, two-way merges": el.Options(buckets=1, compaction_fan_in=2),
        "slices of a few rows": el.Options(task_bytes=1024, short_lane_rows=0),
    }[request.param]
    yield from twins(request, tmp_path_factory, spark, every(24, 1), options)


def test_the_catalogue_is_wide():
    assert len(shapes.SHAPES) >= 200
    assert len(closed([*every(6), *ALWAYS])) >= 80


@given(first=SOME_CHANGES, then=SOME_CHANGES)
@settings(EPOCHS, max_examples=1)
def test_a_sample_of_shapes_equals_offline_at_every_epoch(sample, first, then):
    assert any(places for _, places in then.values()), "the first changes find no rows to delete"
    for changes in ({}, first, then):
        sample.change(changes)
        sample.engine.advance()
        assert sample.differences() == []


@pytest.mark.slow
@given(changes=CHANGES)
@settings(EPOCHS, max_examples=6)
def test_every_shape_equals_offline_at_every_epoch(whole, changes):
    whole.change(changes)
    whole.engine.advance()
    assert whole.differences() == []


def not_sql(twins: Twins) -> list[str]:
    """What explain shows of Spark's ids, and of functions that only the optimiser writes."""
    pattern = re.compile(r"#\d|knownnullable|knownnotnull|knownfloatingpoint|normalizenanandzero")
    return [name for name in twins.views if pattern.search(twins.engine.explain(name).lower())]


def test_explain_shows_sql(sample):
    assert not_sql(sample) == []


@pytest.mark.slow
def test_explain_shows_sql_of_every_shape(whole):
    assert not_sql(whole) == []


@given(changes=SOME_CHANGES)
@settings(EPOCHS, max_examples=1)
def test_other_rules_buckets_and_hashes_change_nothing(otherwise, changes):
    otherwise.change(changes)
    otherwise.engine.advance()
    assert otherwise.differences(replay=False) == []


@pytest.mark.slow
def test_at_once_in_batches_row_by_row_and_with_restarts(tmp_path, spark):
    """The same changes, cut in different ways, come to the same result."""
    names = closed(every(12, 2))
    batches = []

    @given(changes=CHANGES)
    @settings(EPOCHS, max_examples=4)
    def collect(changes):
        batches.append(changes)

    collect()
    cut = {}
    for way in ("at once", "in batches", "row by row"):
        pair = Twins(tmp_path / way, spark, names)
        for changes in batches[:3]:
            if way == "row by row":
                for name, (appended, _) in changes.items():
                    for row in appended[:2]:
                        pair.change({name: ([row], [])})
                        pair.engine.advance()
                    pair.change({name: (appended[2:], [])})
                pair.change({name: ([], places) for name, (_, places) in changes.items()})
            else:
                pair.change({name: (appended, []) for name, (appended, _) in changes.items()})
                pair.change({name: ([], places) for name, (_, places) in changes.items()})
            if way == "in batches":
                pair.engine.advance()
                pair.restart()
        pair.engine.advance()
        assert pair.differences() == []
        cut[way] = {name: view.snapshot().toArrow() for name, view in pair.views.items()}
        assert pair.engine.verify()
        pair.engine.stop()
    for name in names:
        sizes = {way: cut[way][name].num_rows for way in cut}
        assert len(set(sizes.values())) == 1, (name, sizes)
