"""Generate random queries over random tables, whose results are deterministic.

A grammar nests operators. Every relation renames its columns to `c0..`, so that it can be used wherever
a table can. Queries avoid results that SQL leaves undefined: orders are total before LIMIT and row
numbers, sums of doubles are exact (multiples of a quarter), and inexact values (averages) are selected
but never compared or grouped by. Simple choices come first, so that Hypothesis shrinks towards them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

INT, TEXT, DOUBLE, DECIMAL, DATE, BOOL, TIME, ARRAY, STRUCT = (
    "BIGINT",
    "STRING",
    "DOUBLE",
    "DECIMAL(8,2)",
    "DATE",
    "BOOLEAN",
    "TIMESTAMP",
    "ARRAY<BIGINT>",
    "STRUCT<a: BIGINT, b: STRING>",
)
INEXACT, LIST = "inexact", "list"  # types of results, never of table columns
OPTIONS = [
    "",
    "",
    "hash_bits=1",
    "buckets=1",
    "native_rules=0",
    "task_bytes=1024, short_lane_rows=0",
]
TYPES = (INT, TEXT, DOUBLE, DECIMAL, DATE, BOOL, TIME, ARRAY, STRUCT)
SORTED = TYPES[:-2]  # types by which queries order

VALUES: dict[str, list[Any]] = {
    INT: [1, 2, 3, 0, -2, None],
    TEXT: ["a", "b", "c", "A", "", None],
    DOUBLE: [1.5, 0.25, 0.0, -0.0, -2.75, 1e6, float("nan"), None],
    DECIMAL: [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00"), Decimal("99.99"), None],
    DATE: [date(2024, 1, 1), date(2024, 1, 2), date(2024, 2, 29), None],
    BOOL: [True, False, None],
    TIME: [
        datetime(2024, 2, 29, *time, tzinfo=UTC) for time in ((0,), (0, 20), (1, 5, 0, 1), (23, 59))
    ]
    + [None],
    ARRAY: [[1], [1, 2], [], [None, 3, 3], None],
    STRUCT: [(1, "a"), (1, "b"), (None, None), (3, None), None],
}
LITERALS = {
    INT: ["1L", "0L", "3L"],
    TEXT: ["'a'", "'b'", "''"],
    DOUBLE: ["1.5D", "0D", "double('NaN')"],
    DECIMAL: ["1.50BD", "0.00BD"],
    DATE: ["DATE '2024-01-02'"],
    BOOL: ["true", "false"],
    TIME: ["TIMESTAMP '2024-02-29 00:20:00'"],
    ARRAY: ["array(1L)", "CAST(array() AS ARRAY<BIGINT>)"],
    STRUCT: ["struct(1L AS a, 'b' AS b)"],
}


@dataclass(frozen=True)
class Relation:
    """The text of a relation, as it follows FROM, and its columns with their types."""

    text: str
    columns: tuple[tuple[str, str], ...]

    def of(self, *types: str) -> list[str]:
        return [name for name, kind in self.columns if kind in types]

    @property
    def exact(self) -> list[str]:
        """The columns that may be compared."""
        return self.of(*TYPES)


@dataclass(frozen=True)
class Case:
    """Tables, views over them (later views may read earlier ones), and the changes of each epoch.

    Attributes:
        options: the engine's options, as a Python expression.
        epochs: for each epoch its changes: (table, `insert` or `delete`, rows).
    """

    tables: dict[str, str]
    views: dict[str, str]
    epochs: list[list[tuple[str, str, list[tuple[Any, ...]]]]]
    options: str


@st.composite
def cases(draw: Draw, depth: int = 3) -> Case:
    """Draw a case whose last view nests at most `depth` operators."""
    tables, known = {}, []
    for number in range(draw(st.integers(1, 3))):
        kinds = [INT, TEXT, *draw(st.lists(st.sampled_from(TYPES), max_size=3))]
        columns = tuple((f"c{i}", kind) for i, kind in enumerate(kinds))
        tables[f"t{number}"] = ", ".join(f"{name} {kind}" for name, kind in columns)
        known.append(Relation(f"t{number}", columns))
    grammar = Grammar(draw, known)
    views = {}
    base = list(known)
    for number in range(draw(st.integers(0, 1))):
        relation = grammar.relation(draw(st.integers(1, 2)))
        views[f"v{number}"] = relation.text[1:-1]
        known.append(Relation(f"v{number}", relation.columns))
    with_ = ""
    if draw(st.integers(0, 3)) == 3:
        relation = grammar.relation(draw(st.integers(1, 2)))
        with_ = f"WITH w AS {relation.text} "
        known.append(Relation("w", relation.columns))
    relation = grammar.relation(draw(st.integers(1, depth)))
    views["result"] = with_ + relation.text[1:-1]
    options = draw(st.sampled_from(OPTIONS))
    # rows are generated from a drawn seed: Hypothesis then shrinks the query, not each value
    seed = draw(st.integers(0, 999))
    return Case(tables, views, _epochs(random.Random(seed), base), f"el.Options({options})")


def _epochs(source: random.Random, tables: list[Relation]) -> list[Any]:
    held: dict[str, list[tuple[Any, ...]]] = {table.text: [] for table in tables}
    epochs = []
    most = source.choice([7, 7, 30])
    for number in range(4):
        changes = []
        for table in tables:
            rows = held[table.text]
            gone = source.sample(rows, min(len(rows), source.randint(0, 4)) if number else 0)
            come = [
                tuple(source.choice(VALUES[kind]) for _, kind in table.columns)
                for _ in range(source.randint(0, most if number in (0, 2) else 3))
            ]
            # an update: the same row with another value
            come += [(source.choice(VALUES[INT]), *old[1:]) for old in gone[:1]]
            for old in gone:
                rows.remove(old)
            rows += come
            changes += [(table.text, "delete", gone)] * bool(gone)
            changes += [(table.text, "insert", come)] * bool(come)
        epochs.append(changes)
    return epochs


class Grammar:
    """Draws queries over known relations."""

    def __init__(self, draw: Draw, known: list[Relation]) -> None:
        self.draw = draw
        self.known = known

    def pick(self, values: Any) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def shared(self, left: Relation, right: Relation) -> list[str]:
        """Return the types that occur in the columns of both relations."""
        return [kind for kind in TYPES if left.of(kind) and right.of(kind)]

    def some(self, values: Any, least: int = 1, most: int = 3) -> list[Any]:
        values = list(values)
        count = self.draw(st.integers(min(least, len(values)), min(most, len(values))))
        return self.draw(st.permutations(values))[:count]

    def relation(self, depth: int) -> Relation:
        """Draw a SELECT in parentheses; at depth 0 a table or view."""
        if depth == 0:
            return self.pick(self.known)
        operators = (
            self.projected, self.filtered, self.grouped, self.joined, self.distinct, self.united,
            self.windowed, self.limited, self.ranked, self.with_subquery, self.with_scalar, self.rolled_up,
            self.timed, self.exploded, self.lateral,
        )  # fmt: skip
        return self.pick(operators)(depth)

    # -- expressions -----------------------------------------------------------------------

    def value(self, kind: str, source: Relation, prefix: str = "", depth: int = 1) -> str:
        """Draw an expression of a type."""
        columns = [prefix + name for name in source.of(kind)]
        ways = ["column"] * bool(columns) + ["literal"]
        if depth:
            ways += ["operation", "case"]
        way = self.pick(ways)
        if way == "column":
            return self.pick(columns)
        if way == "literal":
            return self.pick(LITERALS[kind])

        def part(wanted: str) -> str:
            return self.value(wanted, source, prefix, depth - 1)

        if way == "case":
            condition = self.condition(source, prefix, depth - 1)
            return f"CASE WHEN {condition} THEN {part(kind)} ELSE {part(kind)} END"
        operations: dict[str, list[Callable[[], str]]] = {
            INT: [
                lambda: f"({part(INT)} + {part(INT)})",
                lambda: f"coalesce({part(INT)}, 0L)",
                lambda: f"pmod({part(INT)}, 3L)",
                lambda: f"CAST(length({part(TEXT)}) AS BIGINT)",
                lambda: f"CAST(day({part(DATE)}) AS BIGINT)",
                lambda: f"CAST(size({part(ARRAY)}) AS BIGINT)",
                lambda: f"{part(STRUCT)}.a",
            ],
            TEXT: [
                lambda: f"concat({part(TEXT)}, {part(TEXT)})",
                lambda: f"upper({part(TEXT)})",
                lambda: f"nullif({part(TEXT)}, 'a')",
                lambda: f"CAST({part(INT)} AS STRING)",
            ],
            DOUBLE: [
                lambda: f"({part(DOUBLE)} + {part(DOUBLE)})",
                lambda: f"(- {part(DOUBLE)})",
                lambda: f"CAST({part(INT)} AS DOUBLE)",
            ],
            DECIMAL: [
                lambda: f"CAST({part(DECIMAL)} - {part(DECIMAL)} AS DECIMAL(20,2))",
                lambda: f"abs({part(DECIMAL)})",
            ],
            DATE: [
                lambda: f"date_add({part(DATE)}, 1)",
                lambda: f"greatest({part(DATE)}, {part(DATE)})",
                lambda: f"CAST({part(TIME)} AS DATE)",
            ],
            BOOL: [lambda: f"({self.condition(source, prefix, depth - 1)})"],
            TIME: [
                lambda: f"({part(TIME)} + INTERVAL 30 MINUTES)",
                lambda: f"date_trunc('hour', {part(TIME)})",
                lambda: f"CAST({part(DATE)} AS TIMESTAMP)",
            ],
            ARRAY: [
                lambda: f"array({part(INT)}, {part(INT)})",
                lambda: f"array_distinct({part(ARRAY)})",
            ],
            STRUCT: [lambda: f"struct({part(INT)} AS a, {part(TEXT)} AS b)"],
        }
        return self.pick(operations[kind])()

    def condition(self, source: Relation, prefix: str = "", depth: int = 1) -> str:
        """Draw a boolean expression."""
        kind = self.pick([k for k in TYPES if source.of(k)] or [INT])
        column = self.value(kind, source, prefix, 0)
        way = self.pick(["compare", "null", "in", *["and", "or", "not"] * (depth > 0)])
        if way == "compare":
            operator = self.pick(["=", ">", "<>", "<=", "<=>"])
            return f"{column} {operator} {self.value(kind, source, prefix, 0)}"
        if way == "null":
            return f"{column} IS {self.pick(['NOT ', ''])}NULL"
        if way == "in":
            return f"{column} IN ({', '.join(LITERALS[kind])})"
        left = self.condition(source, prefix, depth - 1)
        if way == "not":
            return f"NOT ({left})"
        return f"({left} {way.upper()} {self.condition(source, prefix, depth - 1)})"

    def call(self, source: Relation, prefix: str = "") -> tuple[str, str]:
        """Draw an aggregate call; return it with its type."""
        kind = self.pick([k for k in TYPES if source.of(k)] or [INT])
        argument = self.value(kind, source, prefix, self.draw(st.integers(0, 1)))
        ways = [
            ("count(*)", INT), (f"count({argument})", INT), (f"max({argument})", kind), (f"min({argument})", kind),
            (f"count(DISTINCT {argument})", INT), (f"sort_array(collect_list({argument}))", LIST),
        ]  # fmt: skip
        if kind in (INT, DOUBLE):
            ways += [
                (f"sum({argument})", kind),
                (f"avg({argument})", INEXACT),
                (f"stddev({argument})", INEXACT),
            ]
            ways += [(f"percentile({argument}, 0.5)", INEXACT), (f"sum(DISTINCT {argument})", kind)]
        if kind == DECIMAL:
            ways += [(f"sum({argument})", DECIMAL), (f"avg({argument})", INEXACT)]
        if kind == BOOL:
            ways += [(f"bool_or({argument})", BOOL), (f"count_if({argument})", INT)]
        if kind == INT:
            ways += [(f"bit_xor({argument})", INT), (f"approx_count_distinct({argument})", INT)]
        text, result = self.pick(ways)
        if self.draw(st.integers(0, 4)) == 4:
            inner = f"{text[:-1]}) FILTER (WHERE {self.condition(source, prefix, 0)})"
            text = inner if not text.startswith("sort_array") else text
        return text, result

    # -- operators -------------------------------------------------------------------------

    def below(self, depth: int) -> Relation:
        return self.relation(self.draw(st.integers(0, depth - 1)))

    def projected(self, depth: int) -> Relation:
        source = self.below(depth)
        items = [(name, kind) for name, kind in self.some(source.columns)]
        items += [(self.value(kind, source), kind) for kind in self.some(TYPES, 0, 2)]
        return _select(items, f"FROM {source.text} q")

    def filtered(self, depth: int) -> Relation:
        source = self.below(depth)
        return _select(source.columns, f"FROM {source.text} q WHERE {self.condition(source)}")

    def distinct(self, depth: int) -> Relation:
        source = self.below(depth)
        names = self.some(source.exact) or ["1L"]
        items = [(name, dict(source.columns).get(name, INT)) for name in names]
        return _select(items, f"FROM {source.text} q", "SELECT DISTINCT")

    def _keys(self, source: Relation, least: int) -> list[tuple[str, str]]:
        kinds = dict(source.columns)
        return [(name, kinds[name]) for name in self.some(source.exact, least, 2)]

    def grouped(self, depth: int) -> Relation:
        source = self.below(depth)
        keys = self._keys(source, 0)
        calls = [self.call(source) for _ in range(self.draw(st.integers(1, 3)))]
        if self.draw(st.integers(0, 4)) == 4:
            other = self.below(depth)
            call, kind = self.call(other, "s.")
            calls.append((f"(SELECT {call} FROM {other.text} s)", kind))
        tail = f"FROM {source.text} q"
        if keys:
            tail += f" GROUP BY {', '.join(name for name, _ in keys)}"
        if self.draw(st.integers(0, 3)) == 3:
            tail += f" HAVING count(*) > {self.pick([1, 0])}"
        return _select([*keys, *calls], tail)

    def rolled_up(self, depth: int) -> Relation:
        source = self.below(depth)
        keys = self._keys(source, 1)
        if not keys:
            return self.grouped(depth)
        names = ", ".join(name for name, _ in keys)
        how = self.pick([f"ROLLUP ({names})", f"CUBE ({names})", f"GROUPING SETS (({names}), ())"])
        items = [*keys, self.call(source), ("grouping_id()", INT)]
        return _select(items, f"FROM {source.text} q GROUP BY {how}")

    def timed(self, depth: int) -> Relation:
        """Draw a GROUP BY over time windows."""
        source = self.below(depth)
        times = source.of(TIME)
        if not times:
            return self.grouped(depth)
        time = self.pick(times)
        name, more = self.pick(
            [("window", "'1 hour'"), ("window", "'1 hour', '30 minutes'"), ("session_window", "'40 minutes'")]
        )  # fmt: skip
        keys = self._keys(source, 0)
        items = [(f"{name}.{end}", TIME) for end in ("start", "end")]
        groups = ", ".join([f"{name}({time}, {more})", *(key for key, _ in keys)])
        return _select(
            [*items, *keys, self.call(source)], f"FROM {source.text} q GROUP BY {groups}"
        )

    def exploded(self, depth: int) -> Relation:
        """Draw a query that gives a row for each element of an array."""
        source = self.below(depth)
        arrays = source.of(ARRAY)
        if not arrays:
            return self.projected(depth)
        how = self.pick(["LATERAL VIEW", "LATERAL VIEW OUTER"])
        items = [(f"q.{name}", kind) for name, kind in self.some(source.columns)]
        tail = f"FROM {source.text} q {how} explode(q.{self.pick(arrays)}) e AS one"
        return _select([*items, ("e.one", INT)], tail)

    def lateral(self, depth: int) -> Relation:
        """Draw a LATERAL join: a subquery evaluated for each row of the left side."""
        left, right = self.below(depth), self.below(depth)
        kinds = self.shared(left, right)
        if not kinds:
            return self.joined(depth)
        kind = self.pick(kinds)
        where = f"s.{self.pick(right.of(kind))} = l.{self.pick(left.of(kind))}"
        call, result = self.call(right, "s.")
        inner = f"(SELECT {call} AS one FROM {right.text} s WHERE {where})"
        items = [(f"l.{name}", kind) for name, kind in self.some(left.columns)]
        return _select([*items, ("r.one", result)], f"FROM {left.text} l, LATERAL {inner} r")

    def joined(self, depth: int) -> Relation:
        left, right = self.below(depth), self.below(depth)
        pairs = [
            (f"l.{a}", f"r.{b}")
            for a, kind in left.columns
            for b, other in right.columns
            if kind == other and kind in TYPES
        ]
        how = self.pick(
            [
                "JOIN",
                "LEFT JOIN",
                "FULL JOIN",
                "RIGHT JOIN",
                "LEFT SEMI JOIN",
                "LEFT ANTI JOIN",
                "CROSS JOIN",
            ]
        )
        tests = [
            f"{a} {self.pick(['=', '=', '<=>'])} {b}"
            for a, b in self.some(pairs, int(how != "CROSS JOIN"), 2)
        ]
        if how == "CROSS JOIN":
            tests = []
        elif self.draw(st.integers(0, 2)) == 2:
            both = Relation(
                "",
                (
                    *((f"l.{n}", k) for n, k in left.columns),
                    *((f"r.{n}", k) for n, k in right.columns),
                ),
            )
            tests.append(self.condition(both, depth=0))
        condition = f" ON {' AND '.join(tests)}" if tests else ""
        items = [(f"l.{name}", kind) for name, kind in self.some(left.columns)]
        if how not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            items += [(f"r.{name}", kind) for name, kind in self.some(right.columns)]
        return _select(items, f"FROM {left.text} l {how} {right.text} r{condition}")

    def united(self, depth: int) -> Relation:
        left, right = self.below(depth), self.below(depth)
        kinds = self.shared(left, right)
        wanted = self.some(kinds, 1, 3) or [INT]
        sides = []
        for source in (left, right):
            items = [(self.value(kind, source, "", 0), kind) for kind in wanted]
            sides.append(_select(items, f"FROM {source.text} q"))
        how = self.pick(
            ["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"]
        )
        return Relation(f"({sides[0].text[1:-1]} {how} {sides[1].text[1:-1]})", sides[0].columns)

    def windowed(self, depth: int) -> Relation:
        source = self.below(depth)
        partition = ", ".join(self.some(source.exact, 0, 2))
        partition = f"PARTITION BY {partition} " * bool(partition)
        order = self._total(source)
        ways: list[tuple[str, str]] = []
        for text, kind in (self.call(source),):
            if kind != LIST and "DISTINCT" not in text and "FILTER" not in text:
                ways.append((f"{text} OVER ({partition.strip()})", kind))
                if kind not in (INEXACT,) and order and "approx" not in text:
                    frame = self.pick(
                        [
                            "",
                            " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
                            " ROWS UNBOUNDED PRECEDING",
                        ]
                    )
                    ways.append((f"{text} OVER ({partition}ORDER BY {order}{frame})", kind))
                if kind != INEXACT and "approx" not in text and source.of(INT):
                    frame = f"ORDER BY {self.pick(source.of(INT))} RANGE BETWEEN 1 PRECEDING AND"
                    ways.append(
                        (f"{text} OVER ({partition}{frame} {self.pick(['1 FOLLOWING', 'CURRENT ROW'])})", kind)
                    )  # fmt: skip
        key = self.pick(source.exact or ["1L"])
        ways += [(f"CAST({name}() OVER ({partition}ORDER BY {key} {self.pick(['', 'DESC'])}) AS BIGINT)", INT)
                 for name in ("rank", "dense_rank")]  # fmt: skip
        if order:
            over = f"OVER ({partition}ORDER BY {order})"
            name, kind = self.pick(source.columns)
            ways += [
                (f"CAST({call} {over} AS BIGINT)", INT) for call in ("row_number()", "ntile(2)")
            ]
            calls = ("lag", "lead", "first_value", "last_value")
            ways += [(f"{call}({name}) {over}", kind) for call in calls]
            ways += [(f"{call}({name}) IGNORE NULLS {over}", kind) for call in calls]
        return _select([*self.some(source.columns), self.pick(ways)], f"FROM {source.text} q")

    def ranked(self, depth: int) -> Relation:
        """Draw a query for the first rows of each partition."""
        source = self.below(depth)
        partition = ", ".join(self.some(source.exact, 0, 1))
        order = self._total(source)
        if not order:
            return self.filtered(depth)
        over = f"OVER ({f'PARTITION BY {partition} ' * bool(partition)}ORDER BY {order})"
        rank = self.pick(["row_number", "rank", "dense_rank"])
        inner = f"(SELECT *, {rank}() {over} AS place FROM {source.text} q)"
        return _select(source.columns, f"FROM {inner} q WHERE place <= {self.pick([1, 2])}")

    def limited(self, depth: int) -> Relation:
        source = self.below(depth)
        order = self._total(source)
        if not order:
            return self.filtered(depth)
        tail = f"FROM {source.text} q ORDER BY {order} LIMIT {self.pick([2, 1, 5])}"
        return _select(source.columns, tail + self.pick(["", " OFFSET 1"]))

    def _total(self, source: Relation) -> str:
        """Return a total order by all columns; "" if one has a type not in SORTED."""
        if len(source.of(*SORTED)) < len(source.columns):
            return ""
        names = self.draw(st.permutations(source.exact))
        return ", ".join(f"{n} {self.pick(['', 'DESC', 'NULLS LAST'])}".strip() for n in names)

    def with_subquery(self, depth: int) -> Relation:
        """Draw a filter with EXISTS or IN, plain or negated."""
        source, other = self.below(depth), self.below(depth)
        kinds = self.shared(source, other)
        if not kinds:
            return self.filtered(depth)
        kind = self.pick(kinds)
        mine, theirs = self.pick(source.of(kind)), self.pick(other.of(kind))
        tests = [
            f"q.{mine} IN (SELECT s.{theirs} FROM {other.text} s)",
            f"EXISTS (SELECT 1 FROM {other.text} s WHERE s.{theirs} = q.{mine})",
            f"NOT EXISTS (SELECT 1 FROM {other.text} s WHERE s.{theirs} = q.{mine})",
            f"q.{mine} NOT IN (SELECT s.{theirs} FROM {other.text} s)",
            f"EXISTS (SELECT 1 FROM {other.text} s WHERE {self.condition(other, 's.', 0)})",
        ]
        test = self.pick(tests)
        if self.draw(st.integers(0, 3)) == 3:
            test = f"({test} OR {self.condition(source, 'q.', 0)})"
        return _select(
            [(f"q.{n}", k) for n, k in source.columns], f"FROM {source.text} q WHERE {test}"
        )

    def with_scalar(self, depth: int) -> Relation:
        """Draw a scalar subquery, correlated or not."""
        source, other = self.below(depth), self.below(depth)
        kinds = self.shared(source, other)
        call, result = self.call(other, "s.")
        where = ""
        # Spark loses the order below an outer LIMIT when it rewrites a correlated subquery to a join
        if kinds and " LIMIT " not in source.text and self.draw(st.booleans()):
            kind = self.pick(kinds)
            where = f" WHERE s.{self.pick(other.of(kind))} = q.{self.pick(source.of(kind))}"
        items = [(f"q.{name}", kind) for name, kind in self.some(source.columns)]
        items.append((f"(SELECT {call} FROM {other.text} s{where})", result))
        return _select(items, f"FROM {source.text} q")


def _select(items: Any, tail: str, head: str = "SELECT") -> Relation:
    shown = ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(items))
    return Relation(
        f"({head} {shown} {tail})", tuple((f"c{i}", kind) for i, (_, kind) in enumerate(items))
    )


SCRIPT = '''\
"""Views that are kept live beside the same SQL run offline: AssertionError where they differ."""

import datetime
import tempfile
from decimal import Decimal

import eddyline as el
from eddyline.spark.session import local_session
from eddyline.testing import Offline, PlainTable, replayed

nan = float("nan")
TABLES = {{
{tables}
}}
VIEWS = {{
{views}
}}
EPOCHS = [
{epochs}
]

spark = local_session()
with (
    tempfile.TemporaryDirectory() as folder,
    el.Engine(folder, spark=spark, options={options}) as engine,
):
    plain = {{name: PlainTable(columns) for name, columns in TABLES.items()}}
    tables = {{name: engine.table(name, columns) for name, columns in TABLES.items()}}
    offline = Offline(spark, plain)
    views = {{}}
    for name, query in VIEWS.items():
        views[name] = engine.view(name, query)
        offline.view(name, query)
    for number, changes in enumerate(EPOCHS, start=1):
        for name, change, rows in changes:
            for table in (plain[name], tables[name]):
                getattr(table, change)(rows)
        engine.advance()
        offline.load()
        for name, view in views.items():
            live = view.snapshot()
            found = offline.compared(name, live)
            assert found.equal, f"{{name}}, epoch {{number}}: {{found}}"
            again = replayed([tuple(row) for row in view.changes().collect()])
            held = sorted(repr(tuple(row)) for row in live.collect())
            assert sorted(map(repr, again)) == held, f"{{name}}, epoch {{number}}: {{again}}, {{held}}"
'''


def script(case: Case) -> str:
    """Return a complete Python script that runs the case."""

    def entries(values: dict[str, str]) -> str:
        return "\n".join(f"    {name!r}: {text!r}," for name, text in values.items())

    epochs = "\n".join(
        "    [\n" + "".join(f"        {change!r},\n" for change in changes) + "    ],"
        for changes in case.epochs
    )
    return SCRIPT.format(
        tables=entries(case.tables), views=entries(case.views), epochs=epochs, options=case.options
    )
