"""Chooses the lane of an epoch of a view: the one that is expected to be faster, by the epochs measured so far.

The cost of a view in each lane is a line, seconds = fixed + rows * slope, fitted by least squares to its epochs;
recent epochs weigh more. A new view begins with a line that was measured for typical views.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SHORT, WIDE = "short", "wide"

MEMORY = 0.8
"""What an epoch's weight is multiplied by with each later one of its view and lane."""

COLD = 2
"""The first epochs of a view in a lane, which aren't measured: code is compiled in them."""

ADVANTAGE = 0.75
"""A view changes lanes only for an epoch that is expected to take less than this share of the time."""

_TYPICAL = {SHORT: (0.01, 1.8e-6), WIDE: (0.06, 1.8e-6)}
"""Fixed seconds of each operator, and seconds of each row: measured on two cores, see ARCHITECTURE.md."""

_TYPICAL_CORES = 2

_TYPICAL_ROWS = 100_000
_ROWS_MAX = 1 << 40  # a larger number is only the estimate for files with an unknown row count

_KEPT = 0.25
"""The weight of each of the two points that a line begins with; all later ones together weigh 5 at most."""


class CostLine:
    """A least-squares line of seconds over rows, whose fixed part and slope aren't negative.

    Args:
        fixed, slope: the line to begin with. Two points on it keep a small weight, so that epochs of
            nearly equal size don't tilt the line.

    Example:
        >>> line = CostLine(0.1, 1e-6)
        >>> for _ in range(20):
        ...     line.add(0, 0.5)
        ...     line.add(100_000, 2.5)
        >>> round(line.at(50_000), 1)
        1.5
    """

    def __init__(self, fixed: float, slope: float) -> None:
        # weights, and weighted sums of rows, their squares, seconds, and products of rows and seconds
        self._start = sum(
            _KEPT * _moments(rows, fixed + slope * rows) for rows in (0, _TYPICAL_ROWS)
        )
        self._sums = np.zeros(5)

    def add(self, rows: float, seconds: float) -> None:
        """Add a point; those that were added before weigh less from then on."""
        self._sums = self._sums * MEMORY + _moments(rows, seconds)

    def fitted(self) -> tuple[float, float]:
        """Return the fixed seconds and the seconds a row."""
        weight, rows, squares, seconds, products = self._start + self._sums
        slope = max(0.0, (weight * products - rows * seconds) / (weight * squares - rows * rows))
        fixed = (seconds - slope * rows) / weight
        if fixed < 0:
            fixed, slope = 0.0, products / squares
        return float(fixed), float(slope)

    def at(self, rows: float) -> float:
        """Return the expected seconds."""
        fixed, slope = self.fitted()
        return fixed + slope * rows


def _moments(rows: float, seconds: float) -> NDArray[np.float64]:
    return np.array([1.0, rows, rows * rows, seconds, rows * seconds])


@dataclass(slots=True)
class _View:
    """The cost lines of a view's lanes, the lane of its last epoch, and how many epochs it has had in each."""

    lines: dict[str, CostLine]
    last: str = ""
    epochs: Counter[str] = field(default_factory=Counter)


class Lanes:
    """Chooses a lane for each epoch of each view.

    Args:
        most: rows of input beyond which no epoch takes the short lane.
        cores: number of cores on which a job of the wide lane runs.
    """

    def __init__(self, most: int, cores: int = _TYPICAL_CORES) -> None:
        self.most = most
        self._spread = {SHORT: 1.0, WIDE: _TYPICAL_CORES / cores}
        self._views: dict[str, _View] = {}

    def choose(self, view: str, rows: int, operators: int) -> str:
        """Return the lane for an epoch of a view that can take both.

        Args:
            view: its id.
            rows: of its input.
            operators: number of its stateful operators.
        """
        if rows > self.most:
            return WIDE
        known = self._view(view, operators)
        short, wide = (known.lines[lane].at(rows) for lane in (SHORT, WIDE))
        if known.last == SHORT:
            return WIDE if wide < short * ADVANTAGE else SHORT
        if known.last == WIDE:
            return SHORT if short < wide * ADVANTAGE else WIDE
        return SHORT if short <= wide else WIDE

    def measured(self, view: str, lane: str, rows: int, seconds: float, operators: int) -> None:
        """Add the duration of an epoch to the cost line of its lane."""
        known = self._view(view, operators)
        known.last = lane
        if known.epochs[lane] >= COLD and rows < _ROWS_MAX:
            known.lines[lane].add(rows, seconds)
        known.epochs[lane] += 1

    def turning(self, view: str, operators: int) -> int:
        """Return the number of rows up to which the short lane is expected to be faster; at most `most`."""
        lines = self._view(view, operators).lines
        (fixed, slope), (wide_fixed, wide_slope) = (lines[lane].fitted() for lane in (SHORT, WIDE))
        if fixed > wide_fixed:
            return 0
        if slope <= wide_slope:
            return self.most
        return min(self.most, int((wide_fixed - fixed) / (slope - wide_slope)))

    def forget(self, view: str) -> None:
        """Forget the costs of a dropped view, by its id."""
        self._views.pop(view, None)

    def _view(self, view: str, operators: int) -> _View:
        known = self._views.get(view)
        if known is None:
            parts = max(operators, 1)
            lines = {
                lane: CostLine(fixed * parts, slope * self._spread[lane])
                for lane, (fixed, slope) in _TYPICAL.items()
            }
            known = self._views[view] = _View(lines)
        return known
