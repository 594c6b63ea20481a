"""The command `pipelines`: a project of Spark Declarative Pipelines, unchanged."""

from __future__ import annotations

import argparse
import io
import signal
import sys
import tempfile
import time
from contextlib import redirect_stdout, suppress
from dataclasses import asdict

from eddyline.cli.arguments import Commands
from eddyline.cli.output import TABLE, Output, add_format, show_progress, show_report, show_rows
from eddyline.errors import EngineError

HEADS = {
    "dataset": "dataset",
    "kind": "kind",
    "rows": "rows",
    "read": "rows read",
    "changed": "changed rows",
    "seconds": "seconds",
}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    pipelines = commands.add_parser(
        "pipelines",
        help="run a project of Spark Declarative Pipelines (spark-pipelines), unchanged",
        description="Runs a project of Spark Declarative Pipelines as it is: its tables and views become "
        "streams and live views of an engine, in the storage that the spec file names.",
    )
    actions = pipelines.add_subparsers(title="actions", required=True, metavar="ACTION")
    init = actions.add_parser(
        "init", help="make the same sample project that Spark's command makes"
    )
    init.add_argument("--name", required=True, help="name of the project, and of its new folder")
    init.set_defaults(run=_init)
    dry = actions.add_parser("dry-run", help="check all definitions; read and write nothing")
    dry.set_defaults(run=_dry_run)
    run = actions.add_parser(
        "run", help="define what has changed, process what has arrived, and end"
    )
    run.set_defaults(run=_run)
    for parser in (dry, run):
        parser.add_argument(
            "--spec", metavar="F",
            help="the spec file; without: spark-pipeline.yml here or in the nearest folder above",
        )  # fmt: skip
    for parser in (init, dry, run):
        add_format(parser)
    run.add_argument("--continuous", action="store_true", help="go on until Ctrl-C or SIGTERM")
    run.add_argument(
        "--full-refresh", type=_names, action="extend", default=[], metavar="A,B",
        help="datasets to compute anew from their sources, with all that read them",
    )  # fmt: skip
    run.add_argument("--full-refresh-all", action="store_true", help="compute all datasets anew")
    run.add_argument(
        "--verify",
        action="store_true",
        help="compare all views with Spark's own results at the end",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _init(args: argparse.Namespace) -> int:
    from pyspark.pipelines.init_cli import init

    try:
        with redirect_stdout(io.StringIO()):  # it tells to run spark-pipelines
            init(args.name)
    except OSError as error:
        raise EngineError(
            f"the project can't be made: {error}",
            condition="PROJECT_INVALID",
            hint="give another name, or remove that folder",
        ) from error
    text = f"project {args.name} is made; to run it:\n  cd {args.name}\n  eddyline pipelines run"
    Output(args.format).say(text, "made", project=args.name)
    return 0


def _dry_run(args: argparse.Namespace) -> int:
    from eddyline.spark_pipelines.run import open_project
    from eddyline.spark_pipelines.spec import find_spec, load_spec

    spec = load_spec(find_spec(args.spec))
    with tempfile.TemporaryDirectory() as folder, open_project(spec, folder) as run:
        run.graph.define(sinks=False)
        kinds = [{"dataset": name, "kind": kind} for name, kind in run.graph.kinds.items()]
        show_rows(args.format, ("dataset", "kind"), kinds)
    return 0


def _run(args: argparse.Namespace) -> int:
    from eddyline.spark_pipelines.run import open_project
    from eddyline.spark_pipelines.spec import find_spec, invalid, load_spec

    if args.full_refresh_all and args.full_refresh:
        raise invalid("CONFLICTING_PIPELINE_REFRESH_OPTIONS", conflicting_option="--full-refresh")
    spec = load_spec(find_spec(args.spec))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    with open_project(spec, spec.storage) as run:
        engine, graph = run.engine, run.graph
        engine.on_error(lambda error: print(error, file=sys.stderr, flush=True))
        graph.refresh(list(graph.project.outputs) if args.full_refresh_all else args.full_refresh)
        graph.define()
        if args.continuous:
            engine.on_progress(lambda progress: show_progress(args.format, progress))
            with suppress(KeyboardInterrupt):
                engine.start()
                engine.await_termination()
        else:
            engine.advance()
        lines = run.lines()
        show_rows(args.format, HEADS, [asdict(line) for line in lines])
        if args.format == TABLE:
            print(f"{time.monotonic() - started:.1f} s in all", flush=True)
        status = engine.status()
        failing = [f"view {one['name']}" for one in status["views"] if one["state"] == "failing"]
        failing += [f"sink {one['sink']}" for one in status["sinks"] if one["state"] == "failing"]
        if failing:
            print(f"failing: {', '.join(failing)}", file=sys.stderr, flush=True)
        if not args.verify:
            return int(bool(failing))
        report = engine.verify()
        show_report(args.format, report)
        return int(bool(failing) or not report)
