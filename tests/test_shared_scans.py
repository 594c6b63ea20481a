"""Segments that several views of an epoch read are decoded once, with the columns that all of them need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.changes import WEIGHT
from eddyline.runtime.lane_choice import SHORT, Lanes
from eddyline.runtime.shared_scans import SharedScans
from eddyline.source import segment_readers as readers
from eddyline.source.segments import NDJSON, RUN, Segment

ROWS = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [True, None]})
TYPES = ROWS.schema.types
RELATION = ("s", tuple(ROWS.column_names))


class Decoder:
    """Decodes the same rows each time, and keeps which columns were asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, places: tuple[int, ...], schema: pa.Schema) -> Iterator[pa.Table]:
        self.calls.append(places)
        columns = [*(ROWS.column(place) for place in places), pa.chunked_array([[1, 1]])]
        yield pa.table(columns, schema=schema)


def schema(*places: int) -> pa.Schema:
    fields = [pa.field(f"c{at}", TYPES[place]) for at, place in enumerate(places)]
    return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])


def read(scans: SharedScans, decoder: Decoder, segment: Segment, *places: int) -> None:
    """Read columns, and compare them with the rows."""
    (table,) = scans.read(RELATION, segment, places, schema(*places), decoder)
    assert table.schema == schema(*places)
    assert [table.column(at) for at in range(len(places))] == [ROWS.column(p) for p in places]


def test_a_segment_is_decoded_once_from_the_second_epoch_on() -> None:
    scans, decoder = SharedScans(), Decoder()
    for epoch in range(3):
        segment = Segment(NDJSON, f"/in/{epoch}.json", 0)
        with scans.epoch():
            for places in ((0,), (2, 0), ()):
                read(scans, decoder, segment, *places)
    assert decoder.calls == [(0,), (2, 0), (), (0, 2), (0, 2)]
    assert not scans._held


def test_another_column_is_decoded_for_itself_and_known_in_the_next_epoch() -> None:
    scans, decoder = SharedScans(), Decoder()
    for epoch in range(3):
        segment = Segment(NDJSON, f"/in/{epoch}.json", 0)
        with scans.epoch():
            for places in ((0,), (0,), (1,))[: 2 + (epoch > 0)]:
                read(scans, decoder, segment, *places)
    assert decoder.calls == [(0,), (0,), (0,), (1,), (0, 1)]


def test_what_one_view_reads_or_needs_no_decoding_is_not_held() -> None:
    scans, decoder = SharedScans(), Decoder()
    for _ in range(2):
        with scans.epoch():
            read(scans, decoder, Segment(NDJSON, "/in/a.json", 0), 0)
            assert not scans._held
    for _ in range(2):
        with scans.epoch():
            for _ in range(2):
                read(scans, decoder, Segment(RUN, "a", 0), 0)
            assert not scans._held
    assert len(decoder.calls) == 6


def test_a_segment_that_cannot_be_decoded_fails_each_of_its_readers() -> None:
    scans, decoder = SharedScans(), Decoder()

    def broken(places: tuple[int, ...], schema: pa.Schema) -> Iterator[pa.Table]:
        yield from decoder(places, schema)
        raise el.DataError("damaged", condition="BAD_FILE")

    with scans.epoch():
        for _ in range(2):
            read(scans, decoder, Segment(NDJSON, "/in/a.json", 0), 0)
    segment = Segment(NDJSON, "/in/b.json", 0)
    with scans.epoch():
        for _ in range(2):
            with pytest.raises(el.DataError):
                list(scans.read(RELATION, segment, (0,), schema(0), broken))
        read(scans, decoder, segment, 0)


@pytest.mark.spark
def test_views_over_one_stream_read_its_files_once(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []

    def counted(reader: readers.Reader) -> readers.Reader:
        def called(storage, segment, wanted):
            files.append(segment.file)
            return reader(storage, segment, wanted)

        return called

    monkeypatch.setattr(Lanes, "choose", lambda *_: SHORT)
    known = {**readers.READERS, NDJSON: counted(readers.READERS[NDJSON])}
    monkeypatch.setattr(readers, "READERS", known)
    folder = tmp_path / "in"
    folder.mkdir()
    with el.Engine(str(tmp_path / "s"), spark=spark) as engine:
        engine.execute(
            f"CREATE STREAM s (k INT, v INT, t STRING, at TIMESTAMP) USING json OPTIONS (path '{folder}')"
        )
        engine.view("sums", "SELECT k, sum(v) AS v FROM s GROUP BY k")
        engine.view("texts", "SELECT t, count(*) AS n FROM s GROUP BY t")
        engine.view("pairs", "SELECT a.k, b.t FROM s AS a JOIN s AS b ON a.k = b.v")
        for epoch in range(3):
            lines = [{"k": n % 3, "v": n, "t": f"t{n % 2}"} for n in range(epoch, epoch + 9)]
            text = "\n".join([*map(json.dumps, lines), '{"k": "broken', ""])
            (folder / f"{epoch}.json").write_text(text)
            engine.advance()
            assert engine.verify()
        assert set(engine.progress().lanes.values()) == {"short"}
        assert [files.count(f"{folder}/{epoch}.json") for epoch in range(3)] == [4, 1, 1]


@pytest.mark.spark
def test_views_from_before_and_after_a_change_of_the_columns_read_their_own(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions of columns are others after one was dropped."""
    monkeypatch.setattr(Lanes, "choose", lambda *_: SHORT)
    folder = tmp_path / "in"
    folder.mkdir()
    with el.Engine(str(tmp_path / "s"), spark=spark) as engine:
        engine.execute(
            f"CREATE STREAM s (a INT, b INT, c INT) USING json OPTIONS (path '{folder}')"
        )

        def advance(number: int) -> None:
            rows = [{"a": n, "b": 10 * n, "c": 100 * n, "d": 1000 * n} for n in range(9)]
            (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
            engine.advance()
            assert engine.verify()
            assert not engine.progress().failing

        engine.view("old", "SELECT count(*) AS n, sum(b) AS b FROM s")
        engine.view("older", "SELECT sum(b) AS b, sum(c) AS c FROM s")
        for number in range(2):
            advance(number)
        engine.execute("ALTER STREAM s DROP COLUMN a; ALTER STREAM s ADD COLUMN d INT")
        engine.view("new", "SELECT sum(b) AS b, sum(d) AS d FROM s")
        engine.view("newer", "SELECT sum(c) AS c, sum(d) AS d FROM s")
        for number in range(2, 6):
            advance(number)
        assert engine.sql("SELECT b FROM new").first() == (6 * 360,)
