"""The public object by itself: tables, streams, views, DML, reading, reopening."""

from __future__ import annotations

import datetime as dt
import json
import math
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.cli.text import progress_line
from eddyline.runtime import epoch
from eddyline.runtime.execution import Execution
from eddyline.spark.session import local_session
from eddyline.testing import Offline, PlainTable
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(tmp_path, spark):
    with el.Engine(str(tmp_path / "storage"), spark=spark) as made:
        yield made


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_the_two_level_example_in_both_forms(engine):
    """Level 1 counts by a, level 2 counts groups by that count."""
    records = engine.table("records", "a STRING")
    first = engine.view("first", "SELECT a, count(*) AS n FROM records GROUP BY a")
    second = engine.view("second", "SELECT n, count(*) AS groups FROM first GROUP BY n")
    whole = engine.view(
        "whole",
        "SELECT n, count(*) AS groups FROM (SELECT a, count(*) AS n FROM records GROUP BY a) GROUP BY n",
    )
    records.insert([("a",)])
    one = engine.advance()
    records.insert([("a",)])
    two = engine.advance()
    assert two == one + 1
    assert [tuple(r) for r in first.changes().orderBy("epoch").collect()] == [
        ("a", 1, "append", one),
        ("a", 1, "delete", two),
        ("a", 2, "append", two),
    ]
    updates = first.changes(form="update").orderBy("epoch").collect()
    assert [(r.before and tuple(r.before), r.after and tuple(r.after)) for r in updates] == [
        (None, ("a", 1)),
        (("a", 1), ("a", 2)),
    ]
    for view in (second, whole):
        assert [tuple(r) for r in view.changes().orderBy("epoch").collect()] == [
            (1, 1, "append", one),
            (1, 1, "delete", two),
            (2, 1, "append", two),
        ]
        assert rows(view.snapshot(one)) == [(1, 1)]
        assert rows(view.snapshot()) == [(2, 1)]
    assert rows(first.changes(after=one)) == [("a", 1, "delete", two), ("a", 2, "append", two)]
    plan = engine.explain("whole")
    assert plan.count("class 2, stateful; rule: linear") == 2
    assert "part 3, level 3" in plan


def test_a_table_takes_rows_of_every_kind(engine, spark):
    table = engine.table("t", "id BIGINT, name STRING")
    table.insert([{"id": 1, "name": "a"}, {"id": 2}])
    table.insert([(3, "c")])
    table.insert(pd.DataFrame({"id": [4], "name": ["d"]}))
    table.insert(pa.table({"name": ["e"], "id": [5]}))
    table.insert(spark.createDataFrame([(6, "f")], "id BIGINT, name STRING"))
    engine.advance()
    expected = [(1, "a"), (2, None), (3, "c"), (4, "d"), (5, "e"), (6, "f")]
    assert rows(table.snapshot()) == expected


def test_every_type_comes_back_as_it_went_in(engine):
    schema = (
        "b BOOLEAN, y TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(20,5), "
        "t STRING, x BINARY, day DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ, a ARRAY<STRUCT<p INT, q STRING>>, "
        "m MAP<STRING, DOUBLE>, u STRUCT<v ARRAY<INT>, w MAP<INT, STRING>>"
    )
    moment = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)
    full = (
        True, 1, 2, 3, 4, 0.5, -0.0, Decimal("1.50000"), "ü", b"\x00\xff", dt.date(2026, 1, 1),
        moment.replace(tzinfo=dt.UTC), moment, [{"p": 1, "q": None}, None], {"k": math.inf},
        {"v": [1, None], "w": {1: "x"}},
    )  # fmt: skip
    table = engine.table("t", schema)
    view = engine.view("v", "SELECT * FROM t")
    table.insert([full, (None,) * len(full), full])
    engine.advance()
    assert view.snapshot().count() == 3
    got = next(row for row in view.snapshot().collect() if row.b)
    assert got.n == Decimal("1.50000")
    assert got.x == b"\x00\xff"
    assert math.copysign(1, got.d) == -1
    assert got.a[0].asDict() == {"p": 1, "q": None}
    assert got.m == {"k": math.inf}
    assert got.u.w == {1: "x"}
    table.delete([full])
    engine.advance()
    assert view.snapshot().count() == 2
    assert engine.verify()


def test_a_primary_key_keeps_the_latest_row(engine):
    table = engine.table("t", "id BIGINT, v INT", primary_key=["id"])
    total = engine.view("total", "SELECT sum(v) AS s, count(*) AS n FROM t")
    assert rows(total.snapshot()) == [(None, 0)]
    table.insert([(1, 1), (2, 2), (1, 10)])
    engine.advance()
    assert rows(total.snapshot()) == [(12, 2)]
    table.upsert([{"id": 2, "v": 5}])
    table.delete([{"id": 1}, {"id": 99}])
    engine.advance()
    assert rows(table.snapshot()) == [(2, 5)]
    assert rows(total.snapshot()) == [(5, 1)]
    with pytest.raises(el.DataError) as error:
        table.insert([(None, 1)])
    assert error.value.condition == "NULL_KEY"


def test_a_multiset_counts_its_rows(engine):
    table = engine.table("t", "v INT")
    view = engine.view("v", "SELECT v FROM t")
    table.insert([(1,), (1,), (2,)])
    table.delete([(1,), (3,)])
    table.insert([(3,)])
    engine.advance()
    assert rows(view.snapshot()) == [(1,), (2,), (3,)]
    table.delete([(1,), (1,), (1,)])
    table.insert([(1,)])
    engine.advance()
    assert rows(view.snapshot()) == [(1,), (2,), (3,)]
    with pytest.raises(el.DataError) as error:
        table.upsert([(1,)])
    assert error.value.condition == "NO_PRIMARY_KEY"


@pytest.mark.parametrize(
    ("bad", "condition"),
    [
        ([(1,)], "WRONG_WIDTH"),
        (["ab"], "WRONG_ROW"),
        ([7], "WRONG_ROW"),
        ([{1, 2}], "WRONG_ROW"),
        ([(1, 2), {3: 3, 4: 4}], "WRONG_ROW"),
        ([{"id": 1, "v": 2}, (3, 4)], "WRONG_ROW"),
        ([(1, 2), (3, 4, 5)], "WRONG_WIDTH"),
        ([{"id": 1, "oops": 2}], "UNKNOWN_COLUMN"),
        ([("x", 1)], "WRONG_TYPE"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(engine, bad, condition):
    table = engine.table("t", "id BIGINT, v INT")
    with pytest.raises(el.DataError) as error:
        table.insert(bad)
    assert error.value.condition == condition
    assert "Way out" in str(error.value)
    before = engine.advance()
    assert engine.advance() == before
    assert rows(table.snapshot()) == []


@pytest.mark.parametrize(
    "kind",
    [
        "INTERVAL YEAR TO MONTH",
        "STRUCT<a: ARRAY<INTERVAL MONTH>>",
        "MAP<INT, INTERVAL YEAR>",
        "VOID",
        "ARRAY<VOID>",
    ],
)
def test_columns_that_no_relation_can_keep_are_refused(engine, tmp_path, kind):
    engine.table("t", "v INT").insert([(1,)])
    for refused in (
        lambda: engine.table("u", f"a INT, c {kind}"),
        lambda: engine.create_stream("u", f"a INT, c {kind}", "json", {"path": str(tmp_path)}),
        lambda: engine.execute(f"ALTER TABLE t ADD COLUMN c {kind}"),
    ):
        with pytest.raises(el.DataError, match="column c has the type") as error:
            refused()
        assert error.value.condition == "UNSUPPORTED_TYPE"
    engine.advance()
    assert rows(engine.snapshot("t")) == [(1,)]


@pytest.mark.parametrize(
    ("column", "bad", "kind"),
    [
        ("c STRUCT<a: INT>", {"a": 1, "b": 2}, None),
        ("c ARRAY<STRUCT<a: INT>>", [{"a": 1}, {"b": 2}], None),
        (
            "c MAP<STRING, STRUCT<a: STRUCT<d: INT>>>",
            {"k": {"a": {"b": 2}}},
            pa.map_(pa.string(), pa.struct({"a": pa.struct({"b": pa.int32()})})),
        ),
    ],
)
def test_fields_that_a_struct_does_not_have_are_refused(engine, column, bad, kind):
    table = engine.table("t", column)
    typed = pa.table({"c": pa.array([bad], kind)})
    for rows_given in ([{"c": bad}], [(bad,)], typed):
        with pytest.raises(el.DataError, match=r"unknown field b of c.*the fields are") as error:
            table.insert(rows_given)
        assert error.value.condition == "UNKNOWN_COLUMN"


def test_sql_dml_sees_what_waits_in_the_redo_log(engine):
    engine.execute(
        """
        CREATE TABLE t (id BIGINT, v INT, PRIMARY KEY (id));
        CREATE TABLE bag (v INT);
        INSERT INTO t VALUES (1, 2), (2, 5), (3, 9);
        DELETE FROM t WHERE v > 8;
        UPDATE t SET v = v + 1 WHERE id = 1;
        INSERT INTO bag SELECT v FROM t;
        INSERT INTO bag SELECT v FROM t;
        UPDATE bag SET v = 0 WHERE v = 5;
        INSERT INTO t VALUES (4, 0), (5, 1);
        UPDATE t AS q SET v = (SELECT max(t.v) FROM t WHERE t.id < q.id) WHERE q.id = 4;
        DELETE FROM t q WHERE q.id > 4;
        """
    )
    engine.advance()
    assert rows(engine.execute("SELECT * FROM t")) == [(1, 3), (2, 5), (4, 5)]
    assert rows(engine.sql("SELECT * FROM bag")) == [(0,), (0,), (3,), (3,)]
    engine.execute("DELETE FROM bag")
    engine.advance()
    assert rows(engine.sql("SELECT count(*) AS n FROM bag")) == [(0,)]


def test_a_select_in_a_script_sees_what_the_script_has_written(engine):
    found = engine.execute(
        """
        CREATE TABLE t (k STRING, v INT);
        INSERT INTO t VALUES ('a', 1), ('a', 2), ('b', 3);
        CREATE VIEW n AS SELECT k, count(*) AS n FROM t GROUP BY k;
        DELETE FROM t WHERE v = 2;
        SELECT * FROM n;
        """
    )
    assert rows(found) == [("a", 1), ("b", 1)]


def test_order_by_is_honoured_with_hidden_keys_and_ties(engine):
    table = engine.table("t", "a STRING, b INT")
    ordered = engine.view("ordered", "SELECT a FROM t ORDER BY b DESC NULLS LAST, a")
    top = engine.view("top", "SELECT a FROM t ORDER BY b DESC NULLS LAST, a LIMIT 2 OFFSET 1")
    table.insert([("x", 1), ("y", None), ("z", 3), ("w", 3), ("v", 2)])
    engine.advance()
    assert [r.a for r in ordered.snapshot().collect()] == ["w", "z", "v", "x", "y"]
    assert [r.a for r in top.snapshot().collect()] == ["z", "v"]
    table.delete([("w", 3)])
    engine.advance()
    assert [r.a for r in top.snapshot().collect()] == ["v", "x"]


def test_a_view_on_an_engine_with_data_starts_from_all_of_it(engine, tmp_path, spark):
    table = engine.table("t", "k INT, v INT")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text("\n".join(json.dumps({"k": i % 2, "x": i}) for i in range(6)))
    engine.execute(f"CREATE STREAM s (k INT, x BIGINT) USING json OPTIONS (path '{folder}')")
    table.insert([(0, 1), (1, 2)])
    engine.advance()
    sums = engine.view("sums", "SELECT k, sum(v) AS v FROM t GROUP BY k")
    joined = engine.view(
        "joined", "SELECT s.k, sum(x + v) AS n FROM s JOIN sums ON s.k = sums.k GROUP BY s.k"
    )
    assert rows(sums.snapshot()) == [(0, 1), (1, 2)]
    assert rows(joined.snapshot()) == [(0, 9), (1, 15)]
    table.insert([(0, 10)])
    (folder / "2.json").write_text(json.dumps({"k": 1, "x": 100}))
    engine.advance()
    assert rows(joined.snapshot()) == [(0, 39), (1, 117)]
    assert engine.verify()


def test_a_stream_of_operations(engine, tmp_path, spark):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text("1,a,+\n2,b,+\n1,a,-\n3,c,?\n")
    frame = spark.readStream.schema("id INT, v STRING, op STRING").csv(str(folder))
    engine.stream("plain", frame, op="op")
    engine.stream("keyed", frame, op="op", primary_key=["id"])
    plain = engine.view("plain_rows", "SELECT * FROM plain")
    keyed = engine.view("keyed_rows", "SELECT * FROM keyed")
    engine.advance()
    assert rows(plain.snapshot()) == [(2, "b")]
    (folder / "2.csv").write_text("2,z,u\n5,e,c\n")
    engine.advance()
    assert rows(plain.snapshot()) == [(2, "b"), (5, "e")]  # an update needs a key
    assert rows(keyed.snapshot()) == [(2, "z"), (5, "e")]
    # the words of change feeds
    feed = "5,e,update_preimage\n6,f,update_postimage\n7,g,insert\n7,g,delete\n"
    (folder / "3.csv").write_text(feed)
    engine.advance()
    assert rows(plain.snapshot()) == [(2, "b"), (6, "f")]
    assert rows(keyed.snapshot()) == [(2, "z"), (6, "f")]
    dead = [(bytes(row.payload), row.error) for row in engine.sql("FROM plain__dead").collect()]
    assert sorted(dead) == [
        (b'{"id":2,"v":"z","op":"u"}', "unknown operation u"),
        (b'{"id":3,"v":"c","op":"?"}', "unknown operation ?"),
    ]
    with pytest.raises(el.DataError) as error:
        engine.stream("static", spark.range(1))
    assert error.value.condition == "NOT_STREAMING"


def test_variants_that_are_null_are_kept_and_compared(engine):
    table = engine.table("t", "id INT, j STRING")
    engine.view("plain", "SELECT id, parse_json(j) AS x FROM t")
    engine.view("summed", "SELECT id, sum(id) OVER (ORDER BY id) AS s, x FROM plain")
    engine.view("best", "SELECT id % 2 AS k, max_by(parse_json(j), id) AS x FROM t GROUP BY id % 2")
    for given in ([(1, '{"a": 1}'), (2, None)], [(3, None), (4, "[2]")], [(5, "6")]):
        table.insert(given)
        engine.advance()
        assert engine.verify()
    assert rows(engine.sql("SELECT id FROM summed WHERE x IS NULL")) == [(2,), (3,)]


def test_a_batch_of_json_with_odd_lines_is_read_as_spark_reads_it(engine, tmp_path, spark):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [
        '{"s": "a", "i": 1, "d": 0.5, "t": "2026-01-01T00:00:00Z", "b": true}',
        '{"s": 5, "i": "7", "d": 1, "t": "2026-01-01T00:00:00.25Z"}',
        '{"s": {"x": 1}, "i": 99999999999, "b": null}',
        "",
        '{"s": "cut',
        "[1]",
    ]
    (folder / "1.json").write_text("\n".join(lines))
    schema = "s STRING, i INT, d DOUBLE, t TIMESTAMP, b BOOLEAN"
    engine.execute(f"CREATE STREAM s ({schema}) USING json OPTIONS (path '{folder}')")
    view = engine.view("v", "SELECT * FROM s")
    engine.advance()
    offline = spark.read.schema(schema).json(str(folder))
    assert rows(view.snapshot()) == rows(offline)


def test_reopened_it_goes_on(tmp_path, spark):
    path = str(tmp_path / "storage")
    with el.Engine(path, spark=spark) as engine:
        table = engine.table("t", "a STRING, v INT")
        engine.view("v", "SELECT a, sum(v) AS s FROM t GROUP BY a")
        table.insert([("x", 1), ("y", 2)])
        committed = engine.advance()
        table.insert([("x", 5)])  # in the redo log only
    with el.Engine(path, spark=spark) as engine:
        assert engine.status()["epoch"] == committed
        assert rows(engine.sql("SELECT * FROM v")) == [("x", 1), ("y", 2)]
        assert engine.advance() == committed + 1
        assert rows(engine.sql("SELECT * FROM v")) == [("x", 6), ("y", 2)]
        assert engine.table("t", "a STRING, v INT").schema.names == ["a", "v"]
        with pytest.raises(el.CatalogError) as error:
            engine.table("t", "a STRING")
        assert error.value.condition == "NAME_TAKEN"


def test_a_process_has_one_engine_on_a_storage_that_writes(tmp_path, spark):
    path = str(tmp_path / "storage")
    with pytest.raises(el.StorageError) as error:
        el.Engine(path, spark, read_only=True)
    assert error.value.condition == "NO_STORAGE"
    assert not Path(path).exists()
    first = el.Engine(path, spark=spark)
    table = first.table("t", "v INT")
    with pytest.raises(el.EngineError) as error:
        el.Engine(path, spark=spark)
    assert error.value.condition == "STORAGE_IN_USE"
    table.insert([(1,)])  # the first one goes on
    first.advance()
    with el.Engine(path, spark, read_only=True) as reader:
        assert rows(reader.sql("SELECT * FROM t")) == [(1,)]
        with pytest.raises(el.EngineError) as error:
            reader.table("t", "v INT").insert([(2,)])
        assert error.value.condition == "STORAGE_IN_USE"
        assert "read_only" in str(error.value)
        table.insert([(3,)])
        first.advance()
        assert rows(reader.sql("SELECT * FROM t")) == [(1,), (3,)]
    del first, table  # nobody can stop it any more
    with el.Engine(path, spark=spark) as second:
        second.table("t", "v INT").insert([(4,)])
        second.advance()
    with pytest.raises(el.EngineError, match="was stopped") as error:
        second.advance()
    assert error.value.condition == "STORAGE_IN_USE"
    assert "new Engine" in str(error.value)


def test_two_engines_share_a_session(tmp_path, spark):
    with (
        el.Engine(str(tmp_path / "a"), spark=spark) as a,
        el.Engine(str(tmp_path / "b"), spark=spark) as b,
    ):
        for engine, value in ((a, 1), (b, 2)):
            engine.table("t", "v INT").insert([(value,)])
            engine.view("v", "SELECT v FROM t")
            engine.advance()
        assert rows(a.sql("SELECT * FROM v")) == [(1,)]
        assert rows(b.sql("SELECT * FROM v")) == [(2,)]


def test_the_active_session_of_the_user_stays_the_active_one(engine, spark):
    engine.table("t", "v INT").insert([(1,)])
    engine.view("v", "SELECT v FROM t")
    engine.execute("DELETE FROM t WHERE v = 2")  # reads what waits in the redo log
    engine.advance()
    assert engine.verify()
    offline = Offline(spark, {"t": PlainTable("v INT", rows=[(1,)])})
    offline.load()
    assert SparkSession.getActiveSession() is spark


def test_few_rows_take_little_memory_in_a_session_of_eddyline(spark):
    frame = spark.range(0, 3, 1, 1).selectExpr("concat('k', id) AS k").sortWithinPartitions("k")
    execution = frame._jdf.queryExecution()
    execution.toRdd().count()
    node = execution.executedPlan()
    while node.nodeName() != "Sort":
        node = node.children().head()
    assert 0 < node.metrics().apply("peakMemory").value() < 4 << 20  # Spark's own choice is 32 MB


def test_a_running_session_is_taken_without_a_change(spark):
    before, taken = spark.conf.getAll, []

    def take():  # a thread without an active session
        taken.append(SparkSession.getActiveSession())
        taken.append(local_session("Asia/Tokyo", {"spark.sql.ansi.enabled": "false"}))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert taken[0] is None
    assert taken[1].conf.getAll == before
    assert spark.conf.getAll == before


def test_replace_and_drop(engine):
    table = engine.table("t", "v INT")
    table.insert([(1,), (2,)])
    engine.advance()
    engine.view("v", "SELECT v FROM t")
    with pytest.raises(el.CatalogError):
        engine.view("v", "SELECT v + 1 AS v FROM t")
    replaced = engine.view("v", "SELECT v + 1 AS v FROM t", replace=True)
    assert rows(replaced.snapshot()) == [(2,), (3,)]
    with pytest.raises(el.CatalogError) as error:
        engine.drop("table", "t")
    assert error.value.condition == "STILL_READ"
    engine.execute("DROP VIEW v; DROP TABLE t")
    assert engine.execute("SHOW TABLES").count() == 0
    with pytest.raises(el.EddylineError):
        engine.sql("SELECT * FROM v")


def test_in_the_background(engine):
    seen = []
    engine.on_progress(seen.append)
    table = engine.table("t", "v INT")
    view = engine.view("v", "SELECT sum(v) AS s FROM t")
    engine.start(0.05)
    table.insert([(1,), (2,)])

    def summed() -> bool:
        engine.await_termination(0.05)
        return rows(view.snapshot()) == [(3,)]

    until(summed)
    engine.stop()
    assert engine.await_termination(1)
    last = seen[-1]
    assert last.rows_out["v"] == 2
    assert set(last.seconds) == {"ingest", "plan", "run", "commit"}
    assert last.state.keys() == last.operators.keys() == {"t", "v"}
    operators = last.operators["v"].values()
    assert len(operators) == 2  # the aggregate, and the result
    for what in ("rows", "bytes"):
        assert last.state["v"][what] == sum(own[what] for own in operators) > 0
    whole = f"{sum(last.state[name]['rows'] for name in ('t', 'v')):,} rows"
    assert f" {whole} " in progress_line(last)


def test_others_get_in_while_each_epoch_finds_new_input(engine):
    table = engine.table("t", "v INT")
    engine.view("v", "SELECT sum(v) AS s FROM t")
    running = threading.Event()

    def more(_):
        table.insert([(0,)])
        running.set()

    engine.on_progress(more)
    table.insert([(0,)])
    engine.start(0.01)
    assert running.wait(PATIENCE_S)
    other = threading.Thread(target=table.insert, args=([(1,)],), daemon=True)
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()


def test_views_run_at_once_on_all_cores(tmp_path, spark, monkeypatch):
    monkeypatch.setattr(epoch, "cores", lambda _: 4)
    together = threading.Barrier(4)
    attempt = Execution.attempt

    def attempted(execution, plan, *args):
        if plan.level:
            together.wait(PATIENCE_S)  # for the other three
        return attempt(execution, plan, *args)

    with el.Engine(str(tmp_path / "s"), spark=spark) as engine:
        table = engine.table("t", "v INT")
        views = [engine.view(f"v{n}", f"SELECT sum(v) + {n} AS s FROM t") for n in range(4)]
        monkeypatch.setattr(Execution, "attempt", attempted)
        table.insert([(1,)])
        engine.advance()
        assert [rows(view.snapshot()) for view in views] == [[(1 + n,)] for n in range(4)]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nonsense OPTIONS (path '/in')", "Failed to find the data source: nonsense"),
        ("json OPTIONS (path '/in', maxFilesPerTrigger 'few')", "maxFilesPerTrigger is 'few'"),
    ],
)
def test_a_stream_that_cannot_be_opened_is_not_defined(tmp_path, spark, source, told):
    storage = str(tmp_path / "storage")
    with el.Engine(storage, spark=spark) as engine:
        with pytest.raises(el.DataError) as error:
            engine.execute(f"CREATE STREAM s (v INT) USING {source}")
        assert error.value.condition == "BAD_STREAM"
        assert told in str(error.value)
    with el.Engine(storage, spark=spark) as again:
        assert again.show("stream").collect() == []


def test_an_error_in_the_data_sets_the_view_aside_until_it_is_gone(engine):
    table = engine.table("t", "a INT, b INT")
    view = engine.view("v", "SELECT a / b AS q FROM t")
    table.insert([(1, 0)])
    engine.advance()
    with pytest.raises(el.EngineError) as error:
        view.snapshot()
    assert error.value.condition == "VIEW_FAILING"
    assert "DIVIDE_BY_ZERO" in str(error.value)
    assert "view v" in str(error.value)
    table.delete([(1, 0)])
    engine.advance()
    assert view.snapshot().collect() == []
    assert engine.verify()


def test_old_epochs_retire(tmp_path, spark):
    options = el.Options(retain_epochs=4, compaction_fan_in=2)
    with el.Engine(str(tmp_path / "storage"), spark=spark, options=options) as engine:
        table = engine.table("t", "v INT")
        view = engine.view("v", "SELECT v, count(*) AS n FROM t GROUP BY v")
        for number in range(40):
            table.insert([(number % 3,)])
            last = engine.advance()
        assert rows(view.snapshot()) == [(0, 14), (1, 13), (2, 13)]
        with pytest.raises(el.StateError) as error:
            view.snapshot(2)
        assert error.value.condition == "NO_SUCH_EPOCH"
        replayed: dict[tuple, int] = {}
        for change in view.changes().orderBy("epoch").collect():
            key = (change.v, change.n)
            replayed[key] = replayed.get(key, 0) + (1 if change.op == "append" else -1)
        assert sorted(k for k, n in replayed.items() if n) == [(0, 14), (1, 13), (2, 13)]
        assert rows(view.snapshot(last - 1)) != rows(view.snapshot())
        assert len(list(Path(tmp_path / "storage/manifests").iterdir())) <= 4 + 16


def test_sql_reads_earlier_epochs_side_by_side(tmp_path, spark):
    with el.Engine(str(tmp_path / "s"), spark, el.Options(retain_epochs=3)) as engine:
        table = engine.table("t", "k STRING, v BIGINT", ["k"])
        engine.view("n", "SELECT count(*) AS n, sum(v) AS s FROM t")
        first = engine.status()["epoch"]
        for number in range(1, 4):
            table.upsert([("a", number), (f"b{number}", 10)])
            engine.advance()
        query = f"""
            SELECT now.n - n.n AS more, t.v FROM n AS now, n VERSION AS OF {first + 2},
            t FOR VERSION AS OF {first + 1} WHERE t.k = 'a'
        """
        assert [tuple(row) for row in engine.sql(query).collect()] == [(1, 1)]
        with pytest.raises(el.EddylineError, match="999 is not committed; the last") as caught:
            engine.sql("SELECT * FROM n VERSION AS OF 999")
        assert caught.value.condition == "NO_SUCH_EPOCH"
        with pytest.raises(el.EddylineError, match="can't be kept live"):
            engine.view("old", f"SELECT * FROM t VERSION AS OF {first}")


def test_queries_have_parameters_as_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    with el.Engine(str(tmp_path / "storage"), spark) as engine:
        table = engine.table("t", "k INT, v STRING")
        engine.view("counts", "SELECT v, count(*) AS n FROM t GROUP BY v")
        table.insert([(1, "it's"), (2, "x"), (3, "x")])
        epoch = engine.advance()

        def found(query: str, args: Any) -> list[tuple[Any, ...]]:
            return sorted(map(tuple, engine.sql(query, args).collect()))

        assert found("SELECT k FROM t WHERE v = :v", {"v": "it's"}) == [(1,)]
        assert found("SELECT n FROM counts JOIN t USING (v) WHERE k > ?", [1]) == [(2,), (2,)]
        assert found(f"SELECT n FROM counts VERSION AS OF {epoch} WHERE n > :n", {"n": 1}) == [(2,)]
        assert found("SELECT max(n) FROM IDENTIFIER(:name)", {"name": "counts"}) == [(2,)]
        with pytest.raises(el.QueryError, match="its value in args"):
            engine.sql("SELECT k FROM t WHERE v = :v", {"w": 1})
        with pytest.raises(el.QueryError, match="needs it as a literal"):
            engine.view("v", "SELECT k FROM t WHERE v = :v")


def test_streams_are_attached_between_epochs(engine, monkeypatch):
    sources, held = engine._workspace.sources, []
    attach = sources.attach

    def attached(*args):
        held.append(engine._workspace.lock._is_owned())
        attach(*args)

    monkeypatch.setattr(type(sources), "attach", lambda self, *args: attached(*args))
    engine.create_stream("bid", None, "Generator", {"kind": "nexmark.bid", "total": "10"})
    frame = engine.spark.readStream.format("rate").load()
    engine.stream("ticks", frame)
    assert held == [True, True]
    assert engine.catalog.get("bid").format == "generator"


def test_null_structs_whose_fields_cannot_be_null(engine):
    table = engine.table("t", "id BIGINT, s STRUCT<n: INT NOT NULL, At: TIMESTAMP>", ["id"])
    view = engine.view("v", "SELECT s, count(*) AS n, max(id) AS most FROM t GROUP BY s")
    table.insert([(1, None), (2, (1, None)), (3, (2, None))])
    engine.execute("UPDATE t SET id = id + 10 WHERE s IS NULL; DELETE FROM t WHERE id = 2")
    engine.advance()
    table.upsert(engine.snapshot("t").selectExpr("id", "if(id = 3, null, s) AS s"))
    engine.advance()
    assert rows(engine.snapshot("t")) == [(11, None), (3, None)]
    assert rows(view.snapshot()) == [(None, 2, 11)]
    for form in ("retract", "update", "cdf"):
        assert view.changes(form=form).count() > 0
    assert engine.verify()


def test_what_fails_at_the_end_keeps_nothing_from_ending(tmp_path, spark):
    engine, ended = el.Engine(tmp_path / "storage", spark), []

    def fail():
        raise OSError("the JVM is gone")

    for close in (lambda: ended.append("first"), fail, lambda: ended.append("last")):
        engine._workspace.closing.append(close)
    with pytest.raises(OSError, match="the JVM is gone"):
        engine.stop()
    assert ended == ["last", "first"]
    el.Engine(tmp_path / "storage", spark).stop()  # the storage is free


def test_a_handle_is_taken_where_a_name_is(engine, tmp_path):
    table = engine.table("t", "v INT")
    view = engine.view("s", "SELECT v FROM t WHERE v > 0")
    engine.write(table, [("append", [(1,)])])
    sink = engine.sink("k", view, "jsonl", path=str(tmp_path / "k"))
    assert engine.relation(table).columns == ["v"]
    engine.advance()
    assert rows(engine.snapshot(view)) == [(1,)]
    assert engine.changes(view).count() == 1
    assert engine.explain(view) == engine.explain("s")
    assert [one["column"] for one in engine.lineage(view)] == ["v", "(rows)"]
    engine.drop("sink", sink)
    for act, state in ((engine.pause, "paused"), (engine.resume, "live")):
        act(view)
        assert [one["state"] for one in engine.status()["views"]] == [state]
    engine.drop("view", view)
    engine.drop("table", table)
    with pytest.raises(el.EngineError, match="give text or Table or Stream or View or Sink"):
        engine.pause(7)
