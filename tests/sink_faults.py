"""Faults at every call to a target's client, for tests of sinks: the call fails before, or after, it has done its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from eddyline.changes import Epoch
from eddyline.errors import EddylineError
from eddyline.sink.base import Sink

START = 3
STEPS = ("first", "deliver", "empty", "replace")


@dataclass
class Faults:
    """Lets the n-th of the wrapped calls raise an error.

    Attributes:
        error: makes the error.
        at: the number of the call; 0: none.
        late: whether the call has done its work by then.
    """

    error: Callable[[], BaseException]
    at: int = 0
    late: bool = False
    calls: int = 0
    fired: bool = False
    names: Counter[str] = field(default_factory=Counter)

    def arm(self, at: int, *, late: bool) -> None:
        self.at, self.late, self.calls, self.fired = at, late, 0, False

    def wrap(self, patch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
        """Count the calls of functions of a module, or of methods of a class."""
        for name in names:
            real = getattr(owner, name)
            kind = staticmethod if hasattr(real, "__self__") else lambda call: call
            patch.setattr(owner, name, kind(self.wrapped(name, real)))

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            self.calls += 1
            due = self.calls == self.at
            if due:
                self.fired = True
                self.names[name] += 1
            if due and not self.late:
                raise self.error()
            result = real(*given, **options)
            if due:
                raise self.error()
            return result

        return call


@dataclass
class Case:
    """A target, and a view of which position n has the rows `rows(n)`.

    Attributes:
        opened: opens the sink of a place.
        held: what a place holds, in the form of `expected`.
    """

    opened: Callable[[str], Sink]
    held: Callable[[str], Counter[Any]]
    rows: Callable[[int], pa.Table]
    changes: Callable[[int, int], pa.Table]
    expected: Callable[[int], Counter[Any]]

    def survive(self, faults: Faults, step: str, *, reopen: bool) -> int:
        """Let each call of a delivery fail, and deliver again; return how many calls have failed.

        Args:
            step: `first`: all rows into a new place; `deliver`; `empty`: nothing has changed; `replace`.
            reopen: whether a new sink goes on, as after a crash; else the same one.
        """
        return sum(self._survive(faults, step, late=late, reopen=reopen) for late in (False, True))

    def _survive(self, faults: Faults, step: str, *, late: bool, reopen: bool) -> int:
        place = f"{step}_{late}_{reopen}".lower()
        sink, positions = self.opened(place), {None: 0, 1: START}
        if step != "first":
            sink.replace(sink.committed(), Epoch(1), self.rows(START))
        for at in count(1):
            if step == "first":
                place = f"first_{late}_{reopen}_{at}".lower()
                sink = self.opened(place)
            base = sink.committed()
            old, epoch = positions[base], Epoch((base or 0) + 1)
            new = old if step == "empty" else self._other(old)
            positions[epoch] = new

            def work(
                sink: Sink,
                base: Epoch | None = base,
                epoch: Epoch = epoch,
                old: int = old,
                new: int = new,
            ) -> None:
                if base is None or step == "replace":
                    sink.replace(base, epoch, self.rows(new))
                else:
                    sink.deliver(base, epoch, self.changes(old, new))

            faults.arm(at, late=late)
            if reopen:
                with suppress(EddylineError):
                    work(sink)
            else:
                try:
                    work(sink)
                except EddylineError:
                    assert faults.fired
            fired, _ = faults.fired, faults.arm(0, late=False)
            if reopen and fired:
                sink.close()
                sink = self.opened(place)
            found = sink.committed()
            assert found in (base, epoch), (at, late)
            if found is not None:
                assert self.held(place) == self.expected(positions[found]), (at, late)
            if found == base:
                work(sink)
            assert sink.committed() == epoch
            assert self.held(place) == self.expected(new), (at, late)
            if not fired:
                sink.close()
                return at - 1
        raise AssertionError

    def _other(self, position: int) -> int:
        """Return another position, with rows that have come and rows that are gone.

        There are two, so that each delivery makes the same number of calls.
        """
        if position != START:
            return START
        for n in count(START + 1):
            if set(np.sign(self.changes(START, n).column(-1).to_numpy())) == {-1, 1}:
                return n
        raise AssertionError
