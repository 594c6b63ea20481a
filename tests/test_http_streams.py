"""Streams of documents over HTTP: what is acknowledged is in the stream once, whatever happens between."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from asking import refused, rows
from eddyline.errors import EngineError
from eddyline_apps.processes import free_port
from processes import Child
from waiting import PATIENCE_S

pytest.importorskip("uvicorn")

pytestmark = pytest.mark.spark

TOKEN = "correct horse"
LINES, DOCUMENT = "application/x-ndjson", "application/json"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITS_TOKEN", TOKEN)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        yield engine


def script(port: int, name: str = "hits") -> str:
    return f"""
        CREATE STREAM {name} (url STRING, n BIGINT) USING http
            OPTIONS (port '{port}', token '${{env:HITS_TOKEN}}');
        CREATE VIEW {name}_pages AS SELECT url, sum(n) AS n FROM {name} GROUP BY url;
    """


def post(
    port: int, body: str, stream: str = "hits", kind: str = LINES, token: str = TOKEN
) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    try:
        connection.request("POST", f"/streams/{stream}", body.encode(), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if answer.status == 200 else {}
    finally:
        connection.close()


def test_documents_are_rows_also_after_reopening(engine, spark, port):
    engine.execute(script(port))
    engine.execute(script(port).replace("CREATE VIEW", "CREATE OR REPLACE VIEW"))
    assert post(port, '{"url": "a", "n": 1}\n{"url": "a", "n": 2}\n{"url": ') == (
        200,
        {"records": 3},
    )
    assert post(port, '{\n  "url": "b",\n  "n": 5\n}\n', kind=DOCUMENT) == (200, {"records": 1})
    engine.advance()
    assert rows(engine, "hits_pages") == Counter([("a", 3), ("b", 5)])
    assert rows(engine, "hits").total() == 3
    assert [row.payload for row in engine.sql("SELECT payload FROM hits__dead").collect()] == [
        b'{"url": '
    ]
    assert post(port, '{"url": "c", "n": 9}')[0] == 200  # waits in the storage
    storage = engine._workspace.files.root
    engine.stop()
    with pytest.raises(OSError, match="refused"):
        post(port, "{}")
    with el.Engine(storage, spark) as again:
        assert post(port, '{"url": "c", "n": 1}')[0] == 200
        again.advance()
        assert rows(again, "hits_pages") == Counter([("a", 3), ("b", 5), ("c", 10)])
        assert again.verify()


def test_streams_share_an_address_and_leave_it(engine, port):
    engine.execute(script(port) + script(port, "clicks"))
    assert post(port, '{"url": "a", "n": 1}', "clicks")[0] == 200
    assert post(port, "{}", token="wrong")[0] == 401
    assert post(port, "{}", "nothing")[0] == 404
    engine.advance()
    assert rows(engine, "clicks_pages") == Counter([("a", 1)])
    assert rows(engine, "hits_pages") == Counter()
    engine.execute("DROP VIEW clicks_pages; DROP STREAM clicks")
    assert post(port, "{}", "clicks")[0] == 404
    assert post(port, '{"url": "b"}')[0] == 200
    assert len(engine._workspace.files.names("queues")) == 1
    engine.execute("DROP VIEW hits_pages; DROP STREAM hits")
    with pytest.raises(OSError, match="refused"):
        post(port, "{}")
    assert not engine._workspace.files.names("queues")
    engine.execute(script(port))
    engine.advance()
    assert rows(engine, "hits") == Counter()  # the earlier stream's documents are gone


def test_a_taken_port_stops_no_other_stream(engine, spark, port, tmp_path, monkeypatch):
    engine.execute(script(port))
    folder = tmp_path / "files"
    folder.mkdir()
    engine.create_stream("files", "a INT", "json", {"path": str(folder)})
    storage = engine._workspace.files.root
    engine.stop()
    monkeypatch.delenv("HITS_TOKEN")
    with el.Engine(storage, spark) as again:
        (folder / "1.json").write_text('{"a": 1}\n')
        with pytest.raises(EngineError, match="HITS_TOKEN") as error:
            again.advance()
        assert error.value.condition == "STREAM_FAILED"
        assert rows(again, "files") == Counter([(1,)])
        monkeypatch.setenv("HITS_TOKEN", TOKEN)
        with el.Engine(tmp_path / "other", spark) as other:
            other.execute(script(port))
            with pytest.raises(EngineError, match="another engine"):
                again.advance()
        again.advance()
        assert post(port, '{"url": "a", "n": 1}')[0] == 200
        again.advance()
        assert rows(again, "hits_pages") == Counter([("a", 1)])


def test_wrong_streams_are_refused(engine, port):
    good = f"port '{port}', token '${{env:HITS_TOKEN}}'"
    for options, part in [
        (f"port '{port}'", "needs the option token"),
        ("token '${env:HITS_TOKEN}'", "needs the option port"),
        (good.replace(str(port), "80000"), "no port"),
        (f"{good}, path '/x'", "no option path"),
    ]:
        statement = f"CREATE STREAM x (a INT) USING http OPTIONS ({options})"
        assert part in refused(engine, statement, "BAD_STREAM")
    for options, condition in [
        (f"port '{port}', token 'clear'", "BAD_OPTION"),
        (f"port '{port}', token '${{env:NOT_SET}}'", "SECRET_MISSING"),
        (f"{good}, host '203.0.113.1'", "NO_ADDRESS"),
    ]:
        refused(engine, f"CREATE STREAM x (a INT) USING http OPTIONS ({options})", condition)
    refused(engine, f"CREATE STREAM x USING http OPTIONS ({good})", "BAD_STREAM")
    refused(engine, f"CREATE STREAM x (a INT) USING http OP o OPTIONS ({good})", "BAD_STREAM")
    assert not engine._workspace.files.names("queues")


@pytest.mark.slow
@pytest.mark.guarantee(
    "stream `http`", "each acknowledged record once", "the engine, 5 times by kill -9"
)
def test_acknowledged_records_are_there_once_after_kills(tmp_path, spark, port):
    program = tmp_path / "run.sql"
    program.write_text(script(port))
    command = [sys.executable, "-m", "eddyline", "run", str(program)]
    command += ["--storage", str(tmp_path / "storage")]
    sent, acknowledged = 0, set()
    for seconds in (0.2, 1.0, 2.5, 0.7, 4.0):
        child = Child(command, tmp_path / "errors", HITS_TOKEN=TOKEN)
        try:
            began = None
            while began is None or time.monotonic() < began + seconds:
                sent += 1
                try:
                    status, _ = post(port, f'{{"url": "{sent}", "n": 1}}')
                except OSError:
                    assert child.process.poll() is None, child.last_words()
                    time.sleep(0.05 if began is None else 0)
                    continue
                began = began or time.monotonic()
                if status == 200:
                    acknowledged.add(str(sent))
        finally:
            child.kill()
    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.advance()
        found = Counter(row.url for row in engine.sql("SELECT url FROM hits").collect())
        assert len(acknowledged) > 50
        assert found.keys() >= acknowledged
        assert max(found.values()) == 1
        assert found.total() <= sent
        assert engine.verify()
