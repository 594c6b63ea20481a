"""How far Spark jobs have come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_TAGS = "spark.job.tags"


@contextmanager
def job_tag(session: SparkSession, tag: str) -> Iterator[None]:
    """Give the jobs that this thread, and those that it starts, run in this context a tag."""
    context = session.sparkContext
    before = context.getLocalProperty(_TAGS)
    context.setLocalProperty(_TAGS, f"{before},{tag}" if before else tag)
    try:
        yield
    finally:
        context.setLocalProperty(_TAGS, before)  # type: ignore[arg-type]


def share_done(session: SparkSession, tag: str) -> float:
    """Return the share of the tasks of jobs with a tag that are done, from 0 to 1; 0 if there are none yet."""
    tracker = session.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001  # not public in PySpark
    done = total = 0
    for job in tracker.getJobIdsForTag(tag):
        if (found := tracker.getJobInfo(job)).isDefined():
            for stage in found.get().stageIds():
                if (known := tracker.getStageInfo(stage)).isDefined():
                    done += known.get().numCompletedTasks()
                    total += known.get().numTasks()
    return done / total if total else 0.0
