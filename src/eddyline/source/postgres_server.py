"""The statements that a stream sends to a PostgreSQL server: descriptions of tables, slots, snapshots, changes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import csv

from eddyline.errors import DataError, without_secrets
from eddyline.source.base import cannot_read
from eddyline.source.pgoutput import PublishedColumn, PublishedTable

if TYPE_CHECKING:
    from psycopg import Connection

SETTINGS = """
    SET LOCAL timezone = 'UTC';
    SET LOCAL datestyle = 'ISO, YMD';
    SET LOCAL intervalstyle = 'postgres';
    SET LOCAL bytea_output = 'hex';
    SET LOCAL extra_float_digits = 1;
    SET LOCAL statement_timeout = 0
"""
"""The form of texts: snapshots and changes are written by the same functions of the server."""

BATCH_BYTES = 16 << 20
_FETCHED_FIRST, _FETCHED_MAX = 100, 50_000
_REPEATABLE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"

_TABLE = """
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
        coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
    SELECT attname, atttypid, atttypmod, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_KEY = """
    SELECT a.attname FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey::int2[])
    WHERE i.indrelid = %s AND CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END
    ORDER BY a.attnum
"""
_SLOT = """
    SELECT confirmed_flush_lsn - '0/0'::pg_lsn, wal_status IS NOT DISTINCT FROM 'lost',
        database = current_database() AND plugin = 'pgoutput'
    FROM pg_replication_slots WHERE slot_name = %s
"""
_PUBLISHED = """
    SELECT EXISTS (SELECT FROM pg_publication_tables p JOIN pg_class c ON c.oid = %s
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE pubname = %s AND schemaname = nspname AND tablename = relname)
"""
_ALL_OF = """
    SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate
        AND (pubviaroot OR %s <> 'p') FROM pg_publication WHERE pubname = %s
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot.

    Attributes:
        confirmed: the LSN from which on it keeps changes.
        lost: whether the server has removed changes that it should keep.
        own: whether it is one of pgoutput in this database.
    """

    confirmed: int
    lost: bool
    own: bool


class Server:
    """One connection to a server, opened when it is first needed.

    Args:
        psycopg: the package.
        settings: of the connection.
    """

    def __init__(self, psycopg: Any, settings: Mapping[str, Any]) -> None:
        self.psycopg, self._settings = psycopg, settings
        self._connection: Connection | None = None
        self._replication: Connection | None = None

    def _connect(self, **more: Any) -> Connection:
        opened: Connection = self.psycopg.connect(
            **self._settings, autocommit=True, prepare_threshold=None, **more
        )
        return opened

    @property
    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def used_for(self, stream: str) -> Iterator[Server]:
        """Translate errors of the server into errors of a stream; close the connection after any error."""
        try:
            yield self
        except self.psycopg.Error as error:
            self.close()
            secret = str(self._settings.get("password") or "")
            text = without_secrets(" ".join(str(error).split()), [secret])
            raise cannot_read(stream, text) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def cancel(self) -> None:
        """Cancel the running statement; may be called from another thread."""
        for one in (self._connection, self._replication):
            if one is not None and not one.closed:
                one.cancel_safe(timeout=5.0)

    def describe(self, stream: str, name: str) -> PublishedTable:
        """Describe a table, whose name is quoted where it must be.

        Raises:
            DataError: there is none, or its changes can't be followed.
        """

        def wrong(why: str, way_out: str) -> DataError:
            return DataError(
                f"stream {stream} can't follow table {name}: {why}",
                condition="BAD_STREAM",
                stream=stream,
                hint=way_out,
            )

        run = self.connection.execute
        version = self.connection.info.server_version
        if version < 130000:
            raise wrong(f"the server has version {version // 10000}", "use PostgreSQL 13 or later")
        if (level := run("SHOW wal_level").fetchone()) != ("logical",):
            shown = level[0] if level else ""
            raise wrong(
                f"the server's wal_level is {shown}",
                "set wal_level = logical in postgresql.conf, and start the server again",
            )
        found = run(_TABLE, [name]).fetchone()
        if found is None:
            raise wrong("it isn't there, or this user may not see it", "give schema.table")
        oid, schema, relation, kind, persistence, identity, toasted = found
        if kind not in "rp" or persistence != "p":
            raise wrong(
                "it is no ordinary table", "give a table that is neither temporary nor unlogged"
            )
        columns = tuple(PublishedColumn(*row) for row in run(_COLUMNS, [oid]))
        key = tuple(row[0] for row in run(_KEY, [oid, identity]))
        if identity == "n" or not (key or identity == "f"):
            raise wrong(
                "it has no primary key, so that its updates and deletes don't say which row they "
                "mean",
                f"ALTER TABLE {name} ADD PRIMARY KEY (...), or REPLICA IDENTITY FULL or USING INDEX",
            )
        if toasted and identity != "f":
            raise wrong(
                "it has values so long that PostgreSQL stores them apart, and doesn't send them with "
                "updates that don't change them",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL",
            )
        return PublishedTable(schema, relation, oid, columns, key or tuple(c.name for c in columns))

    def check_publication(self, stream: str, publication: str, table: PublishedTable) -> None:
        """Raise DataError unless a publication has all changes of a table."""
        run = self.connection.execute
        kind = run("SELECT relkind FROM pg_class WHERE oid = %s", [table.id]).fetchone() or ("r",)
        found = run(_ALL_OF, [kind[0], publication]).fetchone()
        narrowed = False
        if found == (True,) and self.connection.info.server_version >= 150000:
            query = "SELECT prqual IS NOT NULL OR prattrs IS NOT NULL FROM pg_publication_rel r "
            query += "JOIN pg_publication p ON p.oid = prpubid WHERE pubname = %s AND prrelid = %s"
            narrowed = (True,) in run(query, [publication, table.id]).fetchall()
        if found != (True,) or narrowed or not self.published(publication, table):
            what = "isn't there" if found is None else f"hasn't all changes of {table.shown}"
            raise DataError(
                f"stream {stream} can't use publication {publication}: it {what}",
                condition="BAD_STREAM",
                stream=stream,
                hint=f"CREATE PUBLICATION {publication} FOR TABLE {table.shown} WITH "
                "(publish_via_partition_root = true); or leave the option out, and the stream makes one",
            )

    def published(self, publication: str, table: PublishedTable) -> bool:
        """Return whether a publication exists and contains a table."""
        found = self.connection.execute(_PUBLISHED, [table.id, publication]).fetchone()
        return found == (True,)

    def create_publication(self, name: str, table: PublishedTable) -> None:
        """Create a publication of one table, unless it exists."""
        found = self.connection.execute("SELECT FROM pg_publication WHERE pubname = %s", [name])
        if found.fetchone() is None:
            self._run(
                "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)",
                name, (table.schema, table.name),
            )  # fmt: skip

    def drop_publication(self, name: str) -> None:
        self._run("DROP PUBLICATION IF EXISTS {}", name)

    def slot(self, name: str) -> Slot | None:
        """Return a slot; None if it doesn't exist."""
        found = self.connection.execute(_SLOT, [name]).fetchone()
        return None if found is None else Slot(int(found[0] or 0), found[1], bool(found[2]))

    def drop_slot(self, name: str) -> None:
        if self.slot(name) is not None:
            self.connection.execute("SELECT pg_drop_replication_slot(%s)", [name])

    def flushed(self) -> int:
        """Return the LSN up to which the log of the server is on its disk."""
        found = self.connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        return int((found.fetchone() or (0,))[0])

    def advance(self, name: str, lsn: int) -> None:
        """Let the server forget the changes before an LSN."""
        self.connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [name, _text(lsn)])

    @contextmanager
    def new_slot(self, name: str) -> Iterator[tuple[int, str]]:
        """Create a slot; yield the LSN from which on it keeps changes, and a snapshot as of then.

        All transactions that were committed before are in the snapshot, all others in the slot. Only
        the replication protocol exports such a snapshot; it lives during the context.
        """
        with self._connect(replication="database") as connection:
            self._replication = connection
            command = f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput EXPORT_SNAPSHOT'
            result = connection.pgconn.exec_(command.encode())
            if result.status != self.psycopg.pq.ExecStatus.TUPLES_OK:
                raise self.psycopg.errors.error_from_result(result)
            high, low = (result.get_value(0, 1) or b"").decode().split("/")
            yield (int(high, 16) << 32) + int(low, 16), (result.get_value(0, 2) or b"").decode()

    def snapshot(
        self, snapshot: str, table: PublishedTable, columns: list[str]
    ) -> Generator[pa.Table]:
        """Yield the texts of all rows of a table, as of an exported snapshot."""
        sql = self.psycopg.sql
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(_REPEATABLE)
            cursor.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            cursor.execute(SETTINGS)
            copied = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
                sql.SQL(", ").join(map(sql.Identifier, columns)),
                sql.Identifier(table.schema, table.name),
            )
            rows, size = list[bytes](), 0
            with cursor.copy(copied) as copy:
                for row in copy:
                    rows.append(bytes(row))
                    size += len(row)
                    if size >= BATCH_BYTES:
                        yield _texts(b"".join(rows), columns)
                        rows, size = [], 0
            if rows:
                yield _texts(b"".join(rows), columns)

    def changes(self, slot: str, publication: str, upto: int, count: int) -> Generator[list[bytes]]:
        """Return the messages of the whole transactions that a slot keeps, in batches.

        Args:
            upto: transactions that begin to be committed before this LSN.
            count: stop after the transaction that brings so many messages.
        """
        query = (
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, "
            "'proto_version', '1', 'publication_names', %s)"
        )
        with ExitStack() as stack:
            connection = self.connection
            stack.enter_context(connection.transaction())
            connection.execute(SETTINGS)
            quoted = self.psycopg.sql.Identifier(publication).as_string(connection)
            cursor = stack.enter_context(connection.cursor("eddyline_changes", binary=True))
            cursor.execute(query, [slot, _text(upto), count, quoted])
            first = cursor.fetchmany(_FETCHED_FIRST)
            return _batches(stack.pop_all(), cursor, first)

    def _run(self, statement: str, *names: str | tuple[str, ...]) -> None:
        sql = self.psycopg.sql
        parts = [sql.Identifier(*((one,) if isinstance(one, str) else one)) for one in names]
        self.connection.execute(sql.SQL(statement).format(*parts))


def _batches(stack: ExitStack, cursor: Any, rows: list[tuple[bytes]]) -> Generator[list[bytes]]:
    """Yield the values of a cursor in batches of about `BATCH_BYTES`, and close it."""
    with stack:
        while rows:
            messages = [data for (data,) in rows]
            yield messages
            mean = sum(map(len, messages)) // len(messages) + 1
            rows = cursor.fetchmany(max(1, min(_FETCHED_MAX, BATCH_BYTES // mean)))


def _text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _texts(rows: bytes, columns: list[str]) -> pa.Table:
    """Return rows of the server's CSV as texts: nothing is null, two quotes are an empty text."""
    return csv.read_csv(
        BytesIO(rows),
        csv.ReadOptions(column_names=columns, block_size=len(rows) + 1),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
