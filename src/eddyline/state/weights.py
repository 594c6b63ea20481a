"""Weights of rows: deletes among changes, and the check that no stored row has a negative one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH, WEIGHT
from eddyline.errors import StateError


def deletes_in(weights: pa.ChunkedArray | pa.Array) -> int:
    """Return how many rows of a delta are deletes, by their weights, which are negative then."""
    return int(np.count_nonzero(weights.to_numpy() < 0))


def check_held(holder: str, rows: pa.Table, **context: object) -> None:
    """Check the weights of rows that are held, not those of changes.

    Args:
        holder: name of the state that holds the rows, for the message.
        rows: consolidated rows with their weights.
        context: the objects concerned, for the message.

    Raises:
        StateError: NEGATIVE_WEIGHT: a weight is below zero; the message names the row.
    """
    least = pc.min(rows[WEIGHT])  # compared in Python: pc.less with a number imports pandas
    if not rows.num_rows or least.as_py() >= 0:
        return
    row = rows.filter(pc.equal(rows[WEIGHT], least)).slice(0, 1).to_pylist()[0]
    raise StateError(
        f"{holder} holds a row less than zero times",
        condition="NEGATIVE_WEIGHT",
        **context,
        row={name: value for name, value in row.items() if name != HASH},
        hint="the state doesn't belong to the input; drop and create again the view",
    )
