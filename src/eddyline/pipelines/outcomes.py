"""Outcomes: one document for each batch of a pipeline, whose appearance commits it.

What follows from an outcome (entries of redo logs, the queue's own commit) carries the batch's number,
and is done again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from eddyline.catalog.entries import DEAD, INTO, PIPELINE, Catalog, Entry
from eddyline.relay.batch import Batch
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment
from eddyline.storage.files import Files

FOLDER = "pipelines"
BACK = "back.arrow"
_OUTCOME = "outcome.json"
_STATUS = "status.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a batch.

    Attributes:
        batch: what was read.
        outputs: files with the rows for the stream.
        letters: files with operations on the dead letters.
        back: file with the records that are to be read again, if there are any.
        dead: how many more dead letters there are; fewer, if negative.
    """

    batch: Batch
    outputs: tuple[Segment, ...] = ()
    letters: tuple[Segment, ...] = ()
    back: Segment | None = None
    dead: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        return {**asdict(self), "batch": self.batch.as_dict()}

    def skipped(self) -> Outcome:
        """Without outputs and letters; letters that were to be read again stay dead."""
        revived = self.dead < 0
        back = None if revived else self.back
        return replace(self, outputs=(), letters=(), back=back, dead=0 if revived else self.dead)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Outcome:
        """The outcome that a document describes."""
        outputs, letters = (
            tuple(Segment(**segment) for segment in found[name]) for name in ("outputs", "letters")
        )
        back = Segment(**found["back"]) if found["back"] else None
        return cls(Batch.from_dict(found["batch"]), outputs, letters, back, found["dead"])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pipeline keeps what it knows.

    Attributes:
        files: of the storage.
        id: of the pipeline: that of its stream of dead letters.
        letters: redo log of that stream.
        outputs: redo log of the stream that it feeds, if it feeds one.
    """

    files: Files
    id: str
    letters: RedoLog
    outputs: RedoLog | None

    @property
    def folder(self) -> str:
        """Name of the folder."""
        return f"{FOLDER}/{self.id}"

    def name(self, number: int, what: str) -> str:
        """Name of a file of a batch."""
        return f"{self.folder}/{number:012d}-{what}"

    def outcomes(self) -> list[Outcome]:
        """Those that are committed and not known to be told to the queue."""
        names = [name for name in self.files.names(self.folder) if name.endswith(_OUTCOME)]
        return [Outcome.from_dict(self.files.read_json(f"{self.folder}/{name}")) for name in names]

    def log(self, outcome: Outcome) -> None:
        """Make the redo logs hold what an outcome says."""
        number = outcome.batch.number
        for log, segments in ((self.outputs, outcome.outputs), (self.letters, outcome.letters)):
            if log is not None and segments and not log.has(number):
                log.append(number, segments)

    def commit(self, outcome: Outcome) -> None:
        """Make an outcome durable."""
        self.files.write_json(self.name(outcome.batch.number, _OUTCOME), outcome.as_dict())

    def forget(self, outcome: Outcome, status: Mapping[str, Any]) -> None:
        """All that follows from an outcome is done; `status` is told to other processes."""
        for what in (BACK, _OUTCOME):  # what is removed last says that there is more to remove
            self.files.remove(self.name(outcome.batch.number, what))
        self.files.write_json(f"{self.folder}/{_STATUS}", status, durable=False)

    def recover(self, *, skip: bool) -> None:
        """Do again what follows from the outcomes, before anything is tidied away.

        Args:
            skip: nothing is to come of them but that their records were read.
        """
        self.files.remove_unfinished(self.folder)
        committed = self.outcomes()
        for outcome in committed:
            if skip:
                self.commit(outcome.skipped())
            else:
                self.log(outcome)
        kept = {_STATUS}
        kept |= {f"{o.batch.number:012d}-{what}" for o in committed for what in (_OUTCOME, BACK)}
        for name in self.files.names(self.folder):
            if name not in kept:  # of a batch that was never committed
                self.files.remove(f"{self.folder}/{name}")


def place_of(
    files: Files, letters: Entry, into: Entry | None, log_of: Callable[[Entry], RedoLog]
) -> Place:
    """The place of the pipeline with this stream of dead letters, which feeds `into`."""
    return Place(files, letters.id, log_of(letters), None if into is None else log_of(into))


def recover_pipelines(
    files: Files, catalog: Catalog, log_of: Callable[[Entry], RedoLog], *, skip: bool
) -> None:
    """Do again what follows from the outcomes of all pipelines; remove what crashes have left.

    Args:
        skip: nothing is to come of the outcomes but that their records were read.
    """
    for name in files.names(FOLDER):
        if name not in catalog.ids:
            files.remove(f"{FOLDER}/{name}")
    for entry in catalog.entries:
        if entry.format == PIPELINE:
            into = catalog.find(entry.options.get(INTO, ""))
            place_of(files, entry, into, log_of).recover(skip=skip)


def stored_status(files: Files, letters: Entry) -> dict[str, Any]:
    """The status of a pipeline after its last batch, for a process where it isn't connected."""
    name = f"{FOLDER}/{letters.id}/{_STATUS}"
    if files.exists(name):
        status: dict[str, Any] = files.read_json(name)
        return status
    return {"name": letters.name.removesuffix(DEAD)}
