"""Delivery to sinks: what is delivered next after any crash, and a view's rows in a target."""

from __future__ import annotations

import doctest
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eddyline as el
import eddyline.sink.outbox
from eddyline.answers.delivery import CommittedChangelog, Delivery
from eddyline.catalog.entries import VIEW as VIEW_KIND
from eddyline.catalog.entries import Entry
from eddyline.changes import Epoch, ViewId
from eddyline.errors import StateError, StorageError
from eddyline.sink.cursors import Cursor, CursorFile, first_needed
from eddyline.sink.outbox import (
    NO_VIEW,
    Deliver,
    Outbox,
    Refuse,
    Snapshot,
    UpToDate,
    next_delivery,
)
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest, write_manifest
from eddyline.state.recover import open_storage
from eddyline.storage.files import Files
from eddyline.testing import Crash, FaultyFiles, MemorySink

HELD = 1024
VIEW = ViewId("v1")


def weighted(appended: Sequence[int], deleted: Sequence[int] = ()) -> pa.Table:
    """Changes in the form that sinks get."""
    counts = {n: appended.count(n) for n in appended} | {n: -deleted.count(n) for n in deleted}
    return pa.table(
        {
            "n": pa.array(list(counts), pa.int64()),
            "op": pa.array(["append" if c > 0 else "delete" for c in counts.values()], pa.string()),
            "w": pa.array(list(counts.values()), pa.int64()),
        }
    )


@dataclass
class Epochs:
    """A changelog whose epoch n appends n twice and deletes n - 1 once; every third is empty."""

    view: ViewId = VIEW
    last: int = 0
    oldest: int = 1

    def committed(self) -> Epoch:
        return Epoch(self.last)

    def retained(self) -> list[Epoch]:
        return [Epoch(n) for n in range(self.oldest, self.last + 1)]

    def holder(self, epoch: Epoch) -> ViewId:
        return self.view

    def holding(self, epoch: Epoch) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def count(self, epoch: Epoch) -> int:
        return (0, 1, 2)[epoch % 3]

    def changes(self, first: Epoch, last: Epoch) -> pa.Table:
        assert self.oldest <= first <= last <= self.last
        before, after = self.content(first - 1), self.content(last)
        net = {n: after.count(n) - before.count(n) for n in {*before, *after}}
        return weighted(
            [n for n, c in net.items() for _ in range(c)],
            [n for n, c in net.items() for _ in range(-c)],
        )

    def content(self, epoch: int) -> list[int]:
        held: list[int] = []
        for n in range(1, epoch + 1):
            if n % 3:
                held += [n, n]
            if n % 3 == 2:
                held.remove(n - 1)
        return held

    def rows(self, epoch: Epoch) -> pa.Table:
        return weighted(self.content(epoch))


@dataclass
class CrashingSink(MemorySink):
    """Dies at the n-th call that writes, before or after the target has it; 0: never."""

    dies_at: int = 0
    late: bool = False
    calls: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__()

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        self._dying(False)
        super().deliver(base, epoch, changes)
        self._dying(True)

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        self._dying(False)
        super().replace(base, epoch, rows)
        self._dying(True)

    def _dying(self, late: bool) -> None:
        self.calls += not late
        if self.calls == self.dies_at and late == self.late:
            self.dies_at = 0
            raise Crash("the process dies")


def held(sink: MemorySink) -> list[int]:
    return sorted(row[0] for row in sink.rows)


# -- the decision --------------------------------------------------------------------------


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(eddyline.sink.outbox).failed == 0


def at(epoch: int, view: ViewId = VIEW, until: int | None = None) -> Cursor:
    return Cursor(view, Epoch(epoch), until and Epoch(until))


@pytest.mark.parametrize(
    ("cursor", "target", "committed", "oldest", "wanted"),
    [
        (None, None, 0, 1, UpToDate()),
        (None, None, 7, 1, Snapshot(Epoch(7))),
        (at(5), 5, 5, 1, UpToDate()),
        (at(5), 5, 7, 1, Deliver(Epoch(6), Epoch(7))),
        (at(5), 5, 7, 6, Deliver(Epoch(6), Epoch(7))),
        (at(5), 5, 7, 7, Snapshot(Epoch(7))),
        (at(5, until=6), 6, 7, 1, Deliver(Epoch(7), Epoch(7))),  # a crash before the cursor's write
        (
            at(5, until=6),
            5,
            7,
            1,
            Deliver(Epoch(6), Epoch(6)),
        ),  # begun before a crash: the same again
        (at(5), 6, 7, 1, "SINK_TARGET_AHEAD"),  # the storage was restored, and has caught up
        (at(5, until=6), 7, 7, 1, "SINK_TARGET_AHEAD"),
        (at(5, NO_VIEW), 9, 7, 1, Snapshot(Epoch(7))),  # all rows are to be sent anew
        (at(5, NO_VIEW), None, 7, 1, Snapshot(Epoch(7))),
        (None, 6, 7, 1, Deliver(Epoch(7), Epoch(7))),  # the target is accepted as it is
        (at(5, ViewId("v0")), 5, 7, 1, Snapshot(Epoch(7))),
        (at(5), 4, 7, 1, "SINK_TARGET_RESTORED"),
        (at(5), None, 7, 1, "SINK_TARGET_RESTORED"),
        (at(5), 8, 7, 1, "SINK_TARGET_AHEAD"),
        (None, 1, 0, 1, "SINK_TARGET_AHEAD"),
    ],
)
def test_what_is_delivered_next(cursor, target, committed, oldest, wanted) -> None:
    retained = [Epoch(n) for n in range(oldest, committed + 1)]
    found = next_delivery(VIEW, cursor, target, Epoch(committed), retained)
    if isinstance(found, Refuse):
        assert found.error.condition == wanted
        assert found.error.hint
    else:
        assert found == wanted


class Replaced(Epochs):
    """The changelog of a view that has replaced one with other columns in its epoch 4."""

    def holder(self, epoch: Epoch) -> ViewId:
        return self.view if epoch >= 4 else NO_VIEW


@pytest.mark.parametrize("emptied", [False, True])
def test_all_rows_are_sent_anew_after_a_replacement_with_other_columns(
    tmp_path: Path, emptied: bool
) -> None:
    outbox, sink = Outbox(FaultyFiles(str(tmp_path)), "k1"), MemorySink()
    assert Delivery(Epochs(ViewId("v0"), 2), outbox, sink).run() == 2
    changelog = Replaced(VIEW, 5, oldest=4)
    sink = MemorySink() if emptied else sink  # such as a function's, which has no rows to ask for
    outbox.send_anew()
    assert Delivery(changelog, outbox, sink).run() == 5
    assert outbox.cursor() == at(5)
    assert held(sink) == sorted(changelog.content(5))


class Finding(MemorySink):
    """A sink whose target finds rows by some columns."""

    found_by: Sequence[str] | None = ("n",)

    @property
    def replaced(self) -> list[Epoch]:
        return [epoch for name, epoch in self.received if name == "replace"]


def test_all_rows_are_sent_anew_to_a_target_that_finds_them_otherwise(tmp_path: Path) -> None:
    outbox, sink = Outbox(FaultyFiles(str(tmp_path)), "k1"), Finding()

    def run(last: int) -> None:
        assert Delivery(Epochs(last=last), outbox, sink).run() == last
        assert held(sink) == sorted(Epochs(last=last).content(last))

    for last in (1, 2):
        run(last)
    assert sink.replaced == [1]
    sink.found_by = ("n", "other")
    run(4)
    sink.found_by = ("other", "n")  # the same columns
    run(5)
    assert sink.replaced == [1, 4]
    sink.found_by = None  # of a view whose changes delete nothing, unless it is replaced
    run(7)
    run(8)
    assert sink.replaced == [1, 4, 7, 8]
    assert outbox.cursor() == Cursor(VIEW, Epoch(8), found_by="null")
    outbox.advance(Cursor(VIEW, Epoch(8)))  # of an earlier version
    sink.found_by = ("n",)
    run(10)
    assert sink.replaced == [1, 4, 7, 8]


STEPS = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 5)),
    st.tuples(st.just("retire"), st.integers(1, 8)),
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("die before the target has it"), st.integers(1, 3)),
    st.tuples(st.just("die after the target has it"), st.integers(1, 3)),
    st.tuples(st.just("die in the cursor's write"), st.integers(1, 8)),
    st.tuples(st.just("lose the cursor"), st.just(0)),
    st.tuples(st.just("restore the target"), st.just(0)),
    st.tuples(st.just("make the view anew"), st.just(0)),
)


@pytest.mark.guarantee(
    "all sinks: their common part", "exactly once", "a crash at any step, in random orders"
)
@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_crashes_at_every_point_double_and_lose_nothing(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        files, changelog, sink = FaultyFiles(folder), Epochs(), CrashingSink()
        copies, views, restored = [(sink.epoch, dict(sink._held))], 1, False

        def check() -> None:
            assert held(sink) == sorted(changelog.content(sink.epoch or 0))

        for step, number in steps:
            if step == "commit":
                changelog.last += number
            elif step == "retire":
                changelog.oldest = min(changelog.oldest + number, max(changelog.last, 1))
            elif step == "lose the cursor":
                Outbox(files, "k1").forget()
            elif step == "restore the target":
                sink.epoch, sink._held = copies[len(copies) // 2]
            elif step == "make the view anew":
                views += 1
                changelog.view = ViewId(f"v{views}")
            else:
                sink.calls, sink.late = 0, "after" in step
                sink.dies_at = number if "target" in step else 0
                files.arm(number if "cursor" in step else 0, "crash")
                outbox = Outbox(files, "k1")
                before, target, refused = outbox.cursor(), sink.epoch, ""
                try:
                    each = bool(number % 2)
                    assert Delivery(changelog, outbox, sink, each=each).run() == (sink.epoch or 0)
                    assert sink.epoch in (None, changelog.last)
                except (Crash, StorageError):
                    assert step != "deliver"
                except StateError as error:
                    refused = error.condition
                if refused:
                    assert refused == "SINK_TARGET_RESTORED"
                    assert before is not None
                    assert (target or 0) < before.epoch
                    assert before.view == changelog.view
                    assert sink.epoch == target
                files.arm(0)
                copies.append((sink.epoch, dict(sink._held)))
            check()
        sink.dies_at, restored = 0, sink.epoch
        Outbox(files, "k1").forget()  # whatever the target is: go on from there
        Delivery(changelog, Outbox(files, "k1"), sink).run()
        assert sink.epoch == (changelog.last or restored)
        check()


def test_empty_epochs_are_left_out_but_for_the_last(tmp_path: Path) -> None:
    changelog, sink = Epochs(last=1), MemorySink()
    delivery = Delivery(changelog, Outbox(Files(str(tmp_path)), "k1"), sink, each=True)
    delivery.run()
    changelog.last = 6
    assert delivery.run() == 6
    assert delivery.run() == 6
    assert sink.received == [
        ("replace", 1),
        ("deliver", 2),
        ("deliver", 4),
        ("deliver", 5),
        ("deliver", 6),
    ]


def test_a_delivery_that_nobody_waits_for_leaves_the_cursor_to_the_next(tmp_path: Path) -> None:
    class Slow(MemorySink):
        """Takes so long that the next delivery begins, and ends, before the first one does."""

        def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
            super().deliver(base, epoch, changes)
            if not first.abandoned:
                first.abandoned, changelog.last = True, 7
                assert Delivery(changelog, outbox, self).run() == 7

    changelog, outbox, sink = Epochs(last=1), Outbox(Files(str(tmp_path)), "k1"), Slow()
    first = Delivery(changelog, outbox, sink)
    first.run()
    changelog.last = 5
    first.run()
    assert outbox.cursor() == at(7)
    assert held(sink) == sorted(changelog.content(7))


# -- the cursor, and what it holds back ------------------------------------------------------


def test_the_cursor_is_whole_or_not_there(tmp_path: Path) -> None:
    outbox = Outbox(Files(str(tmp_path)), "k1")
    assert outbox.cursor() is None
    outbox.advance(at(3))
    assert outbox.cursor() == at(3)
    path = tmp_path / "sinks/k1/cursor.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + b"9}")
    with pytest.raises(StateError, match=r"cursor\.json") as error:
        outbox.cursor()
    assert error.value.condition == "DAMAGED_FILE"
    outbox.forget()
    assert outbox.cursor() is None
    outbox.files.make_folder("sinks/k1")
    outbox.files.write_json("sinks/k1/cursor.json", {"format": 2, "view": "v1", "epoch": 3})
    with pytest.raises(StateError) as error:
        outbox.cursor()
    assert error.value.condition == "NEWER_FORMAT"


def test_a_cursor_may_be_written_by_several_at_once(tmp_path: Path) -> None:
    """As by two programs that follow a view under one name."""
    cursors = [CursorFile(Files(str(tmp_path)), "readers/v/r") for _ in range(4)]

    def advance(cursor: CursorFile) -> None:
        for epoch in range(50):
            cursor.advance(at(epoch + 1))

    with ThreadPoolExecutor(len(cursors)) as pool:
        for done in [pool.submit(advance, cursor) for cursor in cursors]:
            done.result()
    assert cursors[0].cursor() == at(50)
    left = tmp_path / "readers/v/r/cursor.json.0.tmp"
    left.touch()
    os.utime(left, (1, 1))
    cursors[0].advance(at(51))
    assert [path.name for path in left.parent.iterdir()] == ["cursor.json"]


def test_the_slowest_sink_holds_epochs_up_to_a_limit(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    assert first_needed(files, Epoch(9), HELD) is None
    Outbox(files, "k1").advance(at(7))
    Outbox(files, "k2").advance(at(5))
    assert first_needed(files, Epoch(9), HELD) == 6
    assert first_needed(files, Epoch(5 + HELD), HELD) == 6
    assert first_needed(files, Epoch(6 + HELD), HELD) == 7
    Outbox(files, "k2").forget()
    assert first_needed(files, Epoch(9), HELD) == 8


def test_a_cursor_that_cannot_be_read_holds_epochs_and_stops_none(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    Outbox(files, "k1").advance(at(7))
    (tmp_path / "sinks" / "k1" / "cursor.json").write_text("damaged")
    assert first_needed(files, Epoch(9), HELD) == 1
    assert first_needed(files, Epoch(6 + HELD), HELD) == 7


def test_epochs_are_flushed_before_they_are_delivered(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    files.unflushed = ("epochs/", "manifests/")
    open_storage(files, writable=True)
    write_manifest(files, Manifest(Epoch(1)))
    changelog = CommittedChangelog(files, Entry("v1", VIEW_KIND, "v", '{"fields": []}'))
    files.arm(0)
    assert changelog.committed() == 1
    assert "sync manifests/000000000001.json" in files.effects()
    files.arm(0)
    assert changelog.committed() == 1
    assert files.effects() == []


# -- with an engine --------------------------------------------------------------------------

QUERY = "SELECT item, count(*) AS n, sum(v) AS total FROM sales GROUP BY item"


def opened(folder: Path, spark, **options) -> tuple[el.Engine, el.Table]:
    engine = el.Engine(str(folder), spark, el.Options(**options))
    sales = engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
    engine.view("totals", QUERY)
    engine.view("items", "SELECT item FROM sales ORDER BY item LIMIT 3")
    return engine, sales


def delivery(
    engine: el.Engine, sink: MemorySink, view: str = "totals", files: Files | None = None
) -> Delivery:
    used = files or engine.files
    return Delivery(
        CommittedChangelog(used, engine.catalog.get(view)),
        Outbox(used, f"k-{view}"),
        sink,
        each=True,
    )


def assert_follows(engine: el.Engine, sink: MemorySink, view: str = "totals") -> None:
    snapshot = engine.snapshot(view, sink.epoch).collect()
    # as text, in which NaN equals NaN
    assert sorted(map(repr, sink.rows)) == sorted(repr(tuple(row)) for row in snapshot)


@pytest.mark.spark
def test_a_sink_follows_a_view(tmp_path: Path, spark) -> None:
    engine, sales = opened(tmp_path / "s", spark)
    totals, items = MemorySink(), MemorySink()
    sales.insert([(1, "tea", 1.0), (2, "tea", 2.0), (3, "milk", float("nan"))])
    engine.advance()
    with engine:
        for batch in (
            lambda: None,
            lambda: sales.insert([(4, None, 3.0), (5, "tea", 0.5), (6, "tea", None)]),
            lambda: sales.delete([{"id": 1, "item": "", "v": 0.0}]),
            lambda: sales.upsert([(3, "tea", 4.0)]),
            lambda: engine.execute("DELETE FROM sales WHERE item = 'tea'"),
        ):
            batch()
            epoch = engine.advance()
            for sink, view in ((totals, "totals"), (items, "items")):
                assert delivery(engine, sink, view).run() == epoch == sink.epoch
                assert_follows(engine, sink, view)
        assert [call for call, _ in totals.received] == ["replace"] + ["deliver"] * 4


@pytest.mark.spark
def test_a_crash_between_delivery_and_cursor_doubles_nothing(tmp_path: Path, spark) -> None:
    engine, sales = opened(tmp_path / "s", spark)
    files, sink = FaultyFiles(engine.files.root), MemorySink()
    sales.insert([(1, "tea", 1.0)])
    engine.advance()
    delivery(engine, sink).run()
    for number in range(2, 5):
        sales.insert([(number, "tea", 1.0)])
        engine.advance()
    files.arm(0)
    Outbox(files, "k-other").advance(at(1))
    files.arm(len(files.effects()) + 1, "crash")  # in the second write of the cursor
    with pytest.raises(StorageError):
        delivery(engine, sink, files=files).run()
    cursor = Outbox(engine.files, "k-totals").cursor()
    assert sink.epoch == cursor.until == cursor.epoch + 1
    engine.stop()
    engine, sales = opened(tmp_path / "s", spark)
    with engine:
        assert delivery(engine, sink).run() == engine.advance()
        assert_follows(engine, sink)
        sales.insert([(9, "milk", 2.0)])
        engine.advance()
        delivery(engine, sink).run()
        assert_follows(engine, sink)
    epochs = [epoch for _, epoch in sink.received]
    assert epochs == sorted(set(epochs))


@pytest.mark.spark
def test_an_absent_sink_catches_up_and_a_forgotten_one_gets_a_snapshot(
    tmp_path: Path, spark
) -> None:
    # no lease: the DataFrame that is compared would hold its epoch until the JVM collects it
    engine, sales = opened(tmp_path / "s", spark, retain_epochs=2, lease_seconds=0)
    with engine:
        sink, late = MemorySink(), MemorySink()
        sales.insert([(0, "tea", 1.0)])
        first = engine.advance()
        delivery(engine, sink).run()
        for number in range(1, 18):
            sales.upsert([(number % 5, f"item {number % 3}", float(number))])
            last = engine.advance()
        assert committed_epochs(engine.files)[0] == first + 1  # held for the sink
        delivery(engine, sink).run()
        assert [call for call, _ in sink.received] == ["replace"] + ["deliver"] * (last - first)
        assert_follows(engine, sink)
        # from here on nothing is held for it
        late.epoch, late._held = Epoch(last), dict(sink._held)
        Outbox(engine.files, "k-totals").forget()
        for number in range(18, 36):
            sales.upsert([(number % 5, f"item {number % 3}", float(number))])
            engine.advance()
        with pytest.raises(StateError):
            read_manifest(engine.files, last + 1)
        delivery(engine, late).run()
        assert [call for call, _ in late.received] == ["replace"]
        assert_follows(engine, late)


@pytest.mark.spark
def test_a_forgotten_cursor_of_a_replaced_view_gets_a_snapshot(tmp_path: Path, spark) -> None:
    engine, sales = opened(tmp_path / "s", spark)
    sink = MemorySink()
    with engine:
        sales.insert([(1, "tea", 1.0), (2, "milk", 2.0)])
        engine.advance()
        delivery(engine, sink).run()
        engine.view("totals", QUERY + " HAVING count(*) > 0", replace=True)
        Outbox(engine.files, "k-totals").forget()
        sales.insert([(3, "tea", 1.0)])
        engine.advance()
        delivery(engine, sink).run()
        assert_follows(engine, sink)
