"""CREATE OR REPLACE VIEW while other views read the view: they keep their names and get the difference."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from asking import refused, rows
from eddyline.errors import EddylineError
from eddyline.testing import FaultyFiles

pytestmark = pytest.mark.spark

DEFINITIONS = """
CREATE TABLE t (k BIGINT, a INT, b STRING, PRIMARY KEY (k));
CREATE TABLE names (b STRING, name STRING);
CREATE VIEW first AS SELECT b, count(*) AS n, sum(a) AS s FROM t GROUP BY b;
CREATE VIEW star AS SELECT * FROM first;
CREATE VIEW large AS SELECT b, s FROM first WHERE s > 3;
CREATE VIEW counts AS SELECT n, count(*) AS groups FROM star GROUP BY n;
CREATE VIEW apart AS SELECT max(a) AS most FROM t;
INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'x'), (4, 4, 'z');
INSERT INTO names VALUES ('x', 'Xaver'), ('y', 'Yves');
"""


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.execute(DEFINITIONS)
        engine.advance()
        yield engine


def changed(engine: el.Engine, name: str, epoch: int) -> Counter:
    """The sum of a view's changes after an epoch."""
    total: Counter = Counter()
    for row in engine.changes(name).where(f"epoch > {epoch}").collect():
        values = row.asDict()
        weight = 1 if values.pop("op") == "append" else -1
        del values["epoch"]
        total[tuple(values.values())] += weight
    return Counter({row: n for row, n in total.items() if n})


def test_readers_get_the_difference(engine: el.Engine) -> None:
    names = ("first", "star", "large", "counts", "apart")
    before = {name: rows(engine, name) for name in names}
    epoch = engine.progress().epoch
    ids = {entry.name: entry.id for entry in engine.catalog.entries}
    engine.execute(
        "CREATE OR REPLACE VIEW first AS SELECT b, count(*) AS n, sum(a) + 1 AS s FROM t"
        " WHERE k > 1 GROUP BY b"
    )
    assert engine.progress().epoch == epoch + 1
    assert rows(engine, "star") == rows(engine, "first")
    assert rows(engine, "first") == Counter([("x", 1, 4), ("y", 1, 3), ("z", 1, 5)])
    assert rows(engine, "large") == Counter([("x", 4), ("z", 5)])
    assert rows(engine, "counts") == Counter([(1, 3)])
    for name in names:
        total = Counter(before[name])
        total.update(changed(engine, name, epoch))
        assert Counter({row: n for row, n in total.items() if n}) == rows(engine, name), name
    assert changed(engine, "apart", epoch) == Counter()
    assert {e.name: e.id for e in engine.catalog.entries if e.name != "first"} == {
        name: known for name, known in ids.items() if name != "first"
    }
    engine.execute("DELETE FROM t WHERE k = 4; INSERT INTO t VALUES (5, 9, 'y')")
    engine.advance()
    assert rows(engine, "large") == Counter([("x", 4), ("y", 12)])
    assert engine.verify()


def test_a_new_column_leaves_readers_as_they_are(engine: el.Engine, spark: SparkSession) -> None:
    engine.execute(
        "CREATE OR REPLACE VIEW first AS SELECT max(k) AS last, b, count(*) AS n, sum(a) AS s FROM t GROUP BY b"
    )
    assert rows(engine, "first") == Counter([(3, "x", 2, 4), (2, "y", 1, 2), (4, "z", 1, 4)])
    assert [f.name for f in engine.catalog.get("star").columns] == ["b", "n", "s"]
    engine.execute("INSERT INTO t VALUES (6, 1, 'x')")
    engine.advance()
    assert rows(engine, "star") == Counter([("x", 3, 5), ("y", 1, 2), ("z", 1, 4)])
    assert engine.verify()
    # star keeps b, n and s: a query without one of them is refused, one with others isn't
    assert "star" in refused(
        engine,
        "CREATE OR REPLACE VIEW first AS SELECT b, count(*) AS n FROM t GROUP BY b",
        "STILL_READ",
    )
    engine.execute(
        "CREATE OR REPLACE VIEW first AS SELECT sum(a) AS s, count(*) AS n, b, 1 AS one FROM t GROUP BY b"
    )
    assert rows(engine, "star") == Counter([("x", 3, 5), ("y", 1, 2), ("z", 1, 4)])
    assert engine.verify()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT b, sum(a) AS s FROM t GROUP BY b", ("star", "drop star first")),
        ("SELECT b, count(*) AS n, min(b) AS s FROM t GROUP BY b", ("other columns",)),
        ("SELECT 1 AS one", ("star",)),
    ],
)
def test_a_reader_that_would_lose_columns_is_named(
    engine: el.Engine, query: str, words: tuple[str, ...]
) -> None:
    before = engine.catalog, {name: rows(engine, name) for name in ("first", "star", "large")}
    message = refused(engine, f"CREATE OR REPLACE VIEW first AS {query}", "STILL_READ")
    assert [word for word in words if word not in message] == []
    assert engine.catalog == before[0]
    assert {name: rows(engine, name) for name in before[1]} == before[1]
    engine.execute("INSERT INTO t VALUES (6, 1, 'x')")
    engine.advance()
    assert engine.verify()


def test_a_view_may_read_what_was_created_after_it_but_not_itself(engine: el.Engine) -> None:
    message = refused(
        engine, "CREATE OR REPLACE VIEW first AS SELECT 'x' AS b, n, groups AS s FROM counts",
        "VIEW_CIRCLE",
    )  # fmt: skip
    assert "counts" in message
    for statement in ("CREATE OR REPLACE VIEW first", "ALTER VIEW FIRST"):
        assert "read itself" in refused(
            engine, f"{statement} AS SELECT * FROM First", "VIEW_CIRCLE"
        )
    engine.execute("CREATE VIEW named AS SELECT name, b FROM names")
    engine.execute(
        "CREATE OR REPLACE VIEW first AS SELECT name AS b, count(*) AS n, sum(a) AS s"
        " FROM t JOIN named USING (b) GROUP BY name"
    )
    assert rows(engine, "star") == Counter([("Xaver", 2, 4), ("Yves", 1, 2)])
    order = [entry.name for entry in engine.catalog.entries]
    assert order.index("named") < order.index("first") < order.index("star") < order.index("counts")
    engine.execute("INSERT INTO names VALUES ('z', 'Zoe'); DELETE FROM t WHERE k = 1")
    engine.advance()
    assert rows(engine, "counts") == Counter([(1, 3)])
    assert engine.verify()


def test_readers_that_stand_still_are_named(engine: el.Engine) -> None:
    statement = "CREATE OR REPLACE VIEW first AS SELECT b, 1L AS n, sum(a) AS s FROM t GROUP BY b"
    engine.pause("counts")
    assert "resume" in refused(engine, statement, "STILL_READ")
    engine.resume("counts")
    engine.view("framed", engine.relation("first").select("b"))
    assert "framed" in refused(engine, statement, "STILL_READ")


def test_a_failing_view_sets_its_readers_aside(engine: el.Engine) -> None:
    with pytest.warns(el.errors.ViewFailingWarning):
        engine.execute(
            "CREATE OR REPLACE VIEW first AS"
            " SELECT b, count(*) AS n, sum(CAST(10 / (a - 4) AS INT)) AS s FROM t GROUP BY b"
        )
    with pytest.raises(EddylineError, match="VIEW_FAILING"):
        rows(engine, "star")
    engine.execute("DELETE FROM t WHERE k = 4")
    engine.advance()
    engine.advance()
    assert rows(engine, "star") == rows(engine, "first")
    assert engine.verify()


def test_readers_of_a_failing_view_go_on_with_the_one_that_replaces_it(engine: el.Engine) -> None:
    with pytest.warns(el.errors.ViewFailingWarning):
        engine.execute(
            "CREATE OR REPLACE VIEW first AS"
            " SELECT b, count(*) AS n, sum(CAST(10 / (a - 4) AS INT)) AS s FROM t GROUP BY b"
        )
    engine.execute(
        "CREATE OR REPLACE VIEW first AS SELECT b, count(*) AS n, sum(a) AS s FROM t GROUP BY b"
    )
    assert {one["state"] for one in engine.status()["views"]} == {"live"}
    assert rows(engine, "star") == rows(engine, "first")
    engine.execute("INSERT INTO t VALUES (11, 1, 'x')")
    engine.advance()
    assert rows(engine, "star") == rows(engine, "first")
    assert engine.verify()


def test_a_sink_two_levels_above_gets_the_difference_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    target = tmp_path / "out"

    def held() -> list[Counter]:
        """Return what each file of the sink adds, in their order."""
        found = []
        for path in sorted(target.glob("0*.jsonl")):
            total: Counter = Counter()
            for row in map(json.loads, path.read_text().splitlines()):
                gone = row["_change_type"] in ("delete", "update_preimage")
                total[row["n"], row["groups"]] += -1 if gone else 1
            found.append(Counter({row: n for row, n in total.items() if n}))
        return found

    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.execute(DEFINITIONS)
        engine.advance()
        engine.sink("out", "counts", "jsonl", path=str(target))
        engine.advance()
        assert held() == [rows(engine, "counts")] == [Counter([(1, 2), (2, 1)])]
        engine.execute(
            "CREATE OR REPLACE VIEW first AS SELECT b, count(*) AS n, sum(a) + 1 AS s FROM t"
            " WHERE k > 1 GROUP BY b"
        )
        engine.advance()
        assert rows(engine, "counts") == Counter([(1, 3)])
        difference = Counter({(1, 2): -1, (2, 1): -1, (1, 3): 1})
        assert held()[1:] == [difference]
    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.execute("INSERT INTO t VALUES (5, 9, 'y')")
        engine.advance()
        assert held()[1:] == [difference, Counter({(1, 3): -1, (1, 2): 1, (2, 1): 1})]
        assert engine.verify()


def test_it_holds_in_another_process_and_after_two_replacements(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(3)
    for turn in range(3):
        with el.Engine(tmp_path / "storage", spark) as engine:
            if not turn:
                engine.execute(DEFINITIONS)
            engine.advance()
            more = f", {turn} AS extra{turn}" if turn else ""
            engine.execute(
                f"CREATE OR REPLACE VIEW first AS SELECT b, count(*) AS n, sum(a) * {turn + 1} AS s{more}"
                " FROM t GROUP BY b"
            )
            for _ in range(2):
                engine.execute(
                    f"INSERT INTO t VALUES ({chance.randrange(9)}, {chance.randrange(9)}, 'x')"
                )
                engine.advance()
                assert engine.verify()


def test_a_crash_at_effects_on_the_disk(tmp_path: Path, spark: SparkSession) -> None:
    """Either nothing has changed, or all has; the views are consistent as soon as the storage is open."""
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    engine.execute(DEFINITIONS)
    engine.advance()
    factor, fail_at, torn = 1, 1, 0
    while True:
        files.arm(fail_at, "crash", "driver")
        query = f"SELECT b, count(*) AS n, sum(a) * {factor + 1} AS s FROM t GROUP BY b"
        try:
            engine.execute(f"CREATE OR REPLACE VIEW first AS {query}")
        except EddylineError:
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        engine.stop()
        engine = el.Engine(files, spark)
        found = rows(engine, "first")
        if ("y", 1, 2 * (factor + 1)) in found:
            factor += 1
        assert found == Counter(
            [("x", 2, 4 * factor), ("y", 1, 2 * factor), ("z", 1, 4 * factor)]
        ), fail_at
        assert rows(engine, "star") == found, fail_at
        assert rows(engine, "large") == Counter({(b, s): 1 for b, _, s in found if s > 3}), fail_at
        torn += hit
        if not hit:
            break
        fail_at += 3
    assert torn > 5
    assert not any("replacing" in entry.options for entry in engine.catalog.entries)
    engine.execute("DELETE FROM t WHERE k = 3")
    engine.advance()
    assert engine.verify()
    engine.stop()
