"""Views for tests of sinks: deterministic rows at each epoch, of many types, without an engine."""

from __future__ import annotations

import datetime as d
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from eddyline.changes import Epoch
from eddyline.sink.base import Sink, Target
from eddyline.sink.rows import difference
from eddyline.spark.schema import arrow_schema

ZONE = "Europe/Berlin"
KEY = ("K", "a.b")
COLUMNS = t.StructType(
    [
        t.StructField("K", t.LongType()),
        t.StructField("a.b", t.StringType()),
        t.StructField("Select", t.DoubleType()),
        t.StructField("größe", t.DecimalType(38, 10)),
        t.StructField("a b", t.TimestampType()),
        t.StructField('q"u`o', t.TimestampNTZType()),
        t.StructField("day", t.DateType()),
        t.StructField("raw", t.BinaryType()),
        t.StructField("yes", t.BooleanType()),
        t.StructField("tiny", t.ByteType()),
        t.StructField("float", t.FloatType()),
        t.StructField("list", t.ArrayType(t.StringType())),
        t.StructField(
            "struct",
            t.StructType(
                [
                    t.StructField("n", t.IntegerType(), False),
                    t.StructField("At", t.TimestampType()),
                ]
            ),
        ),
        t.StructField("map", t.MapType(t.StringType(), t.LongType())),
        t.StructField("op", t.StringType()),
        t.StructField("w", t.LongType()),
    ]
)
Row = dict[str, Any]
UTC = d.UTC
STAMPS = [d.datetime(2024, 3, 31, 1, 30, 0, 1, UTC), d.datetime(1, 1, 2, tzinfo=UTC),
          d.datetime(9999, 12, 30, 23, 59, 59, 999999, UTC), None]  # fmt: skip
TEXTS = ["", "plain", "größe", "tab\t'\"\\ \n,\r\\N", "\U0001f642", "NULL", "\\.", None]
DOUBLES = [0.5, -0.0, 0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1 + 0.2, None]


def row(rnd: random.Random, key: Row) -> Row:
    """Return a row of all types with the given values of some columns."""
    some = rnd.choice
    naive = [stamp and stamp.replace(tzinfo=None) for stamp in STAMPS]
    return {
        "K": None, "a.b": None,
        "Select": some(DOUBLES),
        "größe": some([Decimal("1.5000000000"), Decimal("-9999999999999999999999999999.0000000001"), None]),
        "a b": some(STAMPS),
        'q"u`o': some(naive),
        "day": some([d.date(1, 1, 1), d.date(9999, 12, 31), d.date(2024, 2, 29), None]),
        "raw": some([b"", b"\x00\xff\\x", None]),
        "yes": some([True, False, None]),
        "tiny": some([-128, 127, None]),
        "float": some([0.1, 3.4028234663852886e38, None]),
        "list": some([[], ["x", None, 'a"{},'], None]),
        "struct": some([{"n": 1, "At": some(STAMPS)}, None]),
        "map": some([[], [("a", 1), ("größe", None)], None]),
        "op": some(TEXTS),
        "w": some([-5, 2**63 - 1, None]),
        **key,
    }  # fmt: skip


class Changelog:
    """The rows of a view, epoch after epoch.

    Args:
        kind: `keyed`, `bag` (no key), `growing` (no key, nothing is deleted), `single` (one row), or
            `by` and the name of a column that is the key.
    """

    def __init__(self, kind: str = "keyed", seed: int = 1, columns: t.StructType = COLUMNS) -> None:
        self.kind, self.seed, self.columns = kind, seed, columns
        self.schema = arrow_schema(columns, ZONE)
        self._states: list[list[Row]] = [[]]

    def target(self, app: str = "eddyline/s/k1", **given: Any) -> Target:
        key = {"keyed": KEY, "single": ()}.get(self.kind)
        if self.kind.startswith("by "):
            key = (self.kind.removeprefix("by "),)
        growing = self.kind == "growing"
        return Target(app, "k", self.columns, self.schema, key, growing, **given)

    def state(self, epoch: int) -> list[Row]:
        """Return the rows as of an epoch."""
        while len(self._states) <= epoch:
            number = len(self._states)
            rnd = random.Random(self.seed * 1000 + number)
            rows = list(self._states[-1])
            if number % 5:  # every fifth epoch is empty
                for _ in range(rnd.randint(1, 5)):
                    self._step(rnd, rows)
            self._states.append(rows)
        return self._states[epoch]

    def _step(self, rnd: random.Random, rows: list[Row]) -> None:
        if self.kind == "keyed":
            key = {"K": rnd.choice([1, 2, 3, None]), "a.b": rnd.choice(TEXTS)}
            there = [r for r in rows if all(r[name] == key[name] for name in KEY)]
            for old in there:
                rows.remove(old)
            if not there or rnd.random() < 0.6:
                rows.append(row(rnd, key))
        elif self.kind.startswith("by "):
            name = self.kind.removeprefix("by ")
            new = row(rnd, {"K": rnd.randint(1, 3)})
            if isinstance(new[name], float):
                new[name] += 0.0  # Spark has no keys of -0.0
            there = [r for r in rows if repr(r[name]) == repr(new[name])]
            rows[:] = [r for r in rows if r not in there]
            if not there or rnd.random() < 0.6:
                rows.append(new)
        elif self.kind == "single":
            rows[:] = [row(rnd, {"K": 1})] if rnd.random() < 0.7 else []
        elif rows and self.kind == "bag" and rnd.random() < 0.4:
            rows.pop(rnd.randrange(len(rows)))
        else:
            again = bool(rows) and rnd.random() < 0.3
            rows.append(rnd.choice(rows) if again else row(rnd, {"K": rnd.randint(1, 9)}))

    def plain(self, epoch: int) -> pa.Table:
        return pa.Table.from_pylist(
            [{name: r.get(name) for name in self.schema.names} for r in self.state(epoch)],
            schema=self.schema,
        )

    def rows(self, epoch: int) -> pa.Table:
        """Return what a sink gets in `replace`."""
        return difference(self.plain(epoch).slice(0, 0), self.plain(epoch))

    def changes(self, base: int, epoch: int) -> pa.Table:
        """Return what a sink gets in `deliver`."""
        return difference(self.plain(base), self.plain(epoch))

    def expected(self, epoch: int) -> Counter[str]:
        return counted(self.plain(epoch))


def as_texts(rows: pa.Table) -> list[str]:
    """Return rows as texts that can be compared; NaN equals NaN."""
    return [repr(list(r.values())) for r in rows.to_pylist()]


def counted(rows: pa.Table) -> Counter[str]:
    """Return rows as a multiset that can be compared; NaN equals NaN."""
    return Counter(as_texts(rows))


def follow(sink: Sink, log: Changelog, last: int, rnd: random.Random) -> Epoch | None:
    """Deliver what comes after the epoch that the target holds; return that epoch."""
    base = sink.committed()
    if base is None:
        epoch = Epoch(min(last, rnd.randint(1, 3)))
        sink.replace(None, epoch, log.rows(epoch))
    elif base < last:
        epoch = Epoch(min(last, base + rnd.choice([1, 1, 1, 2, 4])))
        if rnd.random() < 0.15:
            sink.replace(base, epoch, log.rows(epoch))
        else:
            sink.deliver(base, epoch, log.changes(base, epoch))
    return base


@cache
def changelog(kind: str, seed: int = 1) -> Changelog:
    return Changelog(kind, seed)


def at_once(work: Callable[[int], None], number: int) -> None:
    """Call `work` with 0, 1, ... in threads side by side; raise the first error of one of them."""
    with ThreadPoolExecutor(number) as pool:
        for done in [pool.submit(work, turn) for turn in range(number)]:
            done.result()


class Letters:
    """Collects refused rows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.errors: list[str] = []

    def __call__(self, rows: pa.Table, errors: Sequence[str]) -> None:
        self.rows += [tuple(row.values()) for row in rows.to_pylist()]
        self.errors += errors
        assert rows.num_rows == len(errors)

    def clear(self) -> None:
        self.rows.clear()
        self.errors.clear()


SMALL = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def small(**rows: int) -> pa.Table:
    """Return changes: names with weights; the id is the length of the name."""
    weights = list(rows.values())
    return pa.table({
        "id": pa.array([len(name) for name in rows], pa.int64()),
        "name": pa.array([name.replace("_", "\0") for name in rows], pa.string()),
        "op": pa.array(["append" if w > 0 else "delete" for w in weights], pa.string()),
        "w": pa.array(weights, pa.int64()),
    })  # fmt: skip
