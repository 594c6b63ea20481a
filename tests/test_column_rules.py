"""NOT NULL, lengths of texts and DEFAULT of tables' columns, for every way of writing rows."""

from __future__ import annotations

import datetime as dt
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import IntegerType, StructField, StructType, VarcharType

import eddyline as el
from asking import refused, rows
from eddyline.answers.create_statements import column_texts
from eddyline.catalog.column_rules import RULES
from eddyline.errors import DataError, EddylineError, ScriptError
from eddyline.source import bulk
from eddyline.source.inbox import commit_batch
from eddyline.source.row_rules import lengths_of
from eddyline.sql.columns import split_defaults
from eddyline.sql.statements import parse_script
from pyspark_eddyline.writers import TargetTable

COLUMNS = "k BIGINT, a INT NOT NULL, s VARCHAR(3), d INT DEFAULT 2 + 3"


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> Iterator[el.Engine]:
    with el.Engine(tmp_path / "storage", spark) as engine:
        yield engine


@pytest.fixture
def table(engine: el.Engine) -> el.Table:
    return engine.table("t", COLUMNS, ["k"])


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the driver collects DataFrames, or Spark's tasks write them into files."""
    if request.param == "large":
        monkeypatch.setattr(bulk, "SMALL_ROWS", -1)
        monkeypatch.setattr(bulk, "SMALL_BYTES", -1)
    return str(request.param)


def held(engine: el.Engine) -> Counter:
    engine.advance()
    return rows(engine, "t")


def append(frame: DataFrame, engine: el.Engine) -> None:
    frame.write.format("eddyline").option("table", "t").mode("append").save(engine.files.root)


def ddl(engine: el.Engine, table: str = "t") -> str:
    return ", ".join(column_texts(engine.catalog.get(table)))


# -- NOT NULL and lengths ----------------------------------------------------------------------

NULL: list[Any] = [
    [(1, None, "x", 1)],
    [{"k": 1, "a": 1}, {"k": 2, "s": "x"}],
    pa.table({"k": [1, 2], "a": pa.array([1, None], pa.int32())}),
    pd.DataFrame({"k": [1], "a": pd.array([None], "Int32")}),
    pa.table({"k": [1]}),
]


@pytest.mark.spark
@pytest.mark.parametrize("given", NULL)
def test_not_null_is_enforced_for_all_forms_of_rows(engine, table, given):
    for write in (table.insert, table.upsert):
        with pytest.raises(DataError, match=r"\[NULL_VALUE\].*column a.*table t"):
            write(given)
    assert not held(engine)


@pytest.mark.spark
def test_deletes_need_only_the_key(engine, table):
    table.insert([(1, 1, "x", 1), (2, 2, "y", 2)])
    table.delete([{"k": 1}])
    engine.execute("DELETE FROM t WHERE a = 3")
    assert held(engine) == Counter([(2, 2, "y", 2)])


@pytest.mark.spark
def test_rules_hold_for_dataframes_and_dml(engine, spark, table, size):
    good = spark.range(3).selectExpr("id AS k", "CAST(id AS INT) AS a", "'äöü' AS s")
    table.insert(good)
    before = held(engine)
    assert before == Counter([(i, i, "äöü", 5) for i in range(3)])
    for name, expression, condition in (
        ("a", "CAST(NULL AS INT)", "NULL_VALUE"),
        ("s", "'äöüß'", "TOO_LONG"),
    ):
        with pytest.raises(DataError, match=condition) as error:
            table.insert(good.selectExpr("*").withColumn(name, expr(expression)))
        assert f"column {name}" in str(error.value)
        refused(engine, f"UPDATE t SET {name} = {expression} WHERE k = 1", condition)
        refused(
            engine,
            f"INSERT INTO t (k, a, s) SELECT k, {'a' if name == 's' else expression}, "
            f"{'s' if name == 'a' else expression} FROM t",
            condition,
        )
    with pytest.raises(DataError, match="NULL_VALUE"):
        table.insert(good.drop("a"))
    refused(engine, "INSERT INTO t (k, s) SELECT k, s FROM t", "NULL_VALUE")
    refused(engine, "INSERT INTO t (k, s) VALUES (9, 'x')", "NULL_VALUE")
    assert held(engine) == before
    left = [one for one in Path(engine.files.root, "inbox").rglob("*") if one.is_file()]
    assert left == []


@pytest.mark.spark
def test_texts_are_counted_in_characters_and_stay_as_they_are(engine):
    table = engine.table("t", "a CHAR(3), b VARCHAR(2)")
    table.insert([("a ", "💧💧"), ("", None), ("abc", "x ")])
    assert held(engine) == Counter([("a ", "💧💧"), ("", None), ("abc", "x ")])
    with pytest.raises(DataError) as error:
        table.insert([("a", "abc"), ("b", "abcde"), ("c", "x")])
    assert error.value.condition == "TOO_LONG"
    assert "column b is VARCHAR(2), and 2 texts have more, the longest 5 characters" in str(
        error.value
    )
    with pytest.raises(DataError, match=r"CHAR\(3\), and a text has 4 characters"):
        table.insert([("abc ", "x")])


@pytest.mark.spark
def test_lengths_hold_within_arrays_maps_and_structs(engine):
    table = engine.table("t", "a ARRAY<CHAR(2)>, m MAP<VARCHAR(1), STRUCT<x: VARCHAR(2)>>")
    good = [(["ab", None], {"k": {"x": "ab"}}), (None, None), ([], {"k": None})]
    table.insert(good)
    for row, place in (
        ((["abc"], None), "a.element"),
        ((None, {"kk": None}), "m.key"),
        ((None, {"k": {"x": "abc"}}), "m.value.x"),
    ):
        with pytest.raises(DataError, match=f"TOO_LONG.*column {place}"):
            table.insert([row])
    engine.advance()
    assert engine.snapshot("t").count() == 3


# -- the data source ---------------------------------------------------------------------------


@pytest.mark.spark
def test_rules_hold_for_writes_of_the_data_source(engine, spark, table, tmp_path):
    good = spark.range(3).selectExpr("id AS k", "CAST(id AS INT) AS a")
    append(good, engine)
    before = held(engine)
    assert before == Counter([(i, i, None, 5) for i in range(3)])
    for frame, condition in (
        (good.selectExpr("k", "IF(k = 1, NULL, a) AS a"), "NULL_VALUE"),
        (good.selectExpr("k"), "NULL_VALUE"),
        (good.selectExpr("k", "a", "'abcd' AS s"), "TOO_LONG"),
    ):
        with pytest.raises(PySparkException, match=rf"\[{condition}\]"):
            append(frame, engine)
    folder = str(tmp_path / "in")
    good.selectExpr("k", "IF(k = 1, NULL, a) AS a").write.parquet(folder)
    stream = spark.readStream.schema("k BIGINT, a INT").parquet(folder).writeStream
    stream = stream.format("eddyline").option("table", "t").trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(PySparkException, match=r"\[NULL_VALUE\]"):
        stream.start(engine.files.root).awaitTermination()
    assert held(engine) == before


@pytest.mark.spark
def test_a_default_that_depends_on_the_time_is_the_engines(engine, spark):
    engine.table("t", "k BIGINT DEFAULT 7, at TIMESTAMP DEFAULT now()", ["k"])
    frame = spark.range(1).selectExpr("id AS k")
    with pytest.raises(PySparkException, match="lack column at, whose DEFAULT depends on the time"):
        append(frame, engine)
    append(frame.selectExpr("timestamp'2026-01-01' AS at"), engine)  # the key has a default, too
    assert held(engine) == Counter([(7, dt.datetime(2026, 1, 1))])


@pytest.mark.spark
def test_rows_checked_before_a_change_of_rules_are_not_written(engine, spark):
    engine.table("t", "a INT")
    options = {"path": engine.files.root, "table": "t"}
    columns = StructType([StructField("a", IntegerType())])
    target = TargetTable.of(options, columns, overwrite=False)
    batch = pa.record_batch({"a": pa.array([None], pa.int32())})
    written = target.write("one", iter([batch]))
    old = engine.catalog.get("t")
    engine.execute("ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    with pytest.raises(EddylineError, match="BEING_ALTERED"):
        commit_batch(target.files, target.table, "w", None, written, target.is_unaltered)
    writing = engine.writing
    with pytest.raises(EddylineError, match="BEING_ALTERED"):  # a thread of the engine itself
        writing._write(old, [(("append",), [(None,)])], writing._group(old).write)
    assert not held(engine)
    engine.execute("INSERT INTO t VALUES (1)")
    engine.table("t", "a INT NOT NULL").insert([(2,)])
    assert held(engine) == Counter([(1,), (2,)])


# -- DEFAULT -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_rows_that_do_not_give_a_column_get_its_default(engine, spark, size):
    table = engine.table(
        "t",
        "k INT, s VARCHAR(5) DEFAULT 'a, b', l ARRAY<INT> DEFAULT array(1, 2), x DECIMAL(4, 2) DEFAULT 1.5, "
        "day DATE DEFAULT DATE'2026-01-02'",
    )
    rest = ([1, 2], Decimal("1.50"), dt.date(2026, 1, 2))
    table.insert([{"k": 1}, {"k": 2, "s": None}, {"k": 3, "s": "c"}])
    table.insert(pa.table({"k": [4]}))
    table.insert(pd.DataFrame({"k": [5]}))
    table.insert(spark.range(6, 7).selectExpr("CAST(id AS INT) AS k"))
    engine.execute(
        "INSERT INTO t (k) VALUES (7); INSERT INTO t (k) SELECT k + 1 FROM t WHERE k = 7"
    )
    engine.execute("INSERT INTO t (k, s) VALUES (9, NULL)")
    engine.advance()
    found = sorted(tuple(row) for row in engine.snapshot("t").collect())
    texts = {2: None, 3: "c", 9: None}
    assert found == [(k, texts.get(k, "a, b"), *rest) for k in range(1, 10)]


@pytest.mark.spark
def test_the_time_is_that_of_the_statement(engine, spark, size):
    table = engine.table(
        "t",
        "k BIGINT, at TIMESTAMP NOT NULL DEFAULT current_timestamp(), day DATE DEFAULT current_date",
    )
    table.insert([{"k": 1}, {"k": 2}, {"k": 3, "at": dt.datetime(2026, 1, 1)}])
    table.insert(spark.range(10, 1000, 1, 3).withColumnRenamed("id", "k"))
    with pytest.raises(DataError, match="NULL_VALUE"):
        table.insert([{"k": 4, "at": None}])
    engine.advance()
    times = engine.sql(
        "SELECT count(DISTINCT at), count(*) FROM t WHERE at > '2026-02-01' AND day IS NOT NULL"
    ).first()
    assert tuple(times) == (2, 992)


@pytest.mark.spark
@pytest.mark.parametrize(
    "column",
    [
        "INT DEFAULT 'x'",
        "INT DEFAULT '5'",
        "SMALLINT DEFAULT 99999",
        "INT DEFAULT k",
        "INT DEFAULT (SELECT 1)",
        "BIGINT DEFAULT sum(1)",
        "INT DEFAULT explode(array(1))",
        "DOUBLE DEFAULT rand()",
        "STRING DEFAULT uuid()",
        "STRING DEFAULT current_user()",
        "INT DEFAULT 1 AS a",
        "INT DEFAULT 1 / 0",
        "VARCHAR(2) DEFAULT 'abc'",
        "INT NOT NULL DEFAULT NULL",
        "TIMESTAMP DEFAULT TIMESTAMP'now'",
    ],
)
def test_a_default_is_a_constant_of_its_column(engine, column):
    assert "column c" in refused(engine, f"CREATE TABLE u (k INT, c {column})", "BAD_DEFAULT")
    assert engine.catalog.find("u") is None


# -- definitions -------------------------------------------------------------------------------


@pytest.mark.spark
def test_rules_are_part_of_the_definition_and_survive(tmp_path, spark, size):
    script = f"CREATE TABLE t ({COLUMNS}, at TIMESTAMP DEFAULT now(), PRIMARY KEY (k))"
    view = "CREATE VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a"
    with el.Engine(tmp_path / "s", spark) as engine:
        engine.execute(f"{script}; {view}")
        text = ddl(engine)
        assert text == (
            "k BIGINT, a INT NOT NULL, s VARCHAR(3), d INT DEFAULT 2 + 3, at TIMESTAMP DEFAULT now()"
        )
    with el.Engine(tmp_path / "s", spark) as engine:
        engine.execute(f"{script}; {view}")
        assert ddl(engine) == text
        engine.table("t", text, ["k"])
        refused(engine, "INSERT INTO t (k) VALUES (1)", "NULL_VALUE")
        engine.execute("INSERT INTO t (k, a) VALUES (1, 2)")
        assert [row[:4] for row in held(engine)] == [(1, 2, None, 5)]
        for other in (
            script.replace("INT NOT NULL", "INT"),
            script.replace("(3)", "(4)"),
            script.replace("VARCHAR", "CHAR"),
            script.replace("VARCHAR(3)", "STRING"),
            script.replace("2 + 3", "5"),
            script.replace("k BIGINT", "k BIGINT DEFAULT 1"),
        ):
            assert "ALTER TABLE" in refused(engine, other, "NAME_TAKEN")
        engine.execute(script.replace("k BIGINT", "k BIGINT NOT NULL"))  # as each primary key is
        assert engine.verify()


@pytest.mark.spark
def test_views_know_nothing_of_rules(engine, table):
    view = engine.view("v", "SELECT k, a, s FROM t WHERE a > 0")
    engine.table("plain", "k BIGINT, a INT, s STRING, d INT", ["k"])
    assert engine.catalog.get("t").schema == engine.catalog.get("plain").schema
    assert all(field.nullable and not field.metadata for field in view.snapshot().schema)
    plans = engine._workspace.manifest.plans[engine.catalog.get("v").id]
    engine.execute("ALTER TABLE t ALTER COLUMN a DROP NOT NULL")
    engine.advance()
    assert engine._workspace.manifest.plans[engine.catalog.get("v").id] == plans
    assert [field.nullable for field in table.schema] == [True] * 4
    engine.execute("ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    assert [field.name for field in table.schema if not field.nullable] == ["a"]


@pytest.mark.spark
def test_rules_of_a_struct_type(engine):
    columns = StructType(
        [
            StructField("a", IntegerType(), False),
            StructField("b", VarcharType(2)),
            StructField("c", IntegerType(), True, {"CURRENT_DEFAULT": "4"}),
        ]
    )
    engine.table("t", columns)
    assert ddl(engine) == "a INT NOT NULL, b VARCHAR(2), c INT DEFAULT 4"
    engine.execute("INSERT INTO t (a) VALUES (1)")
    assert held(engine) == Counter([(1, None, 4)])


@pytest.mark.spark
def test_a_table_of_an_older_version_gets_rules_by_alter_table(engine, caplog):
    engine.execute("CREATE TABLE t (a INT, s STRING); INSERT INTO t VALUES (NULL, 'long')")
    workspace = engine._workspace
    old = replace(engine.catalog.get("t"), options={})
    workspace.save(workspace.catalog.with_entries([old]))
    script = "CREATE TABLE t (a INT NOT NULL, s VARCHAR(3) DEFAULT 'x')"
    with caplog.at_level(logging.WARNING, "eddyline.engine"):
        engine.execute(script)
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "ALTER TABLE t ALTER COLUMN a SET NOT NULL" in said
    assert "ALTER COLUMN s SET DEFAULT 'x'" in said
    assert "ALTER COLUMN s TYPE" in said
    engine.execute("INSERT INTO t (s) VALUES ('long')")  # as before
    engine.execute("ALTER TABLE t ADD COLUMN n INT; ALTER TABLE t ALTER COLUMN n TYPE BIGINT")
    script = script.removesuffix(")") + ", n BIGINT)"
    engine.execute(script)
    assert "2 rows" in refused(engine, "ALTER TABLE t ALTER COLUMN a SET NOT NULL", "NULL_VALUE")
    engine.execute("DELETE FROM t; ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    assert RULES in engine.catalog.get("t").options
    refused(engine, script, "NAME_TAKEN")  # not all of its rules are the table's by now
    engine.execute(
        "ALTER TABLE t ALTER COLUMN s TYPE VARCHAR(3); ALTER TABLE t ALTER COLUMN s SET DEFAULT 'x'"
    )
    engine.execute(script)


# -- ALTER TABLE -------------------------------------------------------------------------------


@pytest.mark.spark
def test_rules_change_without_writing_rows_anew(engine):
    engine.execute(
        "CREATE TABLE t (k INT, a INT, PRIMARY KEY (k)); INSERT INTO t VALUES (1, 1), (2, NULL)"
    )
    engine.advance()
    engine.execute("INSERT INTO t VALUES (3, NULL)")  # no epoch has it yet
    told = refused(engine, "ALTER TABLE t ALTER COLUMN a SET NOT NULL", "NULL_VALUE")
    assert "column a" in told
    assert "2 rows" in told
    engine.execute("UPDATE t SET a = 0 WHERE a IS NULL")
    known = engine.catalog.get("t").id
    engine.execute("ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    refused(engine, "UPDATE t SET a = NULL", "NULL_VALUE")
    refused(engine, "INSERT INTO t (k) VALUES (4)", "NULL_VALUE")
    refused(engine, "ALTER TABLE t ALTER COLUMN a SET DEFAULT 'x'", "BAD_DEFAULT")
    engine.execute("ALTER TABLE t ALTER COLUMN a SET DEFAULT 7; INSERT INTO t (k) VALUES (4)")
    engine.execute("ALTER TABLE t ALTER COLUMN A DROP DEFAULT")
    engine.execute("ALTER TABLE t ALTER COLUMN a DROP NOT NULL; INSERT INTO t (k) VALUES (5)")
    assert engine.catalog.get("t").id == known
    assert held(engine) == Counter([(1, 1), (2, 0), (3, 0), (4, 7), (5, None)])
    refused(engine, "ALTER TABLE t ALTER COLUMN k DROP NOT NULL", "BAD_SCHEMA")
    refused(engine, "ALTER TABLE t ALTER COLUMN z SET NOT NULL", "UNKNOWN_COLUMN")


@pytest.mark.spark
def test_a_new_column_gives_rows_its_default(engine):
    engine.execute("CREATE TABLE t (k INT); INSERT INTO t VALUES (1), (2)")
    told = refused(engine, "ALTER TABLE t ADD COLUMN n INT NOT NULL", "BAD_SCHEMA")
    assert "DEFAULT" in told
    engine.execute("ALTER TABLE t ADD COLUMN n INT DEFAULT 3 NOT NULL")
    engine.execute(
        "ALTER TABLE t ADD COLUMN at TIMESTAMP DEFAULT now(); INSERT INTO t (k) VALUES (3)"
    )
    engine.advance()
    found = engine.sql("SELECT k, n, dense_rank() OVER (ORDER BY at) FROM t").collect()
    assert sorted(map(tuple, found)) == [(1, 3, 1), (2, 3, 1), (3, 3, 2)]
    refused(engine, "INSERT INTO t (k, n) VALUES (4, NULL)", "NULL_VALUE")
    engine.execute("ALTER TABLE t ADD COLUMN c INT, d INT DEFAULT 4")
    found = engine.sql("SELECT c, d FROM t").collect()
    assert [tuple(row) for row in found] == [(None, 4)] * 3


@pytest.mark.spark
def test_rules_follow_their_column(engine):
    engine.execute("CREATE TABLE t (a INT NOT NULL DEFAULT 1, b VARCHAR(3), c INT DEFAULT 2)")
    engine.execute("INSERT INTO t (b) VALUES ('abc')")
    engine.execute("ALTER TABLE t RENAME COLUMN a TO z; ALTER TABLE t ALTER COLUMN z TYPE BIGINT")
    engine.execute("ALTER TABLE t DROP COLUMN c")
    assert ddl(engine) == "z BIGINT NOT NULL DEFAULT 1, b VARCHAR(3)"
    told = refused(engine, "ALTER TABLE t ALTER COLUMN b TYPE VARCHAR(2)", "TOO_LONG")
    assert "3 characters" in told
    engine.execute("CREATE VIEW v AS SELECT b FROM t")  # which a change of lengths doesn't concern
    engine.execute("ALTER TABLE t ALTER COLUMN b TYPE VARCHAR(20)")
    engine.execute("INSERT INTO t (b) VALUES ('abcdefgh')")
    refused(engine, "ALTER TABLE t ALTER COLUMN b TYPE INT NOT NULL", "BAD_SCHEMA")
    engine.execute("ALTER TABLE t ALTER COLUMN b TYPE STRING")
    assert ddl(engine) == "z BIGINT NOT NULL DEFAULT 1, b STRING"
    assert held(engine) == Counter([(1, "abc"), (1, "abcdefgh")])


# -- what isn't supported ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ("a INT CHECK (a > 1)", "CHECK"),
        ("a INT UNIQUE", "UNIQUE"),
        ("a INT NOT NULL UNIQUE", "UNIQUE"),
        ("a INT DEFAULT 1 CHECK (a > 0)", "CHECK"),
        ("a INT REFERENCES u (a)", "REFERENCES"),
        ("a INT GENERATED ALWAYS AS (1)", "GENERATED"),
        ("a BIGINT GENERATED BY DEFAULT AS IDENTITY", "GENERATED"),
        ("a INT NULL", "NULL"),
        ("a INT CONSTRAINT c CHECK (a > 1)", "CONSTRAINT"),
        ("a INT, CHECK (a > 1)", "CHECK"),
        ("a INT, UNIQUE (a)", "UNIQUE"),
        ("a INT, FOREIGN KEY (a) REFERENCES u (a)", "FOREIGN KEY"),
        ("a INT, CONSTRAINT c CHECK (a > 1)", "CONSTRAINT"),
        ("a INT, CONSTRAINT c PRIMARY KEY (a)", "CONSTRAINT"),
    ],
)
def test_other_constraints_are_refused_with_a_way_out(columns, what):
    for parse in (
        lambda: parse_script(f"CREATE TABLE t ({columns})"),
        lambda: split_defaults(columns),
    ):
        with pytest.raises(ScriptError) as error:
            parse()
        assert error.value.condition == "SCRIPT_UNSUPPORTED"
        assert str(error.value).startswith(f"[SCRIPT_UNSUPPORTED] {what} of a ")
        assert error.value.hint


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE STREAM s (a INT DEFAULT 1) USING json",
        "CREATE STREAM s (a INT CHECK (a > 1)) USING json",
        "ALTER STREAM s ADD COLUMN a INT DEFAULT 1",
        "ALTER STREAM s ALTER COLUMN a SET NOT NULL",
        "ALTER STREAM s ALTER COLUMN a DROP DEFAULT",
        "ALTER TABLE t ADD COLUMN a INT UNIQUE",
    ],
)
def test_streams_have_no_such_rules(statement):
    with pytest.raises(ScriptError) as error:
        parse_script(statement)
    assert error.value.condition == "SCRIPT_UNSUPPORTED"
    assert error.value.hint


@pytest.mark.spark
def test_a_key_is_not_declared_in_columns_for_python(engine):
    with pytest.raises(DataError, match="BAD_SCHEMA"):
        engine.table("t", "a INT PRIMARY KEY")


@pytest.mark.spark
def test_a_stream_of_python_has_no_default(engine):
    with pytest.raises(DataError, match="coalesce"):
        engine.create_stream("s", "a INT DEFAULT 1", "json", {"path": tempfile.mkdtemp()})


@pytest.mark.parametrize(
    ("text", "plain", "defaults"),
    [
        ("a INT", "a INT", {}),
        ("a: int, b: string", "a: int, b: string", {}),
        ("a INT COMMENT 'DEFAULT 1' NOT NULL", "a INT NOT NULL COMMENT 'DEFAULT 1'", {}),
        ("a BOOLEAN DEFAULT 1 IS NOT NULL NOT NULL", "a BOOLEAN NOT NULL", {"a": "1 IS NOT NULL"}),
        ("`a b` DECIMAL(4, 2) DEFAULT (1, 2).col1, b INT", "`a b` DECIMAL(4, 2), b INT", {"a b": "(1, 2).col1"}),
        ("a STRUCT<x: INT NOT NULL, y: ARRAY<INT>> DEFAULT NULL", "a STRUCT<x: INT NOT NULL, y: ARRAY<INT>>", {"a": "NULL"}),
        ("a STRING DEFAULT 'x' COLLATE UTF8_LCASE", "a STRING", {"a": "'x' COLLATE UTF8_LCASE"}),
        ("a STRING COLLATE UTF8_LCASE NOT NULL", "a STRING COLLATE UTF8_LCASE NOT NULL", {}),
        ("default INT, check STRING, unique INT", "default INT, check STRING, unique INT", {}),
        ("struct<a:int>", "struct<a:int>", {}),
        ("a INT,", "a INT,", {}),
        ("a 'x", "a 'x", {}),
        ("a INT PRIMARY KEY DEFAULT 1", "a INT PRIMARY KEY", {"a": "1"}),  # which Spark refuses
        ("", "", {}),
    ],
)  # fmt: skip
def test_defaults_are_taken_out_of_columns(text, plain, defaults):
    assert split_defaults(text) == (plain, defaults)


def test_lengths_are_found_in_types():
    kind = {"type": "struct", "fields": [{"name": "x", "type": "varchar(4)"}]}
    (length,) = lengths_of("c", {"type": "array", "elementType": kind})
    assert (length.column, length.path, length.kind, length.most) == ("c", (0, "x"), "VARCHAR", 4)
    assert list(lengths_of("c", "string")) == []
    assert list(lengths_of("c", "decimal(10,2)")) == []
