"""Tasks: views that pause, catch up, come and go while an engine runs; and `eddyline task`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import postgres
from eddyline import CatalogError, Engine, Options, cli
from eddyline.answers.tasks import Task, list_tasks
from eddyline.answers.verify import Report
from eddyline.catalog.requests import DONE, REFUSED, WAITING, Request
from eddyline.catalog.store import open_store
from eddyline.cli.opening import open_catalog
from eddyline.errors import EddylineError, StateError, StorageError, ViewFailingWarning
from eddyline.runtime.lane_choice import SHORT, Lanes
from eddyline.state.manifest import last_committed, manifest_name, read_manifest
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock
from eddyline.testing import FaultyFiles, replayed
from processes import Child
from waiting import PATIENCE_S, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CHILD = Path(__file__).with_name("task_child.py")
BY_K = "SELECT k, count(*) AS n, min(v) AS least FROM rows GROUP BY k"
TOP = "SELECT k, n FROM by_k ORDER BY n DESC, k LIMIT 2"
ALL = "SELECT count(*) AS n, 'x' AS c FROM rows WHERE v > 0"


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.server() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(str(tmp_path / "storage"))


@pytest.fixture
def engine(files: FaultyFiles, spark: SparkSession) -> Iterator[Engine]:
    with made(files, spark) as engine:
        yield engine


def made(files: FaultyFiles, spark: SparkSession, url: str = "") -> Engine:
    """An engine with rows, and views of two levels over them."""
    engine = Engine(files, spark, Options(catalog=url, retain_epochs=50))
    rows = engine.table("rows", "k BIGINT, v BIGINT")
    engine.view("by_k", BY_K)
    engine.view("top", TOP)
    engine.view("totals", ALL)
    rows.insert([(1, 5), (1, 6), (2, 7), (3, 0)])
    engine.advance()
    return engine


def change(engine: Engine, number: int) -> int:
    """Rows come and go; the epoch."""
    rows = engine.table("rows", "k BIGINT, v BIGINT")
    rows.insert([(number % 4, number), (number % 3, 1), (9, 9)])
    rows.delete([(9, 9), (1, 5)])
    return engine.advance()


def rows_of(engine: Engine, name: str, epoch: int | None = None) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in engine.snapshot(name, epoch).collect())


def assert_right(engine: Engine) -> None:
    """Every view equals offline SQL, and its changelog gives it, from every epoch on."""
    report = engine.verify()
    assert report, report
    for entry in engine.catalog.entries:
        if entry.kind == "view":
            changes = [tuple(row) for row in engine.changes(entry.name, None, "retract").collect()]
            assert sorted(replayed(changes)) == rows_of(engine, entry.name), entry.name


def assert_leads_on(engine: Engine, name: str, epoch: int) -> None:
    """The rows as of an epoch and the changes after it give the rows of now."""
    start = [(*row, "append", 0) for row in rows_of(engine, name, epoch)]
    changes = [tuple(row) for row in engine.changes(name, epoch, "retract").collect()]
    assert sorted(replayed([*start, *changes])) == rows_of(engine, name)


# -- pause and resume --------------------------------------------------------------------------


def test_a_paused_view_stays_and_catches_up_in_one_epoch(engine: Engine) -> None:
    before = {name: rows_of(engine, name) for name in ("by_k", "top")}
    since = engine.advance()
    assert engine.pause("by_k") == ["top"]
    for number in range(3):
        last = change(engine, number)
    assert {name: rows_of(engine, name) for name in before} == before
    assert rows_of(engine, "totals") != [(3, "x")], "the others go on"
    report = engine.verify()
    assert report, report
    assert report.paused == {"by_k": since, "top": since}
    assert f"as of epoch {since}, paused" in str(report)
    views = {item["name"]: item["paused"] for item in engine.status()["views"]}
    assert views == {"by_k": since, "top": since, "totals": 0}
    assert engine.changes("by_k", since, "retract").count() == 0

    assert engine.resume("by_k") == ["by_k", "top"]
    assert engine.advance() == last + 1
    assert rows_of(engine, "by_k") != before["by_k"]
    assert engine.changes("by_k", since, "retract").where(f"epoch <> {last + 1}").count() == 0
    # what stays is not in the difference
    kept = set(before["by_k"]) & set(rows_of(engine, "by_k"))
    told = {tuple(row)[:3] for row in engine.changes("by_k", since, "retract").collect()}
    assert kept
    assert not kept & told
    change(engine, 4)
    assert_right(engine)
    for name in before:
        assert_leads_on(engine, name, since)
    assert engine.resume("by_k") == [], "it is not paused"


def test_a_pause_outlives_the_engine(
    engine: Engine, files: FaultyFiles, spark: SparkSession
) -> None:
    engine.pause("top")
    held = rows_of(engine, "top")
    change(engine, 1)
    change(engine, 2)
    with made_again(files, spark) as engine:
        change(engine, 3)
        assert rows_of(engine, "top") == held
        assert engine.resume("TOP") == ["top"]
        assert_right(engine)


def made_again(files: FaultyFiles, spark: SparkSession, url: str = "") -> Engine:
    """Open the storage as after a crash: the engine before it is lost."""
    StorageLock(files, take_over=True).release()
    return Engine(files, spark, Options(catalog=url, retain_epochs=50))


def test_the_epochs_that_pauses_lean_on_cannot_be_run_anew(
    engine: Engine, files: FaultyFiles, spark: SparkSession
) -> None:
    last = change(engine, 1)
    engine.pause("by_k")

    def refused_without(epoch: int) -> None:
        name = manifest_name(epoch)
        document = files.read_json(name)
        files.remove(name)
        with pytest.raises(StateError) as caught:
            made_again(files, spark)
        assert caught.value.context["file"] == name
        files.write_json(name, document)

    refused_without(last)
    with made_again(files, spark) as engine:
        engine.resume("by_k")
    refused_without(last + 1)
    with made_again(files, spark) as engine:
        change(engine, 2)
        assert_right(engine)


def test_what_a_pause_forbids(engine: Engine) -> None:
    engine.pause("by_k")
    for call in (
        lambda: engine.resume("top"),
        lambda: engine.view("more", "SELECT n FROM by_k"),
    ):
        with pytest.raises(CatalogError) as caught:
            call()
        assert caught.value.condition == "UPSTREAM_PAUSED"
    for name in ("rows", "nothing"):
        with pytest.raises(CatalogError) as caught:
            engine.pause(name)
        assert caught.value.condition == "NOT_FOUND"
    engine.drop("view", "top")
    engine.drop("view", "by_k")
    change(engine, 1)
    assert_right(engine)


def test_a_view_without_rows_left_and_one_without_input(engine: Engine) -> None:
    empty = engine.table("empty", "k BIGINT")
    engine.view("none", "SELECT k FROM empty")
    engine.view("one", "SELECT count(*) AS n FROM empty")
    empty.insert([(1,), (2,)])
    since = engine.advance()
    for name in ("none", "one"):
        engine.pause(name)
    empty.delete([(1,), (2,)])
    engine.advance()
    for name in ("none", "one"):
        engine.resume(name)
        assert_leads_on(engine, name, since)
    assert (rows_of(engine, "none"), rows_of(engine, "one")) == ([], [(0,)])
    empty.insert([(3,)])
    engine.advance()
    assert_right(engine)


def test_a_pause_that_is_older_than_what_is_retained_is_skipped(
    files: FaultyFiles, spark: SparkSession, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.pause("top")
    engine.stop()
    monkeypatch.setattr("eddyline.api.epochs.RETIRE_EVERY", 2)
    with Engine(files, spark, Options(retain_epochs=2)) as engine:
        for number in range(4):
            change(engine, number)
        report = engine.verify()
        assert report, report
        assert "top" not in report.views
        assert "not compared: paused since epoch" in str(report)
        engine.resume("top")
        assert_right(engine)


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", ["crash", "fail"])
@pytest.mark.parametrize("action", ["resume", "add"])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_fault_while_a_request_is_done(
    tmp_path: Path,
    spark: SparkSession,
    action: str,
    fault: str,
    everywhere: bool,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At any effect on the disk: the request is neither lost nor done twice.

    After a `crash` the storage is opened again; after a `fail` the same engine goes on.
    """
    monkeypatch.setattr("eddyline.catalog.requests.RETRY_S", 0)
    url = request.getfixturevalue("server").url if kind == "postgresql" else ""
    files = FaultyFiles(str(tmp_path / "storage"))
    name = "by_k" if action == "resume" else "new"
    engine = made(files, spark, url)
    engine.pause("by_k")
    files.arm(0)
    engine.view("new", BY_K) if action == "add" else engine.resume("by_k")
    effects = files.effects()
    # by default: when the epoch is committed, and the catalog is not yet
    commit = effects.index("sync manifests") + (1 if fault == "fail" else 2)
    # before the commit it is the same wherever the catalog is
    first = 1 if kind == "sqlite" else commit - 2
    for number in range(first, len(effects) + 1) if everywhere else (commit,):
        engine.drop("view", "new") if action == "add" else engine.pause("by_k")
        since = engine.advance()
        change(engine, number)
        asked = engine._workspace.store.add_request(action, name, BY_K)
        files.arm(number, fault)
        try:
            engine.answer()
        except EddylineError:
            assert files.hit()
        files.arm(0)
        where = f"after a {fault} at effect {number}: {effects[number - 1]}"
        if fault == "crash":
            engine = made_again(files, spark, url)  # takes the storage over
        change(engine, number + 1)
        found = engine._workspace.store.request(asked)
        if fault == "fail" and found.state == REFUSED:
            assert "EPOCH_FAILED" in found.message, where
            engine._workspace.store.add_request(action, name, BY_K)
            engine.answer()
        else:
            assert found.state == DONE, where
        assert engine._workspace.store.waiting() == []
        change(engine, number + 2)
        assert_right(engine)
        assert [entry.name for entry in engine.catalog.entries].count(name) == 1, where
        if action == "resume":
            assert not engine.catalog.get("by_k").paused
            assert_leads_on(engine, "by_k", since)
        stored = engine._workspace.store.read()
        assert stored is not None
        known = stored.without_ended_pauses(last_committed(files).rebuilt)
        assert known == engine.catalog, where
    engine.stop()


def test_a_resume_that_failed_behind_its_commit_is_one(
    engine: Engine, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lanes, "choose", lambda *_: SHORT)  # so both have the same effects
    engine.pause("by_k")
    change(engine, 1)
    files.arm(0)
    engine.resume("by_k")
    behind = files.effects().index("sync manifests") + 1
    engine.pause("by_k")
    change(engine, 2)
    files.arm(behind, "fail")
    with pytest.raises(StorageError):
        engine.resume("by_k")
    files.arm(0)
    change(engine, 3)
    assert not engine.catalog.get("by_k").paused
    assert_right(engine)


def test_a_request_that_is_wrong_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    store = engine._workspace.store
    wrong = [
        ("add", "a", "SELECT nothing FROM rows", "INVALID_QUERY"),
        ("add", "a", "SELECT rand() AS r FROM rows", "NOT_LIVE"),
        ("add", "by_k", "SELECT 1 AS one", "NAME_TAKEN"),
        ("drop", "by_k", "", "STILL_READ"),
        ("drop", "rows", "", "NOT_FOUND"),
        ("pause", "a", "", "NOT_FOUND"),
        ("fly", "a", "", "fly"),
    ]
    numbers = [store.add_request(action, name, query) for action, name, query, _ in wrong]
    change(engine, 1)
    for number, (*_, told) in zip(numbers, wrong, strict=True):
        found = store.request(number)
        assert found.state == "refused"
        assert told in found.message, found
    assert_right(engine)
    assert engine.catalog.find("a") is None


def answered(engine: Engine, number: int) -> Request:
    """The request, once the engine has answered it."""
    store = engine._workspace.store
    until(lambda: store.request(number).state != WAITING)
    return store.request(number)


def test_a_view_is_verified_for_another_process_while_epochs_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = engine._workspace.store
    begun, go_on = threading.Event(), threading.Event()

    def slow(wanted: str | None) -> Report:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return engine.verify(wanted)

    monkeypatch.setattr(engine._running._verifying, "_verify", slow)
    numbers = [store.add_request("verify", name) for name in ("by_k", "nothing")]
    epoch = change(engine, 1)
    assert begun.wait(PATIENCE_S)
    assert change(engine, 2) > epoch  # although it isn't answered yet
    assert [request.number for request in store.waiting()] == numbers
    go_on.set()
    found = json.loads(answered(engine, numbers[0]).message)
    assert (found["equal"], found["not_compared"]) == (True, {})
    assert found["views"]["by_k"]["live"] == found["views"]["by_k"]["offline"] > 0
    refused = answered(engine, numbers[1])
    assert (refused.state, "NOT_FOUND" in refused.message) == ("refused", True)
    assert [one.number for one in store.requests(2)] == [2, 1]
    assert_right(engine)


def test_a_view_that_fails_is_not_verified(engine: Engine) -> None:
    with pytest.warns(ViewFailingWarning):
        engine.view("ratio", "SELECT v, 1 DIV v AS r FROM rows")
    number = engine._workspace.store.add_request("verify", "ratio")
    engine.answer()
    found = json.loads(answered(engine, number).message)
    assert (found["equal"], found["views"]) == (False, {})
    assert "DIVIDE_BY_ZERO" in found["not_compared"]["ratio"]


def test_a_report_that_cannot_be_stored_is_stored_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, settle, store = engine.verify, engine._workspace.store.settle, engine._workspace.store
    verified, tries = list[str | None](), list[int]()

    def once(wanted: str | None) -> Report:
        verified.append(wanted)
        return verify(wanted)

    def full(number: int, state: str, message: str) -> None:
        tries.append(number)
        if len(tries) < 3:
            raise OSError("no space left on device")
        settle(number, state, message)

    monkeypatch.setattr(engine._running._verifying, "_verify", once)
    monkeypatch.setattr(store, "settle", full)
    number = store.add_request("verify", "by_k")
    until(lambda: (engine.answer(), len(tries))[1] == 3)
    assert json.loads(answered(engine, number).message)["equal"] is True
    assert verified == ["by_k"]


def test_a_verification_ends_with_the_engine(
    files: FaultyFiles, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(files, spark) as engine:
        begun = threading.Event()

        def endless(_: str | None) -> Report:
            begun.set()
            spark.range(64, numPartitions=64).selectExpr("java_method('java.lang.Thread', 'sleep', 2000L)").collect()  # fmt: skip
            raise AssertionError("the job wasn't cancelled")

        monkeypatch.setattr(engine._running._verifying, "_verify", endless)
        numbers = [engine._workspace.store.add_request("verify", "by_k") for _ in range(2)]
        engine.answer()
        assert begun.wait(PATIENCE_S)
    with open_catalog(files.root) as store:
        for number in numbers:
            request = store.request(number)
            assert (request.state, "has stopped" in request.message) == ("refused", True)


# -- the command line --------------------------------------------------------------------------


def task(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    patient = [] if "list" in arguments or "--wait" in arguments else ["--wait", str(PATIENCE_S)]
    code = cli.main(["task", *arguments, *patient, "--storage", str(root)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_tasks_come_and_go_while_another_process_runs_the_engine(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "storage"
    files = Files(str(root))
    child = Child([sys.executable, str(CHILD), str(root)], tmp_path / "stderr")
    try:
        child.wait_for("ready")

        def asked(*arguments: str) -> tuple[int, str, str]:
            return task(capsys, root, *arguments)

        store = open_store(files)
        first = last_committed(files).epoch
        query = "SELECT k % 2 AS odd, count(*) AS n FROM rows GROUP BY k % 2"
        assert asked("add", "halves", query) == (0, "halves: running\n", "")
        code, out, err = asked("add", "bad", "SELECT nothing FROM rows")
        assert (code, out) == (1, "")
        assert err.startswith("eddyline: [INVALID_QUERY]")
        code, out, err = asked("pause", "none", "--format", "json")
        assert (code, out) == (1, "")
        found = json.loads(err)["error"]
        assert found["condition"] == "NOT_FOUND"
        assert "none" in found["message"]
        assert found["hint"].startswith("known: ")
        code, out, _ = asked("pause", "by_k")
        assert code == 0
        paused = {t.name: t.state for t in list_tasks(store)}
        assert out == f"by_k: {paused['by_k']}\ntop: {paused['top']}\n"
        assert paused["top"].endswith(", with by_k")
        now = last_committed(files).epoch
        until(lambda: last_committed(files).epoch >= now + 3, child.last_words)
        assert asked("resume", "by_k")[:2] == (0, "by_k: running\ntop: running\n")
        assert asked("drop", "halves") == (0, "halves: dropped\n", "")
        code, out, err = asked("list")
        assert (code, err) == (0, "")
        assert [line.split()[:3] for line in out.splitlines()[2:]] == [
            ["rows", "table", "0"],
            ["total", "view", "running"],
            ["by_k", "view", "running"],
            ["top", "view", "running"],
        ]
        # the views that nobody touched lost no epoch: each has a change
        with Engine(str(root), spark) as reader:
            last = last_committed(files)
            told = reader.changes("total", first, "retract").select("epoch").distinct().count()
            own = 3  # of halves, of by_k and top
            alone = sum(
                "total" not in read_manifest(files, epoch).counters
                for epoch in range(first + 1, last.epoch + 1)
            )
            assert told >= last.epoch - first - alone
            assert alone <= own

        child.say("9")  # kills itself within the request: behind the commit of its epoch, or before
        child.wait_for("armed")
        code, _, err = asked("add", "wanted", query, "--wait", "5")
        assert (code, err) == (1, "add wanted: waits for the engine\n")
        assert child.process.wait(PATIENCE_S) == -9
    finally:
        child.kill()
    assert list_tasks(store)[-1] == Task("wanted", "view", "waiting")
    code, out, err = task(capsys, root, "pause", "by_k")
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "by_k")
    assert "no engine runs on this storage" in err
    assert "wanted: running" in out, "it was asked for before"
    assert [request.state for request in map(store.request, range(1, 9))].count(WAITING) == 0
    with Engine(str(root), spark) as engine:
        assert_right(engine)
        assert [entry.name for entry in engine.catalog.entries].count("wanted") == 1
    store.close()


def test_without_an_engine_pause_and_drop_need_no_spark(
    engine: Engine,
    files: FaultyFiles,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    root = Path(files.root)
    since = engine.advance()
    engine.stop()
    monkeypatch.setattr("eddyline.api.engine.Engine.__init__", None)
    told = "no engine runs on this storage: this command does it itself\n"
    paused = f"by_k: paused since epoch {since}\ntop: paused since epoch {since}, with by_k\n"
    assert task(capsys, root, "pause", "BY_K") == (0, paused, told)
    code, _, err = task(capsys, root, "drop", "by_k")
    assert code == 1
    assert "[STILL_READ]" in err
    assert task(capsys, root, "drop", "totals") == (0, "totals: dropped\n", told)
    code, out, err = task(capsys, root, "list")
    assert (code, err) == (0, "no engine runs on this storage\n")
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["rows", "table", "0"],
        ["by_k", "view", *f"paused since epoch {since}".split(), "1", "1", "3"],
        ["top", "view", *f"paused since epoch {since}, with by_k".split(), "2", "2", "2"],
    ]
    monkeypatch.undo()
    with made_again(files, spark) as engine:
        change(engine, 1)
        engine.resume("by_k")
        assert_right(engine)


def test_a_storage_in_postgresql_from_end_to_end(
    files: FaultyFiles,
    spark: SparkSession,
    server: postgres.Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDDYLINE_CATALOG", server.url)
    root = Path(files.root)
    with made(files, spark, server.url) as engine:
        engine.start(0.05)
        engine._workspace.store.add_request("pause", "by_k")
        engine._workspace.store.add_request("add", "more", "SELECT k FROM rows WHERE v > 5")
        server.stop()
        try:
            seen = last_committed(files).epoch
            engine.write("rows", [("append", [(5, 50)])])
            until(lambda: last_committed(files).epoch > seen)
        finally:
            server.start()
    with made_again(files, spark, server.url) as engine:
        engine.advance()
        assert_right(engine)
        assert engine.catalog.find("more")
        held = engine.catalog.get("by_k").paused
        assert held
        assert server.url not in repr(engine.options) + engine.explain("top")
    assert not (root / "catalog.db").exists()
    assert task(capsys, root, "drop", "top")[1] == "top: dropped\n"
    assert task(capsys, root, "resume", "by_k")[1] == "by_k: running\n"
    code, out, _ = task(capsys, root, "list")
    assert (code, "paused" in out) == (0, False)
