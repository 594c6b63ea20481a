"""The SQL statements of Spark Declarative Pipelines, as Spark's parser reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Plan, items, kind

MATERIALIZED, STREAMING, TEMPORARY, FLOW = (
    "materialized view", "streaming table", "temporary view", "flow"
)  # fmt: skip
_KINDS = {
    "CreateMaterializedViewAsSelect": MATERIALIZED,
    "CreateStreamingTableAsSelect": STREAMING,
    "CreateStreamingTable": STREAMING,
    "CreateView": TEMPORARY,
}


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement that defines a dataset or a flow.

    Attributes:
        target: the dataset that a flow writes; else empty.
        query: the query as it was parsed; None for a streaming table that flows write.
    """

    kind: str
    name: str
    target: str
    query: Plan | None


def definition(catalyst: Catalyst, statement: str) -> Definition | None:
    """Return what a statement defines; None if it is no definition of this kind."""
    plan: Any = catalyst.parsed(statement)
    name = kind(plan)
    if name in _KINDS:
        known, *query = items(plan.children())
        found = query[0] if query else None
        return Definition(_KINDS[name], _dotted(known.nameParts()), "", found)
    if name == "CreateViewCommand":
        return Definition(TEMPORARY, str(plan.name().table()), "", plan.plan())
    if name == "CreateFlowCommand":
        known, insert = items(plan.children())
        if kind(insert) == "InsertIntoStatement":
            target = _dotted(insert.table().multipartIdentifier())
            return Definition(FLOW, _dotted(known.nameParts()), target, insert.query())
    return None


def query_frame(catalyst: Catalyst, query: Plan, dataset: Callable[[str], DataFrame]) -> DataFrame:
    """Return the DataFrame of a query.

    Args:
        dataset: returns what `STREAM name` reads; other names are those of the session.
    """
    return catalyst.frame(_without_streams(catalyst, query, dataset))


def _without_streams(catalyst: Catalyst, plan: Any, dataset: Callable[[str], DataFrame]) -> Plan:
    if kind(plan) == "NamedStreamingRelation":
        name = _dotted(items(plan.children())[0].multipartIdentifier())
        return catalyst.plan(dataset(name))
    children = items(plan.children())
    if not children:
        found: Plan = plan
        return found
    changed: list[Plan] = [_without_streams(catalyst, child, dataset) for child in children]
    with_changed: Plan = plan.withNewChildren(catalyst.seq(changed))
    return with_changed


def _dotted(parts: Any) -> str:
    return ".".join(str(part) for part in items(parts))
