"""Records of a data queue: Arrow tables, so that nothing loops over them."""

from __future__ import annotations

from collections.abc import Sequence
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
"""Records as producers give them."""

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
"""Records as they are read.

- `payload`, `key`: the producer's bytes; records with one key may have to stay in order.
- `attempts`, `reason`: how often it has failed, and how it did the last time.
- `position`: where in the queue of new data it stands; it is the record's name for ever.
- `ts`: when it came in.
- `due`: it isn't tried again before then; null: at any time.
"""


def new_records(payloads: Any, keys: Any = None) -> pa.Table:
    """A table of schema `NEW`.

    Args:
        payloads: a table or record batch with `payload` and maybe `key`; or an Arrow array or a
            sequence of bytes or text.
        keys: for an array or a sequence, as many keys; None where there is none.

    Raises:
        QueueError: these aren't records.
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
    """New records as they are read for the first time; `time_ms` is one, or one for each."""
    rows = new.num_rows
    times = np.broadcast_to(np.asarray(time_ms, np.int64) * 1000, rows)
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
    """The records at `places`, each with one attempt more, for a reason: what is to be read again.

    Args:
        records: of schema `RECORDS`.
        places: of those that have failed.
        reasons: one, or one for each.
        due: when each may be tried again; None: at any time.

    Example:
        >>> records = as_read(new_records([b"a", b"b"]), [0, 1], 0)
        >>> failed_records(records, [1], "no answer").select(["payload", "attempts"]).to_pylist()
        [{'payload': b'b', 'attempts': 1}]
    """
    found = records.take(pa.array(np.asarray(places, np.int64)))
    if isinstance(reasons, str):
        given = pa.repeat(pa.scalar(reasons, pa.string()), found.num_rows)
    else:
        given = pa.array(reasons, pa.string())
    attempts = pc.add(found[ATTEMPTS], pa.scalar(1, pa.int32()))
    found = _with(_with(found, ATTEMPTS, attempts), REASON, given)
    return _with(found, DUE, pa.nulls(found.num_rows, TYPE_OF_TIME) if due is None else due)


def _with(records: pa.Table, name: str, values: Any) -> pa.Table:
    return records.set_column(RECORDS.get_field_index(name), RECORDS.field(name), values)


def no_records() -> pa.Table:
    """A table of records without rows."""
    return RECORDS.empty_table()


def encode(table: pa.Table) -> bytes:
    """A table as bytes; its schema is known and not written."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return b""
    (batch,) = batches
    serialized: bytes = batch.serialize().to_pybytes()
    return serialized


def decode(body: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """The table that was encoded.

    Raises:
        pyarrow.ArrowInvalid: the bytes aren't such a table.
    """
    batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def _column(values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    held = list(values)
    text = any(isinstance(value, str) for value in held[:1])
    return pa.array(held, pa.string() if text else pa.binary())
