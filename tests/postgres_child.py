"""Follow a table of PostgreSQL, to be killed. A child process of test_postgres_changes.py.

Arguments: the storage, the URL of the server, the table; seconds to run after `ready` (0: until it is
killed). The sum of the table's column `a` is 0 after each transaction, so it must be in each epoch. At
the end it reads all there is, and prints `rows`, the view of the table as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from eddyline import Engine, Options
from eddyline.source import postgres
from lanes import draw_lanes
from postgres import without_password

MIRROR = """
    SELECT id, a, b FROM (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY _seq DESC) AS newest FROM changed
        WHERE _seq > (SELECT coalesce(max(_seq), -1) FROM changed WHERE _op = 'truncate')
    ) WHERE newest = 1 AND _op != 'delete'
"""


def main(storage: str, url: str, table: str, seconds: float) -> None:
    draw_lanes()
    postgres.ENTRY_MESSAGES = 100
    with Engine(storage, options=Options(retain_epochs=4)) as engine:
        engine.execute(
            f"CREATE STREAM IF NOT EXISTS changed USING postgres OPTIONS (url '{without_password(url)}', "
            f"password '${{env:SOURCE_PASSWORD}}', table '{table}')"
        )
        engine.view("mirror", MIRROR)
        engine.view("total", "SELECT sum(a) AS total FROM mirror")
        numbers = engine.table("numbers", "n BIGINT")
        engine.view("other", "SELECT count(*) AS n FROM numbers")
        print("ready", flush=True)
        engine.start(0.01)
        end = time.monotonic() + seconds
        while not seconds or time.monotonic() < end:
            (total,) = engine.snapshot("total").first()
            assert not total, total
            numbers.insert([(1,)])
            print("epoch", engine.status()["epoch"], flush=True)
        engine.stop()
    with Engine(storage) as engine:
        engine.advance()
        assert engine.verify()
        rows = sorted(list(row) for row in engine.snapshot("mirror").collect())
        print("rows", json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], float(sys.argv[4]))
