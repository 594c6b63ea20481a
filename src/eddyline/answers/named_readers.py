"""Readers with a name: durable positions in the changelogs of views."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW
from eddyline.changes import Epoch
from eddyline.errors import CatalogError, EngineError
from eddyline.sink.cursors import READERS, CursorFile
from eddyline.storage.files import Files

_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def reader_file(files: Files, view: str, reader: str) -> CursorFile:
    """Return the cursor of a view's reader.

    Raises:
        EngineError: the name can't be one of a reader.
    """
    if not _NAME.fullmatch(reader):
        raise EngineError(
            f"{reader!r} is no name for a reader",
            condition="BAD_OPTION",
            hint="use up to 100 letters, digits and _ . -, and begin with a letter, digit or _",
        )
    return CursorFile(files, f"{_folder(view)}/{reader}")


def no_reader(view: str, reader: str) -> CatalogError:
    """Return the error for a reader that doesn't exist."""
    return CatalogError(
        f"view {view} has no reader {reader}",
        condition="NOT_FOUND",
        hint=f"begin with changes(reader={reader!r})",
    )


def retire_readers(files: Files, view: str) -> None:
    """Let the readers of a view that was dropped hold nothing; of another view with its name they get an error."""
    for reader in files.names(_folder(view)):
        reader_file(files, view, reader).retire()


def readers_status(files: Files, catalog: Catalog, committed: Epoch) -> list[dict[str, Any]]:
    """Return each reader's view, name, position, and how many epochs it is behind."""
    found = []
    for entry in catalog.entries:
        if entry.kind != VIEW:
            continue
        for reader in files.names(_folder(entry.name)):
            cursor = reader_file(files, entry.name, reader).cursor()
            if cursor is not None:
                behind = max(committed - cursor.epoch, 0)
                found.append(
                    {
                        "view": entry.name,
                        "reader": reader,
                        "epoch": cursor.epoch,
                        "behind": behind,
                    }
                )
    return found


def _folder(view: str) -> str:
    # letter case doesn't matter in names of views; a name may hold any character
    return f"{READERS}/{quote(view.lower(), safe='')}"
