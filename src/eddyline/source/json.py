"""Lines of JSON as columns, converted by the rules of Spark's reader.

A block of lines is decoded at once: by `strict_json` if its values have exactly the types of their columns, else by
polars. If that can't, or its result could differ from that of Spark's reader, smaller blocks are tried, and
then single lines, by `jackson.LineParser`. A value that doesn't fit is null in a file, as in the mode
PERMISSIVE, and an error of the record in a document of a queue.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.source.conversions import halfway
from eddyline.source.jackson import LineParser
from eddyline.source.members import Members
from eddyline.source.scanner import DEPTH_MAX, NAME_MAX, NUMBER_MAX
from eddyline.source.strict_json import StrictDecoder

BLOCK_BYTES = 4 << 20
LINES_BYTES = 32 << 10  # blocks of this size are decoded line by line if polars can't decode them
PARTS = 16  # of a larger block
REFUSED_MAX = 2  # blocks in a row, after which the strict decoder isn't tried again
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
_COMPRESSED = (b"\x1f\x8b", b"x", b"(\xb5/\xfd")  # how files of gzip, zlib and zstd begin
_STEP = 50  # bytes from one sample to the next

_LITERAL = r"^(-?\d[\d.eE+-]*|true|false|[{\[][\s\S]*)$"
_INTEGER = r"^-?\d{1,18}$"
_SECOND = 1_000_000
_SECONDS_MAX = (1 << 63) // _SECOND - 1
_YEAR_MAX = 2037  # Arrow doesn't know summer time after it
_ZONED = r":\d\d:\d\d(\.\d+)?(Z|[+-](0\d|1[0-7])(:?[0-5]\d)?)$"
_SHORTEST_UTC = len("2026-01-31T10:20:30Z")
_REWRITTEN = rb"\s*:\s*(?:[{\[]|-?[0-9]+[.eE]|-0|-?[0-9]{19})"  # polars doesn't keep its text
_WRITTEN = rb'\s*:\s*(?:"|([^"{\[,}\s]+))'
_OF_NUMBERS, _OF_LITERALS = (
    np.isin(np.arange(256), list(chosen)) for chosen in (b"-+.0123456789eE", b"-0123456789tf{[")
)


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
    decoder = JsonDecoder(schema, zone, documents=True)
    tables = [schema.empty_table()]
    step = 1 + BLOCK_BYTES * len(documents) // (documents.nbytes + 1)
    for start in range(0, len(documents), step):
        tables += decoder.tables(_lines(documents.slice(start, step)))
    return pa.concat_tables(tables), decoder.errors


class JsonDecoder:
    """Decodes blocks of whole lines, one after the other.

    Attributes:
        errors: by line number, why a document couldn't be decoded; such lines are omitted.
    """

    def __init__(self, schema: pa.Schema, zone: str, *, documents: bool = False) -> None:
        """Decode the columns of a schema.

        Args:
            zone: time zone of timestamps without an offset.
            documents: each line is a document, and a value that doesn't fit is an error; otherwise it becomes null.
        """
        self.errors: dict[int, Exception] = {}
        self._line = 0
        self._schema, self._zone, self._documents = schema, zone, documents
        self._parser = LineParser(schema, zone)
        self._flat = all(map(_is_flat, schema.types))
        self._strict = _strict_decoder(schema)
        self._refused = 0  # blocks in a row that it couldn't decode
        self._wanted = {field.name: BY_POLARS.get(field.type, pl.String) for field in schema}
        self._names = {name: _quoted(name) for name in schema.names}

    def tables(self, block: bytes) -> Iterator[pa.Table]:
        """Decode whole lines."""
        if not block:
            return
        table = self._at_once(block) if len(self._schema) else self._rows_only(block)
        if table is not None:
            self._line += table.num_rows
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
        """Decode a block; None if the result may differ from that of `_by_line`."""
        if not self._flat:
            return None
        breaks = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
        if _is_extreme(block, breaks):
            return None
        if self._strict is not None and self._refused < REFUSED_MAX:
            self._refused += 1
            with suppress(ValueError, RecursionError):
                table = self._strictly(self._strict, block, breaks)
                self._refused = 0
                return table
        with suppress(ValueError, pl.exceptions.PolarsError):
            return self._leniently(block, breaks)
        return None

    def _strictly(
        self, decoder: StrictDecoder, block: bytes, breaks: np.ndarray[Any, Any]
    ) -> pa.Table:
        """Decode a block by msgspec; ValueError or RecursionError if it can't."""
        columns = decoder.columns(block, breaks)
        if self._documents:
            self._check_single(block, columns)
        converted = [
            self._converted(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.table(converted, schema=self._schema)

    def _check_single(self, block: bytes, columns: list[pa.Array]) -> None:
        """Raise ValueError if a column whose values are still to be converted may have two in one document.

        msgspec keeps the last one, and whether the first one can be converted decides about the document.
        """
        for column, field in zip(columns, self._schema, strict=True):
            if field.type == column.type:
                continue
            name, values = self._names[field.name], len(column) - column.null_count
            others = len(_places(block, name)) - values
            if others and column.null_count:
                others -= _count(block, re.escape(name.decode()) + r"\s*:\s*null")
            if others or b"\\" in block:
                raise ValueError

    def _leniently(self, block: bytes, breaks: np.ndarray[Any, Any]) -> pa.Table:
        """Decode a block by polars; ValueError or PolarsError if the result may differ from that of `_by_line`."""
        if block.startswith(_COMPRESSED):
            raise ValueError  # polars would decompress it
        frame = pl.read_ndjson(block, schema=self._wanted)
        if self._documents and frame.height != len(breaks):
            raise ValueError  # polars skips blank lines
        places = {name: _places(block, quoted) for name, quoted in self._names.items()}
        if self._is_ambiguous(block, frame, places):
            raise ValueError
        columns = [
            self._column(frame[field.name], field, block, places[field.name])
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)

    def _converted(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        """Convert a column to its type; raise ValueError if `_by_line` would give another result."""
        if pa.types.is_timestamp(kind):
            return _times(column, kind, self._zone)
        if kind != pa.float32():
            return column.cast(kind)
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        if halfway(numbers).any():
            raise ValueError
        with np.errstate(over="ignore"):
            singles = numbers.astype(np.float32)
        return pa.array(singles, mask=column.is_null().to_numpy(zero_copy_only=False))

    def _column(
        self, values: pl.Series, wanted: pa.Field, block: bytes, places: np.ndarray[Any, Any]
    ) -> pa.Array:
        """Convert a column that polars has decoded; raise ValueError if `_by_line` would give another result.

        Args:
            places: where the column's name occurs in the block.
        """
        column, kind = values.to_arrow(), wanted.type
        if kind == pa.string():
            return self._texts(column.cast(kind), self._names[wanted.name], block, places)
        if pa.types.is_timestamp(kind):
            return self._moments(column, wanted, block)
        if pa.types.is_decimal(kind):
            texts = column.cast(pa.string())
            return self._texts(texts, self._names[wanted.name], block, places).cast(kind)
        return self._converted(column, kind)

    def _texts(
        self, column: pa.Array, name: bytes, block: bytes, places: np.ndarray[Any, Any]
    ) -> pa.Array:
        """Return texts exactly as they are written; raise ValueError if polars may have changed one."""
        if _zeros(column):  # half of a surrogate pair
            raise ValueError
        if not _may_be_literal(column) or _are_quoted(block, places + len(name)):
            return column
        if not _member(name, _REWRITTEN).search(block):
            return column
        if column.null_count or block.count(name) != len(column):
            raise ValueError
        literals = [text.decode() for text in _member(name, _WRITTEN).findall(block)]
        if len(literals) != len(column):
            raise ValueError
        written = pa.array(literals, pa.string())
        return pc.if_else(pc.equal(written, ""), column, written)

    def _moments(self, column: pa.Array, wanted: pa.Field, block: bytes) -> pa.Array:
        try:
            return self._converted(column, wanted.type)
        except pa.ArrowInvalid:
            whole = pc.all(pc.match_substring_regex(column, _INTEGER)).as_py()
            if wanted.type.tz is None or whole is not True:
                raise
        if _member(self._names[wanted.name], rb'\s*:\s*(?:"|-?[0-9]+[.eE])').search(block):
            raise ValueError
        seconds = column.cast(pa.int64())
        if pc.max(pc.abs(seconds)).as_py() > _SECONDS_MAX:
            raise ValueError
        return pc.multiply(seconds, _SECOND).cast(wanted.type)

    def _is_ambiguous(
        self, block: bytes, frame: pl.DataFrame, places: dict[str, np.ndarray[Any, Any]]
    ) -> bool:
        """Whether a line may have two members of a wanted name: polars takes the first, Spark the last."""
        nulls = dict(zip(frame.columns, frame.null_count().row(0), strict=True))
        escaped = b"\\" in block
        values = frame.height * frame.width - sum(nulls.values())
        missing = sum(map(len, places.values())) - values
        if not missing and not escaped:
            return False  # each value stands beside the only occurrence of its name
        if missing and not escaped:
            some = [self._names[name].decode() for name, count in nulls.items() if count]
            explicit = [re.escape(name) + r"\s*:\s*null" for name in some]
            if explicit and missing == _count(block, "|".join(explicit)):
                twice = [
                    f"{re.escape(name)}[^\n]*{null}"
                    for name, null in zip(some, explicit, strict=True)
                ]
                return _count(block, "|".join(twice)) > 0
        members = Members(block)
        if members.has_escaped_name(self._names):
            return True
        return missing != 0 and any(map(members.repeats, self._names.values()))

    def _rows_only(self, block: bytes) -> pa.Table | None:
        """Count the rows of a block without decoding it: one for each line; None if a line may be an array."""
        if self._documents:
            return None
        lines = [line for line in block.split(b"\n") if line.strip(b" \t\r")]
        if any(line.lstrip(b" \t\r")[0] not in b'{"' for line in lines):
            return None
        return pa.table({"rows": pa.nulls(len(lines))}).select([])

    def _by_line(self, block: bytes) -> pa.Table:
        """Decode a block line by line."""
        if self._documents:
            rows = self._rows_of_documents(block.removesuffix(b"\n").split(b"\n"))
        else:
            rows = [row for line in block.split(b"\n") for row in self._parser.rows(line)]
        if not len(self._schema):  # only the number of rows matters
            return pa.table({"rows": pa.nulls(len(rows))}).select([])
        columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        arrays = [
            pa.array(values, pa.int64()).cast(pa.timestamp("us", field.type.tz)).cast(field.type)
            if pa.types.is_timestamp(field.type)
            else pa.array(values, field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        return pa.table(arrays, schema=self._schema)

    def _rows_of_documents(self, lines: list[bytes]) -> list[list[Any]]:
        rows = []
        for line in lines:
            try:
                rows.append(self._parser.document(line))
            except ValueError as error:
                self.errors[self._line] = error
            self._line += 1
        return rows


@functools.lru_cache(maxsize=64)
def _strict_decoder(schema: pa.Schema) -> StrictDecoder | None:
    """Return the strict decoder of some columns, which takes as long to make as to decode 200 lines; None if there is none."""
    with suppress(ValueError):
        return StrictDecoder(schema)
    return None


def _lines(documents: pa.ChunkedArray) -> bytes:
    """Join documents as lines. A line break in one becomes a tab, which JSON treats in the same way."""
    ended = pc.binary_join_element_wise(documents, pa.scalar(b"\n"), pa.scalar(b""))
    block: bytes = ended.combine_chunks().buffers()[2].to_pybytes()
    if block.count(b"\n") == len(documents):
        return block
    return b"\n".join([*(line.replace(b"\n", b"\t") for line in documents.to_pylist()), b""])


def _is_flat(kind: pa.DataType) -> bool:
    others = pa.types.is_timestamp, pa.types.is_date32, pa.types.is_decimal
    return kind in BY_POLARS or any(is_one(kind) for is_one in others)


def _times(texts: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Parse timestamps in ISO 8601; ArrowInvalid or ValueError for other texts."""
    if kind.tz is None:
        return texts.cast(kind)
    if pc.all(pc.ends_with(texts, "Z")).as_py():
        if (pc.min(pc.binary_length(texts)).as_py() or _SHORTEST_UTC) < _SHORTEST_UTC:
            raise ValueError  # Arrow also accepts a zone behind hours
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    local = pc.if_else(zoned, None, texts).cast(pa.timestamp("us"))
    if zone != "UTC":
        if (pc.max(pc.year(local)).as_py() or 0) > _YEAR_MAX:
            raise ValueError
        local = pc.assume_timezone(local, zone)  # ArrowInvalid if it is none or two in this zone
    return pc.coalesce(local.cast(kind), pc.if_else(zoned, texts, None).cast(kind))


def _quoted(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


def _member(name: bytes, value: bytes) -> re.Pattern[bytes]:
    return re.compile(re.escape(name) + value)


def _count(block: bytes, pattern: str) -> int:
    """Return how often a pattern occurs; polars' regular expressions are faster than Python's."""
    offsets = np.array([0, len(block)], np.int64)
    text = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    )
    found = pl.from_arrow(text)
    assert isinstance(found, pl.Series)
    return int(found.str.count_matches(pattern).item())


def _places(block: bytes, name: bytes) -> np.ndarray[Any, Any]:
    """Return where a name, given with its quotes, occurs in a block; not in order.

    Its first bytes are compared as one number, at each of the alignments that such a number can have. That is
    faster than a search for the text.
    """
    kind = np.dtype("<u4" if len(name) >= 4 else "<u2")
    wanted, width = np.frombuffer(name, kind, 1)[0], kind.itemsize
    found = []
    alike = np.empty(
        len(block) // width, np.bool_
    )  # new memory for each comparison would cost as much as it does
    for shift in range(min(width, len(block) - width + 1)):
        count = (len(block) - shift) // width
        np.equal(np.frombuffer(block, kind, count, shift), wanted, out=alike[:count])
        found.append(np.flatnonzero(alike[:count]) * width + shift)
    places = np.concatenate(found) if found else np.empty(0, np.int64)
    places = places[places <= len(block) - len(name)]
    data = np.frombuffer(block, np.uint8)
    for offset in range(width, len(name)):
        places = places[data[places + offset] == name[offset]]
    return places


def _are_quoted(block: bytes, ends: np.ndarray[Any, Any]) -> bool:
    """Whether a text in quotes is the value behind each name that ends before these places."""
    data = np.frombuffer(block, np.uint8)
    if ends.max(initial=0) + 2 >= len(data):
        return False
    second = data[ends + 1]
    quoted = (second == 34) | ((second == 32) & (data[ends + 2] == 34))
    return bool((quoted & (data[ends] == 58)).all())


def _is_extreme(block: bytes, ends: np.ndarray[Any, Any]) -> bool:
    """Whether a line may be beyond a limit of Jackson's, which polars doesn't have."""
    starts = np.concatenate([[0], ends + 1])
    lengths = np.append(ends, len(block)) - starts
    longest = int(lengths.max())
    if longest <= NUMBER_MAX:
        return False
    if longest > NAME_MAX or _has_long_number(block):
        return True
    long = np.flatnonzero(lengths > 2 * DEPTH_MAX)  # or it can't be nested too deeply
    spans = zip(starts[long].tolist(), (starts + lengths)[long].tolist(), strict=True)
    return any(block.count(b"{", *span) + block.count(b"[", *span) > DEPTH_MAX for span in spans)


def _has_long_number(block: bytes) -> bool:
    sample = _OF_NUMBERS[np.frombuffer(block, np.uint8)[::_STEP]]
    if np.diff(np.flatnonzero(~sample), prepend=-1, append=len(sample)).max() < NUMBER_MAX // _STEP:
        return False
    return re.search(rb"[-+.0-9eE]{%d}" % NUMBER_MAX, block) is not None


def _bytes_of(column: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the offsets of texts, and their bytes."""
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return places, np.frombuffer(data if data is not None else b"", np.uint8)


def _zeros(column: pa.Array) -> bool:
    places, data = _bytes_of(column)
    return bool((data[places[0] : places[-1]] == 0).any())


def _may_be_literal(column: pa.Array) -> bool:
    """Whether a text may be a number, a boolean, an array or an object without quotes."""
    places, data = _bytes_of(column)
    filled = places[1:] > places[:-1]
    first = data[places[:-1][filled]]
    if not _OF_LITERALS[first].any():
        return False
    chosen = np.zeros(len(column), np.bool_)
    chosen[filled] = _OF_LITERALS[first]
    literal = pc.match_substring_regex(column.filter(pa.array(chosen)), _LITERAL)
    return bool(pc.any(literal).as_py())
