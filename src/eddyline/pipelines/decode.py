"""Decoding of JSON documents, one a record, so that each bad one is an error of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from eddyline.relay.records import PAYLOAD

_ZONED = r"(Z|[+-]\d\d(:?\d\d)?)$"


@dataclass(frozen=True, slots=True)
class Decode:
    """A vectorised bolt: the documents of records as columns.

    What a document lacks is null; what it has besides is left out. Timestamps are ISO 8601 texts;
    those without an offset are local to a time zone.

    Attributes:
        schema: columns and types.
        zone: the time zone.
    """

    schema: pa.Schema
    zone: str

    def __call__(self, records: pa.Table) -> pa.Table:
        """The table; an error if any document can't be decoded."""
        fields = [pa.field(f.name, _raw(f.type)) for f in self.schema]
        wrapped = pa.schema([pa.field("i", pa.int64()), pa.field("d", pa.struct(fields))])
        table = pyarrow.json.read_json(
            pa.BufferReader(_wrapped(records[PAYLOAD])),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=wrapped, unexpected_field_behavior="ignore"
            ),
        )
        if not np.array_equal(table["i"].to_numpy(), np.arange(records.num_rows)):
            raise ValueError("not one JSON document in each record")
        if table["d"].null_count:
            raise ValueError("a JSON document is null")
        table = pa.Table.from_struct_array(table["d"])
        columns = [self._typed(table[field.name], field.type) for field in self.schema]
        return pa.table(columns, schema=self.schema)

    def _typed(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            return column.cast(kind)
        zoned = pc.match_substring_regex(column, _ZONED)
        plain = pc.if_else(zoned, None, column).cast(pa.timestamp("us"))
        local = pc.assume_timezone(plain, self.zone, nonexistent="latest", ambiguous="earliest")
        return pc.coalesce(pc.if_else(zoned, column, None).cast(kind), local.cast(kind))


def _wrapped(payloads: pa.ChunkedArray) -> pa.Buffer:
    """Documents as one text, each in one that tells which record it is of: none can hide in another."""
    numbers = pa.array(np.arange(len(payloads))).cast(pa.string()).cast(pa.binary())
    parts = [pa.scalar(b'{"i":'), numbers, pa.scalar(b',"d":'), payloads, pa.scalar(b"}\n")]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b""))
    array = joined.combine_chunks()
    data: pa.Buffer = array.buffers()[2]
    return data


def _raw(kind: pa.DataType) -> pa.DataType:
    """What the JSON reader makes of a type: times and decimals are read as text."""
    return pa.string() if pa.types.is_temporal(kind) or pa.types.is_binary(kind) else kind
