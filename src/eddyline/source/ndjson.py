"""Newline-delimited JSON, decoded in vectorised code; only the wanted columns.

Polars reads a block of lines at once; timestamps come as strings and are parsed in one go. A block
that it can't read, or with a value that doesn't convert, is read line by line with the rules of
Spark's reader in PERMISSIVE mode: what can't be converted is null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

BLOCK_BYTES = 8 << 20

_DIRECT = {
    pa.string(): pl.String,
    pa.bool_(): pl.Boolean,
    pa.int8(): pl.Int64,
    pa.int16(): pl.Int64,
    pa.int32(): pl.Int64,
    pa.int64(): pl.Int64,
    pa.float32(): pl.Float64,
    pa.float64(): pl.Float64,
}
_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"
_LIMITS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}


def readable(schema: pa.Schema) -> bool:
    """Whether all columns have types that this reader decodes."""
    return all(f.type in _DIRECT or pa.types.is_timestamp(f.type) for f in schema)


def read_ndjson(
    path: str, schema: pa.Schema, start: int = 0, length: int = 0
) -> Iterator[pa.Table]:
    """Decode a file, or the lines that begin within `length` bytes from `start` on."""
    end = start + length if length else os.path.getsize(path)
    with open(path, "rb") as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()  # the line that begins before `start` belongs to the part before
        while (at := stream.tell()) < end:
            block = stream.read(min(BLOCK_BYTES, end - at))
            if not block.endswith(b"\n"):
                block += stream.readline()
            table = _fast(block, schema)
            yield table if table is not None else _exact(block, schema)


def _fast(block: bytes, schema: pa.Schema) -> pa.Table | None:
    wanted = {field.name: _DIRECT.get(field.type, pl.String) for field in schema}
    if not wanted:
        return None
    try:
        frame = pl.read_ndjson(block, schema=wanted)
    except (pl.exceptions.PolarsError, ValueError):
        return None
    columns = []
    for field in schema:
        series = frame[field.name]
        if pa.types.is_timestamp(field.type):
            parsed = _timestamps(series)
            if parsed is None or parsed.null_count() > series.null_count():
                return None
            column = parsed.to_arrow()
            if field.type.tz is not None:
                column = pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")
            columns.append(column.cast(field.type))
            continue
        if field.type == pa.string() and series.str.contains(r"^[{\[]").any():
            return None  # polars writes nested values anew, Spark keeps their text
        try:
            columns.append(series.to_arrow().cast(field.type))
        except pa.ArrowInvalid:
            return None
    return pa.table(columns, schema=schema)


def _timestamps(series: pl.Series) -> pl.Series | None:
    """UTC timestamps in one of the two usual forms; None for any other."""
    first = series.drop_nulls().head(1)
    if not len(first):
        return series.cast(pl.Datetime("us"))
    if first[0].endswith("Z"):
        ending = "%.fZ" if "." in first[0] else "Z"
        return series.str.to_datetime(f"%Y-%m-%dT%H:%M:%S{ending}", strict=False, time_unit="us")
    return None


def _exact(block: bytes, schema: pa.Schema) -> pa.Table:
    """Line by line, as Spark's PERMISSIVE reader would."""
    rows: list[dict[str, Any]] = []
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        try:
            members = _members(line.decode())
        except ValueError:
            members = {}
        rows.append({f.name: _value(*members.get(f.name, (None, "")), f.type) for f in schema})
    if not schema.names:  # only the number of rows is asked for
        return pa.table({"rows": pa.nulls(len(rows))}).select([])
    return pa.Table.from_pylist(rows, schema=schema)


def _members(line: str) -> dict[str, tuple[Any, str]]:
    """The members of the object in a line: value and text; ValueError if there is no object."""
    found: dict[str, tuple[Any, str]] = {}
    at = _skip(line, 0)
    if line[at : at + 1] != "{":
        raise ValueError
    at = _skip(line, at + 1)
    while line[at : at + 1] != "}":
        name, at = _DECODER.raw_decode(line, at)
        at = _skip(line, at)
        if not isinstance(name, str) or line[at : at + 1] != ":":
            raise ValueError
        start = _skip(line, at + 1)
        value, end = _DECODER.raw_decode(line, start)
        found[name] = (value, line[start:end])
        at = _skip(line, end)
        if line[at : at + 1] == ",":
            at = _skip(line, at + 1)
        elif line[at : at + 1] != "}":
            raise ValueError
    return found


def _skip(line: str, at: int) -> int:
    while line[at : at + 1] in _BLANKS and at < len(line):
        at += 1
    return at


def _value(value: Any, text: str, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if kind == pa.string():
        return value if isinstance(value, str) else text
    if kind == pa.bool_():
        return value if isinstance(value, bool) else None
    if kind in _LIMITS:
        whole = isinstance(value, int) and not isinstance(value, bool)
        limit = 1 << _LIMITS[kind]
        return value if whole and -limit <= value < limit else None
    if kind in (pa.float32(), pa.float64()):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number and value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        return float(value) if number else None
    return _timestamp(value)


def _timestamp(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    try:
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
