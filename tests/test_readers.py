"""Who reads a view over time: changes after an epoch, readers with a name, views that are replaced."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import eddyline as el
import eddyline.api.epochs
from eddyline.state.manifest import committed_epochs
from waiting import until

pytestmark = pytest.mark.spark

QUERY = "SELECT v, count(*) AS n FROM t GROUP BY v"


@pytest.fixture(autouse=True)
def _retiring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eddyline.api.epochs, "RETIRE_EVERY", 1)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "storage")


@pytest.fixture
def engine(storage: str, spark: SparkSession) -> Iterator[el.Engine]:
    with opened(storage, spark) as made:
        yield made


def opened(storage: str, spark: SparkSession, **options: int) -> el.Engine:
    # DataFrames hold no epochs here: when the JVM collects them is not for these tests to know
    settings = {"retain_epochs": 2, "lease_seconds": 0, **options}
    engine = el.Engine(storage, spark, el.Options(**settings))
    engine.table("t", "v INT")
    engine.view("counts", QUERY)
    return engine


def advance(engine: el.Engine, *values: int) -> int:
    """Insert one row an epoch; return the last epoch."""
    epoch = 0
    for value in values:
        engine.table("t", "v INT").insert([(value,)])
        epoch = engine.advance()
    return epoch


def rows(frame) -> list[tuple]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def apply(held: Counter, changes) -> Counter:
    """Apply changes in retract form to rows; no row may be deleted that isn't there."""
    ordered = sorted(changes.collect(), key=lambda row: (row.epoch, row.op != "delete"))
    for *values, operation, _ in ordered:
        held[tuple(values)] += 1 if operation == "append" else -1
        assert held[tuple(values)] >= 0, f"{values} is deleted, but not there"
    return +held


def refused(call) -> str:
    with pytest.raises(el.StateError) as error:
        call()
    assert error.value.condition == "CHANGES_EXPIRED"
    return str(error.value)


# -- changes after an epoch --------------------------------------------------------------------


def test_changes_after_an_expired_epoch_are_refused(engine, spark):
    view = engine.view("counts", QUERY)
    first = advance(engine, 1)
    last = advance(engine, 1, 2, 1, 3)
    text = refused(lambda: view.changes(after=first))
    assert f"changes(after={last})" in text  # the way out
    oldest = committed_epochs(engine.files)[0]
    refused(lambda: view.changes(after=oldest - 2))
    now = Counter(tuple(row) for row in view.snapshot().collect())
    then = Counter(tuple(row) for row in view.snapshot(oldest).collect())
    assert apply(then, view.changes(after=oldest)) == now
    assert apply(Counter(), view.changes()) == now
    assert rows(view.changes(after=last)) == []


def test_changes_after_an_epoch_to_come_are_refused(engine):
    view = engine.view("counts", QUERY)
    last = advance(engine, 1)
    for reader in (None, "r"):
        assert rows(view.changes(after=last, reader=reader)) == []
        with pytest.raises(el.StateError, match=rf"the last epoch is {last}") as error:
            view.changes(after=last + 1, reader=reader)
        assert error.value.condition == "NO_SUCH_EPOCH"
    assert [one["epoch"] for one in engine.status()["readers"]] == [last]
    assert advance(engine, 2) == last + 1
    assert rows(view.changes(after=last + 1)) == []


# -- readers with a name -----------------------------------------------------------------------


def test_a_reader_gets_each_change_once(engine):
    view = engine.view("counts", QUERY)
    advance(engine, 1, 2)
    held = apply(Counter(), view.changes(reader="r"))
    view.commit("r")
    first = engine.status()["epoch"]
    advance(engine, 1, 3, 3, 1, 4, 5)  # more than are retained for others
    assert committed_epochs(engine.files)[0] == first + 1
    # read twice before it is committed: the same changes
    assert rows(view.changes(reader="r")) == rows(view.changes(reader="r"))
    held = apply(held, view.changes(reader="r"))
    assert held == Counter(tuple(row) for row in view.snapshot().collect())
    view.commit("r")
    assert rows(view.changes(reader="r")) == []
    advance(engine, 9, 9, 9)
    assert committed_epochs(engine.files)[0] <= first + 7


def test_a_reader_goes_on_after_a_restart_and_in_another_engine(storage, spark):
    with opened(storage, spark) as engine:
        view = engine.view("counts", QUERY)
        advance(engine, 1)
        held = apply(Counter(), view.changes(reader="r"))
        view.commit("r", engine.status()["epoch"])
        advance(engine, 1, 2, 3, 4)
    with opened(storage, spark) as engine:
        view = engine.view("counts", QUERY)
        advance(engine, 5, 6, 7)
        held = apply(held, view.changes(reader="r"))
        assert held == Counter(tuple(row) for row in view.snapshot().collect())


def test_a_reader_of_a_quiet_view_does_not_hold_epochs_it_has_seen(engine):
    engine.table("other", "v INT")
    view = engine.view("quiet", "SELECT * FROM other")
    assert rows(view.changes(reader="r")) == []
    advance(engine, *range(6))
    assert rows(view.changes(reader="r")) == []
    advance(engine, *range(6))
    seen = engine.status()["readers"]
    assert seen == [{"view": "quiet", "reader": "r", "epoch": seen[0]["epoch"], "behind": 6}]
    oldest = committed_epochs(engine.files)[0]
    assert oldest == seen[0]["epoch"] + 1


def test_a_position_of_the_callers_own_wins(engine):
    """As of a sink, whose target stores the epoch together with the rows."""
    view = engine.view("counts", QUERY)
    first = advance(engine, 1)
    held = Counter(tuple(row) for row in view.snapshot().collect())
    view.changes(after=first, reader="r")
    last = advance(engine, 2, 1, 2)
    again = Counter(held)
    assert apply(held, view.changes(reader="r")) == apply(
        again, view.changes(after=first, reader="r")
    )
    view.changes(after=last, reader="r")
    assert engine.status()["readers"][0]["epoch"] == last
    with pytest.raises(el.StateError) as error:
        view.commit("r", last + 1)
    assert error.value.condition == "NO_SUCH_EPOCH"


def test_a_reader_past_its_limit_is_told(storage, spark):
    with opened(storage, spark, held_epochs=4) as engine:
        view = engine.view("counts", QUERY)
        first = advance(engine, 1)
        view.changes(after=first, reader="r")
        advance(engine, 1, 2, 3, 4)
        assert committed_epochs(engine.files)[0] == first + 1
        view.changes(reader="r")
        advance(engine, 5, 6)
        text = refused(lambda: view.changes(reader="r"))
        assert "held_epochs" in text
        last = engine.status()["epoch"]
        held = Counter(tuple(row) for row in view.snapshot(last).collect())
        view.commit("r", last)  # the way out: read a snapshot, and go on from its epoch
        advance(engine, 5, 6)
        held = apply(held, view.changes(reader="r"))
        assert held == Counter(tuple(row) for row in view.snapshot().collect())


def test_held_bytes_are_limited_too(storage, spark):
    with opened(storage, spark, held_bytes=10 << 20, compaction_fan_in=2) as engine:
        view = engine.view("counts", QUERY)
        first = advance(engine, 1)
        view.changes(after=first, reader="r")
        for _ in range(8):  # each changes all rows, and none of the old runs stays
            engine.table("t", "v INT").insert([(value,) for value in range(20_000)])
            engine.advance()
        assert "held_bytes" in refused(lambda: view.changes(reader="r"))
        assert len(committed_epochs(engine.files)) > 2  # as many as fit


def test_a_dropped_reader_holds_nothing(engine):
    view = engine.view("counts", QUERY)
    first = advance(engine, 1)
    view.changes(after=first, reader="r")
    advance(engine, 1, 2, 3)
    view.drop_reader("r")
    assert engine.status()["readers"] == []
    advance(engine, 1)
    assert len(committed_epochs(engine.files)) == 2
    with pytest.raises(el.CatalogError) as error:
        view.commit("r")
    assert error.value.condition == "NOT_FOUND"


def test_readers_go_with_their_view(engine):
    view = engine.view("counts", QUERY)
    first = advance(engine, 1)
    view.changes(after=first, reader="r")
    engine.drop("view", "counts")
    assert engine.status()["readers"] == []
    advance(engine, 1, 2, 3)
    assert len(committed_epochs(engine.files)) == 2


def test_a_reader_does_not_go_on_with_another_view_of_the_name(engine):
    view = engine.view("counts", QUERY)
    advance(engine, 1)
    view.changes(reader="r")
    view.commit("r")
    view.changes(reader="gone")
    view.drop_reader("gone")
    engine.drop("view", "counts")
    view = engine.view("counts", QUERY)
    last = advance(engine, 2)
    assert "reader r has read a view counts that was dropped" in refused(
        lambda: view.changes(reader="r")
    )
    assert engine.status()["readers"] == []
    assert rows(view.changes(after=last, reader="r")) == []
    assert [reader["epoch"] for reader in engine.status()["readers"]] == [last]
    epoch = advance(engine, 2)
    assert rows(view.changes(reader="r")) == [(2, 1, "delete", epoch), (2, 2, "append", epoch)]
    assert len(rows(view.changes(reader="gone"))) == 4  # what was dropped begins anew


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 101])
def test_a_reader_has_a_plain_name(engine, name):
    with pytest.raises(el.EngineError) as error:
        engine.view("counts", QUERY).changes(reader=name)
    assert error.value.condition == "BAD_OPTION"


# -- a view that is replaced -------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "SELECT v, count(*) + 10 * (v % 2) AS n FROM t GROUP BY v",
        "SELECT v, count(*) AS n FROM t GROUP BY v ORDER BY n DESC, v LIMIT 2",  # another layout
        "SELECT v, CAST(1 AS BIGINT) AS n FROM t WHERE v > 1",  # rows that repeat, in other buckets
        "SELECT v, count(*) AS n FROM t WHERE v < 0 GROUP BY v",  # no rows at all
    ],
)
def test_a_replaced_view_gives_the_difference(storage, spark, query):
    with opened(storage, spark, retain_epochs=100) as engine:
        view = engine.view("counts", QUERY)
        view.changes(reader="r")
        before = advance(engine, 1, 2, 2, 3, 1)
        held = {before: Counter(tuple(row) for row in view.snapshot().collect())}
        held[before + 1] = apply(
            +held[before], engine.view("counts", query, replace=True).changes(before)
        )
        assert held[before + 1] == Counter(tuple(row) for row in view.snapshot().collect())
        advance(engine, 2, 3, 3)
        engine.view("counts", QUERY, replace=True)  # and once more
        last = advance(engine, 4, 1)
        now = Counter(tuple(row) for row in view.snapshot().collect())
        for epoch, rows_then in held.items():
            assert apply(+rows_then, view.changes(after=epoch)) == now
            assert Counter(tuple(r) for r in view.snapshot(epoch).collect()) == rows_then
        assert apply(Counter(), view.changes()) == now
        assert apply(Counter(), view.changes(reader="r")) == now
        assert rows(view.changes(after=last)) == []
        assert engine.verify()
        engine.table("empty", "v INT")
        last = engine.status()["epoch"]
        engine.view("counts", "SELECT v, 1L AS n FROM empty", replace=True)
        assert apply(+now, view.changes(after=last)) == Counter()
        view.drop_reader("r")
        engine.view("counts", QUERY + " HAVING v <> 1", replace=True)
    options = el.Options(retain_epochs=1, lease_seconds=0)
    with el.Engine(storage, spark, options) as engine:  # the views before are gone
        view = engine.view("counts", QUERY + " HAVING v <> 1", replace=True)
        engine.view("counts", QUERY, replace=True)
        refused(lambda: view.changes(after=before))
        now = Counter(tuple(row) for row in view.snapshot().collect())
        assert apply(Counter(), view.changes()) == now


def test_a_view_with_other_columns_ends_the_changelog(storage, spark):
    with opened(storage, spark, retain_epochs=100) as engine:
        view = engine.view("counts", QUERY)
        before = advance(engine, 1, 2, 2)
        view.changes(reader="r")
        view.commit("r")
        view = engine.view(
            "counts", "SELECT v, count(*) AS n, sum(v) AS s FROM t GROUP BY v", replace=True
        )
        replaced = engine.status()["epoch"]
        text = refused(lambda: view.changes(after=before))
        assert f"replaced in epoch {replaced}" in text
        assert "replaced in epoch" in refused(lambda: view.changes(reader="r"))
        with pytest.raises(el.StateError) as error:
            view.snapshot(before)
        assert error.value.condition == "NO_SUCH_EPOCH"
        advance(engine, 1, 5)
        now = Counter(tuple(row) for row in view.snapshot().collect())
        assert apply(Counter(), view.changes()) == now
        then = Counter(tuple(row) for row in view.snapshot(replaced).collect())
        assert apply(then, view.changes(after=replaced)) == now


def test_a_view_has_no_rows_before_it_was_made(engine):
    first = advance(engine, 1)
    advance(engine, 2)
    later = engine.view("later", "SELECT * FROM t")
    with pytest.raises(el.StateError) as error:
        later.snapshot(first + 1)
    assert error.value.condition == "NO_SUCH_EPOCH"


# -- DataFrames that are run later -------------------------------------------------------------


@pytest.fixture
def read_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small results, too, be read when a DataFrame is run."""
    monkeypatch.setattr("eddyline.answers.reader.HELD_ROWS", -1)


MADE = {
    "snapshot": lambda engine: engine.snapshot("counts"),
    "made of it": lambda engine: engine.snapshot("counts").where("n > 0").select("v", "n"),
    "changes": lambda engine: engine.changes("counts").select("v", "n").distinct(),
    "sql": lambda engine: engine.sql("SELECT a.v, b.n FROM counts a JOIN counts b ON a.v = b.v"),
}


@pytest.mark.usefixtures("read_by_workers")
@pytest.mark.parametrize("made", MADE)
def test_a_data_frame_can_be_run_as_long_as_it_lives(storage, spark, made):
    with opened(storage, spark, lease_seconds=3600) as engine:
        first = advance(engine, 1, 2)
        expected = [(1, 1), (2, 1)]
        frame = MADE[made](engine)
        gc.collect()
        advance(engine, 1, 2, 1, 2, 1, 2)
        assert rows(frame) == expected
        assert committed_epochs(engine.files)[0] <= first


@pytest.mark.usefixtures("read_by_workers")
@pytest.mark.parametrize("made", MADE)
def test_a_data_frame_that_is_gone_keeps_nothing(storage, spark, made):
    with opened(storage, spark, lease_seconds=3600) as engine:
        first = advance(engine, 1, 2)
        frame = MADE[made](engine)
        frame.collect()
        collect_garbage(spark)
        advance(engine, 1, 2, 1)
        assert committed_epochs(engine.files)[0] <= first
        del frame

        def gone() -> bool:
            collect_garbage(spark)
            advance(engine, 1)
            return committed_epochs(engine.files)[0] > first

        until(gone, lambda: "the epoch is held by nobody, and stays")
        held = [name.partition("-")[0] for name in engine.files.names("leases") if "-" in name]
        assert all(int(epoch) > first for epoch in held)


def collect_garbage(spark) -> None:
    """Free what neither Python nor the JVM refers to any more."""
    gc.collect()  # then Py4J lets the JVM's objects go
    spark.sparkContext._jvm.System.gc()


@pytest.mark.usefixtures("read_by_workers")
def test_a_data_frame_past_its_time_tells_so(storage, spark):
    with opened(storage, spark, compaction_fan_in=2) as engine:
        advance(engine, 1)
        frame, changes = engine.snapshot("counts"), engine.changes("counts")
        for read in (frame, changes):

            def told(read=read) -> bool:
                """Whether its runs are gone, for which they must have been merged: that takes its time."""
                advance(engine, 1)
                try:
                    read.collect()
                except Exception as error:  # Spark's, around the one that the task raised
                    if re.search(r"\[SNAPSHOT_EXPIRED\].*Way out", str(error)):
                        return True
                    raise
                return False

            until(told, lambda: "it is still read")


# -- reads beside other calls ------------------------------------------------------------------


@pytest.mark.parametrize("form", ["snapshot", "sql", "changes", "version"])
def test_a_read_has_definitions_and_rows_of_one_moment(
    engine: el.Engine, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Another thread replaces the view while a read begins."""
    epoch = advance(engine, 1, 1, 2)
    workspace, made = engine._workspace, []
    current = workspace.current

    def replaced_after():
        found = current()
        if not made:
            made.append("replaced")
            engine.view("counts", "SELECT v, 10 * count(*) AS n FROM t GROUP BY v", replace=True)
        return found

    monkeypatch.setattr(workspace, "current", replaced_after)
    if form == "snapshot":
        assert rows(engine.snapshot("counts")) == [(1, 2), (2, 1)]
    elif form == "sql":
        assert rows(engine.sql("SELECT * FROM counts")) == [(1, 2), (2, 1)]
    elif form == "version":
        assert rows(engine.sql(f"SELECT * FROM counts VERSION AS OF {epoch}")) == [(1, 2), (2, 1)]
    else:
        assert apply(Counter({(1, 2): 1}), engine.changes("counts", epoch - 1)) == Counter(
            [(1, 2), (2, 1)]
        )
    assert made
    assert rows(engine.snapshot("counts")) == [(1, 20), (2, 10)]


def test_sql_over_earlier_epochs_leaves_the_session_as_it_was(
    engine: el.Engine, spark: SparkSession
) -> None:
    epoch = advance(engine, 1)
    spark.range(1).createOrReplaceTempView(f"counts_version_{epoch}")
    before = {table.name for table in spark.catalog.listTables()}
    assert rows(engine.sql(f"SELECT * FROM counts VERSION AS OF {epoch}")) == [(1, 1)]
    assert rows(engine.sql(f"SELECT * FROM t VERSION AS OF {epoch}")) == [(1,)]
    assert {table.name for table in spark.catalog.listTables()} == before
    assert rows(spark.table(f"counts_version_{epoch}")) == [(0,)]
    spark.catalog.dropTempView(f"counts_version_{epoch}")
