"""Try every built-in function of Spark in live views, and record which of them work.

`python tests/functions.py` lists the functions of the running Spark, finds a call for each over the
table below, runs all of them in live views through several epochs of changes, compares each with
offline Spark, and writes the results to `tests/functions.json` and `docs/coverage.md`.

A call is an expression over the columns of a row (`rows`), one with aggregates over the rows of a
group (`groups`), a generator (`generators`), or a whole query (`queries`). Calls of the same kind share
a view; a view that fails is bisected to find the failing call.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import VariantType

import eddyline as el
from eddyline.answers.difference import difference
from eddyline.spark.session import cloned
from eddyline.testing import Offline, PlainTable, replayed

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "tests" / "functions.json"
PAGE = ROOT / "docs" / "coverage.md"
PACK = 40  # calls that share a view

COLUMNS = (
    "id INT, g INT, i INT, n BIGINT, b TINYINT, d DECIMAL(12,3), x DOUBLE, p DOUBLE, f FLOAT,"
    " s STRING, w STRING, z BINARY, o BOOLEAN, day DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ,"
    " a ARRAY<INT>, r ARRAY<STRING>, v ARRAY<FLOAT>, m MAP<STRING, INT>,"
    " c STRUCT<p: INT, q: STRING>, j STRING, xml STRING, csv STRING, url STRING, num STRING,"
    " dt STRING, clock STRING, point BINARY"
)
_NOON = datetime(2024, 2, 28, 11, 30, 15, 250_000)
_POINT = bytes.fromhex("0101000000000000000000F03F0000000000000040")
VALUES: tuple[tuple[Any, ...], ...] = (
    (1, 2, 3, None),
    (3, 0, 7, 2, None, 5, 1),
    (2**40, -1, 12, None, 7, 0),
    (1, -5, None, 6, 100),
    (Decimal("1.500"), Decimal("-2.250"), None, Decimal("120.125"), Decimal("0.000")),
    (0.25, float("nan"), -0.0, 0.0, None, -2.75, 1.5),
    (0.25, 0.5, 1.0, 0.125, 0.75),
    (1.5, None, float("nan"), -0.25, 0.0),
    ("Tea", "straße", "", None, "a,b;c", "  Ünder line ", "zz top"),
    ("alpha", "beta", "kappa", "gamma"),
    (b"\x01\xff", b"", None, b"spark", b"\xf0\x9f\xa6\x86"),
    (True, None, False),
    (date(2024, 2, 28), date(1999, 12, 31), None, date(2024, 3, 1), date(2023, 7, 4)),
    tuple(
        None if gap is None else (_NOON + timedelta(hours=gap)).replace(tzinfo=UTC)
        for gap in (0, 1, 30, None, -9000)
    ),
    tuple(None if gap is None else _NOON + timedelta(hours=gap) for gap in (5, None, 0, -700)),
    ([1, 2, 3], [], None, [3, None, 1], [2, 2, 9]),
    (["x", "y"], ["b", None, "a"], [], None, ["a,b", "c"]),
    ([1.0, 2.0], [0.5, -1.0], [3.0, 4.0], None),
    ({"a": 1, "b": 2}, {}, None, {"b": None, "c": 3}),
    ((1, "one"), (None, "two"), None, (3, None)),
    (
        '{"a": 1, "b": [1, 2]}',
        '{"a": 2, "c": {"d": "x"}}',
        '{"a": null, "b": []}',
        None,
        '{"a": 5, "b": [3]}',
    ),
    ("<r><n>1</n><n>2</n><t>x</t></r>", "<r><n>7</n></r>", "<r><n>3</n><t>y</t></r>", None),
    ("1,one", "2,", None, "3,three"),
    ("https://a.example/p/1?q=x&r=2#top", "http://b.example:8080/?q=y", None, "ftp://c.example/z"),
    ("12.50", "7.00", None, "99.25"),
    ("2024-02-28", "1999-12-31", None, "2024-03-01"),
    ("11:30:15", "23:59:59.5", None, "00:00:00"),
    (_POINT, _POINT[:5] + bytes(16), None),
)


def row(number: int) -> tuple[Any, ...]:
    """Return row `number` of the table. The lists of values differ in length, so that rows differ."""
    return (number, *(values[number % len(values)] for values in VALUES))


# The changes of each epoch: numbers of rows to delete and to insert. An update is both.
EPOCHS = (
    ((), range(1, 16)),
    ((2, 5, 9), range(16, 22)),
    ((1, 4, 7, 16, 20), (31, 34, 37, 3, 3)),
    ((3, 6, 10, 13, 14, 34), (46, 13)),
)

# Calls whose arguments can't be guessed from types. Those that begin with SELECT are `queries`.
CALLS: dict[str, str] = {
    "!": "! o", "!=": "i != b", "<>": "i <> b", "case": "CASE WHEN i > 2 THEN s WHEN o THEN 'o' END",
    "||": "s || w", "%": "n % 5", "*": "d * i", "+": "i + b", "-": "x - i", "/": "d / 3", "<": "i < b",
    "<=": "x <= f", "<=>": "x <=> f", "=": "i = b", "==": "x == f", ">": "s > w", ">=": "day >= DATE '2000-01-01'",
    "&": "i & b", "|": "i | b", "^": "i ^ b", "~": "~ i", "<<": "i << 2", ">>": "n >> 3", ">>>": "n >>> 3",
    "and": "o AND i > 2", "or": "o OR i > 2", "not": "NOT o", "in": "i IN (1, 2, b)", "between": "between(i, 1, 3)",
    "like": "w LIKE '%a_p%'", "ilike": "w ILIKE 'A%'", "regexp": "regexp(w, '^[ab]')",
    "regexp_like": "regexp_like(w, 'm+')", "rlike": "rlike(w, 'a$')", "div": "n div 5", "mod": "mod(n, 7)",
    "equal_null": "equal_null(i, b)", "when": "CASE WHEN o THEN i ELSE -1 END", "if": "if(o, i, b)",
    "nvl": "nvl(i, b)", "ifnull": "ifnull(s, w)", "nvl2": "nvl2(i, s, w)", "nanvl": "nanvl(x, 9D)", "coalesce": "coalesce(i, b, -1)", "nullif": "nullif(i, 3)",
    # mathematics
    "acos": "acos(p)", "acosh": "acosh(p + 1)", "asin": "asin(p)", "atanh": "atanh(p / 2)", "atan2": "atan2(x, p)",
    "bround": "bround(d, 1)", "ceil": "ceil(d, 1)", "ceiling": "ceiling(d)", "floor": "floor(d, 1)",
    "conv": "conv(num, 10, 16)", "e": "e() * i", "pi": "pi() * i", "factorial": "factorial(i)", "log": "log(2, p)",
    "pmod": "pmod(n, 7)", "positive": "positive(x)", "pow": "pow(x, 2)", "power": "power(p, 3)",
    "round": "round(d, 1)", "rint": "rint(x)", "greatest": "greatest(i, b, 2)", "least": "least(x, f, 1D)",
    "hypot": "hypot(x, p)", "width_bucket": "width_bucket(p, 0, 1, 4)", "bin": "bin(n)", "hex": "hex(s)",
    "unhex": "unhex(hex(s))", "try_add": "try_add(n, i)", "try_divide": "try_divide(d, i)",
    "try_mod": "try_mod(n, i)", "try_multiply": "try_multiply(n, n)", "try_subtract": "try_subtract(n, i)",
    "rand": "rand()", "randn": "randn()", "random": "random()", "uniform": "uniform(0, 9)",
    "randstr": "randstr(5)", "uuid": "uuid()", "shuffle": "shuffle(a)",
    # bits
    "bit_get": "bit_get(n, 3)", "getbit": "getbit(n, 0)", "shiftleft": "shiftleft(i, 2)",
    "shiftright": "shiftright(n, 2)", "shiftrightunsigned": "shiftrightunsigned(n, 2)",
    "bitmap_bit_position": "bitmap_bit_position(n)", "bitmap_bucket_number": "bitmap_bucket_number(n)",
    "bitmap_count": "bitmap_count(z)",
    # time
    "add_months": "add_months(day, i)", "convert_timezone": "convert_timezone('Europe/Berlin', 'UTC', tn)",
    "date_add": "date_add(day, i)", "date_sub": "date_sub(day, i)", "date_diff": "date_diff(day, DATE '2024-01-01')",
    "datediff": "datediff(day, DATE '2024-01-01')", "dateadd": "dateadd(day, i)",
    "date_format": "date_format(ts, 'yyyy-MM-dd HH:mm')", "date_part": "date_part('quarter', day)",
    "datepart": "datepart('dow', ts)", "extract": "extract(SECONDS FROM ts)", "date_trunc": "date_trunc('month', ts)",
    "from_unixtime": "from_unixtime(n % 1000000, 'yyyy-MM-dd')", "from_utc_timestamp": "from_utc_timestamp(ts, 'Asia/Seoul')",
    "to_utc_timestamp": "to_utc_timestamp(ts, 'Asia/Seoul')", "make_date": "make_date(2024, i + 1, 3)",
    "make_dt_interval": "make_dt_interval(i, 2, 3, 4.5)", "make_ym_interval": "make_ym_interval(1, i)",
    "make_interval": "make_interval(0, i, 0, 1)", "try_make_interval": "try_make_interval(0, i, 0, 1)",
    "make_time": "make_time(i, 30, 15.5)", "make_timestamp": "make_timestamp(2024, 2, i + 1, 6, 30, 15.25)",
    "make_timestamp_ltz": "make_timestamp_ltz(2024, 2, i + 1, 6, 30, 15.25)",
    "make_timestamp_ntz": "make_timestamp_ntz(2024, 2, i + 1, 6, 30, 15.25)",
    "try_make_timestamp": "try_make_timestamp(2024, i, 30, 6, 30, 15.25)",
    "try_make_timestamp_ltz": "try_make_timestamp_ltz(2024, i, 30, 6, 30, 15.25)",
    "try_make_timestamp_ntz": "try_make_timestamp_ntz(2024, i, 30, 6, 30, 15.25)",
    "months_between": "months_between(ts, tn)", "next_day": "next_day(day, 'TU')", "trunc": "trunc(day, 'MM')",
    "session_window": "SELECT g, session_window.start AS since, count(*) AS c FROM t GROUP BY g, session_window(ts, '2 hours')",
    "window": "SELECT g, window.start AS since, count(*) AS c FROM t GROUP BY g, window(ts, '2 hours')",
    "window_time": "SELECT g, window_time(span) AS at, c FROM"
    " (SELECT g, window(ts, '2 hours') AS span, count(*) AS c FROM t GROUP BY g, window(ts, '2 hours'))",
    "time": "time(clock)", "time_bucket": "time_bucket(INTERVAL '15' MINUTE, ts)",
    "time_diff": "time_diff('MINUTE', TIME '10:00:00', to_time(clock))",
    "time_from_micros": "time_from_micros(i * 1000001)", "time_from_millis": "time_from_millis(i * 1001)",
    "time_from_seconds": "time_from_seconds(i * 61)", "time_to_micros": "time_to_micros(to_time(clock))",
    "time_to_millis": "time_to_millis(to_time(clock))", "time_to_seconds": "time_to_seconds(to_time(clock))",
    "time_trunc": "time_trunc('HOUR', to_time(clock))", "to_time": "to_time(clock)", "try_to_time": "try_to_time(s)",
    "timestamp_nanos": "timestamp_nanos(n * 1000)", "unix_nanos": "unix_nanos(ts)", "to_date": "to_date(dt)",
    "to_timestamp": "to_timestamp(dt)", "to_timestamp_ltz": "to_timestamp_ltz(dt)",
    "to_timestamp_ntz": "to_timestamp_ntz(dt)", "try_to_date": "try_to_date(s)", "try_to_timestamp": "try_to_timestamp(dt)",
    "to_unix_timestamp": "to_unix_timestamp(dt, 'yyyy-MM-dd')", "unix_timestamp": "unix_timestamp(dt, 'yyyy-MM-dd')",
    "curdate": "curdate()", "current_date": "current_date()", "current_time": "current_time()",
    "current_timestamp": "current_timestamp()", "now": "now()", "localtime": "localtime()",
    "localtimestamp": "localtimestamp()", "current_timezone": "current_timezone()",
    **{f"timestamp_{unit}": f"timestamp_{unit}(id * 86400001L)" for unit in ("seconds", "millis", "micros")},
    # where and who
    "aes_encrypt": "aes_encrypt(s, '0000111122223333', 'ECB')",
    "aes_decrypt": "aes_decrypt(aes_encrypt(s, '0000111122223333', 'ECB'), '0000111122223333', 'ECB')",
    "try_aes_decrypt": "try_aes_decrypt(z, '0000111122223333', 'ECB')", "hmac": "hmac('key', s)",
    "assert_true": "assert_true(p > 0)", "raise_error": "if(p > 0, s, raise_error('none'))", "typeof": "typeof(c)",
    "java_method": "java_method('java.lang.Math', 'abs', id)", "reflect": "reflect('java.lang.Math', 'abs', id)",
    "try_reflect": "try_reflect('java.lang.Math', 'abs', id)", "version": "version()",
    # functions of functions
    "aggregate": "aggregate(a, 0, (t, y) -> t + coalesce(y, 0))", "reduce": "reduce(a, 1, (t, y) -> t * coalesce(y, 1))",
    "array_sort": "array_sort(r)", "exists": "exists(a, y -> y > 2)", "filter": "filter(a, y -> y > 1)",
    "forall": "forall(a, y -> y > 0)", "map_filter": "map_filter(m, (k, y) -> y > 1)",
    "map_zip_with": "map_zip_with(m, map('a', 9), (k, y, q) -> coalesce(y, 0) + coalesce(q, 0))",
    "transform": "transform(a, y -> y + i)", "transform_keys": "transform_keys(m, (k, y) -> upper(k))",
    "transform_values": "transform_values(m, (k, y) -> y + 1)", "zip_with": "zip_with(a, r, (y, q) -> concat(y, q))",
    # arrays, maps, structs
    "array": "array(i, b, 3)", "array_append": "array_append(a, i)", "array_contains": "array_contains(a, 3)",
    "array_except": "array_except(a, array(3))", "array_insert": "array_insert(a, 2, i)",
    "array_intersect": "array_intersect(a, array(3, 2))", "array_join": "array_join(r, '-', '?')",
    "array_position": "array_position(a, 3)", "array_prepend": "array_prepend(a, i)", "array_remove": "array_remove(a, 2)",
    "array_repeat": "array_repeat(s, i)", "array_union": "array_union(a, array(3, 5))",
    "arrays_overlap": "arrays_overlap(a, array(3))", "arrays_zip": "arrays_zip(a, r)", "flatten": "flatten(array(a, a))",
    "get": "get(a, 1)", "sequence": "sequence(1, i)", "slice": "slice(a, 1, 2)", "sort_array": "sort_array(a, false)",
    "concat": "concat(s, w)", "element_at": "element_at(m, 'b')", "try_element_at": "try_element_at(a, 2)",
    "reverse": "reverse(a)", "map": "map(w, i)", "map_concat": "map_concat(m, map('z', i))",
    "map_contains_key": "map_contains_key(m, 'b')", "map_from_arrays": "map_from_arrays(array(w), array(i))",
    "map_from_entries": "map_from_entries(array(struct(w, i)))", "str_to_map": "str_to_map(url, '&', '=')",
    "named_struct": "named_struct('i', i, 's', s)", "struct": "struct(i, s, x)",
    # text
    "btrim": "btrim(s)", "chr": "chr(i + 65)", "char": "char(i + 65)", "collate": "collate(w, 'UTF8_LCASE') = 'ALPHA'",
    "collation": "collation(w)", "concat_ws": "concat_ws('-', s, w)", "contains": "contains(w, 'am')",
    "decode": "decode(encode(w, 'UTF-16'), 'UTF-16')", "encode": "encode(w, 'UTF-8')", "elt": "elt(2, s, w)",
    "endswith": "endswith(w, 'pha')", "startswith": "startswith(w, 'al')", "find_in_set": "find_in_set('c', csv)",
    "format_number": "format_number(d, 2)", "format_string": "format_string('%d-%s', i, s)", "printf": "printf('%s', s)",
    "from_base32": "from_base32(to_base32(s))", "unbase64": "unbase64(base64(z))", "instr": "instr(w, 'a')",
    "jaro_winkler_similarity": "jaro_winkler_similarity(w, 'alfa')", "left": "left(w, i)", "right": "right(w, i)",
    "levenshtein": "levenshtein(s, w)", "locate": "locate('a', w, 2)", "position": "position('a', w)",
    "lpad": "lpad(w, 8, '*')", "rpad": "rpad(w, 8, '*')", "luhn_check": "luhn_check('7992739871' || i)",
    "overlay": "overlay(w, '__', 2)", "regexp_count": "regexp_count(w, 'a')", "regexp_extract": "regexp_extract(url, '(\\\\w+)://', 1)",
    "regexp_extract_all": "regexp_extract_all(w, '([aeo])', 1)", "regexp_instr": "regexp_instr(w, 'm')",
    "regexp_replace": "regexp_replace(w, 'a', 'A')", "regexp_substr": "regexp_substr(w, '[a-c]+')",
    "repeat": "repeat(w, i)", "replace": "replace(w, 'a', '4')", "sentences": "sentences(s)", "space": "space(i)",
    "split": "split(csv, ',')", "split_part": "split_part(csv, ',', 2)", "substr": "substr(w, 2, 3)",
    "substring": "substring(w, i)", "substring_index": "substring_index(url, '.', 1)", "mask": "mask(s)",
    "to_binary": "to_binary(w, 'utf-8')", "try_to_binary": "try_to_binary(s, 'hex')", "to_char": "to_char(d, '999.999')",
    "to_varchar": "to_varchar(d, '999.9')", "to_number": "to_number(num, '99.99')", "try_to_number": "try_to_number(s, '99')",
    "translate": "translate(w, 'ab', 'ox')", "validate_utf8": "validate_utf8(w)", "try_validate_utf8": "try_validate_utf8(s)",
    "sha2": "sha2(s, 256)", "hash": "hash(s, i, x)", "xxhash64": "xxhash64(s, i, a)", "mode": "mode(i, true)",
    # casts
    "cast": "CAST(num AS DECIMAL(6,1))", "bigint": "bigint(i)", "binary": "binary(w)", "boolean": "boolean(i)", "date": "date(dt)",
    "decimal": "decimal(i)", "double": "double(num)", "float": "float(num)", "int": "int(x IS NULL)",
    "smallint": "smallint(i)", "string": "string(ts)", "timestamp": "timestamp(dt)", "tinyint": "tinyint(i)",
    # formats
    "from_csv": "from_csv(csv, 'a INT, b STRING')", "schema_of_csv": "schema_of_csv('1,abc')", "to_csv": "to_csv(c)",
    "from_json": "from_json(j, 'a INT, b ARRAY<INT>')", "get_json_object": "get_json_object(j, '$.b[0]')",
    "json_array_length": "json_array_length(get_json_object(j, '$.b'))", "json_object_keys": "json_object_keys(j)",
    "json_tuple": "json_tuple(j, 'a', 'b')", "schema_of_json": "schema_of_json('{\"a\": 1}')", "to_json": "to_json(c)",
    "from_xml": "from_xml(xml, 'n ARRAY<INT>, t STRING')", "schema_of_xml": "schema_of_xml('<p><a>1</a></p>')",
    "to_xml": "to_xml(c)", "xpath": "xpath(xml, 'r/n/text()')", "xpath_boolean": "xpath_boolean(xml, 'r/t')",
    "xpath_string": "xpath_string(xml, 'r/t')",
    **{f"xpath_{kind}": f"xpath_{kind}(xml, 'sum(r/n)')" for kind in ("double", "float", "int", "long", "number", "short")},
    "from_avro": "from_avro(z, '\"int\"', map('mode', 'PERMISSIVE'))", "to_avro": "to_avro(c)",
    "schema_of_avro": "schema_of_avro('{\"type\": \"record\", \"name\": \"r\", \"fields\": [{\"name\": \"u\", \"type\": \"int\"}]}')",
    "from_protobuf": "from_protobuf(z, 'M', '/nowhere.desc')", "to_protobuf": "to_protobuf(c, 'M', '/nowhere.desc')",
    "parse_json": "parse_json(j)", "try_parse_json": "try_parse_json(s)", "is_variant_null": "is_variant_null(parse_json(j):a)",
    "is_valid_variant": "is_valid_variant(parse_json(j))", "schema_of_variant": "schema_of_variant(parse_json(j))",
    "schema_of_variant_agg": "schema_of_variant_agg(parse_json(j))", "to_variant_object": "to_json(to_variant_object(c))",
    "variant_get": "variant_get(parse_json(j), '$.a', 'int')", "try_variant_get": "try_variant_get(parse_json(j), '$.b', 'int')",
    "variant_array_append": "to_json(variant_array_append(parse_json('[1, 2]'), '$', i))",
    "try_variant_array_append": "to_json(try_variant_array_append(parse_json(j), '$.b', 4))",
    "variant_delete": "to_json(variant_delete(parse_json(j), '$.a'))", "variant_strip_nulls": "to_json(variant_strip_nulls(parse_json(j)))",
    "variant_insert": "to_json(variant_insert(parse_json(j), '$.new', i))", "try_variant_insert": "to_json(try_variant_insert(parse_json(j), '$.a', i))",
    "variant_set": "to_json(variant_set(parse_json(j), '$.a', i))", "try_variant_set": "to_json(try_variant_set(parse_json(j), '$.a', i))",
    "parse_url": "parse_url(url, 'HOST')", "try_parse_url": "try_parse_url(s, 'HOST')", "url_decode": "url_decode(url_encode(s))",
    "try_url_decode": "try_url_decode(s)",
    "st_asbinary": "st_asbinary(st_geomfromwkb(point))", "st_geogfromwkb": "st_asbinary(st_geogfromwkb(point))",
    "st_geomfromwkb": "st_asbinary(st_geomfromwkb(point))", "st_setsrid": "st_srid(st_setsrid(st_geomfromwkb(point), 3857))",
    "st_srid": "st_srid(st_geogfromwkb(point))",
    "vector_cosine_similarity": "vector_cosine_similarity(v, array(1F, 2F))", "vector_inner_product": "vector_inner_product(v, v)",
    "vector_l2_distance": "vector_l2_distance(v, array(1F, 0F))", "vector_norm": "vector_norm(v, 2F)",
    "vector_normalize": "vector_normalize(v, 2F)", "vector_avg": "vector_avg(v)", "vector_sum": "vector_sum(v)",
    # aggregates
    "any": "any(o)", "any_value": "any_value(i)", "approx_count_distinct": "approx_count_distinct(i)",
    "approx_percentile": "approx_percentile(n, 0.5)", "percentile_approx": "percentile_approx(p, array(0.1, 0.9))",
    "approx_top_k": "transform(approx_top_k(w, 2), y -> y.count)", "approx_top_k_accumulate": "transform(approx_top_k_estimate(approx_top_k_accumulate(w), 2), y -> y.count)",
    "approx_top_k_estimate": "transform(approx_top_k_estimate(approx_top_k_accumulate(i), 2), y -> y.count)",
    "approx_top_k_combine": "SELECT transform(approx_top_k_estimate(approx_top_k_combine(q, 100), 2), y -> y.count) AS c"
    " FROM (SELECT g, approx_top_k_accumulate(w) AS q FROM t GROUP BY g)",
    "array_agg": "array_agg(i)", "collect_list": "collect_list(w)", "collect_set": "collect_set(i)", "collect_union": "collect_union(a)",
    "bitmap_construct_agg": "bitmap_construct_agg(bitmap_bit_position(n))", "bitmap_and_agg": "bitmap_and_agg(z)",
    "bitmap_or_agg": "bitmap_or_agg(z)", "corr": "corr(p, id)", "covar_pop": "covar_pop(p, id)", "covar_samp": "covar_samp(p, id)",
    "count": "count(x)", "count_if": "count_if(i > 2)", "count_min_sketch": "count_min_sketch(w, 0.5D, 0.5D, 1)",
    "every": "every(o)", "first": "first(i)", "first_value": "first_value(i, true)", "last": "last(i)", "last_value": "last_value(i)",
    "grouping": "SELECT g, o, grouping(o) AS q, count(*) AS c FROM t GROUP BY ROLLUP (g, o)",
    "grouping_id": "SELECT g, o, grouping_id() AS q, sum(d) AS c FROM t GROUP BY CUBE (g, o)",
    "histogram_numeric": "histogram_numeric(p, 3)", "hll_sketch_agg": "hll_sketch_estimate(hll_sketch_agg(i))",
    "hll_sketch_estimate": "hll_sketch_estimate(hll_sketch_agg(w))", "hll_union": "hll_sketch_estimate(hll_union(hll_sketch_agg(i), hll_sketch_agg(id)))",
    "hll_union_agg": "SELECT hll_sketch_estimate(hll_union_agg(q)) AS c FROM (SELECT g, hll_sketch_agg(i) AS q FROM t GROUP BY g)",
    **{f"kll_sketch_agg_{k}": f"kll_sketch_get_n_{k}(kll_sketch_agg_{k}({a}))" for k, a in (("bigint", "n"), ("double", "p"), ("float", "f"))},
    **{f"kll_merge_agg_{k}": f"SELECT kll_sketch_get_n_{k}(kll_merge_agg_{k}(q)) AS c FROM (SELECT g, kll_sketch_agg_{k}({a}) AS q FROM t GROUP BY g)"
       for k, a in (("bigint", "n"), ("double", "p"), ("float", "f"))},
    **{f"kll_sketch_{what}_{k}": call.format(k=k, a=a) for k, a in (("bigint", "n"), ("double", "p"), ("float", "f")) for what, call in (
        ("get_n", "kll_sketch_get_n_{k}(kll_sketch_agg_{k}({a}))"),
        ("get_quantile", "kll_sketch_get_quantile_{k}(kll_sketch_agg_{k}({a}), 0.5D)"),
        ("get_rank", "kll_sketch_get_rank_{k}(kll_sketch_agg_{k}({a}), {k}(1))"),
        ("merge", "kll_sketch_get_n_{k}(kll_sketch_merge_{k}(kll_sketch_agg_{k}({a}), kll_sketch_agg_{k}({a})))"),
        ("to_string", "kll_sketch_to_string_{k}(kll_sketch_agg_{k}({a}))"))},
    "listagg": "listagg(w, ',') WITHIN GROUP (ORDER BY w)", "string_agg": "string_agg(w, '-') WITHIN GROUP (ORDER BY w DESC)",
    "max_by": "max_by(s, id)", "min_by": "min_by(i, id)", "max": "max(s)", "min": "min(x)", "measure": "SELECT measure(i) AS c FROM t",
    "percentile": "percentile(i, 0.5)", "percentile_cont": "percentile_cont(0.5) WITHIN GROUP (ORDER BY i)",
    "percentile_disc": "percentile_disc(0.5) WITHIN GROUP (ORDER BY i)", "avg": "avg(x)", "sum": "sum(d)",
    **{f"regr_{what}": f"regr_{what}(p, id)" for what in ("avgx", "avgy", "count", "intercept", "r2", "slope", "sxx", "sxy", "syy")},
    "theta_sketch_agg": "theta_sketch_estimate(theta_sketch_agg(i))", "theta_sketch_estimate": "theta_sketch_estimate(theta_sketch_agg(w))",
    **{f"theta_{what}": f"theta_sketch_estimate(theta_{what}(theta_sketch_agg(i), theta_sketch_agg(id)))" for what in ("difference", "intersection", "union")},
    **{f"theta_{what}_agg": f"SELECT theta_sketch_estimate(theta_{what}_agg(q)) AS c FROM (SELECT g, theta_sketch_agg(i) AS q FROM t GROUP BY g)"
       for what in ("intersection", "union")},
    **{f"tuple_{what}_{k}": call.format(k=k, a=a) for k, a in (("double", "p"), ("integer", "id")) for what, call in (
        ("sketch_agg", "tuple_sketch_estimate_{k}(tuple_sketch_agg_{k}(i, {a}))"),
        ("sketch_estimate", "tuple_sketch_estimate_{k}(tuple_sketch_agg_{k}(w, {a}))"),
        ("sketch_summary", "tuple_sketch_summary_{k}(tuple_sketch_agg_{k}(i, {a}))"),
        ("sketch_theta", "tuple_sketch_theta_{k}(tuple_sketch_agg_{k}(i, {a}))"),
        *((side, "tuple_sketch_estimate_{k}(tuple_" + side + "_{k}(tuple_sketch_agg_{k}(i, {a}), tuple_sketch_agg_{k}(id, {a})))")
          for side in ("difference", "intersection", "union")),
        *((side + "_theta", "tuple_sketch_estimate_{k}(tuple_" + side + "_theta_{k}(tuple_sketch_agg_{k}(i, {a}), theta_sketch_agg(id)))")
          for side in ("difference", "intersection", "union")),
        *((side + "_agg", "SELECT tuple_sketch_estimate_{k}(tuple_" + side + "_agg_{k}(q)) AS c FROM"
           " (SELECT g, tuple_sketch_agg_{k}(i, {a}) AS q FROM t GROUP BY g)") for side in ("intersection", "union")))},
    # generators
    "explode": "explode(a)", "explode_outer": "explode_outer(m)", "posexplode": "posexplode(r)", "posexplode_outer": "posexplode_outer(a)",
    "inline": "inline(array(c, struct(i AS p, w AS q)))", "inline_outer": "inline_outer(array(c))", "stack": "stack(2, i, s, id, w)",
    "variant_explode": "SELECT id, z.pos, z.key, to_json(z.value) AS value FROM t, LATERAL variant_explode(parse_json(j)) z",
    "variant_explode_outer": "SELECT id, z.pos, z.key, to_json(z.value) AS value FROM t, LATERAL variant_explode_outer(parse_json(j)) z",
    "range": "SELECT r.id, t.s FROM range(2, 9, 2) r LEFT JOIN t ON r.id = t.id", "collations": "SELECT name, language FROM collations()",
    "sql_keywords": "SELECT keyword, reserved FROM sql_keywords()", "python_worker_logs": "SELECT * FROM python_worker_logs()",
    # window functions
    **{name: f"{name}() OVER (PARTITION BY g ORDER BY p)" for name in ("cume_dist", "dense_rank", "percent_rank", "rank")},
    **{name: f"{call} OVER (PARTITION BY g ORDER BY i, id, s)" for name, call in (
        ("row_number", "row_number()"), ("ntile", "ntile(3)"), ("lag", "lag(s)"), ("lead", "lead(x, 2, 9D)"),
        ("nth_value", "nth_value(id, 2)"), ("counter_diff", "counter_diff(id)"))},
}  # fmt: skip

# Functions whose result Spark doesn't define: the expression that is compared instead, and why.
_ORDER = "the order of rows within a group is not defined"
OPEN: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("array_agg", "collect_list", "collect_set", "collect_union"),
        ("sort_array({})", f"{_ORDER}: compared sorted"),
    ),
    **dict.fromkeys(
        (
            "approx_top_k",
            "approx_top_k_accumulate",
            "approx_top_k_combine",
            "approx_top_k_estimate",
        ),
        ("{}", "of equally frequent values any may come: compared are the counts"),
    ),
    **dict.fromkeys(
        ("any_value", "first", "first_value", "last", "last_value"),
        ("true", f"{_ORDER}: compared is that each group has one row"),
    ),
    **dict.fromkeys(
        ("listagg", "string_agg"),
        ("{}", f"{_ORDER}, with `DISTINCT` neither: compared with `WITHIN GROUP (ORDER BY ...)`"),
    ),
    "histogram_numeric": (
        "{}",
        f"{_ORDER}, and bins depend on it if there are more values than bins: compared over few values",
    ),
}

KINDS = ("scalar", "aggregate", "window", "generator", "table")


@dataclass(frozen=True, slots=True)
class Function:
    """A function, a call of it, and the outcome of its trial.

    Attributes:
        kind: one of KINDS.
        form: `rows`, `groups`, `generators` or `queries`: what the call is an expression over.
        call: SQL; empty where none was found.
        outcome: `live`, `refused` or `failed`.
        rule: the incremental rule of an aggregate.
        why: if it is not live, the error's condition and message; if it is, how it is compared.
    """

    name: str
    kind: str
    form: str
    call: str
    outcome: str = ""
    rule: str = ""
    why: str = ""

    @property
    def queries(self) -> list[str]:
        """Queries that use this function alone."""
        if self.form == "generators":
            lateral = f"SELECT id, z.* FROM t LATERAL VIEW {self.call} z"
            return [f"SELECT id, {self.call} FROM t", lateral]
        return [together([self])]


def together(functions: list[Function]) -> str:
    """Return one query that calls several functions of the same form."""
    if functions[0].form == "queries":
        return functions[0].call
    columns = ", ".join(f"{function.call} AS c{i}" for i, function in enumerate(functions))
    if functions[0].form == "groups":
        return f"SELECT g, {columns} FROM t GROUP BY g"
    return f"SELECT id, {columns} FROM t"


def packs(functions: list[Function]) -> list[list[Function]]:
    """Group functions that can share a view: those of the same form and, for aggregates, rule."""
    found = []
    for (form, _), members in itertools.groupby(
        sorted(functions, key=lambda one: (one.form, one.rule, one.name)),
        key=lambda one: (one.form, one.rule),
    ):
        size = PACK if form in ("rows", "groups") else 1
        found += [list(part) for part in batched(list(members), size)]
    return found


def batched(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[at : at + size] for at in range(0, len(values), size))


class Trial:
    """Packs of functions as views of one engine, compared with offline Spark over the same rows."""

    def __init__(self, spark: SparkSession, functions: list[list[Function]]) -> None:
        self.engine = el.Engine(tempfile.mkdtemp(prefix="eddyline-functions-"), spark=spark)
        self.table = self.engine.table("t", COLUMNS)
        self.plain = PlainTable(COLUMNS)
        self.offline = Offline(spark, {"t": self.plain})
        self.views: list[tuple[list[Function], str, el.View]] = []
        for pack in functions:
            for query in [together(pack)] if len(pack) > 1 else pack[0].queries:
                view = self.engine.view(f"v{len(self.views)}", query)
                self.views.append((pack, query, view))

    def differing(self) -> dict[str, str]:
        """Run all epochs; return the functions that differ from offline Spark, and how."""
        wrong: dict[str, str] = {}
        for number, (gone, come) in enumerate(EPOCHS):
            for change, rows in (("delete", gone), ("insert", come)):
                if rows:
                    getattr(self.plain, change)([row(place) for place in rows])
                    getattr(self.table, change)([row(place) for place in rows])
            self.engine.advance()
            self.offline.load()
            for pack, query, view in self.views:
                live = view.snapshot()
                for name, how in _compared(pack, live, self.offline.session.sql(query)):
                    wrong.setdefault(name, f"epoch {number + 1}: {how}")
        for pack, _, view in self.views:
            rows = len(replayed([tuple(row) for row in view.changes().collect()]))
            if rows != len(view.snapshot().collect()):
                wrong.setdefault(pack[0].name, f"the changelog of its view replays to {rows} rows")
        return wrong

    def close(self) -> None:
        self.engine.stop()


def _compared(
    pack: list[Function], live: DataFrame, offline: DataFrame
) -> Iterator[tuple[str, str]]:
    names = [f"c{i}" for i in range(len(live.columns))]
    live, offline = live.toDF(*names), offline.toDF(*names)
    # a variant can't be converted to Arrow
    shown = [
        f"to_json({name})" if isinstance(field.dataType, VariantType) else name
        for name, field in zip(names, live.schema, strict=True)
    ]
    for place, function in enumerate(pack, start=1):
        if function.name in OPEN and OPEN[function.name][0] != "{}":
            shown[place] = OPEN[function.name][0].format(names[place])
    left, right = (frame.selectExpr(*shown).toArrow() for frame in (live, offline))
    if difference(left, right).equal:
        return
    for place, function in enumerate(pack, start=1):
        columns = [0, place] if len(pack) > 1 else list(range(left.num_columns))
        found = difference(left.select(columns), right.select(columns))
        if not found.equal:
            yield function.name, f"only live {found.left_only}, only offline {found.right_only}"


def session(spark: SparkSession) -> SparkSession:
    """Return a session in which all of Spark's types are enabled."""
    return cloned(spark, **{"spark.sql.timeType.enabled": "true"})


# -- finding out ---------------------------------------------------------------------------------


def known(spark: SparkSession) -> dict[str, str]:
    """Return Spark's built-in functions, each with its group in Spark's documentation."""
    catalog = spark._jsparkSession.sessionState().catalog()
    found = {}
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        info = catalog.lookupBuiltinOrTempFunction(name)
        prefix = ""
        if not info.isDefined():
            info, prefix = catalog.lookupBuiltinOrTempTableFunction(name), "table "
        found[name] = prefix + (info.get().getGroup() if info.isDefined() else "operators")
    return found


_GUESSES = [
    *("s", "x", "i", "d", "n", "ts", "day", "a", "m", "c", "o", "z", "w", "p", "num", "dt", "j", "r", "v"),
    *("b", "f", "tn", "xml", "csv", "url"),
]  # fmt: skip


def guessed(spark: SparkSession, name: str, rows: DataFrame) -> str:
    """Find the call with up to two columns whose results vary most; return "" if none works."""
    best, most = "", -1
    pairs = itertools.product(_GUESSES[:14], repeat=2)
    for arguments in itertools.chain(((), *((one,) for one in _GUESSES)), pairs):
        if most > 0 and len(arguments) != 1:
            break
        call = f"{name}({', '.join(arguments)})"
        try:
            results = {str(one) for (one,) in rows.selectExpr(call).collect() if one is not None}
        except (PySparkException, ValueError):  # a time that Python can't represent
            continue
        if len(results) > most:
            best, most = call, len(results)
    return best


def described(
    spark: SparkSession, name: str, group: str, rows: DataFrame, remembered: str
) -> Function:
    """Find a call of a function that Spark accepts."""
    call = CALLS.get(name) or remembered or guessed(spark, name, rows)
    kind = {"agg_funcs": "aggregate", "window_funcs": "window", "generator_funcs": "generator"}.get(
        group, "table" if group.startswith("table ") else "scalar"
    )
    if not call or call.startswith("SELECT "):
        return Function(name, kind, "queries", call)
    try:
        plan = rows.selectExpr(call)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        return Function(name, kind, "rows", call, "unavailable", why=_short(error))
    nodes = {line.strip(" +-:").split(" ")[0] for line in plan.toString().splitlines()}
    form = "generators" if "Generate" in nodes else "groups" if "Aggregate" in nodes else "rows"
    if form == "groups" and group not in ("sketch_funcs", "variant_funcs"):
        kind = "aggregate"
    if form == "generators":
        kind = "generator"
    return Function(name, kind, form, call)


def _compiles(engine: el.Engine, query: str) -> bool:
    try:
        engine.explain(query)
    except el.QueryError:
        return False
    return True


def compiled(engine: el.Engine, function: Function) -> Function:
    """Compile a call; return the function with its rule, or as refused.

    A result that can't be a column of a view is cast to a string.
    """
    if function.outcome or not function.call:
        return function
    for form in ("{}", "CAST({} AS STRING)", "to_json({})"):
        shown = replace(function, call=form.format(function.call))
        try:
            plan = engine.explain(shown.queries[0])
        except el.QueryError as error:
            first = error if form == "{}" else first  # noqa: F821  # set by the first form
            if error.condition not in ("UNSUPPORTED_TYPE", "INVALID_QUERY") or function.form in (
                "queries",
                "generators",
            ):
                break
            continue
        rule = ""
        if function.form == "groups":
            rule = next(line for line in plan.splitlines() if "Aggregate [" in line)
            rule = rule.split("rule: ")[1].split(";")[0].split("]")[0]
        why = OPEN[function.name][1] if function.name in OPEN else ""
        if form != "{}":
            why = "its result can't be a column of a view; it can be cast to a string"
        return replace(shown, rule=rule, why=why)
    return replace(function, outcome="refused", why=_short(first))


def _short(error: BaseException) -> str:
    text = str(error).split("\n\nJVM stacktrace")[0].split(" (view ")[0].split(" SQLSTATE")[0]
    return " ".join(text.split())[:300]


def tried(spark: SparkSession, pack: list[Function]) -> list[Function]:
    """Try the functions of a pack and return them with their outcomes; bisect a pack that fails."""
    try:
        trial = Trial(spark, [pack])
        try:
            wrong = trial.differing()
        finally:
            trial.close()
    except Exception as error:  # noqa: BLE001  # any error is a result of the trial
        if len(pack) == 1:
            return [replace(pack[0], outcome="failed", why=_short(error))]
        middle = len(pack) // 2
        return [*tried(spark, pack[:middle]), *tried(spark, pack[middle:])]
    return [
        replace(one, outcome="failed", why=wrong[one.name])
        if one.name in wrong
        else replace(one, outcome="live")
        for one in pack
    ]


def find_out(spark: SparkSession, report: Callable[[str], None] = print) -> list[Function]:
    """Try every function of the running Spark; return all with their outcomes."""
    offline = Offline(spark, {"t": PlainTable(COLUMNS, rows=[row(n) for n in range(1, 10)])})
    offline.load()
    rows = offline.session.createDataFrame(offline.result("SELECT * FROM t"))
    last = {function.name: function for function in read()} if FOUND.exists() else {}
    functions = []
    for name, group in known(spark).items():
        remembered = last[name].call if name in last else ""
        functions.append(described(offline.session, name, group, rows, remembered))
    report(
        f"{len(functions)} functions, without a call: {[f.name for f in functions if not f.call]}"
    )
    # functions that were live last time are compiled together, which is faster
    easy = {name for name, one in last.items() if one.outcome == "live" and one.form == "rows"}
    with el.Engine(tempfile.mkdtemp(prefix="eddyline-functions-"), spark=spark) as engine:
        engine.table("t", COLUMNS)
        for part in batched([one for one in functions if one.name in easy], PACK):
            if not _compiles(engine, together(part)):
                easy -= {one.name for one in part}
        functions = [one if one.name in easy else compiled(engine, one) for one in functions]
    report(f"{sum(one.outcome == 'refused' for one in functions)} refused")
    done = [function for function in functions if function.outcome or not function.call]
    for pack in packs([f for f in functions if f.call and not f.outcome]):
        done += tried(spark, pack)
        report(f"{len(done)} done")
    return sorted(done, key=lambda one: (KINDS.index(one.kind), one.name))


def read() -> list[Function]:
    """Read the recorded results."""
    return [Function(**entry) for entry in json.loads(FOUND.read_text())["functions"]]


def write(functions: list[Function], version: str) -> None:
    """Write the results, and the page that is made from them."""
    entries = [asdict(function) for function in functions]
    document = {"spark": version, "functions": entries}
    FOUND.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(functions, version))


# -- the page ------------------------------------------------------------------------------------

_TITLES = {
    "scalar": "Scalar functions and operators",
    "aggregate": "Aggregate functions",
    "window": "Window functions",
    "generator": "Generators",
    "table": "Table functions",
}
_RULES = {
    "linear": "linear: accumulators that add up, whatever is deleted",
    "linear, extremes of sorted values": "sorted values: the group's values are kept in order",
    "linear, percentiles of sorted values": "percentiles: the group's numbers are kept in order",
    "recompute touched groups": "recompute: Spark aggregates the touched groups anew",
    "": "in a query of their own: over stored sketches, of time windows, of grouping sets",
}


def page(functions: list[Function], version: str) -> str:
    """Format the text of `docs/coverage.md`."""
    live = [one for one in functions if one.outcome == "live"]
    lines = [
        "# Spark SQL functions in live views",
        "",
        "Made by `make coverage`; don't edit. Each built-in function of Spark was called over a table of all",
        "types, kept live through several epochs of inserts, deletes and updates, and compared with offline Spark",
        f"after each. Spark {version} has {len(functions)} functions: {len(live)} are live,",
        f"{sum(one.outcome == 'refused' for one in functions)} are refused when the view is created,"
        f" {sum(one.outcome == 'unavailable' for one in functions)} Spark itself doesn't run here.",
    ]
    for kind in KINDS:
        members = [one for one in live if one.kind == kind]
        lines += ["", f"## {_TITLES[kind]}", ""]
        if kind == "aggregate":
            lines += [
                "Every aggregate is kept by one of four rules, here for the call that was tried.",
                "",
            ]
            for rule, title in _RULES.items():
                lines += [f"- **{title}:** {_names(one for one in members if one.rule == rule)}"]
        else:
            lines += [_names(members)]
    lines += ["", "## Compared otherwise", ""]
    lines += [f"- `{_name(one)}`: {one.why}" for one in live if one.why]
    for outcome, title in (
        ("refused", "Refused when the view is created"),
        ("unavailable", "Not run by Spark itself here"),
        ("failed", "Not right yet"),
    ):
        members = [one for one in functions if one.outcome == outcome]
        if members:
            lines += ["", f"## {title}", "", "| call | why |", "|---|---|"]
            lines += [
                f"| `{_cell(one.call or one.name)}` | {_reason(one.why)} |" for one in members
            ]
    return "\n".join(lines) + "\n"


def _name(function: Function) -> str:
    return _cell(function.name)


def _names(functions: Any) -> str:
    return ", ".join(f"`{function.name}`" for function in functions) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _reason(text: str) -> str:
    # Markdown would parse two adjacent conditions as a link
    return _cell(text).replace("[", "\\[")


if __name__ == "__main__":
    from eddyline.spark.session import local_session

    local_session().sparkContext.setLogLevel("OFF")
    spark = session(local_session())
    write(find_out(spark), spark.version)
