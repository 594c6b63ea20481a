"""A sink that writes one file for the changes of each delivery; it appears complete or not at all."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from eddyline.arguments import wrong_argument
from eddyline.changes import COMMIT_VERSION, Epoch
from eddyline.errors import StateError
from eddyline.sink.base import (
    Sink,
    Target,
    check_feed_columns,
    sink_failed,
    target_moved,
    target_not_empty,
)
from eddyline.sink.json_rows import check_json, json_rows
from eddyline.sink.rows import change_feed
from eddyline.sink.texts import date_texts, far_places, float_texts, moment_texts
from eddyline.storage.files import publish, sync_path

POSITION = "_eddyline.json"
"""The file that names the sink, and the last epoch of which there may be no file: nothing had changed."""

_FILE = re.compile(r"(\d{12})-(changes|snapshot)\.\w+")
_ANY = re.compile(rf"\.?{_FILE.pattern}")
_UNFINISHED = re.compile(rf"\.({_FILE.pattern}|{re.escape(POSITION)}-[0-9a-f]{{32}})")

Write = Callable[[pa.Table, str], Any]


@dataclass(frozen=True, slots=True)
class FilesFormat:
    """Files below a folder, each with the changes up to the epoch in its name.

    `000000000012-changes.parquet` has the changes since the file before it, as rows with `_change_type`
    and `_commit_version`; `000000000007-snapshot.parquet` has all rows, as `insert`, and those before
    it are removed. So all files together are one change feed that adds up to the view. A file appears
    under its name when it is complete: `rename` is the commit.

    Args:
        name: the format, and the suffix of the files.
        write: writes a table to a path.
        flat: whether columns of lists, structs and maps can't be written.
    """

    name: str
    write: Write
    flat: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        return {"path": "the folder, which is created if it is missing"}

    @property
    def secrets(self) -> Sequence[str]:
        return ()

    @property
    def fixed(self) -> Sequence[str]:
        return ("path",)

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        if not options.get("path", "").strip():
            raise wrong_argument("the option path", options.get("path"), "give a folder")
        check_feed_columns(target)
        if self.name == "jsonl":
            check_json(target, self.name)
        for field in target.schema if self.flat else ():
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise wrong_argument(
                    f"the format {self.name} for the column {field.name}",
                    str(field.type),
                    "take parquet or jsonl, or convert the column in the view",
                )

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        return FilesSink(target, options["path"], self)


class FilesSink:
    """Writes the files of `FilesFormat` into a folder on a local or mounted file system."""

    def __init__(self, target: Target, path: str, form: FilesFormat) -> None:
        self._target = target
        self._path = path
        self._form = form

    def committed(self) -> Epoch | None:
        try:
            with open(os.path.join(self._path, POSITION), encoding="utf-8") as stream:
                position = json.load(stream)
        except FileNotFoundError:
            if self._epochs():
                raise self._not_empty() from None
            return None
        except (OSError, ValueError) as error:
            raise sink_failed(self._target, error) from error
        if position["sink"] != self._target.app:
            raise self._not_empty()
        if position.get("snapshot"):  # a crash came between its commit and its appearance
            self._show_snapshot(Epoch(position["epoch"]))
        last = max([position["epoch"], *self._epochs()])
        return Epoch(last) if last else None

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        self._check(base)
        if changes.num_rows == 0:
            self._store(epoch)
            return
        name = self._write(changes, epoch, "changes")
        try:
            publish(os.path.join(self._path, f".{name}"), os.path.join(self._path, name))
            sync_path(self._path)
        except FileExistsError:  # of another engine
            raise target_moved(self._target, base, epoch) from None
        except OSError as error:
            raise sink_failed(self._target, error) from error

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        self._check(base)
        if base is None:
            self._store(Epoch(0))  # from now on the folder belongs to this sink
        self._write(rows, epoch, "snapshot")
        self._store(epoch, snapshot=True)
        self._show_snapshot(epoch)

    def close(self) -> None:
        pass

    def _not_empty(self) -> StateError:
        return target_not_empty(
            self._target, f"the folder {self._path}", "empty the folder, or give another one"
        )

    def _check(self, base: Epoch | None) -> None:
        found = self.committed()
        if found != base:
            raise target_moved(self._target, base, found)
        for name in self._names(_UNFINISHED):
            with suppress(OSError):
                os.unlink(os.path.join(self._path, name))

    def _show_snapshot(self, epoch: Epoch) -> None:
        """Publish a committed snapshot in place of all other files; idempotent."""
        name = f"{epoch:012d}-snapshot.{self._form.name}"
        try:
            with suppress(FileNotFoundError):  # it has appeared already
                os.replace(os.path.join(self._path, f".{name}"), os.path.join(self._path, name))
            for other in self._names():
                if other != name:
                    os.unlink(os.path.join(self._path, other))
        except OSError as error:
            raise sink_failed(self._target, error) from error
        self._store(epoch)

    def _names(self, form: re.Pattern[str] = _ANY) -> list[str]:
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise sink_failed(self._target, error) from error
        return [name for name in names if form.fullmatch(name)]

    def _epochs(self) -> dict[int, str]:
        found = filter(None, map(_FILE.fullmatch, self._names()))
        return {int(match[1]): match[2] for match in found}

    def _write(self, rows: pa.Table, epoch: Epoch, kind: str) -> str:
        """Write a file under a hidden name; return the name that it is to have."""
        feed = change_feed(rows, self._target.key)
        feed = feed.append_column(COMMIT_VERSION, pa.array(np.full(feed.num_rows, epoch)))
        name = f"{epoch:012d}-{kind}.{self._form.name}"
        path = os.path.join(self._path, f".{name}")
        try:
            self._form.write(feed, path)
            sync_path(path)
        except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
            raise sink_failed(self._target, error) from error
        return name

    def _store(self, epoch: Epoch, *, snapshot: bool = False) -> None:
        """Store the epoch.

        Args:
            snapshot: the hidden snapshot of that epoch replaces all files, from now on.
        """
        unfinished = os.path.join(self._path, f".{POSITION}-{uuid.uuid4().hex}")
        try:
            os.makedirs(self._path, exist_ok=True)
            with open(unfinished, "w", encoding="utf-8") as stream:
                json.dump({"sink": self._target.app, "epoch": epoch, "snapshot": snapshot}, stream)
            sync_path(unfinished)
            os.replace(unfinished, os.path.join(self._path, POSITION))
            sync_path(self._path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(unfinished)
            raise sink_failed(self._target, error) from error


def write_parquet(rows: pa.Table, path: str) -> None:
    """Write a Parquet file."""
    pyarrow.parquet.write_table(rows, path, compression="zstd")


def write_csv(rows: pa.Table, path: str) -> None:
    """Write a CSV file with a header, whose values Spark reads as they were."""
    columns = [_in_csv(column) for column in rows.columns]
    pyarrow.csv.write_csv(pa.table(columns, names=rows.column_names), path)


def _in_csv(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return a column that has no value any more which Arrow would write in another way than Spark."""
    kind = column.type
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return pa.chunked_array([float_texts(chunk) for chunk in column.chunks], pa.string())
    dated = pa.types.is_date(kind)
    if not (dated or pa.types.is_timestamp(kind)):
        return column
    if all(far_places(chunk) is None for chunk in column.chunks):
        return column
    written = date_texts if dated else moment_texts
    texts = pl.concat([written(chunk) for chunk in column.chunks])
    return (texts + "Z" if not dated and kind.tz else texts).to_arrow()


def write_jsonl(rows: pa.Table, path: str) -> None:
    """Write a JSON object a line."""
    pl.DataFrame({"rows": json_rows(rows)}).write_csv(
        path, include_header=False, quote_style="never"
    )
