"""Run SQL scripts: each statement is one call on an engine.

The whole script is parsed before any of it runs: a mistake in the last line leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from eddyline.arguments import check_text
from eddyline.errors import EddylineError, QueryError
from eddyline.spark.failures import query_errors
from eddyline.sql.dialect import remove_emit_final
from eddyline.sql.forms import (
    AlterColumns,
    AlterView,
    CreateFlow,
    CreateSink,
    CreateStream,
    CreateTable,
    CreateTableAs,
    CreateView,
    Delete,
    Describe,
    DescribeQuery,
    Drop,
    DropConstraint,
    Explain,
    Insert,
    Merge,
    ResetWatermark,
    Retain,
    Select,
    SessionFunction,
    Show,
    ShowColumns,
    ShowCreate,
    Statement,
    Update,
)
from eddyline.sql.statements import parse_script
from eddyline.sql.view_columns import without_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "AlterColumns",
    "AlterView",
    "CreateFlow",
    "CreateSink",
    "CreateStream",
    "CreateTable",
    "CreateTableAs",
    "CreateView",
    "Delete",
    "Describe",
    "DescribeQuery",
    "Drop",
    "DropConstraint",
    "Explain",
    "Insert",
    "Merge",
    "ResetWatermark",
    "Retain",
    "ScriptEngine",
    "Select",
    "SessionFunction",
    "Show",
    "ShowColumns",
    "ShowCreate",
    "Statement",
    "Update",
    "parse_script",
    "run_script",
    "run_statement",
]


class ScriptWriting(Protocol):
    """The methods that CREATE TABLE AS, INSERT, DELETE, UPDATE and MERGE call. `Writing` documents them."""

    def reads_views(self, statement: CreateTableAs | Insert | Delete | Update | Merge) -> bool: ...

    def create_table_as(self, statement: CreateTableAs) -> None: ...

    def insert_query(self, statement: Insert) -> None: ...

    def delete(self, statement: Delete) -> None: ...

    def update(self, statement: Update) -> None: ...

    def merge(self, statement: Merge) -> None: ...


class ScriptAltering(Protocol):
    """The methods that ALTER TABLE, STREAM and VIEW call. `Altering` documents them."""

    def alter(self, statement: AlterColumns) -> None: ...

    def view(self, statement: AlterView) -> None: ...

    def retain(self, change: Retain) -> None: ...


class ScriptExpecting(Protocol):
    """The methods that statements with CONSTRAINT call. `Expecting` documents them."""

    def create_stream(self, statement: CreateStream) -> None: ...

    def view(self, statement: CreateView) -> None: ...

    def drop_constraint(self, statement: DropConstraint) -> None: ...


class ScriptDescribing(Protocol):
    """The methods that DESCRIBE and SHOW call. `Describing` documents them."""

    def answer(self, statement: Describe | ShowColumns | ShowCreate) -> DataFrame: ...

    def columns(self, schema: StructType) -> DataFrame: ...

    def matching(self, frame: DataFrame, pattern: str) -> DataFrame: ...


class ScriptEngine(Protocol):
    """The methods that statements call. `Engine` documents them."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def writing(self) -> ScriptWriting: ...

    @property
    def altering(self) -> ScriptAltering: ...

    @property
    def expecting(self) -> ScriptExpecting: ...

    @property
    def describing(self) -> ScriptDescribing: ...

    def table(self, name: str, schema: str, primary_key: Sequence[str] = ()) -> object: ...

    def create_stream(
        self,
        name: str,
        schema: str | None,
        format: str,
        options: Mapping[str, str] | None = None,
        op: str | None = None,
        primary_key: Sequence[str] = (),
        watermark: tuple[str, str] | None = None,
    ) -> object: ...

    def view(self, name: str, query: str, *, replace: bool = False) -> object: ...

    def auto_cdc(
        self,
        target: str,
        source: str,
        keys: Sequence[str],
        sequence_by: str,
        *,
        apply_as_deletes: str | None = None,
        apply_as_truncates: str | None = None,
        column_list: Sequence[str] | None = None,
        except_column_list: Sequence[str] | None = None,
        stored_as_scd_type: int | str = 1,
    ) -> object: ...

    def sink(self, name: str, view: str, format: str, **options: object) -> object: ...

    def drop(self, kind: str, name: str, if_exists: bool = False) -> None: ...

    def reset_watermark(self, name: str, to: str | None = None) -> list[str]: ...

    def show(self, kind: str) -> DataFrame: ...

    def explain(self, name_or_query: str, stage: str = "dag") -> str: ...

    def sql(self, query: str) -> DataFrame: ...

    def advance(self) -> int: ...


def run_script(engine: ScriptEngine, text: str) -> DataFrame | None:
    """Run a script.

    An epoch is run before a SELECT that comes after statements that write rows, so that it sees them. One is run before each
    statement that writes what it reads of views: these then have the rows that it finds in tables.

    Returns:
        the result of the last SELECT, EXPLAIN, DESCRIBE or SHOW; None if the script has none.

    Raises:
        ScriptError: the text is no script; nothing has run.
        EddylineError: a statement failed; those before it keep their effect. A note names its line.
    """
    last: DataFrame | None = None
    written = False
    check_text("the script", text)
    for statement in parse_script(text):
        try:
            if isinstance(statement, CreateTableAs | Insert | Delete | Update | Merge):
                writes, waits = True, engine.writing.reads_views(statement)
            else:
                writes, waits = False, written and isinstance(statement, Select)
            if waits:
                engine.advance()
                written = False
            result = run_statement(engine, statement)
        except EddylineError as error:
            error.add_note(f"in the statement at line {statement.line} of the script")
            raise
        written |= writes
        last = last if result is None else result
    return last


def run_statement(engine: ScriptEngine, statement: Statement) -> DataFrame | None:
    """Run one statement.

    Returns:
        the result of a SELECT, EXPLAIN, DESCRIBE or SHOW; None for other statements.
    """
    return _RUN[type(statement)](engine, statement)


def _create_table(engine: ScriptEngine, statement: CreateTable) -> None:
    if not _exists(engine, statement):
        engine.table(statement.name, statement.schema_ddl, primary_key=statement.primary_key)


def _create_table_as(engine: ScriptEngine, statement: CreateTableAs) -> None:
    engine.writing.create_table_as(statement)


def _create_stream(engine: ScriptEngine, statement: CreateStream) -> None:
    if _exists(engine, statement):
        return
    if statement.expectations:
        engine.expecting.create_stream(statement)
    else:
        engine.create_stream(
            statement.name,
            statement.schema_ddl,
            statement.format,
            dict(statement.options),
            op=statement.op,
            primary_key=statement.primary_key,
            watermark=statement.watermark,
        )


def _create_view(engine: ScriptEngine, statement: CreateView) -> None:
    if _exists(engine, statement):
        return
    try:
        if statement.expectations:
            engine.expecting.view(statement)
        else:
            engine.view(statement.name, statement.query, replace=statement.replace)
    except QueryError as error:
        _check_column_count(engine, statement, error)
        raise


def _check_column_count(engine: ScriptEngine, view: CreateView, error: QueryError) -> None:
    """Raise QueryError if the list of columns of a refused view isn't as long as its query's."""
    query = without_columns(view.query, view.columns) if view.columns else None
    if query is None:
        return
    try:
        count = len(engine.sql(remove_emit_final(query)[0]).columns)
    except EddylineError:
        return  # the query itself is wrong, as the other error says
    if count != len(view.columns):
        raise QueryError(
            f"the numbers of columns differ: view {view.name} names {len(view.columns)}, its query has {count}",
            condition="INVALID_QUERY",
            hint="name each column of the query, in order, or leave the list out",
            view=view.name,
        ) from error


def _create_flow(engine: ScriptEngine, statement: CreateFlow) -> None:
    flow = statement.flow
    engine.auto_cdc(
        statement.target,
        flow.source,
        flow.keys,
        flow.sequence_by,
        apply_as_deletes=flow.deletes,
        apply_as_truncates=flow.truncates,
        column_list=flow.columns,
        except_column_list=flow.excepted or None,
        stored_as_scd_type=flow.scd_type,
    )


def _create_sink(engine: ScriptEngine, statement: CreateSink) -> None:
    if not _exists(engine, statement):
        engine.sink(statement.name, statement.view, statement.format, **dict(statement.options))


def _exists(
    engine: ScriptEngine, statement: CreateTable | CreateStream | CreateView | CreateSink
) -> bool:
    """Return whether IF NOT EXISTS makes a statement do nothing."""
    if not statement.if_not_exists:
        return False
    names = (row["name"] for row in engine.show(statement.kind).collect())
    return statement.name.lower() in {name.lower() for name in names}


def _insert(engine: ScriptEngine, statement: Insert) -> None:
    engine.writing.insert_query(statement)


def _delete(engine: ScriptEngine, statement: Delete) -> None:
    engine.writing.delete(statement)


def _update(engine: ScriptEngine, statement: Update) -> None:
    engine.writing.update(statement)


def _merge(engine: ScriptEngine, statement: Merge) -> None:
    engine.writing.merge(statement)


def _drop(engine: ScriptEngine, statement: Drop) -> None:
    engine.drop(statement.kind, statement.name, statement.if_exists)


def _alter_columns(engine: ScriptEngine, statement: AlterColumns) -> None:
    engine.altering.alter(statement)


def _alter_view(engine: ScriptEngine, statement: AlterView) -> None:
    engine.altering.view(statement)


def _drop_constraint(engine: ScriptEngine, statement: DropConstraint) -> None:
    engine.expecting.drop_constraint(statement)


def _reset_watermark(engine: ScriptEngine, statement: ResetWatermark) -> None:
    engine.reset_watermark(statement.name, statement.to)


def _retain(engine: ScriptEngine, statement: Retain) -> None:
    engine.altering.retain(statement)


def _session_function(engine: ScriptEngine, statement: SessionFunction) -> None:
    with query_errors(statement.text):
        engine.spark.sql(statement.text)


def _show(engine: ScriptEngine, statement: Show) -> DataFrame:
    listed = engine.show(statement.kind)
    if statement.pattern is None:
        return listed
    return engine.describing.matching(listed, statement.pattern)


def _describe(engine: ScriptEngine, statement: Describe | ShowColumns | ShowCreate) -> DataFrame:
    return engine.describing.answer(statement)


def _describe_query(engine: ScriptEngine, statement: DescribeQuery) -> DataFrame:
    query, _ = remove_emit_final(statement.query)
    return engine.describing.columns(engine.sql(query).schema)


def _explain(engine: ScriptEngine, statement: Explain) -> DataFrame:
    text = engine.explain(statement.target_text, stage=statement.stage)
    return engine.spark.createDataFrame([(line,) for line in text.splitlines()], "plan string")


def _select(engine: ScriptEngine, statement: Select) -> DataFrame:
    return engine.sql(statement.text)


_RUN: dict[type[Statement], Callable[[ScriptEngine, Any], DataFrame | None]] = {
    AlterColumns: _alter_columns,
    AlterView: _alter_view,
    CreateFlow: _create_flow,
    CreateSink: _create_sink,
    CreateStream: _create_stream,
    CreateTable: _create_table,
    CreateTableAs: _create_table_as,
    CreateView: _create_view,
    Delete: _delete,
    Describe: _describe,
    DescribeQuery: _describe_query,
    Drop: _drop,
    DropConstraint: _drop_constraint,
    Explain: _explain,
    Insert: _insert,
    Merge: _merge,
    ResetWatermark: _reset_watermark,
    Retain: _retain,
    Select: _select,
    SessionFunction: _session_function,
    Show: _show,
    ShowColumns: _describe,
    ShowCreate: _describe,
    Update: _update,
}
