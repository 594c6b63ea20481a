"""Files of a stream that the system doesn't let read: they are left out, named, and read when they can be."""

from __future__ import annotations

import gzip
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from eddyline import Engine
from eddyline.errors import DataError, EddylineError, EngineError, StateError, StorageError
from eddyline.intake.sources import Sources
from eddyline.runtime.view_failures import failed_in_driver, failed_view
from eddyline.source.compression import compression_fault
from eddyline.source.files import FileStream, check_size
from eddyline.source.lines import read_json
from eddyline.source.parquet import parquet_fault, read_parquet
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import NDJSON, PARQUET, Segment
from eddyline.storage.files import Files
from other_user import as_nobody, shared_folder
from test_file_streams import ARROW, LINES, rows
from waiting import until


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[Engine]:
    with Engine(str(tmp_path / "storage"), spark) as engine:
        yield engine


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


def opened(folder: Path, name: str, kind: str = NDJSON) -> FileStream:
    """Return a stream of the files in `folder/name`, whose log is in `folder/storage`."""
    fault: Callable[[str], str] = (
        partial(parquet_fault, schema=ARROW) if kind == PARQUET else compression_fault
    )
    log = RedoLog(Files(str(folder / "storage")), name)
    return FileStream(name, kind, str(folder / name), 10, log, fault=fault)


def logged(stream: FileStream) -> list[str]:
    return [os.path.basename(one.file) for one in stream.log.segments(0, stream.log.end())]


def following(folder: Path, names: str) -> Sources:
    """Return sources with a stream of JSON for each letter, whose folder has one file."""
    files = Files(str(folder / "storage"))
    files.make_folder("")
    sources = Sources(files, None, "UTC", {}, lambda: 0)  # type: ignore[arg-type]  # no DataFrames
    for name in names:
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
        (folder / name / "1").write_bytes(b"{}\n")
        sources._sources[name] = opened(folder, name)
    return sources


def test_an_unreadable_file_stops_neither_its_stream_nor_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eddyline.source.files.RETRY_S", 0.0)
    monkeypatch.setattr("eddyline.intake.sources.back_off", lambda failures: 3600.0)
    with as_nobody():
        sources = following(shared, "ab")
        bad = shared / "a" / "2"
        bad.write_bytes(b"{}\n")
        bad.chmod(0)
        (error,) = sources.follow(0.1)
        assert error.condition == "STREAM_FAILED"
        assert error.context["stream"] == "a"
        assert f"stream a can't be read: {bad}: Permission denied" in str(error)
        assert [*sources.outages] == ["a"]
        assert f"{bad} can't be read now: Permission denied" in caplog.text
        for name in "ab":
            (shared / name / "3").write_bytes(b"{}\n")
        assert sources.follow(0.1) == []  # it is reported again when a next try is due
        a, b = sources.all
        assert isinstance(a, FileStream)
        assert isinstance(b, FileStream)
        assert logged(a) == logged(b) == ["1", "3"]
        assert a.unread().amount == 0
        assert [*sources.outages] == ["a"]
        assert len(sources.pull()) == 1  # and by each `advance`
        bad.chmod(0o644)
        assert sources.follow(0.1) == []
        assert logged(a) == ["1", "3", "2"]
        assert not sources.outages
        assert not sources.pull()


def test_an_unreadable_file_is_reported_with_backoff(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.intake.sources.back_off", lambda failures: 3600.0)
    with as_nobody():
        sources = following(shared, "a")
        for name in ("2", "3"):
            (shared / "a" / name).write_bytes(b"{}\n")
            (shared / "a" / name).chmod(0)
        (error,) = sources.follow(0.1)
        assert "a/2: Permission denied (and 1 more)" in str(error)
        assert sources.follow(0.1) == []
        sources.outages["a"] = replace(sources.outages["a"], retry_at=time.monotonic())
        assert len(sources.follow(0.1)) == 1
        assert sources.outages["a"].failures == 2


def test_the_background_run_rests_before_it_opens_an_unreadable_file_again(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that fails at the end of a long file costs as much as one that succeeds."""
    monkeypatch.setattr("eddyline.source.files.RETRY_S", 3600.0)
    tried = []

    def fault(path: str) -> str:
        tried.append(path)
        with open("/proc/self/mem", "rb") as stream:  # EIO, also for root
            stream.read(1)
        return ""

    (shared / "a").mkdir()
    (shared / "a" / "1").write_bytes(b"{}\n")
    log = RedoLog(Files(str(shared / "storage")), "a")
    stream = FileStream("a", NDJSON, str(shared / "a"), 10, log, fault=fault)
    for _ in range(3):
        stream.follow(0.1)
    assert len(tried) == 1
    stream.pull()
    assert len(tried) == 2
    assert stream.left_out == {str(shared / "a" / "1"): "Input/output error"}


@pytest.mark.parametrize("what", ["folder", "entries", "loop"])
def test_paths_that_cannot_be_looked_at_are_named(shared: Path, what: str) -> None:
    with as_nobody():
        sources = following(shared, "ab")
        if what == "loop":
            (shared / "a" / "2").symlink_to(shared / "a" / "2")
        else:
            (shared / "a").chmod(0o311 if what == "folder" else 0o644)
        (error,) = sources.follow(0.1)
        named, why = {
            "folder": ("a", "Permission denied"),
            "entries": ("a/1", "Permission denied"),
            "loop": ("a/2", "Too many levels of symbolic links"),
        }[what]
        assert f"{shared / named}: {why}" in str(error)
        assert [source.log.end() for source in sources.all][1] == 1  # type: ignore[attr-defined]
        (shared / "a").chmod(0o755)
        (shared / "a" / "2").unlink(missing_ok=True)
        assert sources.pull() == []
        assert [source.log.end() for source in sources.all] == [1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [NDJSON, PARQUET])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_file_that_could_not_be_opened_at_first_is_read_later(
    shared: Path, kind: str, reopened: bool
) -> None:
    """Its size and time don't change by then."""
    path = shared / "a" / ("1.parquet" if kind == PARQUET else "1.gz")
    path.parent.mkdir()
    if kind == PARQUET:
        pq.write_table(pa.table({"id": [1], "v": [0.5]}, schema=ARROW), path)
    else:
        path.write_bytes(gzip.compress(LINES))
    (shared / "a" / "bad.gz").write_bytes(b"neither")
    os.chown(path, 65534 if os.geteuid() == 0 else -1, -1)
    path.chmod(0)
    with as_nobody():
        stream = opened(shared, "a", kind)
        stream.pull()
        assert stream.left_out == {str(path): "Permission denied"}
        assert logged(stream) == []
        stored = stream.log.files.read_json("logs/a/set-aside.json")
        assert [os.path.basename(one) for one in stored] == ["bad.gz"]
        path.chmod(0o644)
        if reopened:
            stream = opened(shared, "a", kind)
        stream.pull()
        assert not stream.left_out
        assert logged(stream) == [path.name]


def test_a_file_that_cannot_be_read_now_blames_no_view(shared: Path) -> None:
    parquet, zipped, plain = shared / "a.parquet", shared / "a.gz", shared / "a"
    pq.write_table(pa.table({"id": [1], "v": [0.5]}, schema=ARROW), parquet)
    zipped.write_bytes(gzip.compress(LINES))
    plain.write_bytes(LINES)
    readers: dict[Path, Callable[[str], Any]] = {
        parquet: lambda path: [*read_parquet(path, ARROW, 100)],
        zipped: lambda path: [*read_json(path, ARROW)],
        plain: lambda path: [*read_json(path, ARROW)],
    }
    for path, read in readers.items():
        path.chmod(0)
        with as_nobody(), pytest.raises(EddylineError) as caught:
            read(str(path))
        assert isinstance(caught.value, StorageError)
        assert caught.value.condition == "READ_FAILED"
        assert caught.value.context["file"] == str(path)
        assert failed_in_driver("v", caught.value) is caught.value
        of_a_task = RuntimeError("".join(traceback.format_exception(caught.value)))
        assert failed_view("v", of_a_task).condition == "EPOCH_FAILED"
        path.chmod(0o644)
        assert sum(table.num_rows for table in read(str(path)))
        if path != plain:
            path.write_bytes(path.read_bytes()[:-9])
            with pytest.raises(DataError) as bad:
                read(str(path))
            assert bad.value.condition == "BAD_FILE"


def test_a_logged_file_that_cannot_be_looked_at_now_is_not_damaged(shared: Path) -> None:
    (shared / "a").mkdir()
    (shared / "a" / "1").write_bytes(LINES)
    segment = Segment(NDJSON, str(shared / "a" / "1"), 0, 0, 0, len(LINES))
    (shared / "a").chmod(0)
    with as_nobody(), pytest.raises(StorageError, match="READ_FAILED"):
        check_size(segment)
    (shared / "a").chmod(0o755)
    check_size(segment)
    (shared / "a" / "1").unlink()
    with pytest.raises(StateError, match="DAMAGED_FILE"):
        check_size(segment)


@pytest.mark.spark
def test_epochs_run_and_requests_are_answered_beside_an_unreadable_file(
    engine: Engine, tmp_path: Path
) -> None:
    told: list[Exception] = []
    engine.on_error(told.append)
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(b'{"id": 1}\n')
        engine.create_stream(name, "id INT", "json", {"path": str(tmp_path / name)})
        engine.view(f"of_{name}", f"SELECT id FROM {name}")
    loop = tmp_path / "a" / "2"
    loop.symlink_to(loop)
    named = f"stream a can't be read: {loop}: Too many levels of symbolic links"
    with pytest.raises(EngineError, match="STREAM_FAILED") as caught:
        engine.advance()
    assert named in str(caught.value)
    assert rows(engine.snapshot("of_a")) == rows(engine.snapshot("of_b")) == [(1,)]
    engine.start(0.05)
    until(lambda: len(told) >= 2)
    for name in "ab":
        (tmp_path / name / "3").write_bytes(b'{"id": 3}\n')
        until(lambda name=name: rows(engine.snapshot(f"of_{name}")) == [(1,), (3,)])
    assert all(named in str(error) for error in told)
    sources = {source["name"]: source for source in engine.status()["sources"]}
    assert named in sources["a"]["error"]
    assert "error" not in sources["b"]
    loop.unlink()
    loop.write_bytes(b'{"id": 2}\n')
    until(lambda: engine.status()["run"] == {"state": "running"})
    until(lambda: rows(engine.snapshot("of_a")) == [(1,), (2,), (3,)])


def test_all_sources_that_cannot_be_read_are_named(engine: Engine, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").symlink_to(tmp_path / name / "1")
        engine.create_stream(name, "id INT", "json", {"path": str(tmp_path / name)})
    for _ in range(2):
        with pytest.raises(EngineError, match="stream a can't be read") as caught:
            engine.advance()
        (other,) = caught.value.__notes__
        assert "stream b can't be read" in other


def test_an_os_error_of_any_source_is_its_own_outage(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = following(shared, "ab")

    def unreachable() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(sources.all[0], "pull", unreachable)
    (error,) = sources.pull()
    assert "stream a can't be read: ConnectionRefusedError" in str(error)
    assert sources.all[1].log.end() == 1  # type: ignore[attr-defined]
