"""Output in the chosen form: aligned tables for people, or JSON for programs."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eddyline.cli.text import as_text, layout, progress_line, shorten, size

if TYPE_CHECKING:
    from eddyline.answers.verify import Report
    from eddyline.errors import EddylineError
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


@contextmanager
def log_shown(level: int = logging.WARNING, name: str = "eddyline") -> Iterator[None]:
    """Show the log of the package, or of a part of it, from a level on, on standard error."""
    log = logging.getLogger(name)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class Output:
    """What a command prints while it runs: text for people, or events for programs.

    An event is a JSON object on a line of its own; its field `event` names its kind.

    Args:
        form: `TABLE` or `JSON`.

    Example:
        >>> for form in (TABLE, JSON):
        ...     out = Output(form)
        ...     out.say("What was read:")
        ...     out.say("1,200 lines", "read", lines=1200)
        ...     out.table("file", {"name": "file", "equal": "equal"}, [{"name": "a", "equal": True}])
        What was read:
        1,200 lines
        file  equal
        ----  -----
        a       yes
        {"event": "read", "lines": 1200}
        {"event": "file", "name": "a", "equal": true}
    """

    def __init__(self, form: str) -> None:
        self._json = form == JSON

    def say(self, text: str | None, event: str | None = None, /, **fields: object) -> None:
        """Print a text, or an event; None prints nothing, such as for a heading, which programs don't need."""
        if self._json:
            if event is not None:
                show_document({"event": event, **fields})
        elif text is not None:
            print(text, flush=True)

    def table(
        self,
        event: str,
        heads: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]],
        words: Mapping[str, Callable[[Any], str]] | None = None,
    ) -> None:
        """Print rows: as an aligned table, or each as an event with all its fields.

        Args:
            heads: the fields that the table has, and their heads.
            words: how the table says the values of some fields.
        """
        if self._json:
            show_rows(JSON, (), [{"event": event, **row} for row in rows])
            return
        said = (words or {}).items()
        shown = [{**row, **{name: say(row[name]) for name, say in said}} for row in rows]
        show_rows(TABLE, heads, shown)


TEXT = Output(TABLE)
"""Prints text."""


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
        show_document({"event": "epoch", **asdict(progress)})
    else:
        print(progress_line(progress), flush=True)


def show_report(form: str, report: Report) -> None:
    """Print the result of a verification."""
    if form == JSON:
        show_document({"event": "verification", "equal": bool(report), **asdict(report)})
    else:
        print(report)


def show_error(form: str, error: EddylineError) -> None:
    """Print on standard error why a command is refused."""
    notes: list[str] = getattr(error, "__notes__", [])
    if form == JSON:
        document = {"error": {**error.as_document(), "notes": notes}}
        print(json.dumps(document, ensure_ascii=False), file=sys.stderr, flush=True)
    else:
        print(f"eddyline: {error}", *notes, sep="\n  ", file=sys.stderr)


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
        case float() if name == "state_growth":
            return f"{value:+,.1f}"
        case float():
            return f"{value:,.2f}"
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
