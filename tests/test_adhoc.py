"""Plain questions to a stored result, answered without Spark, and to the letter as Spark answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eddyline as el
from eddyline import cli
from eddyline.answers import quick
from eddyline.answers.answer import spark_answer
from eddyline.answers.quick import quick_answer
from eddyline.errors import StateError
from eddyline.storage.files import Files

pytestmark = pytest.mark.spark

ANSWERED = [
    "select name, id from people where id >= 2 and name <> 'bob' order by name desc limit 2",
    "SELECT count(*) FROM people",
    "SELECT count( * ) AS n FROM by_team WHERE team IS NOT NULL",
    "SELECT ID FROM people WHERE team IS NULL",
    "SELECT * FROM by_team ORDER BY team",
    "SELECT * FROM by_team ORDER BY n DESC, team DESC;",
    "SELECT w, n FROM by_hour",
    "SELECT `id`, born, paid, active, seen FROM people ORDER BY id LIMIT 3",
    "SELECT * FROM doubled",
    "SELECT counted, team FROM by_count ORDER BY team",
    "SELECT count(*) AS counted FROM by_count",
    "SELECT * FROM ordered",
    "SELECT * FROM top3",
    "SELECT count(*) FROM top3",
    "SELECT name FROM top3 WHERE paid IS NOT NULL",
    "SELECT * FROM by_height",
    "SELECT * FROM top3 ORDER BY name",
    "SELECT team FROM by_team FOR VERSION AS OF {earlier} ORDER BY team",
    "SELECT id FROM people WHERE name LIKE '%b' AND id < 3",
    "SELECT id FROM people WHERE name LIKE '_mile'",
    "SELECT id FROM people WHERE name NOT LIKE '%n%' and team = 'x'",
    "SELECT id FROM people WHERE team not like 'x'",
    "SELECT id FROM people WHERE `name`LIKE''",
    "SELECT id, name FROM people WHERE name <> 'ann and bob' AND name <> 'x' ORDER BY id",
]
FOR_SPARK = [
    "SELECT * FROM people",
    "SELECT id + 1 FROM people",
    "SELECT * FROM people JOIN by_team ON true",
    "SELECT DISTINCT team FROM people",
    "SELECT * FROM people WHERE id = '1'",
    "SELECT * FROM people WHERE name > 3",
    "SELECT * FROM people WHERE id = 1 OR id = 2",
    "SELECT * FROM people WHERE name = 'a\\'b'",
    "SELECT * FROM people ORDER BY height",
    "SELECT height FROM people",
    "SELECT nothing FROM people",
    "SELECT * FROM where",
    "SELECT from FROM people",
    "SELECT * FROM by_ratio",
    "SELECT * FROM nothing",
    "SELECT id FROM people -- WHERE id = 1",
    "SELECT id FROM people WHERE id LIKE '1%'",
    "SELECT id FROM people WHERE name LIKE 'a\\_'",
    "SELECT id FROM people WHERE name LIKE 'a/_' ESCAPE '/'",
    "SELECT id FROM people WHERE name = 'ann' AND",
    "SELECT at FROM far",
    "SELECT day FROM far",
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    storage = tmp_path_factory.mktemp("adhoc") / "storage"
    with el.Engine(str(storage)) as engine:
        columns = (
            "id BIGINT, name STRING, team STRING, born DATE, paid DECIMAL(10,3), active BOOLEAN,"
            " seen TIMESTAMP_NTZ, height DOUBLE"
        )
        engine.execute(f"CREATE TABLE people ({columns}, PRIMARY KEY (id))")
        engine.execute("""
            CREATE VIEW by_team AS SELECT team, count(*) AS n FROM people GROUP BY team;
            CREATE VIEW by_count AS SELECT team, count(*) AS counted FROM people GROUP BY team;
            CREATE VIEW by_hour AS SELECT window(seen, '1 hour') AS w, count(*) AS n FROM people GROUP BY 1;
            CREATE VIEW doubled AS SELECT team, active FROM people UNION ALL SELECT team, active FROM people;
            CREATE VIEW ordered AS SELECT name FROM people ORDER BY name;
            CREATE VIEW top3 AS SELECT name, paid FROM people ORDER BY paid DESC NULLS FIRST, born LIMIT 3;
            CREATE VIEW by_height AS SELECT id FROM people ORDER BY height DESC, id;
            CREATE VIEW by_ratio AS SELECT id FROM people ORDER BY if(id = 1, double('NaN'), height);
        """)
        values = """
            (1, 'ann', 'x', DATE '1999-12-31', 1.500, true, TIMESTAMP_NTZ '2026-01-01 10:20:30.120', 1D),
            (2, 'bob', 'y', NULL, -0.001, false, TIMESTAMP_NTZ '2026-01-01 10:59:59', 2D),
            (3, 'Émile', NULL, DATE '2000-01-01', NULL, NULL, NULL, 3D),
            (4, '', 'x', DATE '0099-01-01', 12345.678, true, TIMESTAMP_NTZ '2026-01-01 11:00:00', 4D)
        """
        engine.execute(f"INSERT INTO people VALUES {values}")
        engine.execute("CREATE TABLE far (at TIMESTAMP_NTZ, day DATE)")  # which Python has none of
        beyond = "TIMESTAMP_NTZ '+12000-01-01 00:00:00', DATE '-0044-03-15'"
        engine.execute(f"INSERT INTO far VALUES ({beyond})")
        engine.advance()
        engine.execute("UPDATE people SET team = 'z' WHERE id = 2")
        engine.advance()
        yield engine


def answer(engine: el.Engine, query: str) -> object:
    return quick_answer(engine.files, engine.catalog, query)


@pytest.mark.parametrize("query", ANSWERED)
def test_answers_are_those_of_spark(engine: el.Engine, query: str) -> None:
    query = query.format(earlier=engine.status()["epoch"] - 1)
    found = quick_answer(engine.files, engine.catalog, query)
    assert found is not None
    wanted = spark_answer(engine.sql(query.rstrip(";")))
    assert (found.columns, found.numeric) == (wanted.columns, wanted.numeric)
    ordered = any(
        word in query for word in ("order by", "ORDER BY", "ordered", "top3", "by_height")
    )
    assert (
        found.texts() == wanted.texts()
        if ordered
        else sorted(found.texts(), key=repr) == sorted(wanted.texts(), key=repr)
    )
    if found.lines is not None:
        assert wanted.lines is not None
        assert sorted(found.lines()) == sorted(wanted.lines())


@pytest.mark.parametrize("query", FOR_SPARK)
def test_other_questions_are_for_spark(engine: el.Engine, query: str) -> None:
    assert answer(engine, query) is None


def test_a_bucket_may_have_no_runs(engine: el.Engine) -> None:
    """Compaction removes those of a bucket of which nothing is left."""
    manifest = engine._workspace.manifest
    entry = engine.catalog.get("by_team")
    runs = manifest.arrangements[manifest.result(entry.id, "rows")]
    found = quick._content(engine.files, "by_team", [(), *runs.values(), ()], 2)
    assert found.num_rows == 3
    with pytest.raises(quick._NeedsSpark):
        quick._content(engine.files, "by_team", [()], 2)


def test_an_epoch_that_is_not_retained_is_told(engine: el.Engine) -> None:
    with pytest.raises(StateError, match="999 is not committed; the last"):
        answer(engine, "SELECT * FROM people VERSION AS OF 999")


def test_the_command_line_answers_beside_a_running_engine_without_spark(
    engine: el.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    root = engine.files.root
    code = f"""
import sys
from eddyline.cli import main
main(["sql", "SELECT team, n FROM by_team ORDER BY team", "--storage", {root!r}, "--format", "json"])
main(["status", "--storage", {root!r}, "--format", "json"])
assert not {{"pyspark", "polars", "pandas"}} & set(sys.modules), sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[:3] == [{"team": None, "n": 1}, {"team": "x", "n": 2}, {"team": "z", "n": 1}]
    assert rows[3:]
    assert cli.main(["sql", "SELECT team FROM by_team WHERE n = 2", "--storage", root]) == 0
    assert capsys.readouterr().out == "team\n----\nx\n(1 row)\n"
    nothing = "SELECT team FROM by_team WHERE n = 99"
    assert cli.main(["sql", nothing, "--storage", root, "--format", "json"]) == 0
    assert not capsys.readouterr().out
    assert Files(root).exists("catalog.db")
    assert Path(root, "manifests").is_dir()
