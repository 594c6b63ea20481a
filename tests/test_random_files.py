"""Random files of CSV, text and Parquet: a live stream holds what Spark's own readers read."""

from __future__ import annotations

import bz2
import gzip
import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from eddyline import Engine
from eddyline.errors import EngineError
from eddyline.spark.failures import FAILURES

pytestmark = pytest.mark.spark

SEEDS = st.integers(0, 1 << 60)
numbers = itertools.count()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("storage"), spark) as engine:
        yield engine


CONFIG: dict[str, Any] = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed isn't a smaller case
    "suppress_health_check": list(HealthCheck),
}


def few(test: Callable[..., None]) -> Any:
    return settings(max_examples=3, derandomize=True, **CONFIG)(given(seed=SEEDS)(test))


def many(test: Callable[..., None]) -> Any:
    return settings(max_examples=40, **CONFIG)(given(seed=SEEDS)(test))


def live(engine: Engine, columns: str, kind: str, options: dict[str, str]) -> Counter[str]:
    """Return the rows of a stream, as a view has them."""
    name = f"s{next(numbers)}"
    engine.create_stream(name, columns, kind, options)
    engine.view(f"{name}_rows", f"SELECT * FROM {name}")
    try:
        engine.advance()
        assert engine.verify(f"{name}_rows")
        return held(engine.snapshot(f"{name}_rows"))
    finally:
        engine.drop("view", f"{name}_rows")
        engine.drop("stream", name)


def held(frame: DataFrame) -> Counter[str]:
    """Return the rows as texts; Python has no datetime for some moments."""
    texts = [
        f"CAST(unix_micros(CAST({name} AS TIMESTAMP)) AS STRING)"
        if kind.startswith("timestamp")
        else f"CAST({name} AS STRING)"
        for name, kind in frame.dtypes
    ]
    return Counter(map(repr, frame.selectExpr(*texts).collect()))


# -- CSV and text ------------------------------------------------------------------------------

CSV = (
    "i INT, d DOUBLE, s STRING, b BOOLEAN, e DATE, t TIMESTAMP, z TIMESTAMP_NTZ, c DECIMAL(8, 2), "
    "_corrupt_record STRING"
)
FIELDS = [
    *(b"1", b"-1", b"+1", b"01", b"1.0", b"1e3", b" 7", b"7 ", b"2147483648", b"1,000", b"NaN", b"Inf"),
    *(b"-Infinity", b"0x1F", b"1d", b"1.", b".5", b"12345678.99", b"0.005", b"true", b"TRUE", b"t", b"0"),
    *(b"2026-01-31", b"2026-1-1", b"2026-02-30", b"20260131", b"1700000000", b"2026-01-31T10:00:00Z"),
    *(b"2026-01-31 10:00", b"10:00", b"2026-01-31T10:00:00.123456789+05:45", b"0001-01-01", b"+12026-01-01"),
    *(b"", b'""', b'"', b'"a', b'a"', b'"a,b"', b'"a""b"', b'"a\\"b"', b"'a'", b"\\", b"\\n", b"NULL", b"null"),
    *(b"#", b"a b", b"\xc3\xa9", b"\xff\xfe", b"\xed\xa0\x80", b"\x00", b"\t", b";", b"-", b"x" * 300),
]  # fmt: skip
ENDS = [b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b" \n"]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".deflate": zlib.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}
OPTIONS = {
    "mode": ["PERMISSIVE", "DROPMALFORMED"],
    "sep": [",", ";", "\t", "||"],
    "quote": ['"', "'", ""],
    "escape": ["\\", '"'],
    "header": ["true", "false"],
    "comment": ["#"],
    "nullValue": ["NULL", "-"],
    "emptyValue": ["empty"],
    "ignoreLeadingWhiteSpace": ["true", "false"],
    "ignoreTrailingWhiteSpace": ["true", "false"],
    "nanValue": ["-"],
    "encoding": ["UTF-8", "ISO-8859-1"],
    "lineSep": ["\n"],
    "multiLine": ["true"],
    "dateFormat": ["yyyy-MM-dd"],
    "timestampFormat": ["yyyy-MM-dd HH:mm"],
}


def line_of(source: random.Random, separator: bytes) -> bytes:
    count = source.choice([8, 8, 8, 8, 7, 9, 1, source.randrange(12)])
    ordered = source.random() < 0.5  # most values fit then
    good = [b"5", b"0.5", b"word", b"true", b"2026-01-31", b"2026-01-31T10:00:00Z", b"2026-01-31 10:00", b"1.25"]  # fmt: skip
    fields = [
        good[place] if ordered and place < len(good) and source.random() < 0.9 else source.choice(FIELDS)
        for place in range(count)
    ]  # fmt: skip
    return separator.join(fields) + source.choice(ENDS)


def lines_of(source: random.Random, count: int, separator: bytes) -> bytes:
    mark = b"\xef\xbb\xbf" if source.random() < 0.2 else b""
    lines = b"".join(line_of(source, separator) for _ in range(count))
    return mark + (lines.rstrip(b"\r\n") if source.random() < 0.5 else lines)


def check_lines(seed: int, kind: str, count: int, folder: Path, engine: Engine) -> None:
    source = random.Random(seed)
    names = source.sample(list(OPTIONS), source.randrange(5)) if kind == "csv" else []
    options = {name: source.choice(OPTIONS[name]) for name in names}
    if kind == "text" and source.random() < 0.3:
        options["wholetext"] = "true"
    for number in range(3):
        ending = source.choice(list(COMPRESSIONS))
        content = lines_of(source, count // 3, options.get("sep", ",").encode())
        (folder / f"{number}.{kind}{ending}").write_bytes(COMPRESSIONS[ending](content))
    options["path"] = str(folder)
    columns = "value STRING" if kind == "text" else CSV
    try:
        offline = held(engine.spark.read.schema(columns).format(kind).options(**options).load())
    except FAILURES:
        with pytest.raises(EngineError, match="STREAM_FAILED"):
            live(engine, columns, kind, options)
    else:
        assert live(engine, columns, kind, options) == offline, options


@pytest.mark.parametrize("kind", ["csv", "text"])
@few
def test_random_lines(
    seed: int, kind: str, tmp_path_factory: pytest.TempPathFactory, engine: Engine
) -> None:
    check_lines(seed, kind, 150, tmp_path_factory.mktemp(kind), engine)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "text"])
@many
def test_many_random_lines(
    seed: int, kind: str, tmp_path_factory: pytest.TempPathFactory, engine: Engine
) -> None:
    check_lines(seed, kind, 900, tmp_path_factory.mktemp(kind), engine)


@pytest.mark.slow
def test_lines_of_ten_megabytes(tmp_path: Path, engine: Engine) -> None:
    long = b"x" * 10_000_000
    lines = [b'{"i": 1, "s": "%s"}' % long, b'{"i": 2}', b"[" + b"{}," * 3_000_000 + b"{}]"]
    (tmp_path / "a").write_bytes(b"\n".join(lines))
    for kind, columns in (("json", "i INT, s STRING"), ("text", "value STRING")):
        offline = engine.spark.read.schema(columns).format(kind).load(str(tmp_path))
        found = live(engine, columns, kind, {"path": str(tmp_path)})
        assert found == held(offline)
    assert found.total() == len(lines)


# -- Parquet -----------------------------------------------------------------------------------

PARQUET = (
    "i INT, l BIGINT, d DOUBLE, s STRING, b BOOLEAN, x BINARY, e DATE, t TIMESTAMP, z TIMESTAMP_NTZ, "
    "c DECIMAL(10, 2), f DECIMAL(22, 1), a ARRAY<INT>, o STRUCT<p: INT, q: STRING>, m MAP<STRING, BIGINT>"
)
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16()]
# Spark refuses nanoseconds, unlike Eddyline
STAMPS = [pa.timestamp(unit, zone) for unit in ("ms", "us") for zone in (None, "UTC")]
TYPES: dict[str, list[pa.DataType]] = {
    "i": [pa.int32(), *INTEGERS],  # of UINT32 Spark refuses some files and reads others wrong
    "l": [pa.int64(), *INTEGERS, pa.uint32()],
    "d": [pa.float64(), pa.float64(), pa.float32(), pa.int32()],
    "s": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary()],
    "b": [pa.bool_(), pa.bool_(), pa.int32()],
    "x": [pa.binary(), pa.large_binary(), pa.binary(3), pa.string()],
    "e": [pa.date32(), pa.date32(), pa.int8(), pa.int32()],
    "t": STAMPS,
    "z": [*STAMPS, pa.date32()],
    "c": [pa.decimal128(10, 2), pa.decimal128(5, 2), pa.decimal128(10, 4), pa.int32(), pa.int64()],
    "f": [pa.decimal128(22, 1), pa.decimal128(7, 1), pa.int8(), pa.int32(), pa.int64()],
    "a": [pa.list_(pa.int32()), pa.large_list(pa.int16()), pa.list_(pa.string())],
    "o": [
        pa.struct([("p", pa.int32()), ("q", pa.string())]),
        pa.struct([("q", pa.string()), ("P", pa.int32())]),
        pa.struct([("q", pa.string()), ("more", pa.int32())]),
        pa.struct([("more", pa.int32())]),
        pa.struct([("p", pa.string())]),
    ],
    "m": [
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), pa.int32()),
        pa.map_(pa.binary(), pa.int64()),
        pa.map_(pa.int32(), pa.int64()),
    ],
}


def value_of(source: random.Random, kind: pa.DataType) -> Any:
    """Return a value of an Arrow type: null, one of its extremes, or any."""
    some = source.random()
    if some < 0.15:
        return None
    if pa.types.is_boolean(kind):
        return some < 0.5
    if pa.types.is_integer(kind):
        top = 1 << (kind.bit_width - (not str(kind).startswith("u")))
        low = 0 if str(kind).startswith("u") else -top
        return source.choice([low, top - 1, 0, 1, source.randrange(low, top)])
    if pa.types.is_floating(kind):
        return source.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), source.uniform(-9, 9)])
    if pa.types.is_decimal(kind):
        return Decimal(source.randrange(-(10**kind.precision) + 1, 10**kind.precision)).scaleb(
            -kind.scale
        )
    if pa.types.is_date(kind):
        return date(1600, 1, 1) + timedelta(days=source.randrange(500_000))
    if pa.types.is_timestamp(kind):
        moment = datetime(1900, 1, 1, tzinfo=kind.tz and UTC)
        step = timedelta(milliseconds=1) if kind.unit == "ms" else timedelta(microseconds=1)
        return moment + step * source.randrange(timedelta(days=60_000) // step)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [value_of(source, kind.value_type) for _ in range(source.randrange(4))]
    if pa.types.is_struct(kind):
        return {field.name: value_of(source, field.type) for field in kind}
    if pa.types.is_map(kind):
        names = {pa.binary(): b"%d", pa.string(): "%d"}
        keys = [names[kind.key_type] % n if kind.key_type in names else n for n in range(3)]
        return [(key, value_of(source, kind.item_type)) for key in keys[: source.randrange(4)]]
    text = source.choice(["abc", "\u00e9a", "xyz"])
    if pa.types.is_fixed_size_binary(kind):
        return text.encode()[: kind.byte_width].ljust(kind.byte_width)
    return text.encode() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else text


def table_of(source: random.Random, rows: int) -> pa.Table:
    names = source.sample(list(TYPES), source.randrange(1, len(TYPES) + 1))
    odd = source.random() < 0.3  # a type that may not fit
    columns = {}
    for name in names:
        kind = source.choice(TYPES[name]) if odd else TYPES[name][0]
        values = [value_of(source, kind) for _ in range(rows)]
        columns[source.choice([name, name.upper()])] = pa.array(values, kind)
    return pa.table({**columns, "other": pa.array(range(rows))})


def check_parquet(seed: int, rows: int, folder: Path, engine: Engine) -> None:
    source = random.Random(seed)
    kept: Counter[str] = Counter()
    for number in range(4):
        path = folder / f"{number}.parquet"
        pq.write_table(
            table_of(source, rows),
            path,
            compression=source.choice(["none", "snappy", "gzip", "zstd", "lz4"]),
            row_group_size=source.choice([7, rows]),
            use_dictionary=source.random() < 0.5,
            data_page_version=source.choice(["1.0", "2.0"]),
            use_deprecated_int96_timestamps=source.random() < 0.2,
        )
        try:
            kept += held(engine.spark.read.schema(PARQUET).parquet(str(path)))
        except FAILURES:
            continue  # it is set aside
    assert live(engine, PARQUET, "parquet", {"path": str(folder)}) == kept


@few
def test_random_parquet_files(
    seed: int, tmp_path_factory: pytest.TempPathFactory, engine: Engine
) -> None:
    check_parquet(seed, 20, tmp_path_factory.mktemp("parquet"), engine)


@pytest.mark.slow
@many
def test_many_random_parquet_files(
    seed: int, tmp_path_factory: pytest.TempPathFactory, engine: Engine
) -> None:
    check_parquet(seed, 150, tmp_path_factory.mktemp("parquet"), engine)
