"""Readers of the data source: they plan in Spark's driver, and read files in its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructField, StructType

from eddyline.answers.reader import EpochChanges, Inserts, SnapshotBucket
from eddyline.answers.stored import Feed, StoredSnapshot, held_feed, held_snapshot
from eddyline.errors import EngineError
from eddyline.source.conditions import Condition, rows_where
from eddyline.spark.schema import arrow_schema
from eddyline.state.leases import renew
from eddyline.storage.files import Files
from pyspark_eddyline.filters import condition_of

ZONE = "UTC"  # in which Spark exchanges times with data sources
LEASE_SECONDS = 600
LATEST = "latest"


class Part(InputPartition):
    """What one task reads.

    Attributes:
        lease: the lease that the task renews; empty for none.
        where: the conditions that rows must meet.
    """

    def __init__(
        self,
        value: SnapshotBucket | EpochChanges | Inserts,
        files: Files,
        lease: str,
        where: Sequence[Condition] = (),
    ) -> None:
        super().__init__(value)
        self.files = files
        self.lease = lease
        self.where = tuple(where)

    def read(self, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns of `schema`."""
        if self.lease:
            renew(self.files, self.lease)
        types = arrow_schema(schema, ZONE)
        for batch in self.value.batches(types):
            rows = batch
            for condition in self.where:
                rows = rows_where(condition, rows, types)
            if rows.num_rows:
                yield rows


class BatchReader(DataSourceReader):
    """Reads a snapshot, a task for each bucket, or a change feed, a task for each epoch."""

    def __init__(self, chosen: StoredSnapshot | Feed, schema: StructType) -> None:
        check_columns(chosen.schema, schema)
        self._chosen = chosen
        self._schema = schema
        self._where: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        chosen = self._chosen
        renew(chosen.files, chosen.lease)
        return [Part(part, chosen.files, chosen.lease, self._where) for part in chosen.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # without partitions Spark makes one of its own
        return partition.read(self._schema) if isinstance(partition, Part) else iter(())


class FilteringReader(BatchReader):
    """The same with pushed filters, for sessions with `spark.sql.python.filterPushdown.enabled`.

    Spark refuses a reader with this method in other sessions.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            condition = condition_of(one, self._schema)
            if condition is None:
                yield one
            else:
                self._where.append(condition)


OPTIONS = (
    *("view", "table", "versionAsOf", "readChangeFeed", "startingVersion", "endingVersion"),
    *("leaseSeconds", "reader", "maxEpochsPerTrigger"),
)
"""What a reader takes, beside the path."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader.

    Attributes:
        feed: whether the columns of the change feed are wanted.
        starting: `startingVersion`; None if absent.
        ending: `endingVersion`; None if absent.
        version: `versionAsOf`; None if absent.
        seconds: how long the epochs stay after their last use.
    """

    storage: str
    name: str
    feed: bool
    starting: int | str | None
    ending: int | None
    version: int | None
    seconds: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the options; EngineError BAD_OPTION if one is missing, unknown or has a wrong value."""
        check_known(options, OPTIONS)
        storage, name = options.get("path"), options.get("view") or options.get("table")
        if not storage or not name:
            missing = "storage" if not storage else "view"
            raise bad_option(
                f"the {missing} to read isn't given",
                'call .option("view", "its name").load("folder of the storage")',
            )
        starting: int | str | None = LATEST
        if options.get("startingVersion", "").lower() != LATEST:
            starting = _number(options, "startingVersion", "an epoch")
        ending = _number(options, "endingVersion", "an epoch")
        if isinstance(starting, int) and ending is not None and ending < starting:
            raise bad_option(
                f"endingVersion is {ending}, before startingVersion, which is {starting}",
                "give an epoch from startingVersion on",
            )
        feed = options.get("readChangeFeed", "").lower()
        if feed not in ("", "true", "false"):
            raise bad_option(f"readChangeFeed is {feed!r}", "give true or false")
        seconds = _number(options, "leaseSeconds", "a time in seconds")
        bounded = starting is not None or ending is not None
        return cls(
            storage,
            name,
            feed == "true" if feed else bounded,
            starting,
            ending,
            _number(options, "versionAsOf", "an epoch"),
            LEASE_SECONDS if seconds is None else seconds,
        )

    @property
    def after(self) -> int | None:
        """The epoch before the first one whose changes are wanted; None for the last committed one."""
        if isinstance(self.starting, str):
            return None
        return max((self.starting or 0) - 1, 0)


def chosen(options: Mapping[str, str]) -> StoredSnapshot | Feed:
    """Return what a DataFrame with these options reads, held for a time.

    Raises:
        EddylineError: an option is wrong, or what it names can't be read.
    """
    asked = ReadOptions.of(options)
    if not asked.feed:
        return held_snapshot(asked.storage, asked.name, asked.version, asked.seconds)
    if asked.version is not None:
        raise bad_option(
            "versionAsOf reads rows, and readChangeFeed or startingVersion changes",
            "give one of both",
        )
    return held_feed(asked.storage, asked.name, asked.after, asked.ending, asked.seconds)


def nullable(schema: StructType) -> StructType:
    """Return a schema whose columns may be null, as those of all sources are."""
    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in schema])


def check_columns(own: StructType, asked: StructType) -> None:
    """Raise EngineError BAD_OPTION if a user asks for other columns than a relation has."""
    if [(f.name, f.dataType) for f in own] != [(f.name, f.dataType) for f in asked]:
        raise bad_option(
            f"the columns are {own.simpleString()}, not {asked.simpleString()}",
            "leave out .schema(...), and select the columns that you need",
        )


def check_known(options: Iterable[str], known: Sequence[str]) -> None:
    """Raise EngineError BAD_OPTION for an option that doesn't exist: a misspelt one would read another epoch."""
    names = {one.lower() for one in (*known, "path")}
    for one in options:
        if one.lower() not in names:
            raise bad_option(f"there is no option {one}", f"the options are {', '.join(known)}")


def bad_option(message: str, hint: str) -> EngineError:
    """Return the error for an option that is missing or unknown, or has a wrong value."""
    return EngineError(message, condition="BAD_OPTION", hint=hint)


def epochs_of(options: Mapping[str, str]) -> int | None:
    """Return the option `maxEpochsPerTrigger`; None if it isn't given."""
    most = _number(options, "maxEpochsPerTrigger", "a number of epochs from 1 on")
    if most == 0:
        raise bad_option("maxEpochsPerTrigger is 0", "give a number of epochs from 1 on")
    return most


def _number(options: Mapping[str, str], name: str, meaning: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise bad_option(f"{name} is {text!r}", f"give {meaning} as a whole number")
    return int(text)
