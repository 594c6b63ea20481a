"""Splits the unfinished records of a batch into retries and dead letters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.pipelines.tuples import BatchTuples
from eddyline.relay.lane import DEAD, HELD, REPORTS, RETRY
from eddyline.relay.records import (
    ATTEMPTS,
    KEY,
    PAYLOAD,
    POSITION,
    RECORDS,
    TIME,
    TYPE_OF_TIME,
    failed_records,
)
from eddyline.source.dead_letters import new_letters
from eddyline.state.kernels import ordered


def retries_and_letters(
    batch: BatchTuples, reports: pa.Table, now_ms: int
) -> tuple[pa.Table, pa.Table]:
    """Split the unfinished records into retries and dead letters.

    Args:
        batch: the records of the batch.
        reports: the rows of `REPORTS` from all lanes.
        now_ms: the time now, in milliseconds since 1970.

    Returns:
        The records to read again, by position, and the dead letters.
    """
    failures = reports.filter(pc.is_valid(reports["place"]))
    # drop the other records first: to take rows out of many chunks copies all of them
    unfinished = batch.held.copy()
    unfinished[failures["place"].to_numpy()] = True
    records = batch.records.filter(pa.array(unfinished)).combine_chunks()
    held = batch.held[unfinished]
    new_index = np.cumsum(unfinished) - 1
    failures = failures.set_column(
        REPORTS.get_field_index("place"), "place", pa.array(new_index[failures["place"].to_numpy()])
    )
    retried, blocked, dead = (
        failures.filter(pc.equal(failures["fate"], fate)) for fate in (RETRY, HELD, DEAD)
    )
    failed, buried = (
        failed_records(
            records, part["place"].to_numpy(), part["reason"].to_pylist(), _due(part, now_ms)
        )
        for part in (retried, dead)
    )
    parts = [
        records.filter(pa.array(held)),
        records.take(blocked["place"].combine_chunks()),
        failed,
    ]
    retries = ordered(pa.concat_tables(parts), POSITION)
    letters = new_letters(
        position=buried[POSITION],
        payload=buried[PAYLOAD],
        key=buried[KEY],
        bolt=dead["bolt"],
        error=dead["reason"],
        attempts=buried[ATTEMPTS],
        received=buried[TIME],
    )
    return retries, letters


def untried_records(letters: pa.Table, payload: bytes | None = None) -> pa.Table:
    """Return dead letters as records that have not been tried yet.

    Args:
        payload: replaces the payload of the records; None leaves it.
    """
    replacement = None if payload is None else pa.array([payload] * letters.num_rows, pa.binary())
    columns = {
        PAYLOAD: letters["payload"] if replacement is None else replacement,
        KEY: letters["key"],
        ATTEMPTS: pa.nulls(letters.num_rows, pa.int32()).fill_null(0),
        POSITION: letters["position"],
        TIME: letters["received"],
    }
    return pa.table(
        [columns.get(f.name, pa.nulls(letters.num_rows, f.type)) for f in RECORDS],
        names=RECORDS.names,
    ).cast(RECORDS)


def _due(failures: pa.Table, now_ms: int) -> pa.ChunkedArray:
    """Return the times at which failed records are retried."""
    due_ms = now_ms + np.rint(failures["delay_s"].to_numpy() * 1000).astype(np.int64)
    return pa.chunked_array([due_ms * 1000]).cast(TYPE_OF_TIME)
