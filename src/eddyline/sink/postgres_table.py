"""The table of a sink in PostgreSQL: its columns, and the unique index over the view's key.

What a sink makes has a comment that says so, and for a column its type. When all rows are written anew, the
sink may alter these; what has no such comment, or another type by now, is somebody else's and stays as it is.
"""

from __future__ import annotations

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
        unfit = self._unfit_indexes()
        for index in unfit:
            self._drop(index)
        retyped = self._fit_columns()
        if self._key is not None and (new or unfit or retyped.intersection(self._key)):
            self._create_index()

    def _fit_columns(self) -> set[str]:
        """Add columns that the table lacks, and give those of the sink the view's types; return the latter."""
        retyped = set()
        held = self._columns()
        spelled = spelling(self._connection, self._table)
        for column, kind in self._kinds.items():
            name = spelled.get(column) or spelled.get(column.lower())
            if name is None:
                add = "ALTER TABLE {table} ADD COLUMN {column} {kind}"
                self._run(add, column=self._sql.Identifier(column), kind=self._sql.SQL(kind))
                self._mark_column(column, kind)
                continue
            found, comment = held[name]
            made = comment.rpartition(": ")[2] if comment.startswith(_MADE) else ""
            if made and made != kind and _plain(made) == _plain(found):
                self._retype(name, kind)
                retyped.add(column)
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

    def _unfit_indexes(self) -> list[str]:
        """Return the indexes that a sink has made over other columns than those of the key."""
        spelled = spelling(self._connection, self._table)
        wanted = {spelled.get(name) or spelled.get(name.lower()) for name in self._key or ()}
        found = self._connection.execute(
            "SELECT indexrelid::regclass::text, ARRAY(SELECT attname::text FROM pg_attribute "
            "WHERE attrelid = indrelid AND attnum = ANY(indkey)) FROM pg_index "
            "WHERE indrelid = to_regclass(%s) AND starts_with(obj_description(indexrelid, 'pg_class'), %s)",
            [self._table.as_string(self._connection), _MADE],
        ).fetchall()
        return [index for index, names in found if self._key is None or set(names) != wanted]

    def _drop(self, index: str) -> None:
        try:
            self._run("DROP INDEX {index}", index=self._sql.SQL(index))
        except self._psycopg.Error as error:
            raise self._failed(f"index {index} can't be dropped", error) from None

    def _create_index(self) -> None:
        """Create a unique index over the key if there is none and the user may; rows that it refuses are deleted.

        It only makes deliveries faster. Deleted rows whose values are too large for it still prevent it.
        """
        for last in (False, True):
            try:
                with self._connection.transaction():  # a savepoint
                    self._add_index()
            except self._psycopg.errors.InsufficientPrivilege:
                return
            except self._psycopg.Error as error:
                kind = (error.sqlstate or "")[:2]
                if kind not in (*_DATA, _LIMITS) or (last and kind != _LIMITS):
                    raise
                if not last:
                    self.clear()  # they were rows of a view with another key
            else:
                return

    def _add_index(self) -> None:
        sql = self._sql
        names = self._spelled_key()
        before = self._unique_indexes()
        if names and set(names) in before.values():
            return
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        nulls = "NULLS NOT DISTINCT" if self._connection.info.server_version >= 150000 else ""
        self._run(
            "CREATE UNIQUE INDEX ON {table} ({columns}) " + nulls,
            columns=columns if names else sql.SQL("(true)"),
        )
        comment = sql.Literal(_MADE + self._target.name)
        for index, over in self._unique_indexes().items():
            if index not in before and over == set(names):
                comment_on = "COMMENT ON INDEX {index} IS {comment}"
                self._run(comment_on, index=sql.SQL(index), comment=comment)

    def _spelled_key(self) -> list[str]:
        spelled = spelling(self._connection, self._table)
        return [spelled.get(name) or spelled[name.lower()] for name in self._key or ()]

    def _unique_indexes(self) -> dict[str, set[str]]:
        """Return the names of the columns of each unique index over all rows."""
        found = self._connection.execute(
            "SELECT indexrelid::regclass::text, ARRAY(SELECT attname::text FROM pg_attribute "
            "WHERE attrelid = indrelid AND attnum = ANY(indkey)) FROM pg_index "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL "
            "AND (indexprs IS NULL OR indnatts = 1 AND indkey[0] = 0)",
            [self._table.as_string(self._connection)],
        ).fetchall()
        return {index: set(names) for index, names in found}

    def _columns(self) -> dict[str, tuple[str, str]]:
        """Return the type and the comment of each column of the table."""
        found = self._connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), coalesce(col_description(attrelid, attnum), '') "
            "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [self._table.as_string(self._connection)],
        ).fetchall()
        return {name: (kind, comment) for name, kind, comment in found}

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


def spelling(connection: Connection, table: Composable) -> dict[str, str]:
    """Return the names of the table's columns, by themselves and in lower case."""
    found = connection.execute(
        "SELECT attname FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        [table.as_string(connection)],
    ).fetchall()
    return {name.lower(): name for (name,) in found} | {name: name for (name,) in found}


def exists(connection: Connection, table: Composable) -> bool:
    """Return whether a table exists."""
    # the lock that FROM takes makes the server see tables created since this transaction began
    found = connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL FROM pg_class LIMIT 1", [table.as_string(connection)]
    ).fetchone()
    return found is not None and bool(found[0])


def _plain(kind: str) -> str:
    return kind.removesuffix(" without time zone")
