"""Child processes of tests, each in a process session of its own, to be ended by SIGKILL; the open files of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from eddyline_apps.processes import SHORT_LIVED, kill_session, members


def open_files(folder: Path | str) -> list[str]:
    """Return the files in a folder that this process has open; others come and go with other tests."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name.startswith(f"{folder}/")]


class Child:
    """A child process with its descendants.

    Args:
        command: program and arguments.
        errors: file to which the child's standard error is appended.
        settings: additional environment variables.
    """

    def __init__(self, command: list[str], errors: Path, **settings: str) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": SHORT_LIVED,
            **settings,
        }
        self.errors = errors
        with open(errors, "ab") as stream:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                start_new_session=True,
                env=environment,
            )

    def wait_for(self, word: str) -> str:
        """Wait for a line whose first word is `word`; return the rest of the line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.split()[:1] == [word]:
                return line.strip().removeprefix(word).strip()
        raise AssertionError(f"the child ended without {word!r}:\n{self.last_words()}")

    def say(self, line: str) -> None:
        """Write a line to the child's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def say_no_more(self) -> None:
        """Close the child's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def last_words(self) -> str:
        """Return the end of the child's standard error, without the frames of the JVM."""
        lines = self.errors.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-6000:]

    def kill_workers(self) -> None:
        """Send SIGKILL to Spark's Python workers only."""
        self._kill_only(b"pyspark.worker")  # the argument of the program that forks them

    def kill_jvm(self) -> None:
        """Send SIGKILL to the JVM only."""
        self._kill_only(b"org.apache.spark.deploy.SparkSubmit")

    def _kill_only(self, word: bytes) -> None:
        """Send SIGKILL to those of its processes whose command lines have a word."""
        for member in members(self.process.pid):
            with suppress(OSError):
                if word in Path(f"/proc/{member}/cmdline").read_bytes():
                    os.kill(member, signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the child and all that it has started; return when they are gone."""
        kill_session(self.process)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
