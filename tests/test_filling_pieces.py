"""A view of many rows is filled in pieces, and goes on after a crash with those that are missing."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest

from eddyline import Engine, Options, Table
from eddyline.api.filling import Filling
from eddyline.cli import main
from eddyline.errors import EngineError, StorageError
from eddyline.runtime.epoch import EpochRunner
from eddyline.runtime.pieces import in_pieces
from eddyline.runtime.sizes import rows_of
from eddyline.source.segments import BUCKET_RUNS, LOG, RUN, Segment
from eddyline.state.fillings import FOLDER, KEPT_S, STATE
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from processes import Child

CHILD = Path(__file__).with_name("filling_child.py")
ROWS, PIECE_ROWS = 3000, 500
QUERY = "SELECT k, count(*) AS n, sum(v) AS total FROM orders GROUP BY k"
OPTIONS = Options(fill_rows=PIECE_ROWS, buckets=2, retain_epochs=3)


@dataclasses.dataclass
class Computed:
    """The pieces that were computed: number of each by its folder, and its rows.

    Attributes:
        at: a number of a piece, and what happens before it.
    """

    pieces: list[int] = dataclasses.field(default_factory=list)
    rows: int = 0
    at: tuple[int, Callable[[], object]] = (-1, int)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    compute, seen = EpochRunner.compute, Computed()

    def watched(self: EpochRunner, base: Any, given: Any, *rest: Any) -> Any:
        if len(seen.pieces) == seen.at[0]:
            seen.at[1]()
        after = compute(self, base, given, *rest)
        folder = rest[1].split("/")
        seen.pieces.append(int(folder[-1].split("-")[0]) if folder[0] == FOLDER else -1)
        seen.rows += rows_of(one for own in given.segments.values() for one in own)
        return after

    monkeypatch.setattr(EpochRunner, "compute", watched)
    return seen


def opened(storage: Files | Path, options: Options = OPTIONS) -> tuple[Engine, Table]:
    engine = Engine(storage, options=options)
    return engine, engine.table("orders", "id BIGINT, k BIGINT, v BIGINT", primary_key=["id"])


def insert(orders: Table, first: int, end: int) -> None:
    ids = range(first, end)
    orders.upsert(pa.table({"id": ids, "k": [i % 9 for i in ids], "v": ids}))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A table whose buckets have several runs."""
    engine, orders = opened(tmp_path / "s")
    with engine:
        for first in range(0, ROWS, ROWS // 3):
            insert(orders, first, first + ROWS // 3)
            engine.advance()
    return tmp_path / "s"


@pytest.fixture
def interrupted(storage: Path, computed: Computed) -> Path:
    """A storage whose filling was interrupted before its fourth piece."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    computed.at = 3, interrupt
    engine, _ = opened(storage)
    with engine, pytest.raises(KeyboardInterrupt):
        engine.view("totals", QUERY)
    computed.at = -1, int
    assert computed.pieces == [0, 1, 2]
    assert len(os.listdir(storage / FOLDER)) == 1
    computed.pieces.clear()
    computed.rows = 0
    return storage


def leftovers(root: Path) -> list[str]:
    files = Files(root)
    timed = [name for name in files.names("leases") if ".for" in name]
    return [*files.names(FOLDER), *timed]


def test_pieces_have_each_row_once(storage: Path) -> None:
    engine, _ = opened(storage)
    with engine:
        workspace = engine._workspace
        orders = workspace.results.history(workspace.catalog.get("orders"), workspace.manifest)
        assert {one.kind for one in orders} == {BUCKET_RUNS}
        scan = workspace.compiler.whole_scan(workspace.catalog.get("orders"))
        few, log = Segment(RUN, "few", 10), [Segment(LOG, f"{n}", 700, 0, 7) for n in range(2)]
        pieces = in_pieces(engine.files, {"a": orders, "few": [few], "log": log}, 400, {})
        assert len(pieces) == 12
        assert pieces[0]["few"] == [few]
        assert not any("few" in piece for piece in pieces[1:])
        sizes = [rows_of(one for own in piece.values() for one in own) for piece in pieces]
        assert sum(sizes) == ROWS + 1410
        assert max(sizes) < 600
        logged = [one for piece in pieces for one in piece.get("log", ())]
        assert [(one.file, one.start, one.rows) for one in logged] == [
            ("0", 0, 350), ("0", 350, 350), ("1", 0, 350), ("1", 350, 350)
        ]  # fmt: skip
        assert all(one.sequence == 7 + one.start for one in logged)
        found = []
        for piece in pieces:
            for one in piece.get("a", ()):
                for table in scan._tables(one, scan.columns, scan.schema):
                    found += table["c0"].to_pylist()
        assert sorted(found) == list(range(ROWS))


def test_leaves_wait_for_their_earlier_ones(storage: Path) -> None:
    few, some, many = (
        [Segment(LOG, name, size)] for name, size in (("f", 1), ("s", 20), ("m", 99))
    )
    inputs = {"many": many, "few": few, "some": some}

    def order(earlier: dict[str, frozenset[str]]) -> list[str]:
        pieces = in_pieces(Files(storage), inputs, 10, earlier)
        return list(dict.fromkeys(leaf for piece in pieces for leaf in piece))

    assert order({}) == ["few", "some", "many"]
    assert order({"few": frozenset({"some"})}) == ["some", "few", "many"]
    assert order({"few": frozenset({"many", "other"})}) == ["some", "many", "few"]
    circle = {"few": frozenset({"some"}), "some": frozenset({"few"}), "many": frozenset({"some"})}
    assert order(circle) == ["few", "some", "many"]


@pytest.mark.parametrize(
    ("query", "earlier"),
    [
        ("SELECT a.v FROM a JOIN b USING (k)", {}),
        ("SELECT a.v, b.v AS w FROM a FULL JOIN b USING (k)", {}),
        ("SELECT a.v, b.v AS w FROM a LEFT JOIN b USING (k)", {"a": {"b"}}),
        ("SELECT a.v, b.v AS w FROM a RIGHT JOIN b USING (k)", {"b": {"a"}}),
        ("SELECT v FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v <> a.v)", {"a": {"b"}}),
        ("SELECT v FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND (b.v = a.v OR b.v = 1 - a.v))", {"a": {"b"}}),
        ("SELECT v FROM a WHERE k IN (SELECT k FROM b WHERE v IN (SELECT v FROM c))", {"a": {"b", "c"}, "b": {"c"}}),
        ("SELECT a.v, n FROM a JOIN (SELECT k, max(v) AS n FROM b GROUP BY k) USING (k)", {"a": {"b"}}),
        ("SELECT a.v, n FROM (SELECT k, max(v) AS n FROM b GROUP BY k) JOIN a USING (k)", {"a": {"b"}}),
        ("SELECT a.v FROM a LEFT JOIN b USING (k) JOIN (SELECT DISTINCT k FROM c) USING (k)", {"a": {"b", "c"}, "b": {"c"}}),
    ],
)  # fmt: skip
def test_what_a_join_would_retract_is_read_last(
    tmp_path: Path, query: str, earlier: dict[str, set[str]]
) -> None:
    with Engine(tmp_path / "s") as engine:
        for name in "abc":
            engine.table(name, "k INT, v INT")
        engine.view("joined", query)
        workspace = engine._workspace
        plan = workspace.plan(workspace.catalog.get("joined")).plan
        relations = {leaf.name: leaf.relation for leaf in plan.leaves}
        assert earlier == {
            relations[leaf]: {relations[one] for one in others}
            for leaf, others in plan.earlier.items()
        }


def test_a_filling_reads_what_a_join_can_match_first(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, read = EpochRunner.compute, list[set[str]]()

    def watched(self: EpochRunner, base: Any, given: Any, *rest: Any) -> Any:
        leaves = {leaf.name: leaf.relation for leaf in given.plan.leaves}
        read.append({leaves[name] for name, own in given.segments.items() if own})
        return compute(self, base, given, *rest)

    engine, _ = opened(storage)
    with engine:
        few = engine.table("few", "k BIGINT")
        few.insert([(k,) for k in range(12)])
        engine.advance()
        monkeypatch.setattr(EpochRunner, "compute", watched)
        engine.view("unmatched", "SELECT k FROM few WHERE k NOT IN (SELECT k FROM orders)")
        assert len(read) > 2
        assert ["few" in relations for relations in read] == [False] * (len(read) - 1) + [True]
        assert sorted(row.k for row in engine.snapshot("unmatched").collect()) == [9, 10, 11]


@pytest.mark.parametrize("epochs", [0, 2])
def test_it_goes_on_after_an_interruption(
    interrupted: Path, computed: Computed, epochs: int
) -> None:
    engine, orders = opened(interrupted)
    with engine:
        for number in range(epochs):
            insert(orders, 7 + number, 9 + number)
            insert(orders, ROWS + number, ROWS + number + 100)
            engine.advance()
        before = engine.advance()
        view = engine.view("totals", QUERY)
        assert computed.pieces == [3, 4, 5]
        assert computed.rows == pytest.approx(ROWS / 2, rel=0.1)
        assert engine.verify()
        changes = view.changes(after=before).collect()
        assert {row["op"] for row in changes} == {"append"}
        assert len(changes) == view.snapshot().count() == 9
        insert(orders, 0, 50)
        engine.advance()
        assert engine.verify()
        assert leftovers(interrupted) == []


def test_status_tells_rows_rate_and_time_left(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = opened(interrupted)
    shown: list[dict[str, Any]] = []
    compute = EpochRunner.compute

    def watched(self: EpochRunner, *given: Any) -> Any:
        shown.extend(view for view in engine.status()["views"] if view["state"] == "filling")
        return compute(self, *given)

    monkeypatch.setattr(EpochRunner, "compute", watched)
    with engine:
        engine.view("totals", QUERY)
    assert [view["pieces_done"] for view in shown] == [3, 4, 5]
    rows = [ROWS * n / 6 for n in (3, 4, 5)]
    assert [view["rows_read"] for view in shown] == pytest.approx(rows, rel=0.1)
    assert {(view["name"], view["rows"], view["pieces"]) for view in shown} == {("totals", ROWS, 6)}
    assert shown[0]["seconds_left"] is None  # this process has read nothing yet
    assert shown[2]["rows_per_second"] > 0
    assert 0 < shown[2]["seconds_left"] < shown[2]["seconds"]


def test_other_processes_see_what_is_stored(
    interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--storage", str(interrupted)]) == 0
    told = capsys.readouterr().out
    assert "view being filled" in told
    assert "totals" in told
    engine, _ = opened(interrupted)
    with engine:
        (one,) = engine.status()["fillings"]
        assert one["view"] == "totals"
        assert (one["rows"], one["pieces"], one["pieces_done"]) == (ROWS, 6, 3)
        assert one["rows_per_second"] * one["seconds_left"] == pytest.approx(ROWS / 2, rel=0.1)
        assert abs(datetime.fromisoformat(one["stored_at"]).timestamp() - time.time()) < 600
        with urlopen(engine.serve()) as page:
            assert "Views being filled" in page.read().decode()
        engine.view("totals", QUERY)
        assert engine.status()["fillings"] == []


def test_an_engine_that_is_stopped_leaves_it(
    storage: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = opened(storage)
    compute = EpochRunner.compute

    def stopping(self: EpochRunner, *given: Any) -> Any:
        after = compute(self, *given)
        if len(computed.pieces) == 3:
            engine.stop()
        return after

    monkeypatch.setattr(EpochRunner, "compute", stopping)
    with pytest.raises(EngineError, match="was stopped"):
        engine.view("totals", QUERY)
    monkeypatch.setattr(EpochRunner, "compute", compute)
    engine, _ = opened(storage)
    with engine:
        engine.view("totals", QUERY)
        assert computed.pieces == [0, 1, 2, 3, 4, 5]
        assert engine.verify()


def test_definitions_that_change_meanwhile_cost_no_piece(
    storage: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, orders = opened(storage)
    run = Filling.run

    def changing(self: Filling) -> None:
        run(self)
        if engine.catalog.find("others") is None:
            engine.table("others", "a INT")
            insert(orders, 2, 4)
            engine.advance()

    monkeypatch.setattr(Filling, "run", changing)
    with engine:
        engine.view("totals", QUERY)
        assert computed.pieces == [0, 1, 2, 3, 4, 5]
        assert engine.verify()
        assert leftovers(storage) == []


def test_an_error_that_is_not_the_views_ends_the_call_and_costs_no_piece(
    storage: Path, computed: Computed
) -> None:
    files = FaultyFiles(str(storage))
    engine, _ = opened(files)
    with engine:
        computed.at = 3, lambda: files.arm(1, "full")
        with pytest.raises(StorageError, match="No space left"):
            engine.view("totals", QUERY)
        files.arm(0)
        assert computed.pieces == [0, 1, 2]
        computed.at = -1, int
        engine.view("totals", QUERY)
        assert computed.pieces == [0, 1, 2, 3, 4, 5]
        assert engine.verify()


def other_query(root: Path, engine: Engine, orders: Table) -> str:
    return QUERY.replace("sum(v)", "max(v)")


def other_table(root: Path, engine: Engine, orders: Table) -> str:
    engine.drop("table", "orders")
    again = engine.table("orders", "id BIGINT, k BIGINT, v BIGINT", primary_key=["id"])
    insert(again, 0, ROWS)
    engine.advance()
    return QUERY


def other_buckets(root: Path, engine: Engine, orders: Table) -> str:
    engine.rebucket(3)
    return QUERY


def damaged(root: Path, engine: Engine, orders: Table) -> str:
    run = next((root / FOLDER).glob("*/*/*.arrow"))
    content = bytearray(run.read_bytes())
    content[len(content) // 2] ^= 1
    run.write_bytes(content)
    return QUERY


@pytest.mark.parametrize("change", [other_query, other_table, other_buckets, damaged])
def test_one_that_does_not_fit_is_not_used(
    interrupted: Path, computed: Computed, change: Callable[[Path, Engine, Table], str]
) -> None:
    engine, orders = opened(interrupted)
    with engine:
        query = change(interrupted, engine, orders)
        engine.view("totals", query)
        assert computed.pieces[:2] == [0, 1]
        assert engine.verify()
        assert leftovers(interrupted) == []


def test_its_epoch_stays_as_long_as_a_lease_and_it_goes_with_it(
    interrupted: Path, computed: Computed
) -> None:
    engine, orders = opened(interrupted)
    with engine:
        for number in range(40):  # of which three are retained
            insert(orders, number, number + 1)
            engine.advance()
        assert len(leftovers(interrupted)) == 2
        for name in Files(interrupted).names("leases"):
            if ".for" in name:
                os.utime(interrupted / "leases" / name, (0, 0))
        for number in range(40):
            insert(orders, number, number + 1)
            engine.advance()
        assert leftovers(interrupted) == []
        engine.view("totals", QUERY)
        assert computed.pieces == [0, 1, 2, 3, 4, 5]
        assert engine.verify()


def test_one_of_a_view_that_is_there_is_removed(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted / FOLDER, tmp_path / "kept")
    engine, _ = opened(interrupted)
    with engine:
        engine.view("totals", QUERY)
    shutil.copytree(tmp_path / "kept", interrupted / FOLDER, dirs_exist_ok=True)
    engine, _ = opened(interrupted)
    with engine:
        assert len(leftovers(interrupted)) == 1
        engine.view("totals", QUERY)
        assert leftovers(interrupted) == []
        assert engine.verify()


def test_one_that_nobody_goes_on_with_is_removed(interrupted: Path) -> None:
    (folder,) = (interrupted / FOLDER).iterdir()
    young = time.time() - KEPT_S + 1000
    os.utime(folder / STATE, (young, young))
    opened(interrupted)[0].stop()
    assert folder.exists()
    os.utime(folder / STATE, (young - 2000, young - 2000))
    opened(interrupted)[0].stop()
    assert not folder.exists()


def test_a_view_that_fails_on_some_rows_only_is_computed_at_once(
    storage: Path, computed: Computed
) -> None:
    engine, _ = opened(storage)
    with engine:
        counted = f"SELECT CAST(if(n < {ROWS}, 'few', n) AS INT) AS n FROM (SELECT count(*) AS n FROM orders)"
        view = engine.view("total", counted)
        assert computed.pieces == [0]
        assert view.snapshot().collect()[0][0] == ROWS
        assert engine.verify()
        assert leftovers(storage) == []


def test_plans_that_compute_whole_groups_again_take_all_rows_at_once(
    storage: Path, computed: Computed
) -> None:
    engine, _ = opened(storage)
    with engine:
        engine.view("lists", "SELECT k, sort_array(collect_list(v)) AS vs FROM orders GROUP BY k")
        engine.view("medians", "SELECT k, median(v) AS m FROM orders GROUP BY k")
        assert computed.pieces == [-1, -1]
        assert engine.verify()


def test_pieces_that_read_most_of_the_state_again_become_larger(
    storage: Path, computed: Computed
) -> None:
    engine, _ = opened(storage, dataclasses.replace(OPTIONS, fill_rows=100))
    with engine:
        many = "SELECT id % 200 AS k, count(*) AS n FROM orders GROUP BY id % 200"
        engine.view("many", many)
        assert computed.pieces == [0, 1, 2, 4, 8, 16]
        assert engine.verify()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 23])
def test_a_fault_at_any_effect_leaves_a_filling_that_goes_on(
    storage: Path, computed: Computed, step: int
) -> None:
    files, at = FaultyFiles(str(storage)), 0
    hit = True
    while hit:
        at += step
        engine, orders = opened(files)
        with engine:
            files.arm(at, "crash")
            try:
                engine.view("totals", QUERY)
            except Exception:  # noqa: BLE001  # the disk's errors come in several forms
                assert files.hit()
            hit = files.hit()
            files.arm(0)
        engine, orders = opened(files)
        with engine:
            insert(orders, at, at + 10)
            engine.advance()
            engine.view("totals", QUERY)
            assert engine.verify(), at
            engine.drop("view", "totals")
            assert leftovers(storage) == [], at
    assert at > 40


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[[int], Child]]:
    started: list[Child] = []

    def start(fail_at: int = 0) -> Child:
        started.append(
            Child([sys.executable, str(CHILD), str(tmp_path / "s"), str(fail_at)], tmp_path / "err")
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()


def pieces_of(child: Child) -> tuple[list[int], int, bool]:
    """Read what a child prints; return the pieces that it began, how many it has stored, and whether it is fine."""
    began, stored, fine = [], 0, False
    assert child.process.stdout is not None
    for line in child.process.stdout:
        word, *rest = line.split()
        if word == "piece":
            began.append(int(rest[0].split("-")[0]))
        elif word == "stored":
            stored = int(rest[0])
        fine = fine or word == "fine"
    return began, stored, fine


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.guarantee(
    "new views that are filled in pieces",
    "exactly once; pieces that are stored aren't read again",
    "the engine, {kills} times by kill -9 while it fills one",
)
@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 20])
def test_killed_while_a_view_is_filled(child: Callable[..., Child], kills: int) -> None:
    moments, known, began_at_all = random.Random(5), 0, 0
    for number in range(kills):
        one = child()
        one.wait_for("ready")
        if number == 0:  # several pieces are stored
            one.wait_for("stored")
            one.wait_for("stored")
        time.sleep(moments.uniform(0, 1.5))
        one.process.kill()
        began, stored, fine = pieces_of(one)
        one.kill()
        assert all(piece >= known for piece in began), (known, began)
        known = 0 if fine else max(known, stored, 2 if number == 0 else 0)
        began_at_all += len(began)
        if fine:
            return
    last = child()
    last.wait_for("ready")  # epochs before it compute a view that has been filled
    began, stored, fine = pieces_of(last)
    assert fine, last.last_words()
    assert last.process.wait(300) == 0
    assert began == list(range(began[0], 9) if began else ()), stored
    assert known <= (began[0] if began else 9), (known, began)
    assert known >= 2


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_killing_itself_at_a_write(child: Callable[..., Child]) -> None:
    known, fine, fail_at = 0, False, 5
    while not fine:
        one = child(fail_at)
        began, stored, fine = pieces_of(one)
        one.process.wait(300)
        one.kill()
        assert all(piece >= known for piece in began), (known, began, fail_at)
        known, fail_at = max(known, stored), fail_at + 7
    assert known == 9
