"""Tables of PostgreSQL whose view is replaced by one with other types or another key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as t

import eddyline as el
from eddyline.changes import Epoch
from eddyline.errors import EddylineError, EngineError
from eddyline.sink.base import Sink, Target
from eddyline.sink.postgres import PostgresFormat
from eddyline.sink.rows import difference
from eddyline.spark.schema import arrow_schema
from eddyline_apps.postgres import Server
from postgres import PASSWORD, empty_database, server, without_password
from sink_cases import Letters
from waiting import until

WORD = "${env:WORD}"
HOSTILE = "q\"u'o %s; --"
KINDS = {
    "int": t.IntegerType(),
    "long": t.LongType(),
    "text": t.StringType(),
    "double": t.DoubleType(),
    "flag": t.BooleanType(),
    "bytes": t.BinaryType(),
    "time": t.TimestampNTZType(),
    "list": t.ArrayType(t.IntegerType()),
}


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def url(running: Server) -> str:
    """Provide the URL of an empty database."""
    return empty_database(running)


def run(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as made:
        cursor = made.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


class View:
    """A view with some columns, by names with kinds, and what its sink needs."""

    def __init__(self, key: tuple[str, ...] | None, **columns: str) -> None:
        self.names = [HOSTILE if name == "hostile" else name for name in columns]
        pairs = zip(self.names, columns.values(), strict=True)
        self.columns = t.StructType([t.StructField(name, KINDS[kind]) for name, kind in pairs])
        self.key, self.letters = key, Letters()

    def sink(self, url: str, **options: str) -> Sink:
        schema = arrow_schema(self.columns, "UTC")
        append_only = self.key is None
        target = Target(
            "app", "k", self.columns, schema, self.key, append_only, refuse=self.letters
        )
        given = {"url": without_password(url), "table": "t", "password": WORD, **options}
        PostgresFormat().check(target, given)
        return PostgresFormat().open(target, given | {"password": PASSWORD})

    def rows(self, *rows: tuple[Any, ...]) -> pa.Table:
        found = [dict(zip(self.names, row, strict=True)) for row in rows]
        wanted = pa.Table.from_pylist(found, schema=arrow_schema(self.columns, "UTC"))
        return difference(wanted.slice(0, 0), wanted)

    def replace(self, url: str, base: int | None, *rows: tuple[Any, ...], **more: str) -> None:
        """Make rows those of the target, as for a first delivery, a replaced view and `resend`."""
        sink = self.sink(url, **more)
        sink.replace(
            None if base is None else Epoch(base), Epoch((base or 0) + 1), self.rows(*rows)
        )
        sink.close()


def kind_of(url: str, column: str = "n") -> str:
    query = f"SELECT data_type FROM information_schema.columns WHERE column_name = '{column}'"
    return str(run(url, query)[0][0])


def indexed(url: str) -> list[str]:
    found = run(url, "SELECT indexdef FROM pg_indexes WHERE tablename = 't'")
    return [definition.split("btree ")[1] for (definition,) in found]


@pytest.mark.parametrize(
    ("old", "new", "values", "others"),
    [
        ("int", "text", (1, 2), ("n1", "n2")),
        ("int", "long", (1, 2), (1, 2**40)),
        ("text", "int", ("x", "2"), (1, 2)),  # can't be cast
        ("flag", "time", (True, None), (None, None)),  # there is no cast
        ("double", "int", (0.4, 1e300), (1, 2)),
        ("text", "list", ("x", None), ([1], [])),
        ("bytes", "text", (b"x", None), ("y", "z")),
    ],
)
def test_a_column_of_the_sink_gets_the_new_type(
    old: str, new: str, values: tuple[Any, Any], others: tuple[Any, Any], url: str
) -> None:
    before, after = View(("id",), id="int", n=old), View(("id",), id="int", n=new)
    before.replace(url, None, (1, values[0]), (2, values[1]))
    after.replace(url, 1, (1, others[0]), (3, others[1]))
    assert run(url, "SELECT id, n FROM t ORDER BY id") == [(1, others[0]), (3, others[1])]
    assert after.letters.errors == []
    before.replace(url, 2, (1, values[0]), (2, values[1]))  # and back
    assert run(url, "SELECT id, n FROM t ORDER BY id") == [(1, values[0]), (2, values[1])]
    assert before.letters.errors == []


def test_a_hostile_name_and_columns_of_others(url: str) -> None:
    before, after = (View(("id",), id="int", hostile=kind) for kind in ("int", "text"))
    before.replace(url, None, (1, 1), (2, 2))
    run(url, "ALTER TABLE t ADD note text; UPDATE t SET note = 'of ' || id")
    after.replace(url, 1, (1, "n1"), (2, "2"))
    assert run(url, "SELECT * FROM t ORDER BY id") == [(1, "n1", "of 1"), (2, "2", "of 2")]
    assert after.letters.errors == []


@pytest.mark.parametrize("kind", ["long", "text", "flag", "time"])
def test_the_key_gets_another_type(kind: str, url: str) -> None:
    new = {"long": (1, 2**40), "text": ("1", "n2"), "flag": (True, None), "time": (None, None)}
    keys = new[kind][: 1 if kind == "time" else 2]
    View(("id",), id="int", n="int").replace(url, None, (1, 1), (2, 2), (0, 0))
    after = View(("id",), id=kind, n="int")
    after.replace(url, 1, *((key, place) for place, key in enumerate(keys)))
    found = run(url, "SELECT id, n FROM t ORDER BY n")
    assert found == [(key, place) for place, key in enumerate(keys)]
    assert after.letters.errors == []
    assert indexed(url) == ["(id) NULLS NOT DISTINCT"]


def test_keys_that_a_cast_makes_equal(url: str) -> None:
    View(("id",), id="double", n="int").replace(url, None, (0.1, 1), (0.2, 2))
    run(url, "DROP INDEX t_id_idx")
    after = View(("id",), id="int", n="int")
    after.replace(url, 1, (0, 7))
    assert run(url, "SELECT id, n FROM t") == [(0, 7)]


def test_another_key_gets_another_index(url: str) -> None:
    before = View(("id",), id="int", s="text", n="int")
    before.replace(url, None, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    after = View(("s",), s="text", n2="long")
    after.replace(url, 1, ("a", 2), ("b", 1), ("c", 0), (None, 4))
    found = run(url, "SELECT s, n2 FROM t ORDER BY s")
    assert found == [("a", 2), ("b", 1), ("c", 0), (None, 4)]
    assert after.letters.errors == []
    assert indexed(url) == ["(s) NULLS NOT DISTINCT"]
    sink = after.sink(url)
    sink.deliver(Epoch(2), Epoch(3), after.rows(("d", 1), ("e", 1)))
    assert len(run(url, "SELECT s FROM t")) == 6
    single = View((), n2="long")
    single.replace(url, 3, (9,))
    assert run(url, "SELECT n2 FROM t") == [(9,)]
    assert indexed(url) == ["((true)) NULLS NOT DISTINCT"]
    growing = View(None, n2="long")
    growing.replace(url, 4, (9,), (9,))
    assert run(url, "SELECT n2 FROM t") == [(9,), (9,)]
    assert indexed(url) == []


def test_rows_that_the_new_index_refuses_are_replaced(url: str) -> None:
    before = View(("id",), id="int", s="text")
    before.replace(url, None, (1, "".join(map(chr, range(256, 9000)))), (2, "b"))
    after = View(("s",), s="text", id="int")
    after.replace(url, 1, ("a", 1), ("b", 2))
    assert run(url, "SELECT id, s FROM t ORDER BY id") == [(1, "a"), (2, "b")]
    assert after.letters.errors == []


def test_what_others_have_made_stays(url: str) -> None:
    run(url, "CREATE TABLE t (id int, n int); CREATE UNIQUE INDEX mine ON t (id)")
    View(("id",), id="int", n="int").replace(url, None, (1, 1), (2, 2))
    after = View(("n",), id="int", n="text")
    after.replace(url, 1, (1, "1"), (2, "x"), (1, "3"))
    assert kind_of(url) == "integer"
    assert indexed(url) == ["(id)"]
    assert run(url, "SELECT id, n FROM t") == [(1, 1)]
    assert len(after.letters.errors) == 2


def test_a_type_that_others_have_changed_stays(url: str) -> None:
    View(("id",), id="int", n="int").replace(url, None, (1, 1))
    run(url, "ALTER TABLE t ALTER n TYPE numeric(30, 0)")
    View(("id",), id="int", n="long").replace(url, 1, (1, 2**40))
    assert kind_of(url) == "numeric"
    assert run(url, "SELECT n FROM t") == [(2**40,)]


def test_a_table_of_an_earlier_version_stays_as_it_is(url: str) -> None:
    before, after = (View(("id",), id="int", n=kind) for kind in ("int", "text"))
    before.replace(url, None, (1, 1), (2, 2))
    comments = "COMMENT ON COLUMN t.id IS NULL; COMMENT ON COLUMN t.n IS NULL"
    run(url, f"{comments}; COMMENT ON INDEX t_id_idx IS NULL")
    after.replace(url, 1, (1, "1"), (2, "n2"))
    assert run(url, "SELECT * FROM t") == [(1, 1)]
    assert len(after.letters.errors) == 1
    run(url, "ALTER TABLE t DROP n")
    after.replace(url, 2, (1, "1"), (2, "n2"))  # as by resend(): it is added, with a comment
    assert run(url, "SELECT * FROM t ORDER BY id") == [(1, "1"), (2, "n2")]
    before.replace(url, 3, (1, 1))
    assert kind_of(url) == "integer"


def test_a_new_sink_of_the_table_alters_it_too(url: str) -> None:
    View(("id",), id="int", n="int").replace(url, None, (1, 1))
    run(url, "DELETE FROM eddyline_sinks")  # its sink was dropped
    after = View(("n",), id="int", n="text")
    with pytest.raises(EddylineError, match="SINK_TARGET_NOT_EMPTY"):
        after.replace(url, None, (1, "x"), (1, "y"))
    assert kind_of(url) == "integer"
    after.replace(url, None, (1, "x"), (1, "y"), overwrite="true")
    assert run(url, "SELECT id, n FROM t ORDER BY n") == [(1, "x"), (1, "y")]
    assert indexed(url) == ["(n) NULLS NOT DISTINCT"]


def test_an_alteration_that_the_server_refuses_is_tried_again(url: str) -> None:
    View(("id",), id="int", n="int").replace(url, None, (1, 1))
    run(url, "CREATE VIEW reader AS SELECT n FROM t")
    after = View(("id",), id="int", n="text")
    why = r"SINK_FAILED.*column n can't be given the type text: cannot alter type.*view reader"
    with pytest.raises(EngineError, match=why):
        after.replace(url, 1, (1, "n1"))
    assert run(url, "SELECT n FROM t") == [(1,)]
    run(url, "DROP VIEW reader; CREATE TABLE child (id int REFERENCES t (id))")
    other = View(("n",), id="int", n="int")
    with pytest.raises(EngineError, match=r"SINK_FAILED.*index t_id_idx can't be dropped.*child"):
        other.replace(url, 1, (1, 1))
    run(url, "DROP TABLE child")
    after.replace(url, 1, (1, "n1"))
    assert run(url, "SELECT n FROM t") == [("n1",)]


def test_one_who_does_not_own_the_table_cannot_alter_it(url: str) -> None:
    View(("id",), id="int", n="int").replace(url, None, (1, 1))
    user = urlsplit(url).username
    try:
        run(url, f"CREATE ROLE plain LOGIN PASSWORD '{PASSWORD}'")
        run(url, "GRANT ALL ON t, eddyline_sinks TO plain; GRANT ALL ON SCHEMA public TO plain")
        theirs = url.replace(f"//{user}:", "//plain:").replace(f"//{user}@", "//plain@")
        after = View(("id",), id="int", n="text")
        with pytest.raises(EngineError, match=r"SINK_FAILED.*must be owner of table t"):
            after.replace(theirs, 1, (1, "n1"))
        View(("id",), id="int", n="int").replace(theirs, 1, (1, 5))
        assert run(url, "SELECT n FROM t") == [(5,)]
    finally:
        run(url, "DROP OWNED BY plain; DROP ROLE plain")


@pytest.mark.spark
def test_a_view_is_replaced(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", PASSWORD)
    with el.Engine(tmp_path / "storage") as engine:
        engine.table("t", "id INT, s STRING, n INT", ["id"]).insert(
            [(1, "a", 1), (2, "a", 2), (3, "b", 3)]
        )
        engine.view("v", "SELECT id, s, n FROM t")
        given = {"url": without_password(url), "table": "t", "password": WORD}
        sink = engine.sink("k", "v", "postgres", **given)

        def delivered() -> None:
            epoch = engine.advance()
            until(lambda: sink.status()["epoch"] >= epoch, sink.status)
            assert sink.status()["state"] == "live"
            assert engine.dead_letters("k").count() == 0

        delivered()
        engine.execute("CREATE OR REPLACE VIEW v AS SELECT id, concat('n', n) AS n FROM t")
        delivered()
        query = "SELECT id, n FROM t ORDER BY id"
        assert run(url, query) == [(1, "n1"), (2, "n2"), (3, "n3")]
        engine.execute("CREATE OR REPLACE VIEW v AS SELECT s, count(*) AS n2 FROM t GROUP BY s")
        engine.execute("INSERT INTO t VALUES (4, 'c', 4), (5, 'd', 5)")
        delivered()
        query = "SELECT s, n2 FROM t ORDER BY s"
        assert run(url, query) == [("a", 2), ("b", 1), ("c", 1), ("d", 1)]
        run(url, "DELETE FROM t")
        sink.resend()
        delivered()
        assert run(url, query) == [("a", 2), ("b", 1), ("c", 1), ("d", 1)]
        engine.table("u", "s STRING, n2 BIGINT", ["n2"]).insert([("b", 1), ("a", 2), ("a", 7)])
        engine.execute("CREATE OR REPLACE VIEW v AS SELECT s, n2 FROM u")
        delivered()
        assert run(url, query + ", n2") == [("a", 2), ("a", 7), ("b", 1)]
        assert indexed(url) == ["(n2) NULLS NOT DISTINCT"]
