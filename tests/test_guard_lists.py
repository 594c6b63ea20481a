"""The block list in the files of servers, and at webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from eddyline.errors import EngineError
from eddyline_apps.guard.config import FILES, Config, Notification, Rule
from eddyline_apps.guard.lists import ListFile
from waiting import until

TARGETS = [
    "203.0.113.9",
    "2001:db8:0::/48",
    "192.0.2.0/24",
    "203.0.113.9; } load_module evil.so",
    "a.example",
    "",
]
HEAD = "# written by eddyline guard\n"


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("nginx", "deny 192.0.2.0/24;\ndeny 203.0.113.9;\ndeny 2001:db8::/48;\n"),
        ("nginx_geo", "192.0.2.0/24 1;\n203.0.113.9 1;\n2001:db8::/48 1;\n"),
        ("haproxy", "192.0.2.0/24\n203.0.113.9\n2001:db8::/48\n"),
        (
            "nftables",
            "add set inet filter blocked4 { type ipv4_addr; flags interval; auto-merge; }\n"
            "flush set inet filter blocked4\n"
            "add element inet filter blocked4 { 192.0.2.0/24, 203.0.113.9 }\n"
            "add set inet filter blocked6 { type ipv6_addr; flags interval; auto-merge; }\n"
            "flush set inet filter blocked6\n"
            "add element inet filter blocked6 { 2001:db8::/48 }\n",
        ),
    ],
)
def test_files_hold_addresses_and_nothing_else(tmp_path, to, text):
    path = tmp_path / "new" / "list"
    file = ListFile(Notification(to, {"file": str(path)}))
    file.publish(TARGETS)
    assert path.read_text() == HEAD + text
    assert path.stat().st_mode & 0o777 == 0o644
    file.publish([])
    assert "203.0.113.9" not in path.read_text()
    assert os.listdir(path.parent) == ["list"]
    assert {"nginx", "nginx_geo", "haproxy", "nftables"} == set(FILES)


def test_a_server_is_signalled_once_a_change(tmp_path):
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGHUP, lambda *_: print('reloads', flush=True))\n"
        "print('runs', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "runs\n"
        (tmp_path / "pid").write_text(f"{server.pid}\n")
        options = {"file": str(tmp_path / "list"), "pid": str(tmp_path / "pid")}
        file = ListFile(Notification("nginx", options))
        file.publish(TARGETS)
        assert server.stdout.readline() == "reloads\n"
        file.publish(TARGETS)  # no change, no signal
        written = os.stat(tmp_path / "list")
        again = ListFile(Notification("nginx", options))  # a new process, which may have to signal
        again.publish(TARGETS)
        assert server.stdout.readline() == "reloads\n"
        assert os.stat(tmp_path / "list").st_ino == written.st_ino
        server.stdin.close()
        assert server.stdout.read() == ""


@pytest.mark.parametrize("pid", ["1", "0", "-1", "x", "99999999999999"])
def test_a_wrong_pid_file_is_an_error(tmp_path, pid):
    (tmp_path / "pid").write_text(pid)
    options = {"file": str(tmp_path / "list"), "pid": str(tmp_path / "pid")}
    with pytest.raises(EngineError, match="SINK_FAILED"):
        ListFile(Notification("nginx", options)).publish([])


def test_a_server_that_does_not_run_reads_the_list_when_it_starts(tmp_path):
    options = {"file": str(tmp_path / "list"), "pid": str(tmp_path / "none")}
    ListFile(Notification("nginx", options)).publish(["192.0.2.1"])
    assert "192.0.2.1" in (tmp_path / "list").read_text()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((dict(self.headers), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


class Listed:
    """A list in the place of the guard's views, which take long to make."""

    def __init__(self, engine):
        self.table = engine.table("admissions", "target STRING, reason STRING")
        self.views = {"blocked": engine.view("blocked", "SELECT * FROM admissions")}

    @property
    def targets(self):
        return [row[0] for row in self.views["blocked"].snapshot().collect()]


@pytest.mark.spark
def test_notifications_follow_the_list(tmp_path, monkeypatch):
    from eddyline.api.engine import Engine
    from eddyline_apps.guard.notifying import hold, notify

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.posts = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GUARD_SECRET", "s3cret")
    file = Notification("nginx", {"file": str(tmp_path / "list")})
    hook = Notification(
        "webhook",
        {"url": f"http://127.0.0.1:{server.server_port}/", "secret": "${env:GUARD_SECRET}"},
    )
    rule = Rule("a", "address", "requests", 10, None, None, None, 5, 5, 1, 10)

    def config(*notifications, dry_run=False):
        return Config(rules=(rule,), notify=notifications, dry_run=dry_run)

    def posted():
        found = []
        for headers, body in server.posts:
            stamp = headers["X-Eddyline-Timestamp"]
            expected = hmac.new(b"s3cret", f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
            assert headers["X-Eddyline-Signature"] == f"sha256={expected}"
            changes = json.loads(body)["changes"]
            found += sorted((change["_change_type"], change["target"]) for change in changes)
        return found

    storage = tempfile.mkdtemp()
    with Engine(storage) as engine:
        listed = Listed(engine)
        notify(engine, listed, config(file, hook))
        assert (tmp_path / "list").read_text() == HEAD
        listed.table.insert([("192.0.2.1", "flood"), ("192.0.2.2", "flood")])
        engine.advance()
        assert (tmp_path / "list").read_text() == HEAD + "deny 192.0.2.1;\ndeny 192.0.2.2;\n"
    with Engine(storage) as engine:
        listed = Listed(engine)
        notify(engine, listed, config(file, hook))
        listed.table.delete([("192.0.2.1", "flood")])
        engine.advance()
        assert (tmp_path / "list").read_text() == HEAD + "deny 192.0.2.2;\n"
        assert posted() == [
            ("insert", "192.0.2.1"),
            ("insert", "192.0.2.2"),
            ("delete", "192.0.2.1"),
        ]
        notify(engine, listed, config(file, hook, dry_run=True))
        listed.table.delete([("192.0.2.2", "flood")])
        engine.advance()
        assert (tmp_path / "list").read_text() == HEAD + "deny 192.0.2.2;\n"
        assert len(posted()) == 3
        (sink,) = engine.status()["sinks"]
        assert (sink["format"], sink["state"]) == ("webhook", "paused")
    other = Notification("webhook", {**hook.options, "timeout": "5"})
    with Engine(storage) as engine:
        hold(engine, config(other), follow=True)
        listed = Listed(engine)
        listed.table.insert([("192.0.2.3", "flood")])
        engine.advance()
        assert len(posted()) == 3
        notify(engine, listed, config(other))
        engine.advance()
        until(lambda: len(posted()) == 5)
        assert posted()[3:] == [("delete", "192.0.2.2"), ("insert", "192.0.2.3")]
        assert not json.loads(server.posts[-1][1])["snapshot"]
    with Engine(storage) as engine:  # a replay
        hold(engine, config(other), follow=False)
        listed = Listed(engine)
        listed.table.delete([("192.0.2.3", "flood")])
        engine.advance()
        assert len(posted()) == 5
    server.shutdown()
    server.server_close()
