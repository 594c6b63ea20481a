"""`eddyline etl`: parse raw log lines, enrich them by a slow and flaky service, load them into PostgreSQL.

Lines are put into a data queue. A pipeline parses them, requests the region and the carrier of each
host from an HTTP service, loads the rows into PostgreSQL, and writes them to the stream `visits`, which
live views read. The command starts the service and, unless it is given a database, a PostgreSQL server.
When every line is loaded or a dead letter, the view must equal the same query in PostgreSQL.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eddyline.cli.output import TEXT, Output, add_format
from eddyline.errors import StorageError
from eddyline.relay.account import Account
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline_apps import script, views
from eddyline_apps.demo import count, read_log
from eddyline_apps.enrichment import FLAKY_SHARE, OUTCOMES, Service
from eddyline_apps.etl_bolts import Enrich, Load, create_table, fetch_rows, host_and_port, parse
from eddyline_apps.postgres import Server
from eddyline_apps.traffic import Traffic

if TYPE_CHECKING:
    import argparse

    from eddyline.api.engine import Engine
    from eddyline.api.pipeline import Pipeline

PIPELINE = "etl"
VISITS = "visits"
SCHEMA = (
    "position BIGINT, ts TIMESTAMP, host STRING, path STRING, status INT, bytes BIGINT, "
    "region STRING, carrier STRING"
)
RECORDS = 5_000
MALFORMED_SHARE = 0.005
REFUSED_EVERY = 700
"""Every 700th line has a status that violates a constraint of PostgreSQL's table."""

TUPLE_ROWS = 100
ENRICH_TTL_S = 1.0
PUT_ROWS = 10_000
REPORT_EVERY_S = 1.0

HITS = {
    "region": "region",
    "carrier": "carrier",
    "hits": "hits",
    "bytes": "bytes",
    "hits_in_postgres": "hits in PostgreSQL",
    "bytes_in_postgres": "bytes in PostgreSQL",
}
ACCOUNT = {
    "received": "received",
    "done": "done",
    "dead": "dead",
    "retry": "retry",
    "in_flight": "in flight",
}
LETTERS = {"bolt": "bolt", "reason": "reason", "records": "records"}
CALLS = {
    "attempt": "attempt",
    "calls": "calls",
    **{outcome.partition(" ")[0]: outcome for outcome in OUTCOMES},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eddyline etl`."""
    parser.add_argument(
        "--log", metavar="FILE", type=Path, help="an access log, as for demo; without: made up"
    )
    parser.add_argument(
        "--records",
        metavar="N",
        type=count,
        help="lines to read (default: all; made up: 5,000)",
    )
    parser.add_argument(
        "--postgres",
        metavar="URL",
        help="a database to load into, in a schema of its own (default: a server of this command's own)",
    )
    parser.add_argument(
        "--storage",
        metavar="DIR",
        type=Path,
        help="keep all here; a run that was broken off goes on. Without: removed at the end",
    )
    parser.add_argument(
        "--flaky",
        metavar="SHARE",
        type=share,
        default=FLAKY_SHARE,
        help=f"share of calls at which the service fails (default: {FLAKY_SHARE})",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the made-up lines and the failures (default: 1)"
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Run the ETL and return the exit code.

    It is 0 only if the live view equals PostgreSQL and every record is accounted for.
    """
    from eddyline.api.engine import (
        Engine,  # imported late: it takes a second, and --help should not wait for it
    )

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Output(args.format)
    lines = made_up_lines(args.records or RECORDS, args.seed)
    if args.log is not None:
        lines = islice(read_log(args.log), args.records)
    with ExitStack() as stack:
        storage = args.storage
        if storage is None:
            storage = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-etl-")))
            storage.chmod(0o755)  # PostgreSQL may run as another user
        schema = _schema(storage, args)
        url = args.postgres or stack.enter_context(Server(storage / "postgres")).url
        create_table(url, schema)
        service = stack.enter_context(Service(args.seed, args.flaky))
        queue = DataQueue(LogBackend(str(storage / "queue")))
        stack.callback(queue.close)
        total = fill(queue, lines)
        engine = stack.enter_context(Engine(str(storage / "engine")))
        text = f"{total:,} records in the queue, enriched by {service.url}"
        out.say(text, "input", records=total, service=service.url)
        place = host_and_port(url)
        out.say(f"PostgreSQL on {place}, schema {schema}", "address", postgres=place, schema=schema)
        pipeline = create(engine, queue, service.url, url, schema)
        drain(engine, pipeline, service, total, out)
        found = collect_result(engine, pipeline, total, url, schema)
        return 0 if report(found, service, out) else 1


# --- input ---


def made_up_lines(records: int, seed: int) -> Iterator[str]:
    """Generate log lines, of which some are malformed and some have an impossible status."""
    traffic = Traffic(lines=records, seed=seed, malformed_share=MALFORMED_SHARE)
    number = 0
    for batch in traffic.batches(PUT_ROWS):
        for line in batch:
            number += 1
            refused = number % REFUSED_EVERY == 0
            yield re.sub(r'" \d{3} ', '" 999 ', line, count=1) if refused else line


def fill(queue: DataQueue, lines: Iterable[str]) -> int:
    """Put the lines that the queue has not received yet; return how many it has received then."""
    total = queue.account().received + queue.backend.unread()
    remaining = islice(lines, total, None)
    while batch := list(islice(remaining, PUT_ROWS)):
        total += queue.put(batch)
    return total


def _schema(storage: Path, args: argparse.Namespace) -> str:
    """Return the PostgreSQL schema of this storage's run; record a new one for a new storage.

    Raises:
        StorageError: the storage belongs to a run over other lines.
    """
    given = {"log": args.log and str(args.log), "records": args.records, "seed": args.seed}
    document = storage / "run.json"
    if document.exists():
        known: dict[str, Any] = json.loads(document.read_text())
        schema: str = known.pop("schema")
        if known != given:
            raise StorageError(
                f"this storage is that of a run with {known}",
                condition="OTHER_RUN",
                hint="give the same arguments to go on with it, or a new folder",
                storage=storage,
            )
        return schema
    schema = f"eddyline_{uuid.uuid4().hex[:12]}"
    storage.mkdir(parents=True, exist_ok=True)
    draft = document.with_suffix(".new")
    draft.write_text(json.dumps({**given, "schema": schema}))
    draft.rename(document)
    return schema


# --- the pipeline ---


def create(
    engine: Engine, queue: DataQueue, service_url: str, database_url: str, schema: str
) -> Pipeline:
    """Define the pipeline and the views on its output; return the pipeline."""
    pipeline = (
        engine.pipeline(PIPELINE, queue, tuple_rows=TUPLE_ROWS)
        .bolt(parse, vectorised=True, max_attempts=1)
        .bolt(Enrich(service_url), "enrich", ttl=ENRICH_TTL_S)
        .bolt(Load(database_url, schema), "load", vectorised=True, once=True)
        .into(VISITS, SCHEMA)
    )
    for name, query in views(script(PIPELINE)).items():
        engine.view(name, query)
    return pipeline


# --- running and reporting ---


def drain(
    engine: Engine, pipeline: Pipeline, service: Service, total: int, out: Output = TEXT
) -> None:
    """Run until every record is done or dead, and print the progress."""
    before = started = None
    engine.start(REPORT_EVERY_S / 2)
    while True:
        account = pipeline.account()
        settled, now = account.done + account.dead, time.monotonic()
        if before is None or started is None:
            before, started = settled, now
        rate = (settled - before) / max(now - started, REPORT_EVERY_S)
        left = (total - settled) / rate if rate else None
        shown = "?" if left is None else f"{left:,.0f} s"
        (live,) = engine.sql("SELECT coalesce(sum(hits), 0) FROM hits").first() or (0,)
        calls = service.calls.total()
        out.say(
            f"{settled:>9,} of {total:,} records  {rate:>7,.0f}/s  {shown:>5} left  | "
            f"live view {live:,}  dead {account.dead:,}  waiting for a retry {account.retry:,}  "
            f"calls {calls:,}",
            "progress", settled=settled, records=total, records_per_second=rate, seconds_left=left,
            live=live, dead=account.dead, retry=account.retry, calls=calls,
        )  # fmt: skip
        if settled == total:
            break
        engine.await_termination(REPORT_EVERY_S)
    engine.advance()


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        total: number of records that were put.
        account: number of records by state in the queue.
        live: the view `hits`: (region, carrier) -> (hits, bytes).
        stored: the same query answered by PostgreSQL.
        failures: rows of the view `failures`: bolt, error, records.
    """

    total: int
    account: Account
    live: dict[tuple[str, str], tuple[int, int]]
    stored: dict[tuple[str, str], tuple[int, int]]
    failures: list[tuple[str, str, int]]

    @property
    def differences(self) -> list[str]:
        """Messages of the checks that fail."""
        account = self.account
        letters = sum(records for _, _, records in self.failures)
        hits = sum(hits for hits, _ in self.live.values())
        checks = {
            "the live view differs from PostgreSQL": self.live == self.stored,
            "not every record is done or dead": self.total == account.done + account.dead,
            "not every record that is done is in the live view": hits == account.done,
            "not every dead record is in the dead letters": letters == account.dead,
        }
        return [message for message, holds in checks.items() if not holds]


def collect_result(
    engine: Engine, pipeline: Pipeline, total: int, url: str, schema: str
) -> RunResult:
    """Collect the result of a run from the views, the queue and the database."""
    rows = [tuple(row) for row in engine.sql("SELECT * FROM hits").collect()]
    failures = engine.sql("SELECT bolt, error, records FROM failures ORDER BY 1, 3 DESC, 2")
    return RunResult(
        total,
        pipeline.account(),
        {(row[0], row[1]): (row[2], row[3]) for row in rows},
        {
            (row[0], row[1]): (row[2], row[3])
            for row in fetch_rows(url, schema, views(script(PIPELINE))["hits"])
        },
        [tuple(row) for row in failures.collect()],
    )


def report(result: RunResult, service: Service, out: Output = TEXT) -> bool:
    """Print the result of a run; return whether all checks hold."""
    out.say("\nHits by region and carrier, in the live view and in PostgreSQL:\n")
    out.table(
        "hits", HITS, [_hits(result, place) for place in sorted({*result.live, *result.stored})]
    )

    out.say("\nWhere the records are: received = done + dead + retry + in flight\n")
    out.table("account", ACCOUNT, [{name: getattr(result.account, name) for name in ACCOUNT}])

    out.say("\nDead letters by bolt and reason:\n")
    out.table(
        "dead_letters", LETTERS, [dict(zip(LETTERS, row, strict=True)) for row in result.failures]
    )

    out.say("\nCalls of the service in this run, by attempt:\n")
    attempts = sorted({attempt for attempt, _ in service.calls})
    out.table("calls", CALLS, [_calls(service, attempt) for attempt in attempts])

    differences = result.differences
    texts = [f"DIFFERENT: {message}." for message in differences]
    text = "The live view equals PostgreSQL, and every record is accounted for."
    out.say("\n" + ("\n\n".join(texts) or text), "result", equal=not texts, differences=differences)
    return not differences


def _hits(result: RunResult, place: tuple[str, str]) -> dict[str, Any]:
    live, stored = (side.get(place, (0, 0)) for side in (result.live, result.stored))
    return dict(zip(HITS, (*place, *live, *stored), strict=True))


def _calls(service: Service, attempt: int) -> dict[str, int]:
    calls = [service.calls[attempt, outcome] for outcome in OUTCOMES]
    return dict(zip(CALLS, (attempt, sum(calls), *calls), strict=True))


def share(text: str) -> float:
    """Parse a share in [0, 1) from the command line."""
    number = float(text)
    if not 0 <= number < 1:
        raise ValueError(text)
    return number
