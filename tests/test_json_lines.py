"""Lines of JSON: every line is read as Spark's own reader reads it, whatever stands beside it."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from eddyline import Engine
from eddyline.source.jackson import LineParser
from eddyline.source.json import JsonDecoder, _places, decode_documents
from eddyline.source.lines import read_json
from eddyline.source.strict_json import StrictDecoder
from eddyline.spark.schema import arrow_schema
from eddyline.spark.session import local_session

COLUMNS = (
    "s STRING, y BYTE, h SHORT, i INT, l BIGINT, g FLOAT, d DOUBLE, b BOOLEAN, t TIMESTAMP, "
    "z TIMESTAMP_NTZ"
)
SCHEMA = pa.schema(
    [
        *(("s", pa.string()), ("y", pa.int8()), ("h", pa.int16()), ("i", pa.int32())),
        *(("l", pa.int64()), ("g", pa.float32()), ("d", pa.float64()), ("b", pa.bool_())),
        *(("t", pa.timestamp("us", "UTC")), ("z", pa.timestamp("us"))),
    ]
)
NAMES = [name.encode() for name in SCHEMA.names]

NUMBERS = [
    *(
        b"1",
        b"1.0",
        b"5.50",
        b"1e3",
        b"-0",
        b"-0.0",
        b"0",
        b"00",
        b"01",
        b"-01",
        b".5",
        b"5.",
        b"1.e3",
    ),
    *(b"1e", b"1E+2", b"+1", b"127", b"128", b"200", b"255", b"256", b"-128", b"-129", b"32768"),
    *(
        b"2147483647",
        b"2147483648",
        b"9223372036854775807",
        b"9223372036854775808",
        b"-" + b"9" * 19,
    ),
    *(b"18446744073709551615", b"1" * 39, b"1" * 40, b"1" * 400, b"1" * 1000, b"1" * 1001),
    *(b"0." + b"1" * 999, b"0." + b"1" * 1000, b"0." + b"1" * 1001, b"1e" + b"1" * 20),
    *(
        b"1.7976931348623157e308",
        b"1.7976931348623159e308",
        b"1e400",
        b"-1e400",
        b"5e-324",
        b"1e-400",
    ),
    *(b"3.4028236e38", b"1e39", b"1e-45", b"7e-46", b"0.1", b"16777217", b"16777217.0000001"),
    *(b"16777217.0", b"9007199791611905", b"9007199791611905.0", b"9007199791611904.99999"),
    *(b"1700000000000", b"1700000000", b"-1700000000", b"9223372036854", b"9223372036855", b"-INF"),
    *(b"NaN", b"Infinity", b"-Infinity", b"+Infinity", b"+INF", b"INF", b"-NaN", b"1 x", b"/*c*/1"),
]
OTHERS = [
    *(
        b"true",
        b"false",
        b"null",
        b"nul",
        b"truex",
        b"",
        b"]",
        b"}",
        b",",
        b"nope",
        b"\xff",
        b"{}",
        b"[]",
    ),
    *(
        b'{"a":1}',
        b'{ "a" : 1.0 , "b":[1, 2 ]}',
        b"[1,]",
        b'{"a"}',
        b'{"a":01}',
        b'"NaN"',
        b'"INF"',
    ),
    *(b'"+Infinity"', b'"-INF"', b'""', b'" "', b'"1"', b'"1.5"', b'"true"', b"'one'", b"'a\"b'"),
    *(b"'it\\'s'", b'"a\\qb"', rb'"\ud800"', rb'"\udc00"', rb'"\ud83d\ude00"', rb'"\ud800\u0041"'),
    *(
        rb'"\ude00\ud83d"',
        rb'"\u00e9"',
        rb'"\u0000"',
        rb'"\u12g4"',
        rb'"\u12"',
        b'"a\tb"',
        b'"a\x00b"',
    ),
    *(
        b'"\x7f"',
        b'"\xff"',
        b'"\xc0\x80"',
        b'"\xe0\x80\x80"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
    ),
    *(
        b'"\xf0\x80\x80\x80"',
        b'"\xc3"',
        b'"\xe2\x82"',
        '"é€😀"'.encode(),
        rb'"\/\b\f\n\r\t\\\""',
        b'"cut',
    ),
]
TIMES = [
    *(
        "2026-01-01T10:00:00Z",
        "2026-01-01 10:00:00",
        "2026-01-01",
        "2026-01",
        "2026",
        "026",
        "20260101",
    ),
    *(
        "2026-1-1",
        "2026-1-1 1:2:3",
        "2026-01-01T10",
        "2026-01-01T10:",
        "2026-01-01T10:30",
        "2026-01-01Z",
    ),
    *(
        "2026-01-01T10:30Z",
        "2026-01-01T10Z",
        "2026-01-01T10:30:",
        "2026-01-01T10:30:05.",
        "2026-13-01",
    ),
    *("2026-01-01T10:30:05.1", "2026-01-01T10:30:05.123456789", "2026-01-01T10:30:05.1234567Z"),
    *(
        "2026-01-01T10:30:05.12 Z",
        "2026-01-01T10:30:05+01:00",
        "2026-01-01T10:30:05+0100",
        "2026-02-29",
    ),
    *("2026-01-01T10:30:05+01", "2026-01-01T10:30:05+1", "2026-01-01T10:30:05+1:0", "2026-01-00"),
    *("2026-01-01T10:30:05+18:00", "2026-01-01T10:30:05+18:01", "2026-01-01T10:30:05-00:00"),
    *("2026-01-01T10:30:05+01:60", "2026-01-01T10:30:05+01:02:03", "2026-01-01T10:30:05+010203"),
    *("2026-01-01T10:30:05 Europe/Berlin", "2026-03-29T02:30:00 Europe/Berlin", "2026/01/01"),
    *(
        "2026-10-25T02:30:00Europe/Berlin",
        "2026-01-01T10:30:05[Europe/Berlin]",
        "2026-01-01t10:00:00",
    ),
    *(
        "2026-01-01T10:30:05 CET",
        "2026-01-01T10:30:05 EST",
        "2026-01-01T10:30:05 PST",
        "2024-02-29",
    ),
    *(
        "2026-01-01T10:30:05UTC+01:30",
        "2026-01-01T10:30:05GMT+01:00",
        "2026-01-01T10:30GMT",
        "epoch",
    ),
    *(
        "2026-01-01T10:30:05 UT-3",
        "2026-01-01T10:30:05 europe/berlin",
        "2026-01-01T24:00:00",
        "now",
    ),
    *(
        "2026-01-01T23:59:60",
        "0000-01-01",
        "0001-01-01",
        "-0001-01-01",
        "+2026-01-01",
        "1582-10-10",
    ),
    *(
        "12026-01-01",
        "294247-01-10T04:00:54.775807Z",
        "294247-01-10T04:00:54.775808Z",
        "999999-01-01",
    ),
    *(
        "-290308-12-21T19:59:05.224192Z",
        "-290308-12-21T19:59:05.224191Z",
        "1000000-01-01",
        "2026-001",
    ),
    *("1900-01-01T00:00:00 Europe/Berlin", "0300-01-01T00:00:00 Europe/Berlin", " 2026-01-01 "),
    *("12026-07-01T00:00:00 Europe/Berlin", "-0300-01-01T00:00:00 Europe/Berlin", "1700000000"),
    *("2026-01-01  10:00:00", "2026-01-01T10:00:00,5", "2026-01-01T10:00:00..", "1700000000.5"),
    *("9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z", "2026-01-01T10:30:05 IST"),
]
WHOLE = [
    *(
        b"",
        b" ",
        b"\t",
        b"null",
        b"5",
        b'"x"',
        b"true",
        b"[]",
        b"[ ]",
        b'[{"i":1}]',
        b'[{"i":1},{"i":2}]',
    ),
    *(b'[{"i":1},5]', b'[{"i":1},null]', b'[{"i":"x","d":1},{"i":2}]', b'[{"i":1}', b'[{"i":1},]'),
    *(
        b'[[{"i":1}]]',
        b"[5]",
        b"[null]",
        b'[{"i":1}] x',
        b'{"i":1} x',
        b'{"i":1}{"i":2}',
        b'{"i":1},',
    ),
    *(
        b'{"i":1',
        b'{"i"',
        b"{",
        b'{"i":1,}',
        b"{,}",
        b'{"i" 1}',
        b'{"i":1 "d":2}',
        b"{'i':1}",
        b"{i:1}",
    ),
    *(
        b'{"I":1,"i":2}',
        rb'{"\u0069":1}',
        rb'{"i":1,"\u0069":2}',
        rb'{"\u0069":1,"i":2}',
        b'{"i":1,"i":2}',
    ),
    *(
        b'{"t":"x","t":"2026-01-31"}',
        rb'{"\u0074":"x","t":"2026-01-31"}',
        b'{"t":"2026-01-31","t":"x"}',
        b'{"g":1e39,"g":1}',
        b'{"t":"x","t":null}',
        b'{"t":null,"t":"2026-01-31"}',
        b'{"i":1,"i":null}',
        b'{"i":null,"i":1}',
        b'{"i":1,"i":"x"}',
        b'{"x":{"i":3},"i":1}',
        b'{"":1,"i":2}',
    ),
    *(
        b'{"i":1,"x":[{"i":3}]}',
        b'\xef\xbb\xbf{"i":1}',
        b"\xef\xbb\xbf",
        b'{"i":1}\x00',
        b'\x00{"i":1}',
    ),
    *(
        b'\x0c{"i":1}',
        b'{"i":\x0c1}',
        b'{"s":"a\\q, "i":1}',
        b'{"s":"a\\q","i":1}',
        b'{"s":"a\t,"i":1}',
    ),
    *(b'{"x":"a\t,"i":1}', b'{"i":1,"s":"a\t}', b'{"s":"\xff, "i":1}', b'{"s":"\xc3","i":1}'),
    *(b'{"x":' + b"[" * n + b"]" * n + b',"i":1}' for n in (998, 999, 1000, 1023)),
    *(b'{"%s":' % name + b"[" * 5000 + b"]" * 5000 + b',"l":1}' for name in (b"s", b"i")),
    *(
        b'{"x":' + b"[" * 5000,
        b'{"' + b"n" * 49_990 + b'":1,"i":1}',
        b'{"' + b"n" * 50_001 + b'":1,"i":1}',
    ),
    *(
        b'\r{"i":1}\r',
        b'{"i":1}\r{"i":2}',
        b'{"i":\r1}',
        b'{"i":1}\r\n{"i":2}\r',
        b'{"i":1}\r\r\n{"i":2}\n\r',
    ),
    *(
        b'{"i":1, /*c*/ "d":2}',
        b'{"s":{"s":5.0}}',
        rb'{"x":"i\":2","i":1}',
        rb'{"x":"\"i\":2","i":1}',
    ),
    *(
        b'{"kind":"i","i":1}',
        b'{"x":"{","i":1,"i":2}',
        rb'{"x":"\\","i":1,"i":2}',
        b'{ "i" : 1 , "i" : 2 }',
    ),
    *(
        rb'{"x":"\\\"i\":1","i":2}',
        b'{"s":12345}',
        b'{"s":"12345"}',
        b'{"s": [1,2 , 3.0] }',
        b'{"s":0.10}',
    ),
    *(
        b'{"i":1,"s":%s,"l":2,"d":0.5}' % value  # Spark goes on where the parser stops
        for value in (
            *(
                b'{"a":1"',
                b'{"a":1x}',
                b'{"a":1]',
                b'{"a":1:',
                b'{"a":x}',
                b"[x, 1]",
                b"[1 2]",
                b"[1",
            ),
            *(b'{"i":5 7}', b'["a\\q"]', b'[1,"a\tb"]', b"[trux,1]", b"[truex,1]", b"[01]", b"[-]"),
            *(b"[1.]", b"[1ex]", b'[1,\xc3\xa9"]', b'{"a" 1}', b"{a:1}", b"[[1,x],2]", b"[{},x]"),
            *(
                b'["a\\q", {"i": 3}]',
                b'[+1, {"s": 4}]',
                b'[-Inx, {"s": 4}]',
                b"[+IX,1]",
                b"{\xc3\xa9}",
                b'[nul, {"i": 3}]',
                b"[" * 1000 + b"]" * 1000,
            ),
        )
    ),
    *('{"i":1}'.encode(encoding) for encoding in ("utf-16-be", "utf-16-le", "utf-32-be")),
]


def corpus() -> Iterator[bytes]:
    yield from WHOLE
    for value in (*NUMBERS, *OTHERS):
        for name in NAMES:
            yield b'{"%s": %s}' % (name, value)
        yield b'{"i":7,"x":%s,"s":"k"}' % value
        yield b'{"i":7,"i":%s,"d":2}' % value
        yield b'{"i":%s,"i":7,"d":2}' % value
    for time in TIMES:
        for name in ("t", "z"):
            yield json.dumps({name: time}).encode()


def fuzzed(source: random.Random, lines: int, odd: float) -> list[bytes]:
    """Return lines, of which about this share has an odd value or a damage."""
    return [_line(source, source.random() < odd) for _ in range(lines)]


def _line(source: random.Random, odd: bool) -> bytes:
    plain: dict[bytes, list[bytes]] = {
        b"s": [b'"a"', b'"b c"', b'"12"', b"null", '"é"'.encode()],
        b"y": [b"5", b"-7"],
        b"h": [b"300"],
        b"i": [b"70000", b"0", b"null"],
        b"l": [b"5000000000", b"-1"],
        b"g": [b"0.5", b"3", b"-2.25e1", b"0.1"],
        b"d": [b"0.1", b"1e10", b"12"],
        b"b": [b"true", b"false"],
        b"t": [b'"2026-01-01T10:00:00Z"', b'"2026-01-31 10:00:00.5"'],
        b"z": [b'"2026-01-01T10:00:00"', b'"2026-01-31"'],
        b"x": [b'{"i":[1,{"s":"q"}]}', b'"i"'],
    }
    names = source.sample([*NAMES, b"x"], source.randrange(1, 8))
    members = [(name, source.choice(plain[name])) for name in names]
    if not odd:
        return b"{" + b", ".join(b'"%s": %s' % member for member in members) + b"}"
    for _ in range(source.randrange(3)):
        name = source.choice([*NAMES, b"x", rb"\u0069", b"I"])
        times = [json.dumps(time).encode() for time in TIMES]
        value = source.choice(source.choice([NUMBERS, OTHERS, times, plain.get(name, OTHERS)]))
        members.insert(source.randrange(len(members) + 1), (name, value))
    quote, blank = source.choice([b'"', b'"', b"'"]), source.choice([b"", b" ", b"\t"])
    line = b",".join(quote + name + quote + blank + b":" + blank + value for name, value in members)
    line = blank + b"{" + line + b"}"
    if source.random() < 0.2:
        line = b"[%s]" % b",".join([line] * source.randrange(3))
    for _ in range(source.choice([0, 0, 1, 2])):
        at = source.randrange(len(line) + 1)
        some = source.choice([b"", b'"', b",", b"}", b"]", b"\\", b"0", b" ", b"\t"])
        line = line[:at] + some + line[at + source.randrange(2) :]
    return line


def decoded(path: Path, schema: pa.Schema = SCHEMA) -> list[tuple[Any, ...]]:
    tables = [schema.empty_table(), *read_json(str(path), schema)]
    return comparable(pa.concat_tables(tables))


def comparable(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return rows whose values can be compared: NaN equals NaN, and -0.0 isn't 0.0."""
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        if pa.types.is_floating(column.type):
            column = pc.cast(column.cast(pa.float64()), pa.string())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def single(lines: Iterable[bytes]) -> list[bytes]:
    """Return the lines that are one line of a file and one document."""
    return [line for line in lines if not set(line) & set(b"\r\n")]


def documents(lines: list[bytes]) -> tuple[list[tuple[Any, ...]], dict[int, Exception]]:
    rows, errors = decode_documents(pa.chunked_array([lines], pa.binary()), SCHEMA, "UTC")
    return comparable(rows), errors


def by_spark(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return comparable(spark.read.schema(COLUMNS).json(str(path)).toArrow())


def written(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "lines.json"
    path.write_bytes(b"\n".join(lines))
    return path


def differences(folder: Path, lines: list[bytes]) -> list[Any]:
    """Return the lines that are read in another way beside others than alone, or line by line."""
    found = []
    for line in lines:
        alone = decoded(written(folder, [b"", line]))  # a file may begin with one more mark
        among = decoded(written(folder, [b"", line, b"{", line]))
        if among != [*alone, (None,) * len(SCHEMA), *alone]:
            found.append((line[:200], alone, among))
    return found


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    session = local_session().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def test_a_line_is_read_alike_alone_and_beside_a_malformed_one(tmp_path: Path) -> None:
    assert differences(tmp_path, list(corpus())) == []


@pytest.mark.parametrize(
    # a lone carriage return in the header of gzip ends a line, too
    "compressed",
    [partial(gzip.compress, mtime=13), zlib.compress, pa.Codec("zstd").compress],
)
def test_bytes_are_not_decompressed_that_no_name_calls_compressed(
    tmp_path: Path, compressed: Callable[[bytes], bytes], spark: SparkSession
) -> None:
    path = tmp_path / "plain.json"
    path.write_bytes(bytes(compressed(b'{"i": 1}\n{"i": 2}\n')))
    assert decoded(path) == by_spark(spark, path)


PLAIN = b'{"i": 1, "s": "k"}'
SPREAD = [  # as many objects as lines, but not one in each line
    [b'{"i":1}{"i":2}', b'{"i":', b"3}"],
    [b'{"i":1} {"i":2}', b'{"s":"a}', b'{b"}'],
    [b'{"i":1}{"i":2}', b'{"x":{}', b'{"i":3}}'],
    [b'{"i":1}{"i":2}', b'{"x":[{}', b'{}],"i":3}'],
    [b'{"i":1}{"i":2}', b'{"x":{}', b',"i":3}'],
]


@pytest.mark.parametrize("end", [b"", pytest.param(b"\n", marks=pytest.mark.slow)])
def test_a_line_is_read_alike_among_plain_ones(tmp_path: Path, end: bytes) -> None:
    blocks = [[line] for line in corpus()] + SPREAD
    for block in ([PLAIN, *lines, PLAIN] for lines in blocks):
        by_line = decoded(written(tmp_path, [b"{", *block]))[1:]
        assert decoded(written(tmp_path, [*block[:-1], block[-1] + end])) == by_line, block[1:-1]
        if len(block) == 3:
            assert decoded(written(tmp_path, [PLAIN, block[1] + end])) == by_line[:-1], block[1]


def test_documents_whose_name_ends_in_a_carriage_return() -> None:
    for repeated in (b'{"b":false,"b"\r:-0.5}', b'{"t"\r:"x","t":"2026-01-31"}'):
        assert list(documents([PLAIN, repeated, PLAIN])[1]) == [1]


def test_plain_lines_are_decoded_by_msgspec_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("polars.read_ndjson")
    monkeypatch.delattr(LineParser, "rows")
    first = {"s": "é", "y": 1, "d": 2, "t": TIMES[0], "b": None}
    lines = [json.dumps(first, ensure_ascii=False).encode(), PLAIN]
    lines.append(b'{"s": "n", "t": null, "g" : null}')
    wanted = [("é", 1, None, None), ("k", None, None, 1), ("n", None, None, None)]
    assert [row[:4] for row in decoded(written(tmp_path, lines))] == wanted
    assert [row[:4] for row in documents(lines)[0]] == wanted


def test_blocks_of_other_values_are_soon_left_to_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def spied(decoder: StrictDecoder, block: bytes, *_: object) -> list[pa.Array]:
        tried.append(len(block))
        return columns(decoder, block, *_)

    columns = StrictDecoder.columns
    monkeypatch.setattr(StrictDecoder, "columns", spied)
    decoder = JsonDecoder(SCHEMA, "UTC")
    other = b'{"s": 5}\n' * 10
    for block in (other, PLAIN + b"\n", *[other] * 5):
        assert sum(table.num_rows for table in decoder.tables(block)) == block.count(b"\n")
    assert len(tried) == 4


def test_a_document_that_is_decoded_is_the_row_of_its_line(tmp_path: Path) -> None:
    lines = single(corpus())
    rows, errors = documents(lines)
    fitting = [line for place, line in enumerate(lines) if place not in errors]
    assert 200 < len(fitting) < len(lines) - 1000
    assert rows == decoded(written(tmp_path, [b"", *fitting]))
    for place, line in enumerate(lines):
        alone, error = documents([line])
        assert (len(alone), len(error)) == ((0, 1) if place in errors else (1, 0)), line
        assert [str(one) for one in error.values()] == [str(errors[at]) for at in [place] if error]


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1 << 60))
def test_a_block_of_documents_is_decoded_like_each(seed: int) -> None:
    source = random.Random(seed)
    lines = single(fuzzed(source, 200, odd=source.choice([0.0, 0.02, 0.5])))
    rows, errors = documents(lines)
    alone, others = documents([*lines, b"{"])
    assert (rows, list(errors)) == (alone, list(others)[:-1])


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1 << 60))
def test_a_block_is_read_like_its_lines(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    source = random.Random(seed)
    lines = fuzzed(source, 40, odd=source.choice([0.0, 0.02]))
    together = decoded(written(folder, lines))
    poisoned = decoded(written(folder, [*lines, b"{"]))
    assert together == poisoned[:-1]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 60), letters=st.integers(2, 9))
def test_longer_names_are_found_as_short_ones(
    seed: int, letters: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    source = random.Random(seed)
    lines = fuzzed(source, 40, odd=source.choice([0.0, 0.02]))
    longer = lines
    for name in NAMES:
        quoted = b'"%s"'
        longer = [line.replace(quoted % name, quoted % (name * letters)) for line in longer]
    schema = pa.schema([field.with_name(field.name * letters) for field in SCHEMA])
    poisoned = decoded(written(folder, [*longer, b"{"]), schema)
    assert decoded(written(folder, longer), schema) == poisoned[:-1]


@given(
    block=st.text('"ab:', max_size=40),
    name=st.text("ab", max_size=6),
)
def test_the_places_of_a_name_are_all_found(block: str, name: str) -> None:
    wanted = [found.start() for found in re.finditer(f'(?="{name}")', block)]
    assert sorted(_places(block.encode(), f'"{name}"'.encode())) == wanted


@pytest.mark.spark
def test_every_line_is_read_as_spark_reads_it(tmp_path: Path, spark: SparkSession) -> None:
    path = written(tmp_path, list(corpus()))
    assert decoded(path) == by_spark(spark, path)


@pytest.mark.spark
def test_a_live_stream_holds_what_spark_reads(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [
        *(
            b'{"t": 1700000000000, "i": 1}',
            b'{"d": ' + b"1" * 400 + b', "i": 2}',
            rb'{"s": "\ud800"}',
        ),
        *(b'{"s": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"null", b'{"i": 3}'),
    ]
    path = written(folder, lines)
    with Engine(str(tmp_path / "storage"), spark) as engine:
        engine.create_stream("lines", COLUMNS, "json", {"path": str(folder)})
        view = engine.view("rows", "SELECT * FROM lines")
        count = engine.view("count", "SELECT count(*) AS n FROM lines")
        engine.advance()
        live = sorted(comparable(view.snapshot().toArrow()), key=repr)
        assert live == sorted(by_spark(spark, path), key=repr)
        assert [row.n for row in count.snapshot().collect()] == [len(lines)]
        assert engine.verify()


NESTED = (
    "s STRING, c DECIMAL(10, 2), e DATE, x BINARY, t TIMESTAMP, z TIMESTAMP_NTZ, a ARRAY<STRING>, "
    "n ARRAY<INT>, o STRUCT<i: INT, s: STRING, q: ARRAY<DOUBLE>>, m MAP<STRING, BIGINT>"
)
DAYS = (b"026", b"1", b"5", b"20260101", b"20260131", b"1700000000")
NOT_FOLLOWED = {
    *(b'{"e": "%s"}' % days for days in DAYS),
    # Spark refuses a zero of several bytes, but not an escaped one
    *(b'{"x": "%s"}' % zero for zero in (b"\xc0\x80", b"\xe0\x80\x80")),
}
NESTED_VALUES = [
    *(*NUMBERS, *OTHERS, b'"1,234.5"', b'"1.005"', b"1.005", b"99999999.99", b"99999999.995"),
    *(b'"+1."', b'".5"', b'"1e3"', b'"0x1"', b'" 1"', b'"1 "', b'"1_0"', b'"a"', b'"aGk="'),
    *(b'"aGk"', b'"aG k="', b'" aGk= "', b'"aGk=aGk="', b'"aGl="', b'"a==="', b'"=a"', b'"aGk=="'),
    *(b'["a", 5, null, {"k": 1.0}, [1, 2 ], true, "\\u00e9"]', b"[1, 2, null]", b"[1, 2.0]"),
    *(b'{"i": 1, "s": {"k": 1.0}, "q": [1, 2.5, "NaN", null]}', b'{"i": "x", "s": "y"}'),
    *(b'{"q": [1, "x"], "i": 1}', b'{"a": 1, "b": null}', b'{"a": 1.0}', b'{"i": 1, "i": 2}'),
    *(b"[[1], [2]]", b'[{"i": 1}]', b"[1", b'{"i": 1', b"[1,,2]", b'{"i": 1,}', b"{'i': 1}"),
    *(b'{"x": {"i": 3}, "i": 4}', b"[" * 400 + b"]" * 400, b"[" * 1000 + b"]" * 1000),
    *(json.dumps(time).encode() for time in TIMES),
    *(b'"5"', b'"20260131"', b'"2026-01-31x"', b'"2026-01-31 x"', b'"9999999-12-31"'),
    *(b'"2026-03-29T02:30:00"', b'"2026-10-25T02:30:00"', b'"2050-07-01T00:00:00"'),
]


@pytest.mark.spark
def test_documents_are_decoded_by_sparks_rules(tmp_path: Path, spark: SparkSession) -> None:
    zone = "Europe/Berlin"
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    kinds = StructType.fromDDL(NESTED)
    lines = [b'{"%s": %s}' % (f.name.encode(), value) for f in kinds for value in NESTED_VALUES]
    frame = session.read.schema(f"{NESTED}, _corrupt_record STRING").json(
        str(written(tmp_path, lines))
    )
    wanted = frame.toArrow()
    assert wanted.num_rows == len(lines)
    fits = wanted["_corrupt_record"].is_null()
    rows, errors = decode_documents(pa.chunked_array([lines]), arrow_schema(kinds, zone), zone)
    odd = [place for place, fit in enumerate(fits.to_pylist()) if fit == (place in errors)]
    assert {lines[place] for place in odd} == NOT_FOLLOWED
    both = [fit and place not in errors for place, fit in enumerate(fits.to_pylist())]
    ours = [fit for place, fit in enumerate(fits.to_pylist()) if place not in errors]
    expected = wanted.drop_columns("_corrupt_record").filter(pa.array(both)).cast(rows.schema)
    rows = rows.filter(pa.array(ours))
    for name in rows.column_names:
        numbers = {pa.date32(): pa.int32()}.get(rows[name].type, rows[name].type)
        numbers = pa.int64() if pa.types.is_timestamp(numbers) else numbers
        found, right = (table[name].cast(numbers).to_pylist() for table in (rows, expected))
        if name == "m":  # of a repeated key Spark keeps both entries
            right = [None if one is None else list(dict(one).items()) for one in right]
        assert list(map(str, found)) == list(map(str, right)), name


@pytest.mark.spark
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1 << 60))
def test_random_lines_are_read_as_spark_reads_them(
    seed: int, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> None:
    path = written(tmp_path_factory.mktemp("lines"), fuzzed(random.Random(seed), 300, odd=0.7))
    assert decoded(path) == by_spark(spark, path)


@pytest.mark.spark
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 60))
def test_many_random_lines_are_read_as_spark_reads_them(
    seed: int, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> None:
    source = random.Random(seed)
    lines = fuzzed(source, 2_000, odd=source.choice([0.001, 0.1, 0.9]))
    path = written(tmp_path_factory.mktemp("lines"), lines)
    assert decoded(path) == by_spark(spark, path)
