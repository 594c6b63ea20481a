"""Streams of files: a view holds what Spark reads; a file that can't be read stops nothing."""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

import eddyline.answers.verify
from eddyline import Engine
from eddyline.answers.spark_files import read_by_spark
from eddyline.errors import DataError, EngineError
from eddyline.intake.formats import SparkFormat
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.source.files import FileStream, read_parquet_file
from eddyline.source.parquet import parquet_fault, read_parquet
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NDJSON, PARQUET, Segment, Wanted
from eddyline.source.spark import SparkStream
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from waiting import until

LINES = b'{"id":1,"v":0.5}\n{"id":"x","v":1.5}\n{"id":2\n\n{"id":3,"w":0}\n[{"id":4},{"id":5}]\n'
CSV = b"1,0.5\nx,1.5\n2\n\n3,0.5,7\n4,\n"
SCHEMA = "id INT, v DOUBLE"
ARROW = pa.schema([("id", pa.int32()), ("v", pa.float64())])


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[Engine]:
    with Engine(str(tmp_path / "storage"), spark) as engine:
        yield engine


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


# -- what Spark reads --------------------------------------------------------------------------


@pytest.mark.spark
def test_views_hold_what_spark_reads_in_every_mode(
    engine: Engine, tmp_path: Path, spark: SparkSession
) -> None:
    contents = {"json": LINES, "csv": CSV, "text": CSV}
    cases: list[tuple[str, str, dict[str, str]]] = []
    for kind, schema in (("json", SCHEMA), ("csv", SCHEMA), ("text", "value STRING")):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "plain").write_bytes(contents[kind])
        (folder / "zipped.gz").write_bytes(gzip.compress(contents[kind]))
        (folder / "b.bz2").write_bytes(bz2.compress(contents[kind]))
        (folder / "d.deflate").write_bytes(zlib.compress(contents[kind]))
        (folder / "z.zst").write_bytes(pa.compress(contents[kind], codec="zstd", asbytes=True))
        (folder / "_hidden").write_bytes(contents[kind])
        (folder / "sub").mkdir()
        (folder / "sub" / "inner").write_bytes(contents[kind])
        modes = ("PERMISSIVE", "DROPMALFORMED") if kind != "text" else ("PERMISSIVE",)
        cases += [(kind, schema, {"path": str(folder), "mode": mode}) for mode in modes]
        cases.append((kind, schema, {"path": str(folder)}))
        cases.append((kind, schema, {"path": f"{tmp_path}/{kind[:2]}*"}))
        if kind == "json":
            corrupt = f"{SCHEMA}, _corrupt_record STRING"
            cases.append((kind, corrupt, {"path": str(folder)}))
            for more in ("lineSep", "allowSingleQuotes", "timeZone", "dateFormat", "encoding"):
                value = {"lineSep": "\n", "timeZone": "UTC", "encoding": "UTF-8"}.get(more, "false")
                cases.append((kind, SCHEMA, {"path": str(folder), more: value}))
    views = []
    for number, (kind, schema, options) in enumerate(cases):
        engine.create_stream(f"s{number}", schema, kind, options)
        views.append(engine.view(f"v{number}", f"SELECT * FROM s{number}"))
    engine.advance()
    for view, (kind, schema, options) in zip(views, cases, strict=True):
        offline = spark.read.schema(schema).format(kind).options(**options).load()
        assert rows(view.snapshot()) == rows(offline), (kind, options)


@pytest.mark.spark
def test_folders_of_partitions_are_read_as_spark_reads_them(
    engine: Engine, tmp_path: Path, spark: SparkSession
) -> None:
    for kind in ("json", "parquet"):
        for day in ("2026-01-01", "2026-01-02"):
            folder = tmp_path / kind / f"day={day}"
            folder.mkdir(parents=True)
            if kind == "json":
                (folder / "a").write_bytes(LINES)
            else:
                pq.write_table(
                    pa.table({"id": [1, 2], "v": [0.5, None]}, schema=ARROW), folder / "a"
                )
        engine.create_stream(kind, f"{SCHEMA}, day DATE", kind, {"path": str(tmp_path / kind)})
        engine.view(f"rows_{kind}", f"SELECT * FROM {kind}")
    engine.advance()
    for kind in ("json", "parquet"):
        offline = spark.read.schema(f"{SCHEMA}, day DATE").format(kind).load(str(tmp_path / kind))
        assert len(found := rows(engine.sql(f"SELECT * FROM rows_{kind}"))) > 3
        assert found == rows(offline)


@pytest.mark.spark
def test_columns_of_parquet_are_found_as_spark_finds_them(
    engine: Engine, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    moment = datetime(2026, 1, 1, 10, tzinfo=UTC)
    pq.write_table(
        pa.table({"ID": pa.array([1, 2], pa.int32()), "Name": ["a", None]}), folder / "a"
    )
    pq.write_table(pa.table({"id": pa.array([3], pa.int16()), "at": [moment]}), folder / "b")
    pq.write_table(pa.table({"other": [1]}), folder / "c")
    schema = "id BIGINT, name STRING, at TIMESTAMP"
    engine.create_stream("s", schema, "parquet", {"path": str(folder)})
    view = engine.view("v", "SELECT * FROM s")
    engine.advance()
    assert rows(view.snapshot()) == rows(spark.read.schema(schema).parquet(str(folder)))


@pytest.mark.spark
def test_a_stream_without_dead_letters_drops_malformed_records(
    engine: Engine, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFormat, "letters", lambda self, stream: "")  # as in older versions
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_bytes(LINES)
    options = {"path": str(folder), "mode": "DROPMALFORMED"}
    engine.create_stream("s", SCHEMA, "json", options)
    view = engine.view("v", "SELECT * FROM s")
    engine.advance()
    offline = spark.read.schema(SCHEMA).format("json").options(**options).load()
    assert rows(view.snapshot()) == rows(offline)


@pytest.mark.spark
def test_operations_count_in_the_order_of_their_files(
    engine: Engine, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    others = [f"{10 + i},{'x' * 50},+" for i in range(200)]
    lines = [["1,a,+", "2,a,+"], ["1,a,-", "1,b,+", *others], ["1,b,-", "3,c,+", "2,a,-"]]
    lines += [["1,d,+", *others[:50]], ["3,c,-"]]

    def arrive(files: list[list[str]], since: int) -> None:
        for number, content in enumerate(files, since):
            path = folder / f"{99 - number}.csv"
            path.write_text("\n".join(content) + "\n")
            os.utime(path, (number, number))

    options = {"path": str(folder)}
    engine.create_stream("created", "id INT, v STRING", "csv", options, op="op", primary_key=["id"])
    frame = spark.readStream.schema("id INT, v STRING, op STRING").csv(str(folder))
    engine.stream("plain", frame.where("id < 5"), op="op")
    engine.stream("latest", frame.drop("op").where("id < 5"), primary_key=["id"])
    read = {
        name: f"SELECT id, v FROM {name} WHERE id < 5" for name in ("created", "plain", "latest")
    }
    views = {name: engine.view(f"of_{name}", query) for name, query in read.items()}
    arrive(lines, 1)
    engine.advance()
    assert rows(views["created"].snapshot()) == [(1, "d")]
    assert rows(views["plain"].snapshot()) == [(1, "d")]
    assert rows(views["latest"].snapshot()) == [(1, "d"), (2, "a"), (3, "c")]
    arrive([["1,d,-"], ["1,e,+", *others], ["1,e,-", "1,f,+"], ["1,f,-", "1,g,+", *others]], 10)
    engine.advance()
    assert rows(views["created"].snapshot()) == [(1, "g")]
    assert rows(views["plain"].snapshot()) == [(1, "g")]
    assert engine.verify()


@pytest.mark.spark
def test_static_files_that_a_stream_is_joined_with_leave_its_order(
    engine: Engine, tmp_path: Path, spark: SparkSession
) -> None:
    names = tmp_path / "names"
    (tmp_path / "in").mkdir()
    names.mkdir()
    for number, code in enumerate("ba", 1):
        (names / f"{code}.csv").write_text(f"{code},name of {code}\n")
        os.utime(names / f"{code}.csv", (number, number))
    plain = spark.readStream.schema("id INT, code STRING").csv(str(tmp_path / "in"))
    hidden = plain.union(plain.where("false"))  # rows of no file
    static = spark.read.schema("short STRING, name STRING").csv(str(names))
    frame = hidden.join(static, expr("code = short")).select("id", "name")
    engine.stream("s", frame, primary_key=["id"])
    view = engine.view("v", "SELECT id, name FROM s")
    (tmp_path / "in" / "1.csv").write_text("1,a\n1,b\n")
    engine.advance()
    assert rows(view.snapshot()) == [(1, "name of b")]


# -- verify ------------------------------------------------------------------------------------


@pytest.mark.spark
def test_verify_reads_files_by_spark_and_sees_a_difference(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_bytes(b'{"at": "2026-01-01T10:30:00"}\n')
    engine.create_stream("s", "at TIMESTAMP", "json", {"path": str(folder)})
    engine.view("v", "SELECT at FROM s")
    engine.advance()
    assert engine.verify()
    (folder / "b").write_bytes(b'{"at": "10:30:00"}\n')  # Spark takes the day of the reading
    engine.advance()
    report = engine.verify()
    assert not report
    assert len(report.views["v"].left_only) == len(report.views["v"].right_only) == 1
    with open(folder / "b", "ab") as stream:
        stream.write(b"{}\n")
    assert engine.verify()  # what was logged is compared, by our own reader


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_verify_knows_which_rows_of_files_are_late(
    engine: Engine, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "a b+c%20[d]é"
    folder.mkdir()
    engine.create_stream(
        "s", "at TIMESTAMP, n INT", kind, {"path": str(folder)}, watermark=("at", "1 minute")
    )
    engine.view("v", "SELECT * FROM s")
    engine.view("late", "SELECT * FROM s__late")
    for number, hours in enumerate([[10, 12], [9, 13], [8, None, 14]]):
        moments = [hour and datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in hours]
        name = folder / f"x=1 {number}"
        if kind == "json":
            texts = [f'"{moment.isoformat()}"' if moment else "null" for moment in moments]
            name.write_text("".join(f'{{"at": {text}, "n": {number}}}\n' for text in texts))
        else:
            numbers = pa.array([number] * len(moments), pa.int32())
            pq.write_table(pa.table({"at": moments, "n": numbers}), name)
        engine.advance()
    assert [row.n for row in engine.sql("SELECT n FROM late ORDER BY n").collect()] == [1, 2]
    assert engine.verify(), str(engine.verify())


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_verify_reads_a_stream_with_a_watermark_by_spark(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    read = []

    def recording(*given: Any) -> Any:
        read.append(read_by_spark(*given))
        return read[-1]

    monkeypatch.setattr(eddyline.answers.verify, "read_by_spark", recording)
    folder = tmp_path / "in"
    folder.mkdir()
    columns, given = f"at {kind}, n INT, _received_at TIMESTAMP", {"path": str(folder)}
    engine.create_stream("s", columns, "json", given, watermark=("at", "1 minute"))
    engine.view("v", "SELECT * FROM s")
    engine.view("late", "SELECT n FROM s__late")
    zone = "Z" if kind == "TIMESTAMP" else ""
    for number, hours in enumerate(([10, 12], [9, 12], [8, 13])):
        times = [f'"2026-01-01T{hour:02}:00:00{zone}"' for hour in hours]
        lines = [f'{{"at": {at}, "n": {number}}}\n' for at in [*times, "null", '"2999-01-01"']]
        (folder / f"{number}").write_text("".join(lines))
        engine.advance()
    assert engine.sql("SELECT n FROM s WHERE at IS NOT NULL").count() == 4
    assert engine.sql("SELECT n FROM s__late").count() == 5
    report = engine.verify()
    assert report.views["v"].left_rows == 7
    assert report, str(report)
    assert [frame is not None for frame in read] == [True, False]  # the stream, its late rows
    assert read[0].count() == 7


# -- files that can't be read ------------------------------------------------------------------


@pytest.mark.spark
def test_unreadable_files_are_set_aside_until_they_are_mended(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parquet, json = tmp_path / "parquet", tmp_path / "json"
    parquet.mkdir()
    json.mkdir()
    good = pa.table({"id": [1], "v": [0.5]}, schema=ARROW)
    pq.write_table(good, parquet / "good")
    (parquet / "half").write_bytes((parquet / "good").read_bytes()[:-20])
    (parquet / "foreign").write_bytes(b"no Parquet file")
    (parquet / "empty").write_bytes(b"")
    pq.write_table(pa.table({"id": ["one"], "v": [0.5]}), parquet / "texts")
    (json / "good").write_bytes(b'{"id": 1}')
    (json / "cut.gz").write_bytes(gzip.compress(LINES * 1000)[:-30])
    (json / "foreign.gz").write_bytes(LINES)
    (json / "a.snappy").write_bytes(LINES)
    for kind in ("parquet", "json"):
        engine.create_stream(kind, SCHEMA, kind, {"path": str(tmp_path / kind)})
        engine.view(f"from_{kind}", f"SELECT * FROM {kind}")
    assert engine.advance() == engine.advance()
    assert rows(engine.sql("SELECT * FROM from_parquet")) == [(1, 0.5)]
    assert rows(engine.sql("SELECT id FROM from_json")) == [(1,)]
    aside = {
        source["name"]: {os.path.basename(path): why for path, why in source["set_aside"].items()}
        for source in engine.status()["sources"]
    }
    assert set(aside["parquet"]) == {"half", "foreign", "empty", "texts"}
    assert aside["parquet"]["texts"] == "column id is string, not int32"
    assert set(aside["json"]) == {"cut.gz", "foreign.gz", "a.snappy"}
    assert "only Hadoop writes .snappy" in aside["json"]["a.snappy"]
    assert sum("is set aside" in record.getMessage() for record in caplog.records) == 7
    pq.write_table(good, parquet / "half")
    (json / "cut.gz").write_bytes(gzip.compress(b'{"id": 2}'))
    engine.advance()
    assert rows(engine.sql("SELECT * FROM from_parquet")) == [(1, 0.5)] * 2
    assert rows(engine.sql("SELECT id FROM from_json")) == [(1,), (2,)]
    assert engine.verify()


def test_names_in_a_parquet_file_need_not_be_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": [1]}), tmp_path / "a", store_schema=False)
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content.replace(b"name", b"n\xffme"))
    assert "utf-8" in parquet_fault(str(tmp_path / "a"), pa.schema([("name", pa.int64())]))


@pytest.fixture
def outage(engine: Engine, tmp_path: Path) -> tuple[Path, Path]:
    """One stream that Spark can't read and one that it can; return their folders."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    for name, folder in (("bad", bad), ("good", good)):
        folder.mkdir()
        given = {"path": str(folder), "mode": "FAILFAST"}
        engine.create_stream(name, SCHEMA, "json", given)
        engine.view(f"{name}_rows", f"SELECT id FROM {name}")
    (bad / "a").write_text('{"id": "x"}\n')
    (good / "a").write_text('{"id": 1}\n')
    return bad, good


@pytest.mark.spark
def test_a_stream_that_fails_stops_no_other(engine: Engine, outage: tuple[Path, Path]) -> None:
    bad, good = outage
    for count in (1, 2):
        with pytest.raises(EngineError, match="stream bad can't be read") as caught:
            engine.advance()
        assert caught.value.condition == "STREAM_FAILED"
        assert engine.snapshot("good_rows").count() == count
        states = {source["name"]: source.get("error", "") for source in engine.status()["sources"]}
        assert "bad can't be read" in states["bad"]
        assert not states["good"]
        (good / "b").write_text('{"id": 2}\n')
    (bad / "a").write_text('{"id": 3}\n')
    engine.advance()
    assert rows(engine.snapshot("bad_rows")) == [(3,)]
    assert not any("error" in source for source in engine.status()["sources"])
    assert engine.verify()


@pytest.mark.spark
def test_any_error_of_a_source_is_named_and_stops_no_other(
    engine: Engine, outage: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(source: SparkStream) -> None:
        if source.name == "bad":
            raise RuntimeError("no such thing")
        pulled(source)

    pulled = SparkStream.pull
    monkeypatch.setattr(SparkStream, "pull", pull)
    with pytest.raises(EngineError, match="stream bad can't be read: RuntimeError: no such thing"):
        engine.advance()
    assert rows(engine.snapshot("good_rows")) == [(1,)]


@pytest.mark.spark
def test_in_the_background_a_stream_that_fails_is_tried_again(
    engine: Engine, outage: tuple[Path, Path]
) -> None:
    bad, good = outage
    told: list[Exception] = []
    engine.on_error(told.append)
    engine.start(0.05)
    until(lambda: len(told) >= 3)  # each time by a new query of Spark
    assert {str(error).split(":")[0] for error in told} == {
        "[STREAM_FAILED] stream bad can't be read"
    }
    assert engine.status()["run"]["state"] == "retrying"
    (good / "b").write_text('{"id": 2}\n')
    until(lambda: engine.snapshot("good_rows").count() == 2)
    (bad / "a").write_text('{"id": 3}\n')
    until(lambda: engine.snapshot("bad_rows").count() == 1)
    until(lambda: engine.status()["run"] == {"state": "running"})


def test_faults_are_remembered_and_tried_again_when_the_file_changes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_bytes(b"")
    files = FaultyFiles(str(tmp_path / "storage"))
    tried: list[str] = []

    def opened() -> FileStream:
        return FileStream("s", PARQUET, str(folder), 10, RedoLog(files, "s1"), fault=fault)

    def fault(path: str) -> str:
        tried.append(path)
        return "too short" if os.path.getsize(path) < 3 else ""

    first = opened()
    first.pull()
    first.pull()
    opened().pull()
    assert len(tried) == 1
    assert first.log.end() == 0
    (folder / "a").write_bytes(b"abc")
    first.pull()
    assert len(tried) == 2
    assert [segment.bytes for segment in first.log.segments(0, 1)] == [3]


def test_a_file_that_vanishes_while_the_folder_is_read_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_bytes(LINES)

    def fault(path: str) -> str:
        (folder / "a").unlink(missing_ok=True)  # between the listing and the reading
        return ""

    log = RedoLog(Files(str(tmp_path / "storage")), "s1")
    FileStream("s", NDJSON, str(folder), 10, log, fault=fault).pull()
    assert [segment.file for segment in log.segments(0, log.end())] == [str(folder / "b")]


# -- files that the system doesn't let read now ------------------------------------------------


@pytest.mark.parametrize(
    ("found", "wanted", "readable"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint32(), pa.int32(), False),
        (pa.uint8(), pa.int16(), True),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(8, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), False),
        (pa.string(), pa.int64(), False),
        (pa.int64(), pa.string(), False),
        (pa.large_string(), pa.string(), True),
        (pa.null(), pa.string(), True),
        (pa.binary(4), pa.binary(), True),
        (pa.binary(4), pa.string(), False),
        (pa.bool_(), pa.bool_(), True),
        (pa.bool_(), pa.int32(), False),
        (pa.timestamp("ns"), pa.timestamp("us", "UTC"), True),
        (pa.list_(pa.int64()), pa.int64(), False),
    ],
)
def test_types_of_parquet_columns_must_fit(
    tmp_path: Path, found: pa.DataType, wanted: pa.DataType, readable: bool
) -> None:
    path = str(tmp_path / "a")
    pq.write_table(pa.table({"c": pa.array([], found)}), path)
    schema = pa.schema([("c", wanted)])
    assert (parquet_fault(path, schema) == "") is readable
    if readable:
        (table,) = [schema.empty_table(), *read_parquet(path, schema, 10)][-1:]
        assert table.schema == schema


def test_parts_of_nested_columns_are_converted(tmp_path: Path) -> None:
    held = pa.struct([("Q", pa.int8()), ("more", pa.string())])
    wanted = pa.struct([("p", pa.string()), ("q", pa.int64())])
    rows = [[{"Q": 1, "more": "a"}], None, [], [{"Q": None, "more": "b"}, None]]
    columns = {
        "a": pa.array(rows, pa.large_list(held)),
        "m": pa.array(
            [[("k", r) for r in row or ()][:1] for row in rows], pa.map_(pa.string(), held)
        ),
        "n": pa.nulls(4),
    }
    pq.write_table(pa.table(columns), tmp_path / "a")
    schema = pa.schema(
        [("a", pa.list_(wanted)), ("m", pa.map_(pa.string(), wanted)), ("n", pa.list_(wanted))]
    )
    assert parquet_fault(str(tmp_path / "a"), schema) == ""
    (found,) = read_parquet(str(tmp_path / "a"), schema, 10)
    found.validate(full=True)
    one, none = {"p": None, "q": 1}, {"p": None, "q": None}
    assert found["a"].to_pylist() == [[one], None, [], [none, None]]
    assert found["m"].to_pylist() == [[("k", one)], [], [], [("k", none)]]
    assert found["n"].null_count == 4


def test_nanoseconds_of_parquet_are_cut(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    pq.write_table(pa.table({"t": pa.array([1_000_000_001], pa.timestamp("ns", "UTC"))}), path)
    (table,) = read_parquet(path, pa.schema([("t", pa.timestamp("us", "UTC"))]), 10)
    assert table["t"].cast(pa.int64()).to_pylist() == [1_000_000]


def test_rows_of_a_parquet_file_are_read_no_further_than_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("eddyline.source.files.ROWS_MAX", 10)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": list(range(30))}), path, row_group_size=10)
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(column.total_compressed_size))
    wanted = Wanted((0,), pa.schema([("v", pa.int64())]))

    def read(rows: int) -> list[int]:
        segment = Segment(PARQUET, str(path), rows, 5, 0, size)
        tables = [table for table, _ in read_parquet_file(Files(str(tmp_path)), segment, wanted)]
        return pa.concat_tables(tables)["v"].to_pylist()

    assert read(15) == list(range(5, 20))
    with pytest.raises(DataError, match="BAD_FILE"):
        read(16)


def test_streams_made_in_python_tell_that_they_wait_to_be_connected(
    tmp_path: Path, spark: SparkSession
) -> None:
    def waits(engine: Engine) -> dict[str, str]:
        sources = engine.status()["sources"]
        return {source["name"]: source["error"] for source in sources if "error" in source}

    def attach(engine: Engine) -> None:
        engine.stream("lines", spark.readStream.text(str(tmp_path / "in")))
        queue = DataQueue(LogBackend(tmp_path / "queue"))
        engine.pipeline("p", queue).bolt(dict).into("piped", "word STRING")

    (tmp_path / "in").mkdir()
    with Engine(tmp_path / "storage", spark) as engine:
        engine.table("t", "id INT")
        engine.create_stream("stored", "id INT", "json", {"path": str(tmp_path / "in")})
        attach(engine)
        assert waits(engine) == {}
    with Engine(tmp_path / "storage", spark) as engine:
        why = "not connected since the storage was opened; call engine.{}(...) again"
        assert waits(engine) == {"lines": why.format("stream"), "piped": why.format("pipeline")}
        attach(engine)
        assert waits(engine) == {}
