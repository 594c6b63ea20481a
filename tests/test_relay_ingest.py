"""The HTTP endpoint of a queue, over real connections on loopback."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlparse

import pytest

from eddyline.errors import EngineError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.testing import FaultyFiles
from processes import Child
from waiting import PATIENCE_S

pytest.importorskip("uvicorn")

from eddyline.relay.ingest import Ingest, IngestServer

TOKEN = "correct horse"
LIMIT = 1000


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(str(tmp_path / "queue"))


@pytest.fixture
def queue(files: FaultyFiles) -> DataQueue:
    return DataQueue(LogBackend(files))


@pytest.fixture
def ingest(files: FaultyFiles, queue: DataQueue) -> Ingest:
    return Ingest(Producer(LogBackend(files), unread_rows_max=10), TOKEN, body_bytes_max=LIMIT)


@pytest.fixture
def server(ingest: Ingest) -> Iterator[IngestServer]:
    with IngestServer(ingest) as server:
        yield server


Answer = tuple[int, dict[str, str], dict[str, object]]


def post(
    server: IngestServer, body: bytes | list[bytes], path: str = "/records", **headers: str
) -> Answer:
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-ndjson"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(urlparse(server.url).netloc, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, body, given)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def waiting(queue: DataQueue) -> list[bytes]:
    found = queue.read(1000)
    return [] if found is None else found[1]["payload"].to_pylist()


def test_what_is_acknowledged_is_durable(server, queue, files):
    files.arm(0)
    status, _, answer = post(server, b'{"a": 1}\n{"a": 2}\r\n\nplain')
    assert (status, answer) == (200, {"records": 3})
    effects = [effect.split()[0] for effect in files.effects()]
    assert effects[-2:] == ["sync", "overwrite"]  # flushed, and then marked as flushed
    assert waiting(queue) == [b'{"a": 1}', b'{"a": 2}', b"plain"]


def test_a_blank_line_is_a_record_of_text_and_not_of_json(server, queue):
    body = b"\n{}\n \t\n{}\n\n"
    assert post(server, body, Content_Type="application/jsonl")[2] == {"records": 2}
    assert post(server, body, Content_Type="text/plain")[2] == {"records": 5}
    assert waiting(queue) == [b"{}", b"{}", b"", b"{}", b" \t", b"{}", b""]
    assert post(server, b"\n \n")[2] == {"records": 0}


@pytest.mark.parametrize("charset", ["utf-8", '"UTF8"', "us-ascii"])
def test_texts_that_are_utf_8_are_read(server, queue, charset):
    kind = f"text/plain; format=flowed; Charset={charset}"
    assert post(server, b"a", Content_Type=kind, Content_Encoding="identity")[0] == 200
    assert waiting(queue) == [b"a"]


def test_records_of_a_request_may_have_a_key(server, queue):
    assert post(server, b"on\noff\n", "/records?key=lamp%201")[2] == {"records": 2}
    assert post(server, b"free")[2] == {"records": 1}
    _, records = queue.read(10)
    assert records["key"].to_pylist() == [b"lamp 1", b"lamp 1", None]


@pytest.mark.parametrize("query", ["key=%ff", "key=a&key=b", "key=a&key="])
def test_a_key_that_is_none_or_several_is_refused(server, queue, query):
    assert post(server, b"a", f"/records?{query}")[0] == 400
    assert waiting(queue) == []


def test_the_scheme_of_a_token_is_read_in_any_case(server):
    for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401)):
        assert post(server, b"a", Authorization=f"{scheme} {TOKEN}")[0] == status


def test_a_json_document_is_one_record(server, queue):
    document = b'{\n  "a": 1\n}\n'
    assert post(server, document, Content_Type="application/json")[2] == {"records": 1}
    assert waiting(queue) == [document]


def test_only_loopback_is_heard(server):
    assert urlparse(server.url).hostname == "127.0.0.1"


def test_an_empty_body_holds_no_record(server, queue):
    assert post(server, b"")[2] == {"records": 0}
    assert waiting(queue) == []


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Authorization": "Bearer wrong"}, b"a", 401),
        ({"Authorization": ""}, b"a", 401),
        ({"Authorization": TOKEN}, b"a", 401),
        ({"Authorization": "Bearer café"}, b"a", 401),
        ({"Content_Type": "application/xml"}, b"a", 415),
        ({"Content_Type": "text/plain; charset=latin-1"}, b"caf\xe9", 415),
        ({"Content_Type": 'application/json;charset="utf-16"'}, b"{}", 415),
        ({"Content_Encoding": "gzip"}, b"\x1f\x8b", 415),
        ({"Content_Type": "application/json"}, b"", 400),
        ({"Content_Type": "application/json"}, b" \n", 400),
        ({}, b"x" * (LIMIT + 1), 413),
    ],
)
def test_what_is_refused_leaves_nothing(server, queue, headers, body, status):
    found, answer_headers, answer = post(server, body, **headers)
    assert found == status
    assert answer["error"]
    assert TOKEN not in json.dumps([answer_headers, answer])
    assert waiting(queue) == []


def test_a_body_that_is_larger_than_it_says_is_refused(server, queue):
    assert post(server, [b"x" * 400] * 5)[0] == 413
    assert waiting(queue) == []


def test_a_full_queue_says_when_to_come_again(server, queue):
    assert post(server, b"\n".join([b"a"] * 10))[0] == 200
    status, headers, _ = post(server, b"b")
    assert (status, headers["retry-after"]) == (429, "1")
    batch, _ = queue.read(100)
    queue.ack(batch.number, range(10))
    queue.commit()
    assert post(server, b"b")[0] == 200
    assert waiting(queue) == [b"b"]


def test_a_slow_body_is_given_up(ingest, server, queue):
    ingest.body_seconds_max = 0.5
    host = urlparse(server.url)
    with socket.create_connection((host.hostname, host.port), PATIENCE_S) as client:
        client.sendall(
            f"POST /records HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 100\r\n\r\nabc".encode()
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
    assert waiting(queue) == []


def test_a_failing_disk_is_told_and_acknowledges_nothing(server, queue, files):
    files.arm(1, "crash")
    status, _, answer = post(server, b"a")
    assert (status, answer["error"]) == (503, "WRITE_FAILED")
    files.arm(0)
    assert post(server, b"b")[0] == 200
    assert waiting(queue) == [b"b"]


def test_requests_wait_in_bounded_number(files, queue, ingest):
    """While the disk hangs, what comes beyond the bound is sent away at once."""
    ingest.requests_max = 2
    hanging, entered = threading.Event(), threading.Semaphore(0)
    put = ingest.producer.put

    def slow_put(payloads, keys):
        entered.release()
        assert hanging.wait(PATIENCE_S)
        return put(payloads, keys)

    ingest.producer.put = slow_put
    with IngestServer(ingest) as server:
        answers: list[int] = []
        clients = [
            threading.Thread(target=lambda: answers.append(post(server, b"a")[0])) for _ in range(2)
        ]
        for client in clients:
            client.start()
        assert entered.acquire(timeout=PATIENCE_S)
        assert entered.acquire(timeout=PATIENCE_S)
        assert post(server, b"late")[0] == 429
        hanging.set()
        for client in clients:
            client.join()
    assert answers == [200, 200]
    assert waiting(queue) == [b"a", b"a"]


def test_clients_side_by_side_lose_and_double_nothing(files, queue):
    with IngestServer(Ingest(Producer(LogBackend(files)), TOKEN)) as server:

        def client(name: int) -> None:
            for i in range(10):
                assert post(server, f"{name}:{i}:a\n{name}:{i}:b".encode())[0] == 200

        clients = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
    found = waiting(queue)
    assert len(found) == len(set(found)) == 160


def test_an_endpoint_without_a_token_is_refused(queue):
    with pytest.raises(EngineError, match="BAD_OPTION"):
        Ingest(Producer(queue.backend), "")


def test_from_the_command_line(tmp_path):
    folder = tmp_path / "queue"
    command = [sys.executable, "-m", "eddyline", "ingest", str(folder), "--port", "0"]
    refused = subprocess.run(
        command, capture_output=True, text=True, check=False, env=without_token()
    )
    assert refused.returncode == 2
    assert "EDDYLINE_INGEST_TOKEN is not set" in refused.stderr
    child = Child(command, tmp_path / "stderr", EDDYLINE_INGEST_TOKEN="secret")
    try:
        url = child.wait_for("POST").split("/records")[0]
        connection = http.client.HTTPConnection(urlparse(url).netloc, timeout=PATIENCE_S)
        connection.request("POST", "/records", "a\nb\n", {"Authorization": "Bearer secret"})
        assert json.load(connection.getresponse()) == {"records": 2}
        child.process.terminate()
        assert child.process.wait(PATIENCE_S) == 0
    finally:
        child.kill()
    assert "secret" not in child.last_words()
    with closing(DataQueue(LogBackend(str(folder)))) as queue:
        _, records = queue.read(10)
        assert records["payload"].to_pylist() == [b"a", b"b"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", ["pipelines", "sources", "webstats"])
def test_commands_with_curl_of_the_pages_are_taken(server, queue, tmp_path, page):
    text = (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text()
    (line,) = re.findall(r"^curl .*--data-binary .*$", text, flags=re.MULTILINE)
    *options, address = shlex.split(line)
    token = next(word for word in options if word.startswith("Authorization: Bearer $"))
    options[options.index(token)] = f"Authorization: Bearer {TOKEN}"
    file = next(word for word in options if word.startswith("@"))
    (tmp_path / file[1:]).write_bytes(b'{"a": 1}\n{"a": 2}\n')
    asked = urlparse(address)
    url = asked._replace(netloc=urlparse(server.url).netloc, path="/records").geturl()
    given = ["--silent", "--show-error", "--noproxy", "*", "--max-time", str(PATIENCE_S)]
    answer = subprocess.run(
        [*options, *given, url], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) == {"records": 2}
    assert waiting(queue) == [b'{"a": 1}', b'{"a": 2}']


def without_token():
    return {name: value for name, value in os.environ.items() if name != "EDDYLINE_INGEST_TOKEN"}


def test_an_answer_on_an_open_connection_does_not_wait_for_the_one_before(server):
    # accepted sockets inherit the setting, with which small packets aren't held back for 40 ms
    assert server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
