"""A view in a table of PostgreSQL: one transaction an epoch.

The table `eddyline_sinks` in the target's schema holds the number of the epoch of each sink; the row
changes in the same transaction as the target. A row that the server refuses is found by bisection,
kept as a dead letter, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from eddyline.arguments import check_choice, wrong_argument
from eddyline.changes import Epoch
from eddyline.errors import CatalogError, EngineError, missing_package
from eddyline.sink.base import (
    Sink,
    Target,
    check_owners,
    is_true,
    key_of,
    refused,
    sink_failed,
    sink_key,
    target_moved,
    target_not_empty,
    unsupported_type,
)
from eddyline.sink.postgres_rows import Writer
from eddyline.sink.postgres_table import SinkTable, exists
from eddyline.sink.postgres_text import postgres_type
from eddyline.sink.rows import keyed_changes
from eddyline.state.kernels import repeat

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable

DEAD_LETTERS, STOP = "dead letters", "stop"
EPOCHS = "eddyline_sinks"
NAME_BYTES_MAX = 63
SYSTEM_COLUMNS = ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid")
"""Names that each table of PostgreSQL has for columns of its own."""

CREATION_LOCK = 0x6564_6479
"""The advisory lock under which the table of epochs is created."""

CONNECTION: dict[str, Any] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 60_000,
    "client_encoding": "utf8",
    "application_name": "eddyline",
}
SETTINGS = """
    SET LOCAL lock_timeout = '30s';
    SET LOCAL statement_timeout = '10min';
    SET LOCAL idle_in_transaction_session_timeout = '5min';
    SET LOCAL timezone = 'UTC';
    SET LOCAL datestyle = 'ISO, YMD';
    SET LOCAL intervalstyle = 'postgres';
    SET CONSTRAINTS ALL IMMEDIATE;
    SELECT set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') = 'off'
"""
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))?")


class PostgresFormat:
    """Tables of PostgreSQL: `CREATE SINK k FROM v USING postgres`."""

    options: Mapping[str, str] = {
        "url": "postgresql://user@host:port/database, or key=value pairs; without a password",
        "password": "the password, as a reference such as ${env:PGPASSWORD}",
        "table": "name of the table, or schema.table; it is created if missing",
        "key": "columns of the key, with commas: a check, as the view's key is used anyway",
        "overwrite": "true: replace rows that a new sink finds in the table",
        "on_refused": "what becomes of rows that the server refuses: dead letters (default) or stop",
    }
    secrets: Sequence[str] = ("password",)
    fixed: Sequence[str] = ("table",)

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        check_url(options)
        table_name(options)
        is_true("overwrite", options.get("overwrite", "false"))
        check_choice("option on_refused", _on_refused(options), (DEAD_LETTERS, STOP))
        if key_of(target, options.get("key")) is None and not target.append_only:
            raise sink_key(target, "it has no key, and rows of it are deleted")
        for field in target.columns:
            if postgres_type(field.dataType) is None:
                kind = field.dataType.simpleString()
                raise unsupported_type(target, field.name, kind, "PostgreSQL")
            if len(field.name.encode()) > NAME_BYTES_MAX:
                raise CatalogError(
                    f"column {field.name} has a name of more than {NAME_BYTES_MAX} bytes",
                    condition="INVALID_NAME",
                    sink=target.name,
                    hint="give it a shorter name with AS",
                )
            if field.name in SYSTEM_COLUMNS:
                raise CatalogError(
                    f"column {field.name} has the name of a system column of PostgreSQL",
                    condition="INVALID_NAME",
                    sink=target.name,
                    hint="give it another name with AS",
                )

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        return PostgresSink(
            target,
            connection_settings(options),
            table_name(options),
            key_of(target, options.get("key")),
            overwrite=is_true("overwrite", options.get("overwrite", "false")),
            stop=_on_refused(options) == STOP,
        )


class PostgresSink:
    """A table of PostgreSQL that follows a view."""

    def __init__(
        self,
        target: Target,
        settings: Mapping[str, Any],
        table: Sequence[str],
        key: tuple[str, ...] | None,
        *,
        overwrite: bool,
        stop: bool,
    ) -> None:
        self._psycopg = package("a sink of format postgres")
        self._target, self._settings, self._key = target, settings, key
        self._overwrite, self._stop = overwrite, stop
        identifier = self._psycopg.sql.Identifier
        self._table, self._place = identifier(*table), ".".join(table)
        self._epochs = identifier(*table[:-1], EPOCHS)
        self._connection: Connection | None = None

    @property
    def found_by(self) -> Sequence[str] | None:
        """The view's key."""
        return self._key

    def committed(self) -> Epoch | None:
        with self._transaction() as connection:
            return self._found(connection)

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        done = keyed_changes(changes, self._key)
        with self._transaction() as connection:
            self._store(connection, base, epoch)
            if changes.num_rows:
                writer = self._writer(connection)
                left_out = writer.each(done.deleted, writer.delete)
                left_out += writer.upsert_each(done.upserted)
                self._refuse(left_out)

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        rows = repeat(rows.select(range(rows.num_columns - 2)), rows.column(-1).to_numpy())
        with self._transaction() as connection:
            self._store(connection, base, epoch)
            table = SinkTable(self._psycopg, connection, self._table, self._target, self._key)
            table.create()
            if base is None:
                self._take(connection)
                if table.holds_rows():
                    if not self._overwrite:
                        raise target_not_empty(self._target, self._place)
                    table.clear()
            table.fit(new=base is None)
            writer = self._writer(connection)
            self._refuse(writer.replace(rows))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _found(self, connection: Connection) -> Epoch | None:
        """Return the epoch of the target; None if the table isn't there."""
        sql = self._psycopg.sql
        if not (exists(connection, self._epochs) and exists(connection, self._table)):
            return None
        query = sql.SQL("SELECT epoch FROM {} WHERE sink = %s AND target = %s")
        row = connection.execute(
            query.format(self._epochs_in(connection)), [self._target.app, self._place]
        ).fetchone()
        return None if row is None else Epoch(row[0])

    def _store(self, connection: Connection, base: Epoch | None, epoch: Epoch) -> None:
        """Store the epoch; other writers of this sink wait from here on, and are then refused."""
        sql = self._psycopg.sql
        app = self._target.app
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [app])
        found = self._found(connection)
        if found != base:
            raise target_moved(self._target, base, found)
        if found is None:
            if not exists(connection, self._epochs):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATION_LOCK])
            create = sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (sink text PRIMARY KEY, target text NOT NULL, "
                "epoch bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now())"
            )
            connection.execute(create.format(self._epochs))
            insert = sql.SQL(
                "INSERT INTO {} (sink, target, epoch) VALUES (%s, %s, %s) ON CONFLICT (sink) "
                "DO UPDATE SET target = excluded.target, epoch = excluded.epoch, updated_at = now()"
            )
            connection.execute(
                insert.format(self._epochs_in(connection)), [app, self._place, epoch]
            )
            return
        update = sql.SQL(
            "UPDATE {} SET epoch = %s, updated_at = now() "
            "WHERE sink = %s AND target = %s AND epoch = %s"
        )
        values = [epoch, app, self._place, base]
        if connection.execute(update.format(self._epochs_in(connection)), values).rowcount != 1:
            raise target_moved(self._target, base, None)

    def _epochs_in(self, connection: Connection) -> Composable:
        """Return the name of the table of epochs for statements with parameters, where % begins one."""
        name = self._epochs.as_string(connection).replace("%", "%%")
        escaped: Composable = self._psycopg.sql.SQL(name)
        return escaped

    def _take(self, connection: Connection) -> None:
        """Remove the epochs of other sinks of the table; StateError if one of them is still there."""
        sql = self._psycopg.sql
        table, app = self._table.as_string(connection), self._target.app
        connection.execute("SELECT pg_advisory_xact_lock(to_regclass(%s)::oid::bigint)", [table])
        query = sql.SQL(
            "SELECT sink FROM {} WHERE sink <> %s AND (target = %s "
            "OR to_regclass(quote_ident(target)) = to_regclass(%s) OR position('.' in target) > 0 "
            "AND to_regclass(format('%%I.%%I', split_part(target, '.', 1), split_part(target, '.', 2)))"
            " = to_regclass(%s))"
        )
        values = [app, self._place, table, table]
        found = connection.execute(query.format(self._epochs_in(connection)), values).fetchall()
        owners = check_owners(
            self._target, self._place, [owner for (owner,) in found], overwrite=self._overwrite
        )
        remove = sql.SQL("DELETE FROM {} WHERE sink = ANY(%s)")
        connection.execute(remove.format(self._epochs_in(connection)), [list(owners)])

    def _writer(self, connection: Connection) -> Writer:
        return Writer(self._psycopg, connection, self._table, self._target, self._key, self._place)

    def _refuse(self, left_out: list[tuple[pa.Table, str]]) -> None:
        if not left_out:
            return
        if self._stop:
            raise refused(left_out[0][1])
        self._target.refuse(
            pa.concat_tables([row for row, _ in left_out]), [error for _, error in left_out]
        )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Run a transaction; after an error the connection is closed."""
        try:
            if self._connection is None:
                self._connection = self._psycopg.connect(
                    **self._settings, autocommit=True, prepare_threshold=None
                )
                self._connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
            with self._connection.transaction():
                self._connection.execute(SETTINGS)
                yield self._connection
        except self._psycopg.Error as error:
            self.close()
            secret = str(self._settings.get("password") or "")
            raise sink_failed(self._target, error, [secret]) from None
        except BaseException:
            self.close()
            raise


def package(user: str) -> Any:
    """Return psycopg; EngineError if it isn't installed.

    Args:
        user: what needs it.
    """
    try:
        import psycopg
        import psycopg.sql
    except ImportError as error:
        raise missing_package(user, "psycopg", "postgres") from error
    return psycopg


def check_url(options: Mapping[str, str]) -> None:
    """Raise EngineError if the option `url` can't be read, or holds a password."""
    reference = options.get("url", "").startswith("${")  # what it refers to isn't stored
    settings = {} if reference else _settings(options)
    if any(settings.get(name) for name in ("password", "sslpassword")):
        raise EngineError(
            "option url contains a password, which the catalog would hold in clear",
            condition="BAD_OPTION",
            hint="leave it out of the URL, and write password = '${env:PGPASSWORD}'",
        )


def connection_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a connection, of options whose secrets are filled in."""
    settings = {**CONNECTION, **_settings(options)}
    if options.get("password"):
        settings["password"] = options["password"]
    return settings


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    psycopg = package("format postgres")
    try:
        settings: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(options.get("url", ""))
    except psycopg.Error:  # its message may quote a password
        settings = {}
    if not settings:
        raise EngineError(
            "option url is missing, or not one that PostgreSQL's client can read",
            condition="BAD_OPTION",
            hint="write postgresql://user@host:port/database, special letters as %XX",
        )
    return settings


def table_name(options: Mapping[str, str]) -> list[str]:
    """Return the parts of the table's name, which may be in double quotes.

    Example:
        >>> table_name({"table": 'sales."by.day"'})
        ['sales', 'by.day']
    """
    name = options.get("table", "")
    parts = [quoted.replace('""', '"') or plain for quoted, plain in _PART.findall(name)]
    if not _NAME.fullmatch(name) or any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        raise wrong_argument("option table", name, "give the name of a table, or schema.table")
    return parts


def _on_refused(options: Mapping[str, str]) -> str:
    return options.get("on_refused", DEAD_LETTERS).lower()
