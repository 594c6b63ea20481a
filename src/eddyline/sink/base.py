"""The protocol of sinks: targets outside of the storage that follow a view.

A new kind of target is a `SinkFormat`, which opens a `Sink`, and an entry in the registry
`api/formats.py: SINKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql.types import StructType

from eddyline.arguments import check_choice
from eddyline.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, Epoch
from eddyline.errors import CatalogError, EngineError, StateError, without_secrets

REFUSED_MIN = 1_000
"""From so many refused rows on, they must be fewer than those that the target takes."""

_OVERWRITE = (
    "give another target, empty this one, or set the option overwrite = true: its rows are then "
    "replaced by those of the view"
)
_MEND = "mend the cause; the delivery goes on from what the target holds"

Refuse = Callable[[pa.Table, Sequence[str]], None]
"""Keeps rows that a target refuses as dead letters, durably: rows of the view, and an error for each.

Raises StateError SINK_REFUSED if the sink has the option `on_refused 'stop'`.
"""


class Notes(Protocol):
    """Texts that a sink stores durably in the storage, of a target that can't be asked what it has answered."""

    def read(self) -> list[str]:
        """Return the texts that were written last."""

    def write(self, texts: Sequence[str]) -> None:
        """Replace all texts, durably."""


@dataclass(slots=True)
class NotesInMemory:
    """Notes that end with the process."""

    texts: list[str] = field(default_factory=list)

    def read(self) -> list[str]:
        return self.texts

    def write(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)


def keep_none(rows: pa.Table, errors: Sequence[str]) -> None:
    """Raise SINK_REFUSED for the first row instead of keeping any."""
    raise refused(errors[0] if rows.num_rows else "")


@dataclass(frozen=True, slots=True)
class Target:
    """The view that a sink follows, and the identity of the sink.

    Attributes:
        app: the permanent id of the sink, `eddyline/<storage id>/<sink id>`, which is stored in the target
            next to the epoch.
        name: the sink's name.
        columns: the view's columns, as Spark's types.
        schema: the same as Arrow's types, without `op` and `w`.
        key: names of columns of which no two rows of the view have the same values (null equals
            null); empty for a view of at most one row; None for a view without a key.
        append_only: whether no row of the view is ever deleted.
        delivered: the epoch of the stored cursor when the sink was opened, for targets that can't be
            asked for theirs; None before the first delivery, and if all rows are to be sent anew.
        refuse: keeps rows that the target refuses; call it before the transaction commits. It can be
            repeated with the same rows.
        notes: what the sink has to remember over crashes.
        others: returns the names of the other sinks of the storage by their permanent ids.
    """

    app: str
    name: str
    columns: StructType
    schema: pa.Schema
    key: tuple[str, ...] | None = None
    append_only: bool = False
    delivered: Epoch | None = None
    refuse: Refuse = field(default=keep_none, compare=False)
    notes: Notes = field(default_factory=NotesInMemory, compare=False)
    others: Callable[[], Mapping[str, str]] = field(default=dict, compare=False)


class Sink(Protocol):
    """A target that holds the rows of one view as of an epoch, and knows which epoch that is.

    Rows come as an Arrow table: the view's columns in their order, then `op` (`append` or `delete`),
    then `w`, the weight: how many equal rows are appended (positive) or deleted (negative). Each
    row occurs once in a table. A view's own columns may be named `op` or `w`, so access the last two
    by position.

    One thread calls the methods. After one has raised an error, it may be called again.
    """

    def committed(self) -> Epoch | None:
        """Return the epoch whose rows the target holds; None before the first delivery.

        This is read from the target itself: it decides which epochs are delivered next.
        """

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        """Apply changes and store the epoch's number, both or neither, durably.

        The changes lead from epoch `base`, which `committed` has returned, to `epoch`. They may be
        empty: then only the number changes.

        Raises:
            StateError: SINK_TARGET_MOVED, the target no longer holds `base`, so that another writer
                is at work; nothing was changed.
        """

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        """Make `rows`, all appended, the target's only rows, and store the epoch's number.

        Both happen or neither, durably. What the target holds already should stay as it is, so that
        its readers see only the difference. Called for a target without an epoch, and where the
        changes since its epoch are no longer retained.

        Raises:
            StateError: SINK_TARGET_MOVED as in `deliver`; SINK_TARGET_NOT_EMPTY, `base` is None, the
                target holds rows that this sink hasn't written or is that of another sink, and has no option
                `overwrite` that is true.
        """

    def close(self) -> None:
        """Release what the sink holds: connections, files."""


@runtime_checkable
class FindsRows(Protocol):
    """A sink whose target finds the rows that changes delete by some columns.

    The changes of a view don't fit a target whose rows were written by other columns: all rows are written anew.
    """

    @property
    def found_by(self) -> Sequence[str] | None:
        """The names of the columns; None if the target only takes rows that are appended."""


class SinkFormat(Protocol):
    """A kind of target: what follows USING in CREATE SINK."""

    @property
    def options(self) -> Mapping[str, str]:
        """The names of the options, in lower case, each with what it means in one line."""

    @property
    def secrets(self) -> Sequence[str]:
        """Names of options that can't be given in the clear: the catalog would hold them."""

    @property
    def fixed(self) -> Sequence[str]:
        """Names of options that a sink keeps: they say what its target is, or in what form it holds the rows."""

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        """Check options and view when a sink is created, without connecting to anything.

        Args:
            options: by names in lower case, all known; values as given, so that those of secrets are
                references.

        Raises:
            EngineError: BAD_OPTION, an option is missing or wrong.
            CatalogError: SINK_KEY, the target needs a key that the view doesn't have.
        """

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        """Open the target; `options` have their secrets filled in. Connects at the first call."""


def key_of(target: Target, wanted: str | None) -> tuple[str, ...] | None:
    """Return the key to use: that of the view, checked against the option `key` if that is given.

    Args:
        wanted: names of columns, with commas; None if the option isn't given.

    Raises:
        CatalogError: SINK_KEY, the view has another key, or none.

    Example:
        >>> target = Target("eddyline/s/k1", "k", StructType(), pa.schema([]), ("a", "b"))
        >>> key_of(target, "B, a")
        ('a', 'b')
    """
    if wanted is None or target.key is None:
        if wanted is not None:
            raise sink_key(target, f"the view has no key, so that {wanted} may not be unique")
        return target.key
    names = {part.strip().strip("`").lower() for part in wanted.split(",") if part.strip()}
    if names != {name.lower() for name in target.key}:
        own = ", ".join(target.key) or "no columns, as it has one row"
        raise sink_key(target, f"the key of the view is {own}, not {wanted}")
    return target.key


def sink_key(target: Target, why: str, way_out: str = "") -> CatalogError:
    """Return the error for a sink whose target needs a key that the view doesn't have.

    Args:
        way_out: another way that this format offers.
    """
    other = way_out or "take a format that needs no key, such as jsonl"
    return CatalogError(
        f"sink {target.name} can't follow this view by key: {why}",
        condition="SINK_KEY",
        sink=target.name,
        hint="leave the option key out, make the view unique by these columns (GROUP BY them, or "
        f"select the primary key), or {other}",
    )


def target_moved(target: Target, base: Epoch | None, found: Epoch | None) -> StateError:
    """Return the error for a target that holds another epoch than a moment before."""
    return StateError(
        f"the target of sink {target.name} holds epoch {found}, not {base} as before: another "
        "engine writes to it",
        condition="SINK_TARGET_MOVED",
        sink=target.name,
        hint="stop the other engine; the delivery goes on from what the target holds",
    )


def target_not_empty(target: Target, place: str, way_out: str = _OVERWRITE) -> StateError:
    """Return the error for a target with rows that this sink hasn't written.

    Args:
        way_out: what to do, where the format has no option `overwrite`.
    """
    return StateError(
        f"{place}, the target of sink {target.name}, holds rows that this sink hasn't written",
        condition="SINK_TARGET_NOT_EMPTY",
        sink=target.name,
        hint=way_out,
    )


def target_lacks(target: Target, place: str, column: str) -> StateError:
    """Return the error for a target that has lost a column with the values that were delivered to it."""
    return StateError(
        f"{place}, the target of sink {target.name}, has no column {column}, which was delivered to it: "
        "it was dropped or renamed",
        condition="SINK_TARGET_RESTORED",
        sink=target.name,
        hint="give the column its name back; or call resend() on the sink (eddyline sink resend): the "
        "column is added, with the values of the view",
    )


def check_owners(
    target: Target, place: str, owners: Collection[str], *, overwrite: bool
) -> Collection[str]:
    """Return the ids of sinks that no longer own a target; raise StateError if one of the storage's still does.

    A dropped sink owns nothing. Those of other storages can't be asked: they find that their epoch is gone.

    Args:
        owners: ids of the other sinks whose epochs the target holds.
        overwrite: whether the target is taken from sinks of this storage, too.
    """
    present = target.others()
    if not overwrite and (taken := [present[app] for app in owners if app in present]):
        raise StateError(
            f"{place}, the target of sink {target.name}, is the one of sink {taken[0]}",
            condition="SINK_TARGET_NOT_EMPTY",
            sink=target.name,
            hint=f"give another target, or drop sink {taken[0]}; or set the option overwrite = true: "
            "the other sink then stops",
        )
    return owners


def sink_failed(
    target: Target, error: object, secrets: Sequence[str] = (), *, way_out: str = _MEND
) -> EngineError:
    """Return the error for a target that can't be used.

    Args:
        error: the cause; only the first line of its text is shown.
        secrets: texts that are replaced by `***`.
        way_out: what to do, where more is known than that.
    """
    text = str(error).strip().split("\n")[0] or type(error).__name__
    return EngineError(
        f"the target of sink {target.name} can't be used: {without_secrets(text, secrets)}",
        condition="SINK_FAILED",
        sink=target.name,
        hint=way_out,
    )


def unsupported_type(target: Target, column: str, kind: str, format: str) -> CatalogError:
    """Return the error for a column that a target can't hold."""
    return CatalogError(
        f"{format} can't hold column {column} of sink {target.name}, whose type is {kind}",
        condition="UNSUPPORTED_TYPE",
        sink=target.name,
        hint=f"cast it in the view, such as CAST({column} AS STRING), or leave it out",
    )


def check_feed_columns(target: Target) -> None:
    """Raise CatalogError if the view has a column with the name of one that a change feed adds."""
    for name in target.schema.names:
        if name.lower() in (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP):
            raise CatalogError(
                f"the view of sink {target.name} has a column {name}, which a change feed adds",
                condition="DUPLICATE_COLUMN",
                sink=target.name,
                hint="give the column another name with AS",
            )


def is_true(option: str, value: str) -> bool:
    """Return the value of an option that is `true` or `false`, in any case."""
    check_choice(f"option {option}", value.lower(), ("true", "false"))
    return value.lower() == "true"


def refused(error: str) -> StateError:
    """Return the error for a row that a target refuses, where such rows stop the sink."""
    return StateError(
        f"the target refuses a row: {error}",
        condition="SINK_REFUSED",
        hint="mend the row or the target's constraint; or set the option on_refused = 'dead letters', "
        "and the rest is delivered",
    )
