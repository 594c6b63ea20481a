"""Converts rows to JSON and to text, whole columns at a time."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from eddyline.sink.json_rows import has_json, json_objects, json_values


def as_json(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object, in the form of Spark's `to_json` with nulls.

    Example:
        >>> as_json(pa.table({"n": [1, None], "s": ["tea", "<b>"]}))
        ['{"n":1,"s":"tea"}', '{"n":null,"s":"<b>"}']
    """
    values = [json_values(_writable(column)) for column in rows.columns]
    return json_objects(rows.column_names, values, rows.num_rows).to_list()


def change_lines(rows: pa.Table, columns: Sequence[str]) -> list[str]:
    """Return each change as a JSON object with `op`, and `row`, an object of the columns.

    Args:
        rows: the columns by place, then `op`.
    """
    count = len(columns)
    values = [json_values(_writable(column)) for column in rows.columns[:count]]
    objects = json_objects(columns, values, rows.num_rows)
    op = json_values(rows.column(count))
    return json_objects(["op", "row"], [op, objects], rows.num_rows).to_list()


def as_texts(rows: pa.Table) -> list[tuple[str | None, ...]]:
    """Return each row as texts; None for null.

    Example:
        >>> as_texts(pa.table({"n": [1, None], "s": ["tea", ""]}))
        [('1', 'tea'), (None, '')]
    """
    columns = [_texts(column) for column in rows.columns]
    return list(zip(*columns, strict=True)) if columns else []


def numeric(kinds: Sequence[pa.DataType]) -> list[int]:
    """Return the positions of the columns of numbers."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return [place for place, kind in enumerate(kinds) if any(test(kind) for test in tests)]


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts: list[str | None] = column.to_pylist()
        return texts
    written = json_values(_writable(column))
    quoted = not (pa.types.is_nested(column.type) or pa.types.is_boolean(column.type))
    shown = written.str.strip_chars('"') if quoted else written
    nulls = pl.Series(column.is_null())
    return shown.set(nulls, None).to_list() if column.null_count else shown.to_list()


def _writable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column unchanged, or as text if its type has no form in JSON."""
    if has_json(column.type):
        return column
    texts = [None if value is None else str(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])
