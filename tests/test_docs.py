"""What the documents show runs, and says what happens."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import eddyline
from eddyline.api import engine as engine_module
from eddyline.api import pipeline as pipeline_module
from eddyline.api.script import parse_script

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("code", "words"),
    list(
        zip(
            blocks("python"),
            [
                ["|  a|  1|delete|    4|", "part 3, level 3"],
                ["|     de|  1|", "JSONDecodeError", "Account(received=3, done=2, dead=1, retry=0"],
            ],
            strict=True,
        )
    ),
)
def test_python_of_the_readme_runs(code, words, capsys):
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert all(word in shown for word in words), shown


@pytest.mark.parametrize("script", blocks("sql"))
def test_sql_of_the_readme_is_understood(script):
    assert len(parse_script(script)) > 1


@pytest.mark.spark
@pytest.mark.parametrize("module", [engine_module, pipeline_module])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "name",
    ["relay.acker", "relay.bolts", "relay.flow", "relay.queue", "relay.records", "storage.frames"],
)
def test_examples_of_the_relay(name):
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


def test_documents_name_only_files_that_exist():
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text()
        for path in re.findall(
            r"`((?:src|docs|tests|plan|state|storage|runtime)/[\w/.]+\.\w+)`", text
        ):
            candidates = (ROOT / path, ROOT / "src/eddyline" / path)
            assert any(candidate.exists() for candidate in candidates), (document, path)
