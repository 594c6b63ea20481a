"""Old entries of redo logs are merged: what is read stays the same, and the files stay few."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eddyline as el
import eddyline.api.epochs
from eddyline.changes import Epoch
from eddyline.errors import StateError, StorageError
from eddyline.source import log_index
from eddyline.source.log_entries import LogEntries
from eddyline.source.redo_log import RedoLog, last_received
from eddyline.source.segments import LOG, NDJSON, Segment, read_arrow
from eddyline.storage.files import Files
from eddyline.testing import Crash, FaultyFiles

FAN_IN = 3
Content = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "MERGE_FAN_IN", FAN_IN)


def append(log: RedoLog, rows: int) -> None:
    """Append an entry: two files of rows that tell where they belong; every fifth names a file elsewhere."""
    number = log.end()
    if number % 5 == 4:
        log.append(number, [Segment(NDJSON, f"/elsewhere/{number}", rows)])
    elif number % 7 == 6:
        log.append(number, [])
    else:
        texts = [pa.array([f"{number}:{part}:{i}" for i in range(rows)]) for part in range(2)]
        log.append_tables([pa.table({"c0": text}) for text in texts])


def content(log: RedoLog, first: int, end: int) -> Content:
    """Return what the entries hold: of each segment the rows and all that applies to them."""
    found = []
    for one in log.segments(first, end):
        rows = read_arrow(log.files, one)["c0"].to_pylist() if one.kind == "log" else [one.file]
        found.append((*rows, one.sequence, one.received_at, one.watermark))
    return [(one[:-3], *one[-3:]) for one in found]


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "mark", "merge", "open", "clean"]), st.integers(0, 40)),
    max_size=40,
)  # fmt: skip


@given(STEPS)
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_read_stays_the_same(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    files = Files(str(tmp_path_factory.mktemp("log")))
    ticks = iter(range(1, 1000))
    log, epoch, marked = RedoLog(files, "s", lambda: next(ticks)), 0, 0
    wanted: Content = []
    for step, n in steps:
        match step:
            case "append":
                append(log, n % 4)
                wanted += content(log, log.end() - 1, log.end())
            case "mark" if log.end() > marked:  # epochs process what came since the last one
                log.mark(marked, n)
                wanted = [(*one[:3], n) if one[1] >> 32 >= marked else one for one in wanted]
                marked = log.end()
            case "merge":
                epoch += 1
                log.merge(min(n, marked), Epoch(epoch), Epoch(1))
            case "clean":
                epoch += 1
                log.merge(0, Epoch(epoch), Epoch(epoch))
            case "open":
                log = RedoLog(files, "s", lambda: next(ticks))
                log.tidy()
        end = log.end()
        first = n % (end + 1)
        assert content(log, 0, end) == wanted
        assert content(log, first, end - 1) == [
            one for one in wanted if first <= one[1] >> 32 < end - 1
        ]
        assert all(log.has(number) for number in range(end))
        assert not log.has(end)
    assert last_received(files, "s") == (
        wanted[-1][2] if wanted and wanted[-1][1] >> 32 == log.end() - 1 else None
    )


def filled(files: Files, entries: int) -> tuple[RedoLog, Content]:
    log = RedoLog(files, "s", lambda: 7)
    for number in range(entries):
        append(log, 2)
        log.mark(number, number // 2)
    return log, content(log, 0, entries)


def test_an_entry_that_is_missing_before_others_is_noticed(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    log, wanted = filled(files, 20)
    log.forget(1)
    wanted = [one for one in wanted if one[1] >> 32 >= 1]
    log.merge(7, Epoch(1), Epoch(1))
    log.merge(0, Epoch(2), Epoch(2))  # removes what was merged
    merged = ["000000000003-from-000000000001", "000000000006-from-000000000004"]
    names = [*merged, *(f"{number:012d}" for number in range(7, 19))]
    last = "000000000019"
    assert [f"{name}.json" for name in [*names, last]] == [
        name for name in files.names("logs/s") if name.endswith(".json")
    ]
    for name in names:
        path = tmp_path / f"logs/s/{name}.json"
        document = path.read_text()
        path.unlink()
        if int(name[:12]) % 7 != 5:  # else an entry without rows follows
            with pytest.raises(
                StateError, match=rf"entry {int(name[:12])} .* is missing"
            ) as caught:
                content(RedoLog(files, "s"), 1, 20)
            assert caught.value.condition == "DAMAGED_FILE"
        path.write_text(document)
    assert content(RedoLog(files, "s"), 1, 20) == wanted


def test_a_crash_at_any_write_of_a_merge_changes_nothing(tmp_path: Path) -> None:
    fault, survived = 0, 0
    while survived < 2:  # once more after the last write
        fault += 1
        files = FaultyFiles(str(tmp_path / f"{fault}"))
        log, wanted = filled(files, 10)
        files.arm(fault, "crash")
        try:
            log.merge(9, Epoch(1), Epoch(1))
            log.merge(9, Epoch(3), Epoch(2))
            survived += 1
        except (Crash, StorageError):
            pass
        files.arm(0)
        log = RedoLog(files, "s")
        log.tidy()
        assert content(log, 0, 10) == wanted
        for epoch in range(4, 12):
            log.merge(9, Epoch(epoch), Epoch(epoch))
        assert content(log, 0, 10) == wanted
        entries = [name for name in files.names("logs/s") if name.endswith(".json")]
        assert len(entries) == 2  # 0 to 8, and 9
        rows = [name for name in files.names("logs/s") if name.endswith(".arrow")]
        assert len(rows) == 1
    assert fault > 20


def test_who_has_an_older_epoch_open_reads_on(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    log, wanted = filled(files, 20)
    before = [one for one in log.segments(0, 20) if one.kind == LOG]  # perhaps of another process
    rows = [read_arrow(files, one) for one in before]
    log.merge(20, Epoch(5), Epoch(5))
    assert [read_arrow(files, one) for one in before] == rows
    log.merge(20, Epoch(6), Epoch(5))  # the reader has epoch 5 open
    assert [read_arrow(files, one) for one in before] == rows
    log.merge(20, Epoch(7), Epoch(6))
    with pytest.raises(StateError):
        read_arrow(files, before[0])
    assert content(log, 0, 20) == wanted


EXPIRING = st.lists(
    st.tuples(st.sampled_from(["append", "append", "mark", "expire", "merge", "open"]), st.integers(0, 40)),
    max_size=60,
)  # fmt: skip


@given(EXPIRING, st.booleans())
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_retained_stays_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: Any, remove: bool
) -> None:
    files = Files(str(tmp_path_factory.mktemp("log")))
    ticks = iter(range(1, 1000))
    log, epoch, marked = RedoLog(files, "s", lambda: next(ticks)), 10, 0
    wanted: Content = []
    open_reads: list[tuple[int, list[Segment], list[pa.Table]]] = []
    for step, n in steps:
        epoch += 1
        oldest = epoch - n % 4
        open_reads = [one for one in open_reads if one[0] >= oldest]
        first = log.expired().end
        match step:
            case "append":
                append(log, n % 4)
                wanted += content(log, log.end() - 1, log.end())
            case "mark" if log.end() > marked:
                log.mark(marked, n)
                wanted = [(*one[:3], n) if one[1] >> 32 >= marked else one for one in wanted]
                marked = log.end()
            case "expire":
                waits = first and log.expired().epoch >= oldest
                found = log.expire(n, marked, Epoch(epoch), Epoch(oldest), remove=remove)
                young = [one[1] >> 32 for one in wanted if one[2] >= n]
                may = min([*young[:1], marked, log.end() - 1])
                assert found == (None if waits or may <= first else may)
                first = found or first
                assert (log.start() > 0) <= remove
            case "merge":
                log.merge(min(n, marked), Epoch(epoch), Epoch(oldest))
            case "open" if oldest == epoch:
                log = RedoLog(files, "s", lambda: next(ticks))
                log.tidy()
        wanted = [one for one in wanted if one[1] >> 32 >= first]
        assert content(log, first, log.end()) == wanted
        assert all(log.has(number) for number in range(log.end()))
        for _, segments, rows in open_reads:
            assert [read_arrow(files, one) for one in segments] == rows
        segments = [one for one in log.segments(first, log.end()) if one.kind == LOG]
        open_reads.append((epoch, segments, [read_arrow(files, one) for one in segments]))


def test_files_of_old_rows_are_removed(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    now = [0]
    log, counts = RedoLog(files, "s", lambda: now[0]), []
    for number in range(100):
        now[0] = number
        append(log, 1)
        log.mark(number, number)
        log.expire(number - 20, number, Epoch(number + 1), Epoch(max(number - 1, 0)), remove=True)
        log.merge(number, Epoch(number + 1), Epoch(max(number - 1, 0)))
        counts.append(len(files.names("logs/s")))
    assert log.expired().end >= 75
    assert max(counts[50:]) <= max(counts[:50]) + 2
    assert not [one for one in files.names("logs/s") if one.startswith("000000000001")]


@pytest.mark.parametrize("fault", range(1, 30, 2))
def test_a_crash_at_any_write_while_rows_expire(tmp_path: Path, fault: int) -> None:
    files = FaultyFiles(str(tmp_path))
    log, wanted = filled(files, 10)
    log.merge(5, Epoch(1), Epoch(1))
    files.arm(fault, "crash")
    try:
        log.expire(100, 7, Epoch(2), Epoch(2), remove=True)
        log.expire(100, 8, Epoch(4), Epoch(3), remove=True)
    except (Crash, StorageError):
        pass
    files.arm(0)
    log = RedoLog(files, "s")
    log.tidy()
    first = log.expired().end
    assert first in (0, 7, 8)
    assert content(log, first, 10) == [one for one in wanted if one[1] >> 32 >= first]


def test_files_stay_few(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    log, counts = RedoLog(files, "s"), []
    for number in range(162):
        append(log, 1)
        log.mark(number, number)
        log.merge(number, Epoch(number + 1), Epoch(number))
        counts.append(len(files.names("logs/s")))
    assert len(content(log, 0, 162)) > 162
    assert max(counts[81:]) < max(counts[:81]) + 162 / FAN_IN**2 * 3


def test_damaged_entries_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(str(tmp_path))
    log, wanted = filled(files, 9)
    damaged = log.segments(1, 2)[0].file
    path = Path(files.path(damaged))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    log.merge(9, Epoch(1), Epoch(1))
    assert damaged in caplog.text
    entry = Path(files.path("logs/s/000000000000.json"))
    text = entry.read_bytes()
    entry.write_bytes(b"?")
    assert log.expire(100, 8, Epoch(1), Epoch(1), remove=True) is None
    assert "not let go" in caplog.text
    entry.write_bytes(text)
    with pytest.raises(StateError, match="DAMAGED_FILE"):
        content(log, 0, 9)
    path.write_bytes(whole)
    for epoch in range(2, 6):
        log.merge(9, Epoch(epoch), Epoch(epoch))
    assert content(log, 0, 9) == wanted
    assert not path.exists()


def test_a_reader_meets_a_merge_or_the_end_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(str(tmp_path))
    log, wanted = filled(files, 9)
    read, reads = LogEntries._read, 0

    def meanwhile(self: LogEntries, *args: Any) -> list[Segment]:
        nonlocal reads
        reads += 1
        if reads == 2:
            monkeypatch.setattr(LogEntries, "_read", read)
            log.merge(9, Epoch(1), Epoch(1))
            log.expire(100, 8, Epoch(2), Epoch(2), remove=True)
            monkeypatch.setattr(LogEntries, "_read", meanwhile)
        return read(self, *args)

    monkeypatch.setattr(LogEntries, "_read", meanwhile)
    assert content(log, 0, 9) == wanted
    assert log.expired().end == 8


def test_what_is_left_of_a_merged_entry_is_merged_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eddyline.source.log_files._SMALL_BYTES", 1)  # each file stays as it is
    files = Files(str(tmp_path))
    log, wanted = filled(files, 10)
    log.merge(3, Epoch(1), Epoch(1))
    log.merge(3, Epoch(3), Epoch(2))
    log.expire(100, 1, Epoch(4), Epoch(4), remove=True)
    log.expire(100, 1, Epoch(6), Epoch(5), remove=True)
    assert log.start() == 1
    log.merge(9, Epoch(7), Epoch(7))
    assert log._entries.index().merged == {8: 0}
    assert content(log, 1, 10) == [one for one in wanted if one[1] >> 32 >= 1]
    assert not caplog.records


def test_rows_without_a_known_time_go_with_those_after_them(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    times = iter([None, 5, None, None, 9, 9])
    log = RedoLog(files, "s", lambda: next(times))  # type: ignore[arg-type,return-value]
    for _ in range(6):
        log.append(log.end(), [Segment(NDJSON, "/elsewhere", 1)])
    assert log.expire(7, 6, Epoch(1), Epoch(1), remove=False) == 2
    assert log.expire(7, 6, Epoch(3), Epoch(3), remove=False) is None
    assert log.expire(10, 6, Epoch(3), Epoch(3), remove=False) == 5


def test_large_files_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eddyline.source.log_files._SMALL_BYTES", 100)
    files = Files(str(tmp_path))
    log = RedoLog(files, "s", lambda: 7)
    for rows in (100, 1, 1, 100, 1, 1):
        log.append_tables([pa.table({"c0": pa.array(["text"] * rows)})])
    wanted = content(log, 0, 6)
    log.merge(6, Epoch(1), Epoch(1))
    log.merge(6, Epoch(3), Epoch(3))
    assert content(log, 0, 6) == wanted
    assert sum(name.endswith(".arrow") for name in files.names("logs/s")) == 4


@pytest.mark.spark
def test_a_view_reads_a_history_that_was_merged(tmp_path: Path, spark, monkeypatch) -> None:
    monkeypatch.setattr(eddyline.api.epochs, "RETIRE_EVERY", 1)
    folder, storage = tmp_path / "in", tmp_path / "storage"
    folder.mkdir()
    script = f"""
        CREATE STREAM s (ts TIMESTAMP, v INT, _received_at TIMESTAMP,
          WATERMARK FOR ts AS ts - INTERVAL 2 SECONDS) USING json OPTIONS (path '{folder}');
        CREATE VIEW sums AS SELECT v, count(*) AS n FROM s GROUP BY v;
    """
    options = el.Options(retain_epochs=2, lease_seconds=0)
    with el.Engine(str(storage), spark, options) as engine:
        engine.execute(script)
        for number in range(20):
            lines = [{"ts": f"2026-01-01 00:00:{second:02}", "v": second % 3}
                     for second in (number, max(number - 5, 0))]  # fmt: skip
            (folder / f"{number:03}.json").write_text(
                "".join(json.dumps(one) + "\n" for one in lines)
            )
            engine.advance()
        late = engine.sql("SELECT count(*) FROM s__late").first()[0]
        query = "SELECT v, count(*) AS n, count(DISTINCT _received_at) AS t FROM s GROUP BY v"
        engine.view("later", query)
        engine.advance()
        assert engine.verify().equal
        rows = sorted(map(tuple, engine.snapshot("later").collect()))
        assert late > 10
        assert sum(row[1] for row in rows) + late == 40
        assert {row[2] for row in rows} != {1}
    logs = [path.name for path in (storage / "logs").rglob("*.json")]
    assert any("-from-" in name for name in logs)
    assert len(logs) < 20
    with el.Engine(str(storage), spark, options) as engine:
        assert engine.verify().equal
        assert sorted(map(tuple, engine.snapshot("later").collect())) == rows
