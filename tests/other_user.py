"""Tests of files that may not be read: root may read all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def as_nobody() -> Iterator[None]:
    """Work as a user to whom the modes of files apply, unlike to root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Make a folder that any user may use; those of `tmp_path` are only for the user of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)
