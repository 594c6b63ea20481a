"""The layout of the source: files stay short, the root of the package holds few modules, a class has its name alone."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
LINES_MAX = 500
ENGINE_LINES_MAX = 350  # it is a facade: what it calls has modules of its own
ROOT_MODULES = {"arguments", "changes", "errors", "options"}


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_no_file_is_long() -> None:
    files = sorted(SRC.rglob("*.py"))
    assert len(files) > 200
    long = {str(file.relative_to(SRC)): lines(file) for file in files if lines(file) > LINES_MAX}
    assert not long, "split these along a seam"
    assert lines(SRC / "eddyline/api/engine.py") <= ENGINE_LINES_MAX


def test_the_root_holds_what_all_packages_use() -> None:
    found = {file.stem for file in (SRC / "eddyline").glob("*.py")}
    assert found == ROOT_MODULES | {"__init__", "__main__"}


SHARED = {
    "Sink",  # the user's handle, and the protocol of targets
    "Call", "Function",  # of operators/running.py: fingerprints of stored plans contain these names
}  # fmt: skip


def test_a_class_has_its_name_alone() -> None:
    trees = [ast.parse(file.read_text()) for file in SRC.rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    several = {name for name, count in Counter(classes).items() if count > 1}
    public = {name for name in several if not name.startswith("_")}
    assert public == SHARED, "give the others a name that says which of the two they are"
