"""AUTO CDC: a stream of change records, kept as a live table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StructType, VariantType

from eddyline.api.dataframe_views import relation
from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.handles import Name, View, name_of
from eddyline.api.reading import Reading
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_choice, checked, wrong_argument
from eddyline.catalog.entries import VIEW
from eddyline.errors import QueryError
from eddyline.spark.failures import query_errors
from eddyline.sql.cdc import RESERVED, ChangeFlow, SortedColumn, live_query
from eddyline.sql.names import check_name, quoted

_UNORDERED = (MapType, VariantType)
_JSON_OPTIONS = (
    "map('timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSSXXX', "
    "'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
)


@checked
class ChangeFlows:
    """The part of an engine that keeps tables from change records."""

    _workspace: Workspace
    _epochs: Epochs
    _reading: Reading
    _definitions: Definitions

    def auto_cdc(
        self,
        target: str,
        source: Name,
        keys: Sequence[str],
        sequence_by: str,
        *,
        apply_as_deletes: str | None = None,
        apply_as_truncates: str | None = None,
        column_list: Sequence[str] | None = None,
        except_column_list: Sequence[str] | None = None,
        stored_as_scd_type: int | str = 1,
    ) -> View:
        """Create a view that holds the table which a stream of change records describes.

        Records may come in any order, and several times: of each key the record with the greatest
        sequence value counts. At the same value a delete counts before any other, else the record with
        the greatest values. A record with a NULL key or sequence value makes the view fail.

        Args:
            target: name of the view.
            source: name of a stream, table or view of change records, or its handle.
            keys: columns that identify a row.
            sequence_by: SQL that orders the records of a key, such as `"ts"` or `"struct(ts, number)"`.
            apply_as_deletes: SQL condition of the records that delete the row of their key.
            apply_as_truncates: of those that delete all rows up to their sequence value (type 1 only).
            column_list: columns of the target, with the keys. None for all of the source.
            except_column_list: or those that the target doesn't have.
            stored_as_scd_type: 1 keeps the last version of each row, 2 all versions, with the columns
                `__START_AT` and `__END_AT` (NULL for the current version).

        Raises:
            QueryError: a column or expression is wrong. CatalogError: the name is another's.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> engine = Engine(tempfile.mkdtemp())
            >>> log = engine.table("log", "id INT, name STRING, op STRING, number INT")
            >>> users = engine.auto_cdc(
            ...     "users", "log", ["id"], "number", apply_as_deletes="op = 'd'", column_list=["id", "name"]
            ... )
            >>> log.insert([(1, "Ann", "u", 2), (1, "An", "c", 1), (2, "Bo", "c", 3), (2, None, "d", 4)])
            >>> epoch = engine.advance()
            >>> [tuple(row) for row in users.snapshot().collect()]
            [(1, 'Ann')]
            >>> engine.stop()
        """
        check_choice("stored_as_scd_type", str(stored_as_scd_type), ("1", "2"))
        check_name(target, VIEW)
        records = name_of(source)
        flow = ChangeFlow(
            records,
            tuple(keys),
            sequence_by,
            apply_as_deletes,
            apply_as_truncates,
            None if column_list is None else tuple(column_list),
            tuple(except_column_list or ()),
            int(stored_as_scd_type),
        )
        query = flow_query(flow, target, relation(self._workspace, records))
        # its state is the table, or its history, as the user asked: no warning about growth
        entry = self._definitions.view(target, query, replace=False, warn=False)
        return View(entry.name, self._reading, self._epochs.sinks)


def flow_query(flow: ChangeFlow, target: str, source: DataFrame) -> str:
    """Return the query of the target of a flow.

    Args:
        source: has the columns of the flow's source.

    Raises:
        QueryError: a column or an expression is wrong.
    """
    schema = source.schema
    keys = _found("KEYS", flow.keys, schema, target)
    if not keys:
        raise wrong_argument("keys", list(flow.keys), "name the columns that identify a row")
    names = _target_columns(flow, keys, schema, target)
    taken = {name.lower() for name in RESERVED[flow.scd_type]}
    for name in names:
        if name.lower() in taken:
            raise _wrong(
                target, f"AUTO CDC itself names a column {name}", "rename the column in a view"
            )
    if flow.scd_type == 2 and flow.truncates is not None:
        raise _unsupported(
            target, "APPLY AS TRUNCATE WHEN with SCD type 2", "take type 1, or leave the clause out"
        )
    if flow.scd_type == 2:
        for name in names:
            if _contains_unordered(schema[name].dataType):
                raise _wrong(
                    target,
                    f"column {name} is of type {schema[name].dataType.simpleString()}, whose values "
                    "can't be compared for SCD type 2",
                    "leave it out, or make it text with to_json in a view between",
                )
    sequence = _sequence_type(flow, target, source)
    columns = [SortedColumn(name, _sort_key(name, schema[name].dataType)) for name in names]
    parts = list(_parts("", sequence))
    flow = replace(flow, keys=keys)
    return live_query(flow, columns, parts)


def _target_columns(
    flow: ChangeFlow, keys: Collection[str], schema: StructType, target: str
) -> list[str]:
    """Return the names of the target's columns, as the source spells them."""
    if flow.columns is not None and flow.excepted:
        hint = "give one of column_list and except_column_list"
        raise wrong_argument("column_list", list(flow.columns), hint)
    if flow.columns is not None:
        names = list(_found("COLUMNS", flow.columns, schema, target))
    else:
        excepted = _found("EXCEPT", flow.excepted, schema, target)
        names = [name for name in schema.names if name not in excepted]
    for key in keys:
        if key not in names:
            raise _wrong(
                target,
                f"the key column {key} isn't one of the target's columns",
                "add it to COLUMNS",
            )
    return names


def _found(clause: str, names: Sequence[str], schema: StructType, target: str) -> tuple[str, ...]:
    """Return columns as the source spells them."""
    spelling = {name.lower(): name for name in schema.names}
    found: dict[str, None] = {}
    for name in names:
        known = spelling.get(name.lower())
        if known is None:
            raise QueryError(
                f"the source has no column {name}",
                condition="UNKNOWN_COLUMN",
                hint=f"the columns are {', '.join(schema.names)}",
                view=target,
                clause=clause,
            )
        if known in found:
            raise _wrong(target, f"{clause} names column {name} twice", "name it once")
        found[known] = None
    return tuple(found)


def _sequence_type(flow: ChangeFlow, target: str, source: DataFrame) -> DataType:
    """Return the type of the sequence values; check the conditions as well."""
    for condition in (flow.deletes, flow.truncates):
        if condition is None:
            continue
        kind = _type(condition, target, source)
        if not isinstance(kind, BooleanType):
            raise _wrong(
                target,
                f"the condition {condition} is of type {kind.simpleString()}",
                "write a condition, such as op = 'DELETE'",
            )
    kind = _type(flow.sequence_by, target, source)
    if _contains_unordered(kind):
        raise _wrong(
            target,
            f"SEQUENCE BY is of type {kind.simpleString()}, which has no order",
            "take a number, a time, or a struct of such",
        )
    return kind


def _type(expression: str, target: str, source: DataFrame) -> DataType:
    """Return the type of one expression over the columns of a record."""
    with query_errors(expression, view=target):
        source.selectExpr(expression)  # neither several, nor the end of another one
        alone = source.selectExpr(f"({expression}\n) AS value")  # without a name of its own
    return alone.schema["value"].dataType


def _parts(path: str, kind: DataType) -> Iterator[str]:
    """Yield the paths of the values in a struct, in its order: sorted by them, it is sorted."""
    if isinstance(kind, StructType):
        for field in kind:
            yield from _parts(f"{path}.{quoted(field.name)}", field.dataType)
    else:
        yield path


def _sort_key(name: str, kind: DataType) -> str:
    """Return SQL that orders the values of a column."""
    nested = isinstance(kind, StructType | ArrayType | MapType | VariantType)
    return f"to_json({quoted(name)}, {_JSON_OPTIONS})" if nested else quoted(name)


def _contains_unordered(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _contains_unordered(kind.elementType)
    if isinstance(kind, StructType):
        return any(_contains_unordered(field.dataType) for field in kind)
    return isinstance(kind, _UNORDERED)


def _wrong(target: str, message: str, hint: str) -> QueryError:
    return QueryError(message, condition="INVALID_QUERY", hint=hint, view=target)


def _unsupported(target: str, what: str, hint: str) -> QueryError:
    return QueryError(f"{what} is not supported", condition="NOT_LIVE", hint=hint, view=target)
