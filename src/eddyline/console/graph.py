"""The graph of sources, views and sinks, laid out by levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW
from eddyline.source.lag import SECONDS, lag_text

WIDTH, HEIGHT = 190, 46
GAP_X, GAP_Y = 70, 16
MARGIN = 12
NAME_LENGTH = 22
"""The characters of a name that fit into a box."""
LAGGING, LAGGING_S = "lagging", 30.0
"""The state of a source whose oldest input has waited for longer, in seconds."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A box of the graph.

    Attributes:
        id: unique in the graph; a sink may have the name of a view.
        kind: `table`, `stream`, `view` or `sink`.
        state: `live`, `failing`, `paused`; of tables and streams `lagging` if they are far behind, else empty.
        level: its column, from 0.
        rate: changes a second; None if it isn't known.
        lag: of a table or stream what waits for an epoch, for people; empty for others, or if it isn't known.
        x, y: the upper left corner.
    """

    id: str
    name: str
    kind: str
    state: str
    level: int
    rate: float | None
    lag: str
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

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[str, str], ...]
    width: int
    height: int
    curves: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the graph as JSON."""
        names = ("id", "name", "kind", "state", "level", "rate", "lag")
        nodes = [{name: getattr(node, name) for name in names} for node in self.nodes]
        return {"nodes": nodes, "edges": [list(edge) for edge in self.edges]}


def make_graph(catalog: Catalog, status: Mapping[str, Any], rates: Mapping[str, float]) -> Graph:
    """Return the graph of a catalog.

    Args:
        status: that of `Engine.status`.
        rates: changes a second by name of table or view.
    """
    states = {view["name"]: view["state"] for view in status["views"]}
    lags = {one["name"]: one["lag"] for one in status.get("sources", ()) if "lag" in one}
    states |= {name: LAGGING for name, lag in lags.items() if lag[SECONDS] > LAGGING_S}
    shown = [e for e in catalog.entries if not e.role or catalog.readers(e.name)]
    ids = {entry.name.lower(): entry.id for entry in shown}
    boxes = [
        (
            *(e.id, e.name, e.kind, states.get(e.name, "")),
            *(catalog.level(e), rates.get(e.name), lag_text(lags.get(e.name, {}))),
        )
        for e in shown
    ]
    edges = [
        (ids[above.lower()], entry.id)
        for entry in shown
        if entry.kind == VIEW
        for above in entry.upstream
        if above.lower() in ids
    ]
    sinks = {sink["sink"]: sink["state"] for sink in status["sinks"]}
    for sink in catalog.sinks:
        view, state = catalog.get(sink.upstream[0]), sinks.get(sink.name, "")
        boxes.append((sink.id, sink.name, "sink", state, 1 + catalog.level(view), None, ""))
        edges.append((view.id, sink.id))
    return _laid_out(boxes, sorted(set(edges)))


Box = tuple[str, str, str, str, int, float | None, str]


def _laid_out(boxes: list[Box], edges: list[tuple[str, str]]) -> Graph:
    """Place each level in a column; in it, each box near the boxes that it reads.

    An edge across several columns gets a free place in each, so that it crosses no box.
    """
    by_id = {box[0]: box for box in boxes}
    columns: dict[int, list[str]] = {level: [] for level in sorted({box[4] for box in boxes})}
    for box in boxes:
        columns[box[4]].append(box[0])
    above: dict[str, list[str]] = {}
    ways: list[list[str]] = []
    for start, end in edges:
        passed = [level for level in columns if by_id[start][4] < level < by_id[end][4]]
        way = [start, *(f"{start} {end} {level}" for level in passed), end]
        for level, lane in zip(passed, way[1:-1], strict=True):
            columns[level].append(lane)
        for before, after in pairwise(way):
            above.setdefault(after, []).append(before)
        ways.append(way)

    places: dict[str, tuple[int, int]] = {}
    rows: dict[str, float] = {}
    bottom = MARGIN
    for column, level in enumerate(columns):
        if column:
            columns[level].sort(
                key=lambda name: _middle([rows[one] for one in above.get(name, [])])
            )
        y = MARGIN
        for name in columns[level]:
            places[name] = MARGIN + column * (WIDTH + GAP_X), y
            height = HEIGHT if name in by_id else 0
            rows[name] = y + height / 2
            y += height + GAP_Y
        bottom = max(bottom, y - GAP_Y)
    nodes = tuple(GraphNode(*box, *places[box[0]]) for box in boxes)
    curves = tuple(_curve(way, places, rows) for way in ways)
    width = 2 * MARGIN + max(len(columns), 1) * (WIDTH + GAP_X) - GAP_X
    return Graph(nodes, tuple(edges), width, bottom + MARGIN, curves)


def _curve(way: list[str], places: dict[str, tuple[int, int]], rows: dict[str, float]) -> str:
    """Return the path of an edge: curves between columns, straight lines through them."""
    path = f"M{places[way[0]][0] + WIDTH},{rows[way[0]]:g}"
    for before, after in pairwise(way):
        x, y, to_x, to_y = places[before][0] + WIDTH, rows[before], places[after][0], rows[after]
        bend = (to_x - x) / 2
        path += f" C{x + bend:g},{y:g} {to_x - bend:g},{to_y:g} {to_x},{to_y:g}"
        if after != way[-1]:
            path += f" H{to_x + WIDTH}"
    return path


def _middle(rows: list[float]) -> float:
    return sum(rows) / len(rows) if rows else 0.0
