"""A sink that calls a function with the changes of each epoch."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from eddyline.changes import Epoch
from eddyline.errors import StateError
from eddyline.sink.base import Target
from eddyline.sink.rows import change_feed

FUNCTION = "function"
"""The format of the sinks that `View.foreach_epoch` makes."""


class FunctionSink:
    """Calls `call(feed, epoch)`: at least once for each epoch that changed the view.

    A function has no stored epoch to ask for, so after a crash the last epoch may be delivered again.

    Args:
        call: gets rows with `_change_type`. The first call gets all rows, as `insert`.
    """

    def __init__(self, target: Target, call: Callable[[pa.Table, Epoch], None]) -> None:
        self._target = target
        self._call = call
        self._epoch = target.delivered

    def committed(self) -> Epoch | None:
        return self._epoch

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        if changes.num_rows:
            self._call(change_feed(changes, self._target.key), epoch)
        self._epoch = epoch

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        if base is not None:
            raise StateError(
                f"the changes of the view after epoch {base} are no longer retained, and sink "
                f"{self._target.name} can't find out what its function holds",
                condition="CHANGES_EXPIRED",
                sink=self._target.name,
                hint="empty what the function has written, and call resend() on the sink: it then "
                "gets all rows as inserts. The option held_epochs tells how many epochs wait for it",
            )
        self.deliver(Epoch(0), epoch, rows)

    def close(self) -> None:
        pass
