"""What an engine reports in its own process: progress and errors to callbacks, and the lineage of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eddyline.api.describing import Describing
from eddyline.api.epochs import Epochs
from eddyline.api.handles import Name, name_of
from eddyline.api.lineage import lineage_of
from eddyline.api.workspace import Workspace
from eddyline.arguments import checked
from eddyline.runtime.progress import Progress


@checked
class Monitored:
    """The part of an engine that reports its progress, its errors, its definitions, and where columns come from."""

    _workspace: Workspace
    _epochs: Epochs

    @property
    def describing(self) -> Describing:
        """What DESCRIBE and SHOW of scripts call."""
        return Describing(self._workspace)

    def progress(self) -> Progress | None:
        """Return the Progress of this engine's last epoch; None before the first."""
        return self._epochs.reporting.progress

    def on_progress(self, callback: Callable[[Progress], Any]) -> None:
        """Call `callback` with the Progress of each epoch, after its commit."""
        self._epochs.reporting.callbacks.append(callback)

    def on_error(self, callback: Callable[[Exception], Any]) -> None:
        """Call `callback` with each failure of the background run, a stream's or a view's too."""
        self._epochs.reporting.error_callbacks.append(callback)

    def lineage(self, view: Name) -> list[dict[str, Any]]:
        """Return for each column of a view where it comes from, read from Spark's plan of its query.

        Each has `column`, `from` (columns of what the view reads) and `sources` (those of tables and streams,
        through all views): lists of `relation`, `kind`, `column` and `how`. The last one, `(rows)`, has the
        columns that decide which rows there are.

        Raises:
            CatalogError: there is no such view. QueryError: a function that it calls is missing here.
        """
        return lineage_of(self._workspace, name_of(view))
