"""The graph of sources, views, sinks and what connects them, laid out by levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eddyline.catalog.entries import VIEW, Catalog

WIDTH, HEIGHT = 190, 46
GAP_X, GAP_Y = 70, 16
MARGIN = 12
NAME_LENGTH = 22
"""The characters of a name that fit into a box."""


@dataclass(frozen=True, slots=True)
class Node:
    """A box of the graph.

    Attributes:
        id: unique in the graph; a sink may have the name of a view.
        kind: `table`, `stream`, `view` or `sink`.
        state: `live`, `failing`, `paused`; empty for tables and streams.
        level: its column, from 0.
        rate: changes a second; None if it isn't known.
        x, y: the upper left corner.
    """

    id: str
    name: str
    kind: str
    state: str
    level: int
    rate: float | None
    x: int
    y: int

    @property
    def short(self) -> str:
        """The name, cut to fit into the box."""
        return self.name if len(self.name) <= NAME_LENGTH else f"{self.name[: NAME_LENGTH - 1]}…"


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, and edges between their ids in the direction of the data.

    Attributes:
        width, height: of the picture.
        curves: the path of each edge.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    width: int
    height: int
    curves: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the graph as JSON."""
        names = ("id", "name", "kind", "state", "level", "rate")
        nodes = [{name: getattr(node, name) for name in names} for node in self.nodes]
        return {"nodes": nodes, "edges": [list(edge) for edge in self.edges]}


def make_graph(catalog: Catalog, status: Mapping[str, Any], rates: Mapping[str, float]) -> Graph:
    """Return the graph of a catalog.

    Args:
        status: that of `Engine.status`.
        rates: changes a second by name of table or view.
    """
    states = {view["name"]: view["state"] for view in status["views"]}
    shown = [e for e in catalog.entries if not e.role or catalog.readers(e.name)]
    ids = {entry.name.lower(): entry.id for entry in shown}
    boxes = [
        (e.id, e.name, e.kind, states.get(e.name, ""), catalog.level(e), rates.get(e.name))
        for e in shown
    ]
    edges = [
        (ids[above.lower()], entry.id)
        for entry in shown
        if entry.kind == VIEW
        for above in entry.upstream
        if above.lower() in ids
    ]
    last = 1 + max((level for *_, level, _ in boxes), default=0)
    for sink in catalog.sinks:
        boxes.append((sink.id, sink.name, "sink", "paused" if sink.paused else "live", last, None))
        if (above := sink.upstream[0].lower()) in ids:
            edges.append((ids[above], sink.id))
    return _laid_out(boxes, sorted(set(edges)))


Box = tuple[str, str, str, str, int, float | None]


def _laid_out(boxes: list[Box], edges: list[tuple[str, str]]) -> Graph:
    """Place each level in a column; in it, each box near the boxes that it reads."""
    above: dict[str, list[str]] = {}
    for start, end in edges:
        above.setdefault(end, []).append(start)
    columns: dict[int, list[Box]] = {}
    for box in boxes:
        columns.setdefault(box[4], []).append(box)
    rows: dict[str, int] = {}
    nodes = []
    for column, level in enumerate(sorted(columns)):
        if column:
            columns[level].sort(key=lambda box: _middle([rows[i] for i in above.get(box[0], [])]))
        for row, box in enumerate(columns[level]):
            rows[box[0]] = row
            x = MARGIN + column * (WIDTH + GAP_X)
            nodes.append(Node(*box, x, MARGIN + row * (HEIGHT + GAP_Y)))
    places = {node.id: node for node in nodes}
    curves = []
    for start, end in edges:
        one, two = places[start], places[end]
        x, y, to_x, to_y = one.x + WIDTH, one.y + HEIGHT // 2, two.x, two.y + HEIGHT // 2
        bend = max((to_x - x) // 2, 20)
        curves.append(f"M{x},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}")
    deepest = max((len(column) for column in columns.values()), default=1)
    width = 2 * MARGIN + max(len(columns), 1) * (WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + deepest * (HEIGHT + GAP_Y) - GAP_Y
    return Graph(tuple(nodes), tuple(edges), width, height, tuple(curves))


def _middle(rows: list[int]) -> float:
    return sum(rows) / len(rows) if rows else 0.0
