"""Pipelines in Spark: live views over what bolts make, failures by the record, and crashes."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from broker import Broker
from eddyline import Engine
from eddyline.api.pipeline import Pipeline
from eddyline.cli import main
from eddyline.errors import (
    CatalogError,
    DataError,
    EddylineError,
    EngineError,
    QueueError,
    StorageError,
)
from eddyline.options import Options
from eddyline.pipelines.batches import PipelineStream
from eddyline.relay.account import Account
from eddyline.relay.bolts import Emitted
from eddyline.relay.embedded import LogBackend
from eddyline.relay.kafka import KafkaBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from waiting import PATIENCE_S, until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BUILD = Callable[[Engine, DataQueue], Pipeline]


class Load:
    """An engine with one pipeline, which can be opened again."""

    def __init__(self, root: Path, spark: SparkSession, build: BUILD, *, faults: bool = False):
        kind = FaultyFiles if faults else Files
        self.storage, self.folder = kind(str(root / "storage")), kind(str(root / "queue"))
        self.root, self.spark, self.build = root, spark, build
        self.began, self.seconds = time.time(), 0.0
        self.open()

    def open(self) -> None:
        self.engine = Engine(self.storage, self.spark)
        try:
            self.queue = DataQueue(LogBackend(self.folder))
            self.pipeline = self.build(self.engine, self.queue)
        except BaseException:
            self.engine.stop()
            raise

    def close(self) -> None:
        self.engine.stop()
        self.queue.close()

    def set_clock(self, seconds: float) -> None:
        """Let the clock of the queue stand still, so many seconds after the begin, when all records are put."""
        put = round(self.began * 1000)
        now, self.seconds = put + round(seconds * 1000), seconds
        self.queue.clock, self.queue.backend.clock = lambda: now, lambda: put

    def run_out(self, step_s: float = 0.0) -> None:
        """Advance until nothing waits; set a clock that stands still forward before each further time."""
        while True:
            self.engine.advance()
            account = self.queue.account()
            if not account.retry and not account.in_flight:
                return
            if step_s:
                self.set_clock(self.seconds + step_s)

    def calls(self, name: str = "calls") -> Counter[str]:
        path = self.root / name
        return Counter(path.read_text().split() if path.exists() else [])


def note(path: Path, word: object) -> None:
    """Append a word to a file, from any process."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{word}\n".encode())
    os.close(handle)


def number(record: dict[str, Any]) -> dict[str, int]:
    return {"n": int(record["payload"])}


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., Load]]:
    loads: list[Load] = []

    def make(build: BUILD, **settings: Any) -> Load:
        loads.append(Load(tmp_path, spark, build, **settings))
        return loads[-1]

    yield make
    for load in loads:
        load.close()


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in engine.sql(query).collect())


def later(load: Load, seconds: float) -> None:
    """Set the clock of the queue forward, against the real one."""
    load.queue.clock = lambda: round((time.time() + seconds) * 1000)


def found(load: Load) -> list[Any]:
    """What the one column of the stream `s` holds."""
    return [value for (value,) in rows(load.engine, "SELECT * FROM s")]


def test_what_fails_is_tried_again_and_then_a_dead_letter(
    opened: Callable[..., Load], tmp_path: Path
) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def flaky(row: dict[str, int]) -> dict[str, int]:
            note(tmp_path / "calls", row["n"])
            if row["n"] == 3 and not (tmp_path / "mended").exists():
                raise OSError("not now")
            return row

        made = engine.pipeline("numbers", queue).bolt(number, max_attempts=2, retry_delay=0.0)
        return made.bolt(flaky, retry_delay=0.0, max_attempts=3).into("numbers", "n BIGINT")

    load = opened(build)
    view = load.engine.view("total", "SELECT count(*) AS c, sum(n) AS s FROM numbers")
    load.queue.put(["1", "two", "3", "4"])
    load.run_out()
    assert [tuple(row) for row in view.snapshot().collect()] == [(2, 5)]
    assert load.pipeline.account() == Account(4, 2, 2, 0, 0)
    assert load.calls() == {"1": 1, "3": 3, "4": 1}  # each once an attempt
    letters = load.pipeline.dead_letters().orderBy("position").collect()
    assert [(r.position, bytes(r.payload), r.bolt, r.attempts) for r in letters] == [
        (1, b"two", "number", 2),
        (2, b"3", "flaky", 3),
    ]
    assert letters[1].error == "OSError: not now"

    note(tmp_path / "mended", "")
    assert load.pipeline.replay("bolt = 'flaky'") == 1
    assert load.pipeline.account() == Account(4, 2, 1, 1, 0)
    load.run_out()
    assert [tuple(row) for row in view.snapshot().collect()] == [(3, 8)]
    assert load.pipeline.account() == Account(4, 3, 1, 0, 0)
    assert rows(load.engine, "SELECT position FROM numbers__dead") == [(1,)]
    assert load.pipeline.discard() == 1
    assert load.pipeline.account() == Account(4, 4, 0, 0, 0)
    load.engine.advance()
    assert rows(load.engine, "SELECT position FROM numbers__dead") == []


def test_replayed_records_cost_no_wave_of_their_own(
    opened: Callable[..., Load], tmp_path: Path
) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def flaky(record: dict[str, Any]) -> dict[str, Any]:
            note(tmp_path / "calls", TaskContext.get().stageId())
            if int(record["payload"]) == 0:
                raise ValueError("not now")
            return number(record)

        made = engine.pipeline("p", queue, lanes=2, tuple_rows=4, ackers=3)
        return made.bolt(flaky, retry_delay=0.0, max_attempts=3).into("s", "n BIGINT")

    load = opened(build)
    load.queue.put([str(n) for n in range(500)])
    load.run_out()
    assert load.pipeline.account() == Account(500, 499, 1, 0, 0)
    assert len(load.calls()) == load.queue.committed  # a wave is a stage, for each batch one
    sources = load.engine._workspace.sources
    (running,) = (source for source in sources.all if isinstance(source, PipelineStream))
    counts = [acker.counts for acker in running.waves.acker.ackers]
    assert len(counts) == 3
    assert all(one.done > 0 for one in counts)  # each has a share of the tuples


def test_rows_that_do_not_fit_the_stream_fail_alone(opened: Callable[..., Load]) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def parse(record: dict[str, Any]) -> dict[str, Any]:
            name, _, value = record["payload"].decode().partition("=")
            return {name: value if name == "word" else int(value)}

        return engine.pipeline("p", queue).bolt(parse).into("s", "v INT")

    load = opened(build)
    load.queue.put(["v=1", "word=x", f"v={1 << 40}", "v=2"])
    load.engine.advance()
    letters = load.pipeline.dead_letters().orderBy("position").collect()
    # the same row never fits: a second attempt would be in vain
    assert [(row.bolt, row.attempts) for row in letters] == [("into", 1), ("into", 1)]
    assert "unknown column word (pipeline p)" in letters[0].error
    assert "doesn't fit int32" in letters[1].error
    assert rows(load.engine, "SELECT v FROM s") == [(1,), (2,)]


def test_records_of_a_key_keep_their_order_through_failures(
    opened: Callable[..., Load], tmp_path: Path
) -> None:
    """Each key's effects come in order, though every third record fails at first; others flow."""

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def effect(record: dict[str, Any]) -> dict[str, Any]:
            word = record["payload"].decode()
            if int(word.split("-")[1]) % 3 == 0 and record["attempts"] < 2:
                note(tmp_path / "failures", word)
                raise ValueError("chance")
            note(tmp_path / "calls", word)
            return {"word": word}

        made = engine.pipeline("p", queue, tuple_rows=7)
        made = made.bolt(effect, order="key", retry_delay=0.0, max_attempts=4)
        return made.into("s", "word STRING")

    load = opened(build)
    chance = random.Random(7)
    sent: dict[str, list[str]] = {}
    for turn in range(4):
        keys = [chance.choice("abcde") for _ in range(25)]
        words = []
        for key in keys:
            sent.setdefault(key, []).append(f"{key}-{len(sent.get(key, []))}")
            words.append(sent[key][-1])
        load.queue.put(words, keys)
        if turn == 2:  # what waits is known again after reopening
            load.close()
            load.open()
        load.engine.advance()
    load.run_out()
    done = (tmp_path / "calls").read_text().split()
    for key, words in sent.items():
        assert [word for word in done if word.startswith(key)] == words
    assert set(load.calls("failures").values()) == {2}
    assert load.pipeline.account() == Account(100, 100, 0, 0, 0)
    assert len(rows(load.engine, "SELECT word FROM s")) == 100


def test_keys_flow_past_one_that_waits(opened: Callable[..., Load]) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def effect(record: dict[str, Any]) -> dict[str, Any]:
            if record["payload"] == b"a1":
                raise ValueError("never")
            return {"word": record["payload"].decode()}

        made = engine.pipeline("p", queue).bolt(
            effect, order="key", retry_delay=3600, max_attempts=2
        )
        return made.into("s", "word STRING")

    load = opened(build)
    load.queue.put(["a1", "a2", "b1"], ["a", "a", "b"])
    load.engine.advance()
    load.queue.put(["a3", "b2"], ["a", "b"])
    load.engine.advance()
    assert rows(load.engine, "SELECT * FROM s") == [("b1",), ("b2",)]
    assert load.pipeline.account() == Account(5, 2, 0, 3, 0)
    later(load, 3600)
    load.run_out()
    assert rows(load.engine, "SELECT * FROM s") == [("a2",), ("a3",), ("b1",), ("b2",)]
    assert load.pipeline.account() == Account(5, 4, 1, 0, 0)


def test_keys_keep_their_order_past_a_fault_behind_the_outcome(opened: Callable[..., Load]) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def once(record: dict[str, Any]) -> dict[str, Any]:
            if record["attempts"] == 0 and record["payload"] == b"a1":
                raise ValueError("not yet")
            return {"word": record["payload"].decode()}

        made = engine.pipeline("p", queue).bolt(once, order="key", retry_delay=3600)
        return made.into("s", "word STRING")

    load = opened(build, faults=True)
    load.queue.put(["a1"], ["a"])
    load.folder.arm(1)  # the queue's commit
    with pytest.raises(EddylineError):
        load.engine.advance()
    load.folder.arm(0)
    load.queue.put(["a2", "b1"], ["a", "b"])
    load.engine.advance()
    assert found(load) == ["b1"]
    later(load, 3600)
    load.run_out()
    assert found(load) == ["a1", "a2", "b1"]


def test_the_last_record_of_a_key_makes_the_row(opened: Callable[..., Load]) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def parsed(record: dict[str, Any]) -> dict[str, int]:
            return {"k": 1, "v": int(record["payload"])}

        made = engine.pipeline("p", queue, lanes=2, tuple_rows=1).bolt(parsed)
        return made.into("s", "k INT, v BIGINT", primary_key=["k"])

    load = opened(build)
    for start in (0, 9):
        load.queue.put([str(n) for n in range(start, start + 9)])
        load.engine.advance()
        assert rows(load.engine, "SELECT k, v FROM s") == [(1, start + 8)]


def test_a_replayed_record_counts_as_one_that_arrives_now(
    opened: Callable[..., Load], tmp_path: Path
) -> None:
    mended = tmp_path / "mended"

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def parsed(record: dict[str, Any]) -> dict[str, int]:
            number = int(record["payload"])
            if number == 2 and not mended.exists():
                raise ValueError("not yet")
            return {"k": 1, "v": number, "position": record["position"]}

        made = engine.pipeline("p", queue).bolt(parsed, max_attempts=1, order="key")
        made = made.into("s", "k INT, v BIGINT, position BIGINT", primary_key=["k"])
        queues.append(DataQueue(LogBackend(tmp_path / "other")))
        other = engine.pipeline("q", queues[0])
        other = other.bolt(parsed, max_attempts=1, order="key")
        others.append(other.into("all", "k INT, v BIGINT, position BIGINT"))
        engine.view("newest", "SELECT k, max_by(v, position) AS v FROM all GROUP BY k")
        return made

    queues: list[DataQueue] = []
    others: list[Pipeline] = []
    load = opened(build)
    queues.append(load.queue)

    def run_out() -> None:
        load.engine.advance()
        while any(queue.account().retry for queue in queues):
            load.engine.advance()

    for queue in queues:
        queue.put(["1", "2", "3"], keys=["k"] * 3)
    run_out()
    assert rows(load.engine, "SELECT k, v FROM s") == [(1, 3)]
    mended.touch()
    assert [load.pipeline.replay(), others[0].replay()] == [1, 1]
    run_out()
    assert rows(load.engine, "SELECT k, v FROM s") == [(1, 2)]
    assert rows(load.engine, "SELECT v FROM all") == [(1,), (2,), (3,)]
    assert rows(load.engine, "SELECT k, v FROM newest") == [(1, 3)]


def test_a_pull_ends_while_records_come_in(opened: Callable[..., Load]) -> None:
    load = opened(lambda e, q: e.pipeline("p", q).bolt(number).into("s", "n BIGINT"))
    enough = threading.Event()

    def produce() -> None:
        while not enough.wait(0.01):
            load.queue.put(["1"])

    load.queue.put(["1"] * 10)
    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        for _ in range(2):
            load.engine.advance()  # else it would not return
        load.engine.start(interval=0.01)
        # nobody is kept out by epochs without a gap
        until(
            lambda: load.pipeline.dead_letters().isEmpty() and load.pipeline.account().done >= 100
        )
    finally:
        enough.set()
        thread.join()
    assert load.pipeline.account().received >= 10


def test_a_queue_feeds_one_pipeline(opened: Callable[..., Load]) -> None:
    load = opened(lambda e, q: e.pipeline("p", q).bolt(number).into("s", "n BIGINT"))
    with pytest.raises(EngineError, match="QUEUE_IN_USE"):
        load.engine.pipeline("other", load.queue).bolt(number).into("s2", "n BIGINT")
    load.queue.put(["1"])
    second = DataQueue(LogBackend(load.folder.root + "/."))  # another object, the same folder
    with pytest.raises(EngineError, match="pipeline p reads this queue"):
        load.engine.pipeline("other", second).bolt(number).into("s2", "n BIGINT")
    load.engine.pipeline("p", second).bolt(number).into("s", "n BIGINT")
    load.engine.advance()
    assert second.account().done == 1
    second.close()
    load.queue = DataQueue(LogBackend(load.folder))
    assert [entry.name for entry in load.engine.catalog.entries] == ["s", "p__dead"]
    load.engine.pipeline("p", load.queue).bolt(number).into("s", "n BIGINT")  # again, by its name


@pytest.mark.parametrize(
    ("delays", "pause_ms"), [((2, 2), 2000), ((10, 11), 1100), ((0, 60), 6000), ((0, 0), 0)]
)
def test_what_has_failed_is_looked_at_often_enough(
    opened: Callable[..., Load], delays: tuple[float, float], pause_ms: int
) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        made = engine.pipeline("p", queue)
        for delay in delays:
            made = made.bolt(number, retry_delay=delay)
        return made.into("s", "n BIGINT")

    assert opened(build).queue.retry_delay_ms == pause_ms


@pytest.mark.parametrize("order", ["free", "key"])
def test_each_bolt_has_a_retry_delay(
    opened: Callable[..., Load], tmp_path: Path, order: str
) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def once(word: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
            def bolt(row: dict[str, Any]) -> dict[str, Any]:
                row = {"word": row.get("word") or row["payload"].decode()}
                if row["word"] == word and not (tmp_path / word).exists():
                    note(tmp_path / word, "failed")
                    raise OSError("not now")
                return row

            return bolt

        made = engine.pipeline("p", queue).bolt(once("a"), "soon", retry_delay=10)
        made = made.bolt(once("b"), "late", retry_delay=1000, order=order)
        return made.into("s", "word STRING")

    load = opened(build)
    load.set_clock(0)
    words = ["b", "a", "c", "b2"]
    load.queue.put(words, [word[0] for word in words])
    waiting = ["b2"] if order == "key" else []
    load.engine.advance()
    assert found(load) == sorted({"c", "b2"} - {*waiting})
    load.set_clock(110)
    load.engine.advance()
    assert found(load) == sorted({"a", "c", "b2"} - {*waiting})
    assert load.pipeline.account() == Account(4, 3 - len(waiting), 0, 1 + len(waiting), 0)
    load.set_clock(990)
    load.engine.advance()
    assert load.pipeline.account().retry == 1 + len(waiting)
    load.set_clock(1010)
    load.run_out()
    assert found(load) == sorted(words)
    assert load.pipeline.account() == Account(4, 4, 0, 0, 0)


def test_records_of_a_key_become_one_row(opened: Callable[..., Load]) -> None:
    """A request waits, by failing, until its response is there; then both are done."""

    def join(records: list[dict[str, Any]]) -> dict[str, str]:
        if len(records) < 2:
            raise ValueError("no response yet")
        return {"words": " ".join(record["payload"].decode() for record in records)}

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        made = engine.pipeline("p", queue, tuple_rows=2)
        made = made.bolt(join, by_key=True, order="key", retry_delay=2, max_attempts=5)
        return made.into("s", "words STRING")

    load = opened(build)
    load.set_clock(0)
    load.queue.put(["ask 1", "ask 2", "tell 2", "ask 3"], ["1", "2", "2", "3"])
    load.engine.advance()
    assert rows(load.engine, "SELECT words FROM s") == [("ask 2 tell 2",)]
    assert load.pipeline.account() == Account(4, 2, 0, 2, 0)
    load.queue.put(["tell 1", "tell 3"], ["1", "3"])
    load.run_out(2)
    expected = [(f"ask {n} tell {n}",) for n in (1, 2, 3)]
    assert rows(load.engine, "SELECT words FROM s") == expected
    assert load.pipeline.account() == Account(6, 6, 0, 0, 0)


@pytest.mark.parametrize(("delay", "attempts"), [(2, 5), (0, 20)])
def test_rows_are_joined_whatever_a_batch_holds(
    opened: Callable[..., Load], delay: float, attempts: int
) -> None:
    """More requests wait than lanes have room for; their responses come behind them."""

    def join(records: list[dict[str, Any]]) -> dict[str, int]:
        if len(records) < 2:
            raise ValueError("no response yet")
        return {"n": len({record["payload"] for record in records})}

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        made = engine.pipeline("p", queue, lanes=2, tuple_rows=1, slow=PATIENCE_S)
        made = made.bolt(join, by_key=True, order="key", retry_delay=delay, max_attempts=attempts)
        return made.into("s", "n INT")

    load = opened(build)
    load.set_clock(0)
    keys = [str(n) for n in range(100)]
    load.queue.put(["ask"] * 100 + ["tell"] * 100, keys * 2)
    load.run_out(delay)
    assert found(load) == [2] * 100
    assert load.pipeline.account() == Account(200, 200, 0, 0, 0)


def test_slow_calls_fail_by_their_ttl(opened: Callable[..., Load]) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        async def ask(row: dict[str, int]) -> dict[str, int]:
            await asyncio.sleep(60 if row["n"] == 5 else 0)
            return row

        made = engine.pipeline("p", queue).bolt(number)
        made = made.bolt(ask, ttl=0.3, max_attempts=1, concurrency=8)
        return made.into("s", "n INT")

    load = opened(build)
    load.queue.put([str(n) for n in range(20)])
    load.engine.advance()
    (letter,) = load.pipeline.dead_letters().collect()
    assert (letter.position, letter.bolt) == (5, "ask")
    assert letter.error == "TimeoutError: no answer within 0.3 s"
    assert len(rows(load.engine, "SELECT n FROM s")) == 19


def test_a_vectorised_sink_rejects_rows(opened: Callable[..., Load], tmp_path: Path) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def write(table: pa.Table) -> Emitted:
            words = [payload.decode() for payload in table["payload"].to_pylist()]
            bad = {i: "refused" for i, word in enumerate(words) if word == "bad"}
            for i, word in enumerate(words):
                if i not in bad:
                    note(tmp_path / "calls", word)
            return Emitted(table.slice(0, 0), inputs=pa.array([], pa.int64()), failed=bad)

        made = engine.pipeline("p", queue)
        return made.bolt(write, vectorised=True, once=True, max_attempts=2, retry_delay=0.0).into()

    load = opened(build)
    load.queue.put(["a", "bad", "b"])
    load.run_out()
    assert load.calls() == {"a": 1, "b": 1}
    assert load.pipeline.account() == Account(3, 2, 1, 0, 0)


def test_a_function_can_be_the_sink(opened: Callable[..., Load], tmp_path: Path) -> None:
    def write(row: dict[str, int]) -> None:
        if row["n"] == 2:
            raise ValueError("refused")
        note(tmp_path / "calls", row["n"])

    load = opened(lambda e, q: e.pipeline("p", q).bolt(number).into(write))
    load.queue.put(["1", "2", "3"])
    load.engine.advance()
    assert load.calls() == {"1": 1, "3": 1}
    assert load.pipeline.account() == Account(3, 2, 0, 1, 0)


def test_it_runs_in_the_background(opened: Callable[..., Load]) -> None:
    load = opened(
        lambda e, q: e.pipeline("p", q).bolt(number, max_attempts=1).into("s", "n BIGINT")
    )
    view = load.engine.view("total", "SELECT count(*) AS c FROM s")
    load.engine.start(interval=0.05)
    for start in range(0, 60, 20):
        load.queue.put([str(n) for n in range(start, start + 20)])
    load.queue.put(["poison"])

    def all_counted() -> bool:
        (told,) = load.engine.status()["pipelines"]
        assert told["received"] == sum(told[n] for n in ("done", "dead", "retry", "in_flight"))
        return [tuple(r) for r in view.snapshot().collect()] == [(60,)]

    until(all_counted)
    until(lambda: load.pipeline.account().dead == 1)  # it may be in a batch of its own
    load.engine.stop()
    assert load.pipeline.account() == Account(61, 60, 1, 0, 0)
    with Engine(load.storage, load.spark) as engine:
        (told,) = engine.status()["pipelines"]
    assert (told["name"], told["received"], told["dead"]) == ("p", 61, 1)
    assert told["lanes"] == ["normal"] * len(told["windows"])


def test_what_cannot_be_is_refused(opened: Callable[..., Load], tmp_path: Path) -> None:
    load = opened(lambda e, q: e.pipeline("p", q).bolt(number).into("s", "n BIGINT"))
    engine, queue = load.engine, load.queue
    with pytest.raises(EngineError, match="has no bolt"):
        engine.pipeline("q", queue).into("t", "n INT")
    with pytest.raises(EngineError, match="a stream, or columns"):
        engine.pipeline("q", queue).bolt(number).into("t")
    with pytest.raises(EngineError, match="order"):
        engine.pipeline("q", queue).bolt(number, order="any")
    with pytest.raises(EngineError, match="needs all records of a key"):
        engine.pipeline("q", queue).bolt(number, by_key=True)
    for setting, number_of in (
        ("tuple_rows", 0),
        ("tuple_rows", 10**12),
        ("lanes", 10**9),
        ("ackers", 2000),
        ("slow", float("inf")),
    ):
        with pytest.raises(EngineError, match=rf"\[BAD_OPTION\] {setting} is .* from .* to "):
            engine.pipeline("q", queue, **{setting: number_of})
    with pytest.raises(EngineError, match="whole number"):
        engine.pipeline("q", queue, lanes=1.5)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(EngineError, match=r"bolt locked can't be sent .*_thread\.lock") as refused:
        engine.pipeline("q", queue).bolt(lambda _: lock.locked(), "locked").into("t", "n INT")
    assert refused.value.condition == "BAD_BOLT"
    assert [item["name"] for item in engine.status()["pipelines"]] == ["p"]
    with pytest.raises(CatalogError, match="another definition"):
        engine.pipeline("p", queue).bolt(number).into("s", "n STRING")
    with pytest.raises(StorageError, match="STORAGE_NOT_EMPTY"):
        LogBackend(engine.files)
    with pytest.raises(StorageError, match="holds a data queue"):
        Engine(load.folder, load.spark)
    queue.put(["1"])
    engine.advance()  # neither has taken anything over
    other = DataQueue(LogBackend(str(tmp_path / "other queue")))
    with pytest.raises(CatalogError, match="another definition"):  # one pipeline feeds a stream
        engine.pipeline("q", other).bolt(number).into("s", "n BIGINT")
    other.close()
    rate = load.spark.readStream.format("rate").load().selectExpr("value AS n")
    with pytest.raises(CatalogError, match="another definition"):
        engine.stream("s", rate)
    with pytest.raises(CatalogError, match="fed by a pipeline"):
        engine.drop("stream", "s")
    engine.drop("stream", "p__dead")
    engine.drop("stream", "s")
    with pytest.raises(CatalogError, match="no stream named p__dead"):
        engine.remove_dead_letters("p", None, replay=True)


def test_a_batch_of_a_queue_that_was_taken_over_is_not_stored(
    tmp_path: Path, spark: SparkSession
) -> None:
    def made(name: str) -> tuple[Engine, DataQueue]:
        engine = Engine(str(tmp_path / name), spark)
        queue = DataQueue(LogBackend(str(tmp_path / "queue")))
        engine.pipeline("p", queue).bolt(number).into("s", "n BIGINT")
        return engine, queue

    def numbers_of(engine: Engine) -> list[int]:
        return [n for (n,) in engine.snapshot("s").collect()]

    first, queue = made("first")
    with first:
        queue.put(["1"])
        first.advance()
        queue.put(["2"])
        second, _ = made("second")
        with second:
            for later in ("3", "4"):
                with pytest.raises(QueueError, match="QUEUE_TAKEN"):
                    first.advance()
                queue.put([later])
            second.advance()
            assert (numbers_of(first), sorted(numbers_of(second))) == ([1], [2, 3, 4])
            assert first.verify()
    again, _ = made("first")
    with again:
        again.advance()
        assert numbers_of(again) == [1]


def test_a_dropped_pipeline_stops_before_its_files_go(
    opened: Callable[..., Load], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = opened(lambda engine, queue: engine.pipeline("p", queue).bolt(number).into("s", "n INT"))
    load.queue.put(["1"])
    load.engine.advance()
    workspace = load.engine._workspace
    letters = workspace.catalog.get("p__dead")
    running = workspace.sources.connected(letters)
    stop, there = running.stop, []

    def stopped() -> None:
        there.append(load.storage.exists(f"pipelines/{letters.id}"))
        stop()

    monkeypatch.setattr(running, "stop", stopped)
    load.engine.drop("stream", "p__dead")
    assert there == [True]
    assert not load.storage.exists(f"pipelines/{letters.id}")


def test_another_queue_is_noticed(opened: Callable[..., Load]) -> None:
    load = opened(lambda e, q: e.pipeline("p", q).bolt(number).into("s", "n BIGINT"))
    for word in "12":
        load.queue.put([word])
        load.engine.advance()
    load.close()
    load.folder = Files(str(load.root / "other"))
    with pytest.raises(QueueError, match="QUEUE_BEHIND"):
        load.open()
    load.folder = Files(str(load.root / "queue"))
    load.open()


def test_a_wave_that_breaks_is_told_and_nothing_is_lost(opened: Callable[..., Load]) -> None:
    load = opened(lambda e, q: e.pipeline("p", q).bolt(number).into("s", "n BIGINT"), faults=True)
    load.queue.put(["1", "2"])
    load.storage.arm(1, within="worker")
    with pytest.raises(EngineError, match="PIPELINE_FAILED"):
        load.engine.advance()
    assert load.pipeline.account() == Account(0, 0, 0, 0, 0)
    load.storage.arm(0)
    load.engine.advance()
    assert rows(load.engine, "SELECT n FROM s") == [(1,), (2,)]
    assert load.pipeline.account() == Account(2, 2, 0, 0, 0)


@pytest.mark.parametrize("order", ["free", "key"])
def test_a_record_that_kills_python_is_a_dead_letter(
    opened: Callable[..., Load], tmp_path: Path, order: str
) -> None:
    def die(record: dict[str, Any]) -> dict[str, int]:
        if record["payload"] == b"die":
            os._exit(1)
        note(tmp_path / "calls", record["payload"].decode())
        return number(record)

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        made = engine.pipeline("p", queue, tuple_rows=8)
        made = made.bolt(die, max_attempts=2, retry_delay=0.0, order=order)
        return made.into("s", "n BIGINT")

    load = opened(build)
    load.queue.put([*map(str, range(21)), "die", *map(str, range(21, 40))], ["k"] * 41)
    load.run_out()
    assert load.pipeline.account() == Account(41, 40, 1, 0, 0)
    (letter,) = load.pipeline.dead_letters().collect()
    assert (letter.position, letter.bolt, letter.attempts) == (21, "worker", 2)
    assert rows(load.engine, "SELECT n FROM s") == [(n,) for n in range(40)]
    if order == "key":
        done = list(map(int, (tmp_path / "calls").read_text().split()))
        assert [n for n in done if n > 20] == list(range(21, 40))


def test_who_kills_python_takes_few_others_along(
    opened: Callable[..., Load], tmp_path: Path
) -> None:
    def die(record: dict[str, Any]) -> dict[str, int]:
        note(tmp_path / "calls", record["payload"].decode())
        if record["payload"] == b"die":
            os._exit(1)
        return number(record)

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        made = engine.pipeline("p", queue, lanes=2, tuple_rows=2)
        return made.bolt(die, max_attempts=3, retry_delay=0.0).into("s", "n BIGINT")

    load = opened(build)
    load.queue.put([*map(str, range(20)), "die", *map(str, range(20, 149))])
    load.run_out()
    assert load.pipeline.account() == Account(150, 149, 1, 0, 0)
    assert len(found(load)) == 149
    (told,) = load.engine.status()["pipelines"]
    acked = told["acker"]
    assert acked["started"] == sum(count for name, count in acked.items() if name != "started")
    assert acked["done"] > 0
    calls = load.calls()
    # its first attempt was in a wave with others; the two that follow were apart from new records
    assert max(calls[str(n)] for n in range(64)) <= 3
    assert {calls[str(n)] for n in range(64, 149)} == {1}


def test_what_is_joined_by_key_is_not_parted_by_a_death(opened: Callable[..., Load]) -> None:
    def join(records: list[dict[str, Any]]) -> dict[str, int]:
        if any(record["payload"] == b"die" for record in records):
            os._exit(1)
        return {"n": len(records)}

    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        made = engine.pipeline("p", queue, lanes=1, tuple_rows=100)
        made = made.bolt(join, by_key=True, order="key", retry_delay=0.0, max_attempts=2)
        return made.into("s", "n INT")

    load = opened(build)
    keys = ["a", "b", "c", "d", "e"]
    load.queue.put([*["1"] * 5, "2", "2", "die", "2", "2"], keys * 2)
    load.run_out()
    assert found(load) == [2, 2, 2, 2]
    assert load.pipeline.account() == Account(10, 8, 2, 0, 0)


def test_at_most_once_leaves_out_what_was_not_in_an_epoch(
    tmp_path: Path, spark: SparkSession
) -> None:
    def parsed(record: dict[str, Any]) -> dict[str, int]:
        return {"n": int(record["payload"])}

    files, folder = str(tmp_path / "storage"), FaultyFiles(str(tmp_path / "queue"))
    for words, fault in ((["1", "bad"], 1), (["2", "bad"], 0)):
        with (
            Engine(files, spark, Options(delivery="at_most_once")) as engine,
            closing(DataQueue(LogBackend(folder))) as queue,
        ):
            made = engine.pipeline("p", queue).bolt(parsed, max_attempts=1)
            pipeline = made.into("s", "n BIGINT")
            queue.put(words)
            folder.arm(fault)  # the queue's commit, behind the outcome
            if fault:
                with pytest.raises(EddylineError):
                    engine.advance()
                folder.arm(0)
                continue
            engine.advance()
            assert rows(engine, "SELECT n FROM s") == [(2,)]
            assert rows(engine, "SELECT position FROM p__dead") == [(1,), (3,)]
            assert pipeline.account() == Account(4, 2, 2, 0, 0)


def test_a_stream_of_a_queue_decodes_documents(tmp_path: Path, spark: SparkSession) -> None:
    folder = str(tmp_path / "queue")
    script = f"""
        CREATE STREAM visits (ts TIMESTAMP, url STRING, n BIGINT) USING queue
            OPTIONS (path '{folder}');
        CREATE VIEW pages AS SELECT url, sum(n) AS n, max(ts) AS last FROM visits GROUP BY url;
    """
    producer = Producer(LogBackend(folder))
    with Engine(tmp_path / "storage", spark) as engine:
        engine.execute(script)
        engine.execute(script.replace("CREATE VIEW", "CREATE OR REPLACE VIEW"))
        documents = [
            '{"ts": "2026-01-01T10:00:00", "url": "a", "n": 1}',
            '{"ts": "2026-01-01T12:00:00+01:00", "url": "a", "n": 2, "more": [1]}',
            '{"ts": "yesterday", "url": "a", "n": 2}',
            '{"url": "b", "n": "many"}',
            '{"url": ',
            '{"url":\n "b"}',
            "",
            '{"url": "c", "n": 1} {"url": "c", "n": 2}',
        ]
        producer.put(documents)
        engine.advance()
    with Engine(tmp_path / "storage", spark) as engine:  # the catalog connects it again
        producer.put(['{"url": "b", "n": 5}'])
        engine.advance()
        found = {row.url: (row.n, row.last) for row in engine.snapshot("pages").collect()}
        assert found == {"a": (3, datetime(2026, 1, 1, 11)), "b": (5, None)}
        letters = rows(engine, "SELECT position, bolt, attempts FROM visits__dead")
        assert letters == [(place, "decode", 1) for place in (2, 3, 4, 6, 7)]
        with pytest.raises(DataError, match="name no queue"):
            engine.create_stream("x", "a INT", "queue", {"folder": "x"})
        with pytest.raises(DataError, match="needs columns"):
            engine.create_stream("x", None, "queue", {"path": folder})
        engine.execute("DROP VIEW pages; DROP STREAM visits")
        assert not engine.catalog.entries
        assert not any(map(engine._workspace.files.names, ("logs", "pipelines")))


def test_dead_letters_from_the_command_line(
    opened: Callable[..., Load], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(engine: Engine, queue: DataQueue) -> Pipeline:
        def mended(record: dict[str, Any]) -> dict[str, int]:
            if (tmp_path / "mended").exists():
                return {"n": 0}
            return number(record)

        return engine.pipeline("p", queue).bolt(mended, max_attempts=1).into("s", "n BIGINT")

    def ask(*words: str) -> tuple[int, str, str]:
        action, *rest = words
        code = main(["deadletters", action, "--storage", load.storage.root, *rest])
        told = capsys.readouterr()
        return code, told.out, told.err

    load = opened(build)
    load.queue.put([b"1", b"two", b"three", b"\xff"])
    load.engine.advance()
    code, out, _ = ask("list")
    assert code == 0
    assert sorted(line.split()[1] for line in out.splitlines()[2:]) == ["1", "2", "3"]
    assert "ValueError: invalid literal" in out
    code, out, _ = ask("show", "p", "1")
    assert code == 0
    assert "payload   two" in out
    assert "payload   ff" in ask("show", "p", "3")[1]
    assert ask("show", "p", "7")[0] == 1
    assert ask("list", "q")[0] == 2

    note(tmp_path / "mended", "")
    load.engine.start(interval=0.05)
    assert ask("replay", "p", "1", "2")[:2] == (0, "replay p: done\n")
    assert ask("drop", "p", "--all")[:2] == (0, "drop p: done\n")
    until(lambda: load.pipeline.account() == Account(4, 4, 0, 0, 0), load.pipeline.account)
    load.engine.stop()
    with Engine(load.storage, load.spark) as engine:
        engine.advance()
        assert rows(engine, "SELECT n FROM s") == [(0,), (0,), (1,)]
    load.queue.close()
    code, _, err = ask("replay", "p", "--all")
    assert code == 0
    assert "waits for the engine, which does not run now" in err
    load.open()


@pytest.mark.kafka
def test_a_queue_on_kafka(tmp_path: Path, spark: SparkSession, broker: Broker) -> None:
    """Three partitions, keys in order through failures, and a second engine that goes on."""

    def effect(record: dict[str, Any]) -> dict[str, Any]:
        word = record["payload"].decode()
        if int(word.split("-")[1]) % 4 == 0 and record["attempts"] < 1:
            raise ValueError("chance")
        note(tmp_path / "calls", word)
        return {"word": word}

    sent: dict[str, list[str]] = {}
    for turn in range(2):
        with Engine(tmp_path / "storage", spark) as engine:
            backend = KafkaBackend(broker.address, "pipeline", partitions=3)
            with closing(DataQueue(backend)) as queue:
                made = engine.pipeline("p", queue, tuple_rows=5)
                pipeline = made.bolt(effect, order="key", retry_delay=0.0).into("s", "word STRING")
                for n in range(20 * turn, 20 * turn + 20):
                    for key in "abc":
                        sent.setdefault(key, []).append(f"{key}-{n}")
                    queue.put([f"{key}-{n}" for key in "abc"], list("abc"))
                engine.advance()
                assert pipeline.account() == Account(60 * turn + 60, 60 * turn + 60, 0, 0, 0)
                found = rows(engine, "SELECT word FROM s")
    done = (tmp_path / "calls").read_text().split()
    for key, words in sent.items():
        assert [word for word in done if word.startswith(key)] == words
    assert found == sorted((word,) for words in sent.values() for word in words)


@pytest.mark.kafka
def test_a_pipeline_goes_on_after_expired_records(
    tmp_path: Path, spark: SparkSession, broker: Broker
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})

    def expire(topic: str, before: int) -> None:
        at = TopicPartition(f"expiring.{topic}", 0, before)
        for future in admin.delete_records([at]).values():
            future.result(PATIENCE_S)

    def effect(record: dict[str, Any]) -> dict[str, int]:
        if record["attempts"] < 1 and int(record["payload"]) % 2:
            raise ValueError("chance")
        return {"n": int(record["payload"])}

    for turn in range(2):
        with (
            Engine(tmp_path / "storage", spark) as engine,
            closing(DataQueue(KafkaBackend(broker.address, "expiring"))) as queue,
        ):
            made = engine.pipeline("p", queue).bolt(effect, retry_delay=30.0)
            pipeline = made.into("s", "n BIGINT")
            if turn == 0:
                engine.view("v", "SELECT count(*) AS n FROM s")
                for n in range(10):
                    queue.put([str(n)])
                expire("eden", 4)
                engine.advance()
                assert pipeline.account() == Account(10, 3, 0, 3, 0, missed=4)
                expire("from", 1)
                continue
            queue.put(["10"])
            engine.advance()
            assert pipeline.account() == Account(11, 4, 0, 0, 0, missed=7)
            (status,) = engine.status()["pipelines"]
            assert status["missed"] == 7
            assert rows(engine, "SELECT n FROM s") == [(4,), (6,), (8,), (10,)]
            assert rows(engine, "SELECT n FROM v") == [(4,)]
            assert engine.verify().equal


# --- crashes ---


def crashing(engine: Engine, queue: DataQueue) -> Pipeline:
    def second(row: dict[str, int]) -> dict[str, int]:
        if row["n"] % 7 == 0:
            raise ValueError("seven")
        return row

    def first(record: dict[str, Any]) -> dict[str, int]:
        if record["attempts"] < 1 and int(record["payload"]) % 5 == 0:
            raise ValueError("chance")
        return number(record)

    made = engine.pipeline("p", queue, lanes=2, tuple_rows=4)
    made = made.bolt(first, retry_delay=0.0).bolt(second, retry_delay=0.0, max_attempts=2)
    made = made.into("s", "n BIGINT")
    engine.view("sums", "SELECT n % 3 AS k, count(*) AS c, sum(n) AS s FROM s GROUP BY n % 3")
    engine.view("dead", "SELECT bolt, count(*) AS c FROM p__dead GROUP BY bolt")
    return made


def check_numbers(load: Load, count: int) -> None:
    """Every number from 0 to `count` is in the view once, or a dead letter."""
    engine = load.engine
    good = [n for n in range(count) if n % 7]
    groups: dict[int, list[int]] = {}
    for n in good:
        groups.setdefault(n % 3, []).append(n)
    assert rows(engine, "SELECT * FROM sums") == sorted(
        (k, len(v), sum(v)) for k, v in groups.items()
    )
    assert rows(engine, "SELECT * FROM dead") == [("second", count - len(good))]
    assert load.queue.account() == Account(count, len(good), count - len(good), 0, 0)
    assert engine.verify()
    (folder,) = (Path(load.storage.root) / "pipelines").iterdir()
    assert {path.name for path in folder.iterdir()} == {"status.json", "history.json"}


@pytest.mark.parametrize("kind", ["crash", "fail"])
@pytest.mark.parametrize("where", ["storage", "folder"])
@pytest.mark.parametrize("faults", [3, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_fault_at_any_effect_loses_and_doubles_nothing(
    opened: Callable[..., Load], kind: str, where: str, faults: int
) -> None:
    load = opened(crashing, faults=True)
    files = getattr(load, where)
    count = 0

    def batch() -> None:
        nonlocal count
        load.queue.put([str(n) for n in range(count, count + 20)])
        count += 20

    batch()
    files.arm(0)
    load.run_out()
    total = len(files.effects())
    for fail_at in range(1, total + 1, max(1, total // faults)):
        batch()
        files.arm(fail_at, kind)
        try:
            load.run_out()
        except EddylineError:
            assert files.hit()
        hit = files.hit()
        files.arm(0)
        if kind == "crash" and hit:
            load.close()
            load.open()
        load.run_out()
    check_numbers(load, count)
