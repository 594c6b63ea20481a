"""Count the records of a folder of JSON files until a line arrives. A child process of test_delivery.py.

Arguments: folder, delivery semantics. It prints `ready` when it runs, and at the end `total`, the sum of
all counts, and whether the views equal offline SQL over the records that were read.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import eddyline.api.epochs
import eddyline.state.manifest
from eddyline import Engine, Options
from lanes import draw_lanes

RETIRE_EVERY = 4


def main(folder: str, delivery: str) -> None:
    draw_lanes()
    eddyline.api.epochs.RETIRE_EVERY = RETIRE_EVERY
    eddyline.state.manifest.SMALL_RUNS = 0  # as in larger storages: manifests have bases
    root = Path(folder)
    options = Options(delivery=delivery, compaction_fan_in=2, retain_epochs=2 * RETIRE_EVERY)
    ending = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ending.set()), daemon=True).start()
    with Engine(str(root / "storage"), options=options) as engine:
        # the option `mode` makes Spark read the files; the engine copies the rows to the redo log
        source = {"path": str(root / "in"), "mode": "FAILFAST", "maxFilesPerTrigger": "1"}
        engine.create_stream("s", "k STRING, n BIGINT", "json", source)
        engine.view("counts", "SELECT k, count(*) AS n FROM s GROUP BY k")
        engine.advance()
        print("ready", flush=True)
        engine.start(0.01)
        while not ending.wait(0.05):
            engine.await_termination(0)
        engine.stop()
    with Engine(str(root / "storage"), options=options) as engine:
        engine.advance()
        total = sum(row.n for row in engine.snapshot("counts").collect())
        print("total", total, engine.verify().equal, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
