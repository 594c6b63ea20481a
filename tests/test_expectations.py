"""CONSTRAINT ... EXPECT: rows that violate a rule are counted, kept out, kept aside, or stop their stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from asking import refused, rows
from eddyline.cli import main
from eddyline.console.metrics import metrics_text, registry_of
from eddyline.console.observer import Observer
from eddyline.console.tally import Tally
from eddyline.errors import EddylineError
from eddyline.testing import FaultyFiles

pytestmark = pytest.mark.spark

NUMBERS = "SELECT k, sum(n) AS n FROM t GROUP BY k"
FILES = "USING json OPTIONS (path '{folder}')"


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        yield engine


def violations(engine: el.Engine, name: str) -> dict[str, int | None]:
    status = engine.status()
    found = {one["name"]: one for one in [*status["sources"], *status["views"]]}
    return found[name]["violations"]


def write(folder: Path, name: str, records: list[dict]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_view_keeps_rows_out_while_they_violate_and_counts_them(engine, tmp_path, spark, capsys):
    engine.execute("CREATE TABLE t (id BIGINT, k STRING, n INT, PRIMARY KEY (id))")
    engine.execute(f"""
        CREATE VIEW v (
            CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DROP ROW,
            CONSTRAINT named EXPECT (k IN ('a', 'b') -- not null
            ) ON VIOLATION DEAD LETTER,
            CONSTRAINT `it's small` EXPECT (n < 100)
        ) AS {NUMBERS};
        CREATE VIEW above AS SELECT count(*) AS c, sum(n) AS s FROM v;
        CREATE VIEW kept (CONSTRAINT positive EXPECT (n > 0)) AS {NUMBERS};
    """)
    steps = [
        "INSERT INTO t VALUES (1, 'a', 5), (2, 'a', -9), (3, 'b', 1), (4, 'c', 7), (5, NULL, 0)",
        "INSERT INTO t VALUES (6, 'a', 6), (7, 'b', 200)",  # a comes, b passes the limit
        # null violates, too
        "UPDATE t SET n = NULL WHERE k = 'b'; DELETE FROM t WHERE k = 'c' OR id IN (2, 6)",
    ]
    for number, step in enumerate(steps):
        engine.execute(step)
        engine.advance()
        offline = [tuple(row) for row in engine.sql(NUMBERS).collect()]
        positive = [row for row in offline if row[1] is not None and row[1] > 0]
        unnamed = [row for row in offline if row[0] not in ("a", "b")]
        large = [row for row in offline if row[1] is None or row[1] >= 100]
        assert rows(engine, "v") == Counter(row for row in positive if row not in unnamed), number
        counts = {
            "positive": len(offline) - len(positive),
            "named": len(unnamed),
            "it's small": len(large),
        }
        assert violations(engine, "v") == counts, number
        assert rows(engine, "v__violations") == Counter(counts.items())
        assert violations(engine, "kept") == {"positive": counts["positive"]}
        assert rows(engine, "v__rejected") == Counter((*row, "named") for row in unnamed)
    assert engine.verify()
    before = rows(engine, "v"), violations(engine, "v")
    observer = Observer(engine._workspace.store)
    metrics = metrics_text(registry_of(observer, Tally(observer))).decode()
    assert 'eddyline_violations{constraint="positive",relation="v"} 2.0' in metrics
    assert main(["status", "--storage", str(tmp_path / "storage")]) == 0
    assert "positive: 2, named: 1, it's" in capsys.readouterr().out
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        assert (rows(again, "v"), violations(again, "v")) == before
        again.execute(f"""CREATE VIEW IF NOT EXISTS v (CONSTRAINT x EXPECT (n > 0)) AS {NUMBERS}""")
        again.execute(f"""CREATE VIEW kept (CONSTRAINT positive EXPECT (n > 0)) AS {NUMBERS}""")
        refused(again, f"CREATE OR REPLACE VIEW v AS {NUMBERS}", "NAME_TAKEN")
        refused(again, f"CREATE VIEW kept AS {NUMBERS}", "NAME_TAKEN")
        refused(again, "DROP VIEW v__violations", "STILL_READ")
        refused(again, "DROP VIEW v", "STILL_READ")
        again.execute("DROP VIEW above; DROP VIEW v; DROP VIEW kept")
        assert [entry.name for entry in again.catalog.entries] == ["t"]


def test_a_stream_keeps_records_out_of_all_its_readers(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(folder, "1.json", [{"id": 1, "n": 5}, {"id": 2, "n": -1}, {"id": None, "n": 3}])
    engine.execute(f"""
        CREATE STREAM s (id BIGINT, n INT,
            CONSTRAINT known EXPECT (id IS NOT NULL) ON VIOLATION DEAD LETTER,
            CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DROP ROW,
            CONSTRAINT odd EXPECT (n % 2 = 1)
        ) {FILES.format(folder=folder)};
        CREATE VIEW total AS SELECT count(*) AS c, sum(n) AS s FROM s;
    """)
    engine.view("framed", lambda: engine.spark.table("s").where("n < 100"))
    engine.advance()
    assert rows(engine, "s") == rows(engine, "framed") == Counter([(1, 5)])
    assert rows(engine, "total") == Counter([(1, 5)])
    assert rows(engine, "s__rejected") == Counter([(None, 3, "known")])
    assert violations(engine, "s") == {"known": 1, "positive": 1, "odd": 1}
    write(folder, "2.json", [{"id": 4, "n": 8}, {"id": 5}, {"n": None}, {"id": 6, "n": 9}])
    engine.advance()
    assert rows(engine, "s") == Counter([(1, 5), (4, 8), (6, 9)])
    assert rows(engine, "s__rejected") == Counter([(None, 3, "known"), (None, None, "known")])
    counts = {"known": 2, "positive": 3, "odd": 4}
    assert violations(engine, "s") == counts
    assert engine.verify()
    refused(engine, "ALTER STREAM s DROP CONSTRAINT positive", "STILL_READ")  # `framed` reads it
    engine.execute("DROP VIEW framed")
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        assert violations(again, "s") == counts
        assert again.verify()
        refused(again, "ALTER STREAM s DROP CONSTRAINT other", "NOT_FOUND")
        again.execute("ALTER STREAM s DROP CONSTRAINT positive")
        again.advance()
        assert rows(again, "s") == Counter([(1, 5), (2, -1), (4, 8), (5, None), (6, 9)])
        assert rows(again, "total") == Counter([(5, 21)])
        assert violations(again, "s") == {"known": 2, "odd": 4}
        assert again.verify()
        again.execute("DROP VIEW total; DROP STREAM s")
        assert not again.catalog.entries


def test_a_row_stops_its_stream_and_no_other(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(folder, "1.json", [{"n": 1}, {"n": 2}])
    engine.execute(f"""
        CREATE TABLE t (n INT);
        CREATE STREAM s (n INT, CONSTRAINT positive EXPECT (n > 0) ON VIOLATION STOP,
            WATERMARK FOR _received_at AS _received_at, _received_at TIMESTAMP)
            {FILES.format(folder=folder)};
        CREATE VIEW v AS SELECT sum(n) AS s FROM s;
        CREATE VIEW w AS SELECT sum(n) AS s FROM t;
    """)
    told: list[Exception] = []
    engine.on_error(told.append)
    engine.advance()
    for number, value in enumerate([3, -4, 5], 2):  # each an entry of the log
        write(folder, f"{number}.json", [{"n": value}])
        engine._workspace.sources.pull()
    engine.execute("INSERT INTO t VALUES (7)")
    for _ in range(2):
        with pytest.raises(el.DataError, match=r"positive doesn't hold of .*-4") as error:
            engine.advance()
        assert error.value.condition == "EXPECTATION_VIOLATED"
        assert rows(engine, "v") == Counter([(6,)])
        assert rows(engine, "w") == Counter([(7,)])
    assert [str(one) for one in told] == [str(error.value)]
    assert "-4" in next(s for s in engine.status()["sources"] if s["name"] == "s")["error"]
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        with pytest.raises(el.DataError, match="EXPECTATION_VIOLATED"):
            again.advance()
        again.execute("ALTER STREAM s DROP CONSTRAINT positive")
        again.advance()
        assert rows(again, "v") == Counter([(7,)])
        assert again.verify()


def test_a_row_sets_its_view_aside_until_it_is_mended(engine):
    engine.execute("""
        CREATE TABLE t (id INT, n INT, PRIMARY KEY (id));
        CREATE VIEW v (
            CONSTRAINT small EXPECT (n < 10) ON VIOLATION FAIL UPDATE,
            CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DROP ROW
        ) AS SELECT * FROM t;
        CREATE VIEW other AS SELECT count(*) AS c FROM t;
        INSERT INTO t VALUES (1, 1), (2, -1);
    """)
    engine.advance()
    assert rows(engine, "v") == Counter([(1, 1)])
    engine.execute("INSERT INTO t VALUES (3, 30)")
    engine.advance()
    with pytest.raises(el.EngineError, match="constraint small") as error:
        rows(engine, "v")
    assert error.value.condition == "VIEW_FAILING"
    assert rows(engine, "other") == Counter([(3,)])
    assert violations(engine, "v") == {"small": 1, "positive": 1}
    engine.execute("UPDATE t SET n = 3 WHERE id = 3")
    engine.advance()
    assert rows(engine, "v") == Counter([(1, 1), (3, 3)])
    assert violations(engine, "v") == {"small": 0, "positive": 1}
    assert engine.verify()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("n + 1", "is of type int"),
        ("missing > 0", "missing"),
        ("n > 0, n < 5", "several"),
        ("count(*) > 0", "more than one row"),
        ("n IN (SELECT 1)", "more than one row"),
        ("n > rand()", "isn't the same at any time"),
        ("now() > TIMESTAMP'2026-01-01'", "isn't the same at any time"),
        ("row_number() OVER (ORDER BY n) = 1", "more than one row"),
        ("explode(array(true))", "more than one row"),
        ("n >", "constraint c"),
    ],
)
def test_wrong_conditions_are_refused_before_anything_is_made(engine, tmp_path, rule, said):
    (tmp_path / "in").mkdir()
    engine.execute("CREATE TABLE t (n INT)")
    condition = "SCRIPT_SYNTAX" if said == "several" else "BAD_EXPECTATION"
    rule = f"CONSTRAINT c EXPECT ({rule}) ON VIOLATION DROP ROW"
    stream = f"CREATE STREAM s (n INT, {rule}) {FILES.format(folder=tmp_path / 'in')}"
    for statement in (f"CREATE VIEW v ({rule}) AS SELECT n FROM t", stream):
        assert said in refused(engine, statement, condition)
    assert len(engine.catalog.entries) == 1


def test_what_a_relation_can_not_do_is_refused(engine, tmp_path):
    (tmp_path / "in").mkdir()
    engine.execute("CREATE TABLE t (n INT)")
    rule = "CONSTRAINT c EXPECT (n > 0) ON VIOLATION"
    refused(engine, f"CREATE TABLE u (n INT, {rule} KEEP)", "SCRIPT_UNSUPPORTED")
    refused(engine, f"CREATE VIEW v ({rule} LOSE) AS SELECT n FROM t", "SCRIPT_SYNTAX")
    refused(engine, f"CREATE VIEW v ({rule} KEEP, {rule} KEEP) AS TABLE t", "SCRIPT_SYNTAX")
    ordered = f"CREATE VIEW v ({rule} DROP ROW) AS SELECT n FROM t ORDER BY n"
    assert "ORDER BY" in refused(engine, ordered, "BAD_EXPECTATION")
    files = FILES.format(folder=tmp_path / "in")
    keyed = f"CREATE STREAM s (n INT, v INT, PRIMARY KEY (n), {rule} DROP ROW) {files}"
    assert "PRIMARY KEY" in refused(engine, keyed, "BAD_EXPECTATION")
    assert len(engine.catalog.entries) == 1
    engine.execute(f"CREATE VIEW v ({rule} KEEP) AS SELECT n FROM t ORDER BY n")
    engine.execute("CREATE VIEW `v__violations of` AS SELECT 1 AS one")
    assert violations(engine, "v") == {"c": 0}


@pytest.mark.slow
def test_a_crash_at_any_write_leaves_all_or_nothing(tmp_path, spark):
    view = (
        "CREATE VIEW {} (CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DEAD LETTER) AS " + NUMBERS
    )
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    engine.execute("CREATE TABLE t (k STRING, n INT); INSERT INTO t VALUES ('a', 1), ('b', 0)")
    engine.advance()
    fail_at, ended = 1, False
    while not ended:
        files.arm(fail_at, "crash", "driver")
        try:
            engine.execute(view.format("v"))
            engine.execute(f"INSERT INTO t VALUES ('c{fail_at}', -1)")
            engine.advance()
            ended = True
        except EddylineError:
            pass
        files.arm(0)
        engine.stop()
        engine = el.Engine(files, spark)
        names = {entry.name for entry in engine.catalog.entries}
        if "v" in names:
            assert names == {"t", "v", "v__unchecked", "v__violations", "v__rejected"}
        engine.execute(view.format("v"))
        engine.advance()
        bad = rows(engine, "t").total() - 1
        assert rows(engine, "v") == Counter([("a", 1)]), fail_at
        assert violations(engine, "v") == {"positive": bad}, fail_at
        assert rows(engine, "v__rejected").total() == bad
        if fail_at % 10 == 1:
            assert engine.verify()
        if not ended:
            engine.execute("DROP VIEW v")
        fail_at += 1
    assert fail_at > 20
    engine.stop()
