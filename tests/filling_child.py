"""Fill a view in pieces until it is killed. A child process of test_filling_pieces.py.

It opens the storage, inserts some rows, runs an epoch, prints `ready`, and creates a view. For each piece it
prints `piece`, its number and how many rows it reads, before these are read; then `stored` and how many pieces
are. At the end it compares the view with offline SQL and prints `fine` with the number of its rows.

Arguments: folder; number of the write at which it kills itself, counted from `ready` (0: never).
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

from eddyline import Engine, Options
from eddyline.runtime.epoch import EpochRunner
from eddyline.runtime.sizes import rows_of
from eddyline.spark.session import local_session
from eddyline.state.fillings import Done, FillingCheckpoint
from eddyline.testing import FaultyFiles

ROWS, PIECE_ROWS = 40_000, 5000
QUERY = """
    SELECT g.name, count(*) AS n, sum(v) AS total, min(v) AS least, count(DISTINCT o.k) AS ks
    FROM orders o LEFT JOIN names g ON o.k % 50 = g.k GROUP BY g.name
"""


def main(folder: str, fail_at: int) -> None:
    compute, store = EpochRunner.compute, FillingCheckpoint.store

    def computed(self: EpochRunner, base: Any, given: Any, *rest: Any) -> Any:
        rows = rows_of(one for own in given.segments.values() for one in own)
        print("piece", rest[1].split("/")[-1], rows, flush=True)
        return compute(self, base, given, *rest)

    def stored(self: FillingCheckpoint, done: Done) -> None:
        store(self, done)
        print("stored", done.pieces, flush=True)

    EpochRunner.compute, FillingCheckpoint.store = computed, stored  # type: ignore[method-assign]
    files = FaultyFiles(folder)
    options = Options(fill_rows=PIECE_ROWS, buckets=2)
    with Engine(files, local_session(), options) as engine:
        orders = engine.table("orders", "id BIGINT, k BIGINT, v BIGINT", primary_key=["id"])
        names = engine.table("names", "k BIGINT, name STRING")
        first = engine.snapshot("orders").count()
        if first < ROWS:
            names.insert(pa.table({"k": range(40), "name": [f"name {k % 7}" for k in range(40)]}))
            ids = range(first, ROWS)
            orders.upsert(pa.table({"id": ids, "k": [i % 47 for i in ids], "v": ids}))
            engine.advance()
            first = ROWS
        # rows before those that are read, and behind
        orders.upsert(pa.table({"id": [5, first], "k": [5, 6], "v": [first, first]}))
        engine.advance()
        print("ready", flush=True)
        files.arm(fail_at, "kill")
        view = engine.view("totals", QUERY)
        files.arm(0)
        report = engine.verify()
        assert report, report
        print("fine", view.snapshot().count(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
