"""Parses texts of timestamps and dates as Spark does without a format.

Spark accepts `[+-]yyyy[-[m]m[-[d]d]]`, followed by a blank or `T`, a time of one to three numbers, and
after the seconds a fraction and a time zone. Fractions are cut at microseconds.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_SECOND, _DAY = 1_000_000, 86_400
_INT, _LONG = 1 << 31, 1 << 63
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats itself
_TRIMMED = "".join(map(chr, (*range(0x21), 0x7F)))
_MOMENT = re.compile(
    r"([+-]?[0-9]{4,6})"
    r"(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})"
    r"(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_OFFSET = re.compile(r"([+-])([0-9]{2})(?::?([0-9]{2}))?(?::?([0-9]{2}))?")
_OFFSET_S = 18 * 3600
_SHORT_ZONES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}


def instant(text: str, zone: str) -> int:
    """Return microseconds since 1970 of a TIMESTAMP, which is in `zone` if it names no time zone.

    A time without a date is refused, although Spark takes the current day for it: a record must
    not become another row when it is read again.

    Raises:
        ValueError: it is no timestamp.
    """
    try:
        found, named = _parsed(text)
        return _checked(found - _offset_s(named or zone, found) * _SECOND)
    except ValueError:
        if "GMT" not in text:
            raise
        return instant(text.replace("GMT", ""), zone)


def local_time(text: str) -> int:
    """Return microseconds since 1970 of a TIMESTAMP_NTZ; raise ValueError if it isn't one."""
    found, zone = _parsed(text)
    if zone is not None:
        raise ValueError(f"{text} has a time zone")
    return _checked(found)


def day(text: str) -> int:
    """Return days since 1970 of a DATE; raise ValueError if it isn't one.

    A number in quotes is a year, although Spark takes one that isn't for a number of days.
    """
    match = _DATE.fullmatch(text.replace("GMT", "").strip(_TRIMMED))
    if match is None:
        raise ValueError(f"{text} is no date")
    year, month, of_month = (1 if one is None else int(one) for one in match.groups())
    days = _days(year, month, of_month)
    if not -_INT <= days < _INT:
        raise ValueError(f"{text} is too far away")
    return days


def _checked(micros: int) -> int:
    if not -_LONG <= micros < _LONG:
        raise ValueError(f"{micros} microseconds are too many")
    return micros


def _parsed(text: str) -> tuple[int, str | None]:
    """Return local microseconds since 1970 and the time zone of a text."""
    match = _MOMENT.fullmatch(text.strip(_TRIMMED))
    if match is None:
        raise ValueError(f"{text} is no timestamp")
    *given, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (
        default if one is None else int(one)
        for one, default in zip(given, (0, 1, 1, 0, 0, 0), strict=True)
    )
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text} is no time")
    seconds = _days(year, month, day) * _DAY + hour * 3600 + minute * 60 + second
    micros = int(f"{fraction or '':0<6}"[:6])
    return seconds * _SECOND + micros, zone


def _days(year: int, month: int, day: int) -> int:
    """Return days since 1970; ValueError if there is no such day."""
    cycles, within = divmod(year - _CYCLE_YEARS, _CYCLE_YEARS)
    ordinal = date(_CYCLE_YEARS + within, month, day).toordinal()
    return ordinal + cycles * _CYCLE_DAYS - _EPOCH_DAY


def _offset_s(zone: str, local_micros: int) -> int:
    """Return the seconds that a zone is ahead of UTC at a local time."""
    known = _zone(zone)
    if isinstance(known, int):
        return known
    seconds = local_micros // _SECOND
    cycle_s = _CYCLE_DAYS * _DAY
    at = (
        seconds + _EPOCH_DAY * _DAY
    ) // cycle_s  # years that Python lacks behave like those 400 off
    if not 1 <= at <= 23:
        seconds -= (at - (1 if at < 1 else 23)) * cycle_s
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    offset = moment.replace(tzinfo=known).utcoffset()
    return round(offset.total_seconds()) if offset is not None else 0


@lru_cache(maxsize=1024)
def _zone(text: str) -> int | ZoneInfo:
    """Return the offset in seconds, or the region that a text names; ValueError if there is none."""
    name = text.strip(_TRIMMED[:33])
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-][0-9]{2}):([0-9])$", r"\1:0\2", name)
    name = _SHORT_ZONES.get(name, name)
    if name == "Z":
        return 0
    if name[:1] in "+-":
        return _fixed(name)
    for prefix in ("UTC", "GMT", "UT"):
        if name == prefix:
            return 0
        if name.startswith((prefix + "+", prefix + "-")):
            return _fixed(name[len(prefix) :])
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{text} is no time zone") from error


def _fixed(text: str) -> int:
    """Return the seconds of an offset from UTC; ValueError if it isn't one."""
    if len(text) == 2:
        text = f"{text[0]}0{text[1]}"
    match = _OFFSET.fullmatch(text)
    if match is None or len(text) not in (3, 5, 6, 7, 9):
        raise ValueError(f"{text} is no offset")
    sign, *parts = match.groups()
    hours, minutes, seconds = (int(part or 0) for part in parts)
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _OFFSET_S:
        raise ValueError(f"{text} is no offset")
    return -total if sign == "-" else total
