"""Sinks of an engine: defined in Python and SQL, delivered in threads, kept over restarts and changes."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

import eddyline as el
from eddyline.api.formats import SINKS
from eddyline.api.sinks import WAIT_S
from eddyline.cli import main
from eddyline.errors import CatalogError, EddylineError, EngineError
from eddyline.sink.base import Sink, Target, key_of
from eddyline.testing import Crash, MemorySink
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.spark
PLACE = "the place ${env:EDDYLINE_WORD}"
QUERY = "SELECT item, count(*) AS n, sum(v) AS total FROM sales GROUP BY item"


@dataclass
class MemoryFormat:
    """Targets in memory, by the option `place`; one can be absent, hang, or refuse rows.

    Attributes:
        gates: by place what each call waits for.
    """

    targets: dict[str, MemorySink] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    refused: str = ""
    opened: list[tuple[Target, Mapping[str, str]]] = field(default_factory=list)
    options: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(("place", "key", "password", "on_refused"), "")
    )
    secrets: Sequence[str] = ("password",)
    fixed: Sequence[str] = ()

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        key_of(target, options.get("key"))

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        self.opened.append((target, options))
        return _Opened(self, target, options["place"])


@dataclass
class _Opened:
    form: MemoryFormat
    target: Target
    place: str

    @property
    def _held(self) -> MemorySink:
        if self.place in self.form.gates:
            assert self.form.gates[self.place].wait(PATIENCE_S)
        if self.place in self.form.absent:
            raise ConnectionRefusedError(f"{self.place} is absent")
        return self.form.targets.setdefault(self.place, MemorySink())

    def committed(self):
        return self._held.committed()

    def deliver(self, base, epoch, changes) -> None:
        if self.form.refused:
            bad = pa.compute.equal(changes["item"], self.form.refused)
            if pa.compute.any(bad).as_py():
                rows = changes.filter(bad).select(self.target.schema.names)
                self.target.refuse(rows, ["too long"] * rows.num_rows)
                changes = changes.filter(pa.compute.invert(bad))
        self._held.deliver(base, epoch, changes)

    def replace(self, base, epoch, rows) -> None:
        self._held.replace(base, epoch, rows)

    def close(self) -> None:
        pass


@pytest.fixture
def memory(monkeypatch) -> MemoryFormat:
    form = MemoryFormat()
    monkeypatch.setitem(SINKS, "memory", form)
    return form


@pytest.fixture
def engine(tmp_path: Path, spark) -> Iterator[el.Engine]:
    with opened(tmp_path, spark) as made:
        made.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"]).insert(
            [(1, "tea", 1.0), (2, "tea", 2.0), (3, "milk", 0.5)]
        )
        made.view("totals", QUERY)
        yield made


def opened(folder: Path, spark, **options) -> el.Engine:
    return el.Engine(str(folder / "storage"), spark, el.Options(**options))


def rows(frame: DataFrame) -> Counter:
    return Counter(map(tuple, frame.collect()))


def held(memory: MemoryFormat, place: str = "p") -> Counter:
    return Counter(memory.targets[place].rows)


def await_epoch(engine: el.Engine, sink: el.Sink, epoch: int) -> None:
    until(lambda: sink.status()["epoch"] >= epoch, sink.status)


def test_a_sink_gets_the_snapshot_and_then_each_epoch(engine, memory) -> None:
    engine.advance()
    engine.execute("CREATE SINK k FROM totals USING memory OPTIONS (place 'p')")
    for statement in (
        "INSERT INTO sales VALUES (4, 'milk', 2.0)",
        "DELETE FROM sales WHERE item = 'tea'",
        "UPDATE sales SET v = 7 WHERE id = 3",
    ):
        engine.execute(statement)
        epoch = engine.advance()
        assert memory.targets["p"].epoch == epoch
        assert held(memory) == rows(engine.snapshot("totals"))
    assert memory.targets["p"].received[0][0] == "replace"
    (shown,) = engine.execute("SHOW SINKS").collect()
    assert (shown.name, shown.view, shown.format, shown.state) == ("k", "totals", "memory", "live")
    assert (shown.epoch, shown.behind) == (epoch, 0)
    assert engine.status()["sinks"][0]["epoch"] == epoch
    engine.execute("CREATE SINK IF NOT EXISTS k FROM totals USING memory OPTIONS (place 'q')")
    with pytest.raises(CatalogError, match="STILL_READ"):
        engine.execute("DROP VIEW totals")
    engine.execute("DROP SINK k; DROP SINK IF EXISTS k; DROP VIEW totals")
    assert engine.execute("SHOW SINKS").collect() == []
    assert engine.files.names("sinks") == ["identity.json"]


def test_a_restart_sends_only_what_is_new(tmp_path, spark, memory) -> None:
    with opened(tmp_path, spark) as engine:
        engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
        engine.view("totals", QUERY)
        engine.sink("k", "totals", "memory", place="p")
        engine.execute("INSERT INTO sales VALUES (1, 'tea', 1.0)")
        engine.advance()
    with opened(tmp_path, spark) as engine:
        engine.advance()
        engine.execute("INSERT INTO sales VALUES (2, 'tea', 1.0)")
        engine.advance()
        assert [call for call, _ in memory.targets["p"].received].count("replace") == 1
        assert held(memory) == rows(engine.snapshot("totals"))
        assert engine.sink("k", "totals", "memory", place="p").name == "k"
        with pytest.raises(CatalogError, match="NAME_TAKEN"):
            engine.sink("k", "totals", "memory", place="other")


def test_an_absent_target_holds_nothing_up(engine, memory) -> None:
    errors: list[Exception] = []
    engine.on_error(errors.append)
    memory.absent.add("gone")
    gone = engine.sink("gone", "totals", "memory", place="gone")
    here = engine.sink("here", "totals", "memory", place="here")
    for number in range(4, 7):
        engine.execute(f"INSERT INTO sales VALUES ({number}, 'x', 1.0)")
        epoch = engine.advance()
        assert memory.targets["here"].epoch == epoch
    status = gone.status()
    assert status["state"] == "failing"
    assert "absent" in status["error"]
    assert status["behind"] == epoch
    assert here.status()["state"] == "live"
    until(lambda: errors)  # it is reported after the failure has ended the wait
    assert len(errors) == 1
    memory.absent.clear()
    await_epoch(engine, gone, epoch)
    assert held(memory, "gone") == rows(engine.snapshot("totals"))


def test_a_slow_target_holds_up_neither_epochs_nor_other_sinks(engine, memory) -> None:
    engine.advance()  # from now on each insert makes one epoch
    gate = memory.gates["slow"] = threading.Event()
    slow = engine.sink("slow", "totals", "memory", place="slow")
    here = engine.sink("here", "totals", "memory", place="here")
    engine.start(0.01)
    table = engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
    for number in range(4, 10):
        before = engine.status()["epoch"]
        table.insert([(number, "x", 1.0)])
        until(lambda before=before: engine.status()["epoch"] > before)
        await_epoch(engine, here, before + 1)  # else two epochs may come as one
    epoch = engine.status()["epoch"]
    await_epoch(engine, here, epoch)
    assert (slow.status()["epoch"], slow.status()["state"]) == (0, "live")
    assert slow.status()["behind"] >= epoch > 6
    gate.set()
    await_epoch(engine, slow, epoch)
    engine.stop()
    assert held(memory, "slow") == held(memory, "here")
    assert len(memory.targets["slow"].received) <= 2 < len(memory.targets["here"].received)


def test_a_target_that_is_away_for_too_long_gets_one_difference(
    tmp_path, spark, memory, monkeypatch
) -> None:
    monkeypatch.setattr("eddyline.api.epochs.RETIRE_EVERY", 1)
    with opened(tmp_path, spark, held_epochs=3, retain_epochs=1, lease_seconds=0) as engine:
        table = engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
        engine.view("totals", QUERY)
        table.insert([(number, f"item {number}", 1.0) for number in range(5)])
        sink = engine.sink("k", "totals", "memory", place="p")
        engine.advance()
        received = memory.targets["p"].received
        memory.absent.add("p")
        received.clear()
        for number in range(3):  # as many as are held for it
            table.upsert([(number, "tea", 2.0)])
            engine.advance()
        assert sink.status()["state"] == "failing"
        memory.absent.clear()
        last = engine.advance()
        await_epoch(engine, sink, last)
        assert received == [("deliver", last)]
        memory.absent.add("p")
        received.clear()
        for number in range(8):
            table.upsert([(number % 5, f"item {number}", 3.0)])
            last = engine.advance()
        memory.absent.clear()
        await_epoch(engine, sink, last)
        assert received == [("replace", last)]
        assert held(memory) == rows(engine.snapshot("totals"))
        table.insert([(77, "milk", 1.0)])
        last = engine.advance()
        assert received[1:] == [("deliver", last)]
        assert held(memory) == rows(engine.snapshot("totals"))


def test_other_processes_see_why_a_sink_fails(
    engine, memory, tmp_path, spark, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("EDDYLINE_WORD", "s3cret")
    listed = ["sink", "list", "--storage", engine.files.root, "--format", "json"]

    def seen_by_others() -> dict:
        assert main(listed) == 0
        (line,) = capsys.readouterr().out.splitlines()
        with el.Engine(str(tmp_path / "storage"), spark, read_only=True) as reader:
            (shown,) = reader.execute("SHOW SINKS").collect()
            assert reader.status()["sinks"] == [json.loads(line)]
        with urlopen(f"{engine.serve()}/api/sinks") as answer:
            (served,) = json.load(answer)["sinks"]
        found = json.loads(line)
        assert main(["status", "--storage", engine.files.root, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["sinks"] == [found]
        assert (shown.state, shown.error) == (found["state"], found.get("error"))
        assert (served["state"], served["error"]) == (found["state"], found["error"])
        return found

    memory.absent.add("the place s3cret")
    sink = engine.sink("k", "totals", "memory", place=PLACE)
    engine.advance()
    (number,) = (entry.id for entry in engine.catalog.sinks)
    deliverer = engine._epochs.sinks._deliverers[number]
    until(lambda: deliverer.failures > 2)
    found = seen_by_others()
    assert (found["state"], found["condition"]) == ("failing", "ConnectionRefusedError")
    assert found["error"] == "the place *** is absent" == sink.status()["error"]
    assert found["failing_since"].endswith("+00:00")
    file = tmp_path / f"storage/sinks/{number}/error.json"
    written, failures = file.stat().st_ino, deliverer.failures
    until(lambda: deliverer.failures > failures)
    assert file.stat().st_ino == written  # it isn't written again by each try
    with urlopen(f"{engine.serve()}/sinks") as page:
        text = page.read().decode()
        assert "the place *** is absent" in text
    with urlopen(f"{engine.serve()}/metrics") as metrics:
        assert 'eddyline_sink_state{sink="k",state="failing"} 1.0' in metrics.read().decode()
    engine.stop()  # it is known while no engine runs, and to the next one
    for command in (["sink", "list"], ["status"]):
        assert main([*command, "--storage", engine.files.root]) == 0
        assert "the place *** is absent" in capsys.readouterr().out
    with opened(tmp_path, spark) as again:
        again.advance()
        found = json.loads(json.dumps(again.status()["sinks"][0]))
        assert found["state"] == "failing"
        memory.absent.clear()
        await_epoch(again, again.sink("k", "totals", "memory", place=PLACE), again.advance())
        until(lambda: again.status()["sinks"][0]["state"] == "live", again.status)
        assert not file.exists()
        memory.absent.add("the place s3cret")
        again.execute("INSERT INTO sales VALUES (4, 'x', 1.0)")
        again.advance()
        assert file.exists()
        again.execute("DROP SINK k")
        assert not file.parent.exists()


def test_epochs_that_wait_are_sent_as_one(engine, memory) -> None:
    began = time.monotonic()
    sink = engine.sink("k", "totals", "memory", place="p", commit_interval="1 second")
    first = engine.advance()
    await_epoch(engine, sink, first)
    for number in range(4, 9):
        engine.execute(f"INSERT INTO sales VALUES ({number}, 'x', 1.0)")
        last = engine.advance()
    await_epoch(engine, sink, last)
    # one a second
    assert len(memory.targets["p"].received) <= 1 + (time.monotonic() - began)
    assert held(memory) == rows(engine.snapshot("totals"))


def test_pause_resume_and_resend(engine, memory, tmp_path) -> None:
    sink = engine.sink("k", "totals", "memory", place="p")
    before = engine.advance()
    sink.pause()
    engine.execute("INSERT INTO sales VALUES (4, 'x', 1.0)")
    epoch = engine.advance()
    assert memory.targets["p"].epoch == before
    assert sink.status()["state"] == "paused"
    sink.resume()
    await_epoch(engine, sink, epoch)
    memory.targets["p"]._held.clear()  # somebody has emptied it
    sink.resend()
    engine.advance()
    until(lambda: memory.targets["p"].received[-1][0] == "replace")
    assert held(memory) == rows(engine.snapshot("totals"))


def test_other_options_count_from_where_the_target_is(engine, memory) -> None:
    engine.sink("k", "totals", "memory", place="p")
    engine.advance()
    engine.sink("k").alter(place="p", on_refused="stop")
    assert engine.catalog.get_sink("k").options == {"place": "p", "on_refused": "stop"}
    engine.execute("INSERT INTO sales VALUES (4, 'x', 1.0)")
    engine.advance()
    assert [one[0] for one in memory.targets["p"].received].count("replace") == 1
    assert held(memory) == rows(engine.snapshot("totals"))


def test_options_that_make_another_target_need_another_sink(engine, tmp_path) -> None:
    sink = engine.sink("files", "totals", "jsonl", path=tmp_path / "a")
    for path in ({"path": tmp_path / "b"}, {}):
        with pytest.raises(EngineError, match=r"BAD_OPTION.*create another sink"):
            sink.alter(**path)
    with pytest.raises(EngineError, match="BAD_OPTION"):
        sink.alter(path=tmp_path / "a", pathe="b")
    engine.view("totals", QUERY).foreach_epoch(lambda _changes, _epoch: None, "noting")
    with pytest.raises(EngineError, match=r"BAD_OPTION.*a function has no options"):
        engine.sink("noting").alter()
    with pytest.raises(CatalogError, match="NOT_FOUND"):
        engine.sink("nope")


@pytest.mark.parametrize("act", ["pause", "drop", "resend"])
def test_epochs_go_on_while_a_sink_is_stopped(engine, memory, act, monkeypatch) -> None:
    monkeypatch.setattr("eddyline.api.sinks.STOP_S", 2 * PATIENCE_S)
    gate = memory.gates["slow"] = threading.Event()
    slow = engine.sink("slow", "totals", "memory", place="slow")
    engine.start(0.01)
    until(lambda: engine.status()["epoch"] > 1)
    (deliverer,) = engine._epochs.sinks._deliverers.values()
    stopping = threading.Thread(target=getattr(slow, act))
    stopping.start()
    until(lambda: deliverer._stopping)
    before = engine.status()["epoch"]
    engine.execute("INSERT INTO sales VALUES (9, 'x', 1.0)")
    until(lambda: engine.status()["epoch"] > before)
    if act != "resend":  # which waits for nothing
        assert stopping.is_alive()
    assert deliverer._thread.is_alive()
    gate.set()
    stopping.join()


def test_a_replaced_view_sends_the_difference(engine, memory) -> None:
    sink = engine.sink("k", "totals", "memory", place="p")
    engine.advance()
    engine.view("totals", QUERY + " HAVING count(*) > 1", replace=True)
    epoch = engine.advance()
    await_epoch(engine, sink, epoch)
    assert held(memory) == rows(engine.snapshot("totals"))
    assert [call for call, _ in memory.targets["p"].received].count("replace") == 1
    engine.view("totals", "SELECT item FROM sales", replace=True)  # other columns
    engine.execute("INSERT INTO sales VALUES (9, 'x', 1.0)")
    await_epoch(engine, sink, engine.advance())
    assert held(memory) == rows(engine.snapshot("totals"))


def test_a_key_that_the_view_does_not_have_is_refused(engine, memory) -> None:
    engine.view("items", "SELECT item FROM sales")
    with pytest.raises(CatalogError, match="SINK_KEY"):
        engine.sink("k", "items", "memory", place="p", key="item")
    with pytest.raises(CatalogError, match="SINK_KEY"):
        engine.sink("k", "totals", "memory", place="p", key="n")
    engine.sink("k", "totals", "memory", place="p", key="item")
    with pytest.raises(CatalogError, match="SINK_KEY"):
        engine.view("totals", "SELECT item, 1 AS n, v AS total FROM sales", replace=True)
    assert [entry.name for entry in engine.catalog.sinks] == ["k"]


def test_options_and_secrets(engine, memory, monkeypatch, tmp_path) -> None:
    for options, what in (
        ({"place": "p", "colour": "red"}, "colour"),
        ({"place": "p", "commit_interval": "soon"}, "commit_interval"),
        ({"place": "p", "password": "s3cret"}, "password"),
    ):
        with pytest.raises(EngineError, match="BAD_OPTION") as caught:
            engine.sink("k", "totals", "memory", **options)
        assert what in str(caught.value)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(EngineError, match="BAD_OPTION"):
        engine.sink("k", "totals", "fax")
    (tmp_path / "password").write_text("s3cret\n")
    sink = engine.sink(
        "k", "totals", "memory", place="p", password=f"${{file:{tmp_path / 'password'}}}"
    )
    engine.advance()
    assert memory.opened[-1][1]["password"] == "s3cret"
    assert b"s3cret" not in (Path(engine.files.root) / "catalog.db").read_bytes()
    other = engine.sink("m", "totals", "memory", place="m", password="${env:EDDYLINE_NO_SUCH}")
    engine.advance()
    assert "SECRET_MISSING" in other.status()["error"]
    assert sink.status()["state"] == "live"


def test_rows_that_a_target_refuses_become_dead_letters(engine, memory) -> None:
    memory.refused = "bad"
    engine.sink("k", "totals", "memory", place="p")
    stopping = engine.sink("s", "totals", "memory", place="s", on_refused="stop")
    engine.advance()
    engine.execute("INSERT INTO sales VALUES (4, 'bad', 1.0), (5, 'good', 1.0)")
    engine.advance()
    engine.advance()
    (letter,) = engine.dead_letters("k").collect()
    assert json.loads(bytes(letter.payload)) == {"item": "bad", "n": 1, "total": 1.0}
    assert (letter.error, letter.bolt) == ("too long", "sink")
    assert ("good", 1, 1.0) in memory.targets["p"].rows
    assert "SINK_REFUSED" in stopping.status()["error"]
    assert engine.remove_dead_letters("k", None, replay=False) == 1
    assert engine.sql("SELECT * FROM k__dead").count() == 1  # until the next epoch
    engine.advance()
    assert engine.sql("SELECT * FROM k__dead").count() == 0


@pytest.mark.guarantee(
    "sink `delta` and the dead letters of rows that it refuses",
    "exactly once",
    "the delivery, after rows were refused and before the commit",
)
@pytest.mark.parametrize("keyed", [True, False])
def test_a_row_that_delta_refuses_is_one_dead_letter_after_a_crash(
    tmp_path, spark, monkeypatch, keyed
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs eddyline[delta]")
    path, write, tries = str(tmp_path / "lake"), deltalake.write_deltalake, []
    schema = pa.schema({"item": pa.string(), "n": pa.int64()})
    deltalake.DeltaTable.create(path, schema).alter.add_constraint({"small": "n < 10"})

    def dying(table, *given, **options) -> None:
        if isinstance(table, deltalake.DeltaTable):  # else it is scratch
            tries.append(options["mode"])
            if len(tries) > 1:  # the first one tells of the constraint
                raise Crash("the process dies")
        write(table, *given, **options)

    def view(engine: el.Engine) -> el.View:
        keyed_query = "SELECT item, sum(v) AS n FROM sales GROUP BY item"
        return engine.view("totals", keyed_query if keyed else "SELECT item, v AS n FROM sales")

    def send(engine: el.Engine, name: str, **rows: int) -> int:
        lines = [json.dumps({"item": item, "v": v}) for item, v in rows.items()]
        (tmp_path / "in" / name).write_text("\n".join(lines))
        return engine.advance()

    with opened(tmp_path, spark) as engine:
        (tmp_path / "in").mkdir()
        engine.execute(
            "CREATE STREAM sales (item STRING, v BIGINT) USING json "
            f"OPTIONS (path '{tmp_path / 'in'}')"
        )
        view(engine)
        sink = engine.sink("k", "totals", "delta", path=path)
        engine.advance()
        monkeypatch.setattr(deltalake, "write_deltalake", dying)
        send(engine, "1.json", tea=1, gold=50, milk=2)
        assert sink.status()["state"] == "failing"
    assert len(tries) > 1
    assert deltalake.DeltaTable(path).to_pyarrow_table().num_rows == 0
    monkeypatch.setattr(deltalake, "write_deltalake", write)
    with opened(tmp_path, spark) as engine:
        sink = engine.sink("k", "totals", "delta", path=path)
        await_epoch(engine, sink, send(engine, "2.json", rice=3))
        rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
        assert sorted(map(tuple, map(dict.values, rows))) == [("milk", 2), ("rice", 3), ("tea", 1)]
        (letter,) = engine.dead_letters("k").collect()
        assert json.loads(bytes(letter.payload)) == {"item": "gold", "n": 50}
        assert letter.error == "the constraint small: n < 10"


def test_a_function_gets_each_epoch_in_change_feed_form(engine, tmp_path, spark) -> None:
    seen: list[tuple[int, list]] = []
    failing = threading.Event()

    def note(changes: DataFrame, epoch: int) -> None:
        if failing.is_set():
            raise ValueError("the target is away")
        found = changes.drop("_commit_timestamp").collect()
        seen.append((epoch, sorted(map(tuple, found), key=repr)))

    first = engine.advance()
    sink = engine.view("totals", QUERY).foreach_epoch(note, "f")
    await_epoch(engine, sink, first)
    assert seen == [(first, [("milk", 1, 0.5, "insert", first), ("tea", 2, 3.0, "insert", first)])]
    engine.execute("UPDATE sales SET v = 5 WHERE id = 1")
    engine.execute("DELETE FROM sales WHERE id = 3")
    epoch = engine.advance()
    assert (
        seen[-1]
        == (
            epoch,
            [
                ("milk", 1, 0.5, "delete", epoch),
                ("tea", 2, 3.0, "update_preimage", epoch),
                ("tea", 2, 7.0, "update_postimage", epoch),
            ],
        )
        or epoch > first + 1
    )
    failing.set()
    engine.execute("INSERT INTO sales VALUES (8, 'x', 1.0)")
    engine.advance()
    assert sink.status()["state"] == "failing"
    failing.clear()
    engine.execute("INSERT INTO sales VALUES (9, 'y', 1.0)")
    await_epoch(engine, sink, engine.advance())
    assert [epoch for epoch, _ in seen] == sorted({epoch for epoch, _ in seen})
    engine.stop()
    with opened(tmp_path, spark) as again:
        again.advance()
        assert again.status()["sinks"][0]["state"] == "not connected"
        view = again.view("totals", QUERY)
        again.execute("INSERT INTO sales VALUES (10, 'z', 1.0)")
        last = again.advance()
        await_epoch(again, view.foreach_epoch(note, "f"), last)
        assert seen[-1][0] == last


@pytest.mark.parametrize("name", ["parquet", "csv", "jsonl"])
def test_files_by_epoch_add_up_to_the_view(engine, tmp_path, name) -> None:
    folder = tmp_path / "out"
    engine.advance()
    sink = engine.sink("k", "totals", name, path=str(folder))
    for number in range(4, 8):
        engine.execute(f"INSERT INTO sales VALUES ({number}, 'item {number % 2}', 1.5)")
        engine.execute("DELETE FROM sales WHERE id = 1")
        engine.advance()
    await_epoch(engine, sink, engine.advance())
    read = pyarrow.dataset.dataset(
        sorted(str(path) for path in folder.glob(f"*.{name}")), format=name.removesuffix("l")
    ).to_table()
    content: Counter = Counter()
    for *values, kind, _epoch in zip(*(c.to_pylist() for c in read.columns), strict=True):
        content[tuple(values)] += -1 if kind in ("delete", "update_preimage") else 1
    assert {row: n for row, n in content.items() if n} == rows(engine.snapshot("totals"))
    sink.resend()
    await_epoch(engine, sink, engine.advance())
    with pytest.raises(EddylineError):
        engine.sink("m", "totals", name)
    taken = engine.sink("m", "totals", name, path=str(folder))
    engine.advance()
    assert "SINK_TARGET_NOT_EMPTY" in taken.status()["error"]


def test_the_command_line(engine, memory, tmp_path, capsys) -> None:
    engine.sink("k", "totals", "csv", path=str(tmp_path / "out"))
    engine.advance()
    storage = ["--storage", engine.files.root]
    assert main(["sink", "list", *storage]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split()[:4] == ["k", "totals", "csv", "live"]
    engine.start(0.05)
    assert main(["sink", "pause", "k", *storage]) == 0
    assert engine.status()["sinks"][0]["state"] == "paused"
    assert main(["sink", "resume", "k", *storage]) == 0
    assert main(["sink", "resend", "k", *storage]) == 0
    assert main(["sink", "drop", "nobody", *storage]) == 1
    assert "nobody" in capsys.readouterr().err
    assert main(["sink", "drop", "k", *storage]) == 0
    assert engine.status()["sinks"] == []
    with pytest.raises(CatalogError, match="NOT_FOUND"):
        engine.execute("DROP SINK k")


def test_a_view_replaced_by_one_that_fails_does_not_empty_the_target(engine, memory) -> None:
    sink = engine.sink("k", "totals", "memory", place="p")
    engine.advance()
    before = held(memory)
    with pytest.warns(el.ViewFailingWarning):
        engine.view("totals", "SELECT id, CAST(item AS INT) AS n FROM sales", replace=True)
    engine.advance()
    assert sink.status()["state"] == "waiting"
    assert held(memory) == before
    engine.execute("UPDATE sales SET item = '5'")
    await_epoch(engine, sink, engine.advance())
    assert held(memory) == rows(engine.snapshot("totals"))


def test_a_function_may_stop_the_engine(tmp_path, spark) -> None:
    engine = opened(tmp_path, spark)
    engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
    view = engine.view("totals", QUERY)
    engine.execute("INSERT INTO sales VALUES (1, 'tea', 1.0)")
    engine.advance()
    stopped = threading.Event()

    def stop(changes: DataFrame, epoch: int) -> None:
        engine.stop()
        stopped.set()

    view.foreach_epoch(stop, "f")
    assert stopped.wait(PATIENCE_S)
    with opened(tmp_path, spark) as again:
        again.advance()


def test_a_function_may_run_an_epoch(tmp_path, spark) -> None:
    engine = opened(tmp_path, spark)
    table = engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
    view = engine.view("totals", QUERY)
    seen: list[tuple[int, float]] = []

    def write_more(changes: DataFrame, epoch: int) -> None:
        begun = time.monotonic()
        if not seen:
            table.insert([(2, "coffee", 2.0)])
            assert engine.advance() > epoch
        seen.append((epoch, time.monotonic() - begun))

    view.foreach_epoch(write_more, "f")
    table.insert([(1, "tea", 1.0)])
    engine.advance()
    until(lambda: len(seen) == 2)
    assert seen[0][1] < WAIT_S, "it doesn't wait for its own delivery"
    engine.stop()


def test_a_restored_target_is_told(engine, memory) -> None:
    sink = engine.sink("k", "totals", "memory", place="p")
    engine.advance()
    memory.targets["p"] = MemorySink()
    engine.execute("INSERT INTO sales VALUES (4, 'x', 1.0)")
    engine.advance()
    assert "SINK_TARGET_RESTORED" in sink.status()["error"]
    sink.resend()
    epoch = engine.advance()
    await_epoch(engine, sink, epoch)
    assert held(memory) == rows(engine.snapshot("totals"))


def lake(path: Path) -> Counter:
    return Counter(
        tuple(row.values()) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    )


def test_a_view_is_replaced_by_one_with_another_key(tmp_path, spark) -> None:
    with opened(tmp_path, spark) as engine:
        engine.table("a", "id INT, s STRING", ["id"]).insert([(1, "x"), (2, "x"), (3, "y")])
        engine.table("b", "id INT, s STRING", ["s"]).insert([(1, "x"), (3, "y"), (3, "z")])
        engine.view("v", "SELECT id, s FROM a")
        engine.view("reader", "SELECT id, s FROM v")
        names, modes = ("v", "reader"), ("upsert", "changelog")
        sinks = [
            engine.sink(
                f"{mode}_{name}", name, "delta", path=str(tmp_path / mode / name), mode=mode
            )
            for name in names
            for mode in modes
        ]

        def delivered() -> None:
            epoch = engine.advance()
            for sink in sinks:
                await_epoch(engine, sink, epoch)

        delivered()
        engine.execute("CREATE OR REPLACE VIEW v AS SELECT id, s FROM b")
        delivered()
        for name in names:  # the row 1 stays, beside the deleted one of its new key
            assert lake(tmp_path / "upsert" / name) == {(1, "x"): 1, (3, "y"): 1, (3, "z"): 1}
            log = DeltaTable(str(tmp_path / "changelog" / name)).to_pyarrow_table()
            assert log.num_rows == 3 + 2  # the difference only
        engine.execute("DELETE FROM b WHERE s = 'y'")
        delivered()
        assert lake(tmp_path / "upsert" / "v") == {(1, "x"): 1, (3, "z"): 1}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_view_without_a_key_is_replaced_by_one_with_fewer_rows(
    restarted, tmp_path, spark
) -> None:
    (tmp_path / "in").mkdir()

    def write(name: str, *numbers: int) -> None:
        (tmp_path / "in" / name).write_text("".join(f'{{"x": {n}}}\n' for n in numbers))

    write("1.json", 1, 2, 3, 3, 4)
    engine = opened(tmp_path, spark)
    engine.create_stream("s", "x INT", "json", {"path": str(tmp_path / "in")})
    engine.view("v", "SELECT x FROM s WHERE x > 1")
    engine.view("reader", "SELECT x, x + 1 AS y FROM v")
    for name in ("v", "reader"):
        engine.sink(f"k_{name}", name, "delta", path=str(tmp_path / name))
    engine.advance()
    assert lake(tmp_path / "v") == {(2,): 1, (3,): 2, (4,): 1}
    engine.execute("CREATE OR REPLACE VIEW v AS SELECT x FROM s WHERE x > 2")
    if restarted:
        engine.stop()
        engine = opened(tmp_path, spark)
    with engine:
        for number in (5, 6):
            write(f"{number}.json", number)
            epoch = engine.advance()
            for name in ("v", "reader"):
                await_epoch(engine, engine.sink(f"k_{name}"), epoch)
                assert lake(tmp_path / name) == rows(engine.snapshot(name))
        assert lake(tmp_path / "v") == {(3,): 2, (4,): 1, (5,): 1, (6,): 1}


def test_a_target_has_one_sink(engine, tmp_path) -> None:
    engine.view("none", "SELECT * FROM sales WHERE v > 1000")
    first = engine.sink("first", "none", "delta", path=str(tmp_path / "lake"))
    await_epoch(engine, first, engine.advance())
    second = engine.sink("second", "none", "delta", path=str(tmp_path / "lake"))
    engine.advance()
    until(lambda: "sink first" in second.status().get("error", ""), second.status)
    assert second.status()["condition"] == "SINK_TARGET_NOT_EMPTY"
    assert first.status()["state"] == "live"
    first.drop()
    engine.execute("INSERT INTO sales VALUES (4, 'gold', 5000.0)")
    await_epoch(engine, second, engine.advance())
    # its error goes a moment after the target has the epoch
    until(lambda: second.status()["state"] == "live", second.status)


@pytest.mark.parametrize("name", ["delta", "parquet", "kafka", "webhook"])
def test_a_column_with_the_name_of_one_of_a_change_feed_is_refused(engine, name, tmp_path) -> None:
    engine.view("odd", "SELECT item AS _CHANGE_TYPE FROM sales")
    options = {
        "delta": {"path": str(tmp_path), "mode": "changelog"},
        "parquet": {"path": str(tmp_path)},
        "kafka": {"bootstrap_servers": "h:1", "topic": "t", "envelope": "changelog"},
        "webhook": {"url": "http://127.0.0.1:1/"},
    }[name]
    with pytest.raises(CatalogError, match="DUPLICATE_COLUMN"):
        engine.sink("k", "odd", name, **options)


def test_a_sink_waits_for_a_view_that_fails(tmp_path, spark, memory) -> None:
    with opened(tmp_path, spark) as engine:
        engine.table("sales", "id BIGINT, item STRING, v DOUBLE", ["id"])
        engine.view("numbers", "SELECT id, CAST(item AS INT) AS n FROM sales")
        sink = engine.sink("k", "numbers", "memory", place="p")
        engine.execute("INSERT INTO sales VALUES (1, '1', 1.0)")
        engine.advance()
        engine.execute("INSERT INTO sales VALUES (2, 'two', 1.0)")
        engine.advance()
        assert held(memory) == Counter([(1, 1)])
    with opened(tmp_path, spark) as engine:
        engine.advance()
        assert engine.status()["sinks"][0]["state"] == "waiting"
        engine.execute("DELETE FROM sales WHERE id = 2")
        engine.execute("INSERT INTO sales VALUES (3, '3', 1.0)")
        engine.advance()
        await_epoch(
            engine, sink := engine.sink("k", "numbers", "memory", place="p"), engine.advance()
        )
        assert sink.status()["state"] == "live"
        assert held(memory) == rows(engine.snapshot("numbers"))
