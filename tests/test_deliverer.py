"""The thread of a sink: what it still does once it is to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from eddyline.answers.deliverer import STOP_S, Deliverer
from eddyline.answers.delivery import Delivery
from eddyline.api.sinks import WAIT_S, Sinks
from eddyline.changes import Epoch, ViewId
from eddyline.errors import StorageError
from eddyline.sink.cursors import Cursor
from eddyline.sink.outbox import NotesFile, Outbox
from eddyline.storage.files import Files
from eddyline.testing import MemorySink
from test_sinks import VIEW, Epochs, held
from waiting import PATIENCE_S, until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a blocked call waits for; open at the end."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(Files(str(tmp_path)), "k1")


def started(open_delivery: Callable[[], Delivery], **others: Callable) -> Deliverer:
    return Deliverer("k", open_delivery, 0, lambda _: None, **others)


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("point", ["open", "committed", "rows", "changes"])
def test_nothing_is_delivered_once_a_sink_has_stopped(
    gate: threading.Event, outbox: Outbox, point: str, given_up: bool
) -> None:
    """Wherever it was before the delivery began: no rows, and no cursor, which would hold epochs."""
    blocked = threading.Event()

    def wait(at: str) -> None:
        if at == point:
            blocked.set()
            gate.wait(PATIENCE_S)

    class Target(MemorySink):
        def committed(self) -> Epoch | None:
            wait("committed")
            return super().committed()

    class Changelog(Epochs):
        def rows(self, epoch: Epoch) -> pa.Table:
            wait("rows")
            return super().rows(epoch)

        def changes(self, first: Epoch, last: Epoch) -> pa.Table:
            wait("changes")
            return super().changes(first, last)

    target = Target()
    if point == "changes":  # the target holds an epoch, so that it gets those after it
        Delivery(Epochs(last=1), outbox, target).run()
    before, received = outbox.cursor(), list(target.received)

    def open_delivery() -> Delivery:
        wait("open")
        return Delivery(Changelog(last=5), outbox, target)

    deliverer = started(open_delivery)
    assert blocked.wait(PATIENCE_S)
    deliverer.stop()
    if given_up:
        deliverer.finish(0.01)
        gate.set()
        until(lambda: not deliverer._thread.is_alive())
    else:
        gate.set()
        deliverer.finish(PATIENCE_S)
        assert not deliverer._abandoned
    assert target.received == received
    assert outbox.cursor() == before


def test_a_delivery_under_way_ends_but_writes_nothing_once_nobody_waits_for_it(
    gate: threading.Event, outbox: Outbox
) -> None:
    blocked = threading.Event()

    class Slow(MemorySink):
        def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
            blocked.set()
            gate.wait(PATIENCE_S)
            super().replace(base, epoch, rows)

    target = Slow()
    deliverer = started(lambda: Delivery(Epochs(last=5), outbox, target))
    assert blocked.wait(PATIENCE_S)
    assert outbox.cursor() == Cursor(ViewId(""), Epoch(0), Epoch(5))
    deliverer.stop()
    deliverer.finish(0.01)
    outbox.forget()
    gate.set()
    until(lambda: not deliverer._thread.is_alive())
    assert held(target) == sorted(Epochs().content(5))
    assert outbox.cursor() is None


def test_a_sink_that_fails_after_it_was_given_up_notes_nothing(gate: threading.Event) -> None:
    blocked, noted = threading.Event(), []

    def open_delivery() -> Delivery:
        blocked.set()
        gate.wait(PATIENCE_S)
        raise OSError("no answer")

    deliverer = started(open_delivery, note=noted.append)
    assert blocked.wait(PATIENCE_S)
    deliverer.stop()
    deliverer.finish(0.01)
    gate.set()
    until(lambda: not deliverer._thread.is_alive())
    assert noted == []


def test_giving_a_sink_up_waits_for_a_note_that_is_written(gate: threading.Event) -> None:
    """Else the file could come again after the sink's folder was removed."""
    writing, noted = threading.Event(), []

    def note(error: Exception | None) -> None:
        writing.set()
        gate.wait(PATIENCE_S)
        noted.append(error)

    def open_delivery() -> Delivery:
        raise OSError("no answer")

    deliverer = started(open_delivery, note=note)
    assert writing.wait(PATIENCE_S)
    giving_up = threading.Thread(target=deliverer.abandon)
    giving_up.start()
    giving_up.join(0.2)
    assert giving_up.is_alive()
    gate.set()
    giving_up.join(PATIENCE_S)
    assert len(noted) == 1
    deliverer.finish(PATIENCE_S)


def test_a_target_that_is_ahead_does_not_write_the_cursor_of_a_sink_that_was_given_up(
    outbox: Outbox,
) -> None:
    target = MemorySink()
    Delivery(Epochs(last=5), outbox, target).run()
    outbox.forget()
    delivery = Delivery(Epochs(last=5), outbox, target)
    delivery.abandon()
    assert delivery.run() == 5
    assert outbox.cursor() is None
    assert Delivery(Epochs(last=5), outbox, target).run() == 5
    assert outbox.cursor() == Cursor(VIEW, Epoch(5))


def test_the_next_threads_of_a_sink_wait_for_the_first_one(
    gate: threading.Event,
    outbox: Outbox,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else two deliveries run at once, however long the first one takes."""
    monkeypatch.setattr("eddyline.answers.deliverer.STOP_S", 0.01)
    blocked = threading.Event()

    class Slow(MemorySink):
        def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
            blocked.set()
            gate.wait(PATIENCE_S)
            super().replace(base, epoch, rows)

    target, opened = Slow(), []

    def open_again() -> Delivery:
        opened.append(first._thread.is_alive())
        return Delivery(Epochs(last=7), outbox, target)

    first = started(lambda: Delivery(Epochs(last=5), outbox, target))
    assert blocked.wait(PATIENCE_S)
    first.stop()
    second = started(open_again, previous=first)
    until(lambda: "waits for the end of an earlier delivery" in caplog.text)
    second.stop()
    third = started(open_again, previous=second)
    time.sleep(0.1)
    assert opened == []
    gate.set()
    until(lambda: third.epoch == 7)
    assert opened == [False]
    assert target.received == [("replace", 5), ("deliver", 7)]
    assert outbox.cursor() == Cursor(VIEW, Epoch(7))
    third.stop()
    third.finish(PATIENCE_S)
    assert not third._thread.is_alive()


def test_notes_of_a_sink_that_was_dropped_are_refused(outbox: Outbox) -> None:
    """Else the delivery under way would make the folder of the sink again."""
    files, notes = outbox.files, NotesFile(outbox.files, "k1")
    outbox.advance(Cursor(VIEW, Epoch(0)))
    notes.write(["refused"])
    assert notes.read() == ["refused"]
    files.remove("sinks/k1")
    with pytest.raises(StorageError):
        notes.write(["refused"])
    assert files.names("sinks") == []


class Clock:
    """A clock that only moves when something waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Silent(Deliverer):
    """One whose target never answers: each wait for it takes all the time that it is given."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def wait(self, epoch: Epoch, timeout_s: float) -> bool:
        self.clock.pass_by(timeout_s)
        return False

    def stop(self) -> None:
        pass

    def finish(self, timeout_s: float) -> None:
        self.clock.pass_by(timeout_s)


def test_sinks_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit for all of them, not one for each."""
    clock = Clock()
    monkeypatch.setattr("eddyline.api.sinks.time", clock)
    sinks = Sinks(None, lambda _: None, lambda _: None)  # type: ignore[arg-type]  # it isn't asked
    sinks._deliverers = {f"k{number}": Silent(clock) for number in range(8)}
    began = clock.now
    sinks.wait(1)
    assert clock.now - began == WAIT_S
    sinks.stop()
    assert clock.now - began == WAIT_S + STOP_S


def test_an_error_without_a_text_ends_no_thread() -> None:
    """It is noted by its class, and the sink tries again."""

    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def open_delivery() -> Delivery:
        raise SpeechlessError

    noted: list[object] = []
    deliverer = started(open_delivery, note=noted.append)
    until(lambda: deliverer.failures > 1)
    deliverer.stop()
    assert [type(error) for error in noted] == [SpeechlessError]
