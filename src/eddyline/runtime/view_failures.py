"""Errors that Spark reports as text: their cause, and whether one view or the whole epoch has failed."""

from __future__ import annotations

import re
import traceback

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from eddyline.changes import Epoch
from eddyline.errors import DATA, USER, EddylineError, EngineError, QueryError, StateError
from eddyline.spark.failures import lost_task, lost_worker, message_of, own_error, python_cause
from eddyline.state.manifest import Failure

VIEW_FAILING = "VIEW_FAILING"

_OWN_FRAME = re.compile(r'File "[^"]*eddyline/(?:state|storage|source|runtime)/[^"]*"')
# how Python and the JVM name failures of the machine, by the beginning of the exception's name
_MACHINE = (
    *("MemoryError", "OSError", "IOError", "EOFError", "BrokenPipe", "Connection", "Timeout"),
    *("FileNotFound", "FileExists", "IsADirectory", "NotADirectory", "Permission", "Blocking"),
    *("InterruptedError", "ChildProcess", "ProcessLookup", "pyarrow.lib.ArrowMemoryError"),
    *("numpy._core._exceptions._ArrayMemoryError", "RuntimeError: can't start new thread"),
    *("java.io.", "java.nio.", "java.net.", "java.lang.OutOfMemoryError", "java.lang.Interrupted"),
    *("java.util.concurrent.", "org.apache.spark.SparkException:", "org.apache.spark.TaskKilled"),
    *("org.apache.spark.memory.SparkOutOfMemoryError", "org.apache.spark.shuffle."),
    *(
        "org.apache.arrow.memory.OutOfMemoryException",
        "io.netty.util.internal.OutOfDirectMemoryError",
    ),
    "org.apache.spark.util.TaskCompletionListenerException: Memory was leaked by query",  # of a task that had no more
    # reasons of Spark for a lost task, without an exception
    *("ExecutorLostFailure", "FetchFailed", "TaskKilled", "TaskResultLost"),
)

# with a condition, such as [MALFORMED_RECORD_IN_PARSING], Spark's general exception is about a query or its rows, but for these
_CONDITION = re.compile(
    r"org\.apache\.spark\.SparkException: \[(?!FAILED_READ_FILE|TASK_WRITE_FAILED)[A-Z]"
)


def failed_view(view: str, error: Exception) -> EddylineError:
    """Return the error for a failed Spark job of a view.

    Its condition is `VIEW_FAILING` if the rows of the view, its expressions or its functions are the
    cause: the same job would fail again, and other views can go on. For other causes, such as a lost
    worker, the whole epoch fails. A StateError raised by a kernel is restored as a StateError.
    """
    cause = message_of(error)
    name, condition, message = own_error(error) or ("", "", "")
    if name == "StateError" and condition != "NEGATIVE_WEIGHT":
        return StateError(message, condition=condition, view=view)
    if _of_the_view(error, cause):
        if name:
            cause = f"[{condition}] {message}"
        return fails_on_rows(view, cause)
    return EngineError(
        f"the epoch failed: {cause}",
        condition="EPOCH_FAILED",
        view=view,
        hint="nothing was committed; mend the cause and call advance() again",
    )


def failed_in_driver(view: str, error: BaseException) -> EddylineError:
    """Return the error for a view that has failed in the driver; the same as `failed_view` for a job."""
    if isinstance(error, EddylineError) and error.fault not in (DATA, USER):
        return error
    if isinstance(error, PySparkException):
        return failed_view(view, error)
    if isinstance(error, Py4JJavaError):  # the format in which Spark reports an exception of a task
        thrown = str(error.java_exception.toString()).partition("\n")[0]
        return failed_view(
            view, RuntimeError(f"Lost task 0.0 in stage 0.0 (TID 0) (driver): {thrown}")
        )
    if isinstance(error, Py4JError):  # a version of Spark with another private API
        return EngineError(f"the epoch failed: {error}", condition="EPOCH_FAILED", view=view)
    return failed_view(view, RuntimeError("".join(traceback.format_exception(error))))


def fails_on_rows(view: str, cause: str) -> EngineError:
    """Return the error for a view that its rows, its expressions or its functions make fail."""
    return EngineError(
        f"view {view} fails on its rows: {cause}",
        condition=VIEW_FAILING,
        hint="mend the rows or the function; the view is tried again by itself",
    )


def reads_failing(view: str, upstream: str) -> EddylineError:
    """Return the error for a view that reads a failing view."""
    return EngineError(
        f"view {view} reads {upstream}, which fails",
        condition=VIEW_FAILING,
        hint=f"mend the cause of {upstream}; both are tried again by themselves",
        upstream=upstream,
    )


def still_failing(failure: Failure) -> EddylineError:
    """Return the error for an epoch in which all views to rebuild have failed again."""
    return EngineError(failure.message, condition=VIEW_FAILING)


def not_compiled(view: str, since: Epoch, error: QueryError, upstream: str) -> Failure:
    """Return the failure of a view whose query can't be compiled any more.

    Args:
        since: the first epoch without it.
        upstream: another view that can't be compiled, which it reads; empty if it fails itself.
    """
    why = f"view {view} can't be compiled: {error.message}; {error.hint}"
    return set_aside(view, since, why, upstream)


def set_aside(view: str, since: Epoch, why: str, upstream: str) -> Failure:
    """Return the failure of a view that is set aside without a run: for its own reason, or that of its upstream view."""
    return Failure(
        view, since, reads_failing(view, upstream).message if upstream else why, upstream
    )


def _of_the_view(error: Exception, cause: str) -> bool:
    """Return whether a job failed because of the rows, expressions or functions of its view."""
    if lost_worker(error):
        return False
    text = str(error)
    if (own := own_error(error)) is not None:
        _, condition, message = own
        return EddylineError(message, condition=condition).fault in (DATA, USER)
    if python_cause(text) is not None:
        # functions of users may open files and call services; kernels read and write the storage
        return not (cause.startswith(_MACHINE) and _OWN_FRAME.search(text))
    if isinstance(error, PySparkException) and error.getCondition():
        return True
    if _CONDITION.match(cause):
        return True
    return lost_task(text) is not None and not cause.startswith(_MACHINE)
