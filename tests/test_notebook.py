"""The notebook of the docs runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import pytest

from waiting import PATIENCE_S

NOTEBOOK = Path(__file__).parents[1] / "docs/quickstart.ipynb"


@pytest.mark.slow
@pytest.mark.spark
def test_the_notebook_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    client = NotebookClient(
        notebook,
        timeout=PATIENCE_S,
        startup_timeout=PATIENCE_S,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()  # an error in a cell is raised
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [one.data["text/plain"] for one in shown if one.output_type == "execute_result"]
    assert any("web" in table and "800" in table for table in tables)
    printed = "".join(one.text for one in shown if one.output_type == "stream")
    assert "how_busy" in printed
    assert "equal" in printed
