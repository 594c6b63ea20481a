"""The long test: random changes and random faults for hours, then live must equal offline.

    python tests/soak.py --minutes 120 --write docs/soak.md

Each round opens the storage in a new process with random options, lets it work for some seconds and
breaks it: the process, its Python workers, the PostgreSQL server of its catalog or the Kafka broker of a
pipeline are killed, the process is stopped for a while, or its disk is full. Rows on which views fail, and
views that are made, paused, replaced and dropped, are among the changes (`soak_child.py`).
What isn't installed, or needs root, is left out: the table names only what was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from broker import JARS, Broker
from eddyline.errors import StorageError
from eddyline_apps.postgres import Server, programs
from eddyline_apps.processes import members
from processes import Child

CHILD = Path(__file__).with_name("soak_child.py")
KILL = "kill the process"
DISK_BYTES = 1 << 30
OPTIONS = {"native_rules": [1, 1, 0], "hash_bits": [64, 64, 6], "short_lane_rows": [20_000, 20_000, 100, 0], "compaction_fan_in": [8, 2], "task_bytes": [1 << 30, 4096], "retain_epochs": [16, 3]}  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What a soak has done.

    Attributes:
        minutes: its duration.
        faults: number of faults by kind.
        recoveries: seconds from the start of each process until it had checked everything.
        numbers: `epochs`, `records` and `files` at the end.
    """

    minutes: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def page(self) -> str:
        """Return the page of the documentation."""
        total = sum(self.faults.values())
        rows = [
            ("minutes", f"{self.minutes:.0f}"),
            *((f"faults: {kind}", f"{count:,}") for kind, count in self.faults.items()),
            ("faults in all", f"{total:,}"),
            ("epochs committed", f"{self.numbers['epochs']:,}"),
            ("records written", f"{self.numbers['records']:,}"),
            ("records through the pipeline", f"{self.numbers['piped']:,}"),
            ("rows late for the watermark", f"{self.numbers['late']:,}"),
            ("records lost, doubled", "0, 0"),
            ("views, and rows in the sink, different from offline SQL", "0"),
            ("files in the storage at the end", f"{self.numbers['files']:,}"),
            ("longest start, with the check of everything", f"{max(self.recoveries):.0f} s"),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"| {name:{width}} | {value} |" for name, value in rows]
        return "\n".join(["| measure | value |", "|---|---|", *lines, ""])


class World:
    """All that a process of the long test needs and that can break: use it in a `with` block.

    Attributes:
        faults: what can be broken here, by its name: how often, and the function that does it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self._settings: dict[str, str] = {}
        self._stack = ExitStack()
        self.faults: dict[str, tuple[int, Callable[[Child], None]]] = {
            KILL: (5, Child.kill),
            "kill its workers": (3, Child.kill_workers),
            "stop it for two seconds": (1, _stopped),
        }

    def __enter__(self) -> World:
        try:
            self._prepare()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _prepare(self) -> None:
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            umount = ["umount", "--lazy", str(self.disk)]
            self._stack.callback(subprocess.run, umount, check=False)
            self.faults["fill its disk for two seconds"] = 1, self._fill
        if programs() is not None:
            # a folder that the server's own user can enter
            temporary = tempfile.TemporaryDirectory(prefix="eddyline-postgres-")
            folder = Path(self._stack.enter_context(temporary))
            folder.chmod(0o755)
            server = self._stack.enter_context(Server(folder / "server"))
            self._settings["EDDYLINE_CATALOG"] = server.url
            self.faults["kill PostgreSQL"] = 1, lambda _: _kill_server(server, folder)
        if list(JARS.glob("kafka_2.13-*.jar")):
            (self.folder / "kafka").mkdir()
            broker = self._stack.enter_context(Broker(self.folder / "kafka"))
            self._settings["SOAK_BROKER"] = broker.address
            self.faults["kill the Kafka broker"] = 1, lambda _: _kill_broker(broker)

    def start(self, chance: random.Random, mode: str) -> Child:
        """Start a process on the storage, with random options."""
        options = json.dumps({name: chance.choice(values) for name, values in OPTIONS.items()})
        command = [
            sys.executable,
            str(CHILD),
            str(self.folder),
            str(chance.random()),
            options,
            mode,
        ]
        return Child(command, self.folder / "errors.log", **self._settings)

    def drawn(self, chance: random.Random) -> list[str]:
        """Return the faults of one process; the last one ends it."""
        weights = [weight for weight, _ in self.faults.values()]
        kinds = chance.choices(list(self.faults), weights, k=5)
        return [kind for kind in kinds if kind != KILL] + [KILL]

    def _fill(self, _: Child) -> None:
        filler = self.disk / "filler"
        with open(filler, "wb", buffering=0) as stream, suppress(OSError):
            while stream.write(bytes(1 << 20)):
                pass
        time.sleep(2)
        filler.unlink()


def soak(folder: Path, minutes: float, seed: int, *, say: bool = False) -> Outcome:
    """Break a storage again and again, and check everything at each start and at the end.

    Raises:
        AssertionError: records were lost or doubled, or a view differs from offline SQL.
    """
    chance, outcome = random.Random(seed), Outcome()
    started = time.monotonic()
    with World(folder) as world, _kept(world.disk / "storage"):
        while (spent := time.monotonic() - started) < minutes * 60:
            child = world.start(chance, "go")
            try:
                outcome.recoveries.append(float(child.wait_for("ready")))
                for fault in world.drawn(chance):
                    time.sleep(chance.uniform(0.5, 8))
                    if child.process.poll() is not None:
                        raise AssertionError(child.last_words())
                    world.faults[fault][1](child)
                    outcome.faults[fault] += 1
            finally:
                child.kill()
            if say:
                faults = sum(outcome.faults.values())
                last = outcome.recoveries[-1]
                print(f"{spent / 60:6.1f} min  {faults:4} faults  start {last:4.0f} s", flush=True)
        child = world.start(chance, "end")
        try:
            outcome.recoveries.append(float(child.wait_for("ready")))
            outcome.numbers = json.loads(child.wait_for("numbers"))
        finally:
            child.kill()
    outcome.minutes = (time.monotonic() - started) / 60
    return outcome


@contextmanager
def _kept(storage: Path) -> Iterator[None]:
    """Keep a copy of the storage if something is wrong."""
    try:
        yield
    except AssertionError:
        copy = tempfile.mkdtemp(prefix="eddyline-soak-")
        shutil.copytree(storage, copy, dirs_exist_ok=True)
        print(f"a copy of the storage is in {copy}", flush=True)
        raise


def _stopped(child: Child) -> None:
    """Stop a process and its descendants for two seconds."""
    stopped = members(child.process.pid)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for member in stopped:
            with suppress(OSError):
                os.kill(member, number)
        time.sleep(2 if number == signal.SIGSTOP else 0)


def _kill_server(server: Server, folder: Path) -> None:
    identity = (folder / "server/data/postmaster.pid").read_text().split()[0]
    os.killpg(int(identity), signal.SIGKILL)
    server.stop()
    deadline = time.monotonic() + 60
    while True:
        try:
            return server.start()
        except StorageError:  # its processes are still about to end
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _kill_broker(broker: Broker) -> None:
    broker.stop(kill=True)
    time.sleep(1)
    broker.start()


HEAD = """# The long test

An engine with a dozen views, a pipeline of bolts on Kafka, its catalog in PostgreSQL and a sink runs in a process of
its own, while its process, its workers, the broker and the server are killed or stopped and its disk is filled,
at random. At every start and at the end each view is compared with offline SQL over its inputs, and each record
is looked for. `make soak` runs this test and writes this page; this one has the seed {seed}.

"""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--write", type=Path, help="file for the table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"seed {args.seed}", flush=True)
        page = soak(Path(folder), args.minutes, args.seed, say=True).page()
    print(page)
    if args.write:
        args.write.write_text(HEAD.format(seed=args.seed) + page)


if __name__ == "__main__":
    main()
