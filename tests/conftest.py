"""Settings of the whole test run, made before any JVM starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker import Broker

# A test's JVM lives for minutes: on two cores the optimising compiler costs more than it gives.
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS", "--driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"
)
# Spark takes the first python3 on the path otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running Kafka broker."""
    from broker import Broker

    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
