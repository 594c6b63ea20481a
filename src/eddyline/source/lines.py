"""Lines of JSON files as columns, equal to what Spark's reader returns in the mode PERMISSIVE.

Polars decodes a block of lines at once. If it can't, or its result could differ from that of Spark's
reader, smaller blocks are tried, and then single lines, by `jackson.LineParser`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.source.compression import is_compressed, open_file
from eddyline.source.jackson import BOM, DEPTH_MAX, NAME_MAX, NUMBER_MAX, LineParser, halfway
from eddyline.source.json import BY_POLARS
from eddyline.source.members import Members

BLOCK_BYTES = 8 << 20
LINES_BYTES = 32 << 10  # blocks of this size are decoded line by line if polars can't decode them
_ANY = 1 << 62
PARTS = 16  # of a larger block
_STEP = 50  # bytes from one sample to the next

_LITERAL = r"^(-?\d[\d.eE+-]*|true|false|[{\[][\s\S]*)$"
_INTEGER = r"^-?\d{1,18}$"
_SECOND = 1_000_000
_SECONDS_MAX = (1 << 63) // _SECOND - 1
_ZONED = r":\d\d:\d\d(\.\d+)?(Z|[+-](0\d|1[0-7])(:?[0-5]\d)?)$"
_SHORTEST_UTC = len("2026-01-31T10:20:30Z")
_REWRITTEN = rb"\s*:\s*(?:[{\[]|-?[0-9]+[.eE]|-0|-?[0-9]{19})"  # polars doesn't keep its text
_WRITTEN = rb'\s*:\s*(?:"|([^"{\[,}\s]+))'
_OF_NUMBERS, _OF_LITERALS = (
    np.isin(np.arange(256), list(chosen)) for chosen in (b"-+.0123456789eE", b"-0123456789tf{[")
)


def readable(schema: pa.Schema) -> bool:
    """Return whether JSON files with these columns are decoded here, rather than by Spark."""
    return all(field.type in BY_POLARS or pa.types.is_timestamp(field.type) for field in schema)


def read_json(path: str, schema: pa.Schema, start: int = 0, length: int = 0) -> Iterator[pa.Table]:
    """Decode the lines of a file that begin within `length` bytes from `start` on; 0: up to its end.

    A compressed file is one part, whatever its length. Values that can't be converted are null.
    """
    if is_compressed(path):
        if start:
            return
        length = _ANY
    decoder = _Decoder(schema)
    with open_file(path) as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()  # the line that begins before `start` belongs to the part before
        at, end = stream.tell(), start + (length or _ANY)
        while at < end and (block := stream.read(min(BLOCK_BYTES, end - at))):
            if not block.endswith(b"\n"):
                block += stream.readline()
            yield from decoder.tables(_unix(block if at else block.removeprefix(BOM)))
            at += len(block)


class _Decoder:
    """Decodes blocks of whole lines."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._parser = LineParser(schema)
        self._wanted = {field.name: BY_POLARS.get(field.type, pl.String) for field in schema}
        self._names = {name: _quoted(name) for name in schema.names}
        alternatives = b"|".join(map(re.escape, self._names.values()))
        self._any_name = alternatives.decode()

    def tables(self, block: bytes) -> Iterator[pa.Table]:
        """Decode whole lines."""
        if not block:
            return
        table = self._at_once(block) if len(self._schema) else self._rows_only(block)
        if table is not None:
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
        """Decode a block by polars; None if the result may differ from that of `_by_line`."""
        try:
            frame = pl.read_ndjson(block, schema=self._wanted)
            if _is_extreme(block) or self._is_ambiguous(block, frame):
                return None
            columns = [self._column(frame[field.name], field, block) for field in self._schema]
        except (pl.exceptions.PolarsError, pa.ArrowInvalid, ValueError):
            return None
        return pa.table(columns, schema=self._schema)

    def _column(self, values: pl.Series, wanted: pa.Field, block: bytes) -> pa.Array:
        """Convert what polars has decoded; ValueError if it is not as `_by_line` would have it."""
        column, kind = values.to_arrow(), wanted.type
        if kind == pa.string():
            return self._texts(column.cast(kind), self._names[wanted.name], block)
        if pa.types.is_timestamp(kind):
            return self._moments(column, wanted, block)
        if kind == pa.float32():
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
            if halfway(numbers).any():
                raise ValueError
            with np.errstate(over="ignore"):
                singles = numbers.astype(np.float32)
            return pa.array(singles, mask=column.is_null().to_numpy(zero_copy_only=False))
        return column.cast(kind)

    def _texts(self, column: pa.Array, name: bytes, block: bytes) -> pa.Array:
        """Return texts as they are written; ValueError if polars may have changed one."""
        if _zeros(column):  # half of a surrogate pair
            raise ValueError
        if not _may_be_literal(column) or not _member(name, _REWRITTEN).search(block):
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
            return _times(column, wanted.type)
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

    def _is_ambiguous(self, block: bytes, frame: pl.DataFrame) -> bool:
        """Whether a line may have two members of a wanted name: polars takes the first, Spark the last."""
        nulls = dict(zip(frame.columns, frame.null_count().row(0), strict=True))
        escaped = b"\\" in block
        written = _count(block, f"(?:{self._any_name})")
        missing = written - (frame.height * frame.width - sum(nulls.values()))
        if missing and not escaped:
            some = [self._names[name].decode() for name, count in nulls.items() if count]
            explicit = [re.escape(name) + r"\s*:\s*null" for name in some]
            if explicit and missing == _count(block, "|".join(explicit)):
                twice = [
                    f"{re.escape(name)}[^\n]*{null}"
                    for name, null in zip(some, explicit, strict=True)
                ]
                return _count(block, "|".join(twice)) > 0
        if not missing and not escaped:
            return False  # each value stands beside the only occurrence of its name
        members = Members(block)
        if members.has_escaped_name(self._names):
            return True
        return missing != 0 and any(map(members.repeats, self._names.values()))

    def _rows_only(self, block: bytes) -> pa.Table | None:
        """Count the rows of a block: one a line, whatever it holds; None if a line may be an array."""
        lines = [line for line in block.split(b"\n") if line.strip(b" \t\r")]
        if any(line.lstrip(b" \t\r")[0] not in b'{"' for line in lines):
            return None
        return pa.table({"rows": pa.nulls(len(lines))}).select([])

    def _by_line(self, block: bytes) -> pa.Table:
        """Decode a block line by line."""
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


def _times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse timestamps in ISO 8601; ArrowInvalid or ValueError for other texts."""
    if kind.tz is None:
        return texts.cast(kind)
    if pc.all(pc.ends_with(texts, "Z")).as_py():
        if (pc.min(pc.binary_length(texts)).as_py() or _SHORTEST_UTC) < _SHORTEST_UTC:
            raise ValueError  # Arrow also accepts a zone behind hours
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    local = pc.if_else(zoned, None, texts).cast(pa.timestamp("us")).cast(kind)
    return pc.coalesce(local, pc.if_else(zoned, texts, None).cast(kind))


def _unix(block: bytes) -> bytes:
    """End all lines with a line feed: Hadoop's reader also ends them at carriage returns."""
    if b"\r" not in block:
        return block
    return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


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


def _is_extreme(block: bytes) -> bool:
    """Whether a line may be beyond a limit of Jackson's, which polars doesn't have."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
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
