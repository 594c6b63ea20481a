"""Commands that only read: sql, explain, status, verify."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eddyline.cli.arguments import Commands, add_command, add_storage
from eddyline.cli.opening import existing, open_catalog, open_engine, read_script
from eddyline.cli.text import FORMATTERS, layout, size, spark_answer
from eddyline.errors import ScriptError
from eddyline.options import Options

if TYPE_CHECKING:
    from eddyline.answers.quick import Answer


def add_to(commands: Commands) -> None:
    """Add the commands to the parser."""
    purpose = "ask a stored engine, as of its last committed epoch"
    sql = add_command(commands, "sql", _sql, purpose)
    sql.add_argument("query", metavar="SELECT", help="any query over its tables and views")
    sql.add_argument("--format", choices=sorted(FORMATTERS), default="table")
    add_storage(sql)

    purpose = "show how a script's views are kept live, without data"
    explain = add_command(commands, "explain", _explain, purpose)
    explain.add_argument("script", metavar="SCRIPT", help="a file of SQL; - reads standard input")
    explain.add_argument("--stage", default="dag", help="which stage of compiling (default: dag)")

    purpose = "show a stored engine's sources, views and state"
    add_storage(add_command(commands, "status", _status, purpose))

    purpose = "compare views with the same SQL run offline"
    verify = add_command(commands, "verify", _verify, purpose)
    verify.add_argument("view", metavar="VIEW", nargs="?", help="one view; without: all")
    add_storage(verify)


def _sql(args: argparse.Namespace) -> int:
    answer = _answer_from_files(args.storage, args.query)
    if answer is None or (args.format == "json" and answer.lines is None):
        with open_engine(existing(args.storage), read_only=True) as engine:
            print(FORMATTERS[args.format](spark_answer(engine.sql(args.query))))
    else:
        print(FORMATTERS[args.format](answer))
    return 0


def _answer_from_files(storage: str, query: str) -> Answer | None:
    """Answer a simple query on stored results from their files; None where it needs Spark."""
    from eddyline.answers.quick import quick_answer

    with open_catalog(storage) as store:
        catalog = store.read()
    return None if catalog is None else quick_answer(store.files, catalog, query)


def _explain(args: argparse.Namespace) -> int:
    from eddyline.api.script import (
        CreateStream,
        CreateTable,
        CreateView,
        Drop,
        parse_script,
        run_statement,
    )

    views: dict[str, None] = {}
    statements = parse_script(read_script(args.script))
    options = replace(Options.from_environment(), catalog="")  # the storage is thrown away
    with tempfile.TemporaryDirectory() as storage, open_engine(storage, options) as engine:
        for statement in statements:
            if isinstance(statement, CreateTable | CreateStream | CreateView | Drop):
                run_statement(engine, statement)
            if isinstance(statement, CreateView):
                views[statement.name] = None
            elif isinstance(statement, Drop):
                views.pop(statement.name, None)
        if not views:
            raise ScriptError("the script makes no view", condition="NO_VIEW", script=args.script)
        print("\n\n".join(engine.explain(view, stage=args.stage) for view in views))
    return 0


def _status(args: argparse.Namespace) -> int:
    status = _stored_status(args.storage)
    counts = ("late_rows", "ahead_rows", "dead_letters")
    sources = [
        (
            item["name"],
            item["kind"],
            str(item["position"]),
            (item.get("watermark") or "") + (" (idle)" if item.get("idle") else ""),
            *(f"{item[n]:,}" if n in item else "" for n in counts),
        )
        for item in status["sources"]
    ]
    views = [
        (
            item["name"],
            str(item["level"]),
            f"{item['state_rows']:,}",
            size(item["state_bytes"]),
            "" if item["state_growth"] is None else f"{item['state_growth']:+,.1f}",
            _state(item),
        )
        for item in status["views"]
    ]  # fmt: skip
    print(f"last committed epoch: {status['epoch']}\n")
    columns = ("source", "kind", "position", "watermark", "late rows", "ahead", "dead letters")
    print(layout(columns, sources, right=(2, 4, 5, 6)), end="\n\n")
    heads = ("view", "level", "state rows", "state size", "rows/epoch", "state")
    print(layout(heads, views, right=(1, 2, 3, 4)))
    if status["pipelines"]:
        names = ("received", "done", "dead", "retry", "in_flight", "missed")
        accounts = [
            (item["name"], *(f"{item[n]:,}" if n in item else "" for n in names))
            for item in status["pipelines"]
        ]
        titles = ("pipeline", "received", "done", "dead", "in retry", "in flight", "missed")
        print("", layout(titles, accounts, right=(1, 2, 3, 4, 5, 6)), sep="\n")
    if status["readers"]:
        following = [
            (item["reader"], item["view"], str(item["epoch"]), f"{item['behind']:,}")
            for item in status["readers"]
        ]
        columns_of_readers = ("reader", "view", "epoch", "behind")
        print("", layout(columns_of_readers, following, right=(2, 3)), sep="\n")
    return 0


def _state(view: Mapping[str, Any]) -> str:
    """Return whether a view is live; if not, since when and why."""
    from eddyline.answers.status import state_text

    return state_text(view) + (f": {view['error']}" if "error" in view else "")


def _stored_status(storage: str) -> dict[str, Any]:
    """Return the status of `Engine.status` from the files, without Spark's JVM."""
    from eddyline.answers.status import storage_status
    from eddyline.answers.tasks import stored_catalog
    from eddyline.catalog.entries import PIPELINE
    from eddyline.pipelines.outcomes import stored_status
    from eddyline.state.leases import pinned

    with open_catalog(storage) as store:
        catalog = stored_catalog(store)
        with pinned(store.files) as manifest:
            status = storage_status(store.files, catalog, manifest)
        pipelines = [stored_status(store.files, e) for e in catalog.entries if e.role == PIPELINE]
    return {**status, "pipelines": pipelines}


def _verify(args: argparse.Namespace) -> int:
    with open_engine(existing(args.storage), read_only=True) as engine:
        report = engine.verify(args.view)
    print(report)
    return 0 if report.equal else 1
