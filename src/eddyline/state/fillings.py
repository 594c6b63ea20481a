"""Checkpoints of views that are being filled: after a crash the next filling continues from them.

A checkpoint is a folder `fillings/<random>`: `head.json` names the view, `pieces.json` lists its input,
`state.json` is replaced after each piece and names the runs so far, which are in folders below.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from eddyline.changes import Epoch
from eddyline.errors import EddylineError, StateError
from eddyline.state.leases import hold_for, release, renew
from eddyline.state.manifest import committed_epochs, manifest_name, runs_of
from eddyline.state.run_lists import Arrangements, Buckets, from_json, to_json
from eddyline.state.runs import verify_run
from eddyline.storage.files import Files

FOLDER = "fillings"
HEAD, PIECES, STATE = "head.json", "pieces.json", "state.json"
KEPT_S = 86_400
"""How long a checkpoint is kept after its last piece: whoever wants that view has made it again by then."""
FORMAT_VERSION = 1
_ROWS_MAX = 1 << 60
"""More rows are no number, but say that it isn't known."""

_LOG = logging.getLogger("eddyline.epochs")


@dataclass(frozen=True, slots=True)
class Head:
    """The immutable part of a checkpoint.

    Attributes:
        view: its name in lower case.
        definition: digest of its definition, its plan and what it reads.
        base, crc: the epoch whose rows it reads, and the checksum of that epoch's manifest.
        rows: rows of all pieces, as far as known.
        pieces: number of pieces.
        lease: name of the lease that retains the epoch for some time after the last piece, also after a crash.
    """

    view: str
    definition: str
    base: Epoch
    crc: int
    rows: int
    pieces: int
    lease: str = ""
    format: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Done:
    """The progress of a filling.

    Attributes:
        pieces: number of pieces.
        rows: their rows, as far as known.
        seconds: that they have taken.
        at_once: how many pieces to compute at once from here on.
        arrangements: the state after them; names without the view's id.
        counters: of the view and its operators.
    """

    pieces: int
    rows: int
    seconds: float
    at_once: int
    arrangements: Arrangements
    counters: dict[str, dict[str, int]]

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "pieces": self.pieces,
            "rows": self.rows,
            "seconds": self.seconds,
            "at_once": self.at_once,
            "arrangements": to_json(self.arrangements),
            "counters": self.counters,
        }


class FillingCheckpoint:
    """The durable state of one filling.

    Attributes:
        folder: its folder.
    """

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.folder = folder
        self._lease = ""

    @classmethod
    def new(
        cls, files: Files, head: Head, pieces: Sequence[Mapping[str, Any]], seconds: int
    ) -> FillingCheckpoint:
        """Create a checkpoint, and retain its epoch by a lease.

        Args:
            pieces: JSON documents, one for each piece.
            seconds: how long the epoch is retained after the last piece.
        """
        made = cls(files, f"{FOLDER}/{uuid.uuid4().hex[:12]}")
        files.make_folder(made.folder)
        files.write_json(f"{made.folder}/{PIECES}", pieces)
        made.hold(head, seconds)
        return made

    def head(self) -> Head:
        """Read the head.

        Raises:
            StateError: it is damaged, or of another version of Eddyline.
        """
        document = self._files.read_json(f"{self.folder}/{HEAD}")
        if document["format"] != FORMAT_VERSION:
            raise StateError(
                f"a checkpoint has format {document['format']}, this version reads {FORMAT_VERSION}",
                condition="NEWER_FORMAT",
                file=self.folder,
                hint="use the newer version of Eddyline",
            )
        return Head(**document)

    def pieces(self) -> list[dict[str, Any]]:
        """Read the documents of all pieces."""
        found: list[dict[str, Any]] = self._files.read_json(f"{self.folder}/{PIECES}")
        return found

    def done(self) -> Done:
        """Read the progress.

        Raises:
            StateError: that is damaged, or there is none yet.
        """
        document = self._files.read_json(f"{self.folder}/{STATE}")
        return Done(**{**document, "arrangements": from_json(document["arrangements"])})

    def verify(self) -> None:
        """Compare the runs of its state with their checksums.

        Raises:
            StateError: one is damaged or missing, or there is no state yet.
        """
        for buckets in self.done().arrangements.values():
            for run in runs_of(buckets):
                verify_run(self._files, run)

    def piece_folder(self, number: int) -> str:
        """Return the name of a new folder for the files of a piece."""
        return f"{self.folder}/{number:06d}-{uuid.uuid4().hex[:8]}"

    def store(self, done: Done) -> None:
        """Store the state after another piece durably, and remove files that only earlier states needed.

        Raises:
            StateError: FENCED, another writer has opened the storage.
        """
        with self._files.committing():
            self._files.write_json(f"{self.folder}/{STATE}", done.as_document())
        if self._lease:
            renew(self._files, self._lease)
        self.clean(done)

    def clean(self, done: Done) -> None:
        """Remove the files that a state doesn't name."""
        needed = {run.name for buckets in done.arrangements.values() for run in runs_of(buckets)}
        for name in self._files.names(self.folder):
            folder = f"{self.folder}/{name}"
            if name in (HEAD, PIECES, STATE):
                continue
            own = [f"{folder}/{one}" for one in self._files.names(folder)]
            if needed.isdisjoint(own):
                self._files.remove(folder)
                continue
            for one in own:
                if one not in needed:
                    self._files.remove(one)

    def hold(self, head: Head, seconds: int) -> None:
        """Begin or renew the lease of its epoch: it ends some seconds after the last piece."""
        if head.lease:
            release(self._files, head.lease)
        self._lease = hold_for(self._files, head.base, seconds) or ""
        document = asdict(replace(head, lease=self._lease))
        try:
            self._files.write_json(f"{self.folder}/{HEAD}", document)
        except BaseException:
            self.release()  # nobody else knows of it
            raise

    def release(self) -> None:
        """End the lease of its epoch."""
        if self._lease:
            release(self._files, self._lease)

    def remove(self) -> None:
        """Remove the checkpoint. Ignores a failure of the disk, as the next opening of the storage tries again."""
        with contextlib.suppress(OSError, EddylineError):
            if lease := self._lease or self.head().lease:
                release(self._files, lease)
        with contextlib.suppress(OSError, EddylineError):
            # removed first: a folder without a head isn't a checkpoint
            self._files.remove(f"{self.folder}/{HEAD}")
            self._files.remove(self.folder)

    def age(self) -> float:
        """Return the seconds since its last piece, or since its creation; 0 if it is gone."""
        for name in (STATE, HEAD):
            with contextlib.suppress(OSError):
                return time.time() - os.stat(self._files.path(f"{self.folder}/{name}")).st_mtime
        return 0.0


def checkpoints(files: Files) -> Iterator[FillingCheckpoint]:
    """Yield all checkpoints of a storage, also incomplete ones."""
    for name in files.names(FOLDER):
        yield FillingCheckpoint(files, f"{FOLDER}/{name}")


def of_view(files: Files, view: str) -> list[tuple[FillingCheckpoint, Head]]:
    """Return the checkpoints of a view by its name in lower case."""
    found = []
    for one in checkpoints(files):
        with contextlib.suppress(StateError):
            if (head := one.head()).view == view:
                found.append((one, head))
    return found


def manifest_crc(files: Files, epoch: Epoch) -> int:
    """Return the checksum of an epoch's manifest, which identifies its content; 0 for epoch 0."""
    return files.read_checked(manifest_name(epoch))[1] if epoch else 0


def forget(files: Files, view: str) -> None:
    """Remove the checkpoints of a view, by its name in lower case: it is filled, or begins anew."""
    for one, _ in of_view(files, view):
        one.remove()


def remove_damaged(files: Files, view: str) -> None:
    """Remove the checkpoints of a view whose files are damaged. Reads all of their state.

    Args:
        view: the view's name in lower case.
    """
    for one, _ in of_view(files, view):
        try:
            one.verify()
        except StateError as error:
            _LOG.warning("the checkpoint of view %s is removed: %s", view, error)
            one.remove()


def progress(files: Files) -> list[dict[str, Any]]:
    """Return the progress of the views that are filled in pieces, also of interrupted ones.

    Returns:
        Documents of `view`, `epoch` (whose rows it reads), `rows` and `rows_read` (null if not known), `pieces`,
        `pieces_done`, `rows_per_second`, `seconds_left`, and `stored_at`, when the last piece was (ISO 8601, UTC).
    """
    found = []
    for one in checkpoints(files):
        with contextlib.suppress(
            StateError, OSError
        ):  # it has no piece yet, or has just been committed
            head, done = one.head(), one.done()
            known, share = head.rows < _ROWS_MAX, done.pieces / head.pieces
            if known:
                share = done.rows / head.rows
            found.append(
                {
                    "view": head.view,
                    "epoch": head.base,
                    "rows": head.rows if known else None,
                    "rows_read": done.rows if known else None,
                    "pieces": head.pieces,
                    "pieces_done": done.pieces,
                    "rows_per_second": done.rows / done.seconds if known else None,
                    "seconds_left": done.seconds * (1 - share) / share,
                    "stored_at": datetime.fromtimestamp(time.time() - one.age(), UTC).isoformat(),
                }
            )
    return found


def prune(files: Files, spared: Collection[str] = ()) -> None:
    """Remove the checkpoints from which no filling can continue.

    These are incomplete ones, those whose epoch is no longer retained, and those that were not continued for
    `KEPT_S` seconds. Of the others the files of interrupted pieces are removed.

    Args:
        spared: the names of views, in lower case, that are being filled.
    """
    epochs: list[Epoch] | None = None
    for one in checkpoints(files):
        try:
            head, why = one.head(), ""
            if head.view in spared:
                continue
            done = one.done()
        except StateError as error:
            if error.condition != "DAMAGED_FILE":
                continue  # of a newer version, which may go on with it
            head, done, why = None, None, "it is unfinished"
        if head is not None:
            epochs = committed_epochs(files) if epochs is None else epochs
            if head.base and head.base not in epochs:
                why = f"epoch {head.base} is no longer retained"
            elif one.age() > KEPT_S:
                why = f"it is older than {KEPT_S // 3600} hours"
        if why:
            name = "a view" if head is None else f"view {head.view}"
            _LOG.info("the checkpoint of %s is removed: %s", name, why)
            one.remove()
        elif done is not None:
            one.clean(done)


def without_owner(arrangements: Mapping[str, Buckets], owner: str) -> Arrangements:
    """Remove a view's id from the names of its arrangements: checkpoints have names without it."""
    return {name.removeprefix(f"{owner}/"): dict(own) for name, own in arrangements.items()}


def with_owner(arrangements: Mapping[str, Buckets], owner: str) -> Arrangements:
    """Add a view's id to the names of a checkpoint's arrangements."""
    return {f"{owner}/{name}": dict(own) for name, own in arrangements.items()}
