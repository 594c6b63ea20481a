"""Records of Avro as columns, in Confluent's wire format: a zero byte, the number of their schema, the value.

Polars decodes many values at once, as an Avro file in memory. A random number is inserted after each value: if it
isn't read back, the value before it is shorter or longer than its schema says. Then the values are checked one by
one to find the malformed ones.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.source.avro_schema import (
    TIMES,
    AvroType,
    UnreadableError,
    check_fit,
    matched,
    plain_record,
)

HEADER_BYTES = 5
BLOCK_ROWS = 4096
REASON_CHARACTERS = 500
_LAST = "eddyline end"
_FAILURES = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    pa.ArrowException,
    OSError,
    ValueError,
    OverflowError,
)
_VARINT_BYTES = 10


@dataclass(slots=True)
class AvroValues:
    """Decodes values in Confluent's wire format.

    Attributes:
        schema: columns and types; a column that isn't in the schema of a value is null.
        fetch: returns the schema of a number; raises UnreadableError if there is no readable one.
    """

    schema: pa.Schema
    fetch: Callable[[int], AvroType]
    _readers: dict[int, AvroReader] = field(default_factory=dict, init=False)

    def __call__(self, values: pa.Array) -> tuple[pa.Table, Mapping[int, str]]:
        """Return a row for each value that can be decoded, and why the others can't, by their index."""
        numbers = _numbers(values)
        known = np.flatnonzero(numbers >= 0)
        reasons = dict.fromkeys(
            np.flatnonzero(numbers < 0).tolist(),
            "no value of Avro: it doesn't begin with a zero byte and the number of a schema",
        )
        tables, rows_of = [self.schema.empty_table()], [np.empty(0, np.int64)]
        for number in np.unique(numbers[known]).tolist():
            places = np.flatnonzero(numbers == number)
            try:
                reader = self._reader(number)
            except UnreadableError as error:
                why = f"schema {number} can't be read: {error}"[:REASON_CHARACTERS]
                reasons |= dict.fromkeys(places.tolist(), why)
                continue
            chosen = values.take(places)
            for start in range(0, len(places), BLOCK_ROWS):
                table, errors = reader.decode(chosen.slice(start, BLOCK_ROWS))
                there = places[start : start + BLOCK_ROWS]
                reasons |= {
                    int(there[at]): f"no value of schema {number}: {why}"[:REASON_CHARACTERS]
                    for at, why in errors.items()
                }
                tables.append(table)
                rows_of.append(np.delete(there, list(errors)))
        order = np.argsort(np.concatenate(rows_of), kind="stable")
        table = pa.concat_tables(tables)
        return table if (np.diff(order) > 0).all() else table.take(order), reasons

    def _reader(self, number: int) -> AvroReader:
        if number not in self._readers:
            self._readers[number] = AvroReader(self.fetch(number), self.schema)
        return self._readers[number]


def _numbers(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of the schema of each value; -1 for one that doesn't begin with one."""
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    numbers = np.full(len(values), -1)
    whole = np.flatnonzero(np.diff(places) >= HEADER_BYTES)
    if len(whole):
        at = places[whole][:, np.newaxis] + np.arange(HEADER_BYTES)
        heads = np.ascontiguousarray(np.frombuffer(data, np.uint8)[at])
        number = heads.view([("magic", "u1"), ("number", ">u4")])[:, 0]
        numbers[whole] = np.where(number["magic"] == 0, number["number"].astype(np.int64), -1)
    return numbers


class AvroReader:
    """Decodes values of one schema.

    Args:
        kind: the record.
        schema: the columns to make of it.

    Raises:
        UnreadableError: a column doesn't fit.
    """

    def __init__(self, kind: AvroType, schema: pa.Schema) -> None:
        self._kind, self._schema = kind, schema
        self._fields = matched(kind, schema.names)
        for at, part in self._fields.items():
            check_fit(part, schema[at].type, f"field {schema[at].name}")
        self._sync = os.urandom(16)
        (self._end,) = struct.unpack(">q", os.urandom(8))
        self._ending = _varint(self._end)
        meta = {
            "avro.schema": plain_record(kind, HEADER_BYTES, _LAST).encode(),
            "avro.codec": b"null",
        }
        pairs = b"".join(_bytes(name.encode()) + _bytes(text) for name, text in meta.items())
        self._head = b"Obj\x01" + _varint(len(meta)) + pairs + b"\0" + self._sync

    def decode(self, values: pa.Array) -> tuple[pa.Table, dict[int, str]]:
        """Return a row for each value that can be decoded, and why the others can't, by their index."""
        try:
            return self._at_once(values), {}
        except _FAILURES:
            pass
        errors = {}
        for at, value in enumerate(values.to_pylist()):
            try:
                if (end := _walk(self._kind, value, HEADER_BYTES)) != len(value):
                    errors[at] = f"{len(value) - end} bytes follow it"
            except (ValueError, IndexError) as error:
                errors[at] = str(error) if isinstance(error, ValueError) else "it ends too early"
        good = np.delete(np.arange(len(values)), list(errors))
        try:
            return self._at_once(values.take(good)), errors
        except _FAILURES:
            pass
        tables = [self._schema.empty_table()]
        for at in good.tolist():
            try:
                tables.append(self._at_once(values.slice(at, 1)))
            except _FAILURES as error:
                errors[at] = str(error)
        return pa.concat_tables(tables), errors

    def _at_once(self, values: pa.Array) -> pa.Table:
        """Decode values by polars; an error of `_FAILURES` if one of them is none of this schema."""
        if not len(values):
            return self._schema.empty_table()
        ended = pc.binary_join_element_wise(values, pa.scalar(self._ending), pa.scalar(b""))
        block = ended.buffers()[2].to_pybytes()
        sizes = _varint(len(values)) + _varint(len(block))
        frame = pl.read_avro(io.BytesIO(self._head + sizes + block + self._sync))
        if len(frame) != len(values) or not (frame[_LAST] == self._end).all():
            raise ValueError("a value is longer or shorter than its schema says")
        columns = []
        for at, wanted in enumerate(self._schema):
            part = self._fields.get(at)
            if part is None or part.is_empty:
                columns.append(pa.nulls(len(values), wanted.type))
                continue
            place = next(n for n, (_, one) in enumerate(self._kind.parts) if one is part)
            found = frame[f"f{place}"].to_arrow(compat_level=pl.CompatLevel.oldest())
            columns.append(_fitted(found, part, wanted.type))
        return pa.table(columns, schema=self._schema)


def _fitted(array: pa.Array, kind: AvroType, want: pa.DataType) -> pa.Array:
    """Return values in the type of a column."""
    if kind.is_empty:
        return pa.nulls(len(array), want)
    if kind.logical == "date":
        return array.cast(pa.date32()).cast(want)
    if kind.logical in TIMES:
        return array.cast(TIMES[kind.logical]).cast(want)
    if kind.name == "enum":
        if pc.any(pc.greater_equal(pc.abs(array), len(kind.symbols))).as_py():
            raise ValueError("the number of a symbol is too large")
        return pa.array(kind.symbols, pa.string()).take(array).cast(want)
    if kind.name == "record":
        names = [one.name for one in want]
        found = matched(kind, names)
        places = {id(part): at for at, (_, part) in enumerate(kind.parts)}
        columns = [
            _fitted(array.field(f"f{places[id(found[at])]}"), found[at], want[at].type)
            if at in found and not found[at].is_empty
            else pa.nulls(len(array), want[at].type)
            for at in range(len(names))
        ]
        return pa.StructArray.from_arrays(columns, fields=list(want), mask=array.is_null())
    if kind.name in ("array", "map"):
        offsets, inner = array.offsets.cast(pa.int32()), array.values
        part = kind.parts[0][1]
        if kind.name == "array":
            values = _fitted(inner, part, want.value_type)
            return pa.ListArray.from_arrays(offsets, values, type=want, mask=array.is_null())
        order = _by_key(offsets, inner.field("key"))
        items = _fitted(inner.field("value").take(order), part, want.item_type)
        keys = inner.field("key").take(order).cast(pa.string())
        ends = pc.if_else(_and_one(array.is_null()), pa.scalar(None, pa.int32()), offsets)
        return pa.MapArray.from_arrays(ends, keys, items).cast(want)
    return array.cast(want)


def _by_key(offsets: pa.Array, keys: pa.Array) -> pa.Array:
    """Return the order of entries by map and key: equal maps become equal bytes."""
    sizes = np.diff(offsets.to_numpy())
    maps = np.repeat(np.arange(len(sizes)), sizes)
    entries = pa.table({"map": maps, "key": keys})
    return pc.sort_indices(entries, [("map", "ascending"), ("key", "ascending")])


def _and_one(nulls: pa.Array) -> pa.Array:
    return pa.concat_arrays([nulls, pa.array([False])])


def _varint(number: int) -> bytes:
    """Return a number as Avro writes it."""
    left, written = (number << 1) ^ (number >> 63), bytearray()
    while left > 127:
        written.append(left & 127 | 128)
        left >>= 7
    return bytes([*written, left])


def _bytes(text: bytes) -> bytes:
    return _varint(len(text)) + text


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number; return it, and where it ends."""
    value = shift = 0
    while (byte := data[at]) & 128:
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if shift > 7 * _VARINT_BYTES:
            raise ValueError("a number has too many bytes")
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), at + 1


_SIZES = {"boolean": 1, "float": 4, "double": 8}
_INTEGER_BITS = {"int": 32, "enum": 32, "long": 64}


def _walk(kind: AvroType, data: bytes, at: int) -> int:
    """Return the position after a value.

    Raises:
        ValueError, IndexError: there is no value of this type.
    """
    if kind.is_empty:
        return at
    if kind.null_at >= 0:
        branch, at = _number(data, at)
        if branch not in (0, 1):
            raise ValueError(f"a union has no type {branch}")
        if branch == kind.null_at:
            return at
    if kind.name == "record":
        for _, part in kind.parts:
            at = _walk(part, data, at)
    elif kind.name in ("array", "map"):
        at = _walk_blocks(kind, data, at)
    elif kind.name in _INTEGER_BITS:
        at = _walk_integer(kind, data, at)
    elif size := kind.size or _SIZES.get(kind.name):
        at += size
    else:
        at = _walk_bytes(kind, data, at)
    if at > len(data):
        raise IndexError
    return at


def _walk_integer(kind: AvroType, data: bytes, at: int) -> int:
    value, at = _number(data, at)
    if kind.name == "enum" and not 0 <= value < len(kind.symbols):
        raise ValueError(f"an enum has no symbol {value}")
    bits = _INTEGER_BITS[kind.name]
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{value} is too large for a number of {bits} bits")
    return at


def _walk_bytes(kind: AvroType, data: bytes, at: int) -> int:
    size, at = _number(data, at)
    if size < 0:
        raise ValueError(f"a text has {size} bytes")
    if kind.name == "string":
        data[at : at + size].decode()
    return at + size


def _walk_blocks(kind: AvroType, data: bytes, at: int) -> int:
    """Return the position after an array or a map."""
    while True:
        count, at = _number(data, at)
        if count == 0:
            return at
        if count < 0:
            _, at = _number(data, at)
        for _ in range(abs(count)):
            if kind.name == "map":
                at = _walk(AvroType("string"), data, at)
            at = _walk(kind.parts[0][1], data, at)
