"""Text of the command line: tables, CSV, JSON, progress lines and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eddyline.answers.answer import QueryAnswer, as_csv, spark_answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from eddyline.runtime.progress import Progress

SHORT = 60  # characters of an error or a payload in a list


def as_text(data: bytes) -> str:
    """Decode bytes that are UTF-8; show others as hexadecimal digits."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex(" ")


def shorten(text: str, most: int = SHORT) -> str:
    """Return a text on one line, cut to so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def first_line(error: str) -> str:
    """Return the part of an error that fits into a table."""
    return error.partition("\n")[0]


def progress_line(progress: Progress) -> str:
    """Return one aligned line about an epoch."""
    stages = ", ".join(f"{stage} {spent:.2f}" for stage, spent in progress.seconds.items())
    rows_in, rows_out = sum(progress.rows_in.values()), sum(progress.rows_out.values())
    held = progress.state.values()
    state_rows, state_bytes = (sum(own[what] for own in held) for what in ("rows", "bytes"))
    failing = f"  failing: {', '.join(progress.failing)}" if progress.failing else ""
    return (
        f"epoch {progress.epoch:>6}  {rows_in:>11,} in  {rows_out:>9,} out"
        f"  {sum(progress.seconds.values()):>7.2f} s  state {state_rows:>11,} rows"
        f" {size(state_bytes):>10}  ({stages}){failing}"
    )


def layout(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return an aligned table.

    Args:
        right: positions of the columns that are aligned to the right.

    Example:
        >>> print(layout(("name", "rows"), [("a", "12"), ("bc", "3")], right=(1,)))
        name  rows
        ----  ----
        a       12
        bc       3
    """
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def size(count: int) -> str:
    """Return a number of bytes in a readable unit.

    Example:
        >>> size(2_500_000)
        '2.4 MiB'
    """
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def as_table(answer: QueryAnswer) -> str:
    """Format a result as an aligned table; a single column of long text, as of EXPLAIN, as it is."""
    rows = [tuple("NULL" if text is None else text for text in row) for row in answer.texts()]
    if len(answer.columns) == 1 and any("\n" in row[0] for row in rows):
        return "\n".join(row[0] for row in rows)
    count = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    return f"{layout(answer.columns, rows, right=answer.numeric)}\n({count})"


def as_json(answer: QueryAnswer) -> str:
    """Format a result as one JSON object a line, nulls included."""
    assert answer.lines is not None
    return "\n".join(answer.lines())


FORMATTERS: dict[str, Callable[[QueryAnswer], str]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}
"""The formats of `eddyline sql`."""


def frame_text(form: str, frame: DataFrame, query: str = "") -> str:
    """Format the rows of a DataFrame; QueryError if Spark fails on them."""
    from eddyline.spark.failures import query_errors

    with query_errors(query):
        return FORMATTERS[form](spark_answer(frame))


def show_text(text: str) -> None:
    """Print a formatted result; nothing for one without rows as JSON, where each line is an object."""
    if text:
        print(text, flush=True)
