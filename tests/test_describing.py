"""DESCRIBE and SHOW: what a script says of definitions, and how it makes them again."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import eddyline as el
from asking import refused
from eddyline.answers import answer, create_statements
from eddyline.catalog.entries import Entry
from eddyline.cli import main
from eddyline.sink import secrets
from eddyline.sql.forms import CreateSink
from eddyline.sql.statements import parse_script

spark_test = pytest.mark.spark


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    """An engine with the definitions of the tests that only ask."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "in").mkdir()
    with el.Engine(folder / "storage", spark) as engine:
        engine.execute(script(folder))
        yield engine


def script(folder: Path) -> str:
    """Statements for a storage, each kind with its clauses."""
    return f"""
        CREATE TABLE `a.b``c` (`id x` INT, n DECIMAL(10, 2), s STRUCT<`a b`: INT, c: ARRAY<MAP<STRING, DATE>>>,
            `primary` TIMESTAMP_NTZ, PRIMARY KEY (`id x`, n));
        CREATE TABLE plain (k STRING, n INT);
        CREATE STREAM timed (ts TIMESTAMP, `site x` STRING, _received_at TIMESTAMP,
            WATERMARK FOR ts AS ts - INTERVAL 90 SECONDS,
            CONSTRAINT `it's` EXPECT (`site x` <> 'it''s;)') ON VIOLATION DEAD LETTER,
            CONSTRAINT kept EXPECT (ts > '2020-01-01'))
            USING json OPTIONS (path '{folder}/in', max_ahead '2 days', idle_timeout '500 milliseconds', retain '30 days');
        CREATE STREAM changed (op STRING, id BIGINT, note STRING, PRIMARY KEY (id)) USING csv OP op
            OPTIONS (path '{folder}/in', header true, 'odd key' = 'it\\'s \\\\ "x"', sep ';');
        CREATE STREAM made (WATERMARK FOR dateTime AS dateTime) USING generator OPTIONS (kind 'nexmark.bid', total 10);
        CREATE VIEW by_k AS SELECT k, count(*) AS n FROM plain GROUP BY k ORDER BY n DESC, k;
        CREATE VIEW `named v` (`k 1`, total, CONSTRAINT positive EXPECT (total > 0) ON VIOLATION DROP ROW)
            AS SELECT k, sum(n) FROM plain GROUP BY k;
        CREATE VIEW settled (t, n) AS SELECT ts, count(*) FROM timed GROUP BY ts WINDOWING 60 s EMIT FINAL;
        CREATE SINK `k 1` FROM by_k USING jsonl OPTIONS (path '{folder}/out', commit_interval '90 seconds');
    """


MADE = ("a.b`c", "plain", "timed", "changed", "made", "by_k", "named v", "settled", "k 1")


def asked(engine: el.Engine, statement: str) -> list[tuple[Any, ...]]:
    frame = engine.execute(statement)
    assert frame is not None
    return [tuple(row) for row in frame.collect()]


def statement_of(engine: el.Engine, name: str) -> str:
    ((text,),) = asked(engine, f"SHOW CREATE TABLE `{name.replace('`', '``')}`")
    return str(text)


def plain(entry: Entry) -> dict[str, Any]:
    """What makes a definition, without what its storage adds; spaces aside."""
    fields = {
        name: getattr(entry, name)
        for name in Entry.__slots__
        if name not in ("id", "since", "late_of")
    }
    return json.loads(" ".join(json.dumps(fields).split()).replace(" )", ")"))


# --- DESCRIBE ---


@spark_test
def test_describe_has_the_rows_of_sparks(engine):
    frame = engine.execute("DESCRIBE TABLE `a.b``c`")
    assert frame.schema.simpleString() == "struct<col_name:string,data_type:string,comment:string>"
    assert asked(engine, "DESC `a.b``c`") == [
        ("id x", "int", None),
        ("n", "decimal(10,2)", None),
        ("s", "struct<a b:int,c:array<map<string,date>>>", None),
        ("primary", "timestamp_ntz", None),
    ]
    assert asked(engine, "DESCRIBE TIMED__LATE")[0] == ("ts", "timestamp", None)
    assert asked(engine, "DESCRIBE `k 1`") == asked(engine, "DESCRIBE VIEW by_k")
    assert asked(engine, "DESCRIBE SELECT k AS x, 1.5 AS y FROM plain") == [
        ("x", "string", None),
        ("y", "decimal(2,1)", None),
    ]
    windowed = (
        "DESCRIBE QUERY SELECT ts, count(*) AS n FROM timed GROUP BY ts WINDOWING 60 s EMIT FINAL"
    )
    assert asked(engine, windowed) == [("ts", "timestamp", None), ("n", "bigint", None)]


@spark_test
def test_describe_extended_tells_what_is_known(engine):
    def details(name: str) -> dict[str, str]:
        rows = asked(engine, f"DESCRIBE EXTENDED {name}")
        at = rows.index(("# Detailed Table Information", "", ""))
        assert rows[at - 1] == ("", "", "")
        return {name: value for name, value, _ in rows[at + 1 :]}

    found = details("`a.b``c`")
    assert (found["Name"], found["Type"], found["Primary Key"]) == ("a.b`c", "TABLE", "`id x`, n")
    found = details("timed")
    assert found["Format"] == "json"
    assert "max_ahead=48 hours, idle_timeout=500 milliseconds" in found["Options"]
    assert found["Watermark"] == "WATERMARK FOR ts AS ts - INTERVAL 90 SECONDS"
    assert found["Constraint it's"] == "(`site x` <> 'it''s;)') ON VIOLATION DEAD LETTER"
    assert "settled" in found["Read By"]
    assert details("changed")["Operation Column"] == "op"
    assert details("`named v`")["View Text"] == "SELECT k, sum(n) FROM plain GROUP BY k"
    assert details("by_k") == {
        "Name": "by_k",
        "Type": "VIEW",
        "View Text": "SELECT k, count(*) AS n FROM plain GROUP BY k ORDER BY n DESC, k",
        "Reads": "plain",
        "Sinks": "`k 1`",
    }
    assert details("`k 1`")["Reads"] == "by_k"


@spark_test
def test_what_is_not_there_is_not_described(engine):
    assert "no view named plain" in refused(engine, "DESCRIBE VIEW plain", "NOT_FOUND")
    assert "no stream named x" in refused(engine, "SHOW CREATE STREAM x", "NOT_FOUND")
    assert "view or sink named x" in refused(engine, "SHOW COLUMNS IN x", "NOT_FOUND")
    assert "`k 1`" not in refused(engine, "DESCRIBE SINK by_k", "NOT_FOUND")
    assert "INVALID_QUERY" in refused(engine, "DESCRIBE SELECT nope FROM plain", "INVALID_QUERY")


# --- SHOW ---


@spark_test
def test_show_finds_names_by_sparks_patterns(engine):
    def names(statement: str) -> set[str]:
        return {row[0] for row in asked(engine, statement)}

    assert names("SHOW TABLES") == {"a.b`c", "plain"}
    assert names("SHOW TABLES LIKE 'PL*'") == {"plain"}
    assert names("SHOW STREAMS LIKE 'ma*e | changed'") == {"made", "made__late", "changed"}
    assert names("SHOW VIEWS LIKE 'by'") == set()
    assert names("SHOW VIEWS 'by_[a-k]'") == {"by_k"}
    assert names("SHOW SINKS LIKE 'k*'") == {"k 1"}
    frame = engine.execute("SHOW COLUMNS IN `named v`")
    assert frame.columns == ["col_name"]
    assert asked(engine, "SHOW COLUMNS FROM `named v`") == [("k 1",), ("total",)]


@spark_test
def test_show_create_makes_the_same_again(engine, tmp_path, spark):
    statements = [statement_of(engine, name) for name in MADE]
    with el.Engine(tmp_path / "storage", spark) as again:
        for text in statements:
            again.execute(text)
        for name in MADE:
            assert statement_of(again, name) == statement_of(engine, name)
            if (entry := engine.catalog.find(name)) is not None:
                assert plain(again.catalog.get(name)) == plain(entry)
        sinks = [plain(sink) for sink in again.catalog.sinks]
        assert sinks == [plain(sink) for sink in engine.catalog.sinks]
        names = {entry.name for entry in again.catalog.entries}
        assert names == {entry.name for entry in engine.catalog.entries}
        again.execute("; ".join(statements[:-3]))  # nothing changes
        assert names == {entry.name for entry in again.catalog.entries}
    assert statements[5:] == [
        "CREATE VIEW by_k\nAS SELECT k, count(*) AS n FROM plain GROUP BY k ORDER BY n DESC, k",
        "CREATE VIEW `named v` (\n  `k 1`,\n  total,\n"
        "  CONSTRAINT positive EXPECT (total > 0) ON VIOLATION DROP ROW)\n"
        "AS SELECT k, sum(n) FROM plain GROUP BY k",
        "CREATE VIEW settled (\n  t,\n  n)\nAS SELECT window(ts, '60 seconds').start AS ts, count(*) "
        "FROM timed GROUP BY window(ts, '60 seconds').start EMIT FINAL",
        f"CREATE SINK `k 1` FROM by_k\nUSING jsonl\nOPTIONS (\n  path = '{sink_path(engine)}',\n"
        "  commit_interval = '90 seconds')",
    ]


def sink_path(engine: el.Engine) -> str:
    return engine.catalog.sinks[0].options["path"]


RESERVED = (
    "select from order table interval timestamp null true date constraint primary watermark not exists create group "
    "values map array struct comment generated default as by key in is when case end all user current_date"
)


@spark_test
def test_show_create_keeps_reserved_words_and_the_columns_of_now(tmp_path, spark):
    (tmp_path / "in").mkdir()
    words = RESERVED.split()
    columns = ", ".join(f"`{word}` INT" for word in words)
    fields = ", ".join(f"`{word}`: INT NOT NULL COMMENT 'it''s'" for word in words)
    names = ", ".join(f"`{word}`" for word in words)
    with el.Engine(tmp_path / "a", spark) as engine, el.Engine(tmp_path / "b", spark) as again:
        engine.execute(f"""
            CREATE TABLE t ({columns}, s STRUCT<{fields}>);
            CREATE VIEW v ({names}) AS SELECT {names} FROM t WHERE `null` = 1;
            CREATE STREAM s (a INT, b INT) USING json OPTIONS (path '{tmp_path}/in');
            ALTER STREAM s RENAME COLUMN a TO `in`; ALTER STREAM s DROP COLUMN b; ALTER STREAM s ADD COLUMN d INT;
            CREATE SINK v FROM v USING csv OPTIONS (path '{tmp_path}/out')
        """)
        for name in ("t", "v", "s"):
            again.execute(statement_of(engine, name))
            assert again.catalog.get(name).columns == engine.catalog.get(name).columns
        ((sink,),) = asked(engine, "SHOW CREATE SINK v")
        assert sink.startswith("CREATE SINK v FROM v\nUSING csv")
        assert statement_of(engine, "v").startswith("CREATE VIEW v (")


@spark_test
def test_a_reader_describes_what_was_made_since(tmp_path, spark):
    with (
        el.Engine(tmp_path / "storage", spark) as engine,
        el.Engine(tmp_path / "storage", spark, read_only=True) as reader,
    ):
        engine.execute("CREATE VIEW late AS SELECT 1 AS a")
        assert asked(reader, "DESCRIBE late") == [("a", "int", None)]


@spark_test
def test_show_create_of_a_flow_makes_its_view(tmp_path, spark):
    flow = (
        "CREATE FLOW f AS AUTO CDC INTO users FROM log KEYS (id) SEQUENCE BY n COLUMNS * EXCEPT (n)"
    )
    with el.Engine(tmp_path / "a", spark) as engine, el.Engine(tmp_path / "b", spark) as again:
        engine.execute(f"CREATE TABLE log (id INT, name STRING, n INT); {flow}")
        again.execute("; ".join(statement_of(engine, name) for name in ("log", "users")))
        assert plain(again.catalog.get("users")) == plain(engine.catalog.get("users"))


@spark_test
def test_what_no_statement_makes_is_refused(tmp_path, spark):
    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.execute(
            "CREATE TABLE t (k STRING); CREATE VIEW v (CONSTRAINT c EXPECT (k > 'a')) AS TABLE t"
        )
        engine.view("framed", engine.relation("t").where("k > 'b'"))
        engine.stream("rates", spark.readStream.format("rate").load())
        engine.view("x", "SELECT k FROM t")
        el.View.foreach_epoch(
            engine.view("x", "SELECT k FROM t"), lambda rows, epoch: None, "called"
        )
        reasons = {
            "framed": "a DataFrame defines it",
            "rates": "a DataFrame or a pipeline writes it",
            "called": "it calls a function",
            "called__dead": "it comes with called",
            "v__violations": "it comes with v",
        }
        for name, reason in reasons.items():
            assert reason in refused(engine, f"SHOW CREATE TABLE {name}", "NO_STATEMENT")
        assert asked(engine, "DESCRIBE framed") == [("k", "string", None)]
        engine.execute(
            "DESCRIBE EXTENDED framed; DESCRIBE EXTENDED rates; DESCRIBE EXTENDED called"
        )


@spark_test
def test_secrets_are_not_shown(tmp_path, spark):
    (tmp_path / "in").mkdir()
    with el.Engine(tmp_path / "storage", spark) as engine:
        engine.execute(
            f"CREATE STREAM s (a INT) USING csv OPTIONS (path '{tmp_path}/in', apiToken 's3cret', sep ';')"
        )
        text = statement_of(engine, "s")
        assert text.startswith("-- '***' stands for a secret")
        assert "apiToken = '***'" in text
        parse_script(text)
        rows = asked(engine, "DESCRIBE EXTENDED s")
        assert "s3cret" not in str(rows) + text
        assert "apiToken=***, sep=;" in str(rows)


SHOWN = {
    "password": ("x", "***"),
    "kafka.sasl.password": ("${env:PW}", "${env:PW}"),
    "kafka.sasl.jaas.config": (
        'Login required username="ann" password="p w" token=\'${env:T}\';',
        'Login required username="ann" password=*** token=***;',
    ),
    "fs.s3a.access.key": ("AKIA", "***"),
    "url": (
        "postgresql://ann:p-w@db:5432/shop?sslmode=require",
        "postgresql://ann:***@db:5432/shop?sslmode=require",
    ),
    "URL": ("postgresql://ann:${env:PW}@db/shop", "postgresql://ann:${env:PW}@db/shop"),
    "hook": ("https://h:80/x?a=1&access_token=t0&b=2", "https://h:80/x?a=1&access_token=***&b=2"),
    "dsn": ("host=db password='p w' dbname=x", "host=db password=*** dbname=x"),
    "headers": ("Authorization: abc", "Authorization: ***"),
    "header": ("Authorization: Bearer a.b-c", "Authorization: Bearer ***"),
    "endpoint": ("postgresql://u:p/@w@h/db", "postgresql://u:***@h/db"),
    "container": (
        "abfss://logs@shop.dfs.core.windows.net/a",
        "abfss://logs@shop.dfs.core.windows.net/a",
    ),
    "page": ("http://h:80/a@b", "http://h:80/a@b"),
    "jaas": (r'a password="p\"w" b="c"', 'a password=*** b="c"'),
    "quoted": ("password = 'it''s' b", "password = *** b"),
    "query": ("https://h/x?sig=a%2C,b&n=1", "https://h/x?sig=***&n=1"),
    "keystore.key": ("PEM", "***"),
    "author": ("ann", "ann"),
    "path": ("/data/a@b:c", "/data/a@b:c"),
    "subscribe": ("clicks", "clicks"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_can_be_a_secret_is_replaced(name):
    value, shown = SHOWN[name]
    assert secrets.without_secrets_in({name: value}) == {name: shown}


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_options_are_read_back(options):
    known = {name.lower(): name for name in options}
    options = {name: options[name] for name in known.values()}
    given_options = secrets.without_secrets_in(options)
    entry = Entry("k1", "sink", "k", "", upstream=("v",), format="jsonl", options=options)
    text = create_statements._with_options("CREATE SINK k FROM v USING jsonl", entry)
    (read,) = parse_script(text)
    assert isinstance(read, CreateSink)
    assert dict(read.options) == given_options


# --- the command line ---


@spark_test
def test_the_command_answers_from_the_catalog(engine, capsys, monkeypatch):
    monkeypatch.setattr("eddyline.cli.queries.open_engine", None)  # no Spark
    storage = engine.files.root

    def printed(query: str, form: str) -> str:
        assert main(["sql", query, "--storage", str(storage), "--format", form]) == 0
        return capsys.readouterr().out

    assert printed("DESCRIBE plain", "csv") == "col_name,data_type,comment\nk,string,\nn,int,\n"
    assert json.loads(printed("show columns in made", "json").splitlines()[0]) == {
        "col_name": "auction"
    }
    assert (
        printed("SHOW CREATE TABLE plain", "table")
        == "CREATE TABLE plain (\n  k STRING,\n  n INT)\n"
    )
    assert "by_k" in printed("SHOW VIEWS LIKE 'by*'", "table")


@spark_test
def test_the_command_asks_spark_for_the_rest(engine, capsys):
    def printed(query: str) -> str:
        assert main(["sql", query, "--storage", str(engine.files.root), "--format", "csv"]) == 0
        return capsys.readouterr().out

    assert printed("SHOW SINKS LIKE 'k*'").startswith(
        "name,view,format,state,epoch,behind,error\nk 1,by_k,jsonl,"
    )
    assert printed("DESCRIBE SELECT k FROM plain") == "col_name,data_type,comment\nk,string,\n"
    assert "Function: abs" in printed("DESCRIBE FUNCTION abs")


def test_examples_in_docstrings():
    for module in (answer, create_statements, secrets):
        assert doctest.testmod(module).failed == 0
