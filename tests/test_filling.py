"""A new view is filled while inserts and epochs go on, and is right in each epoch from its first one on."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eddyline import Engine, Options
from eddyline.api.filling import Filling
from eddyline.errors import CatalogError, EngineError
from eddyline.state.manifest import last_committed
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from waiting import PATIENCE_S

VIEWS = {
    "counts": "SELECT item, count(*) AS n, sum(price) AS total, min(price) AS least FROM orders GROUP BY item",
    "of_view": "SELECT n, count(*) AS items FROM by_item GROUP BY n",
    "joined": "SELECT o.id, i.colour, l.x FROM orders o LEFT JOIN items i ON o.item = i.item LEFT JOIN log l ON l.n = o.id",
    "top": "SELECT id, price FROM orders ORDER BY price DESC, id LIMIT 5",
    "ranks": "SELECT id, lag(price) OVER (PARTITION BY item ORDER BY id) AS before FROM orders",
    "stream": "SELECT n % 7 AS k, count(*) AS n, count(DISTINCT x) AS xs FROM log GROUP BY n % 7",
    "seen": "SELECT n, x FROM log WHERE n % 2 = 0",
    "total": "SELECT count(*) AS n, (SELECT max(price) FROM orders) AS most FROM items",
    "constant": "SELECT * FROM orders RIGHT JOIN VALUES (1, 'a'), (500, 'b') AS v(k, name) ON id = k",
}


class Storage:
    """Tables, a stream, and a view, of which any may change."""

    def __init__(
        self, root: Path, files: Files | None = None, options: Options | None = None
    ) -> None:
        self.lines = root / "lines"
        self.lines.mkdir()
        self.rnd = random.Random(3)
        self.engine = engine = Engine(files or root / "s", options=options)
        self.orders = engine.table(
            "orders", "id BIGINT, item STRING, price DOUBLE", primary_key=["id"]
        )
        self.items = engine.table("items", "item STRING, colour STRING")
        engine.create_stream("log", "n BIGINT, x INT", "json", {"path": str(self.lines)})
        engine.view("by_item", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        self.change()

    def change(self) -> None:
        """Insert, replace and delete some rows, add a file, and run an epoch."""
        some = [self.rnd.randrange(300) for _ in range(60)]
        self.orders.insert([(n, f"item {self.rnd.randrange(17)}", n / 10) for n in set(some)])
        self.orders.delete([{"id": n} for n in some[:10]])
        self.items.insert([(f"item {n % 20}", "blue") for n in some[:5]])
        self.items.delete([(f"item {n % 20}", "blue") for n in some[5:7]])
        file = self.lines / f"{len(list(self.lines.iterdir()))}.json"
        file.write_text("".join(json.dumps({"n": n, "x": n % 5}) + "\n" for n in some))
        self.engine.advance()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path)
    with made.engine:
        yield made


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Call a function whenever a view has been filled, before it is committed."""
    run = Filling.run

    def use(function: Callable[[], object]) -> None:
        def wrapped(self: Filling) -> None:
            run(self)
            function()

        monkeypatch.setattr(Filling, "run", wrapped)

    return use


def test_rows_and_changes_of_epochs_meanwhile_are_in_it(
    storage: Storage, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    engine, epochs = storage.engine, iter([0, 1, 3] * 3)
    meanwhile(lambda: [storage.change() for _ in range(next(epochs))])
    for name, query in VIEWS.items():
        before = engine.advance()
        view = engine.view(name, query)
        rows = sorted(map(tuple, view.snapshot().collect()), key=str)
        changes = [tuple(row) for row in view.changes(after=before).collect()]
        assert {op for *_, op, _ in changes} <= {"append"}
        assert sorted((row[:-2] for row in changes), key=str) == rows, name
        assert engine.verify(name), name
    storage.change()
    assert engine.verify()
    engine.stop()
    with Engine(engine.files.root) as again:
        assert again.verify()


def test_inserts_epochs_and_reads_go_on_while_a_view_is_filled(
    storage: Storage, tmp_path: Path
) -> None:
    engine, go = storage.engine, tmp_path / "go"
    flag = str(go)

    def waits(number: int) -> bool:
        end = time.monotonic() + PATIENCE_S  # of one row, which takes one of the two cores
        while number == 7 and not Path(flag).exists() and time.monotonic() < end:
            time.sleep(0.02)
        return True

    engine.spark.udf.register("waits", waits, "boolean")
    storage.orders.insert([(7, "item 7", 0.7)])
    engine.start(interval=0.05)
    query = "SELECT item, count(*) AS n FROM orders WHERE waits(id) GROUP BY item"
    thread = threading.Thread(target=engine.view, args=("slow", query))
    thread.start()
    filling: dict[str, object] = {}
    while not filling:
        found = [view for view in engine.status()["views"] if view["state"] == "filling"]
        filling = found[0] if found else {}
    assert filling["name"] == "slow"
    assert int(str(filling["rows"])) >= engine.snapshot("orders").count() > 20
    assert 0 <= float(str(filling["done"])) <= 1
    first = engine.progress().epoch  # type: ignore[union-attr]
    storage.orders.insert([(1000, "item 1", 0.5)])
    while engine.sql("SELECT count(*) FROM orders WHERE id = 1000").collect()[0][0] == 0:
        time.sleep(0.02)
    assert thread.is_alive()
    with pytest.raises(CatalogError, match="being filled"):
        engine.view("slow", query)
    go.touch()
    thread.join(PATIENCE_S)
    assert engine.catalog.get("slow").since > first
    assert {view["state"] for view in engine.status()["views"]} == {"live"}
    assert engine.verify()


@pytest.mark.filterwarnings("ignore::eddyline.errors.ViewFailingWarning")
@pytest.mark.parametrize("what", ["table", "view", "rebucket", "drop", "pause", "failing"])
def test_definitions_that_change_meanwhile(
    storage: Storage, meanwhile: Callable[[Callable[[], object]], None], what: str
) -> None:
    engine, done = storage.engine, []
    engine.view("numbers", "SELECT CAST(item AS INT) AS n FROM items WHERE item < 'a'")

    def change() -> None:
        if done:
            return
        done.append(what)
        storage.change()
        if what == "table":
            engine.table("others", "a INT").insert([(1,)])
        elif what == "view":
            engine.view("other", "SELECT count(*) AS n FROM orders")
        elif what == "rebucket":
            engine.rebucket(5)
        elif what == "drop":
            engine.drop("view", "by_item")
        elif what == "pause":
            engine.pause("by_item")
        else:
            storage.items.insert([("12a", "red")])  # the cast fails
            engine.advance()

    meanwhile(change)
    source = {"drop": "items", "pause": "items", "failing": "numbers"}.get(what, "by_item")
    view = engine.view("made", f"SELECT count(*) AS n FROM {source}")
    storage.change()
    if what == "failing":
        with pytest.raises(EngineError, match="fails"):
            view.snapshot()
        storage.items.delete([("12a", "red")])
        engine.advance()
    assert engine.verify()
    assert len({entry.id for entry in engine.catalog.entries}) == len(engine.catalog.entries)


def test_rows_that_fail_meanwhile_set_it_aside(
    storage: Storage, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    engine = storage.engine

    def fail() -> None:
        storage.orders.insert([(2000, "item 0", 0.0)])
        engine.advance()

    meanwhile(fail)
    before = engine.advance()
    with pytest.warns(UserWarning, match="set aside"):
        view = engine.view("ratios", "SELECT id, 1 / (id - 2000) AS r FROM orders")
    with pytest.raises(EngineError, match="fails"):
        view.snapshot()
    storage.orders.delete([{"id": 2000}])
    engine.advance()
    rows = sorted(tuple(row) for row in view.snapshot().collect())
    assert len(rows) == engine.snapshot("orders").count()
    changes = [tuple(row) for row in view.changes(after=before).collect()]
    assert sorted(row[:2] for row in changes if row[2] == "append") == rows
    assert engine.verify()


def test_rows_that_come_and_go_meanwhile_are_not_seen(
    storage: Storage, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    engine = storage.engine

    def pass_by() -> None:
        storage.orders.insert([(2000, "item 0", 0.0)])
        engine.advance()
        storage.orders.delete([{"id": 2000}])
        engine.advance()

    meanwhile(pass_by)
    view = engine.view("ratios", "SELECT id, 1 / (id - 2000) AS r FROM orders")
    assert view.snapshot().count() == engine.snapshot("orders").count()
    assert engine.verify()


def test_its_files_stay_as_long_as_they_are_needed(
    tmp_path: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    storage = Storage(tmp_path, options=Options(retain_epochs=3))
    numbers = iter(range(5000, 6000))

    def epochs(count: int) -> None:
        for number in itertools.islice(numbers, count):
            storage.items.insert([(f"item {number}", "green")])
            storage.engine.advance()

    with storage.engine as engine:
        meanwhile(lambda: epochs(40))
        for name in ("counts", "stream", "total"):
            engine.view(name, VIEWS[name])
            epochs(40)
            assert engine.verify(name)
    with Engine(engine.files.root, options=Options(retain_epochs=3)) as again:
        storage.engine = again
        storage.items = again.table("items", "item STRING, colour STRING")
        epochs(20)
        assert again.verify()
        assert [name for name in again.files.names("epochs") if name.startswith("9")] == []


@pytest.mark.parametrize("from_begin", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_fault_at_any_effect_leaves_the_view_out_or_right(
    tmp_path: Path, meanwhile: Callable[[Callable[[], object]], None], from_begin: bool
) -> None:
    files = FaultyFiles(str(tmp_path / "s"))
    Storage(tmp_path, files).engine.stop()
    at = 0
    while attempt(files, meanwhile, at := at + (3 if from_begin else 1), from_begin=from_begin):
        with Engine(files) as engine:
            if engine.catalog.find("counts") is not None:
                assert engine.verify("counts")
                engine.drop("view", "counts")
            engine.table("items", "item STRING, colour STRING").insert([("item 1", "red")])
            engine.advance()
            assert engine.verify()
            owners = {name.split("/")[0] for name in last_committed(files).arrangements}
            assert owners <= engine.catalog.ids
    assert at > 4


def attempt(
    files: FaultyFiles,
    meanwhile: Callable[[Callable[[], object]], None],
    at: int,
    *,
    from_begin: bool,
) -> bool:
    """Create a view, with a fault at an effect from its begin on, or after its rows; return whether it came."""
    with Engine(files) as engine:
        orders = engine.table("orders", "id BIGINT, item STRING, price DOUBLE", primary_key=["id"])

        def insert() -> None:
            if not from_begin:
                files.arm(0)
            orders.insert([(3000 + at, "item 1", 1.0)])
            engine.advance()
            if not from_begin:
                files.arm(at)

        meanwhile(insert)
        files.arm(at if from_begin else 0)
        try:
            engine.view("counts", VIEWS["counts"])
        except Exception:  # noqa: BLE001  # the disk's errors come in several forms
            assert files.hit()
        hit = files.hit()
        files.arm(0)
    return hit
