"""The bolts of the log ETL: parse a line, look up its host at the service, load it into PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import polars as pl
import pyarrow as pa

from eddyline.errors import EngineError, StorageError
from eddyline.relay.bolts import Emitted

try:
    import psycopg
    from psycopg import sql
except ImportError as error:
    raise EngineError(
        "the log ETL needs PostgreSQL's client, which isn't installed",
        condition="MISSING_PACKAGE",
        hint="pip install 'eddyline[postgres]'",
    ) from error

COLUMNS = {
    "position": "BIGINT",
    "ts": "TIMESTAMPTZ",
    "host": "TEXT",
    "path": "TEXT",
    "status": "INT",
    "bytes": "BIGINT",
    "region": "TEXT",
    "carrier": "TEXT",
}
"""Columns of the PostgreSQL table and their types."""

RETRY_SECONDS_MAX = 20.0
"""How long `Load` retries while PostgreSQL is unavailable, before its rows fail."""
CONNECT_SECONDS_MAX = 5

# The same format as in web_statistics.sql.
TEXT = r'(?:[^"\\\n]|\\.)*'
LINE = (
    r"\A(?:\S+:[0-9]+ )?(?P<host>\S+) \S+ \S+ "
    r"\[(?P<ts>[0-9]{2}/[A-Za-z]{3}/[12][0-9]{3}:[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4})\] "
    rf'"(?P<request>{TEXT})" (?P<status>[0-9]{{3}}) (?P<bytes>[0-9]{{1,12}}|-)'
    rf'(?: "{TEXT}" "{TEXT}")?\r?\z'
)
MALFORMED = "not a line of an access log"

CREATE = f"""
CREATE TABLE IF NOT EXISTS visits (
  {", ".join(f"{name} {kind} NOT NULL" for name, kind in COLUMNS.items())},
  PRIMARY KEY (position),
  CONSTRAINT status_is_of_http CHECK (status BETWEEN 100 AND 599)
)
"""
INSERT = f"""
INSERT INTO visits ({", ".join(COLUMNS)})
SELECT * FROM unnest({", ".join(f"%s::{kind}[]" for kind in COLUMNS.values())})
ON CONFLICT (position) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in COLUMNS)}
""".encode()


def parse(records: pa.Table) -> Emitted:
    """Parse log lines into columns; lines in another format fail as `MALFORMED`."""
    found = pl.DataFrame(records.select(["payload", "position", "attempts"])).select(
        "position",
        "attempts",
        pl.col("payload").cast(pl.String).str.extract_groups(LINE).struct.unnest(),
    )
    path = pl.col("request").str.extract(r"^\S+ (.*?)(?: HTTP/\S+)?$").fill_null("")
    rows = found.select(
        "position",
        "attempts",
        pl.col("ts").str.to_datetime("%d/%b/%Y:%H:%M:%S %z", time_unit="us", strict=False),
        "host",
        path.alias("path"),
        pl.col("status").cast(pl.Int32),
        pl.col("bytes").cast(pl.Int64, strict=False).fill_null(0),
    )
    bad = rows["ts"].is_null()
    return Emitted(
        rows.filter(~bad).to_arrow(), failed=dict.fromkeys(bad.arg_true().to_list(), MALFORMED)
    )


class ServiceError(Exception):
    """The service responded with a status other than 200."""


class Enrich:
    """Adds the region and the carrier of a row's host, which it requests from the service.

    Args:
        url: URL of the service, http only.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.host, self.port = address.hostname, address.port

    async def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with region and carrier."""
        path = f"/hosts/{quote(row['host'], safe='')}"
        status, body = await self._get(
            f"{path}?record={row['position']}&attempt={row['attempts'] + 1}"
        )
        if status != 200:
            raise ServiceError(f"{status} {body.get('error', '')}")
        kept = {name: row[name] for name in COLUMNS if name in row}
        return {**kept, "region": body["region"], "carrier": body["carrier"]}

    async def _get(self, path: str) -> tuple[int, dict[str, str]]:
        """Return status and body of a response, which in HTTP/1.0 ends with the connection."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        return int(head.split(maxsplit=2)[1]), json.loads(body)


class Load:
    """Upserts rows into PostgreSQL by position, so that a replay changes nothing.

    Only the rows that PostgreSQL rejects fail. While the server is unavailable, the insert is retried
    for up to `RETRY_SECONDS_MAX`.

    Args:
        url: URL of the database.
        schema: schema of the table.
    """

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema

    def __call__(self, rows: pa.Table) -> Emitted:
        """Insert the rows; emit those that PostgreSQL accepted."""
        columns = [rows[name].to_pylist() for name in COLUMNS]
        deadline = time.monotonic() + RETRY_SECONDS_MAX
        while True:
            failed: dict[int, str] = {}
            try:
                with (
                    _thread_connection(self.url, self.schema) as connection,
                    connection.transaction(),
                ):
                    _insert(connection, columns, 0, rows.num_rows, failed)
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        kept = np.setdiff1d(np.arange(rows.num_rows), list(failed))
        return Emitted(rows.select(list(COLUMNS)).take(kept), failed=failed)


def _insert(
    connection: psycopg.Connection, columns: list[list[Any]], start: int, end: int,
    failed: dict[int, str],
) -> None:  # fmt: skip
    """Insert rows; if one is rejected, bisect until each rejected row is found, noted in `failed`."""
    try:
        with connection.transaction():
            connection.execute(INSERT, [column[start:end] for column in columns])
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        if end - start == 1:
            failed[start] = f"{type(error).__name__}: {error.diag.message_primary or error}"
            return
        middle = (start + end) // 2
        _insert(connection, columns, start, middle, failed)
        _insert(connection, columns, middle, end, failed)


_connections = threading.local()


@contextmanager
def _thread_connection(url: str, schema: str) -> Iterator[psycopg.Connection]:
    """Reuse this thread's connection to a schema; close it if the body of the `with` block raises."""
    cached: dict[tuple[str, str], psycopg.Connection] = _connections.__dict__.setdefault(
        "cached", {}
    )
    connection = cached.pop((url, schema), None) or _connect(url, schema)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    cached[url, schema] = connection


def _connect(url: str, schema: str) -> psycopg.Connection:
    connection = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS_MAX)
    connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
    return connection


# --- the database, used by the driver ---


def create_table(url: str, schema: str) -> None:
    """Create the schema and the table if they don't exist.

    Raises:
        StorageError: the database can't be used.
    """
    with (
        _translated_errors(),
        psycopg.connect(url, connect_timeout=CONNECT_SECONDS_MAX) as connection,
    ):
        name = sql.Identifier(schema)
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        connection.execute(CREATE.encode())


def fetch_rows(url: str, schema: str, query: str) -> list[tuple[Any, ...]]:
    """Run a query and return its rows.

    Raises:
        StorageError: the database can't be used.
    """
    with _translated_errors(), _connect(url, schema) as connection:
        return connection.execute(query.encode()).fetchall()


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate errors of the PostgreSQL client into EngineError or StorageError."""
    try:
        yield
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:  # an invalid URL: hide the message, it may quote the password
            raise EngineError(
                "--postgres is not a URL that PostgreSQL's client can read",
                condition="BAD_OPTION",
                hint="write postgresql://user:password@host:port/database, special letters as %XX",
            ) from None
        raise _database_unavailable(error) from None
    except psycopg.Error as error:
        raise _database_unavailable(error) from None


def _database_unavailable(error: psycopg.Error) -> StorageError:
    return StorageError(
        f"the PostgreSQL database can't be used: {' '.join(str(error).split())}",
        condition="DATABASE_UNAVAILABLE",
        hint="mend the cause; with --storage the same command goes on",
    )


def host_and_port(url: str) -> str:
    """Return host and port of a database, without user and password."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return f"{parts.get('host', 'its socket')}:{parts.get('port', 5432)}"
