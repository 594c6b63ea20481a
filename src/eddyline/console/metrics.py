"""The numbers of a storage as Prometheus metrics, in base units and with few labels."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from eddyline.answers.run_health import STATES as RUN_STATES
from eddyline.answers.status import row_count
from eddyline.catalog.entries import VIEW
from eddyline.console.observer import Observer
from eddyline.console.tally import BUCKETS_S, DELETE, INSERT, Tally
from eddyline.errors import EddylineError
from eddyline.pipelines.outcomes import lane_windows
from eddyline.source.lag import BYTES, ROWS, SECONDS, VERSIONS
from eddyline.spark.processes import tree_usage
from eddyline.state.leases import pinned
from eddyline.state.manifest import Manifest
from eddyline.storage.files import folder_size

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LOGS_S = 30.0
"""How old, in seconds, the sizes of redo logs may be."""
LAG_TEXTS = {
    ROWS: "Rows of a table or stream that wait for an epoch, at the source and in its redo log, as far as they are counted.",
    BYTES: "Bytes that wait: of files, of a followed log, or of the log of a PostgreSQL server.",
    VERSIONS: "Versions of a Delta table that aren't read yet.",
    SECONDS: "Seconds since the oldest of what waits was first seen; 0 if nothing waits.",
}
PIPELINE_LAG_TEXTS = {
    ROWS: "New records in the queue of a pipeline that aren't committed yet.",
    SECONDS: LAG_TEXTS[SECONDS],
}
CPU_TEXT = (
    "CPU seconds of a table's or view's parts of the epochs since the console was started. In the short lane these are "
    "of the thread that computes it, in Python and in the JVM; of a Spark job those of the driver's and the tasks' Python: "
    "reading and operators, without the JVM's tasks and Python functions. Threads that libraries start are left out."
)
STATES = ("live", "failing", "paused")


class StorageCollector(Collector):
    """Reads the metrics of one storage when Prometheus asks."""

    def __init__(self, observer: Observer, tally: Tally, *, inside: bool) -> None:
        self._observer = observer
        self._tally = tally
        self._inside = inside
        # when they were counted, and their bytes by name
        self._logs: tuple[float, dict[str, int]] = (-math.inf, {})
        self._rows: dict[str, tuple[object, int]] = {}  # by id: the runs counted, and their rows

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; those of durations only in the engine's process."""
        self._tally.follow()
        status = self._observer.status()
        yield from self._epochs(status["epoch"], status["committed_at"], status["engine"])
        yield from self._run(status["run"])
        yield from self._work()
        yield from self._sources(status["sources"])
        yield from self._views(status["views"])
        yield from self._violations([*status["sources"], *status["views"]])
        yield from self._state()
        yield from self._targets(status)

    def _epochs(self, epoch: int, committed_at: float | None, engine: str) -> Iterator[Metric]:
        yield _gauge("eddyline_epoch", "The last committed epoch.", epoch)
        running = engine == "running"
        yield _gauge("eddyline_engine_running", "1 while an engine holds the storage.", running)
        if committed_at is not None:
            age = max(time.time() - committed_at, 0.0)
            text = "Seconds since the last commit; it grows while there is no input, too."
            yield _gauge("eddyline_epoch_age_seconds", text, age)
        if self._inside:
            text = "CPU seconds of the engine's process with its JVM and workers."
            seconds, resident, _ = tree_usage()
            cpu = CounterMetricFamily("eddyline_engine_cpu_seconds_total", text)
            cpu.add_metric([], seconds)
            yield cpu
            text = "Resident bytes of the engine's process, its JVM and workers; pages that they share count in each."
            yield _gauge("eddyline_engine_resident_bytes", text, resident)
        if self._tally.histograms:
            name = "eddyline_epoch_duration_seconds"
            text = (
                "Seconds that epochs took, by stage: ingest, plan, run, commit; "
                "and sink: those of each delivery to a sink, beside the epochs, of one epoch or several."
            )
            family = HistogramMetricFamily(name, text, labels=["stage"])
            for stage, (counts, total) in list(self._tally.histograms.items()):
                buckets, below = [], 0
                for bound, count in zip((*BUCKETS_S, "+Inf"), list(counts), strict=True):
                    below += count
                    buckets.append((str(bound), float(below)))
                family.add_metric([stage], buckets, total)
            yield family

    def _run(self, health: Mapping[str, Any]) -> Iterator[Metric]:
        text = (
            "1 for the state of the engine's background run: running, retrying, ended or stopped."
        )
        state = _labelled("eddyline_run_state", text, "state")
        for name in RUN_STATES:
            state.add_metric([name], float(health["state"] == name))
        yield state
        text = "Failures of the background run in a row, after which it tries again."
        yield _gauge("eddyline_run_failures", text, health.get("failures", 0))

    def _violations(self, relations: list[dict[str, object]]) -> Iterator[Metric]:
        text = "Rows that violate an expectation: of a stream all so far, of a view those that it has now."
        family = GaugeMetricFamily("eddyline_violations", text, labels=["relation", "constraint"])
        for item in relations:
            counts = item.get("violations")
            for name, count in counts.items() if isinstance(counts, dict) else ():
                if count is not None:
                    family.add_metric([str(item["name"]), name], float(count))
        yield family

    def _work(self) -> Iterator[Metric]:
        text = "Rows that epochs have read of a table or stream since the console was started."
        yield _counter("eddyline_source_rows_total", text, "source", self._tally.read)
        text = "Seconds of the tasks of all operators of a kind, which may run side by side, since the console was started."
        yield _counter("eddyline_operator_seconds_total", text, "op", self._tally.operators)
        text = "Bytes of the files of state that were merged into others since the console was started."
        yield CounterMetricFamily("eddyline_merge_bytes_total", text, value=self._tally.merged)

    def _sources(self, sources: list[dict[str, object]]) -> Iterator[Metric]:
        position = _labelled("eddyline_source_position", "Entries consumed of a source.", "source")
        late = CounterMetricFamily(
            "eddyline_late_rows_total", "Rows that came after the watermark.", labels=["source"]
        )
        text = "The watermark of a stream, in seconds since 1970."
        marks = _labelled("eddyline_watermark_timestamp_seconds", text, "source")
        text = "Bytes of a source's redo log: its input that is kept."
        logs = _labelled("eddyline_log_bytes", text, "source")
        for name, size in self._log_bytes().items():
            logs.add_metric([name], float(size))
        lags = _lag_families("source", LAG_TEXTS)
        for item in sources:
            labels = [str(item["name"])]
            position.add_metric(labels, _number(item["position"]))
            _add_lag(lags, item)
            if "late_rows" in item:
                late.add_metric(labels, _number(item["late_rows"]))
            if item.get("watermark"):
                moment = datetime.fromisoformat(str(item["watermark"]))
                marks.add_metric(labels, moment.timestamp())
        yield from (position, late, marks, logs, *lags.values())

    def _log_bytes(self) -> dict[str, int]:
        """Return the bytes of the redo log of each table and stream, at most `LOGS_S` old: all files are counted."""
        if time.monotonic() - self._logs[0] > LOGS_S:
            catalog, files = self._observer.now()[0], self._observer.files
            found = {
                entry.name: folder_size(files.path(f"logs/{entry.source}"))[0]
                for entry in catalog.entries
                if entry.kind != VIEW and not entry.role
            }
            self._logs = time.monotonic(), found
        return self._logs[1]

    def _views(self, views: list[dict[str, object]]) -> Iterator[Metric]:
        text = "1 for the state that a view is in: live, failing or paused."
        state = GaugeMetricFamily("eddyline_view_state", text, labels=["view", "state"])
        for item in views:
            for name in STATES:
                state.add_metric([str(item["name"]), name], float(item["state"] == name))
        text = "Rows that a table or view has read since the console was started."
        read = _counter("eddyline_view_input_rows_total", text, "view", self._tally.rows_in)
        text = "Changes that a table or view has written since the console was started: inserts and deletes."
        written = CounterMetricFamily("eddyline_view_changes_total", text, labels=["view", "op"])
        for name, count in list(self._tally.rows_out.items()):
            deletes = self._tally.deletes[name]
            written.add_metric([name, INSERT], float(count - deletes))
            written.add_metric([name, DELETE], float(deletes))
        text = "Seconds that a table's or view's parts of the epochs took since the console was started."
        seconds = _counter("eddyline_view_seconds_total", text, "view", self._tally.seconds)
        cpu = _counter("eddyline_view_cpu_seconds_total", CPU_TEXT, "view", self._tally.cpu)
        text = "The epoch as of which a view was last compared with offline SQL."
        verified = _labelled("eddyline_verified_epoch", text, "view")
        text = "1 if the view was equal to offline SQL when it was last compared, else 0."
        equal = _labelled("eddyline_verified_equal", text, "view")
        text = "Verifications so far that found a view different from offline SQL."
        differences = CounterMetricFamily(
            "eddyline_verify_differences_total", text, labels=["view"]
        )
        for item in views:
            last = item.get("verified")
            if isinstance(last, dict):
                verified.add_metric([str(item["name"])], float(last["epoch"]))
                equal.add_metric([str(item["name"])], float(last["equal"]))
                differences.add_metric([str(item["name"])], float(last["differences"]))
        text = "Epochs of a view in each lane since the console was started: in the driver, or as a Spark job."
        epochs = CounterMetricFamily("eddyline_view_epochs_total", text, labels=["view", "lane"])
        for labels, count in list(self._tally.lanes.items()):
            epochs.add_metric(labels, float(count))
        yield from (state, read, written, seconds, cpu, verified, equal, differences, epochs)

    def _state(self) -> Iterator[Metric]:
        catalog, _ = self._observer.now()
        rows = _labelled("eddyline_view_rows", "Rows of a view's result.", "view")
        names = ("rows", "bytes")
        state = [
            GaugeMetricFamily(
                f"eddyline_state_{name}",
                f"The state of an operator on disk, in {name}.",
                labels=["view", "operator"],
            )
            for name in names
        ]
        text = "Files of an operator's state: many mean that they wait to be merged."
        files = GaugeMetricFamily("eddyline_runs", text, labels=["view", "operator"])
        with pinned(self._observer.files) as manifest:
            for entry in catalog.entries:
                if entry.kind == VIEW:
                    with suppress(EddylineError):  # a damaged view hides its own rows only
                        count = self._row_count(manifest, entry.id)
                        rows.add_metric([entry.name], float(count))
                operators: dict[str, list[int]] = {}
                for name, runs in manifest.of(entry.id).items():
                    held = operators.setdefault(name.split("/")[1], [0, 0, 0])
                    held[0] += sum(run.rows for run in runs)
                    held[1] += sum(run.bytes for run in runs)
                    held[2] += len(runs)
                for operator, held in operators.items():
                    for family, value in zip((*state, files), held, strict=True):
                        family.add_metric([entry.name, operator], float(value))
        yield from (rows, *state, files)

    def _row_count(self, manifest: Manifest, relation: str) -> int:
        """Return the number of rows of a view; counts only the runs that are new since the last call."""
        runs = manifest.of(relation)
        known = self._rows.get(relation)
        if known is None or known[0] != runs:
            known = runs, row_count(self._observer.files, manifest, relation)
            self._rows[relation] = known
        return known[1]

    def _targets(self, status: dict[str, Any]) -> Iterator[Metric]:
        text = "Dead letters of a stream, pipeline or sink that are kept."
        letters = _labelled("eddyline_dead_letters", text, "source")
        for name, count in status["dead_letters"].items():
            letters.add_metric([name], float(count))
        epoch = _labelled("eddyline_sink_epoch", "The epoch that a sink holds.", "sink")
        text = "Epochs that a sink is behind."
        lag = _labelled("eddyline_sink_lag_epochs", text, "sink")
        text = "1 for the state that a sink is in: live, failing or paused."
        sinks = GaugeMetricFamily("eddyline_sink_state", text, labels=["sink", "state"])
        for item in status["sinks"]:
            epoch.add_metric([str(item["sink"])], _number(item["epoch"]))
            lag.add_metric([str(item["sink"])], _number(item["behind"]))
            for name in STATES:
                sinks.add_metric([str(item["sink"]), name], float(item["state"] == name))
        text = "Rows delivered to a sink since the console was started."
        rows = CounterMetricFamily("eddyline_sink_rows_total", text, labels=["sink", "op"])
        for labels, count in list(self._tally.delivered_rows.items()):
            rows.add_metric(labels, float(count))
        text = "Deliveries to a sink that failed since the console was started."
        failed = self._tally.failed_deliveries
        errors = _counter("eddyline_sink_errors_total", text, "sink", failed)
        reader = GaugeMetricFamily(
            "eddyline_reader_epoch", "The epoch of a named reader.", labels=["view", "reader"]
        )
        for item in status["readers"]:
            reader.add_metric([str(item["view"]), str(item["reader"])], _number(item["epoch"]))
        text = "Records of a pipeline by what became of them."
        records = CounterMetricFamily(
            "eddyline_pipeline_records_total", text, labels=["pipeline", "outcome"]
        )
        text = "Records of a pipeline that are being worked on."
        flight = _labelled("eddyline_pipeline_in_flight", text, "pipeline")
        lags = _lag_families("pipeline", PIPELINE_LAG_TEXTS)
        text = "Records that a lane of a pipeline may have in flight."
        windows = GaugeMetricFamily("eddyline_lane_window", text, labels=["pipeline", "lane"])
        for item in status["pipelines"]:
            name = str(item["name"])
            for outcome in ("received", "done", "dead", "retried"):
                if outcome in item:
                    records.add_metric([name, outcome], _number(item[outcome]))
            if "in_flight" in item:
                flight.add_metric([name], _number(item["in_flight"]))
            _add_lag(lags, item)
            for lane, window in enumerate(lane_windows(item)):
                windows.add_metric([name, str(lane)], float(window))
        yield from (letters, epoch, lag, sinks, rows, errors, reader, records, flight, windows)
        yield from lags.values()


def metrics_text(registry: CollectorRegistry) -> bytes:
    """Return the metrics in Prometheus's text format."""
    return generate_latest(registry)


def registry_of(observer: Observer, tally: Tally, *, inside: bool) -> CollectorRegistry:
    """Return a registry of the metrics of one storage and of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(StorageCollector(observer, tally, inside=inside))
    return registry


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _labelled(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[label])


def _counter(name: str, text: str, label: str, counts: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for item, count in list(counts.items()):  # another thread may add to them
        family.add_metric([item], float(count))
    return family


def _lag_families(label: str, texts: Mapping[str, str]) -> dict[str, GaugeMetricFamily]:
    """Return the metrics of what waits, by unit."""
    return {
        unit: _labelled(f"eddyline_{label}_lag_{unit}", text, label) for unit, text in texts.items()
    }


def _add_lag(families: Mapping[str, GaugeMetricFamily], item: Mapping[str, Any]) -> None:
    for unit, amount in item.get("lag", {}).items():
        if unit in families:
            families[unit].add_metric([str(item["name"])], float(amount))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
