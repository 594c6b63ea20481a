"""The views that read a view which CREATE OR REPLACE VIEW replaces.

They keep their names, ids and columns, and are computed again in the epoch that fills the new view, so that
their changelogs and sinks get the difference. The epoch is committed before the catalog is written. Each
reader has a mark in the catalog meanwhile: after a crash in between it is computed again from the old view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eddyline.api.workspace import Workspace
from eddyline.catalog.altered import keep_seen, seen_by
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import Entry
from eddyline.errors import CatalogError, QueryError
from eddyline.runtime.compiler import CompiledPlan
from eddyline.spark.failures import missing_relation
from eddyline.spark.schema import plain_schema
from eddyline.sql.names import quoted

REPLACING = "replacing"
"""The option that marks a reader: the last epoch before the replacement."""

Reader = tuple[Entry, CompiledPlan]


def check_circle(view: str, mentioned: Sequence[str], catalog: Catalog, error: QueryError) -> None:
    """Raise CatalogError if a query can't be resolved because it would close a circle over the replaced view."""
    readers = {entry.name for entry in catalog.below(view)}
    between = [name for name in mentioned if name in readers]
    missing = missing_relation(error.__cause__) or ""
    itself = missing.lower() == quoted(view).lower()
    if between or itself:
        through = f", through {', '.join(between)}" if between else ""
        raise CatalogError(
            f"view {view} would read itself{through}",
            condition="VIEW_CIRCLE",
            hint=f"read what {between[0] if between else view} is made of instead",
        ) from error


def check_readers(view: Entry, catalog: Catalog) -> None:
    """Raise CatalogError if readers of a view don't allow that it is replaced."""
    for reader in catalog.below(view.name):
        if reader.paused:  # its epoch has no rows of the new view
            raise _read(view, f"view {reader.name} reads it, and is paused", "resume it first")
        if reader.of_frame:  # its program has built the plan with the old columns
            raise _read(
                view,
                f"{reader.name}, a view of a DataFrame, reads it",
                f"drop {reader.name} first, and define it again afterwards",
            )


def compiled_readers(
    workspace: Workspace, catalog: Catalog, old: Entry, new: Entry, compiled: CompiledPlan
) -> list[Reader]:
    """Compile the readers of a replaced view over the new one.

    Args:
        catalog: with the new view in the place of the old one.
        compiled: the new view.

    Returns:
        Each reader, upstream first, as the catalog has it from then on.

    Raises:
        CatalogError: STILL_READ, a reader needs a column that the new view doesn't have.
    """
    plans = {new.id: compiled}
    found: list[Reader] = []

    def plan_of(entry: Entry) -> CompiledPlan:
        return plans.get(entry.id) or workspace.plan(entry)

    def compile_as(entry: Entry) -> CompiledPlan:
        return workspace.compiler.view(entry, catalog, plan_of, entry.upstream)

    for reader in catalog.below(new.name):
        kept, plan = reader, None
        reason = f"{reader.name}, which reads it, would get other columns"
        if _has_columns(new, reader):
            try:
                plan = compile_as(reader)
            except QueryError as error:
                reason = f"{reader.name}, which reads it, can't read the new one: {error.message}"
            if (plan is None or not _same_columns(plan, reader)) and _reads(reader, new):
                kept = keep_seen(reader, old, {name: name for name in old.columns.names})
                plan = compile_as(kept) if _has_columns(new, kept) else None
        if plan is None or not _same_columns(plan, reader):
            raise _read(
                new, reason, f"drop {reader.name} first, or leave its columns in {new.name}"
            )
        plans[reader.id] = plan
        found.append((replace(kept, result=plan.stored_result, upstream=plan.upstream), plan))
    return found


def with_marks(catalog: Catalog, readers: Sequence[Reader], epoch: int) -> Catalog:
    """Return a catalog in which the readers of a view are marked with the epoch before its replacement."""
    ids = {reader.id for reader, _ in readers}
    return catalog.with_entries(
        replace(entry, options={**entry.options, REPLACING: str(epoch)})
        for entry in catalog.entries
        if entry.id in ids
    )


def without_marks(catalog: Catalog) -> Catalog:
    """Return a catalog without the marks of a replacement."""
    return catalog.with_entries(
        replace(entry, options={k: v for k, v in entry.options.items() if k != REPLACING})
        for entry in catalog.entries
        if REPLACING in entry.options
    )


def _reads(reader: Entry, view: Entry) -> bool:
    return view.name.lower() in map(str.lower, reader.upstream)


def _has_columns(view: Entry, reader: Entry) -> bool:
    """Return whether a new view has all columns that a reader uses of the old one."""
    if not _reads(reader, view) or not (seen := seen_by(reader, view)).altered:
        return True
    types = {field.name: field.dataType for field in view.columns}
    pairs = zip(seen.names, seen.columns, strict=True)
    return all(name is None or types.get(name) == field.dataType for name, field in pairs)


def _same_columns(plan: CompiledPlan, reader: Entry) -> bool:
    schema = plan.compiled.schema
    same = schema.names == reader.columns.names
    return same and plain_schema(schema) == plain_schema(reader.columns)


def _read(view: Entry, message: str, hint: str) -> CatalogError:
    return CatalogError(message, condition="STILL_READ", view=view.name, hint=hint)
