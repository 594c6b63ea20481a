"""The page script of the web statistics: its endpoint over real connections, and its beacons over kills of the command."""

import http.client
import json
import re
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlparse

import pytest

from console_cases import ask
from eddyline.errors import DataError, EddylineError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.testing import FaultyFiles
from eddyline_apps.processes import free_port, listens
from nginx_server import NGINX, nginx_config
from processes import Child
from test_webstats_command import Follower, webstats
from waiting import PATIENCE_S, until

pytest.importorskip("uvicorn")

from eddyline_apps.webstats.beacons import (
    BODY_BYTES_MAX,
    HIT_PATH,
    SCRIPT_BYTES_MAX,
    SCRIPT_PATH,
    Beacons,
    BeaconServer,
    hashed,
    page_script,
)
from eddyline_apps.webstats.inputs import Sites

SECRET = "0123456789abcdef" * 2
ORIGIN = "https://www.example.org"
SITES = ("www.example.org", "*.example.com")
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
NOW_NS = 1_790_000_000_123_456_789
VIEW = {"path": "/a?b=c", "referrer": "https://other.example/secret?q=1", "ms": 321.4}
UNREAD_MAX = 5
PAGE = (Path(__file__).parents[1] / "docs/webstats.md").read_text()


@pytest.fixture
def files(tmp_path):
    return FaultyFiles(str(tmp_path / "queue"))


@pytest.fixture
def queue(files):
    with closing(DataQueue(LogBackend(files))) as queue:
        yield queue


@pytest.fixture
def serve(files):
    """Settings of `Beacons` -> the address of a running server."""
    servers = []

    def start(**settings):
        producer = Producer(LogBackend(files), unread_rows_max=UNREAD_MAX)
        beacons = Beacons(producer, SECRET, Sites(SITES), clock=lambda: NOW_NS, **settings)
        servers.append(BeaconServer(beacons))
        servers[-1].start()
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


def send(url, body=None, **headers):
    given = {"Origin": ORIGIN, "User_Agent": AGENT, **headers}
    given = {name: value for name, value in given.items() if value is not None}
    data = body if isinstance(body, bytes) else json.dumps(VIEW if body is None else body).encode()
    return ask(url, HIT_PATH, data, **given)


def stored(queue):
    found = queue.read(1000)
    return [] if found is None else [json.loads(one) for one in found[1]["payload"].to_pylist()]


# --- what is served and stored ---


def test_the_script_is_small_and_any_page_may_load_it(serve):
    status, headers, body = ask(serve(), SCRIPT_PATH)
    assert (status, body) == (200, page_script())
    assert len(body) <= SCRIPT_BYTES_MAX == 1024
    assert f"of {len(body):,} bytes" in PAGE
    assert headers["content-type"].startswith("text/javascript")
    assert headers["cross-origin-resource-policy"] == "cross-origin"
    assert headers["access-control-allow-origin"] == "*"
    text = body.decode()
    for word in ("eval", "Function", "innerHTML", "cookie ", "localStorage", "createElement"):
        assert word not in text


def test_a_beacon_is_durable_when_it_is_acknowledged_and_holds_no_address(serve, queue, files):
    url = serve()
    files.arm(0)
    status, headers, body = send(url)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["vary"] == "Origin"
    # flushed, and then marked as flushed
    assert [effect.split()[0] for effect in files.effects()][-2:] == ["sync", "overwrite"]
    (record,) = stored(queue)
    assert record == {
        "time": NOW_NS // 1000,
        "site": "www.example.org",
        "host": hashed(SECRET, "address", "127.0.0.1"),
        "agent": AGENT,
        "path": "/a?b=c",
        "referrer": "https://other.example",
        "ms": 321,
    }


def test_a_browser_may_ask_first(serve, queue):
    with closing(
        http.client.HTTPConnection(urlparse(serve()).netloc, timeout=PATIENCE_S)
    ) as connection:
        wanted = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
        for origin, status in ((ORIGIN, 204), ("https://evil.example", 403)):
            connection.request("OPTIONS", HIT_PATH, headers={**wanted, "Origin": origin})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
            allowed = answer.getheader("Access-Control-Allow-Origin")
            assert allowed == (ORIGIN if status == 204 else None)
            assert answer.getheader("Access-Control-Allow-Credentials") is None
    assert stored(queue) == []


@pytest.mark.parametrize("headers", [{"DNT": "1"}, {"Sec_GPC": "1"}])
def test_nothing_is_stored_of_those_who_do_not_want_it(headers, serve, queue):
    assert send(serve(), **headers)[0] == 204
    assert stored(queue) == []


# --- what is refused ---


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://WWW.example.org:8080", 204),
        ("https://a.b.example.com", 204),
        ("https://example.com", 403),
        ("https://*.example.com", 403),
        ("https://www.example.org.evil.example", 403),
        ("https://evilwww.example.org", 403),
        ("https://evil.example/www.example.org", 403),
        ("file://www.example.org", 403),
        ("null", 403),
        ("", 403),
        (None, 403),
    ],
)
def test_only_pages_of_the_sites_may_send(origin, status, serve, queue):
    found, headers, _ = send(serve(), Origin=origin)
    assert found == status
    assert ("access-control-allow-origin" in headers) == (status == 204)
    assert len(stored(queue)) == (status == 204)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * BODY_BYTES_MAX, 400),
        (b"\xff\xfe", 400),
        (b"9" * 5000, 400),
        ([], 400),
        ({"path": 1}, 400),
        ({"path": "javascript:"}, 400),
        ({}, 400),
        (b" " * (BODY_BYTES_MAX + 1), 413),
    ],
)
def test_what_is_no_beacon_is_refused(body, status, serve, queue):
    assert send(serve(), body)[0] == status
    assert stored(queue) == []


def test_hostile_values_are_cut_or_left_out(serve, queue):
    url = serve()
    body = b'{"path": "/\\ud800' + b"x" * 3000 + b'", "referrer": "https://[", "ms": NaN, "z": 1}'
    assert send(url, body, User_Agent="x" * 9000)[0] == 204
    assert send(url, {"path": "/", "referrer": {}, "ms": True})[0] == 204
    assert send(url, {"path": "/", "referrer": "javascript:x", "ms": 1e99})[0] == 204
    first, *others = stored(queue)
    assert first["path"] == "/?" + "x" * 1998
    assert len(first["agent"]) == 500
    for one in (first, *others):
        assert (one["ms"], one["referrer"]) == (None, None)


def test_a_full_queue_and_a_broken_disk_are_answered_503(serve, queue, files):
    url = serve()
    for _ in range(UNREAD_MAX):
        assert send(url)[0] == 204
    status, headers, body = send(url)
    assert (status, body, headers["retry-after"]) == (503, b"QUEUE_FULL", "1")
    assert headers["access-control-allow-origin"] == ORIGIN
    assert len(stored(queue)) == UNREAD_MAX
    queue.ack(1, range(UNREAD_MAX))
    queue.commit()
    files.arm(1)
    assert send(url)[0] == 503
    files.arm(0)
    assert send(url)[0] == 204


def test_too_many_requests_at_once_are_refused(serve, queue):
    url = serve(requests_max=1)
    head = f"POST {HIT_PATH} HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\nContent-Length: 5\r\n\r\n"
    with socket.create_connection(("127.0.0.1", urlparse(url).port), timeout=PATIENCE_S) as slow:
        slow.sendall(head.encode())
        until(lambda: send(url)[0] == 503)
    until(lambda: send(url)[0] == 204)  # the other one has gone


# --- whose it is ---


@pytest.mark.parametrize(
    ("proxies", "header", "address"),
    [
        (0, "203.0.113.9", "127.0.0.1"),
        (0, None, "127.0.0.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        (2, "6.6.6.6, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        (2, "203.0.113.9", "127.0.0.1"),
        (1, None, "127.0.0.1"),
        (1, "::FFFF:203.0.113.9", "203.0.113.9"),
        (1, "2001:DB8::0:1", "2001:db8::1"),
        (1, "203.0.113.9:5555", "203.0.113.9"),
        (1, "[2001:DB8::1]:443", "2001:db8::1"),
        (1, "[2001:db8::1]", "2001:db8::1"),
        (1, "2001:db8::1:443", "2001:db8::1:443"),
    ],
)
def test_a_header_names_the_client_only_when_a_proxy_has_written_it(
    proxies, header, address, serve, queue
):
    assert send(serve(proxies=proxies), X_Forwarded_For=header)[0] == 204
    assert stored(queue)[0]["host"] == hashed(SECRET, "address", address)


@pytest.mark.skipif(NGINX is None, reason="needs nginx: `make nginx` fetches it")
def test_the_proxy_of_the_page_names_clients_and_limits_them(serve, queue, tmp_path):
    url, port = serve(proxies=1), free_port()
    (part,) = re.findall(r"^limit_req_zone.*?^}$", PAGE, re.DOTALL | re.MULTILINE)
    part = part.replace("http://127.0.0.1:8422", url)
    part = part.replace("server_name stats.example.org;", f"listen 127.0.0.1:{port};")
    (tmp_path / "nginx.conf").write_text(nginx_config(tmp_path, f"access_log off;\n{part}"))
    command = [NGINX, "-e", f"{tmp_path}/error.log", "-c", f"{tmp_path}/nginx.conf"]
    proxy, nginx = f"http://127.0.0.1:{port}", Child(command, tmp_path / "errors")
    try:
        until(lambda: listens(port), nginx.last_words)
        assert ask(proxy, SCRIPT_PATH)[2] == page_script()
        assert send(proxy, X_Forwarded_For="6.6.6.6")[0] == 204
        assert send(proxy, b" " * (BODY_BYTES_MAX + 1))[0] == 413
        assert ask(proxy, "/")[0] == 404

        def refused_by_proxy():
            with ThreadPoolExecutor(100) as pool:
                answers = list(pool.map(lambda _: send(proxy), range(100)))
            return {status for status, _, body in answers if b"nginx" in body}

        assert until(refused_by_proxy) == {503}  # a slow machine may send so many too slowly
    finally:
        nginx.kill()
    first, *_ = stored(queue)
    assert first["host"] == hashed(SECRET, "address", "127.0.0.1")  # of the proxy's client


@pytest.mark.parametrize("name", ["https://www.example.org", "*", "a/b", "*.*.org", ""])
def test_a_site_is_the_name_of_a_host(name, tmp_path):
    with pytest.raises(DataError, match="no name of a site"):
        webstats("--site", name, "--storage", tmp_path / "storage")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["--proxies", -1], ["--listen", "x"], ["--listen", "localhost:70000"]]
)
def test_wrong_numbers_are_refused(arguments, tmp_path):
    with pytest.raises(EddylineError, match="BAD_OPTION"):
        webstats("--site", "a.example", *arguments, "--storage", tmp_path / "storage")
    assert list(tmp_path.iterdir()) == []


# --- over kills ---


class Visitors:
    """Page views that threads send as fast as they are answered, each under a path of its own."""

    def __init__(self, port, threads=4):
        self.port, self.sent, self.acknowledged = port, 0, []
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(threads)]
        for one in self._threads:
            one.start()

    def _send(self):
        while not self._stopped.is_set():
            with self._lock:
                self.sent += 1
                path = f"/page/{self.sent}"
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
                with closing(connection):
                    body = json.dumps({"path": path, "referrer": "", "ms": 5})
                    headers = {"Origin": ORIGIN, "User-Agent": AGENT}
                    connection.request("POST", HIT_PATH, body, headers)
                    status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
                continue
            assert status == 204
            self.acknowledged.append(path)

    def stop(self):
        self._stopped.set()
        for one in self._threads:
            one.join()


@pytest.mark.guarantee(
    "page script of `eddyline webstats`",
    "each acknowledged page view once",
    "the command, 3 times by kill -9",
)
@pytest.mark.slow
@pytest.mark.spark
def test_each_acknowledged_beacon_counts_once_over_kills(tmp_path, capsys):
    pytest.importorskip("jinja2")
    storage, port = tmp_path / "storage", free_port()
    arguments = ("--storage", storage, "--follow", "--port", 0, "--listen", port)
    visitors = Visitors(port)
    try:
        for kill_after_s in (0.5, 2.0, 4.0):
            began = len(visitors.acknowledged)
            command = Follower(*arguments, "--site", *SITES)
            try:
                command.until(r"page script: ")
                until(lambda began=began: len(visitors.acknowledged) > began)
                command.until(r"epoch \d+: [\d,]+ lines")
                time.sleep(kill_after_s)
            finally:
                command.end(signal.SIGKILL)
    finally:
        visitors.stop()
    assert webstats("--storage", storage, "--verify") == 0
    assert "0 malformed lines" in capsys.readouterr().out
    from eddyline.api.engine import Engine

    with Engine(str(storage)) as engine:
        found = Counter(row.path for row in engine.sql("SELECT path FROM requests").collect())
        daily = engine.sql(
            "SELECT sum(page_pv), max(uv), max(visits) FROM daily_statistics"
        ).first()
    assert len(visitors.acknowledged) > 100
    assert found.keys() >= set(visitors.acknowledged)
    assert max(found.values()) == 1
    assert found.total() <= visitors.sent
    assert tuple(daily) == (found.total(), 1, 1)
