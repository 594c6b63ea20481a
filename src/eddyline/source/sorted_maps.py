"""Maps with their entries in the order of their keys: a table finds a row by its bytes, and equal maps have equal ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.source.arrow_types import holds


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


def _sorted(array: pa.Array) -> pa.Array:
    kind, absent = array.type, array.is_null()
    if not holds(kind, pa.types.is_map):
        return array
    if pa.types.is_struct(kind):
        fields = [_sorted(array.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=absent)
    array = array.take(pa.array(np.arange(len(array))))  # the offsets of a slice don't begin at 0
    if not pa.types.is_map(kind):
        values = _sorted(array.values)
        return type(array).from_arrays(array.offsets, values, type=kind, mask=absent)
    keys, items = _sorted(array.keys), _sorted(array.items)
    of = np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))
    try:
        order = pc.sort_indices(
            pa.table({"of": of, "key": keys}), [("of", "ascending"), ("key", "ascending")]
        )
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # keys without an order
        return array
    return pa.MapArray.from_arrays(
        array.offsets, keys.take(order), items.take(order), type=kind, mask=absent
    )
