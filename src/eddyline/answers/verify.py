"""`verify`: compare live results with the same SQL, run offline over the same inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, lit
from pyspark.sql.types import VariantType

from eddyline.answers.difference import Difference, frames_difference
from eddyline.answers.results import Results
from eddyline.answers.spark_files import read_by_spark
from eddyline.answers.state_sizes import state_size
from eddyline.catalog.altered import seen_by
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.catalog.expectations import filter_of
from eddyline.changes import Epoch, ViewId
from eddyline.errors import EddylineError, QueryError, StateError, StorageError
from eddyline.intake.event_time import rows_below
from eddyline.intake.retention import views_with_expired_rows
from eddyline.intake.watermarks import Watermarks
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.clock import at_moment
from eddyline.plan.eventtime import Bound
from eddyline.plan.limits import limits_over_sorts
from eddyline.relay.account import Account
from eddyline.runtime.empty_frames import Frames
from eddyline.spark.failures import FAILURES, query_error, query_errors
from eddyline.spark.jvm import check_jvm
from eddyline.spark.session import cloned
from eddyline.sql.names import quoted
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest

ALL_ROWS = 2**31 - 1
ROWS_A_TASK = 500_000
ROW_LENGTH = 1000
"""The characters of a row in a document."""
WAITS = "it is defined by a DataFrame, which this process hasn't been given"
GONE = "rows of stream {} that it has counted are gone, as they are older than the stream retains"
JSON_PUSHDOWN = "spark.sql.json.filterPushdown.enabled"


@dataclass(frozen=True, slots=True)
class PipelineCheck:
    """Whether a pipeline's records add up; true if they do.

    Attributes:
        account: the counts of its records.
        letters: number of its dead letters; None if the pipeline isn't connected.
    """

    account: Account
    letters: int | None = None

    def __bool__(self) -> bool:
        # a pipeline that was dropped leaves dead records in the account of its queue
        return self.account.balanced and (self.letters or 0) <= self.account.dead


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`; true if all views agree with offline SQL, none fails, and all records add up.

    It is false, too, if none of the views could be compared.

    Attributes:
        epoch: the epoch of the compared results.
        views: the difference of each view (left: live, right: offline).
        paused: the paused views, and the epoch of their pause, as of which they are compared.
            Those missing in `views` weren't compared, because that epoch is no longer retained.
        failing: the views that are set aside, wait for their DataFrame, have counted rows that a stream no
            longer retains, or read a file that is damaged, and those whose query Spark can't run, with the
            reason of each; they aren't compared.
        broken: those of them that are set aside, read a damaged file, or have such a query, which makes the
            report false.
        pipelines: the account of each pipeline: `received = done + dead + retry + in_flight + missed`.

    Example:
        >>> import tempfile
        >>> from eddyline import Engine
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING")
        >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        >>> orders.insert([(1, "tea"), (2, "tea")])
        >>> epoch = engine.advance()
        >>> report = engine.verify(counts)
        >>> bool(report), report.epoch == epoch, report.views["counts"].left_rows
        (True, True, 1)
        >>> print(report)
        view         live    offline  equal
        counts          1          1  yes
        >>> engine.stop()
    """

    epoch: Epoch
    views: dict[str, Difference]
    paused: dict[str, int] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    pipelines: dict[str, PipelineCheck] = field(default_factory=dict)
    broken: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all compared views agree, and the records of all pipelines add up."""
        views = all(found.equal for found in self.views.values())
        return views and all(self.pipelines.values())

    @property
    def compared(self) -> bool:
        """Whether any view was compared; true also if there are none."""
        return bool(self.views) or not (self.failing or self.paused)

    def __bool__(self) -> bool:
        return self.equal and self.compared and not self.broken

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.views, *self.paused, *self.failing)), default=4)
        lines = [f"{'view':{width}}  {'live':>9}  {'offline':>9}  equal"]
        for name, found in self.views.items():
            lines.append(
                f"{name:{width}}  {found.left_rows:9,}  {found.right_rows:9,}  "
                f"{'yes' if found.equal else 'NO'}"
                + (f"  as of epoch {self.paused[name]}, paused" if name in self.paused else "")
            )
            for side, rows in (("live", found.left_only), ("offline", found.right_only)):
                lines += [f"  only {side}: {row}" for row in rows]
        for name in [name for name in self.paused if name not in self.views]:
            lines.append(
                f"{name:{width}}  not compared: paused since epoch {self.paused[name]}, "
                "which is no longer retained"
            )
        lines += [f"{name:{width}}  not compared: {error}" for name, error in self.failing.items()]
        for name, checked in self.pipelines.items():
            account, letters = checked.account, checked.letters
            terms = ", ".join(f"{term} {count:,}" for term, count in asdict(account).items())
            shown = "" if letters is None else f", dead letters {letters:,}"
            equal = "yes" if checked else "NO"
            lines.append(f"records of pipeline {name}: {terms}{shown}; they add up: {equal}")
        return "\n".join(lines)


def report_document(report: Report) -> dict[str, Any]:
    """Return what `verify` has found of views as JSON: rows as texts, and whether all are equal.

    | key | value |
    |---|---|
    | `epoch`, `equal` | the epoch of the compared results; whether all compared views agree |
    | `views` | by name: `equal`, `live` and `offline`, the numbers of rows, and `live_only` and `offline_only`, at most five rows of each |
    | `not_compared` | by name the reason why a view wasn't compared |
    """
    expired = "it is paused since epoch {}, which is no longer retained"
    skipped = {name: epoch for name, epoch in report.paused.items() if name not in report.views}
    return {
        "epoch": report.epoch,
        "equal": bool(report.views) and all(found.equal for found in report.views.values()),
        "views": {
            name: {
                "equal": found.equal,
                "live": found.left_rows,
                "offline": found.right_rows,
                "live_only": [str(row)[:ROW_LENGTH] for row in found.left_only],
                "offline_only": [str(row)[:ROW_LENGTH] for row in found.right_only],
            }
            for name, found in report.views.items()
        },
        "not_compared": {
            **{name: expired.format(epoch) for name, epoch in skipped.items()},
            **report.failing,
        },
    }


def verify_views(
    results: Results,
    catalog: Catalog,
    manifest: Manifest,
    spark: SparkSession,
    wanted: Sequence[Entry],
    catalyst: Catalyst,
    frames: Frames,
) -> Report:
    """Compare views with offline SQL, each as of the epoch whose inputs it holds.

    Args:
        manifest: the epoch for running views; paused ones are compared as of their pause.
        wanted: the views to compare.
        catalyst: computes the bounds of views with EMIT FINAL.
        frames: the plans of views that DataFrames define.

    Raises:
        StateError, StorageError: the input of no view that is left to compare can be read.
    """
    retained = {manifest.epoch, *committed_epochs(results.files)}
    by_epoch: dict[Epoch, list[Entry]] = {}
    failing = {
        entry.name: manifest.failing[ViewId(entry.id)].message
        for entry in wanted
        if entry.id in manifest.failing
    }
    excused = {e.name: WAITS for e in wanted if e.of_frame and not frames.knows(e)}
    excused |= _with_expired_rows(results, catalog, manifest, wanted)
    broken, failing = failing.keys() - excused.keys(), {**failing, **excused}
    for entry in wanted:
        epoch = Epoch(entry.paused) or manifest.epoch
        if epoch in retained and entry.name not in failing:
            by_epoch.setdefault(epoch, []).append(entry)
    found: dict[str, Difference] = {}
    unreadable: dict[str, EddylineError] = {}
    for epoch in sorted(by_epoch):
        then = manifest if epoch == manifest.epoch else read_manifest(results.files, epoch)
        session = cloned(spark)
        offline, unread = _load_offline(
            results, catalog, then, session, catalyst, manifest.failing, frames, by_epoch[epoch]
        )
        chosen = [entry for entry in by_epoch[epoch] if entry.name not in unread]
        unreadable |= {e.name: unread[e.name] for e in by_epoch[epoch] if e.name in unread}
        for entry in chosen:
            rows, _ = state_size(then, entry)
            try:
                live = results.content(entry, manifest, session)
                # Spark may fail offline only: it computes some arguments in rows that FILTER leaves out
                with query_errors(entry.query, view=entry.name):
                    found[entry.name] = frames_difference(
                        _convertible(live),
                        _convertible(offline[entry.name]),
                        1 + rows // ROWS_A_TASK,
                    )
            except (QueryError, StateError, StorageError) as error:
                unreadable[entry.name] = error
    if unreadable and not found:
        raise next(iter(unreadable.values()))
    failing |= {name: str(error) for name, error in unreadable.items()}
    gone = _with_expired_rows(results, catalog, manifest, [e for e in wanted if e.name in found])
    for name, why in gone.items():  # the rows may have expired before they were read
        failing[name] = why
        del found[name]
    views = {entry.name: found[entry.name] for entry in wanted if entry.name in found}
    paused = {e.name: e.paused for e in wanted if e.paused and e.name not in failing}
    names = [e.name for e in wanted if e.name in broken or e.name in unreadable]
    return Report(manifest.epoch, views, paused, failing, broken=tuple(names))


def _with_expired_rows(
    results: Results, catalog: Catalog, manifest: Manifest, wanted: Iterable[Entry]
) -> dict[str, str]:
    """Return the views that have counted rows which are no longer retained, each with the reason for the report."""
    views = (entry for entry in catalog.entries if entry.kind == VIEW)
    gone = views_with_expired_rows(views, catalog, manifest, results.sources)
    return {e.name: GONE.format(gone[e.name][0]) for e in wanted if e.name in gone}


def _load_offline(
    results: Results,
    catalog: Catalog,
    manifest: Manifest,
    session: SparkSession,
    catalyst: Catalyst,
    aside: Collection[ViewId],
    frames: Frames,
    chosen: Sequence[Entry],
) -> tuple[dict[str, DataFrame], dict[str, EddylineError]]:
    """Register relations as of an epoch: sources as stored or read again, views as their queries.

    Args:
        aside: views that aren't compared; they are left out if Spark can't read their queries.
        chosen: the views to compare; relations that they don't read are left out.

    Returns:
        Their contents, and the relations whose content can't be read, or that read such a one, with the error.
    """
    relations: dict[str, DataFrame] = {}
    logged: dict[str, DataFrame] = {}
    unread: dict[str, EddylineError] = {}
    content: DataFrame | None
    session.conf.set(JSON_PUSHDOWN, "false")  # it drops malformed records, depending on the query
    for entry in catalog.read_by(chosen):
        if above := [name for name in entry.upstream if catalog.get(name).name in unread]:
            unread[entry.name] = unread[catalog.get(above[0]).name]
            continue
        if entry.kind != VIEW:
            try:
                content = _source(results, entry, manifest, session)
            except (StateError, StorageError) as error:
                unread[entry.name] = error
                continue
            if accepted := filter_of(entry):
                logged[entry.name] = content
                content = content.where(accepted)
        elif entry.of_frame and not frames.knows(entry):
            content = results.stored(entry, manifest, session)
        else:
            try:
                content = _offline(entry, catalog, relations, session, aside, frames, logged)
            except QueryError as error:  # such as a function that the session has no more
                unread[entry.name] = error
                continue
            if content is None:
                continue
            content = _determined(content, manifest.moment, session)
            if "session_window" in entry.query.lower():
                # or Spark filters by a session's end before it has merged the sessions
                content = content.limit(ALL_ROWS)
            if entry.final:
                place, bound = results.plan_of(entry).compiled.final or (0, Bound(()))
                value = bound.least(catalyst, Watermarks.of_next_epoch(manifest, catalog).applied)
                content = rows_below(content, content.columns[place], bound.field, value)
        content.createOrReplaceTempView(quoted(entry.name))
        relations[entry.name] = content
    return relations, unread


def _source(results: Results, entry: Entry, manifest: Manifest, session: SparkSession) -> DataFrame:
    """Return the rows of a table or stream, also those that its expectations keep out."""
    content = read_by_spark(results, entry, manifest, session)
    if content is None and filter_of(entry):
        content = results.logged(entry, results.history(entry, manifest), session)
    return results.content(entry, manifest, session) if content is None else content


def _offline(
    entry: Entry,
    catalog: Catalog,
    relations: Mapping[str, DataFrame],
    session: SparkSession,
    aside: Collection[ViewId],
    frames: Frames,
    logged: Mapping[str, DataFrame],
) -> DataFrame | None:
    """Return a view's query over the registered relations; None if Spark can't read one of `aside`.

    Args:
        logged: by name, the rows of streams with those that expectations keep out, for companions.

    Raises:
        QueryError: Spark can't read another one.
    """
    plain = {}
    for known in map(catalog.get, entry.upstream):
        seen = seen_by(entry, known)
        unchecked = known.name in logged and not filter_of(known, entry)
        # not read here; it may be set aside, and then isn't registered
        if not (unchecked or seen.altered):
            continue
        plain[known.name] = content = session.table(quoted(known.name))
        if unchecked:
            content = logged[known.name]
            content.createOrReplaceTempView(quoted(known.name))
        if seen.altered:
            columns = [
                (lit(None) if own is None else col(quoted(own))).cast(f.dataType).alias(f.name)
                for f, own in zip(seen.columns, seen.names, strict=True)
            ]
            content.select(*columns).createOrReplaceTempView(quoted(known.name))
    try:
        if entry.of_frame:
            return frames.offline(entry, catalog, relations, session)
        return session.sql(entry.query)
    except (*FAILURES, QueryError) as error:
        if entry.id in aside:
            return None
        if isinstance(error, QueryError):
            raise
        check_jvm(error)
        raise query_error(entry.query, error, view=entry.name) from error
    finally:
        for relation, content in plain.items():
            content.createOrReplaceTempView(quoted(relation))


def _determined(content: DataFrame, moment: int, session: SparkSession) -> DataFrame:
    """Return a query's rows, evaluated with the now() of an epoch (microseconds since 1970).

    Of correlated subqueries with a LIMIT they are those that the ORDER BY says, or the view's where there is none.
    """
    catalyst = Catalyst(session)
    plan = catalyst.plan(content)
    fixed = limits_over_sorts(catalyst, at_moment(catalyst, plan, moment))
    return content if fixed is plan else catalyst.frame(fixed)


def _convertible(frame: DataFrame) -> DataFrame:
    """Return the rows with VARIANT as text, as PySpark can't convert a null VARIANT to Arrow."""
    columns = []
    for column in frame.schema:
        name = quoted(column.name)
        if isinstance(column.dataType, VariantType):
            name = f"schema_of_variant({name}) || ' ' || to_json({name})"
        columns.append(expr(name).alias(column.name))
    return frame.select(*columns)
