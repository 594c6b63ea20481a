"""JSON documents of records as columns.

Polars decodes many documents at once. If it can't, or its result would depend on the documents beside
one, fewer are tried, and then single ones. A document that is no JSON object, or has a value that can't
be converted to its column's type, is an error of its record.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

LINES_BYTES = 32 << 10  # blocks of this size are decoded line by line if polars can't decode them
PARTS = 16  # of a larger block

BY_POLARS = {
    pa.string(): pl.String,
    pa.bool_(): pl.Boolean,
    pa.int8(): pl.Int64,
    pa.int16(): pl.Int64,
    pa.int32(): pl.Int64,
    pa.int64(): pl.Int64,
    pa.float32(): pl.Float64,
    pa.float64(): pl.Float64,
}
_BITS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_SPECIAL = ("NaN", "Infinity", "-Infinity")
_ZONED = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LITERAL = r"^(-?\d[\d.eE+-]*|true|false)$"
_BLANKS = " \t\r\n"
_DECODER = json.JSONDecoder()

Convert: TypeAlias = Callable[[Any], Any]


def decode_documents(
    documents: pa.ChunkedArray, schema: pa.Schema, zone: str
) -> tuple[pa.Table, dict[int, Exception]]:
    """Decode JSON objects; the table has a row for each one that could be decoded.

    Args:
        documents: texts as binary, none of them null.
        zone: time zone of timestamps without an offset.

    Returns:
        The table, and the error of each document that couldn't be decoded, by its index.
    """
    decoder = _Decoder(schema, zone)
    tables = [schema.empty_table(), *decoder.tables(_lines(documents))]
    return pa.concat_tables(tables), decoder.errors


@dataclass(slots=True)
class _Decoder:
    """Decodes blocks of lines, one after the other.

    Attributes:
        schema: columns and types.
        zone: time zone of timestamps without an offset.
        errors: by line number, why a line couldn't be decoded; such lines are omitted.
        line: number of the first line of the next block.
    """

    schema: pa.Schema
    zone: str
    errors: dict[int, Exception] = field(default_factory=dict)
    line: int = 0
    converters: Mapping[str, Convert] = field(init=False)
    decoder: json.JSONDecoder = field(init=False)

    def __post_init__(self) -> None:
        self.converters = {f.name: _converter(f.type, ZoneInfo(self.zone)) for f in self.schema}
        exact = any("decimal" in str(kind) for kind in self.schema.types)
        self.decoder = json.JSONDecoder(
            parse_float=Decimal if exact else None,
            object_pairs_hook=_first_members,
        )

    def tables(self, block: bytes) -> Iterator[pa.Table]:
        """Decode whole lines."""
        if not block:
            return
        table = self._at_once(block)
        if table is not None:
            self.line += table.num_rows
            yield table
            return
        size, start = len(block) // PARTS, 0
        if len(block) <= LINES_BYTES or block.find(b"\n", size) + 1 in (0, len(block)):
            yield self._by_line(block)
            return
        while start < len(block):
            end = block.find(b"\n", start + size) + 1 or len(block)
            yield from self.tables(block[start:end])
            start = end

    def _at_once(self, block: bytes) -> pa.Table | None:
        """Decode a block by polars; None if the result would differ from that of `_by_line`."""
        wanted = {field.name: BY_POLARS.get(field.type, pl.String) for field in self.schema}
        if not wanted or not all(_flat(field.type) for field in self.schema):
            return None
        try:
            frame = pl.read_ndjson(block, schema=wanted)
            if frame.height != block.count(b"\n"):
                return None  # blank lines are skipped
            columns = [self._column(frame[field.name], field, block) for field in self.schema]
        except (pl.exceptions.PolarsError, pa.ArrowInvalid, ValueError):
            return None
        return pa.table(columns, schema=self.schema)

    def _column(self, values: pl.Series, wanted: pa.Field, block: bytes) -> pa.Array:
        """Convert what polars has decoded; ValueError if it is not as `_by_line` would have it."""
        column, kind = values.to_arrow(), wanted.type
        if kind == pa.string() and _starts(column, "{", "["):
            raise ValueError  # polars rewrites nested values
        if kind == pa.string():
            # a record that is read again has other neighbours, and must not become another row
            if pc.any(pc.match_substring(column, "\0")).as_py():
                raise ValueError  # half of a surrogate pair
            if pc.any(pc.match_substring_regex(column, _LITERAL)).as_py():
                _check_quoted(block, wanted.name)
        if pa.types.is_timestamp(kind):
            return _moments(column, kind, self.zone)
        return column.cast(kind)

    def _by_line(self, block: bytes) -> pa.Table:
        """Decode a block line by line."""
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        rows = 0
        for line in block.removesuffix(b"\n").split(b"\n"):
            try:
                found = self._values(line)
            except (ValueError, RecursionError) as error:
                self.errors[self.line] = error
            else:
                rows += 1
                for name, value in found.items():
                    columns[name].append(value)
            self.line += 1
        if not columns:  # only the number of rows matters
            return pa.table({"rows": pa.nulls(rows)}).select([])
        arrays = [_array(columns[field.name], field.type) for field in self.schema]
        return pa.table(arrays, schema=self.schema)

    def _values(self, line: bytes) -> dict[str, Any]:
        """Decode a line; raise ValueError for a bad one."""
        text = line.decode()
        members = _members(self.decoder, text)
        found = {}
        for column in self.schema:
            value = members.get(column.name)
            if value is not None and column.type == pa.string() and not isinstance(value, str):
                value = _texts(text)[column.name]
            try:
                found[column.name] = self.converters[column.name](value)
            except (ArithmeticError, TypeError, ValueError):
                shown = json.dumps(value, default=str)
                raise ValueError(f"{column.name} is {shown}, no {column.type}") from None
        return found


def _lines(documents: pa.ChunkedArray) -> bytes:
    """Join documents as lines; a line break is blank space in JSON, or an error as a tab is one."""
    if not len(documents):
        return b""
    ended = pc.binary_join_element_wise(documents, pa.scalar(b"\n"), pa.scalar(b""))
    block: bytes = ended.combine_chunks().buffers()[2].to_pybytes()
    if block.count(b"\n") == len(documents):
        return block
    return b"\n".join([*(line.replace(b"\n", b"\t") for line in documents.to_pylist()), b""])


def _check_quoted(block: bytes, name: str) -> None:
    """Raise ValueError if a member of this name may be a number or a boolean: polars rewrites them."""
    key = json.dumps(name, ensure_ascii=False).encode()
    if re.search(re.escape(key) + rb"\s*:\s*[-\dtf]", block):
        raise ValueError


def _first_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object; of repeated ones the first, as polars does."""
    return dict(reversed(pairs))


def _flat(kind: pa.DataType) -> bool:
    return kind in BY_POLARS or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)


def _starts(texts: pa.Array, *prefixes: str) -> bool:
    return any(pc.any(pc.starts_with(texts, prefix)).as_py() for prefix in prefixes)


def _moments(texts: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Parse timestamps in ISO 8601; ValueError for other texts and for ambiguous local times."""
    if kind.tz is None:
        return texts.cast(kind)
    if pc.all(pc.ends_with(texts, "Z")).as_py():
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    if pc.all(zoned).as_py():
        return texts.cast(kind)
    local = texts if not pc.any(zoned).as_py() else pc.if_else(zoned, None, texts)
    moments = pc.assume_timezone(local.cast(pa.timestamp("us")), zone).cast(kind)
    if local is texts:
        return moments
    return pc.coalesce(pc.if_else(zoned, texts, None).cast(kind), moments)


def _members(decoder: json.JSONDecoder, text: str) -> dict[str, Any]:
    """Return the members of the object that a text is; ValueError if it is none."""
    value, end = decoder.raw_decode(text, _skip(text, 0))
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is wanted, not {text.strip()[:20]}")
    if _skip(text, end) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _texts(text: str) -> dict[str, str]:
    """Return the members of a JSON object as they are written; of repeated ones the first."""
    found: dict[str, str] = {}
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        found.setdefault(name, text[start:end])
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANKS and at < len(text):
        at += 1
    return at


def _converter(kind: pa.DataType, zone: ZoneInfo) -> Convert:
    """Return the function that converts a JSON value to a type; it raises if a value doesn't fit."""
    if pa.types.is_list(kind):
        element = _converter(kind.value_type, zone)
        return _nullable(lambda value: [element(one) for one in _of(list, value)])
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type, zone) for field in kind}
        return _nullable(lambda value: {n: f(_of(dict, value).get(n)) for n, f in fields.items()})
    if pa.types.is_map(kind):
        item = _converter(kind.item_type, zone)
        return _nullable(lambda value: [(n, item(v)) for n, v in _of(dict, value).items()])
    return _nullable(_scalar_converter(kind, zone))


def _scalar_converter(kind: pa.DataType, zone: ZoneInfo) -> Convert:
    if kind in _BITS:
        return partial(_integer, 1 << _BITS[kind])
    if pa.types.is_timestamp(kind):
        return partial(_moment, zone if kind.tz else None)
    if pa.types.is_decimal(kind):
        return partial(_decimal, kind)
    simple: dict[pa.DataType, Convert] = {
        pa.string(): _string,
        pa.bool_(): partial(_of, bool),
        pa.float32(): _number,
        pa.float64(): _number,
        pa.date32(): lambda value: date.fromisoformat(_of(str, value)),
        pa.binary(): lambda value: b64decode(_of(str, value), validate=True),
    }
    return simple.get(kind, _unsupported)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _string(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode(errors="replace").decode()  # half a surrogate pair has no UTF-8


def _integer(limit: int, value: Any) -> int:
    if type(value) is not int or not -limit <= value < limit:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or (isinstance(value, str) and value not in _SPECIAL):
        raise ValueError
    return float(value)


def _decimal(kind: pa.DataType, value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError
    found = Decimal(value)
    rounded = found.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, Context(prec=76))
    if not rounded.is_finite() or len(rounded.as_tuple().digits) > kind.precision:
        raise ValueError
    return rounded


def _moment(zone: ZoneInfo | None, value: Any) -> int:
    """Return microseconds since 1970, for a local time if `zone` is None."""
    if zone is not None and type(value) is int:
        return _integer(1 << 63, value * 1_000_000)
    found = datetime.fromisoformat(_of(str, value))
    if zone is None and found.tzinfo is not None:
        raise ValueError
    moment = found if found.tzinfo else found.replace(tzinfo=zone or UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _unsupported(_value: Any) -> Any:
    raise TypeError


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us", kind.tz)).cast(kind)
    return pa.array(values, kind)
