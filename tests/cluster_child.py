"""Run the load of `crashes.py` on a Spark cluster. A child process of test_cluster.py.

For each line of its input it runs one cycle: it prints `running` and the path of the file that counts
the disk writes of Spark's workers, runs the cycle, compares everything with offline SQL, and prints
`equal` and the number of epochs that were retried. At the end of its input it prints `fine`.

Arguments: folder, URL of the master.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from crashes import LENGTH, Load
from eddyline.errors import EddylineError
from eddyline.testing import FaultyFiles
from eddyline_bench.cluster import SESSION

SETTINGS = {**SESSION, "spark.cores.max": "2", "spark.sql.shuffle.partitions": "2"}


def main(folder: str, master: str) -> None:
    builder = SparkSession.builder.appName("eddyline cluster").master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    root = Path(folder)
    files = FaultyFiles(str(root / "storage"))
    load = Load(root, builder.getOrCreate(), files, operations=True)
    load.open()
    load.run(2 * LENGTH)
    load.check()
    executors = load.spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    assert executors == 2, executors
    print("ready", flush=True)
    for _ in sys.stdin:
        files.arm(0, within="worker")
        print("running", files.control, flush=True)
        again, end = 0, load.done + LENGTH
        while load.done < end:
            try:
                load.step()
            except EddylineError as error:
                again += 1
                print(error, file=sys.stderr)
                assert again < 5, "no epoch commits any more"
        load.check(tidy=False)
        print("equal", again, flush=True)
    load.close()
    print("fine", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
