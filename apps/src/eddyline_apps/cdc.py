"""`eddyline cdc`: tables of PostgreSQL, three levels of live views, and Delta, Kafka and PostgreSQL as targets.

The command starts PostgreSQL, a Kafka broker and `eddyline run cdc.sql`, and changes the tables by random
transactions. Meanwhile it kills the three with SIGKILL at random moments and starts them again. In the
end each target must hold what PostgreSQL itself answers to the view's query over the tables.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eddyline.cli.output import TEXT, Output, add_format
from eddyline.errors import StorageError
from eddyline_apps import script, views
from eddyline_apps.demo import count
from eddyline_apps.kafka import Broker
from eddyline_apps.postgres import Server
from eddyline_apps.processes import kill_session
from eddyline_apps.shop import Trade, create_tables

if TYPE_CHECKING:
    import argparse

    from psycopg import Connection

APPLICATION = "cdc"
TRANSACTIONS = 10_000
RATE = 150.0  # transactions a second: the machine has an engine and two servers to run, too
KILLS = 2
REPORT_EVERY_S = 1.0
WAITING_EVERY_S = 5.0
PATIENCE_S = 240.0
STOP_S = 120.0

TARGETS = {
    "view": "view",
    "target": "target",
    "rows": "rows in PostgreSQL's answer",
    "missing": "missing",
    "foreign": "not in it",
    "equal": "equal",
}

Rows = frozenset[tuple[Any, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eddyline cdc`."""
    parser.add_argument(
        "--transactions",
        metavar="N",
        type=count,
        default=TRANSACTIONS,
        help=f"transactions to commit (default: {TRANSACTIONS:,})",
    )
    parser.add_argument(
        "--kills",
        metavar="N",
        type=int,
        default=KILLS,
        help=f"how often to kill each of engine, PostgreSQL and Kafka (default: {KILLS})",
    )
    parser.add_argument(
        "--kafka-jars",
        metavar="DIR",
        type=Path,
        default=Path(".kafka"),
        help="the jars of Kafka's distribution (default: .kafka, where `make kafka` puts them)",
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="keep all data and logs in this new folder; without: removed at the end",
    )
    parser.add_argument("--seed", type=int, default=1, help="of changes and kills (default: 1)")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Run the example and return the exit code: 0 only if each target equals PostgreSQL's answer."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Output(args.format)
    with ExitStack() as stack:
        folder = args.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="eddyline-cdc-"))
        )
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if args.keep and any(folder.iterdir()):
            raise StorageError(
                f"{folder} isn't empty",
                condition="STORAGE_NOT_EMPTY",
                hint="give a new folder",
                storage=folder,
            )
        folder.chmod(0o755)  # PostgreSQL may run as another user
        (folder / "kafka").mkdir()
        database = stack.enter_context(
            Server(folder / "postgres", settings=["wal_level=logical", "max_replication_slots=20"])
        )
        broker = stack.enter_context(Broker(folder / "kafka", args.kafka_jars))
        create_tables(database.url, args.seed)
        engine = stack.enter_context(Runner(folder, database, broker))
        ports = {"postgres_port": database.port, "kafka_port": broker.port}
        out.say(
            f"PostgreSQL on port {database.port}, Kafka on port {broker.port}", "address", **ports
        )
        targets = Targets(folder, database.url, broker.address)
        stack.callback(targets.close)
        targets.wait(truth(database.url), engine, out)
        trade = stack.enter_context(Trade(database.url, args.transactions, RATE, args.seed))
        killed = trade_and_kill(
            trade, args, engine=engine, database=database, broker=broker, out=out
        )
        expected = truth(database.url)
        found = targets.wait(expected, engine, out)
        engine.stop()
        if not report(expected, found, targets, trade, killed, out):
            return 1
        out.say("\nEach view against offline Spark over the rows that were taken:\n")
        return 0 if engine.verify(args.format) else 1


# --- the engine ---


class Runner:
    """`eddyline run` in a process session of its own, within a `with` block; it can be killed and started in it."""

    def __init__(self, folder: Path, database: Server, broker: Broker) -> None:
        self._storage, self.log = folder / "storage", folder / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "SHOP_URL": database.url_without_password,
            "SHOP_PASSWORD": database.password,
            "KAFKA": broker.address,
            "LAKE": str(folder / "lake"),
            "PYSPARK_PYTHON": sys.executable,
        }

    def __enter__(self) -> Runner:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the engine; it creates what isn't there yet, and goes on where it was."""
        text = resources.files(__package__).joinpath(f"{APPLICATION}.sql")
        with resources.as_file(text) as path, open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*self._command(), "run", "--storage", str(self._storage), str(path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self._settings}, start_new_session=True,
            )  # fmt: skip

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the engine, its JVM and its workers."""
        if self._process is not None:
            kill_session(self._process)
            self._process = None

    def stop(self) -> None:
        """Let the engine end in an orderly way."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_S)
            self.kill()

    def verify(self, form: str) -> bool:
        """Print whether each live view equals offline Spark over the rows that the engine has taken, and return it."""
        command = [*self._command(), "verify", "--storage", str(self._storage), "--format", form]
        settings = {**os.environ, **self._settings}
        return subprocess.run(command, env=settings, check=False).returncode == 0

    def last_words(self) -> str:
        """Return the end of the engine's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    @staticmethod
    def _command() -> list[str]:
        return [sys.executable, "-m", "eddyline"]


def trade_and_kill(
    trade: Trade,
    args: argparse.Namespace,
    *,
    engine: Runner,
    database: Server,
    broker: Broker,
    out: Output = TEXT,
) -> dict[str, int]:
    """Wait until all transactions are committed, and kill each process at random moments meanwhile.

    Returns:
        what was killed -> how often.
    """
    victims: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "the engine": (engine.kill, engine.start),
        "PostgreSQL": (database.kill, database.start),
        "Kafka": (lambda: broker.stop(kill=True), broker.start),
    }
    draw = random.Random(args.seed)
    names = [name for name in victims for _ in range(args.kills)]
    draw.shuffle(names)
    killed = dict.fromkeys(victims, 0)
    moments = sorted(draw.randrange(args.transactions) for _ in names)
    reported = time.monotonic()
    while names or not trade.ended:
        if trade.failure is not None:
            raise trade.failure
        if names and trade.committed >= moments[0]:
            moments.pop(0)
            name = names.pop(0)
            kill, start = victims[name]
            kill()
            killed[name] += 1
            text = f"{trade.committed:>9,} transactions  kill -9 of {name}"
            out.say(text, "kill", transactions=trade.committed, killed=_process(name))
            start()
        elif time.monotonic() - reported >= REPORT_EVERY_S:
            reported = time.monotonic()
            left = (args.transactions - trade.committed) / RATE
            text = f"{trade.committed:>9,} transactions  {left:>5,.0f} s left"
            out.say(text, "progress", transactions=trade.committed, seconds_left=left)
        elif not engine.alive():
            raise _failed(engine)
        time.sleep(0.02)
    if trade.failure is not None:
        raise trade.failure
    return dict.fromkeys(victims, args.kills)


# --- the targets, and what they should hold ---


@dataclass(frozen=True, slots=True)
class Target:
    """A target of a view.

    Attributes:
        kind: its name for people.
        rows: reads all of its rows.
    """

    kind: str
    rows: Callable[[], Rows]


class Targets:
    """The three targets, read by their own clients."""

    def __init__(self, folder: Path, url: str, kafka: str) -> None:
        self._url, self._lake = url, folder / "lake"
        self._topic = Topic(kafka, "countries", COLUMNS["countries"])
        self.all = {
            "order_totals": Target("Delta", self._delta),
            "countries": Target("Kafka", self._topic.rows),
            "best_countries": Target("PostgreSQL", self._table),
        }
        self.close = self._topic.close

    @property
    def doubled(self) -> int:
        """Number of messages in Kafka that a sink has sent twice: of one key and epoch."""
        return self._topic.doubled

    def rows(self) -> dict[str, Rows]:
        """Return what each target holds."""
        return {view: target.rows() for view, target in self.all.items()}

    def wait(
        self, expected: Mapping[str, Rows], engine: Runner, out: Output = TEXT
    ) -> dict[str, Rows]:
        """Return what the targets hold when it is as expected, or after `PATIENCE_S`.

        Raises:
            StorageError: the engine has ended meanwhile.
        """
        deadline = time.monotonic() + PATIENCE_S
        reported = 0.0
        while (found := self.rows()) != expected and time.monotonic() < deadline:
            if not engine.alive():
                raise _failed(engine)
            if time.monotonic() - reported >= WAITING_EVERY_S:
                reported = time.monotonic()
                differ = {view: len(expected[view] ^ found[view]) for view in expected}
                words = ", ".join(f"{view} {number:,}" for view, number in differ.items())
                text = f"waiting; rows that differ in the targets: {words}"
                out.say(text, "waiting", different_rows=differ)
            time.sleep(REPORT_EVERY_S / 2)
        return found

    def _delta(self) -> Rows:
        import deltalake

        path = str(self._lake / "order_totals")
        if not deltalake.DeltaTable.is_deltatable(path):
            return frozenset()
        table = deltalake.DeltaTable(path).to_pyarrow_table(columns=COLUMNS["order_totals"])
        return _distinct(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _table(self) -> Rows:
        import psycopg

        columns = ", ".join(COLUMNS["best_countries"])
        try:
            with psycopg.connect(self._url) as connection:
                return _distinct(connection.execute(f"SELECT {columns} FROM best_countries"))
        except psycopg.errors.UndefinedTable:
            return frozenset()


class Topic:
    """The rows of a topic of the sink's form `upsert`: the last value of each key.

    Args:
        kafka: address of a broker.
        name: of the topic.
        columns: of a row.

    Attributes:
        doubled: number of messages whose key and epoch had come before.
    """

    def __init__(self, kafka: str, name: str, columns: list[str]) -> None:
        from confluent_kafka import Consumer

        self._name, self._columns = name, columns
        self._values: dict[bytes, dict[str, Any]] = {}
        self._seen: set[tuple[bytes, bytes]] = set()
        self.doubled = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": "cdc",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            },
        )
        self._consumer.subscribe([name])
        self.close = self._consumer.close

    def rows(self) -> Rows:
        """Return the rows after all messages that there are."""
        while messages := self._consumer.consume(1_000, timeout=0.5):
            for message in messages:
                if message.error() is None:
                    self._take(message)
        return _distinct(
            tuple(value[column] for column in self._columns) for value in self._values.values()
        )

    def _take(self, message: Any) -> None:
        key, headers = message.key(), dict(message.headers())
        place = key, headers["eddyline-epoch"]
        self.doubled += place in self._seen
        self._seen.add(place)
        if message.value() is None:
            self._values.pop(key, None)
        else:
            self._values[key] = json.loads(message.value())


COLUMNS = {
    "order_totals": ["order_id", "items", "cents"],
    "countries": ["country", "orders", "cents", "largest"],
    "best_countries": ["country", "place", "cents"],
}


def truth(url: str) -> dict[str, Rows]:
    """Return what PostgreSQL itself answers to the views' queries over the tables of the shop."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA answers")
        connection.execute("SET search_path = answers, public")
        for name, query in views(script(APPLICATION)).items():
            connection.execute(f"CREATE VIEW {name} AS {query}")
        found = {name: _answer(connection, name, columns) for name, columns in COLUMNS.items()}
        connection.rollback()
        return found


def _answer(connection: Connection[Any], view: str, columns: Iterable[str]) -> Rows:
    query = f"SELECT {', '.join(columns)} FROM answers.{view}"
    return _distinct(connection.execute(query))


def _distinct(rows: Iterable[tuple[Any, ...]]) -> Rows:
    """Return rows as a set; a row that is there twice makes it differ from any without."""
    found: set[tuple[Any, ...]] = set()
    for row in rows:
        found.add((*row, "twice") if row in found else row)
    return frozenset(found)


def report(
    expected: Mapping[str, Rows],
    found: Mapping[str, Rows],
    targets: Targets,
    trade: Trade,
    killed: Mapping[str, int],
    out: Output = TEXT,
) -> bool:
    """Print the comparison; return whether all targets are equal."""
    rows = []
    for view, target in targets.all.items():
        missing, foreign = expected[view] - found[view], found[view] - expected[view]
        equal = not missing and not foreign
        counts = (len(expected[view]), len(missing), len(foreign))
        rows.append(dict(zip(TARGETS, (view, target.kind, *counts, equal), strict=True)))
    kills = ", ".join(f"{name} {times} times" for name, times in killed.items() if times)
    heading = f"{trade.committed:,} transactions; killed: {kills or 'nothing'}. In the targets:"
    times_killed = {_process(name): times for name, times in killed.items()}
    out.say(f"\n{heading}\n", "trade", transactions=trade.committed, killed=times_killed)
    out.table("target", TARGETS, rows, {"equal": lambda equal: "yes" if equal else "NO"})
    equal = all(row["equal"] for row in rows) and not targets.doubled
    text = f"\n{targets.doubled:,} messages came twice in Kafka."
    out.say(text, "result", equal=equal, doubled=targets.doubled)
    return equal


def _process(name: str) -> str:
    """Return the name of a process for programs: without an article."""
    return name.removeprefix("the ")


def _failed(engine: Runner) -> StorageError:
    return StorageError(
        f"the engine has ended by itself:\n{engine.last_words()}",
        condition="ENGINE_ENDED",
        hint="give --keep DIR to keep its log",
        log=engine.log,
    )
