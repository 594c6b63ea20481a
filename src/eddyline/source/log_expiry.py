"""Expiry of a redo log's entries: those of streams whose rows are retained for a time."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from eddyline.changes import Epoch
from eddyline.source.log_entries import SEQUENCE_SHIFT, LogEntries, logging_damage
from eddyline.source.log_index import Index
from eddyline.storage.files import Files

_EXPIRED = "expired"
_NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True)
class Expired:
    """Which entries of a log have expired: readers begin after them.

    Attributes:
        end: the number after that of the last one.
        epoch: the last committed epoch at that time; a reader that began before may still need them.
        before: entries that were received before this time, in microseconds since 1970.
    """

    end: int = 0
    epoch: Epoch = _NO_EPOCH
    before: int = 0


def expired(files: Files, source: str) -> Expired:
    """Return which entries of a source's log have expired. Only reads, so it can be used beside an engine."""
    name = f"logs/{source}/{_EXPIRED}"
    return Expired(**files.read_json(name)) if files.exists(name) else Expired()


def expire_entries(log: LogEntries, before: int, end: int, epoch: Epoch) -> int | None:
    """Let the entries expire that were received before a time; see `RedoLog.expire`.

    Returns:
        The number of the first entry that is read now; None if that is as before.
    """
    index = log.index()
    first = max(index.start, expired(log.files, log.source).end)
    with logging_damage("let go"):
        found = _received_since(log, index, before, first, min(end, index.end - 1))
        if found > first:
            document = asdict(Expired(found, epoch, before))
            log.files.write_json(f"{log.folder}/{_EXPIRED}", document)
            return found
    return None


def _received_since(log: LogEntries, index: Index, moment: int, first: int, end: int) -> int:
    """Return the number of the first entry from `first` on that was received at `moment` or later; else `end`.

    Entries of older versions have no time of receipt. They count as received with the next entry that has one.
    """
    undated = None  # the first of the entries without a time directly before this one
    for segment in log.within(index, first, end):
        entry = segment.sequence >> SEQUENCE_SHIFT
        if segment.received_at is None:
            undated = entry if undated is None else undated
        elif segment.received_at >= moment:
            return entry if undated is None else undated
        else:
            undated = None
    return end if undated is None else undated
