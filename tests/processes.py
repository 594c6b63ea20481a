"""Child processes of tests, each in a session of its own, and their end by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from eddyline_bench.cluster import kill_session, members

# For JVMs that live for a minute: less time goes into compiling their code.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class Child:
    """A child process and all that it starts.

    Args:
        command: program and arguments.
        errors: file that takes what the child writes to its standard error.
        settings: environment variables besides those of this process.
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
        """Wait for a line that begins with a word; the rest of it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.split()[:1] == [word]:
                return line.strip().removeprefix(word).strip()
        raise AssertionError(f"the child ended without {word!r}:\n{self.last_words()}")

    def say(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def say_no_more(self) -> None:
        """End the child's input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        return self.errors.read_text(errors="replace")[-6000:]

    def kill_workers(self) -> None:
        """SIGKILL to Spark's Python workers only."""
        for member in members(self.process.pid):
            with suppress(OSError):
                if b"pyspark.daemon" in Path(f"/proc/{member}/cmdline").read_bytes():
                    os.kill(member, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to the child and all that it has started; they are gone when this returns."""
        kill_session(self.process)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
