"""Tables of PostgreSQL as targets: rows and epoch in one transaction, also after kills and refusals."""

from __future__ import annotations

import doctest
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.sql import types as t

from eddyline.changes import Epoch
from eddyline.errors import CatalogError, EddylineError, EngineError, StateError
from eddyline.sink import base, postgres, postgres_rows, postgres_table, postgres_text, rows
from eddyline.sink.base import Sink, Target
from eddyline.sink.postgres import PostgresFormat
from eddyline_apps.postgres import Server
from postgres import PASSWORD, empty_database, server, without_password
from sink_cases import (
    COLUMNS,
    SCHEMA,
    SMALL,
    Changelog,
    Letters,
    at_once,
    changelog,
    follow,
    small,
)

KEYS = [name for name in COLUMNS.names if name != "map"]  # Spark has no maps as keys
CHILD = Path(__file__).parent / "sink_child.py"
FLOAT = COLUMNS.names.index("float")
WORD = "${env:WORD}"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def url(running: Server) -> str:
    """Provide the URL of an empty database."""
    return empty_database(running)


def opened(target: Target, url: str, **options: str) -> Sink:
    given = {"url": without_password(url), "table": "t", "password": WORD, **options}
    PostgresFormat().check(target, given)
    return PostgresFormat().open(target, given | {"password": PASSWORD})


@contextmanager
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True, options="-c timezone=UTC") as made:
        yield made


def run(url: str, statement: str) -> list[Any]:
    with connection(url) as made:
        cursor = made.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def plain(values: Sequence[Any]) -> str:
    """Return a row as text that doesn't tell 0.0 from -0.0."""
    row = [value + 0.0 if isinstance(value, float) else value for value in values]
    if len(row) == len(COLUMNS) and row[FLOAT] is not None:
        row[FLOAT] = float(np.float32(row[FLOAT]))
    return repr(row)


def held(url: str, names: Sequence[str] = COLUMNS.names, table: str = "t") -> Counter[str]:
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*table.split(".")))
    with connection(url) as made:
        return Counter(plain(row) for row in made.execute(query))


def expected(log: Changelog, epoch: int) -> Counter[str]:
    rows = []
    for row in log.state(epoch):
        given = {name: row.get(name) for name in log.columns.names}
        if given.get("struct"):
            at = given["struct"]["At"]
            text = at and at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
            given["struct"] = {"n": given["struct"]["n"], "At": text}
        if given.get("map") is not None:
            given["map"] = dict(given["map"])
        rows.append(plain(list(given.values())))
    return Counter(rows)


@pytest.mark.parametrize("kind", ["keyed", "single", "growing"])
def test_target_equals_view_after_each_delivery(kind: str, url: str) -> None:
    log, rnd = changelog(kind), random.Random(kind)
    sink = opened(log.target(), url)
    assert sink.committed() is None
    epoch = None
    while epoch != 30:
        if rnd.random() < 0.1:
            sink.close()
        follow(sink, log, 30, rnd)
        epoch = sink.committed()
        assert epoch is not None
        assert held(url) == expected(log, epoch)
    sink.close()
    [(stored, target)] = run(url, "SELECT epoch, target FROM eddyline_sinks")
    assert (stored, target) == (30, "t")


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_all_types(name: str, url: str) -> None:
    log = changelog(f"by {name}")
    sink = opened(log.target(), url)
    sink.replace(None, Epoch(2), log.rows(2))
    for epoch in (3, 4, 7, 9):
        base = sink.committed()
        assert base is not None
        sink.deliver(base, Epoch(epoch), log.changes(base, epoch))
        assert held(url) == expected(log, epoch)
    sink.replace(Epoch(9), Epoch(12), log.rows(12))
    epoch = 12
    assert held(url) == expected(log, epoch)


def test_types(url: str) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), url, table='"sa les"."T.x"')
    run(url, 'CREATE SCHEMA "sa les"')
    sink.replace(None, Epoch(3), log.rows(3))
    sink.close()
    found = run(
        url,
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 "
        'AND attrelid = \'"sa les"."T.x"\'::regclass ORDER BY attnum',
    )
    assert dict(found) == {
        "K": "bigint", "a.b": "text", "Select": "double precision", "größe": "numeric(38,10)",
        "a b": "timestamp with time zone", 'q"u`o': "timestamp without time zone", "day": "date",
        "raw": "bytea", "yes": "boolean", "tiny": "smallint", "float": "real", "list": "jsonb",
        "struct": "jsonb", "map": "jsonb", "op": "text", "w": "bigint",
    }  # fmt: skip
    assert run(url, 'SELECT epoch FROM "sa les".eddyline_sinks') == [(3,)]
    [(index,)] = run(url, "SELECT indexdef FROM pg_indexes WHERE tablename = 'T.x'")
    assert index.startswith("CREATE UNIQUE INDEX")
    assert index.endswith('("K", "a.b") NULLS NOT DISTINCT')


def test_names_with_percent_signs(url: str) -> None:
    columns = t.StructType(
        [t.StructField("%s", t.LongType()), t.StructField("100%", t.StringType())]
    )
    schema = pa.schema([("%s", pa.int64()), ("100%", pa.string())])
    run(url, 'CREATE SCHEMA "100%s"')
    sink = opened(Target("app", "k", columns, schema, ("%s",)), url, table='"100%s"."%t"')
    assert sink.committed() is None
    given = [*columns.names, "op", "w"]
    sink.replace(None, Epoch(1), small(a=1, bb=1).rename_columns(given))
    sink.deliver(Epoch(1), Epoch(2), small(a=-1, ccc=1).rename_columns(given))
    assert sink.committed() == 2
    assert sorted(run(url, 'SELECT "100%" FROM "100%s"."%t"')) == [("bb",), ("ccc",)]


def test_far_times(url: str) -> None:
    columns = t.StructType(
        [
            t.StructField("day", t.DateType()),
            t.StructField("moment", t.TimestampType()),
            t.StructField("local", t.TimestampNTZType()),
        ]
    )
    kinds = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
    days = (0, 14_000_000, 2_100_000_000, -1_000_000)
    micros = (0, 10**18, 9_214_318_015_999_999_999, None)
    values = [pa.array(days, pa.int32()).view(kinds[0])]
    values += [pa.array(micros, pa.int64()).view(kind) for kind in kinds[1:]]
    letters: list[str] = []
    schema = pa.schema(list(zip(columns.names, kinds, strict=True)))

    def refuse(_: pa.Table, errors: Sequence[str]) -> None:
        letters.extend(errors)

    target = Target("app", "k", columns, schema, append_only=True, refuse=refuse)
    rows = pa.table([*values, ["append"] * 4, [1] * 4], names=[*columns.names, "op", "w"])
    opened(target, url).replace(None, Epoch(1), rows)
    found = run(url, "SELECT day::text, (moment AT TIME ZONE 'UTC')::text, local::text FROM t")
    moments = "1970-01-01 00:00:00", "33658-09-27 01:46:40", "293960-02-12 06:13:19.999999"
    assert sorted(found, key=str) == [
        ("1970-01-01", moments[0], moments[0]),
        ("40300-09-13", moments[1], moments[1]),
        ("5751574-09-19", moments[2], moments[2]),
    ]
    assert letters == ['time zone displacement out of range: "-0768-02-04"']


def test_replace_and_update_touch_only_what_differs(url: str) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), url)
    sink.replace(None, Epoch(20), log.rows(20))
    before = run(url, "SELECT ctid, xmin FROM t ORDER BY 1")
    sink.replace(Epoch(20), Epoch(21), log.rows(20))
    assert run(url, "SELECT ctid, xmin FROM t ORDER BY 1") == before
    sink.replace(Epoch(21), Epoch(22), log.rows(22))
    same = sum((expected(log, 20) & expected(log, 22)).values())
    assert len({*run(url, "SELECT ctid, xmin FROM t")} & {*before}) >= same
    assert held(url) == expected(log, 22)
    sink.close()


@pytest.mark.guarantee(
    "sink `postgres`", "exactly once", "nothing: an older engine goes on beside the new one"
)
def test_a_zombie_is_refused(url: str) -> None:
    log = changelog("keyed")
    first, zombie = (opened(log.target(), url) for _ in range(2))
    first.replace(None, Epoch(3), log.rows(3))
    assert zombie.committed() == 3
    first.deliver(Epoch(3), Epoch(6), log.changes(3, 6))
    for epoch in (4, 6, 7):
        with pytest.raises(StateError, match="SINK_TARGET_MOVED"):
            zombie.deliver(Epoch(3), Epoch(epoch), log.changes(3, epoch))
    with pytest.raises(StateError, match="SINK_TARGET_MOVED"):
        zombie.replace(None, Epoch(6), log.rows(6))
    assert zombie.committed() == 6
    assert held(url) == expected(log, 6)


@pytest.mark.parametrize("kind", ["keyed", "growing"])
def test_sinks_at_once_deliver_nothing_twice(kind: str, url: str) -> None:
    log = changelog(kind)
    moved: list[str] = []

    def work(seed: int) -> None:
        rnd = random.Random(seed)
        sink = opened(log.target(), url)
        while True:
            try:
                if follow(sink, log, 40, rnd) == 40:
                    sink.close()
                    return
            except StateError as error:
                moved.append(error.condition)

    at_once(work, 3)
    assert set(moved) <= {"SINK_TARGET_MOVED"}
    assert held(url) == expected(log, 40)


def test_several_sinks_start_at_once(url: str) -> None:
    log = changelog("keyed")

    def work(number: int) -> None:
        sink = opened(log.target(f"app{number}"), url, table=f"t{number}")
        sink.replace(sink.committed(), Epoch(4), log.rows(4))
        sink.close()

    at_once(work, 6)
    assert run(url, "SELECT count(*), min(epoch) FROM eddyline_sinks") == [(6, 4)]


def test_foreign_rows_need_overwrite(url: str) -> None:
    log = changelog("keyed")
    run(
        url,
        "CREATE TABLE t (k int); INSERT INTO t VALUES (1), (1); CREATE VIEW v AS SELECT k FROM t",
    )
    with pytest.raises(StateError, match="SINK_TARGET_NOT_EMPTY"):
        opened(log.target(), url).replace(None, Epoch(3), log.rows(3))
    assert run(url, "SELECT * FROM t") == [(1,), (1,)]
    sink = opened(log.target(), url, overwrite="true")
    sink.replace(None, Epoch(3), log.rows(3))
    assert sink.committed() == 3
    assert held(url, ["k", *COLUMNS.names[1:]]) == expected(log, 3)


@pytest.mark.parametrize("table", ["t", "public.t"])
def test_a_table_has_one_sink(table: str, url: str) -> None:
    log, present = changelog("keyed"), {"app1": "first"}
    target = log.target("app2", others=lambda: present)
    first = opened(log.target("app1"), url)
    first.replace(None, Epoch(1), log.rows(0))
    run(url, "INSERT INTO eddyline_sinks VALUES ('app3', 'other', 7), ('app4', 'x.other', 7)")
    with pytest.raises(StateError, match=r"SINK_TARGET_NOT_EMPTY.*one of sink first"):
        opened(target, url, table=table).replace(None, Epoch(3), log.rows(3))
    assert first.committed() == 1
    second = opened(target, url, table=table, overwrite="true")
    second.replace(None, Epoch(3), log.rows(3))
    assert first.committed() is None  # so it delivers no more
    assert run(url, "SELECT count(*) FROM eddyline_sinks") == [(3,)]
    run(url, "DELETE FROM t")
    opened(log.target("app5"), url).replace(None, Epoch(4), log.rows(4))  # app2 was dropped
    assert held(url) == expected(log, 4)


def test_new_columns_are_added(url: str) -> None:
    few = t.StructType([field for field in COLUMNS if field.name in ("K", "a.b", "op")])
    old, new = Changelog("keyed", columns=few), changelog("keyed")
    sink = opened(old.target(), url)
    sink.replace(None, Epoch(9), old.rows(9))
    assert held(url, few.names) == expected(old, 9)
    sink = opened(new.target(), url)
    sink.replace(sink.committed(), Epoch(10), new.rows(10))
    sink.deliver(Epoch(10), Epoch(12), new.changes(10, 12))
    assert held(url) == expected(new, 12)


def test_a_dropped_column_stops_the_sink(url: str) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), url)
    sink.replace(None, Epoch(3), log.rows(3))
    run(url, "ALTER TABLE t RENAME tiny TO small")
    with pytest.raises(StateError, match=r"SINK_TARGET_RESTORED.*no column tiny.*resend"):
        sink.deliver(Epoch(3), Epoch(6), log.changes(3, 6))
    assert sink.committed() == 3
    sink.replace(Epoch(3), Epoch(6), log.rows(6))  # what resend() does
    sink.deliver(Epoch(6), Epoch(9), log.changes(6, 9))
    assert held(url) == expected(log, 9)


def test_a_dropped_table_is_a_target_without_an_epoch(url: str) -> None:
    log = changelog("keyed")
    sink = opened(log.target(), url)
    sink.replace(None, Epoch(3), log.rows(3))
    run(url, "DROP TABLE t")
    assert sink.committed() is None
    sink.replace(None, Epoch(6), log.rows(6))
    assert sink.committed() == 6
    assert held(url) == expected(log, 6)


def test_examples() -> None:
    for module in (base, postgres, postgres_table, postgres_text, rows):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("key", [("id",), None])
def test_refused_rows_become_dead_letters(key: tuple[str, ...] | None, url: str) -> None:
    run(url, "CREATE TABLE t (id int PRIMARY KEY, name varchar(7) CHECK (name <> 'bad'))")
    letters = Letters()
    target = Target("app", "k", SMALL, SCHEMA, key, key is None, refuse=letters)
    sink = opened(target, url)
    sink.replace(None, Epoch(1), small(a=1, bb=1, bad=1, dddd=1, xxx_x=1, ffffff=1, longlonglong=1))
    assert sorted(run(url, "SELECT name FROM t")) == [("a",), ("bb",), ("dddd",), ("ffffff",)]
    assert run(url, "SELECT count(*) FROM pg_indexes WHERE tablename = 't'") == [(1,)]
    assert sorted(row[1] for row in letters.rows) == ["bad", "longlonglong", "xxx\0x"]
    assert any("violates check constraint" in error for error in letters.errors)
    if key:
        sink.deliver(Epoch(1), Epoch(2), small(bad=-1, ccc=1, bb=-1, _b=1, dddd=-1))
        assert sorted(run(url, "SELECT name FROM t")) == [("a",), ("ccc",), ("ffffff",)]
        sink.replace(Epoch(2), Epoch(3), small(zz=1, bad=1, ffffff=1))
        assert sorted(run(url, "SELECT name FROM t")) == [("ffffff",), ("zz",)]
    else:
        sink.deliver(Epoch(1), Epoch(2), small(bad=1, ggggg=1))
        assert len(run(url, "SELECT name FROM t")) == 5
    assert sink.committed() == (3 if key else 2)


def names(*new: str, old: Sequence[str] = ()) -> pa.Table:
    """Return changes from some rows to others: each name has its place as the id."""
    sides = [
        pa.table(
            {"id": pa.array(range(len(some)), pa.int64()), "name": pa.array(some, pa.string())}
        )
        for some in (old, new)
    ]
    return rows.difference(*sides)


UNIQUE_NAMES = """
    CREATE TABLE t (
        id bigint PRIMARY KEY, name text UNIQUE NOT NULL CHECK (name <> 'bad'),
        number int GENERATED ALWAYS AS IDENTITY, note text DEFAULT 'none',
        long int GENERATED ALWAYS AS (length(name)) STORED
    )
"""


def test_unique_values_change_places(url: str) -> None:
    run(url, UNIQUE_NAMES)
    letters = Letters()
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",), refuse=letters), url)
    first, second = ("a", "b", "c", "d", "e"), ("b", "a", "d", "e", "c", "f")
    sink.replace(None, Epoch(1), names(*first))
    run(url, "UPDATE t SET note = 'of ' || id")
    sink.deliver(Epoch(1), Epoch(2), names(*second, old=first))
    query = "SELECT id, name, number, note, long FROM t ORDER BY id"
    found = run(url, query)
    assert [row[1] for row in found] == list(second)
    assert [row[2] for row in found[:5]] == [1, 2, 3, 4, 5]
    assert [row[3] for row in found] == [*(f"of {place}" for place in range(5)), "none"]
    assert letters.errors == []
    third = ("a", "b", "e", "bad", "d", "ffff")  # also beside a row that is refused
    sink.deliver(Epoch(2), Epoch(3), names(*third, old=second))
    assert [row[:2] for row in run(url, query)] == [
        (0, "a"),
        (1, "b"),
        (2, "e"),
        (4, "d"),
        (5, "ffff"),
    ]
    assert [row[1] for row in letters.rows] == ["bad"]
    fourth = ("b", "a", "d", "c", "e", "g")
    sink.replace(Epoch(3), Epoch(4), names(*fourth))
    assert [row[1] for row in run(url, query)] == list(fourth)
    assert len(letters.errors) == 1
    run(url, "UPDATE t SET id = 9 WHERE id = 5")  # a row of somebody else
    sink.deliver(Epoch(4), Epoch(5), names("b", "a", "d", "c", "g", "e", old=fourth))
    assert [row[:2] for row in run(url, query)][4:] == [(5, "e"), (9, "g")]
    assert [row[1] for row in letters.rows] == ["bad", "g"]


def test_unique_values_change_places_and_rows_of_others_stay(url: str) -> None:
    run(url, UNIQUE_NAMES)
    run(url, "CREATE TABLE child (t bigint REFERENCES t ON DELETE CASCADE)")
    letters = Letters()
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",), refuse=letters), url)
    sink.replace(None, Epoch(1), names("a", "b", "c"))
    run(url, "INSERT INTO child VALUES (0), (2)")
    sink.deliver(Epoch(1), Epoch(2), names("a", "c", "b", old=("a", "b", "c")))
    assert len(letters.errors) == 2  # as before, since their rows can't be taken out
    assert run(url, "SELECT t FROM child WHERE t = 0") == [(0,)]
    run(url, "ALTER TABLE t DROP CONSTRAINT t_name_key, ADD UNIQUE (name) DEFERRABLE")
    sink.replace(Epoch(2), Epoch(3), names("a", "b"))
    sink.deliver(Epoch(3), Epoch(4), names("b", "a", old=("a", "b")))
    assert run(url, "SELECT id, name FROM t ORDER BY id") == [(0, "b"), (1, "a")]
    assert run(url, "SELECT t FROM child") == [(0,)]
    assert len(letters.errors) == 2


def test_a_table_that_refuses_most_rows_is_no_target(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_rows, "REFUSED_MIN", 25)
    run(url, "CREATE TABLE t (id int, name text, other int NOT NULL)")
    count = 300
    many = pa.table({"id": np.arange(count), "name": pa.array(["x"] * count)})
    ones = pa.array(np.ones(count, np.int64))
    many = many.append_column("op", pa.array(["append"] * count)).append_column("w", ones)
    letters = Letters()
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",), refuse=letters), url)
    with pytest.raises(EngineError, match=r"SINK_FAILED.*refuses most rows.*not-null constraint"):
        sink.replace(None, Epoch(1), many)
    assert letters.errors == []


def test_refused_rows_stop_the_sink(url: str) -> None:
    target = Target("app", "k", SMALL, SCHEMA, ("id",), refuse=Letters())
    sink = opened(target, url, on_refused="stop")
    sink.replace(None, Epoch(1), small(a=1))
    with pytest.raises(StateError, match="SINK_REFUSED"):
        sink.deliver(Epoch(1), Epoch(2), small(bb=1, c_c=1))
    assert sink.committed() == 1
    assert run(url, "SELECT name FROM t") == [("a",)]


def test_letters_that_cant_be_kept_roll_back(url: str) -> None:
    sink = opened(Target("app", "k", SMALL, SCHEMA, ("id",)), url)
    sink.replace(None, Epoch(1), small(a=1))
    with pytest.raises(StateError, match="SINK_REFUSED"):
        sink.deliver(Epoch(1), Epoch(2), small(bb=1, c_c=1))
    assert sink.committed() == 1


@pytest.mark.parametrize(
    ("kind", "options", "error", "condition"),
    [
        ("keyed", {"url": ""}, EngineError, "BAD_OPTION"),
        ("keyed", {"url": "postgresql://u:hidden@h/d"}, EngineError, "BAD_OPTION"),
        ("keyed", {"url": "host=h password=hidden"}, EngineError, "BAD_OPTION"),
        ("keyed", {"url": "postgresql://h/d?password=hidden"}, EngineError, "BAD_OPTION"),
        ("keyed", {"url": "postgresql://u:hid@den@h/d x=1"}, EngineError, "BAD_OPTION"),
        ("keyed", {"table": ""}, EngineError, "BAD_OPTION"),
        ("keyed", {"table": "a.b.c"}, EngineError, "BAD_OPTION"),
        ("keyed", {"table": 'a"b'}, EngineError, "BAD_OPTION"),
        ("keyed", {"on_refused": "drop"}, EngineError, "BAD_OPTION"),
        ("keyed", {"overwrite": "1"}, EngineError, "BAD_OPTION"),
        ("keyed", {"key": "K"}, CatalogError, "SINK_KEY"),
        ("bag", {}, CatalogError, "SINK_KEY"),
    ],
)
def test_checks(
    kind: str, options: dict[str, str], error: type[EddylineError], condition: str
) -> None:
    given = {"url": "postgresql://u@h/d", "table": "t", **options}
    with pytest.raises(error) as raised:
        PostgresFormat().check(changelog(kind).target(), given)
    assert raised.value.condition == condition
    assert "hid" not in str(raised.value)


@pytest.mark.parametrize("kind", [t.VariantType(), t.ArrayType(t.NullType())])
def test_types_that_postgres_lacks(kind: t.DataType) -> None:
    columns = t.StructType([t.StructField("col", kind)])
    target = Target("app", "k", columns, pa.schema([]), append_only=True)
    with pytest.raises(CatalogError, match="UNSUPPORTED_TYPE"):
        PostgresFormat().check(target, {"url": "host=h", "table": "t"})


@pytest.mark.parametrize("name", ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"])
def test_names_of_system_columns_are_refused(name: str, url: str) -> None:
    with pytest.raises(psycopg.Error, match="system column"):
        run(url, f"CREATE TABLE t ({name} int)")
    columns = t.StructType([t.StructField(name, t.LongType()), t.StructField("b", t.LongType())])
    target = Target("app", "k", columns, pa.schema([]), append_only=True)
    with pytest.raises(CatalogError, match=f"INVALID_NAME.*column {name} .*another name with AS"):
        PostgresFormat().check(target, {"url": "host=h", "table": "t"})
    run(url, f'CREATE TABLE t ("{name.upper()}" int)')
    upper = t.StructType([t.StructField(name.upper(), t.LongType())])
    target = Target("app", "k", upper, pa.schema([]), append_only=True)
    PostgresFormat().check(target, {"url": "host=h", "table": "t"})


def test_a_url_may_be_a_reference_that_has_no_value_yet(url: str) -> None:
    log = changelog("keyed")
    given = {"url": "${env:NOT_SET_HERE}", "table": "t"}
    PostgresFormat().check(log.target(), given)
    sink = PostgresFormat().open(log.target(), given | {"url": url})  # as replaced, with a password
    assert sink.committed() is None
    with pytest.raises(EngineError, match="BAD_OPTION"):
        PostgresFormat().check(log.target(), given | {"url": url})


def test_errors_of_the_server_hide_the_password(url: str) -> None:
    log = changelog("keyed")
    given = {"url": without_password(url), "table": "t"}
    wrong = PostgresFormat().open(log.target(), given | {"password": "hidden"})
    with pytest.raises(EngineError, match="SINK_FAILED") as raised:
        wrong.committed()
    assert "hidden" not in str(raised.value)
    assert raised.value.__cause__ is None
    sink = opened(log.target(), url, table="nowhere.t")
    with pytest.raises(EngineError, match="SINK_FAILED"):
        sink.replace(sink.committed(), Epoch(3), log.rows(3))


def test_many_rows_are_copied_and_merged_by_index(url: str) -> None:
    count = 50_000
    target = Target("app", "k", SMALL, SCHEMA, ("id",))
    many = pa.table({"id": np.arange(count), "name": pa.array(["x"] * count)})
    ones = pa.array(np.ones(count, np.int64))
    many = many.append_column("op", pa.array(["append"] * count)).append_column("w", ones)
    sink = opened(target, url)
    sink.replace(None, Epoch(1), many)
    for epoch in range(1, 4):
        new = pa.table({"id": [epoch], "name": ["y"], "op": ["append"], "w": [1]})
        old = pa.table({"id": [epoch], "name": ["x"], "op": ["delete"], "w": [-1]})
        sink.deliver(Epoch(epoch), Epoch(epoch + 1), pa.concat_tables([old, new]))
    sink.replace(Epoch(4), Epoch(5), many.slice(2))
    assert run(url, "SELECT count(*), min(id), min(name), max(name) FROM t") == [
        (count - 2, 2, "x", "x")
    ]


def kill(running: Server, url: str, last: int, kills: int, *, server_too: bool) -> None:
    given = {"url": without_password(url), "table": "t", "password": PASSWORD}
    command = [
        sys.executable,
        str(CHILD),
        "postgres",
        json.dumps(given),
        str(last),
        str(kills),
        "2",
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rnd, restarts = random.Random(3), 0
    while server_too and child.poll() is None:
        time.sleep(rnd.uniform(0.3, 1.5))
        running.kill()
        running.start()
        restarts += 1
    out, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    assert int(out) >= kills * 0.7
    assert restarts >= (kills // 8 if server_too else 0)
    log = changelog("keyed")
    sink = opened(log.target(), url)
    assert sink.committed() == last
    assert held(url) == expected(log, last)
    sink.close()


@pytest.mark.guarantee("sink `postgres`", "exactly once", "the sink's process, 5 times by kill -9")
def test_kills(running: Server, url: str) -> None:
    kill(running, url, 120, 5, server_too=False)


@pytest.mark.guarantee(
    "sink `postgres`",
    "exactly once",
    "the sink's process, 40 times by kill -9, and the server with all its processes, again and again",
)
@pytest.mark.slow
def test_many_kills_of_sink_and_server(running: Server, url: str) -> None:
    kill(running, url, 900, 40, server_too=True)
