"""Write rows at random while sinks follow a view. A child process of test_sink_kill.py, to be killed.

Arguments: folder; URL of the webhook; seconds to run after `ready` (0: until it is killed). At the end it brings the sinks up to date
and prints `rows`, the view as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import eddyline.api.epochs
from eddyline import Engine, Options

FORMATS = ("delta", "parquet", "csv")
QUERY = "SELECT k, count(*) AS n, sum(v) AS total FROM t GROUP BY k"


def main(folder: str, url: str, seconds: float) -> None:
    eddyline.api.epochs.RETIRE_EVERY = 4
    root = Path(folder)
    chance = random.Random(time.time_ns())
    options = Options(retain_epochs=4, compaction_fan_in=2)
    with Engine(str(root / "storage"), options=options) as engine:
        table = engine.table("t", "id BIGINT, k STRING, v BIGINT", ["id"])
        engine.view("v", QUERY)
        for name in FORMATS:
            engine.sink(f"to_{name}", "v", name, path=str(root / name))
        engine.sink("to_webhook", "v", "webhook", url=url)
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
    with Engine(str(root / "storage"), options=options) as engine:
        epoch = engine.advance()
        for status in engine.status()["sinks"]:
            assert (status["epoch"], status["state"]) == (epoch, "live"), status
        rows = [list(row) for row in engine.snapshot("v").collect()]
        assert engine.verify()
        print("rows", json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
