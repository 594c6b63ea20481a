"""Shared by the pages of benchmarks: the machine, tables and plots."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from eddyline_bench.measure import aligned, require, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, OTHER, FAINT = "#1f5f8b", "#c4552d", "#888888"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the day of a measurement; `load` is the load average before it."""

    cores: int
    load: float
    day: str

    @classmethod
    def now(cls) -> Machine:
        """Describe this machine; call it before the benchmark adds to the load."""
        return cls(len(usable_cores()), os.getloadavg()[0], f"{datetime.now(UTC):%Y-%m-%d}")

    @property
    def busy(self) -> bool:
        """Whether other programs loaded the machine, which makes the numbers unreliable."""
        return self.load > self.cores / 2

    def __str__(self) -> str:
        where = (
            f"{self.cores} cores, Spark {pyspark.__version__}, Python {platform.python_version()}, "
            f"{self.day}, load average {self.load:.1f} before the start"
        )
        return where + ("; THE MACHINE WAS BUSY: provisional" if self.busy else "")


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table with a title and an explaining note."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def text(name: str, machine: Machine, tables: Iterable[PageTable], equal: bool) -> str:
    """Format the tables as plain text."""
    lines = [f"{name}: {machine}"]
    for table in tables:
        lines += [f"{table.title}", aligned(table.header, table.rows)]
    return "\n".join([*lines, verdict(equal)])


def markdown(beginning: Sequence[str], tables: Iterable[PageTable]) -> str:
    """Format a page of the documentation: the beginning, then the tables."""
    lines = list(beginning)
    for table in tables:
        lines += ["", f"## {table.title}", ""]
        if table.note:
            lines += [table.note, ""]
        lines += [_line(table.header), _line(["---", *["---:"] * (len(table.header) - 1)])]
        lines += [_line(row) for row in table.rows]
    return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@contextmanager
def plots(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[list[Axes]]:
    """Provide a grid of axes to plot on, saved as an SVG file when the `with` block ends.

    The same plots give the same bytes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "eddyline", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        yield axes
        for place in axes:
            place.spines[["top", "right"]].set_visible(False)
            place.yaxis.set_major_formatter("{x:,.0f}")
        figure.savefig(path, metadata={"Date": None})


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def require_matplotlib() -> None:
    """Raise EngineError if matplotlib is missing; call it before minutes of measuring."""
    require("matplotlib", "the plots need")
