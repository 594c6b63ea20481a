"""The values of JSON as Python values, converted by the rules of Spark's reader."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from eddyline.source.timestamps import day, instant, local_time

TEXT, INTEGER, FLOAT, BOOLEAN, OTHER = range(5)  # kinds of tokens

_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_INFINITE = {"+INF", "+Infinity", "Infinity"}, {"-INF", "-Infinity"}
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_EXACT = Context(prec=76)
_BASE64 = re.compile(rb"[\x00-\x20]*([A-Za-z0-9+/]{2}(?:==|[A-Za-z0-9+/]=|[A-Za-z0-9+/]{2}))")


class Token(NamedTuple):
    """A value as it is written.

    Attributes:
        kind: `TEXT`, `INTEGER`, `FLOAT`, `BOOLEAN`, or `OTHER` for null, an array or an object.
        text: a text without quotes and escapes, or the value as it is written.
        parts: of an array or object whose type has inner types: the names and values in it.
    """

    kind: int
    text: str
    parts: Sequence[tuple[str, Token]] = ()


Convert: TypeAlias = Callable[[Token], Any]


def converter(kind: pa.DataType, zone: str) -> Convert:
    """Return the function that converts a token; it raises ValueError if it doesn't fit the type.

    Timestamps are microseconds, and dates days since 1970.

    Args:
        zone: time zone of timestamps without an offset.
    """
    if kind in _BITS:
        return partial(_integer, _BITS[kind])
    if pa.types.is_timestamp(kind):
        return partial(_instant, zone) if kind.tz else _local_time
    if pa.types.is_decimal(kind):
        return partial(_decimal, kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return partial(_list, _nullable(kind.value_type, zone))
    if pa.types.is_struct(kind):
        return partial(_struct, {one.name: _nullable(one.type, zone) for one in kind})
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return partial(_map, _nullable(kind.item_type, zone))
    simple: Mapping[pa.DataType, Convert] = {
        pa.string(): lambda token: token.text,
        pa.bool_(): _boolean,
        pa.float32(): _single,
        pa.float64(): _double,
        pa.date32(): _day,
        pa.binary(): _binary,
    }
    return simple.get(kind, _unsupported)


def _nullable(kind: pa.DataType, zone: str) -> Convert:
    convert = converter(kind, zone)
    return lambda token: None if is_null(token) else convert(token)


def is_null(token: Token) -> bool:
    """Return whether a value is written as null."""
    return token.kind == OTHER and token.text == "null"


def halfway(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which numbers may lie halfway between two neighbouring floats of 32 bits."""
    low = values.view(np.int64) & ((1 << 29) - 1)
    tiny = (np.abs(values) < np.float64(2) ** -126) & (values != 0)
    halves: np.ndarray[Any, Any] = (low == 1 << 28) | tiny
    return halves


def _integer(bits: int, token: Token) -> int:
    if token.kind != INTEGER:
        raise ValueError
    value, limit = int(token.text), 1 << bits - 1
    if bits == 8 and limit <= value < 2 * limit:  # Jackson takes bytes without sign, too
        return value - 2 * limit
    if not -limit <= value < limit:
        raise ValueError
    return value


def _boolean(token: Token) -> bool:
    if token.kind != BOOLEAN:
        raise ValueError
    return token.text == "true"


def _double(token: Token) -> float:
    kind, text = token.kind, token.text
    if text == "NaN":
        return float("nan")
    for infinite, value in zip(_INFINITE, (float("inf"), float("-inf")), strict=True):
        if text in infinite:
            return value
    if kind not in (INTEGER, FLOAT):
        raise ValueError
    return 0.0 if kind == INTEGER and text == "-0" else float(text)


def _single(token: Token) -> float:
    """Return the nearest number of 32 bits; rounding by way of 64 bits can miss it."""
    kind, text = token.kind, token.text
    value = _double(token)
    with np.errstate(over="ignore"):
        near = float(np.float32(value))
    if kind == INTEGER and len(text.lstrip("-")) > 18:
        return near
    if kind == TEXT or not np.isfinite(near) or not halfway(np.array([value])).any():
        return near
    exact, single = Fraction(text), np.float32(near)
    around = [np.nextafter(single, np.float32(side)) for side in ("-inf", "inf")]
    nearest = min(
        (single, *(one for one in around if np.isfinite(one))),
        key=lambda one: (abs(Fraction(float(one)) - exact), one.view(np.int32) & 1),
    )
    return float(nearest)


def _decimal(precision: int, scale: int, token: Token) -> Decimal:
    text = token.text.replace(",", "") if token.kind == TEXT else token.text
    if token.kind not in (TEXT, INTEGER, FLOAT) or not _DECIMAL.fullmatch(text):
        raise ValueError
    try:
        found = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    except ArithmeticError:
        raise ValueError from None
    if found and len(found.as_tuple().digits) > precision:
        raise ValueError
    return found


def _day(token: Token) -> int:
    if token.kind != TEXT:
        raise ValueError
    return day(token.text)


def _instant(zone: str, token: Token) -> int:
    if token.kind == INTEGER:
        seconds = int(token.text)
        if not -(1 << 63) <= seconds < 1 << 63:
            raise ValueError
        return _wrapped(seconds * 1_000_000)
    if token.kind != TEXT:
        raise ValueError
    return instant(token.text, zone)


def _wrapped(value: int) -> int:
    """Return the 64 low bits as a number, as Java's multiplication does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _local_time(token: Token) -> int:
    if token.kind != TEXT:
        raise ValueError
    return local_time(token.text)


def _binary(token: Token) -> bytes:
    if token.kind != TEXT:
        raise ValueError
    text = token.text.encode().rstrip(bytes(range(0x21)))
    parts = _BASE64.findall(text)
    if _BASE64.sub(b"", text):
        raise ValueError
    return b"".join(map(b64decode, parts))


def _list(item: Convert, token: Token) -> list[Any]:
    if token.text[:1] != "[" or token.kind != OTHER:
        raise ValueError
    return [item(part) for _, part in token.parts]


def _struct(fields: Mapping[str, Convert], token: Token) -> dict[str, Any]:
    if token.text[:1] != "{" or token.kind != OTHER:
        raise ValueError
    found: dict[str, Any] = dict.fromkeys(fields)
    found.update((name, fields[name](part)) for name, part in token.parts if name in fields)
    return found


def _map(item: Convert, token: Token) -> list[tuple[str, Any]]:
    """Return the entries of a map; of a repeated key the last value."""
    if token.text[:1] != "{" or token.kind != OTHER:
        raise ValueError
    return list({name: item(part) for name, part in token.parts}.items())


def _unsupported(_token: Token) -> Any:
    raise ValueError
