"""The long test: random changes and random faults for hours, then live must equal offline.

    python tests/soak.py --minutes 120 --write docs/soak.md

Each round opens the storage in a new process with random options, lets it work for some seconds and
breaks it: the process or one of its Python workers is killed, or stopped for a while. Rows on which views
fail, and views that are made, paused, replaced and dropped, are among the changes (`soak_child.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eddyline_bench.cluster import members
from processes import Child

CHILD = Path(__file__).with_name("soak_child.py")
FAULTS = {"kill the process": 5, "kill its workers": 3, "stop it for two seconds": 1}
OPTIONS = {"native_rules": [1, 1, 0], "hash_bits": [64, 64, 6], "compaction_fan_in": [8, 2], "retain_epochs": [16, 3]}  # fmt: skip


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
            ("records lost, doubled", "0, 0"),
            ("views different from offline SQL", "0"),
            ("files in the storage at the end", f"{self.numbers['files']:,}"),
            ("longest start, with the check of everything", f"{max(self.recoveries):.0f} s"),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"| {name:{width}} | {value} |" for name, value in rows]
        return "\n".join(["| measure | value |", "|---|---|", *lines, ""])


def soak(folder: Path, minutes: float, seed: int, *, say: bool = False) -> Outcome:
    """Break a storage again and again, and check everything at each start and at the end.

    Raises:
        AssertionError: records were lost or doubled, or a view differs from offline SQL.
    """
    chance, outcome = random.Random(seed), Outcome()
    started = time.monotonic()
    while (spent := time.monotonic() - started) < minutes * 60:
        child = _start(folder, chance, "go")
        try:
            outcome.recoveries.append(float(child.wait_for("ready")))
            for fault in _faults(chance):
                time.sleep(chance.uniform(0.5, 6))
                if child.process.poll() is not None:
                    raise AssertionError(child.last_words())
                _break(child, fault)
                outcome.faults[fault] += 1
        finally:
            child.kill()
        if say:
            print(f"{spent / 60:6.1f} min  {sum(outcome.faults.values()):4} faults", flush=True)
    child = _start(folder, chance, "end")
    try:
        outcome.recoveries.append(float(child.wait_for("ready")))
        outcome.numbers = json.loads(child.wait_for("numbers"))
    finally:
        child.kill()
    outcome.minutes = (time.monotonic() - started) / 60
    return outcome


def _start(folder: Path, chance: random.Random, mode: str) -> Child:
    options = json.dumps({name: chance.choice(values) for name, values in OPTIONS.items()})
    command = [sys.executable, str(CHILD), str(folder), str(chance.random()), options, mode]
    return Child(command, folder / "errors.log")


def _faults(chance: random.Random) -> list[str]:
    """Return the faults of one process; the last one ends it."""
    kinds = chance.choices(list(FAULTS), list(FAULTS.values()), k=3)
    return [kind for kind in kinds if kind != "kill the process"] + ["kill the process"]


def _break(child: Child, fault: str) -> None:
    if fault == "kill the process":
        child.kill()
    elif fault == "kill its workers":
        child.kill_workers()
    else:
        stopped = members(child.process.pid)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for member in stopped:
                with suppress(OSError):
                    os.kill(member, number)
            time.sleep(2 if number == signal.SIGSTOP else 0)


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
        args.write.write_text(page)


if __name__ == "__main__":
    main()
