"""Run the guard: follow logs by the machine's clock, or replay them by their own times."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.answers.sinks import sinks_status
from eddyline.changes import Epoch
from eddyline.cli.output import TEXT, Output
from eddyline.errors import StorageError
from eddyline_apps.guard.notifying import Undelivered, notify, undelivered
from eddyline_apps.guard.reading import LogReader
from eddyline_apps.guard.timing import CLOCKS_DIFFER, count_ahead, replayed
from eddyline_apps.guard.unreadable import PATTERN, Unreadable
from eddyline_apps.guard.verifying import DNS

if TYPE_CHECKING:
    from eddyline.api.engine import Engine
    from eddyline.runtime.progress import Progress
    from eddyline_apps.guard.config import Config
    from eddyline_apps.guard.service import Admission, Decided, Guard

LOOK_S = 0.2
"""Between two looks at the logs."""

EPOCHS_S = 0.05
"""Between two looks of the engine for new input."""

WAIT_S = 10.0
"""How long a look waits for the epoch of its lines, so that they don't come faster than epochs."""

CLOCK_S = 1.0
"""Between two times of the clock while someone is on the list and the logs are quiet; and two looks at notifications."""

FORGET_S = 60.0
"""Between two deletions of old lines, and two messages about misdated or unreadable ones."""

LINES_MAX = 5_000
"""Lines an epoch: with more of them its views would run as Spark jobs, which is slower at first."""


def follow(
    engine: Engine, guard: Guard, config: Config, logs: Sequence[Path], out: Output = TEXT
) -> None:
    """Read on as the logs grow, until KeyboardInterrupt."""
    notify(engine, guard, config)
    watch = _Watch(out, dry_run=config.dry_run)
    engine.on_progress(watch.observe)
    engine.on_error(lambda error: print(error, file=sys.stderr, flush=True))
    reader = LogReader(logs, guard.files(), tail=True)
    engine.start(EPOCHS_S)  # which doesn't wait for notifications
    names = list(map(str, logs))
    out.say(f"following {', '.join(names)}", "following", logs=names)
    ticked = -math.inf
    forgot = looked = time.monotonic()
    misdated, warned = 0, forgot - FORGET_S
    unread, counts = Unreadable(), _reads_as_usual(guard)
    try:
        while True:
            started = time.monotonic()
            now = datetime.now(UTC)
            lines = reader.read(LINES_MAX)
            watch.committed.clear()
            if lines:
                guard.insert(lines, reader.known, now)
                misdated += count_ahead(lines, now)
                if counts:
                    unread.observe(lines)
            # While lines of the past are read, the clock waits for them: nobody is freed whose last
            # requests are still to come. At first it is that of an earlier guard, by which nobody may be judged.
            first = ticked < 0
            quiet = first or (guard.active and started - ticked >= CLOCK_S)
            if len(lines) < LINES_MAX and (lines or quiet):
                guard.tick(now)
                ticked = started
            if lines or ticked == started:
                watch.committed.wait(WAIT_S)
            if watch.take_changed("by_hand"):
                watch.decided(now, guard.decided())
            old = started - forgot >= FORGET_S
            freed = guard.release(now) if watch.take_changed("block_list") or old else []
            watch.freed(now, freed)
            if watch.take_changed("waiting") or freed or guard.crowded:
                watch.committed.clear()
                admissions = guard.admit(now)
                watch.admitted(now, admissions)
                if admissions:  # in a small epoch of their own, before the next lines
                    watch.committed.wait(WAIT_S)
            watch.take_notes(guard, now)
            if (misdated or unread.lines) and started - warned >= FORGET_S:
                watch.left_out(now, misdated, unread)
                misdated, unread, warned = 0, Unreadable(), started
            if started - looked >= CLOCK_S:
                with suppress(StorageError):  # a sink is dropped meanwhile
                    status = sinks_status(engine.files, engine.catalog, Epoch(0))
                    watch.delivering(now, undelivered(status))
                looked = started
            if old:
                guard.forget(now)
                forgot = started
            if not engine.await_termination(max(0.01, LOOK_S + started - time.monotonic())):
                continue
            return
    except KeyboardInterrupt:
        out.say("stopped; the list stays as it is", "stopped")


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay has shown.

    Attributes:
        blocked: who would have been blocked, by target.
        seen: words of the log's lines that can be addresses.
    """

    blocked: dict[str, Admission]
    seen: set[str]


def replay(
    engine: Engine, guard: Guard, config: Config, logs: Sequence[Path], out: Output = TEXT
) -> Replay:
    """Read the logs as they are, by their own times, and notify nobody."""
    found = Replay({}, set())
    watch = _Watch(out, dry_run=True)
    engine.on_progress(watch.observe)
    reader = LogReader(logs, guard.files(), tail=False)
    step_s = min(rule.block_s for rule in config.rules) / 2
    forgot = None
    misdated = 0
    unread, counts = Unreadable(), _reads_as_usual(guard)
    latest = datetime.now(UTC) + CLOCKS_DIFFER
    for part, now, wrong in replayed(lambda: reader.read(LINES_MAX), step_s, latest):
        found.seen.update(word for line in part for word in line.value.split(" ", 2)[:2])
        misdated += wrong
        if counts:
            unread.observe(part)
        guard.insert(part, reader.known, now)
        guard.tick(now)
        engine.advance()
        watch.freed(now, guard.release(now))
        while (admitted := guard.admit(now)) or guard.unverified:
            watch.admitted(now, admitted)
            found.blocked.update({one.target: one for one in admitted})
            engine.advance()
        if watch.take_changed("by_hand"):
            watch.decided(now, guard.decided())
        if watch.take_notes(guard, now):
            engine.advance()
        if forgot is None or abs((now - forgot).total_seconds()) >= FORGET_S:
            guard.forget(now)
            forgot = now
    if misdated:
        text = f"{misdated:,} lines are dated far from the lines around them, or ahead of this machine's clock: the guard's clock doesn't follow them"
        out.say(text, "misdated", lines=misdated)
    if unread.lines:
        out.say(unread.text, "unreadable", lines=unread.lines, first=unread.first)
    text = f"{len(found.blocked)} addresses and networks would have been blocked"
    out.say(text, "replayed", blocked=len(found.blocked))
    return found


def _reads_as_usual(guard: Guard) -> bool:
    """Return whether the view `requests` reads lines as guard.sql does; the user's own may read others."""
    view = guard.views.get("requests")
    return view is not None and PATTERN in view.query


class _Watch:
    """What the epochs have changed, and messages about it.

    Attributes:
        committed: set after each epoch.
    """

    def __init__(self, out: Output, *, dry_run: bool) -> None:
        self._out, self._dry_run = out, dry_run
        self.committed = threading.Event()
        self._changed = {"waiting", "block_list", "by_hand", "learnable", "reach"}
        self._lock = threading.Lock()
        self._warned = False
        self._failing: dict[str, Undelivered] = {}

    def observe(self, progress: Progress) -> None:
        """Note what an epoch has changed; warn if the views fail or no line is understood."""
        with self._lock:
            self._changed |= {name for name, rows in progress.rows_out.items() if rows}
        for name, error in progress.failing.items():
            print(f"view {name} is set aside: {error}", file=sys.stderr, flush=True)
        lines = progress.rows_in.get("log_lines", 0)
        if lines >= 10 and not progress.rows_out.get("requests") and not self._warned:
            self._warned = True
            print(
                f"none of {lines} lines is a request of the common or combined format with an IP "
                "address: see docs/guard.md on the format of the log",
                file=sys.stderr,
                flush=True,
            )
        self.committed.set()

    def take_notes(self, guard: Guard, now: datetime) -> int:
        """Learn what has settled, and print who has gone quiet; return the rows that were learnt."""
        learnable = [self.take_changed(view) for view in ("learnable", "learnable_places")]
        if self.take_changed("reach"):
            for verb, places in zip(("quiet", "back"), guard.reached(), strict=True):
                for one in places:
                    text = (
                        f"{verb}: {one.region}, {one.carrier}: {one.requests} requests in 5 minutes, "
                        f"{one.usual} are usual"
                    )
                    counts = {"requests": _number(one.requests), "usual": _number(one.usual)}
                    self._say(now, text, verb, **(one._asdict() | counts))
        return guard.learn(now) if any(learnable) else 0

    def take_changed(self, view: str) -> bool:
        """Return whether a view has changed since the last call."""
        with self._lock:
            found = view in self._changed
            self._changed.discard(view)
        return found

    def admitted(self, now: datetime, admissions: Sequence[Admission]) -> None:
        """Print who is put on the list."""
        verb = "would block" if self._dry_run else "blocked"
        for one in admissions:
            text = f"{verb} {one.target} {one.rule}: {one.evidence}"
            self._say(now, text, "blocked", **asdict(one), dry_run=self._dry_run)

    def decided(self, now: datetime, decisions: Sequence[Decided]) -> None:
        """Print what people have decided."""
        for one in decisions:
            verified = one.who == DNS
            how = "verified" if verified else "by hand"
            text = f"{how}: {one.action} {one.target} until {one.until}, {one.who}: {one.reason}"
            self._say(now, text, "decided", **one._asdict(), verified=verified)

    def left_out(self, now: datetime, misdated: int, unread: Unreadable) -> None:
        """Print how many lines are dated ahead of the clock, and how many can't be read."""
        if misdated:
            text = f"{misdated:,} lines are dated more than 5 minutes ahead of this machine's clock: they don't count"
            self._say(now, text, "misdated", lines=misdated)
        if unread.lines:
            self._say(now, unread.text, "unreadable", lines=unread.lines, first=unread.first)

    def delivering(self, now: datetime, failing: Sequence[Undelivered]) -> None:
        """Print which notifications work again, and for programs which fail: the engine has printed the error."""
        found = {one.sink: one for one in failing}
        time = f"{now:%FT%TZ}"
        for name, one in found.items():
            if name not in self._failing:
                self._out.say(None, "undelivered", time=time, **one._asdict())
        for name, one in self._failing.items():
            if name not in found:
                text = f"the list is delivered again: {one.to}"
                self._say(now, text, "delivered", sink=name, to=one.to)
        self._failing = found

    def freed(self, now: datetime, targets: Sequence[str]) -> None:
        """Print who has left the list."""
        for target in targets:
            self._say(now, f"freed {target}", "freed", target=target)

    def _say(self, now: datetime, text: str, event: str, /, **fields: object) -> None:
        time = f"{now:%FT%TZ}"
        self._out.say(f"{time} {text}", event, time=time, **fields)


def _number(text: str) -> float | None:
    """Return the number that a view has given as text; None if it is none."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None
