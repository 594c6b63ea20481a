"""`eddyline webstats`: live statistics of web sites from their access logs or a page script, with a dashboard.

The logs are followed by `USING tail`: each line counts once, however files are rotated, and also over
restarts and crashes of this command. So does each beacon that has been acknowledged.
"""

from __future__ import annotations

import glob
import hashlib
import signal
import sys
import tempfile
import warnings
import zoneinfo
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eddyline.arguments import check_number, wrong_argument
from eddyline.cli.output import Output, add_format, show_report
from eddyline.cli.text import shorten
from eddyline.errors import DataError, StateGrowthWarning, StorageError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import Producer
from eddyline.sink.secrets import check_secrets
from eddyline.source.compression import open_file
from eddyline_apps import wrong_views
from eddyline_apps.webstats.inputs import BEACONS, Run, Sites, open_streams, store_run, stored_run
from eddyline_apps.webstats.log_formats import COMBINED, SAMPLE_LINES, detect
from eddyline_apps.webstats.places import (
    PLACE,
    Period,
    check_files,
    define_place,
    keep_files,
    kept_periods,
    newest_places,
)
from eddyline_apps.webstats.views import (
    Settings,
    define_key,
    queries,
    script,
    secret_of,
    template,
)

if TYPE_CHECKING:
    import argparse

    from eddyline.api.engine import Engine
    from eddyline.runtime.progress import Progress
    from eddyline_apps.places import Places

LOOPBACK = "127.0.0.1"
PORT = 8421
BEACON_PORT = 8422
PROXIES_MAX = 10
PORT_MAX = 65_535
INTERVAL_S = 0.5
LOOK_S = 10.0
"""Between two looks at files that can't be read."""
MALFORMED_ODD = 10
"""So many malformed lines of an epoch without a request tell of a wrong format; when a log is read to its end, one."""
DAYS_SHOWN_MAX = 12
NEEDED_VIEWS = ("requests", "malformed_count", "daily_statistics")
"""What `--views` can't do without: the command itself reads them."""
DAYS = {
    "site": "site",
    "day": "day",
    "pv": "pv",
    "uv": "uv",
    "ips": "ips",
    "visits": "visits",
    "new_visitors": "new",
    "returning_visitors": "returning",
    "average_duration_s": "seconds",
    "bounce_rate": "bounce_rate",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eddyline webstats`."""
    parser.add_argument(
        "--log",
        metavar="PATH",
        nargs="+",
        help="access logs: files, plain or compressed, or globs that cover the names of rotated ones",
    )
    parser.add_argument(
        "--queue",
        metavar="DIR",
        nargs="+",
        help="data queues whose records are lines of logs, such as `eddyline ingest` fills",
    )
    parser.add_argument("--kafka", metavar="HOST:PORT", help="brokers of the topics")
    parser.add_argument(
        "--topic", metavar="NAME", nargs="+", help="topics whose values are lines of logs"
    )
    parser.add_argument(
        "--kafka-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of its client, such as security.protocol=SASL_SSL; secrets as ${env:NAME} or ${file:PATH}",
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on with what is written, until Ctrl-C"
    )
    parser.add_argument(
        "--log-format",
        metavar="FORMAT",
        help="a name, or the format string of nginx or Apache (default: told from the first lines of files, else combined)",
    )
    parser.add_argument(
        "--site-from",
        metavar="host|file|PATTERN",
        help="where the site of a line is: its virtual host, its file, or {site} in a pattern of the path (default: host)",
    )
    parser.add_argument(
        "--zone",
        metavar="ZONE",
        action="append",
        default=[],
        help="time zone such as Europe/Berlin, of one site as SITE=ZONE (default: that of the log's clock)",
    )
    parser.add_argument(
        "--places",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="files of countries and of carriers in MaxMind's format (.mmdb), to count requests by them",
    )
    parser.add_argument(
        "--site",
        metavar="HOST",
        nargs="+",
        help="take beacons of the page script from pages of these sites, such as www.example.org or *.example.org",
    )
    parser.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        default=f"{LOOPBACK}:{BEACON_PORT}",
        help=f"where the page script and its beacons are served (default: {LOOPBACK}:{BEACON_PORT})",
    )
    parser.add_argument(
        "--proxies",
        type=int,
        metavar="N",
        help="proxies in front of that, each of which appends to X-Forwarded-For (default: 0, the header is ignored)",
    )
    parser.add_argument(
        "--storage",
        metavar="DIR",
        type=Path,
        help="keep the statistics here, and go on from there; without: removed at the end",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help=f"serve the dashboard on this port of 127.0.0.1, 0 for any (with --follow: {PORT}), until Ctrl-C",
    )
    parser.add_argument("--views", metavar="FILE", type=Path, help="a changed copy of the views")
    parser.add_argument("--show-views", action="store_true", help="print the views, and end")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare all views with offline Spark; exit code 1: they differ",
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    out = Output(args.format)
    if args.show_views:
        out.say(template().removesuffix("\n"), "views", sql=template())
        return 0
    from eddyline.api.engine import Engine  # imported late: it takes a second

    listen = address_of(args.listen)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        storage = args.storage or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-webstats-"))
        )
        check_files(args.places or ())
        text = _text(args.views) if args.views else None
        asked = _asked(args, storage, text)
        views = queries(script(asked.settings(), text))
        secret = secret_of(storage)
        queues = stack.enter_context(ExitStack())  # closed after the engine, which reads them
        engine = stack.enter_context(Engine(str(storage)))
        define_key(engine.spark, secret)
        periods = _periods(engine, args.places, views, out)
        define_place(engine.spark, engine.files, periods)
        open_streams(engine, asked, storage, queues)
        create(engine, views)
        port = PORT if args.port is None and args.follow else args.port
        if port is not None and asked.sites:
            places = newest_places(engine.files, periods)
            address = take_beacons(asked, storage, secret, stack, listen, places)
            out.say(f"page script: {address}", "address", page_script=address)
        if port is not None:
            address = serve(engine, port)
            out.say(f"dashboard: {address}", "address", dashboard=address)
        with suppress(KeyboardInterrupt):
            return _work(engine, args, out, wait=port is not None)
    return 0


def _periods(
    engine: Engine, places: Sequence[Path] | None, views: Mapping[str, str], out: Output
) -> list[Period]:
    """Return which files of places count for which lines: those given now for all that aren't in the views yet."""
    if places is None:
        return kept_periods(engine.files)
    known = engine.catalog.find("requests")
    if PLACE not in (views.get("requests", "") if known is None else known.query):
        raise StorageError(
            f"the view requests of the storage, or the one after --views, doesn't call {PLACE}",
            condition="OTHER_RUN",
            hint="leave --places out, or give a new folder and the views that --show-views prints",
            storage=engine.files.root,
        )

    def next_seq() -> int:
        row = engine.sql("SELECT max(seq) + 1 FROM requests").first() if known else None
        return int(row[0] or 0) if row else 0

    periods, changed = keep_files(engine.files, places, next_seq)
    if changed and periods[-1].from_seq:
        text = "places: the files are new; they count for the lines from now on"
        out.say(text, "places", from_seq=periods[-1].from_seq)
    return periods


def _work(engine: Engine, args: argparse.Namespace, out: Output, *, wait: bool) -> int:
    odd = MALFORMED_ODD if args.follow else 1
    engine.on_progress(partial(report_progress, out, odd=odd))
    if args.follow:
        engine.on_error(lambda error: print(error, file=sys.stderr, flush=True))
        engine.start(INTERVAL_S)
        unreadable = report_unreadable(engine)
        while not engine.await_termination(LOOK_S):
            unreadable = report_unreadable(engine, unreadable)
        return 0
    engine.advance()
    _report_days(engine, out)
    code = 1 if report_unreadable(engine) else 0
    if args.verify:
        report = engine.verify()
        show_report(args.format, report)
        code = code if report else 1
    if wait:
        engine.start(INTERVAL_S)  # what is written meanwhile counts, too
        engine.await_termination()
    return code


# --- what is asked for ---


def _asked(args: argparse.Namespace, storage: Path, views: str | None) -> Run:
    """Return the run of a storage, which must be what the arguments ask for; write it if it is new.

    What isn't given stays as it is.

    Args:
        views: the text after --views.
    """
    known = stored_run(storage)
    given: dict[str, Any] = {}
    if args.log:
        given["logs"] = tuple(dict.fromkeys(str(Path(log).absolute()) for log in args.log))
    if args.queue:
        given["queues"] = tuple(dict.fromkeys(str(Path(one).absolute()) for one in args.queue))
    if args.kafka:
        given["brokers"] = args.kafka
    if args.topic:
        given["topics"] = tuple(dict.fromkeys(args.topic))
    if args.kafka_option:
        given["client"] = _client(args.kafka_option)
    if args.log_format:
        given["log_format"] = args.log_format
    if args.site_from:
        given["site_from"] = args.site_from
    if args.zone:
        given["zones"] = tuple(sorted(map(_zone, args.zone)))
    if args.site:
        given["sites"] = tuple(dict.fromkeys(site.lower() for site in args.site))
        Sites(given["sites"])  # refuses what is none
    if args.proxies is not None:
        check_number("proxies", args.proxies, 0, PROXIES_MAX)
        given["proxies"] = args.proxies
    if views is not None:
        changed = views != template()
        given["views"] = hashlib.sha256(views.encode()).hexdigest() if changed else ""
    run = replace(known or Run(), **given)
    if bool(run.brokers) != bool(run.topics) or (run.client and not run.brokers):
        raise DataError(
            "a topic is on brokers, and brokers have topics",
            condition="BAD_OPTION",
            hint="give --kafka HOST:PORT and --topic NAME together",
        )
    if not run.lines and not run.sites:
        raise DataError(
            "there is no input",
            condition="LOG_NOT_READABLE",
            hint="give files or globs after --log; or --queue, --kafka with --topic, or --site",
        )
    if known is None and not args.follow:
        _check_globs(run.logs)
    if run.lines and not run.log_format:
        run = replace(run, log_format=_detected(run.logs) if run.logs else COMBINED.name)
    store_run(storage, run, known)
    return run


def _text(views: Path) -> str:
    """Return the text after --views."""
    hint = "give a changed copy of what --show-views prints"
    try:
        text = views.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the file after --views can't be read: {error}", condition="BAD_OPTION", hint=hint
        ) from error
    if wrong := wrong_views(script(Settings(COMBINED), text), NEEDED_VIEWS):
        raise DataError(
            f"the file after --views, {views}, can't be used: {wrong}",
            condition="BAD_OPTION",
            hint=hint,
        )
    return text


def _check_globs(logs: Sequence[str]) -> None:
    """Refuse globs of logs that match nothing, for a command that waits for no files."""
    for log in logs:
        if glob.has_magic(log) and not glob.glob(log):
            raise DataError(
                f"no file matches {log}",
                condition="LOG_NOT_READABLE",
                hint="give the paths of logs; with --follow they may come later",
                log=log,
            )


def _zone(text: str) -> tuple[str, str]:
    site, equals, zone = text.rpartition("=")
    try:
        zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise DataError(
            f"there is no time zone {zone!r}",
            condition="BAD_OPTION",
            hint="give a name such as Europe/Berlin, or SITE=Europe/Berlin",
        ) from error
    return (site.lower() if equals else "", zone)


def _client(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    from eddyline.intake.kafka import SECRETS  # imported late, as the engine is

    client = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise wrong_argument("kafka-option", text, "give NAME=VALUE")
        client[name.lower()] = value
    check_secrets({f"kafka.{name}": value for name, value in client.items()}, SECRETS)
    return tuple(sorted(client.items()))


def _detected(logs: Sequence[str]) -> str:
    return detect(chain.from_iterable(map(_first_lines, logs))).name


def _first_lines(log: str) -> list[str]:
    """Return the first lines of the files of a log, `SAMPLE_LINES` at most."""
    lines: list[str] = []
    for file in sorted(glob.glob(log)) or ([] if glob.has_magic(log) else [log]):
        try:
            with open_file(file) as stream:
                lines += [
                    text.decode(errors="replace").rstrip("\r\n")
                    for text in islice(stream, SAMPLE_LINES - len(lines))
                ]
        except OSError as error:
            raise DataError(
                f"the log can't be read: {error}", condition="LOG_NOT_READABLE", log=file
            ) from error
    return lines


def create(engine: Engine, views: dict[str, str]) -> None:
    """Create the views that the storage doesn't have yet."""
    have = {view["name"] for view in engine.status()["views"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StateGrowthWarning)  # docs/webstats.md tells what grows
        for name, query in views.items():
            if name not in have:
                engine.view(name, query)


def take_beacons(
    run: Run,
    storage: Path,
    secret: str,
    stack: ExitStack,
    address: tuple[str, int],
    places: Places | None = None,
) -> str:
    """Take the beacons of a run's sites until the stack is closed; return the address of the script."""
    # importing it needs packages that may be missing
    from eddyline_apps.webstats.beacons import SCRIPT_PATH, Beacons, BeaconServer

    host, port = address
    producer = Producer(LogBackend(storage / BEACONS))
    beacons = Beacons(producer, secret, Sites(run.sites), places=places, proxies=run.proxies)
    server = BeaconServer(beacons, host=host, port=port)
    stack.enter_context(server)
    return server.url + SCRIPT_PATH


def address_of(listen: str) -> tuple[str, int]:
    """Return host and port of `[HOST:]PORT`.

    Example:
        >>> address_of("8422"), address_of("[::]:80")
        (('127.0.0.1', 8422), ('::', 80))

    Raises:
        EngineError: BAD_OPTION: it has no port.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise wrong_argument("listen", listen, "give a port, or an address and a port: 0.0.0.0:80")
    return host.strip("[]") or LOOPBACK, int(port)


def serve(engine: Engine, port: int) -> str:
    """Serve the console with the dashboard until the engine stops; return the address of that."""
    # importing it needs packages that may be missing
    from eddyline_apps.webstats.dashboard import DASHBOARD, PATH

    return engine.serve(port, additions=(DASHBOARD,)) + PATH


# --- text ---


def report_progress(out: Output, progress: Progress, *, odd: int = MALFORMED_ODD) -> None:
    """Print the progress of an epoch that has read lines; warn if `odd` lines are malformed, and none is a request."""
    lines = sum(rows for name, rows in progress.rows_in.items() if name == "requests")
    if lines:
        seconds = sum(progress.seconds.values())
        text = f"epoch {progress.epoch}: {lines:,} lines in {seconds:.2f} s"
        out.say(text, "epoch", lines=lines, **asdict(progress))
    malformed = progress.rows_out.get("malformed_lines", 0)
    if malformed >= odd and not progress.rows_out.get("requests"):
        print(
            f"none of {malformed:,} lines has the format of the log, so that nothing is counted: see malformed_lines "
            "for them, and give the right --log-format to a new storage",
            file=sys.stderr,
            flush=True,
        )


def report_unreadable(engine: Engine, known: Collection[str] = ()) -> set[str]:
    """Print which files of logs can't be read, without those that are known; return the paths of all."""
    from eddyline.answers.status import set_aside  # imported late, as the engine is

    found: dict[str, str] = {}
    for entry in engine.catalog.entries:
        found |= set_aside(engine.files, entry)
    for path, why in found.items():
        if path not in known:
            print(f"{path} can't be read: {why}", file=sys.stderr, flush=True)
    return set(found)


def _report_days(engine: Engine, out: Output) -> None:
    rows = engine.sql(
        f"SELECT {', '.join(DAYS)} FROM daily_statistics WHERE NOT is_bot "
        f"ORDER BY day DESC, site LIMIT {DAYS_SHOWN_MAX}"
    ).collect()
    days = [row.asDict() for row in reversed(rows)]
    out.table("day", DAYS, days, words={"site": shorten})  # a client can send a host of any length
    (malformed,) = engine.sql("SELECT malformed FROM malformed_count").first() or (0,)
    text = f"{malformed:,} malformed lines, kept in malformed_lines"
    out.say(text, "malformed", malformed=malformed)
