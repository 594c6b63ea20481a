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
# Without it the JVM would reserve 48 MB for code, which the classes of many queries fill.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m"
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS", f"--driver-java-options '{JAVA_OPTIONS}' pyspark-shell"
)
# Spark takes the first python3 on the path otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running Kafka broker."""
    from broker import Broker

    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
