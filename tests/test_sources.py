"""What every source does: entries that continue after failures, readers, and one more format."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

import eddyline as el
from eddyline.api.formats import FORMATS
from eddyline.errors import CatalogError, EddylineError, EngineError
from eddyline.pipelines.decode import Decode
from eddyline.relay.calls import failure_reason
from eddyline.relay.records import as_read, new_records
from eddyline.source.base import PlannedSource
from eddyline.source.dead_letters import LETTERS, Rejects
from eddyline.source.files import FileStream
from eddyline.source.generator import GeneratedStream, Generator
from eddyline.source.json import LINES_BYTES, decode_documents
from eddyline.source.lines import read_json
from eddyline.source.redo_log import RedoLog, last_received
from eddyline.source.segment_readers import read_segment
from eddyline.source.segments import NDJSON, PARQUET, ROWS_MAX, Segment, distribute
from eddyline.source.spark import SparkStream
from eddyline.testing import FaultyFiles

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests

NUMBERS = pa.schema([("n", pa.int64()), ("word", pa.string())])


class Counter(PlannedSource):
    """Counts up to an option, ten rows an entry: format and source in one class."""

    readers: Mapping[str, Any] = {"counter": lambda *given: counted(*given)}

    @classmethod
    def columns(cls, stream: str, options: Mapping[str, str], context: Any) -> StructType:
        return StructType.fromDDL("n BIGINT, word STRING")

    @classmethod
    def check(cls, stream: Any, context: Any) -> None:
        if "to" not in stream.options:
            raise el.DataError("option to is missing", condition="BAD_STREAM", hint="give it")

    @classmethod
    def letters(cls, stream: Any) -> str:
        return ""

    @classmethod
    def open(cls, stream: Any, letters: Any, context: Any) -> Counter:
        source = cls(stream.name, context.log_of(stream), steps="steps" in stream.options)
        source.end = int(stream.options["to"])
        return source

    def plan(self, first: int) -> Iterator[list[Segment]]:
        for start in range(first * 10, self.end, 10):
            yield [Segment("counter", "", min(10, self.end - start), start)]


def counted(_files: Any, segment: Segment, wanted: Any) -> Iterator[tuple[pa.Table, int]]:
    numbers = range(segment.start, segment.start + segment.rows)
    whole = pa.table([list(numbers), [f"word {n}" for n in numbers]], schema=NUMBERS)
    yield whole.select(wanted.schema.names), segment.rows


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(str(tmp_path / "storage"))


# -- one more format ---------------------------------------------------------------------------


@pytest.mark.spark
def test_a_format_is_one_class_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "counter", Counter)
    storage = str(tmp_path / "storage")
    create = "CREATE STREAM IF NOT EXISTS c USING counter OPTIONS (to 25, steps 'yes')"
    query = "SELECT n % 2 AS odd, count(*) AS rows, max(word) AS word FROM c GROUP BY n % 2"
    with el.Engine(storage) as engine:
        with pytest.raises(el.DataError, match="option to is missing"):
            engine.execute("CREATE STREAM c USING counter")
        assert engine.show("stream").collect() == []
        engine.execute(create)
        view = engine.view("v", query)
        before = engine.status()["epoch"]
        assert engine.advance() == before + 3
        expected = [(0, 13, "word 8"), (1, 12, "word 9")]
        assert sorted(map(tuple, view.snapshot().collect())) == expected
        assert engine.verify()
    with el.Engine(storage) as again:
        again.execute(create)
        assert again.advance() == before + 3
        later = again.view("w", "SELECT sum(n) AS n FROM c")  # reads the whole history
        assert [row.n for row in later.snapshot().collect()] == [sum(range(25))]
        assert [row.n for row in again.sql("SELECT count(*) AS n FROM c").collect()] == [25]
        assert again.verify()


# -- planned sources ---------------------------------------------------------------------------


def counter(files: FaultyFiles, folder: Path) -> PlannedSource:
    source = Counter("s", RedoLog(files, "s1"))
    source.end = 25
    return source


def generated(files: FaultyFiles, folder: Path) -> PlannedSource:
    options = {"kind": "nexmark.auction", "total": "100", "eventsPerEpoch": "30"}
    return GeneratedStream("s", Generator.of(options), RedoLog(files, "s1"))


def lines(files: FaultyFiles, folder: Path) -> PlannedSource:
    return _folder(files, folder, NDJSON)


def parquet(files: FaultyFiles, folder: Path) -> PlannedSource:
    return _folder(files, folder, PARQUET)


def _folder(files: FaultyFiles, folder: Path, kind: str) -> PlannedSource:
    folder.mkdir(exist_ok=True)
    for i in range(5):
        path = folder / f"{i}"
        if not path.exists():
            pq.write_table(pa.table({"id": [i]}), path)
            os.utime(path, (i, i))
    return FileStream("s", kind, str(folder), 2, RedoLog(files, "s1"))


PLANNED = [counter, generated, lines, parquet]


@pytest.mark.parametrize("opened", PLANNED)
def test_a_planned_source_continues_after_any_failure(
    tmp_path: Path, opened: Callable[[FaultyFiles, Path], PlannedSource]
) -> None:
    source = opened(FaultyFiles(str(tmp_path / "whole")), tmp_path / "in")
    source.pull()
    end = source.log.end()
    assert end > 1
    expected = [source.log.segments(n, n + 1) for n in range(end)]
    source.follow(0.1)  # nothing new
    assert source.log.end() == end
    assert list(source.plan(end)) == []
    for n in range(1, 12):
        for kind in ("crash", "fail"):
            files = FaultyFiles(str(tmp_path / f"{kind}{n}"))
            source = opened(files, tmp_path / "in")
            files.arm(n, kind)
            with contextlib.suppress(EddylineError):
                source.pull()
            files.arm(0)
            if kind == "crash":
                source = opened(files, tmp_path / "in")
            source.pull()
            assert [source.log.segments(n, n + 1) for n in range(source.log.end())] == expected


@pytest.mark.parametrize("opened", PLANNED)
def test_a_planned_source_forgets_what_no_epoch_reads(
    files: FaultyFiles, tmp_path: Path, opened: Callable[[FaultyFiles, Path], PlannedSource]
) -> None:
    source = opened(files, tmp_path / "in")
    source.pull()
    end = source.log.end()
    source.forget(1)
    assert (source.log.start(), source.log.end()) == (1, end)
    source.pull()
    assert source.log.end() == end
    assert source.replayable
    assert source.dead_letters is None
    source.stop()


def test_spark_and_queue_copy_their_rows(files: FaultyFiles) -> None:
    log, letters = RedoLog(files, "s1"), RedoLog(files, "s2")
    rejects = Rejects("s", letters)
    source = SparkStream("s", None, None, False, ["n"], files, log, "checkpoints/s1", rejects)
    assert (source.replayable, source.steps, source.dead_letters) == (False, False, rejects)
    log.append_tables([pa.table({"c0": [1]})])
    log.append_tables([pa.table({"c0": [2]})])
    source.forget(1)
    assert (log.start(), log.end()) == (1, 2)


def test_rejects_can_be_discarded_and_not_replayed(files: FaultyFiles) -> None:
    rejects = Rejects("s", RedoLog(files, "s2"))
    names = [column.split()[0] for column in LETTERS.split(", ")]
    letters = pa.table({name: [1] for name in names})
    with pytest.raises(CatalogError, match="gives each once"):
        rejects.replay(letters)
    rejects.discard(letters.slice(0, 0))
    assert rejects.log.end() == 0
    rejects.discard(letters)
    (segment,) = rejects.log.segments(0, 1)
    assert segment.rows == 1


# -- readers -----------------------------------------------------------------------------------


def test_a_reader_of_ones_own_is_found_and_a_missing_one_is_named(files: FaultyFiles) -> None:
    segment = Segment("counter", "", 300_000, 5)
    schema = pa.schema([("c0", pa.string()), ("w", pa.int64())])
    pieces = [piece for task in distribute([segment], 2) for piece in task]
    assert len(pieces) == 2
    words = [
        word
        for piece in sorted(pieces, key=lambda piece: piece.start)
        for table in read_segment(files, piece, NUMBERS.names, [1], schema, Counter.readers)
        for word in table["c0"].to_pylist()
    ]
    assert words == [f"word {n}" for n in range(5, 300_005)]
    with pytest.raises(EngineError, match="no reader for data of kind counter"):
        list(read_segment(files, segment, NUMBERS.names, [1], schema))


# -- JSON --------------------------------------------------------------------------------------

COLUMNS = pa.schema(
    [("s", pa.string()), ("i", pa.int32()), ("t", pa.timestamp("us", "UTC")), ("b", pa.bool_())]
)
ODD = [
    '{"s": 5, "i": "7"}',
    '{"s": {"x": 1}, "i": 99999999999}',
    '{"t": 1700000000, "b": "true"}',
    '{"s": "cut',
    "[1]",
    '{"s": "a"} x',
]


def test_one_odd_line_changes_no_other_line(tmp_path: Path) -> None:
    plain = [f'{{"s": "x{i}", "i": {i}, "t": "2026-01-01T00:00:00Z"}}' for i in range(2_000)]
    assert sum(map(len, plain)) > 2 * LINES_BYTES
    mixed = [*plain[:700], *ODD, "", *plain[700:]]
    (tmp_path / "a.json").write_text("\n".join(mixed))
    read = pa.concat_tables(read_json(str(tmp_path / "a.json"), COLUMNS)).to_pylist()
    assert [row["s"] for row in read] == [
        *(f"x{i}" for i in range(700)),
        *("5", '{"x": 1}', None, None, None, "a"),
        *(f"x{i}" for i in range(700, 2_000)),
    ]
    assert [row["i"] for row in read[700:706]] == [None] * 6
    assert read[702]["t"].timestamp() == 1_700_000_000


def test_a_bad_document_is_an_error_of_its_record() -> None:
    records = as_read(new_records([b'{"i": 1}', *ODD, b"", b'{"i":\n2}', b"\xff"]), range(10), 0)
    made = Decode(COLUMNS, "UTC")(records)
    assert made.rows["i"].to_pylist() == [1, 2]
    assert made.failed == {
        1: 'ValueError: i is "7", no int32',
        2: "ValueError: i is 99999999999, no int32",
        3: 'ValueError: b is "true", no bool',
        4: "JSONDecodeError: Unterminated string starting at: line 1 column 7 (char 6)",
        5: "ValueError: a JSON object is wanted, not [1]",
        6: "JSONDecodeError: Extra data: line 1 column 11 (char 10)",
        7: "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        9: "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: "
        "invalid start byte",
    }


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_documents_are_decoded_alike_at_once_and_one_by_one(zone: str) -> None:
    times = [
        *("2026-07-01T10:00:00", "2026-01-01 10:00", "2026-01-01T10:00:00.5+01:00"),
        *("2026-10-25T02:30:00", "2026-03-29T02:30:00", "2026-01-01T10:00:00Z", "2026-01-01"),
    ]
    documents = [json.dumps({"s": time, "t": time, "i": 1}).encode() for time in times]
    alone = [
        decode_documents(pa.chunked_array([[document]]), COLUMNS, zone)[0] for document in documents
    ]
    together, errors = decode_documents(pa.chunked_array([documents]), COLUMNS, zone)
    assert errors == {}
    assert together.to_pylist() == pa.concat_tables(alone).to_pylist()


@pytest.mark.parametrize(
    "document",
    [
        rb'{"s": 1.0, "i": 1}',
        rb'{"s": 1e3}',
        rb'{"s": -0}',
        rb'{"s" : true}',
        rb'{"s": "1.0"}',
        rb'{"s": {"a": 1.0}}',
        rb'{"i": 1, "i": 2}',
        rb'{"s": "a", "s": 1.0}',
        rb'{"s": "\ud800"}',
    ],
)
def test_a_document_is_decoded_alike_whatever_stands_beside_it(document: bytes) -> None:
    alone, none = decode_documents(pa.chunked_array([[document]]), COLUMNS, "UTC")
    beside, one = decode_documents(pa.chunked_array([[document, b"poison"]]), COLUMNS, "UTC")
    assert none == {}
    assert list(one) == [1]
    assert beside.to_pylist() == alone.to_pylist()


def test_a_document_has_summer_time_in_any_year() -> None:
    documents = [f'{{"t": "{year}-07-01T12:00:00"}}'.encode() for year in (2026, 2050)]
    rows, errors = decode_documents(pa.chunked_array([documents]), COLUMNS, "Europe/Berlin")
    assert errors == {}
    assert [time.hour for time in rows["t"].to_pylist()] == [10, 10]


def test_the_last_of_repeated_members_counts_and_each_must_fit() -> None:
    documents = [b'{"i": 1, "i": 2}', b'{"i": "x", "i": 2}', b'{"i": 1, "i": "x"}']
    rows, errors = decode_documents(pa.chunked_array([documents]), COLUMNS, "UTC")
    assert rows["i"].to_pylist() == [2]
    reason = 'i is "x", no int32'
    assert {place: str(error) for place, error in errors.items()} == {1: reason, 2: reason}


def test_documents_have_nested_columns() -> None:
    kinds = [
        ("words", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("raw", pa.binary()),
    ]
    document = (
        '{"words": ["a", 5], "place": {"x": 1}, "price": 1.005, "day": "2026-01-31", "raw": "aGk="}'
    )
    rows, errors = decode_documents(
        pa.chunked_array([[document.encode()]]), pa.schema(kinds), "UTC"
    )
    assert errors == {}
    (row,) = rows.to_pylist()
    assert (row["words"], row["place"]) == (["a", "5"], {"x": 1.0, "y": None})
    assert (str(row["price"]), str(row["day"]), row["raw"]) == ("1.01", "2026-01-31", b"hi")
    assert failure_reason(
        decode_documents(pa.chunked_array([[b"{"]]), COLUMNS, "UTC")[1][0]
    ).startswith("JSONDecodeError")


@pytest.mark.spark
def test_a_format_of_a_missing_package_names_the_package(tmp_path: Path) -> None:
    with el.Engine(tmp_path / "storage") as engine:
        options = {"path": str(tmp_path)}
        with pytest.raises(el.DataError, match="MISSING_PACKAGE") as caught:
            engine.create_stream("s", "value BINARY", "avro", options)
        version = engine.spark.version
        assert f"org.apache.spark:spark-avro_2.13:{version}" in caught.value.hint
        assert engine.catalog.entries == ()


def test_entries_keep_the_time_of_their_receipt(files: FaultyFiles) -> None:
    times = iter([5, 1_000_000, 2_000_000, 3_000_000])
    log = RedoLog(files, "t1", clock=lambda: next(times))
    assert last_received(files, "t1") is None
    one = pa.table({"c0": [1]})
    log.append_tables([one, one])
    log.append_tables([one])
    assert [segment.received_at for segment in log.segments(0, 2)] == [5, 5, 1_000_000]
    assert last_received(files, "t1") == 1_000_000
    name = f"{log.folder}/{1:012d}.json"
    document = files.read_json(name)
    for segment in document:
        del segment["received_at"]  # as an older version wrote it
    files.write_json(name, document)
    assert [segment.received_at for segment in log.segments(0, 2)] == [5, 5, None]
    assert last_received(files, "t1") is None
    log.append(2, [])
    assert last_received(files, "t1") is None
    log.append(3, [Segment(NDJSON, "file", 0)])
    assert last_received(files, "t1") == 3_000_000


def test_status_tells_when_a_source_last_received_rows(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    before = datetime.now(UTC)
    with el.Engine(tmp_path / "kept") as engine:
        engine.create_stream("s", "n BIGINT", "json", {"path": str(folder)})
        table = engine.table("t", "n BIGINT")
        assert ["received_at" in one for one in engine.status()["sources"]] == [False, False]
        (folder / "a.json").write_text('{"n": 1}')
        table.insert([(1,)])
        for _ in range(3):
            engine.advance()
        shown = [one["received_at"] for one in engine.status()["sources"]]
        for text in shown:
            assert before <= datetime.fromisoformat(text) <= datetime.now(UTC)
    assert len(shown) == 2


@pytest.mark.parametrize("count", [1, 3, ROWS_MAX, ROWS_MAX + 5])
def test_logged_rows_are_counted_without_their_columns(files: FaultyFiles, count: int) -> None:
    """What count(*) reads."""
    log = RedoLog(files, "t1")
    log.append_tables([pa.table({"c0": pa.array(range(count), pa.int64())})])
    (segment,) = log.segments(0, 1)
    weights = pa.schema([("w", pa.int64())])
    tables = list(read_segment(files, segment, [], [], weights))
    assert sum(table.num_rows for table in tables) == count
    assert max(table.num_rows for table in tables) <= ROWS_MAX
