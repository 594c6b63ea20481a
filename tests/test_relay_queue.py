"""The contract of the data queue, for every backend."""

from __future__ import annotations

import errno
import json
import resource
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eddyline.errors import QueueError, QueueFullError, StorageError
from eddyline.relay.backend import EDEN, FROM, TO, Backend, QueueState, RowRange
from eddyline.relay.backflow import Backflow
from eddyline.relay.batch import Batch
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.relay.records import RECORDS, as_read, failed_records, new_records
from waiting import PATIENCE_S

Open = Callable[[], Backend]


@pytest.fixture(params=["log", pytest.param("kafka", marks=pytest.mark.kafka)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same queue, again and again: each time as a new process would."""
    backends: list[Backend] = []
    if request.param == "kafka":
        address, app = request.getfixturevalue("broker").address, f"t{uuid.uuid4().hex[:8]}"

    def open_backend() -> Backend:
        if request.param == "log":
            backends.append(LogBackend(str(tmp_path / "queue"), segment_bytes=2000))
        else:
            from eddyline.relay.kafka import KafkaBackend

            backends.append(KafkaBackend(address, app))
        return backends[-1]

    yield open_backend
    for backend in backends:
        backend.close()


@pytest.fixture
def queue(opened: Open) -> DataQueue:
    return DataQueue(opened())


def payloads(records: pa.Table) -> list[str]:
    return [value.decode() for value in records["payload"].to_pylist()]


def taken(queue: DataQueue, rows_max: int = 100) -> tuple[Batch, list[str]]:
    found = queue.read(rows_max)
    assert found is not None
    batch, records = found
    assert records.schema == RECORDS
    assert batch.rows == records.num_rows
    return batch, payloads(records)


def balanced(queue: DataQueue) -> bool:
    a = queue.account()
    return a.received == a.done + a.dead + a.retry + a.in_flight


def test_what_is_put_is_read_in_its_order_with_keys_and_positions(queue):
    before = time.time() - 1
    queue.put([b"a", b"b"], keys=[b"k", None])
    queue.put(pa.table({"payload": ["c"]}))
    found = queue.read(100)
    assert found is not None
    _, records = found
    assert payloads(records) == ["a", "b", "c"]
    assert records["key"].to_pylist() == [b"k", None, None]
    assert records["attempts"].to_pylist() == [0, 0, 0]
    assert records["reason"].null_count == 3
    assert len(set(records["position"].to_pylist())) == 3
    assert all(before < t.timestamp() < time.time() + 1 for t in records["ts"].to_pylist())
    assert queue.read(100) is None


def test_at_most_so_many_rows_are_read(queue):
    for i in range(7):
        queue.put([f"{i}"])
    sizes = []
    while found := queue.read(3):
        sizes.append(found[0].rows)
    assert sizes == [3, 3, 1]


def test_large_records_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    queue = DataQueue(LogBackend(str(tmp_path / "queue"), segment_bytes=5000))
    for i in range(12):
        queue.put([f"{i} {j}".ljust(300) for j in range(3)])
    queue.put(["large".ljust(9000)] * 2)
    monkeypatch.setattr("eddyline.relay.queue.READ_BYTES_MAX", 4000)
    batches, last = [], None
    while found := queue.read(100):
        batches.append(found[0].rows)
        last = found[1]
        queue.settle(found[0])
        queue.commit()
    assert batches == [9, 9, 9, 9, 2], "as many frames as fit, and one at least"
    assert last["payload"][0].as_py().startswith(b"large")
    queue.close()


def test_large_records_are_read_a_few_at_a_time_in_any_backend(queue, monkeypatch):
    for i in range(9):
        queue.put([f"{i}".ljust(1000)])
    queue.put(["large".ljust(5000)] * 3)
    monkeypatch.setattr("eddyline.relay.queue.READ_BYTES_MAX", 3000)
    batches, found = [], []
    while read := queue.read(100):
        batches.append(read[0].rows)
        found += [value[:5].strip() for value in read[1]["payload"].to_pylist()]
        queue.settle(read[0])
        queue.commit()
    assert found == [f"{i}".encode() for i in range(9)] + [b"large"] * 3
    assert max(batches) == 3
    assert batches[-1] == 3, "what was put at once fits into no limit"


def test_texts_and_bytes_may_be_mixed(queue):
    queue.put(["a", b"\xff", bytearray(b"c"), "ä"])
    assert queue.read(9)[1]["payload"].to_pylist() == [b"a", b"\xff", b"c", "ä".encode()]


def test_what_is_not_committed_is_read_again(opened):
    queue = DataQueue(opened())
    queue.put(["a", "b"])
    taken(queue)
    queue.close()
    queue = DataQueue(opened())
    batch, found = taken(queue)
    assert found == ["a", "b"]
    queue.ack(batch.number, [0, 1])
    queue.commit()
    queue.close()
    queue = DataQueue(opened())
    assert queue.read(10) is None
    assert (queue.account().received, queue.account().done) == (2, 2)


def test_what_has_failed_is_read_first_with_its_reason(queue):
    queue.put(["a", "b", "c"], keys=["x", "y", "z"])
    batch, records = queue.read(2)
    positions = records["position"].to_pylist()
    queue.ack(batch.number, [1])
    queue.fail(batch.number, [0], "no answer")
    queue.put(["d"])
    assert queue.commit() == batch.number
    _, records = queue.read(100)
    assert payloads(records) == ["a", "c", "d"]
    assert records["attempts"].to_pylist() == [1, 0, 0]
    assert records["reason"].to_pylist() == ["no answer", None, None]
    assert records["position"].to_pylist()[0] == positions[0]
    assert records["key"].to_pylist() == [b"x", b"z", None]
    assert balanced(queue)


def test_a_reason_with_half_a_surrogate_pair_is_kept_as_its_escape(queue):
    queue.put(["a"])
    batch, _ = queue.read(1)
    queue.fail(batch.number, [0], "half \ud800")
    queue.commit()
    assert queue.read(1)[1]["reason"].to_pylist() == ["half \\ud800"]


def test_any_time_of_a_producer_becomes_one_that_python_has():
    for time_ms, year in ((2**62, 9999), (-(2**62), 1), (0, 1970)):
        (record,) = as_read(new_records([b"a"]), [0], time_ms).to_pylist()
        assert record["ts"].year == year


def test_the_pointers_swap_when_the_queue_at_top_is_empty(queue):
    """The patent's way, step by step."""
    queue.put([f"{i}" for i in range(4)])
    batch, _ = taken(queue)
    assert [span.queue for span in batch.spans] == [EDEN]
    queue.fail(batch.number, range(4), "")
    queue.commit()
    queue.put(["new"])
    batch, found = taken(queue, 2)
    assert found == ["0", "1"]
    assert [span.queue for span in batch.spans] == [FROM]  # toP points there now
    queue.fail(batch.number, [0, 1], "")
    queue.commit()  # goes to the other queue, as toP isn't empty
    batch, found = taken(queue)
    assert found == ["2", "3", "0", "1", "new"]
    assert [span.queue for span in batch.spans] == [FROM, TO, EDEN]
    queue.ack(batch.number, range(5))
    queue.commit()
    assert queue.account().done == 5
    assert queue.account().retry == 0


def test_replayed_records_never_wait_behind_new_ones(queue):
    queue.put(["bad"])
    for i in range(5):
        batch, found = taken(queue, 3)
        assert found[0] == "bad"
        queue.fail(batch.number, [0], "again")
        queue.ack(batch.number, range(1, batch.rows))
        queue.commit()
        queue.put([f"{i}"] * 10)


def test_what_is_not_told_within_the_ttl_has_failed(opened):
    now = [1_000_000]
    queue = DataQueue(opened(), ttl_ms=100, clock=lambda: now[0])
    queue.put(["a", "b"])
    batch, _ = taken(queue)
    queue.ack(batch.number, [0])
    now[0] += 99
    queue.commit()
    assert queue.read(10) is None
    now[0] += 1
    queue.commit()
    queue.ack(batch.number, [1])  # too late
    assert queue.late == 1
    _, records = queue.read(10)
    assert payloads(records) == ["b"]
    assert records["reason"].to_pylist() == ["no answer within 100 ms"]
    assert queue.account().done == 1


def test_a_retry_waits_for_its_delay_and_new_records_do_not(opened):
    skew = [0]
    clock = lambda: time.time_ns() // 1_000_000 + skew[0]  # noqa: E731
    queue = DataQueue(opened(), retry_delay_ms=60_000, clock=clock)
    queue.put(["bad"])
    batch, _ = taken(queue)
    queue.fail(batch.number, [0], "")
    queue.commit()
    queue.put(["good"])
    assert taken(queue)[1] == ["good"]
    assert queue.read(10) is None
    skew[0] = 61_000
    assert taken(queue)[1] == ["bad"]


@pytest.mark.parametrize("together", [False, True])
def test_retries_that_wait_for_each_other_are_read_when_the_first_is_due(opened, together):
    now = [0]
    clock = lambda: now[0] or time.time_ns() // 1_000_000  # noqa: E731
    queue = DataQueue(opened(), retry_delay_ms=60_000, together=together, clock=clock)
    moments = []
    for name in ("question", "answer"):
        queue.put([name])
        batch, _ = taken(queue)
        before = clock()
        queue.fail(batch.number, [0], "alone")
        queue.commit()
        moments.append((before, clock()))
        time.sleep(0.01)
    now[0] = moments[0][0] + 60_000 - 1000
    assert queue.read(10) is None
    now[0] = moments[0][1] + 60_000
    assert taken(queue)[1] == (["question", "answer"] if together else ["question"])


def test_batches_are_committed_up_to_the_first_that_is_not_settled(opened):
    """Acks 1, 3, 4 give 1; then 2 gives 4."""
    queue = DataQueue(opened())
    queue.put([f"{i}" for i in range(4)])
    batches = []
    while found := queue.read(1):
        batches.append(found[0])
    committed = []
    for i in (0, 2, 3, 1):
        queue.ack(batches[i].number, [0])
        committed.append(queue.commit())
        assert balanced(queue)
    assert committed == [1, 1, 1, 4]


def test_failures_of_a_batch_behind_one_that_is_not_settled_are_not_doubled(opened):
    queue = DataQueue(opened())
    queue.put(["a", "b"])
    (first, _), (second, _) = taken(queue, 1), taken(queue, 1)
    queue.fail(second.number, [0], "")
    queue.commit()
    queue.close()
    queue = DataQueue(opened())
    assert taken(queue)[1] == ["a", "b"]
    assert first.number == 1


def test_an_epoch_that_is_told_twice_changes_nothing(opened):
    queue = DataQueue(opened())
    queue.put(["a", "b", "c"])
    batch = queue.plan(10, number=7)
    assert batch is not None
    records = queue.load(batch)
    failed = failed_records(records, [1], "bad")
    document = json.dumps(batch.as_dict())
    queue.settle(batch, failed, dead=1)
    queue.settle(batch, failed, dead=1)
    assert queue.commit() == 7
    queue.settle(batch, failed, dead=1)
    queue.commit()
    queue.close()
    queue = DataQueue(opened())
    queue.settle(Batch.from_dict(json.loads(document)), failed, dead=1)
    queue.commit()
    a = queue.account()
    assert (a.received, a.done, a.dead, a.retry, a.in_flight) == (3, 1, 1, 1, 0)
    assert taken(queue)[1] == ["b"]


def test_an_epoch_that_was_committed_elsewhere_is_told_by_the_next_process(opened):
    queue = DataQueue(opened())
    queue.put(["a", "b", "c"])
    batch = queue.plan(2, number=3)
    failed = failed_records(queue.load(batch), [0], "bad")
    queue.close()  # between the epoch's commit and the queue's
    queue = DataQueue(opened())
    queue.settle(batch, failed)
    queue.commit()
    assert taken(queue)[1] == ["a", "c"]
    assert balanced(queue)


def test_a_batch_that_was_not_planned_from_here_is_refused(opened):
    queue = DataQueue(opened())
    queue.put(["a", "b"])
    queue.plan(1)
    later = queue.plan(1)
    queue.close()
    queue = DataQueue(opened())
    with pytest.raises(QueueError, match="UNKNOWN_BATCH"):
        queue.settle(later)
    with pytest.raises(QueueError, match="BATCH_PASSED"):
        queue.plan(1, number=0)
    with pytest.raises(QueueError, match="BAD_RECORDS"):
        queue.settle(queue.plan(1), dead=2)


def test_a_batch_that_is_abandoned_is_unread(queue):
    queue.put(["a", "b"])
    first, second = queue.plan(1), queue.plan(1)
    queue.abandon(first)
    queue.settle(queue.plan(10))
    queue.commit()
    assert queue.account().done == 2
    assert second.number == 2


def test_the_same_spans_give_the_same_records_in_another_process(opened):
    queue = DataQueue(opened())
    queue.put([f"{i}" for i in range(20)])
    queue.put([f"{i}" for i in range(20, 30)])
    batches = [queue.plan(7), queue.plan(7), queue.plan(100)]
    elsewhere = opened()
    for batch in reversed(batches):
        there = pa.concat_tables([elsewhere.read(span) for span in batch.spans])
        assert there.equals(queue.load(batch))


def test_a_full_queue_refuses_and_takes_again_once_it_is_read(opened):
    queue = DataQueue(opened(), unread_rows_max=3)
    queue.put(["a", "b"])
    with pytest.raises(QueueFullError) as error:
        queue.put(["c", "d"])
    assert error.value.retryable
    with pytest.raises(QueueFullError, match="several calls"):
        queue.put(["c"] * 4)
    queue.settle(queue.plan(10))
    queue.commit()
    queue.put(["c", "d"])
    assert taken(queue)[1] == ["c", "d"]


def test_threads_keep_the_limit_together(tmp_path: Path) -> None:
    putting, gate = threading.Event(), threading.Event()

    class Slow(LogBackend):
        def put(self, records: pa.Table) -> int:
            if not putting.is_set():
                putting.set()
                gate.wait(PATIENCE_S)
            return super().put(records)

    producer = Producer(Slow(str(tmp_path)), unread_rows_max=4)
    other = threading.Thread(target=producer.put, args=(["a", "b", "c"],))
    other.start()
    try:
        assert putting.wait(PATIENCE_S)
        with pytest.raises(QueueFullError, match="3 records of the queue are unread"):
            producer.put(["d", "e"])
        assert producer.put(["d"]) == 1
    finally:
        gate.set()
        other.join()
    assert producer.backend.unread() == 4


def test_a_second_reader_takes_over_and_the_first_is_told(opened):
    first = DataQueue(opened())
    first.put(["a"])
    batch, _ = taken(first)
    first.fail(batch.number, [0], "no answer")
    second = DataQueue(opened())
    for _ in range(2):
        with pytest.raises(QueueError, match="QUEUE_TAKEN"):
            first.commit()
    batch, records = second.read(10)
    assert records["attempts"].to_pylist() == [0]
    second.ack(batch.number, [0])
    second.commit()
    with pytest.raises(QueueError, match="QUEUE_TAKEN"):
        first.commit()
    assert second.account().done == 1


def test_several_producers_at_once(opened):
    """Threads on one backend and on backends of their own, beside a reader with a backflow."""
    queue, count, each = DataQueue(opened()), 4, 50
    shared = opened()
    errors: list[BaseException] = []

    def produce(name: int) -> None:
        try:
            producer = Producer(shared if name % 2 else opened())
            for i in range(each):
                producer.put([f"{name}:{i}:0", f"{name}:{i}:1"])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=produce, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    random, attempts = np.random.default_rng(1), {}
    deadline = time.monotonic() + PATIENCE_S
    with Backflow(queue, every_s=0.005) as backflow:
        while queue.account().done < count * each * 2:
            assert time.monotonic() < deadline, (queue.account(), errors)
            assert not errors
            found = queue.read(37)
            backflow.check()
            if found is None:
                continue
            batch, records = found
            for payload, tried in zip(
                payloads(records), records["attempts"].to_pylist(), strict=True
            ):
                assert attempts.get(payload, 0) == tried
                attempts[payload] = tried + 1
            bad = random.random(batch.rows) < 0.2
            queue.fail(batch.number, np.flatnonzero(bad), "chance")
            queue.ack(batch.number, np.flatnonzero(~bad))
            assert balanced(queue)
    for thread in threads:
        thread.join()
    assert len(attempts) == count * each * 2
    for name in range(count):
        mine = [p for p in attempts if p.startswith(f"{name}:")]
        assert mine == [f"{name}:{i}:{j}" for i in range(each) for j in (0, 1)]


def test_nothing_is_put_where_there_are_no_records(queue):
    assert queue.put([]) == 0
    assert queue.read(10) is None
    for wrong in ([1, 2], [b"a", None], pa.table({"data": [b"a"]})):
        with pytest.raises(QueueError, match="BAD_RECORDS"):
            queue.put(wrong)


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "read", "tell", "commit", "reopen", "abandon"]),
            st.integers(1, 6),
            st.integers(0, 1 << 20),
        ),
        max_size=30,
    )
)
def test_random_histories_lose_and_double_nothing(tmp_path_factory, steps):
    """Against a plain model: what was committed as done is done once; the rest comes again."""
    folder = str(tmp_path_factory.mktemp("queue"))
    queue = DataQueue(LogBackend(folder, segment_bytes=1000))
    put = 0
    done: dict[int, list[str]] = {}
    held: dict[int, tuple[Batch, list[str]]] = {}
    ended: list[str] = []

    def commit() -> None:
        number = queue.commit()
        for settled in [n for n in done if n <= number]:
            ended.extend(done.pop(settled))
            held.pop(settled)

    for what, count, seed in steps:
        if what == "put":
            queue.put([f"{put + i}" for i in range(count)])
            put += count
        elif what == "read":
            found = queue.read(count)
            if found is not None:
                assert found[0].rows <= count
                held[found[0].number] = found[0], payloads(found[1])
        elif what == "tell" and set(held) - set(done):
            number = min(set(held) - set(done), key=lambda n: (n * seed) % 7)
            batch, names = held[number]
            good = [i for i in range(batch.rows) if (seed >> i) & 1]
            queue.ack(number, good)
            queue.fail(number, [i for i in range(batch.rows) if i not in good], "x")
            done[number] = [names[i] for i in good]
        elif what == "commit":
            commit()
        elif what == "reopen":
            queue = DataQueue(LogBackend(folder, segment_bytes=1000))
            held, done = {}, {}
        elif what == "abandon" and held:
            first = min(held)
            queue.abandon(held[first][0])
            held, done = {}, {}
        assert balanced(queue)
    for number, (batch, names) in held.items():
        queue.ack(number, range(batch.rows))
        done.setdefault(number, names)
    commit()
    while found := queue.read(10):
        queue.ack(found[0].number, range(found[0].rows))
        done[found[0].number] = payloads(found[1])
        held[found[0].number] = found[0], payloads(found[1])
        commit()
    assert sorted(ended, key=int) == [f"{i}" for i in range(put)]
    a: Any = queue.account()
    assert (a.received, a.done, a.retry, a.in_flight) == (put, put, 0, 0)


def test_a_stored_batch_tells_what_is_missed_and_an_older_one_misses_nothing() -> None:
    batch = Batch(3, (RowRange(EDEN, (1,), (9,), 5, missed=3), RowRange(TO, (0,), (1,), 1)))
    document = json.loads(json.dumps(batch.as_dict()))
    assert Batch.from_dict(document) == batch
    for span in document["spans"]:
        del span["missed"]
    assert Batch.from_dict(document).missed == 0
    state = QueueState(read={EDEN: (1,), TO: (0,)})
    for span in batch.spans:
        state = state.after_reading(span)
    assert (state.received, state.missed, state.again) == (8, 3, 1)


class _FailingBackend(LogBackend):
    """A backend whose commit fails with an error that no one expects."""

    def commit(self, state: QueueState, failed: pa.Table) -> None:
        raise OSError(errno.EMFILE, "Too many open files")


def test_any_error_that_ends_the_thread_of_commits_is_raised(tmp_path: Path) -> None:
    queue = DataQueue(_FailingBackend(tmp_path))
    queue.put(["a"])
    with Backflow(queue, every_s=0.005) as backflow:
        queue.settle(queue.plan(1))
        backflow._thread.join(PATIENCE_S)
        with pytest.raises(OSError, match="Too many open files"):
            backflow.check()
        backflow.error = None


def test_an_append_without_open_files_is_an_error_of_the_storage(tmp_path: Path) -> None:
    queue = DataQueue(LogBackend(tmp_path))
    queue.put(["a"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(StorageError, match="WRITE_FAILED"):
            queue.put(["a"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    queue.put(["a"])
