"""Settings of the whole test run, made before any JVM starts."""

from __future__ import annotations

import os
import sys

# A test's JVM lives for minutes: on two cores the optimising compiler costs more than it gives.
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS", "--driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"
)
# Spark takes the first python3 on the path otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
