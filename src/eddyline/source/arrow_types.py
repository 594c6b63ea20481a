"""What Arrow's types hold, and arrays with other arrays within them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa


def holds(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a condition is true of a type, or of one within it.

    Example:
        >>> holds(pa.list_(pa.struct([("a", pa.int64())])), pa.types.is_struct)
        True
    """
    return is_one(kind) or any(
        holds(kind.field(place).type, is_one) for place in range(kind.num_fields)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def with_inner(array: pa.Array, change: Callable[[pa.Array, int], pa.Array]) -> pa.Array:
    """Return an array of structs, lists or maps with others within: the fields, the values, or the keys and the items.

    Args:
        array: one of such a type; also a slice.
        change: what returns the new array for an inner one and its place, from 0 on.

    Example:
        >>> lists = pa.array([[1, 2], None])
        >>> with_inner(lists, lambda values, place: values.cast(pa.string())).to_pylist()
        [['1', '2'], None]
    """
    kind, absent = array.type, array.is_null()
    if pa.types.is_struct(kind):
        fields = [change(array.field(place), place) for place in range(kind.num_fields)]
        types = [one.with_type(field.type) for one, field in zip(kind, fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=types, mask=absent)
    array = array.take(pa.array(np.arange(len(array))))  # the offsets of a slice don't begin at 0
    if not pa.types.is_map(kind):
        values = change(array.values, 0)
        list_of = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        kind = list_of(kind.value_field.with_type(values.type))
        return type(array).from_arrays(array.offsets, values, type=kind, mask=absent)
    keys, items = change(array.keys, 0), change(array.items, 1)
    kind = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=absent)
