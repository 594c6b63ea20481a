"""Queries of the console's readers: answered from the files where these suffice, else by Spark."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pyarrow.parquet as pq
from anyio import CancelScope, CapacityLimiter, create_task_group, sleep, to_thread
from pyspark.sql import DataFrame
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from eddyline.answers.answer import QueryAnswer, csv_text
from eddyline.answers.questions import Question
from eddyline.arguments import wrong_argument
from eddyline.console.guard import failure, limited_body
from eddyline.console.observer import Observer
from eddyline.errors import EddylineError, QueryError

ROWS_SHOWN = 1000
"""The rows of an answer that the page shows, and that JSON has."""
ROWS_IN_FILE = 100_000
"""The rows that a file has at most; a larger answer is refused."""
AT_ONCE = 2
"""The queries that Spark answers at the same time; more wait."""
SECONDS_MAX = 60.0
"""The time that Spark may take for an answer, without its start, and the wait for a turn."""
LOOK_S = 0.25
"""How often the console looks whether the reader has hung up."""
FILES = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
"""The kinds of files that answers can be had as, and their types."""

Sql: TypeAlias = Callable[[str], DataFrame]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer as the page and JSON show it.

    Attributes:
        numeric: positions of the columns of numbers.
        rows: at most `ROWS_SHOWN`; each value in the text form that Spark gives it.
        total: number of rows; None if it has more than are shown, and Spark hasn't counted them.
        cut: whether there are more rows.
        spark: whether Spark has answered.
        seconds: that it took.
    """

    columns: list[str]
    numeric: list[int]
    rows: list[tuple[str | None, ...]]
    total: int | None
    cut: bool
    spark: bool
    seconds: float

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "columns": self.columns,
            "rows": [list(row) for row in self.rows],
            "total": self.total,
            "cut": self.cut,
            "rows_max": ROWS_SHOWN,
            "spark": self.spark,
        }


class Queries:
    """Answers queries over one storage.

    Args:
        limiter: limits the threads that read the storage.
        sql: runs a query in Spark, and refuses what reads or does anything else than reading the storage's
            relations. None where the console has no Spark.
    """

    def __init__(self, observer: Observer, limiter: CapacityLimiter, sql: Sql | None) -> None:
        self._observer = observer
        self._limiter = limiter
        self._sql = sql
        self._turns = CapacityLimiter(AT_ONCE)

    @property
    def has_spark(self) -> bool:
        """Whether Spark answers what the files don't."""
        return self._sql is not None

    async def shown(self, request: Request, text: str) -> Shown:
        """Answer a query for the page or as JSON.

        Raises:
            QueryError: it is wrong, or fails. NEEDS_SPARK: there is no Spark. NOT_ALLOWED: it reads or does
                something else. QUERY_CANCELLED: it took longer than `SECONDS_MAX`.
        """
        started = time.perf_counter()

        def show(answer: QueryAnswer, spark: bool) -> Shown:
            rows = answer.texts()
            total = (
                answer.total if answer.total is not None or len(rows) > ROWS_SHOWN else len(rows)
            )
            cut = len(rows) > ROWS_SHOWN
            spent = time.perf_counter() - started
            kept = rows[:ROWS_SHOWN]
            return Shown(answer.columns, answer.numeric, kept, total, cut, spark, spent)

        return await self._ask(request, text, show, ROWS_SHOWN)

    async def query(self, request: Request) -> Response:
        """Answer a query that is posted as JSON."""
        body = await limited_body(request)
        if body is None:
            return failure(413, "TOO_LARGE", "the query is too long", "shorten it")
        try:
            document = json.loads(body)
            text = document["sql"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            hint = 'send {"sql": "SELECT ..."}'
            return failure(400, "BAD_OPTION", "the request is no JSON object with sql", hint)
        return JSONResponse((await self.shown(request, text)).document())

    async def file(self, request: Request) -> Response:
        """Answer a query with a file of its rows."""
        kind = request.path_params["kind"]
        if kind not in FILES:
            raise wrong_argument("the kind of file", kind, f"ask for {' or '.join(FILES)}")

        def write(answer: QueryAnswer, _: bool) -> bytes:
            if kind == "csv":
                rows = answer.texts()
                count, body = len(rows), csv_text(answer.columns, rows).encode()
            else:
                out = io.BytesIO()
                try:
                    table = answer.table()
                    pq.write_table(table, out)
                except ValueError as error:  # such as a list whose elements have no type
                    raise QueryError(
                        f"a Parquet file can't hold the answer: {error}",
                        condition="QUERY_FAILED",
                        hint="give each column a type with CAST, or ask for CSV",
                    ) from error
                count, body = table.num_rows, out.getvalue()
            if count > ROWS_IN_FILE:
                raise QueryError(
                    f"the answer has more than {ROWS_IN_FILE:,} rows",
                    condition="TOO_MANY_ROWS",
                    hint="ask for fewer, with LIMIT or WHERE, or write them with `eddyline sql --format csv`",
                )
            return body

        text = request.query_params.get("sql", "")
        if not text.strip():
            raise wrong_argument("sql", text, "give a query")
        body = await self._ask(request, text, write, ROWS_IN_FILE)
        answer = Response(body, media_type=FILES[kind])
        answer.headers["Content-Disposition"] = f'attachment; filename="answer.{kind}"'
        return answer

    async def _ask(
        self, request: Request, text: str, use: Callable[[QueryAnswer, bool], T], rows_max: int
    ) -> T:
        """Answer a query with at most one row more than `rows_max`; return what a function makes of the answer."""

        def look() -> tuple[T] | None:
            answer = self._observer.quick(text, rows_max + 1)
            return None if answer is None else (use(answer, False),)

        found = await to_thread.run_sync(look, limiter=self._limiter)
        if found is not None:
            return found[0]
        if self._sql is None:
            raise _needs_spark(
                "ask with `eddyline sql` or engine.sql, which start Spark; or keep the query as a view"
            )
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise _needs_spark(
                "press Ask: links of other sites aren't enough for what only Spark answers"
            )
        return await self._in_spark(request, Question(self._sql, text), use, rows_max)

    async def _in_spark(
        self,
        request: Request,
        question: Question,
        use: Callable[[QueryAnswer, bool], T],
        rows_max: int,
    ) -> T:
        found: list[T] = []
        failed: list[EddylineError] = []

        def ask() -> None:
            try:
                found.append(question.ask(lambda answer: use(answer, True), rows_max + 1))
            except EddylineError as error:
                failed.append(error)

        async with create_task_group() as tasks:
            tasks.start_soon(_watch, request, question)
            await to_thread.run_sync(ask, limiter=self._turns)
            tasks.cancel_scope.cancel()
        for error in failed:
            raise error
        return found[0]


async def _watch(request: Request, question: Question) -> None:
    """Cancel a question when its reader has hung up, it takes too long, or the console ends."""
    end = math.inf
    try:
        while True:
            await sleep(LOOK_S)
            if question.begun and end == math.inf:
                end = time.monotonic() + SECONDS_MAX
            if await request.is_disconnected():
                await to_thread.run_sync(question.cancel, "nobody waits for the answer")
            elif time.monotonic() > end:
                await to_thread.run_sync(
                    question.cancel, f"it took longer than {SECONDS_MAX:.0f} s"
                )
    finally:
        if not question.ended:
            with CancelScope(shield=True):  # the JVM is asked, which may take long
                await to_thread.run_sync(question.cancel, "the console has ended")


def _needs_spark(hint: str) -> QueryError:
    return QueryError(
        "only plain queries on one table or view are answered without Spark: SELECT columns or count(*) "
        "FROM name WHERE simple conditions ORDER BY columns LIMIT n",
        condition="NEEDS_SPARK",
        hint=hint,
    )
