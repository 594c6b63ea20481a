"""Follow a topic of JSON documents, to be killed. A child process of test_kafka_stream.py.

Arguments: the storage, the address of the broker, the topic; `follow` until it is killed, or `end` to read all there
is and print `ids`, those of the records and of the dead letters, as JSON. No epoch may have an id twice.
"""

from __future__ import annotations

import json
import sys

from eddyline import Engine, Options
from eddyline.errors import EddylineError
from eddyline.intake import kafka_topics
from lanes import draw_lanes


def main(storage: str, address: str, topic: str, what: str) -> None:
    draw_lanes()
    kafka_topics.WAIT_S = 2.0
    with Engine(storage, options=Options(retain_epochs=4)) as engine:
        engine.execute(f"""
            CREATE STREAM IF NOT EXISTS numbers (id BIGINT) USING kafka OPTIONS (
                kafka.bootstrap.servers '{address}', subscribe '{topic}', value.format 'json',
                maxOffsetsPerTrigger '300');
            CREATE VIEW IF NOT EXISTS doubled AS
                SELECT count(*) AS n, count(*) - count(DISTINCT id) AS twice FROM numbers;
        """)
        print("ready", flush=True)
        if what == "follow":
            engine.start(0.01)
            while True:
                assert not engine.snapshot("doubled").first().twice
                print("epoch", engine.status()["epoch"], flush=True)
        for left in reversed(range(10)):  # a broker that has just been started may need a moment
            try:
                engine.advance()
                break
            except EddylineError as error:
                if not left or error.condition != "STREAM_FAILED":
                    raise
        assert engine.verify()
        ids = [row.id for row in engine.sql("SELECT id FROM numbers").collect()]
        dead = [bytes(row.payload).decode() for row in engine.sql("FROM numbers__dead").collect()]
        print("ids", json.dumps([sorted(ids), sorted(dead)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
