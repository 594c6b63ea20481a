"""ON VIOLATION STOP: a stream stops before the first entry with a violation; that entry and later ones wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import EXPECTATIONS, Entry
from eddyline.catalog.expectations import expectations_of, strict
from eddyline.errors import DataError, EddylineError, QueryError
from eddyline.intake.backoff import back_off
from eddyline.intake.sources import SourceOutage
from eddyline.spark.failures import query_errors
from eddyline.spark.jvm import is_unanswered
from eddyline.sql.expectations import STOP, Expectation

SHOWN = 300
"""How many characters of a row that stops a stream are shown."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """Up to which entry (excluded) a log has been checked; `error` if that entry violates a rule."""

    end: int
    rules: str
    error: EddylineError | None = None


class Stops:
    """Decides how far epochs may read the logs of streams with ON VIOLATION STOP.

    Args:
        report: called with the error of a stream that stops.

    Attributes:
        errors: those of the stopped streams.
    """

    def __init__(self, workspace: Workspace, report: Callable[[Exception], None]) -> None:
        self._workspace = workspace
        self._report = report
        self._checked: dict[str, _Checked] = {}
        self.errors: list[EddylineError] = []

    def allowed_positions(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Limit the end positions of an epoch, so that it reads no row that stops its stream."""
        found, self.errors = dict(positions), []
        for entry in self._workspace.catalog.entries:
            rules = [one for one in expectations_of(entry) if one.action == STOP]
            known = self._checked.get(entry.id)
            held = known is not None and known.rules == entry.options.get(EXPECTATIONS)
            if entry.id not in found or not (rules or held):
                continue
            first = self._workspace.manifest.positions.get(entry.id, 0)
            checked = self._check_up_to(entry, rules, first, found[entry.id])
            if checked.error is not None:
                self.errors.append(checked.error)
                retry_at = time.monotonic() + back_off(1)
                self._workspace.sources.outages[entry.name] = SourceOutage(
                    checked.error, 1, retry_at
                )
            if (end := min(checked.end, found[entry.id])) > first:
                found[entry.id] = end
            else:
                del found[entry.id]
        return found

    def found_fault(self, positions: Mapping[str, int]) -> bool:
        """Return whether an epoch has failed because a stream's expectation can't be evaluated; stop that stream.

        Args:
            positions: the end positions of the epoch that has failed.
        """
        found = False
        for entry in self._workspace.catalog.entries:
            if entry.id in positions and (rules := strict(entry)):
                first = self._workspace.manifest.positions.get(entry.id, 0)
                self._checked.pop(entry.id, None)
                checked = self._check_up_to(entry, [], first, positions[entry.id], rules)
                if checked.error is None:
                    del self._checked[entry.id]
                else:
                    found = True
        return found

    def _check_up_to(
        self,
        entry: Entry,
        rules: Sequence[Expectation],
        first: int,
        end: int,
        evaluated: Sequence[Expectation] = (),
    ) -> _Checked:
        """Return how far the entries from `first` up to `end` violate no rule; the first bad one is found by bisection.

        Args:
            rules: those that rows may not violate.
            evaluated: those that rows may violate, but that must not raise an error.
        """
        text = entry.options[EXPECTATIONS]
        known = self._checked.get(entry.id)
        if known is None or known.rules != text or known.end < first:
            known = _Checked(first, text)
        if known.end >= end or known.error is not None:
            return known
        good, bad = known.end, end
        fault = self._fault(entry, rules, good, bad, evaluated)
        while fault and bad - good > 1:  # which of the entries it is
            middle = (good + bad) // 2
            if found := self._fault(entry, rules, good, middle, evaluated):
                bad, fault = middle, found
            else:
                good = middle
        checked = _Checked(good if fault else end, text)
        if fault:
            error = DataError(
                f"stream {entry.name} has stopped: {fault}",
                condition="EXPECTATION_VIOLATED",
                stream=entry.name,
                hint=f"nothing was lost: ALTER STREAM {entry.name} DROP CONSTRAINT lets the row in, and the "
                "stream goes on; or drop the stream, and mend its source",
            )
            checked = _Checked(good, text, error)
            self._report(error)
        self._checked[entry.id] = checked
        return checked

    def _fault(
        self,
        entry: Entry,
        rules: Sequence[Expectation],
        first: int,
        end: int,
        evaluated: Sequence[Expectation],
    ) -> str:
        """Return which constraint a row of some entries violates; empty if none does."""
        workspace = self._workspace
        segments = workspace.sources.segments(entry, workspace.manifest, first, end)
        session = workspace.session()
        rows = workspace.results.logged(entry, segments, session)
        try:
            with query_errors(""):
                for one in rules:
                    violating = rows.where(one.violated)
                    found = violating.head()
                    if found is not None:
                        count = violating.count()
                        which = f"{count} records, such as " if count > 1 else ""
                        return f"constraint {one.name} doesn't hold of {which}{str(found)[:SHOWN]}"
                if evaluated:
                    rows.selectExpr(*(f"count_if({one.violated})" for one in evaluated)).collect()
        except QueryError as error:
            if is_unanswered(error.__cause__):
                raise
            return f"its constraints can't be evaluated: {error.message}"
        return ""
