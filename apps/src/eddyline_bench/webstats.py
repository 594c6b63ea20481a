"""Load of the web statistics: a log of many sites that grows, and what a line costs as history does."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eddyline.api.engine import Engine
from eddyline.options import Options
from eddyline.spark.processes import process_tree
from eddyline.storage.files import folder_size
from eddyline_apps.traffic import Traffic
from eddyline_apps.webstats.command import create
from eddyline_apps.webstats.inputs import Run, open_streams
from eddyline_apps.webstats.places import define_place
from eddyline_apps.webstats.views import define_key, queries, script, secret_of
from eddyline_bench.measure import (
    Meter,
    ProcessMemory,
    aligned,
    bench_session,
    heap_bytes,
    verdict,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITES = 1_000
LINES_A_DAY = 500_000
PART_LINES = 100_000
SAMPLES = 10
RETAINED = 2
"""Epochs that stay readable: with more of them, the disk holds what compaction has replaced for longer."""
RETIRING_EPOCHS = 16
"""After so many epochs, even of nothing, the engine has removed what isn't retained."""
VERIFIED_LINES_MAX = 300_000
"""Up to so many lines, all views are compared with offline Spark; with more, requests of each site and day are."""

LARGEST = 6
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """What a part of the log has cost, and what there is after it.

    Attributes:
        lines: lines so far.
        part: lines since the sample before.
        seconds, cpu: of the part; CPU seconds of the process tree.
        resident: resident bytes of all processes, after a garbage collection of the JVM, without files that they have mapped.
        python: those of this process.
        mapped: resident bytes of files that this process has mapped, of which the system takes back what it needs.
        heap: bytes of the JVM's heap in use then.
        lines_bytes: bytes of the storage that hold the lines: the redo log.
        state_bytes: all others.
    """

    lines: int
    part: int
    seconds: float
    cpu: float
    resident: int
    python: int
    mapped: int
    heap: int
    lines_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Samples at equal distances.

    Attributes:
        log_bytes: size of the log.
        site_days: sites with requests, summed over days.
        largest: the views with the most bytes of state, and those.
        checked: what `equal` says was compared.
    """

    samples: list[Sample]
    sites: int
    log_bytes: int
    site_days: int
    largest: dict[str, int]
    checked: str
    equal: bool

    def ratio(self, name: str) -> float:
        """Return how a line's cost has changed; NaN of fewer than four samples.

        Args:
            name: `cpu`: CPU seconds a line in the last third over those in the middle one; or an attribute in
                bytes: bytes a line at the end over those in the middle.
        """
        third = (len(self.samples) - 1) // 3
        if not third:
            return float("nan")
        if name != "cpu":
            middle, end = self.samples[len(self.samples) // 2], self.samples[-1]
            return float(getattr(end, name) / end.lines / (getattr(middle, name) / middle.lines))
        before, last = (
            sum(one.cpu for one in part) / sum(one.part for one in part)
            for part in (self.samples[-2 * third : -third], self.samples[-third:])
        )
        return last / before

    def text(self) -> str:
        """Format the result as a table."""
        rows = [
            [
                f"{one.lines:,}",
                f"{one.part / one.seconds:,.0f}",
                f"{1e6 * one.cpu / one.part:.0f}",
                *(
                    f"{size / MIB:,.0f}"
                    for size in (
                        one.resident,
                        one.python,
                        one.mapped,
                        one.heap,
                        one.lines_bytes,
                        one.state_bytes,
                    )
                ),
            ]
            for one in self.samples
        ]
        heads = [
            "lines",
            "lines/s",
            "CPU s/M",
            "memory, MiB",
            "Python",
            "mapped",
            "heap",
            "lines, MiB",
            "state, MiB",
        ]
        last = self.samples[-1]
        return "\n".join(
            [
                f"webstats: {self.sites:,} sites, {self.site_days:,} days of a site, "
                f"a log of {self.log_bytes / MIB:,.0f} MiB",
                aligned(heads, rows),
                f"in all {last.lines / sum(one.seconds for one in self.samples):,.0f} lines/s, "
                f"{1e6 * sum(one.cpu for one in self.samples) / last.lines:.0f} CPU s a million lines; "
                f"CPU a line, the last third over the middle one: {self.ratio('cpu'):.2f}; "
                f"state a line, at the end over half-way: {self.ratio('state_bytes'):.2f}",
                "largest: "
                + ", ".join(
                    f"{name} {size / last.lines:.0f} bytes a line"
                    for name, size in self.largest.items()
                ),
                f"compared: {self.checked}",
                verdict(self.equal),
            ]
        )


def run(*, rows: int = 1_000_000, repeat: int = SAMPLES, cores: int = 2) -> LoadResult:
    """Let a log of 1,000 sites grow, 500,000 lines a day, and keep its statistics.

    Args:
        rows: lines in all.
        repeat: number of samples.
        cores: number of cores of the local session.
    """
    counts = Counts()
    with (
        bench_session(cores) as spark,
        tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder,
    ):
        log, storage = Path(folder, "access.log"), Path(folder, "storage")
        asked = Run((str(log),), log_format="combined")
        log.touch()
        samples = list[Sample]()
        seconds = cpu = 0.0
        lines = part = 0
        with (
            ExitStack() as queues,
            Engine(str(storage), spark, Options(retain_epochs=RETAINED)) as engine,
        ):
            define_key(engine.spark, secret_of(storage))
            define_place(engine.spark)
            open_streams(engine, asked, storage, queues)
            create(engine, queries(script(asked.settings())))
            for text in many_sites(rows, min(PART_LINES, max(rows // repeat, 1))):
                with log.open("a", encoding="utf-8") as file:
                    file.writelines(f"{one}\n" for one in text)
                counts.add(text)
                with Meter() as meter:
                    engine.advance()
                lines, part = lines + len(text), part + len(text)
                seconds, cpu = seconds + meter.cost.seconds, cpu + meter.cost.cpu_seconds
                if part >= rows // repeat or lines == rows:
                    _retire(engine)
                    samples.append(_sample(spark, storage, lines, part, seconds, cpu))
                    seconds, cpu, part = 0.0, 0.0, 0
            equal = counts.equal(engine)
            checked = "requests of each site and all lines, with a plain count of the log"
            if lines <= VERIFIED_LINES_MAX:
                checked = f"all views with offline Spark; {checked}"
                equal = bool(engine.verify()) and equal
            (site_days,) = engine.sql(
                "SELECT count(*) FROM (SELECT DISTINCT site, day FROM daily_statistics)"
            ).first() or (0,)
            sizes = {view["name"]: view["state_bytes"] for view in engine.status()["views"]}
            largest = dict(sorted(sizes.items(), key=lambda one: -one[1])[:LARGEST])
        size = log.stat().st_size
        return LoadResult(samples, SITES, size, site_days, largest, checked, equal)


def many_sites(lines: int, size: int) -> Iterator[list[str]]:
    """Generate the lines of `Traffic` as those of 1,000 sites, some much busier than others.

    A visitor keeps its site; programs change theirs every ten minutes.
    """
    weight = np.cumsum(1 / np.arange(1, SITES + 1) ** 0.8)
    places = np.searchsorted(weight, (np.arange(1 << 16) + 0.5) / (1 << 16) * weight[-1]).tolist()
    names = [f"www.site{number}.example" for number in range(SITES)]
    traffic = Traffic(lines=lines, days=max(-(-lines // LINES_A_DAY), 1))
    for batch in traffic.batches(size):
        found = []
        for line in batch:
            _, colon, rest = line.partition(":")
            words = rest.split(" ", 5)
            if len(words) == 6 and words[4].startswith("["):
                key = words[1] + words[4][:16] * words[1].startswith("198.51.100.")
                line = f"{names[places[zlib.crc32(key.encode()) & 0xFFFF]]}{colon}{rest}"
            found.append(line)
        yield found


class Counts:
    """Lines of each site, counted by their first word; damaged ones are only counted."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._lines = 0

    def add(self, lines: list[str]) -> None:
        """Count lines."""
        self._lines += len(lines)
        for line in lines:
            name = line.partition(":")[0]
            self._first[name] = self._first.get(name, 0) + 1

    def equal(self, engine: Engine) -> bool:
        """Return whether the views count the same: malformed lines begin as the others do, or are of no site."""
        found = {
            row.site: row.pv
            for row in engine.sql(
                "SELECT site, sum(pv) AS pv FROM daily_statistics GROUP BY site"
            ).collect()
        }
        malformed: dict[str, int] = {}
        for row in engine.sql("SELECT line FROM malformed_lines").collect():
            name = row.line.partition(":")[0]
            malformed[name] = malformed.get(name, 0) + 1
        names = self._first.keys() | found.keys() | malformed.keys()
        same = all(
            found.get(name, 0) + malformed.get(name, 0) == self._first.get(name, 0)
            for name in names
        )
        return same and sum(found.values()) + sum(malformed.values()) == self._lines


def _retire(engine: Engine) -> None:
    """Let small epochs pass, so that the disk holds no more than it must."""
    ticks = engine.table("ticks", "n INT")
    for number in range(RETIRING_EPOCHS):
        ticks.insert([(number,)])
        engine.advance()


def _sample(
    spark: SparkSession, storage: Path, lines: int, part: int, seconds: float, cpu: float
) -> Sample:
    heap = heap_bytes(spark)
    logs, whole = folder_size(storage / "logs")[0], folder_size(storage)[0]
    own = ProcessMemory.of(os.getpid())
    private = sum(ProcessMemory.of(process).private for process in process_tree())
    return Sample(
        lines,
        part,
        seconds,
        cpu,
        private,
        own.private,
        own.mapped,
        heap,
        logs,
        whole - logs,
    )
