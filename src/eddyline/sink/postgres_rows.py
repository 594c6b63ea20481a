"""The SQL that writes rows into a table of PostgreSQL, within one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from eddyline.sink.base import REFUSED_MIN, Target, sink_failed, target_lacks
from eddyline.sink.postgres_table import columns_of, spelling
from eddyline.sink.postgres_text import csv_rows

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable

REFUSALS = ("22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that concern a row: data, constraints, WITH CHECK, limits, triggers."""

ANALYZE_ROWS = 10_000

TRUNCATE_ROWS = 2_000

_LOADED, _TAKEN_OUT = "eddyline_loaded", "eddyline_taken_out"

Apply = Callable[[pa.Table], None]


class Writer:
    """Writes to the table within one transaction: rows are loaded, then applied by SQL.

    Args:
        place: the table's name for errors.
    """

    def __init__(
        self,
        psycopg: Any,
        connection: Connection,
        table: Composable,
        target: Target,
        key: tuple[str, ...] | None,
        place: str,
    ) -> None:
        self._psycopg, self._connection, self._table = psycopg, connection, table
        self._target, self._columns = target, target.columns.names
        self._taken = self._refused = self._since_truncate = self._loads = 0
        self._key, self._by_key = key or (), key is not None
        sql = self._sql = psycopg.sql
        self._spelled = spelling(columns_of(connection, table), self._columns)
        for column in self._columns:
            if column not in self._spelled:
                raise target_lacks(target, place, column)
        self._name = {column: sql.Identifier(name) for column, name in self._spelled.items()}
        self._all = sql.SQL(", ").join(self._name.values())
        self._loaded, self._taken_out = sql.Identifier(_LOADED), sql.Identifier(_TAKEN_OUT)
        self._nulls: list[tuple[bool, ...]] = []  # which parts of the loaded keys are null
        self._run(
            "CREATE TEMP TABLE {loaded} ON COMMIT DROP AS SELECT {all} FROM {table} WITH NO DATA"
        )

    def each(
        self, rows: pa.Table, apply: Apply, error: str | None = None
    ) -> list[tuple[pa.Table, str]]:
        """Apply rows, in one statement if possible; return the rows that the server refuses, with errors.

        Args:
            error: that of all rows in one statement, if this has been tried already.
        """
        if rows.num_rows == 0:
            return []
        error = error or self._attempt(apply, rows)
        if error is None:
            self._taken += rows.num_rows
            return []
        if rows.num_rows == 1:
            self._refused += 1
            if self._refused >= max(REFUSED_MIN, self._taken):
                raise sink_failed(self._target, f"it refuses most rows, such as one with: {error}")
            return [(rows, error)]
        half = rows.num_rows // 2
        return self.each(rows.slice(0, half), apply) + self.each(rows.slice(half), apply)

    def delete(self, rows: pa.Table) -> None:
        """Delete the rows with the keys of some rows."""
        self._load(rows, self._key)
        for nulls in self._nulls:
            self._run("DELETE FROM {table} t USING {loaded} s WHERE {same}", same=self._same(nulls))

    def upsert(self, rows: pa.Table) -> None:
        """Update the rows with existing keys, and insert the others."""
        self._load(rows, self._columns)
        self._upsert_loaded()

    def upsert_each(self, rows: pa.Table) -> list[tuple[pa.Table, str]]:
        """Update or insert rows; return the rows that the server refuses, with errors.

        The old row of the key of a refused row is deleted, because it is no longer a row of the view.
        """
        if not self._by_key:
            return self.each(rows, self.upsert)
        error = self._attempt(self.upsert, rows)
        if error is None:
            self._taken += rows.num_rows
            return []
        if (
            rows.num_rows > 1
            and self._may_take_out()
            and self._attempt(self._take_out, rows) is None
        ):
            return self.each(rows, self._put_back)
        left_out = self.each(rows, self.upsert, error)
        self.each(pa.concat_tables([row for row, _ in left_out]), self.delete)
        return left_out

    def replace(self, rows: pa.Table) -> list[tuple[pa.Table, str]]:
        """Make rows the only ones; return the rows that the server refuses, with errors."""
        if self._attempt(self._replace, rows) is None:
            return []
        left_out: list[tuple[pa.Table, str]] = []
        good: list[pa.Table] = []

        def load(part: pa.Table) -> None:
            self._load(part, self._columns)
            good.append(part)

        left_out += self.each(rows, load)
        kept = pa.concat_tables(good) if good else rows.slice(0, 0)
        if self._by_key:
            self._load(kept, self._columns)
            self._delete_others()
        else:
            self.clear()
        return left_out + self.upsert_each(kept)

    def _may_take_out(self) -> bool:
        """Return whether rows may only seem to conflict, and can be deleted without a loss elsewhere.

        The server checks a unique constraint row by row, so that values that change places between keys seem to be
        there twice. Rows that others follow by ON DELETE can't be deleted for that, nor those behind a view.
        """
        place = [self._table.as_string(self._connection)]
        safe = self._connection.execute(
            "SELECT relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_constraint "
            "WHERE confrelid = c.oid AND contype = 'f' AND confdeltype IN ('c', 'n', 'd')) "
            "FROM pg_class c WHERE oid = to_regclass(%s)",
            place,
        ).fetchone()
        indexes = self._connection.execute(
            "SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid "
            "AND attnum = ANY(indkey)), indpred IS NULL AND indexprs IS NULL FROM pg_index "
            "WHERE indrelid = to_regclass(%s) AND indimmediate AND (indisunique OR indisexclusion)",
            place,
        ).fetchall()
        key = {self._spelled[column] for column in self._key}
        return bool(safe and safe[0]) and any(
            set(names) != key or not plain for names, plain in indexes
        )

    def _take_out(self, rows: pa.Table) -> None:
        """Delete the old rows of the keys of some rows, and keep what other columns have in them."""
        self._load(rows, self._columns)
        self._run("CREATE TEMP TABLE {out} ON COMMIT DROP AS SELECT * FROM {table} WITH NO DATA")
        for nulls in self._nulls:
            self._run(
                "WITH gone AS (DELETE FROM {table} t USING {loaded} s WHERE {same} RETURNING t.*) "
                "INSERT INTO {out} SELECT * FROM gone",
                same=self._same(nulls),
            )

    def _put_back(self, rows: pa.Table) -> None:
        """Insert rows, those that were taken out with the old values of columns that the sink doesn't write."""
        sql = self._sql
        self._load(rows, self._columns)
        found = self._connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = ''",
            [self._table.as_string(self._connection)],
        ).fetchall()
        own = set(self._spelled.values())
        others = [sql.Identifier(name) for (name,) in found if name not in own]
        names = [*self._name.values(), *others]
        values = [sql.SQL("s.{}").format(name) for name in self._name.values()]
        values += [sql.SQL("t.{}").format(name) for name in others]
        for nulls in self._nulls:
            self._run(
                "INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE "
                "SELECT {values} FROM {loaded} s JOIN {out} t ON {same}",
                names=sql.SQL(", ").join(names), values=sql.SQL(", ").join(values),
                same=self._same(nulls),
            )  # fmt: skip
        self._upsert_loaded(differing=True)  # those with new keys

    def clear(self) -> None:
        self._run("DELETE FROM {table}")

    def _replace(self, rows: pa.Table) -> None:
        self._load(rows, self._columns)
        if self._by_key:
            self._delete_others()
            self._upsert_loaded(differing=True)
            return
        others = "SELECT EXISTS (SELECT {all} FROM {table} EXCEPT ALL SELECT {all} FROM {loaded})"
        if self._run(others).fetchone()[0]:
            self.clear()
        self._run(
            "INSERT INTO {table} ({all}) "
            "SELECT {all} FROM {loaded} EXCEPT ALL SELECT {all} FROM {table}"
        )

    def _upsert_loaded(self, *, differing: bool = False) -> None:
        if not self._by_key:
            self._run("INSERT INTO {table} ({all}) SELECT {all} FROM {loaded}")
            return
        sql = self._sql
        others = [name for column, name in self._name.items() if column not in self._key]
        old, new = (
            sql.SQL(", ").join(sql.SQL("{}.{}").format(sql.SQL(side), name) for name in others)
            for side in "ts"
        )
        for nulls in self._nulls:
            same = self._same(nulls)
            if others:
                changes = " AND (ROW({old}) IS DISTINCT FROM ROW({new}))" if differing else ""
                self._run(
                    "UPDATE {table} t SET ({others}) = ROW({new}) FROM {loaded} s WHERE {same}"
                    + changes,
                    others=sql.SQL(", ").join(others), same=same, old=old, new=new,
                )  # fmt: skip
            self._run(
                "INSERT INTO {table} ({all}) SELECT {all} FROM {loaded} s WHERE {nulls} "
                "AND NOT EXISTS (SELECT FROM {table} t WHERE {same})",
                same=same, nulls=self._null_parts("s", nulls),
            )  # fmt: skip

    def _delete_others(self) -> None:
        """Delete the rows whose keys aren't loaded."""
        sql = self._sql
        parts = [
            sql.SQL("{} IS NULL").format(self._name[column]) for column in self._key
        ] or [sql.SQL("false")]  # fmt: skip
        found = self._run(
            "SELECT DISTINCT {parts} FROM {table}", parts=sql.SQL(", ").join(parts)
        ).fetchall()
        for nulls in found:
            self._run(
                "DELETE FROM {table} t WHERE {nulls} "
                "AND NOT EXISTS (SELECT FROM {loaded} s WHERE {same})",
                nulls=self._null_parts("t", nulls), same=self._same(nulls),
            )  # fmt: skip

    def _load(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Replace the rows of the temporary table by these."""
        self._run("DELETE FROM {loaded}")
        self._since_truncate += rows.num_rows
        columns = columns or self._columns[:1]  # of a key of no columns, any
        names = self._sql.SQL(", ").join(self._name[column] for column in columns)
        statement = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        copy_in = statement.format(self._loaded, names)
        with self._connection.cursor() as cursor, cursor.copy(copy_in) as copy:
            copy.write(csv_rows(rows.select(list(columns))))
        self._loads += 1
        if self._loads <= 2 or rows.num_rows >= ANALYZE_ROWS:  # else it is a part of these
            self._run("ANALYZE {loaded}")  # few rows look for theirs by the index
        if self._key:
            masks = [pl.Series(rows[column].is_null()).alias(column) for column in self._key]
            self._nulls = pl.DataFrame(masks).unique().rows()
        else:
            self._nulls = [()]

    def _same(self, nulls: Sequence[bool]) -> Composable:
        """Return the condition that keys of `s` and `t` are the same; `nulls` says which of their parts are null.

        An index is used for = and IS NULL, but not for IS NOT DISTINCT FROM.
        """
        sql = self._sql
        parts = [
            sql.SQL("s.{0} = t.{0}").format(self._name[column])
            for column, null in zip(self._key, nulls, strict=False)
            if not null
        ]
        both = [self._null_parts(side, nulls) for side in "st"]
        joined: Composable = sql.SQL(" AND ").join([*parts, *both])
        return joined

    def _null_parts(self, side: str, nulls: Sequence[bool]) -> Composable:
        sql = self._sql
        parts = [
            sql.SQL("{}.{} IS " + ("NULL" if null else "NOT NULL")).format(
                sql.SQL(side), self._name[column]
            )
            for column, null in zip(self._key, nulls, strict=False)
        ]
        joined: Composable = sql.SQL(" AND ").join(parts or [sql.SQL("true")])
        return joined

    def _attempt(self, apply: Apply, rows: pa.Table) -> str | None:
        """Apply rows, or none of them; return the error if the server refuses one."""
        if self._since_truncate > max(TRUNCATE_ROWS, 4 * rows.num_rows):
            self._run("TRUNCATE {loaded}")  # not after each attempt: it costs as much as many rows
            self._since_truncate = 0
        try:
            with self._connection.transaction():  # a savepoint
                apply(rows)
        except self._psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in REFUSALS:
                raise
            return " ".join(str(error.diag.message_primary or error).split())
        return None

    def _run(self, statement: str, **parts: Composable) -> Any:
        sql = self._sql
        known = {"table": self._table, "loaded": self._loaded, "all": self._all}
        known["out"] = self._taken_out
        return self._connection.execute(sql.SQL(statement).format(**known, **parts))
