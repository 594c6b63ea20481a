"""Queries that people ask beside a running engine: Spark answers them until they are cancelled."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from eddyline.answers.answer import QueryAnswer, spark_answer
from eddyline.errors import QueryError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

T = TypeVar("T")
_GROUP, _TEXT = "spark.jobGroup.id", "spark.job.description"


class Question:
    """One query: computed in one thread, and cancelled from another.

    Args:
        sql: runs a query, as `Engine.sql`.
        text: of the query.

    Attributes:
        ended: whether `ask` has returned or raised, so that there is nothing to cancel.
    """

    def __init__(self, sql: Callable[[str], DataFrame], text: str) -> None:
        self._sql = sql
        self._text = text
        self._group = f"eddyline question {uuid.uuid4()}"
        self._context: SparkContext | None = None
        self._why = ""
        self._cancelled = threading.Event()
        self.ended = False

    @property
    def begun(self) -> bool:
        """Whether Spark runs, and has analysed the query."""
        return self._context is not None

    def ask(self, use: Callable[[QueryAnswer], T], rows_max: int) -> T:
        """Run the query, and return what a function makes of its answer.

        Args:
            rows_max: number of rows that the answer has at most.

        Raises:
            QueryError: the query is wrong, or fails. QUERY_CANCELLED: `cancel` was called.
        """
        # importing Spark takes long, and most queries are answered without it
        from eddyline.spark.failures import query_errors

        try:
            with query_errors(self._text):
                frame = self._sql(self._text).limit(rows_max)
                self._context = frame.sparkSession.sparkContext
                # a group rather than a tag: without an interrupt, long loops of a task don't end
                self._context.setJobGroup(self._group, self._text[:200], interruptOnCancel=True)
                try:
                    self._check()
                    return use(spark_answer(frame))
                finally:  # threads are used again
                    self._context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
                    self._context.setLocalProperty(_TEXT, None)  # type: ignore[arg-type]
        except QueryError:
            self._check()
            raise
        finally:
            self.ended = True

    def cancel(self, why: str) -> None:
        """End the query's jobs; call it again until `ask` has returned, since the next job may just begin."""
        self._why = why
        self._cancelled.set()
        if self._context is not None:
            from eddyline.spark.failures import FAILURES

            with suppress(*FAILURES, OSError):  # the JVM may be gone
                self._context.cancelJobGroup(self._group)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise QueryError(
                f"the query was cancelled: {self._why}",
                condition="QUERY_CANCELLED",
                hint="ask for less, or create a view, which costs only what changes",
            )
