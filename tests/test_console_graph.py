"""The layout of the console's graph: no box lies on another, and no edge passes through one."""

from __future__ import annotations

import random
import re

import pytest

pytest.importorskip("prometheus_client")

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import SINK, TABLE, VIEW, Entry
from eddyline.console.graph import HEIGHT, WIDTH, Graph, make_graph

EMPTY = '{"type": "struct", "fields": []}'


def random_catalog(seed: int) -> Catalog:
    chance = random.Random(seed)
    catalog = Catalog(1)
    names: list[str] = []
    for number in range(chance.randint(1, 40)):
        name = f"relation {number}"
        upstream = tuple(chance.sample(names, min(len(names), chance.randint(0, 3))))
        kind = VIEW if upstream else TABLE
        catalog = catalog.add(Entry("", kind, name, EMPTY, upstream=upstream))
        names.append(name)
    for number in range(chance.randint(0, 5)):
        followed = (chance.choice(names),)
        catalog = catalog.add_sink(Entry("", SINK, f"sink {number}", EMPTY, upstream=followed))
    return catalog


def points(curve: str) -> list[tuple[float, float]]:
    """Return points on a path of curves and horizontal lines."""
    found = []
    x = y = 0.0
    for command, text in re.findall(r"([MCH])([^MCH]+)", curve):
        numbers = [float(one) for one in re.findall(r"-?[\d.]+", text)]
        if command == "M":
            x, y = numbers
        elif command == "H":
            found += [(x + (numbers[0] - x) * step / 20, y) for step in range(21)]
            x = numbers[0]
        else:
            x1, y1, x2, y2, x3, y3 = numbers
            for step in range(21):
                t = step / 20
                a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
                found.append((a * x + b * x1 + c * x2 + d * x3, a * y + b * y1 + c * y2 + d * y3))
            x, y = x3, y3
    return found


def graph_of(catalog: Catalog) -> Graph:
    return make_graph(catalog, {"views": [], "sinks": []}, {})


@pytest.mark.parametrize("seed", range(40))
def test_edges_go_around_boxes_that_they_do_not_connect(seed):
    graph = graph_of(random_catalog(seed))
    boxes = {node.id: (node.x, node.y) for node in graph.nodes}
    assert len(set(boxes.values())) == len(boxes)
    assert len(graph.curves) == len(graph.edges)
    for (start, end), curve in zip(graph.edges, graph.curves, strict=True):
        assert boxes[start][0] < boxes[end][0]
        passed = points(curve)
        assert passed[0] == (boxes[start][0] + WIDTH, boxes[start][1] + HEIGHT / 2)
        assert passed[-1] == (boxes[end][0], boxes[end][1] + HEIGHT / 2)
        for x, y in passed:
            assert 0 <= x <= graph.width
            assert 0 <= y <= graph.height
            inside = [
                other
                for other, (left, top) in boxes.items()
                if left < x < left + WIDTH and top < y < top + HEIGHT
            ]
            assert inside == []


def test_an_empty_storage_has_an_empty_graph():
    graph = graph_of(Catalog(1))
    assert graph.nodes == ()
    assert graph.width > 0
