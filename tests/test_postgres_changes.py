"""Streams of the changes of a table in PostgreSQL: `USING postgres`."""

from __future__ import annotations

import datetime
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import eddyline as el
from eddyline.errors import EddylineError
from eddyline.source import postgres
from eddyline.source.log_files import LogColumn
from eddyline.source.pgoutput import ADDED
from eddyline.source.postgres import PostgresStream
from eddyline.source.postgres_server import Server
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import read_arrow
from eddyline.storage.files import Files
from eddyline_apps.postgres import Server as Program
from lags import Measured, told_before_entries
from postgres import PASSWORD, server, without_password
from processes import Child
from waiting import PATIENCE_S, until

_NUMBERS = itertools.count()
COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string())])


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with server("wal_level=logical", "max_replication_slots=60") as made:
        yield made


@dataclass
class Source:
    """A table of the server, and a connection to change it."""

    program: Program
    table: str
    connection: psycopg.Connection

    def run(self, *statements: str) -> None:
        """Run statements in one transaction; `t` stands for the table."""
        with self.connection.transaction():
            for one in statements:
                self.connection.execute(one.replace(" t ", f" {self.table} "))

    def rows(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT * FROM {self.table} ORDER BY 1").fetchall()

    def slots(self) -> list[str]:
        query = "SELECT slot_name FROM pg_replication_slots ORDER BY 1"
        return [name for (name,) in self.connection.execute(query)]


@pytest.fixture
def source(program: Program) -> Iterator[Source]:
    with psycopg.connect(program.url, autocommit=True) as connection:
        one = Source(program, f"t{next(_NUMBERS)}_", connection)
        one.run("CREATE TABLE t (id bigint PRIMARY KEY, a int, b text)")
        yield one
    with psycopg.connect(program.url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {one.table}")
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        )


def stream_of(source: Source, folder: Path, **names: str) -> PostgresStream:
    columns = pa.schema([*COLUMNS, *ADDED])
    return PostgresStream(
        source.table,
        source.table,
        names.get("slot", ""),
        names.get("publication", ""),
        [LogColumn(f"c{place}", one.name, one.type) for place, one in enumerate(columns)],
        lambda _: None,
        lambda: Server(psycopg, psycopg.conninfo.conninfo_to_dict(source.program.url)),
        RedoLog(Files(str(folder)), "s"),
        "checkpoints/s",
    )


def entries(stream: PostgresStream) -> list[list[dict[str, Any]]]:
    """The rows of each entry of the redo log; checks that they are in order."""
    names, found = [one.name for one in stream.wanted], []
    for number in range(stream.log.start(), stream.log.end()):
        rows = [
            row
            for segment in stream.log.segments(number, number + 1)
            for row in read_arrow(stream.log.files, segment).rename_columns(names).to_pylist()
        ]
        found.append(rows)
    whole = [row for rows in found for row in rows]
    assert [row["_seq"] for row in whole] == [*range(len(whole))]
    assert [row["_lsn"] for row in whole] == sorted(row["_lsn"] for row in whole)
    return found


def live(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows of the table that changes lead to; each change must fit those before it."""
    table: dict[int, tuple[Any, ...]] = {}
    for row in rows:
        values = (row["id"], row["a"], row["b"])
        match row["_op"]:
            case "snapshot" | "insert":
                assert row["id"] not in table
                table[row["id"]] = values
            case "update":
                assert row["id"] in table
                table[row["id"]] = values
            case "delete":
                assert values[1:] == (None, None)
                del table[row["id"]]
            case "truncate":
                assert values == (None, None, None)
                table.clear()
            case other:
                raise AssertionError(other)
    return sorted(table.values())


def mirrored(stream: PostgresStream) -> list[tuple[Any, ...]]:
    return live([row for rows in entries(stream) for row in rows])


def test_a_snapshot_and_then_each_change(source, tmp_path):
    source.run("INSERT INTO t VALUES (1, 10, 'one'), (2, NULL, ''), (3, 3, E'x\\n\"ü\",,')")
    stream = stream_of(source, tmp_path)
    stream.pull()
    source.run("INSERT INTO t VALUES (4, 4, 'four')", "UPDATE t SET a = a + 1 WHERE id = 1")
    source.run("UPDATE t SET id = 20 WHERE id = 2", "DELETE FROM t WHERE id = 3")
    stream.pull()
    snapshot, changes = entries(stream)
    assert [(row["id"], row["a"], row["b"], row["_op"]) for row in snapshot] == [
        (1, 10, "one", "snapshot"),
        (2, None, "", "snapshot"),
        (3, 3, 'x\n"ü",,', "snapshot"),
    ]
    assert [(row["id"], row["a"], row["b"], row["_op"]) for row in changes] == [
        (4, 4, "four", "insert"),
        (1, 11, "one", "update"),
        (2, None, None, "delete"),
        (20, None, "", "insert"),
        (3, None, None, "delete"),
    ]
    assert len({row["_lsn"] for row in changes}) == 2
    assert all(row["_committed_at"].year >= 2020 for row in changes)
    again = stream_of(source, tmp_path)
    again.pull()
    assert len(entries(again)) == 2
    source.run("TRUNCATE t ", "INSERT INTO t VALUES (1, 1, 'new')")
    again.pull()
    assert [row["_op"] for row in entries(again)[2]] == ["truncate", "insert"]
    source.run("TRUNCATE t ")
    again.pull()
    assert mirrored(again) == source.rows() == []


WRITERS = 3


class Writers:
    """Threads that change a table in small transactions, some of which fail; the sum of `a` stays 0."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._stop, self.done = source, threading.Event(), 0
        self._threads = [
            threading.Thread(target=self._write, args=(seed * WRITERS + n, n))
            for n in range(WRITERS)
        ]

    def __enter__(self) -> Writers:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for one in self._threads:
            one.join()

    def wait(self, done: int) -> None:
        """Wait until so many transactions were tried."""
        until(lambda: self.done >= done)

    def _write(self, seed: int, writer: int) -> None:
        dice, table = random.Random(seed), self._source.table
        with psycopg.connect(self._source.program.url, autocommit=True) as connection:
            while not self._stop.is_set():
                if dice.random() < 0.003:
                    connection.execute(f"TRUNCATE {table}")
                with suppress(ZeroDivisionError), connection.transaction():
                    amount = dice.randrange(100)
                    for sign in (1, -1):
                        key = dice.randrange(50) * WRITERS + writer
                        connection.execute(
                            f"INSERT INTO {table} VALUES (%s, %s, %s) "
                            "ON CONFLICT (id) DO UPDATE SET a = t.a + excluded.a, b = excluded.b".replace(
                                "VALUES", "AS t VALUES"
                            ),
                            [key, sign * amount, f"{seed} {amount}"],
                        )
                        if dice.random() < 0.2:
                            connection.execute(
                                f"DELETE FROM {table} WHERE id = %s AND a = 0", [key]
                            )
                        if dice.random() < 0.1:
                            connection.execute(
                                f"UPDATE {table} SET id = id + 1000 * %s WHERE id = %s AND NOT EXISTS "
                                f"(SELECT FROM {table} WHERE id = %s + 1000 * %s)",
                                [WRITERS, key, key, WRITERS],
                            )
                    if dice.random() < 0.1:
                        raise ZeroDivisionError
                self.done += 1
                time.sleep(0.005)


def checked(stream: PostgresStream) -> int:
    """Check that each entry ends with whole transactions of `Writers`; return the number of entries."""
    rows, number = [], 0
    for number, entry in enumerate(entries(stream), 1):
        rows += entry
        assert sum(a for _, a, _ in live(rows)) == 0, number
    return number


def test_nothing_is_lost_or_doubled_beside_writers(source, tmp_path, monkeypatch):
    """The reader forgets what it has in memory, as after a crash, and begins while they write."""
    monkeypatch.setattr(postgres, "ENTRY_MESSAGES", 60)
    with Writers(source, 1) as writers:
        writers.wait(100)
        stream = stream_of(source, tmp_path)
        for turn in range(12):
            writers.wait(writers.done + 40)  # of two messages or more: more than one entry a pull
            stream.pull()
            if turn % 3 == 2:
                stream.stop()
                stream = stream_of(source, tmp_path)
        assert writers.done > 100
    stream.pull()
    assert mirrored(stream) == source.rows()
    assert checked(stream) > 12
    stream.stop()


def test_following_goes_on_through_a_restart_of_the_server(source, tmp_path, monkeypatch):
    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    stream = stream_of(source, tmp_path)
    assert stream.unread() is None
    told = told_before_entries(stream, monkeypatch)
    follow_until(stream, lambda: mirrored(stream) == source.rows())
    source.run("INSERT INTO t VALUES (2, 2, 'two')")
    follow_until(stream, lambda: mirrored(stream) == source.rows())
    snapshot, change = told
    assert snapshot is None  # how much of a snapshot is left isn't known
    assert (change.unit, change.amount > 0) == ("bytes", True)
    stream.stop()
    assert stream.unread().amount == 0

    measured = Measured(stream)
    lag = measured.lag()
    assert (lag["rows"], lag["bytes"]) == (2, 0)
    assert measured.lag(processed=2) == {"rows": 0, "bytes": 0}
    source.run("UPDATE t SET a = 3")
    source.program.stop()
    with pytest.raises(EddylineError, match="STREAM_FAILED") as failed:
        follow_until(stream, lambda: False)
    assert PASSWORD not in str(failed.value)
    # what the server has by now nobody knows, but how old the last look is
    before = time.time_ns() // 1000
    (error,) = measured.sources.pull()
    assert "STREAM_FAILED" in str(error)
    assert measured.lag(processed=2)["since"] < before
    source.program.start()
    source.connection = psycopg.connect(source.program.url, autocommit=True)
    source.run("DELETE FROM t WHERE id = 1")
    follow_until(stream, lambda: mirrored(stream) == source.rows() == [(2, 3, "two")])
    stream.stop()
    source.connection.close()


def follow_until(stream: PostgresStream, done: Callable[[], bool]) -> None:
    def followed() -> bool:
        stream.follow(0.1)
        return done()

    until(followed)


class CrashError(Exception):
    pass


@pytest.mark.guarantee(
    "stream `postgres`", "exactly once", "a crash at each write of the snapshot and of changes"
)
def test_a_crash_at_any_write_loses_and_doubles_nothing(source, tmp_path):
    """Of the snapshot, of an entry of changes, and of the slot's advance without changes."""
    source.run("INSERT INTO t VALUES (1, 0, 'one')")
    crashes = 0
    for phase in ("snapshot", "changes"):
        for effect in range(100):
            folder = tmp_path / f"{phase}{effect}"
            stream, left = stream_of(source, folder), effect
            if phase == "changes":
                stream.pull()
                source.run("UPDATE t SET a = a + 1", f"INSERT INTO t VALUES ({effect + 10}, 1, '')")

            def step(*_: object) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise CrashError

            stream.log.files.step = step  # type: ignore[method-assign]
            with suppress(CrashError):
                stream.pull()
            source.run("UPDATE t SET a = a + 1")
            stream = stream_of(source, folder)
            for _ in range(2):  # the second one advances the slot
                stream.pull()
                assert mirrored(stream) == source.rows()
            stream.drop()
            if left >= 0:
                break
            crashes += 1
        assert source.slots() == []
    assert crashes > 15


def test_the_slot_is_let_go_of_what_the_log_has(source, tmp_path, monkeypatch):
    monkeypatch.setattr(postgres, "KEPT_BYTES", 10_000)
    stream = stream_of(source, tmp_path)
    stream.pull()
    (name,) = source.slots()
    source.run("INSERT INTO t VALUES (1, 1, 'one')")

    def confirmed() -> int:
        found = stream.server.slot(name)
        assert found is not None
        return found.confirmed

    first = confirmed()
    stream.pull()
    assert confirmed() == first  # the entry is in the log, but only the next call knows
    stream.pull()
    second = confirmed()
    assert second > first
    source.connection.execute("CREATE TABLE other AS SELECT generate_series(1, 1000)")
    source.connection.execute("DROP TABLE other")
    stream.pull()
    stream.pull()
    assert confirmed() > second
    assert len(entries(stream)) == 1
    stream.drop()


def test_values_stored_apart_are_taken_from_the_old_row_or_refused(source, tmp_path):
    long = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n"
    stream = stream_of(source, tmp_path)
    stream.pull()
    source.run(f"INSERT INTO t VALUES (1, 1, ({long}))")
    source.run("UPDATE t SET b = b || 'x'")
    source.run("UPDATE t SET a = 2")
    for _ in range(2):
        with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*column b.*REPLICA IDENTITY FULL"):
            stream.pull()
    stream.drop()
    with pytest.raises(EddylineError, match=r"BAD_STREAM.*REPLICA IDENTITY FULL"):
        stream_of(source, tmp_path / "again").pull()
    source.run("ALTER TABLE t REPLICA IDENTITY FULL")
    stream = stream_of(source, tmp_path / "full")
    stream.pull()
    source.run("UPDATE t SET a = 3")
    source.run("UPDATE t SET id = 2, a = 4")
    stream.pull()
    rows = entries(stream)[1]
    assert [(row["id"], row["a"], row["_op"]) for row in rows] == [
        (1, 3, "update"),
        (1, 3, "delete"),
        (2, 4, "insert"),
    ]
    assert {len(row["b"]) for row in rows} == {400 * 32 + 1}
    stream.drop()


def test_a_changed_table_stops_the_stream_after_what_came_before(source, tmp_path):
    stream = stream_of(source, tmp_path)
    stream.pull()
    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    source.run("ALTER TABLE t ADD COLUMN more int DEFAULT 5")  # which the stream doesn't have
    source.run("INSERT INTO t VALUES (2, 2, 'two')")
    source.run("ALTER TABLE t ALTER COLUMN a TYPE bigint")
    source.run("INSERT INTO t VALUES (3, 3, 'three')")
    for _ in range(2):
        with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*column a has another type"):
            stream.pull()
        assert mirrored(stream) == [(1, 1, "one"), (2, 2, "two")]
    stream.drop()
    stream = stream_of(source, tmp_path / "dropped")
    stream.pull()
    source.run("DELETE FROM t WHERE id = 1")
    source.run("DROP TABLE t ")
    with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*has been dropped"):
        stream.pull()
    assert [row["id"] for row in entries(stream)[1]] == [1]
    stream.drop()


def test_many_changes_of_other_tables_are_passed_over(source, tmp_path, monkeypatch):
    monkeypatch.setattr(postgres, "ENTRY_MESSAGES", 50)
    source.run(
        "CREATE PUBLICATION every FOR ALL TABLES", "CREATE TABLE beside (id int PRIMARY KEY)"
    )
    stream = stream_of(source, tmp_path, publication="every")
    stream.pull()
    for start in range(0, 300, 30):
        source.run(f"INSERT INTO beside SELECT generate_series({start}, {start + 29})")
    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    stream.pull()
    assert mirrored(stream) == source.rows()
    assert len(entries(stream)) == 1
    stream.drop()
    source.run("DROP PUBLICATION every", "DROP TABLE beside")


def test_a_slot_that_is_gone_or_was_read_by_others_is_an_error(source, tmp_path):
    stream = stream_of(source, tmp_path)
    stream.pull()
    (name,) = source.slots()
    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    source.connection.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", [name]
    )
    with pytest.raises(EddylineError, match=f"SOURCE_LOST.*{name}.*read by somebody else"):
        stream.pull()
    source.connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    with pytest.raises(EddylineError, match=r"SOURCE_LOST.*isn't there any more"):
        stream.pull()
    source.connection.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    with pytest.raises(EddylineError, match=r"BAD_STREAM.*taken"):
        stream_of(source, tmp_path / "other", slot="taken").pull()
    source.connection.execute("SELECT pg_drop_replication_slot('taken')")


def test_a_slot_in_use_is_waited_for(source, tmp_path, monkeypatch):
    stream = stream_of(source, tmp_path)
    stream.pull()
    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    left = 3
    changes = Server.changes

    def busy(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise psycopg.errors.ObjectInUse
        return changes(*given)

    monkeypatch.setattr(Server, "changes", busy)
    monkeypatch.setattr(postgres, "BUSY_S", PATIENCE_S)
    stream.pull()
    assert mirrored(stream) == source.rows()
    monkeypatch.setattr(postgres, "BUSY_S", 0.2)
    source.run("INSERT INTO t VALUES (2, 2, 'two')")
    left = 100
    with pytest.raises(EddylineError, match="STREAM_FAILED"):
        stream.pull()


def test_partitions_and_a_publication_of_the_user(source, tmp_path):
    source.run(
        "DROP TABLE t ",
        "CREATE TABLE t (id bigint PRIMARY KEY, a int, b text) PARTITION BY RANGE (id)",
        f"CREATE TABLE {source.table}low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {source.table}high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION mine FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    streams = [
        stream_of(source, tmp_path / "own"),
        stream_of(source, tmp_path / "mine", publication="mine", slot="my_slot"),
    ]
    for stream in streams:
        stream.pull()
    assert "my_slot" in source.slots()
    source.run(
        "INSERT INTO t VALUES (11, 1, 'two')", "UPDATE t SET id = id + 10 WHERE id = 1 AND false"
    )
    source.connection.execute("CREATE TABLE beside AS SELECT 1 AS id")  # of the same publication
    source.connection.execute("DROP TABLE beside")
    source.run("UPDATE t SET id = 12 WHERE id = 1")  # moves to another partition
    for stream in streams:
        stream.pull()
        assert mirrored(stream) == source.rows()
        stream.drop()
    assert source.slots() == []
    source.run("DROP PUBLICATION mine")


def test_a_user_with_few_rights(source, tmp_path):
    """It doesn't own the table: the owner makes the publication."""
    source.run(
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'reader'",
        "GRANT SELECT ON t TO reader",
        "CREATE PUBLICATION granted FOR TABLE t WITH (publish_via_partition_root = true)",
        "INSERT INTO t VALUES (1, 1, 'one')",
    )
    url = source.program.url
    source.program.url = without_password(url).replace("eddy@", "reader:reader@")
    try:
        with pytest.raises(EddylineError, match=r"STREAM_FAILED.*permission denied"):
            stream_of(source, tmp_path / "own").pull()
        stream = stream_of(source, tmp_path / "granted", publication="granted")
    finally:
        opened = stream.server
        source.program.url = url
    stream.pull()
    source.run("DELETE FROM t WHERE id = 1")
    stream.pull()
    stream.pull()
    assert mirrored(stream) == source.rows() == []
    assert opened is stream.server
    stream.drop()
    assert source.slots() == []
    source.run("DROP PUBLICATION granted", "DROP OWNED BY reader", "DROP ROLE reader")


def test_a_slot_that_cannot_be_dropped_is_told(source, tmp_path, caplog):
    stream = stream_of(source, tmp_path)
    stream.pull()
    (name,) = source.slots()
    source.program.stop()
    stream.drop()
    source.program.start()
    assert f"pg_drop_replication_slot('{name}')" in caplog.text
    assert PASSWORD not in caplog.text


def test_a_value_that_does_not_fit_names_its_column(source, tmp_path):
    source.run("ALTER TABLE t ALTER COLUMN b TYPE date USING NULL")
    stream = stream_of(source, tmp_path)
    stream.wanted = [
        LogColumn(one.place, one.name, pa.date32() if one.name == "b" else one.type)
        for one in stream.wanted
    ]
    stream.pull()
    source.run("INSERT INTO t VALUES (1, 1, '2026-01-31'), (2, 1, NULL)")
    for number in range(3, 9):
        source.run(f"INSERT INTO t VALUES ({number}, 1, '2026-01-31')")
    source.run("INSERT INTO t VALUES (10, 1, NULL), (11, 1, 'infinity')")
    source.run("INSERT INTO t VALUES (12, 1, NULL)")
    for _ in range(2):
        with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*column b.*infinity.*b STRING"):
            stream.pull()
    (rows,) = entries(stream)  # the whole transactions before that
    assert [row["id"] for row in rows] == [*range(1, 9)]
    assert [row["b"] for row in rows[:2]] == [datetime.date(2026, 1, 31), None]
    stream.drop()


def test_stopping_does_not_wait_for_the_server(source, tmp_path):
    """The slot can't be created before a transaction that is running has ended."""
    source.connection.execute("BEGIN")
    source.connection.execute(f"INSERT INTO {source.table} VALUES (1, 1, 'one')")
    stream = stream_of(source, tmp_path)
    stream.follow(0.1)
    stream.follow(0.1)
    stream.stop()  # returns although the transaction is still running
    source.connection.execute("COMMIT")
    stream = stream_of(source, tmp_path)
    stream.pull()
    assert mirrored(stream) == source.rows()
    assert len(source.slots()) == 1
    stream.drop()


def test_a_log_that_may_be_skipped_is_refused(source, tmp_path):
    stream = stream_of(source, tmp_path)
    stream.log.files.unflushed = ("logs/",)
    with pytest.raises(EddylineError, match=r"BAD_STREAM.*at_least_once"):
        stream.pull()


def test_a_server_without_logical_replication_is_refused(tmp_path):
    with server() as plain, psycopg.connect(plain.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, a int, b text)")
        with pytest.raises(EddylineError, match=r"BAD_STREAM.*wal_level is replica"):
            stream_of(Source(plain, "t", connection), tmp_path).pull()


@pytest.mark.slow
def test_a_slot_whose_changes_the_server_has_removed_is_an_error(tmp_path):
    with (
        server("wal_level=logical", "max_slot_wal_keep_size=1MB", "max_wal_size=32MB") as small,
        psycopg.connect(small.url, autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, a int, b text)")
        stream = stream_of(Source(small, "t", connection), tmp_path)
        stream.pull()
        connection.execute("INSERT INTO t VALUES (1, 1, 'one')")
        for _ in range(6):
            connection.execute("CREATE TABLE filler AS SELECT generate_series(1, 1000)")
            connection.execute("DROP TABLE filler")
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
        with pytest.raises(EddylineError, match=r"SOURCE_LOST.*max_slot_wal_keep_size"):
            stream.pull()
        stream.drop()


KINDS = {
    "small": ("smallint", "SMALLINT", "-5"),
    "real4": ("real", "FLOAT", "1.5"),
    "real8": ("double precision", "DOUBLE", "'-Infinity'"),
    "price": ("numeric(12,2)", "DECIMAL(12,2)", "12345.60"),
    "whole": ("numeric(20)", "DECIMAL(20,0)", "12345678901234567890"),
    "exact": ("numeric", "STRING", "0.1234567890123456789012345678901234567890123"),
    "flag": ("boolean", "BOOLEAN", "true"),
    "label": ("varchar(20)", "STRING", "'über, \"q\"'"),
    "blank": ("text", "STRING", "''"),
    "raw": ("bytea", "BINARY", r"'\x00ff5c'"),
    "day": ("date", "DATE", "'2026-01-31'"),
    "at": ("timestamptz(3)", "TIMESTAMP", "'2026-01-31 12:00:00.5+02'"),
    "local": ("timestamp", "TIMESTAMP_NTZ", "'1900-01-31 12:00:00.000001'"),
    "clock": ("time", "STRING", "'24:00:00'"),
    "words": ("text[]", "STRING", "'{a,\"b c\"}'"),
    "doc": ("jsonb", "STRING", "'{\"a\": [1, null]}'"),
    "mark": ("uuid", "STRING", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
}


def created(
    engine: el.Engine, source: Source, name: str, more: str = "", columns: str = ""
) -> None:
    engine.execute(
        f"CREATE STREAM {name} {columns} USING postgres "
        f"OPTIONS (url '{without_password(source.program.url)}', "
        f"password '${{env:SOURCE_PASSWORD}}', table '{source.table}'{more})"
    )


@pytest.mark.spark
def test_a_stream_of_all_types(source, tmp_path, spark, monkeypatch):
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in KINDS.items())
    source.run("DROP TABLE t ", f"CREATE TABLE t (id bigint PRIMARY KEY, {columns})")
    values = ", ".join(value for _, _, value in KINDS.values())
    source.run(f"INSERT INTO t VALUES (1, {values})")  # comes with the snapshot
    storage = tmp_path / "storage"
    with el.Engine(str(storage), spark=spark) as engine:
        created(engine, source, "changed")
        view = engine.view("changes", "SELECT * FROM changed")
        engine.advance()
        source.run(f"INSERT INTO t VALUES (2, {values})")  # comes as a change
        engine.advance()
        kinds = dict(view.snapshot().dtypes)
        assert {name: kinds[name].upper() for name in KINDS} == {
            name: kind for name, (_, kind, _) in KINDS.items()
        }
        first, second = view.snapshot().select("id", *KINDS).orderBy("id").collect()
        assert (first.id, second.id) == (1, 2)
        assert first[1:] == second[1:]
        assert str(first.price) == "12345.60"
        assert (bytes(first.raw), first.blank, first.clock) == (b"\x00\xff\x5c", "", "24:00:00")
        assert engine.verify()
        stored = b"".join(path.read_bytes() for path in storage.rglob("*") if path.is_file())
        assert PASSWORD.encode() not in stored
    source.run("DELETE FROM t WHERE id = 2")
    with el.Engine(str(storage), spark=spark) as engine:
        engine.advance()
        found = engine.snapshot("changes").orderBy("_seq").select("id", "_op", "small").collect()
        assert found == [(1, "snapshot", -5), (2, "insert", -5), (2, "delete", None)]
        engine.drop("view", "changes")
        assert len(source.slots()) == 1
        engine.drop("stream", "changed")
        assert source.slots() == []
        query = "SELECT pubname FROM pg_publication WHERE pubname ~ 'changed'"
        assert source.connection.execute(query).fetchall() == []


@pytest.mark.slow
@pytest.mark.spark
def test_columns_of_a_stream_follow_those_of_the_table(source, tmp_path, spark, monkeypatch):
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    options = {
        "url": without_password(source.program.url),
        "password": "${env:SOURCE_PASSWORD}",
        "table": source.table,
    }

    def found(query: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in engine.sql(query).collect())

    source.run("INSERT INTO t VALUES (1, 1, 'one')")
    with el.Engine(str(tmp_path), spark=spark) as engine:
        engine.create_stream("s", "id BIGINT, a INT, b STRING, _op STRING", "postgres", options)
        engine.execute("CREATE VIEW v AS SELECT _op, sum(a) AS a FROM s GROUP BY _op")
        engine.advance()
        source.run("INSERT INTO t VALUES (2, 2, 'two')")
        source.run("ALTER TABLE t DROP COLUMN b, ADD COLUMN more int")
        source.run("INSERT INTO t VALUES (3, 3, 33)")
        with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*column b is gone"):
            engine.advance()
        engine.execute("ALTER STREAM s DROP COLUMN b; ALTER STREAM s RENAME COLUMN id TO number")
        with pytest.raises(EddylineError, match="BAD_STREAM"):
            engine.execute("ALTER STREAM s ADD COLUMN more STRUCT<x INT>")
        engine.execute("ALTER STREAM s ADD COLUMN more INT")
        engine.advance()
        assert found("SELECT number, more FROM s WHERE number <> 3") == [(1, None), (2, None)]
        assert found("SELECT number, a, more FROM s WHERE number = 3") == [(3, 3, 33)]
        with pytest.raises(EddylineError, match="NOT_ALTERABLE"):
            engine.execute("ALTER STREAM s ALTER COLUMN more TYPE BIGINT")
        assert engine.verify()
    with el.Engine(str(tmp_path), spark=spark) as engine:
        source.run("INSERT INTO t VALUES (4, 4, 44)")
        engine.advance()
        assert found("SELECT * FROM v") == [("insert", 9), ("snapshot", 1)]
        assert engine.verify()
        source.run("ALTER TABLE t DROP COLUMN more")
        source.run("INSERT INTO t VALUES (5, 5)")
        with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*column more is gone"):
            engine.advance()
        engine.execute("DROP VIEW v; DROP STREAM s")
    assert source.slots() == []


@pytest.mark.spark
def test_definitions_that_cannot_work_are_refused(source, tmp_path, spark, monkeypatch):
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    connection = source.connection
    connection.execute("CREATE UNLOGGED TABLE passing (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE IF NOT EXISTS keyless (id int)")
    connection.execute("CREATE TABLE IF NOT EXISTS taken (id int PRIMARY KEY, _op int)")
    connection.execute(
        f"CREATE PUBLICATION half FOR TABLE {source.table} WITH (publish = 'insert')"
    )
    connection.execute(f"CREATE PUBLICATION filtered FOR TABLE {source.table} WHERE (id > 1)")
    with el.Engine(str(tmp_path), spark=spark) as engine:

        def refused(match: str, **changed: str) -> None:
            options = {
                "url": without_password(source.program.url),
                "password": "${env:SOURCE_PASSWORD}",
                "table": source.table,
                **changed,
            }
            columns, key = options.pop("columns", None), options.pop("key", [])
            with pytest.raises(EddylineError, match=match) as error:
                engine.create_stream("s", columns, "postgres", options, primary_key=key)
            assert PASSWORD not in str(error.value)

        refused("BAD_OPTION.*in the clear", password=PASSWORD)
        refused("BAD_OPTION.*password", url=source.program.url)
        refused("SECRET_MISSING", password="${env:NOT_SET}")
        refused("STREAM_FAILED.*(refused|failed)", url="postgresql://eddy@127.0.0.1:1/postgres")
        refused("BAD_STREAM.*no option", tables="x")
        refused("BAD_STREAM.*isn't there", table="nowhere.t")
        refused("BAD_STREAM.*neither temporary", table="passing")
        refused("BAD_STREAM.*no primary key.*REPLICA IDENTITY", table="keyless")
        refused("BAD_STREAM.*column _op", table="taken")
        refused("BAD_STREAM.*is no column", columns="id BIGINT, z INT")
        refused("BAD_STREAM.*is no column", columns="id INT")
        refused("BAD_STREAM.*only appends", columns="id BIGINT, a INT", key=["id"])
        refused("BAD_STREAM.*publication none.*isn't there", publication="none")
        refused("BAD_STREAM.*publication half.*hasn't all", publication="half")
        refused("BAD_STREAM.*publication filtered.*hasn't all", publication="filtered")
        assert engine.show("stream").collect() == []
    connection.execute("DROP PUBLICATION half")
    connection.execute("DROP PUBLICATION filtered")


@pytest.mark.guarantee(
    "stream `postgres`", "exactly once", "the engine, 4 times by kill -9; the server, twice"
)
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_live_view_equals_the_table_after_kills_and_restarts(source, tmp_path):
    dice = random.Random(5)

    def child(seconds: float) -> Child:
        file = str(Path(__file__).with_name("postgres_child.py"))
        given = [str(tmp_path / "storage"), source.program.url, source.table, str(seconds)]
        settings = {"SOURCE_PASSWORD": PASSWORD}
        return Child([sys.executable, file, *given], tmp_path / "stderr", **settings)

    for turn in range(4):
        killed = child(0)
        with Writers(source, turn):
            try:
                killed.wait_for("epoch")
                time.sleep(dice.uniform(0, 5))
                assert killed.process.poll() is None, killed.last_words()
            finally:
                killed.kill()
        if turn == 2:
            source.program.stop()
            source.program.start()
    last = child(5)
    try:
        last.wait_for("ready")
        with Writers(source, 9) as writers:
            writers.wait(100)
        source.program.stop()
        time.sleep(1)
        source.program.start()
        rows = json.loads(last.wait_for("rows"))
    finally:
        last.kill()
    source.connection = psycopg.connect(source.program.url, autocommit=True)
    assert [tuple(row) for row in rows] == source.rows()
    assert len(rows) > 10
    source.connection.close()
