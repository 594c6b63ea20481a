"""The update form of changelogs: rows are paired by the key that a view has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from eddyline import Engine
from eddyline.api.handles import View
from eddyline.spark.session import local_session

KEYS: dict[str, tuple[str, tuple[int, ...] | None]] = {
    "same": ("SELECT * FROM orders", (0,)),
    "renamed": ("SELECT price * 2 AS twice, id AS number FROM orders WHERE price > 0", (1,)),
    "top": ("SELECT price, id FROM orders ORDER BY price DESC, id LIMIT 2", (1,)),
    "ranked": (
        "SELECT * FROM (SELECT id, price, row_number() OVER (ORDER BY price, id) AS n FROM orders) "
        "WHERE n <= 2",
        (0,),
    ),
    "joined": (
        "SELECT o.id, o.price, c.name FROM orders o JOIN customers c ON o.customer = c.id",
        (0,),
    ),
    "outer_join": (
        "SELECT c.name, o.id, o.price FROM orders o LEFT JOIN customers c ON o.customer = c.id",
        (1,),
    ),
    "many": (
        "SELECT o.id AS o, c.id AS c, price, name FROM orders o FULL JOIN customers c "
        "ON o.customer = c.id",
        (0, 1),
    ),
    "crossed": ("SELECT o.id AS o, c.id AS c, price FROM orders o CROSS JOIN customers c", (0, 1)),
    "semi": ("SELECT * FROM orders WHERE customer IN (SELECT id FROM customers)", (0,)),
    "grouped": ("SELECT customer % 2 AS odd, sum(price) AS s FROM orders GROUP BY customer % 2", (0,)),
    "global": ("SELECT sum(price) AS s FROM orders", ()),
    "of_a_view": ("SELECT name, number, twice FROM renamed JOIN customers ON number = id", (1,)),
    "no_key": ("SELECT price FROM orders", None),
    "dropped": ("SELECT o.price, c.name FROM orders o JOIN customers c ON o.customer = c.id", None),
    "united": ("SELECT id FROM orders UNION ALL SELECT id FROM customers", None),
    "stacked": ("SELECT id, explode(array(price, price)) AS p FROM orders", None),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("update"), local_session()) as engine:
        yield engine


def pairs(view: View, after: int) -> Counter[tuple[object, object]]:
    found = view.changes(after=after, form="update").collect()
    return Counter((r.before and tuple(r.before), r.after and tuple(r.after)) for r in found)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_rows_are_paired_by_the_key_of_the_view(engine: Engine) -> None:
    orders = engine.table("orders", "id INT, customer INT, price INT", primary_key=["id"])
    customers = engine.table("customers", "id INT, name STRING", primary_key=["id"])
    orders.insert([(1, 1, 10), (2, 1, 20), (3, 2, 30), (4, 9, 5)])
    customers.insert([(1, "ann"), (2, "bob")])
    views = {name: engine.view(name, query) for name, (query, _) in KEYS.items()}
    for name, (_, key) in KEYS.items():
        assert engine._workspace.plan(engine.catalog.get(name)).key == key, name
    first = engine.advance()
    orders.upsert([(1, 1, 11), (3, 1, 31), (4, 2, 6)])
    customers.upsert([(1, "anna")])
    orders.delete([(2, 1, 20)])
    engine.advance()

    assert pairs(views["same"], first) == Counter(
        {
            ((1, 1, 10), (1, 1, 11)): 1,
            ((3, 2, 30), (3, 1, 31)): 1,
            ((4, 9, 5), (4, 2, 6)): 1,
            ((2, 1, 20), None): 1,
        }
    )
    assert pairs(views["top"], first) == Counter(
        {((30, 3), (31, 3)): 1, ((20, 2), None): 1, (None, (11, 1)): 1}
    )
    assert pairs(views["ranked"], first) == Counter(
        {((4, 5, 1), (4, 6, 1)): 1, ((1, 10, 2), (1, 11, 2)): 1}
    )
    assert pairs(views["joined"], first) == Counter(
        {
            ((1, 10, "ann"), (1, 11, "anna")): 1,
            ((2, 20, "ann"), None): 1,
            ((3, 30, "bob"), (3, 31, "anna")): 1,
            (None, (4, 6, "bob")): 1,
        }
    )
    assert pairs(views["outer_join"], first)[((None, 4, 5), ("bob", 4, 6))] == 1
    assert pairs(views["of_a_view"], first)[(("ann", 1, 20), ("anna", 1, 22))] == 1
    assert all(before is None or after is None for before, after in pairs(views["no_key"], first))
    for name, view in views.items():  # both forms tell the same
        kept: Counter[object] = Counter()
        for before, after in pairs(view, first).elements():
            kept.update([("delete", before)] if before else [])
            kept.update([("append", after)] if after else [])
        retract = Counter((op, tuple(row)) for *row, op, _ in view.changes(after=first).collect())
        assert kept == retract, name
