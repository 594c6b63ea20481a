"""Lines of logs that grow and are rotated are read once each, also after a restart."""

from __future__ import annotations

import os

import pytest

from eddyline_apps.guard import following
from eddyline_apps.guard.following import Follower


class Reader:
    """A follower whose positions are those of the lines that it gave, as after any crash."""

    def __init__(self, *paths):
        self.paths, self.positions = list(paths), {}
        self.restart()

    def restart(self, tail=False):
        self.follower = Follower(self.paths, self.positions, tail=tail)

    def read(self, lines_max=1000):
        lines = self.follower.read(lines_max)
        for line in lines:
            assert self.positions.get(line.file, -1) < line.end_at
            self.positions[line.file] = line.end_at
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
    assert read() == ["a", "b\r"]
    append(log, b" line\ncaf\xe9\n\n")
    assert read() == ["half line", "café", ""]
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
    assert read() == []


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


def test_lines_come_in_parts_and_long_ones_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "BLOCK_BYTES", 10)
    first, second = tmp_path / "a", tmp_path / "b"
    append(first, "123\n456\n" * 3)
    append(second, "x" * 25 + "\nlast\n")
    reader = Reader(first, second)
    assert reader.read(2) == ["123", "456"]
    assert reader.read(2) == ["123", "456"]
    assert reader.read() == ["123", "456", "x" * 10, "x" * 10, "xxxxx", "last"]


def test_a_long_log_is_followed_from_near_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "FIRST_BYTES", 12)
    log = tmp_path / "access.log"
    append(log, "".join(f"line {n}\n" for n in range(10)))
    reader = Reader(log)
    reader.restart(tail=True)
    assert reader.read() == ["line 9"]
    append(log, "line 10\n")
    assert reader.read() == ["line 10"]
