"""JSON files that grow are read on; what can't be read on is reported."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.cli.commands import main
from eddyline.source import files as source

pytestmark = pytest.mark.spark


class Case:
    """A stream over a folder, and a view of its rows."""

    def __init__(
        self, tmp_path: Path, spark: SparkSession, kind: str = "json", columns: str = "a BIGINT"
    ) -> None:
        self.folder = tmp_path / "in"
        self.folder.mkdir()
        self.path = str(tmp_path / "storage")
        self.spark = spark
        self.engine = el.Engine(self.path, spark)
        self.engine.create_stream("s", columns, kind, {"path": str(self.folder)})
        self.engine.view("v", "SELECT a FROM s")

    def write(self, name: str, text: str) -> None:
        with open(self.folder / name, "a") as stream:
            stream.write(text)

    def rows(self) -> list[int | None]:
        self.engine.advance()
        assert self.engine.verify()
        return sorted((a for (a,) in self.engine.snapshot("v").collect()), key=str)

    def reopen(self) -> None:
        self.engine.stop()
        self.engine = el.Engine(self.path, self.spark)

    def faults(self) -> str:
        return json.dumps(self.engine.status()["sources"])


@pytest.fixture
def case(tmp_path: Path, spark: SparkSession) -> Iterator[Case]:
    made = Case(tmp_path, spark)
    yield made
    made.engine.stop()


def line(number: int) -> str:
    return f'{{"a":{number}}}\n'


def test_lines_that_are_appended_are_read_once(case: Case) -> None:
    case.write("f.json", line(1))
    assert case.rows() == [1]
    case.write("f.json", line(2) + line(3))
    case.write("g.json", line(10))
    assert case.rows() == [1, 10, 2, 3]
    case.reopen()
    case.write("f.json", line(4))
    assert case.rows() == [1, 10, 2, 3, 4]
    case.engine.view("later", "SELECT a FROM s")  # sees the same rows
    assert sorted(a for (a,) in case.engine.snapshot("later").collect()) == [1, 2, 3, 4, 10]


def test_a_last_line_without_an_end_is_taken_when_the_file_stands_still(case: Case) -> None:
    case.write("f.json", line(1) + '{"a":2}')
    assert case.rows() == [1, 2]
    case.write("f.json", "\n" + line(3))
    assert case.rows() == [1, 2, 3]
    case.write("empty.json", "")
    assert case.rows() == [1, 2, 3]
    case.write("empty.json", line(4))
    assert case.rows() == [1, 2, 3, 4]


def test_in_the_background_an_unfinished_line_waits_for_its_end(case: Case) -> None:
    case.write("f.json", line(1) + '{"a"')
    stream = case.engine._workspace.sources
    stream.follow(0.01)
    case.write("f.json", ":2")
    stream.follow(0.01)
    case.write("f.json", "}\n")
    stream.follow(0.01)
    assert case.rows() == [1, 2]


def test_a_file_that_goes_on_within_a_line_that_was_read_is_reported(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.write("f.json", '{"a":1')
    assert case.rows() == [None]
    case.write("f.json", "23}\n" + line(4))
    case.engine.advance()
    assert "in the middle of a line" in case.faults()
    assert "in the middle of a line" in caplog.text
    case.write("g.json", line(5))
    case.engine.advance()
    assert 5 in [a for (a,) in case.engine.snapshot("v").collect()]


def test_of_a_line_that_goes_on_only_what_was_read_counts(case: Case) -> None:
    case.write("f.json", '{"a": 1}\n{"a": 2')
    assert case.rows() == [1, None]
    case.write("f.json", "3}\n" + line(4))
    assert case.rows() == [1, None]
    assert "in the middle of a line" in case.faults()
    case.engine.view("later", "SELECT a FROM s")
    assert case.engine.verify()
    assert sorted(case.engine.sql("SELECT a FROM s").collect(), key=str) == [(1,), (None,)]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_file_read_as_a_whole_that_grows_is_reported(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    def write(rows: list[int]) -> None:
        if kind == "parquet":
            pq.write_table(pa.table({"a": pa.array(rows, pa.int64())}), file)
        else:
            file.write_bytes(gzip.compress("".join(map(line, rows)).encode()))

    case = Case(tmp_path, spark, kind)
    file = case.folder / ("f.parquet" if kind == "parquet" else "f.json.gz")
    with case.engine:
        write([1])
        assert case.rows() == [1]
        write([*range(1000)])
        case.engine.advance()
        assert "when it was read" in case.faults()
        assert case.engine.snapshot("v").collect() == [(1,)]
        readers: list[Callable[[], object]] = [
            case.engine.verify,
            lambda: case.engine.sql("SELECT a FROM s").collect(),
            lambda: case.engine.sql("SELECT count(*) FROM s").collect(),
            lambda: case.engine.view("later", "SELECT a FROM s"),
        ]
        for read in readers:
            with pytest.raises((el.StateError, PySparkException), match="changed or removed"):
                read()


def test_a_large_file_that_grows_is_read_by_parts(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "TAIL_BYTES", 7)
    wanted: list[int] = []
    for start in (0, 30, 61):
        new = list(range(start, start + 30))
        wanted += new
        case.write("f.json", "".join(json.dumps({"a": a, "b": "-" * 700_000}) + "\n" for a in new))
        assert sorted(a for a in case.rows() if a is not None) == sorted(wanted)
    assert (case.folder / "f.json").stat().st_size > source.PART_BYTES


def test_a_file_that_is_moved_into_the_folder_is_whole(case: Case, tmp_path: Path) -> None:
    hidden = case.folder / "_f.json"
    hidden.write_text(line(1) + line(2))
    assert case.rows() == []
    os.rename(hidden, case.folder / "f.json")
    assert case.rows() == [1, 2]


@pytest.fixture
def by_spark(tmp_path: Path, spark: SparkSession) -> Iterator[Case]:
    """A stream with a column of a type that only Spark's reader has."""
    made = Case(tmp_path, spark, columns="a BIGINT, d DATE")
    yield made
    made.engine.stop()


def test_a_file_that_grows_after_spark_has_read_it_is_reported(
    by_spark: Case, caplog: pytest.LogCaptureFixture
) -> None:
    by_spark.write("f 1.json", line(1))
    by_spark.write("g.json", line(2))
    assert by_spark.rows() == [1, 2]
    assert "set_aside" not in by_spark.faults()
    os.utime(by_spark.folder / "g.json", (1, 1))  # older than it was
    by_spark.write("f 1.json", line(3))
    os.utime(by_spark.folder / "f 1.json", (4e9, 4e9))
    for _ in range(2):
        assert by_spark.rows() == [1, 2], "Spark reads each file once"
        assert "f 1.json" in by_spark.faults()
        assert "g.json" not in by_spark.faults()
        by_spark.reopen()
    assert "what was added isn't read" in caplog.text
    (by_spark.folder / "f 1.json").unlink()
    assert by_spark.rows() == [1, 2]
    assert "set_aside" not in by_spark.faults()


def test_a_file_on_which_spark_fails_is_named(by_spark: Case) -> None:
    by_spark.write("a.json", line(1))
    by_spark.write("b 2.json.gz", "no gzip")
    with pytest.raises(el.EddylineError, match=r"in/b 2\.json\.gz: .*EOFException") as error:
        by_spark.engine.advance()
    assert error.value.condition == "STREAM_FAILED"
    (by_spark.folder / "b 2.json.gz").unlink()
    assert by_spark.rows() == [1]


READ_BY_SPARK = {
    "types of JSON": ("a BIGINT, d DATE", "json", {}),
    "CSV": ("a BIGINT", "csv", {}),
    "a key": ("a BIGINT, PRIMARY KEY (a)", "csv", {}),
    "malformed records kept apart": ("a BIGINT", "csv", {"mode": "DROPMALFORMED"}),
}


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(one, marks=() if one in ("types of JSON", "a key") else pytest.mark.slow)
        for one in READ_BY_SPARK
    ],
)
def test_a_file_on_which_spark_fails_is_left_out(
    tmp_path: Path,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    read: str,
) -> None:
    columns, kind, options = READ_BY_SPARK[read]
    folder = tmp_path / "in"
    folder.mkdir()

    def write(name: str, *numbers: int, seconds_ago: float = 0) -> None:
        text = "".join(map(line, numbers) if kind == "json" else (f"{n}\n" for n in numbers))
        packed = gzip.compress(text.encode())[:-12]
        (folder / name).write_bytes(packed if name.endswith(".gz") else text.encode())
        then = time.time() - seconds_ago
        os.utime(folder / name, (then, then))

    def rows(engine: el.Engine) -> list[int]:
        engine.advance()
        assert engine.verify()
        return sorted(a for (a,) in engine.snapshot("v").collect())

    path = str(tmp_path / "storage")
    with el.Engine(path, spark) as engine:
        given = ", ".join(f"{k} '{v}'" for k, v in {"path": folder, **options}.items())
        engine.execute(f"CREATE STREAM s ({columns}) USING {kind} OPTIONS ({given})")
        engine.view("v", "SELECT a FROM s")
        write("a.txt", 1)
        write("b c\u00e9.gz", *range(10_000), seconds_ago=60)
        write("2026-01-31T10:00.txt", 2, seconds_ago=60)  # Hadoop makes no name of a checksum of it
        write("d.txt", 3)
        assert rows(engine) == [1, 3]
        write("e.txt", 4)
        write("f.gz", *range(10_000), seconds_ago=-600)
        with pytest.raises(el.EngineError, match=r"STREAM_FAILED.*/f\.gz: "):  # half written yet
            engine.advance()
        assert not engine.progress().failing
    with el.Engine(path, spark) as engine:
        write("f.gz", *range(10_000), seconds_ago=60)
        assert rows(engine) == [1, 3, 4]
        (stream,) = engine.status()["sources"]
        assert {os.path.basename(name) for name in stream["set_aside"]} == {
            "b c\u00e9.gz",
            "2026-01-31T10:00.txt",
            "f.gz",
        }
        assert "EOFException" in stream["set_aside"][str(folder / "f.gz")]
        assert main(["status", "--storage", path]) == 0
        shown = re.search(r"^s +\S*/f\.gz +(.*)$", capsys.readouterr().out, re.MULTILINE)
        assert shown
        assert "EOFException" in shown[1]
        write("g.txt", 5)
        assert rows(engine) == [1, 3, 4, 5]
        for name in stream["set_aside"]:
            os.remove(name)
        assert rows(engine) == [1, 3, 4, 5]
        assert "set_aside" not in engine.status()["sources"][0]
    warnings = [one.getMessage() for one in caplog.records if "can't be read" in one.getMessage()]
    assert sum("f.gz" in one and "as a new file" in one for one in warnings) == 1


def test_a_record_that_fails_the_mode_failfast_stops_its_stream(
    tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with el.Engine(str(tmp_path / "storage"), spark) as engine:
        options = {"path": str(folder), "mode": "FAILFAST"}
        engine.create_stream("s", "a BIGINT", "json", options)
        (folder / "a.json").write_text("broken\n")
        os.utime(folder / "a.json", (1, 1))
        with pytest.raises(el.EngineError, match=r"STREAM_FAILED.*DROPMALFORMED"):
            engine.advance()
        assert "set_aside" not in engine.status()["sources"][0]
