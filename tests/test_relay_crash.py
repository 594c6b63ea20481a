"""The data queue in a folder, broken at every effect on the disk and killed at random moments."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from eddyline.catalog.entries import STREAM, Entry
from eddyline.errors import EddylineError, QueueError, StateError, StorageError
from eddyline.pipelines.documents import QueueFormat
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.relay.records import new_records
from eddyline.storage.fence import Fence
from eddyline.storage.files import Files
from eddyline.storage.frame_log import HEADER, FrameLog
from eddyline.storage.lock import in_use
from eddyline.testing import FaultyFiles
from processes import Child
from waiting import PATIENCE_S, until

CHILD = Path(__file__).with_name("relay_child.py")
ROUNDS = 3
KINDS = ("crash", "fail")


class Load:
    """Puts records, lets every third attempt fail, and remembers what was acknowledged."""

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.put = 0
        self.acknowledged: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.committed: Counter[str] = Counter()
        self.waiting: dict[int, list[str]] = {}
        self.before = 0  # what was done before this load
        self.queue: DataQueue | None = None

    def open(self) -> None:
        self.queue = None
        self.waiting = {}
        self.queue = DataQueue(LogBackend(self.files, segment_bytes=600))

    def round(self, bad_every: int = 3) -> None:
        assert self.queue is not None
        names = [f"{self.put + i}" for i in range(4)]
        self.put += 4
        self.queue.put(names)
        self.acknowledged |= set(names)
        self.drain(3, bad_every)

    def drain(self, rows_max: int, bad_every: int = 0) -> None:
        queue = self.queue
        assert queue is not None
        found = queue.read(rows_max)
        if found is not None:
            batch, records = found
            names = [value.decode() for value in records["payload"].to_pylist()]
            self.tried.update(names)
            bad = [i for i, name in enumerate(names) if bad_every and int(name) % bad_every == 0]
            good = [i for i in range(len(names)) if i not in bad]
            self.waiting[batch.number] = [names[i] for i in good]
            queue.fail(batch.number, bad, "bad")
            queue.ack(batch.number, good)
        self.commit()

    def commit(self) -> None:
        assert self.queue is not None
        try:
            self.queue.commit()
        finally:
            self.settle()

    def settle(self) -> None:
        """What is committed counts as done; after a fault the storage says what that is."""
        assert self.queue is not None
        if self.files.hit():
            return
        for number in [n for n in self.waiting if n <= self.queue.committed]:
            self.committed.update(self.waiting.pop(number))

    def end(self) -> None:
        """All that was acknowledged comes out once, and nothing else but what may have been put."""
        queue = self.queue
        assert queue is not None
        while self.drain_once():
            pass
        account = queue.account()
        done = set(self.committed)
        assert max(self.committed.values()) == 1
        assert self.acknowledged <= done <= {f"{i}" for i in range(self.put)}
        assert account.received == account.done == len(done) + self.before
        assert account.retry == account.in_flight == 0

    def drain_once(self) -> bool:
        before = sum(self.committed.values())
        self.drain(100)
        return sum(self.committed.values()) > before


def broken(root: Path, fail_at: int, kind: str) -> int:
    """A few rounds with a fault in them, and the way back; how many effects these have."""
    files = FaultyFiles(str(root / f"{kind}{fail_at}"))
    load = Load(files)
    load.open()
    load.round()
    files.arm(fail_at, kind)
    rounds = 0
    try:
        while rounds < ROUNDS:
            load.round()
            rounds += 1
    except EddylineError:
        assert files.hit()
    effects = files.effects()
    waiting = dict(load.waiting)
    where = f"{kind} at {effects[fail_at - 1] if 0 < fail_at <= len(effects) else 'no'} effect"
    files.arm(0)
    try:
        if kind == "crash":
            load.open()
            assert load.queue is not None
            for number in [n for n in waiting if n <= load.queue.committed]:
                load.committed.update(waiting.pop(number))
        else:
            load.commit()
        for _ in range(ROUNDS):
            load.round()
        load.end()
    except Exception as error:
        raise AssertionError(f"wrong after a {where} {fail_at}") from error
    return len(effects)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_every_effect(tmp_path: Path, kind: str) -> None:
    count = broken(tmp_path, 0, kind)
    assert count >= 30
    for fail_at in range(1, count + 1):
        broken(tmp_path, fail_at, kind)


def test_a_fault_while_the_queue_is_made(tmp_path: Path) -> None:
    fail_at, hit = 0, True
    while hit:
        fail_at += 1
        files = FaultyFiles(str(tmp_path / f"{fail_at}"))
        files.arm(fail_at, "crash")
        load = Load(files)
        try:
            load.open()
            load.round()
        except EddylineError:
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        load = Load(files)
        load.open()
        assert load.queue is not None
        load.before = load.queue.account().done
        load.put = 4
        load.round()
        load.end()
    assert fail_at > 8


@pytest.mark.guarantee(
    "queue in the storage",
    "at least once, each acknowledged record once",
    "producers and the reader, {kills} times by kill -9",
)
@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    """Producers in one process and the reader in another, each killed over and over."""
    moments = random.Random(5)
    folder = tmp_path / "queue"
    children = {}
    for number in range(kills):
        for role in ("produce", "consume"):
            if role not in children:
                children[role] = Child(
                    [sys.executable, str(CHILD), str(folder), role, str(tmp_path)],
                    tmp_path / f"{role}.stderr",
                )
                children[role].wait_for("ready")
        victim = ("produce", "consume")[number % 2]
        child = children.pop(victim)
        with pytest.raises(subprocess.TimeoutExpired):  # it lives until it is killed
            child.process.wait(moments.uniform(0.05, 0.4))
        child.kill()
    for child in children.values():
        child.kill()
    queue = DataQueue(LogBackend(str(folder)))
    effects = (tmp_path / "effects").read_text().splitlines()
    while found := queue.read(10_000):
        batch, records = found
        effects += [value.decode() for value in records["payload"].to_pylist()]
        queue.ack(batch.number, range(batch.rows))
        queue.commit()
    acknowledged = (tmp_path / "acknowledged").read_text().split()
    assert acknowledged
    assert set(acknowledged) <= set(effects)
    account = queue.account()
    assert account.received == account.done
    assert len(set(acknowledged)) <= account.received
    assert account.retry == account.in_flight == 0


def test_what_may_be_committed_is_not_abandoned(tmp_path: Path) -> None:
    """The state is on the disk, and the flush behind it fails."""
    files = FaultyFiles(str(tmp_path))
    queue = DataQueue(LogBackend(files))
    queue.put(["a", "b"])
    first, second = queue.plan(1), queue.plan(1)
    queue.settle(first)
    files.arm(3)
    with pytest.raises(StorageError):
        queue.commit()
    assert files.effects()[-1] == "sync "
    queue.abandon(first)
    assert queue.commit() == first.number
    (batch, records) = queue.read(10)
    assert records["payload"].to_pylist() == [b"b"]
    assert batch.number == second.number


def test_a_failed_read_changes_nothing(tmp_path: Path) -> None:
    queue = DataQueue(LogBackend(str(tmp_path)))
    queue.put(["a"])
    (path,) = (tmp_path / "eden").glob("*.frames")
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole[1:])
    with pytest.raises(StateError, match="DAMAGED_FILE"):
        queue.read(10)
    path.write_bytes(whole)
    assert queue.account().in_flight == 0
    assert queue.read(10) is not None


def test_a_torn_frame_at_the_end_is_cut_and_damage_is_told(tmp_path: Path) -> None:
    log = FrameLog(Files(str(tmp_path)), "log")
    for i in range(3):
        log.append(f"body {i}".encode(), 1, i)
    log.sync()
    (path,) = (tmp_path / "log").glob("*.frames")
    whole = path.read_bytes()
    size = len(whole) // 3
    for torn in range(2 * size + 1, 3 * size):
        path.write_bytes(whole[:torn])
        log = FrameLog(Files(str(tmp_path)), "log")
        assert log.end() == 2
        assert log.append(b"body 2", 1, 2) == 2
        assert path.read_bytes() == whole
    for place in (0, 6, 12, HEADER.size + 2, size + 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StateError, match="DAMAGED_FILE"):
            FrameLog(Files(str(tmp_path)), "log")
    path.write_bytes(whole)
    log = FrameLog(Files(str(tmp_path)), "log")
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StateError, match="DAMAGED_FILE"):
        list(log.frames(0, 3))


@pytest.mark.parametrize("known", [True, False])
def test_frames_that_were_not_flushed_are_cut_where_one_is_missing(
    tmp_path: Path, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power cut: the disk has the page of a later frame, but not of an earlier one."""
    files = Files(str(tmp_path))
    log = FrameLog(files, "log")
    for number in range(5):
        log.append(b"%d" % number * 9000, rows=2, time_ms=1)
        if number == 1:
            log.sync()
    (path,) = (tmp_path / "log").glob("*.frames")
    whole, size = path.read_bytes(), HEADER.size + 9000
    if not known:
        (tmp_path / "log/durable").write_bytes(b"0" * 29)
    for lost in range(5):
        path.write_bytes(whole[: lost * size + 60] + bytes(4096) + whole[lost * size + 4156 :])
        if lost == 4 or (known and lost >= 2):
            caplog.clear()
            again = FrameLog(files, "log")
            assert ("cuts" in caplog.text) == (lost < 4)  # the end of the log may be torn
            assert again.end() == 2 * lost
            assert len(list(again.frames(0, 2 * lost))) == lost
        else:
            with pytest.raises(StateError, match="and others follow it"):
                FrameLog(files, "log")
    path.write_bytes(whole[: 2 * size + 60] + bytes(4096) + whole[2 * size + 4156 :])
    if known:
        again = FrameLog(files, "log")
        assert again.append(b"new", rows=1, time_ms=2) == 4
        assert [bytes(f.body)[:3] for f in FrameLog(files, "log").frames(0, 5)][1:] == [
            b"111",
            b"new",
        ]


def test_rows_that_are_written_anew_are_not_flushed(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    log = FrameLog(files, "log")
    for number in range(4):
        log.append(b"%d" % number * 9000, rows=1, time_ms=1)
    log.sync()
    log.cut(1)
    for number in range(1, 4):
        log.append(b"%d" % number * 9000, rows=1, time_ms=1)
    (path,) = (tmp_path / "log").glob("*.frames")
    whole, size = path.read_bytes(), HEADER.size + 9000
    path.write_bytes(whole[: size + 60] + bytes(4096) + whole[size + 4156 :])
    assert FrameLog(files, "log").end() == 1


class Recorded(Files):
    """Files whose effects are kept, in their order."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.steps: list[tuple[str, str]] = []

    def step(self, action: str, name: str) -> None:
        self.steps.append((action, name))


FLUSHED = [("overwrite", "log/durable"), ("sync", "log/durable"), ("sync", "log")]


def test_what_is_known_to_be_flushed_is_known_after_a_power_cut(tmp_path: Path) -> None:
    files = Recorded(str(tmp_path))
    FrameLog(files, "log")
    assert files.steps[-3:] == FLUSHED
    files.steps.clear()
    FrameLog(files, "log")
    assert files.steps == []


def test_rows_that_are_cut_are_first_no_longer_flushed(tmp_path: Path) -> None:
    files = Recorded(str(tmp_path))
    log = FrameLog(files, "log", segment_bytes=1)
    for number in range(3):
        log.append(b"%d" % number, rows=1, time_ms=1)
    log.sync()
    durable = (tmp_path / "log/durable").read_bytes()
    files.steps.clear()
    log.cut(1)
    assert files.steps[:3] == FLUSHED
    assert [action for action, _ in files.steps[3:5]] == ["remove", "remove"]
    # a crash after the segments were removed, of a version that marked last
    (tmp_path / "log/durable").write_bytes(durable)
    log = FrameLog(files, "log", segment_bytes=1)
    files.steps.clear()
    log.cut(1)
    assert files.steps == FLUSHED
    files.steps.clear()
    log.cut(1)
    assert files.steps == []
    with pytest.raises(StateError, match="it has no end at row 5"):
        log.cut(5)


def test_a_log_of_an_older_version_is_flushed_once(tmp_path: Path) -> None:
    log = FrameLog(Files(str(tmp_path)), "log")
    log.append(b"0", rows=3, time_ms=1)
    (tmp_path / "log/durable").unlink()
    FrameLog(Files(str(tmp_path)), "log")
    assert (tmp_path / "log/durable").read_bytes().startswith(b"00000000000000000003 ")


def test_a_log_that_lacks_what_was_read_is_told(tmp_path: Path) -> None:
    queue = DataQueue(LogBackend(str(tmp_path)))
    queue.put(["a"])
    queue.settle(queue.plan(1))
    queue.commit()
    for path in (tmp_path / "eden").glob("*.frames"):
        path.unlink()
    with pytest.raises(StateError, match="DAMAGED_FILE"):
        DataQueue(LogBackend(str(tmp_path)))


def test_what_is_read_is_removed_and_what_is_put_goes_on(tmp_path: Path) -> None:
    queue = DataQueue(LogBackend(str(tmp_path), segment_bytes=2000))
    producer = Producer(LogBackend(str(tmp_path), segment_bytes=2000))
    most = 0
    for i in range(100):
        producer.put([f"{i}"] * 10)
        queue.settle(queue.plan(100))
        queue.commit()
        most = max(most, len(list((tmp_path / "eden").glob("*.frames"))))
    assert most <= 3
    assert queue.account().done == 1000


def test_one_process_reads(tmp_path: Path) -> None:
    queue = DataQueue(LogBackend(str(tmp_path)))
    child = Child(
        [sys.executable, str(CHILD), str(tmp_path), "consume", str(tmp_path)], tmp_path / "stderr"
    )
    try:
        assert child.process.wait(PATIENCE_S) != 0
        assert "QUEUE_IN_USE" in child.last_words()
    finally:
        child.kill()
    queue.close()


def test_a_queue_leaves_the_folders_of_others_alone(tmp_path: Path) -> None:
    """A folder of something else, the storage of an engine, and a file."""
    full, storage, file = tmp_path / "full", tmp_path / "storage", tmp_path / "file"
    full.mkdir()
    (full / "hosts").touch()
    storage.mkdir()
    Fence.raised(str(storage))
    file.touch()
    for folder, condition in (
        (full, "STORAGE_NOT_EMPTY"),
        (storage, "STORAGE_NOT_EMPTY"),
        (file, "WRITE_FAILED"),
        (file / "queue", "WRITE_FAILED"),
    ):
        with pytest.raises(StorageError, match=condition):
            LogBackend(folder)
    assert [path.name for path in full.iterdir()] == ["hosts"]
    assert [path.name for path in storage.iterdir()] == ["writer"]


def test_a_queue_may_be_made_in_the_folder_of_a_new_disk(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    for _ in range(2):
        assert LogBackend(tmp_path).put(new_records(["a"])) == 1


def test_a_stream_that_is_checked_leaves_the_queue_to_its_reader(tmp_path: Path) -> None:
    """The statement may be refused after that."""
    stream = Entry("", STREAM, "s", "", options={"path": str(tmp_path)})
    queue = DataQueue(LogBackend(str(tmp_path)))
    queue.put(["a"])
    # it reads no more of the context
    context = SimpleNamespace(opens=True)
    check = partial(QueueFormat().check, stream, context)  # type: ignore[arg-type]
    check()
    queue.settle(queue.plan(1))
    assert queue.commit() == 1
    queue.close()
    check()
    child = Child(
        [sys.executable, str(CHILD), str(tmp_path), "consume", str(tmp_path)], tmp_path / "stderr"
    )
    try:
        until(lambda: in_use(Files(tmp_path)), child.last_words)
        with pytest.raises(QueueError, match="QUEUE_IN_USE"):
            check()
    finally:
        child.kill()


class _SeenEarlier(Files):
    """Files of which a listing is older than what is there."""

    listing: list[str] | None = None

    def names(self, folder: str) -> list[str]:
        return super().names(folder) if self.listing is None else self.listing


def test_a_segment_is_removed_while_another_process_opens_the_log(tmp_path: Path) -> None:
    log = FrameLog(Files(str(tmp_path)), "log", segment_bytes=1)
    for row in range(4):
        log.append(b"x", 1, row)
    files = _SeenEarlier(str(tmp_path))
    files.listing = files.names("log")
    log.forget(2)
    opened = FrameLog(files, "log", segment_bytes=1)
    assert (opened.start, opened.end()) == (2, 4)


@pytest.mark.parametrize("known", [0, 1])
def test_a_producer_falls_behind_by_more_than_what_is_kept(tmp_path: Path, known: int) -> None:
    """Others went on to new segments, and the reader has removed the one that it knew."""
    first = FrameLog(Files(str(tmp_path)), "log", segment_bytes=1)
    for row in range(known):
        first.append(b"x", 1, row)
    behind = FrameLog(Files(str(tmp_path)), "log", segment_bytes=1)
    for row in range(known, 6):
        first.append(b"x", 1, row)
    first.forget(5)
    assert behind.append(b"x", 1, 7) == 6
    assert first.end() == behind.end() == 7
    assert [frame.first for frame in first.frames(5, 7)] == [5, 6]
