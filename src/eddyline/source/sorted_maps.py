"""Maps with their entries in the order of their keys: a table finds a row by its bytes, and equal maps have equal ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.source.arrow_types import holds, with_inner


def with_sorted_maps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose maps, also those within structs, arrays and maps, have their entries in the order of the keys.

    Example:
        >>> kind = pa.map_(pa.string(), pa.int64())
        >>> with_sorted_maps(pa.chunked_array([pa.array([{"b": 1, "a": 2}], kind)]))[0].as_py()
        [('a', 2), ('b', 1)]
    """
    if not holds(column.type, pa.types.is_map):
        return column
    return pa.chunked_array([_sorted(chunk) for chunk in column.chunks], column.type)


def _sorted(array: pa.Array, _: int = 0) -> pa.Array:
    if not holds(array.type, pa.types.is_map):
        return array
    array = with_inner(array, _sorted)
    if not pa.types.is_map(array.type):
        return array
    keys, items = array.keys, array.items
    of = np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))
    try:
        order = pc.sort_indices(
            pa.table({"of": of, "key": keys}), [("of", "ascending"), ("key", "ascending")]
        )
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # keys without an order
        return array
    return pa.MapArray.from_arrays(
        array.offsets, keys.take(order), items.take(order), type=array.type, mask=array.is_null()
    )
