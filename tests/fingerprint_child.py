"""Prints the fingerprints of the plans of all shapes as JSON, for a test that compares processes."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import eddyline as el
import shapes
from eddyline.catalog.entries import VIEW, Entry


def main(every: int) -> None:
    """Compile every n-th shape, each over tables alone, and print the fingerprints."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, el.Engine(folder + "/storage") as engine:
        for name, (ddl, key) in shapes.TABLES.items():
            engine.table(name, ddl, key)
        Path(folder, "in").mkdir()
        options = {"path": f"{folder}/in"}
        engine.create_stream(shapes.STREAM, shapes.STREAM_COLUMNS, "json", options)
        workspace = engine._workspace
        for name, query in list(shapes.SHAPES.items())[::every]:
            upstream = workspace.compiler.mentioned(query, workspace.catalog)
            draft = Entry("v9", VIEW, "shape", "", query=workspace.plain_sql(query))
            try:
                plan = workspace.compiler.view(draft, workspace.catalog, workspace.plan, upstream)
            except el.QueryError:
                continue  # it reads another view
            found[name] = plan.plan.fingerprint
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
