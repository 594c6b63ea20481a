"""CONSTRAINT ... EXPECT: streams and views with rules for their rows, and their companion views."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql.types import BooleanType, StructType

from eddyline.api import drafts
from eddyline.api.definitions import Definitions
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.catalog.entries import COMPANION, EXPECTATIONS, STREAM, VIEW, Entry
from eddyline.catalog.expectations import (
    REJECTED,
    UNCHECKED,
    VIOLATIONS,
    checked_query,
    counting_query,
    expectations_of,
    kept_out_of,
    letters_query,
    option_of,
    rejecting_query,
    strict,
)
from eddyline.errors import CatalogError, EddylineError, QueryError
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.determinism import USER_FUNCTIONS
from eddyline.plan.logical import all_nodes, expressions_of, find, kind, subqueries_of
from eddyline.plan.refusals import refused_part
from eddyline.spark.failures import query_errors
from eddyline.spark.session import frame
from eddyline.sql.dialect import remove_emit_final
from eddyline.sql.expectations import DEAD_LETTER, KEEP, Expectation
from eddyline.sql.forms import CreateStream, CreateView, DropConstraint
from eddyline.sql.names import quoted

_IS_USERS = USER_FUNCTIONS.__contains__
_LOG = logging.getLogger("eddyline.engine")


class Expecting:
    """Defines streams and views with expectations.

    A crash can leave a view without a companion, or a companion without its view; see `repair_companions`.
    """

    def __init__(self, workspace: Workspace, definitions: Definitions, streams: Streams) -> None:
        self._workspace = workspace
        self._definitions = definitions
        self._streams = streams

    def create_stream(self, statement: CreateStream) -> None:
        """CREATE STREAM name (..., CONSTRAINT ...).

        Raises:
            QueryError: BAD_EXPECTATION: a condition is wrong, or the stream's rows can change.
        """
        rules = statement.expectations
        with self._workspace.lock:
            entry = self._streams.create_stream(
                statement.name,
                statement.schema_ddl,
                statement.format,
                {**dict(statement.options), EXPECTATIONS: option_of(rules)},
                statement.op,
                statement.primary_key,
                statement.watermark,
                check=lambda stream: self._check_stream(stream, rules),
            )
            self._complete(entry)

    def view(self, statement: CreateView) -> None:
        """CREATE VIEW name (CONSTRAINT ...) AS query.

        Raises:
            QueryError: BAD_EXPECTATION: a condition is wrong, or the view can't have it.
            CatalogError: the name is another's, or a view with other expectations is to be replaced.
        """
        name, rules, workspace = statement.name, statement.expectations, self._workspace
        with workspace.lock:
            workspace.check_writable()
            option = option_of(rules, statement.query)
            present = workspace.catalog.find(name)
            if present is not None:
                if present.options.get(EXPECTATIONS) != option:
                    raise (
                        not_replaceable(present)
                        if statement.replace
                        else drafts.name_taken(present)
                    )
                self._complete(present)
                return
            self._check(name, rules, self._columns(statement))
            self._remove(workspace.catalog.companions(name))
            try:
                self._make_view(name, statement.query, rules, option)
            except BaseException:
                if workspace.writes and workspace.catalog.find(name) is None:
                    self._remove(workspace.catalog.companions(name))
                raise
            self._complete(workspace.catalog.get(name))

    def drop_constraint(self, statement: DropConstraint) -> None:
        """ALTER STREAM name DROP CONSTRAINT constraint; views get the rows that it had dropped.

        Raises:
            CatalogError: the stream has no such constraint, or views of DataFrames read it.
        """
        workspace = self._workspace
        with workspace.lock:
            workspace.check_writable()
            stream = workspace.catalog.get(statement.name, STREAM)
            rules = expectations_of(stream)
            left = [one for one in rules if one.name.lower() != statement.constraint.lower()]
            if len(left) == len(rules):
                known = ", ".join(one.name for one in rules) or "none"
                raise CatalogError(
                    f"stream {stream.name} has no constraint {statement.constraint}",
                    condition="NOT_FOUND",
                    hint=f"known: {known}",
                )
            catalog = workspace.catalog
            # a stream of operations isn't computed again: applied records stay applied, rejected ones rejected
            names = [] if stream.arranged else catalog.readers(stream.name)
            readers = list(map(catalog.get, names))
            frames = [entry.name for entry in readers if entry.of_frame]
            family = catalog.companions(stream.name)
            if stream.arranged:
                family = [one for one in family if one.name == stream.name + VIOLATIONS]
            others = [reader for one in family for reader in catalog.readers(one.name)]
            if frames or others:
                raise CatalogError(
                    f"views of DataFrames, or of its companions, read stream {stream.name}: "
                    f"{', '.join([*frames, *others])}",
                    condition="STILL_READ",
                    hint="drop these views first",
                )
            if not stream.arranged:  # the next epoch computes them again
                gone = {entry.name for entry in family}
                workspace.check_rows(e for e in catalog.below(stream.name) if e.name not in gone)
            self._remove(family)
            options = {name: text for name, text in stream.options.items() if name != EXPECTATIONS}
            if left:
                options[EXPECTATIONS] = option_of(left)
            changed = replace(stream, options=options)
            catalog = workspace.catalog
            workspace.save(catalog.with_entries([changed]))
            kept = kept_out_of(stream, catalog)
            # the next epoch computes those views again whose plan has changed
            for entry in [*readers, stream, *([kept] if kept else [])]:
                workspace.forget_plan(entry)
            workspace.compiler.frames.forget(stream.id)
            self._complete(changed)

    def repair_companions(self) -> Expecting:
        """Create the companions that a crash has prevented, and remove those without a stream or view; return self."""
        workspace = self._workspace
        if not workspace.writes:
            return self
        with workspace.lock:
            catalog = workspace.catalog
            owners = [e for e in catalog.entries if EXPECTATIONS in e.options]
            names = {
                e.name.lower() for e in catalog.entries if e in owners or kept_out_of(e, catalog)
            }
            for entry in catalog.entries:
                if (owner := entry.options.get(COMPANION, "")) and owner not in names:
                    self._remove(workspace.catalog.companions(owner))
            for entry in owners:
                try:
                    self._complete(entry)
                except EddylineError as error:  # such as a function that isn't registered yet
                    _LOG.warning("companions of %s: %s", entry.name, error.condition)
        return self

    def _make_view(self, name: str, query: str, rules: Sequence[Expectation], option: str) -> None:
        """Define a view; its companions and its rows come later."""
        main = {EXPECTATIONS: option}
        if all(one.action == KEEP for one in rules):
            self._definitions.view(name, query, replace=False, options=main)
            return
        base = self._companion(name, UNCHECKED, query, warn=True)
        if base.sorts != []:
            raise _wrong(
                name,
                "a view that keeps out rows has no ORDER BY",
                "sort where you ask; or put ORDER BY ... LIMIT into a subquery",
            )
        self._definitions.view(
            name, checked_query(name, rules), replace=False, warn=False, options=main
        )

    def _complete(self, entry: Entry) -> None:
        """Create the companions of a stream or view that don't exist yet."""
        rules, catalog = expectations_of(entry), self._workspace.catalog
        if not rules:
            return
        base = catalog.find(entry.name + UNCHECKED) if entry.kind == VIEW else None
        source = entry.name if base is None else base.name
        kept = kept_out_of(entry, catalog)
        self._companion(entry.name, VIOLATIONS, counting_query(source, rules, kept))
        if kept is not None:
            if any(one.action == DEAD_LETTER for one in rules):
                self._companion(entry.name, REJECTED, letters_query(kept))
        elif any(one.action == DEAD_LETTER for one in rules):
            rejecting = rejecting_query(source, entry.columns.names, rules)
            self._companion(entry.name, REJECTED, rejecting)

    def _companion(self, name: str, suffix: str, query: str, *, warn: bool = False) -> Entry:
        options = {COMPANION: name.lower()}
        return self._definitions.view(
            name + suffix, query, replace=False, warn=warn, options=options
        )

    def _remove(self, gone: Sequence[Entry]) -> None:
        """Remove companions."""
        workspace = self._workspace
        if gone:
            workspace.save(workspace.catalog.without(gone), final=False)
            for entry in gone:
                workspace.forget(entry)

    def _columns(self, statement: CreateView) -> StructType:
        """Return the columns of a view's query; QueryError if Spark can't resolve it."""
        workspace = self._workspace
        query = workspace.plain_sql(remove_emit_final(statement.query.strip())[0])
        session = workspace.session()
        for name in workspace.compiler.mentioned(query, workspace.catalog):
            columns = workspace.catalog.get(name).columns
            leaf = frame(session, session.sparkContext.emptyRDD(), columns)
            leaf.createOrReplaceTempView(quoted(name))
        with query_errors(query, view=statement.name):
            return session.sql(query).schema

    def _check_stream(self, stream: Entry, rules: Sequence[Expectation]) -> None:
        """Raise QueryError if a stream can't have these expectations."""
        self._check(stream.name, rules, stream.columns, strict(stream))

    def _check(
        self,
        name: str,
        rules: Sequence[Expectation],
        columns: StructType,
        portable: Sequence[Expectation] = (),
    ) -> None:
        """Raise QueryError unless each condition reads one row's columns only, and is deterministic.

        Args:
            portable: those that may call only Spark's own functions.
        """
        session = self._workspace.session()
        rows = frame(session, session.sparkContext.emptyRDD(), columns)
        catalyst = Catalyst(session)
        for rule in rules:
            try:
                with query_errors(rule.condition):
                    rows.selectExpr(rule.condition)  # neither several, nor the end of another one
                    asked = rows.selectExpr(f"({rule.condition}\n) AS value")
            except QueryError as error:
                hint = "it may use the columns of a row"
                raise _wrong(name, f"constraint {rule.name}: {error.message}", hint) from error
            found = asked.schema["value"].dataType
            if not isinstance(found, BooleanType):
                raise _wrong(
                    name,
                    f"the condition of constraint {rule.name} is of type {found.simpleString()}",
                    "write a condition, such as n > 0",
                )
            plan = catalyst.plan(asked)
            if (
                kind(plan) != "Project"
                or kind(plan.child()) != "LogicalRDD"
                or any(subqueries_of(node) for node in all_nodes(plan))
            ):
                raise _wrong(
                    name,
                    f"the condition of constraint {rule.name} needs more than one row",
                    "leave subqueries, aggregates and window functions out: put them into the query",
                )
            called = [hit for e in expressions_of(plan) for hit in find(e, _IS_USERS)]
            if rule in portable and called:
                raise _wrong(
                    name,
                    f"the condition of constraint {rule.name} calls a function of yours, and whether a change "
                    "record is applied must not depend on which functions a process has registered",
                    "write it with Spark's own functions; or give the constraint to a view of the stream",
                )
            if (refused := refused_part(catalyst, plan)) is not None:
                _, part = refused
                raise _wrong(
                    name,
                    f"the condition of constraint {rule.name} isn't the same at any time: {part}",
                    "use columns, literals and deterministic functions",
                )


def not_replaceable(present: Entry) -> CatalogError:
    """Return the error for OR REPLACE of a view with expectations."""
    return CatalogError(
        f"{present.kind} {present.name} can't be replaced: it has or gets expectations",
        condition="NAME_TAKEN",
        hint=f"drop {present.name}, then create it anew",
    )


def _wrong(name: str, message: str, hint: str) -> QueryError:
    return QueryError(message, condition="BAD_EXPECTATION", hint=hint, relation=name)
