"""Run the load of `crashes.py` until it is killed. A child process of test_crash_kill.py.

It reopens the storage, processes all durable input, repeats the interrupted step, compares the tables
with the acknowledged rows and the views with offline SQL, prints `ready`, and continues. A journal
counts the acknowledged steps; it is flushed to the disk before the next step begins.

Arguments: folder; number of cycles to run after `ready` (0: no limit); number of the disk write at
which it kills itself (0: never).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import eddyline.api.epochs
import eddyline.source.log_index
import eddyline.state.manifest
from crashes import LENGTH, RETIRE_EVERY, SMALL_RUNS, WHOLE_EVERY, Load
from eddyline.spark.session import local_session
from eddyline.testing import FaultyFiles
from lanes import draw_lanes


class Journal:
    """Counts the acknowledged steps in a file, one byte each."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.done = os.fstat(self.handle).st_size

    def keep(self, done: int) -> None:
        """Record that `done` steps are acknowledged; durable when this returns."""
        os.write(self.handle, b"." * (done - self.done))
        os.fsync(self.handle)
        self.done = done


def main(folder: str, cycles: int, fail_at: int) -> None:
    draw_lanes()
    eddyline.api.epochs.RETIRE_EVERY = RETIRE_EVERY
    eddyline.source.log_index.MERGE_FAN_IN = 3
    eddyline.state.manifest.SMALL_RUNS = SMALL_RUNS
    eddyline.state.manifest.WHOLE_EVERY = WHOLE_EVERY
    root = Path(folder)
    journal = Journal(root / "journal")
    files = FaultyFiles(str(root / "storage"))
    load = Load(root, local_session(), files, operations=True, done=journal.done)

    def step() -> None:
        load.step()
        journal.keep(load.done)

    load.open()
    load.resume()
    step()
    load.engine.advance()
    load.check_tables()
    report = load.engine.verify()
    assert report, report
    print("ready", flush=True)
    files.arm(fail_at, "kill")
    end = (load.done // LENGTH + cycles + 1) * LENGTH
    while load.done < end or not cycles:
        step()
    load.check()
    load.close()
    print("fine", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
