"""Output in the chosen form: aligned tables for people, or JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eddyline.cli.text import as_text, layout, progress_line, shorten, size

if TYPE_CHECKING:
    from eddyline.answers.verify import Report
    from eddyline.runtime.progress import Progress

TABLE, JSON = "table", "json"

_IDENTIFIERS = ("position", "epoch", "level", "since", "request")
"""Numbers that name something: without separators of thousands."""


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--format` of a command."""
    parser.add_argument(
        "--format", choices=(TABLE, JSON), default=TABLE,
        help="a table for people (default), or one JSON object a line",
    )  # fmt: skip


def show_rows(
    form: str, heads: Mapping[str, str] | Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Print rows: as an aligned table, or each as a JSON object with all its fields.

    Args:
        heads: the fields that the table has, and their heads if these have other words.

    Example:
        >>> show_rows("table", {"name": "view", "rows": "rows"}, [{"name": "v", "rows": 1200}])
        view   rows
        ----  -----
        v     1,200
        >>> show_rows("json", ["name"], [{"name": "v", "rows": 1200}])
        {"name": "v", "rows": 1200}
    """
    if form == JSON:
        for row in rows:
            show_document(row)
        return
    names = list(heads)
    titles = list(heads.values()) if isinstance(heads, Mapping) else names
    cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
    right = [
        place
        for place, name in enumerate(names)
        if any(isinstance(row.get(name), int | float) for row in rows)
    ]
    print(layout(titles, cells, right=right))


def show_progress(form: str, progress: Progress) -> None:
    """Print the progress of an epoch."""
    if form == JSON:
        show_document(progress)
    else:
        print(progress_line(progress), flush=True)


def show_report(form: str, report: Report) -> None:
    """Print the result of a verification."""
    if form == JSON:
        show_document({"equal": report.equal, **asdict(report)})
    else:
        print(report)


def show_document(document: object) -> None:
    """Print a JSON document on one line."""
    print(json.dumps(document, ensure_ascii=False, default=_plain), flush=True)


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_bytes"):
            return size(value)
        case int() if name not in _IDENTIFIERS:
            return f"{value:,}"
        case float() if name == "seconds":
            return f"{value:.2f}"
        case float():  # a change
            return f"{value:+,.1f}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case bytes():
            return shorten(as_text(value))
    return str(value)


def _plain(value: Any) -> Any:
    """Return the form that a value has in JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return as_text(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
