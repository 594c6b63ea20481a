"""Ctrl-C ends every command that waits, also where a library has set a handler of its own."""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path

import pytest

import eddyline as el
from eddyline.answers.run_health import stored_health
from eddyline.cli.interrupts import quiet_interrupts
from eddyline.storage.files import Files
from processes import Child
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.spark  # one command has a JVM

SCRIPT = """
CREATE TABLE t (a BIGINT);
CREATE VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a;
INSERT INTO t VALUES (1);
"""


@pytest.fixture(scope="module")
def storage(spark, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("interrupted") / "s")
    with el.Engine(folder) as engine:
        engine.execute(SCRIPT)
    return folder


def command(name: str, storage: str, scratch: Path) -> tuple[list[str], str]:
    """Return the arguments of a command, and how its first line begins once it works."""
    if name == "console":
        pytest.importorskip("uvicorn")
        return ["console", "--storage", storage, "--port", "0"], "http://"
    if name == "ingest":
        pytest.importorskip("uvicorn")
        return ["ingest", str(scratch / "queue"), "--port", "0"], "POST"
    (scratch / "script.sql").write_text(SCRIPT)
    return ["run", str(scratch / "script.sql"), "--storage", str(scratch / "s")], "epoch      2"


@pytest.mark.parametrize("name", ["console", "ingest", "run"])
def test_a_command_ends_on_ctrl_c(storage, tmp_path, name):
    arguments, begun = command(name, storage, tmp_path)
    errors = tmp_path / "errors"
    token = {"EDDYLINE_INGEST_TOKEN": "a-token-of-tests-1"}
    child = Child([sys.executable, "-m", "eddyline", *arguments], errors, **token)
    try:
        assert child.process.stdout is not None
        while not child.process.stdout.readline().startswith(begun):
            assert child.process.poll() is None, child.last_words()
        if name == "run":  # the script's own epochs come before
            files = Files(str(tmp_path / "s"))
            until(lambda: stored_health(files)["state"] == "running", child.last_words)
        time.sleep(0.5)  # it waits by then, also where this isn't the only process
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(PATIENCE_S) == 0, child.last_words()
    finally:
        child.kill()
    assert "Traceback" not in errors.read_text()


def test_a_command_that_starts_ends_on_ctrl_c_without_tracebacks(tmp_path):
    log, errors = tmp_path / "access.log", tmp_path / "errors"
    log.write_text('192.0.2.1 - - [01/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 12\n')
    words = ["webstats", "--log", str(log), "--storage", str(tmp_path / "s")]
    child = Child([sys.executable, "-m", "eddyline", *words], errors)
    try:
        manifests = tmp_path / "s" / "manifests"
        until(lambda: manifests.is_dir() and len(list(manifests.iterdir())) > 3, child.last_words)
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(PATIENCE_S) == 130, child.last_words()
    finally:
        child.kill()
    assert "Traceback" not in errors.read_text()


def test_calls_that_ctrl_c_interrupts_are_not_logged(caplog):
    def logged(error, module):
        record = logging.LogRecord("root", logging.ERROR, module, 1, "x", (), (None, error, None))
        logging.getLogger().handle(record)

    reentrant = ValueError("sending failed")
    reentrant.__context__ = RuntimeError("reentrant call inside <_io.BufferedReader name=6>")
    broken = BrokenPipeError()
    broken.__context__ = KeyboardInterrupt()
    modules = "/py4j/java_gateway.py", "/py4j/clientserver.py"
    with quiet_interrupts():
        for module in modules:
            for error in (reentrant, KeyboardInterrupt(), broken):
                logged(error, module)
        assert not caplog.records
        logged(reentrant, "/other.py")
        for module in modules:
            logged(ValueError("the JVM is gone"), module)
    logged(reentrant, modules[0])
    assert len(caplog.records) == 4
