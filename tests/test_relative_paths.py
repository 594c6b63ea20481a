"""Relative paths of streams and sinks: those of the folder in which they were created, for every process."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from eddyline import CatalogError, DataError, Engine, EngineError
from eddyline.api.paths import with_absolute_path
from eddyline.catalog.entries import STREAM, Entry
from eddyline.source.user_rows import as_arrow

TEXT = {"json": '{{"a": "{}"}}\n', "csv": "{}\n", "tail": "{}\n"}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders, each with an empty folder `data`; the process is in the first one."""
    both = tmp_path / "here", tmp_path / "there"
    for folder in both:
        (folder / "data").mkdir(parents=True)
    monkeypatch.chdir(both[0])
    return both


@pytest.mark.spark
@pytest.mark.parametrize("format", TEXT)
def test_a_stream_reads_the_folder_in_which_it_was_created(
    folders: tuple[Path, Path], spark: SparkSession, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    here, there = folders
    path, column = ("data/*", "value") if format == "tail" else ("data", "a")
    create = (
        f"CREATE STREAM s{'' if format == 'tail' else ' (a STRING)'}"
        f" USING {format} OPTIONS (path '{path}')"
    )
    (here / "data" / "1").write_text(TEXT[format].format("first"))
    with Engine("storage", spark) as engine:
        engine.execute(create)
        engine.view("v", f"SELECT {column}, count(*) AS n FROM s GROUP BY {column}")
        engine.advance()
        engine.execute(create)  # the same one
    (here / "data" / "2").write_text(TEXT[format].format("second"))
    (there / "data" / "3").write_text(TEXT[format].format("alien"))
    monkeypatch.chdir(there)
    with Engine(str(here / "storage"), spark) as engine:
        engine.advance()
        assert sorted(engine.sql("SELECT * FROM v").collect()) == [("first", 1), ("second", 1)]
        assert engine.verify()
        with pytest.raises(CatalogError, match=f"its path is {here}/data") as caught:
            engine.execute(create)
        assert caught.value.condition == "NAME_TAKEN"


@pytest.mark.spark
def test_a_sink_writes_into_the_folder_in_which_it_was_created(
    folders: tuple[Path, Path], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = folders
    with Engine("storage", spark) as engine:
        table = engine.table("t", "a INT")
        engine.view("v", "SELECT a FROM t")
        sink = engine.sink("k", "v", format="jsonl", path="out")
        table.insert([(1,)])
        engine.advance()
        assert engine.sink("k", "v", format="jsonl", path="out").name == sink.name
        sink.alter(path="out")
    monkeypatch.chdir(there)
    with Engine(str(here / "storage"), spark) as engine:
        engine.table("t", "a INT").insert([(2,)])
        engine.advance()
        with pytest.raises(CatalogError, match=f"its path is {here}/out"):
            engine.sink("k", "v", format="jsonl", path="out")
    assert not (there / "out").exists()
    written = "".join(one.read_text() for one in sorted((here / "out").glob("*.jsonl")))
    assert [json.loads(line)["a"] for line in written.splitlines()] == [1, 2]


def test_only_relative_paths_of_files_change(folders: tuple[Path, Path]) -> None:
    def found(format: str, path: str, present: Entry | None = None) -> str:
        return with_absolute_path(format, {"Path": path, "x": "y"}, present)["Path"]

    here = os.path.realpath(folders[0])
    for path in ("data", "./data/", "data/*.json"):
        assert os.path.isabs(found("JSON", path))
    assert os.path.realpath(found("tail", "../here/logs/a.log")) == f"{here}/logs/a.log"
    for path in ("/data", "s3://bucket/data", "file:data", "${env:PLACE}/data", " ", ""):
        assert found("parquet", path) == path
    assert found("my.own.Source", "orders") == "orders"
    stored = Entry("s1", STREAM, "s", "", format="json", options={"path": "data"})
    assert found("json", "data", stored) == "data"  # of an earlier version
    assert os.path.isabs(found("json", "data", replace(stored, options={"path": "/data"})))


@pytest.mark.spark
def test_a_folder_that_is_gone_is_reported(folders: tuple[Path, Path], spark: SparkSession) -> None:
    here, _ = folders
    with Engine("storage", spark) as engine:
        engine.execute("CREATE STREAM s (a STRING) USING json OPTIONS (path 'data')")
        shutil.move(here / "data", here / "elsewhere")
        with pytest.raises(EngineError, match="No such file or directory") as caught:
            engine.advance()
        assert caught.value.condition == "STREAM_FAILED"
        shutil.move(here / "elsewhere", here / "data")
        (here / "data" / "1").write_text('{"a": "x"}\n')
        engine.advance()
        assert engine.sql("SELECT a FROM s").collect() == [("x",)]


@pytest.mark.parametrize(
    "table", [pd.DataFrame({"k": ["v1"]}), pa.table({"k": ["v1"]}), pa.record_batch({"k": ["v1"]})]
)
def test_a_table_is_no_row(table: object) -> None:
    with pytest.raises(DataError, match=r"to_dict\('records'\)") as caught:
        as_arrow([table], pa.schema([("k", pa.string())]), relation="t", zone="UTC")  # type: ignore[list-item]
    assert caught.value.condition == "WRONG_ROW"
    row = namedtuple("row", "columns")("v1")
    assert as_arrow([row], pa.schema([("k", pa.string())]), relation="t", zone="UTC").num_rows == 1
