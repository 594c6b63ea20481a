"""Writers of the data source: tasks write files into the inbox of a table, and the driver commits them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, StructType

from eddyline.answers.stored import stored_table
from eddyline.catalog.column_rules import row_rules
from eddyline.catalog.entries import Entry
from eddyline.errors import CatalogError, DataError, EngineError
from eddyline.source.inbox import FOLDER, commit_batch, withdraw_batch, write_files
from eddyline.source.row_rules import RowRules
from eddyline.source.user_rows import as_arrow
from eddyline.spark.schema import arrow_schema, widens
from eddyline.storage.files import Files
from pyspark_eddyline.readers import ZONE, bad_option, check_known

OPTIONS = ("table", "txnAppId", "txnVersion", "checkpointLocation", "queryName")
"""What a writer takes, beside the path. The last two are Spark's own, for streams."""
QUERY_ID = "sql.streaming.queryId"  # the property under which Spark tells tasks of their query


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The table that a DataFrame is written into.

    Attributes:
        table, name: its id and name.
        schema: its columns as Arrow.
        key: its primary key.
        given: for each column of the DataFrame the name of the table's column.
        rules: of its columns; None for none.
        options: of its entry, with the rules.
    """

    files: Files
    table: str
    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    given: tuple[str, ...]
    rules: RowRules | None
    options: Mapping[str, str]

    @classmethod
    def of(cls, options: Mapping[str, str], columns: StructType, *, overwrite: bool) -> TargetTable:
        """Return the table that the options name.

        Raises:
            EngineError: BAD_OPTION: an option is missing or unknown, or the mode isn't append.
            CatalogError: there is no such table.
            DataError: the columns don't fit those of the table.
        """
        check_known(options, OPTIONS)
        storage, name = options.get("path"), options.get("table")
        if not storage or not name:
            missing = "storage" if not storage else "table"
            raise bad_option(
                f"the {missing} to write into isn't given",
                'call .option("table", "its name").save("folder of the storage"); '
                "with writeStream .start(...)",
            )
        if overwrite:
            raise bad_option(
                f"table {name} can't be overwritten by a DataFrame, only appended to",
                'use .mode("append"), or outputMode("append") for a stream; rows leave the table with '
                "DELETE FROM, or engine.table(...).delete",
            )
        relation = stored_table(storage, name)
        entry = relation.entry
        schema = arrow_schema(entry.columns, relation.manifest.zone or ZONE)
        rules = row_rules(entry)
        given = _matched(entry, columns, rules)
        relation.files.make_folder(f"{FOLDER}/{entry.id}")
        return cls(
            relation.files, entry.id, entry.name, schema, entry.key, given, rules, entry.options
        )

    def is_unaltered(self) -> bool:
        """Return whether the table still has the columns and rules with which the rows were checked."""
        try:
            present = stored_table(self.files.root, self.name).entry
        except CatalogError:  # it was dropped
            return False
        return (present.id, present.options) == (self.table, self.options)

    def write(self, attempt: str, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, int, int]]:
        """Write rows into files of the inbox; DataError if a row has no key, or breaks a rule of a column."""

        def converted() -> Iterator[pa.Table]:
            for batch in batches:
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch]).rename_columns(list(self.given))
                    yield as_arrow(
                        rows,
                        self.schema,
                        relation=self.name,
                        zone=ZONE,
                        required=self.key,
                        rules=self.rules,
                    )

        return write_files(self.files, self.table, attempt, converted())


@dataclass
class Written(WriterCommitMessage):
    """What a task has written.

    Attributes:
        files: names, numbers of rows, and checksums.
        query: id of the streaming query; empty for none.
    """

    files: list[tuple[str, int, int]]
    query: str = ""


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame to a table, all or nothing."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._target = TargetTable.of(options, schema, overwrite=overwrite)
        self._attempt = uuid.uuid4().hex
        self._batch: tuple[str, int | None] = _transaction(options) or (self._attempt, None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(self._target.write(self._attempt, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        target = self._target
        commit_batch(
            target.files, target.table, *self._batch, _files(messages), target.is_unaltered
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        target = self._target
        withdraw_batch(target.files, target.table, self._attempt, _files(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a streaming query to a table, each once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._target = TargetTable.of(options, schema, overwrite=overwrite)
        if _transaction(options) is not None:
            raise bad_option(
                "a streaming query numbers its micro-batches itself",
                "leave out txnAppId and txnVersion",
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(QUERY_ID)
        if not query:  # without it a micro-batch that Spark repeats would be inserted again
            raise EngineError(
                "Spark doesn't tell the id of the streaming query",
                condition="UNKNOWN_SPARK_VERSION",
                hint='write in foreachBatch with .option("txnAppId", ...) and .option("txnVersion", '
                "number of the batch)",
            )
        return Written(self._target.write(uuid.uuid4().hex, iterator), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        target, queries = self._target, [m.query for m in messages if isinstance(m, Written)]
        if queries:
            commit_batch(
                target.files,
                target.table,
                queries[0],
                batchId,
                _files(messages),
                target.is_unaltered,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        withdraw_batch(self._target.files, self._target.table, "", _files(messages))


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[tuple[str, int, int]]:
    """Return the files of all tasks, in the order of the tasks."""
    return [one for message in messages if isinstance(message, Written) for one in message.files]


def _transaction(options: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the options `txnAppId` and `txnVersion`; None if they aren't given."""
    writer, version = options.get("txnAppId"), options.get("txnVersion")
    if writer is None and version is None:
        return None
    if not writer or version is None or not (version.isascii() and version.isdigit()):
        raise bad_option(
            f"txnAppId is {writer!r}, txnVersion {version!r}",
            "give both: a name of your program, and a whole number that grows with each batch",
        )
    return writer, int(version)


def _matched(entry: Entry, columns: StructType, rules: RowRules | None) -> tuple[str, ...]:
    """Return the column of a table for each column of a DataFrame, by name in any case.

    Raises:
        DataError: a column is unknown, comes twice, or has another type; or one of the key, or one that is NOT
            NULL without a DEFAULT, is missing.
    """
    known = {field.name.lower(): field for field in entry.columns}
    names = [field.name for field in columns]
    unknown = [name for name in names if name.lower() not in known]
    lower = [name.lower() for name in names]
    defaults = () if rules is None else (*rules.default_names, *rules.unknown)
    missing = [name for name in entry.key if name.lower() not in lower and name not in defaults]
    for wrong, found in (
        ("there is no column {} in the table", unknown),
        ("there are several columns {}", sorted({n for n in names if lower.count(n.lower()) > 1})),
        ("the DataFrame lacks the column {} of the primary key", missing),
    ):
        if found:
            raise DataError(
                wrong.format(", ".join(found)),
                condition="UNKNOWN_COLUMN",
                table=entry.name,
                hint=f"the columns are {entry.columns.simpleString()}; they are matched by name, and "
                "those that the DataFrame lacks have their DEFAULT, or null",
            )
    for field in columns:
        own = known[field.name.lower()]
        if not _fits(field.dataType, own.dataType):
            raise DataError(
                f"column {own.name} is {own.dataType.simpleString()}, that of the DataFrame "
                f"{field.dataType.simpleString()}",
                condition="WRONG_TYPE",
                table=entry.name,
                hint=f"convert it: col({own.name!r}).cast({own.dataType.simpleString()!r}); nothing "
                "was written",
            )
    given = tuple(known[name.lower()].name for name in names)
    if rules is not None:
        rules.check_given(given, entry.name)
    return given


def _fits(given: DataType, wanted: DataType) -> bool:
    """Return whether all values of a type fit a column: it is the same, but for null, or narrower."""
    return given.simpleString() == wanted.simpleString() or widens(given, wanted)
