r"""Writes a small storage with all that the disk format knows, as an archive for test_compat.py.

Run it once for each format, with the last version that writes that format:

    python tests/compat/write.py tests/compat/v4.tar.gz

Beside the archive goes a document of the same name, here `v4.json`, with the rows that the storage
must have: when it is opened, at an earlier epoch, and after the test's own changes. Copy the one of
the format before, and add what is new. An archive that is committed never changes: later versions
must read it as it is.

The archive holds one folder, named like the archive:

    v3/storage      the storage
    v3/in           the files that its streams read
    v3/orders       the data queue of a stream
    v3/clicks       the data queue of a pipeline
    v3/sink         the files of a sink

The storage can be moved: its paths are relative to the folder above `v3`. Programs that write or
open it must start their JVM there, because Spark's workers stay in the folder of the JVM. Only the
notes of Spark's own file source hold full paths: `pack` takes the folder out of them, and `unpack`
puts the new one in.

What the version at hand lacks is left out, so that the script also runs with older ones. Names of
views behind the name of the archive leave out all others. `v1` was written so, by the last version
of format 1:

    python tests/compat/write.py tests/compat/v1.tar.gz totals everyone slowest by_country settled \
        late sensors
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import eddyline as el

STORAGE = "storage"
SUFFIX = ".tar.gz"
ANYWHERE = "file:///anywhere"
# Of files and failures, in seconds since 1970: no reader's clock is behind it. Spark passes over
# files that are much older than the others, and records wait until they are tried again.
LONG_AGO = 1_735_689_600
# Runs are merged early, and old epochs are retired while the script runs.
OPTIONS = el.Options(buckets=2, compaction_fan_in=2, retain_epochs=6)

USERS = "id BIGINT, name STRING, country STRING"
CLICKS = "user BIGINT, page STRING"

SOURCES = f"""
    CREATE TABLE users ({USERS}, PRIMARY KEY (id));
    CREATE TABLE visits (user BIGINT, page STRING, ms INT, cost DOUBLE);
    CREATE TABLE kinds (
        id INT, b BOOLEAN, y TINYINT, f FLOAT, d DOUBLE, n DECIMAL(20,5), t STRING, x BINARY,
        day DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ, a ARRAY<STRUCT<p INT, q STRING>>,
        m MAP<STRING, DOUBLE>, PRIMARY KEY (id));
    CREATE TABLE dropped (a INT);
    CREATE STREAM hits (ts TIMESTAMP, site STRING, WATERMARK FOR ts AS ts - INTERVAL 10 MINUTES)
        USING json OPTIONS (path '{{root}}/in/hits');
    CREATE STREAM levels (tank STRING, level INT)
        USING parquet OPTIONS (path '{{root}}/in/levels');
    CREATE STREAM bid USING generator
        OPTIONS (kind 'nexmark.bid', total 120, eventsPerEpoch 50);
    CREATE STREAM readings (sensor STRING, value INT)
        USING csv OP op
        OPTIONS (path '{{root}}/in/readings', mode 'DROPMALFORMED');
"""
QUEUE = """
    CREATE STREAM orders (item STRING, pieces INT) USING queue OPTIONS (path '{root}/orders');
"""

VIEWS = {
    # aggregates
    "totals": "SELECT user, count(*) AS n, sum(ms) AS ms, avg(ms) AS mean, sum(cost) AS cost"
    " FROM visits GROUP BY user",
    "extremes": "SELECT page, min(ms) AS least, max(ms) AS most FROM visits GROUP BY page",
    "uniques": "SELECT count(DISTINCT page) AS pages, count(DISTINCT user) AS users FROM visits",
    "medians": "SELECT page, percentile(ms, 0.5) AS half, sort_array(collect_list(user)) AS users"
    " FROM visits GROUP BY page",
    "countries": "SELECT country FROM users",
    # joins
    "everyone": "SELECT u.name, v.page FROM users u"
    " LEFT JOIN visits v ON v.user = u.id AND v.ms > 100",
    "idle": "SELECT name FROM users u WHERE NOT EXISTS"
    " (SELECT 1 FROM visits v WHERE v.user = u.id)",
    # order
    "slowest": "SELECT page, ms FROM visits ORDER BY ms DESC, page LIMIT 3",
    "longest": "SELECT user, page, ms FROM (SELECT *, row_number() OVER"
    " (PARTITION BY user ORDER BY ms DESC, page) AS r FROM visits) WHERE r = 1",
    "running": "SELECT user, page, sum(ms) OVER (PARTITION BY user ORDER BY ms, page) AS so_far"
    " FROM visits",
    # views on views, constants, Python
    "by_country": "SELECT u.country, sum(t.n) AS n, sum(t.ms) AS ms"
    " FROM totals t JOIN users u ON u.id = t.user GROUP BY u.country"
    " UNION ALL SELECT 'rest', 0L, 0L",
    "loud": "SELECT name, shout(country) AS country FROM users",
    "all_kinds": "SELECT * FROM kinds",
    # streams
    "settled": "SELECT window(ts, '1 minute') AS w, count(*) AS n FROM hits GROUP BY 1 EMIT FINAL",
    "late": "SELECT site, count(*) AS n FROM hits__late GROUP BY site",
    "highest": "SELECT tank, max(level) AS level FROM levels GROUP BY tank",
    "channels": "SELECT channel, count(*) AS n, max(price) AS price FROM bid GROUP BY channel"
    " ORDER BY n DESC, channel LIMIT 4",
    "sensors": "SELECT sensor, sum(value) AS value FROM readings GROUP BY sensor",
}
LETTERS = {"unread": "SELECT bolt, count(*) AS n FROM readings__dead GROUP BY bolt"}
QUEUE_VIEWS = {
    "ordered": "SELECT item, sum(pieces) AS pieces FROM orders GROUP BY item",
    "clicked": "SELECT page, count(*) AS n FROM clicks GROUP BY page",
}
PAUSED_VIEWS = {
    "frozen": "SELECT country, count(*) AS n FROM users GROUP BY country",
    "on_frozen": "SELECT max(n) AS n FROM frozen",
}
ORDERED = ("slowest", "channels")
"""Views whose rows come in an order of their own."""


def session() -> SparkSession:
    """A Spark session for small inputs, with the function that the views call."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.udf.register("shout", lambda text: f"{text}!".upper(), "string")
    return spark


def names(engine: el.Engine, kind: str) -> list[str]:
    """The names of all tables, streams or views."""
    return [row.name for row in engine.show(kind).collect()]


def pipeline(engine: el.Engine, root: str, *, ready: bool) -> el.Pipeline:
    """The pipeline `clicks`; while it isn't `ready`, records with the word `wait` fail again and again."""
    clock = {} if ready else {"clock": lambda: LONG_AGO * 1000}
    queue = el.DataQueue(el.LogBackend(f"{root}/clicks", **clock), **clock)
    return (
        engine.pipeline("clicked_raw", source=queue)
        .bolt(_parser(), "parse", max_attempts=1)
        .bolt(_checker(ready), "check", max_attempts=100, retry_delay=1.0)
        .into("clicks", CLICKS)
    )


# Functions within functions: Spark's workers get their code, and needn't find this module.
def _parser() -> Callable[[Any], Any]:
    def parse(record: Any) -> Any:
        return json.loads(record["payload"])

    return parse


def _checker(ready: bool) -> Callable[[Any], Any]:
    def check(row: Any) -> Any:
        if not ready and row["page"] == "wait":
            raise ValueError("not yet")
        return row

    return check


def put_hits(root: str, number: int, *hits: tuple[str, str]) -> None:
    """Put a file into the stream `hits`; each hit has a time of day and a site."""
    lines = [json.dumps({"ts": f"2026-01-01T{ts}Z", "site": site}) for ts, site in hits]
    _put_lines(f"{root}/in/hits/{number}.json", lines)


def put_readings(root: str, number: int, *lines: str) -> None:
    """Put a file into the stream `readings`; each line has a sensor, a value and an operation."""
    _put_lines(f"{root}/in/readings/{number}.csv", lines)


def put_levels(root: str, number: int, **levels: int) -> None:
    """Put a file into the stream `levels`."""
    rows = {"tank": pa.array(levels), "level": pa.array(levels.values(), pa.int32())}
    pq.write_table(pa.table(rows), f"{root}/in/levels/{number}.parquet")


def _put_lines(name: str, lines: Iterable[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines))
    os.utime(name, (LONG_AGO, LONG_AGO))


def put_orders(root: str, *documents: str) -> None:
    """Put records into the queue of the stream `orders`."""
    el.Producer(el.LogBackend(f"{root}/orders")).put(list(documents))


def put_clicks(root: str, *documents: str) -> None:
    """Put records into the queue of the pipeline."""
    el.Producer(el.LogBackend(f"{root}/clicks")).put(list(documents))


def write(root: str, wanted: Sequence[str] = ()) -> int:
    """Write the storage below `root`, a path relative to the working directory; its last epoch.

    Args:
        wanted: names of the views; none for all.

    Old epochs are retired at each 16th epoch. The last one should be such, or come soon behind it:
    then the archive is small.
    """
    for name in ("hits", "levels", "readings"):
        Path(root, "in", name).mkdir(parents=True)
    pauses, queues = hasattr(el.Engine, "pause"), hasattr(el, "LogBackend")
    engine = el.Engine(f"{root}/{STORAGE}", session(), OPTIONS)
    engine.execute(SOURCES.format(root=root))
    engine.drop("table", "dropped")

    # The first rows are there before the views, the others come after them.
    engine.execute(
        """
        INSERT INTO users VALUES (1, 'ann', 'de'), (2, 'bob', 'fr'), (3, 'cid', 'de');
        INSERT INTO visits VALUES (1, '/', 120, 0.1), (1, '/a', 80, 0.2), (2, '/', 300, 1e18);
        INSERT INTO kinds VALUES
            (1, true, 1, 0.5F, -0.0D, 1.5, 'ü', X'00FF', DATE '2026-01-01',
             TIMESTAMP '2026-03-29 01:30:00.123456', TIMESTAMP_NTZ '2026-03-29 02:30:00',
             array(named_struct('p', 1, 'q', null), null), map('k', double('Infinity'))),
            (2, null, null, null, null, null, null, null, null, null, null, null, null)
        """
    )
    put_hits(root, 1, ("00:00:10", "a"), ("00:00:40", "b"), ("00:01:20", "a"))
    put_levels(root, 1, north=5, south=7)
    put_readings(root, 1, "cold,3,+", "hot,30,+", "warm,many,+")
    engine.advance()
    views = {**VIEWS}
    if "readings__dead" in names(engine, "stream"):
        views.update(LETTERS)
    if queues:
        engine.execute(QUEUE.format(root=root))
        clicks = pipeline(engine, root, ready=False)
        views.update(QUEUE_VIEWS)
    if pauses:
        views.update(PAUSED_VIEWS)
    views = {name: views[name] for name in wanted or views}
    for name, query in views.items():
        engine.view(name, query)
    engine.view("countries", "SELECT DISTINCT country FROM users", replace=True)
    engine.view("dropped", "SELECT * FROM users")
    engine.drop("view", "dropped")
    if hasattr(engine, "sink"):
        engine.sink("files", "countries", "jsonl", path=f"{root}/sink")

    engine.execute("INSERT INTO visits VALUES (2, '/a', 50, -1e18), (1, '/b', 200, 0.3)")
    put_hits(root, 2, ("00:15:00", "a"), ("00:15:30", "b"))
    put_readings(root, 2, "cold,1,+", "hot,30,-", "cold,9,?")
    if queues:
        put_orders(root, '{"item": "tea", "pieces": 2}', "no document", '{"item": "cup"}')
        put_clicks(root, '{"user": 1, "page": "/"}', "no document", '{"user": 2, "page": "wait"}')
    engine.advance()

    # Small epochs, which make runs to be merged.
    for number in range(3, 17):
        engine.execute(f"INSERT INTO kinds (id, t) VALUES ({number}, 'x')")
        engine.execute(f"UPDATE kinds SET y = {number} WHERE id IN (1, {number - 1})")
        engine.execute(f"DELETE FROM kinds WHERE id > 2 AND id < {number - 1}")
        engine.advance()

    if pauses:
        engine.pause("extremes")
    engine.execute(
        """
        UPDATE users SET country = 'at' WHERE id = 2;
        INSERT INTO users VALUES (4, 'dot', 'fr'), (8, 'hal', 'at');
        DELETE FROM visits WHERE page = '/' AND user = 1;
        """
    )
    put_hits(root, 3, ("00:03:00", "a"), ("00:14:00", "b"), ("00:16:10", "a"))
    put_levels(root, 2, south=6, west=1)
    engine.advance()

    if pauses:
        engine.resume("extremes")
        engine.pause("frozen")
    engine.execute(
        """
        DELETE FROM users WHERE id = 3;
        INSERT INTO visits VALUES (4, '/c', 90, 0.25), (4, '/c', 90, 0.25), (5, '/c', 10, null);
        """
    )
    if queues:
        put_orders(root, '{"item": "tea", "pieces": 1}')
    epoch = engine.advance()

    # What follows is durable, but in no epoch yet.
    engine.table("users", USERS, ["id"]).upsert([(1, "ann", "ch"), (6, "fay", "ch")])
    engine.execute("INSERT INTO visits VALUES (6, '/c', 400, 0.5); DELETE FROM users WHERE id = 4")
    if queues:
        clicks.source.close()
    engine.stop()
    if queues:
        put_orders(root, '{"item": "cup", "pieces": 5}', "{")
        put_clicks(root, '{"user": 6, "page": "/c"}')
    return epoch


def pack(folder: Path, root: str, archive: Path) -> None:
    """Put `root` of a folder into an archive that tells neither who wrote it nor where."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    _move(folder / root, folder.as_uri(), ANYWHERE)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / root, root, filter=anonymous)


def unpack(archive: Path, folder: Path) -> str:
    """Put the files of an archive into a folder; their root there."""
    root = archive.name.removesuffix(SUFFIX)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    _move(folder / root, ANYWHERE, folder.as_uri())
    return root


def _move(root: Path, old: str, new: str) -> None:
    """Change the folder in the notes of Spark's file sources."""
    for note in root.glob(f"{STORAGE}/checkpoints/*/sources/*/[0-9]*"):
        note.write_text(note.read_text().replace(f'"{old}/', f'"{new}/'))
        note.with_name(f".{note.name}.crc").unlink(missing_ok=True)  # its checksum, if it has one


def sizes(root: Path) -> Iterator[str]:
    """How much each of the folders holds."""
    for folder in sorted(root.glob("*/*")):
        files = [path for path in [folder, *folder.rglob("*")] if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        yield f"{folder.relative_to(root)}: {len(files)} files, {size:,} bytes"


def main(name: str, *wanted: str) -> None:
    archive = Path(name).resolve()
    root = archive.name.removesuffix(SUFFIX)
    with tempfile.TemporaryDirectory(prefix="eddyline-compat-") as place:
        folder = Path(place).resolve()
        os.chdir(folder)
        epoch = write(root, wanted)
        print(*sizes(folder / root), sep="\n")
        pack(folder, root, archive)
        print(f"{archive.name}: {archive.stat().st_size:,} bytes, last epoch {epoch}")
        os.chdir("/")


if __name__ == "__main__":
    main(*sys.argv[1:])
