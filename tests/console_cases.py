"""What tests of the console share: requests over real connections, and a storage with hostile values."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark import cloudpickle

import eddyline as el
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.storage.files import Files
from processes import Child
from waiting import PATIENCE_S

EVIL = "<script>window.pwned = 1</script>\"'&</td>"
EVIL_NAME = "evil <b>\"'& view"
TOKEN = "correct-horse-battery"
ROWS = 10_000
PIPELINE = "p/1 <b>"

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests

Answer = tuple[int, dict[str, str], bytes]


def ask(url: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    address = urlparse(url).netloc
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET" if body is None else "POST", path, body, given)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()


def document(url: str, path: str, **headers: str) -> Any:
    status, _, body = ask(url, path, **headers)
    assert status == 200, body
    return json.loads(body)


@contextmanager
def console_process(storage: str, errors: Path, **settings: str) -> Iterator[tuple[Child, str]]:
    """`eddyline console` in a process of its own, and its address."""
    command = [sys.executable, "-m", "eddyline", "console", "--storage", storage, "--port", "0"]
    child = Child(command, errors, **settings)
    try:
        assert child.process.stdout is not None
        yield child, child.process.stdout.readline().strip()
    finally:
        child.kill()


def hostile_shop(storage: str) -> el.Engine:
    """An engine whose views hold markup in names, columns and values, and one that fails."""
    engine = el.Engine(storage)
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    text = EVIL.replace("'", "''")
    engine.execute(f"""
        CREATE VIEW by_country AS SELECT country, count(*) AS n FROM orders GROUP BY country;
        CREATE VIEW largest AS SELECT country, n FROM by_country ORDER BY n DESC LIMIT 3;
        CREATE VIEW many AS SELECT id, '{text}' AS `<i>text</i>` FROM orders;
        CREATE VIEW ratio AS SELECT id, 100 / id AS r FROM orders;
    """)
    engine.view(EVIL_NAME, "SELECT country FROM orders WHERE id < 10")
    engine.sink("copy", "by_country", "jsonl", path=f"{storage}-copy")
    orders.insert([(number, ["de", "fr", EVIL, None][number % 4]) for number in range(1, ROWS + 1)])
    engine.advance()
    orders.insert([(0, "de")])  # a view fails on it
    engine.advance()
    return engine


def acting_shop(root: Path) -> el.Engine:
    """A running engine with views, a sink, and a pipeline with dead letters of hostile payloads."""
    engine = el.Engine(str(root / "shop"))
    orders = engine.table("orders", "id BIGINT, country STRING", ["id"])
    engine.view("by_country", "SELECT country, count(*) AS n FROM orders GROUP BY country")
    engine.view(EVIL_NAME, "SELECT country FROM orders")
    engine.sink("copy <b>", "by_country", "jsonl", path=str(root / "copy"))
    orders.insert([(1, "de"), (2, "fr"), (3, EVIL)])

    def parse(record: dict[str, Any]) -> dict[str, int]:
        return {"n": int(record["payload"].decode())}

    queue = DataQueue(LogBackend(Files(str(root / "queue"))))
    made = engine.pipeline(PIPELINE, queue, lanes=1).bolt(parse, max_attempts=1, retry_delay=0.0)
    made.into("numbers", "n BIGINT")
    engine.view("total", "SELECT sum(n) AS n FROM numbers")
    queue.put([b"1", EVIL.encode(), b"one\ntwo", b"\xff\x00", b"gone"])
    engine.advance()
    engine.start()
    return engine
