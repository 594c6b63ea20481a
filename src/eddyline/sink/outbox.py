"""The outbox of a sink: a durable cursor, and the decision what to deliver next.

The committed changelog serves as the outbox, so nothing is copied. The target stores the number of
the epoch together with the rows, and returns it before each delivery: a crash between a delivery and
the write of the cursor delivers nothing twice. The cursor tells which epochs are still needed, and
reveals a target that was replaced or restored from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from eddyline.changes import Epoch, ViewId
from eddyline.errors import StateError, StorageError
from eddyline.sink.cursors import SINKS, Cursor, CursorFile
from eddyline.storage.files import Files


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The target holds the last committed epoch."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver the changes of all epochs from `first` to `last`, one after the other."""

    first: Epoch
    last: Epoch


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Replace the target's content by all rows as of `epoch`."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Refuse:
    """Deliver nothing: storage and target contradict each other."""

    error: StateError


NO_VIEW = ViewId("")
"""The view of a cursor whose sink is to get all rows anew."""

Decision = UpToDate | Deliver | Snapshot | Refuse


def next_delivery(
    view: ViewId,
    cursor: Cursor | None,
    target: Epoch | None,
    committed: Epoch,
    retained: Sequence[Epoch],
    found_by: str = "",
) -> Decision:
    """Return what to deliver next. Pure.

    A delivery that has begun, but isn't in the target as far as that is known, is first repeated unchanged, so that a
    target that can't be asked for its epoch recognises the requests.

    Args:
        view: the view that the sink follows now.
        cursor: the stored cursor; None before the first delivery, or if it was removed to accept the
            target as it is; that of another view if all rows are to be sent anew.
        target: the epoch that the target holds.
        committed: the last committed epoch.
        retained: the epochs whose changes are retained, without gaps, oldest first.
        found_by: how the target finds rows now; changes only fit one that has found them so before.

    Example:
        >>> view = ViewId("v1")
        >>> next_delivery(view, None, None, Epoch(9), [Epoch(8), Epoch(9)])
        Snapshot(epoch=9)
        >>> next_delivery(view, Cursor(view, Epoch(7)), Epoch(7), Epoch(9), [Epoch(8), Epoch(9)])
        Deliver(first=8, last=9)
        >>> next_delivery(view, Cursor(view, Epoch(5)), Epoch(5), Epoch(9), [Epoch(8), Epoch(9)])
        Snapshot(epoch=9)
        >>> begun = Cursor(view, Epoch(7), until=Epoch(8))
        >>> next_delivery(view, begun, Epoch(7), Epoch(9), [Epoch(8), Epoch(9)])
        Deliver(first=8, last=8)
    """
    error = _contradiction(view, cursor, target, committed)
    if error is not None:
        return Refuse(error)
    if committed == 0:
        return UpToDate()
    anew = cursor is not None and (cursor.view != view or cursor.found_by not in ("", found_by))
    if target is None or anew:
        return Snapshot(committed)
    if target == committed:
        return UpToDate()
    if retained and retained[0] <= target + 1:
        begun = cursor is not None and cursor.epoch == target and cursor.until
        return Deliver(Epoch(target + 1), min(begun, committed) if begun else committed)
    return Snapshot(committed)


def _contradiction(
    view: ViewId, cursor: Cursor | None, target: Epoch | None, committed: Epoch
) -> StateError | None:
    """Return the error if the target's epoch contradicts the cursor or the storage; else None."""
    if cursor is not None and cursor.view == NO_VIEW:
        return None
    if target is not None and target > committed:
        return _target_ahead(target, f"the storage has only committed epoch {committed}")
    if cursor is None:
        return None
    if target is not None and target > cursor.epoch and target != cursor.until:
        return _target_ahead(target, f"only epoch {cursor.epoch} was delivered to it")
    if cursor.view == view and (target or 0) < cursor.epoch:
        return _target_restored(target, cursor.epoch)
    return None


def _target_restored(target: Epoch | None, cursor: Epoch) -> StateError:
    held = "no epoch" if target is None else f"epoch {target}"
    return StateError(
        f"the sink's target holds {held}, but epoch {cursor} was delivered to it: it was restored "
        "from a copy, emptied, taken by another sink, or is another one",
        condition="SINK_TARGET_RESTORED",
        hint="connect the target that was delivered to; or call resend() on the sink (eddyline sink "
        "resend): the target's rows then become those of the view",
    )


def _target_ahead(target: Epoch, why: str) -> StateError:
    return StateError(
        f"the sink's target holds epoch {target}, but {why}: the storage was restored from a copy, "
        "or the target belongs to another one",
        condition="SINK_TARGET_AHEAD",
        hint="connect the target of this storage; or call resend() on the sink (eddyline sink "
        "resend): the target's rows then become those of the view",
    )


class Outbox(CursorFile):
    """The durable part of one sink: `sinks/<id>/cursor.json` below the storage folder.

    Args:
        sink: the sink's id, which names its folder.
    """

    def __init__(self, files: Files, sink: str) -> None:
        super().__init__(files, f"{SINKS}/{sink}")

    def advance(self, cursor: Cursor) -> None:
        """Store the cursor durably; StateError FENCED if a newer engine delivers now."""
        with self.files.committing():
            super().advance(cursor)

    def send_anew(self) -> None:
        """Make the next delivery replace all rows of the target by the rows of the view."""
        cursor = self.cursor()
        if cursor is not None:
            self.advance(Cursor(NO_VIEW, cursor.epoch))


@dataclass(frozen=True, slots=True)
class _SinkFile:
    """A JSON document of one sink below the storage folder, which isn't there while it has nothing to say."""

    files: Files
    sink: str

    NAME: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{SINKS}/{self.sink}/{self.NAME}"

    def clear(self) -> None:
        """Remove the document."""
        if self.files.exists(self.name):
            self.files.remove(self.name)

    def _read(self) -> dict[str, Any] | None:
        return self.files.read_json(self.name) if self.files.exists(self.name) else None

    def _write(self, document: dict[str, Any]) -> None:
        with self.files.committing():
            self.files.write_json(self.name, document)


class NotesFile(_SinkFile):
    """The notes of one sink: `sinks/<id>/notes.json`; no file if there are none.

    The folder is that of the cursor, which is written first: notes of a dropped sink are refused (StorageError).
    """

    NAME = "notes.json"

    def read(self) -> list[str]:
        document = self._read()
        return [] if document is None else list(document["notes"])

    def write(self, texts: Sequence[str]) -> None:
        if texts:
            self._write({"notes": list(texts)})
        else:
            self.clear()


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a sink can't deliver.

    Attributes:
        since: microseconds since 1970.
        condition: of the error.
        message: its text, without secrets.
    """

    since: int
    condition: str
    message: str


class OutageFile(_SinkFile):
    """The outage of one sink: `sinks/<id>/error.json`; no file while it delivers."""

    NAME = "error.json"

    def read(self) -> Outage | None:
        """Read it; None if there is none."""
        try:
            document = self._read()
        except StorageError:  # removed in the meantime
            return None
        if document is None:
            return None
        return Outage(document["since"], document["condition"], document["message"])

    def write(self, outage: Outage) -> None:
        """Store an outage, with the time at which it has begun if it goes on with another error."""
        known = self.read()
        self.files.make_folder(f"{SINKS}/{self.sink}")
        self._write(asdict(outage if known is None else replace(outage, since=known.since)))
