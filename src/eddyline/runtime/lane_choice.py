"""Chooses the lane of an epoch of a view: the one that is expected to be faster, by the epochs measured so far.

The cost of a view in each lane is a line, seconds = fixed + rows * slope, fitted by least squares to its epochs;
recent epochs weigh more. A new view begins with a line that was measured for typical views. While only one lane
has been measured, the view's other line differs from the typical one as the measured line does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORT, WIDE = "short", "wide"

MEMORY = 0.8
"""What an epoch's weight is multiplied by with each later one of its view and lane."""

COLD = 2
"""The first epochs of a view in a lane, which aren't measured: code is compiled in them."""

ADVANTAGE = 0.75
"""A view changes lanes only for an epoch that is expected to take less than this share of the time."""


class Cost(NamedTuple):
    """Seconds of an epoch whatever its rows, and seconds of each row."""

    fixed: float
    slope: float

    def at(self, rows: float) -> float:
        """Return the seconds of an epoch of so many rows."""
        return self.fixed + rows * self.slope


_TYPICAL = {SHORT: Cost(0.01, 1.8e-6), WIDE: Cost(0.06, 1.8e-6)}
"""Of one operator: measured on two cores, see ARCHITECTURE.md."""

_TYPICAL_CORES = 2

_ROWS_MAX = 1 << 40  # a larger number is only the estimate for files with an unknown row count

_KEPT = 0.25
"""The weight of the typical fixed part, and of the typical slope; all epochs together weigh 5 at most."""


class CostLine:
    """A least-squares line of seconds over rows, whose fixed part and slope aren't negative.

    Attributes:
        typical: the line to begin with; both of its parts are above 0, and keep a small weight, so that
            epochs of nearly equal size don't tilt the line.

    Example:
        >>> line = CostLine(Cost(0.1, 1e-6))
        >>> for _ in range(20):
        ...     line.add(0, 0.5)
        ...     line.add(100_000, 2.5)
        >>> round(line.fitted().at(50_000), 1)
        1.5
    """

    def __init__(self, typical: Cost) -> None:
        self.typical = typical
        # weights, and weighted sums of rows, their squares, seconds, and products of rows and seconds
        rows = typical.fixed / typical.slope  # for which both parts take the same time
        of_slope = np.array([0.0, 0.0, rows * rows, 0.0, rows * typical.fixed])
        self._start = _KEPT * (_moments(0, typical.fixed) + of_slope)
        self._sums = np.zeros(5)

    def add(self, rows: float, seconds: float) -> None:
        """Add a point; those that were added before weigh less from then on."""
        self._sums = self._sums * MEMORY + _moments(rows, seconds)

    @property
    def measured(self) -> bool:
        """Whether points were added."""
        return bool(self._sums[0])

    def fitted(self) -> Cost:
        """Return the line."""
        weight, rows, squares, seconds, products = self._start + self._sums
        slope = max(0.0, (weight * products - rows * seconds) / (weight * squares - rows * rows))
        fixed = (seconds - slope * rows) / weight
        if fixed < 0:
            fixed, slope = 0.0, products / squares
        return Cost(float(fixed), float(slope))


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
        short, wide = (cost.at(rows) for cost in self._expected(known))
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
        short, wide = self._expected(self._view(view, operators))
        if short.fixed > wide.fixed:
            return 0
        if short.slope <= wide.slope:
            return self.most
        return min(self.most, int((wide.fixed - short.fixed) / (short.slope - wide.slope)))

    def forget(self, view: str) -> None:
        """Forget the costs of a dropped view, by its id."""
        self._views.pop(view, None)

    def _expected(self, known: _View) -> tuple[Cost, Cost]:
        """Return the cost of a view in the short and in the wide lane."""
        return self._cost(known, SHORT, WIDE), self._cost(known, WIDE, SHORT)

    def _cost(self, known: _View, lane: str, other: str) -> Cost:
        """Return the cost of a view in a lane.

        What the view takes beyond the typical one is work on its rows: the cores of the lane share it.
        """
        own, tried = known.lines[lane], known.lines[other]
        if own.measured or not tried.measured:
            return own.fitted()
        share = self._spread[lane] / self._spread[other]
        pairs = zip(own.typical, tried.typical, tried.fitted(), strict=True)
        return Cost(*(max(0.0, cost + share * (real - typical)) for cost, typical, real in pairs))

    def _view(self, view: str, operators: int) -> _View:
        known = self._views.get(view)
        if known is None:
            parts = max(operators, 1)
            lines = {
                lane: CostLine(Cost(fixed * parts, slope * self._spread[lane]))
                for lane, (fixed, slope) in _TYPICAL.items()
            }
            known = self._views[view] = _View(lines)
        return known
