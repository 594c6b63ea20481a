"""A plugin of pytest that writes docs/guarantees.md from the results of tests: `make guarantees`.

It runs the tests with the mark `guarantee(connector, promise, killed)`, slow ones included. The words may name the
test's parameters in braces. Results are kept in docs/guarantees.json, so that some of the tests may be run alone.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs/guarantees.md"
RESULTS = PAGE.with_suffix(".json")
MARK = "guarantee"
NOT_RUN = {"outcome": "not run yet", "date": "", "seconds": 0}

HEAD = """# Guarantees

What each connector guarantees, and what was killed to show it. `make guarantees` runs these tests and writes this page. "kill -9" ends the process
with its JVM and its workers; servers are real ones. After the kills the result must equal the expected one row for row: nothing lost, nothing doubled, unless the guarantee says so.

| connector | guarantee | what was killed | test | result |
|---|---|---|---|---|
"""


def marks(item: pytest.Item) -> list[tuple[str, str, str]]:
    """Return connector, promise and what was killed, for each mark of a test."""
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec else {}
    found = []
    for mark in item.iter_markers(MARK):
        connector, promise, killed = (
            word.format(**parameters).replace(" 1 times", " once") for word in mark.args
        )
        found.append((connector, promise, killed))
    return found


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the page for results by test."""
    shown: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for test, result in results.items():
        file, _, name = test.removeprefix("tests/").partition("::")
        for words in result["marks"]:
            shown.setdefault((*words, f"`{file}` `{name.partition('[')[0]}`"), []).append(result)
    rows = [f"| {' | '.join(words)} | {_summary(found)} |" for words, found in shown.items()]
    return HEAD + "\n".join(sorted(rows)) + "\n"


def _summary(results: list[dict[str, Any]]) -> str:
    """Return the result of tests that differ only in parameters which the page doesn't name."""
    outcomes = [result["outcome"] for result in results]
    if NOT_RUN["outcome"] in outcomes:
        return "not run yet"
    outcome = "FAILED" if "FAILED" in outcomes else "passed"
    seconds = sum(result["seconds"] for result in results)
    return f"{outcome}, {max(result['date'] for result in results)}, {seconds:,.0f} s"


def read() -> dict[str, dict[str, Any]]:
    """Return the results that were kept."""
    kept: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return kept


class Guarantees:
    """Collects the results of the marked tests, and writes them."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(tryfirst=True)  # before tests are deselected, so that the page names all
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = read()
        for item in items:
            if words := marks(item):
                self.found[item.nodeid] = {**NOT_RUN, **known.get(item.nodeid, {}), "marks": words}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self.found.get(report.nodeid)
        if known is None or report.skipped or (report.when != "call" and report.passed):
            return
        self.found[report.nodeid] = {
            "marks": known["marks"],
            "outcome": "passed" if report.passed else "FAILED",
            "date": date.today().isoformat(),
            "seconds": round(report.duration, 1),
        }

    def pytest_sessionfinish(self) -> None:
        results = dict(sorted({**read(), **self.found}.items()))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        PAGE.write_text(page(results))


def pytest_configure(config: pytest.Config) -> None:
    """Put the plugin beside those of pytest."""
    config.pluginmanager.register(Guarantees())
