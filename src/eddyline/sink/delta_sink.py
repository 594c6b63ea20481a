"""A view in a Delta table: one commit an epoch, with real updates and deletes.

The number of the epoch is a transaction of the Delta protocol (`txn`) in the same commit as the rows.
Each commit is made for the one version of the table in which that number was read, without retries
by delta-rs: a commit of anybody else in between refuses it. A write that the table's constraints refuse is
made again without the rows that violate them, which become dead letters. So do rows with dates that delta-rs can't write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import (
    AFTER,
    BEFORE,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    Epoch,
)
from eddyline.errors import EddylineError, missing_package
from eddyline.sink.base import (
    REFUSED_MIN,
    Target,
    check_owners,
    sink_failed,
    target_moved,
    target_not_empty,
)
from eddyline.sink.delta_checks import far_dates, violations, writable
from eddyline.sink.rows import KeyedChanges, difference, keyed_changes
from eddyline.spark.schema import arrow_schema
from eddyline.state.kernels import distinct, repeat
from eddyline.state.retyping import cast_to

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

UPSERT, APPEND, CHANGELOG = "upsert", "append", "changelog"
CHANGE_COLUMNS = [
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
]
"""What the rows of a change log have after the view's columns, named as in Delta's change feed."""


ATTEMPTS = 10
"""How often a commit is tried while others commit to the same table."""

_GONE = "gone"
_NONE = 0  # the epoch of a sink from which the table was taken

Write = Callable[["DeltaTable", "CommitProperties", bool], None]


class DeltaSink:
    """A Delta table that follows a view."""

    def __init__(
        self,
        target: Target,
        path: str,
        mode: str,
        key: tuple[str, ...] | None,
        *,
        overwrite: bool,
        optimize_every: int,
    ) -> None:
        self._target, self._path, self._mode, self._key = target, path, mode, key
        self._overwrite, self._optimize_every = overwrite, optimize_every
        self._rows = arrow_schema(target.columns, "UTC")
        log = CHANGE_COLUMNS if mode == CHANGELOG else []
        self._schema = pa.schema([pa.field(f.name, f.type) for f in (*self._rows, *log)])
        self._table: DeltaTable | None = None  # the version that the next commit is made for

    @property
    def found_by(self) -> Sequence[str] | None:
        """The view's key; rows of a change log are found as they are."""
        if self._mode == CHANGELOG:
            return tuple(self._rows.names)
        return self._key if self._mode == UPSERT else None

    def committed(self) -> Epoch | None:
        with self._translated_errors():
            self._load()
            return self._epoch()

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        changes = self._cast(changes)

        def write(table: DeltaTable, properties: CommitProperties, checked: bool) -> None:
            self._add_columns(table)
            self._apply(table, epoch, changes, properties, checked)

        self._commit(base, epoch, write, checked=bool(far_dates(changes)))

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        changes = self._cast(rows)
        rows = repeat(changes.select(range(len(self._rows))), changes.column(-1).to_numpy())

        def write(table: DeltaTable, properties: CommitProperties, checked: bool) -> None:
            def write_all(schema: str) -> None:
                self._write_all(table, epoch, rows, properties, schema, checked)

            if base is None and table.count() and not self._overwrite:
                raise target_not_empty(self._target, self._path)
            if (
                base is None
                and self._overwrite
                and (table.count() or any(self._other_types(table)))
            ):
                write_all("overwrite")
                return
            self._add_columns(table)
            held = self._held(table)
            changes = difference(held, rows)
            twice = self._mode == UPSERT and not _unique(held, self._key)
            deletes = pc.any(pc.less(changes.column(-1), 0)).as_py()
            if twice or (self._mode == APPEND and deletes):  # not what this sink has written
                write_all("merge")
            else:
                self._apply(table, epoch, changes, properties, checked)

        self._commit(base, epoch, write, create=True, checked=bool(far_dates(rows)))

    def close(self) -> None:
        self._table = None

    def _commit(
        self,
        base: Epoch | None,
        epoch: Epoch,
        write: Write,
        *,
        create: bool = False,
        checked: bool = False,
    ) -> None:
        """Make the commit that leads from one epoch to another.

        A commit is tried again only on a table that is read anew and still holds `base`. If the table has refused
        it, `write` leaves out the rows that violate a constraint.

        Args:
            checked: whether `write` does so from the first attempt on.
        """
        deltalake = _package()
        error: Exception | None = None
        with self._translated_errors():
            for _ in range(ATTEMPTS):
                if self._table is None:
                    self._load()
                if self._table is None and create and base is None:
                    self._create()
                found = self._epoch()
                if self._table is None or found != base:
                    raise target_moved(self._target, base, found)
                table, version = self._table, self._table.version()
                properties = self._properties(epoch, self._taken(table) if base is None else ())
                try:
                    write(table, properties, checked)
                    found = self._epoch()
                    if found == base:  # nothing to change: delta-rs made no commit
                        self._commit_number(table, properties)
                    elif found != epoch:
                        raise target_moved(self._target, epoch, found)
                except deltalake.exceptions.CommitFailedError as failed:
                    self._table, error = None, failed
                    continue
                except deltalake.exceptions.DeltaError:
                    if checked:
                        raise
                    self._table, checked = None, True
                    continue
                self._optimize(table, version)
                return
            raise sink_failed(self._target, f"others always commit first: {error}")

    def _commit_number(self, table: DeltaTable, properties: CommitProperties) -> None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        table.update_incremental()

    def _taken(self, table: DeltaTable) -> Collection[str]:
        """Return the ids of the other sinks of the table; StateError if it isn't taken from them.

        A table can't list those whose epochs it holds: the sinks of the storage are looked up.
        """
        owners = [app for app in self._target.others() if table.transaction_version(app)]
        return check_owners(self._target, self._path, owners, overwrite=self._overwrite)

    def _properties(self, epoch: Epoch, taken: Collection[str]) -> CommitProperties:
        deltalake = _package()
        epochs = {self._target.app: epoch, **dict.fromkeys(taken, _NONE)}
        properties: CommitProperties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(app, last) for app, last in epochs.items()],
            custom_metadata={"eddyline.epoch": str(epoch), "eddyline.sink": self._target.name},
            max_commit_retries=0,
        )
        return properties

    def _load(self) -> None:
        deltalake = _package()
        self._table = None
        try:
            self._table = deltalake.DeltaTable(self._path)
        except deltalake.exceptions.TableNotFoundError:
            return

    def _create(self) -> None:
        deltalake = _package()
        feed = "false" if self._mode == CHANGELOG else "true"  # the feed reserves its names
        try:
            deltalake.DeltaTable.create(
                self._path, self._schema, configuration={"delta.enableChangeDataFeed": feed}
            )
        except deltalake.exceptions.DeltaError:
            if not deltalake.DeltaTable.is_deltatable(self._path):  # else another was faster
                raise
        self._load()

    def _epoch(self) -> Epoch | None:
        if self._table is None:
            return None
        found = self._table.transaction_version(self._target.app)
        return Epoch(found) if found else None

    def _cast(self, changes: pa.Table) -> pa.Table:
        count = len(self._rows)
        rows = cast_to(changes.select(range(count)), self._rows)
        return pa.table(
            [*rows.columns, changes.column(count), changes.column(count + 1)],
            names=[*self._rows.names, "op", "w"],
        )

    def _spelling(self, table: DeltaTable) -> list[str]:
        """Return the table's names of the columns, which may differ in case."""
        there = {field.name.lower(): field.name for field in table.schema().fields}
        return [there.get(name.lower(), name) for name in self._schema.names]

    def _add_columns(self, table: DeltaTable) -> None:
        """Add columns that the view has and the table lacks; refuse those of another type."""
        for name, held, wanted in self._other_types(table):
            raise sink_failed(
                self._target,
                f"column {name} has the type {held} in the table and {wanted} in the view",
                way_out="cast the column to the table's type in the view; or drop the sink and create it again "
                "with the option overwrite = true: the table then gets the columns and rows of the view only",
            )
        there = {field.name.lower() for field in table.schema().fields}
        wanted_fields = _package().Schema.from_arrow(self._schema).fields
        if new := [field for field in wanted_fields if field.name.lower() not in there]:
            table.alter.add_columns(new)

    def _other_types(self, table: DeltaTable) -> Iterator[tuple[str, str, str]]:
        """Yield the columns with another type in the table than in the view: name, type there, and here."""
        there = {field.name.lower(): field for field in table.schema().fields}
        for field in _package().Schema.from_arrow(self._schema).fields:
            held = there.get(field.name.lower())
            if held is not None and _type_of(held) != _type_of(field):
                yield field.name, _type_of(held), _type_of(field)

    def _apply(
        self,
        table: DeltaTable,
        epoch: Epoch,
        changes: pa.Table,
        properties: CommitProperties,
        checked: bool,
    ) -> None:
        if changes.num_rows == 0:
            return
        done = keyed_changes(changes, None if self._mode == APPEND else self._key)
        if checked:
            done = self._admitted(table, epoch, done)
        if self._mode == CHANGELOG:
            self._append(table, _log_rows(done, epoch), properties)
        elif done.before.num_rows or done.deleted.num_rows:
            self._merge(table, done, properties)
        else:  # new keys only: no file has to be read
            self._append(table, done.inserted, properties)

    def _admitted(
        self, table: DeltaTable, epoch: Epoch, done: KeyedChanges, schema: str = "merge"
    ) -> KeyedChanges:
        """Return changes without the rows that the table refuses, which become dead letters.

        Of the key of such a row nothing stays: the old row isn't the view's any more.

        Args:
            schema: `overwrite`: the table gets the columns of the view only.
        """
        log, overwrite = self._mode == CHANGELOG, schema == "overwrite"

        def violated(kind: str, rows: pa.Table) -> npt.NDArray[np.object_]:
            whole = (log or kind == INSERT) and not overwrite
            written = _log_part(kind, rows, epoch) if log else rows
            written = written.rename_columns(self._spelling(table))
            return violations(_package(), table, written, whole=whole, nullable=overwrite)

        inserted, after = violated(INSERT, done.inserted), violated(AFTER, done.after)
        come, stay = _none(inserted), _none(after)
        gone, held = writable(done.deleted), writable(done.before)  # no other row is in the table
        if log:  # what it has refused isn't in the log, so that it isn't deleted there
            gone, held = _none(violated(DELETE, done.deleted)), _none(violated(BEFORE, done.before))
        reasons = [*inserted[~come], *after[~stay]]
        if len(reasons) >= max(REFUSED_MIN, come.sum() + stay.sum()):
            raise sink_failed(self._target, f"it refuses most rows, such as by {reasons[0]}")
        if reasons:
            rows = pa.concat_tables([_kept(done.inserted, ~come), _kept(done.after, ~stay)])
            self._target.refuse(cast_to(rows, self._target.schema), reasons)
        return KeyedChanges(
            pa.concat_tables([_kept(done.inserted, come), _kept(done.after, stay & ~held)]),
            _kept(done.before, stay & held),
            _kept(done.after, stay & held),
            pa.concat_tables([_kept(done.deleted, gone), _kept(done.before, ~stay & held)]),
        )

    def _append(self, table: DeltaTable, rows: pa.Table, properties: CommitProperties) -> None:
        _package().write_deltalake(
            table,
            rows.rename_columns(self._spelling(table)),
            mode="append",
            schema_mode="merge",  # columns that only the table has become null
            commit_properties=properties,
        )
        table.update_incremental()

    def _write_all(
        self,
        table: DeltaTable,
        epoch: Epoch,
        rows: pa.Table,
        properties: CommitProperties,
        schema: str,
        checked: bool,
    ) -> None:
        if checked:
            none = rows.slice(0, 0)
            all_new = KeyedChanges(rows, none, none, none)
            rows = self._admitted(table, epoch, all_new, schema).inserted
        if self._mode == CHANGELOG:
            rows = _log_part(INSERT, rows, epoch)
        names = self._schema.names if schema == "overwrite" else self._spelling(table)
        _package().write_deltalake(
            table,
            rows.rename_columns(names),
            mode="overwrite",
            schema_mode=schema,
            commit_properties=properties,
        )
        table.update_incremental()

    def _merge(self, table: DeltaTable, done: KeyedChanges, properties: CommitProperties) -> None:
        names = [f"c{place}" for place in range(len(self._rows))]
        upserted = done.upserted
        rows = pa.concat_tables([upserted, done.deleted]).rename_columns(names)
        gone = np.arange(rows.num_rows) >= upserted.num_rows
        rows = rows.append_column(_GONE, pa.array(gone))
        spelled = [_quoted(name) for name in self._spelling(table)]
        conditions, prunable = [], True
        for name in self._key or ():
            place = self._rows.get_field_index(name)
            column = rows.column(place)
            equal = column.null_count == 0 and _is_ordinal(column.type)
            operator = "=" if equal else "IS NOT DISTINCT FROM"
            # without parentheses, AND would bind closer than IS NOT DISTINCT FROM
            conditions.append(f"(t.{spelled[place]} {operator} s.{names[place]})")
            prunable &= equal
        new = {column: f"s.{name}" for column, name in zip(spelled, names, strict=True)}
        merger = table.merge(
            rows,
            " AND ".join(conditions) or "true",
            source_alias="s",
            target_alias="t",
            streamed_exec=not prunable,  # else files are skipped by their statistics
            commit_properties=properties,
        )
        merger = merger.when_matched_delete(f"s.{_GONE}")
        merger = merger.when_matched_update(new, f"NOT s.{_GONE}")
        merger.when_not_matched_insert(new, f"NOT s.{_GONE}").execute()

    def _held(self, table: DeltaTable) -> pa.Table:
        """Return the rows that the table holds, those of a change log summed up."""
        columns = ", ".join(map(_quoted, self._spelling(table)))
        asked = _package().QueryBuilder().register("held", table)
        found = pa.table(asked.execute(f"SELECT {columns} FROM held").read_all())
        found = cast_to(found, self._schema)
        if self._mode != CHANGELOG:
            return found
        rows, kinds = found.select(range(len(self._rows))), found[CHANGE_TYPE]
        came = pc.is_in(kinds, pa.array([INSERT, AFTER]))
        net = difference(rows.filter(pc.invert(came)), rows.filter(came))
        return repeat(net.select(range(len(self._rows))), net.column(-1).to_numpy())

    def _optimize(self, table: DeltaTable, before: int) -> None:
        """Compact and vacuum the table whenever its version passes a multiple of `optimize_every`."""
        every, deltalake = self._optimize_every, _package()
        if not every or before // every == table.version() // every:
            return
        try:
            table.optimize.compact()
            table.vacuum(dry_run=False, full=True)
        except deltalake.exceptions.CommitFailedError:
            self._table = None  # another writer was faster; it is for later
        else:
            table.update_incremental()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except EddylineError:
            self._table = None
            raise
        except Exception as error:  # delta-rs raises plain Exception too
            self._table = None
            raise sink_failed(self._target, error) from error


def package(user: str) -> Any:
    """Return deltalake; EngineError if it isn't installed.

    Args:
        user: what needs it.
    """
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise missing_package(user, "deltalake", "delta") from error
    return deltalake


def _package() -> Any:
    return package("a sink of format delta")


def _is_ordinal(kind: pa.DataType) -> bool:
    """Return whether = compares values of a type as Spark does, and files can be skipped by it."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind))


def _type_of(field: Any) -> str:
    """Return a Delta field's type, regardless of what may be null in it."""

    def plain(part: dict[str, Any]) -> dict[str, Any]:
        dropped = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: value for name, value in part.items() if name not in dropped}

    kind = json.loads(field.to_json(), object_hook=plain)["type"]
    return kind if isinstance(kind, str) else json.dumps(kind)


def _unique(rows: pa.Table, key: Sequence[str] | None) -> bool:
    return rows.num_rows < 2 or bool(key and distinct(rows, list(key)).num_rows == rows.num_rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _log_rows(done: KeyedChanges, epoch: Epoch) -> pa.Table:
    parts = (
        (DELETE, done.deleted),
        (BEFORE, done.before),
        (AFTER, done.after),
        (INSERT, done.inserted),
    )
    return pa.concat_tables([_log_part(kind, rows, epoch) for kind, rows in parts])


def _log_part(kind: str, rows: pa.Table, epoch: Epoch) -> pa.Table:
    values = (kind, epoch, datetime.now(UTC))
    for field, value in zip(CHANGE_COLUMNS, values, strict=True):
        rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    return rows


def _none(reasons: npt.NDArray[np.object_]) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.is_null(pa.array(reasons, pa.string())))


def _kept(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    return rows.filter(pa.array(mask))
