"""Start a private PostgreSQL server from the installed programs, on a free port of loopback."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from eddyline.errors import StorageError
from eddyline_apps.processes import children, free_port, is_alive, kill_session

USER, DATABASE = "eddy", "postgres"
START_SECONDS_MAX = 120.0


def programs() -> Path | None:
    """Return the folder of initdb and postgres; None if PostgreSQL isn't installed.

    Debian installs them outside of PATH.
    """
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])
    )
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Server:
    """A PostgreSQL server with its data in a folder. It runs within a `with` block, or from `start` to `stop`.

    A new folder is initialised. On Linux the server also ends when this process is killed.

    Args:
        folder: the folder of the data.
        password: password of a new folder's user; empty generates one. The folder keeps it.
        fsync: whether commits are flushed to the disk.
        settings: more settings of the server, such as `wal_level=logical`.

    Attributes:
        url: URL of the database, with user and password.
        url_without_password: the same without the password.
        password: of the user.

    Raises:
        StorageError: PostgreSQL isn't installed, or doesn't start.
    """

    def __init__(
        self,
        folder: Path,
        *,
        password: str = "",
        fsync: bool = True,
        settings: Sequence[str] = (),
    ) -> None:
        found = programs()
        if found is None:
            raise StorageError(
                "PostgreSQL is not installed here",
                condition="NO_POSTGRESQL",
                hint="install it (on Debian: apt-get install postgresql), or give the URL of a database",
            )
        self._programs, self._folder = found, folder
        self._settings = [f"fsync={'on' if fsync else 'off'}", *settings]
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        secret = folder / "password"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(password or secrets.token_urlsafe())
        if shutil.which("setpriv"):
            self._command = ["setpriv", "--pdeathsig=QUIT"]
        if os.geteuid() == 0:  # the server refuses to run as root
            user = pwd.getpwnam("postgres")
            self._command += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            for path in (folder, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        self.port = free_port()
        self.password = secret.read_text()
        place = f"127.0.0.1:{self.port}/{DATABASE}"
        self.url = f"postgresql://{USER}:{quote(self.password, safe='')}@{place}"
        self.url_without_password = f"postgresql://{USER}@{place}"
        if not (folder / "data" / "PG_VERSION").exists():
            self._initialise(secret)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._command, str(self._programs / "postgres"),
                    "-D", str(self._folder / "data"), "-p", str(self.port),
                    "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
                    *[part for one in self._settings for part in ("-c", one)],
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True,  # Ctrl-C must not reach it: it is stopped last
            )  # fmt: skip
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        deadline = time.monotonic() + START_SECONDS_MAX
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise self._failure("it doesn't start", self._folder / "log")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server at once, without a checkpoint; the next start recovers what was committed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL to the server and all its processes; return when they are gone."""
        if self._process is not None:
            parts = children(self._process.pid)  # each has a session of its own
            kill_session(self._process)
            for part in parts:
                with suppress(ProcessLookupError):
                    os.kill(part, signal.SIGKILL)
            while any(map(is_alive, parts)):
                time.sleep(0.01)
            self._process = None

    def _initialise(self, secret: Path) -> None:
        shutil.rmtree(self._folder / "data", ignore_errors=True)  # left by an interrupted initdb
        with open(self._folder / "log", "ab") as log:
            done = subprocess.run(
                [
                    *self._command, str(self._programs / "initdb"), "--no-sync",
                    "--auth=scram-sha-256", f"--username={USER}", f"--pwfile={secret}",
                    "--encoding=UTF8", "--locale=C", f"--pgdata={self._folder / 'data'}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False,
            )  # fmt: skip
        if done.returncode:
            raise self._failure("its folder can't be made", self._folder / "log")

    def _failure(self, what: str, log: Path) -> StorageError:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return StorageError(
            f"a PostgreSQL server of our own fails, {what}: {' '.join(last)}",
            condition="POSTGRESQL_FAILED",
            hint="mend the cause, or give the URL of a database",
            log=log,
        )
