"""Simple queries over a stored result, answered from its runs without starting Spark.

Supported is `SELECT columns | * | count(*) FROM name [VERSION AS OF epoch] [WHERE conditions] [ORDER BY
columns] [LIMIT n]` over a table or view, as long as the answer is exactly the one that Spark gives. Spark
answers everything else. Conditions are joined by AND, each one of `column op literal`, `column [NOT] LIKE
'pattern'` and `column IS [NOT] NULL`; literals are whole numbers and texts.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.answers.answer import QueryAnswer
from eddyline.answers.failing import check_live
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW
from eddyline.changes import WEIGHT, Epoch
from eddyline.errors import QueryError
from eddyline.state.leases import pinned
from eddyline.state.manifest import ROWS
from eddyline.state.runs import Run, read_run
from eddyline.state.weights import check_held
from eddyline.storage.files import Files

_NAME = r"(?:\w*[^\W\d]\w*|`[^`]+`)"
_QUERY = re.compile(
    rf"""\s* SELECT \s+ (?P<what> \* | count\(\s*\*\s*\) (?:\s+AS\s+(?P<alias>{_NAME}))?
             | {_NAME} (?:\s*,\s*{_NAME})* )
    \s+ FROM \s+ (?P<name>{_NAME}) (?: \s+ (?:FOR\s+)? VERSION \s+ AS \s+ OF \s+ (?P<epoch>\d+) )?
    (?: \s+ WHERE \s+ (?P<where>.+?) )?
    (?: \s+ ORDER \s+ BY \s+ (?P<order> {_NAME} (?:\s+(?:ASC|DESC))?
        (?:\s*,\s*{_NAME}(?:\s+(?:ASC|DESC))?)* ) )?
    (?: \s+ LIMIT \s+ (?P<limit>\d{{1,9}}) )? \s* ;? \s*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(
    rf"""\s* (?P<name>{_NAME}) \s* (?: (?P<op><=|>=|<>|!=|=|<|>) \s*
    (?: (?P<number>-?\d{{1,18}}) | '(?P<text>[^'\\]*)' ) | (?P<null>IS\s+(?:NOT\s+)?NULL)
    | (?<=[\s`]) (?P<not>NOT\s+)? LIKE \s* '(?P<like>[^'\\]*)' ) \s*""",
    re.IGNORECASE | re.VERBOSE,
)
_AND = re.compile(r"(?<=\s)AND\s+", re.IGNORECASE)
_WORDS = frozenset(
    {
        "select",
        "from",
        "where",
        "group",
        "having",
        "order",
        "limit",
        "distinct",
        "all",
        "union",
        "as",
    }
)
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "<>": pc.not_equal, "!=": pc.not_equal,
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


class _NeedsSpark(Exception):  # noqa: N818  # not an error
    """The query needs Spark; caught in `quick_answer`."""


def quick_answer(
    files: Files, catalog: Catalog, query: str, rows_max: int | None = None
) -> QueryAnswer | None:
    """Answer a simple query; None if it needs Spark.

    Args:
        rows_max: number of rows that are returned at most; None for all.

    Raises:
        StateError: the epoch asked for is not retained, or the state is damaged.
        EngineError: the view is set aside in that epoch.
    """
    found = _QUERY.fullmatch(query)
    try:
        return None if found is None else _found(files, catalog, found, rows_max)
    except _NeedsSpark:
        return None


def _found(
    files: Files, catalog: Catalog, asked: re.Match[str], rows_max: int | None
) -> QueryAnswer:
    entry = catalog.find(_plain(asked["name"]))
    if entry is None or not (entry.kind == VIEW or entry.arranged):
        raise _NeedsSpark
    sorts = entry.sorts
    if sorts is None:
        raise _NeedsSpark
    epoch = asked["epoch"]
    if epoch and int(epoch) < entry.since:
        raise _NeedsSpark  # the rows of that epoch may belong to a predecessor of the view
    names = [field["name"] for field in json.loads(entry.schema)["fields"]]
    with pinned(files, Epoch(int(epoch)) if epoch else None) as manifest:
        check_live(entry, manifest)
        runs = manifest.arrangements.get(manifest.result(entry.id, ROWS), {})
        rows = _content(files, entry.name, runs.values(), len(names) + len(sorts))
    keys = [_Key(f"c{place}", *how) for place, how in enumerate(sorts, len(names))]
    rows = _sorted(rows, keys) if keys else rows
    for condition in _conditions(asked["where"]):
        rows = _restricted(rows, names, condition)
    if asked["order"]:
        rows = _sorted(rows, _keys(names, asked["order"]))
    rows = _selected(rows, names, asked)
    rows = rows.slice(0, int(asked["limit"])) if asked["limit"] else rows
    return replace(_answer(rows.slice(0, rows_max)), total=rows.num_rows)


def _selected(rows: pa.Table, names: Sequence[str], asked: re.Match[str]) -> pa.Table:
    """Return the columns that the query selects, or the number of rows."""
    what = asked["what"]
    if what.lower().startswith("count("):
        shown = _plain(asked["alias"]) if asked["alias"] else "count(1)"
        return pa.table({shown: _numbers(np.array([rows.num_rows]))})
    chosen = names if what == "*" else [_plain(name) for name in what.split(",")]
    return rows.select([f"c{_place(names, name)}" for name in chosen]).rename_columns(chosen)


def _plain(name: str) -> str:
    name = name.strip()
    if name.startswith("`"):
        return name[1:-1]
    if name.lower() in _WORDS:
        raise _NeedsSpark
    return name


def _place(names: Sequence[str], name: str) -> int:
    folded = [known.lower() for known in names]
    if folded.count(name.lower()) != 1:
        raise _NeedsSpark  # Spark raises the right error
    return folded.index(name.lower())


def _content(files: Files, relation: str, buckets: Iterable[Sequence[Run]], width: int) -> pa.Table:
    """Return the rows of a table or view as `c0..`, repeated by weight."""
    columns = [f"c{place}" for place in range(width)]
    tables = []
    for runs in buckets:
        if not runs:  # compaction has found nothing left in the bucket
            continue
        parts = [read_run(files, run).select([*columns, WEIGHT]) for run in runs]
        rows = _consolidated(pa.concat_tables(parts), columns)
        check_held("a result", rows, view=relation)
        tables.append(_repeated(rows, columns))
    if not tables:
        raise _NeedsSpark  # without rows the types of the columns are unknown
    return pa.concat_tables(tables)


def _consolidated(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add up the weights of equal rows."""
    if pc.min(rows[WEIGHT]).as_py() < 1:  # something was retracted: equal rows must be merged
        codes = np.zeros(rows.num_rows, np.int64)
        for column in columns:
            mine = _whole_numbers(_codes(rows[column]))
            codes = np.unique(codes * (mine.max() + 1) + mine, return_inverse=True)[1]
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
        weights = np.zeros(len(first), np.int64)
        np.add.at(weights, group, _whole_numbers(rows[WEIGHT].combine_chunks()))
        rows = rows.take(_numbers(first[weights != 0]))
        rows = rows.set_column(len(columns), WEIGHT, _numbers(weights[weights != 0]))
    return rows


def _repeated(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Repeat each row by its weight."""
    if rows.num_rows and pc.min_max(rows[WEIGHT]).as_py() != {"min": 1, "max": 1}:
        counts = _whole_numbers(rows[WEIGHT].combine_chunks())
        rows = rows.take(_numbers(np.repeat(np.arange(len(counts)), counts)))
    return rows.select(list(columns))


def _numbers(values: np.ndarray) -> pa.Array:
    """Convert integers to Arrow; `pa.array` and `to_numpy` would import pandas, which takes long."""
    buffer = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [None, buffer])


def _whole_numbers(values: pa.Array) -> np.ndarray:
    """Convert an Arrow array without nulls to numpy, also without pandas."""
    return np.frombuffer(values.buffers()[1], np.int64, len(values), 8 * values.offset)


def _codes(column: pa.ChunkedArray) -> pa.Array:
    """Return a number for each value of a column, equal where the values are equal bit by bit."""
    if pa.types.is_nested(column.type):
        raise _NeedsSpark
    values = column.combine_chunks()
    if pa.types.is_floating(column.type):
        values = values.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    return pc.dictionary_encode(values, null_encoding="encode").indices.cast(pa.int64())


def _conditions(text: str | None) -> list[re.Match[str]]:
    if text is None:
        return []
    found, place = [], 0
    while (one := _CONDITION.match(text, place)) is not None:
        found.append(one)
        if one.end() == len(text):
            return found
        follows = _AND.match(text, one.end())
        place = follows.end() if follows is not None else len(text)
    raise _NeedsSpark


def _restricted(rows: pa.Table, names: Sequence[str], condition: re.Match[str]) -> pa.Table:
    column = rows[f"c{_place(names, _plain(condition['name']))}"]
    if condition["null"]:
        wanted = pc.is_valid if "NOT" in condition["null"].upper() else pc.is_null
        return rows.filter(wanted(column))
    if condition["like"] is not None:
        if not pa.types.is_string(column.type):
            raise _NeedsSpark
        like = pc.match_like(column, condition["like"])
        return rows.filter(pc.fill_null(pc.invert(like) if condition["not"] else like, False))
    if condition["number"] is not None and pa.types.is_integer(column.type):
        column, value = column.cast(pa.int64()), pa.scalar(int(condition["number"]), pa.int64())
    elif condition["text"] is not None and pa.types.is_string(column.type):
        value = pa.scalar(condition["text"])
    else:
        raise _NeedsSpark  # Spark would cast one side
    return rows.filter(pc.fill_null(_OPERATIONS[condition["op"]](column, value), False))


def filtered(rows: pa.Table, conditions: str) -> pa.Table:
    """Return the rows of a table that meet conditions, as Spark would.

    Args:
        conditions: what may stand after WHERE.

    Raises:
        QueryError: NEEDS_SPARK: only Spark understands them.

    Example:
        >>> filtered(pa.table({"n": [1, 2, 3]}), "n >= 2").to_pydict()
        {'n': [2, 3]}
    """
    names = rows.column_names
    found = rows.rename_columns([f"c{place}" for place in range(len(names))])
    try:
        for condition in _conditions(conditions):
            found = _restricted(found, names, condition)
    except _NeedsSpark:
        raise QueryError(
            "these conditions are none that are answered without Spark: column = 'text', column > 5, "
            "column LIKE '%text%', column IS NULL, joined by AND, on columns of texts and whole numbers",
            condition="NEEDS_SPARK",
            hint="ask with `eddyline sql` or engine.sql, which start Spark",
        ) from None
    return found.rename_columns(names)


@dataclass(frozen=True, slots=True)
class _Key:
    """A column to sort by."""

    column: str
    descending: bool
    nulls_last: bool


def _keys(names: Sequence[str], order: str) -> list[_Key]:
    """Return the keys of an ORDER BY; nulls come first in ascending order, last in descending order."""
    keys = []
    for part in order.split(","):
        words = part.split()
        descending = len(words) > 1 and words[1].upper() == "DESC"
        keys.append(_Key(f"c{_place(names, _plain(words[0]))}", descending, descending))
    return keys


def _sorted(rows: pa.Table, keys: Sequence[_Key]) -> pa.Table:
    """Sort rows as Spark does."""
    sorts, helpers = [], rows
    for number, key in enumerate(keys):
        column = rows[key.column]
        kind = column.type
        if pa.types.is_floating(kind):
            if pc.any(pc.is_nan(column)).as_py():
                raise _NeedsSpark  # to Spark it is the largest number
        elif not any(test(kind) for test in _SORTED):
            raise _NeedsSpark
        helpers = helpers.append_column(f"null{number}", pc.is_null(column).cast(pa.int8()))
        sorts += [(f"null{number}", "ascending" if key.nulls_last else "descending")]
        sorts += [(key.column, "descending" if key.descending else "ascending")]
    return rows.take(pc.sort_indices(helpers, sort_keys=sorts))


_SORTED = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_decimal,
    pa.types.is_timestamp,
)


def _answer(rows: pa.Table) -> QueryAnswer:
    columns = [_texts(column) for column in rows.columns]
    numeric = [
        place
        for place, kind in enumerate(rows.schema.types)
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    ]

    def lines() -> list[str]:
        return [
            json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows.to_pylist()
        ]

    texts = list(zip(*columns, strict=True)) if columns else []
    plain = all(_is_plain_json(kind) for kind in rows.schema.types)
    names = list(rows.column_names)
    return QueryAnswer(names, numeric, lambda: texts, lines if plain else None, lambda: rows)


def _is_plain_json(kind: pa.DataType) -> bool:
    """Return whether Spark and Python write values of a type alike in JSON."""
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean)
    return any(test(kind) for test in known)


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if not _has_text(column.type):
        raise _NeedsSpark
    try:
        values = column.to_pylist()
    except OverflowError:  # a date or time that Python has none of
        raise _NeedsSpark from None
    return [None if value is None else _text(value) for value in values]


def _has_text(kind: pa.DataType) -> bool:
    """Return whether `_text` writes values of a type as Spark does."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None or (kind.tz in ("UTC", "Etc/UTC") and _clock_is_utc())
    if pa.types.is_struct(kind):
        return all(_has_text(kind.field(i).type) for i in range(kind.num_fields))
    return any(
        test(kind)
        for test in (
            pa.types.is_integer,
            pa.types.is_string,
            pa.types.is_boolean,
            pa.types.is_date,
            pa.types.is_decimal,
        )
    )


def _clock_is_utc() -> bool:
    """Return whether a Spark session started on this machine would have the time zone UTC."""
    own = "timeZone" in os.environ.get("PYSPARK_SUBMIT_ARGS", "") or "SPARK_CONF_DIR" in os.environ
    return time.timezone == 0 and not time.daylight and not own


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        whole = value.strftime("%Y-%m-%d %H:%M:%S") if value.year > 999 else ""
        if not whole:
            raise _NeedsSpark
        return whole + (f".{value.microsecond:06d}".rstrip("0") if value.microsecond else "")
    if isinstance(value, dict):
        return "{" + ", ".join("null" if v is None else _text(v) for v in value.values()) + "}"
    return str(value)
