"""Positions of a source: how far it has been read when its redo log has a certain number of entries."""

from __future__ import annotations

from typing import Any

from eddyline.errors import DataError, StateError
from eddyline.source.redo_log import RedoLog
from eddyline.source.segments import Segment


class Positions:
    """Documents with positions. Each is written before its entry, under the number of the next entry.

    So after any crash the document under the log's end number is the position that belongs to the log.

    Args:
        stream: its name, for errors.
        log: redo log of the stream.
        folder: folder of the documents in the storage.
    """

    def __init__(self, stream: str, log: RedoLog, folder: str) -> None:
        self._stream, self._log, self._folder = stream, log, folder

    def read(self, number: int) -> dict[str, Any] | None:
        """Return the position that holds while the log has `number` entries; None before the first.

        Raises:
            DataError: BAD_STREAM, the log may be skipped.
            StateError: MISSING_CHECKPOINT, there should be one.
        """
        if "logs/" in self._log.files.unflushed:
            raise DataError(
                f"stream {self._stream} needs a redo log that is never skipped: what was read isn't "
                "read again",
                condition="BAD_STREAM",
                stream=self._stream,
                hint="open the storage with delivery exactly_once or at_least_once",
            )
        name = self._name(number)
        if self._log.files.exists(name):
            document: dict[str, Any] = self._log.files.read_json(name)
            return document
        if not number:
            return None
        raise StateError(
            f"the position of stream {self._stream} is missing, but its redo log is there",
            condition="MISSING_CHECKPOINT",
            file=name,
            hint="restore the folder from a copy, or drop the stream and create it again",
        )

    def begun(self, number: int) -> dict[str, Any] | None:
        """Return the position written for an entry `number` that a crash has prevented; None if there is none."""
        name = self._name(number + 1)
        if not self._log.files.exists(name):
            return None
        document: dict[str, Any] = self._log.files.read_json(name)
        return document

    def write(self, number: int, position: dict[str, Any]) -> None:
        """Write the position that holds while the log has `number` entries."""
        self._log.files.make_folder(self._folder)
        self._log.files.write_json(self._name(number), position)

    def append(self, number: int, segments: list[Segment], position: dict[str, Any]) -> None:
        """Write entry `number`, and before it the position that holds after it."""
        self.write(number + 1, position)
        self._log.append(number, segments, new=True)
        self._log.files.remove(self._name(number - 1))

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.json"
