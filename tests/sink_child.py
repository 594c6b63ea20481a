"""Deliver a changelog to a target, and be killed at random moments. A child process of tests of sinks.

The process forks; each fork delivers from what the target holds, until it is killed by SIGKILL. The
last one isn't killed. Prints the number of forks that were killed while they were at work.

Arguments: format; options as JSON; last epoch; number of kills; seed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
import traceback

from eddyline.errors import EddylineError
from eddyline.sink.base import Sink
from sink_cases import changelog, follow

FORMATS = {"delta": "DeltaFormat", "postgres": "PostgresFormat"}
RETRY_S = 0.02


def deliver(name: str, options: dict[str, str], last: int, seed: int) -> None:
    log = changelog("keyed")
    module = importlib.import_module(f"eddyline.sink.{name}")
    sink: Sink = getattr(module, FORMATS[name])().open(log.target(), options)
    rnd = random.Random(seed)
    while True:
        try:
            if follow(sink, log, last, rnd) == last:
                return
        except EddylineError as error:
            if not error.retryable:
                raise
            time.sleep(RETRY_S)


def main(name: str, options: dict[str, str], last: int, kills: int, seed: int) -> int:
    importlib.import_module(f"eddyline.sink.{name}")  # before the forks, which use it
    rnd = random.Random(seed)
    killed = 0
    for turn in range(kills + 1):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                deliver(name, options, last, seed + turn)
                status = 0
            finally:
                if status:
                    traceback.print_exc()  # the fork ends at once
                sys.stderr.flush()
                os._exit(status)
        if turn < kills:
            time.sleep(rnd.uniform(0.05, 0.35))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status):
            return 1
    print(killed, flush=True)
    return 0


if __name__ == "__main__":
    name, options, last, kills, seed = sys.argv[1:]
    sys.exit(main(name, json.loads(options), int(last), int(kills), int(seed)))
