"""The column `_received_at` of streams: when the redo log received each row."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

import eddyline as el
from eddyline.relay.embedded import LogBackend
from eddyline.source.redo_log import RedoLog
from eddyline.source.segment_readers import read_segment
from eddyline.source.segments import RUN
from eddyline.testing import FaultyFiles

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests

AT = pa.timestamp("us", tz="UTC")
GIVEN = '{"id": %d, "_received_at": "1999-01-01T00:00:00"}\n{"id": %d, "_received_at": {}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def received(engine: el.Engine, stream: str) -> list[datetime]:
    """Return the times of a stream's entries, from its redo log."""
    log = engine._workspace.sources.log(engine.catalog.get(stream))
    micros = {segment.received_at for segment in log.segments(log.start(), log.end())}
    return sorted(datetime(1970, 1, 1) + timedelta(microseconds=one) for one in micros if one)


def rows(engine: el.Engine, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in engine.snapshot(name).collect())


def worded(record: dict[str, Any]) -> dict[str, Any]:
    return {"word": record["payload"].decode(), "id": 1}


@pytest.mark.parametrize("places", [[0, 1, 2], [1], [2, 1], [2], []])
def test_the_time_is_that_of_the_segment(tmp_path: Path, places: list[int]) -> None:
    log = RedoLog(FaultyFiles(str(tmp_path)), "s1", clock=lambda: 7)
    log.append_tables([pa.table({"c0": [1, 2], "c2": ["a", "b"]})])
    (segment,) = log.segments(0, 1)
    names, kinds = ["id", "_Received_At", "word"], [pa.int64(), AT, pa.string()]
    schema = pa.schema(
        [(f"c{i}", kinds[place]) for i, place in enumerate(places)] + [("w", "int64")]
    )
    [table] = read_segment(log.files, segment, names, places, schema)
    at = datetime.fromtimestamp(7e-6, UTC)
    expected = [[1, 2], [at, at], ["a", "b"]]
    assert table.schema == schema
    assert [column.to_pylist() for column in table.columns[:-1]] == [expected[i] for i in places]
    assert table["w"].to_pylist() == [1, 1]


def test_the_rows_of_a_view_keep_a_column_of_that_name(tmp_path: Path) -> None:
    log = RedoLog(FaultyFiles(str(tmp_path)), "s1", clock=lambda: 7)
    log.append_tables([pa.table({"c0": ["kept"]})])
    (segment,) = log.segments(0, 1)
    state = type(segment)(RUN, segment.file, 1)
    schema = pa.schema([("c0", pa.string()), ("w", pa.int64())])
    [table] = read_segment(log.files, state, ["_received_at"], [0], schema)
    assert table["c0"].to_pylist() == ["kept"]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_files_have_the_time_of_their_entry(
    tmp_path: Path, folder: Path, spark: SparkSession, kind: str
) -> None:
    def write(name: str, ids: list[int]) -> None:
        if kind == "json":
            (folder / name).write_text(GIVEN % tuple(ids))
        else:
            own = {"id": ids, "_received_at": ["foreign"] * len(ids)}
            pq.write_table(pa.table(own), folder / name)

    storage = str(tmp_path / "storage")
    columns = "_received_at TIMESTAMP, id BIGINT"
    with el.Engine(storage, spark=spark) as engine:
        engine.create_stream("s", columns, kind, {"path": str(folder)})
        engine.view("v", "SELECT id, _received_at AS at FROM s")
        engine.view("days", "SELECT max(_received_at) AS last, count(*) AS n FROM s")
        before = datetime.now(UTC).replace(tzinfo=None)
        write("1", [1, 2])
        engine.advance()
        write("2", [3, 4])
        engine.advance()
        first, second = received(engine, "s")
        assert before <= first < second <= datetime.now(UTC).replace(tzinfo=None)
        expected = [(1, first), (2, first), (3, second), (4, second)]
        assert rows(engine, "v") == expected
        assert rows(engine, "days") == [(second, 4)]
        assert engine.verify()
    with el.Engine(storage, spark=spark) as engine:
        engine.view("later", "SELECT id, _received_at AS at FROM s")
        engine.pause("v")
        engine.resume("v")
        assert rows(engine, "later") == rows(engine, "v") == expected
        assert (
            sorted(map(tuple, engine.sql("SELECT id, _received_at FROM s").collect())) == expected
        )
        assert engine.verify()
        if kind == "json":
            with open(folder / "2", "a") as stream:  # one file, received at two times
                stream.write('{"id": 5}\n')
            engine.advance()
            assert rows(engine, "v") == [*expected, (5, received(engine, "s")[-1])]
            assert engine.verify()
    assert SparkSession.getActiveSession() is spark


@pytest.mark.spark
def test_every_kind_of_stream_has_the_time(
    tmp_path: Path, folder: Path, spark: SparkSession
) -> None:
    producer = el.Producer(LogBackend(str(tmp_path / "queue")))
    with el.Engine(tmp_path / "storage", spark=spark) as engine:
        options = {"path": str(folder)}
        keyed = "id BIGINT, _received_at TIMESTAMP, word STRING"
        engine.create_stream("keyed", keyed, "json", options, op="op", primary_key=["id"])
        engine.create_stream("dropping", keyed, "json", {**options, "mode": "DROPMALFORMED"})
        read = spark.readStream.schema("id BIGINT, word STRING").json(str(folder))
        engine.stream("frame", read.withColumn("_received_at", lit(None).cast("timestamp")))
        engine.create_stream("queue", keyed, "queue", {"path": str(tmp_path / "queue")})
        numbers = {"kind": "nexmark.bid", "seed": "1", "total": "100", "eventsPerEpoch": "50"}
        engine.create_stream("made", "auction BIGINT, _received_at TIMESTAMP", "generator", numbers)
        pipeline = el.DataQueue(LogBackend(str(tmp_path / "records")))
        engine.pipeline("p", pipeline).bolt(worded).into("piped", keyed)
        streams = ["keyed", "dropping", "frame", "queue", "made", "piped"]
        for name in streams:
            engine.view(f"of_{name}", f"SELECT DISTINCT _received_at AS at FROM {name}")
        engine.view("words", "SELECT id, word, _received_at AS at FROM keyed")
        engine.view("piped_words", "SELECT id, word FROM piped")
        for number in (1, 2):
            document = {"op": "u", "id": 1, "word": str(number), "_received_at": "never"}
            (folder / f"{number}.json").write_text(json.dumps(document))
            producer.put([json.dumps({"id": number, "_received_at": [1]})])
            pipeline.put([str(number)])
            engine.advance()
            time.sleep(0.01)
        for name in streams:
            times = received(engine, name)
            assert len(times) == 2, name
            shown = [at for (at,) in rows(engine, f"of_{name}")]
            assert shown == (times[1:] if name == "keyed" else times), name
        assert rows(engine, "words") == [(1, "2", received(engine, "keyed")[1])]
        assert rows(engine, "piped_words") == [(1, "1"), (1, "2")]
        assert rows(engine, "queue__dead") == rows(engine, "p__dead") == []
        assert engine.verify()


@pytest.mark.spark
def test_a_watermark_can_follow_the_time(tmp_path: Path, folder: Path, spark: SparkSession) -> None:
    with el.Engine(tmp_path / "storage", spark=spark) as engine:
        engine.create_stream(
            "s", "id BIGINT, _received_at TIMESTAMP", "json", {"path": str(folder)},
            watermark=("_received_at", "0 seconds"),
        )  # fmt: skip
        engine.view("v", "SELECT id FROM s")
        for number in (1, 2, 3):
            (folder / f"{number}.json").write_text(json.dumps({"id": number}))
            engine.advance()
        assert rows(engine, "v") == [(1,), (2,), (3,)]
        source = engine.status()["sources"][0]
        assert source["late_rows"] == 0
        last = received(engine, "s")[-1].replace(tzinfo=UTC)
        assert datetime.fromisoformat(source["watermark"]) == last
        assert engine.verify()


@pytest.mark.spark
def test_what_cannot_be_is_refused(tmp_path: Path, folder: Path, spark: SparkSession) -> None:
    options = {"path": str(folder)}
    with el.Engine(tmp_path / "storage", spark=spark) as engine:

        def refused(why: str) -> pytest.RaisesExc[el.DataError]:
            return pytest.raises(el.DataError, match=rf"RESERVED_COLUMN.*{why}")

        with refused("not STRING"):
            engine.create_stream("s", "id BIGINT, _received_at STRING", "json", options)
        with refused("not TIMESTAMP_NTZ"):
            engine.create_stream("s", "id BIGINT, _RECEIVED_AT TIMESTAMP_NTZ", "json", options)
        with refused("only column"):
            engine.create_stream("s", "_received_at TIMESTAMP", "json", options)
        with refused("doesn't give it"):
            engine.create_stream(
                "s", "id BIGINT, _received_at TIMESTAMP", "json", options,
                primary_key=["id", "_received_at"],
            )  # fmt: skip
        with refused("would not be found"):
            engine.create_stream("s", "id BIGINT, _received_at TIMESTAMP", "json", options, op="op")
        with refused("only streams"):
            engine.table("t", "id BIGINT, _received_at TIMESTAMP")
        assert engine.catalog.entries == ()
        engine.table("t", "id BIGINT")
        engine.view("v", "SELECT id, 'mine' AS _received_at FROM t")
        engine.view("w", "SELECT _received_at FROM v")
        engine.table("t", "id BIGINT").insert([(1,)])
        engine.advance()
        assert rows(engine, "w") == [("mine",)]
