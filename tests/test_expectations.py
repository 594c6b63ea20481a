"""CONSTRAINT ... EXPECT: rows that violate a rule are counted, kept out, kept aside, or stop their stream."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
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
    metrics = metrics_text(registry_of(observer, Tally(observer), inside=False)).decode()
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
    engine.spark.udf.register("mine", lambda n: n > 0, "boolean")
    files = FILES.format(folder=tmp_path / "in")
    keyed = f"CREATE STREAM s (n INT, PRIMARY KEY (n), {rule.replace('n > 0', 'mine(n)')} DROP ROW)"
    assert "registered" in refused(engine, f"{keyed} {files}", "BAD_EXPECTATION")
    assert len(engine.catalog.entries) == 1
    engine.execute(f"CREATE VIEW v ({rule} KEEP) AS SELECT n FROM t ORDER BY n")
    engine.execute("CREATE VIEW `v__violations of` AS SELECT 1 AS one")
    assert violations(engine, "v") == {"c": 0}


def test_a_change_record_that_violates_a_rule_is_not_applied(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(
        folder, "1.json",
        [{"op": "c", "id": number, "n": n} for number, n in enumerate([5, 7, -1, 500, None], 1)],
    )  # fmt: skip
    engine.execute(f"""
        CREATE STREAM s (op STRING, id BIGINT, n INT, PRIMARY KEY (id),
            CONSTRAINT positive EXPECT (n > 0 -- so not null
            ) ON VIOLATION DEAD LETTER,
            CONSTRAINT small EXPECT (n < 100) ON VIOLATION DROP ROW,
            CONSTRAINT `it's odd` EXPECT (n % 2 = 1)
        ) USING json OP op OPTIONS (path '{folder}');
        CREATE VIEW total AS SELECT count(*) AS c, sum(n) AS s FROM s;
    """)
    engine.advance()
    assert rows(engine, "s") == Counter([(1, 5), (2, 7)])
    letters = Counter([(3, -1, "positive"), (5, None, "positive")])
    assert rows(engine, "s__rejected") == letters
    assert violations(engine, "s") == {"positive": 2, "small": 2, "it's odd": 0}
    changes = [
        {"op": "u", "id": 1, "n": -5},  # isn't applied
        {"op": "u", "id": 2, "n": 8},
        {"op": "c", "id": 3, "n": 9},  # the mended record
        {"op": "d", "id": 5},  # its record was rejected
    ]
    write(folder, "2.json", changes)
    engine.advance()
    assert rows(engine, "s") == Counter([(1, 5), (2, 8), (3, 9)])
    assert violations(engine, "s") == {"positive": 3, "small": 2, "it's odd": 1}
    changes = [
        {"op": "update_preimage", "id": 1, "n": 5},  # of an update that is rejected
        {"op": "update_postimage", "id": 1, "n": 0},
        {"op": "-U", "id": 2, "n": 8},  # of one that changes the key
        {"op": "+U", "id": 7, "n": 200},
        {"op": "d", "id": 3},  # a delete isn't checked
        {"op": "c", "id": 3, "n": -3},
        {"op": "-U", "id": 8, "n": 1},
        {"op": "+U", "id": 8, "n": 11},
    ]
    write(folder, "3.json", changes)
    engine.advance()
    assert rows(engine, "s") == Counter([(1, 5), (8, 11)])
    assert rows(engine, "total") == Counter([(2, 16)])
    letters += Counter([(1, -5, "positive"), (1, 0, "positive"), (3, -3, "positive")])
    assert rows(engine, "s__rejected") == letters
    counts = {"positive": 5, "small": 3, "it's odd": 0}
    assert violations(engine, "s") == counts
    assert engine.verify()
    refused(engine, "ALTER STREAM s RENAME COLUMN n TO m", "STILL_READ")
    refused(engine, "DROP STREAM s__kept_out", "NOT_FOUND")
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        assert violations(again, "s") == counts
        again.execute("ALTER STREAM s ADD COLUMN t STRING")
        again.advance()
        write(folder, "4.json", [{"op": "u", "id": i, "n": 30 * i, "t": "x"} for i in (-1, 1, 8)])
        again.advance()
        assert rows(again, "s") == Counter([(1, 30, "x"), (8, 11, None)])
        assert rows(again, "s__rejected") == letters + Counter([(-1, -30, "positive")])
        again.execute("ALTER STREAM s DROP CONSTRAINT positive")
        again.advance()  # what was kept out doesn't come back
        assert rows(again, "total") == Counter([(2, 41)])
        assert violations(again, "s") == {"small": 4, "it's odd": 1}
        again.execute(
            "ALTER STREAM s DROP CONSTRAINT small; ALTER STREAM s DROP CONSTRAINT `it's odd`"
        )
        write(folder, "5.json", [{"op": "u", "id": 1, "n": -7}, {"op": "u", "id": 9, "n": 1000}])
        again.advance()
        assert rows(again, "total") == Counter([(3, 1004)])
        assert rows(again, "s__rejected").total() == 6
        again.execute("DROP VIEW total; ALTER STREAM s RENAME COLUMN n TO m")
        again.advance()
        assert again.verify()
    with el.Engine(tmp_path / "storage", spark) as last:
        assert rows(last, "s__rejected").total() == 6
        last.execute("DROP STREAM s")
        assert not last.catalog.entries


def test_a_change_record_stops_its_stream_and_no_other(engine, tmp_path, spark):
    for name in ("in", "other"):
        write(tmp_path / name, "1.json", [{"id": 1, "n": "1"}])
    engine.execute(f"""
        CREATE STREAM s (id INT, n STRING, PRIMARY KEY (id),
            CONSTRAINT short EXPECT (length(n) < 3) ON VIOLATION STOP,
            CONSTRAINT positive EXPECT (CAST(n AS INT) > 0) ON VIOLATION DROP ROW)
            {FILES.format(folder=tmp_path / "in")};
        CREATE STREAM o (id INT, n STRING) {FILES.format(folder=tmp_path / "other")};
        CREATE VIEW v AS SELECT n FROM s;
    """)
    engine.advance()
    for number, texts in enumerate([["2", "-3"], ["long", "4", "longer"], ["5"]], 2):
        write(tmp_path / "in", f"{number}.json", [{"id": 1, "n": text} for text in texts])
        engine._workspace.sources.pull()  # each an entry of the log
    write(tmp_path / "other", "2.json", [{"id": 2, "n": "2"}])
    for _ in range(2):
        with pytest.raises(el.DataError, match=r"short doesn't hold of 2 records.*'long") as error:
            engine.advance()
        assert error.value.condition == "EXPECTATION_VIOLATED"
        assert rows(engine, "s") == Counter([(1, "2")])
        assert rows(engine, "o") == Counter([(1, "1"), (2, "2")])
    assert violations(engine, "s") == {"short": 0, "positive": 1}
    refused(engine, "ALTER STREAM s ADD COLUMN t INT", "EXPECTATION_VIOLATED")
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        again.execute("ALTER STREAM s DROP CONSTRAINT short")
        for _ in range(2):  # the next entry has a text that can't be cast
            with pytest.raises(el.DataError, match="can't be evaluated"):
                again.advance()
        write(tmp_path / "other", "3.json", [{"id": 3, "n": "3"}])
        with pytest.raises(el.DataError, match="EXPECTATION_VIOLATED"):
            again.advance()
        assert rows(again, "o").total() == 3
        assert rows(again, "v") == Counter([("2",)])
        again.execute("ALTER STREAM s DROP CONSTRAINT positive")
        again.advance()
        assert rows(again, "v") == Counter([("5",)])
        assert again.verify()


def test_a_rejected_record_of_auto_cdc_hides_no_other(engine, tmp_path):
    folder = tmp_path / "in"
    write(folder, "1.json", [{"id": 1, "n": 5, "at": 1}, {"id": 1, "n": -5, "at": 9}])
    engine.execute(f"""
        CREATE STREAM s (id BIGINT, n INT, at INT, op STRING,
            CONSTRAINT positive EXPECT (op <=> 'd' OR n > 0) ON VIOLATION DEAD LETTER)
            {FILES.format(folder=folder)};
        CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(s) KEYS (id) APPLY AS DELETE WHEN op = 'd'
            SEQUENCE BY at COLUMNS * EXCEPT (op);
    """)
    engine.advance()
    assert rows(engine, "t") == Counter([(1, 5, 1)])
    write(folder, "2.json", [{"id": 1, "n": 7, "at": 8}, {"id": 2, "n": 1, "at": 1}])
    engine.advance()  # a lower number than that of the rejected record
    assert rows(engine, "t") == Counter([(1, 7, 8), (2, 1, 1)])
    write(folder, "3.json", [{"id": 2, "at": 2, "op": "d"}])
    engine.advance()
    assert rows(engine, "t") == Counter([(1, 7, 8)])
    assert rows(engine, "s__rejected") == Counter([(1, -5, 9, None, "positive")])
    assert engine.verify()


INSERTS, BEFORE = ("c", "u", "+", "+U", "update_postimage"), ("-U", "update_preimage")
CODES = {True: ["c", "u", "d", "move"], False: ["+", "-", "move"]}
RULES = {"positive": lambda n: n > 0, "small": lambda n: n < 7, "even": lambda n: n % 2 == 0}


class Model:
    """What a stream of operations has, record by record."""

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self.rules = ["positive", "small", "even"]
        self.held: Counter = Counter()
        self.letters: Counter = Counter()
        self.counts = dict.fromkeys(self.rules, 0)

    def apply(self, records: list[tuple[str, int, int | None]]) -> None:
        """Apply the records of one entry."""
        for place, (code, key, n) in enumerate(records):
            following = next((later for later, one, _ in records[place + 1 :] if one == key), "")
            if code in INSERTS:
                self.insert(key, n)
            elif not (self.keyed and code in BEFORE and following in INSERTS):
                self.delete(key, n)

    def insert(self, key: int, n: int | None) -> None:
        """Apply a record if it meets the rules."""
        violated = [rule for rule in self.rules if n is None or not RULES[rule](n)]
        for rule in violated:
            self.counts[rule] += 1
        if letters := [rule for rule in violated if rule != "small"]:
            self.letters[key, n, ", ".join(letters)] += 1
        if not violated:
            if self.keyed:
                self.delete(key, n)
            self.held[key, n] += 1

    def delete(self, key: int, n: int | None) -> None:
        for row in [row for row in self.held if row[0] == key and (self.keyed or row[1] == n)]:
            self.held -= Counter([row])


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_random_change_records_live_and_in_a_model(tmp_path, spark, keyed, seed):
    chance, model, folder = random.Random(seed), Model(keyed), tmp_path / "in"
    folder.mkdir()
    key = "PRIMARY KEY (id), " * keyed
    engine = el.Engine(tmp_path / "storage", spark)
    engine.execute(f"""
        CREATE STREAM s (op STRING, id BIGINT, n INT, {key}
            CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DEAD LETTER,
            CONSTRAINT small EXPECT (n < 7) ON VIOLATION DROP ROW,
            CONSTRAINT even EXPECT (n % 2 = 0) ON VIOLATION DEAD LETTER
        ) USING json OP op OPTIONS (path '{folder}');
        CREATE VIEW total AS SELECT id, count(*) AS c, sum(n) AS s FROM s GROUP BY id;
    """)
    for epoch in range(24):
        records: list[tuple[str, int, int | None]] = []
        for _ in range(chance.randint(1, 8)):
            code = chance.choice(CODES[keyed])
            at, n = chance.randint(1, 4), chance.choice([-2, 0, None, 1, 2, 4, 6, 8])
            if code == "move":
                to = chance.choice([at, at, 5])
                old, now = chance.choice([("-U", "+U"), ("update_preimage", "update_postimage")])
                before = next((row[1] for row in model.held if row[0] == at), 2)
                records += [(old, at, before), (now, to, n)]
            else:
                records.append((code, at, n))
        model.apply(records)
        write(
            folder, f"{epoch}.json", [dict(zip(("op", "id", "n"), r, strict=True)) for r in records]
        )
        if chance.random() < 0.5:
            engine._workspace.sources.pull()  # several entries in one epoch
            if chance.random() < 0.5:
                continue
        engine.advance()
        assert rows(engine, "s") == model.held, (epoch, records)
        assert rows(engine, "s__rejected") == model.letters, (epoch, records)
        assert violations(engine, "s") == {rule: model.counts[rule] for rule in model.rules}
        sums: dict[int, list[int]] = {}
        for (one, n), count in model.held.items():
            sums[one] = [
                a + b for a, b in zip(sums.get(one, [0, 0]), (count, n * count), strict=True)
            ]
        assert rows(engine, "total") == Counter((one, *both) for one, both in sums.items())
        if epoch % 8 == 7:
            assert engine.verify()
            engine.stop()
            engine = el.Engine(tmp_path / "storage", spark)
        if epoch in (11, 19):
            gone = model.rules.pop(chance.randrange(len(model.rules)))
            engine.execute(f"ALTER STREAM s DROP CONSTRAINT {gone}")
    engine.advance()
    assert rows(engine, "s") == model.held
    engine.stop()


@pytest.mark.slow
def test_a_rejected_update_of_a_delta_table_leaves_the_row(engine, tmp_path):
    folder = str(tmp_path / "delta")
    rows_ = pa.table({"id": pa.array([1, 2, 3]), "n": pa.array([1, 2, 3])})
    write_deltalake(folder, rows_, configuration={"delta.enableChangeDataFeed": "true"})
    engine.execute(f"""
        CREATE STREAM s (PRIMARY KEY (id), CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DEAD LETTER)
            USING delta OP _change_type OPTIONS (path '{folder}')""")
    engine.advance()
    table = DeltaTable(folder)
    table.update(updates={"n": "-n"}, predicate="id < 3")
    table.update(
        updates={"id": "id + 10"}, predicate="id = 2"
    )  # the key, of a row that is rejected
    table.update(updates={"n": "n + 30"}, predicate="id = 3")
    engine.advance()
    assert rows(engine, "s") == Counter([(1, 1), (3, 33)])
    table.delete("id = 1")
    engine.advance()
    assert rows(engine, "s") == Counter([(3, 33)])
    letters = [(1, -1, "positive"), (2, -2, "positive"), (12, -2, "positive")]
    assert rows(engine, "s__rejected") == Counter(letters)
    assert engine.verify()


@pytest.mark.slow
def test_a_crash_at_any_write_applies_each_change_record_once(tmp_path, spark):
    folder = tmp_path / "in"
    folder.mkdir()
    stream = f"""
        CREATE STREAM IF NOT EXISTS s (op STRING, id BIGINT, n INT, PRIMARY KEY (id),
            CONSTRAINT positive EXPECT (n > 0) ON VIOLATION DEAD LETTER,
            CONSTRAINT small EXPECT (n < 100) ON VIOLATION DROP ROW
        ) USING json OP op OPTIONS (path '{folder}')"""
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    fail_at, round_, ended = 1, 0, False
    while not ended:
        round_ += 1
        records = [(1, round_ % 90 + 1), (2, -round_), (1, 100 + round_)]
        write(folder, f"{round_}.json", [{"op": "u", "id": i, "n": n} for i, n in records])
        files.arm(fail_at, "crash", "driver")
        try:
            engine.execute(stream)
            engine.advance()
            ended = True
        except EddylineError:
            pass
        files.arm(0)
        engine.stop()
        engine = el.Engine(files, spark)
        engine.execute(stream)
        engine.advance()
        names = {entry.name for entry in engine.catalog.entries}
        assert names == {"s", "s__dead", "s__kept_out", "s__violations", "s__rejected"}
        assert rows(engine, "s") == Counter([(1, round_ % 90 + 1)]), fail_at
        assert violations(engine, "s") == {"positive": round_, "small": round_}, fail_at
        letters = Counter((2, -one, "positive") for one in range(1, round_ + 1))
        assert rows(engine, "s__rejected") == letters, fail_at
        if not ended and fail_at % 4 == 1:  # so that the definition crashes, too
            engine.execute("DROP STREAM s")
            for name in folder.iterdir():
                name.unlink()
            round_ = 0
        fail_at += 1
    assert fail_at > 20
    engine.stop()


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
