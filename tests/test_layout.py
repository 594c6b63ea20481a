"""The layout of the source: files stay short, and the root of the package holds few modules."""

from __future__ import annotations

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
