"""Keeps PySpark's log of failed queries off standard error if Eddyline reports them itself.

PySpark logs each failed query as a JSON document with two stack traces, about 15 KB, before it raises
the exception. Eddyline catches that exception and raises its own.
"""

from __future__ import annotations

import logging
import sys

from pyspark.logger import PySparkLogger

LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_LOG = logging.getLogger("eddyline.spark")


class _OwnQueries(logging.Filter):
    """Move the records of queries that Eddyline runs to the log `eddyline.spark`, at DEBUG.

    Those of queries that the user runs stay as they are.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        frame = sys._getframe()  # noqa: SLF001  # the documented way to look at callers
        while frame.f_back is not None:
            frame = frame.f_back
            name = frame.f_globals.get("__name__", "")
            if name.startswith("eddyline.") and name != __name__:
                _LOG.debug("%s", record.getMessage(), exc_info=record.exc_info)
                return False
        return True


_FILTER = _OwnQueries()


def quiet_query_errors() -> None:
    """Install the filter; a second call changes nothing."""
    for name in LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_FILTER)
