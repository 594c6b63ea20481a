"""The result of Mars's experiment as plain text and as a page of the documentation with plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eddyline_bench import page
from eddyline_bench.mars.runs import WARM_UP
from eddyline_bench.page import FAINT, INK, OTHER, PageTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from eddyline_bench.mars import MarsResult
    from eddyline_bench.mars.faults import ClusterRun

SIMULATED_CORES_MAX = 32
"""The largest number of cores that is simulated."""

PAPER_PEAK = 5000
PAPER_NODES = 20
PAPER_LATENCY_MS = {"Storm": 653, "Mars": 1372, "Spark Streaming": 2383}
"""Mean latencies that the paper on Mars reports."""

COMMAND = "eddyline bench mars --write docs"


def text(result: MarsResult) -> str:
    """Format the tables as plain text."""
    return page.text("mars", result.machine, _tables(result), result.equal)


def write(result: MarsResult, folder: Path) -> None:
    """Write `mars.md` and `mars.svg` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with page.plots(folder / "mars.svg", 2, 2, (10, 7.5)) as axes:
        draws = (_draw_batches, _draw_cores, _draw_latency, _draw_faults)
        for draw, place in zip(draws, axes, strict=True):
            draw(result, place)
    (folder / "mars.md").write_text(page.markdown(_introduction(result), _tables(result)))


def _introduction(result: MarsResult) -> list[str]:
    return [
        "# Mars's experiment",
        "",
        f"Written by `{COMMAND}`, tables and plots; not by hand. Measured on {result.machine}.",
        "",
        "The query is that of the paper on Mars, over records of 20 fields "
        f"({result.record_bytes:.0f} bytes as NDJSON):",
        "",
        "```sql",
        "SELECT sip, type, timestamp, count(*) FROM S GROUP BY sip, type, timestamp WINDOWING 60 s",
        "```",
        "",
        "![Throughput, cores, latency and faults](mars.svg)",
    ]


# --- tables ---


def _tables(result: MarsResult) -> Iterator[PageTable]:
    yield _comparison_with_paper(result)
    yield _batches(result)
    yield _cores(result)
    yield _latency(result)
    yield _faults(result)


def _comparison_with_paper(result: MarsResult) -> PageTable:
    peak, faults = result.peak, result.faults
    bytes_a_second = peak.throughput * result.record_bytes / 1e6
    measured = [max(p.throughput for p in curve) for curve in result.curves.values()]
    kept = "nothing lost, nothing doubled" if faults.equal else "COUNTS DIFFER"
    latencies = PAPER_LATENCY_MS
    return PageTable(
        "Beside the paper",
        "**Not comparable in absolute numbers.** The paper had up to 20 nodes, a message broker and a "
        f"network between them; here it is {result.machine.cores} cores of one machine, local files, "
        "and each epoch flushed to the disk. A record here is larger (NDJSON instead of about 150 "
        "bytes), and at which rate the paper took its latencies is not known here. What compares is the "
        "shape of the curves, and that no count is wrong.",
        ["", "Mars, paper", "here"],
        [
            ["nodes", f"{PAPER_NODES}", f"1, of {result.machine.cores} cores"],
            ["throughput", "3.5 GB/s; 179 MB/s a node", f"{bytes_a_second:.0f} MB/s"],
            [
                "peak at records per batch",
                f"{PAPER_PEAK:,}, then a slow fall",
                f"{peak.size:,}"
                + ("" if _declines_after_peak(result) else ", the largest measured: no fall"),
            ],
            [
                "scale-out",
                f"near-linear to {PAPER_NODES} nodes",
                f"{measured[-1] / measured[0]:.2f} times from {min(result.curves)} to "
                f"{result.cores} cores",
            ],
            [
                "mean latency",
                f"{latencies['Mars']:,} ms (Storm {latencies['Storm']:,}, "
                f"Spark Streaming {latencies['Spark Streaming']:,})",
                f"{result.latency.mean * 1000:,.0f} ms",
            ],
            [
                "faults",
                "40 million records, three nodes cut off: nothing lost, nothing doubled",
                f"{faults.rows:,} records, two of three workers killed, the third cut off: {kept}",
            ],
        ],
    )


def _declines_after_peak(result: MarsResult) -> bool:
    return result.peak.size < max(point.size for point in result.curves[result.cores])


def _batches(result: MarsResult) -> PageTable:
    curve = result.curves[result.cores]
    return PageTable(
        "Throughput against records per batch",
        f"On {result.cores} cores. A batch is one epoch: read, counted, merged into the state, "
        "committed and on the disk. An epoch has a cost of its own, about "
        f"{result.model.serial * 1000:.0f} ms here, whatever its records; so throughput rises with the "
        "batch until records make up most of the time.",
        ["records per batch", "ms an epoch", "records/s", "MB/s"],
        [
            [
                f"{point.size:,}" + (" (peak)" if point == result.peak else ""),
                f"{point.seconds * 1000:.0f}",
                f"{point.throughput:,.0f}",
                f"{point.throughput * result.record_bytes / 1e6:.1f}",
            ]
            for point in curve
        ],
    )


def _cores(result: MarsResult) -> PageTable:
    model, size = result.model, result.peak.size
    rows = []
    for cores in (*result.curves, *_simulated_cores(result)):
        measured = "-"
        if cores in result.curves:
            of_size = {p.size: p.throughput for p in result.curves[cores]}
            measured = f"{of_size[size]:,.0f}"
        rows.append(
            [
                f"{cores}" + ("" if cores in result.curves else " (simulated)"),
                measured,
                f"{model.throughput(size, cores):,.0f}",
                f"{model.throughput(size * cores // result.cores, cores):,.0f}",
            ]
        )
    return PageTable(
        "Throughput against cores",
        "Measured: a process of its own for each number of cores, which Python, the JVM and its "
        f"workers share; records/s of batches of {size:,}. **Simulated, not measured:** an epoch takes "
        f"{model.serial * 1000:.0f} ms, however many cores there are, and "
        f"{model.parallel * 1e6:.2f} microseconds a record, shared by all cores (Amdahl's law). Both "
        f"numbers are fitted to the curve on {result.cores} cores; how far they miss the measured "
        "numbers on fewer cores tells how far to trust them. A larger cluster would also pay for its "
        "network and for more tasks an epoch, which is not in it. With batches that grow with the "
        "cores, as when each node takes batches of its own, the simulation is linear by construction.",
        ["cores", "measured", "simulated, same batch", "simulated, batch grows"],
        rows,
    )


def _simulated_cores(result: MarsResult) -> list[int]:
    found, cores = [], result.cores * 2
    while cores <= SIMULATED_CORES_MAX:
        found.append(cores)
        cores *= 2
    return found


def _latency(result: MarsResult) -> PageTable:
    latency = result.latency
    values = {
        "mean": latency.mean,
        "p50": latency.quantile(0.5),
        "p99": latency.quantile(0.99),
        "max": latency.quantile(1.0),
    }
    return PageTable(
        "Latency of a record",
        f"From the arrival of each of {len(latency.seconds):,} records to the commit of its epoch, at "
        f"{latency.rate:,} records/s: half of the highest throughput above. Records arrive one by one "
        "and wait for up to 50 ms until their file is full. An epoch takes what is there.",
        ["", "ms"],
        [[name, f"{seconds * 1000:,.0f}"] for name, seconds in values.items()],
    )


def _faults(result: MarsResult) -> PageTable:
    faults = result.faults
    runs = (faults.undisturbed, faults.faults)
    rows = [
        ["records", *(f"{faults.rows:,}" for _ in runs)],
        ["sum of all counts", *(f"{run.counted:,}" for run in runs)],
        ["equal to offline SQL", *("yes" if run.verified else "NO" for run in runs)],
        ["records/s", *(f"{run.throughput:,.0f}" for run in runs)],
        ["longest epoch, s", *(f"{_longest(run):.1f}" for run in runs)],
        ["epochs called again", *(f"{run.retries}" for run in runs)],
    ]
    what = "; ".join(f"{m.what} at {m.seconds:.1f} s" for m in faults.faults.injected)
    return PageTable(
        "Faults",
        f"A cluster of a master and three workers, each a process with one core, on this machine; "
        f"batches of {faults.batch:,} records. Killed: SIGKILL to the worker and its executor in the "
        "middle of an epoch; a new worker takes its place. Cut off: SIGSTOP to both, which looks to the "
        "others like a lost network, until three epochs were committed without them; then they go on "
        "where they were, with what they know. The cluster gives a silent worker up after ten seconds. "
        f"In this run: {what}.",
        ["", "in peace", "with faults"],
        rows,
    )


def _longest(run: ClusterRun) -> float:
    return float(np.diff(run.times[WARM_UP - 1 :]).max())


# --- plots ---


def _draw_batches(result: MarsResult, axes: Axes) -> None:
    for cores, curve in result.curves.items():
        axes.plot(
            [point.size for point in curve],
            [point.throughput for point in curve],
            "o-",
            color=INK if cores == result.cores else FAINT,
            label=f"{cores} core" + ("s" if cores > 1 else ""),
        )
    axes.axvline(PAPER_PEAK, color=OTHER, linestyle=":", label="peak in the paper (20 nodes)")
    axes.set(xscale="log", xlabel="records per batch", ylabel="records/s", ylim=(0, None))
    axes.set_title("Throughput against records per batch")
    axes.legend(frameon=False)


def _draw_cores(result: MarsResult, axes: Axes) -> None:
    size, model = result.peak.size, result.model
    measured = {
        cores: next(p.throughput for p in curve if p.size == size)
        for cores, curve in result.curves.items()
    }
    counts = range(1, max(_simulated_cores(result), default=result.cores) + 1)
    grown = [model.throughput(size * cores // result.cores, cores) for cores in counts]
    axes.plot(list(measured), list(measured.values()), "o-", color=INK, label="measured")
    axes.plot(
        counts,
        [model.throughput(size, cores) for cores in counts],
        "--",
        color=INK,
        label=f"simulated, batches of {size:,}",
    )
    axes.plot(counts, grown, ":", color=INK, label="simulated, batch grows with the cores")
    axes.axvline(PAPER_NODES, color=OTHER, linestyle=":", label="paper: near-linear up to here")
    axes.set(xlabel="cores", ylabel="records/s", ylim=(0, None))
    axes.set_title("Throughput against cores")
    axes.legend(frameon=False)


def _draw_latency(result: MarsResult, axes: Axes) -> None:
    shares = np.linspace(0, 1, 201)
    axes.plot(np.quantile(result.latency.seconds, shares) * 1000, shares * 100, color=INK)
    axes.axvline(result.latency.mean * 1000, color=INK, linestyle="--", label="mean")
    for (name, mean_ms), style in zip(PAPER_LATENCY_MS.items(), (":", "-.", "--"), strict=True):
        axes.axvline(mean_ms, color=OTHER, linestyle=style, label=f"mean of {name}, paper")
    axes.set(xlabel="ms from arrival to commit", ylabel="% of records", xlim=(0, None))
    axes.set_title(f"Latency at {result.latency.rate:,} records/s")
    axes.legend(frameon=False)


def _draw_faults(result: MarsResult, axes: Axes) -> None:
    faults = result.faults
    for run, color, label in (
        (faults.undisturbed, FAINT, "in peace"),
        (faults.faults, INK, "faults"),
    ):
        axes.step([0, *run.times], [0, *run.records], where="post", color=color, label=label)
    for fault in faults.faults.injected:
        axes.axvline(fault.seconds, color=OTHER, linestyle=":")
        axes.text(
            fault.seconds, faults.rows, fault.what,
            rotation=90, va="top", ha="right", color=OTHER,
        )  # fmt: skip
    axes.set(xlabel="seconds", ylabel="records committed", ylim=(0, None))
    axes.set_title("Three workers, killed and cut off")
    axes.legend(frameon=False, loc="lower right")
