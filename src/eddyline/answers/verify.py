"""The self-proof: live results against the identical SQL, run offline on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import VariantType

from eddyline.answers.changelog import Difference, difference
from eddyline.answers.results import Results
from eddyline.catalog.entries import VIEW, Catalog, Entry
from eddyline.changes import quoted
from eddyline.spark.session import cloned
from eddyline.state.manifest import Manifest, committed_epochs, read_manifest

ALL_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found; true if all views agree with offline SQL.

    Attributes:
        epoch: as of which epoch.
        views: the difference of each view (left: live, right: offline).
        paused: views that are paused, and since which epoch. As of that they are compared; those
            which `views` lacks are skipped, because that epoch is no longer retained.
    """

    epoch: int
    views: dict[str, Difference]
    paused: dict[str, int] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether all views agree."""
        return all(found.equal for found in self.views.values())

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.views, *self.paused)), default=4)
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
        return "\n".join(lines)


def verified(
    results: Results,
    catalog: Catalog,
    manifest: Manifest,
    spark: SparkSession,
    wanted: Sequence[Entry],
    final_rows: Callable[[Entry, Manifest, DataFrame], DataFrame],
) -> Report:
    """Compare views with offline SQL, each as of the epoch whose inputs it holds.

    Args:
        manifest: as of which running views are compared; paused ones as of their pause.
        wanted: the views.
        final_rows: those rows of a query that EMIT FINAL has let through by an epoch.
    """
    found: dict[str, Difference] = {}
    paused = {entry.name: entry.paused for entry in wanted if entry.paused}
    retained = {manifest.epoch, *committed_epochs(results.files)}
    compared = {entry.name: entry.paused or manifest.epoch for entry in wanted}
    compared = {name: epoch for name, epoch in compared.items() if epoch in retained}
    for epoch in sorted(set(compared.values())):
        then = manifest if epoch == manifest.epoch else read_manifest(results.files, epoch)
        session = cloned(spark)
        for entry in catalog.entries:
            if entry.kind != VIEW:
                content = results.content(entry, then, session)
            else:
                content = session.sql(entry.query)
                if "session_window" in entry.query.lower():
                    # or Spark filters by a session's end before it has merged the sessions
                    content = content.limit(ALL_ROWS)
                if entry.final:
                    content = final_rows(entry, then, content)
                if compared.get(entry.name) == epoch:
                    live = results.content(entry, manifest, session)
                    sides = (_comparable(side).toArrow() for side in (live, content))
                    found[entry.name] = difference(*sides)
            content.createOrReplaceTempView(entry.name)
    ordered = {entry.name: found[entry.name] for entry in wanted if entry.name in found}
    return Report(manifest.epoch, ordered, paused)


def _comparable(frame: DataFrame) -> DataFrame:
    """The rows with VARIANTs as text: PySpark can't give a null one to Arrow."""
    columns = []
    for column in frame.schema:
        name = quoted(column.name)
        if isinstance(column.dataType, VariantType):
            name = f"schema_of_variant({name}) || ' ' || to_json({name})"
        columns.append(expr(name).alias(column.name))
    return frame.select(*columns)
