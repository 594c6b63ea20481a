"""A PostgreSQL server of the tests' own: on loopback, on a free port, in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "s3cret/of&tests"
QUOTED = "s3cret%2Fof%26tests"


def programs() -> Path | None:
    """The folder of initdb and pg_ctl: Debian has it off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Server:
    """One server; `url` is that of its database, with user and password."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://eddy:{QUOTED}@127.0.0.1:{self.port}/postgres"
        secret = folder / "password"
        secret.write_text(PASSWORD)
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # which the server refuses to run as
            user = pwd.getpwnam("postgres")
            self._as_user = [
                "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
            ]  # fmt: skip
            for path in (folder, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        self._run(
            "initdb", "--no-sync", "--auth=scram-sha-256", "--username=eddy",
            f"--pwfile={secret}", "--encoding=UTF8", "--locale=C", f"--pgdata={folder}/data",
        )  # fmt: skip

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        self._run(
            "pg_ctl", "start", "--wait", f"--pgdata={self._folder}/data",
            f"--log={self._folder}/log", f"--options={options} -c fsync=off",
        )  # fmt: skip

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--mode=immediate", f"--pgdata={self._folder}/data")

    def _run(self, program: str, *arguments: str) -> None:
        with open(self._folder / "output", "a+b") as output:
            done = subprocess.run(
                [*self._as_user, str(self._programs / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", check=False,
            )  # fmt: skip
            output.seek(0)
            assert done.returncode == 0, output.read().decode()


@contextmanager
def server() -> Iterator[Server]:
    """A running server; skips where there is none to run."""
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL is not installed, and `make setup` couldn't install it from apt")
    with tempfile.TemporaryDirectory(prefix="eddyline-postgres-") as folder:
        os.chmod(folder, 0o755)
        made = Server(found, Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.stop()
