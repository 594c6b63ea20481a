"""Deliver a made-up view to a topic until it is killed. A child process of test_sink_kafka.py.

Arguments: address of the broker, topic, envelope, seed of the view.
"""

from __future__ import annotations

import random
import sys

from eddyline.changes import Epoch
from eddyline.errors import EddylineError
from eddyline.sink.kafka import KafkaFormat
from sink_changes import Changelog, target

GAP_EVERY = 7


def main(address: str, topic: str, envelope: str, seed: str) -> None:
    changelog, chance = Changelog(int(seed)), random.Random()
    options = {"bootstrap_servers": address, "topic": topic, "envelope": envelope}
    sink = KafkaFormat().open(target(topic), options)
    print("ready", flush=True)
    while True:
        try:
            base = sink.committed()
            epoch = Epoch((base or 0) + chance.choice([1, 1, 3]))
            if base is None or chance.randrange(GAP_EVERY) == 0:
                sink.replace(base, epoch, changelog.rows(epoch))
            else:
                sink.deliver(base, epoch, changelog.changes(base, epoch))
            print("delivered", epoch, flush=True)
        except EddylineError as error:
            if error.condition != "SINK_FAILED":
                raise
            print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
