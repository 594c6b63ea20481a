"""Projects of Spark Declarative Pipelines run unchanged: the sample project, SQL, sinks, changes, and errors."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import eddyline as el
from eddyline.cli.commands import main
from eddyline.state.manifest import last_committed
from eddyline.storage.files import Files
from waiting import until

pytestmark = pytest.mark.spark

PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import functions as sf

@dp.materialized_view
def busy_pages():
    return spark.table("busy").join(spark.read.table("pages"), "page").select("page", "n")

@dp.temporary_view
def busy():
    return spark.sql("SELECT page FROM pages WHERE n > 1")

@dp.materialized_view(comment="visits of each page")
def pages():
    return spark.read.table("visits").groupBy("page").agg(sf.count("*").alias("n"))

@dp.table
def visits():
    return spark.readStream.schema("id BIGINT, page STRING").json("FOLDER/visits")

dp.create_streaming_table("both")

@dp.append_flow(target="both")
def first():
    return spark.readStream.table("visits").select("id")

@dp.append_flow(target="both", name="second")
def other():
    return spark.readStream.schema("id BIGINT, page STRING").json("FOLDER/more").select("id")
"""

SQL = """
CREATE MATERIALIZED VIEW longest AS
SELECT page, n FROM busy_pages ORDER BY n DESC, page LIMIT 1;
-- a streaming table with two flows
CREATE STREAMING TABLE united;
CREATE FLOW a AS INSERT INTO united BY NAME SELECT id, 'a;b' AS flow FROM STREAM visits;
CREATE FLOW b AS INSERT INTO united BY NAME SELECT id, 'b' AS flow FROM STREAM(both);
CREATE TEMPORARY VIEW odd AS SELECT * FROM united WHERE id % 2 = 1;
CREATE STREAMING TABLE odds AS SELECT id FROM STREAM odd;
"""

SINK = """
from pyspark import pipelines as dp

dp.create_sink("out", "{format}", {{"path": "{path}"}})

@dp.append_flow(target="out")
def rows():
    return spark.readStream.table("x")

@dp.table
def x():
    return spark.readStream.schema("id BIGINT, page STRING").json("FOLDER/visits")
"""

SPEC = "name: project\nstorage: storage\nlibraries:\n"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a folder of visits, as the current folder."""
    folder = tmp_path / "project"
    (folder / "transformations").mkdir(parents=True)
    for name in ("visits", "more"):
        (folder / name).mkdir()
    library = "  - glob:\n      include: transformations/**\n"
    (folder / "spark-pipeline.yml").write_text(SPEC + library)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `eddyline pipelines`; returns the exit code and what it has printed."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["pipelines", *words])
        return code, *capsys.readouterr()

    return call


def define(project: Path, **files: str) -> None:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (project / "transformations" / f"{stem}.{suffix}").write_text(
            text.replace("FOLDER", str(project))
        )


def visit(project: Path, name: str, *rows: tuple[int, str], folder: str = "visits") -> None:
    lines = [json.dumps({"id": number, "page": page}) + "\n" for number, page in rows]
    (project / folder / f".{name}").write_text("".join(lines))
    (project / folder / f".{name}").rename(project / folder / name)


def table(printed: str) -> dict[str, list[str]]:
    """Return the cells after the name of each dataset, as the command has printed them."""
    rows = [line.split() for line in printed.splitlines()]
    return {cells[0]: cells[1:] for cells in reversed(rows) if cells}  # the report comes after


def rows(project: Path, query: str) -> list[tuple[object, ...]]:
    with el.Engine(str(project / "storage"), read_only=True) as engine:
        return sorted(tuple(row) for row in engine.sql(query).collect())


def test_sparks_sample_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init", "--name", "sample")[0] == 0
    assert run("init", "--name", "sample")[0] == 2
    monkeypatch.chdir(tmp_path / "sample" / "transformations")  # the spec is in a folder above
    code, printed, errors = run("run", "--verify")
    assert (code, errors) == (0, "")
    assert table(printed)["example_sql_materialized_view"][:4] == ["view", "5", "10", "5"]
    assert printed.count("yes") == 2
    # without the project's functions no view can be compared
    storage = next((tmp_path / "sample").rglob("catalog.db")).parent
    for form in ("table", "json"):
        assert main(["verify", "--storage", str(storage), "--format", form]) == 1
        printed, errors = capsys.readouterr()
        assert ('"equal": false' in printed) == (form == "json")
        assert "eddyline pipelines run --verify" in errors
    again = table(run("run")[1])
    assert again["example_sql_materialized_view"][:4] == ["view", "5", "0", "0"]


def test_a_spec_file_is_found_from_any_folder_and_an_empty_project_drops_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    define(project, one_sql="CREATE MATERIALIZED VIEW ones AS SELECT 1 AS one")
    monkeypatch.chdir(project.parent)
    spec = "project/spark-pipeline.yml"
    for words in (["dry-run"], ["run"], ["run", "--verify"]):
        code, printed, errors = run(*words, "--spec", spec)
        assert (code, errors) == (0, "")
        assert table(printed)["ones"][0] == "view"
    (project / "transformations" / "one.sql").unlink()
    for command in ("dry-run", "run"):
        code, printed, errors = run(command, "--spec", spec)
        assert (code, printed) == (2, "")
        assert "define nothing: transformations/**/*" in errors
    assert rows(project, "SELECT * FROM ones") == [(1,)]


def test_a_second_run_reads_only_what_has_changed(project: Path, run: Run) -> None:
    define(project, all_py=PYTHON, more_sql=SQL)
    visit(project, "1.json", *((number, "abcd"[number % 4]) for number in range(50)))
    visit(project, "1.json", (100, "x"), folder="more")
    code, printed, errors = run("run", "--verify")
    assert (code, errors) == (0, ""), errors
    first = table(printed)
    assert first["visits"][0] == "stream"
    assert first["busy"][:2] == ["temporary", "view"]
    assert first["pages"][:4] == ["view", "4", "50", "4"]
    assert rows(project, "SELECT * FROM longest") == [("a", 13)]
    assert rows(project, "SELECT count(*), sum(id) FROM both") == [(51, sum(range(50)) + 100)]
    assert rows(project, "SELECT flow, count(*) FROM united GROUP BY 1") == [("a;b", 50), ("b", 51)]
    visit(project, "2.json", (51, "d"), (52, "d"), (53, "d"))
    code, printed, errors = run("run", "--verify")
    assert (code, errors) == (0, "")
    second = table(printed)
    assert second["pages"][:4] == ["view", "4", "3", "2"]
    assert second["both"][2] == "3"
    assert second["odds"][1] == str(25 + 25 + 2 + 2)
    assert rows(project, "SELECT * FROM longest") == [("d", 15)]
    # another definition is computed again, with all that reads it
    define(project, all_py=PYTHON.replace('count("*")', 'max("id")'))
    third = table(run("run", "--verify")[1])
    assert third["pages"][:3] == ["view", "4", "53"]
    assert third["both"][2] == "0"
    assert rows(project, "SELECT * FROM pages WHERE page = 'd'") == [("d", 53)]
    fourth = table(run("run", "--full-refresh", "visits")[1])
    assert fourth["pages"][:3] == ["view", "4", "53"]
    assert run("run", "--full-refresh", "nothing")[0] == 2
    idle = table(run("run")[1])
    assert [idle[name][2] for name in ("pages", "both")] == ["0", "0"]
    code, printed, errors = run("run", "--full-refresh-all", "--verify")
    assert (code, errors) == (0, "")
    fifth = table(printed)
    assert [fifth[name][2] for name in ("pages", "both")] == ["53", "54"]
    assert [fifth[name][1] for name in ("pages", "both", "odds")] == [
        idle[name][1] for name in ("pages", "both", "odds")
    ]
    define(project, all_py=PYTHON, more_sql="CREATE MATERIALIZED VIEW few AS SELECT 1 AS one")
    assert run("run")[0] == 0
    with el.Engine(str(project / "storage"), read_only=True) as engine:
        names = {entry.name for entry in engine.catalog.entries if entry.kind == "view"}
    assert names == {"pages", "both", "busy_pages", "few"}


LATER_SQL = """
CREATE MATERIALIZED VIEW a_last AS
WITH some AS (SELECT page, n FROM b_pages), named AS (SELECT some.*, title FROM some JOIN titles USING (page))
SELECT title, sum(n) AS n FROM named GROUP BY title;
CREATE MATERIALIZED VIEW b_pages AS SELECT page, count(*) AS n FROM c_odd GROUP BY page;
CREATE TEMPORARY VIEW c_odd AS SELECT * FROM d_titled WHERE id % 2 = (SELECT max(one) FROM z_one);
CREATE STREAMING TABLE d_titled AS SELECT id, v.page, title FROM STREAM visits AS v JOIN titles AS t ON v.page = t.page;
CREATE STREAMING TABLE e_united;
CREATE FLOW f AS INSERT INTO e_united BY NAME SELECT id FROM STREAM(c_odd);
CREATE MATERIALIZED VIEW titles AS SELECT page, upper(page) AS title FROM z_names;
"""
LATER_PYTHON = """
from pyspark import pipelines as dp

@dp.materialized_view
def z_one():
    return spark.sql("SELECT 1 AS one")

@dp.temporary_view
def z_names():
    return spark.table("visits").select("page").distinct()

@dp.table
def visits():
    return spark.readStream.schema("id BIGINT, page STRING").json("FOLDER/visits")
"""


def test_sql_reads_datasets_that_are_defined_later(project: Path, run: Run) -> None:
    define(project, a_sql=LATER_SQL, z_py=LATER_PYTHON)
    visit(project, "1.json", *((number, "abcd"[number % 4]) for number in range(20)))
    code, _, errors = run("dry-run")
    assert (code, errors) == (0, "")
    code, _, errors = run("run", "--verify")
    assert (code, errors) == (0, "")
    assert rows(project, "SELECT * FROM a_last") == [("B", 5), ("D", 5)]
    assert rows(project, "SELECT count(*), sum(id) FROM e_united") == [(10, 100)]


@pytest.mark.slow
def test_a_continuous_run_ends_when_it_is_told(project: Path, run: Run) -> None:
    define(project, all_py=PYTHON)
    visit(project, "1.json", (1, "a"))
    assert run("run")[0] == 0
    files = Files(str(project / "storage"))
    before = last_committed(files).epoch

    def feed_and_end() -> None:
        visit(project, "2.json", (2, "a"))
        try:
            until(lambda: last_committed(files).epoch > before)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=feed_and_end)
    helper.start()
    code, printed, _ = run("run", "--continuous")
    helper.join()
    assert code == 0
    assert table(printed)["pages"][:4] == ["view", "1", "1", "2"]
    assert rows(project, "SELECT * FROM pages") == [("a", 2)]


CHANGES_PY = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col, expr

dp.create_streaming_table("pages")
dp.create_auto_cdc_flow(
    target="pages",
    source="clean",
    keys=["id"],
    sequence_by=col("number"),
    apply_as_deletes=expr("op = 'd'"),
    except_column_list=[col("op"), "number"],
)
dp.create_streaming_table("history")
dp.create_auto_cdc_flow(
    "history", "changes", [col("id")], "number", "op = 'd'", ["id", "page"], stored_as_scd_type="2"
)

@dp.temporary_view
def clean():
    return spark.table("changes").where("page <> 'x' OR op = 'd'")

@dp.table
def changes():
    return spark.readStream.schema("id BIGINT, page STRING, number INT, op STRING").json("FOLDER/visits")
"""

CHANGES_SQL = """
CREATE STREAMING TABLE pages_again;
CREATE FLOW f AS AUTO CDC INTO pages_again FROM STREAM(changes) KEYS (`id`)
APPLY AS DELETE WHEN lower(op) IN ('d', 'D') SEQUENCE BY struct(number, page) COLUMNS * EXCEPT (op, number);
CREATE STREAMING TABLE latest FLOW AUTO CDC FROM STREAM changes KEYS (id) SEQUENCE BY number COLUMNS (number, id);
CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM pages;
"""


def test_flows_of_change_records(project: Path, run: Run) -> None:
    define(project, all_py=CHANGES_PY, more_sql=CHANGES_SQL)

    def change(name: str, *records: tuple[int, str | None, int, str]) -> None:
        keys = ("id", "page", "number", "op")
        lines = [json.dumps(dict(zip(keys, one, strict=True))) + "\n" for one in records]
        (project / "visits" / f".{name}").write_text("".join(lines))
        (project / "visits" / f".{name}").rename(project / "visits" / name)

    change("1.json", (1, "a", 1, "c"), (1, "c", 3, "u"), (2, "b", 2, "c"))
    code, printed, errors = run("run", "--verify")
    assert (code, errors) == (0, ""), errors
    assert table(printed)["pages"][:2] == ["view", "2"]
    change("2.json", (1, "b", 2, "u"), (2, None, 4, "d"))
    code, printed, errors = run("run", "--verify")
    assert (code, errors) == (0, ""), errors
    assert table(printed)["pages"][:3] == ["view", "1", "2"]  # only the new records are read
    assert rows(project, "SELECT * FROM pages") == [(1, "c")]
    assert rows(project, "SELECT * FROM pages_again") == [(1, "c")]
    assert rows(project, "SELECT * FROM latest") == [(3, 1), (4, 2)]
    assert rows(project, "SELECT * FROM counts") == [(1,)]
    assert rows(project, "SELECT * FROM history WHERE __END_AT IS NOT NULL") == [
        (1, "a", 1, 2),
        (1, "b", 2, 3),
        (2, "b", 2, 4),
    ]


def written(target: Path) -> list[tuple[str, int]]:
    """Return the kind and the id of each change in the files of a sink, in their order."""
    files = sorted(target.rglob("*.jsonl"))
    changes = [json.loads(line) for path in files for line in path.open()]
    return [(change["_change_type"], change["id"]) for change in changes]


def held(target: Path) -> list[int]:
    """Return the ids to which all changes add up, sorted."""
    counts: Counter[int] = Counter()
    for kind, number in written(target):
        counts[number] += 1 if kind == "insert" else -1
    assert min(counts.values()) >= 0
    return sorted(counts.elements())


def sinks(project: Path) -> list[str]:
    with el.Engine(str(project / "storage"), read_only=True) as engine:
        return [sink.name for sink in engine.catalog.sinks]


def test_a_sink_of_a_project(project: Path, run: Run) -> None:
    target = project / "target"
    text = SINK.format(format="jsonl", path=target)
    define(project, sink_py=text)
    visit(project, "1.json", (1, "a"), (2, "b"))
    code, printed, errors = run("run")
    assert (code, errors) == (0, "")
    assert table(printed)["out"][:2] == ["sink", "2"]
    visit(project, "2.json", (3, "c"))
    assert run("run")[0] == 0
    assert sorted(written(target)) == [("insert", number) for number in (1, 2, 3)]
    # one that a project no longer has goes, with its view and what that has read
    define(project, sink_py=ONE + text[text.index("@dp.table") :])
    visit(project, "3.json", (4, "d"))
    code, printed, errors = run("run")
    assert (code, errors, sinks(project)) == (0, "", [])
    assert len(written(target)) == 3
    define(project, sink_py=ONE + VIEW.format(name="other", query="spark.range(2)"))
    assert run("run")[0::2] == (0, "")
    assert rows(project, "SELECT * FROM other") == [(0,), (1,)]


CHANGED = """
from pyspark import pipelines as dp

dp.create_sink("out", "jsonl", {{"path": "{path}"{more}}})

@dp.append_flow(target="out")
def rows():
    return spark.readStream.table("y")

@dp.materialized_view
def y():
    return spark.table("x").where("id > {above}")

@dp.table
def x():
    return spark.readStream.schema("id BIGINT, page STRING").json("FOLDER/visits")
"""


def test_a_sink_gets_the_difference_that_a_changed_definition_makes(
    project: Path, run: Run
) -> None:
    target = project / "target"
    define(project, sink_py=CHANGED.format(path=target, more="", above=0))
    visit(project, "1.json", (1, "a"), (2, "b"))
    assert run("run")[0::2] == (0, "")
    define(project, sink_py=CHANGED.format(path=target, more="", above=1))
    visit(project, "2.json", (3, "c"))
    assert run("run")[0::2] == (0, "")
    before = [("insert", 1), ("insert", 2), ("delete", 1), ("insert", 3)]
    assert sorted(written(target)) == sorted(before)
    for words in (("--full-refresh", "x"), ("--full-refresh-all",)):
        assert run("run", *words)[0::2] == (0, "")
        assert held(target) == [2, 3]
    # a run that has ended in the middle
    with el.Engine(str(project / "storage")) as engine:
        engine.altering.detach("out__sink")
        engine.drop("view", "y")
    visit(project, "3.json", (4, "d"))
    assert run("run")[0::2] == (0, "")
    assert held(target) == [2, 3, 4]
    # other options make another sink, in whose target no rows of the first one may be
    define(project, sink_py=CHANGED.format(path=f"{target}2", more="", above=1))
    assert run("run")[0::2] == (0, "")
    assert sorted(written(project / "target2")) == [("insert", number) for number in (2, 3, 4)]
    more = ', "commit_interval": "1 second"'
    define(project, sink_py=CHANGED.format(path=f"{target}2", more=more, above=1))
    code, _, errors = run("run")
    assert code == 1
    assert "SINK_TARGET_NOT_EMPTY" in errors
    assert errors.endswith("failing: sink out\n")


ONE = "from pyspark import pipelines as dp\n"
VIEW = "@dp.materialized_view\ndef {name}():\n    return {query}\n"
CDC = """
dp.create_streaming_table("t")
dp.create_auto_cdc_flow(target="t", source="changes", keys=["id"], sequence_by="number")

@dp.table
def changes():
    return spark.readStream.schema("id BIGINT, page STRING, number INT, op STRING").json("FOLDER/visits")
"""
WRONG = {
    "circle": (
        VIEW.format(name="a", query='spark.table("b")')
        + VIEW.format(name="b", query='spark.sql("SELECT * FROM a")'),
        "a -> b -> a",
    ),
    "unknown table": (VIEW.format(name="a", query='spark.table("nothing")'), "`nothing`"),
    "unknown column": (VIEW.format(name="a", query='spark.range(2).select("x")'), "UNRESOLVED_COLUMN"),
    "two of a name": (
        VIEW.format(name="a", query="spark.range(2)") + '@dp.table(name="A")\ndef c():\n    pass\n',
        "two datasets are named a",
    ),
    "no target": ('@dp.append_flow(target="a")\ndef c():\n    pass\n', "a, which isn't defined"),
    "no flow": ('dp.create_streaming_table("a")', "no flow writes into a"),
    "no DataFrame": (VIEW.format(name="a", query="3"), "returns no DataFrame"),
    "streaming view": (
        VIEW.format(name="a", query='spark.readStream.format("rate").load()'),
        "streaming source",
    ),
    "source and dataset": (
        VIEW.format(name="a", query="spark.range(2)").replace("range(2)", 'range(2).withColumnRenamed("id", "value")')
        + '@dp.table\ndef c():\n    return spark.readStream.format("rate").load().join(spark.table("a"), "value")\n',
        "together with datasets",
    ),
    "files": (VIEW.format(name="a", query='spark.read.text("FOLDER/spark-pipeline.yml")'), "CREATE STREAM"),
    "schema": (
        '@dp.table(schema="id INT")\ndef c():\n    return spark.range(2)\n',
        "declared as struct<id:int>, its query gives struct<id:bigint>",
    ),
    "format of a sink": (SINK.format(format="console", path="p"), "console is not supported"),
    "flow of unknown changes": (CDC.replace('"changes"', '"nothing"'), "`nothing`"),
    "wrong key": (CDC.replace('["id"]', '["idd"]'), "no column idd"),
    "wrong sequence": (CDC.replace('"number"', '"numbers"'), "UNRESOLVED_COLUMN"),
    "history of some columns": (
        CDC.replace('"number"', '"number", stored_as_scd_type="2", track_history_column_list=["id"]'),
        "the history of some columns only is not supported",
    ),
    "changes and other flows": (
        CDC + '@dp.append_flow(target="t")\ndef more():\n    return spark.range(2)\n',
        "t has a flow of AUTO CDC and other flows",
    ),
    "changes of a source": (CDC.replace("@dp.table", "@dp.temporary_view"), "make it a table of its own"),
}  # fmt: skip


UNPLACED = (
    "circle",
    "files",
    "unknown table",
    "wrong key",
    "history of some columns",
    "changes of a source",
)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_definitions_are_refused(project: Path, run: Run, name: str) -> None:
    text, message = WRONG[name]
    define(project, wrong_py=ONE + text)
    code, printed, errors = run("dry-run")
    assert (code, printed) == (2, "")
    assert message in errors
    assert "wrong.py:" in errors or name in UNPLACED, errors


def test_statements_that_a_project_cannot_have(project: Path, run: Run) -> None:
    for text, message in (
        ("SET a = b", "the statement SET a = is not supported"),
        ("SET spark.sql.session.timeZone = Asia/Tokyo", "write it under configuration of the spec"),
        ("SET spark.sql.session.timeZone", "the statement SET spark.sql.session.timeZone is not"),
        ("USE DATABASE other", "the statement USE DATABASE other is not supported"),
        ("USE other.default", "the statement USE other.default is not supported"),
        ("CREATE STREAMING TABL x", "PARSE_SYNTAX_ERROR"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM nothing", "`nothing`"),
    ):
        define(project, wrong_sql=f"\n{text}")
        code, _, errors = run("dry-run")
        assert code == 2
        assert message in errors
        assert "wrong.sql:2" in errors


def test_statements_that_change_nothing_are_accepted(project: Path, run: Run) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(f"{spec.read_text()}catalog: spark_catalog\ndatabase: Shop\n")
    with spec.open("a") as file:
        file.write('configuration:\n  shop.mark: "7"\n')
    used = ("DATABASE default", "SCHEMA shop", "spark_catalog.default", "shop")
    text = "SET shop.mark = 7;\n" + "".join(f"USE {name};\n" for name in used)
    define(project, a_sql=f"{text}CREATE MATERIALIZED VIEW v AS SELECT 1 AS one")
    assert run("run")[0::2] == (0, "")
    assert rows(project, "SELECT * FROM v") == [(1,)]


def test_wrong_spec_files_have_sparks_messages(project: Path, run: Run) -> None:
    spec = project / "spark-pipeline.yml"
    good = spec.read_text()
    for text, condition in (
        (good + "color: red\n", "PIPELINE_SPEC_UNEXPECTED_FIELD"),
        ("storage: s\n", "PIPELINE_SPEC_MISSING_REQUIRED_FIELD"),
        (good + "configuration: 3\n", "PIPELINE_SPEC_FIELD_NOT_DICT"),
        (good + "configuration:\n  a: 3\n", "PIPELINE_SPEC_DICT_VALUE_NOT_STRING"),
        (good.replace("/**", "/*/x.py"), "PIPELINE_SPEC_INVALID_GLOB_PATTERN"),
        (SPEC + "  - file:\n      path: x.py\n", "write each as `- glob: {include: PATH}`"),
        (SPEC + "  - glob: x.py\n", "libraries in the spec file is {'glob': 'x.py'}"),
        (SPEC + "  glob:\n    include: 3\n", "write each as"),
        (SPEC + "  - glob:\n      include: /x.py\n", "is absolute"),
        ("name: [", "can't be read"),
    ):
        spec.write_text(text)
        code, _, errors = run("run")
        assert code == 2
        assert condition in errors, errors
    spec.write_text(good)
    (project / "spark-pipeline.yaml").write_text(good)
    assert "MULTIPLE_PIPELINE_SPEC_FILES_FOUND" in run("dry-run")[2]
    assert "PIPELINE_SPEC_FILE_DOES_NOT_EXIST" in run("run", "--spec", "nothing.yml")[2]
    define(project, notes_txt="x")
    given = ("dry-run", "--spec", str(spec))
    assert "PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION" in run(*given)[2]
    both = run("run", "--spec", str(spec), "--full-refresh-all", "--full-refresh", "a")
    assert "CONFLICTING_PIPELINE_REFRESH_OPTIONS" in both[2]
