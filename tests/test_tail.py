"""Streams of log files that grow and are rotated: `USING tail`."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import eddyline as el
from eddyline.errors import EddylineError
from eddyline.source import growing, tail
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import read_arrow
from eddyline.source.tail import COLUMNS, TailStream
from eddyline.storage.files import Files
from other_user import as_nobody, shared_folder


@pytest.fixture(autouse=True)
def _files_settle_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file counts as standing still when its time says so, however long a test takes."""
    monkeypatch.setattr(growing, "SETTLE_S", 3600.0)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def stream_of(tmp_path: Path, path: str) -> TailStream:
    files = Files(str(tmp_path / "storage"))
    return TailStream(
        "s", path, list(enumerate(COLUMNS.names)), RedoLog(files, "s"), "checkpoints/s"
    )


def rows(stream: TailStream) -> list[tuple[str, int, str]]:
    """All rows of the redo log, after the stream has looked for new lines."""
    stream.pull()
    found = []
    for segment in stream.log.segments(0, stream.log.end()):
        columns = read_arrow(stream.log.files, segment).to_pydict()
        found += zip(columns["c0"], columns["c1"], columns["c2"], strict=True)
    assert [number for _, number, _ in found] == [*range(len(found))]
    return found


def lines(stream: TailStream) -> list[str]:
    return [text for text, _, _ in rows(stream)]


def add(path: Path, text: str) -> None:
    with open(path, "a", newline="") as file:
        file.write(text)


def test_whole_lines_are_taken_once(tmp_path, logs):
    log = logs / "access.log"
    stream = stream_of(tmp_path, str(log))
    assert lines(stream) == []  # the file may come later
    add(log, "one\ntw")
    assert lines(stream) == ["one"]
    add(log, "o\r\n\nfour\n")
    assert rows(stream) == [
        ("one", 0, str(log)),
        ("two", 1, str(log)),
        ("", 2, str(log)),
        ("four", 3, str(log)),
    ]
    again = stream_of(tmp_path, str(log))
    add(log, "five\n")
    assert lines(again) == ["one", "two", "", "four", "five"]


def test_a_last_line_without_an_end_is_taken_when_the_file_stands_still(tmp_path, logs):
    log = logs / "access.log"
    stream = stream_of(tmp_path, str(log))
    add(log, "one\ntwo")
    assert lines(stream) == ["one"]
    os.utime(log, (time.time() - growing.SETTLE_S - 1,) * 2)
    assert lines(stream) == ["one", "two"]
    assert lines(stream) == ["one", "two"]


def test_bytes_that_are_not_text_are_replaced(tmp_path, logs):
    log = logs / "access.log"
    log.write_bytes(b"a\xff\x00\n\xed\xa0\x80\n" + "ü\u2028x\n".encode())
    stream = stream_of(tmp_path, str(log))
    assert lines(stream) == ["a\ufffd\x00", "\ufffd\ufffd\ufffd", "ü\u2028x"]


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("step", ["rename", "copy and empty"])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_rotated_file_is_read_to_its_end(tmp_path, logs, pattern, step, reopened):
    """Whether or not the pattern covers the new name; also if it is compressed before it is looked at."""
    log, old = logs / "access.log", logs / "access.log.1"
    stream = stream_of(tmp_path, str(logs / pattern))
    wanted = []
    for turn in range(5):
        for part in range(2):
            add(log, f"turn {turn} part {part}\n")
            wanted.append(f"turn {turn} part {part}")
            if not part:
                assert lines(stream) == wanted
        if step == "rename":
            os.replace(log, old)
        else:
            shutil.copy(log, old)
            os.truncate(log, 0)
        if turn % 2:
            with open(old, "rb") as plain, gzip.open(f"{old}.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
            old.unlink()
        if reopened:
            stream = stream_of(tmp_path, str(logs / pattern))
        if turn % 3:
            add(log, f"turn {turn} after\n")
        assert sorted(lines(stream)) == sorted([*wanted, *[f"turn {turn} after"] * (turn % 3 > 0)])
        wanted += [f"turn {turn} after"] * (turn % 3 > 0)
        (logs / "access.log.1.gz").unlink(missing_ok=True)
    assert lines(stream_of(tmp_path, str(logs / pattern))) == lines(stream)


def test_compressed_files_are_read_once_and_a_damaged_one_is_set_aside(tmp_path, logs, monkeypatch):
    monkeypatch.setattr(tail, "pieces", partial(growing.pieces, size=64))
    monkeypatch.setattr(tail, "ENTRY_BYTES", 256)
    wanted = [f"line {number}" for number in range(600)]
    with gzip.open(logs / "a.log.gz", "wt") as packed:
        packed.write("\n".join(wanted))  # without a last line end
    (logs / "b.log.gz").write_bytes(b"no gzip")
    os.utime(logs / "b.log.gz", (time.time() - growing.SETTLE_S - 1,) * 2)  # nobody is writing it
    stream = stream_of(tmp_path, str(logs / "*.gz"))
    stream.follow(1.0)
    assert stream.log.end() > 4  # it is read to its end
    assert lines(stream) == wanted
    aside = stream.log.files.read_json(f"{stream.log.folder}/set-aside.json")
    assert [*aside] == [str(logs / "b.log.gz")]
    with gzip.open(logs / "b.log.gz", "wt") as packed:
        packed.write("mended\n")
    assert lines(stream_of(tmp_path, str(logs / "*.gz"))) == [*wanted, "mended"]
    assert stream.log.files.read_json(f"{stream.log.folder}/set-aside.json") == {}


@pytest.mark.parametrize("name", ["a.log", "a.log.gz"])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_file_that_could_not_be_opened_at_first_is_read_later(name, reopened):
    """Its size and time don't change by then."""
    with shared_folder() as folder, as_nobody():
        log = folder / name
        log.write_bytes(gzip.compress(b"one\n") if log.suffix == ".gz" else b"one\n")
        os.utime(log, (time.time() - growing.SETTLE_S - 1,) * 2)  # nobody is writing it
        log.chmod(0)
        stream = stream_of(folder, str(log))
        stream.pull()
        assert lines(stream) == []
        aside = stream.log.files.read_json(f"{stream.log.folder}/set-aside.json")
        assert "Permission denied" in aside[str(log)]["fault"]
        log.chmod(0o644)
        if reopened:
            stream = stream_of(folder, str(log))
        assert lines(stream) == ["one"]
        assert stream.log.files.read_json(f"{stream.log.folder}/set-aside.json") == {}


def test_a_file_that_is_being_compressed_is_read_once(tmp_path, logs):
    """The archive lies beside its original for a moment; another file may lie beside an archive for ever."""
    add(logs / "a.log.1", "one\n")
    add(logs / "b.log", "new\n")
    for name, text in (("a.log.1.gz", "one\n"), ("b.log.gz", "old\n")):
        with gzip.open(logs / name, "wt") as packed:
            packed.write(text)
    stream = stream_of(tmp_path, str(logs / "*"))
    assert sorted(lines(stream)) == ["new", "old", "one"]
    (logs / "a.log.1").unlink()
    assert sorted(lines(stream)) == ["new", "old", "one"]


def test_following_takes_a_long_file_in_pieces(tmp_path, logs, monkeypatch):
    monkeypatch.setattr(tail, "pieces", partial(growing.pieces, size=100))
    monkeypatch.setattr(tail, "ENTRY_BYTES", 500)
    wanted = [f"line {number:05}" + "x" * (number % 300) for number in range(300)]
    (logs / "a.log").write_text("\n".join(wanted) + "\n")
    stream = stream_of(tmp_path, str(logs / "a.log"))
    stream.follow(1.0)
    assert stream.log.end() == tail.FOLLOWED_ENTRIES
    for _ in range(100):
        stream.follow(1.0)
    assert lines(stream) == wanted


def test_files_that_begin_alike_are_two_files(tmp_path, logs):
    for name in ("a.log", "b.log"):
        add(logs / name, "started\n")
    stream = stream_of(tmp_path, str(logs / "*.log"))
    assert lines(stream) == ["started"] * 2
    add(logs / "new", "started\n")  # a new one begins as the old one did
    os.replace(logs / "new", logs / "a.log")
    add(logs / "b.log", "went on\n")
    assert sorted(lines(stream)) == ["started"] * 3 + ["went on"]


def test_a_storage_that_moves_with_its_logs_goes_on(tmp_path, logs):
    """Other inodes, the same paths: what has been read is known by its first kilobyte."""
    log = logs / "a.log"
    wanted = [f"a line of some length, number {number}" for number in range(100)]
    add(log, "\n".join(wanted) + "\n")
    assert lines(stream_of(tmp_path, str(log))) == wanted
    shutil.copy(log, logs / "copy")
    os.replace(logs / "copy", log)
    add(log, "new\n")
    assert lines(stream_of(tmp_path, str(log))) == [*wanted, "new"]


WRITER = """
import os, random, sys, time
folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
path = os.path.join(folder, "access.log")
file = open(path, "a")
generation = 0
for number in range(count):
    file.write(f"{number} " + "x" * dice.randrange(80))
    if dice.random() < 0.1:
        file.flush()
        time.sleep(0.001)
    file.write("\\n")
    if dice.random() < 0.01:
        file.close()
        generation += 1
        os.rename(path, f"{path}.{generation}")
        if dice.random() < 0.5:
            os.system(f"gzip {path}.{generation}")
        file = open(path, "a")
file.close()
"""


@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_that_is_written_between_look_and_reading_is_no_new_file(
    tmp_path, logs, compress, monkeypatch
):
    log = logs / "access.log"
    add(log, "one\ntwo\n")
    stream = stream_of(tmp_path, f"{logs}/access.log*")
    stream.pull()
    whole = gzip.compress(log.read_bytes()) if compress else log.read_bytes()
    copy = logs / f"access.log.1{'.gz' if compress else ''}"
    copy.write_bytes(b"")
    os.utime(copy, (1, 1))  # an old one, not one that is being compressed
    read = tail.pieces

    def written_first(one, path):
        if path == str(copy):
            copy.write_bytes(whole)
        return read(one, path)

    monkeypatch.setattr(tail, "pieces", written_first)
    stream.pull()
    assert copy.read_bytes() == whole
    log.write_text("three\n")
    stream.pull()
    assert lines(stream) == ["one", "two", "three"]


def test_a_file_that_is_replaced_under_its_inode_between_look_and_reading(
    tmp_path, logs, monkeypatch
):
    """File systems give the inode of a removed file to the next one."""
    log = logs / "access.log"
    add(log, "one\ntwo\n")
    stream = stream_of(tmp_path, f"{logs}/access.log*")
    stream.pull()
    add(log, "more\n")
    read = tail.pieces

    def replaced_first(one, path):
        monkeypatch.setattr(tail, "pieces", read)
        (logs / "access.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.write_text("three\n")
        return read(one, path)

    monkeypatch.setattr(tail, "pieces", replaced_first)
    stream.pull()
    stream.pull()
    assert sorted(lines(stream)) == ["more", "one", "three", "two"]


def test_a_file_that_grows_while_it_is_read_is_the_same_file_afterwards(
    tmp_path, logs, monkeypatch
):
    log = logs / "access.log"
    add(log, "one\n")
    stream, opened = stream_of(tmp_path, f"{logs}/access.log*"), growing.open_file

    class Growing:
        def __init__(self, file):
            self.file = file

        def read(self, size):
            block = self.file.read(size)
            if size == growing.PIECE_BYTES and not lines_added:
                lines_added.append("two")
                add(log, "two\n")
                block += self.file.read(size)
            return block

        def __getattr__(self, name):
            return getattr(self.file, name)

    @contextmanager
    def opening(path):
        with opened(path) as file:
            yield Growing(file)

    lines_added = []
    monkeypatch.setattr(growing, "open_file", opening)
    stream.pull()
    assert lines(stream) == ["one", "two"]
    monkeypatch.undo()
    add(log, "three\n")
    stream.pull()
    assert lines(stream) == ["one", "two", "three"]


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_or_doubled_under_a_writer_that_rotates(tmp_path, logs, seed, monkeypatch):
    """The reader forgets all it has in memory at random moments, as after a crash."""
    monkeypatch.setattr(tail, "ENTRY_BYTES", 4096)
    count, dice, path = 4000, random.Random(seed), str(logs / "access.log*")
    stream = stream_of(tmp_path, path)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, logs, str(count), str(seed)])
    while writer.poll() is None:
        stream.follow(0.1)
        if dice.random() < 0.2:
            stream = stream_of(tmp_path, path)
    assert writer.returncode == 0
    found = [int(text.split()[0]) for text in lines(stream)]
    assert sorted(found) == [*range(count)]


@pytest.mark.guarantee("stream `tail`", "exactly once", "a crash at each write")
@pytest.mark.parametrize("effect", range(12))
def test_a_crash_at_any_write_loses_and_doubles_nothing(tmp_path, logs, effect):
    log = logs / "a.log"
    add(log, "one\n")
    stream = stream_of(tmp_path, str(log))
    stream.pull()
    add(log, "two\nthree\n")
    left = effect

    def step(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("crashed")

    stream.log.files.step = step  # type: ignore[method-assign]
    try:
        stream.pull()
    except (OSError, EddylineError):
        assert effect < 11
    add(log, "four\n")
    assert lines(stream_of(tmp_path, str(log))) == ["one", "two", "three", "four"]


@pytest.mark.spark
def test_a_stream_of_log_lines(tmp_path, logs, spark):
    add(logs / "a.log", "GET /\nGET /x\n")
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        engine.execute(f"CREATE STREAM hits USING tail OPTIONS (path '{logs}/*.log')")
        engine.execute(
            f"CREATE STREAM texts (value STRING) USING tail OPTIONS (path '{logs}/*.log')"
        )
        view = engine.view(
            "n", "SELECT file, count(*) AS n, max(line) AS last FROM hits GROUP BY file"
        )
        engine.view("t", "SELECT value FROM texts")
        engine.advance()
        assert view.snapshot().collect() == [(str(logs / "a.log"), 2, 1)]
        os.replace(logs / "a.log", logs / "a.log.1")
        add(logs / "a.log.1", "GET /late\n")
        add(logs / "b.log", "GET /b\n")
        engine.advance()
        assert {(os.path.basename(file), n) for file, n, _ in view.snapshot().collect()} == {
            ("a.log", 3),
            ("b.log", 1),
        }
        assert engine.verify()
        for columns, options in (
            ("", ""),
            ("", "OPTIONS (path '/nowhere/at/all/x.log')"),
            ("", f"OPTIONS (path '{logs}')"),
            ("", f"OPTIONS (path '{logs}/a', mode 'x')"),
            ("(line STRING)", f"OPTIONS (path '{logs}/a')"),
            ("(value STRING PRIMARY KEY)", f"OPTIONS (path '{logs}/a')"),
        ):
            with pytest.raises(EddylineError, match="BAD_STREAM"):
                engine.execute(f"CREATE STREAM bad {columns} USING tail {options}")
    with el.Engine(str(tmp_path / "storage"), spark=spark) as engine:
        engine.advance()
        assert engine.sql("SELECT count(*) FROM t").collect() == [(4,)]
