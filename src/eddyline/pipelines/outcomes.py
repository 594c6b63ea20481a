"""Outcomes: one document for each batch of a pipeline; the batch is committed once it exists.

Entries of redo logs and the queue's own commit follow from an outcome. They carry the batch's
number, and are repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import DEAD, INTO, PIPELINE, Entry
from eddyline.errors import CatalogError, EddylineError
from eddyline.pipelines.history import History
from eddyline.relay.batch import Batch
from eddyline.source.lag import Lags
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment
from eddyline.storage.files import Files

FOLDER = "pipelines"
BACK = "back.arrow"
_OUTCOME = "outcome.json"
_STATUS = "status.json"
_HISTORY = "history.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch.

    Attributes:
        batch: the records that were read.
        outputs: files with the rows for the stream.
        letters: files with operations on the dead letters.
        back: file with the records to read again, if there are any.
        dead: how many dead letters were added; negative if some were removed.
    """

    batch: Batch
    outputs: tuple[Segment, ...] = ()
    letters: tuple[Segment, ...] = ()
    back: Segment | None = None
    dead: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as a JSON document."""
        return {**asdict(self), "batch": self.batch.as_dict()}

    def skipped(self) -> Outcome:
        """Return the outcome without its outputs; dead letters and retries stay as decided."""
        return replace(self, outputs=())

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `as_dict` described."""
        outputs, letters = (
            tuple(Segment(**segment) for segment in document[name])
            for name in ("outputs", "letters")
        )
        back = Segment(**document["back"]) if document["back"] else None
        return cls(Batch.from_dict(document["batch"]), outputs, letters, back, document["dead"])


@dataclass(frozen=True, slots=True)
class PipelineFiles:
    """The files of a pipeline: committed outcomes, status, and redo logs.

    Attributes:
        storage: the files of the storage.
        id: id of the pipeline, which is that of its stream of dead letters.
        letters: redo log of the dead letters.
        outputs: redo log of the stream that the pipeline writes, if it writes one.
    """

    storage: Files
    id: str
    letters: RedoLog
    outputs: RedoLog | None

    @property
    def folder(self) -> str:
        """Name of the pipeline's folder."""
        return f"{FOLDER}/{self.id}"

    def name(self, number: int, what: str) -> str:
        """Return the name of a file of the batch `number`."""
        return f"{self.folder}/{number:012d}-{what}"

    def outcomes(self) -> list[Outcome]:
        """Return the committed outcomes that may not be applied yet."""
        names = [name for name in self.storage.names(self.folder) if name.endswith(_OUTCOME)]
        return [
            Outcome.from_dict(self.storage.read_json(f"{self.folder}/{name}")) for name in names
        ]

    def log(self, outcome: Outcome) -> None:
        """Append the files of an outcome to the redo logs, unless they are there already."""
        number = outcome.batch.number
        for log, segments in ((self.outputs, outcome.outputs), (self.letters, outcome.letters)):
            if log is not None and segments and not log.has(number):
                log.append(number, segments)

    def commit(self, outcome: Outcome) -> None:
        """Commit a batch: write its outcome durably."""
        self.storage.write_json(self.name(outcome.batch.number, _OUTCOME), outcome.as_dict())

    def forget(self, outcome: Outcome, status: Mapping[str, Any]) -> None:
        """Remove an outcome that is applied, and write `status` for other processes."""
        for what in (BACK, _OUTCOME):  # the outcome last: it shows that there is more to remove
            self.storage.remove(self.name(outcome.batch.number, what))
        self.write_status(status)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status of the pipeline for other processes."""
        self.storage.write_json(f"{self.folder}/{_STATUS}", status, durable=False)

    def history(self) -> History:
        """Return the last batches; none if they aren't known."""
        return stored_history(self.storage, self.id)

    def write_history(self, history: History) -> None:
        """Write the last batches for other processes."""
        self.storage.write_json(f"{self.folder}/{_HISTORY}", history.as_dict(), durable=False)

    def recover(self, *, skip: bool) -> None:
        """Apply committed outcomes to the redo logs, and remove files of uncommitted batches.

        Call it when the storage is opened, before redo logs are cleaned up.

        Args:
            skip: drop the outputs of the outcomes; their records stay read.
        """
        self.storage.remove_unfinished(self.folder)
        committed = self.outcomes()
        for outcome in committed:
            if skip:
                self.commit(outcome.skipped())
            self.log(outcome.skipped() if skip else outcome)
        kept = {_STATUS, _HISTORY}
        kept |= {f"{o.batch.number:012d}-{what}" for o in committed for what in (_OUTCOME, BACK)}
        for name in self.storage.names(self.folder):
            if name not in kept:  # of an uncommitted batch
                self.storage.remove(f"{self.folder}/{name}")


def pipeline_files(
    files: Files, letters: Entry, into: Entry | None, log_of: Callable[[Entry], RedoLog]
) -> PipelineFiles:
    """Return the files of a pipeline, by its stream of dead letters and the stream it writes."""
    return PipelineFiles(files, letters.id, log_of(letters), None if into is None else log_of(into))


def recover_pipelines(
    files: Files, catalog: Catalog, log_of: Callable[[Entry], RedoLog], *, skip: bool
) -> None:
    """Recover all pipelines of a storage; see `PipelineFiles.recover`.

    Args:
        files: the files of the storage.
        catalog: the definitions; files of unknown pipelines are removed.
        log_of: returns the redo log of a stream.
        skip: drop the outputs of the outcomes; their records stay read.
    """
    for name in files.names(FOLDER):
        if name not in catalog.ids:
            files.remove(f"{FOLDER}/{name}")
    for entry in catalog.entries:
        if entry.role == PIPELINE:
            into = catalog.find(entry.options.get(INTO, ""))
            pipeline_files(files, entry, into, log_of).recover(skip=skip)


def pipeline_entry(catalog: Catalog, name: str) -> Entry:
    """Return the definition of a pipeline, which is that of its dead letters.

    Raises:
        CatalogError: NOT_FOUND.
    """
    known = {
        entry.name.removesuffix(DEAD): entry for entry in catalog.entries if entry.role == PIPELINE
    }
    if name not in known:
        raise CatalogError(
            f"there is no pipeline named {name}",
            condition="NOT_FOUND",
            hint=f"known: {', '.join(known) or 'none yet'}",
        )
    return known[name]


def stored_status(files: Files, letters: Entry) -> dict[str, Any]:
    """Return the status of a pipeline in or after its last batch; needs no running pipeline."""
    name = f"{FOLDER}/{letters.id}/{_STATUS}"
    if files.exists(name):
        status: dict[str, Any] = files.read_json(name)
        return status
    return {"name": letters.name.removesuffix(DEAD)}


def stored_history(files: Files, pipeline: str) -> History:
    """Return the last batches of a pipeline by its id; none if they aren't known. Needs no running pipeline."""
    name = f"{FOLDER}/{pipeline}/{_HISTORY}"
    with suppress(EddylineError):  # it is damaged: it begins anew
        if files.exists(name):
            return History.from_dict(files.read_json(name))
    return History()


def lane_windows(status: Mapping[str, Any]) -> list[int]:
    """Return how many records each lane of a pipeline may have in flight; none where the status doesn't tell."""
    rows = status.get("tuple_rows")
    return [] if rows is None else [window * rows for window in status.get("windows", ())]


def pipelines_status(files: Files, catalog: Catalog, lags: Lags) -> list[dict[str, Any]]:
    """Return `stored_status` of each pipeline, and its `lag`, if that is known: how far it is behind its queue.

    Args:
        lags: of the pipelines, from `stored_lags`.
    """
    found = []
    for entry in catalog.entries:
        if entry.role == PIPELINE:
            lag = {"lag": lags[entry.id]} if entry.id in lags else {}
            found.append({**stored_status(files, entry), **lag})
    return found
