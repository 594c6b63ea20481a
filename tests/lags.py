"""What tests of lags share: what a stream says while it reads, and lags of one stream without an engine."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import SparkSession

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, Entry
from eddyline.intake.lags import Lags
from eddyline.intake.sources import Sources
from eddyline.source.lag import NAME, Unread
from eddyline.source.redo_log import RedoLog
from eddyline.state.manifest import Manifest


def told_before_entries(stream: Any, monkeypatch: Any) -> list[Unread | None]:
    """What a stream says is unread, before it writes each of its entries from now on."""
    told: list[Unread | None] = []
    append = RedoLog.append

    def noted(log: RedoLog, *given: Any, **more: Any) -> None:
        told.append(stream.unread())
        append(log, *given, **more)

    monkeypatch.setattr(RedoLog, "append", noted)
    return told


class Measured:
    """One open stream, and how far it is behind, as an engine stores it."""

    def __init__(self, stream: Any) -> None:
        log = stream.log
        self.entry = Entry(log.source, STREAM, stream.name, '{"type": "struct", "fields": []}')
        spark = cast(SparkSession, None)  # no source of Spark is opened
        self.sources = Sources(log.files, spark, "UTC", {}, log.clock)
        self.sources._logs[log.source] = log
        self.sources.connect(self.entry, stream)
        self._lags = Lags(self.sources)

    def lag(self, processed: int = 0) -> dict[str, int]:
        """How much waits, and `since`, if epochs have processed this many entries."""
        manifest = Manifest(1, {self.entry.id: processed})  # type: ignore[arg-type]
        self._lags.measure(Catalog(4, (self.entry,)), manifest, 0.0)
        found: dict[str, dict[str, int]] = self.sources.files.read_json(NAME)
        return found[self.entry.id]
