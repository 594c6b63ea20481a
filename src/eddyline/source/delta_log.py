"""Reads a Delta table for a stream: its commits, a snapshot, and the changes of a version.

The package `deltalake` reads rows. The commits are read here, because only they show that one is missing, that
the table was recreated, and which version changes the columns.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from eddyline.changes import CHANGE_TYPE
from eddyline.errors import EddylineError
from eddyline.source.base import cannot_read

if TYPE_CHECKING:
    from deltalake import DeltaTable

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FEED, _MAPPING = "delta.enableChangeDataFeed", "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The metadata of a table in some versions.

    Attributes:
        table: the table's id.
        schema: its columns, in the JSON of Spark's StructType.
        partitions: names of the columns of its partitions.
        feed: whether its change data feed is on.
        mapped: whether its columns have other names in the files.
    """

    table: str
    schema: str
    partitions: tuple[str, ...]
    feed: bool
    mapped: bool

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [field["name"] for field in json.loads(self.schema)["fields"]]


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table, as the commit in its log describes it.

    Attributes:
        version: its number.
        digest: SHA-256 of the commit.
        layout: the metadata from here on; None if it didn't change.
        files: URL-encoded names of the files that the changes are read from.
        size: their bytes.
        committed_at: milliseconds since 1970; None if the commit doesn't tell.
    """

    version: int
    digest: str
    layout: TableVersion | None
    files: tuple[str, ...]
    size: int
    committed_at: int | None


class DeltaLog:
    """A Delta table. All errors of reading it are raised as EngineError STREAM_FAILED.

    Args:
        deltalake: the package.
        stream: name of the stream, for errors.
        path: folder or URL of the table.
    """

    def __init__(self, deltalake: Any, stream: str, path: str) -> None:
        self._deltalake, self._stream, self.path = deltalake, stream, path

    def open(self, version: int | None = None) -> DeltaTable:
        """Return the table as of a version; None: the latest."""
        with self._reading():
            table: DeltaTable = self._deltalake.DeltaTable(self.path, version=version)
            return table

    def is_table(self) -> bool:
        """Whether there is a Delta table."""
        with self._reading():
            return bool(self._deltalake.DeltaTable.is_deltatable(self.path))

    def layout(self, table: DeltaTable) -> TableVersion:
        """Return the metadata of a table."""
        with self._reading():
            metadata = table.metadata()
            return _layout(
                str(metadata.id),
                table.schema().to_json(),
                metadata.partition_columns,
                metadata.configuration,
            )

    def there(self, *versions: int) -> list[bool]:
        """Return for each version whether its commit exists."""
        with self._reading():
            found = self._files.get_file_info([_name(version) for version in versions])
        return [one.type == fs.FileType.File for one in found]

    def latest(self, version: int) -> int:
        """Return the last version, which is this one or a later one; asks for few of those between."""
        step = 1
        while self.there(version + step)[0]:
            version, step = version + step, 2 * step
        while step > 1:
            step //= 2
            version += step * self.there(version + step)[0]
        return version

    def commit(self, version: int) -> Commit | None:
        """Return a commit; None if it doesn't exist."""
        (there,) = self.there(version)
        if not there:
            return None
        with self._reading():
            with self._files.open_input_file(_name(version)) as stream:
                content = stream.read()
            return _commit(version, content)

    def missing(self, commit: Commit) -> list[str]:
        """Return the files of a commit that are no longer there."""
        names = [unquote(name) for name in commit.files if "://" not in name]
        with self._reading():
            found = self._files.get_file_info(names)
        return [one.path for one in found if one.type == fs.FileType.NotFound]

    def snapshot(self, table: DeltaTable, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows of a table."""
        columns = ", ".join(map(_quoted, names))

        def begin() -> Any:
            query = self._deltalake.QueryBuilder().register("t", table)
            return query.execute(f"SELECT {columns} FROM t")

        return self._batches(begin)

    def changes(
        self, table: DeltaTable, version: int, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the changed rows of a version, and the kind of each change.

        Args:
            table: the table as of any version with the layout of this one.
        """
        columns = [*map(_quoted, names), CHANGE_TYPE]
        return self._batches(lambda: table.load_cdf(version, version, columns=columns))

    def _batches(self, begin: Callable[[], Any]) -> Iterator[pa.RecordBatch]:
        with self._reading():
            reader = pa.RecordBatchReader.from_stream(begin())
        while True:
            with self._reading():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch

    @cached_property
    def _files(self) -> fs.PyFileSystem:
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.path))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except EddylineError:
            raise
        except Exception as error:  # delta-rs raises Exception and OSError, too
            text = " ".join(_COLOURS.sub("", str(error)).split())
            raise cannot_read(self._stream, f"Delta table {self.path}: {text}") from error


def _name(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _commit(version: int, content: bytes) -> Commit:
    layout, committed_at = None, None
    changed, added = list[dict[str, Any]](), list[dict[str, Any]]()
    for line in content.splitlines():
        action = json.loads(line)
        if (one := action.get("metaData")) is not None:
            layout = _layout(
                one["id"],
                one["schemaString"],
                one.get("partitionColumns") or (),
                one.get("configuration") or {},
            )
        elif (one := action.get("commitInfo")) is not None:
            committed_at = one.get("inCommitTimestamp", one.get("timestamp"))
        elif (one := action.get("cdc")) is not None:
            changed.append(one)
        elif (one := action.get("add") or action.get("remove")) and one.get("dataChange", True):
            added.append(one)
    read = changed or added  # change files, if there are any, contain all changes
    return Commit(
        version,
        hashlib.sha256(content).hexdigest(),
        layout,
        tuple(one["path"] for one in read),
        sum(one.get("size") or 0 for one in read),
        committed_at,
    )


def _layout(
    table: str, schema: str, partitions: Sequence[str], configuration: dict[str, str]
) -> TableVersion:
    return TableVersion(
        table,
        schema,
        tuple(partitions),
        configuration.get(_FEED, "").lower() == "true",
        configuration.get(_MAPPING, "none").lower() != "none",
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
