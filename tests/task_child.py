"""Run an engine with a constant flow of rows until it is killed. A child process of test_tasks.py.

It prints `ready` once the engine runs. After a number N on its standard input, the next request that
defines a view whose name begins with `w` makes it kill itself at the N-th disk write.

Arguments: folder of the storage.
"""

from __future__ import annotations

import sys
import threading
import time

from eddyline import Engine
from eddyline.api.definitions import Definitions
from eddyline.testing import FaultyFiles


def main(folder: str) -> None:
    files = FaultyFiles(folder)
    engine = Engine(files)
    rows = engine.table("rows", "k BIGINT, v BIGINT")
    engine.view("total", "SELECT count(*) AS n, sum(v) AS s FROM rows")
    engine.view("by_k", "SELECT k, count(*) AS n FROM rows GROUP BY k")
    engine.view("top", "SELECT k, n FROM by_k ORDER BY n DESC, k LIMIT 2")
    view = Definitions.view

    def armed(self: Definitions, name: str, query: str, *, replace: bool) -> object:
        if name.startswith("w"):
            files.arm(fail_at, "kill", "driver")
        return view(self, name, query, replace=replace)

    fail_at = 0
    Definitions.view = armed  # type: ignore[method-assign,assignment]

    def feed() -> None:
        number = 0
        while True:
            rows.insert([(number % 5, number), (number % 3, 1)])
            number += 1
            time.sleep(0.1)

    engine.start(0.3)
    threading.Thread(target=feed, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        fail_at = int(line)
        print("armed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
