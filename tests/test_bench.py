import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import get_args, get_origin, get_type_hints

import numpy as np
import polars as pl
import pytest

import eddyline_bench as bench
from eddyline.errors import EngineError
from eddyline.spark.processes import tree_cpu_seconds
from eddyline_bench import (
    backfill,
    console,
    delivery,
    grouped_count,
    growth,
    history,
    keyed_total,
    mars,
    nexmark,
    projects,
    relay,
    relay_parts,
    sinks,
    skew,
    small,
    sources,
    state,
    telemetry,
    tpcds,
    two_level,
    webstats,
    workers,
)
from eddyline_bench.figures import figures
from eddyline_bench.mars.faults import ClusterRun, Faults, InjectedFault, run_faults
from eddyline_bench.mars.runs import Amdahl, Latency, Point, curve, latency, write_batches
from eddyline_bench.measure import (
    Meter,
    PeakMemory,
    aligned,
    bench_session,
    in_own_process,
    same_rows,
)
from eddyline_bench.page import Machine
from eddyline_bench.relay import steady
from eddyline_bench.relay.load import FixedSetting
from eddyline_bench.relay.overload import Overload, PhasedRun, run_phases
from eddyline_bench.relay.replays import run_replays
from eddyline_bench.tuples import SCHEMA, tuples, write_tuples


def test_tuples_have_20_fields_of_about_150_to_220_bytes(tmp_path):
    written = write_tuples(tmp_path, rows=1000, files=3)
    rows = pl.read_ndjson(tmp_path / "*.json")
    assert rows.height == 1000
    assert rows.columns == [column.split()[0] for column in SCHEMA.split(", ")]
    assert len(rows.columns) == 20
    assert 150 <= written / 1000 <= 220


def test_the_same_tuples_come_again():
    assert tuples(10, 5, 100).equals(tuples(10, 5, 100))
    assert not tuples(10, 5, 100).equals(tuples(10, 5, 100, seed=1))


def test_same_rows_compares_multisets():
    left = pl.DataFrame({"a": [1, 2, 2], "b": ["x", "y", None]})
    assert same_rows(left, left.reverse().select("b", "a"))
    assert not same_rows(left, left.head(2))
    assert not same_rows(left, pl.DataFrame({"a": [1, 1, 2], "b": ["x", "y", None]}))


def test_a_meter_counts_time_and_cpu():
    before = tree_cpu_seconds()
    with Meter() as meter:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
    assert meter.cost.seconds >= 0.045  # two clocks
    assert 0 < meter.cost.cpu_seconds <= tree_cpu_seconds() - before


def test_a_table_is_aligned():
    assert aligned(["", "n"], [["long", "1"], ["a", "22"]]) == "         n\n  long   1\n  a     22"


def test_the_command_knows_every_benchmark():
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(["history", "--rows", "10"])
    assert (args.name, args.rows, args.repeat) == ("history", 10, None)


def test_every_result_can_be_given_to_programs():
    for name, run in bench.BENCHMARKS.items():
        kind = vars(sys.modules[run.__module__])[run.__annotations__["return"]]
        plain(kind, name)


def plain(kind, path):
    """Fail unless all values of a type are those that `figures` takes."""
    if kind in (int, float, str, bool, type(None)) or get_origin(kind) is np.ndarray:
        return
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            plain(hints[field.name], f"{path}.{field.name}")
    else:
        known = (list, tuple, dict, Mapping, Sequence)
        assert get_origin(kind) in known, f"{path} is of {kind}"
        keys = get_origin(kind) in (dict, Mapping)
        for one in get_args(kind)[keys:]:
            if one is not Ellipsis:
                plain(one, path)


def test_figures_are_plain():
    memory = PeakMemory()
    memory.jvm = 5
    found = figures(
        {FixedSetting(4, True): np.array([1.5, np.nan]), "m": (memory, np.int64(7), None)}
    )
    assert found == {
        "fixed 4, taken": [1.5, None], "m": [{"python": 0, "jvm": 5, "worker": 0}, 7, None],
    }  # fmt: skip
    with pytest.raises(TypeError, match="a result holds"):
        figures([object()])


def test_a_result_as_json(monkeypatch, capsys):
    monkeypatch.setitem(bench.BENCHMARKS, "mars", lambda: mars_result(counted=999))
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    assert bench.run(parser.parse_args(["mars", "--format", "json"])) == 1
    found = json.loads(capsys.readouterr().out)
    assert [found[name] for name in ("event", "name", "equal")] == ["benchmark", "mars", False]
    assert found["cores"] == Machine.now().cores
    assert found["figures"]["curves"]["2"][0] == {"size": 1000, "seconds": 0.1 + 1000 / 200_000}
    assert found["figures"]["latency"]["seconds"] == [0.1, 0.2, 0.3, 1.0]
    assert bench.run(parser.parse_args(["mars"])) == 1
    assert capsys.readouterr().out.rstrip() == mars_result(counted=999).text().rstrip()


@pytest.mark.spark
def test_grouped_count():
    result = grouped_count.run(rows=2000, repeat=1, epochs=2)
    assert result.equal
    assert all(result.ratio(side) > 0 for side in result.sides)
    assert "results are equal" in result.text()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_epochs_on_clusters_are_timed_and_modelled():
    result = workers.run(rows=2000, repeat=1)
    assert result.equal
    assert len(result.points) == len(workers.VIEWS) * len(workers.WORKERS) * 2
    assert all(result.modelled(point) > 0 for point in result.points)
    assert "fitted to fewer workers than 4" in result.text()


@pytest.mark.spark
@pytest.mark.slow  # installs Flink
def test_grouped_count_beside_flink():
    result = grouped_count.run(rows=2000, repeat=1, epochs=2, flink=True)
    assert result.equal
    assert "Flink SQL" in result.sides


def test_only_the_grouped_count_runs_flink():
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(EngineError, match="only the benchmark grouped-count") as refused:
        bench.run(parser.parse_args(["nexmark", "--flink"]))
    assert refused.value.condition == "BAD_OPTION"


@pytest.mark.spark
@pytest.mark.parametrize("form", [pytest.param("row", marks=pytest.mark.slow), "pandas"])
def test_keyed_total(form):
    pytest.importorskip("google.protobuf", reason="transformWithState needs it")
    result = keyed_total.run(rows=40, repeat=2, form=form)
    assert result.equal
    assert len(result.eddyline) == len(result.transform_with_state) == 2
    assert "keys/s" in result.text()


@pytest.mark.spark
@pytest.mark.slow
def test_history():
    result = history.run(rows=100, factor=3, delta=10, repeat=1)
    assert result.equal
    assert set(result.ratios) == set(history.SHAPES)
    assert "ratio" in result.text()


@pytest.mark.slow
@pytest.mark.spark
def test_backfill():
    result = backfill.run(rows=20_000, repeat=1)
    assert result.equal
    assert set(result.views) == set(backfill.VIEWS)
    assert 4 <= result.killed[1] <= 8
    assert "killed after" in result.text()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("run", [growth.run, growth.run_log])
def test_growth(run):
    result = run(rows=5, repeat=12)
    assert result.equal
    assert [sample.epoch for sample in result.samples] == list(range(1, 13))
    assert min(result.ratio(name) for name in ("milliseconds", "files", "heap", "python")) > 0
    assert "opening" in result.text()


@pytest.mark.slow
@pytest.mark.spark
def test_skew():
    result = skew.run(rows=2000, repeat=1, keys=50, shapes=["join", "lag"])
    assert result.equal
    assert list(result.sides) == ["join", "lag"]
    for side in (side for pair in result.sides.values() for side in pair):
        assert min(*side.seconds, side.batch) > 0
        assert 0 < side.shares[0] <= 1
    assert "longest" in result.text()


@pytest.mark.spark
def test_state():
    result = state.run(rows=1000, repeat=1)
    assert result.equal
    assert [stage.rows for stage in result.stages] == [1000, 1000, 100_000]
    assert all(min(_memory(stage)) > 0 for stage in result.stages)
    assert "worker" in result.text()


def _memory(stage: state.Stage) -> tuple[int, int]:
    return stage.memory.python, stage.memory.jvm


def test_relay_parts():
    result = relay_parts.run(rows=3000, repeat=1)
    assert result.equal
    assert result.bytes_a_root <= 50
    # failed records are read in the next round; at the tail they wait for all that came before
    assert result.backflow_rounds == (1, 1)
    assert result.tail_rounds[0] > 5
    assert "records/s" in result.text()


@pytest.mark.spark
def test_two_level():
    result = two_level.run(rows=50, keys=20, history=100, repeat=2)
    assert result.equal
    assert result.stages
    assert "share" in result.text()


@pytest.mark.slow
@pytest.mark.spark
def test_telemetry():
    for package in ("opentelemetry.sdk", "openlineage.client", "prometheus_client"):
        pytest.importorskip(package)
    result = telemetry.run(rows=20, repeat=1, block=2)
    assert result.equal
    assert {name: len(times) for name, times in result.epochs.items()} == dict.fromkeys(
        telemetry.MODES, 2
    )
    assert all(f"{name} " in result.text() for name in telemetry.MODES)


def test_delivery():
    result = delivery.run(rows=20, repeat=1)
    assert result.equal
    assert "at_most_once" in result.text()


@pytest.mark.slow
def test_sinks_and_targets_by_hand_hold_the_same_rows():
    result = sinks.run(rows=500, repeat=1)
    assert result.equal
    kinds = {"delta", "parquet", "jsonl", "csv", "webhook", "function", "postgres", "kafka"}
    assert {*result.eddyline, *result.missing} == kinds
    assert "ratio" in result.text()


@pytest.mark.slow
def test_sources_and_streaming_by_hand_give_the_same_totals():
    result = sources.run(rows=1500, repeat=1)
    assert result.equal
    kinds = {"parquet", "json", "tail", "delta", "queue", "http", "kafka", "postgres"}
    assert {*result.eddyline, *result.missing} == kinds
    assert "ratio" in result.text()


@pytest.mark.slow
def test_a_project_gives_the_same_rows_with_both_commands():
    result = projects.run(rows=500, repeat=1)
    assert result.equal
    visits = result.runs["visits"]
    assert visits["spark-pipelines"].read[1] > visits["eddyline"].read[1] >= 1000
    assert result.runs["sample"]["eddyline"].read[1] > 0
    assert "later run" in result.text()


def mars_result(counted: int = 1000) -> mars.MarsResult:
    """A made-up one: an epoch takes 0.1 s, and 10 microseconds a record on one core."""
    curves = {
        cores: [Point(size, 0.1 + size / 100_000 / cores) for size in (1000, 5000, 20_000)]
        for cores in (1, 2)
    }
    undisturbed = ClusterRun([1.0, 2.0, 3.0, 4.0], [250, 500, 750, 1000], [], 0, 1000, True)
    injected = [InjectedFault(2.5, "worker 1 killed")]
    faults = ClusterRun([1.0, 2.0, 3.0, 9.0], [250, 500, 750, 1000], injected, 1, counted, True)
    return mars.MarsResult(
        Machine(2, 0.1, "2026-01-02"),
        200.0,
        curves,
        True,
        Latency(500, np.array([0.1, 0.2, 0.3, 1.0]), 7, True),
        Faults(1000, 250, undisturbed, faults),
    )


def test_more_cores_are_simulated_from_a_measured_curve():
    result = mars_result()
    assert result.peak.size == 20_000
    assert result.model.serial == pytest.approx(0.1)
    assert result.model.parallel == pytest.approx(1e-5)
    fewer = result.curves[1][-1].throughput
    assert result.model.throughput(20_000, 1) == pytest.approx(fewer)
    # never more than what the serial part leaves
    assert 190_000 < Amdahl(0.1, 1e-5).throughput(20_000, 1000) < 200_000


def test_mars_writes_its_page_and_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="the plots need it")
    for name in ("one", "two"):
        mars_result().write(tmp_path / name)
    page = (tmp_path / "one/mars.md").read_text()
    assert "| 20,000 (peak) | 200 | 100,000 | 20.0 |" in page
    assert "| 4 (simulated) | - | 133,333 | 200,000 |" in page
    assert "| mean | 400 |" in page
    assert "| sum of all counts | 1,000 | 1,000 |" in page
    assert "| longest epoch, s | 1.0 | 6.0 |" in page
    plots = [(tmp_path / name / "mars.svg").read_text() for name in ("one", "two")]
    assert plots[0] == plots[1]
    assert "worker 1 killed" in plots[0]


def test_mars_tells_of_a_wrong_count():
    assert mars_result().equal
    assert "results are equal" in mars_result().text()
    assert not mars_result(counted=999).equal
    assert "RESULTS DIFFER" in mars_result(counted=999).text()


def test_few_make_a_page(tmp_path):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(EngineError, match="make a page"):
        bench.run(parser.parse_args(["history", "--write", str(tmp_path)]))


@pytest.mark.slow
@pytest.mark.spark
def test_mars(tmp_path):
    write_batches(tmp_path, 150, 6)
    with bench_session(2) as spark:
        points, counted = curve(spark, {50: str(tmp_path)}, 2, cores=2, repeat=1)
        late = latency(spark, rate=400, seconds=1, cores=2, warm_up_seconds=0.5)
    assert counted
    assert [point.size for point in points] == [50]
    assert points[0].seconds > 0
    assert late.counted
    assert len(late.seconds) == 400
    assert 0 < late.quantile(0.5) <= late.quantile(0.99)


@pytest.mark.spark
@pytest.mark.slow
def test_mars_loses_nothing_with_its_workers():
    found = in_own_process(run_faults, 30_000, 1500)
    assert found.equal
    assert [fault.what for fault in found.faults.injected] == [
        "worker 1 killed", "worker 2 killed", "worker 3 cut off", "worker 3 back",
    ]  # fmt: skip
    # the one that was cut off was missed
    assert max(np.diff(found.faults.times)) > max(np.diff(found.undisturbed.times))


@pytest.mark.slow
@pytest.mark.spark
def test_relay(tmp_path):
    variants = {"none": steady.Variant(steady.NEVER), "some": steady.Variant(500)}
    with bench_session(2) as spark:
        acks = steady.run_acks(1000, 1, 2)
        poison = steady.measure(variants, rows=1000, repeat=1, cores=2)
        replays = run_replays(0.5, 2e-4, 100)
        adaptive, fixed = (
            run_phases(spark, way, 0.2, 0.5, 2e-4, 50) for way in (None, FixedSetting(4, True))
        )
    overload = Overload(
        2e-4, adaptive, fixed, {FixedSetting(4, True): 1.0, FixedSetting(4, False): 2.0}
    )
    result = relay.RelayResult(Machine(2, 0.1, "2026-01-02"), acks, poison, overload, replays)
    assert (acks.equal, poison.equal, replays.equal, overload.equal) == (True,) * 4
    assert list(poison.costs) == ["none", "some"]
    assert all(len(waits) for waits in replays.waits.values())
    assert overload.adaptive.committed[-1] > 0
    tree, driver = (max(overload.adaptive.rss[of]) for of in ("tree", "driver"))
    assert tree > driver > 0
    assert "results are equal" in result.text()
    pytest.importorskip("matplotlib", reason="the plots need it")
    result.write(tmp_path)
    assert "each record ended once" in (tmp_path / "relay.md").read_text()
    assert "tail of the queue" in (tmp_path / "relay.svg").read_text()


def test_recovery_is_when_throughput_is_back():
    times = np.arange(0.0, 31.0, 0.5)
    # 100 records/s; 10 from second 10 on; 100 again from second 23 on, three after the slowness
    ended = np.interp(times, [0, 10, 23, 31], [0, 1000, 1130, 1930])
    slow = PhasedRun(
        "adaptive", [0, 10, 20, 30], times, ended, np.interp(times, [9, 10, 20, 30], [9, 1, 1, 11]),
        {"tree": times, "driver": times}, 0, 0, 0.0, True,
    )  # fmt: skip
    assert [round(slow.rate(phase)) for phase in range(3)] == [100, 10, 73]
    assert slow.recovery_s == 6.0  # the three seconds before it were nearly as fast as at first
    assert [slow.window(phase) for phase in range(3)] == [9, 1, 6]
    assert slow.window_back_s == 7.5  # at 8.1 of 9
    assert slow.peak("tree", 1) == 20


@pytest.mark.slow
def test_epochs_are_timed_with_and_without_browsers():
    result = console.run(rows=50, repeat=2, browsers=3, rate=50, seconds=1.5, interval=0.2)
    assert result.equal
    assert len(result.rounds) == 2
    assert result.slower > 0
    quiet, loaded = result.quiet, result.loaded
    assert quiet.loads == []
    assert quiet.used["browsers"] == 0.0
    assert loaded.used["console"] > quiet.used["console"]
    for load in loaded.loads:
        assert load["answered"] > 0.5 * load["due"] > 0
        assert load["events"] >= 3 * 2  # each stream begins with the last epoch
        assert (load["failed"], load["lost"]) == (0, 0)
    assert "with browsers" in result.text()


@pytest.mark.slow
def test_small_changes_are_timed_beside_batch_spark_and_verified():
    result = small.run(rows=5, repeat=1, scale=0.001, queries=["q6"])
    assert result.equal
    assert [one.name.split(",")[0] for one in result.work] == [
        *("8 small views", "web statistics", "q6", "all 1 together"),
    ]
    for one in result.work:
        assert one.made > 0
        assert len(one.epochs) == len(one.cpu) == 1
        assert one.lanes.keys() <= {"short", "wide"}
    assert len(result.work[2].batch) == 3
    assert "geometric mean" in result.text()


def test_queries_of_nexmark_are_timed_and_verified():
    result = nexmark.run(rows=500, repeat=2, queries=["q1", "q4"])
    assert result.equal
    assert [one.name for one in result.queries] == ["q1", "q4"]
    assert all(one.made > 0 and len(one.epochs) == len(one.lanes) == 2 for one in result.queries)
    assert "k events/s" in result.text()


@pytest.mark.slow
def test_queries_of_tpcds_are_timed_beside_batch_spark_and_verified():
    result = tpcds.run(repeat=1, share=0.01, queries=["q3", "q67"])
    assert result.equal
    assert [one.name for one in result.work] == ["q3", "q67", "1 together"]
    assert all(one.made > 0 and len(one.epochs) == 1 for one in result.work)
    assert [len(one.batch) for one in result.work] == [3, 3, 0]
    assert "TPC-DS one by one, geometric mean" in result.text()


def test_only_the_benchmark_of_small_changes_has_a_scale():
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(EngineError, match="has a scale"):
        bench.run(parser.parse_args(["two-level", "--scale", "1"]))


@pytest.mark.spark
@pytest.mark.slow
def test_the_load_of_web_statistics_is_counted_again(tmp_path):
    first, *_ = webstats.many_sites(3000, 1000)
    assert len({line.partition(":")[0] for line in first if line.startswith("www.site")}) > 50
    result = webstats.run(rows=1200, repeat=4)
    assert result.equal
    assert [(one.lines, one.part) for one in result.samples] == [
        (n, 300) for n in (300, 600, 900, 1200)
    ]
    assert min(result.ratio(name) for name in ("cpu", "lines_bytes", "state_bytes")) > 0
    assert "all views with offline Spark" in result.text()


def test_lines_that_were_lost_are_seen():
    class Answer:
        def __init__(self, rows):
            self.rows = rows

        def collect(self):
            return self.rows

    class Views:
        """A site of two requests, and a malformed line."""

        def sql(self, query):
            one = argparse.Namespace
            return Answer([one(line="b:80 x")] if "malformed" in query else [one(site="a", pv=2)])

    for lines, equal in (
        (["a:80 x", "a:80 y", "b:80 x"], True),
        (["a:80 x", "b:80 x", "b:80 x"], False),
        (["a:80 x"], False),
    ):
        counts = webstats.Counts()
        counts.add(lines)
        assert counts.equal(Views()) == equal
