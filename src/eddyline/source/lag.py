"""How far sources are behind: `lags.json` in the storage, which the engine keeps up to date while it runs.

What waits is counted in two places: at the source, as of its last look, and in the redo log, after the entries that
an epoch has processed. Status, metrics and console all read the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from eddyline.errors import EddylineError
from eddyline.storage.files import Files
from eddyline.storage.lock import in_use

NAME, SINCE = "lags.json", "since"

Lags: TypeAlias = Mapping[str, Mapping[str, float]]
"""By id of a source, or of a pipeline's dead letters, how far it is behind, in each unit that is known and in seconds."""

ROWS, BYTES, VERSIONS, SECONDS = "rows", "bytes", "versions", "seconds"
UNITS = (ROWS, BYTES, VERSIONS)

LOOK_AGAIN_S = 10.0
"""While a source reads what has been there at its last look, it asks so often how much there is by now."""

LOOKS = 256
"""So many looks at what is unread are remembered."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What a source had at its last look that wasn't in the redo log yet.

    Attributes:
        amount: how much, in `unit`.
        unit: `ROWS` (also records and messages), `BYTES` or `VERSIONS`.
        position: how much was read before, in the same unit, counted from any beginning.
        since: when the oldest of it came (microseconds since 1970), if the source tells.
    """

    amount: int
    unit: str
    position: int = 0
    since: int | None = None


@dataclass(slots=True)
class Backlog:
    """Finds since when something has been waiting, from a source's earlier looks.

    What was there at a look has been read once the position is beyond it.

    Example:
        >>> backlog = Backlog()
        >>> [backlog.since(now, Unread(*seen)) for now, seen in [
        ...     (10, (5, ROWS, 0)), (20, (5, ROWS, 3)), (30, (4, ROWS, 6)), (40, (0, ROWS, 10))]]
        [10, 10, 20, None]
    """

    _looks: list[tuple[int, int]] = field(default_factory=list)  # a time, and the end by then
    _position: int = 0

    def since(self, now: int, unread: Unread) -> int | None:
        """Return when the oldest that is still unread was first seen; None if nothing is unread.

        Args:
            now: the time of this look, in the unit of the answer.
        """
        if unread.position < self._position:
            self._looks.clear()  # the source begins again
        self._position = unread.position
        end = unread.position + unread.amount
        self._looks = [look for look in self._looks if look[1] > unread.position]
        if unread.amount and (not self._looks or end > self._looks[-1][1]):
            self._looks.append((now, end))
        if len(self._looks) > LOOKS:
            del self._looks[1::2]
        return self._looks[0][0] if self._looks else None


def stored_lags(files: Files) -> dict[str, dict[str, float]]:
    """Return how far each source is behind by its id: `rows`, `bytes`, `versions`, as far as known, and `seconds`.

    None are returned while no engine runs: then nobody knows. Pipelines have the id of their dead letters.
    """
    found: Mapping[str, Any] = {}
    with suppress(EddylineError):  # it is damaged: it is written anew
        if in_use(files) and files.exists(NAME):
            found = files.read_json(NAME)
    now = time.time()
    return {source: _shown(lag, now) for source, lag in found.items()}


def _shown(lag: Mapping[str, int], now: float) -> dict[str, float]:
    waiting = {unit: lag[unit] for unit in UNITS if unit in lag}
    seconds = max(now - lag[SINCE] / 1e6, 0.0) if SINCE in lag else 0.0
    return {**waiting, SECONDS: round(seconds, 3)}


def total_lag(lags: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of lags; seconds are those of the longest.

    Example:
        >>> total_lag([{"rows": 2, "seconds": 1.0}, {"rows": 3, "bytes": 9, "seconds": 0.0}])
        {'rows': 5, 'bytes': 9, 'seconds': 1.0}
    """
    every = list(lags)
    units = [unit for unit in UNITS if any(unit in lag for lag in every)]
    total: dict[str, float] = {unit: sum(lag.get(unit, 0) for lag in every) for unit in units}
    return total | ({SECONDS: max(lag[SECONDS] for lag in every)} if every else {})


def lag_text(lag: Mapping[str, float]) -> str:
    """Return a lag for people.

    Example:
        >>> lag_text({"rows": 1200, "bytes": 0, "seconds": 7.4})
        '1,200 rows, 7 s'
        >>> lag_text({"rows": 0, "seconds": 0.0}), lag_text({})
        ('none', '')
    """
    parts = [f"{lag[unit]:,} {unit}" for unit in UNITS if lag.get(unit)]
    if (seconds := lag.get(SECONDS, 0)) >= 1:
        parts.append(f"{seconds:,.0f} s")
    return ", ".join(parts) or ("none" if lag else "")
