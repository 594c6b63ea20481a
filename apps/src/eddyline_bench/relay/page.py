"""The result of the relay benchmark as plain text and as a page of the documentation with plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eddyline_bench import page
from eddyline_bench.page import FAINT, INK, OTHER, PageTable
from eddyline_bench.relay.overload import AVERAGED_S, LANES, LOAD, PHASES, SLOWDOWN
from eddyline_bench.relay.replays import BACKFLOW, FAILING_EVERY, TAIL
from eddyline_bench.relay.steady import BOLTS, OFF, POISON_WINDOW, RECORD_BYTES, WINDOW, Steady

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from eddyline_bench.relay import RelayResult
    from eddyline_bench.relay.overload import PhasedRun

COMMAND = "eddyline bench relay --write docs"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def text(result: RelayResult) -> str:
    """Format the tables as plain text."""
    return page.text("relay", result.machine, _tables(result), result.equal)


def write(result: RelayResult, folder: Path) -> None:
    """Write `relay.md` and `relay.svg` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with page.plots(folder / "relay.svg", 2, 2, (10, 7.5)) as axes:
        draws = (_draw_rate, _draw_memory, _draw_waits, _draw_search)
        for draw, place in zip(draws, axes, strict=True):
            draw(result, place)
    (folder / "relay.md").write_text(page.markdown(_introduction(result), _tables(result)))


def _introduction(result: RelayResult) -> list[str]:
    kept = "each record ended once" if result.equal else "RECORDS WERE LOST OR DOUBLED"
    return [
        "# Pipelines of bolts",
        "",
        f"Written by `{COMMAND}`, tables and plots; not by hand. Measured on {result.machine}.",
        "",
        "A pipeline reads an embedded queue, and writes a stream of one BINARY column; its bolts are "
        "vectorised. What is timed is the pipeline: reading the queue, waves of Spark tasks, and the "
        "commit of each batch, flushed to the disk. Epochs of views over the stream are not in it. "
        f"In all runs together: {kept}.",
        "",
        "![Throughput, memory, waits of replays and fixed windows](relay.svg)",
    ]


# --- tables ---


def _tables(result: RelayResult) -> Iterator[PageTable]:
    yield _acks(result.acks)
    yield _poison(result.poison)
    yield _overload(result)
    yield _search(result)
    yield _waits(result)


def _acks(acks: Steady) -> PageTable:
    return PageTable(
        "What acks cost",
        f"{BOLTS} pass-through bolts, records of {RECORD_BYTES} bytes that lie in the queue; "
        f"{acks.rows:,} a round, the pipelines in turns, windows of {WINDOW} tuples at the start. Without "
        "acks no tree is tracked, and what fails is left out. Ratios: the median of the rounds, and the "
        "least and the most.",
        ["", "records/s", "of acks off", "CPU us/record", "CPU, of acks off"],
        _steady_rows(acks, OFF),
    )


def _poison(poison: Steady) -> PageTable:
    base = next(iter(poison.costs))
    return PageTable(
        "What records cost that fail for good",
        "The same pipeline with acks, and windows of "
        f"{POISON_WINDOW} tuples at the start; {poison.rows:,} records a round. One bolt raises for a tuple "
        "with such a record in it, is called with ever smaller parts until it is found, and again "
        "whenever the record is read again: five attempts, then it is a dead letter. What one in a "
        "million costs is less than the rounds differ by; what ten cost tells how much it is.",
        ["failing", "records/s", "of none", "CPU us/record", "CPU, of none"],
        _steady_rows(poison, base),
    )


def _steady_rows(steady: Steady, base: str) -> list[list[str]]:
    def ratio(name: str, *, cpu: bool) -> str:
        middle, least, most = steady.ratios(name, base, cpu=cpu)
        if cpu:  # more CPU, not less
            middle, least, most = 1 / middle, 1 / most, 1 / least
        return "" if name == base else f"{middle:.1%} ({least:.0%} to {most:.0%})"

    return [
        [
            name,
            f"{steady.rate(name):,.0f}",
            ratio(name, cpu=False),
            f"{steady.cpu_us(name):.2f}",
            ratio(name, cpu=True),
        ]
        for name in steady.costs
    ]


def _overload(result: RelayResult) -> PageTable:
    overload = result.overload
    runs = (overload.adaptive, overload.best)
    phase_s = overload.adaptive.starts[1] - overload.adaptive.starts[0]
    rows = [
        [f"records/s, {phase}", *(f"{run.rate(i):,.0f}" for run in runs)]
        for i, phase in enumerate(PHASES)
    ]
    rows += [
        ["records/s, all phases", *(f"{run.rate():,.0f}" for run in runs)],
        ["against the best fixed windows", f"{overload.ratio:.0%}", ""],
        ["seconds until recovered", *(f"{run.recovery_s:.1f}" for run in runs)],
        ["window of the slowed lane, by phase", *(_windows(run) for run in runs)],
        ["seconds until its window is back", f"{overload.adaptive.window_back_s:.1f}", ""],
        ["tuples sent twice", *(f"{run.resent:.2%}" for run in runs)],
        ["records in tuples under way, most", *(f"{run.buffered:,}" for run in runs)],
        ["records unread on the disk at the end", *(f"{c.backlog:,}" for c in runs)],
    ]
    for of, name in {"driver": "the driver's Python", "tree": "all processes"}.items():
        rows += [
            [f"MB of {name}, {phase}", *(f"{c.peak(of, i) / 1e6:,.0f}" for c in runs)]
            for i, phase in enumerate(PHASES)
        ]
    return PageTable(
        f"Overload at {LOAD:g}x, and a lane that is {SLOWDOWN:g} times as slow for a while",
        f"{LANES} lanes whose bolt sleeps {overload.record_s * 1e6:.0f} microseconds a record, so all of "
        f"them could do {overload.capacity:,.0f} records/s; {LOAD:g} times as many come in all the time. "
        f"Three phases of {phase_s:.0f} s; in the second one lane 0 is slowed. Beside it the same pipeline "
        "with the best fixed windows. Recovered: the last "
        f"{AVERAGED_S:g} s had 90 % of the throughput of the first phase; its window is back: at 90 % of its median there. Windows "
        "are medians of the phase. Memory is the most that was resident; "
        "that of all processes counts shared pages more than once.",
        ["", *(run.name for run in runs)],
        rows,
    )


def _windows(run: PhasedRun) -> str:
    return ", ".join(f"{run.window(phase):.0f}" for phase in range(len(PHASES)))


def _search(result: RelayResult) -> PageTable:
    kept, taken = _curves(result)
    return PageTable(
        "The search for the best fixed windows",
        "The same three phases, shorter, with so many tuples under way to each lane. Kept: a lane works on "
        "all that it was given. Taken: what it hasn't begun in two seconds goes to another one, as it does "
        "when windows adapt.",
        ["tuples", "records/s, kept", "records/s, taken"],
        [[f"{window}", *(f"{curve[window]:,.0f}" for curve in (kept, taken))] for window in kept],
    )


def _waits(result: RelayResult) -> PageTable:
    replays = result.replays
    return PageTable(
        "How long a record waits that has failed",
        f"Seconds from its first failure to the attempt in which it was done. One of {FAILING_EVERY} records fails "
        f"when it is tried first. For {replays.load_seconds:.0f} s {LOAD:g} times as many records come in "
        "as the lanes can do, the same in both runs, and all of them are worked on. Backflow: what fails "
        "is read first. Tail: the bolt puts the record into the queue again, as a new one.",
        ["", "records", *QUANTILES],
        [
            [
                name,
                f"{len(waits):,}",
                *(
                    f"{np.quantile(waits, share):.2f}" if len(waits) else ""
                    for share in QUANTILES.values()
                ),
            ]
            for name, waits in replays.waits.items()
        ],
    )


def _curves(result: RelayResult) -> tuple[dict[int, float], dict[int, float]]:
    """Return throughput by fixed window, without and with late tuples sent to another lane."""
    kept, taken = (
        {
            fixed.window: rate
            for fixed, rate in result.overload.searched.items()
            if fixed.reassigned == reassigned
        }
        for reassigned in (False, True)
    )
    return kept, taken


# --- plots ---


def _runs(result: RelayResult) -> Iterator[tuple[PhasedRun, str]]:
    yield result.overload.adaptive, INK
    yield result.overload.best, FAINT


def _draw_rate(result: RelayResult, axes: Axes) -> None:
    for run, color in _runs(result):
        grid = np.arange(run.starts[0], run.starts[-1], 0.5)
        rates = [
            (run.committed_at(now) - run.committed_at(now - AVERAGED_S)) / AVERAGED_S
            for now in grid
        ]
        axes.plot(grid - run.starts[0], rates, color=color, label=run.name)
    _draw_phases(result, axes)
    axes.set(xlabel="seconds", ylabel=f"records/s, of the last {AVERAGED_S:g} s", ylim=(0, None))
    axes.set_title(f"A lane {SLOWDOWN:g} times as slow for a while")
    axes.legend(frameon=False, loc="lower right")


def _draw_memory(result: RelayResult, axes: Axes) -> None:
    for run, color in _runs(result):
        for of, style in {"tree": "-", "driver": "--"}.items():
            axes.plot(
                run.times - run.starts[0],
                run.rss[of] / 1e6,
                style,
                color=color,
                label=f"{run.name}, {'all processes' if of == 'tree' else 'driver'}",
            )
    _draw_phases(result, axes)
    axes.set(xlabel="seconds", ylabel="MB", ylim=(0, None), xlim=(0, None))
    axes.set_title("Memory under overload")
    axes.legend(frameon=False)


def _draw_phases(result: RelayResult, axes: Axes) -> None:
    starts = result.overload.adaptive.starts
    for start, what in zip(starts[1:], ("slow", "well again"), strict=False):
        axes.axvline(start - starts[0], color=OTHER, linestyle=":")
        axes.text(start - starts[0], 0, what, rotation=90, va="bottom", ha="right", color=OTHER)


def _draw_waits(result: RelayResult, axes: Axes) -> None:
    for name, color in {BACKFLOW: INK, TAIL: OTHER}.items():
        waits = np.sort(result.replays.waits[name])
        axes.plot(
            waits, np.arange(1, len(waits) + 1) / max(len(waits), 1) * 100, color=color, label=name
        )
    axes.set(xscale="log", xlabel="seconds from the failure until done", ylabel="% of records")
    axes.set_title("Records that have failed, under overload")
    axes.legend(frameon=False)


def _draw_search(result: RelayResult, axes: Axes) -> None:
    overload = result.overload
    for curve, style, name in zip(_curves(result), "-:", ("kept", "taken"), strict=True):
        label = f"fixed windows, {name}; short phases"
        axes.plot(list(curve), list(curve.values()), f"o{style}", color=FAINT, label=label)
    axes.axhline(overload.adaptive.rate(), color=INK, label="adaptive")
    axes.axhline(overload.best.rate(), color=FAINT, linestyle="--", label=overload.best.name)
    axes.set(xlabel="tuples under way to a lane", ylabel="records/s", ylim=(0, None))
    axes.set_title("Throughput over all phases")
    axes.legend(frameon=False)
