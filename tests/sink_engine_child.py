"""Write rows at random while sinks follow a view. A child process of test_sink_kill.py, to be killed.

Arguments: folder; the sinks as JSON, by name their options and `format`, of which `function` upserts into the SQLite database `path`; seconds
to run after `ready` (0: until it is killed). At the end it brings the sinks up to date and prints `letters`, the rows of their dead letters, and
`rows`, the view, both as JSON.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame

import eddyline.api.epochs
from eddyline import Engine, Options
from lanes import draw_lanes
from waiting import until

QUERY = "SELECT k, count(*) AS n, sum(v) AS total FROM t GROUP BY k"


def upserting(path: str) -> Callable[[DataFrame, int], None]:
    """Return a function that applies each epoch once: the epoch's number is in the transaction of its rows."""

    def apply(changes: DataFrame, epoch: int) -> None:
        rows = changes.collect()
        gone = [(row["k"],) for row in rows if row["_change_type"] == "delete"]
        come = [
            tuple(row)[:3] for row in rows if row["_change_type"] in ("insert", "update_postimage")
        ]
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS v (k PRIMARY KEY, n, total)")
            database.execute("CREATE TABLE IF NOT EXISTS epochs (epoch PRIMARY KEY)")
            (last,) = database.execute("SELECT coalesce(max(epoch), 0) FROM epochs").fetchone()
            if epoch <= last:
                return
            database.executemany("DELETE FROM v WHERE k = ?", gone)
            database.executemany("INSERT OR REPLACE INTO v VALUES (?, ?, ?)", come)
            database.execute("INSERT INTO epochs VALUES (?)", (epoch,))

    return apply


def follow(engine: Engine, sinks: dict[str, dict[str, str]]) -> None:
    """Define the sinks; those that are there already get their functions again."""
    view = engine.view("v", QUERY)
    for name, options in sinks.items():
        own = {key: value for key, value in options.items() if key != "format"}
        if options["format"] == "function":
            view.foreach_epoch(upserting(own["path"]), name)
        else:
            engine.sink(name, "v", options["format"], **own)


def main(folder: str, sinks: dict[str, dict[str, str]], seconds: float) -> None:
    draw_lanes()
    eddyline.api.epochs.RETIRE_EVERY = 4
    storage = str(Path(folder) / "storage")
    chance = random.Random(time.time_ns())
    options = Options(retain_epochs=4, compaction_fan_in=2)
    with Engine(storage, options=options) as engine:
        table = engine.table("t", "id BIGINT, k STRING, v BIGINT", ["id"])
        follow(engine, sinks)
        engine.advance()
        print("ready", flush=True)
        engine.start(0.01)
        end = time.monotonic() + seconds
        while not seconds or time.monotonic() < end:
            ids = [chance.randrange(300) for _ in range(20)]
            table.upsert([(i, f"k{i % 17}", chance.randrange(1000)) for i in set(ids)])
            table.delete([{"id": i, "k": "", "v": 0} for i in {chance.randrange(300)}])
            time.sleep(chance.uniform(0, 0.1))
        engine.stop()
    with Engine(storage, options=options) as engine:
        follow(engine, sinks)
        epoch = engine.advance()
        until(
            lambda: all(
                (sink["epoch"], sink["state"]) == (epoch, "live")
                for sink in engine.status()["sinks"]
            ),
            lambda: engine.status()["sinks"],
        )
        rows = [list(row) for row in engine.snapshot("v").collect()]
        assert engine.verify()
        engine.advance()  # brings the dead letters of the last deliveries
        letters = {
            name: [json.loads(bytes(one.payload)) for one in engine.dead_letters(name).collect()]
            for name in sinks
        }
        print("letters", json.dumps(letters), flush=True)
        print("rows", json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]))
