"""JDBC clients and clients of Spark Connect read the views of a running engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import EngineError
from eddyline_apps.processes import free_port
from processes import Child
from waiting import PATIENCE_S

pytestmark = pytest.mark.spark

JARS = Path(pyspark.__file__).parent / "jars"


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "it's a storage", spark) as engine:
        engine.execute("""
            CREATE TABLE sales (shop STRING, cents BIGINT);
            CREATE VIEW sums AS SELECT shop, sum(cents) AS cents FROM sales GROUP BY shop;
            INSERT INTO sales VALUES ('tea', 250), ('milk', 120), ('tea', 50);
        """)
        engine.advance()
        yield engine


def beeline(address: str, *queries: str) -> str:
    """Return what Hive's client prints, without its frame."""
    options = ["--outputformat=csv2", "--showHeader=false", "--silent=true"]
    command = ["java", "-cp", f"{JARS}/*", "org.apache.hive.beeline.BeeLine", *options]
    for query in queries:
        command += ["-e", query]
    done = subprocess.run(
        [*command, "-u", address], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.stdout + done.stderr


def shown_by_connect(address: str) -> str:
    """Return what a client prints: the rows of `sums`, and the error without the token."""
    program = textwrap.dedent("""
        import sys
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
        print(sorted(tuple(row) for row in spark.sql("SELECT * FROM sums").collect()))
        try:
            spark = SparkSession.builder.remote(sys.argv[1].partition(";")[0]).create()
            spark.sql("SELECT 1").collect()
        except Exception as error:
            print(error)
    """)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    done = subprocess.run(
        [sys.executable, "-c", program, address],
        env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_jdbc_client_reads_the_last_epoch(
    engine: el.Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    address = engine.serve_thrift()
    assert address.startswith("jdbc:hive2://127.0.0.1:")
    found = beeline(address, "SHOW TABLES", "SELECT * FROM sums WHERE cents > 200")
    assert "default,sums,false" in found
    assert "tea,300" in found
    assert "milk" not in found
    assert "TABLE_OR_VIEW_NOT_FOUND" in beeline(address, "SELECT * FROM nothing")
    engine.execute("""
        INSERT INTO sales VALUES ('milk', 500);
        CREATE VIEW top AS SELECT max(cents) AS most FROM sums;
        CREATE OR REPLACE VIEW sums AS SELECT shop, sum(cents) AS cents, count(*) AS n FROM sales GROUP BY shop;
    """)
    engine.advance()
    found = beeline(
        address, "SELECT * FROM sums", "SELECT s.shop FROM sums s JOIN top ON most = cents"
    )
    assert "milk,620,2" in found
    assert found.count("milk") == 2
    databases = engine.spark.sql("SHOW DATABASES").collect()
    (own,) = (name for (name,) in databases if name.startswith("eddyline_"))
    beeline(address, "DROP VIEW sums", f"DROP DATABASE {own} CASCADE")
    assert "TABLE_OR_VIEW_NOT_FOUND" in beeline(address, "SELECT * FROM top")
    engine.execute("INSERT INTO sales VALUES ('rice', 900)")
    engine.advance()
    found = beeline(address, "SELECT * FROM sums", "SELECT * FROM top")
    assert "rice,900,1" in found
    assert "TABLE_OR_VIEW_NOT_FOUND" not in found
    assert "Exception" not in capfd.readouterr().err  # errors of queries are the clients' own
    port = int(address.rpartition(":")[2])
    engine.stop()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_a_client_of_spark_connect_needs_the_token(engine: el.Engine) -> None:
    pytest.importorskip("grpc", reason="needs the client of Spark Connect")
    address = engine.serve_connect()
    found = shown_by_connect(address)
    assert found.startswith("[('milk', 120), ('tea', 300)]")
    assert "No authentication token" in found


def test_the_command_line_serves_clients(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs the client of Spark Connect")
    script = tmp_path / "script.sql"
    script.write_text("""
        CREATE TABLE sales (shop STRING, cents BIGINT);
        CREATE VIEW sums AS SELECT shop, sum(cents) AS cents FROM sales GROUP BY shop;
        INSERT INTO sales VALUES ('tea', 250), ('milk', 120), ('tea', 50);
    """)
    command = [sys.executable, "-m", "eddyline", "run", str(script), "--interval", "0.05"]
    storage = ["--storage", str(tmp_path / "storage")]
    port = free_port()
    child = Child([*command, *storage, "--thrift", str(port), "--connect"], tmp_path / "errors")
    try:
        address = child.wait_for("thrift:")
        assert f":{port}" in address
        remote = child.wait_for("connect:")
        found = beeline(address, "SELECT * FROM sums")
        assert "tea,300" in found
        assert "milk,120" in found
        assert shown_by_connect(remote).startswith("[('milk', 120), ('tea', 300)]")
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(PATIENCE_S) == 0, child.last_words()
    finally:
        child.kill()


def test_a_port_in_use_is_named(engine: el.Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for serve in (engine.serve_thrift, engine.serve_connect):
            with pytest.raises(EngineError, match="NO_ADDRESS"):
                serve(port)
