"""`verify`: what it compares, and what its report says of views that it can't compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.cli import main

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        yield engine


def test_a_removed_file_concerns_only_the_views_that_read_it(
    engine: el.Engine, tmp_path: Path
) -> None:
    for name in ("gone", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text('{"a": 1}\n')
        engine.create_stream(name, "a INT", "json", {"path": str(tmp_path / name)})
        engine.view(f"v_{name}", f"SELECT sum(a) AS s FROM {name}")
    engine.view("above", "SELECT max(s) AS s FROM v_gone")
    kept = engine.view("both", "SELECT s FROM v_kept")
    engine.advance()
    assert engine.verify()
    (tmp_path / "gone" / "1.json").unlink()
    report = engine.verify(kept)  # a handle is as good as its name
    assert report
    assert list(report.views) == ["both"]
    report = engine.verify()
    assert not report
    assert report.equal
    assert set(report.views) == {"v_kept", "both"}
    assert report.broken == ("v_gone", "above")
    assert "above   not compared: [DAMAGED_FILE]" in str(report)
    with pytest.raises(el.StateError) as caught:
        engine.verify("above")
    assert caught.value.condition == "DAMAGED_FILE"


def test_a_report_is_false_if_a_view_fails(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = str(tmp_path / "storage")
    with el.Engine(storage, spark=spark) as engine:
        table = engine.table("t", "id INT, v INT")
        engine.view("dz", "SELECT id, 1 / v AS r FROM t")
        engine.view("n", "SELECT count(*) AS n FROM t")
        table.insert([(1, 0)])
        engine.advance()
        assert engine.verify("n")
        for report in (engine.verify(), engine.verify("dz")):
            assert not report
            assert report.broken == ("dz",)
    for arguments, code in (([], 1), (["dz"], 1), (["n"], 0)):
        assert main(["verify", "--storage", storage, *arguments, "--format", "json"]) == code
        [shown] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert shown["equal"] == (not code)
