"""`eddyline bench NAME --against REV`: a benchmark of this version beside the same one of another revision.

Each run is a process of its own, which imports the sources of its version. The order is this, that, that, this, so
that a machine which gets slower or faster meanwhile favours neither.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eddyline.cli.output import TEXT, Output
from eddyline.errors import EngineError
from eddyline_apps.processes import kill_session
from eddyline_bench.measure import aligned, verdict

THIS, THAT = "this", "that"
ORDER = (THIS, THAT, THAT, THIS)
LARGE = 1000
ITEMS_MAX = 4
"""Longer lists of objects, such as the queries of a suite, are summed up by field: as their geometric mean."""

STOP_S = 30.0
"""How long an interrupted benchmark has for cleaning up."""

LAST_LINES = 20
HINT = (
    "run it in a clone of the project, and give a revision that git knows, such as HEAD~1 or a tag"
)

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of both versions.

    Attributes:
        this, that: the medians of the runs of each version; None if a version doesn't have the figure.
        ratio: of this to that.
        least, most: the ratios of runs that followed each other: how far the ratio can be trusted.
    """

    figure: str
    this: float | None
    that: float | None
    ratio: float | None = None
    least: float | None = None
    most: float | None = None


def run(name: str, revision: str, options: Sequence[str], out: Output = TEXT) -> bool:
    """Run a benchmark of both versions, and print the figures and their ratios; return whether all results are equal.

    Args:
        revision: of the other version, as git takes it.
        options: of the benchmark, as on the command line.

    Raises:
        EngineError: BAD_OPTION: the sources are in no git checkout, or the revision can't be compared;
            BENCHMARK_FAILED: a run has failed.
    """
    root = checkout(Path(__file__))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs: list[dict[str, Any]] = []
    with worktree(root, revision) as other:
        check_format(other, revision)
        for number, side in enumerate(ORDER, 1):
            shown = "this version" if side == THIS else revision
            out.say(f"run {number} of {len(ORDER)}: {name} of {shown}")
            words = [name, *options, "--format", "json"]
            found = json.loads(bench(root if side == THIS else other, words).splitlines()[-1])
            out.say(None, "run", version=side, equal=found["equal"], figures=found["figures"])
            runs.append(found)
    equal, cores = all(one["equal"] for one in runs), runs[0]["cores"]
    out.say(f"\n{name}: this version, and {revision} as that; medians of two runs on {cores} cores")
    report(compare([flat(one["figures"]) for one in runs]), out)
    out.say("  ratio: this to that; least, most: of runs that followed each other")
    out.say(verdict(equal), "result", name=name, against=revision, cores=cores, equal=equal)
    return equal


def check_format(other: Path, revision: str) -> None:
    """Raise EngineError if the sources of a revision can't print JSON."""
    command = other / "apps/src/eddyline_bench/__init__.py"
    if not command.exists() or "add_format(" not in command.read_text(encoding="utf-8"):
        raise _wrong(
            f"the revision {revision} has no `eddyline bench --format json`, which this needs",
            "give a newer revision",
        )


# --- git ---


def checkout(file: Path) -> Path:
    """Return the root of the git checkout that a source file of this package is in.

    Raises:
        EngineError: BAD_OPTION: it is in none.
    """
    root = file.resolve().parents[3]
    if not (root / ".git").exists() or not (root / "src" / "eddyline").is_dir():
        raise _wrong(f"{root} is no git checkout of the project", HINT)
    return root


@contextmanager
def worktree(root: Path, revision: str) -> Iterator[Path]:
    """Provide a folder with the files of a revision; it is removed at the end, also by Ctrl-C.

    Raises:
        EngineError: BAD_OPTION: there is no such revision, or no git.
    """
    commit = _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    with tempfile.TemporaryDirectory(prefix="eddyline-bench-") as folder:
        path = Path(folder, "that")
        try:
            _git(root, "worktree", "add", "--detach", "--quiet", str(path), commit.strip())
            yield path
        finally:  # twice: also one that is locked, because it was interrupted while it was made
            with suppress(EngineError):
                _git(root, "worktree", "remove", "--force", "--force", str(path))


def _git(root: Path, *words: str) -> str:
    """Run git in a session of its own, so that Ctrl-C doesn't stop it; return what it has printed."""
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(root), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, start_new_session=True
        )
    except OSError as error:
        raise _wrong(f"git can't be run: {error}", "install git") from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip() or "there is no such revision"
        raise _wrong(f"git {words[0]} {words[-1]}: {why}", HINT) from error
    return done.stdout


# --- a run ---


def bench(root: Path, words: Sequence[str]) -> str:
    """Run `eddyline bench` of the sources below a folder; return what it has printed.

    Raises:
        EngineError: BENCHMARK_FAILED, with the end of its log.
    """
    sources = os.pathsep.join(str(root / part) for part in ("src", "apps/src"))
    command = [sys.executable, "-P", "-m", "eddyline", "bench", *words]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": sources},
        )  # fmt: skip
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_S)
            kill_session(process)
            raise
        if process.returncode not in (0, 1) or not printed:
            log.seek(0)
            last = "".join(log.readlines()[-LAST_LINES:])
            raise EngineError(
                f"`eddyline bench {' '.join(words)}` of {root} has failed:\n{last}",
                condition="BENCHMARK_FAILED",
                hint="run it alone; the other revision may not have this benchmark or option",
            )
    return printed


# --- figures ---


def flat(figures: object, path: str = "") -> dict[str, float]:
    """Return the numbers of a benchmark's figures by their path.

    Samples, which are lists of numbers, become their median. Of a long list of objects each number becomes the
    geometric mean over them.

    Example:
        >>> flat({"rows": 5, "sides": {"Spark": [{"seconds": 4.0}, {"seconds": 1.0}]}, "epochs": [3.0, 1.0, 2.0]})
        {'rows': 5.0, 'sides.Spark.0.seconds': 4.0, 'sides.Spark.1.seconds': 1.0, 'epochs': 2.0}
        >>> flat({"queries": [{"name": str(n), "epochs": [n]} for n in (1, 2, 4, 8, 16)]})
        {'queries.epochs': 4.0}
    """
    match figures:
        case bool() | str() | None:
            return {}
        case int() | float():
            return {path: float(figures)}
        case list() if any(isinstance(one, list | dict) for one in figures):
            if len(figures) > ITEMS_MAX:
                return _means([flat(one, path) for one in figures])
            pairs = [(str(place), one) for place, one in enumerate(figures)]
        case list():
            numbers = [one for one in figures if isinstance(one, int | float)]
            return {path: float(statistics.median(numbers))} if numbers else {}
        case dict():
            pairs = [(name, one) for name, one in figures.items() if name != "machine"]
        case _:
            raise TypeError(f"{path} is no figure: {figures!r}")
    found: dict[str, float] = {}
    for name, one in pairs:
        found |= flat(one, f"{path}.{name}" if path else name)
    return found


def _means(items: Sequence[Figures]) -> dict[str, float]:
    names = dict.fromkeys(name for one in items for name in one)
    return {name: _mean([one[name] for one in items if name in one]) for name in names}


def _mean(numbers: Sequence[float]) -> float:
    positive = all(number > 0 for number in numbers)
    return statistics.geometric_mean(numbers) if positive else statistics.mean(numbers)


def compare(runs: Sequence[Figures]) -> list[Compared]:
    """Compare the figures of runs in the order `ORDER`; those that are the same in all runs are left out.

    Example:
        >>> compare([{"rows": 5, "s": 2.0}, {"rows": 5, "s": 4.0}, {"rows": 5, "s": 6.0}, {"rows": 5, "s": 6.0}])
        [Compared(figure='s', this=4.0, that=5.0, ratio=0.8, least=0.5, most=1.0)]
    """
    found = []
    for name in dict.fromkeys(name for one in runs for name in one):
        values = [one.get(name) for one in runs]
        if len(set(values)) > 1:
            this, that = (_median(values, side) for side in (THIS, THAT))
            first, last = _ratio(values[0], values[1]), _ratio(values[3], values[2])
            ratios = [ratio for ratio in (first, last) if ratio is not None]
            least, most = min(ratios, default=None), max(ratios, default=None)
            found.append(Compared(name, this, that, _ratio(this, that), least, most))
    return found


def _median(values: Sequence[float | None], side: str) -> float | None:
    known = [one for one, of in zip(values, ORDER, strict=True) if of == side and one is not None]
    return statistics.median(known) if known else None


def _ratio(this: float | None, that: float | None) -> float | None:
    return None if this is None or not that else this / that


def report(figures: Sequence[Compared], out: Output = TEXT) -> None:
    """Print the figures of both versions."""
    shown = [
        [
            one.figure,
            *(_shown(value) for value in (one.this, one.that)),
            *(
                "" if ratio is None else f"{ratio:.2f}"
                for ratio in (one.ratio, one.least, one.most)
            ),
        ]
        for one in figures
    ]
    out.say(aligned(["figure", THIS, THAT, "ratio", "least", "most"], shown))
    for one in figures:
        out.say(None, "figure", **asdict(one))


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.4g}"


def _wrong(what: str, way_out: str) -> EngineError:
    return EngineError(what, condition="BAD_OPTION", hint=way_out)
