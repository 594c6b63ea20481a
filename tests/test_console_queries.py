"""Queries in the console: answered by Spark where the files don't suffice, as files, and cancelled."""

from __future__ import annotations

import csv
import http.client
import io
import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote, urlparse

import pyarrow.parquet as pq
import pytest

import eddyline as el
from console_cases import EVIL, Answer, ask, console_process
from waiting import PATIENCE_S, until

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

from eddyline.console import queries

pytestmark = pytest.mark.spark
ENDLESS = "SELECT sum(a.id * b.id) FROM range(10000000000) a JOIN range(10000000000) b ON a.id % 7 = b.id % 5"


@pytest.fixture(scope="module")
def engine(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path_factory.mktemp("asked") / "shop")) as engine:
        engine.execute("""
            CREATE TABLE orders (id BIGINT, country STRING, price DECIMAL(10,2), PRIMARY KEY (id));
            CREATE VIEW by_country AS SELECT country, count(*) AS n, sum(price) AS total FROM orders GROUP BY country;
        """)
        text = EVIL.replace("'", "''")
        engine.execute(
            f"INSERT INTO orders SELECT id, CASE WHEN id % 3 = 0 THEN '{text}' WHEN id % 3 = 1 THEN 'de' END, id / 4 FROM range(1500)"
        )
        engine.advance()
        yield engine


@pytest.fixture(scope="module")
def url(engine: el.Engine) -> str:
    return engine.serve()


def query(url: str, text: str, **headers: str) -> Answer:
    return ask(url, "/api/query", json.dumps({"sql": text}).encode(), **headers)


def answered(url: str, text: str) -> dict[str, Any]:
    status, _, body = query(url, text)
    assert status == 200, body
    return json.loads(body)


def refused(answer: Answer) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["condition"]


def file(url: str, kind: str, text: str) -> Answer:
    return ask(url, f"/api/query/answer.{kind}?sql={quote(text)}")


def test_spark_answers_what_the_files_do_not(engine, url):
    plain = answered(url, "SELECT country, n FROM by_country WHERE country = 'de'")
    assert (plain["rows"], plain["total"], plain["spark"]) == ([["de", "500"]], 1, False)
    found = answered(
        url,
        "SELECT country, count(*) AS n, max(price) FROM orders GROUP BY country ORDER BY country",
    )
    assert found["columns"] == ["country", "n", "max(price)"]
    assert found["rows"] == [
        [None, "500", "374.75"],
        [EVIL, "500", "374.25"],
        ["de", "500", "374.50"],
    ]
    assert (found["total"], found["cut"], found["spark"]) == (3, False, True)
    assert answered(url, "SELECT count(*) FROM orders VERSION AS OF 1 WHERE id + 1 > 0")[
        "rows"
    ] == [["0"]]


def test_long_answers_are_cut_and_say_so(url):
    found = answered(url, "SELECT id + 0 AS id FROM orders ORDER BY 1")
    assert (len(found["rows"]), found["total"], found["cut"]) == (1000, None, True)
    assert found["rows"][-1] == ["999"]
    found = answered(url, "SELECT id FROM orders ORDER BY id")
    assert (len(found["rows"]), found["total"], found["cut"], found["spark"]) == (
        1000,
        1500,
        True,
        False,
    )
    found = answered(url, "SELECT id + 0 FROM orders WHERE id < 1000")
    assert (len(found["rows"]), found["total"], found["cut"]) == (1000, 1000, False)


def test_wrong_and_dangerous_queries_are_refused(engine, url):
    assert refused(query(url, "SELECT nothing FROM orders GROUP BY 1")) == (400, "INVALID_QUERY")
    assert refused(query(url, "SELECT max(id) FROM ordrs")) == (400, "INVALID_QUERY")
    assert refused(query(url, "SELECT max(value) FROM text.`/etc/passwd`")) == (403, "NOT_ALLOWED")
    assert refused(query(url, "DROP VIEW by_country")) == (400, "NOT_A_QUERY")
    assert refused(query(url, "SELECT 1 / (id - id) FROM orders")) == (400, "QUERY_FAILED")
    assert refused(ask(url, "/api/query/answer.exe?sql=SELECT%201")) == (400, "BAD_OPTION")
    assert engine.sql("SELECT * FROM by_country").count() == 3


def test_files_have_the_values_of_the_answer(url, monkeypatch):
    text = "SELECT country, n, total FROM by_country ORDER BY n, country"
    by_files, by_spark = (
        file(url, "csv", text),
        file(url, "csv", f"SELECT * FROM ({text}) ORDER BY n, country"),
    )
    assert by_files[2] == by_spark[2]
    assert by_files[1]["content-disposition"] == 'attachment; filename="answer.csv"'
    rows = list(csv.reader(io.StringIO(by_files[2].decode(), newline="")))
    assert rows[0] == ["country", "n", "total"]
    assert [row[0] for row in rows[1:]] == ["", EVIL, "de"]

    for asked in (text, f"SELECT * FROM ({text}) ORDER BY n, country"):
        found = pq.read_table(io.BytesIO(file(url, "parquet", asked)[2]))
        assert [str(field.type) for field in found.schema][:2] == ["string", "int64"]
        assert found["country"].to_pylist() == [None, EVIL, "de"]
        assert str(found["total"][2].as_py()) == "93562.50" or found["total"][2].as_py() > 0

    assert refused(file(url, "parquet", "SELECT array() AS e")) == (400, "QUERY_FAILED")

    monkeypatch.setattr(queries, "ROWS_IN_FILE", 1499)
    for asked in ("SELECT id FROM orders", "SELECT id + 1 FROM orders"):
        for kind in ("csv", "parquet"):
            assert refused(file(url, kind, asked)) == (413, "TOO_MANY_ROWS")
    monkeypatch.setattr(queries, "ROWS_IN_FILE", 1500)
    assert (
        pq.read_table(io.BytesIO(file(url, "parquet", "SELECT id + 1 FROM orders")[2])).num_rows
        == 1500
    )


def running(engine: el.Engine) -> int:
    return len(engine.spark.sparkContext.statusTracker().getActiveJobsIds())


def wait_until(engine: el.Engine, jobs: bool) -> None:
    until(lambda: bool(running(engine)) == jobs, lambda: f"jobs: {running(engine)}")


@contextmanager
def asking(url: str, text: str) -> Iterator[None]:
    """A reader who has asked, and hangs up at the end without having read the answer."""
    address = urlparse(url).netloc
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request("POST", "/api/query", json.dumps({"sql": text}))
        yield


def test_a_query_ends_when_its_reader_hangs_up(engine, url):
    with asking(url, ENDLESS):
        wait_until(engine, jobs=True)
    wait_until(engine, jobs=False)
    assert answered(url, "SELECT max(id) + 0 FROM orders")["rows"] == [["1499"]]


def test_a_query_that_takes_too_long_is_cancelled(engine, url, monkeypatch):
    monkeypatch.setattr(queries, "SECONDS_MAX", 1.0)
    assert refused(query(url, ENDLESS)) == (400, "QUERY_CANCELLED")
    wait_until(engine, jobs=False)
    assert engine.advance() >= 0


def test_epochs_go_on_beside_a_long_query(engine, url):
    orders = engine.table("orders", "id BIGINT, country STRING, price DECIMAL(10,2)", ["id"])
    with asking(url, ENDLESS):
        wait_until(engine, jobs=True)
        orders.insert([(5000, "pt", None)])
        engine.advance()
        assert answered(url, "SELECT n FROM by_country WHERE country = 'pt'")["rows"] == [["1"]]
    wait_until(engine, jobs=False)
    orders.delete([(5000, "pt", None)])
    engine.advance()


def test_a_link_of_another_site_starts_no_spark(url):
    """A browser follows such links, and shows the page: with the query, and without its answer."""
    other = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Accept": "text/html"}
    path = f"/ask?sql={quote('SELECT max(id) + 0 FROM orders')}"
    status, _, body = ask(url, path, **other)
    assert (status, "NEEDS_SPARK" in body.decode(), "1499" in body.decode()) == (200, True, False)
    assert "1499" in ask(url, path, Accept="text/html")[2].decode()


def test_a_console_of_its_own_opens_spark_when_it_is_needed(engine, tmp_path):
    with console_process(engine.files.root, tmp_path / "errors") as (child, url):
        assert answered(url, "SELECT n FROM by_country WHERE country = 'de'")["spark"] is False
        found = answered(url, "SELECT sum(n) FROM by_country")
        assert (found["rows"], found["spark"]) == ([["1500"]], True)
        orders = engine.table("orders", "id BIGINT, country STRING, price DECIMAL(10,2)", ["id"])
        orders.insert([(6000, "de", None)])
        engine.advance()
        assert answered(url, "SELECT sum(n) FROM by_country")["rows"] == [["1501"]]
        orders.delete([(6000, "de", None)])
        engine.advance()
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(PATIENCE_S) == 0


def test_a_console_whose_jvm_is_killed_ends(engine, tmp_path):
    with console_process(engine.files.root, tmp_path / "errors") as (child, url):
        assert answered(url, "SELECT sum(n) FROM by_country")["spark"] is True
        child.kill_jvm()
        assert child.process.wait(PATIENCE_S) == 2
    assert "[JVM_LOST]" in (tmp_path / "errors").read_text()
