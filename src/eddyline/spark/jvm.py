"""Starts the JVM of a local session without the usual output of Java and Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from eddyline.spark.java import provide_java

_LOGGING = Path(__file__).with_name("log4j2.properties")
_INCUBATOR = b"WARNING: Using incubator modules: jdk.incubator.vector"


def logging_settings() -> dict[str, str]:
    """Return the setting of Spark that makes the JVM log only errors.

    It is empty where the user has a log4j2 configuration in Spark's folder `conf`. One that is named
    in `spark.driver.extraJavaOptions` wins as well.
    """
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    kinds = ("properties", "xml", "yaml", "json")
    if any(Path(folder, f"log4j2.{kind}").exists() for kind in kinds):
        return {}
    # the "default" options come before all others that the user sets
    return {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"}


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM that PySpark talks to, unless one runs already.

    Its standard error is forwarded line by line, so that a JVM that can't start shows the reason. One
    line is dropped: Java's warning about the incubator module that Spark loads, which no option
    of Java disables.

    Args:
        settings: settings of Spark; the JVM's memory and options can't be changed later.

    Raises:
        EngineError: NO_JAVA, there is none to start.
    """
    with SparkContext._lock:  # noqa: SLF001  # pyspark has no public way to a JVM without a session
        if SparkContext._gateway is not None:  # noqa: SLF001
            return
        provide_java()
        reader, writer = os.pipe()
        relay = threading.Thread(target=_pass_on, args=(reader,), daemon=True)
        relay.start()
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        try:
            gateway = launch_gateway(conf, {"stderr": writer})
        except BaseException:
            os.close(writer)
            relay.join(timeout=5)
            raise
        os.close(writer)
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def _pass_on(reader: int) -> None:
    # nobody reads a closed standard error
    with open(reader, "rb") as lines, suppress(OSError), open(2, "wb", closefd=False) as errors:
        for line in lines:
            if line.strip() != _INCUBATOR:
                errors.write(line)
                errors.flush()
