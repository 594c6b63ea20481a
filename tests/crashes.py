"""A load for crash tests: a fixed sequence of numbered steps, and their expected result.

The load may crash anywhere. Its runner remembers only the number of acknowledged steps: after a restart
each of these must be in the result exactly once, the next one may be, and nothing else.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from eddyline import Engine, Options
from eddyline.storage.files import Files
from eddyline.testing import Offline, PlainTable, Row, replayed

OPTIONS = Options(retain_epochs=3, compaction_fan_in=2)
RETIRE_EVERY = 2  # for `eddyline.api.epochs`: the load shall include the retirement of old epochs
SMALL_RUNS, WHOLE_EVERY = 0, 4  # for `eddyline.state.manifest`: and bases of manifests

ITEMS = "id BIGINT, grp STRING, price BIGINT"
ORDERS = "n BIGINT, item BIGINT, qty BIGINT"
CLICKS = "item BIGINT, qty BIGINT, ts TIMESTAMP"
STOCK = "id BIGINT, held BIGINT"

TOTALS = """
    SELECT i.grp, count(*) AS n, sum(o.qty * i.price) AS amount, max(o.qty) AS most
    FROM (SELECT item, qty FROM orders UNION ALL SELECT item, qty FROM clicks) o
    JOIN items i ON o.item = i.id GROUP BY i.grp
"""
BEST = "SELECT grp, amount FROM totals ORDER BY amount DESC, grp LIMIT {limit}"
CLOSED = """
    SELECT unix_seconds(window(ts, '1 hour').start) AS hour, sum(qty) AS n FROM clicks {where}
    GROUP BY window(ts, '1 hour')
"""
HELD = """
    WITH counts AS (SELECT held, count(*) AS n FROM stock GROUP BY held)
    SELECT a.held, max(a.n) AS n FROM counts a JOIN counts b ON a.held = b.held GROUP BY a.held
"""

START = datetime(2026, 1, 1, tzinfo=UTC)

STEPS = ("upsert", "insert", "files", "delete", "advance", "replace")
LENGTH = len(STEPS)


def new_items(cycle: int) -> list[Row]:
    return [
        ((cycle * 3 + i) % 7, "abcd"[(cycle + i) % 4], (cycle + i // 3) % 5 + 1) for i in range(5)
    ]


def new_orders(cycle: int) -> list[Row]:
    rows: list[Row] = [(cycle * 10 + i, (cycle + i) % 7, i % 3 + 1) for i in range(6)]
    return [*rows, rows[0], rows[0]]


def new_clicks(cycle: int) -> list[Row]:
    """Return three clicks in the hour of the cycle, none of them late."""
    hour = START + timedelta(hours=cycle)
    return [((cycle + i) % 8, i, hour + timedelta(minutes=10 * i)) for i in range(3)]


def late_clicks(cycle: int) -> list[Row]:
    """Return a late click, from the second cycle on; the watermark allows half an hour."""
    return [(1, 100, START + timedelta(hours=cycle - 3))] if cycle else []


def bad_stock(cycle: int) -> dict[str, str]:
    """Return lines that the stream of operations rejects, each with the payload of its dead letter."""
    malformed, unknown = f"x{cycle},1,+", f"{cycle},2,?"
    return {malformed: malformed, unknown: f'{{"id":{cycle},"held":2,"op":"?"}}'}


def new_stock(cycle: int) -> list[Row]:
    return [((cycle * 2 + i) % 9, (cycle + i) % 3) for i in range(3)]


@dataclass(slots=True)
class Load:
    """An engine, the number of steps that it has acknowledged, and the tables that result from them.

    Attributes:
        root: folder of the storage and of the streams' files.
        operations: whether to include a stream of operations, which Spark reads.
        done: number of acknowledged steps.
        plain: the expected contents of the tables.
    """

    root: Path
    spark: SparkSession
    files: Files
    operations: bool = False
    done: int = 0
    plain: dict[str, PlainTable] = field(init=False)
    _engine: Engine | None = None

    def __post_init__(self) -> None:
        self.plain = {
            "items": PlainTable(ITEMS, (0,)),
            "orders": PlainTable(ORDERS),
            "clicks": PlainTable(CLICKS),
            "stock": PlainTable(STOCK, (0,)),
        }
        for step in range(self.done):
            self._apply(step)

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def open(self) -> None:
        """Open or reopen the storage, and define the tables and views that don't exist yet."""
        self.close()
        engine = self._engine = Engine(self.files, self.spark, OPTIONS)
        engine.table("items", ITEMS, ["id"])
        engine.table("orders", ORDERS)
        path = {"path": self._folder("clicks")}
        engine.create_stream("clicks", CLICKS, "json", path, watermark=("ts", "30 minutes"))
        engine.view("totals", TOTALS)
        engine.view("closed", CLOSED.format(where="") + " EMIT FINAL")
        if engine.catalog.find("best") is None:
            engine.view("best", BEST.format(limit=1))
        if self.operations:
            engine.create_stream(
                "stock",
                f"{STOCK}, op STRING",
                "csv",
                {"path": self._folder("stock"), "mode": "DROPMALFORMED"},
                "op",
                ["id"],
            )
            engine.view("held", HELD)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    def run(self, end: int | None = None) -> None:
        """Run the steps up to number `end`; None: to the end of the current cycle, at least one step."""
        end = self.done + LENGTH - self.done % LENGTH if end is None else end
        while self.done < end:
            self.step()

    def step(self) -> None:
        """Run one step and count it as acknowledged."""
        name, cycle = STEPS[self.done % LENGTH], self.done // LENGTH
        if name == "upsert":
            gone = [(cycle % 7, None, None)]
            self.engine.write("items", [("delete", gone), ("append", new_items(cycle))])
        elif name == "insert":
            self.engine.write("orders", [("append", new_orders(cycle))])
        elif name == "files":
            lines = [
                json.dumps({"item": item, "qty": qty, "ts": ts.isoformat()})
                for item, qty, ts in [*new_clicks(cycle), *late_clicks(cycle)]
            ]
            self._write("clicks", cycle, lines)
            lines = [f"{key},{held},+" for key, held in new_stock(cycle)]
            self._write("stock", cycle, [*lines, f"{cycle % 9},,-", *bad_stock(cycle)])
        elif name == "delete":
            self.engine.write("orders", [("delete", new_orders(cycle - 2))])
        elif name == "advance":
            self.engine.advance()
        else:
            self.engine.view("best", BEST.format(limit=1 + cycle % 3), replace=True)
        self._acknowledged()

    def resume(self) -> None:
        """Process all durable input; count the first unacknowledged step if it is durable."""
        self.engine.advance()
        # the other steps are idempotent
        if STEPS[self.done % LENGTH] == "insert":
            marker = new_orders(self.done // LENGTH)[0][0]
            if self.engine.snapshot("orders").where(f"n = {marker}").count():
                self._acknowledged()

    def check(self, *, tidy: bool = True) -> None:
        """Assert that everything equals offline Spark over the acknowledged rows.

        Call it at the end of a cycle.

        Args:
            tidy: assert too that no unfinished file is left. A worker that dies leaves one if Spark
                retries its task; it is removed when its epoch is no longer retained.
        """
        offline = Offline(self.spark, self.plain)
        offline.view("totals", TOTALS)
        closed = START + timedelta(hours=self.done // LENGTH - 2)
        offline.view("closed", CLOSED.format(where=f"WHERE ts < TIMESTAMP '{closed}'"))
        offline.view("best", BEST.format(limit=1 + (self.done // LENGTH - 1) % 3))
        if self.operations:
            offline.view("held", HELD)
        offline.load()
        self.check_tables()
        if self.operations:
            letters = self.engine.snapshot("stock__dead").collect()
            told = [bad_stock(cycle).values() for cycle in range(self.done // LENGTH)]
            expected = sorted(payload for payloads in told for payload in payloads)
            assert sorted(bytes(letter.payload).decode() for letter in letters) == expected
        for name in offline.views:
            live = self.engine.snapshot(name).toArrow()
            found = offline.compared(name, live)
            assert found.equal, (name, found)
            changes = [tuple(row) for row in self.engine.changes(name, None, "retract").collect()]
            rows = [tuple(row.values()) for row in live.to_pylist()]
            assert sorted(replayed(changes)) == sorted(rows), name
        paths = Path(self.files.root).rglob("*.tmp") if tidy else ()
        assert not [path for path in paths if "checkpoints" not in path.parts]

    def check_tables(self) -> None:
        """Assert that the tables have the acknowledged rows, as multisets."""
        for name in ("items", "orders"):
            rows = [tuple(row) for row in self.engine.snapshot(name).collect()]
            assert sorted(rows) == sorted(self.plain[name].rows), name

    def manifests(self) -> dict[str, bytes]:
        """Return the contents of the manifests of all committed epochs, by file name."""
        paths = Path(self.files.root, "manifests").glob("*.json")
        return {path.name: path.read_bytes() for path in paths}

    def _acknowledged(self) -> None:
        self._apply(self.done)
        self.done += 1

    def _apply(self, step: int) -> None:
        """Apply a step to the expected tables."""
        name, cycle = STEPS[step % LENGTH], step // LENGTH
        if name == "upsert":
            self.plain["items"].delete([(cycle % 7,)])
            self.plain["items"].insert(new_items(cycle))
        elif name == "insert":
            self.plain["orders"].insert(new_orders(cycle))
        elif name == "files":
            self.plain["clicks"].insert(new_clicks(cycle))
            self.plain["stock"].insert(new_stock(cycle))
            self.plain["stock"].delete([(cycle % 9,)])
        elif name == "delete":
            self.plain["orders"].delete(new_orders(cycle - 2))

    def _folder(self, name: str) -> str:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return str(folder)

    def _write(self, folder: str, cycle: int, lines: list[str]) -> None:
        path = Path(self._folder(folder), f"{cycle:06d}")
        if not path.exists():
            unfinished = path.with_name(f".{path.name}")
            unfinished.write_text("".join(f"{line}\n" for line in lines))
            os.replace(unfinished, path)
