"""Nexmark's queries, live over generated streams and over tables that change, against offline Spark.

The oracle reads rows that were made at once, without the engine, the redo log or its segments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.source.nexmark import KINDS, Nexmark
from eddyline.testing import Offline, PlainTable, Row, replayed
from eddyline_bench import nexmark_queries as nexmark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

SEED, RATE = 1, 10
SIDE_ROWS = [(key, f"side {key}") for key in range(nexmark.SIDE_KEYS)]
SIDE_CHANGES = [(1, "changed"), (2, None), (nexmark.SIDE_KEYS + 3, "matches nothing")]


def events(name: str, first: int, end: int) -> list[Row]:
    """The rows of a relation among the events from `first` up to but not including `end`."""
    kind = KINDS[nexmark.RELATIONS[name]]
    start, stop = kind.count(first), kind.count(end)
    made = Nexmark(nexmark.RELATIONS[name], SEED, RATE).rows(start, stop - start, kind.schema)
    return [tuple(row.values()) for row in made.to_pylist()]


class Site:
    """Queries live on an engine, and the same over plain rows that Spark reads offline."""

    def __init__(self, spark: SparkSession, engine: el.Engine, keys: dict[str, tuple[int, ...]]):
        self.engine = engine
        self.plain = {n: PlainTable(c, keys.get(n, ())) for n, c in nexmark.COLUMNS.items()}
        self.plain[nexmark.SIDE] = PlainTable(nexmark.SIDE_COLUMNS, (0,))
        self.offline = Offline(spark, self.plain)
        self.side = engine.table(nexmark.SIDE, nexmark.SIDE_COLUMNS, ["key"])
        self.views: dict[str, el.View] = {}
        self.empty: set[str] = set()

    def view(self, queries: dict[str, str]) -> None:
        for name, query in queries.items():
            self.views[name] = self.engine.view(name, query)
            self.offline.view(name, query)
        self.empty = set(queries)

    def change_side(self, rows: Sequence[Row]) -> None:
        self.side.upsert(rows)
        self.plain[nexmark.SIDE].insert(rows)

    def differences(self, epoch: int | None = None) -> dict[str, Any]:
        """What live and offline results differ in, as of an epoch, by query."""
        self.offline.load()
        found = {
            name: self.offline.compared(name, view.snapshot(epoch))
            for name, view in self.views.items()
        }
        self.empty -= {name for name, difference in found.items() if difference.right_rows}
        return {name: difference for name, difference in found.items() if not difference.equal}

    def unlike_changelogs(self) -> list[str]:
        """The queries whose changelog, replayed from empty, isn't the result."""
        found = []
        for name, view in self.views.items():
            rows = replayed(map(tuple, view.changes().collect()))
            held = [tuple(row) for row in view.snapshot().collect()]
            if sorted(map(repr, rows)) != sorted(map(repr, held)):
                found.append(name)
        return found


def over_streams(spark: SparkSession, folder: Path, names: Sequence[str], total: int, step: int):
    """Each step of the three streams is an epoch; at each the results are those of its events."""
    numbers = {"seed": SEED, "total": total, "eventsPerEpoch": step, "eventsPerSecond": RATE}
    options = {name: str(number) for name, number in numbers.items()}
    with el.Engine(str(folder), spark=spark) as engine:
        site = Site(spark, engine, {})
        for name, kind in nexmark.RELATIONS.items():
            engine.create_stream(name, None, "generator", {"kind": kind, **options})
        site.change_side(SIDE_ROWS)
        site.view({name: nexmark.QUERIES[name] for name in names})
        before = engine.status()["epoch"]
        steps = -(-total // step)
        assert engine.advance() == before + steps
        for number in range(steps):
            end = min((number + 1) * step, total)
            for name in nexmark.RELATIONS:
                site.plain[name].rows = events(name, 0, end)
            assert site.differences(before + number + 1) == {}
        site.change_side(SIDE_CHANGES)
        engine.advance()
        assert site.differences() == {}
        assert site.unlike_changelogs() == []
        assert site.empty == set()


def over_tables(spark: SparkSession, folder: Path, total: int, step: int, options: el.Options):
    """The same events as rows of tables, of which each epoch deletes and changes some."""
    random_ = random.Random(SEED)
    keys = {"person": ("id",), "auction": ("id",)}
    with el.Engine(str(folder), spark=spark, options=options) as engine:
        site = Site(spark, engine, dict.fromkeys(keys, (0,)))
        tables = {
            name: engine.table(name, columns, keys.get(name, ()))
            for name, columns in nexmark.COLUMNS.items()
        }
        site.change_side(SIDE_ROWS)
        site.view(nexmark.QUERIES)
        for first in range(0, total, step):
            for name, table in tables.items():
                fresh = events(name, first, min(first + step, total))
                held = random_.sample(site.plain[name].rows, len(site.plain[name].rows) // 5)
                gone, old = held[::2], held[1::2]
                changed = [altered(name, row, random_) for row in old]
                for target in (table, site.plain[name]):
                    target.delete(gone)
                    if name not in keys:
                        target.delete(old)
                    target.insert(changed + fresh)
            engine.advance()
            assert site.differences() == {}
        site.change_side(SIDE_CHANGES)
        for name, table in tables.items():
            rows = site.plain[name].rows[::2]
            table.delete(rows)
            site.plain[name].delete(rows)
        engine.advance()
        assert site.differences() == {}
        assert site.unlike_changelogs() == []
        assert site.empty == set()


def altered(name: str, row: Row, random_: random.Random) -> Row:
    """The row with other values in what queries group, join, order or filter by."""
    columns = nexmark.COLUMNS[name].names
    values = dict(zip(columns, row, strict=True))
    if name == "bid":
        values["price"] = random_.choice((None, 100, 5_000, 2_000_000))
        values["bidder"] += random_.randint(0, 1)
    elif name == "auction":
        values["category"] = random_.choice((10, 11))
        values["expires"] = random_.choice((None, values["dateTime"], values["expires"]))
    else:
        values["state"] = random_.choice((None, "OR", "WY"))
    return tuple(values.values())


def test_a_sample_of_the_queries_over_streams(tmp_path, spark):
    over_streams(spark, tmp_path, nexmark.SAMPLE, total=300, step=150)


@pytest.mark.slow
def test_all_queries_over_streams(tmp_path, spark):
    over_streams(spark, tmp_path, list(nexmark.QUERIES), total=2_000, step=500)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [el.Options(), el.Options(native_rules=0), el.Options(hash_bits=1, compaction_fan_in=2)],
    ids=["as usual", "generic rule", "colliding hashes"],
)
def test_all_queries_over_tables_with_deletes_and_updates(tmp_path, spark, options):
    over_tables(spark, tmp_path, total=600, step=200, options=options)
