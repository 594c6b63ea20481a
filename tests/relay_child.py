"""Produce into or consume from a queue until it is killed. A child process of test_relay_crash.py.

Arguments: folder of the queue, `produce` or `consume`, folder of the journals. A producer writes each
acknowledged record to the journal `acknowledged`; a consumer writes each processed record to `effects`
before it acknowledges it.
"""

from __future__ import annotations

import os
import sys

from eddyline.relay.backflow import Backflow
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer

SEGMENT_BYTES = 4000


def write(handle: int, words: list[str]) -> None:
    os.write(handle, "".join(f"{word}\n" for word in words).encode())


def main(folder: str, role: str, journals: str) -> None:
    backend = LogBackend(folder, segment_bytes=SEGMENT_BYTES)
    name = {"produce": "acknowledged", "consume": "effects"}[role]
    handle = os.open(f"{journals}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if role == "produce":
        producer = Producer(backend)
        print("ready", flush=True)
        for number in range(1 << 30):
            words = [f"{os.getpid()}:{number}:{i}" for i in range(5)]
            producer.put(words)
            write(handle, words)
    queue = DataQueue(backend)
    print("ready", flush=True)
    with Backflow(queue, every_s=0.001) as backflow:
        while True:
            backflow.check()
            found = queue.read(50)
            if found is None:
                continue
            batch, records = found
            words = [value.decode() for value in records["payload"].to_pylist()]
            tries = records["attempts"].to_pylist()
            bad = [i for i, word in enumerate(words) if hash(word) % 5 == 0 and tries[i] < 2]
            good = [i for i in range(batch.rows) if i not in bad]
            write(handle, [words[i] for i in good])
            queue.fail(batch.number, bad, "chance")
            queue.ack(batch.number, good)


if __name__ == "__main__":
    main(*sys.argv[1:])
