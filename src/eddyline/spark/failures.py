"""Translates Spark's errors about a user's query into errors of Eddyline."""

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
    StreamingQueryException,
)

from eddyline.errors import QueryError, StateError
from eddyline.spark.jvm import check_jvm

# errors of PySpark; of JVM classes that PySpark doesn't translate; of queries that nest too deeply
FAILURES = (PySparkException, Py4JError, RecursionError)
_TRACEBACK = "Traceback (most recent call last):"
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \(.*?\): (.*)")
_DIED = "Python worker exited unexpectedly"
# of a Python worker, of the process that starts them, of an executor
_LOST_WORKER = re.compile(
    _DIED + r"|ExecutorLostFailure|java\.io\.EOFException"
    r"|java\.(?:io\.IO|net\.Socket)Exception: (?:Broken pipe|Stream closed|Connection reset)"
    # the daemon was ended by a signal before it listened, or while Spark requested a worker
    r"|port number from [\w.]+'s stdout(?:\.| and terminated with code: 1(?:29|[3-9]\d)\b)"
    r"|java\.(?:net|nio)\.[\w.]*Exception\b.*(?:\n\s+at .*)*?"
    r"\n\s+at org\.apache\.spark\.api\.python\.PythonWorkerFactory\."
)
_CAUSED, _AWAITED = "Caused by: ", "Exception thrown in awaitResult"
_OWN = re.compile(r"eddyline\.errors\.(\w+): \[(\w+)\] (.*)")
_DETAILS = re.compile(r"\n\nJVM stacktrace|;\n|\n== (?:SQL|DataFrame)\b|\n=== |\n\s+at ")
_FAULTS_OF_THE_QUERY = (
    AnalysisException,
    IllegalArgumentException,
    PySparkTypeError,
    PySparkValueError,
)

_NEST_LESS = "write it flatter, for instance with a view or a subquery for a part of it"
_CORRECT_VALUES = "correct the values that it fails on, or write the query in another way"
TIME_IS_OFF = (
    "set spark.sql.timeType.enabled to true before the storage is opened, or cast it to a string"
)
# by conditions of Spark that are raised while it resolves a query
_WAYS_OUT = {
    "CAST_INVALID_INPUT": _CORRECT_VALUES,
    "CAST_OVERFLOW": _CORRECT_VALUES,
    "INVALID_INLINE_TABLE.FAILED_SQL_EXPRESSION_EVALUATION": _CORRECT_VALUES,
    "INVALID_TYPED_LITERAL": _CORRECT_VALUES,
    "UNBOUND_SQL_PARAMETER": "give engine.sql its value in args; a view needs it as a literal",
    "UNSUPPORTED_TIME_TYPE": TIME_IS_OFF,
    "UNRESOLVED_ROUTINE": "correct the query, or define the function in this session: CREATE TEMPORARY FUNCTION, or spark.udf.register",
    "UNSUPPORTED_FEATURE.TIME_TRAVEL": "name an epoch: VERSION AS OF 12, in a query that isn't a view's",
}

_CONDITIONS = {"UNSUPPORTED_TIME_TYPE": "UNSUPPORTED_TYPE"}
"""What such a query is refused for, where it isn't that Spark can't read it."""


@contextmanager
def query_errors(query: str, **context: object) -> Iterator[None]:
    """Raise QueryError where Spark can't read, plan or run a query, and StateError where a task finds the storage damaged.

    Args:
        context: the objects concerned, such as the view or table.

    Raises:
        EngineError: JVM_LOST.
    """
    try:
        yield
    except FAILURES as error:
        check_jvm(error)
        raise query_error(query, error, **context) from error
    except OSError as error:  # such as a refused connection
        check_jvm(error)
        raise


def query_error(query: str, error: BaseException, **context: object) -> QueryError | StateError:
    """Return the QueryError for one of `FAILURES`; a StateError if a task has found the storage damaged."""
    own = own_error(error)
    if own is not None and own[0] == "StateError":
        return StateError(own[2], condition=own[1], hint="", **context)
    fragment = " ".join(query.split())[:200] or None
    if isinstance(error, _FAULTS_OF_THE_QUERY):
        return QueryError(
            message_of(error),
            condition=_CONDITIONS.get(_condition(error), "INVALID_QUERY"),
            hint=_way_out(error),
            fragment=fragment,
            **context,
        )
    if lost_worker(error):
        return QueryError(
            f"Spark has lost a worker of the query: {message_of(error)}",
            condition="WORKER_LOST",
            hint="run it again; nothing was changed",
            **context,
        )
    deep = isinstance(error, RecursionError)
    return QueryError(
        message_of(error) if deep else f"Spark fails on the query: {message_of(error)}",
        condition="QUERY_FAILED",
        hint=_NEST_LESS if deep else _CORRECT_VALUES,
        fragment=fragment,
        **context,
    )


def _way_out(error: BaseException) -> str:
    names = "correct the query; the names known are those of SHOW TABLES, STREAMS and VIEWS"
    return _WAYS_OUT.get(_condition(error), names)


def _condition(error: BaseException) -> str:
    """Return Spark's condition of an error; empty if it has none."""
    return (isinstance(error, PySparkException) and error.getCondition()) or ""


def missing_relation(error: BaseException | None) -> str | None:
    """Return the name of the relation whose absence made a query fail, in Spark's quotes; None if the cause is another one."""
    if not isinstance(error, AnalysisException):
        return None
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    name: str = dict(error.getMessageParameters() or {})["relationName"]
    return name


def own_error(error: BaseException) -> tuple[str, str, str] | None:
    """Return class, condition and message of an error of Eddyline that a Python worker has raised; None if there is none."""
    found = _OWN.search(str(error))
    return None if found is None else (found[1], found[2], found[3])


def lost_worker(error: BaseException) -> bool:
    """Return whether a process of Spark ended, or was killed, during a job."""
    return _LOST_WORKER.search(str(error)) is not None


def worker_died(error: BaseException | None) -> bool:
    """Return whether a Python worker ended during a job; what it ran may be the cause."""
    return _DIED in str(error)


def message_of(error: BaseException) -> str:
    """Return the cause of an error of Spark in one line, without plan, query and stack traces.

    For a Python function this is the last line of its traceback: the exception and its message. For a
    task that was lost, such as one whose worker died, it is the reason.
    """
    if isinstance(error, RecursionError):
        return "the query nests too deeply"
    text = str(error)
    if (python := python_cause(text)) is not None:
        return python
    named = isinstance(error, PySparkException) and not isinstance(error, StreamingQueryException)
    if not named and (lost := lost_task(text)) is not None:
        return lost
    if isinstance(error, Py4JJavaError):
        return _java_cause(text)[:500]
    if isinstance(error, Py4JError):
        return (text.splitlines() or ["no answer of the JVM"])[0][:500]
    return " ".join(_DETAILS.split(text)[0].split())


def python_cause(text: str) -> str | None:
    """Return the last line of a Python traceback: the exception and its message; None without one."""
    if _TRACEBACK not in text:
        return None
    python = text.partition(_TRACEBACK)[2].partition("\n\n")[0]
    lines = [line for line in python.splitlines() if line[:1].strip()]
    return lines[-1] if lines else None


def lost_task(text: str) -> str | None:
    """Return why Spark lost a task; None if it lost none."""
    found = _LOST_TASK.search(text)
    return None if found is None else found[1].strip()


def _java_cause(text: str) -> str:
    """Return the first exception in a Java stack trace that isn't a mere wrapper of another one."""
    lines = text.splitlines()
    first = lines[1].removeprefix(": ") if len(lines) > 1 else text
    causes = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    return next((one for one in (first, *causes) if _AWAITED not in one), first)
