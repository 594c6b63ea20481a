"""Changes a storage at random until it is killed. A child process of `soak.py`.

A journal holds each step before it begins and after it is acknowledged. After a restart the step that
was interrupted must have happened wholly or not at all; all others exactly once.

Arguments: folder; seed; JSON of options; `go` to run until killed, `end` to check and print numbers.
The environment variable SOAK_BROKER is the address of a Kafka broker; without it the queue of the pipeline
is a log on the disk.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.answers.delivery import CommittedChangelog, Delivery
from eddyline.changes import Epoch
from eddyline.options import Options
from eddyline.relay.backend import Backend
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.sink.outbox import Outbox
from eddyline.source import log_index
from eddyline.spark.failures import lost_worker
from eddyline.spark.session import local_session
from eddyline.testing import replayed
from lanes import draw_lanes

FACTS = "id BIGINT, k INT, v INT, s STRING"
DIMS = "k INT, name STRING"
CLICKS = "id BIGINT, k INT, ts TIMESTAMP"
BAD = "v = 0 OR s = 'x'"  # rows on which FAILING views fail
VIEWS = {
    "sums": "SELECT k, count(*) AS n, sum(v) AS s, avg(v) AS a FROM facts GROUP BY k",
    "sizes": "SELECT n, count(*) AS groups FROM sums GROUP BY n",
    "top": "SELECT id, v FROM facts ORDER BY v DESC, id LIMIT 5",
    "ranked": "SELECT id, k, row_number() OVER (PARTITION BY k ORDER BY v DESC, id) AS r FROM facts",
    "named": "SELECT f.id, d.name FROM facts f LEFT JOIN dims d ON f.k = d.k",
    "minutes": "SELECT date_trunc('MINUTE', ts) AS m, count(*) AS n, max(id) AS last FROM clicks GROUP BY 1",
    "above": "SELECT id FROM facts WHERE v > (SELECT avg(v) FROM facts)",
    "quotients": "SELECT id, 100 DIV v AS q FROM facts",
    "counted": "SELECT q, count(*) AS n FROM quotients GROUP BY q",
    "numbers": "SELECT k, sum(CAST(s AS INT)) AS s FROM facts GROUP BY k",
    "loud": "SELECT loud(s) AS t, count(*) AS n FROM facts GROUP BY 1",
    "visited": "SELECT date_trunc('MINUTE', ts) AS m, count(DISTINCT k) AS n FROM visits GROUP BY 1",
    "finals": "SELECT window(ts, '1 minute').start AS m, count(*) AS n FROM visits GROUP BY 1 EMIT FINAL",
    "worked": "SELECT n, count(*) AS c FROM orders GROUP BY n",
}
KEPT = "SELECT k, count(*) AS n, sum(v) AS s FROM facts GROUP BY k"  # what the sink follows
NOT_WRAPPED = {"top", "finals"}  # ORDER BY and EMIT FINAL stand at the end of a query only
FAILING = {"quotients", "counted", "numbers"}
START = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE_S = 120
Step = dict[str, Any]


T = TypeVar("T")


def again(action: Callable[[], T]) -> T:
    """Call a function until nothing that it needs is broken: local Spark doesn't try again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return action()
        except Exception as error:
            retryable = isinstance(error, el.EddylineError) and error.retryable
            if time.monotonic() > deadline or not (retryable or worker_died(error)):
                raise
            time.sleep(0.2)


def worker_died(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, comes from a worker that was killed."""
    return error is not None and (lost_worker(error) or worker_died(error.__cause__))


def loud(text: str) -> str:
    return f"{text}!"


def work(record: dict[str, Any]) -> dict[str, Any]:
    """Do what a bolt does: fail on some records at first, and on others always."""
    number = int(record["payload"])
    if number % 11 == 0 or (number % 5 == 0 and record["attempts"] == 0):
        raise ValueError("chance")
    return {"n": number}


class SqliteSink:
    """A target outside of the storage that commits rows and epoch in one transaction."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path)
        self.database.execute("CREATE TABLE IF NOT EXISTS held (line TEXT PRIMARY KEY, w INT)")
        self.database.execute("CREATE TABLE IF NOT EXISTS epochs (epoch INT)")

    def committed(self) -> Epoch | None:
        (last,) = self.database.execute("SELECT max(epoch) FROM epochs").fetchone()
        return last and Epoch(last)

    def deliver(self, base: Epoch | None, epoch: Epoch, changes: pa.Table) -> None:
        assert base == self.committed()
        with self.database as transaction:
            for *values, _, weight in zip(*(c.to_pylist() for c in changes.columns), strict=True):
                transaction.execute(
                    "INSERT INTO held VALUES (?, ?) ON CONFLICT DO UPDATE SET w = w + excluded.w",
                    (repr(tuple(values)), weight),
                )
            transaction.execute("DELETE FROM held WHERE w = 0")
            transaction.execute("INSERT INTO epochs VALUES (?)", (epoch,))

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        self.database.execute("DELETE FROM held")
        self.deliver(base, epoch, rows)

    def close(self) -> None:
        self.database.close()

    def rows(self) -> Counter[str]:
        return Counter(dict(self.database.execute("SELECT line, w FROM held")))


class Journal:
    """The steps so far, durable; the last one may be unacknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.entries: list[dict[str, Any]] = []
        for line in lines:
            try:
                self.entries.append(json.loads(line))
            except ValueError:
                continue  # the end of a line that a kill has cut; its step had not begun
        self.stream = path.open("a")
        if lines:
            self.stream.write("\n")

    def add(self, **entry: Any) -> None:
        self.entries.append(entry)
        self.stream.write(json.dumps(entry) + "\n")
        self.stream.flush()
        os.fsync(self.stream.fileno())


class Soak:
    """The storage, and what its tables must hold."""

    def __init__(self, folder: Path, options: dict[str, int]) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal")
        self.ids: set[int] = set()
        self.dims: dict[int, str] = {}
        self.clicks = 0
        self.records = 0
        self.put: set[int] = set()
        self.perhaps_put: set[int] = set()
        spark = local_session()
        spark.udf.register("loud", loud, "string")
        (folder / "in").mkdir(exist_ok=True)
        self.engine = again(lambda: self._engine(spark, options))
        self.backend = again(self._backend)
        self.facts, self.dim, self.orders = again(self._defined)
        kept = CommittedChangelog(self.engine.files, self.engine.catalog.get("kept"))
        outbox = Outbox(self.engine.files, "sqlite")
        self.sink = SqliteSink(folder / "target.db")
        self.delivery = Delivery(kept, outbox, self.sink)
        self._replay()

    def _engine(self, spark: SparkSession, options: dict[str, int]) -> el.Engine:
        chosen = {**options, "catalog": os.environ.get("EDDYLINE_CATALOG", "")}
        return el.Engine(str(self.folder / "disk/storage"), spark, Options(**chosen))

    def _backend(self) -> Backend:
        address = os.environ.get("SOAK_BROKER")
        if address is None:
            return LogBackend(str(self.folder / "queue"))
        from eddyline.relay.kafka import KafkaBackend

        return KafkaBackend(address, "soak")

    def _defined(self) -> tuple[el.Table, el.Table, el.Pipeline]:
        facts = self.engine.table("facts", FACTS)
        dims = self.engine.table("dims", DIMS, primary_key=["k"])
        path = {"path": str(self.folder / "in")}
        self.engine.create_stream("clicks", CLICKS, "json", path)
        self.engine.create_stream("visits", CLICKS, "json", path, watermark=("ts", "1 minute"))
        pipeline = self.engine.pipeline("p", DataQueue(self.backend), lanes=2, tuple_rows=10)
        orders = pipeline.bolt(work, max_attempts=3, retry_delay=0.01).into("orders", "n BIGINT")
        self.engine.view("kept", KEPT)
        return facts, dims, orders

    def _replay(self) -> None:
        """Apply the journal; find out whether the interrupted step has happened."""
        open_step: Step | None = None
        for entry in self.journal.entries:
            if "step" in entry:
                open_step = entry["step"]
            elif open_step is not None:
                self.expect(open_step, done=entry["done"])
                open_step = None
        if open_step is not None:
            done = again(lambda: self._happened(open_step))
            self.journal.add(done=done)
            self.expect(open_step, done=done)

    def _happened(self, step: Step) -> bool:
        held = {int(i) for (i, *_) in self.written("facts")}
        if step["kind"] == "insert":
            new = {row[0] for row in step["rows"]}
            assert held >= new or held.isdisjoint(new), f"a part of {step} was applied"
            return held >= new
        if step["kind"] == "delete":
            gone = set(step["ids"])
            assert held >= gone or held.isdisjoint(gone), f"a part of {step} was applied"
            return held.isdisjoint(gone)
        if step["kind"] == "dims":
            present = dict(self.written("dims"))
            return all(present.get(k) == name for k, name in step["rows"])
        return step["kind"] == "file" and (self.folder / "in" / step["name"]).exists()

    def written(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of a table with all that was written to it."""
        self.advance()
        return [tuple(row) for row in self.engine.snapshot(table).collect()]

    def advance(self) -> None:
        again(self.engine.advance)

    def expect(self, step: Step, *, done: bool = True) -> None:
        """Record what a step does; one that wasn't done did nothing, or what can't be known."""
        if step["kind"] == "put":
            (self.put if done else self.perhaps_put).update(step["numbers"])
        elif not done:
            return
        elif step["kind"] == "insert":
            self.ids |= {row[0] for row in step["rows"]}
            self.records += len(step["rows"])
        elif step["kind"] == "delete":
            self.ids -= set(step["ids"])
        elif step["kind"] == "dims":
            self.dims |= dict(step["rows"])
        elif step["kind"] == "file":
            self.clicks += step["lines"]
            self.records += step["lines"]

    def step(self, chance: random.Random) -> None:
        """Do one random thing."""
        kind = chance.choices(
            [
                "insert",
                "delete",
                "dims",
                "file",
                "put",
                "poison",
                "cure",
                "view",
                "sink",
                "advance",
            ],
            [6, 2, 1, 3, 4, 1, 1, 2, 3, 5],
        )[0]
        if kind == "advance":
            self.advance()
        elif kind == "sink":
            again(self.delivery.run)
        elif kind == "view":
            again(lambda: self.change_views(chance))
        else:
            step = again(lambda: self.planned(kind, chance))
            self.journal.add(step=step)
            done = self.put_once(step) if kind == "put" else again(lambda: self.do(step))
            self.journal.add(done=done)
            self.expect(step, done=done)

    def planned(self, kind: str, chance: random.Random) -> Step:
        """Return a step with all its values."""
        first = 1 + max(
            (e["step"].get("last", 0) for e in self.journal.entries if "step" in e), default=0
        )
        if kind in ("insert", "poison"):
            count = chance.randint(1, 40)
            rows = [
                [first + i, chance.randint(0, 9), chance.randint(1, 50), str(i)]
                for i in range(count)
            ]
            if kind == "poison":
                rows[0][2:] = chance.choice([[0, "1"], [1, "x"]])
            return {"kind": "insert", "rows": rows, "last": first + count - 1}
        if kind in ("delete", "cure"):
            where = BAD if kind == "cure" else f"id % 7 = {chance.randint(0, 6)}"
            ids = self.engine.sql(f"SELECT id FROM facts WHERE {where}").collect()
            return {"kind": "delete", "ids": sorted({i for (i,) in ids} & self.ids)}
        if kind == "dims":
            return {
                "kind": "dims",
                "rows": [[chance.randint(0, 9), f"name{chance.randint(0, 99)}"]],
            }
        count = chance.randint(1, 200)
        if kind == "put":
            return {
                "kind": "put",
                "numbers": list(range(first, first + count)),
                "last": first + count,
            }
        name = f"{len(self.journal.entries):08d}.json"
        return {"kind": "file", "name": name, "lines": count, "last": first + count, "first": first}

    def put_once(self, step: Step) -> bool:
        """Put records into the queue; whether it is certain that they are in it."""
        try:
            Producer(self.backend).put([str(n) for n in step["numbers"]])
        except el.EddylineError as error:
            if not error.retryable:
                raise
            return False
        return True

    def do(self, step: Step) -> bool:
        """Do a step that is done wholly when this returns, and not at all when it raises."""
        if step["kind"] == "insert":
            self.facts.insert([tuple(row) for row in step["rows"]])
        elif step["kind"] == "delete":
            if step["ids"]:
                listed = ", ".join(map(str, step["ids"]))
                self.engine.execute(f"DELETE FROM facts WHERE id IN ({listed})")
        elif step["kind"] == "dims":
            self.dim.upsert([tuple(row) for row in step["rows"]])
        else:
            # some lines are so old that they are late
            ages = [i * 37 % 300 if i % 20 == 0 else i % 50 for i in range(step["lines"])]
            times = [START + timedelta(seconds=step["first"] - age) for age in ages]
            lines = [
                json.dumps({"id": step["first"] + i, "k": i % 5, "ts": at.isoformat()})
                for i, at in enumerate(times)
            ]
            hidden = self.folder / f"unfinished-{step['name']}"
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(self.folder / "in" / step["name"])
        return True

    def change_views(self, chance: random.Random) -> None:
        """Create, replace, pause, resume or drop a view."""
        states = {view["name"]: view["state"] for view in self.engine.status()["views"]}
        name = chance.choice(list(VIEWS))
        upstream = {"sizes": "sums", "counted": "quotients"}.get(name)
        if upstream is not None and states.get(upstream) in (None, "paused"):
            name = upstream
        try:
            if name not in states:
                self.engine.view(name, VIEWS[name])
            elif states[name] == "paused":
                self.engine.resume(name)
            else:
                how = chance.choice(["pause", "drop", "replace"])
                if how == "pause":
                    self.engine.pause(name)
                elif how == "drop":
                    self.engine.drop("view", name)
                else:
                    query = f"SELECT * FROM ({VIEWS[name]}) AS again"
                    query = VIEWS[name] if name in NOT_WRAPPED else query
                    self.engine.view(name, query, replace=True)
        except el.EddylineError as error:
            if error.condition not in ("STILL_READ", "UPSTREAM_PAUSED"):
                raise

    def check(self) -> None:
        """Compare the tables with the journal, and the views with offline SQL."""
        held = Counter(int(i) for (i, *_) in self.written("facts"))
        lost, doubled = self.ids - held.keys(), [i for i, n in held.items() if n > 1]
        assert not lost, f"lost: {sorted(lost)}"
        assert not doubled, f"doubled: {doubled}"
        assert held.keys() == self.ids, (
            f"not inserted, or deleted: {sorted(held.keys() - self.ids)}"
        )
        assert dict(self.engine.snapshot("dims").collect()) == self.dims
        clicks = self.engine.sql("SELECT count(*), count(DISTINCT id) FROM clicks").collect()
        assert tuple(clicks[0]) == (self.clicks, self.clicks), clicks
        late = self.engine.sql("SELECT count(*) FROM visits__late").collect()[0][0]
        visits = self.engine.sql("SELECT count(*), count(DISTINCT id) FROM visits").collect()[0]
        assert visits[0] == visits[1] == self.clicks - late, (visits, late, self.clicks)
        self.check_pipeline()
        report = self.engine.verify()
        assert report.equal, str(report)  # those that fail are looked at below
        bad = self.engine.sql(f"SELECT count(*) FROM facts WHERE {BAD}").collect()[0][0]
        # a paused view isn't tried again
        paused = {view for view in VIEWS if (e := self.engine.catalog.find(view)) and e.paused}
        assert set(report.failing) <= FAILING, str(report)
        assert bad or set(report.failing) <= paused, str(report)
        for view in [
            view["name"] for view in self.engine.status()["views"] if view["state"] == "live"
        ]:
            self.check_changes(view)

    def check_changes(self, view: str) -> None:
        """Compare the rows of a view with its replayed changes."""
        epoch = self.engine.status()["epoch"]
        rows = Counter(repr(tuple(row)) for row in self.engine.snapshot(view).collect())
        changes = self.engine.changes(view).collect()
        net = Counter(map(repr, replayed(changes)))
        assert net == rows, (
            f"changes of {view}: not in its rows {net - rows}, missing {rows - net}; epochs "
            f"{sorted({row[-1] for row in changes})}, then {epoch}, {self.engine.status()['epoch']}"
        )

    def check_pipeline(self) -> None:
        """Compare what the pipeline has done so far with what was put into its queue."""
        done = Counter(n for (n,) in self.engine.sql("SELECT n FROM orders").collect())
        letters = self.engine.sql("SELECT CAST(CAST(payload AS STRING) AS BIGINT) FROM p__dead")
        dead = Counter(n for (n,) in letters.collect())
        known = done + dead
        assert set(known.values()) <= {1}, f"doubled: {[n for n in known if known[n] > 1]}"
        assert known.keys() <= self.put | self.perhaps_put
        assert all(n % 11 == 0 for n in dead)
        account = again(self.orders.account)
        waiting = account.retry + account.in_flight
        assert (account.done, account.dead) == (done.total(), dead.total()), account
        assert account.received == account.done + account.dead + waiting, account
        if not waiting:
            lost = self.put - known.keys()
            assert not lost, f"lost: {sorted(lost)}"

    def drain(self) -> None:
        """Run epochs until the pipeline has nothing left to do."""
        while True:
            self.advance()
            account = again(self.orders.account)
            if not account.retry and not account.in_flight:
                return
            time.sleep(0.05)


def main(folder: str, seed: str, options: str, mode: str) -> None:
    draw_lanes()
    warnings.simplefilter("ignore")
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    chance = random.Random(seed)
    log_index.MERGE_FAN_IN = 4  # so that hours are enough for entries to be merged twice
    started = time.monotonic()
    soak = Soak(Path(folder), json.loads(options))
    again(soak.check)
    print(f"ready {time.monotonic() - started:.1f}", flush=True)
    if mode == "go":
        while True:
            soak.step(chance)
    soak.drain()
    bad = soak.planned("cure", chance)
    soak.do(bad)
    soak.expect(bad)
    for view in soak.engine.status()["views"]:
        if soak.engine.catalog.get(view["name"]).paused:
            soak.engine.resume(view["name"])
    soak.check()
    assert {view["state"] for view in soak.engine.status()["views"]} <= {"live"}
    soak.delivery.run()
    kept = soak.engine.snapshot("kept").collect()
    assert soak.sink.rows() == Counter(repr(tuple(row)) for row in kept)
    numbers = {
        "epochs": soak.engine.status()["epoch"],
        "records": soak.records,
        "piped": len(soak.put | soak.perhaps_put),
        "late": soak.engine.sql("SELECT count(*) FROM visits__late").collect()[0][0],
        "files": sum(len(found) for _, _, found in os.walk(Path(folder) / "disk/storage")),
    }
    print(f"numbers {json.dumps(numbers)}", flush=True)
    soak.engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
