"""The protocol of sinks: targets outside of the storage that follow a view."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from eddyline.changes import Epoch


class Sink(Protocol):
    """A target that holds the rows of one view as of an epoch, and knows which epoch that is.

    Rows come as an Arrow table: the view's columns in their order, then `op` (`append` or `delete`),
    then `w`, the weight: how many equal rows are appended (positive) or deleted (negative). Each
    row occurs once in a table. A view's own columns may be named `op` or `w`, so access the last two
    by position.

    After a method has raised an error, it may be called again with the same arguments.
    """

    def committed(self) -> Epoch | None:
        """Return the epoch whose rows the target holds; None before the first delivery.

        This is read from the target itself: it decides which epochs are delivered next.
        """

    def deliver(self, epoch: Epoch, changes: pa.Table) -> None:
        """Apply an epoch's changes and store the epoch's number, both or neither, durably.

        The changes lead from the epoch that `committed` returns to this one. They may be empty:
        then only the number changes.
        """

    def replace(self, epoch: Epoch, rows: pa.Table) -> None:
        """Make `rows`, all appended, the target's only rows, and store the epoch's number.

        Both happen or neither, durably. Called for a target without an epoch, and where the
        changes since its epoch are no longer retained.
        """

    def close(self) -> None:
        """Release what the sink holds: connections, files."""
