"""What the documents show runs, and says what happens."""

from __future__ import annotations

import argparse
import doctest
import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import eddyline
import functions
import guarantees
from eddyline.cli.commands import build_parser
from eddyline.plan import refusals
from eddyline.sql.statements import WAYS_OUT, parse_script

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}

FENCED = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^ *```(?P<language>[^\n]*)\n(?P<code>.*?)^ *```$",
    flags=re.DOTALL | re.MULTILINE,
)
LANGUAGES = ("python", "sql", "console", "text")

# Printed by the examples of a page, among other things.
PRINTED = {
    "README.md": ["|  a|  1|delete|    4|", "part 3, level 3"],
    "docs/pipelines.md": [
        "|     de|  1|",
        "JSONDecodeError",
        "Account(received=3, done=2, dead=1, retry=0",
    ],
}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    text = TEXTS[page]
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            found["language"],
            found["code"],
            found["reason"] or "",
        )
        for found in FENCED.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def runnable(page: str) -> list[Block]:
    """The examples of a page, in their order."""
    return [
        block for block in blocks(page) if block.language in ("python", "sql") and not block.reason
    ]


@pytest.mark.spark
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in runnable(page))]
)
def test_examples_of_a_page_run(page, tmp_path, capsys):
    """Python and SQL in the order of the page, in one namespace; SQL on the engine it makes.

    On the pages `/data` is a folder of the reader's.
    """
    namespace: dict[str, object] = {}
    try:
        for block in runnable(page):
            code = block.code.replace("/data/", f"{tmp_path}/")
            if block.language == "python":
                lines = "\n" * (block.line - 1)
                exec(compile(lines + code, block.page, "exec"), namespace)
            elif "engine" in namespace:
                namespace["engine"].execute(code)
    finally:
        if "engine" in namespace:
            namespace["engine"].stop()
    shown = capsys.readouterr().out
    assert all(word in shown for word in PRINTED.get(page, [])), shown


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.reason], ids=str)
def test_an_example_that_is_not_run_is_well_formed(block):
    if block.language == "python":
        compile(block.code, str(block), "exec")
    pytest.skip(f"well-formed, but not run: {block.reason}")


def test_blocks_have_a_language_that_is_tested():
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("block", of_language("sql"), ids=str)
def test_sql_is_understood(block):
    assert parse_script(block.code)


@pytest.mark.parametrize("block", of_language("console"), ids=str)
def test_commands_are_there(block):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for line in block.code.splitlines():
        words = shlex.split(line, comments=True)
        if ">" in words:  # the shell's
            words = words[: words.index(">")]
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        elif words[:1] == ["eddyline"]:
            build_parser(words[1:]).parse_args(words[1:])


def test_every_command_is_on_the_page_of_operations():
    def named(parser: argparse.ArgumentParser, words: str) -> list[str]:
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not inner:
            return [words]
        return [
            name
            for action in inner
            for word, added in action.choices.items()
            for name in named(added, f"{words} {word}")
        ]

    missing = [
        name
        for name in named(build_parser(), "eddyline")
        if not re.search(rf"^\| `{name}\b", TEXTS["docs/operations.md"], flags=re.MULTILINE)
    ]
    assert missing == []


def test_the_table_of_options_is_that_of_the_code():
    found = runpy.run_path(str(ROOT / "docs/options_table.py"))
    page = TEXTS["docs/operations.md"]
    assert found["options_table"]() in page, "run `make docs`"
    assert found["with_table"](page) == page, "run `make docs`"


def test_statements_that_are_refused_are_on_the_page_of_sql():
    assert [word for word in WAYS_OUT if f"`{word}`" not in TEXTS["docs/sql.md"]] == []


def test_ways_out_of_refused_views_are_on_the_page_of_sql():
    page = TEXTS["docs/sql.md"].replace("`", "")
    tables = (refusals.EXPRESSIONS, refusals.NODES, refusals.TYPES, vars(refusals))
    found = [one for table in tables for one in table.values()]
    ways_out = {one.way_out for one in found if isinstance(one, refusals.Refusal)}
    assert [words for words in sorted(ways_out) if words not in page] == []


def test_every_public_name_is_on_the_page_of_the_python_api():
    shown = re.findall(r"^::: eddyline\.(\w+)$", TEXTS["docs/python.md"], flags=re.MULTILINE)
    assert sorted(shown) == eddyline.__all__


def test_the_front_page_is_short_and_counts_functions_right():
    page = TEXTS["README.md"]
    assert len(page.splitlines()) <= 150
    found = functions.read()
    live = sum(one.outcome == "live" for one in found)
    assert f"{live} of {len(found)}" in page


def test_the_site_builds_without_a_dead_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    for page in PAGES[1:]:
        html = (tmp_path / Path(page).name).with_suffix(".html").read_text()
        fetched = re.findall(
            r"<(?:script|img)[^>]* src=\"?https?:|<link[^>]*stylesheet[^>]*https?:", html
        )
        assert fetched == [], page


OF_ENGINES = (
    "answers.verify",
    "api.cdc",
    "api.engine",
    "api.handles",
    "api.pipeline",
    "api.queries",
    "api.relations",
    "api.serving",
    "runtime.progress",
)
OF_QUEUES = (
    "relay.acker",
    "relay.backflow",
    "relay.bolts",
    "relay.embedded",
    "relay.flow",
    "relay.producer",
    "relay.queue",
    "relay.records",
    "storage.frame_log",
)


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.spark) for name in OF_ENGINES), *OF_QUEUES]
)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"eddyline.{name}"))
    assert result.attempted
    assert result.failed == 0


def test_public_names_are_sorted_and_there():
    assert eddyline.__all__ == sorted(eddyline.__all__)
    for name in eddyline.__all__:
        assert getattr(eddyline, name).__doc__, name


def test_every_public_error_is_one_of_the_tree():
    for name in eddyline.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(eddyline, name), eddyline.EddylineError)


@pytest.mark.parametrize("document", [*PAGES, "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_documents_name_only_files_that_exist(document):
    text = (ROOT / document).read_text()
    rooms = {path.parent.name for path in (ROOT / "src/eddyline").glob("*/__init__.py")}
    folders = "|".join({"src", "apps", "docs", "tests", *rooms})
    for path in re.findall(rf"`((?:{folders})/[\w/.]+\.\w+)`", text):
        candidates = (ROOT / path, ROOT / "src/eddyline" / path)
        assert any(candidate.exists() for candidate in candidates), (document, path)


@pytest.mark.parametrize(
    "document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_links_of_documents_outside_the_site_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / target).exists(), (document, target)


def test_the_page_of_guarantees_is_that_of_its_results():
    results = guarantees.read()
    assert TEXTS["docs/guarantees.md"] == guarantees.page(results)
    assert [test for test, one in results.items() if one["outcome"] == "FAILED"] == []
