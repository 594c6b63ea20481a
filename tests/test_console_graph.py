"""The console's graph: no box lies on another, no edge passes through one, and boxes are found by name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("jinja2")
pytest.importorskip("uvicorn")

from console_browser import picture
from console_cases import ask
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import SINK, TABLE, VIEW, Entry
from eddyline.catalog.store import open_store
from eddyline.console.graph import HEIGHT, WIDTH, Graph, make_graph
from eddyline.console.server import Console
from eddyline.options import Options
from eddyline.storage.files import Files
from waiting import until

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


NODES = 300
TARGET = "revenue_by_country_and_month_of_the_last_years"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console over a storage of 300 tables and views and a sink, in ten levels."""
    chance = random.Random(7)
    names: list[list[str]] = [[]]
    catalog = Catalog(1)
    for number in range(NODES):
        if len(names[-1]) == NODES // 10:
            names.append([])
        name = TARGET if number == 250 else f"{chance.choice(('orders', 'clicks'))}_{number:03}"
        upstream = tuple(chance.sample(names[-2], 2)) if len(names) > 1 else ()
        kind = VIEW if upstream else TABLE
        catalog = catalog.add(Entry("", kind, name, EMPTY, upstream=upstream))
        names[-1].append(name)
    catalog = catalog.add_sink(Entry("", SINK, "Revenue", EMPTY, upstream=(TARGET,)))
    files = Files(str(tmp_path_factory.mktemp("large")))
    with closing(open_store(files)) as store:
        store.write(catalog)
    with Console(files, Options()) as console:
        yield console.url


def in_view(shown: Any) -> bool:
    """Whether the current box is where it can be seen, and nothing covers it."""
    return bool(
        shown.evaluate("""() => {
            const box = document.querySelector(".graph .current rect").getBoundingClientRect();
            const at = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
            return at !== null && at.closest("a") === document.querySelector(".graph .current");
        }""")
    )


def current(shown: Any) -> str:
    return str(shown.locator(".graph .current").get_attribute("data-name"))


def test_a_box_among_hundreds_is_found_by_the_keyboard(browser, large):
    with browser.open(f"{large}/graph") as shown:
        boxes, found = shown.locator(".graph a"), shown.locator("#found")
        assert boxes.count() == NODES + 1
        shown.keyboard.press("/")
        field = shown.get_by_label("Find by name")
        assert field.evaluate("one => document.activeElement === one")
        shown.keyboard.type("REVENUE")
        assert shown.locator(".graph .found").count() == 2
        assert found.inner_text() == f"1 of 2: {TARGET}"
        assert current(shown) == TARGET
        assert in_view(shown)
        picture(shown, "graph-search")
        opacity = "one => getComputedStyle(one).opacity"
        assert shown.locator(".graph .found").first.evaluate(opacity) == "1"
        assert float(shown.locator(".graph a:not(.found)").first.evaluate(opacity)) < 0.5
        shown.keyboard.press("Enter")
        assert current(shown) == "Revenue"
        assert in_view(shown)
        assert field.evaluate("one => document.activeElement === one")
        shown.keyboard.press("Enter")  # and round
        assert current(shown) == TARGET
        shown.keyboard.press("Shift+Enter")
        assert found.inner_text() == "2 of 2: Revenue"

        # the part that follows the storage is replaced: the marks stay, and the page doesn't move
        shown.evaluate("document.querySelector('#live').mark = 1")
        shown.evaluate("window.scrollTo(0, 0)")
        shown.evaluate("document.body.dispatchEvent(new CustomEvent('epoch'))")
        until(lambda: shown.evaluate("document.querySelector('#live').mark") is None)
        shown.locator(".graph .current").wait_for()
        assert current(shown) == "Revenue"
        assert shown.locator(".graph .found").count() == 2
        assert shown.evaluate("window.scrollY") == 0

        field.fill("no such name")
        assert found.inner_text() == "none"
        shown.keyboard.press("Escape")
        assert field.input_value() == ""
        assert found.inner_text() == ""
        assert shown.locator(".graph .found, .graph .current").count() == 0
        assert shown.url == f"{large}/graph"
        field.fill(TARGET[3:30])
        shown.keyboard.press("Control+Enter")
        shown.wait_for_url(f"{large}/views/{TARGET}")


def test_boxes_are_found_on_a_phone(browser, large):
    narrow = {"width": 360, "height": 740}
    with browser.open(f"{large}/graph?find=revenue", viewport=narrow) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360
        assert in_view(shown)  # at once
        shown.get_by_role("button", name="Next").click()
        assert current(shown) == "Revenue"
        assert in_view(shown)
        assert shown.get_by_label("Find by name").is_visible()


def test_boxes_are_found_without_a_script(large):
    status, _, body = ask(large, "/graph?find=ReVenue", Accept="text/html")
    text = body.decode()
    assert status == 200
    assert re.findall(r'<a class="found" data-name="(\w+)"', text) == [TARGET, "Revenue"]
    assert ">2 found<" in text
    hostile = ask(large, "/graph?find=%22%3E%3Cscript%3E", Accept="text/html")[2].decode()
    assert "<script>" not in hostile
    assert ">0 found<" in hostile
