"""A real nginx under attack: attackers are refused, visitors are not, and all are free again in the end."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eddyline_apps.processes import free_port, listens
from nginx_server import NGINX, nginx_config
from processes import Child

BLOCK_S = 8
REACTION_S = 60
"""What a machine may take that is busy with other tests; the measured times are printed."""

SETUP = """
    log_format guard '$remote_addr - $remote_user [$time_local] "$request" $status '
                     '$body_bytes_sent "$http_referer" "$http_user_agent" $request_time';
    access_log {folder}/access.log guard;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Forwarded-For;
    server {{
        listen 127.0.0.1:{port};
        include {folder}/blocked.conf;
        location / {{ empty_gif; }}
        location = /login {{ proxy_pass http://127.0.0.1:{inner}; }}
    }}
    server {{
        listen 127.0.0.1:{inner};
        access_log off;
        return 401;
    }}
"""

CONFIG = """
capacity: 100
rules:
  flood: {{by: address, metric: requests, window: 10 s, share: 0.1, at_least: 50, block: {block} s}}
  network flood:
    {{by: network, metric: requests, window: 10 s, share: 0.15, at_least: 50, block: {block} s}}
  scraper:
    {{by: visitor, metric: pages, window: 5 min, times: 3, quantile: 0.9, at_least: 40, block: {block} s}}
  guessing: {{by: address, metric: logins, window: 1 min, at_least: 8, block: {block} s}}
notify:
  - {{to: nginx, file: {folder}/blocked.conf, pid: {folder}/nginx.pid}}
"""


@dataclass
class Client:
    """Sends requests at a rate from one of its addresses each, and notes the answers.

    Attributes:
        limit: number of requests by which the rule for it is broken; 0 for visitors.
    """

    port: int
    name: str
    addresses: list[str]
    per_s: float
    request: Callable[[int], str]
    limit: int = 0
    agent: str = "Browser"
    login: str = ""
    answers: list[tuple[float, str, int]] = field(default_factory=list)

    def send(self):
        number = len(self.answers)
        address = self.addresses[number % len(self.addresses)]
        login = b64encode(f"{self.login}:x".encode()).decode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(
                f"{self.request(number)} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n"
                f"Content-Length: 0\r\nX-Forwarded-For: {address}\r\n"
                f"User-Agent: {self.agent}\r\n"
                f"{f'Authorization: Basic {login}' if self.login else 'Accept: */*'}\r\n\r\n".encode()
            )
            answer = b""
            while block := connection.recv(4096):
                answer += block
        self.answers.append((time.monotonic(), address, int(answer.split(maxsplit=2)[1])))

    def run(self, stop):
        begin = time.monotonic()
        while not stop.wait(max(0.0, begin + len(self.answers) / self.per_s - time.monotonic())):
            self.send()

    @property
    def refused_at(self):
        """When it was first answered with 403; None: never."""
        return next((at for at, _, status in self.answers if status == 403), None)

    @property
    def reaction_s(self):
        """Seconds from the request that broke the rule to the first that was refused."""
        return max(0.0, self.refused_at - self.answers[self.limit - 1][0])


@contextmanager
def running(*clients: Client) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=client.run, args=(stop,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def until(condition, seconds, child):
    """Look until a condition holds; fail after so many seconds, with what the guard has said."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, child.last_words()
        time.sleep(0.05)


def targets(said, verb):
    """Whom the guard says that it has blocked or freed."""
    words = [line.split() for line in said]
    return [some[2] for some in words if some[1:2] == [verb]]


@pytest.fixture
def port(tmp_path):
    """The port of a running nginx, with its files in tmp_path."""
    if NGINX is None:
        pytest.skip("nginx is not installed: `make nginx` fetches it from apt")
    port, inner = free_port(), free_port()
    (tmp_path / "blocked.conf").touch()
    http = SETUP.format(folder=tmp_path, port=port, inner=inner)
    (tmp_path / "nginx.conf").write_text(nginx_config(tmp_path, http))
    command = [NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not listens(port):
            assert server.poll() is None, (tmp_path / "error.log").read_text()
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_attackers_are_refused_and_visitors_are_not(port, tmp_path):
    (tmp_path / "guard.yml").write_text(CONFIG.format(folder=tmp_path, block=BLOCK_S))

    def guard():
        child = Child(
            [
                sys.executable, str(Path(__file__).with_name("guard_child.py")), "--follow",
                "--log", str(tmp_path / "access.log"), "--config", str(tmp_path / "guard.yml"),
                "--storage", str(tmp_path / "storage"),
            ],
            tmp_path / "errors",
        )  # fmt: skip
        child.wait_for("following")
        said: list[str] = []
        threading.Thread(target=lambda: said.extend(child.process.stdout), daemon=True).start()
        return child, said

    rng = random.Random(1)

    def page(number):
        return f"GET /page/{number // 3}{'' if number % 3 == 0 else f'/{number}.png'}"

    visitors = Client(
        port, "visitors", [f"198.51.{n}.7" for n in range(40)], 40, lambda n: page(n // 40)
    )
    flood = Client(port, "flood", ["203.0.113.9"], 40, lambda n: "GET /x.png", 100, login="a [b")
    addresses = [f"192.0.2.{n}" for n in range(1, 201)]
    rng.shuffle(addresses)
    network = Client(port, "network", addresses, 40, lambda n: "GET /y.png", 150)
    scraper = Client(port, "scraper", ["198.18.5.5"], 5, lambda n: f"GET /item/{n}", 40, "Reader")
    guesser = Client(port, "guesser", ["2001:db8::9"], 3, lambda n: "POST  //log%69n", 8)
    attackers = [flood, network, scraper, guesser]

    child, said = guard()
    with running(visitors):
        until(lambda: len(visitors.answers) > 600, REACTION_S, child)  # the guard is at work
        with running(*attackers):
            until(lambda: all(one.refused_at for one in attackers), REACTION_S, child)
            for one in attackers:
                print(f"{one.name} is refused {one.reaction_s:.1f} s after it broke the rule")
            blocked = (tmp_path / "blocked.conf").read_text()
            child.kill()  # SIGKILL, in the middle of all this
            killed = time.monotonic()
            assert (tmp_path / "blocked.conf").read_text() == blocked
            child, said_again = guard()
            back = time.monotonic()
            print(f"the guard is back {back - killed:.1f} s after it was killed")
            late = Client(port, "late", ["203.0.113.77"], 40, lambda n: "GET /z.png", 100)
            with running(late):
                until(lambda: late.refused_at, REACTION_S, child)
            print(f"late is refused {late.reaction_s:.1f} s after it broke the rule")
        ended = time.monotonic()
        until(
            lambda: "deny" not in (tmp_path / "blocked.conf").read_text(),
            BLOCK_S + REACTION_S,
            child,
        )
        free = time.monotonic()
        print(f"all are free {free - ended:.1f} s after the attack")
        assert free - ended > BLOCK_S - 2  # a log has whole seconds
        before = {one.name: len(one.answers) for one in attackers}
        for one in attackers:
            until(lambda one=one: (one.send(), one.answers[-1][2] != 403)[1], 5, child)
        until(lambda: len(targets(said_again, "freed")) == 5, REACTION_S, child)
    child.kill()

    assert {status for _, _, status in visitors.answers} == {200}, "a visitor was refused"
    assert len(visitors.answers) > 500
    for one in [*attackers, late]:
        after = [
            status
            for at, _, status in one.answers[: before.get(one.name)]
            if at > one.refused_at + 2
        ]
        assert set(after) <= {403}, f"{one.name} was let in again while it attacked"
    whole = ["192.0.2.0/24", "198.18.5.5", "2001:db8::9", "203.0.113.9"]
    assert sorted(targets(said, "blocked")) == whole
    assert targets(said, "freed") == []
    assert targets(said_again, "blocked") == ["203.0.113.77"]  # nobody a second time
    assert sorted(targets(said_again, "freed")) == sorted([*whole, "203.0.113.77"])
