"""Processes of applications and tests: ports of loopback, and sessions that end as a whole."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""JVM options for processes of about a minute: less time is spent on compiling."""


PORTS = range(11_000, 32_000)


def free_port() -> int:
    """Return an unused port of the loopback address.

    It is none of those that Linux gives to clients, and to servers that take any: these come and go, and
    one could take the port before it is used, or while the server behind it starts again. A client could
    even meet itself there.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as server, suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def kill_session(leader: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Send SIGKILL to all processes of the session that `leader` leads; return when they are gone."""
    while signal_session(leader.pid, signal.SIGKILL):
        leader.poll()
    leader.wait()


def signal_session(session: int, number: signal.Signals) -> list[int]:
    """Send a signal to all processes of a session; return their ids."""
    found = members(session)
    for member in found:
        try:
            os.kill(member, number)
        except ProcessLookupError:
            continue
    return found


def members(session: int) -> list[int]:
    """Return the ids of the live processes of a session, zombies excluded.

    A process group is not enough: Spark puts its workers into groups of their own.
    """
    return _living(3, session)


def children(parent: int) -> list[int]:
    """Return the ids of the live child processes of a process, zombies excluded."""
    return _living(1, parent)


def is_alive(process: int) -> bool:
    """Return whether a process is there, and no zombie."""
    return bool(_stat(Path(f"/proc/{process}")))


def _living(field: int, value: int) -> list[int]:
    """Return the ids of live processes.

    Args:
        field: the place of a number in /proc/PID/stat, after the name: 1 is the parent, 3 the session.
        value: of this number.
    """
    numbered = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [
        int(entry.name)
        for entry in numbered
        if (fields := _stat(entry)) and int(fields[field]) == value
    ]


def _stat(entry: Path) -> list[str]:
    """Return what /proc/PID/stat says after the name; nothing if the process is gone, or a zombie."""
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields


def listens(port: int) -> bool:
    """Return whether a process listens on a port of loopback."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
