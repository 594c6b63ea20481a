"""`eddyline explain SCRIPT` shows plans, and touches nothing that the script names."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.cli.commands import main

pytestmark = pytest.mark.spark


def test_a_script_is_explained_beside_the_engine_that_runs_it(
    tmp_path: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "a token of the test")
    queue, script = tmp_path / "queue", tmp_path / "s.sql"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        views = f"""
            CREATE STREAM q (id INT) USING queue OPTIONS (path '{queue}');
            CREATE VIEW ids AS SELECT id, count(*) AS n FROM q GROUP BY id;
        """
        posted = f"""
            CREATE STREAM h (id INT) USING http OPTIONS (port '{port}', token '${{env:TOKEN_OF_TEST}}');
            ALTER STREAM h ADD COLUMN more INT;
            CREATE VIEW received AS SELECT more FROM h;
        """
        script.write_text(views + posted)
        assert main(["explain", str(script)]) == 0
        assert not queue.exists()
        with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
            engine.execute(views)
            capsys.readouterr()
            assert main(["explain", str(script)]) == 0
            shown = capsys.readouterr().out
            assert "Aggregate [class 2, stateful" in shown
            assert "Scan [class 1, stateless; rule: stateless] h" in shown
