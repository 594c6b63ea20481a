"""Where the columns of a view come from, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eddyline.api.workspace import Workspace
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW
from eddyline.plan.lineage import Origins, through_views

ROWS = "(rows)"
"""Stands for what decides which rows a view has."""


def lineage_of(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    """Return the lineage of a view; see `Engine.lineage`."""
    catalog = workspace.catalog
    view = catalog.get(name, VIEW)
    known = {
        entry.name: workspace.compiler.lineage(entry, catalog)
        for entry in catalog.read_by([view])
        if entry.kind == VIEW
    }
    own, sources = known[view.name], through_views(view.name, known)
    lines = [
        {
            "column": column,
            "from": _listed(origins, catalog),
            "sources": _listed(sources.columns[column], catalog),
        }
        for column, origins in own.columns.items()
    ]
    decides = {
        "column": ROWS,
        "from": _listed(own.rows, catalog),
        "sources": _listed(sources.rows, catalog),
    }
    return [*lines, decides]


def _listed(origins: Origins, catalog: Catalog) -> list[Mapping[str, Any]]:
    return [
        {
            "relation": relation,
            "kind": catalog.get(relation).kind,
            "column": column,
            "how": sorted(way.lower() for way in ways),
        }
        for (relation, column), ways in origins.items()
    ]
