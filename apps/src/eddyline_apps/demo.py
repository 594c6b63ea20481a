"""`eddyline demo`: live web statistics over an access log, then the same SQL offline, compared.

The log is inserted in batches. After each batch one epoch updates the views, and one line reports the
throughput and the figures of the newest day. At the end plain Spark, which shares only the text of the
SQL with the engine, computes every view from a copy of all lines; both must have the same rows.
Meanwhile a console shows the views in a browser; in a terminal it stays until Ctrl-C.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from eddyline.answers.difference import frames_difference
from eddyline.cli.interrupts import await_interrupt
from eddyline.cli.output import TEXT, Output, add_format
from eddyline.errors import DataError, StorageError
from eddyline_apps import script, views
from eddyline_apps.traffic import Traffic

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import DataFrame, SparkSession

    from eddyline.api.engine import Engine
    from eddyline.api.handles import Table, View

APPLICATION = "web_statistics"
INPUT = "log_lines"
SCHEMA = "line STRING, seq BIGINT"
TSV_HEADER = "host\tlogname\ttime\tmethod\turl\tresponse\tbytes"
DAYS_SHOWN_MAX = 12
MALFORMED_SHOWN_MAX = 5
DAYS = {
    "site": "site",
    "day": "day",
    "pv": "pv",
    "uv": "uv",
    "visits": "visits",
    "new_visitors": "new",
    "returning_visitors": "returning",
    "visit_frequency": "visits/uv",
    "average_duration_s": "seconds",
    "average_depth": "depth",
    "pages_per_visitor": "pv/uv",
}
COMPARISONS = {"view": "view", "rows": "rows", "difference": "live = offline"}
WIDTH_MAX = 110
TASKS = 8  # of the comparison of a view

NEWEST_DAY = """
SELECT
  day, sum(pv) AS pv, sum(uv) AS uv, sum(visits) AS visits, sum(new_visitors) AS new_visitors,
  sum(returning_visitors) AS returning_visitors, (SELECT malformed FROM malformed_count) AS malformed
FROM daily_statistics
GROUP BY day
ORDER BY day DESC
LIMIT 1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eddyline demo`."""
    parser.add_argument(
        "--log",
        metavar="FILE",
        type=Path,
        help="an access log (common, combined or vhost_combined; plain or .gz); without: made-up traffic",
    )
    parser.add_argument(
        "--lines",
        metavar="N",
        type=count,
        help="lines to read (default: all; made up: 50,000)",
    )
    parser.add_argument(
        "--batch",
        metavar="N",
        type=count,
        default=5_000,
        help="lines an epoch (default: 5,000)",
    )
    parser.add_argument(
        "--storage",
        metavar="DIR",
        type=Path,
        help="keep the engine here; without: removed at the end",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the made-up traffic (default: 1)")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo and return the exit code: 0 only if every view equals its offline result."""
    from eddyline.api.engine import (
        Engine,  # imported late: it takes a second, and --help should not wait for it
    )

    out = Output(args.format)
    if args.log is None:
        lines = made_up_lines(args.lines or 50_000, args.seed)
    else:
        lines = _begun(islice(read_log(args.log), args.lines))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-demo-")))
        storage = args.storage or scratch / "engine"
        if storage.is_dir() and any(storage.iterdir()):
            raise StorageError(
                "the demo starts from nothing, and there is something",
                condition="STORAGE_NOT_EMPTY",
                hint="give an empty or a new folder",
                storage=storage,
            )
        engine = stack.enter_context(Engine(str(storage)))
        address = engine.serve()
        out.say(f"Live in a browser: {address}", "address", console=address)
        table, live = create(engine)
        copy = scratch / "lines.parquet"
        total = feed(engine, table, lines, args.batch, copy, out)
        _report_figures(engine, out)
        _report_malformed(engine, total, out)
        equal = _report_comparison(engine, live, copy, total, out)
        if sys.stdout.isatty() and not os.environ.get("CI"):
            with suppress(KeyboardInterrupt):
                out.say(f"\nThe console stays at {address} until Ctrl-C.")
                await_interrupt()
        return 0 if equal else 1


# --- input ---


def made_up_lines(lines: int, seed: int) -> Iterator[str]:
    """Generate log lines. More lines make busier days, not more of them."""
    for batch in Traffic(lines=lines, seed=seed).batches(10_000):
        yield from batch


def _begun(lines: Iterator[str]) -> Iterator[str]:
    """Return the same lines, with the first one read: a file that can't be read is named before Spark starts."""
    return chain(list(islice(lines, 1)), lines)


def read_log(path: Path) -> Iterator[str]:
    """Read the lines of a log file, plain or compressed with gzip, whatever bytes they hold.

    A line that is not UTF-8 is decoded as Latin-1, which has a character for each byte. A log of
    tab-separated columns that begins with `TSV_HEADER` is converted to the common log format.

    Raises:
        DataError: the file can't be read.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as file:
            lines = map(_decode, file)
            first = next(lines, None)
            if first is None:
                return
            if first.startswith(TSV_HEADER):
                lines = map(from_columns, lines)
            else:
                yield first
            yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"the log can't be read: {error}", condition="LOG_NOT_READABLE", log=path
        ) from error


def _decode(line: bytes) -> str:
    line = line.removesuffix(b"\n")
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def from_columns(line: str) -> str:
    r"""Convert tab-separated columns to a line of the common log format, in UTC.

    Any other line is returned unchanged.

    Example:
        >>> from_columns("a.example\t-\t807256800\tGET\t/\t200\t1713\t\t")
        'a.example - - [01/Aug/1995:06:00:00 +0000] "GET / HTTP/1.0" 200 1713'
    """
    columns = line.split("\t")
    if len(columns) < 7 or not re.fullmatch(r"\d{1,10}", columns[2], re.ASCII):
        return line
    host, login, second, method, url, status, size = columns[:7]
    stamp = datetime.fromtimestamp(int(second), UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    url = url.replace("\\", "\\\\").replace('"', '\\"')
    return f'{host} {login or "-"} - [{stamp}] "{method} {url} HTTP/1.0" {status} {size or "-"}'


# --- live ---


def create(engine: Engine) -> tuple[Table, dict[str, View]]:
    """Create the input table and the views on it."""
    table = engine.table(INPUT, SCHEMA)
    return table, {
        name: engine.view(name, query) for name, query in views(script(APPLICATION)).items()
    }


def feed(
    engine: Engine, table: Table, lines: Iterable[str], batch: int, copy: Path, out: Output = TEXT
) -> int:
    """Insert the lines in batches, run an epoch after each, and print the progress.

    The lines are also written to the Parquet file `copy`, for the offline comparison.

    Returns:
        the number of lines.
    """
    schema = pa.schema([("line", pa.string()), ("seq", pa.int64())])
    total = 0
    started = time.perf_counter()
    with pq.ParquetWriter(copy, schema) as writer:
        for part in _batches(lines, batch):
            rows = pa.table([part, range(total, total + len(part))], schema=schema)
            writer.write_table(rows)
            begin = time.perf_counter()
            table.insert(rows)
            inserted = time.perf_counter()
            epoch = engine.advance()
            end = time.perf_counter()
            total += len(part)
            rate, seconds, newest = len(part) / (end - begin), end - inserted, _newest_day(engine)
            out.say(
                f"{total:>9,} lines  {rate:>7,.0f}/s  "
                f"epoch {epoch:>4} in {seconds:5.2f} s  {_day_text(newest)}",
                "batch", lines=total, lines_per_second=rate, epoch=epoch, seconds=seconds,
                newest_day=newest,
            )  # fmt: skip
    if total:
        seconds = time.perf_counter() - started
        text = f"{total:,} lines in {seconds:.1f} s, reading and printing included"
        out.say(text, "input", lines=total, seconds=seconds)
    return total


def _batches(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(lines)
    while batch := list(islice(remaining, size)):
        yield batch


def _newest_day(engine: Engine) -> dict[str, Any] | None:
    row = engine.sql(NEWEST_DAY).first()
    return None if row is None else row.asDict()


def _day_text(day: Mapping[str, Any] | None) -> str:
    if day is None:
        return "no request yet"
    names = {"new_visitors": "new", "returning_visitors": "returning"}
    shown = (f"{names.get(name, name)} {day[name]:,}" for name in day if name != "day")
    return f"| {day['day']}  {'  '.join(shown)}"


# --- the final report and the offline comparison ---


def _report_figures(engine: Engine, out: Output) -> None:
    query = f"SELECT {', '.join(DAYS)} FROM daily_statistics ORDER BY day, site"
    rows = [row.asDict() for row in engine.sql(query).collect()]
    shown = rows[-DAYS_SHOWN_MAX:]
    out.say(f"\nStatistics of {len(rows)} days of sites, the last {len(shown)}:\n")
    out.table("day", DAYS, shown)
    out.say("")


def _report_malformed(engine: Engine, total: int, out: Output) -> None:
    (count,) = engine.sql("SELECT malformed FROM malformed_count").first() or (0,)
    text = f"{count:,} malformed of {total:,} lines, kept in malformed_lines"
    out.say(f"{text}:" if count else f"{text}.", "malformed", malformed=count, lines=total)
    some = engine.sql(
        f"SELECT seq, line FROM malformed_lines ORDER BY seq LIMIT {MALFORMED_SHOWN_MAX}"
    )
    for seq, line in some.collect():
        text = f"  line {seq + 1:,}: {_shortened(repr(line))}"
        out.say(text, "malformed_line", number=seq + 1, line=line)


def _report_comparison(
    engine: Engine, live: Mapping[str, View], copy: Path, total: int, out: Output
) -> bool:
    """Compare each view with its offline result and print both; return whether all are equal."""
    queries = views(script(APPLICATION))
    out.say(f"\nThe same SQL offline, plain Spark over the same {total:,} lines:\n")
    session = offline(engine.spark, copy, queries)
    compared = [
        compare(name, live[name].snapshot(), session.table(name), ordered=is_ordered(query))
        for name, query in queries.items()
    ]
    for name in queries:
        session.catalog.uncacheTable(name)
    return report(compared, out)


def report(compared: Sequence[Comparison], out: Output = TEXT) -> bool:
    """Print comparisons of views; return whether all are equal."""
    rows = [{"equal": not one.difference, **asdict(one)} for one in compared]
    out.table("comparison", COMPARISONS, rows, {"difference": lambda text: text or "equal"})
    unequal = [one.view for one in compared if one.difference]
    text = f"All {len(compared)} views are equal to offline Spark."
    if unequal:
        text = f"{len(unequal)} of {len(compared)} views DIFFER from offline: {', '.join(unequal)}"
    out.say(f"\n{text}", "result", equal=not unequal, views=len(compared), different=unequal)
    return not unequal


def offline(spark: SparkSession, lines: Path, queries: Mapping[str, str]) -> SparkSession:
    """Create a plain Spark session with the queries as temporary views over a Parquet file of lines.

    The session is new, so that names don't clash with those of `spark`. Each result is cached when it
    is first read, so that a view on views doesn't compute the views below it again.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    session.read.parquet(str(lines)).createOrReplaceTempView(INPUT)
    for name, query in queries.items():
        session.sql(query).createOrReplaceTempView(name)
        session.catalog.cacheTable(name)
    return session


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing a view with its offline result; `difference` is empty if they are equal."""

    view: str
    rows: int
    difference: str


def compare(name: str, live: DataFrame, other: DataFrame, *, ordered: bool) -> Comparison:
    """Compare two results as multisets of rows in Spark's tasks, or row by row if `ordered`; types must match too."""
    left, right = ([(f.name, f.dataType) for f in frame.schema] for frame in (live, other))
    if left != right:
        return Comparison(name, live.count(), f"columns {left} against {right}")
    found = frames_difference(live, other, TASKS)
    differences = [
        f"rows only {side}, such as {_shortened(repr(tuple(rows[0].values())))}"
        for side, rows in (("live", found.left_only), ("offline", found.right_only))
        if rows
    ]
    if ordered and not differences:
        columns = zip(live.toArrow().columns, other.toArrow().columns, strict=True)
        if not all(ours.equals(theirs) for ours, theirs in columns):
            differences = ["the order differs"]
    return Comparison(name, found.left_rows, "; ".join(differences))


def is_ordered(query: str) -> bool:
    """Return whether a query orders its result, not only something inside it.

    Example:
        >>> is_ordered("SELECT a FROM t ORDER BY a LIMIT 3")
        True
        >>> is_ordered("SELECT row_number() OVER (ORDER BY a) FROM t")
        False
    """
    return re.search(r"\bORDER BY\b[^()]*$", query) is not None


# --- text ---


def _shortened(text: str) -> str:
    return text if len(text) <= WIDTH_MAX else text[: WIDTH_MAX - 3] + "..."


def count(text: str) -> int:
    """Parse a positive integer from the command line, such as `50,000`."""
    number = int(text.replace(",", "").replace("_", ""))
    if number < 1:
        raise ValueError(text)
    return number
