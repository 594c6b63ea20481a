"""The flows of `create_auto_cdc_flow` and `CREATE FLOW ... AS AUTO CDC` in a project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.source_code_location import (
    SourceCodeLocation,
    get_caller_source_code_location,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import expr

from eddyline.api.cdc import flow_query
from eddyline.arguments import check_choice, wrong_argument
from eddyline.errors import ScriptError
from eddyline.plan.statements import Changes
from eddyline.spark_pipelines.spec import UNSUPPORTED
from eddyline.sql.cdc import ChangeFlow
from eddyline.sql.names import quoted

SEQUENCE_BY, DELETE_WHEN = "__sequence_by", "__delete_when"  # columns of the user's expressions

Names = Sequence[str | Column]


@dataclass(frozen=True, slots=True)
class ChangesFlow(Flow):
    """A flow of change records; its function returns the rows of the target."""


def recorder(
    register: Callable[[str, str, Changes, SourceCodeLocation], None],
) -> Callable[..., None]:
    """Return a function with the arguments of PySpark's `create_auto_cdc_flow`.

    PySpark's own makes columns of Spark Connect, and needs its packages.

    Args:
        register: gets the names of flow and target, the records, and where the function was called.
    """

    def create_auto_cdc_flow(
        target: str,
        source: str,
        keys: Names,
        sequence_by: str | Column,
        apply_as_deletes: str | Column | None = None,
        column_list: Names | None = None,
        except_column_list: Names | None = None,
        stored_as_scd_type: int | str | None = None,
        name: str | None = None,
        *,
        track_history_column_list: Names | None = None,
        track_history_except_column_list: Names | None = None,
        spark_conf: dict[str, str] | None = None,  # noqa: ARG001 - a flow has no settings of its own
    ) -> None:
        for what, value in (("target", target), ("source", source)):
            if not isinstance(value, str):
                raise wrong_argument(f"{what} of create_auto_cdc_flow", value, "give a name")
        changes = Changes(
            source,
            listed("keys", keys),
            sequence_by,
            apply_as_deletes,
            listed("column_list", column_list or ()),
            listed("except_column_list", except_column_list or ()),
            scd_type(stored_as_scd_type),
            bool(track_history_column_list or track_history_except_column_list),
        )
        at = get_caller_source_code_location(stacklevel=1)
        register(name or target, target, changes, at)

    return create_auto_cdc_flow


def changes_flow(
    session: SparkSession, name: str, target: str, changes: Changes, at: SourceCodeLocation
) -> Flow:
    """Return the flow that writes a target from change records."""
    if changes.tracked:
        raise ScriptError(
            f"{target}: the history of some columns only is not supported",
            condition=UNSUPPORTED,
            hint="leave track_history_column_list out, and the columns without history too, with "
            "except_column_list",
        )
    return ChangesFlow(name, target, {}, at, lambda: _rows(session, target, changes))


def _rows(session: SparkSession, target: str, changes: Changes) -> DataFrame:
    """Return the rows of a target as a DataFrame over its source."""
    source = session.table(changes.source)
    if source.isStreaming:
        raise ScriptError(
            f"{target}: the source {changes.source} of its change records isn't a table",
            condition=UNSUPPORTED,
            hint="make it a table of its own (@dp.table), not a temporary view",
        )
    added = [_column(changes.sequence_by).alias(SEQUENCE_BY)]
    if changes.deletes is not None:
        added.append(_column(changes.deletes).alias(DELETE_WHEN))
    records = source.select("*", *added)
    columns = _names(source, changes.columns) or None
    excepted = _names(source, changes.excepted)
    if columns is None:
        excepted += tuple(records.columns[len(source.columns) :])
    name = f"{target}__changes"
    query = flow_query(
        ChangeFlow(
            name,
            _names(source, changes.keys),
            SEQUENCE_BY,
            None if changes.deletes is None else DELETE_WHEN,
            None,
            columns,
            excepted,
            changes.scd_type,
        ),
        target,
        records,
    )
    records.createOrReplaceTempView(quoted(name))
    try:
        return session.sql(query)
    finally:
        session.catalog.dropTempView(name)


def _column(expression: str | Column) -> Column:
    return expr(expression) if isinstance(expression, str) else expression


def scd_type(given: object) -> int:
    """Return the SCD type; 1 is the default."""
    check_choice("stored_as_scd_type", "1" if given is None else str(given), ("1", "2"))
    return 2 if str(given) == "2" else 1


def listed(what: str, given: object) -> tuple[str | Column, ...]:
    """Return a list of columns, as it is given; raise EngineError BAD_OPTION if it is something else."""
    if not isinstance(given, list | tuple) or not all(isinstance(c, str | Column) for c in given):
        raise wrong_argument(f"{what} of create_auto_cdc_flow", given, "give a list of columns")
    return tuple(given)


def _names(source: DataFrame, given: Names) -> tuple[str, ...]:
    return tuple(one if isinstance(one, str) else source.select(one).columns[0] for one in given)
