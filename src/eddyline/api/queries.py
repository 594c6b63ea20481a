"""What an engine answers: queries, snapshots, changes, plans, its status and the proof of its results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from eddyline.answers.verified import keep_verified
from eddyline.answers.verify import Report
from eddyline.api.epochs import Epochs
from eddyline.api.handles import Name, name_of
from eddyline.api.reading import Parameters, Reading
from eddyline.api.run_loop import RunLoop
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.arguments import checked


@checked
class Queried:
    """The part of an engine that reads: all as of the last committed epoch, or one that is retained."""

    _workspace: Workspace
    _epochs: Epochs
    _reading: Reading
    _running: RunLoop
    streams: Streams

    def sql(self, query: str, args: Parameters = None, *, confined: bool = False) -> DataFrame:
        """Run ad hoc SQL over tables, streams and views, all as of the last committed epoch.

        `name VERSION AS OF epoch` reads an earlier epoch, as long as that is retained. `args` are the values of `:name`
        or `?`, as Spark's `sql` takes them. `confined` is for queries of strangers: no files, other tables, scripts, Java.

        Raises:
            QueryError: INVALID_QUERY, NOT_A_QUERY: it is wrong. NOT_ALLOWED: it is confined. What Spark raises
                while it runs the DataFrame is Spark's own.
            EngineError: VIEW_FAILING: a view that it reads is set aside. StateError: NO_SUCH_EPOCH.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     orders.insert([("tea", 1), ("tea", 2)])
            ...     epoch = engine.advance()
            ...     engine.sql("SELECT sum(n) AS n FROM orders WHERE item = :item", {"item": "tea"}).collect()
            [Row(n=3)]
        """
        return self._reading.sql(query, args, confined=confined)

    def snapshot(self, name: Name, epoch: int | None = None) -> DataFrame:
        """Read a table or view as of the last committed epoch, or an earlier retained one.

        Raises:
            CatalogError: NOT_FOUND. StateError: NO_SUCH_EPOCH: the epoch isn't committed, or not retained any more.
            EngineError: VIEW_FAILING: the view is set aside.

        Example: see `View.snapshot`.
        """
        return self._reading.snapshot(name_of(name), epoch)

    def explain(self, name_or_query: Name, stage: str = "dag") -> str:
        """Show how a view or query is kept live (`stage` "dag"), or Spark's "logical" or "physical" plan.

        Raises:
            CatalogError: NOT_FOUND: nothing has this name.
            QueryError: UNKNOWN_STAGE. INVALID_QUERY, NOT_LIVE: the query is wrong, or can't be kept live.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     plan = engine.explain("SELECT item, sum(n) AS n FROM orders GROUP BY item")
            >>> "lane: short" in plan
            True
        """
        return self._reading.explain(name_of(name_or_query), stage)

    def status(self) -> dict[str, Any]:
        """Report the last epoch, `buckets`, sources, views and pipelines in numbers.

        Sources with position, `lag`, watermark, late rows, dead letters, `violations` of expectations, `error`; views
        with level, size, `state`, `state_growth` in rows an epoch; pipelines; `readers`; `sinks`; the `run`.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     total = engine.view("total", "SELECT sum(n) AS n FROM orders")
            ...     [(view["name"], view["state"]) for view in engine.status()["views"]]
            [('total', 'live')]
        """
        lags = self._running.lags()
        pipelines = self.streams.pipelines_status(lags)
        own = {"sinks": self._epochs.sinks.status(), "pipelines": pipelines}
        return self._reading.status(lags) | own | {"run": self._running.health()}

    def verify(self, view: Name | None = None) -> Report:
        """Run the identical SQL offline on the same inputs, and compare as multisets.

        A paused view is compared as of its pause, or skipped if that epoch is no longer retained.
        Without `view`, also checks that the records of each pipeline add up.

        Raises:
            CatalogError: NOT_FOUND: there is no such view. A view that fails doesn't raise: see `Report.failing`.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     total = engine.view("total", "SELECT sum(n) AS n FROM orders")
            ...     orders.insert([("tea", 1)])
            ...     epoch = engine.advance()
            ...     report = engine.verify(total)
            >>> report.equal, report.epoch == epoch
            (True, True)
        """
        report = self._reading.verify(None if view is None else name_of(view))
        keep_verified(self._workspace.files, self._workspace.catalog, report)
        return report if view else replace(report, pipelines=self.streams.check_pipelines())

    def changes(self, view: Name, after: int | None = None, form: str = "retract") -> DataFrame:
        """Read the changes of a view; see `View.changes`.

        Raises:
            CatalogError: NOT_FOUND. QueryError: UNKNOWN_FORM. StateError: CHANGES_EXPIRED, NO_SUCH_EPOCH.
        """
        return self._reading.changes(name_of(view), after, form, None)
