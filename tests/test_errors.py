"""The table of error conditions, the code that raises them and the page made of it agree. No JVM."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import errors_page
from eddyline.errors import CONDITIONS, EddylineError, QueueFullError

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "apps" / "src").rglob("*.py")])
TREES = {file: ast.parse(file.read_text()) for file in FILES}
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).partition("src.")[2]: tree
    for file, tree in TREES.items()
}
NAME = re.compile(r"[A-Z]+(_[A-Z]+)*")
SAYS_RETRY = re.compile(r"(same call|advance\(\)|try|tries|put)( it| them)? again")


def text_of(node: ast.expr | None, tree: ast.Module) -> str:
    """The constant text of an expression: of a literal, of an f-string, or of a constant, also an imported one."""
    if isinstance(node, ast.Name):
        for one in tree.body:
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == node.id:
                return text_of(one.value, tree)
            if isinstance(one, ast.ImportFrom) and node.id in [name.name for name in one.names]:
                return text_of(node, MODULES[one.module]) if one.module in MODULES else ""
        return ""
    constants = [] if node is None else ast.walk(node)
    return "".join(str(one.value) for one in constants if isinstance(one, ast.Constant))


def raised() -> Iterator[tuple[str, str, str]]:
    """Where a condition is named, the condition, and the hint beside it."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                if ast.unparse(node.func) == "Refusal" and len(node.args) == 3:
                    given["condition"] = node.args[2]
                condition = text_of(given.get("condition"), tree)
                if condition:
                    place = f"{file.relative_to(ROOT)}:{node.lineno}"
                    yield place, condition, text_of(given.get("hint"), tree)
            elif isinstance(node, ast.arguments):
                for argument, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                    if argument.arg == "condition":
                        yield str(file.relative_to(ROOT)), text_of(default, tree), ""
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "condition":
                yield str(file.relative_to(ROOT)), text_of(node.value, tree), ""


RAISED = [one for one in raised() if NAME.fullmatch(one[1])]


def test_the_table_has_every_condition_and_no_other() -> None:
    places: dict[str, str] = {condition: place for place, condition, _ in RAISED}
    assert {name: place for name, place in places.items() if name not in CONDITIONS} == {}
    assert sorted(set(CONDITIONS) - set(places)) == []


def test_hints_say_again_only_where_a_retry_helps() -> None:
    told = [(place, name, hint) for place, name, hint in RAISED if SAYS_RETRY.search(hint)]
    assert len(told) > 5
    assert [one for one in told if not CONDITIONS[one[1]].retryable] == []


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_each_meaning_is_a_sentence(name: str) -> None:
    known = CONDITIONS[name]
    assert NAME.fullmatch(name)
    assert known.fault in ("user", "data", "environment", "bug")
    assert re.match(r"[`A-Z].*\.$", known.meaning)


def test_an_error_knows_its_row() -> None:
    full = QueueFullError("full", condition="QUEUE_FULL")
    assert (full.fault, full.retryable) == ("environment", True)
    missing = EddylineError("no", condition="NOT_FOUND")
    assert (missing.fault, missing.retryable) == ("user", False)
    foreign = EddylineError("no", condition="OF_AN_EXTENSION")
    assert (foreign.fault, foreign.retryable) == ("bug", False)


def test_an_error_passes_between_processes() -> None:
    error = QueueFullError("full", condition="QUEUE_FULL", hint="wait", queue=Path("q"), lane=None)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is QueueFullError
    assert str(again) == str(error)
    assert (again.condition, again.hint, again.context) == ("QUEUE_FULL", "wait", {"queue": "q"})


def test_the_page_is_that_of_the_table() -> None:
    assert errors_page.PAGE.read_text(encoding="utf-8") == errors_page.page(), "run `make docs`"
