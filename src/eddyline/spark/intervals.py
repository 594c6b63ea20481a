"""Intervals of time as people write them, such as `10 minutes`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from eddyline.spark.failures import FAILURES


def interval_micros(text: str, session: SparkSession) -> int | None:
    """Return an interval of time in microseconds; None if the text is none that Spark can read.

    Args:
        text: such as `10 minutes` or `INTERVAL 1 HOUR`.
    """
    interval = text if text.strip().lower().startswith("interval") else f"INTERVAL '{text}'"
    try:
        rows = session.sql(f"SELECT unix_micros(timestamp_micros(0) + {interval})").collect()
    except FAILURES:
        return None
    return None if rows[0][0] is None else int(rows[0][0])
