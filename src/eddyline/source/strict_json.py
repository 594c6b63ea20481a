"""Lines of JSON whose values have exactly the types of their columns, decoded by msgspec.

This is the fast way of `json.JsonDecoder`: most blocks have one object a line, without values that only Spark's rules
convert (a number in a STRING column, a quoted number in an INT). msgspec skips members that no column
wants, and takes the last of two members with one name, as Spark does.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

_OPENING, _CLOSING = b"{}"


class StrictDecoder:
    """Decodes blocks of lines into columns of texts, integers, doubles and booleans; see `_decoded_type`."""

    def __init__(self, schema: pa.Schema) -> None:
        """Decode the columns of a schema.

        Raises:
            ValueError: a column has a type that isn't read strictly, or a name that msgspec can't look for.
        """
        fields = [(f"c{i}", _in_python(kind) | None, None) for i, kind in enumerate(schema.types)]
        names = {f"c{i}": name for i, name in enumerate(schema.names)}
        # without cyclic garbage collection: lines hold no other objects
        line = msgspec.defstruct("Line", fields, rename=names, gc=False)
        self._decoder = msgspec.json.Decoder(line)
        self._columns = [
            (attrgetter(f"c{i}"), _decoded_type(kind)) for i, kind in enumerate(schema.types)
        ]

    def columns(self, block: bytes, breaks: np.ndarray[Any, Any]) -> list[pa.Array]:
        """Return the columns of a block of whole lines.

        Args:
            breaks: the places of its line feeds.

        Raises:
            ValueError, RecursionError: a line isn't one JSON object, or a value isn't of its column's type.
        """
        lines = len(breaks) + (not block.endswith(b"\n"))
        if not (
            block.startswith(b"{") and block.endswith((b"}", b"}\n")) and _apart(block, breaks)
        ):
            raise ValueError("a line isn't one object")
        if not block.isascii():
            block.decode()  # msgspec doesn't check the members that it skips
        rows = self._decoder.decode_lines(block)
        if len(rows) != lines:
            raise ValueError("a line holds several objects")
        return [pa.array(list(map(get, rows)), kind) for get, kind in self._columns]


def _apart(block: bytes, breaks: np.ndarray[Any, Any]) -> bool:
    """Return whether each line feed is between two objects; no JSON has `}` and `{` side by side within an object."""
    data = np.frombuffer(block, np.uint8)
    between = breaks[:-1] if block.endswith(b"\n") else breaks
    return bool((data[between - 1] == _CLOSING).all() and (data[between + 1] == _OPENING).all())


def _decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which the values of a column come from JSON, before they are converted to its own."""
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_date32(kind) else kind


def _in_python(kind: pa.DataType) -> Any:
    """Return the type that msgspec gives the values of a column; ValueError if they aren't read strictly."""
    if pa.types.is_integer(kind):
        most = (1 << kind.bit_width - 1) - 1
        return Annotated[int, msgspec.Meta(ge=-most - 1, le=most)]
    found = _IN_PYTHON.get(_decoded_type(kind))
    if found is None:
        raise ValueError(f"{kind} isn't read strictly")
    return found


_IN_PYTHON: dict[pa.DataType, type] = {pa.string(): str, pa.float64(): float, pa.bool_(): bool}
