"""Shared by all lowerings: the delta of a lowered node, and the compilation of one view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, LongType, StructField, StructType

from eddyline.errors import QueryError
from eddyline.operators.base import Operator
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.eventtime import Bound, Bounds, Expiry
from eddyline.plan.lanes import Placed, Steps
from eddyline.plan.logical import Expression, Plan, needed_ids, output_of, type_of
from eddyline.plan.nodes import Comparison, Leaf, Node, StatefulPart
from eddyline.plan.refusals import EMPTY, REPEATED_FIELD, TIME, TYPES, Refusal
from eddyline.plan.render import text
from eddyline.plan.types import column_type, contains_type, is_always_empty, repeats_field
from eddyline.source.conditions import Condition
from eddyline.source.rounding import Rounding

PARTITION_BY_TIME = (
    "declare WATERMARK FOR the stream's time column, and let a window or a day of it be a key here"
)
UNHASHABLE = ("map", "variant", "interval")


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, stream or view that queries can read.

    Attributes:
        append_only: no row is ever retracted.
        endless: it grows without end: a stream, or a view that keeps its rows.
        bounds: bounds of its columns, by position.
        time: position of the event-time column of a stream with a watermark; else None.
        late: these are the late rows of a stream.
        reasons: the last column of late rows says why each isn't in the stream.
        key: positions of columns of which no two rows have the same values; None if not known.
        places: where its stored rows have these columns, -1 for nowhere; None if at the same places.
        stored: names of all columns of its stored rows, for a log that may only name data; else empty.
    """

    name: str
    schema: StructType
    append_only: bool
    endless: bool = False
    bounds: Mapping[int, Bound] = field(default_factory=dict)
    time: int | None = None
    late: bool = False
    key: tuple[int, ...] | None = None
    reasons: bool = False
    places: tuple[int, ...] | None = None
    stored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A lowered plan: the columns of the logical node and the weight.

    Attributes:
        plan: a resolved logical plan whose output has the node's attributes and the weight.
        weight: the weight's attribute.
        node: the node that `explain` shows.
        append_only: no row is ever retracted.
        in_place: a row is retracted in the same bucket in which it was appended.
        single: one task emits all rows.
        keys: canonical texts of the keys by which the rows are distributed; None if not known.
        endless: its rows grow without end.
        bounds: lower bounds of the event times of later changes, by attribute.
    """

    plan: Plan
    weight: Expression
    node: Node
    append_only: bool = False
    in_place: bool = False
    single: bool = False
    keys: tuple[str, ...] | None = None
    endless: bool = False
    bounds: Bounds = field(default_factory=dict)

    def through(self, plan: Plan, name: str, detail: str, bounds: Bounds | None = None) -> Delta:
        """Return the delta after a stateless operator; pass the bounds if the columns change."""
        shown = Node(name, "stateless", detail, children=(self.node,))
        bounds = self.bounds if bounds is None else bounds
        return replace(self, plan=plan, node=shown, keys=None, bounds=bounds)


@dataclass(slots=True)
class SubPlan:
    """A sub-plan of a view's optimised plan.

    Attributes:
        first: the node at the first of its places.
        stateful: whether it keeps state.
        places: in how many places it occurs, without those below another repeated sub-plan.
        lowered: its delta, once it is lowered.
        columns: the columns of its output that were needed when it was lowered.
        read: makes a frame of its output in an epoch.
    """

    first: Plan
    stateful: bool
    places: int = 1
    lowered: Delta | None = None
    columns: Sequence[int] = ()
    read: Callable[[], DataFrame] | None = None


@dataclass(frozen=True, slots=True)
class GrowingState:
    """State of an operator that grows as long as a stream goes on.

    Attributes:
        what: which rows it keeps.
        way_out: how to write the query so that rows are dropped.
    """

    what: str
    way_out: str


@dataclass(slots=True)
class Build:
    """The compilation of one view.

    Attributes:
        relations: for the RDD id of each leaf the relation that it represents.
        steps: records leaves and stateful operators, and the plans between them.
        buckets: hash partitions of each stateful operator.
        hash_bits: how many bits of the key hash are used.
        native: use the fast rules; otherwise recompute wherever that is possible.
        comparisons: those of rows with the clock, by their numbers.
        sub_plans: by the hash of their canonical form; none if no relation is read twice.
        rounded: step and start of the times that scans round down, by attribute; see `rounded_times`.
    """

    catalyst: Catalyst
    view: str
    relations: dict[int, Relation]
    steps: Steps
    buckets: int
    scan_tasks: int
    hash_bits: int
    native: bool
    leaves: list[Leaf] = field(default_factory=list)
    parts: list[StatefulPart] = field(default_factory=list)
    constants: dict[str, DataFrame] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    growing: list[GrowingState] = field(default_factory=list)
    needed: set[int] = field(default_factory=set)
    comparisons: list[Comparison] = field(default_factory=list)
    sub_plans: dict[int, list[SubPlan]] = field(default_factory=dict)
    rounded: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def named(self, delta: Delta, inputs: Sequence[tuple[Expression, str]]) -> DataFrame:
        """Return a frame of expressions under plain names, with the weight as `w`."""
        return self.catalyst.frame(self._named(delta, inputs))

    def _named(self, delta: Delta, inputs: Sequence[tuple[Expression, str]]) -> Plan:
        for expression, _ in inputs:
            self.check_type(expression)
        return self.catalyst.project_as([*inputs, (delta.weight, "w")], delta.plan)

    def named_and_hashed(
        self,
        delta: Delta,
        inputs: Sequence[tuple[Expression, str]],
        keys: Sequence[str],
        rest: Sequence[str],
        where: str,
    ) -> DataFrame:
        """Return the rows of `named` that meet a condition as `hashed` does, resolved at once."""
        plan = self._named(delta, inputs)
        types = {name: type_of(expression) for expression, name in inputs}
        columns = [self._hash([types[key] for key in keys], keys), *rest, "w"]
        return self.catalyst.frame(self.catalyst.select(columns, plan, where))

    def rebound(
        self, frame: DataFrame, attributes: Sequence[Expression]
    ) -> tuple[Plan, list[Expression]]:
        """Give a frame's first columns the ids of attributes; the other columns follow.

        Returns:
            the plan, and the attributes of the other columns.
        """
        plan = self.catalyst.plan(frame)
        output = output_of(plan)
        bound = zip(output, attributes, strict=False)
        others = output[len(attributes) :]
        columns = [*bound, *((one, None) for one in others)]
        return self.catalyst.project_as(columns, plan), others

    def hashed(self, frame: DataFrame, keys: Sequence[str], rest: Sequence[str]) -> DataFrame:
        """Return the hash of the keys as `h`, the columns `rest`, the weight. The hash is only an index."""
        types = [frame.schema[key].dataType for key in keys]
        return frame.selectExpr(self._hash(types, keys), *rest, "w")

    def _hash(self, types: Sequence[DataType], keys: Sequence[str]) -> str:
        """Return SQL of the hash of some columns."""
        pairs = zip(types, keys, strict=True)
        hashable = [key for kept, key in pairs if not contains_type(kept, UNHASHABLE)]
        key_hash = f"xxhash64({', '.join(hashable)})" if hashable else "42L"
        if self.hash_bits < 64:
            key_hash = f"{key_hash} & {(1 << self.hash_bits) - 1}L"
        return f"{key_hash} as h"

    def normalised(self, frame: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Normalise keys as Spark's GROUP BY does: one zero, one NaN."""
        forms = {
            name: _NORMALISED[column_type(frame, name)].format(name)
            for name in keys
            if column_type(frame, name) in _NORMALISED
        }
        return frame.selectExpr(
            *(f"{forms[name]} as {name}" if name in forms else name for name in frame.columns)
        )

    def shuffled(self, rows: DataFrame, *, single: bool) -> Placed:
        """Shuffle rows into the buckets of their hash `h`, or into one task if there are no keys."""
        return Placed(rows, 1, ()) if single else Placed(rows, self.buckets, ("h",))

    def run(
        self,
        rows: Placed,
        operator: Operator,
        out: Sequence[StructField],
        *,
        single: bool,
        expiry: Sequence[Expiry] = (),
    ) -> DataFrame:
        """Add a stateful operator over rows; return its output."""
        buckets = 1 if single else self.buckets
        part = StatefulPart(f"op{len(self.parts)}", operator, buckets, tuple(expiry))
        self.parts.append(part)
        return self.steps.operator(rows, part, StructType(list(out)).add("w", LongType()))

    def grows(self, what: str, way_out: str) -> None:
        """Record that an operator's state grows as long as a stream goes on."""
        self.growing.append(GrowingState(what, way_out))

    @property
    def growth_warning(self) -> str:
        """The warning about all growing state of the view; empty if none grows."""
        if not self.growing:
            return ""
        first, *others = dict.fromkeys(self.growing)
        more = f" (and of {len(others)} more)" if others else ""
        return f"the state of {first.what}{more} grows with the stream: {first.way_out}"

    def leaf(
        self,
        relation: str,
        columns: Sequence[int],
        schema: StructType,
        time: int | None = None,
        late: bool = False,
        where: Condition | None = None,
        rounded: Sequence[Rounding] = (),
    ) -> DataFrame:
        """Add a leaf; return a frame of the changes that it reads in each epoch."""
        name = f"leaf{len(self.leaves)}"
        leaf = Leaf(name, relation, tuple(columns), time, late, where, tuple(rounded))
        self.leaves.append(leaf)
        return self.steps.leaf(leaf, schema)

    def roundings(self, columns: Mapping[int, str]) -> list[Rounding]:
        """Return how a scan rounds its times.

        Args:
            columns: names of the scan's columns by the ids of their attributes.
        """
        return [Rounding(columns[i], *self.rounded[i]) for i in columns if i in self.rounded]

    def constant(self, rows: DataFrame) -> DataFrame:
        """Return a frame that has the rows (columns `c0..` and `w`) in the view's first epoch only."""
        rows = rows.selectExpr("*", "1L as w")
        frame = self.leaf("", range(len(rows.columns) - 1), rows.schema)
        self.constants[self.leaves[-1].name] = rows
        return frame

    def need(self, plan: Plan) -> None:
        """Record which columns of the leaves a plan uses."""
        self.needed |= needed_ids(plan, _LISTS_ITS_INPUT)

    def check_type(self, expression: Expression) -> None:
        """Refuse a column whose type can't be exchanged between Spark and the operators."""
        refusal = self._refusal(expression)
        if refusal is not None:
            shown = type_of(expression).simpleString()
            raise self.refused(refusal.about(type=shown), text(expression))

    def exchangeable(self, expression: Expression) -> bool:
        """Return whether operators can get a column from Spark."""
        return self._refusal(expression) is None

    def _refusal(self, expression: Expression) -> Refusal | None:
        kept = type_of(expression)
        for name, refusal in TYPES.items():
            if contains_type(kept, (name,)) and not (name == TIME and self.catalyst.keeps_times):
                return refusal
        if repeats_field(kept):
            return REPEATED_FIELD
        return EMPTY if is_always_empty(kept) else None

    def refused(self, refusal: Refusal, fragment: str | None = None) -> QueryError:
        """Return the error for this view.

        Args:
            fragment: the part of the query that is refused.
        """
        return refusal.error(self.view, fragment)


_NORMALISED = {
    "double": "if(isnan({0}), double('NaN'), {0} + 0D)",
    "float": "if(isnan({0}), float('NaN'), {0} + float(0))",
}

# Nodes whose lowering enumerates their input's columns, needed or not.
_LISTS_ITS_INPUT = frozenset(
    (
        "Window",
        "WindowGroupLimit",
        "Union",
        "Join",
        "GlobalLimit",
        "LocalLimit",
        "Offset",
        "Sort",
        "Generate",
    )
)


def until(state: str, expiry: Sequence[Expiry]) -> str:
    """Return a text for `explain`: the state that an operator keeps, and for how long."""
    streams = dict.fromkeys(stream for one in expiry for stream in one.bound.streams)
    return f"{state}, until the watermark of {', '.join(streams)} has passed" if streams else state


def canonical_texts(expressions: Sequence[Expression]) -> tuple[str, ...]:
    """Return a text for each expression; equal expressions over one plan have equal texts."""
    return tuple(expression.toString() for expression in expressions)
