"""Records that a stream of Spark's can't take in: kept apart, readable, dropped on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from eddyline import Engine
from eddyline.cli import main
from eddyline.errors import CatalogError, EngineError

pytestmark = pytest.mark.spark

LINES = {
    "json": ['{"id": 1, "v": 0.5}', '{"id": "x", "v": 1.5}', '{"id": 2', "", '{"id": 3, "w": 0}'],
    "csv": ["1,0.5", "x,1.5", "2", "", "3,0.5,7", "4,"],
    "xml": ["<row><id>1</id></row>", "<row><id>x</id></row>", "<row><v>0.5</v></row>"],
}


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[Engine]:
    with Engine(str(tmp_path / "storage"), spark) as engine:
        yield engine


def folder_of(tmp_path: Path, lines: list[str], name: str = "1") -> Path:
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in engine.sql(query).collect()), key=repr)


@pytest.mark.parametrize("format", ["json", "csv", "xml"])
def test_the_stream_has_what_spark_reads_and_the_rest_is_kept_apart(
    engine: Engine, tmp_path: Path, spark: SparkSession, format: str
) -> None:
    folder = folder_of(tmp_path, LINES[format])
    options = {"path": str(folder), "Mode": "dropMalformed"}
    if format == "xml":
        options["rowTag"] = "row"
    stream = engine.create_stream("s", "id INT, v DOUBLE", format, options)
    engine.view("rows", "SELECT * FROM s")
    engine.view("reasons", "SELECT bolt, count(*) AS n FROM s__dead GROUP BY bolt")
    engine.advance()
    offline = spark.read.format(format).options(**options).schema("id INT, v DOUBLE").load()
    expected = sorted((tuple(row) for row in offline.collect()), key=repr)
    assert rows(engine, "SELECT * FROM rows") == expected
    every = spark.read.format(format).options(**{**options, "Mode": "PERMISSIVE"})
    count = len(every.schema("id INT, v DOUBLE").load().collect())
    letters = stream.dead_letters().collect()
    assert len(letters) == count - len(expected) > 0
    assert rows(engine, "SELECT * FROM reasons") == [("decode", len(letters))]
    for letter in letters:
        assert letter.error == f"malformed record in file:{folder}/1"
        payload = bytes(letter.payload).decode().splitlines()
        assert set(payload) <= set(LINES[format])  # of XML Spark tells the whole document
    assert engine.verify()


def test_dead_letters_of_a_stream_stay_until_they_are_dropped(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = str(tmp_path / "storage")
    folder = folder_of(tmp_path, ["1", "two", "3"])
    script = f"CREATE STREAM s (n INT) USING csv OPTIONS (path '{folder}', mode 'DROPMALFORMED')"

    def ask(*words: str) -> tuple[int, str, str]:
        action, *rest = words
        code = main(["deadletters", action, "--storage", storage, *rest])
        told = capsys.readouterr()
        return code, told.out, told.err

    with Engine(storage, spark) as engine:
        engine.execute(script)
        engine.view("total", "SELECT sum(n) AS n FROM s")
        engine.advance()
    with Engine(storage, spark) as engine:
        engine.execute(script)
        folder_of(tmp_path, ["four", "5"], "2")
        engine.start(interval=0.05)
        code, out, _ = ask("list")
        assert code == 0
        assert [line.split()[:3] for line in out.splitlines()[2:]][-1] == ["s", "0", "decode"]
        assert "payload   two" in ask("show", "s", "0")[1]
        code, _, err = ask("replay", "s", "--all")
        assert code == 2
        assert "its source gives each once" in err
        with pytest.raises(CatalogError, match="gives each once"):
            engine.remove_dead_letters("s", None, replay=True)
        assert ask("drop", "s", "0")[:2] == (0, "drop s: done\n")
        engine.stop()
    with Engine(storage, spark) as engine:
        engine.advance()
        assert rows(engine, "SELECT cast(payload AS STRING) FROM s__dead") == [("four",)]
        assert rows(engine, "SELECT n FROM total") == [(9,)]
        (source,) = engine.status()["sources"]
        assert (source["name"], source["dead_letters"]) == ("s", 1)


def test_dead_letters_go_with_their_stream(engine: Engine, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, ["1", "two"])
    options = {"path": str(folder), "mode": "DROPMALFORMED"}
    engine.create_stream("s", "n INT", "csv", options)
    engine.view("reasons", "SELECT error FROM s__dead")
    with pytest.raises(CatalogError, match="belongs to its stream"):
        engine.drop("stream", "s__dead")
    with pytest.raises(CatalogError, match="read by reasons"):
        engine.drop("stream", "s")
    engine.drop("view", "reasons")
    engine.advance()
    engine.drop("stream", "s")
    assert engine.catalog.entries == ()
    engine.create_stream("s", "n INT", "csv", options)
    engine.advance()
    assert len(rows(engine, "SELECT position FROM s__dead")) == 1


def test_a_column_of_corrupt_records_is_filled_as_spark_fills_it(
    engine: Engine, tmp_path: Path, spark: SparkSession
) -> None:
    folder = folder_of(tmp_path, LINES["json"])
    schema = "id INT, v DOUBLE, _corrupt_record STRING"
    engine.create_stream("s", schema, "json", {"path": str(folder)})
    view = engine.view("rows", "SELECT * FROM s")
    engine.advance()
    offline = spark.read.schema(schema).json(str(folder)).collect()
    assert sum(row._corrupt_record is not None for row in offline) == 2
    assert sorted(view.snapshot().collect(), key=repr) == sorted(offline, key=repr)


def test_a_stream_that_stops_at_bad_records_tells_the_way_out(
    engine: Engine, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, ["1", "two"])
    engine.create_stream("s", "n INT", "csv", {"path": str(folder), "mode": "FAILFAST"})
    with pytest.raises(EngineError, match="DROPMALFORMED bad records are kept apart"):
        engine.advance()
