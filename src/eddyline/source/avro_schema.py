"""Schemas of Avro: their types as Arrow has them, and how records of them lie in bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa

PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
TIMES: Mapping[str, pa.DataType] = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DIGITS_MAX = 38
_NUMBERS = ("int", "long", "float", "double")

Json: TypeAlias = Any


class UnreadableError(Exception):
    """A schema can't be read, or its types don't fit the columns; the text says why."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type of a schema.

    Attributes:
        name: one of `PRIMITIVES`, or array, map, record, enum, fixed.
        logical: `decimal`, `date` or one of `TIMES`; empty for none, and for those that don't change values.
        parts: names and types of a record's fields; of an array or map the type of its values.
        symbols: of an enum.
        size: of a fixed.
        digits: precision and scale of a decimal.
        null_at: the place of null in the union of null and this type; -1 if it is in no union.
    """

    name: str
    logical: str = ""
    parts: tuple[tuple[str, AvroType], ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    digits: tuple[int, int] = (0, 0)
    null_at: int = -1

    @property
    def arrow(self) -> pa.DataType:
        """The type of its values, as Spark's `from_avro` has them."""
        if self.logical == "decimal":
            return pa.decimal128(*self.digits)
        if self.logical == "date":
            return pa.date32()
        if self.logical:
            return pa.timestamp("us", TIMES[self.logical].tz)
        if self.name in ("array", "map"):
            value = self.parts[0][1].arrow
            return pa.list_(value) if self.name == "array" else pa.map_(pa.string(), value)
        if self.name == "record":
            return pa.struct([(name, part.arrow) for name, part in self.parts if not part.is_empty])
        return pa.string() if self.name == "enum" else PRIMITIVES.get(self.name, pa.binary())

    @property
    def is_empty(self) -> bool:
        """Whether its values take no bytes, and are null."""
        return self.null_at < 0 and (
            self.name == "null"
            or (self.name == "record" and all(part.is_empty for _, part in self.parts))
        )

    def plain(self, numbers: Iterator[int]) -> Json:
        """Return a schema with the same encoding that polars can read.

        A map becomes an array of entries, an enum its number; logical types except decimals are left out, and
        names are shortened.
        """
        if self.null_at >= 0:
            both = ["null", replace(self, null_at=-1).plain(numbers)]
            return both if self.null_at == 0 else both[::-1]
        if self.logical == "decimal":
            precision, scale = self.digits
            inner = (
                self._named("fixed", numbers, size=self.size) if self.size else {"type": "bytes"}
            )
            return {**inner, "logicalType": "decimal", "precision": precision, "scale": scale}
        if self.name == "fixed":
            return self._named("fixed", numbers, size=self.size)
        if self.name == "array":
            return {"type": "array", "items": self.parts[0][1].plain(numbers)}
        if self.name == "map":
            value = self.parts[0][1].plain(numbers)
            fields = [{"name": "key", "type": "string"}, {"name": "value", "type": value}]
            return {"type": "array", "items": self._named("record", numbers, fields=fields)}
        if self.name == "record":
            fields = [
                {"name": f"f{at}", "type": part.plain(numbers)}
                for at, (_, part) in enumerate(self.parts)
                if not part.is_empty
            ]
            return self._named("record", numbers, fields=fields)
        return "int" if self.name == "enum" else self.name

    def _named(self, kind: str, numbers: Iterator[int], **more: Json) -> Json:
        return {"type": kind, "name": f"n{next(numbers)}", **more}


def parsed(text: str, references: Mapping[str, str] | None = None) -> AvroType:
    """Return the record of a schema's text; another type becomes a record of one field, `value`.

    Args:
        references: texts of schemas that it refers to, by name, each after those that it refers to itself.

    Raises:
        UnreadableError: it is no schema, or has a type that no column can hold.
    """
    names: dict[str, AvroType | None] = {}
    try:
        for other in (references or {}).values():
            _parse(json.loads(other), names, "")
        kind = _parse(json.loads(text), names, "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"it is no schema of Avro: {error!r}") from error
    if kind.name != "record" or kind.null_at >= 0:
        kind = AvroType("record", parts=(("value", kind),))
    if kind.is_empty:
        raise UnreadableError("it has no fields")
    return kind


def plain_record(kind: AvroType, before: int, last: str) -> str:
    """Return a record's schema for polars, with a field of some bytes before it, and a long after it."""
    document = kind.plain(count())
    head = {"type": "fixed", "name": "head", "size": before}
    ending = {"name": last, "type": "long"}
    document["fields"] = [{"name": "head", "type": head}, *document["fields"], ending]
    return json.dumps(document)


def _parse(schema: Json, names: dict[str, AvroType | None], space: str) -> AvroType:
    if isinstance(schema, list):
        return _union([_parse(one, names, space) for one in schema])
    if isinstance(schema, str):
        return _primitive(schema, {}) if schema in PRIMITIVES else _known(schema, names, space)
    name = schema["type"]
    if isinstance(name, dict | list):
        return _parse(name, names, space)
    if name in PRIMITIVES:
        return _primitive(name, schema)
    if name in ("array", "map"):
        part = _parse(schema["items" if name == "array" else "values"], names, space)
        if part.is_empty:
            raise UnreadableError(f"it has a type of {name} whose values are nothing")
        return AvroType(name, parts=(("", part),))
    if name not in ("record", "error", "enum", "fixed"):
        return _known(name, names, space)
    full = schema["name"]
    space = schema.get("namespace", space)
    if "." in full:
        space = full.rpartition(".")[0]
    elif space:
        full = f"{space}.{full}"
    names[full] = None  # not known while it is read
    if name == "enum":
        kind = AvroType("enum", symbols=tuple(schema["symbols"]))
    elif name == "fixed":
        kind = replace(_primitive("bytes", schema), size=int(schema["size"]))
        kind = kind if kind.logical else replace(kind, name="fixed")
    else:
        parts = [(one["name"], _parse(one["type"], names, space)) for one in schema["fields"]]
        kind = AvroType("record", parts=tuple(parts))
    names[full] = kind
    return kind


def _known(name: str, names: Mapping[str, AvroType | None], space: str) -> AvroType:
    full = name if "." in name or not space else f"{space}.{name}"
    if full not in names:
        full = name
    if full not in names:
        raise UnreadableError(f"it has no type {name}")
    kind = names[full]
    if kind is None:
        raise UnreadableError(f"its type {name} contains itself")
    return kind


def _primitive(name: str, schema: Mapping[str, Json]) -> AvroType:
    logical = schema.get("logicalType", "")
    if logical == "decimal" and name == "bytes":
        digits = int(schema["precision"]), int(schema.get("scale", 0))
        if digits[0] > _DIGITS_MAX:
            raise UnreadableError(f"a decimal has {digits[0]} digits, more than {_DIGITS_MAX}")
        return AvroType(name, "decimal", digits=digits)
    fits = (name == "int" and logical == "date") or (name == "long" and logical in TIMES)
    return AvroType(name, logical if fits else "")


def _union(kinds: list[AvroType]) -> AvroType:
    others = [kind for kind in kinds if kind.name != "null"]
    if len(others) != 1 or len(kinds) > 2 or others[0].null_at >= 0 or others[0].is_empty:
        shown = ", ".join(kind.name for kind in kinds)
        raise UnreadableError(
            f"it has a union of {shown}: only null and one other type can be read"
        )
    null_at = [at for at, kind in enumerate(kinds) if kind.name == "null"]
    return replace(others[0], null_at=null_at[0] if null_at else 1)


def check_fit(kind: AvroType, want: pa.DataType, path: str) -> None:
    """Raise UnreadableError unless values of a type fit a column's type: the same, or a wider one."""
    have = kind.arrow
    if kind.is_empty or have == want:
        return
    if kind.name == "record" and pa.types.is_struct(want):
        for at, part in matched(kind, [field.name for field in want]).items():
            check_fit(part, want[at].type, f"{path}.{want[at].name}")
        return
    if kind.name == "array" and pa.types.is_list(want):
        check_fit(kind.parts[0][1], want.value_type, f"{path}[]")
        return
    if kind.name == "map" and pa.types.is_map(want) and want.key_type == pa.string():
        check_fit(kind.parts[0][1], want.item_type, f"{path}[]")
        return
    if kind.logical == "decimal":
        fits = pa.types.is_decimal(want)
    elif kind.logical in TIMES:
        fits = pa.types.is_timestamp(want) and (want.tz is None) == (have.tz is None)
    elif kind.name in _NUMBERS and not kind.logical:
        wider = [PRIMITIVES[name] for name in _NUMBERS[_NUMBERS.index(kind.name) :]]
        fits = want in wider or (kind.name in ("int", "long") and pa.types.is_decimal(want))
    else:
        fits = not kind.logical and kind.name in ("bytes", "string") and want in (
            pa.binary(),
            pa.string(),
        )  # fmt: skip
    if not fits:
        raise UnreadableError(f"{path} is {have}, and the column {want}")


def matched(kind: AvroType, names: list[str]) -> dict[int, AvroType]:
    """Return for each name, by its place, the field of a record: of that name, or else in other letter case."""
    exact = dict(kind.parts)
    lower = {name.lower(): part for name, part in reversed(kind.parts)}
    found = {at: exact.get(name, lower.get(name.lower())) for at, name in enumerate(names)}
    return {at: part for at, part in found.items() if part is not None}
