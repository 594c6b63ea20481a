"""The protocol of sources, which write the rows of a stream into its redo log.

A new format is a `SourceFormat` (see `intake/formats.py`) that opens a `Source`. Most are a
`PlannedSource`, whose entries only name data that the source keeps, and a reader for its segments
(see `source/segment_readers.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from eddyline.errors import EngineError
from eddyline.source.dead_letters import DeadLetters
from eddyline.source.lag import ROWS, Unread
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment


def cannot_read(stream: str, why: str, way_out: str = "") -> EngineError:
    """Return the error of a stream whose source can't be read now.

    Args:
        why: the cause, in one line.
        way_out: a way out besides repairing the source.
    """
    return EngineError(
        f"stream {stream} can't be read: {why}",
        condition="STREAM_FAILED",
        stream=stream,
        hint=f"mend the source and call advance() again; nothing was lost{way_out}",
    )


class Source(Protocol):
    """Writes the input of one stream into the stream's redo log, in numbered entries.

    The engine calls `pull` or `follow` when it wants input, and then processes what the log holds.
    Both may fail, or the process may end, at any write: the next call must continue with the entry
    after the last one in the log, without a gap or a repetition.
    """

    @property
    def name(self) -> str:
        """Name of the stream, for errors."""

    @property
    def replayable(self) -> bool:
        """Whether entries only name data that the source keeps; else the log holds the rows."""

    @property
    def steps(self) -> bool:
        """Whether an epoch processes one entry, rather than all that wait."""

    @property
    def dead_letters(self) -> DeadLetters | None:
        """The handler of the source's dead letters; None if it has none."""

    def pull(self) -> None:
        """Log all input that is available now."""

    def follow(self, interval_s: float) -> None:
        """Log new input, in the background or at each call. The engine calls it repeatedly."""

    def stop(self) -> None:
        """Stop reading, and release what `open` has acquired."""

    def forget(self, position: int) -> None:
        """Remove the entries before `position` from the log: no epoch reads them again."""


@runtime_checkable
class HasRemoteResources(Source, Protocol):
    """A source that owns resources on another system, such as a replication slot."""

    def drop(self) -> None:
        """Remove these resources, because the stream was dropped. A failure is logged, not raised."""


@runtime_checkable
class Measurable(Source, Protocol):
    """A source that knows what it hasn't read yet."""

    def unread(self) -> Unread | None:
        """Return what wasn't read at the last look; None before the first.

        It asks no server at each call, and may be called from any thread at any time.
        """


@runtime_checkable
class LeavesOut(Source, Protocol):
    """A source that goes on without those of its files that can't be read now."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The files that couldn't be read at the last look, with the reason; they are tried again."""
        ...


class CopiedSource:
    """A source whose rows are copied into the redo log, because they may disappear from it."""

    __slots__ = ()
    log: RedoLog

    @property
    def replayable(self) -> bool:
        """False: the source may have deleted rows that are in the log."""
        return False

    @property
    def steps(self) -> bool:
        """False: an epoch processes all entries that wait."""
        return False

    @property
    def dead_letters(self) -> DeadLetters | None:
        """None: a record that doesn't fit stops the stream."""
        return None

    def forget(self, position: int) -> None:
        """Remove the entries before `position` from the log."""
        self.log.forget(position)


class PlannedSource(ABC):
    """A source whose data stays where it is: entries of the log only name it.

    Args:
        name: name of the stream.
        log: redo log of the stream.
        steps: whether an epoch processes one entry, rather than all that wait.
    """

    def __init__(self, name: str, log: RedoLog, *, steps: bool = False) -> None:
        self.name = name
        self.log = log
        self.steps = steps

    @property
    def replayable(self) -> bool:
        """True: segments can be read again as long as the source keeps its data."""
        return True

    @property
    def dead_letters(self) -> DeadLetters | None:
        """None: epochs read the rows, and an epoch has no dead letters."""
        return None

    @abstractmethod
    def plan(self, first: int) -> Iterator[list[Segment]]:
        """Yield the segments of entry `first`, and of those after it, as far as there is input.

        An entry is in the log when the next one is asked for. After a failure `plan` is called again
        with the number of the first entry that is missing, and must yield the same segments for it.
        """

    def pull(self) -> None:
        """Log all entries that can be planned now."""
        first = self.log.end()
        for number, segments in enumerate(self.plan(first), first):
            self.log.append(number, segments)

    def follow(self, interval_s: float) -> None:
        """Do the same as `pull`: planning is cheap."""
        self.pull()

    def unread(self) -> Unread | None:
        """Return that nothing is unread: all that the last look has found is in the log."""
        return Unread(0, ROWS)

    def stop(self) -> None:  # noqa: B027  # most sources have nothing to stop
        """Do nothing: no thread runs."""

    def forget(self, position: int) -> None:
        """Remove the entries before `position` from the log."""
        self.log.forget(position)
