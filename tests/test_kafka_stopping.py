"""A stream that waits for brokers which don't answer can be stopped at any time."""

from __future__ import annotations

import socket
import threading
import time

import pytest

pytest.importorskip("confluent_kafka")

from eddyline.intake.kafka_topics import WAIT_S, KafkaTopics
from eddyline.source.kafka import LATEST, StoppedError


@pytest.mark.parametrize("pattern", ["", "t.*"])
def test_waiting_for_brokers_ends_when_the_stream_is_stopped(pattern):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # connections are made, and nobody answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        stopped = threading.Event()
        topics = KafkaTopics("s", {"bootstrap.servers": address}, ["t"], pattern, stopped)
        threading.Timer(0.3, stopped.set).start()
        begun = time.monotonic()
        with pytest.raises(StoppedError):
            topics.describe(())
        with pytest.raises(StoppedError):
            topics.offsets([("t", 0)], LATEST)
        topics.close()
        assert 0.25 < time.monotonic() - begun < WAIT_S / 3
