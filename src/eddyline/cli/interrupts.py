"""Wait for Ctrl-C, and let it end a command without tracebacks of the calls that it interrupts."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

LOOK_S = 0.5
"""How late a signal may be that comes just before the wait, which it then doesn't end."""

_OF_PY4J = "java_gateway", "clientserver"
"""The modules that send calls to the JVM, and that close a connection on which a call has failed."""

AGAIN_S = 0.05
"""How long after a signal that Python has ignored it is sent again."""


def await_interrupt(check: Callable[[], None] | None = None) -> None:
    """Wait until a signal raises KeyboardInterrupt in the main thread, or `check` raises, which is called twice a second.

    Libraries set handlers of their own for Ctrl-C, such as polars, after which the system goes on with most calls that
    the signal interrupts, such as waiting for a lock: Python's handler would never run. It never goes on with a sleep.
    """
    while True:
        time.sleep(LOOK_S)
        if check is not None:
            check()


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Let Ctrl-C end what runs inside a `with`, and keep calls into the JVM that it interrupts out of the log.

    Py4J logs them with their tracebacks: Spark's handler of the signal cancels the jobs, which is a second call amid the first one,
    and fails. And where the signal comes while Python frees an object, it ignores the exception: the signal is sent again.
    """
    root = logging.getLogger()  # which Py4J logs to
    standard = sys.unraisablehook

    def unraisable(found: UnraisableHookArgs) -> None:
        if issubclass(found.exc_type, KeyboardInterrupt):
            threading.Thread(target=_interrupt_again, daemon=True).start()
        else:
            standard(found)

    root.addFilter(_is_of_interest)
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = standard
        root.removeFilter(_is_of_interest)


def _interrupt_again() -> None:
    """Send the main thread SIGINT once it is past where exceptions are ignored."""
    time.sleep(AGAIN_S)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def _is_of_interest(record: logging.LogRecord) -> bool:
    """Return whether a message isn't one of Py4J about a call that Ctrl-C has interrupted."""
    error: BaseException | None = record.exc_info[1] if record.exc_info else None
    if record.module not in _OF_PY4J:
        return True
    while error is not None:
        reentrant = isinstance(error, RuntimeError) and "reentrant call" in str(error)
        if reentrant or isinstance(error, KeyboardInterrupt):
            return False
        error = error.__context__
    return True
