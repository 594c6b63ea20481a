"""Spark's errors about a user's query, as errors of Eddyline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    PySparkTypeError,
    PySparkValueError,
)

from eddyline.errors import QueryError

# Of Spark; of classes of the JVM that PySpark doesn't translate; of queries that nest too deeply.
FAILURES = (PySparkException, Py4JError, RecursionError)
_FAULTS_OF_THE_QUERY = (
    AnalysisException,
    IllegalArgumentException,
    PySparkTypeError,
    PySparkValueError,
)


@contextmanager
def query_errors(query: str, **context: object) -> Iterator[None]:
    """Raise QueryError where Spark can't read, plan or run a query.

    Args:
        context: the objects concerned, such as the view or table.
    """
    try:
        yield
    except FAILURES as error:
        raise query_error(query, error, **context) from error


def query_error(query: str, error: BaseException, **context: object) -> QueryError:
    """Return the QueryError for one of `FAILURES`."""
    fragment = " ".join(query.split())[:200] or None
    if isinstance(error, _FAULTS_OF_THE_QUERY):
        return QueryError(
            message_of(error),
            condition="INVALID_QUERY",
            hint=_way_out(error),
            fragment=fragment,
            **context,
        )
    return QueryError(
        f"Spark fails on the query: {message_of(error)}",
        condition="QUERY_FAILED",
        hint="correct the values that it fails on, or write the query in another way",
        fragment=fragment,
        **context,
    )


def _way_out(error: BaseException) -> str:
    if isinstance(error, PySparkException) and error.getCondition() == "UNRESOLVED_ROUTINE":
        return "correct the query, or register the function in this session (spark.udf.register)"
    return "correct the query; the names known are those of SHOW TABLES, STREAMS and VIEWS"


def jvm_lost(error: BaseException | None) -> bool:
    """Return whether the JVM no longer answers, which says nothing about a query."""
    return isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)


def message_of(error: BaseException) -> str:
    """Return an error of Spark in one line, without the plan, the query and the stack of the JVM."""
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).partition("\n")[0][:500]
    if isinstance(error, Py4JError):
        return (str(error).splitlines() or ["no answer of the JVM"])[0][:500]
    return " ".join(re.split(r"\n\nJVM stacktrace|;\n|\n== SQL", str(error))[0].split())
