"""Records of a data queue, as Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.errors import QueueError

PAYLOAD, KEY, ATTEMPTS, REASON, POSITION, TIME, DUE = (
    "payload",
    "key",
    "attempts",
    "reason",
    "position",
    "ts",
    "due",
)

NEW = pa.schema([pa.field(PAYLOAD, pa.binary(), nullable=False), pa.field(KEY, pa.binary())])
"""Schema of the records that producers put."""

RECORDS = pa.schema(
    [
        *NEW,
        pa.field(ATTEMPTS, pa.int32(), nullable=False),
        pa.field(REASON, pa.string()),
        pa.field(POSITION, pa.int64(), nullable=False),
        pa.field(TIME, pa.timestamp("us", "UTC"), nullable=False),
        pa.field(DUE, pa.timestamp("us", "UTC")),
    ]
)
"""Schema of the records that are read.

- `payload`, `key`: the producer's bytes; a pipeline may keep the order of records with one key.
- `attempts`: how often the record has failed.
- `reason`: why it failed the last time.
- `position`: its position in eden; identifies the record for ever.
- `ts`: when it was put.
- `due`: the earliest time of its retry; null for any time.
"""


TIMES_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""The first and the last millisecond of the years 1 to 9999."""


def new_records(payloads: Any, keys: Any = None) -> pa.Table:
    """Return a table of schema `NEW`.

    Args:
        payloads: a table or record batch with the column `payload`, and `key` if records have
            keys; or an Arrow array or a sequence of bytes or text.
        keys: if `payloads` is an array or a sequence, a key or None for each record.

    Raises:
        QueueError: the payloads or keys have another type, or a payload is null.
    """
    try:
        if isinstance(payloads, pa.Table | pa.RecordBatch):
            columns = [payloads[PAYLOAD]]
            if KEY in payloads.schema.names:
                keys = payloads[KEY]
        else:
            columns = [_column(payloads)]
        columns.append(pa.nulls(len(columns[0]), pa.binary()) if keys is None else _column(keys))
        table = pa.table([column.cast(pa.binary()) for column in columns], names=NEW.names)
        if table[PAYLOAD].null_count:
            raise ValueError("a payload is null")
        return table.cast(NEW)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise QueueError(
            f"these are no records: {error}",
            condition="BAD_RECORDS",
            hint="give bytes or text, or an Arrow table with the columns payload and key",
        ) from error


def as_read(new: pa.Table, positions: Any, time_ms: Any) -> pa.Table:
    """Return new records with the schema `RECORDS`; `time_ms` is one time, or one for each.

    Times that Python has no datetime for, which a producer of Kafka may give, become the first or last one.
    """
    rows = new.num_rows
    times = np.broadcast_to(np.clip(np.asarray(time_ms, np.int64), *TIMES_MS) * 1000, rows)
    return pa.table(
        [
            new[PAYLOAD],
            new[KEY],
            pa.array(np.zeros(rows, np.int32)),
            pa.nulls(rows, pa.string()),
            pa.array(np.asarray(positions, np.int64)),
            pa.array(times).cast(pa.timestamp("us")).cast(TYPE_OF_TIME),
            pa.nulls(rows, TYPE_OF_TIME),
        ],
        schema=RECORDS,
    )


TYPE_OF_TIME = RECORDS.field(TIME).type


def failed_records(
    records: pa.Table, places: Any, reasons: str | Sequence[str], due: pa.Array | None = None
) -> pa.Table:
    """Return failed records as they are to be read again: with one more attempt and a reason.

    Args:
        records: a table of schema `RECORDS`.
        places: indices of the records that failed.
        reasons: one reason, or one for each failed record.
        due: the earliest time of each retry; None for any time.

    Example:
        >>> records = as_read(new_records([b"a", b"b"]), [0, 1], 0)
        >>> failed_records(records, [1], "no answer").select(["payload", "attempts"]).to_pylist()
        [{'payload': b'b', 'attempts': 1}]
    """
    found = records.take(pa.array(np.asarray(places, np.int64)))
    if isinstance(reasons, str):
        why = pa.repeat(pa.scalar(reasons, pa.string()), found.num_rows)
    else:
        why = pa.array(reasons, pa.string())
    attempts = pc.add(found[ATTEMPTS], pa.scalar(1, pa.int32()))
    found = _set_column(_set_column(found, ATTEMPTS, attempts), REASON, why)
    return _set_column(found, DUE, pa.nulls(found.num_rows, TYPE_OF_TIME) if due is None else due)


def _set_column(records: pa.Table, name: str, values: Any) -> pa.Table:
    return records.set_column(RECORDS.get_field_index(name), RECORDS.field(name), values)


def no_records() -> pa.Table:
    """Return an empty table of schema `RECORDS`."""
    return RECORDS.empty_table()


def encode(table: pa.Table) -> bytes:
    """Return a table as bytes, without its schema; QueueError BAD_RECORDS if its texts or bytes have 2 GiB or more."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return b""
    if len(batches) > 1:
        raise QueueError(
            f"{table.num_rows:,} records of {table.nbytes / 2**30:.1f} GiB can't be put at once",
            condition="BAD_RECORDS",
            hint="put less than 2 GiB at a time",
        )
    serialized: bytes = batches[0].serialize().to_pybytes()
    return serialized


def decode(body: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """Return the table that `encode` encoded.

    Raises:
        pyarrow.ArrowInvalid: the bytes are not a table of this schema.
    """
    batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def _column(values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"{type(values).__name__} is one value, not a list of them")
    items = list(values)
    kinds = set(map(type, items)) - {type(None)}
    if kinds == {str}:
        return pa.array(items, pa.string())
    if any(issubclass(kind, str) for kind in kinds):
        items = [item.encode() if isinstance(item, str) else item for item in items]
    return pa.array(items, pa.binary())
