"""The page of one table, stream or view."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from eddyline.catalog.entries import Entry
from eddyline.console.api import Api, described, moment, number_of
from eddyline.console.observer import Observer
from eddyline.console.values import as_texts, numeric
from eddyline.errors import EddylineError

ROWS = 100
WHERE_LENGTH = 2000
"""The characters of conditions that the form takes."""


def view_page(api: Api, request: Request) -> tuple[str, dict[str, Any]]:
    """Return the template and values of a page: rows, changes, query, costs, state."""
    observer = api.observer
    catalog, manifest = observer.now()
    entry = catalog.get(request.path_params["name"])
    views = {view["name"]: view for view in observer.status()["views"]}
    epoch, offset = number_of(request, "epoch", -1), number_of(request, "offset", 0)
    asked = None if epoch < 0 else epoch
    where = request.query_params.get("where", "").strip()
    values: dict[str, Any] = {"rows": None, "problem": None, "columns": [], "numeric": []}
    try:
        values |= _rows(observer, entry, asked, offset, where)
    except EddylineError as error:
        values["problem"] = error
        if error.condition == "VIEW_FAILING":  # the page shows why
            try:
                values |= _rows(observer, entry, asked, offset, where, last_good=True)
                values["problem"] = None
            except EddylineError as other:
                values["problem"] = other
    held = sorted(manifest.of(entry.id).items())
    known = {"epoch": asked, "where": where or None}

    def page(start: int) -> str:
        found = {"offset": start, **known}
        return urlencode({name: value for name, value in found.items() if value is not None})

    epochs, spent = observer.profile() if entry.name in views else ([], [])
    return "view.html", {
        "title": entry.name,
        "entry": entry,
        "view": views.get(entry.name),
        "described": described(catalog, entry),
        "types": [(field.name, field.dataType.simpleString()) for field in entry.columns],
        "example": _example(entry),
        "operators": [
            (
                name.partition("/")[2],
                sum(run.rows for run in runs),
                sum(run.bytes for run in runs),
                len(runs),
            )
            for name, runs in held
        ],
        "spent": [one for one in spent if one.view == entry.name],
        "profiled": len(epochs),
        "asked": asked,
        "where": where,
        "where_length": WHERE_LENGTH,
        "page": page,
        "plan": api.plan_of(entry),
        **values,
    }


def _rows(
    observer: Observer,
    entry: Entry,
    epoch: int | None,
    offset: int,
    where: str,
    *,
    last_good: bool = False,
) -> dict[str, Any]:
    found = observer.rows(entry.name, epoch, last_good=last_good, where=where)
    part = found.table.slice(offset, ROWS)
    return {
        "columns": found.table.column_names,
        "numeric": numeric(found.table.schema.types),
        "rows": {
            "epoch": found.epoch,
            "committed_at": moment(found.committed_at),
            "total": found.table.num_rows,
            "offset": offset,
            "before": max(offset - ROWS, 0),
            "after": offset + ROWS,
            "texts": as_texts(part),
            "ordered": found.ordered,
            "last_good": last_good,
        },
    }


def _example(entry: Entry) -> str:
    """Return a condition on a column of the view that the quick reader understands; empty without one."""
    for field in entry.columns:
        kind, name = field.dataType.simpleString(), field.name
        shown = name if name.isidentifier() else f"`{name}`"
        if kind == "string":
            return f"{shown} LIKE '%text%'"
        if kind in ("bigint", "int", "smallint", "tinyint"):
            return f"{shown} > 5"
    return ""
