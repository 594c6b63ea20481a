"""The command line: each command is one call on an Engine.

Exit codes: 0 done; 1 `verify` found a difference, or the engine refused a task or has not answered
in time; 2 refused (one message on stderr); 130 interrupted.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eddyline.catalog.requests import REFUSED, WAITING, Request
from eddyline.catalog.store import CatalogStore, open_store
from eddyline.errors import EddylineError, EngineError, ScriptError, StorageError
from eddyline.options import Options
from eddyline.storage.files import Files
from eddyline.storage.lock import in_use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from eddyline.answers.quick import Answer
    from eddyline.api.engine import Engine
    from eddyline.runtime.epoch import Progress

APPS = {
    "demo": "live web statistics over an access log, checked offline",
    "etl": "log lines through a flaky service into PostgreSQL, with live views",
    "bench": "benchmarks, each against an alternative in the same run",
}
"""Commands of the package eddyline-apps, which may be missing."""

ENTRY_POINTS = "eddyline.commands"
"""Entry points of other packages: modules with `add_arguments(parser)` and `run(args) -> int`."""

TOKEN = "EDDYLINE_INGEST_TOKEN"
SHORT = 60  # characters of an error or a payload in a list

TASK_ACTIONS = {
    "add": "add a view, which takes in all that its inputs hold",
    "pause": "let a view, and those that read it, keep the result they have",
    "resume": "let a paused view catch up in one epoch, and go on",
    "drop": "remove a view",
}

LETTER_ACTIONS = {
    "replay": "read dead letters again, as if they had never failed",
    "drop": "drop dead letters for good",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is without the program's name, None takes the process's own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(arguments).parse_args(arguments)
        code: int = args.run(args)
        sys.stdout.flush()
    except EddylineError as error:
        print(f"eddyline: {error}", *getattr(error, "__notes__", ()), sep="\n  ", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe has left (`| head`): nothing to say, and nothing to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser; the module of an `APPS` command is imported only if `arguments` start with it."""
    parser = argparse.ArgumentParser(prog="eddyline", description="Spark SQL, kept live.")
    parser.add_argument("--version", action="version", version=f"eddyline {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], help: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help)
        added.set_defaults(run=run)
        return added

    run = command("run", _run, "run a script, then keep its views live until Ctrl-C or SIGTERM")
    run.add_argument("script", metavar="SCRIPT", help="a file of SQL; - reads standard input")
    run.add_argument("--once", action="store_true", help="process what is there now, then end")
    run.add_argument(
        "--interval", type=float, metavar="S", help="seconds between epochs; without: no pause"
    )

    sql = command("sql", _sql, "ask a stored engine, as of its last committed epoch")
    sql.add_argument("query", metavar="SELECT", help="any query over its tables and views")
    sql.add_argument("--format", choices=sorted(FORMATS), default="table")

    explain = command("explain", _explain, "show how a script's views are kept live, without data")
    explain.add_argument("script", metavar="SCRIPT", help="a file of SQL; - reads standard input")
    explain.add_argument("--stage", default="dag", help="which stage of compiling (default: dag)")

    status = command("status", _status, "show a stored engine's sources, views and state")
    verify = command("verify", _verify, "compare views with the same SQL run offline")
    verify.add_argument("view", metavar="VIEW", nargs="?", help="one view; without: all")

    task = commands.add_parser(
        "task",
        help="list, add, pause, resume or drop views, also while another process runs the engine",
        description="Tasks are live views. The engine that runs takes a request before its next "
        "epoch; where none runs, this command does it.",
    )
    actions = task.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="what is defined, and what is asked for")
    listing.set_defaults(run=_task_list)
    asking = []
    for action, purpose in TASK_ACTIONS.items():
        added = actions.add_parser(action, help=purpose, description=purpose)
        added.add_argument("name", metavar="NAME", help="name of a view")
        if action == "add":
            added.add_argument("query", metavar="SELECT", help="what the view keeps live")
        added.set_defaults(run=_task, action=action, query="")
        asking.append(added)

    letters = commands.add_parser(
        "deadletters",
        help="list, show, replay or drop the records that have failed for good",
        description="Dead letters are records of a pipeline that failed too often, and those that a "
        "stream could not take in. The engine that runs takes a request before its next epoch.",
    )
    actions = letters.add_subparsers(title="actions", required=True, metavar="ACTION")
    dead = actions.add_parser("list", help="the dead letters of the last committed epoch")
    of = "a pipeline or stream"
    dead.add_argument("name", metavar="NAME", nargs="?", help=f"of {of}; without: of all")
    dead.set_defaults(run=_deadletters_list)
    shown = actions.add_parser("show", help="all that is known of one record")
    shown.add_argument("name", metavar="NAME", help=of)
    shown.add_argument("position", metavar="POSITION", type=int, help="as `list` tells it")
    shown.set_defaults(run=_deadletters_show)
    for action, purpose in LETTER_ACTIONS.items():
        added = actions.add_parser(action, help=purpose, description=purpose)
        added.add_argument("name", metavar="NAME", help=of)
        which = added.add_mutually_exclusive_group(required=True)
        which.add_argument("positions", metavar="POSITION", type=int, nargs="*", default=[])
        which.add_argument("--all", action="store_true", help="all that there are")
        added.set_defaults(run=_deadletters, action=action)
        asking.append(added)

    ingest = command("ingest", _ingest, "take records over HTTP into a data queue, until Ctrl-C")
    ingest.add_argument("queue", metavar="DIR", help="folder of the queue; made if it is missing")
    ingest.add_argument("--host", default="127.0.0.1", help="address (default: loopback only)")
    ingest.add_argument("--port", type=int, default=8421, help="0: any that is free")

    for added in asking:
        added.add_argument(
            "--wait", type=float, metavar="S", default=60.0,
            help="seconds to wait for a running engine's answer (default: 60)",
        )  # fmt: skip
    for added in (run, sql, status, verify, listing, dead, shown, *asking):
        added.add_argument(
            "--storage", metavar="DIR", required=True, help="where the engine keeps its data"
        )
    for name, purpose in APPS.items():
        added = commands.add_parser(name, help=purpose, description=purpose)
        if arguments and arguments[0] == name:
            app = _app(name)
            app.add_arguments(added)
            added.set_defaults(run=app.run)
    return parser


def _app(name: str) -> Any:
    """The module of a command of the package eddyline-apps."""
    found = entry_points(group=ENTRY_POINTS, name=name)
    if not found:
        raise EngineError(
            f"the command {name} is not installed",
            condition="NOT_INSTALLED",
            hint="pip install 'eddyline[apps]'",
        )
    return found[name].load()


def _version() -> str:
    try:
        return version("eddyline")
    except PackageNotFoundError:
        return "(run from its source, not installed)"


# --- commands ---


def _run(args: argparse.Namespace) -> int:
    script = _read_script(args.script)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _engine(args.storage) as engine:
        engine.on_progress(lambda progress: print(progress_line(progress), flush=True))
        answer = engine.execute(script)
        if answer is not None:
            print(as_table(spark_answer(answer)), flush=True)
        if args.once:
            engine.advance()
        else:
            engine.start(args.interval)
            with suppress(KeyboardInterrupt):
                engine.await_termination()
    return 0


def _sql(args: argparse.Namespace) -> int:
    answer = _without_spark(args.storage, args.query)
    if answer is None or (args.format == "json" and answer.lines is None):
        with _engine(_existing(args.storage)) as engine:
            print(FORMATS[args.format](spark_answer(engine.sql(args.query))))
    else:
        print(FORMATS[args.format](answer))
    return 0


def _without_spark(storage: str, query: str) -> Answer | None:
    """The answer to a plain question to a stored result, read from its files."""
    from eddyline.answers.quick import answered

    with _store(storage) as store:
        catalog = store.read()
    return None if catalog is None else answered(store.files, catalog, query)


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
    statements = parse_script(_read_script(args.script))
    options = replace(Options.from_environment(), catalog="")  # nothing of it is to stay
    with tempfile.TemporaryDirectory() as storage, _engine(storage, options) as engine:
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
    with _engine(_existing(args.storage)) as engine:
        status = engine.status()
    sources = [
        (
            item["name"],
            item["kind"],
            str(item["position"]),
            item.get("watermark") or "",
            *(f"{item[n]:,}" if n in item else "" for n in ("late_rows", "dead_letters")),
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
            f"paused since epoch {item['paused']}" if item["paused"] else "",
        )
        for item in status["views"]
    ]  # fmt: skip
    print(f"last committed epoch: {status['epoch']}\n")
    columns = ("source", "kind", "position", "watermark", "late rows", "dead letters")
    print(layout(columns, sources, right=(2, 4, 5)), end="\n\n")
    heads = ("view", "level", "state rows", "state size", "rows/epoch", "")
    print(layout(heads, views, right=(1, 2, 3, 4)))
    if status["pipelines"]:
        names = ("received", "done", "dead", "retry", "in_flight")
        pipelines = [
            (item["name"], *(f"{item[n]:,}" if n in item else "" for n in names))
            for item in status["pipelines"]
        ]
        heads = ("pipeline", "received", "done", "dead", "in retry", "in flight")
        print("", layout(heads, pipelines, right=(1, 2, 3, 4, 5)), sep="\n")
    return 0


def _verify(args: argparse.Namespace) -> int:
    with _engine(_existing(args.storage)) as engine:
        report = engine.verify(args.view)
    print(report)
    return 0 if report.equal else 1


def _task_list(args: argparse.Namespace) -> int:
    from eddyline.answers.tasks import listed

    with _store(args.storage) as store:
        tasks = listed(store)
        if not in_use(store.files):
            print("no engine runs on this storage", file=sys.stderr)
    rows = [
        (task.name, task.kind, task.state, *("" if n is None else f"{n:,}" for n in numbers))
        for task in tasks
        for numbers in [(task.level, task.since, task.rows)]
    ]
    print(layout(("name", "kind", "state", "level", "since", "rows"), rows, right=(3, 4, 5)))
    return 0


def _task(args: argparse.Namespace) -> int:
    from eddyline.answers.tasks import answer_if_unused, ask, await_answer, listed

    def open_engine() -> None:
        with _engine(args.storage) as engine:
            engine.answer()

    with _store(args.storage) as store:
        before = {task.name: task.state for task in listed(store)}
        number = ask(store, args.action, args.name, args.query)
        if answer_if_unused(store, open_engine):
            print("no engine runs on this storage: this command does it itself", file=sys.stderr)
        request = await_answer(store, number, args.wait)
        after = {task.name: task.state for task in listed(store)}
    code = _unanswered(request, f"{args.action} {args.name}", args.wait)
    if code is not None:
        return code
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in changed or [args.name]:
        print(f"{name}: {after.get(name, 'dropped') if changed else 'as it was'}")
    return 0


def _deadletters_list(args: argparse.Namespace) -> int:
    from eddyline.answers.dead_letters import listed

    with _store(args.storage) as store:
        letters = listed(store, args.name)
    rows = [
        (
            letter.source,
            str(letter.position),
            letter.bolt,
            str(letter.attempts),
            f"{letter.died:%Y-%m-%d %H:%M:%S}",
            _short(letter.error),
            _short(_as_text(letter.payload)),
        )
        for letter in letters
    ]
    heads = ("source", "position", "bolt", "attempts", "died (UTC)", "error", "payload")
    print(layout(heads, rows, right=(1, 3)))
    return 0


def _deadletters_show(args: argparse.Namespace) -> int:
    from eddyline.answers.dead_letters import listed

    with _store(args.storage) as store:
        found = [one for one in listed(store, args.name) if one.position == args.position]
    if not found:
        print(f"eddyline: no dead letter of {args.name} at {args.position}", file=sys.stderr)
        return 1
    for name, value in asdict(found[0]).items():
        shown = _as_text(value) if isinstance(value, bytes) else "" if value is None else str(value)
        print(f"{name:9} {shown}")
    return 0


def _deadletters(args: argparse.Namespace) -> int:
    from eddyline.answers.dead_letters import ask
    from eddyline.answers.tasks import await_answer

    what = f"{args.action} {args.name}"
    with _store(args.storage) as store:
        number = ask(store, args.action, args.name, args.positions)
        runs = in_use(store.files)
        wait = args.wait if runs else 0.0
        request = await_answer(store, number, wait)
    code = _unanswered(request, what, wait, "" if runs else ", which does not run now")
    if code is None:
        print(f"{what}: done")
    return code or 0


def _unanswered(request: Request, what: str, wait: float, why: str = "") -> int | None:
    """Tell of a request that isn't done; the exit code, None where it is done."""
    if request.state == REFUSED:
        print(f"eddyline: {request.message}", file=sys.stderr)
        return 1
    if request.state == WAITING:
        print(f"{what}: waits for the engine{why}", file=sys.stderr)
        return 1 if wait else 0
    return None


def _ingest(args: argparse.Namespace) -> int:
    from eddyline.relay.embedded import LogBackend
    from eddyline.relay.ingest import Ingest, IngestServer
    from eddyline.relay.queue import Producer

    token = os.environ.get(TOKEN, "")
    if not token:
        raise EngineError(
            f"{TOKEN} is not set",
            condition="BAD_OPTION",
            hint="set it to a long random text, which clients send as a bearer token",
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    endpoint = Ingest(Producer(LogBackend(args.queue)), token)
    with (
        IngestServer(endpoint, host=args.host, port=args.port) as server,
        suppress(KeyboardInterrupt),
    ):
        print(f"POST {server.url}/records, a record a line", flush=True)
        threading.Event().wait()
    return 0


@contextmanager
def _store(storage: str) -> Iterator[CatalogStore]:
    files = Files(_existing(storage))
    with closing(open_store(files, Options.from_environment().catalog)) as store:
        yield store


def _existing(storage: str) -> str:
    if "://" not in storage and not Path(storage).is_dir():
        raise StorageError(
            "there is no stored engine",
            condition="NO_STORAGE",
            hint="give the folder that `eddyline run` was given",
            storage=storage,
        )
    return storage


@contextmanager
def _engine(storage: str, options: Options | None = None) -> Iterator[Engine]:
    from eddyline.api.engine import (
        Engine,  # late: it takes a second, which --help need not wait for
    )

    with Engine(storage, options=options) as engine:
        yield engine


def _read_script(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(
            f"the script can't be read: {error}", condition="SCRIPT_NOT_READABLE"
        ) from error


# --- text ---


def _as_text(data: bytes) -> str:
    """Bytes as text, if they are; else as hexadecimal digits."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex(" ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[: SHORT - 3]}..."


def progress_line(progress: Progress) -> str:
    """One aligned line for one epoch."""
    stages = ", ".join(f"{stage} {spent:.2f}" for stage, spent in progress.seconds.items())
    rows_in, rows_out = sum(progress.rows_in.values()), sum(progress.rows_out.values())
    state_rows = sum(part["rows"] for part in progress.state.values())
    state_bytes = sum(part["bytes"] for part in progress.state.values())
    return (
        f"epoch {progress.epoch:>6}  {rows_in:>11,} in  {rows_out:>9,} out"
        f"  {sum(progress.seconds.values()):>7.2f} s  state {state_rows:>11,} rows"
        f" {size(state_bytes):>10}  ({stages})"
    )


def layout(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """An aligned table; the columns whose places are in `right` are aligned to the right.

    Example:
        >>> print(layout(("name", "rows"), [("a", "12"), ("bc", "3")], right=(1,)))
        name  rows
        ----  ----
        a       12
        bc       3
    """
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def size(count: int) -> str:
    """A number of bytes for people.

    Example:
        >>> size(2_500_000)
        '2.4 MiB'
    """
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def spark_answer(frame: DataFrame) -> Answer:
    """A DataFrame's rows, each value in the text form that Spark gives it."""
    from pyspark.sql.functions import col, struct, to_json
    from pyspark.sql.types import NumericType

    from eddyline.answers.quick import Answer

    def lines() -> list[str]:
        line = to_json(struct("*"), {"ignoreNullFields": "false"})
        return [row[0] for row in frame.select(line).collect()]

    def texts() -> list[tuple[str | None, ...]]:
        places = [str(place) for place in range(len(frame.columns))]
        shown = frame.toDF(*places).select(*(col(place).cast("string") for place in places))
        return [tuple(row) for row in shown.collect()]

    numeric = [
        place
        for place, column in enumerate(frame.schema.fields)
        if isinstance(column.dataType, NumericType)
    ]
    return Answer(frame.columns, numeric, texts, lines)


def as_table(answer: Answer) -> str:
    """A result as an aligned table; text of several lines alone, such as EXPLAIN's, as it is."""
    rows = [tuple("NULL" if text is None else text for text in row) for row in answer.texts()]
    if len(answer.columns) == 1 and any("\n" in row[0] for row in rows):
        return "\n".join(row[0] for row in rows)
    count = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    return f"{layout(answer.columns, rows, right=answer.numeric)}\n({count})"


def as_csv(answer: Answer) -> str:
    """A result as CSV with a header; a null is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(answer.texts())
    return text.getvalue().removesuffix("\n")


def as_json(answer: Answer) -> str:
    """A result as one JSON object a line, nulls kept."""
    assert answer.lines is not None
    return "\n".join(answer.lines())


FORMATS: dict[str, Callable[[Answer], str]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}
"""How `eddyline sql` can write a result."""
