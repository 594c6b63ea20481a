"""The times of a log's lines: which of them can be right, and where to cut the lines that are replayed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median_low

from eddyline_apps.guard.reading import Line

AHEAD = timedelta(minutes=5)
"""How far a line may be dated ahead; the view `requests` of guard.sql has the same."""

CLOCKS_DIFFER = timedelta(hours=1)
"""How far a line of a log that is replayed may be ahead of this machine's clock."""

NEIGHBOURS = 500
"""Dated lines on each side of one that seems to be misdated, with which it is compared."""

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
# a quote follows: a login may hold what looks like a date
_STAMP = re.compile(r'\[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "', re.ASCII)


def times_of(lines: Iterable[Line]) -> Iterator[datetime | None]:
    """Yield the time of each line, None of one without."""
    stamp, time = "", None
    for line in lines:
        found = _STAMP.search(line.value)
        if found is not None and found[1] != stamp:
            stamp = found[1]
            time = _time(stamp)
        yield None if found is None else time


def count_ahead(lines: Iterable[Line], now: datetime) -> int:
    """Return how many lines are dated more than `AHEAD` after a time: the views leave them out."""
    return sum(time is not None and time - now > AHEAD for time in times_of(lines))


def misdated(times: Sequence[datetime | None], latest: datetime) -> list[bool]:
    """Tell for each line of a log whether its date is far from those of the lines around it, or after `latest`.

    A log may go on after a pause of any length, so one that leaps is compared with as many lines after it as before
    it: it is misdated if it is more than `AHEAD` from their median. A group of misdated lines is found if there
    are more of others on each of its sides.
    """
    dated = [
        (place, time) for place, time in enumerate(times) if time is not None and time <= latest
    ]
    wrong = [time is not None and time > latest for time in times]
    last: datetime | None = None
    for at, (place, time) in enumerate(dated):
        if last is not None and abs(time - last) > AHEAD:
            reach = min(NEIGHBOURS, at, len(dated) - 1 - at)
            around = median_low(one for _, one in dated[at - reach : at + reach + 1])
            if abs(time - around) > AHEAD:
                wrong[place] = True
                continue
        last = time
    return wrong


def replayed(
    read: Callable[[], Sequence[Line]], step_s: float, latest: datetime
) -> Iterator[tuple[Sequence[Line], datetime, int]]:
    """Yield the lines of logs in the parts of `parts_by_time`, each with its time and its number of misdated lines.

    Args:
        read: returns the next lines, none at the end.
        latest: no line is right that is dated later.
    """
    before: list[Line] = []
    waiting: list[Line] = []
    now, more = _LONG_AGO, True
    while more:
        new = read()
        more = bool(new)
        lines = [*before, *waiting, *new]
        # the last ones wait for the lines after them, with which they are compared
        begin, end = len(before), max(len(before), len(lines) - NEIGHBOURS * more)
        wrong = misdated(list(times_of(lines)), latest)
        place = begin
        for part, time in parts_by_time(lines[begin:end], step_s, wrong[begin:end], now):
            if part:
                yield part, time, sum(wrong[place : place + len(part)])
            place, now = place + len(part), time
        before, waiting = lines[max(0, end - NEIGHBOURS) : end], lines[end:]


def parts_by_time(
    lines: Sequence[Line],
    step_s: float,
    wrong: Sequence[bool] = (),
    before: datetime = _LONG_AGO,
) -> Iterator[tuple[Sequence[Line], datetime]]:
    """Cut lines where their times are `step_s` apart, or go far back; yield each part with its latest time.

    Otherwise a block could begin and end within a part, and nobody would see it.

    Args:
        wrong: of each line whether it is misdated: then its time doesn't count.
        before: the time of a part in which none counts.
    """
    step = timedelta(seconds=step_s)
    begin, first, now = 0, None, before
    for place, time in enumerate(times_of(lines)):
        if time is None or (wrong and wrong[place]):
            continue
        if first is not None and (time - first >= step or now - time > AHEAD):
            yield lines[begin:place], now
            begin, first = place, None
        if first is None:
            first = now = time
        now = max(now, time)
    yield lines[begin:], now


def _time(stamp: str) -> datetime | None:
    try:
        return datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
