"""Several threads write to a table while epochs run: nothing waits for an epoch, and nothing is lost."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.errors import StorageError
from eddyline.source.group_commit import GroupCommit
from eddyline.source.redo_log import RedoLog
from waiting import until


def together(works: Sequence[Callable[[], object]]) -> list[BaseException]:
    """Run functions in threads until they end; return what they have raised."""
    raised: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_threads_that_wait_are_written_together_in_their_order() -> None:
    lock, groups = threading.Lock(), []
    group = GroupCommit[int](lock, groups.append)
    with lock:
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=group.write, args=(number,)))
            threads[-1].start()
            until(lambda count=number + 1: len(group._waiting) == count)
    for thread in threads:
        thread.join()
    assert groups == [[0, 1, 2, 3, 4]]
    group.write(5)
    assert groups == [[0, 1, 2, 3, 4], [5]]


@pytest.mark.parametrize("broken", [ValueError("full"), KeyboardInterrupt()])
def test_all_whose_write_fails_are_told(broken: BaseException) -> None:
    lock = threading.Lock()

    def fail(_: object) -> None:
        raise broken

    group = GroupCommit[int](lock, fail)
    with lock:
        works = [lambda: group.write(1), lambda: group.write(2)]
        found: list[BaseException] = []
        threads = [
            threading.Thread(target=lambda work=work: found.extend(together([work])))
            for work in works
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(group._waiting) == 2)
    for thread in threads:
        thread.join()
    if isinstance(broken, ValueError):
        assert found == [broken, broken]
    else:  # one thread was interrupted, the other can't know what was written
        assert {type(error) for error in found} == {KeyboardInterrupt, StorageError}


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(str(tmp_path / "s"), spark) as made:
        yield made


@pytest.mark.spark
def test_an_insert_does_not_wait_for_the_epoch_that_runs(engine: el.Engine, tmp_path: Path) -> None:
    gate, began = str(tmp_path / "gate"), tmp_path / "began"

    def held(n: int) -> int:
        Path(began).touch()
        while not Path(gate).exists():
            time.sleep(0.01)
        return n

    engine.spark.udf.register("held", held, "bigint")
    table = engine.table("t", "n BIGINT")
    other = engine.table("other", "n BIGINT")
    view = engine.view("v", "SELECT sum(held(n)) AS n FROM t")
    table.insert([(1,)])
    engine.start(0.01)
    try:
        until(began.exists)  # the epoch runs, and goes on until the gate opens
        table.insert([(10,)])
        table.insert([(100,), (1000,)])
        table.delete([(100,)])
        other.insert([(5,)])
        engine.execute("INSERT INTO t VALUES (10000)")
        assert view.snapshot().collect() == [(None,)]  # the epoch still runs
    finally:
        Path(gate).touch()
    until(lambda: view.snapshot().collect() == [(11011,)])
    engine.stop()


@pytest.mark.spark
def test_updates_and_inserts_of_many_threads_come_one_after_the_other(
    engine: el.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[int] = []
    original = RedoLog.append_tables

    def counted(log: RedoLog, tables: list[object]) -> None:
        entries.append(len(tables))
        original(log, tables)

    monkeypatch.setattr(RedoLog, "append_tables", counted)
    table = engine.table("t", "k INT, n BIGINT", primary_key=("k",))
    view = engine.view("v", "SELECT count(*) AS rows, sum(n) AS n FROM t")
    table.insert([(0, 0)])
    engine.advance()
    engine.start(0.01)

    def insert(thread: int) -> None:
        for number in range(1, 21):
            table.insert([(thread, number), (1000 * thread + number, 1)])

    def replace() -> None:
        for number in range(1, 21):
            table.insert([(0, 1000 * number)])

    def update() -> None:
        for _ in range(4):
            engine.execute("UPDATE t SET n = n + 1 WHERE k = 0")

    works = [replace, update, *(lambda thread=thread: insert(thread) for thread in range(1, 7))]
    assert together(works) == []
    engine.advance()
    rows = {row.k: row.n for row in table.snapshot().collect()}
    assert {k: n for k, n in rows.items() if k and k < 1000} == dict.fromkeys(range(1, 7), 20)
    assert sum(k > 1000 for k in rows) == 120
    assert rows[0] // 1000 == 20  # an update after it has added something, none has undone it
    assert rows[0] % 1000 <= 4
    assert view.snapshot().collect() == [(len(rows), sum(rows.values()))]
    assert engine.verify()
    assert len(entries) <= 1 + 4 + 7 * 20


@pytest.mark.spark
@pytest.mark.parametrize("change", ["ALTER TABLE t ADD COLUMN s STRING", "DROP TABLE t"])
def test_rows_are_in_the_changed_table_or_their_insert_fails(
    engine: el.Engine, change: str
) -> None:
    table = engine.table("t", "n BIGINT")
    begun, told = threading.Event(), []
    inserted = [0] * 4

    def insert(place: int) -> None:
        try:
            for number in range(1_000_000):
                table.insert([(number,)])
                inserted[place] += 1
                if number == 5:
                    begun.set()
        except el.EddylineError as error:
            told.append(error.condition)

    def alter() -> None:
        begun.wait()
        engine.execute(change)

    assert together([alter, *(lambda place=place: insert(place) for place in range(4))]) == []
    if change.startswith("DROP"):
        assert set(told) <= {"NOT_FOUND", "BEING_ALTERED"}
        assert engine.show("table").collect() == []
    else:
        assert set(told) <= {"BEING_ALTERED", "WRONG_WIDTH"}
        engine.advance()
        assert engine.table("t", "n BIGINT, s STRING").snapshot().count() == sum(inserted)


@pytest.mark.spark
def test_windowing_without_a_relation_is_refused_as_elsewhere(engine: el.Engine) -> None:
    engine.table("t", "at TIMESTAMP, n BIGINT")
    with pytest.raises(el.ScriptError, match="needs one timestamp column") as refused:
        engine.execute(
            "INSERT INTO t SELECT at, count(*) FROM VALUES (now()) AS x(at) GROUP BY at WINDOWING 60 s"
        )
    assert refused.value.condition == "SCRIPT_SYNTAX"


@pytest.mark.spark
def test_a_dropped_table_leaves_no_group(engine: el.Engine) -> None:
    for name in ("t", "u"):
        engine.table(name, "n BIGINT").insert([(1,)])
    assert len(engine.writing._groups) == 2
    engine.execute("DROP TABLE t")
    gc.collect()
    assert len(engine.writing._groups) == 1
