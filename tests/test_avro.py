"""Records of Avro as columns, and schema registries."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from avro import encoded, framed, registry
from eddyline.errors import EddylineError
from eddyline.source.avro import AvroReader, AvroValues
from eddyline.source.avro_schema import UnreadableError, parsed
from eddyline.source.schema_registry import Registry
from schema_registry import schema_registry

POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]}
TYPES: dict[str, tuple[Any, Any, Any]] = {
    "flag": ("boolean", True, True),
    "small": ("int", -5, -5),
    "large": ("long", 2**63 - 1, 2**63 - 1),
    "single": ("float", 1.5, 1.5),
    "double": ("double", -0.1, -0.1),
    "raw": ("bytes", b"\xff\0", b"\xff\0"),
    "text": ("string", "hé", "hé"),
    "nothing": ("null", None, None),
    "maybe": (["null", "long"], 3, 3),
    "missing": (["string", "null"], None, None),
    "single_union": (["string"], "one", "one"),
    "suit": ({"type": "enum", "name": "Suit", "symbols": ["red", "black"]}, "black", "black"),
    "mac": ({"type": "fixed", "name": "Mac", "size": 3}, b"abc", b"abc"),
    "price": (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        Decimal("-1.25"),
        Decimal("-1.25"),
    ),
    "cost": (
        {"type": "fixed", "size": 8, "name": "c.Cost", "logicalType": "decimal", "precision": 10},
        Decimal(7),
        Decimal(7),
    ),
    "day": ({"type": "int", "logicalType": "date"}, 365, date(1971, 1, 1)),
    "at": (
        {"type": "long", "logicalType": "timestamp-millis"},
        1500,
        datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
    ),
    "then": (
        ["null", {"type": "long", "logicalType": "timestamp-micros"}],
        1,
        datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    ),
    "local": ({"type": "long", "logicalType": "local-timestamp-micros"}, 0, datetime(1970, 1, 1)),
    "id": ({"type": "string", "logicalType": "uuid"}, "f81d", "f81d"),
    "clock": ({"type": "int", "logicalType": "time-millis"}, 5, 5),
    "list": ({"type": "array", "items": ["null", "string"]}, ["a", None], ["a", None]),
    "empty": ({"type": "array", "items": "long"}, [], []),
    "map": ({"type": "map", "values": "long"}, {"b": 2, "a": 1}, [("a", 1), ("b", 2)]),
    "no_map": (["null", {"type": "map", "values": "long"}], None, None),
    "point": (POINT, {"x": 1.5}, {"x": 1.5}),
    "points": ({"type": "array", "items": "shop.Point"}, [{"x": 1.0}], [{"x": 1.0}]),
    "no_point": (["null", "Point"], None, None),
}
RECORD = {
    "type": "record",
    "name": "All",
    "namespace": "shop",
    "fields": [{"name": name, "type": kind} for name, (kind, _, _) in TYPES.items()],
}
COLUMNS = pa.schema([(n, part.arrow) for n, part in parsed(json.dumps(RECORD)).parts])
VALUES = {name: value for name, (_, value, _) in TYPES.items()}
EXPECTED = {name: value for name, (_, _, value) in TYPES.items()}


def decoder(*schemas: Any, columns: pa.Schema = COLUMNS) -> AvroValues:
    """Numbers schemas from 1 on."""

    def fetch(number: int) -> Any:
        if number > len(schemas):
            raise UnreadableError("none")
        return parsed(json.dumps(schemas[number - 1]))

    return AvroValues(columns, fetch)


def test_each_type_has_its_column() -> None:
    value = framed(1, RECORD, VALUES)
    table, errors = decoder(RECORD)(pa.array([value] * 3, pa.binary()))
    assert errors == {}
    table.validate(full=True)
    assert table.to_pylist() == [EXPECTED] * 3
    assert str(COLUMNS.field("price").type) == "decimal128(10, 2)"
    assert COLUMNS.field("nothing").type == pa.null()


def test_values_that_are_cut_or_too_long_are_told_apart_from_their_neighbours() -> None:
    dice, whole = random.Random(3), framed(1, RECORD, VALUES)
    values, bad = [], {}
    for at in range(300):
        value = whole
        match dice.randrange(8):
            case 0:
                value, bad[at] = whole[: dice.randrange(5, len(whole))], ""
            case 1:
                value, bad[at] = whole + b"\0", "no value of schema 1: 1 bytes follow it"
            case 2:
                value, bad[at] = whole[: dice.randrange(5)], "no value of Avro: it doesn't begin"
            case 3:
                value, bad[at] = b"{" + whole, "no value of Avro: it doesn't begin"
        values.append(value)
    table, errors = decoder(RECORD)(pa.array(values, pa.binary()))
    assert errors.keys() == bad.keys()
    assert all(errors[at].startswith(why) for at, why in bad.items())
    assert table.to_pylist() == [EXPECTED] * (300 - len(bad))


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_value(seed: int) -> None:
    """What is decoded all the same are values, which are written as the bytes that were read."""
    small = {"type": "record", "name": "S", "fields": [{"name": "s", "type": ["null", "string"]}]}
    columns = pa.schema([("s", pa.string())])
    dice = random.Random(seed)
    noise = [dice.randbytes(dice.randrange(8)) for _ in range(500)]
    values = pa.array([b"\0\0\0\0\1" + one for one in noise], pa.binary())
    table, errors = decoder(small, columns=columns)(values)
    assert len(table) + len(errors) == 500
    good = [one for at, one in enumerate(noise) if at not in errors]
    assert [len(encoded(small, row)) for row in table.to_pylist()] == [len(one) for one in good]


def test_several_schemas_in_one_topic() -> None:
    """Columns are found by name; a narrower number becomes wider, and what a schema lacks is null."""

    def record(**fields: Any) -> Any:
        types = [{"name": name, "type": kind} for name, kind in fields.items()]
        return {"type": "record", "name": "R", "fields": types}

    first, second = record(a="int", old="string"), record(b="string", A="long")
    third = record(a="string")
    columns = pa.schema([("a", pa.int64()), ("b", pa.string())])
    values = [
        framed(1, first, {"a": 1, "old": "x"}),
        framed(2, second, {"b": "y", "A": 2}),
        framed(3, third, {"a": "3"}),
        framed(1, first, {"a": 4, "old": "z"}),
        framed(9, first, {"a": 5, "old": "z"}),
    ]
    table, errors = decoder(first, second, third, columns=columns)(pa.array(values, pa.binary()))
    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "y"}, {"a": 4, "b": None}]
    assert errors == {
        2: "schema 3 can't be read: field a is string, and the column int64",
        4: "schema 9 can't be read: none",
    }


def test_a_value_that_is_no_record_is_the_column_value() -> None:
    columns = pa.schema([("value", pa.string())])
    values = pa.array([framed(1, "string", "a"), framed(1, "string", "b")], pa.binary())
    table, errors = decoder("string", columns=columns)(values)
    assert (table.to_pylist(), errors) == ([{"value": "a"}, {"value": "b"}], {})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (["null", "int", "string"], "a union of null, int, string"),
        ({"type": "record", "name": "R", "fields": []}, "no fields"),
        ({"type": "array", "items": "null"}, "values are nothing"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]},
            "contains itself",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "Q"}]}, "no type Q"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40}, "40 digits"),
        ({"name": "R"}, "no schema of Avro"),
    ],
)
def test_schemas_that_no_columns_can_hold(schema: Any, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        parsed(json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": schema}]})
               if why != "no fields" else json.dumps(schema))  # fmt: skip


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        ("int", pa.float64(), True),
        ("int", pa.decimal128(12, 2), True),
        ("long", pa.int32(), False),
        ("string", pa.binary(), True),
        ("double", pa.string(), False),
        ({"type": "int", "logicalType": "date"}, pa.int32(), False),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int64()), True),
        ({"type": "array", "items": "long"}, pa.list_(pa.int32()), False),
        (POINT, pa.struct([("x", pa.float64()), ("y", pa.string())]), True),
        (POINT, pa.struct([("x", pa.float32())]), False),
    ],
)
def test_types_that_fit_columns(have: Any, want: pa.DataType, fits: bool) -> None:
    kind = parsed(
        json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": have}]})
    )
    if fits:
        AvroReader(kind, pa.schema([("f", want)]))
        return
    with pytest.raises(UnreadableError, match="field f"):
        AvroReader(kind, pa.schema([("f", want)]))


def test_a_registry_gives_schemas_and_those_that_they_refer_to() -> None:
    with registry() as known:
        known.add("points", POINT)
        shape = {"type": "record", "name": "S", "fields": [{"name": "p", "type": "Point"}]}
        references = [{"name": "Point", "subject": "points", "version": 1}]
        number = known.add("shapes-value", shape, references=references)
        known.add("proto", {}, schemaType="PROTOBUF")
        asked = Registry("s", known.url)
        assert asked.numbered(number) == asked.latest("shapes-value")
        assert asked.numbered(number).parts[0][1].parts[0][0] == "x"
        with pytest.raises(UnreadableError, match="has no schema 77"):
            asked.numbered(77)
        with pytest.raises(UnreadableError, match="has no subject none"):
            asked.latest("none")
        with pytest.raises(UnreadableError, match="one of PROTOBUF"):
            asked.latest("proto")
        known.user = "Basic bWU6c2VjcmV0"
        with pytest.raises(EddylineError, match=r"STREAM_FAILED.*401"):
            asked.numbered(number)
        assert Registry("s", known.url, "me:secret").latest("points").parts[0][0] == "x"
    with pytest.raises(EddylineError, match=r"STREAM_FAILED.*doesn't answer"):
        asked.latest("points")


@pytest.mark.slow
def test_a_real_registry_gives_the_same_answers(tmp_path: Path) -> None:
    """Apicurio's; the test before has a server of our own."""
    with schema_registry(tmp_path) as known:
        asked = Registry("s", known.url)
        known.add("points", POINT)
        shape = {"type": "record", "name": "S", "fields": [{"name": "p", "type": "Point"}]}
        references = [{"name": "Point", "subject": "points", "version": 1}]
        first = known.add("shapes/a-value", shape, references=references)
        assert asked.numbered(first) == asked.latest("shapes/a-value")
        assert asked.numbered(first).parts[0][1].parts[0][0] == "x"
        fields = [*shape["fields"], {"name": "n", "type": ["null", "long"], "default": None}]
        second = known.add("shapes/a-value", {**shape, "fields": fields}, references=references)
        assert asked.latest("shapes/a-value") == asked.numbered(second) != asked.numbered(first)
        number = known.add("all", RECORD)
        reader = AvroValues(COLUMNS, asked.numbered)
        table, errors = reader(pa.array([framed(number, RECORD, VALUES)], pa.binary()))
        assert (table.to_pylist(), errors) == ([EXPECTED], {})
        with pytest.raises(UnreadableError, match="has no schema 77"):
            asked.numbered(77)
        with pytest.raises(UnreadableError, match="has no subject none"):
            asked.latest("none")
