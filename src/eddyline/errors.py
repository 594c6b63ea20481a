"""One tree of errors: every error names its condition, the thing concerned and the way out."""

from __future__ import annotations


class EddylineError(Exception):
    """Base of all errors that Eddyline raises on purpose.

    Attributes:
        condition: a stable upper-case name, for programs to decide on.
        context: what was concerned (view, table, operator, SQL fragment, file, ...).
        hint: the way out, as a sentence; empty where there is none.
        retryable: whether the same call can succeed later with nothing changed by the caller.
    """

    retryable = False

    def __init__(self, message: str, *, condition: str, hint: str = "", **context: object) -> None:
        self.condition = condition
        self.context = {key: value for key, value in context.items() if value is not None}
        self.hint = hint
        where = ", ".join(f"{key} {value}" for key, value in self.context.items())
        parts = [f"[{condition}] {message}"]
        if where:
            parts.append(f"({where})")
        if hint:
            parts.append(f"Way out: {hint}")
        super().__init__(" ".join(parts))


class ScriptError(EddylineError):
    """A SQL script holds a statement that can't be read or is not supported."""


class QueryError(EddylineError):
    """A query was refused: it is wrong, or no live view can keep it."""


class CatalogError(EddylineError):
    """A name is missing, taken, or defined otherwise than asked for."""


class DataError(EddylineError):
    """Rows handed over don't fit the table or stream they are meant for."""


class StateError(EddylineError):
    """Stored state is damaged or contradicts itself."""


class StorageError(EddylineError):
    """The storage folder can't be used."""


class EngineError(EddylineError):
    """The engine was called in a way or at a time that it can't serve."""


class QueueError(EddylineError):
    """A data queue can't be used, or was used in a way that it can't serve."""


class QueueFullError(QueueError):
    """More waits in a data queue than was allowed: the consumer is slower than the producers."""

    retryable = True


class StateGrowthWarning(UserWarning):
    """A view was created whose state grows as long as its streams go on."""
