"""The JVM of a session: starts that of a local one without the usual output of Java and Spark, and tells when it has ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from eddyline.errors import JVM_LOST, EngineError
from eddyline.spark.java import provide_java
from eddyline.spark.processes import process_tree

_LOGGING = Path(__file__).with_name("log4j2.properties")
_ENDING_S = 0.5
"""A JVM that is being killed closes its connections shortly before its process has ended."""
_BEHIND = 10
"""What the optimising compiler has more of niceness than other threads: beside busy ones it gets a tenth of a core."""
_THRESHOLDS = {
    "InvocationThreshold": 5_000,
    "MinInvocationThreshold": 600,
    "CompileThreshold": 15_000,
    "BackEdgeThreshold": 40_000,
}
_RARER = 10
_INCUBATOR = b"WARNING: Using incubator modules: jdk.incubator.vector"


def logging_options() -> str:
    """Return the options that make the JVM log only errors.

    There are none where the user has a log4j2 configuration in Spark's folder `conf`. One that is named
    in `spark.driver.extraJavaOptions` wins as well.
    """
    kinds = ("properties", "xml", "yaml", "json")
    if any((_conf_folder() / f"log4j2.{kind}").exists() for kind in kinds):
        return ""
    return f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"


def compiler_options() -> str:
    """Return the options by which the optimising compiler leaves alone what runs for a short time only.

    Its thresholds are those of Java, times `_RARER`. What works on rows passes them within an epoch; what plans views and
    compiles their code doesn't, and half of the compiler's work of the first minutes was for that.
    """
    return " ".join(f"-XX:Tier4{name}={_RARER * usual}" for name, usual in _THRESHOLDS.items())


def java_settings(*options: str) -> dict[str, str]:
    """Return the setting of Spark that gives options to the JVM of a session, before all that the user sets."""
    text = " ".join(filter(None, options))
    return {"spark.driver.defaultJavaOptions": text} if text else {}


def given_settings() -> dict[str, str]:
    """Return the settings in the user's `spark-defaults.conf`; none without that file."""
    try:
        text = (_conf_folder() / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = r"^[ \t]*(spark\.[^\s:=]+)[ \t]*[:= \t][ \t]*(.*?)[ \t]*$"
    return dict(re.findall(pairs, text, re.MULTILINE))


def _conf_folder() -> Path:
    """Return the folder of Spark's configuration files."""
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")


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
        except BaseException:  # such as Ctrl-C, after which nobody knows the process
            _kill_writers(writer)
            os.close(writer)
            relay.join(timeout=5)
            raise
        os.close(writer)
        _put_behind(gateway.proc.pid)
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def end_jvm() -> int:
    """End the Spark application and the JVM of this process.

    Returns:
        the exit code of the JVM.
    """
    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at whose end PySpark's JVM ends
    return int(gateway.proc.wait())


def _kill_writers(pipe: int) -> None:
    """Kill the child processes whose standard error is a pipe: those that `launch_gateway` has started, where there is a /proc."""
    for process in process_tree():
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{process}/fd/2"), os.fstat(pipe)):
                os.kill(process, signal.SIGKILL)


def _put_behind(pid: int) -> None:
    """Let a JVM's optimising compiler take what the other threads leave of the cores, where threads have priorities of their own.

    In its first minutes it would take more of them than views and epochs, which run well enough with the code of the quick compiler.
    """
    for name in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):
            if name.read_text().startswith("C2 Compiler"):
                thread = int(name.parent.name)
                usual = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, usual + _BEHIND)  # 19 at most


def _pass_on(reader: int) -> None:
    # nobody reads a closed standard error
    with open(reader, "rb") as lines, suppress(OSError), open(2, "wb", closefd=False) as errors:
        for line in lines:
            if line.strip() != _INCUBATOR:
                errors.write(line)
                errors.flush()


def lost_jvm(error: BaseException | None = None) -> EngineError | None:
    """Return the error JVM_LOST if the JVM that PySpark has started has ended: nothing more can run in this process.

    Without an error that takes some microseconds.

    Args:
        error: what a call has raised; if a lost connection is among the causes, the end of the JVM is awaited for a moment.
    """
    gateway = SparkContext._gateway  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return None
    if (code := process.poll()) is None and _of_connection(error):
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_ENDING_S)
    if code is None:
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
    return EngineError(
        f"the JVM of Spark {how}",
        condition=JVM_LOST,
        hint="start this process again: it goes on after its last epoch. If memory was short, give more to the JVM "
        "(spark.driver.memory) or to the machine",
    )


def check_jvm(error: BaseException | None = None) -> None:
    """Raise what `lost_jvm` returns.

    Raises:
        EngineError: JVM_LOST.
    """
    if (lost := lost_jvm(error)) is not None:
        raise lost from error


def is_unanswered(error: BaseException | None) -> bool:
    """Return whether a JVM, also one that another process has started, gave no answer: the error isn't about the query."""
    return isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)


def _of_connection(error: BaseException | None) -> bool:
    """Return whether an error, or one that has led to it, may be that of a connection to the JVM."""
    while error is not None:
        if isinstance(error, OSError) or is_unanswered(error):
            return True
        error = error.__cause__ or error.__context__
    return False
