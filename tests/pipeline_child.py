"""Run a pipeline and its views until it is killed. A child process of test_pipeline_kill.py.

Arguments: folder of the storage and the journal; the queue: `log` or the address of a Kafka broker;
`live` to run until killed, or `last` to end when every record is done or dead; the URL of a cluster's
master, or none to run in this process. The environment variable PIPELINE_ORDER is the order of its
bolt. The bolt writes each record to the journal `effects` before it returns.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from cluster_child import SETTINGS
from eddyline import Engine
from eddyline.errors import EngineError
from eddyline.relay.backend import Backend
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from lanes import draw_lanes

APP = "kills"


def backend_of(root: Path, where: str) -> Backend:
    if where == "log":
        return LogBackend(str(root / "queue"), segment_bytes=20_000)
    from eddyline.relay.kafka import KafkaBackend

    return KafkaBackend(where, APP)


def session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(folder: str, where: str, mode: str, master: str | None = None) -> None:
    draw_lanes()
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    root = Path(folder)
    journal = str(root / "effects")

    def effect(record: dict[str, Any]) -> dict[str, Any]:
        number = int(record["payload"])
        if number % 11 == 0 or (number % 5 == 0 and record["attempts"] == 0):
            raise ValueError("chance")
        handle = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{number}\n".encode())
        os.close(handle)
        return {"n": number}

    engine = Engine(str(root / "storage"), session(master) if master else None)
    queue = DataQueue(backend_of(root, where))
    made = engine.pipeline("p", queue, lanes=2, tuple_rows=10)
    order = os.environ.get("PIPELINE_ORDER", "free")
    made = made.bolt(effect, max_attempts=3, retry_delay=0.01, order=order)
    pipeline = made.into("s", "n BIGINT")
    engine.view("seen", "SELECT n, count(*) AS c FROM s GROUP BY n")
    engine.view("dead", "SELECT CAST(CAST(payload AS STRING) AS BIGINT) AS n FROM p__dead")
    print("ready", flush=True)
    if mode == "live":
        while True:
            engine.start(interval=0.01)
            try:
                engine.await_termination()
            except EngineError as error:  # a worker was killed
                print(f"broke {error.condition}", file=sys.stderr, flush=True)
    while True:
        try:
            engine.advance()
        except EngineError:
            time.sleep(0.1)
            continue
        account = pipeline.account()
        if not account.retry and not account.in_flight:
            break
    assert engine.verify()
    seen = [f"{row.n}:{row.c}" for row in engine.sql("SELECT * FROM seen").collect()]
    dead = [str(row.n) for row in engine.sql("SELECT * FROM dead").collect()]
    print(f"account {account.received} {account.done} {account.dead}", flush=True)
    print(f"seen {' '.join(seen)}", flush=True)
    print(f"dead {' '.join(dead)}", flush=True)
    engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
