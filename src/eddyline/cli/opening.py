"""Open the script, the catalog or the engine that a command works on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.catalog.store import CatalogStore, open_store
from eddyline.errors import ScriptError
from eddyline.options import Options
from eddyline.storage.files import Files, no_storage

if TYPE_CHECKING:
    from eddyline.api.engine import Engine


def read_script(path: str) -> str:
    """Return the text of a SQL script; `-` reads standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(
            f"the script can't be read: {error}", condition="SCRIPT_NOT_READABLE"
        ) from error


def existing(storage: str) -> str:
    """Return the folder of a storage; raise StorageError NO_STORAGE if there is none."""
    if "://" not in storage and not Path(storage).is_dir():
        raise no_storage(storage)
    return storage


@contextmanager
def open_catalog(storage: str) -> Iterator[CatalogStore]:
    """Open the catalog of an existing storage. Needs no Spark."""
    files = Files(existing(storage))
    with closing(open_store(files, Options.from_environment().catalog)) as store:
        yield store


@contextmanager
def open_engine(
    storage: str, options: Options | None = None, *, read_only: bool = False
) -> Iterator[Engine]:
    """Open an engine; stop it at the end of the context."""
    # importing it takes a second, which commands without Spark need not wait for
    from eddyline.api.engine import Engine

    with Engine(storage, options=options, read_only=read_only) as engine:
        yield engine
