"""The rules of aggregates as a table, refusals, and what people see of a plan."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import eddyline as el
import functions
from eddyline.errors import StateGrowthWarning
from eddyline.operators.join import Join
from eddyline.plan import refusals
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import all_nodes, children_of, find, items, kind, type_of
from eddyline.plan.rules import RULES, Call, rule_of

# What the optimiser makes of each aggregate function that needs no recomputing.
CLAIMED = {
    "any": Call("Max", ("boolean",)),
    "avg": Call("Average", ("double",)),
    "bit_xor": Call("BitXorAgg", ("int",)),
    "bool_and": Call("Min", ("boolean",)),
    "bool_or": Call("Max", ("boolean",)),
    "count": Call("Count", ("double",)),
    "count_if": Call("Count", ("boolean",)),
    "every": Call("Min", ("boolean",)),
    "max": Call("Max", ("string",)),
    "mean": Call("Average", ("int",)),
    "min": Call("Min", ("double",)),
    "regr_avgx": Call("Average", ("int",)),
    "regr_avgy": Call("Average", ("double",)),
    "regr_count": Call("Count", ("boolean",)),
    "some": Call("Max", ("boolean",)),
    "std": Call("StddevSamp", ("double",)),
    "median": Call("Percentile", ("int",), fractions=(0.5,)),
    "percentile": Call("Percentile", ("int",), fractions=(0.5,)),
    "percentile_cont": Call("Percentile", ("int",), fractions=(0.5,)),
    "stddev": Call("StddevSamp", ("double",)),
    "stddev_pop": Call("StddevPop", ("double",)),
    "stddev_samp": Call("StddevSamp", ("double",)),
    "sum": Call("Sum", ("decimal(12,3)",)),
    "try_avg": Call("Average", ("double",)),
    "try_sum": Call("Sum", ("double",)),
    "var_pop": Call("VariancePop", ("double",)),
    "var_samp": Call("VarianceSamp", ("double",)),
    "variance": Call("VarianceSamp", ("double",)),
}
AGGREGATES = [function for function in functions.read() if function.rule]


def test_each_aggregate_that_is_claimed_to_be_linear_has_a_row() -> None:
    claimed = {one.name for one in AGGREGATES if one.rule.startswith("linear")}
    assert claimed == set(CLAIMED)
    for name, call in CLAIMED.items():
        rule = rule_of(call)
        assert call.function in rule.functions, name
        assert rule.keep is not None, name
        assert rule.keep(call).buffers, name


def test_each_row_decides_about_some_call() -> None:
    types = (
        "int",
        "bigint",
        "decimal(10,2)",
        "decimal(38,2)",
        "decimal(38,30)",
        "double",
        "string",
        "binary",
    )
    calls = [
        Call(function, (one,), distinct, append_only, fractions)
        for function in {name for rule in RULES for name in rule.functions} | {"CollectList"}
        for one in types
        for distinct in (False, True)
        for append_only in (False, True)
        for fractions in ((), (0.5,))
    ]
    assert {rule_of(call).name for call in calls} == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call("Count", ()), "sum of weights"),
        (Call("Count", ("string", "int"), distinct=True), "sum of weights"),
        (Call("Sum", ("decimal(27,2)",)), "sum of decimals"),
        (Call("Sum", ("decimal(28,2)",)), "sum of decimals in two words"),
        (
            Call("Sum", ("decimal(38,28)",)),
            "recompute: the product with a weight would lose digits",
        ),
        (Call("Sum", ("interval day to second",)), RULES[-1].name),
        (Call("Max", ("date",), append_only=True), "extreme so far"),
        (Call("Max", ("date",)), "extreme of sorted values"),
        (Call("Max", ("double",), append_only=True), "extreme of sorted values"),
        (Call("Max", ("struct<p:int>",)), RULES[-1].name),
        (Call("Percentile", ("bigint",), fractions=(0.5,)), "percentiles of sorted values"),
        (Call("Percentile", ("decimal(15,2)",), fractions=(0.5,)), "percentiles of sorted values"),
        (Call("Percentile", ("decimal(16,2)",), fractions=(0.5,)), RULES[-1].name),
        (Call("Percentile", ("double",)), RULES[-1].name),
        (Call("StddevPop", ("decimal(10,2)",)), RULES[-1].name),
        (Call("CollectList", ("int",)), RULES[-1].name),
    ],
)
def test_a_call_gets_its_row(call: Call, name: str) -> None:
    assert rule_of(call).name == name


def test_each_refusal_says_why_and_the_way_out() -> None:
    tables = (refusals.EXPRESSIONS, refusals.NODES, refusals.TYPES)
    named = [one for one in vars(refusals).values() if isinstance(one, refusals.Refusal)]
    for refusal in [*named, *(one for table in tables for one in table.values())]:
        assert refusal.why
        assert refusal.way_out
        filled = refusal.about(what="x", name="x", names="x", type="x")
        assert "{" not in filled.error("v").args[0]


# -- with Spark ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[el.Engine]:
    folder: Path = tmp_path_factory.mktemp("plan")
    (folder / "in").mkdir()
    with el.Engine(str(folder / "storage"), spark=spark) as made:
        made.table("t", "id BIGINT, k STRING, x DOUBLE, ts TIMESTAMP")
        made.table("u", "id BIGINT, k STRING, x DOUBLE")
        columns = "ts TIMESTAMP, k STRING, sip STRING, x DOUBLE"
        spark.udf.register("triple", udf(lambda v: v * 3, "bigint"))
        made.create_stream("s", columns, "json", {"path": str(folder / "in")})
        yield made


@pytest.mark.spark
def test_each_aggregate_gets_the_rule_that_is_written_down(spark: SparkSession) -> None:
    """The class names and types in `CLAIMED` are those that Spark's optimiser leaves."""
    session = functions.session(spark)
    session.createDataFrame([], functions.COLUMNS).createOrReplaceTempView("t")
    catalyst = Catalyst(session)
    for function in AGGREGATES:
        if function.name not in CLAIMED:
            continue
        plan = catalyst.optimized(
            catalyst.analyzed(f"SELECT g, {function.call} AS r FROM t GROUP BY g")
        )
        found = [
            call.aggregateFunction()
            for node in all_nodes(plan)
            if kind(node) == "Aggregate"
            for result in items(node.aggregateExpressions())
            for call in find(result, lambda name: name == "AggregateExpression")
        ]
        assert [kind(one) for one in found] == [CLAIMED[function.name].function], function.name
        types = tuple(type_of(one).simpleString() for one in items(found[0].children()))
        claimed = CLAIMED[function.name]
        # of a percentile the others are constants: fractions and counts
        given = types[:1] if claimed.fractions else types
        if kind(found[0]) != "Count":
            assert given == claimed.types, function.name


SHOWN = {
    "grouped": (
        "SELECT k, x, sum(x) AS total, count(DISTINCT id) AS ids FROM t WHERE x > 1 GROUP BY k, x",
        ["sum(t.x) AS total", "count(DISTINCT t.id) AS ids", "keys: t.k, t.x", "(t.x > 1.0D)"],
    ),
    "recomputed": (
        "SELECT x, collect_list(k) AS ks FROM t GROUP BY x",
        ["collect_list(t.k) AS ks", "keys: t.x"],
    ),
    "joined": (
        "SELECT t.id, u.k FROM t LEFT JOIN u ON t.x = u.x AND t.id < u.id",
        ["((t.x = u.x) AND (t.id < u.id))"],
    ),
    "ranked": (
        "SELECT k, x, rank() OVER (PARTITION BY x ORDER BY id DESC) AS r FROM t",
        ["RANK() OVER (PARTITION BY t.x ORDER BY t.id DESC NULLS LAST"],
    ),
    "ranked in an expression": (
        "SELECT k, 1 + rank() OVER (PARTITION BY x ORDER BY id) AS r FROM t",
        ["Project [class 1, stateless; rule: stateless] t.k, (RANK() OVER (PARTITION BY t.x ORDER"],
    ),
    "grouped by sets": (
        "SELECT k, id, count(*) AS n, grouping(k) AS g FROM t GROUP BY CUBE (k, id)",
        ["keys: t.k, t.id, grouping_id()"],
    ),
    "best": ("SELECT * FROM t ORDER BY x DESC, id LIMIT 3", ["3 rows by t.x DESC NULLS LAST"]),
    "unnamed": (
        "SELECT k, n FROM (SELECT k, count(*) AS n FROM t WHERE k <> 'a #1' GROUP BY ROLLUP (k))"
        " WHERE n > 1",
        ["(n > 1L)", "each row 2 times", "'a #1'"],
    ),
    "called": ("SELECT triple(id) AS i FROM t", ["triple(id)"]),
    "paired": (
        "SELECT t.id, u.id AS other FROM t JOIN u ON t.x < u.x",
        ["Inner join on (t.x < u.x)"],
    ),
}
# ids, and functions that only the optimiser writes
INTERNAL = re.compile(
    r"\w#\d|auto_generated|knownnullable|knownnotnull|knownfloatingpoint|normalizenanandzero"
    r"|\b_we\d|spark_grouping",
    re.IGNORECASE,
)


@pytest.mark.spark
@pytest.mark.parametrize("name", SHOWN)
def test_explain_shows_sql(engine: el.Engine, name: str) -> None:
    query, fragments = SHOWN[name]
    shown = engine.explain(query)
    assert INTERNAL.search(shown) is None, shown
    for fragment in fragments:
        assert fragment in shown, shown


@pytest.mark.spark
def test_explain_of_a_name_that_is_not_known(engine: el.Engine) -> None:
    with pytest.raises(el.CatalogError) as refused:
        engine.explain("visist")
    assert refused.value.condition == "NOT_FOUND"


@pytest.mark.spark
def test_a_view_warns_once_of_growing_state(engine: el.Engine) -> None:
    queries = {
        "by_time": ("SELECT ts, count(*) AS n FROM s GROUP BY ts", "the groups by s.ts"),
        "by_double": ("SELECT x, collect_list(sip) AS l FROM s GROUP BY x", "the rows by s.x"),
        "both": (
            "SELECT a.k, b.x FROM s a JOIN s b ON a.x = b.x AND a.sip = b.sip",
            "the left side of the Inner join on",
        ),
        "twice": (
            "SELECT w, max(n) AS n FROM (SELECT ts AS w, k, count(*) AS n FROM s GROUP BY ts, k)"
            " GROUP BY w",
            "the groups by",
        ),
    }
    for name, (query, fragment) in queries.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine.view(name, query)
        texts = [str(one.message) for one in caught if one.category is StateGrowthWarning]
        assert len(texts) == 1, texts
        assert fragment in texts[0]
        assert texts[0].startswith(f"view {name}: the state of ")
        assert INTERNAL.search(texts[0]) is None, texts
        assert len(texts[0]) < 400
        engine.drop("view", name)


@pytest.mark.spark
def test_distinct_calls_with_conditions_share_the_distinct_rows(engine: el.Engine) -> None:
    counts = ", ".join(f"count(DISTINCT id) FILTER (WHERE x > {n})" for n in range(3))
    shown = engine.explain(
        f"SELECT k, {counts}, count(DISTINCT id), count(DISTINCT x) FROM t GROUP BY k"
    )
    assert len(re.findall(r"\bDistinct\b", shown)) == 2


@pytest.mark.spark
def test_a_join_that_compares_both_sides_is_one_operator(engine: el.Engine) -> None:
    shown = engine.explain("SELECT t.id, u.k FROM t FULL JOIN u ON t.x = u.x AND t.id < u.id")
    assert shown.count("class 2") == 2, shown  # the join and the view
    assert "rows of both sides by key, and how many pairs each is in" in shown
    shown = engine.explain(
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.x = t.x AND u.id <> t.id)"
        " AND NOT EXISTS (SELECT 1 FROM u WHERE u.x = t.x AND u.id <> t.id AND u.k > 'a')"
    )
    assert shown.count("class 2") == 3, shown
    # what may fail for rows without a partner is left to Spark, which evaluates it for pairs
    shown = engine.explain("SELECT t.id, u.k FROM t LEFT JOIN u ON t.x = u.x AND u.id < 1 div t.id")
    assert "rows with a pair" in shown


@pytest.mark.spark
def test_columns_of_both_sides_of_a_join_travel_together(engine: el.Engine) -> None:
    """Each in one of the other side, of the same type; not nested ones, nor more than the other side has."""
    engine.table("nested", "id BIGINT, a ARRAY<INT>, v INT, w INT")
    engine.view(
        "joined",
        "SELECT l.id, l.a, l.v, r.id AS rid, r.a AS ra, r.v AS rv, r.w FROM nested l JOIN nested r USING (id)",
    )
    workspace = engine._workspace
    plan = workspace.plan(workspace.catalog.get("joined")).plan
    (join,) = [one.operator for one in plan.parts if isinstance(one.operator, Join)]
    assert (join.left, join.right) == (3, 4)
    assert dict(join.carried) == {"r0": "l0", "r2": "l2"}
    engine.drop("view", "joined")
    engine.drop("table", "nested")


@pytest.mark.spark
def test_not_in_compares_by_value(engine: el.Engine) -> None:
    shown = engine.explain("SELECT id FROM t WHERE id NOT IN (SELECT id FROM u)")
    assert "keys: t.id" in shown
    assert "warning" not in shown
    shown = engine.explain("SELECT id FROM t WHERE (x, k) NOT IN (SELECT x, k FROM u)")
    assert "warning: a join without an equality" in shown


@pytest.mark.spark
def test_deep_expressions_are_live(engine: el.Engine) -> None:
    engine.table("deeply", "v BIGINT").insert([(1,), (2,)])
    engine.view("deep", f"SELECT {' + '.join(['v'] * 400)} AS s FROM deeply")
    engine.advance()
    assert sorted(engine.snapshot("deep").collect()) == [(400,), (800,)]
    catalyst = Catalyst(engine.spark)
    node, depth = catalyst.constant(" + ".join(["1"] * 700)), 0
    while below := children_of(node):
        node, depth = below[0], depth + 1
    assert depth == 699
