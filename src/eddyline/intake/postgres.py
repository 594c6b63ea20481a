"""The format `USING postgres`: the changes of a table in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from eddyline.catalog.entries import Entry
from eddyline.errors import DataError
from eddyline.intake.formats import Context, check_given, log_columns
from eddyline.sink.postgres import check_url, connection_settings, package, table_name
from eddyline.sink.postgres_text import spark_type
from eddyline.sink.secrets import check_secrets, filled_in
from eddyline.source.base import Source
from eddyline.source.pgoutput import ADDED, PublishedTable
from eddyline.source.postgres import PostgresStream
from eddyline.source.postgres_server import Server
from eddyline.source.segment_readers import Reader

OPTIONS: Mapping[str, str] = {
    "url": "postgresql://user@host:port/database, or key=value pairs; without a password",
    "password": "the password, as a reference such as ${env:PGPASSWORD}",
    "table": "name of the table, or schema.table",
    "slot": "name of the replication slot that the stream makes; else it makes one up",
    "publication": "an existing publication to use; else the stream makes one",
}
SECRETS = ("password",)


class PostgresChanges:
    """The rows of a table in PostgreSQL, then each change of them: `USING postgres`."""

    @property
    def readers(self) -> Mapping[str, Reader]:
        """None: rows are copied into the redo log."""
        return {}

    def columns(self, stream: str, options: Mapping[str, str], context: Context) -> StructType:
        """Return the columns of the table, and those that describe a change."""
        given = _checked(stream, options)
        with _server(given).used_for(stream) as server:
            return _columns(stream, server.describe(stream, _quoted(given)))

    def check(self, stream: Entry, context: Context) -> None:
        """Raise DataError if the server, the table, the columns or an option don't fit."""
        given = _checked(stream.name, stream.options)
        with _server(given).used_for(stream.name) as server:
            table = server.describe(stream.name, _quoted(given))
            _check_fit(stream, table)
            if given.get("publication"):
                server.check_publication(stream.name, given["publication"], table)
            server.close()

    def letters(self, stream: Entry) -> str:
        """Return no role: a value that doesn't fit stops the stream."""
        return ""

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source that follows the table."""
        given = {name.lower(): value for name, value in stream.options.items()}
        return PostgresStream(
            stream.name,
            _quoted(given),
            given.get("slot", ""),
            given.get("publication", ""),
            log_columns(stream),
            partial(_check_fit, stream),
            partial(_server, given),
            context.log_of(stream),
            f"checkpoints/{stream.id}",
        )


def _checked(stream: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by names in lower case; an error if one is unknown or missing."""
    given = {name.lower(): value for name, value in options.items()}
    for unknown in given.keys() - OPTIONS.keys():
        raise DataError(
            f"a stream of format postgres has no option {unknown}",
            condition="BAD_STREAM",
            stream=stream,
            hint=f"the options are {', '.join(OPTIONS)}",
        )
    check_secrets(given, SECRETS)
    check_url(given)
    table_name(given)
    return given


def _quoted(options: Mapping[str, str]) -> str:
    """Return the name of the table, as SQL takes it."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table_name(options))


def _server(options: Mapping[str, str]) -> Server:
    """Return the server, with the secrets of the options filled in."""
    settings = connection_settings(filled_in(options))
    return Server(package("a stream of format postgres"), settings)


def _columns(stream: str, table: PublishedTable) -> StructType:
    for one in table.columns:
        if one.name.lower() in ADDED.names:
            raise DataError(
                f"stream {stream} can't follow table {table.shown}: it has a column {one.name}, which "
                "the stream adds itself",
                condition="BAD_STREAM",
                stream=stream,
                hint="give the column of the table another name",
            )
    own = [StructField(one.name, spark_type(one.type_name)) for one in table.columns]
    return StructType([*own, *from_arrow_schema(ADDED)])


def _check_fit(stream: Entry, table: PublishedTable) -> None:
    """Raise DataError unless a stream's columns are the table's: of their types, or STRING."""
    texts = {one.name for one in stream.given_columns if isinstance(one.dataType, StringType)}
    known = {one.name for one in table.columns}
    declared = [
        StructField(one.name, StringType()) if one.name in texts & known else one
        for one in _columns(stream.name, table)
    ]
    check_given(stream, StructType(declared))
