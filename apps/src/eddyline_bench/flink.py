"""Flink SQL from PyPI, in a Python environment of its own, for benchmarks that run beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from eddyline.errors import EngineError

VERSION = "2.3.0"
CHILD = Path(__file__).with_name("flink_child.py")


class Flink:
    """A process with a Flink cluster of its own in its JVM, for the statements of one benchmark.

    Args:
        cores: the parallelism of its jobs.
        log: file for what Flink prints.

    Raises:
        EngineError: Flink can't be installed, or doesn't start.

    Example:
        >>> with Flink(2, Path("flink.log")) as flink:  # doctest: +SKIP
        ...     flink.run(["CREATE TABLE ...", "INSERT INTO ..."], checkpoints=Path("/tmp/checkpoints"))
    """

    def __init__(self, cores: int, log: Path) -> None:
        self._cores = cores
        self._log = log
        environment = {**os.environ, "PYTHONPATH": ""}
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                [_environment() / "bin" / "python", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )

    def __enter__(self) -> Flink:
        return self

    def __exit__(self, *_: object) -> None:
        _pipe(self._child.stdin).close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        _pipe(self._child.stdout).close()

    def run(self, statements: Sequence[str], checkpoints: Path) -> None:
        """Run statements, and wait for the end of each; a checkpoint is stored every second.

        Raises:
            EngineError: one of them fails.
        """
        settings = {
            "parallelism.default": str(self._cores),
            "table.local-time-zone": "UTC",
            "execution.checkpointing.interval": "1s",
            "execution.checkpointing.dir": checkpoints.as_uri(),
            "rest.bind-address": "127.0.0.1",
        }
        request = _pipe(self._child.stdin)
        request.write(json.dumps({"settings": settings, "statements": list(statements)}) + "\n")
        request.flush()
        line = _pipe(self._child.stdout).readline()
        failure = json.loads(line).get("error") if line else self._log.read_text()[-2000:]
        if failure is not None:
            raise EngineError(
                f"Flink SQL fails: {failure}",
                condition="NO_CLUSTER",
                hint="it needs Java and memory; run the benchmark without --flink",
            )


def _pipe(end: IO[str] | None) -> IO[str]:
    assert end is not None
    return end


def _environment() -> Path:
    """Return the folder of a Python environment with PyFlink; the first call makes it, which takes a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "eddyline" / f"apache-flink-{VERSION}"
    if folder.exists():
        return folder
    print(f"installing apache-flink {VERSION} into {folder} (850 MB)", file=sys.stderr, flush=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([*install, f"apache-flink=={VERSION}"], check=True)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)  # half an environment would look like a whole one
        if not isinstance(error, subprocess.CalledProcessError):
            raise
        raise EngineError(
            f"apache-flink {VERSION} can't be installed into {folder}: {error}",
            condition="MISSING_PACKAGE",
            hint="it needs PyPI, 850 MB of disk and Python 3.11 or 3.12; run the benchmark without --flink",
        ) from None
    return folder
