"""ALTER STREAM ... ADD COLUMN: new records have it, views and earlier records stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import EddylineError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.producer import Producer
from eddyline.testing import FaultyFiles

pytestmark = pytest.mark.spark

STREAM = """
CREATE STREAM s (a INT, b STRING, _received_at TIMESTAMP, {more}WATERMARK FOR _received_at AS _received_at,
    CONSTRAINT known EXPECT (a IS NOT NULL) ON VIOLATION DEAD LETTER) USING csv OPTIONS (path '{folder}');
"""
VIEWS = """
CREATE VIEW total AS SELECT count(*) AS n, sum(a) AS s FROM s;
CREATE VIEW star AS SELECT * FROM s WHERE a > 0;
"""


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        yield engine


def rows(engine: el.Engine, query: str) -> Counter:
    return Counter(tuple(row) for row in engine.sql(query).collect())


def plans(engine: el.Engine) -> dict[str, str]:
    held = engine._workspace.manifest.plans
    return {e.name: held[e.id] for e in engine.catalog.entries if e.id in held}


def write(folder: Path, name: str, *records: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{record}\n" for record in records))


def refused(engine: el.Engine, statement: str, condition: str) -> str:
    with pytest.raises(EddylineError) as error:
        engine.execute(statement)
    assert error.value.condition == condition
    return str(error.value)


def test_records_get_a_column_and_views_go_on_untouched(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(folder, "1.csv", "1,x", "2,y")
    engine.execute(STREAM.format(more="", folder=folder) + VIEWS)
    engine.advance()
    write(folder, "2.csv", "3,z", ",q")
    engine._workspace.sources.pull()  # in the log, and in no epoch yet
    before, epoch = plans(engine), engine._workspace.manifest.epoch
    engine.execute("ALTER STREAM s ADD COLUMN c BIGINT")
    assert engine._workspace.manifest.epoch == epoch
    write(folder, "3.csv", "4,v,40", "5,w,")
    engine.execute("CREATE VIEW sums AS SELECT count(c) AS n, sum(c) AS s FROM s")
    engine.advance()
    columns = "SELECT a, b, c FROM s"
    every = [(1, "x", None), (2, "y", None), (3, "z", None), (4, "v", 40), (5, "w", None)]
    assert rows(engine, columns) == Counter(every)
    assert rows(engine, "SELECT * FROM sums") == Counter([(1, 40)])
    assert rows(engine, "SELECT * FROM total") == Counter([(5, 15)])
    assert engine.sql("SELECT * FROM star").columns == ["a", "b", "_received_at"]
    assert rows(engine, "SELECT a, b FROM star") == Counter(row[:2] for row in every)
    assert rows(engine, "SELECT b, violates FROM s__rejected") == Counter([("q", "known")])
    assert engine.sql("SELECT * FROM s__late").columns[:4] == ["a", "b", "_received_at", "c"]
    assert engine.verify()
    engine.execute("CREATE OR REPLACE VIEW star AS SELECT * FROM s WHERE a > 0")
    assert engine.sql("SELECT * FROM star").columns[-1] == "c"
    assert before.items() - plans(engine).items() == {("star", before["star"])}
    written = plans(engine)
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        again.execute(STREAM.format(more="c BIGINT, ", folder=folder) + VIEWS)  # changes nothing
        write(folder, "4.csv", "6,u,60")
        last = again._workspace.manifest.epoch
        assert again.advance() == last + 1  # no view is computed again
        assert plans(again) == written
        assert rows(again, columns) == Counter([*every, (6, "u", 60)])
        assert rows(again, "SELECT * FROM sums") == Counter([(2, 100)])
        assert again.verify()


def test_files_that_the_log_only_names_have_what_they_hold(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(folder, "1.json", '{"a": 1, "c": 10}')
    engine.execute(
        f"CREATE STREAM s (a INT) USING json OPTIONS (path '{folder}', maxFilesPerTrigger 1); {VIEWS}"
    )
    engine.advance()
    assert "text" in refused(engine, "ALTER STREAM s ADD COLUMN c DECIMAL(3, 1)", "BAD_STREAM")
    engine.execute("ALTER STREAM s ADD COLUMN c INT; ALTER STREAM s ADD COLUMN d STRING")
    engine.execute("CREATE VIEW sums AS SELECT sum(c) AS s, max(d) AS d FROM s")
    write(folder, "2.json", '{"a": 2, "c": 20, "d": "x"}')
    engine.advance()
    assert rows(engine, "SELECT * FROM s") == Counter([(1, 10, None), (2, 20, "x")])
    assert rows(engine, "SELECT * FROM sums") == Counter([(30, "x")])
    assert rows(engine, "SELECT * FROM star") == Counter([(1,), (2,)])
    assert engine.verify()
    assert "c" in refused(engine, "ALTER STREAM s ADD COLUMN C INT", "BAD_SCHEMA")
    refused(engine, "ALTER STREAM s RENAME COLUMN a TO b", "NOT_ALTERABLE")
    refused(engine, "ALTER STREAM s ADD COLUMN _received_at TIMESTAMP", "NOT_ALTERABLE")
    engine.view("framed", lambda: engine.spark.table("s").select("a"))
    refused(engine, "ALTER STREAM s ADD COLUMN e INT", "STILL_READ")
    keyed = f"CREATE STREAM k (a INT, PRIMARY KEY (a)) USING csv OPTIONS (path '{folder}')"
    engine.execute(keyed)
    assert "PRIMARY KEY" in refused(engine, "ALTER STREAM k ADD COLUMN e INT", "NOT_ALTERABLE")
    engine.stream("d", spark.readStream.format("rate").load())
    assert "DataFrame" in refused(engine, "ALTER STREAM d ADD COLUMN e INT", "NOT_ALTERABLE")


def test_documents_of_a_queue_get_a_column(engine, tmp_path):
    folder = str(tmp_path / "queue")
    producer = Producer(LogBackend(folder))
    producer.put(['{"a": 1}'])
    engine.execute(f"CREATE STREAM s (a INT) USING queue OPTIONS (path '{folder}'); {VIEWS}")
    engine.advance()
    producer.put(['{"a": 2, "c": "early"}', '{"a": "no"}'])
    engine._workspace.sources.pull()  # in the log, and in no epoch yet
    engine.execute("ALTER STREAM s ADD COLUMN c STRING")
    engine.execute("CREATE VIEW texts AS SELECT c, count(*) AS n FROM s GROUP BY c")
    producer.put(['{"a": 3, "c": "x"}', '{"a": 4, "c": {"b": ', '{"c": "y"}'])
    engine.advance()
    assert rows(engine, "SELECT * FROM s") == Counter([(1, None), (2, None), (3, "x"), (None, "y")])
    assert rows(engine, "SELECT * FROM texts") == Counter([(None, 2), ("x", 1), ("y", 1)])
    assert rows(engine, "SELECT * FROM total") == Counter([(4, 6)])
    assert rows(engine, "SELECT count(*) FROM s__dead") == Counter([(2,)])
    assert engine.verify()


@pytest.mark.slow
def test_a_crash_at_effects_on_the_disk(tmp_path, spark):
    """Either the stream has the column or not; records are in it once, and views are right."""
    folder = tmp_path / "in"
    write(folder, "0.csv", "0")
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    engine.execute(f"CREATE STREAM s (a INT) USING csv OPTIONS (path '{folder}')")
    engine.execute("CREATE VIEW v AS SELECT count(*) AS n, sum(a) AS s FROM s")
    engine.advance()
    number, hit = 0, True
    while hit:
        number += 1
        write(folder, f"{number}.csv", f"{number},{number},{number}")
        files.arm(number, "crash", "driver")
        try:
            engine.execute(f"ALTER STREAM s ADD COLUMN c{number} INT")
            engine.advance()
        except EddylineError:
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        engine.stop()
        engine = el.Engine(files, spark)
        engine.advance()
        assert rows(engine, "SELECT * FROM v") == Counter(
            [(number + 1, number * (number + 1) // 2)]
        )
        assert rows(engine, "SELECT a FROM s") == Counter((n,) for n in range(number + 1))
    assert len(engine.catalog.get("s").columns) > 1
    assert engine.verify()
    engine.stop()
