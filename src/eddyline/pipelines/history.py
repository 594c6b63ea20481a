"""The last batches of a pipeline as points over time, in a file that other processes read."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

KEPT = 240


@dataclass(frozen=True, slots=True)
class Point:
    """The batches of a pipeline that ended within one second.

    Attributes:
        at: the second, since 1970.
        batches: how many they are.
        seconds: that they took together.
        in_flight: the largest number of records in flight during one of them.
        window_rows: how many records each lane might have in flight after the last one.
    """

    at: int
    batches: int
    seconds: float
    in_flight: int
    window_rows: tuple[int, ...]


class History:
    """The last `KEPT` points of a pipeline, oldest first. One thread adds to it.

    Example:
        >>> history = History()
        >>> history.add(Point(7, 1, 0.25, 100, (16, 16)))
        >>> history.add(Point(7, 1, 0.5, 80, (17, 16)))  # in the same second
        >>> history.add(Point(9, 1, 0.25, 10, (17, 17)))
        >>> [(one.at, one.batches, one.seconds, one.in_flight) for one in history.points]
        [(7, 2, 0.75, 100), (9, 1, 0.25, 10)]
        >>> History.from_dict(history.as_dict()).points == history.points
        True
    """

    def __init__(self, points: Sequence[Point] = ()) -> None:
        self.points: deque[Point] = deque(points, maxlen=KEPT)

    def add(self, point: Point) -> None:
        """Add a batch."""
        if self.points and self.points[-1].at == point.at:
            last = self.points.pop()
            point = replace(
                point,
                batches=last.batches + point.batches,
                seconds=last.seconds + point.seconds,
                in_flight=max(last.in_flight, point.in_flight),
            )
        self.points.append(point)

    def as_dict(self) -> dict[str, Any]:
        """Return the points as a JSON document, each as a list of its attributes."""
        points = [
            (one.at, one.batches, one.seconds, one.in_flight, one.window_rows)
            for one in self.points
        ]
        return {"points": points}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> History:
        """Return the history that `as_dict` described."""
        points = document.get("points", ())
        return cls(
            [Point(at, count, spent, most, tuple(rows)) for at, count, spent, most, rows in points]
        )
