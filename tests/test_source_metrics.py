"""Metrics of sources and of the work of epochs, with files, a followed log and a queue: rows read, lag, merges, operators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import eddyline as el
from console_cases import ask
from eddyline.options import Options

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

pytestmark = pytest.mark.spark


def measured(url: str) -> dict[str, float]:
    lines = ask(url, "/metrics")[2].decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (one.rpartition(" ") for one in lines if one[:1] != "#")
    }


@dataclass
class Shop:
    """An engine that reads a table, NDJSON files and a log that grows."""

    engine: el.Engine
    url: str
    files: Path
    log: Path

    def grown(self, name: str) -> float:
        """Advance; return by how much a counter has grown."""
        before = measured(self.url).get(name, 0.0)
        self.engine.advance()
        return measured(self.url).get(name, 0.0) - before


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("metrics")
    files, log = folder / "files", folder / "access.log"
    files.mkdir()
    log.write_text("")
    with el.Engine(str(folder / "shop"), options=Options(compaction_fan_in=2)) as engine:
        url = engine.serve()
        engine.execute(f"""
            CREATE TABLE orders (id BIGINT, country STRING, PRIMARY KEY (id));
            CREATE STREAM clicks (id BIGINT, at TIMESTAMP) USING json OPTIONS (path '{files}');
            CREATE STREAM lines USING tail OPTIONS (path '{log}');
            CREATE VIEW by_country AS SELECT country, count(*) AS n FROM orders GROUP BY country;
            CREATE VIEW clicked AS SELECT c.id, o.country FROM clicks c JOIN orders o ON c.id = o.id;
            CREATE VIEW twice AS SELECT a.id FROM clicks a JOIN clicks b ON a.id = b.id;
            CREATE VIEW texts AS SELECT value, count(*) AS n FROM lines GROUP BY value;
        """)
        yield Shop(engine, url, files, log)


def rows_of(source: str) -> str:
    return f'eddyline_source_rows_total{{source="{source}"}}'


def test_rows_are_counted_once_for_all_readers(shop):
    orders = shop.engine.table("orders", "id BIGINT, country STRING", ["id"])
    orders.insert([(1, "de"), (2, "fr")])
    orders.delete([(2, "fr")])
    assert shop.grown(rows_of("orders")) == 3  # operations
    (shop.files / "1.json").write_text("".join(f'{{"id": {n}}}\n' for n in range(5)))
    assert shop.grown(rows_of("clicks")) == 5  # three leaves read them
    shop.log.write_text("GET /\nGET /a\nGET /\n")
    assert shop.grown(rows_of("lines")) == 3
    shop.engine.execute("CREATE VIEW later AS SELECT count(*) AS n FROM lines")
    assert shop.grown(rows_of("lines")) == 0  # its rows were read before

    last = json.loads(ask(shop.url, "/api/progress?last=100")[2])
    read = [{one["description"]: one["numInputRows"] for one in done["sources"]} for done in last]
    assert [sum(done[name] for done in read) for name in ("orders", "clicks", "lines")] == [3, 5, 3]


def test_rows_that_are_late_are_read_too(shop):
    folder = shop.files.parent / "timed"
    folder.mkdir()
    shop.engine.execute(f"""
        CREATE STREAM timed (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 0 SECONDS)
            USING json OPTIONS (path '{folder}');
        CREATE VIEW counted AS SELECT window(at, '1 minute').start AS m, count(*) AS n
            FROM timed GROUP BY window(at, '1 minute');
    """)
    (folder / "1.json").write_text('{"id": 1, "at": "2026-01-01T10:00:00"}\n')
    assert shop.grown(rows_of("timed")) == 1
    (folder / "2.json").write_text(
        '{"id": 2, "at": "2026-01-01T09:00:00"}\n{"id": 3, "at": "2026-01-01T11:00:00"}\n'
    )
    assert shop.grown(rows_of("timed")) == 2
    assert measured(shop.url)['eddyline_late_rows_total{source="timed"}'] == 1


def test_a_stream_that_nobody_reads_is_counted(shop):
    unread = shop.engine.table("unread", "id BIGINT")
    unread.insert([(1,), (2,)])
    assert shop.grown(rows_of("unread")) == 2


def test_operators_and_merges_are_counted_and_add_up_to_the_profile(shop):
    orders = shop.engine.table("orders", "id BIGINT, country STRING", ["id"])
    before = measured(shop.url)
    for number in range(6):
        orders.insert([(10 + number, "de")])
        shop.engine.advance()
    now = measured(shop.url)

    def grown(name: str) -> float:
        return now[name] - before.get(name, 0.0)

    for family in ("table", "aggregate", "join", "result"):
        assert grown(f'eddyline_operator_seconds_total{{op="{family}"}}') > 0, family
    operators = [name for name in now if name.startswith("eddyline_operator_seconds_total")]
    spent = json.loads(ask(shop.url, "/api/profile")[2])
    parts = sum(one["seconds"] for one in spent["spent"] if one["operator"])
    assert 0 < sum(map(grown, operators)) <= parts * 1.001
    assert grown("eddyline_merge_bytes_total") > 0
