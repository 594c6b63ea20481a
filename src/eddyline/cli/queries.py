"""Commands that only read: sql, explain, lineage, status, profile, verify."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from eddyline.answers.answer import QueryAnswer
from eddyline.cli.arguments import Commands, add_command, add_storage
from eddyline.cli.opening import existing, open_catalog, open_engine, read_script
from eddyline.cli.output import JSON, TABLE, add_format, show_document, show_report, show_rows
from eddyline.cli.text import FORMATTERS, first_line, frame_text, shorten, show_text
from eddyline.errors import ScriptError
from eddyline.options import Options

if TYPE_CHECKING:
    from eddyline.sql.forms import Statement

SOURCES = {
    "name": "source",
    "kind": "kind",
    "position": "position",
    "lag": "lag",
    "watermark": "watermark",
    "late_rows": "late rows",
    "ahead_rows": "ahead",
    "dead_letters": "dead letters",
}
VIEWS = {
    "name": "view",
    "level": "level",
    "state_rows": "state rows",
    "state_bytes": "state size",
    "state_growth": "rows/epoch",
    "state": "state",
}
PIPELINES = {
    "name": "pipeline",
    "received": "received",
    "done": "done",
    "dead": "dead",
    "retry": "in retry",
    "in_flight": "in flight",
    "missed": "missed",
    "lag": "lag",
}
NOT_COMPARED = (
    "eddyline: no view was compared. Way out: only the program that defines views by DataFrames can compare them: "
    "for a project run `eddyline pipelines run --verify`, in a program call engine.verify()"
)
SINKS = {
    "sink": "sink",
    "view": "from view",
    "format": "format",
    "state": "state",
    "epoch": "epoch",
    "behind": "behind",
    "error": "error",
}
READERS = ("reader", "view", "epoch", "behind")
SET_ASIDE = {"stream": "stream", "file": "file that is set aside", "why": "why"}
FILLINGS = {
    "view": "view being filled",
    "rows_read": "rows read",
    "rows": "of",
    "rows_per_second": "rows/s",
    "seconds_left": "s left",
}
ERROR_MAX = 120
_DESCRIBES = re.compile(r"\s*(?:DESC|DESCRIBE|SHOW)\b", re.IGNORECASE)
FOLDED = "folded"
PROFILE = {
    "name": "view and operators",
    "epochs": "epochs",
    "in_driver": "in driver",
    "rows_in": "rows in",
    "touched": "touched",
    "rows_out": "rows out",
    "ms": "ms an epoch",
    "share": "% of all",
}


def add_to(commands: Commands) -> None:
    """Add the commands to the parser."""
    purpose = "ask a stored engine, as of its last committed epoch"
    sql = add_command(commands, "sql", _sql, purpose)
    sql.add_argument(
        "query", metavar="SELECT", help="any query over its tables and views; or DESCRIBE, SHOW"
    )
    sql.add_argument("--format", choices=sorted(FORMATTERS), default="table")
    add_storage(sql)

    purpose = "show how a script's views are kept live, without data"
    explain = add_command(commands, "explain", _explain, purpose)
    explain.add_argument("script", metavar="SCRIPT", help="a file of SQL; - reads standard input")
    explain.add_argument("--stage", default="dag", help="which stage of compiling (default: dag)")
    add_format(explain)

    purpose = "show which columns of tables and streams each column of a view comes from"
    lineage = add_command(commands, "lineage", _lineage, purpose)
    lineage.add_argument("view", metavar="VIEW", help="name of a view")
    add_storage(lineage)
    add_format(lineage)

    purpose = "show a stored engine's sources, views and state"
    status = add_command(commands, "status", _status, purpose)
    add_storage(status)
    add_format(status)

    purpose = "show what the last epochs have spent their time on, by view and operator"
    profile = add_command(commands, "profile", _profile, purpose)
    profile.add_argument("--epochs", type=int, default=16, help="so many of the last ones (16)")
    profile.add_argument(
        "--format", choices=(TABLE, JSON, FOLDED), default=TABLE,
        help="a table for people (default), one JSON object a line, or folded stacks for a flame graph",
    )  # fmt: skip
    add_storage(profile)

    purpose = "compare views with the same SQL run offline"
    verify = add_command(commands, "verify", _verify, purpose)
    verify.add_argument("view", metavar="VIEW", nargs="?", help="one view; without: all")
    add_storage(verify)
    add_format(verify)


def _sql(args: argparse.Namespace) -> int:
    statement = _description(args.query)
    answer = _answer_from_files(args.storage, args.query, statement)
    if answer is None or (args.format == "json" and answer.lines is None):
        with open_engine(existing(args.storage), read_only=True) as engine:
            frame = engine.sql(args.query) if statement is None else engine.execute(args.query)
            assert frame is not None  # DESCRIBE and SHOW have a result
            show_text(frame_text(args.format, frame, args.query))
    else:
        show_text(FORMATTERS[args.format](answer))
    return 0


def _description(query: str) -> Statement | None:
    """Return a query that is a statement which describes definitions; None for what Spark understands."""
    if not _DESCRIBES.match(query):
        return None
    from eddyline.sql.statements import parse_script  # imports the tokenizer

    try:
        (statement,) = parse_script(query)
    except (ScriptError, ValueError):  # such as DESCRIBE FUNCTION, or several statements
        return None
    return statement


def _answer_from_files(storage: str, query: str, statement: Statement | None) -> QueryAnswer | None:
    """Answer from the catalog, or a simple query on stored results from their files; None where it needs Spark."""
    from eddyline.answers.answer import text_answer
    from eddyline.answers.quick import quick_answer

    with open_catalog(storage) as store:
        catalog = store.read()
    if catalog is None:
        return None
    if statement is None:
        return quick_answer(store.files, catalog, query)
    from eddyline.answers.describing import answered, is_stored

    return text_answer(*answered(catalog, statement)) if is_stored(statement) else None


def _explain(args: argparse.Namespace) -> int:
    from eddyline.api.script import (
        AlterColumns,
        AlterView,
        CreateFlow,
        CreateStream,
        CreateTable,
        CreateTableAs,
        CreateView,
        Drop,
        DropConstraint,
        SessionFunction,
        parse_script,
        run_statement,
    )

    defining = (
        CreateTable,
        CreateStream,
        CreateFlow,
        AlterColumns,
        AlterView,
        DropConstraint,
        CreateView,
        Drop,
        SessionFunction,
    )
    views: dict[str, None] = {}
    statements = parse_script(read_script(args.script))
    options = replace(Options.from_environment(), catalog="")  # the storage is thrown away
    with tempfile.TemporaryDirectory() as storage, open_engine(storage, options) as engine:
        engine.streams.define_only()
        for statement in statements:
            if isinstance(statement, CreateTableAs):
                engine.writing.create_table_as(statement, rows=False)
            elif isinstance(statement, defining):
                run_statement(engine, statement)
            if isinstance(statement, CreateView):
                views[statement.name] = None
            elif isinstance(statement, Drop):
                views.pop(statement.name, None)
        if not views:
            raise ScriptError("the script makes no view", condition="NO_VIEW", script=args.script)
        texts = {view: engine.explain(view, stage=args.stage) for view in views}
    if args.format == JSON:
        show_rows(JSON, (), [{"view": view, "text": text} for view, text in texts.items()])
    else:
        print("\n\n".join(texts.values()))
    return 0


def _lineage(args: argparse.Namespace) -> int:
    with open_engine(existing(args.storage), read_only=True) as engine:
        found = engine.lineage(args.view)
    if args.format == JSON:
        show_rows(JSON, (), found)
        return 0
    rows = []
    for line in found:
        name, sources = line["column"], ", ".join(map(_column, line["sources"]))
        for place, one in enumerate(line["from"] or [None]):
            first = place == 0
            rows.append(
                {
                    "column": name if first else "",
                    "from": _column(one) if one else "",
                    "how": ", ".join(one["how"]) if one else "",
                    "sources": sources if first else "",
                }
            )
    show_rows(TABLE, ("column", "from", "how", "sources"), rows)
    return 0


def _column(one: Mapping[str, str]) -> str:
    return f"{one['relation']}.{one['column']}"


def _status(args: argparse.Namespace) -> int:
    from eddyline.answers.run_health import trouble
    from eddyline.answers.status import files_set_aside
    from eddyline.source.lag import lag_text

    status = _stored_status(args.storage)
    if args.format == JSON:
        show_document(status)
        return 0
    sources = [
        {
            **item,
            "lag": lag_text(item.get("lag", {})),
            "watermark": (item.get("watermark") or "") + (" (idle)" if item.get("idle") else ""),
        }
        for item in status["sources"]
    ]
    views = [{**item, "state": _state(item)} for item in status["views"]]
    print(f"last committed epoch: {status['epoch']}")
    print(trouble(status["run"]) or f"background run: {status['run']['state']}", end="\n\n")
    show_rows(TABLE, _with_violations(SOURCES, sources), sources)
    print()
    show_rows(TABLE, _with_violations(VIEWS, views), views)
    fillings = [
        {**item, **{key: round(item[key] or 0) for key in ("rows_per_second", "seconds_left")}}
        for item in status["fillings"]
    ]
    pipelines = [{**item, "lag": lag_text(item.get("lag", {}))} for item in status["pipelines"]]
    aside = [
        {"stream": stream, "file": path, "why": _shortened(why)}
        for stream, path, why in files_set_aside(sources)
    ]
    tables = (
        (SET_ASIDE, aside),
        (FILLINGS, fillings),
        (PIPELINES, pipelines),
        (
            SINKS,
            [{**sink, "error": _shortened(sink.get("error", ""))} for sink in status["sinks"]],
        ),
        (READERS, status["readers"]),
    )
    for heads, rows in tables:
        if rows:
            print()
            show_rows(TABLE, heads, rows)
    return 0


def _profile(args: argparse.Namespace) -> int:
    from eddyline.answers.profile import folded, profile
    from eddyline.answers.tasks import stored_catalog
    from eddyline.arguments import check_number

    check_number("epochs", args.epochs, 1)
    with open_catalog(args.storage) as store:
        epochs, spent = profile(store.files, stored_catalog(store), args.epochs)
    if args.format == FOLDED:
        print("\n".join(folded(spent)))
    elif args.format == JSON:
        show_rows(JSON, (), [asdict(one) for one in spent])
    elif not epochs:
        print("no epoch is committed yet")
    else:
        all_s = sum(one.seconds for one in spent if not one.operator) or 1.0
        rows = [
            {
                **asdict(one),
                "name": f"  {one.operator}" if one.operator else one.view,
                "ms": round(one.seconds / one.epochs * 1000),
                "share": None if one.operator else round(100 * one.seconds / all_s),
            }
            for one in spent
        ]
        print(f"epochs {epochs[0]} to {epochs[-1]}\n")
        show_rows(TABLE, PROFILE, rows)
    return 0


def _with_violations(heads: dict[str, str], rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the heads with a column for violations if there are expectations; those become text."""
    from eddyline.answers.status import violations_text

    for row in [row for row in rows if "violations" in row]:
        row["violations"] = violations_text(row["violations"])
    known = any("violations" in row for row in rows)
    return heads | ({"violations": "violations"} if known else {})


def _state(view: Mapping[str, Any]) -> str:
    """Return whether a view is live; if not, since when and why."""
    from eddyline.answers.status import state_text

    return state_text(view) + (f": {_shortened(view['error'])}" if "error" in view else "")


def _shortened(error: str) -> str:
    """Return the beginning of an error that fits beside other columns; JSON has all of it."""
    return shorten(first_line(error), ERROR_MAX)


def _stored_status(storage: str) -> dict[str, Any]:
    """Return the status of `Engine.status` from the files, without Spark's JVM."""
    from eddyline.answers.run_health import stored_health
    from eddyline.answers.sinks import sinks_status
    from eddyline.answers.status import storage_status
    from eddyline.answers.tasks import stored_catalog
    from eddyline.pipelines.outcomes import pipelines_status
    from eddyline.source.lag import stored_lags
    from eddyline.state.leases import pinned

    with open_catalog(storage) as store:
        catalog = stored_catalog(store)
        lags = stored_lags(store.files)
        with pinned(store.files) as manifest:
            status = storage_status(store.files, catalog, manifest, lags)
        pipelines = pipelines_status(store.files, catalog, lags)
        sinks = sinks_status(store.files, catalog, manifest.epoch)
        run = stored_health(store.files)
    return {**status, "pipelines": pipelines, "sinks": sinks, "run": run}


def _verify(args: argparse.Namespace) -> int:
    with open_engine(existing(args.storage), read_only=True) as engine:
        report = engine.verify(args.view)
    show_report(args.format, report)
    if not (report.compared or report.broken):
        print(NOT_COMPARED, file=sys.stderr, flush=True)
    return 0 if report else 1
