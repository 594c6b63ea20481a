"""Lines of logs that grow and are rotated are read once each, also after a restart."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace

import pytest

from eddyline_apps.guard import reading
from eddyline_apps.guard.reading import LogReader


class Reader:
    """A reader that knows what the lines tell, as after any crash."""

    def __init__(self, *paths):
        self.paths, self.known = list(paths), {}
        self.restart()

    def restart(self, tail=False):
        self.reader = LogReader(self.paths, self.known, tail=tail)

    def read(self, lines_max=1000):
        lines = self.reader.read(lines_max)
        ends = {name: one.offset for name, one in self.known.items()}
        for line in lines:
            assert ends.get(line.file, -1) < line.end_at
            ends[line.file] = line.end_at
        stored = self.reader.known.items()
        self.known = {n: replace(one, offset=ends[n], size=-1) for n, one in stored if n in ends}
        return [line.value for line in lines]


def append(path, text):
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("restarts", [False, True])
def test_each_line_comes_once(tmp_path, restarts):
    log = tmp_path / "access.log"
    reader = Reader(log)

    def read():
        if restarts:
            reader.restart()
        return reader.read()

    assert read() == []  # there is no log yet
    append(log, "a\nb\r\nhalf")
    assert read() == ["a", "b"]
    append(log, b" line\ncaf\xe9\n\n")
    assert read() == ["half line", "caf\ufffd", ""]
    append(log, "c\n")
    log.rename(tmp_path / "access.log.1")
    append(log, "e\n")
    append(tmp_path / "access.log.1", "d\n")  # a server writes there until it is told
    assert read() == ["c", "d", "e"]
    append(log, "f\n")
    (tmp_path / "access.log.1").rename(tmp_path / "access.log.2")
    log.rename(tmp_path / "access.log.1")
    append(log, "g\n")
    assert read() == ["f", "g"]
    append(log, "h\n")
    (tmp_path / "access.log.3.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    assert read() == ["h"]
    assert read() == []


def test_nuls_and_a_byte_order_mark_before_a_line_are_no_part_of_it(tmp_path):
    log = tmp_path / "access.log"
    append(log, b"\xef\xbb\xbfa\n" + bytes(5000) + b"b\0\n\0\n")
    reader = Reader(log)
    assert reader.read() == ["a", "b\0", ""]
    append(log, "c\n")
    assert reader.read() == ["c"]


ROTATIONS = {
    "numbers": ["access.log.1", "access.log.2", "access.log.3", "access.log.4"],
    "compressed": ["access.log.1", "access.log.2.gz", "access.log.3.gz", "access.log.4.gz"],
    "dates": [f"access.log-2026010{day}{'.gz' * (day < 4)}" for day in (4, 3, 2, 1)],
}


@pytest.mark.parametrize("names", ROTATIONS.values(), ids=ROTATIONS)
@pytest.mark.parametrize("lines_max", [1, 1000])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("tail", [True, False])
def test_files_that_were_rotated_while_nobody_read_are_read_first(
    tmp_path, monkeypatch, names, lines_max, kept, tail
):
    monkeypatch.setattr(reading, "FIRST_BYTES", 30)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4)
    log = tmp_path / "access.log"
    texts = ["history\n", "a\nb\n", "c\nd\n", "e\nf\n" * 20, "g\nh\n"]
    second = 10**9 * 1_800_000_000

    def write(path, text, age):
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        moment = second - age * 10**9
        os.utime(path, ns=(moment, moment))

    write(tmp_path / names[-1], texts[0], 5)
    write(log, "a\n", 4)
    reader = Reader(log)
    reader.restart(tail)
    assert reader.read() == ["a"]  # what was there before is no news
    log.rename(tmp_path / names[2])  # what was read; if compressed, another file is written below
    if names[2].endswith(".gz"):
        (tmp_path / names[2]).unlink()
    write(tmp_path / names[2], texts[1], 3)
    if not kept:
        (tmp_path / names[2]).unlink()
    write(tmp_path / names[1], texts[2], 2)
    write(tmp_path / names[0], texts[3], 1)
    write(log, texts[4], 0)
    (tmp_path / "access.log.bak").write_text("no\n")
    (tmp_path / "access.log2").write_text("no\n")
    found = []
    for _ in range(100):
        reader.restart(tail)
        found += reader.read(lines_max)
    expected = "".join(texts[2:]).split()
    assert found == (["b"] * kept + expected)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_log_that_is_cut_short_is_read_anew(tmp_path, restarts):
    log = tmp_path / "access.log"
    reader = Reader(log)
    append(log, "one line\nanother\n")
    assert reader.read() == ["one line", "another"]
    for text in ("short\n", "s\n", "t\n"):
        os.truncate(log, 0)
        append(log, text if text != "t\n" else "t")
        if restarts:
            reader.restart()
        assert reader.read() == ([text.strip()] if text != "t\n" else [])
    append(log, "\n")
    assert reader.read() == ["t"]


def test_lines_come_in_parts_and_in_the_order_of_the_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 10)
    first, second = tmp_path / "a", tmp_path / "b"
    append(second, "x" * 25 + "\nlast\n")
    append(first, "".join(f"line {number}\n" for number in range(300)))  # more than a kilobyte
    reader = Reader(first, second)
    found = []
    while lines := reader.read(2):
        assert len(lines) < 130  # what a kilobyte holds, at first
        found += lines
        reader.restart()
    assert found == [*(f"line {number}" for number in range(300)), "x" * 25, "last"]


@pytest.mark.parametrize("size", [12, 2000])
def test_a_long_log_is_followed_from_near_its_end(tmp_path, monkeypatch, size):
    monkeypatch.setattr(reading, "FIRST_BYTES", size)
    log = tmp_path / "access.log"
    lines = [f"line {n:03}" for n in range(500)]
    append(log, "".join(f"{line}\n" for line in lines))
    reader = Reader(log)
    reader.restart(tail=True)
    found = reader.read()
    assert found == lines[-len(found) :]
    assert len(found) == (size - 1) // 9
    append(log, "more\n")
    reader.restart(tail=True)
    assert reader.read() == ["more"]
