"""The result of a query, in the forms in which the command line and the console show it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_QUOTED = re.compile(r'[",\r\n]')
"""Characters of texts that CSV quotes."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The result of a query. Its rows are read, or computed, when one of the functions is called.

    Attributes:
        numeric: positions of the columns of numbers.
        texts: returns the rows, each value in the text form that Spark gives it.
        lines: returns the rows as JSON objects; None if only Spark can format them.
        table: returns the rows in Arrow.
        total: number of rows of the result; `texts`, `lines` and `table` return fewer if it was cut. None if
            it is only known once they are computed.
    """

    columns: list[str]
    numeric: list[int]
    texts: Callable[[], list[tuple[str | None, ...]]]
    lines: Callable[[], list[str]] | None
    table: Callable[[], pa.Table]
    total: int | None = None


def spark_answer(frame: DataFrame) -> QueryAnswer:
    """Return the rows of a DataFrame as an answer; each of its functions runs the DataFrame."""
    from pyspark.sql.functions import col, struct, to_json
    from pyspark.sql.types import NumericType

    def lines() -> list[str]:
        line = to_json(struct("*"), {"ignoreNullFields": "false"})
        return [row[0] for row in frame.select(line).collect()]

    def texts() -> list[tuple[str | None, ...]]:
        places = [str(place) for place in range(len(frame.columns))]
        shown = frame.toDF(*places).select(*(col(place).cast("string") for place in places))
        return [tuple(row) for row in shown.collect()]

    numeric = [
        place
        for place, column in enumerate(frame.schema.fields)
        if isinstance(column.dataType, NumericType)
    ]
    return QueryAnswer(frame.columns, numeric, texts, lines, frame.toArrow)


def text_answer(columns: Sequence[str], rows: list[tuple[str | None, ...]]) -> QueryAnswer:
    """Return rows of text as an answer.

    Example:
        >>> text_answer(["name"], [("a",)]).lines()
        ['{"name":"a"}']
    """

    def lines() -> list[str]:
        documents = (dict(zip(columns, row, strict=True)) for row in rows)
        return [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in documents]

    def table() -> pa.Table:
        import pyarrow as pa

        schema = pa.schema([(name, pa.string()) for name in columns])
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(records, schema)

    return QueryAnswer(list(columns), [], lambda: rows, lines, table, len(rows))


def as_csv(answer: QueryAnswer) -> str:
    """Format a result as CSV with a header; see `csv_text`."""
    return csv_text(answer.columns, answer.texts())


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Format rows as CSV with a header; a null is an empty field, an empty text is `""`.

    Example:
        >>> print(csv_text(["a", "b"], [("x, y", None), ("", "z")]))
        a,b
        "x, y",
        "",z
    """
    return "\n".join(",".join(map(_csv_field, row)) for row in (columns, *rows))


def _csv_field(value: str | None) -> str:
    # csv of Python 3.11 can't tell an empty text from a null, and polars takes longer to import than an answer may
    if value is None:
        return ""
    quoted = value.replace('"', '""')
    return f'"{quoted}"' if not value or _QUOTED.search(value) else value
