"""What can't be kept live is refused when the view is created; the error says why and the way out."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql.functions import udf

import eddyline as el
from eddyline.plan import determinism, refusals

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from eddyline.spark.session import local_session

    spark = local_session()
    with el.Engine(str(tmp_path_factory.mktemp("refusals")), spark=spark) as made:
        made.table("t", "id BIGINT, v INT, s STRING, ts TIMESTAMP")
        made.table("u", "id BIGINT, v INT")
        spark.sql("CREATE TEMPORARY FUNCTION drawn(x BIGINT) RETURNS DOUBLE RETURN x + rand()")
        spark.sql("CREATE TEMPORARY FUNCTION doubled(x BIGINT) RETURNS BIGINT RETURN x * 2")
        spark.sql("SELECT 1L AS id").createOrReplaceTempView("ones")
        yield made
        spark.catalog.dropTempView("ones")
        spark.sql("DROP TEMPORARY FUNCTION drawn")
        spark.sql("DROP TEMPORARY FUNCTION doubled")


REFUSED = {
    "rows of the session": ("SELECT t.id FROM t JOIN ones USING (id)", "NOT_LIVE", "reads ones"),
    "rows of the session in a subquery": (
        "SELECT id FROM t WHERE id IN (SELECT id FROM ones)",
        "NOT_LIVE",
        "reads ones",
    ),
    "rand": ("SELECT id, rand() AS r FROM t", "NOT_LIVE", "rand"),
    "rand with a seed": ("SELECT * FROM t WHERE rand(1) < 0.5", "NOT_LIVE", "rand"),
    "uuid": ("SELECT uuid() AS u FROM t", "NOT_LIVE", "uuid"),
    "shuffle": ("SELECT shuffle(array(id, v)) AS a FROM t", "NOT_LIVE", "shuffle"),
    "random sketch": ("SELECT kll_sketch_agg_bigint(id) AS k FROM t", "NOT_LIVE", "random"),
    "now": ("SELECT * FROM t WHERE ts > now() - INTERVAL 1 MONTH", "NOT_LIVE", "now"),
    "current_timestamp": (
        "SELECT current_timestamp() AS c FROM t",
        "NOT_LIVE",
        "current_timestamp",
    ),
    "current_date": ("SELECT current_date() AS c FROM t", "NOT_LIVE", "current_date"),
    "localtimestamp": ("SELECT localtimestamp() AS c FROM t", "NOT_LIVE", "localtimestamp"),
    "unix_timestamp": ("SELECT unix_timestamp() AS c FROM t", "NOT_LIVE", "current_timestamp"),
    "TIMESTAMP 'now', escaped": (
        r"SELECT id FROM t WHERE ts > TIMESTAMP 'n\u006fw'",
        "NOT_LIVE",
        "'now'",
    ),
    "TIMESTAMP 'now'": ("SELECT id FROM t WHERE ts > TIMESTAMP 'now'", "NOT_LIVE", "'now'"),
    "DATE 'today'": ('SELECT DATE "Today" - INTERVAL 1 DAY AS d FROM t', "NOT_LIVE", "'Today'"),
    "a text that is compared": ("SELECT id FROM t WHERE ts > ' Yesterday '", "NOT_LIVE", "Yester"),
    "a cast": ("SELECT CAST(concat('to', 'morrow') AS DATE) AS c FROM t", "NOT_LIVE", "'tomorrow'"),
    "to_timestamp": (
        "SELECT id, (SELECT max(id) FROM t WHERE ts < to_timestamp('now')) AS c FROM u",
        "NOT_LIVE",
        "'now'",
    ),
    "in a subquery": (
        "SELECT * FROM t WHERE id IN (SELECT id FROM u WHERE v > rand() * 10)",
        "NOT_LIVE",
        "rand",
    ),
    "reflect": (
        "SELECT id, reflect('java.util.UUID', 'randomUUID') AS r FROM t",
        "NOT_LIVE",
        "reflect",
    ),
    "java_method": (
        "SELECT id FROM t WHERE java_method('java.lang.Math', 'abs', v) > 1",
        "NOT_LIVE",
        "java_method",
    ),
    "try_reflect": (
        "SELECT try_reflect('java.util.UUID', 'randomUUID') AS r FROM t",
        "NOT_LIVE",
        "reflect",
    ),
    "a function in SQL": ("SELECT drawn(id) AS r FROM t", "NOT_LIVE", "rand"),
    "monotonic id": ("SELECT monotonically_increasing_id() AS i FROM t", "NOT_LIVE", "monoton"),
    "sample": ("SELECT * FROM t TABLESAMPLE (10 PERCENT)", "NOT_LIVE", "TABLESAMPLE"),
    "recursion": (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
        "NOT_LIVE",
        "recursive",
    ),
    "doubled column": ("SELECT id, id FROM t", "DUPLICATE_COLUMN", "id"),
    "months": (
        "SELECT make_ym_interval(1, v) AS m FROM t",
        "UNSUPPORTED_TYPE",
        "interval",
    ),
    **{
        f"collation within {name}": (f"SELECT {value} AS c FROM t", "UNSUPPORTED_TYPE", "lower(x)")
        for name, value in {
            "a struct": "struct(s COLLATE UTF8_LCASE)",
            "an array": "array(s COLLATE UTF8_LCASE)",
            "a map in a struct": "struct(map(v, array(s COLLATE UTF8_LCASE)))",
        }.items()
    },
    "grouped by a collation": (
        "SELECT count(*) AS n FROM t GROUP BY struct(s COLLATE UTF8_LCASE)",
        "UNSUPPORTED_TYPE",
        "lower(x)",
    ),
    "joined by a collation": (
        "SELECT a.id FROM t AS a JOIN t AS b ON struct(a.s COLLATE UTF8_LCASE) = struct(b.s COLLATE UTF8_LCASE)",
        "UNSUPPORTED_TYPE",
        "lower(x)",
    ),
    "a shape": (
        "SELECT st_geomfromwkb(X'0101000000000000000000F03F0000000000000040') AS p FROM t",
        "UNSUPPORTED_TYPE",
        "st_asbinary",
    ),
    "a shape within an array": (
        "SELECT array(st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')) AS p FROM t",
        "UNSUPPORTED_TYPE",
        "st_asbinary",
    ),
    **{
        f"repeated fields of {value}": (
            f"SELECT {value} AS s FROM t",
            "UNSUPPORTED_TYPE",
            "different names",
        )
        for value in ("named_struct('a', v, 'a', s)", "array(named_struct('a', v, 'a', s))")
    },
    **{
        f"a time of day, {time}": (f"SELECT {time} AS a", "UNSUPPORTED_TYPE", "timeType.enabled")
        for time in ("TIME '01:02:03'", "make_time(1, 2, 3)", "CAST('01:02:03' AS TIME)")
    },
    **{
        f"empty {value}": (f"SELECT {value} AS a FROM t", "UNSUPPORTED_TYPE", "give its elements")
        for value in (
            "array()",
            "map()",
            "collect_list(NULL)",
            "struct(array())",
            "CASE WHEN v > 1 THEN array() END",
        )
    },
    **{
        f"constant {number}": (f"SELECT {value} AS a FROM t", "INVALID_QUERY", named)
        for number, (value, named) in enumerate(
            (
                ("s RLIKE '['", "'['"),
                ("regexp_replace(s, '(', 'x')", "regexp_replace"),
                ("regexp_count(s, '(')", "PATTERN"),
                ("upper(split(s, '(')[0])", "'('"),
                (r"s LIKE 'a\\'", "ESC_AT_THE_END"),
                ("date_format(ts, 'bbb')", "'bbb'"),
                ("to_date(s, 'bogus')", "'bogus'"),
                ("from_utc_timestamp(ts, 'No/Where')", "No/Where"),
                ("encode(s, 'none')", "CHARSET"),
                ("v + (SELECT count(*) FROM u WHERE CAST(v AS STRING) RLIKE '[')", "'['"),
            )
        )
    },
    "unknown column": ("SELECT nope FROM t", "INVALID_QUERY", "nope"),
    "unknown relation": ("SELECT * FROM nowhere", "INVALID_QUERY", "nowhere"),
    "syntax": ("SELEC * FROM t", "INVALID_QUERY", "SELEC"),
    "types that don't fit": ("SELECT array(1) + 1 AS a FROM t", "INVALID_QUERY", "DATATYPE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_reason_fragment_and_way_out(engine, case):
    query, condition, named = REFUSED[case]
    with pytest.raises(el.QueryError) as error:
        engine.view("refused", query)
    message = str(error.value)
    assert error.value.condition == condition
    assert named.lower() in message.lower()
    assert "view refused" in message
    assert "Way out: " in message
    assert "JVM" not in message
    assert [row.name for row in engine.show("view").collect()] == []


@pytest.mark.parametrize(
    "value",
    [
        "s RLIKE concat(s, '[')",
        "to_timestamp(s, 'yyyy-MM')",
        "from_utc_timestamp(TIMESTAMP '2026-01-01 00:00:00', s)",
        "convert_timezone(s, 'UTC', TIMESTAMP_NTZ '2026-01-01 00:00:00')",
        "encode('a', s)",
        "split(s, '')",
        "CASE WHEN false THEN s RLIKE '[' END",
    ],
)
def test_constants_that_some_row_can_be_evaluated_with(engine, value):
    engine.explain(f"SELECT {value} AS a FROM t")


def test_a_function_not_marked_deterministic(engine):
    engine.spark.udf.register("noise", udf(lambda v: v, "int").asNondeterministic())
    engine.spark.udf.register("plus_one", udf(lambda v: None if v is None else v + 1, "int"))
    with pytest.raises(el.QueryError) as error:
        engine.view("refused", "SELECT noise(v) AS n FROM t")
    assert "noise" in str(error.value)
    assert "deterministic" in str(error.value)
    view = engine.view("accepted", "SELECT plus_one(v) AS n FROM u")
    engine.execute("INSERT INTO u VALUES (1, 41)")
    engine.advance()
    assert [row.n for row in view.snapshot().collect()] == [42]
    engine.drop("view", "accepted")


def test_an_expression_that_nothing_is_known_of(engine, monkeypatch):
    query = "SELECT upper(s) AS u FROM t"
    engine.explain(query)
    monkeypatch.setattr(determinism, "KNOWN", determinism.KNOWN - {"Upper"})
    with pytest.raises(el.QueryError) as error:
        engine.explain(query)
    assert "upper(t.s): it isn't known to be deterministic" in str(error.value)


def test_known_expressions_are_classes_of_this_spark(engine):
    loader = engine.spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    expression = loader.loadClass(f"{determinism.PACKAGE}Expression")

    def is_expression(name):
        full = name if name.startswith("org.") else f"{determinism.PACKAGE}{name}"
        for form in (full, f"{full}$"):  # of an object there is a class with this sign
            try:
                if expression.isAssignableFrom(loader.loadClass(form)):
                    return True
            except Py4JJavaError:
                continue
        return False

    assert [name for name in determinism.KNOWN if not is_expression(name)] == []
    assert determinism.KNOWN.isdisjoint(refusals.EXPRESSIONS)


def test_a_function_in_sql_is_what_it_consists_of(engine):
    view = engine.view("accepted", "SELECT doubled(id) AS d FROM u")
    engine.execute("INSERT INTO u VALUES (4, 41)")
    engine.advance()
    assert 8 in [row.d for row in view.snapshot().collect()]
    engine.drop("view", "accepted")


def test_a_stored_sketch_can_be_read(engine):
    for function in ("get_n", "to_string"):
        engine.explain(f"SELECT kll_sketch_{function}_bigint(CAST(s AS BINARY)) AS n FROM t")


def test_names(engine):
    with pytest.raises(el.CatalogError) as error:
        engine.view("t", "SELECT 1 AS one")
    assert error.value.condition == "NAME_TAKEN"
    with pytest.raises(el.CatalogError) as error:
        engine.drop("view", "nowhere")
    assert error.value.condition == "NOT_FOUND"
    with pytest.raises(el.CatalogError) as error:
        engine.table("w", "id BIGINT", primary_key=["nope"])
    assert error.value.condition == "UNKNOWN_COLUMN"
    with pytest.raises(el.EngineError) as error:
        el.Options(buckets=-1)
    assert error.value.condition == "BAD_OPTION"


@pytest.mark.parametrize("kind", ["GEOMETRY(4326)", "ARRAY<GEOGRAPHY(4326)>"])
def test_a_table_of_shapes(engine, kind):
    with pytest.raises(
        el.errors.DataError, match=r"UNSUPPORTED_TYPE.*column a has .*BINARY for a shape"
    ):
        engine.execute(f"CREATE TABLE shapes (id INT, a {kind})")


def test_a_join_without_an_equality_is_warned_of(engine):
    assert "warning: a join without an equality" in engine.explain(
        "SELECT t.id, u.v FROM t JOIN u ON t.v < u.v"
    )


def test_moments_that_stay_are_accepted(engine):
    query = """SELECT 'now' AS c, DATE 'epoch' AS d, ts < TIMESTAMP '2026-01-01' AS e,
        CAST('2026-01-01' AS DATE) AS f, try_cast(s AS TIMESTAMP) AS g FROM t WHERE s <> 'today'"""
    engine.view("accepted", query)
    engine.drop("view", "accepted")


def test_after_all_that_the_engine_works(engine):
    view = engine.view("fine", "SELECT count(*) AS n FROM t")
    engine.execute("INSERT INTO t VALUES (1, 1, 'x', TIMESTAMP '2026-01-01 00:00:00')")
    engine.advance()
    assert [row.n for row in view.snapshot().collect()] == [1]
    engine.drop("view", "fine")
