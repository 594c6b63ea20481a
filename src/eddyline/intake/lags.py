"""Measures how far the sources of an engine are behind, and stores it for all who ask; see `source/lag.py`."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import PIPELINE, TABLE, VIEW, Entry
from eddyline.errors import EddylineError
from eddyline.intake.sources import Sources
from eddyline.source.base import Measurable
from eddyline.source.lag import BYTES, NAME, ROWS, SINCE, Backlog, Unread
from eddyline.state.manifest import Manifest

EVERY_S = 5.0
"""Between two measurements while an engine runs."""
FRESH_S = 1.0
"""How old a measurement may be that somebody asks the engine for."""

_LOG = logging.getLogger("eddyline.sources")


@dataclass(slots=True)
class Lags:
    """Measures how far the sources of an engine are behind."""

    sources: Sources
    _stored: dict[str, dict[str, int]] = field(default_factory=dict)  # as in the file
    _measured: float | None = None
    _backlogs: dict[str, Backlog] = field(default_factory=dict)
    _reached: dict[str, int] = field(default_factory=dict)  # when a source could be read last
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def measure(self, catalog: Catalog, manifest: Manifest, max_age_s: float) -> None:
        """Measure all sources, and store what has changed, unless the last measurement is young enough.

        A source that can't be measured now keeps its last numbers.
        """
        with self._lock:
            clock = time.monotonic()
            if self._measured is not None and clock - self._measured < max_age_s:
                return
            found = {}
            for entry in catalog.entries:
                if entry.kind == VIEW or entry.role not in ("", PIPELINE):
                    continue
                try:
                    lag = self._lag(entry, manifest)
                except Exception as error:  # noqa: BLE001  # whatever a source raises: its numbers stay
                    _LOG.debug("%s can't be measured: %s", entry.name, error)
                    lag = self._stored.get(entry.id)
                if lag is not None:
                    found[entry.id] = lag
            self._measured, first = clock, self._measured is None
            if found != self._stored or first:
                with suppress(EddylineError, OSError):  # the next one tries again
                    self.sources.files.write_json(NAME, found, durable=False)
                    self._stored = found

    def _lag(self, entry: Entry, manifest: Manifest) -> dict[str, int] | None:
        """Return how much waits, by unit, and since when; None if the source doesn't know."""
        source = self.sources.connected(entry)
        filled = entry.kind == TABLE or PIPELINE in entry.options  # by writes into its log alone
        unread = Unread(0, ROWS) if source is None and filled else None
        if isinstance(source, Measurable):
            unread = source.unread()
        if unread is None:
            return None
        now = time.time_ns() // 1000
        lag = {unread.unit: unread.amount}
        times = [unread.since]
        if unread.since is None:
            times = [self._backlogs.setdefault(entry.id, Backlog()).since(now, unread)]
        if not entry.role:
            size = self.sources.log(entry).size(manifest.positions.get(entry.source, 0))
            if size.rows or source is None or not source.replayable:
                lag[ROWS] = lag.get(ROWS, 0) + size.rows
            if not size.exact:
                lag[BYTES] = lag.get(BYTES, 0) + size.bytes
            times.append(size.received_at)
        if source is not None and source.name in self.sources.outages:
            times.append(self._reached.setdefault(entry.id, now))
        else:
            self._reached[entry.id] = now
        known = [time for time in times if time is not None]
        return {**lag, SINCE: min(known)} if known else lag
