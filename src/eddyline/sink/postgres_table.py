"""The table of a sink in PostgreSQL: its columns, and the unique index over the view's key.

What a sink makes has a comment that says so, and for a column its type. When all rows are written anew, the
sink may alter these; what has no such comment, or another type by now, is somebody else's and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eddyline.sink.base import Target, sink_failed
from eddyline.sink.postgres_text import postgres_type

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable

_MADE = "made by Eddyline for sink "
_UNCASTABLE = "42846"  # SQLSTATE: there is no cast between two types
_DATA = ("22", "23")  # classes of SQLSTATE: values that can't be cast, or violate a constraint then
_LIMITS = "54"  # the class of values that are too large for an index


class SinkTable:
    """Makes the table fit the view, within one transaction."""

    def __init__(
        self,
        psycopg: Any,
        connection: Connection,
        table: Composable,
        target: Target,
        key: tuple[str, ...] | None,
    ) -> None:
        self._psycopg, self._sql = psycopg, psycopg.sql
        self._connection, self._table, self._target = connection, table, target
        self._key = key
        self._kinds = {
            field.name: postgres_type(field.dataType) or "text" for field in target.columns
        }

    def create(self) -> None:
        """Create the table if it is missing."""
        if exists(self._connection, self._table):
            return
        columns = self._sql.SQL(", ").join(
            self._sql.SQL("{} {}").format(self._sql.Identifier(name), self._sql.SQL(kind))
            for name, kind in self._kinds.items()
        )
        self._run("CREATE TABLE {table} ({columns})", columns=columns)
        for name, kind in self._kinds.items():
            self._mark_column(name, kind)

    def holds_rows(self) -> bool:
        return bool(self._run("SELECT EXISTS (SELECT FROM {table})").fetchone()[0])

    def clear(self) -> None:
        self._run("DELETE FROM {table}")

    def fit(self, *, new: bool) -> None:
        """Make columns and index those for the view; all rows are written anew afterwards.

        Args:
            new: whether this is the first delivery: the index is then created if there is none.
        """
        held = columns_of(self._connection, self._table)
        # columns that are missing get the view's names
        spelled = {name: name for name in self._kinds} | spelling(held, self._kinds)
        key = None if self._key is None else [spelled[name] for name in self._key]
        unfit = [
            index for index, over in self._own_indexes().items() if key is None or over != set(key)
        ]
        for index in unfit:
            self._drop(index)
        retyped = self._fit_columns(held, spelled)
        if key is not None and (new or unfit or retyped.intersection(key)):
            self._create_index(key)

    def _fit_columns(
        self, held: Mapping[str, tuple[str, str]], spelled: Mapping[str, str]
    ) -> set[str]:
        """Add columns that the table lacks, and give those of the sink the view's types; return the latter.

        Args:
            held: the table's columns, see `columns_of`.
            spelled: by name in the view that in the table.
        """
        retyped = set()
        for column, kind in self._kinds.items():
            name = spelled[column]
            if name not in held:
                add = "ALTER TABLE {table} ADD COLUMN {column} {kind}"
                self._run(add, column=self._sql.Identifier(name), kind=self._sql.SQL(kind))
                self._mark_column(name, kind)
                continue
            found, comment = held[name]
            made = comment.rpartition(": ")[2] if comment.startswith(_MADE) else ""
            if made and made != kind and _plain(made) == _plain(found):
                self._retype(name, kind)
                retyped.add(name)
        return retyped

    def _retype(self, name: str, kind: str) -> None:
        """Give a column another type, with its values if they can be cast; without any rows otherwise."""
        alter = "ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind} USING "
        parts = {"column": self._sql.Identifier(name), "kind": self._sql.SQL(kind)}
        what = f"column {name} can't be given the type {kind}"
        try:
            with self._connection.transaction():  # a savepoint
                self._run(alter + "{column}::{kind}", **parts)
        except self._psycopg.Error as error:
            if error.sqlstate != _UNCASTABLE and (error.sqlstate or "")[:2] not in _DATA:
                raise self._failed(what, error) from None
            self.clear()
            try:
                self._run(alter + "NULL", **parts)
            except self._psycopg.Error as error:
                raise self._failed(what, error) from None
        self._mark_column(name, kind)

    def _drop(self, index: str) -> None:
        try:
            self._run("DROP INDEX {index}", index=self._sql.SQL(index))
        except self._psycopg.Error as error:
            raise self._failed(f"index {index} can't be dropped", error) from None

    def _create_index(self, key: Sequence[str]) -> None:
        """Create a unique index over the key if there is none and the user may; rows that it refuses are deleted.

        It only makes deliveries faster. Deleted rows whose values are too large for it still prevent it.
        """
        if not self._index(key):
            self.clear()  # they were rows of a view with another key
            self._index(key)

    def _index(self, key: Sequence[str]) -> bool:
        """Create the index, as far as the user may; return whether no row prevents it."""
        try:
            with self._connection.transaction():  # a savepoint
                self._add_index(key)
        except self._psycopg.errors.InsufficientPrivilege:
            pass
        except self._psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in (*_DATA, _LIMITS):
                raise
            return False
        return True

    def _add_index(self, key: Sequence[str]) -> None:
        sql = self._sql
        before = self._unique_indexes()
        if key and set(key) in before.values():
            return
        columns = sql.SQL(", ").join(map(sql.Identifier, key))
        nulls = "NULLS NOT DISTINCT" if self._connection.info.server_version >= 150000 else ""
        self._run(
            "CREATE UNIQUE INDEX ON {table} ({columns}) " + nulls,
            columns=columns if key else sql.SQL("(true)"),
        )
        comment = sql.Literal(_MADE + self._target.name)
        for index, over in self._unique_indexes().items():
            if index not in before and over == set(key):
                comment_on = "COMMENT ON INDEX {index} IS {comment}"
                self._run(comment_on, index=sql.SQL(index), comment=comment)

    def _own_indexes(self) -> dict[str, set[str]]:
        """Return the names of the columns of each index that a sink has made."""
        return self._indexes("starts_with(obj_description(indexrelid, 'pg_class'), %s)", _MADE)

    def _unique_indexes(self) -> dict[str, set[str]]:
        """Return the names of the columns of each unique index over all rows."""
        return self._indexes(
            "indisunique AND indpred IS NULL AND (indexprs IS NULL OR indnatts = 1 AND indkey[0] = 0)"
        )

    def _indexes(self, condition: str, *values: str) -> dict[str, set[str]]:
        found = self._connection.execute(
            b"SELECT indexrelid::regclass::text, ARRAY(SELECT attname::text FROM pg_attribute "
            b"WHERE attrelid = indrelid AND attnum = ANY(indkey)) FROM pg_index "
            b"WHERE indrelid = to_regclass(%s) AND " + condition.encode(),
            [self._table.as_string(self._connection), *values],
        ).fetchall()
        return {index: set(names) for index, names in found}

    def _mark_column(self, name: str, kind: str) -> None:
        comment = f"{_MADE}{self._target.name}: {kind}"
        self._run(
            "COMMENT ON COLUMN {table}.{column} IS {comment}",
            column=self._sql.Identifier(name), comment=self._sql.Literal(comment),
        )  # fmt: skip

    def _failed(self, what: str, error: Any) -> Exception:
        """Return SINK_FAILED with the server's reason; the error itself if the connection is lost."""
        if error.sqlstate is None:
            lost: Exception = error
            return lost
        reason = filter(None, (error.diag.message_primary, error.diag.message_detail))
        return sink_failed(self._target, f"{what}: {' '.join('; '.join(reason).split())}")

    def _run(self, statement: str, **parts: Composable) -> Any:
        return self._connection.execute(self._sql.SQL(statement).format(table=self._table, **parts))


def columns_of(connection: Connection, table: Composable) -> dict[str, tuple[str, str]]:
    """Return the type and the comment of each column of a table, by name."""
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), coalesce(col_description(attrelid, attnum), '') "
        "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        [table.as_string(connection)],
    ).fetchall()
    return {name: (kind, comment) for name, kind, comment in found}


def spelling(held: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Return how a table spells the names of columns, of those that it has.

    Args:
        held: the table's columns.

    Example:
        >>> spelling(["ID", "n", "N"], ["id", "n", "s"])
        {'id': 'ID', 'n': 'n'}
    """
    held = list(held)
    there = {name.lower(): name for name in held} | {name: name for name in held}
    found = {column: there.get(column) or there.get(column.lower()) for column in columns}
    return {column: name for column, name in found.items() if name is not None}


def exists(connection: Connection, table: Composable) -> bool:
    """Return whether a table exists."""
    # the lock that FROM takes makes the server see tables created since this transaction began
    found = connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL FROM pg_class LIMIT 1", [table.as_string(connection)]
    ).fetchone()
    return found is not None and bool(found[0])


def _plain(kind: str) -> str:
    return kind.removesuffix(" without time zone")
