"""Times of which a view reads only the intervals that they lie in, such as the minutes of `window(time, '1 minute')`.

The scan rounds them down. More of its rows are then equal, and it adds equal rows up before they go from
Python to the JVM: a count by key and minute gets one row for each of these instead of one for each record.
No operator's state holds such a time: it ends in the projection right above the scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import cast

from pyspark.sql.types import TimestampNTZType, TimestampType

from eddyline.plan.build import Build
from eddyline.plan.clock import reads_clock
from eddyline.plan.eventtime import remainder
from eddyline.plan.logical import (
    Expression,
    Filter,
    Plan,
    child_of,
    children_of,
    id_of,
    items,
    kind,
    output_of,
    subqueries_of,
    type_of,
)

_TIMES = (TimestampType(), TimestampNTZType())
_SECOND = 1_000_000
_UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400}  # of date_trunc, in seconds
_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00")


def rounded_times(build: Build, plan: Plan) -> dict[int, tuple[int, int]]:
    """Return step and start of the intervals, in microseconds, by the ids of the scans' attributes."""
    return _Reads(build, plan).intervals


class _Reads:
    """How a plan reads the times of its scans.

    Attributes:
        intervals: step and start by attribute, for those of which only intervals are read.
    """

    def __init__(self, build: Build, plan: Plan) -> None:
        self._build = build
        self._exact: set[int] = set()
        self.intervals: dict[int, tuple[int, int]] = {}
        self._visit(plan)
        for one in self._exact:  # also where two scans of a union have the same ids
            self.intervals.pop(one, None)

    def _visit(self, node: Plan) -> None:
        over = self._over_scan(node)
        if over is not None:
            scan, expressions = over
            timed = any(type_of(one) in _TIMES for one in output_of(scan))
            for expression in expressions if timed else ():
                self._read(expression)
            return
        if kind(node) == "LogicalRDD":
            self._exact.update(map(id_of, output_of(node)))
        for below in (*children_of(node), *subqueries_of(node)):
            self._visit(below)

    def _over_scan(self, node: Plan) -> tuple[Plan, Sequence[Expression]] | None:
        """Return the scan below a projection, and what is read of its rows; None for another node.

        Filters may be between both, and projections, which may hand columns up.
        """
        if kind(node) == "Project":
            expressions = items(node.projectList())
        elif kind(node) == "Expand":
            expressions = [one for values in items(node.projections()) for one in items(values)]
        else:
            return None
        nodes = [node]
        while kind(below := child_of(nodes[-1])) in ("Filter", "Project"):
            nodes.append(below)
            if kind(below) == "Filter":
                expressions.append(cast("Filter", below).condition())
            else:
                given = items(below.projectList())
                expressions += [one for one in given if kind(one) != "AttributeReference"]
        if kind(below) != "LogicalRDD":
            return None
        # rows that wait for the clock, or that a subquery is joined with, are kept as state
        kept = any(subqueries_of(one) or reads_clock(self._build, one) for one in nodes)
        return None if kept else (below, expressions)

    def _read(self, expression: Expression) -> None:
        name, children = kind(expression), children_of(expression)
        if name == "AttributeReference":
            self._exact.add(id_of(expression))
        elif name in ("IsNull", "IsNotNull") and kind(children[0]) == "AttributeReference":
            pass
        elif (found := _interval(name, expression, children)) is not None:
            time, step, start = found
            if time in self.intervals:  # the largest ones that lie in those of both
                other, start_of_other = self.intervals[time]
                step = gcd(step, other, start - start_of_other)
            self.intervals[time] = step, start % step
        else:
            for child in children:
                self._read(child)


def _interval(
    name: str, expression: Expression, children: Sequence[Expression]
) -> tuple[int, int, int] | None:
    """Return attribute, step and start if an expression reads no more of a time than its interval.

    It is the start of a window, as `window` computes it, or `date_trunc`.
    """
    if name == "Subtract" and kind(children[0]) == "PreciseTimestampConversion":
        time, found = child_of(children[0]), remainder(children[1], children[0])
        if kind(time) == "AttributeReference" and found is not None:
            return id_of(time), *found
    if name == "TruncTimestamp" and kind(children[0]) == "Literal":
        unit, time = _UNITS.get(str(children[0].value()).upper()), children[1]
        if kind(time) == "AttributeReference" and unit is not None:
            # elsewhere minutes may begin at other seconds, but seconds don't
            seconds = unit if expression.timeZoneId().get() in _UTC else 1
            return id_of(time), seconds * _SECOND, 0
    return None
