"""Changes a storage at random until it is killed. A child process of `soak.py`.

A journal holds each step before it begins and after it is acknowledged. After a restart the step that
was interrupted must have happened wholly or not at all; all others exactly once.

Arguments: folder; seed; JSON of options; `go` to run until killed, `end` to check and print numbers.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import eddyline as el
from eddyline.options import Options
from eddyline.spark.session import local_session
from eddyline.testing import replayed

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
}
FAILING = {"quotients", "counted", "numbers"}
START = datetime(2026, 1, 1, tzinfo=UTC)
Step = dict[str, Any]


T = TypeVar("T")


def again(action: Callable[[], T]) -> T:
    """Call a function; if a worker was killed meanwhile, call it again: local Spark doesn't."""
    for _ in range(4):
        try:
            return action()
        except el.EddylineError as error:
            if not error.retryable and not worker_died(error):
                raise
        except Exception as error:
            if not worker_died(error):
                raise
    return action()


def worker_died(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, comes from a worker that was killed."""
    words = ("exited unexpectedly", "Broken pipe", "EOFExc")
    while error is not None:
        if any(word in str(error) for word in words):
            return True
        error = error.__cause__
    return False


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
        self.engine = el.Engine(str(folder / "storage"), local_session(), Options(**options))
        (folder / "in").mkdir(exist_ok=True)
        self.facts = self.engine.table("facts", FACTS)
        self.dim = self.engine.table("dims", DIMS, primary_key=["k"])
        self.engine.create_stream("clicks", CLICKS, "json", {"path": str(folder / "in")})
        self._replay()

    def _replay(self) -> None:
        """Apply the journal; find out whether the interrupted step has happened."""
        open_step: Step | None = None
        for entry in self.journal.entries:
            if "step" in entry:
                open_step = entry["step"]
            elif open_step is not None:
                if entry["done"]:
                    self.expect(open_step)
                open_step = None
        if open_step is not None:
            done = self._happened(open_step)
            self.journal.add(done=done)
            if done:
                self.expect(open_step)

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

    def expect(self, step: Step) -> None:
        """Record what a step does."""
        if step["kind"] == "insert":
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
            ["insert", "delete", "dims", "file", "poison", "cure", "view", "advance"],
            [6, 2, 1, 3, 1, 1, 2, 5],
        )[0]
        if kind == "advance":
            self.advance()
        elif kind == "view":
            again(lambda: self.change_views(chance))
        else:
            step = again(lambda: self.planned(kind, chance))
            self.journal.add(step=step)
            again(lambda: self.do(step))
            self.journal.add(done=True)
            self.expect(step)

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
        name = f"{len(self.journal.entries):08d}.json"
        return {"kind": "file", "name": name, "lines": count, "last": first + count, "first": first}

    def do(self, step: Step) -> None:
        if step["kind"] == "insert":
            self.facts.insert([tuple(row) for row in step["rows"]])
        elif step["kind"] == "delete":
            if step["ids"]:
                listed = ", ".join(map(str, step["ids"]))
                self.engine.execute(f"DELETE FROM facts WHERE id IN ({listed})")
        elif step["kind"] == "dims":
            self.dim.upsert([tuple(row) for row in step["rows"]])
        else:
            at = (START + timedelta(seconds=step["first"])).isoformat()
            lines = [
                json.dumps({"id": step["first"] + i, "k": i % 5, "ts": at})
                for i in range(step["lines"])
            ]
            hidden = self.folder / f"unfinished-{step['name']}"
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(self.folder / "in" / step["name"])

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
                    self.engine.view(name, query if name != "top" else VIEWS[name], replace=True)
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
        report = self.engine.verify()
        assert report, str(report)
        bad = self.engine.sql(f"SELECT count(*) FROM facts WHERE {BAD}").collect()[0][0]
        assert set(report.failing) <= FAILING, str(report)
        assert bad or not report.failing, str(report)


def main(folder: str, seed: str, options: str, mode: str) -> None:
    warnings.simplefilter("ignore")
    chance = random.Random(seed)
    started = time.monotonic()
    soak = Soak(Path(folder), json.loads(options))
    again(soak.check)
    print(f"ready {time.monotonic() - started:.1f}", flush=True)
    if mode == "go":
        while True:
            soak.step(chance)
    bad = soak.planned("cure", chance)
    soak.do(bad)
    soak.expect(bad)
    for view in soak.engine.status()["views"]:
        if view["state"] == "paused" and soak.engine.catalog.get(view["name"]).paused:
            soak.engine.resume(view["name"])
    soak.check()
    assert {view["state"] for view in soak.engine.status()["views"]} <= {"live"}
    for view in soak.engine.status()["views"]:
        name = view["name"]
        rows = [tuple(row) for row in soak.engine.snapshot(name).collect()]
        changes = replayed(soak.engine.changes(name).collect())
        assert Counter(map(repr, changes)) == Counter(map(repr, rows)), name
    runs = sum(len(found) for _, _, found in os.walk(Path(folder) / "storage"))
    numbers = {"epochs": soak.engine.status()["epoch"], "records": soak.records, "files": runs}
    print(f"numbers {json.dumps(numbers)}", flush=True)
    soak.engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
