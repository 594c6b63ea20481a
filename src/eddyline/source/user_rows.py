"""Converts rows from users to Arrow tables of a schema."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from itertools import chain
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from eddyline.errors import DataError
from eddyline.source.arrow_types import holds, is_list, with_inner
from eddyline.source.row_rules import RowRules, filled
from eddyline.source.sorted_maps import with_sorted_maps
from eddyline.spark.failures import query_errors
from eddyline.spark.schema import to_arrow

_MISSING = {type(pd.NA), type(pd.NaT)}
"""What pandas has for null besides None. A NaN stays one."""

Rows: TypeAlias = Iterable[Mapping[str, Any] | Sequence[Any]] | pa.Table | pd.DataFrame | DataFrame


def as_arrow(
    rows: Rows,
    schema: pa.Schema,
    *,
    relation: str,
    zone: str,
    required: Sequence[str] = (),
    rules: RowRules | None = None,
) -> pa.Table:
    """Convert rows to an Arrow table.

    Times without a zone are taken as PySpark takes them: Python's datetimes in the zone of this machine, as `collect`
    returns them, those of tables and DataFrames in the session's.

    Args:
        rows: all dicts or all tuples in the order of the columns, an Arrow table, a pandas or Spark DataFrame
            (matched by name). Missing columns have their default, or are null, as are pandas' NA and NaT.
        schema: columns and types of the result.
        relation: name of the table, for errors.
        zone: time zone of the session.
        required: columns of the key, which must not be null.
        rules: the rules of the table's columns for rows that are appended; None for none.

    Raises:
        DataError: a column is unknown or missing, a value doesn't fit its type, a row isn't one (WRONG_ROW), or
            breaks a rule (NULL_VALUE, TOO_LONG).
        QueryError: Spark fails on the query of a Spark DataFrame.
    """
    if isinstance(rows, DataFrame):
        rows = collected(rows, relation)
    if isinstance(rows, pd.DataFrame):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.Table):
        table = _from_table(rows, schema, relation, zone, rules)
    else:
        table = _from_python(rows, schema, relation, rules)
    table = pa.table([with_sorted_maps(column) for column in table.columns], schema=schema)
    for name in required:
        if table[name].null_count:
            raise DataError(
                f"column {name} of the primary key is null in {table[name].null_count} rows",
                condition="NULL_KEY",
                table=relation,
                hint="give every row its key",
            )
    if rules is not None:
        rules.check(table, relation)
    return table.combine_chunks()


def collected(frame: DataFrame, relation: str, query: str = "") -> pa.Table:
    """Return the rows of a Spark DataFrame.

    Args:
        relation: name of the table that they are for, for errors.
        query: the statement that they come from, for errors.
    """
    with query_errors(query, table=relation):
        return to_arrow(frame)


def _from_table(
    rows: pa.Table, schema: pa.Schema, relation: str, zone: str, rules: RowRules | None
) -> pa.Table:
    _check_names(rows.column_names, schema.names, relation)
    repeated = [name for name, count in Counter(rows.column_names).items() if count > 1]
    if repeated:
        raise DataError(
            f"column {', '.join(repeated)} is given more than once",
            condition="DUPLICATE_COLUMN",
            table=relation,
            hint="give each column once",
        )
    if rules is not None and rows.column_names:
        rules.check_given(rows.column_names, relation)
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            value = None if rules is None else rules.default(field.name, field.type)
            columns.append(filled(value, field.type, rows.num_rows))
            continue
        column = rows[field.name]
        _check_fields(column.type, field.type, field.name, relation)
        try:
            columns.append(_cast(_as_spark_casts(column, field.type, zone), field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _unfit(relation, field, error) from error
    return pa.table(columns, schema=schema)


def _as_spark_casts(column: pa.ChunkedArray, kind: pa.DataType, zone: str) -> pa.ChunkedArray:
    """Return moments as local times, local times as moments, and decimals as doubles, if a type wants them.

    Arrow's cast takes another time zone, and multiplies decimals by inexact powers of ten.
    """
    if not holds(kind, _is_cast_otherwise) or not column.num_chunks:
        return column

    def there(array: pa.Array, kind: pa.DataType) -> pa.Array:
        given = array.type
        if given == kind:
            return array
        if pa.types.is_dictionary(given):
            return there(array.dictionary_decode(), kind)
        if pa.types.is_timestamp(given) and pa.types.is_timestamp(kind):
            if given.tz is None and kind.tz is not None:
                return pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="latest")
            if given.tz is not None and kind.tz is None:
                return pc.local_timestamp(array.cast(pa.timestamp(given.unit, zone)))
        elif pa.types.is_decimal(given) and pa.types.is_floating(kind):
            return array.cast(pa.string()).cast(kind)
        elif pa.types.is_struct(given) and pa.types.is_struct(kind):
            return with_inner(
                array, lambda one, n: there(one, kind.field(given.field(n).name).type)
            )
        elif pa.types.is_map(given) and pa.types.is_map(kind):
            return with_inner(array, lambda one, n: there(one, (kind.key_type, kind.item_type)[n]))
        elif is_list(given) and is_list(kind):
            return with_inner(array, lambda one, _: there(one, kind.value_type))
        return array

    return pa.chunked_array([there(chunk, kind) for chunk in column.chunks])


def _is_cast_otherwise(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_floating(kind))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column; also one with null structs whose fields can't be null, which Arrow doesn't cast."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not (holds(kind, pa.types.is_struct) and column.null_count):
            raise
        whole = column.drop_null().cast(kind).combine_chunks()
        places = np.cumsum(column.is_valid().to_numpy()) - 1
        return pa.chunked_array([whole.take(pa.array(places, mask=column.is_null().to_numpy()))])


def _from_python(rows: Any, schema: pa.Schema, relation: str, rules: RowRules | None) -> pa.Table:
    if isinstance(rows, str | bytes | Mapping):
        raise _no_row(rows, relation)
    rows = list(rows)
    if _are_mappings(rows, relation):
        _check_names({name for row in rows for name in row}, schema.names, relation)
        known = {} if rules is None else rules.default_values(schema)
        values = [[row.get(name, known.get(name)) for row in rows] for name in schema.names]
    else:
        _check_widths(rows, len(schema), relation)
        values = list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in schema]
    columns = [
        _array(column, field, relation) for field, column in zip(schema, values, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _array(values: list[Any], field: pa.Field, relation: str) -> pa.Array:
    if _MISSING & set(map(type, values)):
        values = [None if type(value) in _MISSING else value for value in values]
    try:
        _check_values(values, field.type, field.name, relation)
        return pa.array(_with_moments(values, field.type), field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        why: object = error
        if pa.types.is_string(field.type):  # Arrow doesn't tell which value it is
            others = (v for v in values if v is not None and not isinstance(v, str | bytes))
            why = next((f"{v!r:.100} is of the type {type(v).__name__}" for v in others), error)
        raise _unfit(relation, field, why) from error


def _with_moments(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Return values with microseconds since 1970 in place of datetimes without a zone, where their type is one of moments."""
    if not holds(kind, _is_moment):
        return values
    if _is_moment(kind):
        return [
            _micros(value) if isinstance(value, datetime) and value.tzinfo is None else value
            for value in values
        ]
    if is_list(kind):
        return [
            _with_moments(list(value), kind.value_type)
            if isinstance(value, list | tuple | np.ndarray)
            else value
            for value in values
        ]

    def inner(parts: Mapping[Any, Any]) -> dict[Any, Any]:
        if pa.types.is_map(kind):
            keys = _with_moments(list(parts), kind.key_type)
            return dict(zip(keys, _with_moments(list(parts.values()), kind.item_type), strict=True))
        types = {field.name: field.type for field in kind}
        return {name: _with_moments([one], types[name])[0] for name, one in parts.items()}

    found = ((value, _parts(value, kind)) for value in values)
    return [value if parts is None else inner(parts) for value, parts in found]


def _parts(value: object, kind: pa.DataType) -> Mapping[Any, Any] | None:
    """Return the fields of a struct or the entries of a map as Arrow takes them: it also takes a tuple for the fields in order, and pairs.

    None for what is neither: null, or what Arrow refuses.
    """
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list | tuple):
        return None
    if pa.types.is_struct(kind) and isinstance(value, tuple):
        names = [field.name for field in kind]
        return dict(zip(names, value, strict=True)) if len(value) == len(names) else None
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return None
    try:
        return dict(value)
    except TypeError:  # keys without a hash
        return None


def _micros(local: datetime) -> int:
    """Return the moment of a local time of this machine, in microseconds since 1970."""
    return int(time.mktime(local.timetuple())) * 1_000_000 + local.microsecond


def _is_moment(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _are_mappings(rows: list[Any], relation: str) -> bool:
    """Return whether all rows are dicts, rather than values in the order of the columns; raise DataError for a mix."""
    kinds = set(map(type, rows))
    for kind in kinds:
        if issubclass(kind, str | bytes | Set) or not hasattr(kind, "__len__") or _is_table(kind):
            raise _no_row(next(row for row in rows if type(row) is kind), relation)
    mappings = {kind for kind in kinds if issubclass(kind, Mapping)}
    if mappings and mappings != kinds:
        odd = next(row for row in rows if isinstance(row, Mapping) != isinstance(rows[0], Mapping))
        raise DataError(
            f"some rows are dicts and others aren't: {rows[0]!r:.100} and {odd!r:.100}",
            condition="WRONG_ROW",
            table=relation,
            hint="give all rows of a call as dicts, or all as tuples",
        )
    return bool(mappings)


def _is_table(kind: type) -> bool:
    """Return whether a type is one of tables, of pandas, Arrow or others, whose parts are columns."""
    return hasattr(kind, "columns") and not issubclass(kind, tuple | Mapping)


def _check_widths(rows: list[Any], width: int, relation: str) -> None:
    if set(map(len, rows)) <= {width}:
        return
    row = next(row for row in rows if len(row) != width)
    raise DataError(
        f"a row has {len(row)} values for {width} columns: {row!r}",
        condition="WRONG_WIDTH",
        table=relation,
        hint="give one value a column, or dicts by column name",
    )


def _no_row(row: object, relation: str) -> DataError:
    table = _is_table(type(row))
    return DataError(
        f"a row is a dict or a tuple in a list, not {type(row).__name__}: {row!r:.100}",
        condition="WRONG_ROW",
        table=relation,
        hint="give the rows of a table, such as frame.to_dict('records') or table.to_pylist()"
        if table
        else "give one value a column, or dicts by column name",
    )


def _check_names(
    names: Iterable[str], known: Sequence[str], relation: str, within: str = ""
) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        what = f"field {', '.join(map(str, unknown))} of {within}" if within else ""
        raise DataError(
            f"unknown {what or 'column ' + ', '.join(map(str, unknown))}",
            condition="UNKNOWN_COLUMN",
            table=relation,
            hint=f"the {'fields' if within else 'columns'} are {', '.join(known)}",
        )


def _check_fields(given: pa.DataType, wanted: pa.DataType, name: str, relation: str) -> None:
    """Refuse structs with fields that a column doesn't have: Arrow's cast would leave them out."""
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in wanted}
        _check_names([field.name for field in given], list(known), relation, name)
        for field in given:
            _check_fields(field.type, known[field.name], f"{name}.{field.name}", relation)
    elif is_list(given) and is_list(wanted):
        _check_fields(given.value_type, wanted.value_type, name, relation)
    elif pa.types.is_map(given) and pa.types.is_map(wanted):
        _check_fields(given.key_type, wanted.key_type, name, relation)
        _check_fields(given.item_type, wanted.item_type, name, relation)


def _check_values(values: Sequence[Any], wanted: pa.DataType, name: str, relation: str) -> None:
    """Refuse what Arrow would change silently: dicts with fields that a struct doesn't have, and numbers.

    Raises:
        DataError: UNKNOWN_COLUMN.
        ValueError, OverflowError: a number doesn't fit.
    """
    if pa.types.is_struct(wanted):
        rows = [row for value in values if (row := _parts(value, wanted)) is not None]
        _check_names(
            {field for row in rows for field in row}, [f.name for f in wanted], relation, name
        )
        for field in wanted:
            inner = [row[field.name] for row in rows if field.name in row]
            _check_values(inner, field.type, f"{name}.{field.name}", relation)
    elif is_list(wanted):
        lists = (value for value in values if isinstance(value, list | tuple | np.ndarray))
        _check_values(list(chain.from_iterable(lists)), wanted.value_type, name, relation)
    elif pa.types.is_map(wanted):
        maps = [one for value in values if (one := _parts(value, wanted)) is not None]
        _check_values(list(chain.from_iterable(maps)), wanted.key_type, name, relation)
        items = chain.from_iterable(one.values() for one in maps)
        _check_values(list(items), wanted.item_type, name, relation)
    else:
        _check_numbers(values, wanted)


def _check_numbers(values: Sequence[Any], wanted: pa.DataType) -> None:
    """Refuse numbers that Arrow cuts or takes for something else: 1.5 as an integer, 1e300 as a FLOAT, 5 as a time."""
    kinds = set(map(type, values)) - {int, bool, type(None)}
    if kinds & _MISSING:  # of which Arrow makes a date of the year 1
        raise ValueError("pandas' NA or NaT stands within it; give None")
    if pa.types.is_integer(wanted):
        broken = (v for v in values if isinstance(v, Real) and not float(v).is_integer())
        if kinds and (odd := next(broken, None)) is not None:
            raise ValueError(f"{odd} isn't a whole number")
    elif pa.types.is_float32(wanted):
        exact = np.array(values, np.float64)
        with np.errstate(over="ignore"):
            lost = np.isinf(exact.astype(np.float32)) & ~np.isinf(exact)
        if lost.any():
            raise ValueError(f"{exact[lost][0]} is beyond its range")
    elif pa.types.is_temporal(wanted):
        number = (v for v in values if isinstance(v, Real))
        if (odd := next(number, None)) is not None:
            raise ValueError(f"{odd} is a number; give a datetime, date, time or timedelta")


def _unfit(relation: str, field: pa.Field, why: object) -> DataError:
    return DataError(
        f"a value of column {field.name} doesn't fit {field.type}: {why}",
        condition="WRONG_TYPE",
        table=relation,
        hint="convert the value before handing it over; nothing was written",
    )
