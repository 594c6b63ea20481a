"""The progress of Spark jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_TAGS = "spark.job.tags"


@contextmanager
def job_tag(session: SparkSession, tag: str) -> Iterator[None]:
    """Tag the Spark jobs of this thread, and of threads that it starts, during the context."""
    context = session.sparkContext
    before = context.getLocalProperty(_TAGS)
    context.setLocalProperty(_TAGS, f"{before},{tag}" if before else tag)
    try:
        yield
    finally:
        context.setLocalProperty(_TAGS, before)  # type: ignore[arg-type]


def share_done(session: SparkSession, tag: str) -> float:
    """Return the finished share of the tasks of all jobs with a tag, from 0 to 1; 0 if there are none yet."""
    tracker = session.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001  # not public in PySpark
    done = total = 0
    for job in tracker.getJobIdsForTag(tag):
        if (found := tracker.getJobInfo(job)).isDefined():
            for stage in found.get().stageIds():
                if (known := tracker.getStageInfo(stage)).isDefined():
                    done += known.get().numCompletedTasks()
                    total += known.get().numTasks()
    return done / total if total else 0.0
