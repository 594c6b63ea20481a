"""Durable cursors: how far each sink, and each reader with a name, has followed a view.

The committed changelog serves all of them, so nothing is copied: the epochs after the oldest cursor are
retained, up to a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from eddyline.changes import Epoch, ViewId
from eddyline.errors import StateError
from eddyline.storage.files import Files

_LOG = logging.getLogger("eddyline.sinks")

SINKS, READERS = "sinks", "readers"
CURSOR = "cursor.json"
RETIRED = "retired.json"
FORMAT_VERSION = 1
LEFT_S = 3600.0
"""An unfinished file that is older was left by a crash; a younger one may be written now by another thread or process."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the changelog of a view.

    Attributes:
        view: the view that is followed.
        epoch: the last epoch whose changes have arrived.
        until: a delivery up to this epoch has begun, so that it may have arrived too; None if none has.
        found_by: how the target of a sink finds rows, see `eddyline.answers.delivery`; empty if it isn't known.
    """

    view: ViewId
    epoch: Epoch
    until: Epoch | None = None
    found_by: str = ""


class CursorFile:
    """The durable cursor of one follower: `<folder>/cursor.json` below the storage folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self.files = files
        self.folder = folder

    def cursor(self) -> Cursor | None:
        """Read the cursor; None before the first delivery.

        Raises:
            StateError: the file is damaged, or of a newer version of Eddyline.
        """
        name = f"{self.folder}/{CURSOR}"
        if not self.files.exists(name):
            return None
        document = self.files.read_json(name)
        if document["format"] > FORMAT_VERSION:
            raise StateError(
                f"a cursor has format {document['format']}, this version reads up to "
                f"{FORMAT_VERSION}",
                condition="NEWER_FORMAT",
                file=name,
                hint="use the newer version of Eddyline",
            )
        until = document.get("until")
        return Cursor(
            ViewId(document["view"]),
            Epoch(document["epoch"]),
            until and Epoch(until),
            document.get("found_by", ""),
        )

    def advance(self, cursor: Cursor) -> None:
        """Store the cursor durably; call it after the follower has stored the epoch."""
        self.files.make_folder(self.folder)
        self.files.remove_unfinished(self.folder, older_s=LEFT_S)
        document = {"format": FORMAT_VERSION, "view": cursor.view, "epoch": cursor.epoch}
        if cursor.until:
            document["until"] = cursor.until
        if cursor.found_by:
            document["found_by"] = cursor.found_by
        self.files.write_json(f"{self.folder}/{CURSOR}", document)
        self.files.remove(f"{self.folder}/{RETIRED}")

    def retire(self) -> None:
        """Keep only that the follower has followed a view that was dropped: it needs no epochs any more."""
        self.files.rename(f"{self.folder}/{CURSOR}", f"{self.folder}/{RETIRED}")

    @property
    def retired(self) -> bool:
        """Whether the follower has last followed a view that was dropped."""
        return self.files.exists(f"{self.folder}/{RETIRED}")

    def forget(self) -> None:
        """Remove the cursor: its follower needs no epochs any more."""
        self.files.remove(self.folder)


def first_needed(files: Files, committed: Epoch, most: int) -> Epoch | None:
    """Return the first epoch whose changes a sink or reader still needs; None if none needs any.

    Args:
        committed: the last committed epoch.
        most: followers that are more epochs behind count as if they were just that far behind: a
            sink will get a snapshot, a reader an error.
    """
    held = [epoch for folder in _folders(files) if (epoch := _held(files, folder)) is not None]
    if not held:
        return None
    return Epoch(max(min(held) + 1, committed - most + 1))


def _folders(files: Files) -> Iterator[str]:
    """Yield the folder of each cursor."""
    for sink in files.names(SINKS):
        if "." not in sink:
            yield f"{SINKS}/{sink}"
    for view in files.names(READERS):
        for reader in files.names(f"{READERS}/{view}"):
            yield f"{READERS}/{view}/{reader}"


def _held(files: Files, folder: str) -> Epoch | None:
    """Return the epoch of a cursor; 0 if it can't be read, so that all epochs are retained for its follower."""
    try:
        cursor = CursorFile(files, folder).cursor()
    except StateError as error:  # the next delivery or read raises it; epochs go on
        _LOG.warning("%s: %s", folder, error)
        return Epoch(0)
    return None if cursor is None else cursor.epoch
