"""The compiler: from catalog entries to the plans that epochs run."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from eddyline.catalog.altered import seen_by
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, Entry
from eddyline.catalog.expectations import filter_of, strict
from eddyline.changes import WEIGHT
from eddyline.errors import QueryError
from eddyline.intake.watermarks import asks_for_clock
from eddyline.operators.base import Timed
from eddyline.operators.result import Materialize
from eddyline.options import Options
from eddyline.plan.admission import kept_out, with_rejected
from eddyline.plan.build import Build, Relation
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.frames import leaves
from eddyline.plan.lanes import Steps
from eddyline.plan.limits import Order
from eddyline.plan.lineage import Lineage, column_lineage
from eddyline.plan.logical import Plan
from eddyline.plan.lower import (
    Compiled,
    checked_query,
    compile_table,
    compile_view,
    operations_schema,
)
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.plan.reading_order import earlier_leaves
from eddyline.plan.refusals import FOREIGN, foreign_view
from eddyline.runtime.empty_frames import Frames
from eddyline.runtime.kernel import Kernel
from eddyline.runtime.plans import EpochPlan, fingerprint
from eddyline.runtime.relations import as_seen, in_log, plain, relation_of
from eddyline.runtime.scan import LeafScan
from eddyline.runtime.shared import SharedReader, SharedRows, SharedWriter
from eddyline.runtime.short_lane import DriverRun, NotShortError
from eddyline.runtime.table import TableUpkeep
from eddyline.runtime.wide_lane import WidePlan
from eddyline.source.log_files import write_rows
from eddyline.source.segment_readers import Reader
from eddyline.source.segments import Segment
from eddyline.spark.driver import Driver
from eddyline.spark.failures import FAILURES, query_error
from eddyline.spark.jvm import check_jvm
from eddyline.spark.schema import arrow_schema, plain_schema
from eddyline.spark.session import epoch_session, registered_functions
from eddyline.sql.names import mentions, quoted
from eddyline.state.recover import CONSTANTS
from eddyline.storage.files import Files

logger = logging.getLogger(__name__)

HASH_BITS = 64
"""How many bits of the key hash the rows of tables and streams are stored by."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A compiled entry: the plan that epochs run, and the properties of its result.

    Attributes:
        stored_schema: the view's columns, then its sort keys.
        upstream: names of the relations that the resolved query reads, upstream first.
    """

    plan: EpochPlan
    compiled: Compiled
    stored_schema: StructType
    upstream: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[Order, ...]:
        """The ORDER BY of the view."""
        return self.compiled.order

    @property
    def stored_result(self) -> str:
        """The name of the operator that holds the rows, and the sort keys, as the catalog keeps them."""
        return " ".join([self.plan.result.partition("/")[2], *map(str, self.order)])

    @property
    def key(self) -> tuple[int, ...] | None:
        """Places of the columns that identify a row of the view; None if there is no known key."""
        return self.compiled.key


class Compiler:
    """Compiles the tables and views of one storage.

    Args:
        spark: the user's session, with the user's functions.
        session: the session in which epochs run.
        buckets, zone, settings: number of buckets, time zone and Spark settings of the storage.
        readers: readers for the kinds of segments that only registered formats use.
    """

    def __init__(
        self,
        spark: SparkSession,
        session: SparkSession,
        files: Files,
        options: Options,
        buckets: int,
        zone: str,
        settings: Mapping[str, str],
        readers: Mapping[str, Reader],
    ) -> None:
        self.spark = spark
        self.frames = Frames(spark)
        self.files = files
        self.options = options
        self.zone = zone
        self.settings = settings
        self.readers = readers
        self.use_buckets(buckets, session)

    def use_buckets(self, buckets: int, session: SparkSession) -> None:
        """Compile from now on for another number of buckets, in a session made for that number."""
        self.buckets = buckets
        self.catalyst = Catalyst(session)
        self.catalyst.keep_operators()  # it only plans what is compiled already
        chosen = f"{buckets} {self.options.hash_bits} {self.options.native_rules}"
        self._maker = f"spark {pyspark.__version__} eddyline {version('eddyline')} {chosen}"

    def maker_of(self, upstream: Sequence[str], catalog: Catalog) -> str:
        """Return what the plan of a query is made of beside the query, as text: versions, options, what it reads."""
        read = repr([catalog.get(name) for name in upstream])
        return f"{self._maker} {hashlib.sha256(read.encode()).hexdigest()[:16]}"

    def mentioned(self, query: str, catalog: Catalog) -> list[str]:
        """Return the relations whose names occur in a query, upstream first: it reads no others."""
        words, folded = set(re.findall(r"\w+", query.lower())), query.lower()
        return [entry.name for entry in catalog.entries if mentions(words, folded, entry.name)]

    def view(
        self,
        entry: Entry,
        catalog: Catalog,
        plan_of: Callable[[Entry], CompiledPlan],
        upstream: Sequence[str],
    ) -> CompiledPlan:
        """Compile a view.

        Args:
            plan_of: returns the compiled form of another view.
            upstream: relations whose names occur in the query; some may be names of columns.

        Raises:
            QueryError: the query is wrong, or no live view can keep it; or that of a view that it reads.
        """
        broken: list[QueryError] = []
        try:
            return self._view(entry, catalog, plan_of, upstream, broken)
        except FAILURES as error:
            check_jvm(error)
            if broken:
                raise broken[0] from error
            raise query_error(entry.query, error, view=entry.name) from error

    def _view(
        self,
        entry: Entry,
        catalog: Catalog,
        plan_of: Callable[[Entry], CompiledPlan],
        upstream: Sequence[str],
        broken: list[QueryError],
    ) -> CompiledPlan:
        # a new clone has the functions that the user has registered so far
        session = epoch_session(self.spark, self.buckets, self.zone, self.settings)
        catalyst = Catalyst(session)
        relations: dict[int, Relation] = {}
        if entry.of_frame:
            plan = self.frames.plan(entry)
            for rdd, known in self.frames.read(entry.name, plan, catalog).items():
                relations[rdd] = relation_of(known, lambda view: plan_of(view).compiled)
        else:
            for name in upstream:
                known = catalog.get(name)
                seen = seen_by(entry, known)
                try:
                    relation = relation_of(known, lambda view: plan_of(view).compiled)
                    if seen.altered:
                        relation = as_seen(relation, seen, known)
                except QueryError as error:
                    broken.append(error)  # the name may also be that of a column
                    continue
                leaf = catalyst.relation(seen.columns)
                relations[catalyst.rdd_id(catalyst.plan(leaf))] = relation
                if accepted := filter_of(known, entry):
                    leaf = leaf.where(accepted)
                leaf.createOrReplaceTempView(quoted(name))
        by_name = {r.name: r for r in relations.values()}
        build = self._build(catalyst, entry, by_name)
        build.relations.update(relations)
        analyzed = self._analyzed(entry, catalyst)
        if not entry.of_frame and (other := foreign_view(analyzed, by_name)):
            what = f"{other}, a view that Spark's session has, not this engine"
            raise broken[0] if broken else FOREIGN.about(what=what).error(entry.name, other)
        compiled = compile_view(build, checked_query(build, analyzed), final=entry.final)
        read = {relations[rdd].name for rdd in leaves(catalyst, analyzed) if rdd in relations}
        upstream = [name for name in upstream if name in read]
        catalyst.keep_operators()
        rests = _rests(entry, session, build.parts)
        maker = self.maker_of(upstream, catalog) if rests else ""
        return self._planned(entry, catalog, compiled, upstream, self._short(build), maker)

    def lineage(self, entry: Entry, catalog: Catalog) -> Lineage:
        """Return for each column of a view the columns of its inputs that it is derived from.

        Raises:
            QueryError: the query can't be resolved in this process: a function is missing.
        """
        session = epoch_session(self.spark, self.buckets, self.zone, self.settings)
        catalyst = Catalyst(session)
        relations: dict[int, tuple[str, Sequence[str]]] = {}
        try:
            if entry.of_frame:
                plan = self.frames.plan(entry)
                for rdd, known in self.frames.read(entry.name, plan, catalog).items():
                    relations[rdd] = known.name, known.columns.names
            else:
                for known in map(catalog.get, entry.upstream):
                    seen = seen_by(entry, known)
                    leaf = catalyst.relation(seen.columns)
                    names = zip(seen.columns.names, seen.names, strict=True)
                    columns = [now or then for then, now in names]
                    relations[catalyst.rdd_id(catalyst.plan(leaf))] = known.name, columns
                    if accepted := filter_of(known, entry):
                        leaf = leaf.where(accepted)
                    leaf.createOrReplaceTempView(quoted(known.name))
            plan = self._analyzed(entry, catalyst)
            return column_lineage(catalyst, plan, entry.columns.names, relations)
        except FAILURES as error:
            check_jvm(error)
            raise query_error(entry.query, error, view=entry.name) from error

    def _analyzed(self, entry: Entry, catalyst: Catalyst) -> Plan:
        """Return the resolved query of a view: SQL in the given session, or that of its DataFrame."""
        if entry.of_frame:
            return self.frames.plan(entry)
        check_query(catalyst, entry.query)
        return catalyst.analyzed(entry.query)

    def _short(self, build: Build) -> DriverRun | None:
        """Return a view's plan for the short lane; None if it can't run there, or the lane is switched off."""
        if not self.options.short_lane_rows:
            return None
        catalyst = build.catalyst
        try:
            return DriverRun(Driver(catalyst.session), catalyst, build.steps.recorded)
        except (NotShortError, Py4JError, PySparkException) as error:
            logger.info("view %s always runs as a Spark job: %s", build.view, error)
            return None

    def table(self, entry: Entry) -> CompiledPlan:
        """Compile a table or a stream of operations: a plan that applies operations to the stored rows."""
        columns = entry.columns
        operations = in_log(plain(entry.name, columns), entry)
        build = self._build(self.catalyst, entry, {entry.name: operations})
        build.hash_bits = HASH_BITS  # the options of views must not change how rows are stored
        key = tuple(columns.names.index(name) for name in entry.key)
        rules = strict(entry)
        checked = partial(with_rejected, names=columns.names, rules=rules) if rules else None
        compiled = compile_table(build, columns, key, checked=checked)
        if entry.kind == STREAM:
            return self._planned(entry, None, compiled, ())
        part = build.parts[-1]
        wire = arrow_schema(operations_schema(columns), self.zone)
        upkeep = TableUpkeep(
            self._kernel(entry.id, part, StructType()).in_driver(),
            self.buckets,
            tuple(f"c{i}" for i in key or range(len(columns))),
            wire,
        )
        plan = EpochPlan(
            entry.id,
            entry.name,
            upkeep,
            None,
            tuple(build.leaves),
            (part,),
            0,
            fingerprint((part,), build.leaves, HASH_BITS),
            key=key or None,
        )
        build.steps.release()
        return CompiledPlan(plan, compiled, columns)

    def kept_out(self, entry: Entry, stream: Entry) -> CompiledPlan:
        """Compile the stream of the records that the expectations of a stream of operations reject."""
        columns = entry.columns
        logged = StructType(columns.fields[:-2])
        places = {f.name: place for place, f in enumerate(stream.columns)}
        log = in_log(plain(entry.name, stream.columns), stream)
        # a column may have been dropped since the rules that reject records were
        held = (
            *(log.places or ()),
            -1,
        )
        operations = replace(
            log, schema=logged, places=tuple(held[places.get(name, -1)] for name in logged.names)
        )
        build = self._build(self.catalyst, entry, {entry.name: operations})
        build.hash_bits = HASH_BITS
        checked = partial(kept_out, names=logged.names, rules=strict(stream))
        return self._planned(entry, None, compile_table(build, columns, (), logged, checked), ())

    def write_constants(self, compiled: CompiledPlan) -> dict[str, list[Segment]]:
        """Store the constant rows of a view; return their segments by leaf."""
        found: dict[str, list[Segment]] = {}
        for leaf, constant in compiled.compiled.build.constants.items():
            self.files.make_folder(CONSTANTS)
            name = f"{CONSTANTS}/{compiled.plan.id}.{leaf}.arrow"
            found[leaf] = [write_rows(self.files, name, constant.toArrow())]
        return found

    def remove_constants(self, view: str) -> None:
        """Remove the constant rows of a dropped view, by its id."""
        for name in self.files.names(CONSTANTS):
            if name.startswith(f"{view}."):
                self.files.remove(f"{CONSTANTS}/{name}")

    def _build(self, catalyst: Catalyst, entry: Entry, known: dict[str, Relation]) -> Build:
        return Build(
            catalyst,
            entry.name,
            {},
            Steps(
                catalyst,
                self.options.scan_tasks,
                partial(self._scan, entry.id, known),
                partial(self._kernel, entry.id),
                partial(self._shared, entry.id),
            ),
            self.buckets,
            self.options.scan_tasks,
            self.options.hash_bits,
            bool(self.options.native_rules),
        )

    def _scan(
        self, node: str, known: Mapping[str, Relation], leaf: Leaf, schema: StructType
    ) -> LeafScan:
        """Return the function that Spark runs for a leaf.

        Args:
            known: the relations that leaves may read, by name.
        """
        relation = known.get(leaf.relation)  # None: constant rows
        columns = schema if relation is None else relation.schema
        names, places, time = tuple(columns.names), tuple(range(len(columns))), None
        if relation is not None and relation.places is not None:
            names, places = relation.stored, relation.places
        if leaf.time is not None:
            kind = arrow_schema(StructType([columns[leaf.time]]), self.zone).types[0]
            time = places[leaf.time], kind
        return LeafScan(
            self.files,
            node,
            leaf.name,
            leaf.relation,
            names,
            tuple(places[place] for place in leaf.columns),
            arrow_schema(schema, self.zone),
            time,
            leaf.late,
            relation is not None and relation.reasons,
            self.readers,
            self.options.slice_bytes,
            leaf.where,
            leaf.rounded,
        )

    def whole_scan(self, entry: Entry) -> LeafScan:
        """Return a scan of all columns of an entry's segments that needs no Spark."""
        columns = entry.columns
        if entry.gives_reasons:  # which aren't stored
            columns = StructType(columns.fields[:-1])
        every = tuple(range(len(columns)))
        weighted = StructType([*plain_schema(columns), StructField(WEIGHT, LongType())])
        leaf, relation = Leaf("rows", entry.name, every), plain(entry.name, columns)
        if entry.kind == STREAM and not entry.arranged:
            relation = in_log(relation, entry)
        return self._scan(entry.id, {entry.name: relation}, leaf, weighted)

    def _shared(
        self, node: str, name: str, schema: StructType
    ) -> tuple[SharedWriter, SharedReader]:
        """Return the functions that write and read rows which a plan reads more than once."""
        rows, columns = SharedRows(self.files, node, name), arrow_schema(schema, self.zone)
        return SharedWriter(rows, columns), SharedReader(rows, columns, self.options.scan_tasks)

    def _kernel(self, node: str, part: StatefulPart, schema: StructType) -> Kernel:
        """Return the function that Spark runs for a stateful operator."""
        return Kernel(
            self.files,
            node,
            part.name,
            part.operator,
            arrow_schema(schema, self.zone),
            self.options.compaction_fan_in,
            self.options.slice_bytes,
            part.expiry_columns,
        )

    def _planned(
        self,
        entry: Entry,
        catalog: Catalog | None,
        compiled: Compiled,
        upstream: Sequence[str],
        short: DriverRun | None = None,
        maker: str = "",
    ) -> CompiledPlan:
        """Return the plan that epochs run.

        Args:
            short: the plan for the short lane.
            maker: see `EpochPlan`.

        Raises:
            EngineError: WRONG_PARTITIONS, if there is no plan for the short lane.
            Exception: whatever Spark raises.
        """
        build = compiled.build
        levels = [catalog.level(catalog.get(name)) for name in upstream] if catalog else []
        shown = build.steps.text if catalog else ""
        wide = WidePlan(entry.name, build.catalyst, compiled.jobs, build.parts)
        if short is None:
            _ = wide.jobs  # what Spark can't plan is refused now
        plan = EpochPlan(
            entry.id,
            entry.name,
            None,
            wide,
            tuple(build.leaves),
            tuple(build.parts),
            1 + max(levels, default=0) if catalog else 0,
            fingerprint(build.parts, build.leaves, build.hash_bits, shown),
            short,
            compiled.key,
            maker,
            earlier_leaves(build.steps.recorded),
        )
        build.steps.release()
        stored = StructType(list(compiled.schema.fields))
        operator = build.parts[-1].operator
        if isinstance(operator, Materialize):
            for i, kind in enumerate(compiled.order_types):
                stored.add(StructField(_unused(f"order_{i}", stored.names), kind))
        return CompiledPlan(plan, compiled, stored, tuple(upstream))


def _rests(entry: Entry, session: SparkSession, parts: Sequence[StatefulPart]) -> bool:
    """Return whether only its input changes a view: it doesn't move with time, nor call what the user's program defines."""
    timed = asks_for_clock(parts) or any(isinstance(part.operator, Timed) for part in parts)
    if timed or entry.of_frame:
        return False
    return registered_functions(session).isdisjoint(re.findall(r"\w+", entry.query.lower()))


def check_query(catalyst: Catalyst, text: str) -> None:
    """Raise QueryError if a text is a statement rather than a query: Spark would run it in its own catalog."""
    try:
        is_query = catalyst.is_query(text)
    except PySparkException:  # Spark can't read it; CREATE STREAM and SINK are Eddyline's own
        if not re.match(r"\s*create\b", text, re.IGNORECASE):
            raise
        is_query = False
    if not is_query:
        raise QueryError(
            "this is a statement, and a query is wanted",
            condition="NOT_A_QUERY",
            hint="give it to engine.execute, or put it into a script for `eddyline run`",
            fragment=" ".join(text.split())[:200],
        )


def _unused(name: str, used: Sequence[str]) -> str:
    while name in used:
        name += "_"
    return name
