"""Converts records of Kafka to rows of a redo log: unchanged, or with decoded values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import APPEND, DELETE, OPERATION, REPLACED
from eddyline.source.json import decode_documents
from eddyline.source.log_files import LogColumn
from eddyline.source.spark import APPEND_CODES, DELETE_CODES, REPLACED_CODES, UPDATE_CODES

HEADERS = "headers"
RAW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of a record as Spark's Kafka source has them; `headers` may follow."""

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

META = {"_key": "key", "_topic": "topic", "_partition": "partition", "_offset": "offset"} | {
    "_timestamp": "timestamp"
}
"""Columns that a stream with decoded values may declare, and what they are of a record."""

REASON_CHARACTERS = 500
_LETTERS = pa.schema([("payload", pa.binary()), ("error", pa.string()), ("key", pa.binary())])
_KINDS = np.array([-1, 0, 1, -1], np.int32)  # by the client's number; Spark's: -1 none, 0 created


class Message(Protocol):
    """A record as the client gives it."""

    def key(self) -> bytes | str | None: ...
    def value(self) -> bytes | str | None: ...
    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Any: ...
    def __len__(self) -> int: ...


Decode: TypeAlias = Callable[[Sequence[Message]], tuple[pa.Table, pa.Table]]
"""Makes of records rows of the log, and dead letters (`payload`, `error`, `key`) of those that don't fit."""

Values: TypeAlias = Callable[[pa.Array], tuple[pa.Table, Mapping[int, str]]]
"""Decodes values, none of them null: a row for each that can be, and why the others can't, by their index."""


@dataclass(frozen=True, slots=True)
class RawRecords:
    """Records with the columns of Spark's source.

    Attributes:
        wanted: the columns that the log keeps.
    """

    wanted: Sequence[LogColumn]

    def __call__(self, messages: Sequence[Message]) -> tuple[pa.Table, pa.Table]:
        """Return a row for each record, and no dead letter."""
        columns = {one.place: _column(messages, one.name).cast(one.type) for one in self.wanted}
        if not columns:
            columns = {"rows": pa.nulls(len(messages))}
        return pa.table(columns), _LETTERS.empty_table()


@dataclass(frozen=True, slots=True)
class Json:
    """Decodes JSON documents, by the rules of `decode_documents`.

    Attributes:
        schema: columns and types.
        zone: time zone of timestamps without an offset.
    """

    schema: pa.Schema
    zone: str

    def __call__(self, values: pa.Array) -> tuple[pa.Table, Mapping[int, str]]:
        """Return a row for each document that fits, and why the others don't."""
        rows, errors = decode_documents(pa.chunked_array([values]), self.schema, self.zone)
        return rows, {
            at: f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
            for at, error in errors.items()
        }


@dataclass(frozen=True, slots=True)
class Decoded:
    """Records with decoded values.

    A record without a value is a tombstone of its key. If the log keeps keys and the stream has no operations, it is a
    row with NULL in the columns of the value; otherwise it is dropped.

    Attributes:
        wanted: the columns that the log keeps.
        values: decodes values.
        operation: the decoded column that holds the operation of each row; empty for none.
        keyed: whether the stream has a primary key.
    """

    wanted: Sequence[LogColumn]
    values: Values
    operation: str
    keyed: bool

    def __call__(self, messages: Sequence[Message]) -> tuple[pa.Table, pa.Table]:
        """Return the rows of the log, and the dead letters."""
        given = _column(messages, "value")
        places = np.flatnonzero(given.is_valid().to_numpy(zero_copy_only=False))
        rows, errors = self.values(given.drop_null())
        fits = np.ones(len(places), np.bool_)
        fits[list(errors)] = False
        reasons = {int(places[at]): why for at, why in errors.items()}
        places = places[fits]  # of the record of each row
        kinds = None
        if self.operation:
            kinds = self._kinds(rows[self.operation])
            unknown = np.flatnonzero(kinds.is_null().to_numpy(zero_copy_only=False))
            codes = rows[self.operation].take(unknown).to_pylist()
            for at, code in zip(unknown.tolist(), codes, strict=True):
                reasons[int(places[at])] = f"unknown operation {'null' if code is None else code}"
            known = np.delete(np.arange(len(places)), unknown)
            rows, kinds, places = rows.take(known), kinds.take(known), places[known]
        elif len(given) > len(rows) + len(errors) and self._keeps_keys:
            row_of = np.full(len(given), -1)
            row_of[places] = np.arange(len(places))
            places = np.flatnonzero((row_of >= 0) | given.is_null().to_numpy(zero_copy_only=False))
            row_of = row_of[places]
            rows = rows.take(pa.array(row_of, mask=row_of < 0))
        chosen = [messages[at] for at in places.tolist()]
        columns = {one.place: self._of(rows, chosen, one) for one in self.wanted}
        if kinds is not None:
            columns[OPERATION] = kinds
        if not columns:
            columns = {"rows": pa.nulls(len(chosen))}
        return pa.table(columns), _letters(messages, reasons)

    @property
    def _keeps_keys(self) -> bool:
        return any(META.get(one.name.lower()) == "key" for one in self.wanted)

    def _of(self, rows: pa.Table, messages: Sequence[Message], one: LogColumn) -> Any:
        what = META.get(one.name.lower())
        if what is None:
            return rows[one.name].cast(one.type)
        if what == "key" and pa.types.is_string(one.type):
            keys = [message.key() for message in messages]
            return pa.array(
                [k.decode(errors="replace") if isinstance(k, bytes) else k for k in keys]
            )
        return _column(messages, what).cast(one.type)

    def _kinds(self, codes: pa.ChunkedArray) -> pa.Array:
        """Return `APPEND`, `DELETE` or `REPLACED` for each code; null for one that isn't known."""
        appends = APPEND_CODES + UPDATE_CODES if self.keyed else APPEND_CODES
        kinds = pc.case_when(
            pc.make_struct(
                *(pc.is_in(codes, pa.array(o)) for o in (appends, DELETE_CODES, REPLACED_CODES))
            ),
            *map(pa.scalar, (APPEND, DELETE, REPLACED)),
        )
        return kinds.combine_chunks() if isinstance(kinds, pa.ChunkedArray) else kinds


def _column(messages: Sequence[Message], name: str) -> pa.Array:
    """Return one column of records, as in `RAW`."""
    if name == "timestamp":
        stamps = np.array([m.timestamp() for m in messages], np.int64).reshape(-1, 2)
        times = pa.array(stamps[:, 1] * 1000, mask=stamps[:, 0] == 0)
        return times.cast(RAW.field(name).type)
    if name == "timestampType":
        return pa.array(_KINDS[[m.timestamp()[0] for m in messages]])
    if name == HEADERS:
        found = [m.headers() for m in messages]
        rows = [f and [{"key": key, "value": value} for key, value in f] for f in found]
        return pa.array(rows, HEADERS_TYPE)
    values: list[Any]
    if name == "key":
        values = [m.key() for m in messages]
    elif name == "value":
        values = [m.value() for m in messages]
    elif name == "topic":
        values = [m.topic() for m in messages]
    elif name == "partition":
        values = [m.partition() for m in messages]
    else:
        values = [m.offset() for m in messages]
    return pa.array(values, RAW.field(name).type)


def _letters(messages: Sequence[Message], reasons: Mapping[int, str]) -> pa.Table:
    """Return the dead letters of records, by their index; the error also tells where the record is."""
    chosen = [messages[at] for at in sorted(reasons)]
    errors = [
        f"topic {m.topic()}, partition {m.partition()}, offset {m.offset()}: {reasons[at]}"
        for m, at in zip(chosen, sorted(reasons), strict=True)
    ]
    columns = [_column(chosen, "value"), pa.array(errors, pa.string()), _column(chosen, "key")]
    return pa.table(columns, schema=_LETTERS)
