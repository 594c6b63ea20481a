"""When the console tells Spark to end a query, and in which thread."""

# ruff: noqa: N802  # names of Spark's API

from __future__ import annotations

import threading

import pytest

from eddyline.answers.questions import Question
from waiting import PATIENCE_S, until

pytest.importorskip("anyio")

import anyio

from eddyline.console import queries
from eddyline.console.queries import Queries


class Jvm:
    """Spark's side of a query: a session, its context, and a frame, which waits until its jobs are cancelled."""

    def __init__(self, blocks: bool) -> None:
        self.cancelled: list[threading.Thread] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        if not blocks:
            self.gate.set()

    @property
    def sparkSession(self) -> Jvm:
        return self

    @property
    def sparkContext(self) -> Jvm:
        return self

    def limit(self, rows: int) -> Jvm:
        return self

    def setJobGroup(self, *_: object, **__: object) -> None:
        pass

    def setLocalProperty(self, *_: object) -> None:
        pass

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(threading.current_thread())
        self.gate.set()

    def use(self, *_: object) -> str:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return "used"


class Reader:
    """A request whose reader stays."""

    def __init__(self) -> None:
        self.looks = 0

    async def is_disconnected(self) -> bool:
        self.looks += 1
        return False


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eddyline.answers.questions.spark_answer", lambda frame: frame)


async def asked(jvm: Jvm) -> str:
    question = Question(lambda _: jvm, "SELECT 1")  # type: ignore[arg-type,return-value]
    console = Queries(None, anyio.CapacityLimiter(1), None)  # type: ignore[arg-type]
    return await console._in_spark(Reader(), question, jvm.use, 10)  # type: ignore[arg-type]


def test_spark_is_not_asked_to_end_a_query_that_was_answered() -> None:
    jvm = Jvm(blocks=False)
    assert anyio.run(asked, jvm) == "used"
    assert jvm.cancelled == []


def test_the_start_of_spark_does_not_count_as_time_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "LOOK_S", 0.01)
    monkeypatch.setattr(queries, "SECONDS_MAX", 0.02)
    jvm, reader = Jvm(blocks=False), Reader()

    def started(_: str) -> Jvm:
        until(lambda: reader.looks > 10)
        monkeypatch.setattr(queries, "SECONDS_MAX", PATIENCE_S)
        return jvm

    async def asked_at_once() -> str:
        console = Queries(None, anyio.CapacityLimiter(1), None)  # type: ignore[arg-type]
        question = Question(started, "SELECT 1")  # type: ignore[arg-type]
        return await console._in_spark(reader, question, jvm.use, 10)  # type: ignore[arg-type]

    assert anyio.run(asked_at_once) == "used"
    assert jvm.cancelled == []


def test_a_query_under_way_is_ended_beside_the_event_loop() -> None:
    """The JVM may take long to answer, and other readers wait for the loop."""
    jvm = Jvm(blocks=True)

    async def serve() -> None:
        async with anyio.create_task_group() as console:
            console.start_soon(asked, jvm)
            await anyio.to_thread.run_sync(jvm.begun.wait)
            console.cancel_scope.cancel()

    anyio.run(serve)
    (thread,) = jvm.cancelled
    assert thread is not threading.current_thread()
