"""Streams of the changes of a Delta table: `USING delta`."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, write_deltalake
from deltalake.schema import PrimitiveType

import eddyline as el
from eddyline.errors import EddylineError
from eddyline.source import delta
from eddyline.source.delta import ADDED, DeltaStream
from eddyline.source.delta_log import DeltaLog, TableVersion
from eddyline.source.log_files import LogColumn
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import read_arrow
from eddyline.storage.files import Files
from lags import Measured, told_before_entries
from processes import Child
from waiting import until

COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("B", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}

Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)
"""From Python's Base85 to that of ZeroMQ."""

Rows = list[tuple[Any, ...]]


def table_of(rows: Rows, schema: pa.Schema = COLUMNS) -> pa.Table:
    return pa.table(
        {name: [row[place] for row in rows] for place, name in enumerate(schema.names)},
        schema=schema,
    )


class Source:
    """A Delta table."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.path = str(path)
        write_deltalake(self.path, table_of([]), configuration=FEED, **more)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def append(self, *rows: tuple[Any, ...]) -> None:
        write_deltalake(self.path, table_of(list(rows)), mode="append")

    def overwrite(self, *rows: tuple[Any, ...]) -> None:
        write_deltalake(self.path, table_of(list(rows)), mode="overwrite")

    def update(self, predicate: str, **values: str) -> None:
        self.table.update(updates=values, predicate=predicate)

    def merge(self, *rows: tuple[Any, ...]) -> None:
        merger = self.table.merge(table_of(list(rows)), "t.id = s.id", "s", "t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def rows(self, version: int | None = None, columns: str = 'id, a, "B"') -> Counter[str]:
        query = QueryBuilder().register("t", DeltaTable(self.path, version=version))
        found = pa.table(query.execute(f"SELECT {columns} FROM t").read_all())
        return Counter(repr(list(row.values())) for row in found.to_pylist())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "table")


def misfit(layout: TableVersion) -> str:
    if not layout.feed:
        return "its change data feed is off"
    types = {one["name"]: one["type"] for one in json.loads(layout.schema)["fields"]}
    return (
        "" if types.items() >= {"id": "long", "a": "integer", "B": "string"}.items() else "misfit"
    )


def stream_of(
    source: Source,
    folder: Path,
    columns: pa.Schema = COLUMNS,
    *,
    starting: int | None = None,
    fits: Callable[[TableVersion], str] = misfit,
) -> DeltaStream:
    wanted = pa.schema([*columns, *ADDED])
    return DeltaStream(
        "changed",
        starting,
        False,
        [LogColumn(f"c{place}", one.name, one.type) for place, one in enumerate(wanted)],
        fits,
        lambda: DeltaLog(deltalake, "changed", source.path),
        RedoLog(Files(str(folder)), "s"),
        "checkpoints/s",
    )


def entries(stream: DeltaStream) -> list[list[dict[str, Any]]]:
    """The rows of each entry of the redo log; checks that they are in order."""
    names, found = [one.name for one in stream.wanted], []
    for number in range(stream.log.start(), stream.log.end()):
        rows = [
            row
            for segment in stream.log.segments(number, number + 1)
            for row in read_arrow(stream.log.files, segment).rename_columns(names).to_pylist()
        ]
        found.append(rows)
    order = [row["_seq"] for rows in found for row in rows]
    assert order == sorted(set(order))
    return found


def replayed(rows: list[dict[str, Any]], columns: pa.Schema = COLUMNS) -> dict[int, Counter[str]]:
    """The rows of the table after each version that has changes; each change must fit those before it."""
    held, versions = Counter[str](), dict[int, Counter[str]]()
    for version, changed in groupby(rows, lambda row: row["_commit_version"]):
        for row in changed:
            values = repr([row[name] for name in columns.names])
            came = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
            held[values] += came[row["_change_type"]]
            assert held[values] >= 0, row
        versions[version] = +held
    return versions


def checked(stream: DeltaStream, source: Source) -> dict[int, Counter[str]]:
    """Check that the rows in the log lead to the table at each version."""
    versions = replayed([row for rows in entries(stream) for row in rows])
    for version, held in versions.items():
        assert held == source.rows(version), version
    assert versions[max(versions)] == source.rows()
    return versions


def kinds(rows: list[dict[str, Any]]) -> list[tuple[int, int, str, str]]:
    return [(row["_commit_version"], row["id"], row["B"], row["_change_type"]) for row in rows]


def test_a_snapshot_and_then_the_changes_of_each_version(source, tmp_path):
    source.append((1, 1, "one"), (2, None, None))
    source.append((3, 3, "three"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.update("id = 1", B="'uno'")
    source.table.optimize.compact()
    source.table.delete("id = 2")
    source.overwrite((3, 3, "tres"))
    stream.pull()
    snapshot, changes = entries(stream)
    assert sorted(kinds(snapshot), key=str) == [
        (2, 1, "one", "insert"),
        (2, 2, None, "insert"),
        (2, 3, "three", "insert"),
    ]
    assert kinds(changes[:3]) == [
        (3, 1, "one", "update_preimage"),
        (3, 1, "uno", "update_postimage"),
        (5, 2, None, "delete"),
    ]
    assert sorted(kinds(changes[3:5])) == [(6, 1, "uno", "delete"), (6, 3, "three", "delete")]
    assert kinds(changes[5:]) == [(6, 3, "tres", "insert")]
    now = datetime.now(UTC).timestamp()
    assert all(abs(row["_commit_timestamp"].timestamp() - now) < 600 for row in changes)
    again = stream_of(source, tmp_path / "s")
    again.pull()
    assert len(entries(again)) == 2
    later = stream_of(source, tmp_path / "later", starting=3)
    later.pull()
    assert entries(later) == [changes]
    whole = stream_of(source, tmp_path / "whole", starting=0)
    whole.pull()
    assert len(entries(whole)) == 1
    checked(whole, source)


def write_at_random(source: Source, dice: random.Random) -> None:
    key = dice.randrange(30)
    rows = [(dice.randrange(30), dice.randrange(5), dice.choice("xyz")) for _ in range(4)]
    match dice.randrange(9):
        case 0 | 1:
            source.append(*rows)
        case 2 | 3:
            source.merge(*{row[0]: row for row in rows}.values())
        case 4:
            source.update(f"id < {key}", a="a + 1")
        case 5:
            source.table.delete(f"id > {key}")
        case 6:
            source.overwrite(*rows)
        case 7:
            source.table.restore(max(source.table.version() - 3, 0))
        case _:
            source.table.optimize.compact()


@pytest.mark.parametrize("partitioned", [False, True])
def test_every_version_is_read_once_whatever_is_written(tmp_path, monkeypatch, partitioned):
    """In entries of one version or of several, by a reader that forgets what it has in memory."""
    source = Source(tmp_path / "table", **({"partition_by": ["B"]} if partitioned else {}))
    stream, dice = stream_of(source, tmp_path / "s"), random.Random(partitioned)
    for turn in range(15):
        for _ in range(dice.randrange(1, 4)):
            write_at_random(source, dice)
        monkeypatch.setattr(delta, "ENTRY_VERSIONS", dice.choice([1, 2, 100]))
        monkeypatch.setattr(delta, "FILE_BYTES", dice.choice([1, 200, 1 << 20]))
        if turn % 3 == 2:
            stream.stop()
            stream = stream_of(source, tmp_path / "s")
        stream.pull()
        assert stream.delta.open().version() == source.table.version()
    assert len(checked(stream, source)) > 10


def test_a_large_version_is_one_entry_of_many_files(source, tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "FILE_BYTES", 5_000)
    monkeypatch.setattr(delta, "ENTRY_BYTES", 1)
    source.append(*((n, n, "x" * 20) for n in range(20_000)))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.update("id % 2 = 0", a="a + 1")
    source.append((-1, 0, "y"))
    stream.pull()
    assert [len(rows) for rows in entries(stream)] == [20_000, 20_000, 1]
    assert len(stream.log.segments(0, 1)) > 1
    assert len(stream.log.segments(1, 2)) > 1
    checked(stream, source)


class CrashError(Exception):
    pass


@pytest.mark.guarantee(
    "stream `delta`", "exactly once", "a crash at each write of the snapshot and of changes"
)
def test_a_crash_at_any_write_loses_and_doubles_nothing(source, tmp_path, monkeypatch):
    """Of the snapshot, and of an entry of several versions in several files."""
    monkeypatch.setattr(delta, "FILE_BYTES", 1)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # it is the process that crashes
    source.append((1, 0, "one"), (2, 0, "two"))
    crashes = 0
    for phase in ("snapshot", "changes"):
        for effect in range(100):
            folder = tmp_path / f"{phase}{effect}"
            stream, left = stream_of(source, folder), effect
            if phase == "changes":
                stream.pull()
                source.update("id = 1", a="a + 1")
                source.append((effect + 10, 1, ""))

            def step(*_: object) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise CrashError

            stream.log.files.step = step  # type: ignore[method-assign]
            with suppress(CrashError):
                stream.pull()
            source.update("id = 2", a="a + 1")
            stream = stream_of(source, folder)
            stream.pull()
            rows = [row for rows in entries(stream) for row in rows]
            assert list(replayed(rows).values())[-1] == source.rows()
            if left >= 0:
                break
            crashes += 1
    assert crashes > 15


def follow_until(stream: DeltaStream, done: Callable[[], bool]) -> None:
    def followed() -> bool:
        stream.follow(0.1)
        return done()

    until(followed)


def test_a_log_that_may_be_skipped_is_refused(source, tmp_path):
    stream = stream_of(source, tmp_path / "s")
    stream.log.files.unflushed = ("logs/",)  # as with delivery at_most_once
    refused(stream, "BAD_STREAM.*never skipped")


def test_a_version_that_was_read_in_part_is_read_again(source, tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "FILE_BYTES", 1)
    source.append((0, 0, "zero"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.append(*((n, n, "x") for n in range(20_000)))
    batches = DeltaLog.changes

    def stopped(*given: Any) -> Any:
        for number, batch in enumerate(batches(*given)):
            if number == 1:
                stream.stop()
            yield batch

    monkeypatch.setattr(DeltaLog, "changes", stopped)
    stream.pull()
    assert stream.log.end() == 1
    monkeypatch.undo()
    stream.pull()
    checked(stream, source)
    assert stream.log.end() == 2


def test_following_goes_on_when_the_table_is_there_again(source, tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "LOOK_S", 0.01)
    source.append((1, 1, "one"))
    stream = stream_of(source, tmp_path / "s")
    follow_until(stream, lambda: stream.log.end() == 1)
    source.append((2, 2, "two"))
    follow_until(stream, lambda: stream.log.end() == 2)
    away = Path(source.path).rename(tmp_path / "away")
    with pytest.raises(EddylineError, match=r"STREAM_FAILED.*table"):
        follow_until(stream, lambda: False)
    away.rename(source.path)
    source.append((3, 3, "three"))
    follow_until(stream, lambda: stream.log.end() == 3)
    checked(stream, source)
    stream.stop()


def test_versions_that_are_not_read_are_counted(source, tmp_path, monkeypatch):
    stream = stream_of(source, tmp_path / "s")
    assert stream.unread() is None
    stream.pull()
    assert stream.unread().amount == 0
    for number in range(11):
        source.append((number, number, "x"))
    assert [stream.delta.latest(version) for version in (0, 3, 10, 11)] == [11] * 4
    told = told_before_entries(stream, monkeypatch)
    monkeypatch.setattr(delta, "ENTRY_VERSIONS", 4)
    stream.pull()
    # the first entry is read before anything asks how many versions there are
    amounts = [(one.unit, one.amount, one.position) for one in told]
    assert amounts == [("versions", 0, 0), ("versions", 7, 4), ("versions", 3, 8)]
    measured = Measured(stream)
    lag = measured.lag(processed=stream.log.end() - 1)
    assert (lag["versions"], lag["rows"]) == (0, 3)
    assert measured.lag(processed=stream.log.end()) == {"versions": 0, "rows": 0}


def refused(stream: DeltaStream, match: str) -> None:
    for _ in range(2):
        with pytest.raises(EddylineError, match=match):
            stream.pull()


def test_vacuumed_versions_are_an_error_after_what_came_before(source, tmp_path):
    source.append((1, 1, "one"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.append((2, 2, "two"))
    source.update("id = 1", a="5")
    source.table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    refused(stream, r"SOURCE_LOST.*files of version 3 are gone.*_change_data")
    assert [row["id"] for row in entries(stream)[1]] == [2]


def test_versions_that_were_cleaned_from_the_log_are_an_error(source, tmp_path):
    source.append((1, 1, "one"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    for number in range(2, 5):
        source.append((number, 2, ""))
    source.table.create_checkpoint()
    log = Path(source.path, "_delta_log")
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    refused(stream, r"SOURCE_LOST.*version 2 is no longer in the log.*last version is 4")
    later = stream_of(source, tmp_path / "new")
    later.pull()
    source.append((5, 5, "five"))
    later.pull()
    checked(later, source)
    for version in (3, 4):
        (log / f"{version:020d}.json").unlink()
    refused(stream, r"SOURCE_LOST.*version 2 is no longer")


def test_new_columns_are_passed_over_and_others_stop_the_stream(source, tmp_path, caplog):
    source.append((1, 1, "one"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.table.alter.add_columns([Field("more", PrimitiveType("string"))])
    more = COLUMNS.append(pa.field("more", pa.string()))
    write_deltalake(source.path, table_of([(2, 2, "two", "new")], more), mode="append")
    stream.pull()
    assert [row["id"] for row in entries(stream)[1]] == [2]
    assert "doesn't have the columns that version 2 adds to its table: more" in caplog.text
    write_deltalake(source.path, table_of([(3, 3, "three", "")], more), mode="append")
    texts = pa.schema([("id", pa.int64()), ("a", pa.string()), ("B", pa.string())])
    write_deltalake(
        source.path, table_of([(4, "4", "four")], texts), mode="overwrite", schema_mode="overwrite"
    )
    refused(stream, "SOURCE_CHANGED.*as of version 5 misfit")
    assert kinds(entries(stream)[2]) == [(4, 3, "three", "insert")]


def test_a_feed_that_is_turned_off_stops_the_stream(source, tmp_path):
    source.append((1, 1, "one"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.append((2, 2, "two"))
    source.table.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    source.update("id = 1", a="7")
    refused(stream, r"SOURCE_CHANGED.*version 3 its change data feed is off")
    assert [row["id"] for row in entries(stream)[1]] == [2]


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_another_table_at_the_path_is_an_error(source, tmp_path, versions):
    source.append((1, 1, "one"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    shutil.rmtree(source.path)
    source = Source(tmp_path / "table")
    for number in range(1, versions):
        source.append((number, 7, "other"))
    refused(stream, "SOURCE_CHANGED.*(another table is at its path|another one than when)")
    assert len(entries(stream)) == 1


def test_a_table_that_was_put_back_from_a_copy_is_an_error(source, tmp_path):
    source.append((1, 1, "one"))
    shutil.copytree(source.path, tmp_path / "copy")
    source.append((2, 2, "two"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    shutil.rmtree(source.path)
    shutil.copytree(tmp_path / "copy", source.path)
    refused(stream, "SOURCE_CHANGED.*it had version 2, and its last one is 1")
    source.append((3, 3, "instead of two"))
    source.append((4, 4, "four"))
    refused(stream, "SOURCE_CHANGED.*version 2 is another one than when it was read")


def test_values_of_all_types(tmp_path):
    names = pa.schema(
        [
            ("a b", pa.bool_()),
            ('ä"X', pa.int8()),
            ("C.c", pa.int16()),
            ("f", pa.float32()),
            ("d", pa.float64()),
            ("n", pa.decimal128(38, 10)),
            ("y", pa.binary()),
            ("t", pa.date32()),
            ("ts", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("l", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.string())),
            ("s", pa.struct([("x", pa.int64()), ("Y", pa.list_(pa.struct([("z", pa.string())])))])),
            ("P", pa.string()),
            ("q", pa.date32()),
        ]
    )
    moment = datetime(2020, 2, 29, 23, 59, 59, 999999)
    first = (
        True, 1, -2, 0.5, float("inf"), Decimal("-1.5000000000"), b"\xff\0", date(1, 1, 1),
        moment.replace(tzinfo=UTC), moment, ["a", None], [("k", None)],
        {"x": 1, "Y": [{"z": "ü"}, None]}, "a-b", date(2020, 1, 1),
    )  # fmt: skip
    none = (None,) * len(first)
    path = str(tmp_path / "table")
    write_deltalake(
        path, table_of([first, none], names), configuration=FEED, partition_by=["P", "q"]
    )
    source = Source.__new__(Source)
    source.path = path
    stream = stream_of(source, tmp_path / "s", names, fits=lambda _: "")
    stream.pull()
    source.table.update(updates={"f": "f + 1"})
    source.table.delete()
    stream.pull()
    snapshot, changes = entries(stream)
    whole = replayed([*snapshot, *changes], names)
    for version, value in enumerate([0.5, 1.5]):
        expected = table_of([(*first[:3], value, *first[4:]), none], names).to_pylist()
        assert whole[version] == Counter(repr(list(row.values())) for row in expected)
    assert not whole[2]


def test_changes_that_delta_rs_does_not_find(tmp_path):
    """It takes the encoded path of a partition for the name of a folder."""
    source = Source(tmp_path / "table", partition_by=["B"])
    source.append((1, 1, "a b"))
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    source.append((2, 2, "ab"))
    source.update("id = 1", a="5")
    refused(stream, r"STREAM_FAILED.*version 3 .*changes partitions whose names are encoded")
    assert [[row["id"] for row in rows] for rows in entries(stream)] == [[1], [2]]


def deletion_vector(*places: int) -> dict[str, Any]:
    """A deletion vector, stored in the action itself: a Roaring bitmap in Base85."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(places) - 1, 16)
    bitmap += struct.pack(f"<{len(places)}H", *places)
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = content + b"\0" * (-len(content) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": base64.b85encode(padded).decode().translate(Z85),
        "sizeInBytes": len(content),
        "cardinality": len(places),
    }


def test_rows_that_a_deletion_vector_deletes(source, tmp_path):
    """As Spark and Databricks write them; delta-rs only reads them."""
    source.append((1, 1, "one"), (2, 2, "two"), (3, 3, "three"))
    log = Path(source.path, "_delta_log")
    lines = (log / f"{1:020d}.json").read_text().splitlines()
    (add,) = [json.loads(line)["add"] for line in lines if '"add"' in line]
    features = {"readerFeatures": ["deletionVectors"]}
    features["writerFeatures"] = ["deletionVectors", "changeDataFeed"]
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    stream = stream_of(source, tmp_path / "s")
    stream.pull()
    before = None
    for version, places in ((2, (1,)), (3, (0, 1))):
        remove = {
            "path": add["path"],
            "dataChange": True,
            "deletionTimestamp": 1,
            "size": add["size"],
        }
        if before is not None:
            remove["deletionVector"] = before
        before = deletion_vector(*places)
        actions = [{"remove": remove}, {"add": {**add, "deletionVector": before}}]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, [protocol, *actions])))
        stream.pull()
    assert [kinds(rows) for rows in entries(stream)[1:]] == [
        [(2, 2, "two", "delete")],
        [(3, 1, "one", "delete")],
    ]
    checked(stream, source)
    anew = stream_of(source, tmp_path / "anew")
    anew.pull()
    checked(anew, source)


def created(engine: el.Engine, name: str, path: str, rest: str = "", columns: str = "") -> None:
    engine.execute(f"CREATE STREAM {name} {columns} USING delta {rest} OPTIONS (path '{path}')")


@pytest.mark.spark
def test_views_equal_the_table_at_each_version(source, tmp_path, spark):
    """As a stream of operations without and with a key, and by AUTO CDC."""
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        source.append((1, 1, "one"), (2, 2, "two"), (3, 3, None))
        created(engine, "bag", source.path, "OP _change_type")
        created(engine, "keyed", source.path, "OP _change_type", "(PRIMARY KEY (id))")
        created(engine, "feed", source.path)
        engine.execute(
            "CREATE FLOW latest AS AUTO CDC INTO latest FROM STREAM(feed) KEYS (id) "
            "APPLY AS DELETE WHEN _change_type IN ('delete', 'update_preimage') SEQUENCE BY _seq "
            "COLUMNS (id, a, B)"
        )
        engine.advance()

        def check() -> None:
            for relation in ("bag", "keyed", "latest"):
                found = engine.sql(f"SELECT id, a, B FROM {relation}").collect()
                assert Counter(repr(list(row)) for row in found) == source.rows(), relation

        check()
        source.merge((1, 9, "m"), (7, 7, "n"))
        source.update("a > 4", a="a - 4")
        engine.advance()
        check()
        source.table.delete("id = 1")
        source.table.optimize.compact()
        source.overwrite((1, 5, "new"), (7, 7, "seven"))
        source.table.restore(2)
        engine.advance()
        check()


@pytest.mark.spark
def test_streams_that_do_not_fit_are_refused(source, tmp_path, spark):
    source.append((1, 1, "one"))
    bare, taken, mapped = (str(tmp_path / name) for name in ("bare", "taken", "mapped"))
    write_deltalake(bare, table_of([(1, 1, "one")]))
    seq = pa.schema([("id", pa.int64()), ("_SEQ", pa.int64())])
    write_deltalake(taken, table_of([(1, 1)], seq), configuration=FEED)
    shutil.copytree(source.path, mapped)
    first = Path(mapped, "_delta_log", f"{0:020d}.json")
    feed, mapping = '"delta.enableChangeDataFeed":"true"', '"delta.columnMapping.mode":"name"'
    first.write_text(first.read_text().replace(feed, f"{feed},{mapping}"))
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:

        def refused(match: str, path: str = source.path, rest: str = "", columns: str = "") -> None:
            with pytest.raises(EddylineError, match=match):
                created(engine, "bad", path, rest, columns)

        refused("BAD_STREAM.*there is none at", str(tmp_path / "nowhere"))
        refused("BAD_STREAM.*feed is off.*enableChangeDataFeed = true", bare)
        refused("BAD_STREAM.*column _SEQ", taken)
        refused("BAD_STREAM.*column mapping", mapped)
        refused("BAD_STREAM.*is no column", columns="(id INT)")
        refused("BAD_STREAM.*is no column", columns="(z INT)")
        refused("BAD_STREAM.*give OP _change_type, too", columns="(id BIGINT, PRIMARY KEY (id))")
        refused("BAD_STREAM.*not in a", rest="OP a")
        refused(
            "BAD_STREAM.*_seq would differ",
            columns="(id BIGINT, _seq BIGINT)",
            rest="OP _change_type",
        )
        for version, why in (("9", "no version 9 yet"), ("-1", "startingVersion is '-1'")):
            with pytest.raises(EddylineError, match=f"BAD_STREAM.*{why}"):
                engine.create_stream(
                    "bad", None, "delta", {"path": source.path, "startingVersion": version}
                )
        for options, why in (
            ({"path": " "}, "path is missing"),
            ({"path": source.path, "mode": "x"}, "no option mode"),
        ):
            with pytest.raises(EddylineError, match=f"BAD_STREAM.*{why}"):
                engine.create_stream("bad", None, "delta", options)
        assert engine.show("stream").collect() == []


@pytest.mark.guarantee("stream `delta`", "exactly once", "the engine, 4 times by kill -9")
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_live_views_equal_the_table_after_kills_and_restarts(source, tmp_path):
    dice = random.Random(5)

    def child(seconds: float) -> Child:
        file = str(Path(__file__).with_name("delta_child.py"))
        given = [str(tmp_path / "storage"), source.path, str(seconds)]
        return Child([sys.executable, file, *given], tmp_path / "stderr")

    def write() -> None:
        """Write a version in which the sum of `a` is 0."""
        first, amount = dice.randrange(40) * 2, dice.randrange(100)
        match dice.randrange(5):
            case 0:
                source.table.delete(f"id IN ({first}, {first + 1})")
            case 1:
                source.update(f"id < {first}", a="-a")
            case 2:
                source.table.optimize.compact()
            case _:
                source.merge((first, amount, ""), (first + 1, -amount, ""))

    def write_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            write()
            time.sleep(0.02)

    for _ in range(4):
        killed = child(0)
        try:
            killed.wait_for("epoch")
            write_for(dice.uniform(1, 6))
            assert killed.process.poll() is None, killed.last_words()
        finally:
            killed.kill()
        write_for(0.3)
    last = child(5)
    try:
        last.wait_for("ready")
        write_for(3)
        rows = json.loads(last.wait_for("rows"))
    finally:
        last.kill()
    table = source.table.to_pyarrow_table(columns=["id", "a"])
    assert [tuple(row) for row in rows] == sorted(zip(*table.to_pydict().values(), strict=True))
    assert len(rows) > 10
    assert source.table.version() > 100
