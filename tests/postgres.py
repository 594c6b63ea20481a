"""A private PostgreSQL server for tests, in a temporary folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eddyline_apps.postgres import Server, programs

PASSWORD = "s3cret/of&tests"
QUOTED = "s3cret%2Fof%26tests"


@contextmanager
def server(*settings: str) -> Iterator[Server]:
    """Provide a running server; skip the test if PostgreSQL isn't installed.

    Args:
        settings: of the server, such as `wal_level=logical`.
    """
    if programs() is None:
        pytest.skip("PostgreSQL is not installed, and `make setup` couldn't install it from apt")
    with tempfile.TemporaryDirectory(prefix="eddyline-postgres-") as folder:
        os.chmod(folder, 0o755)
        with Server(
            Path(folder) / "server", password=PASSWORD, fsync=False, settings=settings
        ) as made:
            yield made


def empty_database(running: Server) -> str:
    """Make a database without tables, in the place of the one made before; return its URL."""
    import psycopg  # not every test that needs a server has it

    with psycopg.connect(running.url, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS one WITH (FORCE)")
        admin.execute("CREATE DATABASE one")
    return running.url.rsplit("/", 1)[0] + "/one"


def without_password(url: str) -> str:
    """Return the URL of a server without the password."""
    return url.replace(f":{QUOTED}@", "@")
