"""Rows as JSON, whole columns at a time, in the form of Spark's `to_json`.

Differences from `to_json`: null fields are written, as `null`; timestamps keep their microseconds
where they have any, and those more than 260,000 years from now are in UTC; a day-time interval is an ISO 8601 duration.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.arguments import wrong_argument
from eddyline.sink.base import Target
from eddyline.sink.texts import OF_POLARS, date_texts, far_places, moment_texts

NULL = "null"
_CELL = "v"


def check_json(target: Target, form: str) -> None:
    """Raise EngineError BAD_OPTION if a column of the view has a type without a form in JSON.

    Args:
        form: name of the sink's format, for the message.
    """
    for field, column in zip(target.schema, target.columns, strict=True):
        if column.dataType.typeName() == "variant" or not has_json(field.type):
            raise wrong_argument(
                f"the format {form} for the column {field.name}",
                column.dataType.simpleString(),
                "convert the column in the view, such as with to_json or CAST",
            )


def json_rows(rows: pa.Table) -> pl.Series:
    """Return each row as a JSON object.

    Example:
        >>> json_rows(pa.table({"n": [1, None], "s": ["tea", ""]})).to_list()
        ['{"n":1,"s":"tea"}', '{"n":null,"s":""}']
    """
    return json_objects(
        rows.column_names, [json_values(column) for column in rows.columns], rows.num_rows
    )


def json_objects(names: Sequence[str], values: Sequence[pl.Series | str], count: int) -> pl.Series:
    """Return JSON objects of fields whose values are JSON already.

    Args:
        values: for each name the values of all objects, or one for all.
        count: the number of objects.
    """
    parts: list[pl.Expr] = []
    literal = "{"
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        literal += "," * bool(place) + json.dumps(name, ensure_ascii=False) + ":"
        if isinstance(value, str):
            literal += value
        else:
            parts += [pl.lit(literal), pl.lit(value)]
            literal = ""
    literal += "}"
    if not parts:
        return pl.Series(_CELL, [literal] * count, pl.String)
    return pl.select(pl.concat_str([*parts, pl.lit(literal)]).alias(_CELL)).to_series()


def json_values(column: pa.ChunkedArray | pa.Array) -> pl.Series:
    """Return each value of a column as JSON; `null` for a missing one."""
    if isinstance(column, pa.Array):
        return _texts(column).fill_null(NULL)
    chunks = [_texts(chunk) for chunk in column.chunks if len(chunk)]
    if not chunks:
        return pl.Series(_CELL, [], pl.String)
    return pl.concat(chunks).fill_null(NULL)


def has_json(kind: pa.DataType) -> bool:
    """Return whether the values of a type have a form in JSON."""
    if pa.types.is_map(kind):
        return has_json(kind.key_type) and has_json(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return has_json(kind.value_type)
    if pa.types.is_struct(kind):
        return all(has_json(kind.field(i).type) for i in range(kind.num_fields))
    return any(
        test(kind)
        for test in (
            pa.types.is_null,
            pa.types.is_boolean,
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_decimal,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_date,
            pa.types.is_timestamp,
            pa.types.is_duration,
            pa.types.is_time,
        )
    )


def _texts(array: pa.Array) -> pl.Series:
    """Return the values of an array as JSON; a missing one may be missing, or `null`."""
    kind = array.type
    if pa.types.is_null(kind):
        return pl.Series(_CELL, [NULL] * len(array), pl.String)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        texts = json_objects(names, [json_values(one) for one in array.flatten()], len(array))
        return texts.set(pl.Series(pc.is_null(array)), NULL) if array.null_count else texts
    if pa.types.is_map(kind):
        keys, items = (_texts_of_entries(array, part) for part in (array.keys, array.items))
        quoted = pl.when(keys.str.starts_with('"')).then(keys).otherwise(_quoted(keys))
        entries = pl.select(pl.concat_str([quoted, pl.lit(":"), pl.lit(items)])).to_series()
        return _wrapped("{", _joined(array, entries), "}")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _wrapped("[", _joined(array, _texts_of_entries(array, array.values)), "]")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(pl.Series(array))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _wrapped('"', pl.Series(array).bin.encode("base64"), '"')
    if pa.types.is_floating(kind):
        return _floats(pl.Series(array))
    if pa.types.is_date(kind):
        if (far := far_places(array, OF_POLARS)) is not None:
            return _patched(array, far, _wrapped('"', date_texts(array), '"'))
        return pl.Series(array).dt.to_string('"%Y-%m-%d"')
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    if pa.types.is_duration(kind):
        return _wrapped('"', pl.Series(array).dt.to_string("iso"), '"')
    if pa.types.is_time(kind):
        return pl.Series(array).dt.to_string('"%H:%M:%S%.f"')
    return pl.Series(array.cast(pa.large_string()))  # integers, decimals, booleans


def _quoted(texts: pl.Series) -> pl.Series:
    """Return texts as JSON strings."""
    objects = pl.struct(texts.alias(_CELL)).struct.json_encode()
    cells = objects.str.strip_prefix(f'{{"{_CELL}":').str.strip_suffix("}")
    return pl.select(cells).to_series()


def _wrapped(before: str, texts: pl.Series, after: str) -> pl.Series:
    return pl.select(pl.concat_str([pl.lit(before), pl.lit(texts), pl.lit(after)])).to_series()


def _floats(values: pl.Series) -> pl.Series:
    """JSON has no number for these three: they are strings, as Spark writes and reads them."""
    texts = values.cast(pl.String)
    odd = {"NaN": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    return texts if values.is_finite().all() else texts.replace(odd)


def _patched(array: pa.Array, far: pa.Array, texts: pl.Series) -> pl.Series:
    """Return the values of an array as JSON, those at some places by these texts."""
    near = _texts(pc.if_else(far, pa.scalar(None, array.type), array))
    return texts.zip_with(pl.Series(far), near)


def _timestamps(array: pa.Array) -> pl.Series:
    zone = array.type.tz
    array = array.cast(pa.timestamp("us", zone))
    if (far := far_places(array, OF_POLARS)) is not None:
        texts = _wrapped('"', moment_texts(array, "T"), '"' if zone is None else 'Z"')
        return _patched(array, far, texts.str.replace(r"(\.\d{3})000", "${1}"))
    moments = pl.Series(array)
    if zone is None:
        texts = moments.dt.to_string('"%Y-%m-%dT%H:%M:%S%.6f"')
        return texts.str.replace(r'(\.\d{3})000"$', '${1}"')
    texts = moments.dt.convert_time_zone(zone).dt.to_string('"%Y-%m-%dT%H:%M:%S%.6f%:z"')
    texts = texts.str.replace(r'\+00:00"$', 'Z"')
    return texts.str.replace(r"(\.\d{3})000([Z+-])", "${1}${2}")


def _texts_of_entries(array: pa.Array, entries: pa.Array) -> pl.Series:
    """Return the JSON of the entries that the lists or maps of an array refer to."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return json_values(entries.slice(first, last - first))


def _joined(array: pa.Array, entries: pl.Series) -> pl.Series:
    """Return the entries of each list or map of an array, with commas between; null for null."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    lists = pa.LargeListArray.from_arrays(
        pa.array(offsets - offsets[0]), entries.to_arrow(), mask=pc.is_null(array)
    )
    return pl.Series(lists).list.join(",")
