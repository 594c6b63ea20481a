"""Merges large runs of the state beside epochs, as Spark jobs; the next epoch commits what is ready."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from eddyline.errors import EddylineError
from eddyline.runtime.context import arrangement_name, part_name
from eddyline.runtime.kernel import limits_by_slot
from eddyline.runtime.plans import EpochPlan
from eddyline.runtime.worker import prepare_worker
from eddyline.spark.failures import message_of
from eddyline.spark.job_progress import job_tag
from eddyline.state.arrangement import (
    SMALL_MERGE_SHARE,
    Layout,
    Limits,
    merged_runs,
    runs_with_parts,
    waiting_merge,
)
from eddyline.state.manifest import Manifest
from eddyline.state.recover import UNCOMMITTED, attempt_folder
from eddyline.state.run_lists import Buckets, Place
from eddyline.state.runs import Run
from eddyline.storage.files import Files

_LOG = logging.getLogger("eddyline.state")


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merges runs of a bucket into one, in a task of Spark.

    Attributes:
        name: file name of the new run without extension.
        runs: their files, old to new; they follow each other in the bucket.
        expired: limits below which rows are dropped.
        most: about how many bytes are merged at once.
        whole: whether these are all runs of the bucket.
    """

    files: Files
    name: str
    layout: Layout
    runs: tuple[Run, ...]
    expired: Limits
    most: int
    whole: bool

    def __call__(self, _: object) -> tuple[Run, ...]:
        prepare_worker()
        return merged_runs(
            self.files, self.name, self.layout, self.runs, self.expired, self.most, whole=self.whole
        )


@dataclass(slots=True)
class Merges:
    """The merges that epochs have postponed; a background thread runs one after the other.

    A merge reads immutable runs, and its result counts only once an epoch commits it. So it needs no
    lock. If it is lost, the old runs stay, and the next full tier requests it again.

    Attributes:
        fan_in, most: as of `Arrangement.extend`.
        waiting: the merges to do, the oldest first.
        ready: the runs of merges that are done, to be committed.
    """

    files: Files
    spark: SparkSession
    fan_in: int
    most: int
    waiting: dict[Place, MergeTask] = field(default_factory=dict)
    ready: dict[Place, tuple[MergeTask, tuple[Run, ...]]] = field(default_factory=dict)
    _folder: str = ""
    _number: int = 0
    _running: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _first: bool = True
    _stopped: bool = False

    def look(
        self,
        manifest: Manifest,
        plans: Sequence[EpochPlan],
        limits: Mapping[str, Sequence[int | None]],
        left: set[Place],
    ) -> None:
        """Queue the merges that an epoch has postponed; on the first call, all that the state needs.

        Args:
            manifest: what the epoch has committed.
            plans: those that have run in it.
            limits: by operator (`part_name`) the values below which rows may be dropped.
            left: the arrangements and buckets in which its tasks have postponed a merge.
        """
        if not (left or self._first):
            return
        with self._lock:
            for name, layout, expired in _arrangements(plans, limits):
                for bucket, runs in manifest.arrangements.get(name, {}).items():
                    place = (name, bucket)
                    known = place in self.waiting or place in self.ready
                    if (self._first or place in left) and not known:
                        self._plan(place, runs, layout, expired)
            self._first = False
            if self.waiting and self._running is None and not self._stopped:
                self._running = threading.Thread(
                    target=self._run, name="eddyline-merges", daemon=True
                )
                self._running.start()

    def add_results_to(self, arrangements: dict[str, Buckets], folder: str) -> int:
        """Replace merged runs by their results in the arrangements, and move the files into the folder of an epoch.

        The result of a merge is removed if its runs are no longer all there, as after a rebuild of the view.

        Returns:
            The bytes of the runs that were replaced.
        """
        with self._lock:
            ready, self.ready = self.ready, {}
        replaced: list[Run] = []
        for (name, bucket), (merge, runs) in ready.items():
            held = arrangements.get(name, {}).get(bucket, ())
            at = next((n for n, run in enumerate(held) if run == merge.runs[0]), None)
            if at is None or held[at : at + len(merge.runs)] != merge.runs:
                for run in runs:
                    self.files.remove(run.name)
                continue
            new = [replace(run, name=f"{folder}/{os.path.basename(run.name)}") for run in runs]
            renamed = zip(runs, new, strict=True)
            if not all(self.files.rename(run.name, other.name) for run, other in renamed):
                continue  # a newer engine has opened the storage, and removed them
            replaced += merge.runs
            after = (*held[:at], *new, *held[at + len(merge.runs) :])
            arrangements[name] = {**arrangements[name], bucket: after}
        if replaced:
            self.files.sync(folder)
        return sum(run.bytes for run in replaced)

    def stop(self) -> None:
        """Cancel the running merge, and remove results that aren't committed."""
        with self._lock:
            self._stopped = True
            self.waiting.clear()
            running = self._running
        if running is not None:
            with suppress(Exception):  # Spark may have stopped
                self.spark.sparkContext.cancelJobsWithTag(self._tag)
            running.join()
        if self._folder:
            with suppress(EddylineError, OSError):
                self.files.remove(self._folder)

    @property
    def _tag(self) -> str:
        return f"eddyline-merges-{os.path.basename(self._folder)}"

    def _plan(self, place: Place, files: Sequence[Run], layout: Layout, expired: Limits) -> None:
        """Queue a merge of a bucket's runs, if a tier of them is full."""
        if sum(run.bytes for run in files) <= self.most // SMALL_MERGE_SHARE:
            return  # epochs have merged it themselves
        runs = runs_with_parts(files)
        found = waiting_merge([sum(part.rows for part in run) for run in runs], self.fan_in)
        if found is None:
            return
        first, end = found
        if not self._folder:
            self._folder = attempt_folder(UNCOMMITTED)
        self._number += 1
        name, bucket = place
        self.waiting[place] = MergeTask(
            self.files.flushing(),
            f"{self._folder}/{name.replace('/', '.')}.{bucket}.merged-{self._number}",
            layout,
            tuple(part for run in runs[first:end] for part in run),
            expired,
            self.most,
            first == 0 and end == len(runs),
        )

    def _run(self) -> None:
        """Run the queued merges; the target of the thread."""
        while True:
            with self._lock:
                if self._stopped or not self.waiting:
                    self._running = None
                    return
                place, merge = next(iter(self.waiting.items()))
            runs = self._done(place, merge)
            with self._lock:
                self.waiting.pop(place, None)
                if runs is not None:
                    self.ready[place] = merge, runs

    def _done(self, place: Place, merge: MergeTask) -> tuple[Run, ...] | None:
        """Run a merge as a Spark job; return None if it fails, which leaves the runs as they are."""
        started = time.monotonic()
        context = self.spark.sparkContext
        try:
            self.files.make_folder(self._folder)
            with job_tag(self.spark, self._tag):
                (runs,) = context.parallelize([0], 1).map(merge).collect()
        except Exception as error:  # noqa: BLE001  # whatever Spark raises
            if not self._stopped:
                _LOG.warning(
                    "%s, bucket %d: %d runs couldn't be merged, and stay as they are: %s",
                    *place,
                    len(merge.runs),
                    message_of(error),
                )
            return None
        _LOG.info(
            "%s, bucket %d: merged %d runs of %d rows in %.1f s",
            *place,
            len(merge.runs),
            sum(run.rows for run in merge.runs),
            time.monotonic() - started,
        )
        return tuple(runs)


def _arrangements(
    plans: Sequence[EpochPlan], limits: Mapping[str, Sequence[int | None]]
) -> Iterator[tuple[str, Layout, Limits]]:
    """Yield the arrangements of some plans: name, layout, and the limits below which rows are dropped."""
    for plan in plans:
        for part in plan.parts:
            values = limits.get(part_name(plan.id, part.name), ())
            expired = limits_by_slot(part.operator, part.expiry_columns, values)
            for slot, layout in part.operator.layouts.items():
                yield arrangement_name(plan.id, part.name, slot), layout, expired.get(slot, ())
