"""ALTER STREAM: columns come, leave and change, while views and earlier records stay as they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
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


def test_several_columns_change_in_one_statement(engine, tmp_path):
    folder = tmp_path / "in"
    write(folder, "1.json", '{"a": 1, "b": 2}')
    engine.execute(f"CREATE STREAM s (a INT, b INT) USING json OPTIONS (path '{folder}')")
    engine.advance()
    for _ in range(2):  # as when a script runs again
        engine.execute("ALTER STREAM s ADD COLUMNS IF NOT EXISTS (c STRING, d INT)")
        assert engine.relation("s").columns == ["a", "b", "c", "d"]
    write(folder, "2.json", '{"a": 3, "c": "x", "d": 6}')
    engine.advance()
    assert rows(engine, "SELECT a, b, c, d FROM s") == Counter(
        [(1, 2, None, None), (3, None, "x", 6)]
    )
    refused(engine, "ALTER STREAM s ADD COLUMNS (e INT, _received_at TIMESTAMP)", "NOT_ALTERABLE")
    refused(engine, "ALTER STREAM s DROP COLUMNS (a, e)", "UNKNOWN_COLUMN")
    refused(engine, "ALTER STREAM s DROP COLUMNS (a, b, c, d)", "BAD_SCHEMA")
    assert engine.relation("s").columns == ["a", "b", "c", "d"]
    engine.execute("ALTER STREAM s DROP COLUMNS (c, a)")
    assert rows(engine, "SELECT * FROM s") == Counter([(2, None), (None, 6)])
    assert engine.verify()


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
    refused(engine, "ALTER STREAM s RENAME COLUMN a TO b", "STILL_READ")
    refused(engine, "ALTER STREAM s ADD COLUMN _received_at TIMESTAMP", "NOT_ALTERABLE")
    engine.view("framed", lambda: engine.spark.table("s").select("a"))
    refused(engine, "ALTER STREAM s ADD COLUMN e INT", "STILL_READ")
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
    engine.execute(
        "DROP VIEW total; DROP VIEW star; ALTER STREAM s ALTER COLUMN a TYPE BIGINT;"
        "ALTER STREAM s RENAME COLUMN a TO n; DROP VIEW texts; ALTER STREAM s DROP COLUMN c"
    )
    producer.put(['{"a": 5000000000, "c": ["any"]}'])
    engine.execute("CREATE VIEW large AS SELECT n FROM s WHERE n > 2")
    engine.advance()
    assert rows(engine, "SELECT * FROM large") == Counter([(3,), (5_000_000_000,)])
    assert engine.verify()


def test_documents_keep_the_names_of_their_members(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(folder, "1.json", '{"a": 1, "b": "x", "c": 5}', '{"a": 2, "b": "y", "c": 5000000000}')
    stream = "CREATE STREAM s (a INT, {more}) USING json OPTIONS (path '{folder}');"
    engine.execute(stream.format(more="b STRING, c INT, e INT", folder=folder))
    engine.execute("CREATE VIEW total AS SELECT count(*) AS n, sum(a) AS s FROM s")
    engine.advance()
    assert rows(engine, "SELECT a, b, c FROM s") == Counter([(1, "x", 5), (2, "y", None)])
    before, epoch = plans(engine), engine._workspace.manifest.epoch
    engine.execute(
        "ALTER STREAM s RENAME COLUMN b TO text; ALTER STREAM s ALTER COLUMN c TYPE BIGINT;"
        "ALTER STREAM s DROP COLUMN e"
    )
    assert engine._workspace.manifest.epoch == epoch
    engine.execute("CREATE VIEW sums AS SELECT text, sum(c) AS c FROM s GROUP BY text")
    assert rows(engine, "SELECT * FROM sums") == Counter([("x", 5), ("y", 5_000_000_000)])
    write(folder, "2.json", '{"a": 3, "b": "x", "text": "no", "c": 1, "e": 7}')
    engine.advance()
    assert rows(engine, "SELECT * FROM sums") == Counter([("x", 6), ("y", 5_000_000_000)])
    assert engine.verify()
    for statement, condition, words in (
        ("DROP COLUMN text", "STILL_READ", "sums"),
        ("RENAME COLUMN text TO t", "STILL_READ", "sums"),
        ("ALTER COLUMN c TYPE DECIMAL(20, 0)", "STILL_READ", "sums"),
        ("ADD COLUMN b STRING", "BAD_SCHEMA", "text"),
        ("RENAME COLUMN c TO _received_at", "NOT_ALTERABLE", "receipt"),
        ("ALTER COLUMN text TYPE INT", "BAD_SCHEMA", "cast"),
    ):
        assert words in refused(engine, f"ALTER STREAM s {statement}", condition)
    engine.execute("ALTER STREAM s ADD COLUMN e STRING")
    assert rows(engine, "SELECT a, e FROM s") == Counter([(1, None), (2, None), (3, "7")])
    now = plans(engine)
    assert before.items() <= now.items()
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        again.execute(stream.format(more="text STRING, c BIGINT, e STRING", folder=folder))
        write(folder, "3.json", '{"a": 4, "b": "z"}')
        assert again.advance() == again._workspace.manifest.epoch
        assert plans(again) == now
        assert rows(again, "SELECT * FROM total") == Counter([(4, 10)])
        assert rows(again, "SELECT * FROM s") == Counter(
            [
                (1, "x", 5, None),
                (2, "y", 5_000_000_000, None),
                (3, "x", 1, "7"),
                (4, "z", None, None),
            ]
        )
        assert again.verify()


def test_a_parquet_file_that_was_set_aside_is_read_with_the_wider_type(engine, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()

    def put(name: str, value: int, kind: pa.DataType) -> None:
        pq.write_table(pa.table({"c": pa.array([value], kind), "t": ["x"]}), folder / name)

    put("1.parquet", 5, pa.int32())
    engine.execute(f"CREATE STREAM s (c INT) USING parquet OPTIONS (path '{folder}')")
    engine.advance()
    put("2.parquet", 5_000_000_000, pa.int64())
    engine.advance()
    assert rows(engine, "SELECT * FROM s") == Counter([(5,)])
    assert "1.parquet" in refused(engine, "ALTER STREAM s ADD COLUMN t INT", "BAD_STREAM")
    engine.execute("ALTER STREAM s ALTER COLUMN c TYPE BIGINT; ALTER STREAM s RENAME COLUMN c TO d")
    engine.execute("CREATE VIEW v AS SELECT sum(d) AS s FROM s")
    engine.advance()
    assert rows(engine, "SELECT * FROM v") == Counter([(5_000_000_005,)])
    assert engine.verify()


def test_logged_rows_get_wider_types_and_other_places(engine, tmp_path, spark):
    folder = tmp_path / "in"
    times = "2024-01-01T00:{}:00Z"
    write(folder, "1.csv", f"p,1,{times.format('10')},1", f"q,2,{times.format('11')},2")
    engine.execute(
        "CREATE STREAM s (x STRING, y INT, ts TIMESTAMP, a INT, "
        "WATERMARK FOR ts AS ts - INTERVAL 1 MINUTE, CONSTRAINT small EXPECT (a < 100) ON VIOLATION DROP ROW) "
        f"USING csv OPTIONS (path '{folder}');"
        "CREATE VIEW total AS SELECT count(*) AS n, sum(a) AS s FROM s;"
        "CREATE VIEW late AS SELECT a, reason IS NULL AS r FROM s__late"
    )
    engine.advance()
    write(folder, "2.csv", f"p,3,{times.format('00')},7", f"q,4,{times.format('12')},3")
    engine._workspace.sources.pull()
    assert "small" in refused(engine, "ALTER STREAM s RENAME COLUMN a TO z", "STILL_READ")
    assert "event time" in refused(engine, "ALTER STREAM s DROP COLUMN ts", "NOT_ALTERABLE")
    before = plans(engine)
    engine.execute(
        "ALTER STREAM s DROP COLUMN x; ALTER STREAM s ALTER COLUMN y TYPE DECIMAL(12, 1);"
        "ALTER STREAM s RENAME COLUMN ts TO t; ALTER STREAM s ADD COLUMN x STRING"
    )
    write(
        folder,
        "3.csv",
        f"p,5,{times.format('00')},8,new",
        f"q,5000000000,{times.format('15')},4,new",
    )
    engine.advance()
    every = [(1, "1.0", None), (2, "2.0", None), (3, "4.0", None), (4, "5000000000.0", "new")]
    assert rows(engine, "SELECT a, string(y), x FROM s") == Counter(every)
    assert engine.sql("SELECT * FROM s__late").columns == ["y", "t", "a", "x", "reason"]
    assert rows(engine, "SELECT * FROM late") == Counter([(7, False), (8, False)])
    assert rows(engine, "SELECT a, x FROM s__late") == Counter([(7, None), (8, "new")])
    assert engine.verify()
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        write(folder, "4.csv", f"p,6,{times.format('16')},5,", f"p,6,{times.format('16')},500,")
        again.advance()
        assert before.items() <= plans(again).items()
        assert rows(again, "SELECT * FROM total") == Counter([(5, 15)])
        assert again.verify()


def test_a_stream_of_operations_is_stored_anew(engine, tmp_path, spark):
    folder = tmp_path / "in"
    write(folder, "1.csv", "1,a,10,+", "2,b,20,+", "9,x,1,?")
    engine.execute(
        "CREATE STREAM s (k INT, t STRING, n INT, _received_at TIMESTAMP, PRIMARY KEY (k)) "
        f"USING csv OP op OPTIONS (path '{folder}');"
        "CREATE VIEW total AS SELECT count(*) AS n, sum(n) AS s FROM s;"
        "CREATE VIEW times AS SELECT k, _received_at FROM s"
    )
    engine.advance()
    write(folder, "2.csv", "2,b,21,u", "3,c,30,+")
    engine._workspace.sources.pull()  # in the log, and in no epoch yet
    before, epoch = plans(engine), engine._workspace.manifest.epoch
    engine.execute("ALTER STREAM s ADD COLUMN z INT; ALTER STREAM s DROP COLUMN t")
    write(folder, "3.csv", "4,d,40,+,7", "1,a,10,-,", "8,x,1,?,1")
    engine.advance()
    assert rows(engine, "SELECT k, n, z FROM s") == Counter(
        [(2, 21, None), (3, 30, None), (4, 40, 7)]
    )
    assert rows(engine, "SELECT count(*) FROM s__dead") == Counter([(2,)])
    assert rows(engine, "SELECT count(*) FROM times WHERE _received_at IS NULL") == Counter([(0,)])
    assert engine.verify()
    with pytest.raises(EddylineError, match="NO_SUCH_EPOCH"):
        engine.sql(f"SELECT * FROM s VERSION AS OF {epoch}").collect()
    assert "primary key" in refused(
        engine, "ALTER STREAM s ALTER COLUMN k TYPE BIGINT", "BAD_SCHEMA"
    )
    engine.pause("times")
    assert "resume" in refused(engine, "ALTER STREAM s ADD COLUMN y INT", "STILL_READ")
    engine.resume("times")
    engine.execute("DROP VIEW times; ALTER STREAM s RENAME COLUMN k TO id")
    engine.stop()
    with el.Engine(tmp_path / "storage", spark) as again:
        write(folder, "4.csv", "4,d,41,u,8", "5,d,50,+,9")
        again.advance()
        assert rows(again, "SELECT id, n, z FROM s") == Counter(
            [(2, 21, None), (3, 30, None), (4, 41, 8), (5, 50, 9)]
        )
        assert before["total"] == plans(again)["total"]
        assert rows(again, "SELECT * FROM total") == Counter([(4, 142)])
        assert again.verify()


@pytest.mark.slow
def test_a_stream_follows_a_delta_table_that_has_got_a_wider_type(engine, tmp_path, spark):
    folder = str(tmp_path / "delta")

    def put(numbers: dict[int, int], kind: pa.DataType, mode: str) -> None:
        columns = {"id": pa.array(numbers, pa.int64()), "n": pa.array(numbers.values(), kind)}
        feed = {"delta.enableChangeDataFeed": "true"}
        evolve = {"schema_mode": "overwrite"} if mode == "overwrite" else {}
        write_deltalake(folder, pa.table(columns), mode=mode, configuration=feed, **evolve)

    put({1: 1, 2: 2}, pa.int32(), "append")
    engine.execute(
        "CREATE STREAM p (id BIGINT, n INT, _change_type STRING) "
        f"USING delta OPTIONS (path '{folder}', startingVersion 0);"
        "CREATE STREAM k (id BIGINT, n INT, _change_type STRING, PRIMARY KEY (id)) "
        f"USING delta OP _change_type OPTIONS (path '{folder}');"
        "CREATE VIEW v AS SELECT _change_type, count(*) AS n FROM p GROUP BY _change_type"
    )
    engine.advance()
    put({3: 3}, pa.int32(), "append")
    put({1: 1, 4: 5_000_000_000}, pa.int64(), "overwrite")
    with pytest.raises(EddylineError, match=r"SOURCE_CHANGED.*n is bigint.*ALTER STREAM"):
        engine.advance()
    for stream in ("p", "k"):
        engine.execute(f"ALTER STREAM {stream} ALTER COLUMN n TYPE BIGINT")
    engine.execute("ALTER STREAM k RENAME COLUMN id TO number")
    engine.advance()
    assert rows(engine, "SELECT * FROM v") == Counter([("insert", 5), ("delete", 3)])
    assert rows(engine, "SELECT * FROM k") == Counter([(1, 1), (4, 5_000_000_000)])
    assert engine.verify()
    engine.stop()
    put({7: 7}, pa.int64(), "append")
    with el.Engine(tmp_path / "storage", spark) as again:
        again.advance()
        assert rows(again, "SELECT number FROM k WHERE n < 10") == Counter([(1,), (7,)])
        assert again.verify()


@pytest.mark.slow
def test_a_crash_at_effects_on_the_disk(tmp_path, spark):
    """Either the stream has the change or not; records are in it once, and views are right."""
    folder = tmp_path / "in"
    write(folder, "0.csv", "0,0,0")
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    engine.execute(f"CREATE STREAM s (x STRING, a INT) USING csv OPTIONS (path '{folder}')")
    engine.execute("CREATE VIEW v AS SELECT count(*) AS n, sum(a) AS s FROM s")
    engine.advance()
    total = 0
    for change in (
        "ADD COLUMN c INT", "ALTER COLUMN c TYPE BIGINT", "RENAME COLUMN c TO d",
        "RENAME COLUMN x TO c", "DROP COLUMN d", "DROP COLUMN c",
    ):  # fmt: skip
        number, hit = 0, True
        while hit:
            number, total = number + 1, total + 1
            write(folder, f"{total}.csv", f"{total},{total},{total}")
            files.arm(number, "crash", "driver")
            try:
                engine.execute(f"ALTER STREAM s {change}")
                engine.advance()
            except EddylineError as error:
                done = error.condition in ("UNKNOWN_COLUMN", "BAD_SCHEMA")  # by the try before
                assert files.hit() or done
            hit = files.hit()
            files.arm(0)
            engine.stop()
            engine = el.Engine(files, spark)
            engine.advance()
            expected = Counter([(total + 1, total * (total + 1) // 2)])
            assert rows(engine, "SELECT * FROM v") == expected, (change, number)
            assert rows(engine, "SELECT a FROM s") == Counter((n,) for n in range(total + 1))
        assert number > 1
        assert engine.verify()
    assert engine.catalog.get("s").columns.names == ["a"]
    engine.stop()


@pytest.mark.slow
def test_a_crash_while_operations_are_stored_anew(tmp_path, spark):
    """Either the stream has the change or not; documents are in it once, and views are right."""
    folder = str(tmp_path / "queue")
    producer = Producer(LogBackend(folder))
    files = FaultyFiles(str(tmp_path / "storage"))
    engine = el.Engine(files, spark)
    engine.execute(
        f"CREATE STREAM s (k INT, a INT, PRIMARY KEY (k)) USING queue OPTIONS (path '{folder}');"
        "CREATE VIEW v AS SELECT count(*) AS n, sum(a) AS s FROM s"
    )
    producer.put(['{"k": 0, "a": 0, "c": 0}', "no document"])
    engine.advance()
    files.arm(0, "crash", "driver")
    engine.execute("ALTER STREAM s ADD COLUMN c INT")
    kinds: dict[str, int] = {}
    for at, effect in enumerate(files.effects(), 1):
        kinds.setdefault(re.sub(r"[0-9a-f]{8,}|[0-9]+", "", effect), at)
    assert len(kinds) > 20
    action, done = "DROP", {True}
    for number, at in enumerate(kinds.values(), 1):
        producer.put([f'{{"k": {number}, "a": {number}, "c": {number}}}', '{"k": 0, "a": 0}'])
        engine._workspace.sources.pull()
        files.arm(at, "crash", "driver")
        with suppress(EddylineError):
            engine.execute(f"ALTER STREAM s {action} COLUMN c{' INT' * (action == 'ADD')}")
        hit = files.hit()
        files.arm(0)
        engine.stop()
        engine = el.Engine(files, spark)
        has = "c" in engine.catalog.get("s").columns.names
        done.add(has == (action == "ADD"))
        action = "DROP" if has else "ADD"
        assert hit
        engine.advance()
        assert rows(engine, "SELECT k, a FROM s") == Counter((n, n) for n in range(number + 1))
        assert rows(engine, "SELECT * FROM v") == Counter([(number + 1, sum(range(number + 1)))])
        assert rows(engine, "SELECT count(*) FROM s__dead") == Counter([(1,)])
        assert engine.verify()
    assert done == {True, False}
    engine.stop()
