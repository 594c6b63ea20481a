"""Values as text, where Arrow and polars write other ones than Spark reads: far dates and moments, infinite numbers.

Dates can be of any year that Spark has. Years are written as Spark writes them: of four digits, with a sign before 0
and after 9999.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_DAYS_OF_ERA = 146_097  # of the 400 years after which the calendar repeats
_DAYS_BEFORE_1970 = 719_468  # since March 1 of year 0
_DAY_US = 86_400_000_000

FOUR_DIGITS = (-719_528, 2_932_896)
"""The days from 0000-01-01 to 9999-12-31."""

OF_POLARS = (-95_000_000, 95_000_000)
"""Days that polars can write, some 260,000 years around 1970."""


def float_texts(array: pa.Array) -> pa.Array:
    """Return numbers as text; null stays null.

    Example:
        >>> float_texts(pa.array([1.5, float("nan"), float("-inf")])).to_pylist()
        ['1.5', 'NaN', '-Infinity']
    """
    texts = pc.replace_substring(array.cast(pa.string()), "inf", "Infinity")
    return pc.replace_substring(texts, "nan", "NaN")


def far_places(array: pa.Array, near: tuple[int, int] = FOUR_DIGITS) -> pa.Array | None:
    """Return which of dates or moments (in microseconds) are too far to be written in another way; None if none is.

    Args:
        near: the first and the last day that aren't, since 1970.
    """
    days = pa.types.is_date32(array.type)
    unit = 1 if days else _DAY_US
    numbers = array.view(pa.int32() if days else pa.int64())
    first, last = near[0] * unit, (near[1] + 1) * unit - 1
    found = pc.min_max(numbers)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None or (first <= least and most <= last):
        return None
    far = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    return pc.fill_null(far, False)


def date_texts(array: pa.Array) -> pl.Series:
    """Return dates as text; null stays null.

    Example:
        >>> date_texts(pa.array([0, 2932897, None], pa.date32())).to_list()
        ['1970-01-01', '+10000-01-01', None]
    """
    days = array.view(pa.int32())
    texts = _days_as_text(days.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    return texts.set(pl.Series(array.is_null()), None)


def moment_texts(array: pa.Array, between: str = " ") -> pl.Series:
    """Return moments in microseconds as text, with six digits after the second; of one with a zone, in UTC.

    Args:
        between: what separates the day from the time.

    Example:
        >>> moment_texts(pa.array([253402300800000001], pa.timestamp("us"))).to_list()
        ['+10000-01-01 00:00:00.000001']
    """
    moments = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    days = np.floor_divide(moments, _DAY_US)
    within = pl.Series(moments - days * _DAY_US)
    day = _days_as_text(days)
    time = pl.Series((within * 1000).cast(pl.Time)).dt.to_string(f"{between}%H:%M:%S%.6f")
    return (day + time).set(pl.Series(array.is_null()), None)


def _days_as_text(days: npt.NDArray[np.int64]) -> pl.Series:
    """Return days since 1970 as text.

    The months are counted from March, so that the leap day is the last of a year: then the day of a year follows from the
    month by one linear rule (Hinnant, chrono-Compatible Low-Level Date Algorithms).
    """
    era, day = np.divmod(days + _DAYS_BEFORE_1970, _DAYS_OF_ERA)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # 0: March
    day -= (153 * month + 2) // 5
    year += 400 * era + (month >= 10)
    month = np.where(month < 10, month + 3, month - 9)
    sign = np.select([year < 0, year > 9999], ["-", "+"], "")
    numbers = [_digits(one, count) for one, count in ((np.abs(year), 4), (month, 2), (day + 1, 2))]
    dated = pl.concat_str([pl.lit(one) for one in numbers], separator="-")
    return pl.Series(sign, dtype=pl.String) + pl.select(dated).to_series()


def _digits(numbers: npt.NDArray[np.int64], count: int) -> pl.Series:
    return pl.Series(numbers).cast(pl.String).str.zfill(count)
