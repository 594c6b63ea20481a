"""Scripts are read without a JVM: what each statement becomes, what is refused, and where text is cut."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.api.script import (
    AlterColumns,
    AlterView,
    CreateFlow,
    CreateSink,
    CreateStream,
    CreateTable,
    CreateTableAs,
    CreateView,
    Delete,
    Describe,
    DescribeQuery,
    Drop,
    Explain,
    Insert,
    Merge,
    Select,
    SessionFunction,
    Show,
    ShowColumns,
    ShowCreate,
    Statement,
    Update,
    parse_script,
    run_script,
)
from eddyline.errors import CatalogError, ScriptError
from eddyline.sql import describing, statements, view_columns
from eddyline.sql.cdc import ChangeFlow
from eddyline.sql.expectations import Expectation
from eddyline.sql.forms import ColumnChange, When

READ: list[tuple[str, Statement]] = [
    (
        "ALTER TABLE t ADD COLUMN `a b` STRUCT<x: INT, y: DECIMAL(10, 2)>",
        AlterColumns(
            "table", "t", (ColumnChange("add", "a b", "STRUCT<x: INT, y: DECIMAL(10, 2)>"),)
        ),
    ),
    (
        "ALTER TABLE t ADD COLUMNS (a MAP<INT, INT> NOT NULL DEFAULT map(1, 2), b INT)",
        AlterColumns(
            "table",
            "t",
            (
                ColumnChange("add", "a", "MAP<INT, INT> NOT NULL DEFAULT map(1, 2)"),
                ColumnChange("add", "b", "INT"),
            ),
        ),
    ),
    (
        "ALTER STREAM s ADD COLUMN IF NOT EXISTS a INT, b INT",
        AlterColumns(
            "stream", "s", (ColumnChange("add", "a", "INT"), ColumnChange("add", "b", "INT")), True
        ),
    ),
    ("alter table t drop column a", AlterColumns("table", "t", (ColumnChange("drop", "a"),))),
    (
        "ALTER TABLE t DROP COLUMNS IF EXISTS (a, `b c`)",
        AlterColumns("table", "t", (ColumnChange("drop", "a"), ColumnChange("drop", "b c")), True),
    ),
    (
        "ALTER TABLE t RENAME COLUMN a TO b",
        AlterColumns("table", "t", (ColumnChange("rename", "a", "b"),)),
    ),
    (
        "ALTER STREAM s ALTER COLUMN a TYPE BIGINT",
        AlterColumns("stream", "s", (ColumnChange("type", "a", "BIGINT"),)),
    ),
    (
        "CREATE FLOW f AS AUTO CDC INTO t FROM STREAM s KEYS (a, `b c`) SEQUENCE BY at",
        CreateFlow("f", "t", ChangeFlow("s", ("a", "b c"), "at")),
    ),
    (
        "create flow f as auto cdc into t from stream(s) keys (a) apply as delete when op = 'd' and"
        " array(1)[0] > keys apply as truncate when op in ('t', 'KEYS (a)') sequence by struct(x, y)"
        " columns * except (op, x) stored as scd type 1",
        CreateFlow(
            "f",
            "t",
            ChangeFlow(
                "s",
                ("a",),
                "struct(x, y)",
                "op = 'd' and array(1)[0] > keys",
                "op in ('t', 'KEYS (a)')",
                excepted=("op", "x"),
            ),
        ),
    ),
    (
        "CREATE FLOW f AS AUTO CDC INTO t FROM stream STORED AS SCD TYPE 2 COLUMNS (a, b) SEQUENCE BY"
        " coalesce(x, stored) KEYS (a)",
        CreateFlow(
            "f",
            "t",
            ChangeFlow("stream", ("a",), "coalesce(x, stored)", columns=("a", "b"), scd_type=2),
        ),
    ),
    ("CREATE TABLE t (id BIGINT, v INT)", CreateTable("t", "id BIGINT, v INT")),
    ("create table t (id BIGINT, PRIMARY KEY (id))", CreateTable("t", "id BIGINT", ("id",))),
    ("CREATE TABLE t (id INT PRIMARY KEY NOT NULL)", CreateTable("t", "id INT NOT NULL", ("id",))),
    (
        "CREATE TABLE t (a INT, primary /**/ key (a, `b c`))",
        CreateTable("t", "a INT", ("a", "b c")),
    ),
    (
        "CREATE TABLE IF NOT EXISTS `a;``b` (s STRUCT<a: INT, b: ARRAY<MAP<INT, STRING>>>, -- one, two\n"
        " d DECIMAL(10, 2) NOT NULL COMMENT 'x, y; (z')",
        CreateTable(
            "a;`b",
            "s STRUCT<a: INT, b: ARRAY<MAP<INT, STRING>>>, d DECIMAL(10, 2) NOT NULL COMMENT 'x, y; (z'",
            if_not_exists=True,
        ),
    ),
    ("CREATE TABLE 2020_log (`primary` INT)", CreateTable("2020_log", "`primary` INT")),
    ("CREATE TABLE t AS SELECT 1 AS a", CreateTableAs("t", "SELECT 1 AS a")),
    (
        "create table if not exists `a b` as values (1, ';'), (2, 'y') AS x (a, b)",
        CreateTableAs("a b", "values (1, ';'), (2, 'y') AS x (a, b)", True),
    ),
    (
        "CREATE TABLE t AS WITH x AS (SELECT 1) TABLE x",
        CreateTableAs("t", "WITH x AS (SELECT 1) TABLE x"),
    ),
    ("CREATE TABLE `as` AS (SELECT 1)", CreateTableAs("as", "(SELECT 1)")),
    ("ALTER VIEW v AS SELECT 1", AlterView("v", "SELECT 1")),
    (
        "alter view `as` as with x as (select 1) table x",
        AlterView("as", "with x as (select 1) table x"),
    ),
    (
        "CREATE STREAM s (ts TIMESTAMP, a INT) USING json OPTIONS (path '/x', header = true, n -1, a.b 2)",
        CreateStream(
            "s",
            "ts TIMESTAMP, a INT",
            "json",
            (("path", "/x"), ("header", "true"), ("n", "-1"), ("a.b", "2")),
        ),
    ),
    (
        "CREATE STREAM s USING kafka OPTIONS (kafka.bootstrap.servers 'h:9092', 'subscribe' = \"a\")",
        CreateStream(
            "s", None, "kafka", (("kafka.bootstrap.servers", "h:9092"), ("subscribe", "a"))
        ),
    ),
    (
        "CREATE STREAM IF NOT EXISTS s (k INT, o STRING, PRIMARY KEY (k)) USING org.acme.Source OP o",
        CreateStream("s", "k INT, o STRING", "org.acme.Source", (), ("k",), "o", None, True),
    ),
    (
        "CREATE STREAM s (ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL 10 MINUTES) USING json",
        CreateStream("s", "ts TIMESTAMP", "json", watermark=("ts", "INTERVAL 10 MINUTES")),
    ),
    (
        "CREATE STREAM s (WATERMARK FOR `a b` AS `a b`) USING generator",
        CreateStream("s", None, "generator", watermark=("a b", "INTERVAL 0 SECONDS")),
    ),
    (
        r"CREATE STREAM s USING x OPTIONS (a 'it''s', b 'x' 'y', c r'\d', d 'a\tb', e 'x'"
        '"y"'
        ")",
        CreateStream(
            "s", None, "x", (("a", "it's"), ("b", "xy"), ("c", r"\d"), ("d", "a\tb"), ("e", "xy"))
        ),
    ),
    (
        "CREATE SINK k FROM `a b` USING delta OPTIONS (path '/x', Mode upsert)",
        CreateSink("k", "a b", "delta", (("path", "/x"), ("Mode", "upsert"))),
    ),
    ("CREATE SINK IF NOT EXISTS k FROM v USING csv", CreateSink("k", "v", "csv", (), True)),
    ("DROP SINK IF EXISTS k", Drop("sink", "k", True)),
    ("SHOW SINKS", Show("sink")),
    ("CREATE VIEW v AS SELECT 1", CreateView("v", "SELECT 1")),
    ("CREATE OR REPLACE VIEW v AS SELECT 1", CreateView("v", "SELECT 1", replace=True)),
    ("CREATE MATERIALIZED VIEW v AS VALUES (1)", CreateView("v", "VALUES (1)")),
    (
        "create live view if not exists v as with x as (select ';') select * from x",
        CreateView("v", "with x as (select ';') select * from x", if_not_exists=True),
    ),
    (
        "CREATE VIEW v AS -- why\n SELECT /*+ BROADCAST(a) */ a,  /* b; */ 'c'\n FROM t -- end",
        CreateView("v", "SELECT /*+ BROADCAST(a) */ a,  /* b; */ 'c'\n FROM t"),
    ),
    (
        "CREATE OR REPLACE VIEW v (a, `b``.c`) AS SELECT 1, ')' ORDER BY 1 LIMIT 3",
        CreateView(
            "v",
            "SELECT * FROM (SELECT 1, ')' ORDER BY 1 LIMIT 3) AS named(`a`, `b``.c`)",
            replace=True,
            columns=("a", "b`.c"),
        ),
    ),
    (
        "CREATE VIEW v (CONSTRAINT c EXPECT (constraint > 0), constraint) AS SELECT 1 EMIT FINAL",
        CreateView(
            "v",
            "SELECT * FROM (SELECT 1) AS named(`constraint`) EMIT FINAL",
            expectations=(Expectation("c", "constraint > 0"),),
            columns=("constraint",),
        ),
    ),
    (
        "INSERT INTO t VALUES (1, 'a;'), (2, \"b\")",
        Insert("t", None, "VALUES (1, 'a;'), (2, \"b\")"),
    ),
    ("INSERT INTO TABLE t SELECT * FROM s", Insert("t", None, "SELECT * FROM s")),
    ("INSERT INTO t (a, `b c`) VALUES (1, 2)", Insert("t", ("a", "b c"), "VALUES (1, 2)")),
    ("INSERT INTO t (SELECT 1)", Insert("t", None, "(SELECT 1)")),
    ("INSERT INTO t (values, a) ((SELECT 1, 2))", Insert("t", ("values", "a"), "((SELECT 1, 2))")),
    (
        "INSERT INTO t WITH x AS (SELECT 1) TABLE x",
        Insert("t", None, "WITH x AS (SELECT 1) TABLE x"),
    ),
    (
        "CREATE OR REPLACE TEMPORARY FUNCTION f(a INT DEFAULT 1) RETURNS INT RETURN a + 1",
        SessionFunction(
            "CREATE OR REPLACE TEMPORARY FUNCTION f(a INT DEFAULT 1) RETURNS INT RETURN a + 1"
        ),
    ),
    ("drop temp function if exists f", SessionFunction("drop temp function if exists f")),
    ("INSERT INTO t BY NAME SELECT 1 AS a", Insert("t", None, "SELECT 1 AS a", by_name=True)),
    (
        "INSERT OVERWRITE TABLE t (a) SELECT 1",
        Insert("t", ("a",), "SELECT 1", overwrite=True),
    ),
    ("TRUNCATE TABLE t", Delete("t")),
    (
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
        Merge("t", None, "s", "s", "t.a = s.a", (When("MATCHED", "delete"),)),
    ),
    (
        "merge into t as q using (select 1, ';') u(a, b) on q.a = u.a and case when u.b then true end"
        " when matched and case when u.a > 0 then true end then update set q.a = case when u.b then 1 else 2 end, `b c` = f(1, 2)"
        " when matched then update set * when not matched by target and (true) then insert (a, b) values (u.a, g(1, 2))"
        " when not matched then insert * when not matched by source then delete",
        Merge(
            "t",
            "q",
            "(select 1, ';') u(a, b)",
            "u",
            "q.a = u.a and case when u.b then true end",
            (
                When(
                    "MATCHED",
                    "update",
                    (("a", "case when u.b then 1 else 2 end"), ("b c", "f(1, 2)")),
                    "case when u.a > 0 then true end",
                ),
                When("MATCHED", "update", None),
                When("NOT MATCHED", "insert", (("a", "u.a"), ("b", "g(1, 2)")), "(true)"),
                When("NOT MATCHED", "insert", None),
                When("NOT MATCHED BY SOURCE", "delete"),
            ),
        ),
    ),
    (
        "MERGE INTO t USING s ON s.when = 1 AND CASE WHEN s.end > s.case THEN true END WHEN MATCHED AND map < 5"
        " THEN UPDATE SET case = s.case, a = CASE WHEN s.then < 1 THEN x::MAP<INT, ARRAY<INT>>[1] END WHEN NOT MATCHED"
        " THEN INSERT *",
        Merge(
            "t",
            None,
            "s",
            "s",
            "s.when = 1 AND CASE WHEN s.end > s.case THEN true END",
            (
                When(
                    "MATCHED",
                    "update",
                    (
                        ("case", "s.case"),
                        ("a", "CASE WHEN s.then < 1 THEN x::MAP<INT, ARRAY<INT>>[1] END"),
                    ),
                    "map < 5",
                ),
                When("NOT MATCHED", "insert", None),
            ),
        ),
    ),
    (
        "UPDATE t SET a = map < 5, b = x::MAP<INT, INT>, c = array < 3 WHERE struct < 2",
        Update(
            "t", (("a", "map < 5"), ("b", "x::MAP<INT, INT>"), ("c", "array < 3")), "struct < 2"
        ),
    ),
    (
        "MERGE INTO t USING (SELECT 1) ON true WHEN NOT MATCHED THEN INSERT *",
        Merge("t", None, "(SELECT 1)", "", "true", (When("NOT MATCHED", "insert", None),)),
    ),
    ("DELETE FROM t", Delete("t")),
    ("DELETE FROM t using WHERE v > 3", Delete("t", "v > 3", "using")),
    ("UPDATE t SET a = b IS DISTINCT FROM c", Update("t", (("a", "b IS DISTINCT FROM c"),))),
    (
        "INSERT INTO t SELECT * FROM a JOIN b ON conflict = 1",
        Insert("t", None, "SELECT * FROM a JOIN b ON conflict = 1"),
    ),
    ("DELETE FROM t AS q", Delete("t", None, "q")),
    ("DELETE FROM t `q r` WHERE `q r`.v > 3", Delete("t", "`q r`.v > 3", "q r")),
    ("UPDATE t q SET v = q.v + 1", Update("t", (("v", "q.v + 1"),), None, "q")),
    ("UPDATE t AS q SET q.v = 1 WHERE true", Update("t", (("v", "1"),), "true", "q")),
    ("UPDATE t AS q SET v = 1 WHERE q.v > 1", Update("t", (("v", "1"),), "q.v > 1", "q")),
    ("DELETE FROM `t u` WHERE v > 3 AND s <> ';'", Delete("t u", "v > 3 AND s <> ';'")),
    ("UPDATE t SET v = v + 1 WHERE id = 1", Update("t", (("v", "v + 1"),), "id = 1")),
    (
        "UPDATE t SET a = f(1, 2), `b c` = CASE WHEN x < y THEN 1 END, m = map(1, 2)[1]",
        Update(
            "t", (("a", "f(1, 2)"), ("b c", "CASE WHEN x < y THEN 1 END"), ("m", "map(1, 2)[1]"))
        ),
    ),
    (
        "UPDATE t SET a = (SELECT max(b) FROM u WHERE b < 3) WHERE a IN (SELECT 1 WHERE true)",
        Update("t", (("a", "(SELECT max(b) FROM u WHERE b < 3)"),), "a IN (SELECT 1 WHERE true)"),
    ),
    ("DROP TABLE t", Drop("table", "t")),
    ("DROP STREAM IF EXISTS `s`", Drop("stream", "s", if_exists=True)),
    ("drop materialized view v", Drop("view", "v")),
    ("SHOW TABLES", Show("table")),
    ("SHOW streams", Show("stream")),
    ("SHOW VIEWS", Show("view")),
    ("SHOW TABLES LIKE 'a*|b'", Show("table", "a*|b")),
    ("SHOW SINKS 'k'", Show("sink", "k")),
    ("SHOW COLUMNS IN `a b`", ShowColumns("a b")),
    ("show columns from t", ShowColumns("t")),
    ("SHOW CREATE TABLE t", ShowCreate("t")),
    ("SHOW CREATE MATERIALIZED VIEW `a.b`", ShowCreate("a.b", "view")),
    ("SHOW CREATE SINK k", ShowCreate("k", "sink")),
    ("DESCRIBE t", Describe("t")),
    ("desc table extended `a b`", Describe("a b", "", True)),
    ("DESCRIBE STREAM s", Describe("s", "stream")),
    ("DESCRIBE FORMATTED v", Describe("v", "", True)),
    ("DESCRIBE table", Describe("table")),
    ("DESCRIBE query", Describe("query")),
    ("DESCRIBE EXTENDED extended", Describe("extended", "", True)),
    ("DESCRIBE QUERY TABLE t", DescribeQuery("TABLE t")),
    ("DESC SELECT a, 'b;' FROM t", DescribeQuery("SELECT a, 'b;' FROM t")),
    ("EXPLAIN v", Explain("v")),
    ("EXPLAIN `v w`", Explain("v w")),
    ("EXPLAIN SELECT 'a;b' FROM t", Explain("SELECT 'a;b' FROM t")),
    ("EXPLAIN Nodes v", Explain("v", "nodes")),
    ("EXPLAIN nodes (SELECT 1)", Explain("(SELECT 1)", "nodes")),
    ("SELECT 10L, 1.5BD, 1e3, X'1F', a:b.c, x -> x + 1, '\\';' FROM t", Select("")),
    ("(SELECT 1) UNION ALL (SELECT 2)", Select("")),
    ("WITH x AS (SELECT 1) SELECT windowing, watermark FROM x", Select("")),
    ("FROM t SELECT a", Select("")),
    ("VALUES (1), (2)", Select("")),
    ("TABLE t", Select("")),
]

REFUSED = {
    "CREATE OR REPLACE TEMP VIEW v AS SELECT 1": "or WITH, for one query",
    "DECLARE VARIABLE v INT": "write the value into the statements",
    "VACUUM t": "removed as epochs run",
    "CREATE FLOW f AS INSERT INTO t SELECT 1": "use CREATE VIEW, with UNION ALL",
    "CREATE OR REPLACE STREAMING TABLE t": "AUTO CDC INTO creates its target",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a) IGNORE NULL UPDATES SEQUENCE BY x": "last_value(",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a) SEQUENCE BY x TRACK HISTORY ON (a)": "COLUMNS",
    "CREATE TABLE s (t TIMESTAMP, WATERMARK FOR t AS t)": "use a stream",
    "SELECT * FROM STREAM s WATERMARK t DELAY OF INTERVAL 1 MINUTE": "WATERMARK",
    "CREATE TABLE t (a INT) AS SELECT 1": "INSERT INTO",
    "CREATE TABLE t (a, PRIMARY KEY (a)) AS SELECT 1": "INSERT INTO",
    "CREATE TABLE t (PRIMARY KEY (a)) AS SELECT 1": "INSERT INTO",
    "CREATE TABLE t PRIMARY KEY (a) AS SELECT 1": "INSERT INTO",
    "CREATE TABLE t (a INT) USING parquet": "CREATE STREAM",
    "CREATE TABLE t USING parquet AS SELECT 1": "leave it out",
    "CREATE OR REPLACE TABLE t AS SELECT 1": "DROP TABLE",
    "CREATE OR REPLACE TABLE t (a INT)": "DROP TABLE",
    "CREATE FUNCTION f(a INT) RETURNS INT RETURN a": "CREATE TEMPORARY FUNCTION",
    "CREATE TEMPORARY FUNCTION f AS 'x' USING JAR 'y'": "registerJavaFunction",
    "CREATE TEMPORARY FUNCTION return AS 'x' USING JAR 'y'": "registerJavaFunction",
    "CREATE LIVE TABLE t (a INT)": "CREATE TABLE",
    "CREATE": "CREATE",
    "CREATE VIEW v (a COMMENT 'x') AS SELECT 1": "a comment of SQL",
    "CREATE VIEW v COMMENT 'x' AS SELECT 1": "a comment of SQL",
    "CREATE VIEW v (a) TBLPROPERTIES ('x' = 'y') AS SELECT 1": "Options",
    "CREATE TABLE t (a INT) COMMENT 'x'": "a comment of SQL",
    "CREATE TABLE t (a INT) PARTITIONED BY (a)": "PARTITIONED BY of a TABLE",
    "CREATE TABLE t (a INT) CLUSTER BY (a)": "buckets",
    "CREATE TABLE t (a INT) LOCATION '/x'": "in the folder of the engine",
    "CREATE TABLE t COMMENT 'x' AS SELECT 1": "a comment of SQL",
    "DESCRIBE FUNCTION abs": "those of Spark",
    "DESC HISTORY t": "VERSION AS OF",
    "DESCRIBE t a": "EXTENDED",
    "DESCRIBE EXTENDED t AS JSON": "EXTENDED",
    "SHOW TABLES IN db LIKE 'a'": "side by side",
    "SHOW COLUMNS IN t IN db": "side by side",
    "FROM x INSERT INTO t SELECT *": "after INSERT INTO",
    "WITH x AS (SELECT 1) DELETE FROM t": "into the subquery",
    "MERGE WITH SCHEMA EVOLUTION INTO t USING s ON true WHEN MATCHED THEN DELETE": "ADD COLUMN",
    "ALTER TABLE t SET LOCATION 'x'": "ADD COLUMN",
    "ALTER VIEW v RENAME TO w": "CREATE OR REPLACE",
    "SET x = 1": "Options",
    "UPDATE t SET a = b.x FROM b WHERE b.k = t.k": "use MERGE, or subqueries",
    "DELETE FROM t USING b WHERE b.k = t.k": "WHERE EXISTS",
    "DELETE FROM t AS a USING b WHERE b.k = a.k": "WHERE EXISTS",
    "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING": "use MERGE",
    "INSERT INTO t SELECT 1 ON DUPLICATE KEY UPDATE a = 1": "use MERGE",
    "INSERT INTO t REPLACE WHERE a = 1 SELECT 1": "DELETE FROM",
    "CREATE TABLE t LIKE u": "SHOW CREATE TABLE",
    "CREATE SCHEMA IF NOT EXISTS s": "side by side",
    "DROP DATABASE s": "side by side",
    "CREATE INDEX i ON t (a)": "leave it out",
    "COPY INTO t FROM 'x'": "CREATE STREAM",
    "LOAD DATA INPATH 'x' INTO TABLE t": "CREATE STREAM",
    "SHOW DATABASES": "side by side",
    "SHOW FUNCTIONS": "those of Spark",
    "GRANT ALL ON t TO me": "SELECT",
    "'a'": "SELECT",
}

WRONG = {
    "CREATE TABLE t": "( is expected at the end",
    "CREATE TABLE t (a INT": "bracket",
    "CREATE TABLE t ()": "missing",
    "CREATE TABLE t (PRIMARY KEY (a))": "no column",
    "CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (a))": "more than one PRIMARY KEY",
    "CREATE TABLE a.b (x INT)": "without dots",
    'CREATE TABLE "t" (x INT)': "backquotes",
    "CREATE TABLE 1 (x INT)": "backquotes",
    "CREATE TABLE t (x INT) y": "the end is expected at y",
    "CREATE STREAM s (a INT)": "USING is expected",
    "CREATE STREAM s (t TIMESTAMP, WATERMARK FOR t AS u) USING json": "follows u",
    "CREATE STREAM s USING": "a name is expected",
    "CREATE STREAM s USING json PARTITIONED BY (a)": "OP or OPTIONS",
    "CREATE STREAM s USING json OPTIONS (path)": "a value is expected",
    "CREATE STREAM s USING json OPTIONS (my-key 'v')": "the end is expected",
    "CREATE STREAM s USING json OPTIONS (k 1, K 2)": "twice",
    "CREATE FLOW f AS AUTO CDC INTO t KEYS (a)": "FROM is expected at KEYS",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a)": "AUTO CDC needs SEQUENCE BY",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s SEQUENCE BY x": "AUTO CDC needs KEYS (...)",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS a SEQUENCE BY x": "a clause of AUTO CDC is expected at KEYS",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a) SEQUENCE BY": "an expression is expected at the end",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a) KEYS (b)": "KEYS is given twice",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (lower(a)) SEQUENCE BY x": "the end is expected at (",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a) STORED AS SCD TYPE 3": "1 or 2 is expected",
    "CREATE FLOW f AS AUTO CDC INTO t FROM s KEYS (a) COLUMNS * EXCEPT op": "a list of columns in brackets",
    "CREATE VIEW v SELECT 1": "AS is expected at SELECT",
    "CREATE VIEW v AS": "a query is expected",
    "CREATE TABLE t AS": "a query is expected",
    "CREATE TABLE t AS INSERT INTO u SELECT 1": "a query is expected",
    "ALTER VIEW v AS": "a query is expected",
    "INSERT t VALUES (1)": "INTO or OVERWRITE is expected",
    "INSERT INTO t": "a query is expected",
    "TRUNCATE t": "TABLE is expected at t",
    "MERGE INTO t USING s WHEN MATCHED THEN DELETE": "ON is expected at MATCHED",
    "MERGE INTO t USING s ON a = b": "WHEN is expected at the end",
    "MERGE INTO t USING s ON WHEN MATCHED THEN DELETE": "the condition is missing at WHEN",
    "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE WHEN": "MATCHED is expected at the end",
    "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE x": "WHEN is expected at x",
    "MERGE INTO t USING s ON true WHEN MATCHED AND a THEN INSERT *": "WHEN MATCHED can't INSERT",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN DELETE": "WHEN NOT MATCHED can't DELETE",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *": "no source",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED BY x THEN INSERT *": "SOURCE or TARGET",
    "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE WHEN MATCHED THEN DELETE": "never applies",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)": "gives 1 values",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT (a, A) VALUES (1, 2)": "twice",
    "MERGE INTO t USING s ON true WHEN MATCHED THEN UPDATE SET s.a = 1": "without dots",
    "DELETE FROM t x y": "the end is expected at y",
    "DELETE FROM t AS": "another name for the table is expected",
    "UPDATE t AS SET a = 1": "SET is expected at a",
    "DELETE FROM t WHERE": "the condition is missing",
    "UPDATE t SET": "missing",
    "UPDATE t SET a = ": "the value of a is missing",
    "UPDATE t SET a = 1 WHERE": "the condition is missing",
    "UPDATE t SET a = 1, A = 2": "set twice",
    "UPDATE t SET a.b = 1": "without dots",
    "DROP VIEW": "the name of the view is expected",
    "DROP VIEW v CASCADE": "the end is expected at CASCADE",
    "SHOW": "TABLES, STREAMS, VIEWS, SINKS, COLUMNS or CREATE is expected at the end",
    "SHOW TABLES LIKE": "a string is expected at the end",
    "SHOW TABLES LIKE '['": "'[' is no pattern",
    "SHOW TABLES a": "LIKE 'pattern' or the end is expected at a",
    "SHOW TABLES LIKE 'a' b": "the end is expected at b",
    "SHOW COLUMNS t": "IN or FROM is expected at t",
    "SHOW CREATE t": "TABLE, STREAM, VIEW or SINK is expected at t",
    "SHOW CREATE TABLE": "the name is expected at the end",
    "DESCRIBE": "the name of a table, stream or view, or a query, is expected at the end",
    "DESCRIBE a.b": "without dots",
    "CREATE VIEW v (a INT) AS SELECT 1": "column a of the view has more than a name",
    "CREATE VIEW v (a, A) AS SELECT 1, 2": "column A is named twice",
    "CREATE VIEW v () AS SELECT 1": "something is missing",
    "EXPLAIN": "expected at the end",
    "EXPLAIN CREATE VIEW v AS SELECT 1": "the end is expected",
}


@pytest.mark.parametrize(("text", "statement"), READ, ids=[text for text, _ in READ])
def test_each_statement_is_read(text: str, statement: Statement) -> None:
    expected = Select(text) if isinstance(statement, Select) else statement
    assert parse_script(text) == (expected,)
    assert parse_script(f"  {text} ;; -- the end") == (expected,)


@pytest.mark.parametrize(("text", "way_out"), REFUSED.items(), ids=list(REFUSED))
def test_a_refusal_names_statement_line_and_way_out(text: str, way_out: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script(f"SELECT 1;\n\n{text};")
    assert caught.value.condition == "SCRIPT_UNSUPPORTED"
    assert caught.value.context["line"] == 3
    assert str(caught.value.context["statement"]).startswith(text[:10])
    assert caught.value.hint
    assert way_out in str(caught.value)


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=list(WRONG))
def test_a_mistake_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ScriptError, match="SCRIPT_SYNTAX") as caught:
        parse_script(f"SELECT 1;\n\n{text};")
    assert caught.value.context["line"] == 3
    assert message in str(caught.value)


@pytest.mark.parametrize("opened", ["'abc", '"abc', "`abc", "/* abc", "'abc\\'", "r'abc"])
def test_what_is_never_closed_is_named_with_the_line_it_opens_on(opened: str) -> None:
    with pytest.raises(ScriptError, match="not closed") as caught:
        parse_script(f"SELECT 'a\n;b';\nSELECT {opened};\n\nSELECT 1;\n")
    assert caught.value.context["line"] == 3


@pytest.mark.parametrize("text", ["", " \n", ";", ";;\n;", "-- a; b", "/* a; /* b; */ c */ ;"])
def test_nothing_is_no_statement(text: str) -> None:
    assert parse_script(text) == ()


def test_lines_are_those_of_the_first_words() -> None:
    statements = parse_script("-- a\n\nSELECT 1;/* b\n*/ SELECT\n2\n;\r\nSHOW TABLES; DROP VIEW v")
    assert [statement.line for statement in statements] == [3, 4, 7, 7]


def test_examples_in_docstrings() -> None:
    for module in (statements, describing, view_columns):
        assert doctest.testmod(module).failed == 0


# --- splitting ---

WORDS = st.sampled_from(
    [
        "a",
        "SELECT",
        "1",
        "10L",
        ",",
        "+",
        "(",
        ")",
        "日本",
        "😀",
        "-",
        "/",
        "*",
        "<",
        ">",
        "[0]",
        ":",
        "$x",
    ]
)
LETTERS = st.text("ab;-/*\"`' \n(),日😀", max_size=8)
STRINGS = LETTERS.map(lambda text: "'" + text.replace("'", "\\'") + "'")
DOUBLE = LETTERS.map(lambda text: '"' + text.replace('"', '\\"') + '"')
NAMES = LETTERS.map(lambda text: "`" + text.replace("`", "``") + "`")
BLOCK = LETTERS.map(lambda text: "/* " + text.replace("*", "* ").replace("/", "/ ") + " */")
LINE = LETTERS.map(lambda text: "-- " + text.replace("\n", "") + "\n")
BLANKS = st.lists(st.one_of(st.sampled_from([" ", "\n", "\r\n", "\t"]), BLOCK, LINE)).map("".join)
PIECES = st.one_of(WORDS, STRINGS, DOUBLE, NAMES, BLOCK, LINE)
QUERIES = st.lists(PIECES, max_size=8).map(lambda pieces: " ".join(["SELECT", *pieces, "x"]))
SEPARATED = st.lists(st.tuples(BLANKS, QUERIES, BLANKS), max_size=5)


@settings(deadline=None, max_examples=300)
@given(SEPARATED)
def test_queries_come_back_verbatim(parts: list[tuple[str, str, str]]) -> None:
    text = ";".join(f"{before} {query} {after}" for before, query, after in parts)
    statements = parse_script(text)
    assert statements == tuple(Select(query) for _, query, _ in parts)
    at = 0
    for statement, (before, query, after) in zip(statements, parts, strict=True):
        assert statement.line == text[: at + len(before) + 1].count("\n") + 1
        at += len(f"{before} {query} {after};")


@settings(deadline=None, max_examples=300)
@given(QUERIES, NAMES.filter(lambda name: len(name) > 2))
def test_what_follows_a_head_is_a_slice_of_the_text(query: str, name: str) -> None:
    plain = name[1:-1].replace("``", "`")
    assert parse_script(f"CREATE VIEW {name} AS {query}") == (CreateView(plain, query),)
    assert parse_script(f"INSERT INTO {name} {query}") == (Insert(plain, None, query),)
    assert parse_script(f"DELETE FROM {name} WHERE {query}") == (Delete(plain, query),)
    assert parse_script(f"EXPLAIN {query}") == (Explain(query),)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(NAMES.filter(lambda name: len(name) > 2), STRINGS), min_size=1, max_size=4)
)
def test_assignments_are_cut_at_their_commas(pairs: list[tuple[str, str]]) -> None:
    unique = {
        name[1:-1].replace("``", "`").lower(): (name, f"f({text}, 1)") for name, text in pairs
    }
    text = "UPDATE t SET " + ", ".join(f"{name} = {value}" for name, value in unique.values())
    expected = tuple((name[1:-1].replace("``", "`"), value) for name, value in unique.values())
    assert parse_script(text) == (Update("t", expected),)
    assert parse_script(f"{text} WHERE a") == (Update("t", expected, "a"),)


HEADS = st.sampled_from(
    [
        "CREATE TABLE t (",
        "CREATE STREAM s USING j OPTIONS (",
        "UPDATE t SET a =",
        "EXPLAIN",
        "INSERT INTO t",
    ]
)


@settings(deadline=None, max_examples=500)
@given(st.one_of(st.text(), st.tuples(HEADS, st.lists(PIECES).map(" ".join)).map(" ".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    lines = range(1, text.count("\n") + 2)
    try:
        found = [statement.line for statement in parse_script(text)]
    except ScriptError as error:
        found = [int(str(error.context["line"]))]
    assert all(line in lines for line in found)


# --- running ---


class Row(dict[str, str]):
    """What a collected row offers here."""


class Frame(list[Row]):
    """What a DataFrame offers here."""

    def collect(self) -> list[Row]:
        return self


class Recorder:
    """Stands for the Engine and its session: notes the calls, knows one table, fails where asked to."""

    def __init__(self, fail: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fail = fail
        self.spark = self.writing = self

    def reads_views(self, statement: Any) -> bool:
        return "a_view" in statement.reads

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if method == self.fail:
                raise CatalogError("no", condition="NO")
            self.calls.append((method, *args, *((kwargs,) if kwargs else ())))
            answers = {"show": Frame([Row(name="Here")]), "explain": "the plan", "sql": "rows"}
            return answers.get(method, "frame" if method == "createDataFrame" else None)

        return call


def run(engine: Recorder, text: str) -> Any:
    return run_script(engine, text)  # type: ignore[arg-type]  # a stand-in that notes the calls


def test_statements_become_calls_in_order() -> None:
    engine = Recorder()
    answer = run(
        engine,
        """
        CREATE TABLE t (id INT PRIMARY KEY);
        CREATE STREAM s (a INT) USING json OP o OPTIONS (path 'p');
        CREATE OR REPLACE VIEW v AS SELECT 1;
        INSERT INTO t VALUES (1); DELETE FROM t; UPDATE t SET a = 1 WHERE b; DROP VIEW IF EXISTS v;
        """,
    )
    assert answer is None
    assert engine.calls == [
        ("table", "t", "id INT", {"primary_key": ("id",)}),
        (
            "create_stream",
            "s",
            "a INT",
            "json",
            {"path": "p"},
            {"op": "o", "primary_key": (), "watermark": None},
        ),
        ("view", "v", "SELECT 1", {"replace": True}),
        ("insert_query", Insert("t", None, "VALUES (1)")),
        ("delete", Delete("t")),
        ("update", Update("t", (("a", "1"),), "b")),
        ("drop", "view", "v", True),
    ]


def test_the_last_answer_is_returned() -> None:
    assert run(Recorder(), "SHOW TABLES; SELECT 1; DROP TABLE t") == "rows"
    engine = Recorder()
    assert run(engine, "SELECT 1; EXPLAIN parts v") == "frame"
    assert engine.calls[1:] == [
        ("explain", "v", {"stage": "parts"}),
        ("createDataFrame", [("the plan",)], "plan string"),
    ]


def test_an_epoch_is_run_before_a_select_after_written_rows() -> None:
    engine = Recorder()
    run(engine, "SELECT 1; INSERT INTO t VALUES (1); DELETE FROM t; SELECT 2; SELECT 3")
    names = [name for name, *_ in engine.calls]
    assert names == ["sql", "insert_query", "delete", "advance", "sql", "sql"]
    engine = Recorder()
    run(engine, "CREATE TABLE t AS SELECT 1; SELECT 2")
    assert [name for name, *_ in engine.calls] == ["create_table_as", "advance", "sql"]


def test_an_epoch_is_run_before_rows_are_written_that_are_read_from_views() -> None:
    engine = Recorder()
    run(engine, "INSERT INTO t SELECT n FROM a_view; DELETE FROM t; SELECT 1")
    names = [name for name, *_ in engine.calls]
    assert names == ["advance", "insert_query", "delete", "advance", "sql"]


def test_if_not_exists_leaves_what_is_there() -> None:
    engine = Recorder()
    run(engine, "CREATE TABLE IF NOT EXISTS HERE (a INT); CREATE VIEW IF NOT EXISTS w AS SELECT 1")
    assert engine.calls == [
        ("show", "table"),
        ("show", "view"),
        ("view", "w", "SELECT 1", {"replace": False}),
    ]


def test_nothing_runs_before_all_is_read() -> None:
    engine = Recorder()
    with pytest.raises(ScriptError):
        run(engine, "DROP TABLE t; DROP INDEX k")
    assert engine.calls == []


def test_a_failing_statement_is_located() -> None:
    engine = Recorder(fail="drop")
    with pytest.raises(CatalogError) as caught:
        run(engine, "SELECT 1;\nDROP TABLE t; SELECT 2")
    assert caught.value.__notes__ == ["in the statement at line 2 of the script"]
    assert engine.calls == [("sql", "SELECT 1")]
