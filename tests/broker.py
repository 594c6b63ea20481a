"""A real Kafka broker for tests: one node of Kafka's own distribution, on loopback and free ports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from eddyline_apps import kafka

ROOT = Path(__file__).parents[1]
JARS = ROOT / ".kafka"


class Broker(kafka.Broker):
    """A broker with the jars of this repository; Maven downloads them if they are missing."""

    def __init__(self, folder: Path) -> None:
        if not list(JARS.glob("kafka_2.13-*.jar")):
            if shutil.which("mvn") is None and not os.environ.get("CI"):
                pytest.skip("Kafka's jars are missing: `make kafka` fetches them with Maven")
            subprocess.run(["make", "--no-print-directory", "kafka"], cwd=ROOT, check=True)
        super().__init__(folder, JARS)
