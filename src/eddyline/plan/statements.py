"""The SQL statements of Spark Declarative Pipelines, as Spark's parser reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Plan, children_of, items, kind

MATERIALIZED, STREAMING, TEMPORARY, FLOW, CHANGES = (
    "materialized view", "streaming table", "temporary view", "flow", "flow of changes"
)  # fmt: skip
_KINDS = {
    "CreateMaterializedViewAsSelect": MATERIALIZED,
    "CreateStreamingTableAsSelect": STREAMING,
    "CreateStreamingTable": STREAMING,
    "CreateView": TEMPORARY,
}


@dataclass(frozen=True, slots=True)
class Changes:
    """The clauses of AUTO CDC.

    Attributes:
        source: the dataset of the records.
        columns: those of the target; none for all but `excepted`.
        tracked: whether only some columns have a history.
    """

    source: str
    keys: tuple[str | Column, ...]
    sequence_by: str | Column
    deletes: str | Column | None
    columns: tuple[str | Column, ...]
    excepted: tuple[str | Column, ...]
    scd_type: int
    tracked: bool


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement that defines a dataset or a flow.

    Attributes:
        target: the dataset that a flow writes; else empty.
        query: the query as it was parsed; None for a streaming table that flows write.
        changes: of AUTO CDC, whose target may be defined by the same statement.
    """

    kind: str
    name: str
    target: str
    query: Plan | None
    changes: Changes | None = None


def definition(catalyst: Catalyst, statement: str) -> Definition | None:
    """Return the definition in a statement; None if the statement is of another kind."""
    plan: Any = catalyst.parsed(statement)
    name = kind(plan)
    if name in _KINDS:
        known, *query = children_of(plan)
        found = query[0] if query else None
        return Definition(_KINDS[name], _dotted(known.nameParts()), "", found)
    if name == "CreateViewCommand":
        return Definition(TEMPORARY, str(plan.name().table()), "", plan.plan())
    if name == "CreateFlowCommand":
        known, insert = children_of(plan)
        if kind(insert) == "InsertIntoStatement":
            target = _dotted(insert.table().multipartIdentifier())
            return Definition(FLOW, _dotted(known.nameParts()), target, insert.query())
        if kind(insert) == "AutoCdcInto":
            target = _dotted(insert.targetTable().nameParts())
            name = _dotted(known.nameParts())
            return Definition(CHANGES, name, target, None, _changes(insert))
    if name == "CreateStreamingTableAutoCdc":
        target = _dotted(plan.name().nameParts())
        return Definition(STREAMING, target, target, None, _changes(plan))
    return None


def setting(catalyst: Catalyst, statement: str) -> tuple[str, str] | None:
    """Return the name and the value of `SET name = value`; None if the statement is another one."""
    plan: Any = catalyst.parsed(statement)
    if kind(plan) != "SetCommand" or not plan.kv().isDefined():
        return None
    name, value = map(plan.kv().get().productElement, (0, 1))
    return (str(name), str(value.get())) if value.isDefined() else None


def used_names(catalyst: Catalyst, statement: str) -> list[str]:
    """Return the names of a statement `USE`, catalog first; none if the statement is another one."""
    plan: Any = catalyst.parsed(statement)
    if kind(plan) == "SetNamespaceCommand":
        return [str(name) for name in items(plan.namespace())]
    if kind(plan) == "SetCatalogAndNamespace":
        return [str(name) for name in items(children_of(plan)[0].multipartIdentifier())]
    return []


def _changes(plan: Any) -> Changes:
    """Read the clauses of AUTO CDC."""

    def columns(found: Any) -> tuple[str, ...]:
        if kind(found) in ("Some", "None"):
            found = found.get() if found.isDefined() else None
        return () if found is None else tuple(_dotted(c.nameParts()) for c in items(found))

    deletes = plan.deleteCondition()
    source = children_of(plan.source())[0].multipartIdentifier()
    return Changes(
        _dotted(source),
        columns(plan.keys()),
        str(plan.sequenceByExpr().sql()),
        str(deletes.get().sql()) if deletes.isDefined() else None,
        columns(plan.includeColumns()),
        columns(plan.excludeColumns()),
        int(str(plan.storedAsScdType())),
        bool(columns(plan.trackHistoryColumns()) or columns(plan.trackHistoryExceptColumns())),
    )


def query_frame(catalyst: Catalyst, query: Plan, dataset: Callable[[str], DataFrame]) -> DataFrame:
    """Return the DataFrame of a query.

    Args:
        dataset: returns what `STREAM name` reads; other names are those of the session.
    """
    return catalyst.frame(_without_streams(catalyst, query, dataset))


def _without_streams(catalyst: Catalyst, plan: Any, dataset: Callable[[str], DataFrame]) -> Plan:
    if kind(plan) == "NamedStreamingRelation":
        name = _dotted(children_of(plan)[0].multipartIdentifier())
        return catalyst.plan(dataset(name))
    children = children_of(plan)
    if not children:
        found: Plan = plan
        return found
    changed: list[Plan] = [_without_streams(catalyst, child, dataset) for child in children]
    with_changed: Plan = plan.withNewChildren(catalyst.seq(changed))
    return with_changed


def _dotted(parts: Any) -> str:
    return ".".join(str(part) for part in items(parts))
