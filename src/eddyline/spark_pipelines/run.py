"""Opens a project: its session, its engine, and its definitions on that engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from eddyline.answers.status import row_count
from eddyline.api.engine import Engine
from eddyline.catalog.entries import VIEW
from eddyline.runtime.progress import Progress
from eddyline.spark.failures import query_errors
from eddyline.spark.session import local_session
from eddyline.spark_pipelines.graph import SINK_KIND, DataflowGraph
from eddyline.spark_pipelines.project import Project
from eddyline.spark_pipelines.spec import Spec
from eddyline.state.manifest import last_committed


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """What a run has done for a dataset.

    Attributes:
        kind: stream, view, temporary view or sink.
        rows: number of rows of a view; None for others.
        read: rows, or changes of rows, that the epochs of this run have read for a view.
        changed: changes that they have made to it.
        seconds: that its definition took; for a new or changed view with its first rows.
    """

    dataset: str
    kind: str
    rows: int | None
    read: int | None
    changed: int | None
    seconds: float


@dataclass(slots=True)
class PipelineRun:
    """A project on its engine.

    Attributes:
        read, changed: by view, what the epochs so far have read and changed.
    """

    engine: Engine
    graph: DataflowGraph
    read: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)

    def count(self, progress: Progress) -> None:
        """Add the numbers of an epoch."""
        self.read.update(progress.rows_in)
        self.changed.update(progress.rows_out)

    def lines(self) -> list[DatasetReport]:
        """Return a report of each dataset, upstream before downstream."""
        manifest = last_committed(self.engine.files)
        found = []
        for name, kind in self.graph.kinds.items():
            rows = read = changed = None
            if kind in (VIEW, SINK_KIND):
                entry = self.engine.catalog.get(name if kind == VIEW else self.graph.followed(name))
                rows = row_count(self.engine.files, manifest, entry.id)
                read, changed = self.read[entry.name], self.changed[entry.name]
            found.append(DatasetReport(name, kind, rows, read, changed, self.graph.seconds[name]))
        return found


@contextmanager
def open_project(spec: Spec, storage: str) -> Iterator[PipelineRun]:
    """Open an engine on a storage and load the definitions of a project; nothing is defined yet."""
    spark = _session(spec)
    with Engine(storage, spark=spark) as engine:
        project = Project(spec, spark)
        run = PipelineRun(engine, DataflowGraph(project, engine))
        engine.on_progress(run.count)
        project.load()
        yield run


def _session(spec: Spec) -> SparkSession:
    """Return a session with the project's configuration."""
    spark = local_session(fixed=spec.configuration)
    for name, value in spec.configuration.items():
        if spark.conf.get(name, None) != value:
            with query_errors("", setting=name):
                spark.conf.set(name, value)
    return spark
