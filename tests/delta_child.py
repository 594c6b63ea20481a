"""Follow a Delta table, to be killed. A child process of test_delta_changes.py.

Arguments: the storage, the path of the table; seconds to run after `ready` (0: until it is killed). The sum
of the table's column `a` is 0 in each version, so it must be in each epoch. At the end it reads all there
is, and prints `rows`, the views of the table as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from eddyline import Engine, Options
from eddyline.source import delta
from lanes import draw_lanes


def main(storage: str, path: str, seconds: float) -> None:
    draw_lanes()
    delta.LOOK_S, delta.ENTRY_VERSIONS = 0.01, 3
    with Engine(storage, options=Options(retain_epochs=4)) as engine:
        options = f"OPTIONS (path '{path}')"
        engine.execute(f"CREATE STREAM IF NOT EXISTS mirror USING delta OP _change_type {options}")
        engine.execute(f"CREATE STREAM IF NOT EXISTS feed USING delta {options}")
        engine.execute(
            "CREATE FLOW latest AS AUTO CDC INTO latest FROM feed KEYS (id) "
            "APPLY AS DELETE WHEN _change_type IN ('delete', 'update_preimage') SEQUENCE BY _seq "
            "COLUMNS (id, a)"
        )
        engine.view("total", "SELECT sum(a) AS total FROM mirror")
        engine.view("other", "SELECT sum(a) AS total FROM latest")
        print("ready", flush=True)
        engine.start(0.01)
        end = time.monotonic() + seconds
        while not seconds or time.monotonic() < end:
            for name in ("total", "other"):
                (total,) = engine.snapshot(name).first()
                assert not total, (name, total)
            print("epoch", engine.status()["epoch"], flush=True)
        engine.stop()
    with Engine(storage) as engine:
        engine.advance()
        assert engine.verify()
        mirror = sorted(list(row) for row in engine.sql("SELECT id, a FROM mirror").collect())
        assert mirror == sorted(list(row) for row in engine.snapshot("latest").collect())
        print("rows", json.dumps(mirror), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], float(sys.argv[3]))
