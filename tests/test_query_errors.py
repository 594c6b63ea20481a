"""Refusals are reported once, by Eddyline: PySpark's own log of them is kept out."""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import col, udf

from eddyline import Engine, cli
from eddyline.errors import DataError, QueryError, ViewFailingWarning
from eddyline.runtime.view_failures import failed_view
from eddyline.spark.failures import lost_task, lost_worker, message_of, query_error
from eddyline.spark.query_errors import LOGGERS
from eddyline.spark.session import local_session


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path, local_session()) as engine:
        engine.table("t", "a INT")
        yield engine


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What PySpark logs about failed queries."""
    handler = logging.StreamHandler(io.StringIO())
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
    yield handler.stream
    for name in LOGGERS:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.parametrize(
    ("query", "way_out"),
    [
        ("SELECT DATE'x'", "correct the values"),
        ("SELECT * FROM VALUES (1, 1/0)", "correct the values"),
        ("SELECT a FROM t WHERE a = :p", "as a literal"),
        ("SELECT a FROM t TIMESTAMP AS OF '2026-01-01'", "VERSION AS OF 12"),
        ("SELECT absent(a) FROM t", "CREATE TEMPORARY FUNCTION"),
        ("SELECT b FROM t", "the names known"),
    ],
)
def test_the_way_out_fits_the_fault(engine: Engine, query: str, way_out: str) -> None:
    with pytest.raises(QueryError) as caught:
        engine.sql(query)
    assert caught.value.condition == "INVALID_QUERY"
    assert way_out in caught.value.hint


STATEMENTS = [
    "CREATE TABLE u (a INT)",
    "create stream s USING rate",
    "INSERT INTO t VALUES (1)",
    "UPDATE t SET a = 1",
    "DROP TABLE t",
    "SHOW VIEWS",
    "SET spark.sql.ansi.enabled = false",
    "CACHE TABLE t",
    "CREATE TEMP VIEW u AS SELECT 1",
]
QUERIES = [
    "FROM t SELECT a",
    "(SELECT a FROM t) UNION ALL SELECT 2",
    "VALUES (1)",
    "TABLE t",
    "FROM t |> SELECT a",
    "DESCRIBE t",
    "EXPLAIN SELECT a FROM t",
]


@pytest.mark.spark
def test_statements_are_no_queries(engine: Engine) -> None:
    """Spark would run them in its own catalog."""
    for text in STATEMENTS:
        for call in (engine.sql, engine.explain, lambda text: engine.view("v", text)):
            with pytest.raises(QueryError, match=r"NOT_A_QUERY.*engine\.execute"):
                call(text)
    left = engine.spark.sql("SHOW TABLES").where("tableName IN ('u', 'x')")
    assert left.collect() == []
    for text in QUERIES:
        engine.sql(text).collect()
    with pytest.raises(QueryError, match="PARSE_SYNTAX_ERROR"):
        engine.sql("SELEC 1")


@pytest.mark.spark
def test_refusals_are_not_logged_by_pyspark(
    engine: Engine, logged: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "eddyline.spark")
    with pytest.raises(QueryError, match="nope"):
        engine.view("v", "SELECT nope FROM t")
    with pytest.raises(QueryError, match="nope"):
        engine.sql("SELECT nope FROM t")
    with pytest.raises(QueryError, match="nope"):
        engine.execute("DELETE FROM t WHERE nope > 1")
    with pytest.raises(DataError, match="BAD_SCHEMA"):
        engine.table("u", "a NOPE")
    assert logged.getvalue() == ""
    found = [record for record in caplog.records if record.name == "eddyline.spark"]
    assert len(found) >= 3
    assert all(record.levelno == logging.DEBUG for record in found)


@pytest.mark.spark
def test_the_users_own_queries_are_logged_as_before(engine: Engine, logged: io.StringIO) -> None:
    with pytest.raises(AnalysisException):
        engine.spark.range(1).select(col("nope")).collect()
    with pytest.raises(AnalysisException):
        engine.spark.sql("SELECT nope FROM range(1)")
    assert "nope" in logged.getvalue()


@pytest.mark.spark
def test_a_worker_that_dies_is_named_by_every_caller(engine: Engine) -> None:
    def deadly(a: int) -> int:
        if a == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return a

    engine.spark.udf.register("deadly", udf(deadly, "int"))
    engine.spark.udf.register("bad", udf(lambda a: 1 // (a - 7), "int"))
    table = engine.table("t", "a INT")
    table.insert([(1,), (7,)])
    engine.advance()
    for statement in ("DELETE FROM t WHERE deadly(a) = 7", "UPDATE t SET a = deadly(a)"):
        with pytest.raises(QueryError, match="Python worker exited unexpectedly") as lost:
            engine.execute(statement)
        assert lost.value.condition == "WORKER_LOST"
        assert lost.value.retryable
    with pytest.warns(ViewFailingWarning, match="a Python worker died on them"):
        engine.view("v", "SELECT deadly(a) AS a FROM t")
    with pytest.raises(QueryError, match="query: ZeroDivisionError: ") as failed:
        engine.execute("DELETE FROM t WHERE bad(a) = 1")
    assert "Traceback" not in str(failed.value)
    assert failed.value.condition == "QUERY_FAILED"
    assert engine.sql("SELECT * FROM t").count() == 2


def test_a_lost_worker_is_known_by_what_the_jvm_says() -> None:
    said = "Caused by: java.io.IOException: "
    starting = "reading the port number from pyspark.daemon's stdout and terminated with code:"
    refused = "java.net.SocketException: Connection refused\n\tat java.base/sun.nio.ch.Net"
    factory = "\n\tat org.apache.spark.api.python.PythonWorkerFactory.createSocket(P.scala:1)"
    for text in (
        *(f"{said}Stream closed", f"{said}Broken pipe", "java.io.EOFException\n\tat x"),
        *(f"{starting} 137.", refused + factory),
    ):
        assert lost_worker(RuntimeError(text)), text
    for text in (
        *("ValueError: Broken pipe", f"{said}No space left on device", "[DIVIDE_BY_ZERO]"),
        *(f"{starting} 1.", refused, f"{refused}\n[X] y{factory}"),
    ):
        assert not lost_worker(RuntimeError(text)), text


def test_the_cause_of_an_error_is_one_line() -> None:
    task = "Lost task 0.0 in stage 3.0 (TID 4) (10.0.0.1 executor 1): ExecutorLostFailure (gone)"
    text = f"Exception thrown in awaitResult: \n\tat x\nCaused by: Job aborted: {task}\n\tat y"
    assert lost_task(text) == message_of(RuntimeError(text)) == "ExecutorLostFailure (gone)"
    assert message_of(RuntimeError("[X] one\ntwo\n\tat x\n\tat y")) == "[X] one two"
    for place in (
        "SQL (line 1, position 8) ==\nSELECT 1",
        'DataFrame ==\n"cast" was called from\n/x.py:1',
    ):
        assert message_of(RuntimeError(f"[X] one\n== {place}\n")) == "[X] one"
    assert message_of(RecursionError()) == "the query nests too deeply"
    assert "flatter" in str(query_error("SELECT 1", RecursionError()).hint)
    python = "Traceback (most recent call last):\n  File x\nValueError: no\n\n\tat y"
    assert message_of(RuntimeError(f"{task}: {python}")) == "ValueError: no"


TASK = "Lost task 0.0 in stage 1.0 (TID 1) (host executor 1): {}"
OUR_FRAME = 'Traceback (most recent call last):\n  File "/x/eddyline/state/kernels.py", line 1, in f\n{}\n\n'
OF_THE_MACHINE = [
    "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: killed",
    "TaskResultLost (result lost from block manager)",
    "TaskKilled (another attempt succeeded)",
    "FetchFailed(null, shuffleId=0, mapIndex=-1, mapId=-1, reduceId=0, message=gone)",
    "org.apache.spark.shuffle.FetchFailedException: gone",
    "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes",
    "io.netty.util.internal.OutOfDirectMemoryError: failed to allocate 125856424 byte(s) of direct memory",
    "org.apache.arrow.memory.OutOfMemoryException: Failure allocating buffer.",
    "org.apache.spark.util.TaskCompletionListenerException: Memory was leaked by query. Memory leaked: (549453824)",
    "java.lang.OutOfMemoryError: Java heap space",
    OUR_FRAME.format("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1. TiB"),
    OUR_FRAME.format("RuntimeError: can't start new thread"),
]


@pytest.mark.parametrize("reason", OF_THE_MACHINE)
def test_failures_of_the_machine_are_no_failures_of_a_view(reason: str) -> None:
    assert failed_view("v", RuntimeError(TASK.format(reason))).condition == "EPOCH_FAILED"


def test_a_value_that_a_query_fails_on_is_one_message(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.table("zeros", "a INT").insert([(0,)])
    engine.advance()
    engine.stop()
    command = ["sql", "SELECT 1 / a FROM zeros", "--storage", engine.files.root]
    assert cli.main(command) == 2
    assert capsys.readouterr().err.startswith("eddyline: [QUERY_FAILED]")


def test_a_script_with_functions_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE TABLE t (a INT); CREATE OR REPLACE TEMPORARY FUNCTION doubled(x INT) RETURNS INT RETURN 2 * x;"
        "CREATE VIEW v AS SELECT sum(doubled(a)) AS s FROM t"
    )
    assert cli.main(["explain", str(script)]) == 0
    assert "Aggregate" in capsys.readouterr().out


def test_a_script_with_flows_and_altered_streams_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    script.write_text(f"""
        CREATE STREAM changes (id INT, name STRING, at INT, CONSTRAINT c EXPECT (at > 0))
        USING json OPTIONS (path '{tmp_path}');
        ALTER STREAM changes ADD COLUMN more INT;
        ALTER STREAM changes DROP CONSTRAINT c;
        CREATE FLOW people_flow AS AUTO CDC INTO people FROM changes KEYS (id) SEQUENCE BY at COLUMNS * EXCEPT (at);
        CREATE VIEW names AS SELECT name, more, count(*) AS n FROM people GROUP BY name, more;
    """)
    assert cli.main(["explain", str(script)]) == 0
    assert "names" in capsys.readouterr().out
