import argparse
import time

import polars as pl
import pytest

from eddyline import bench
from eddyline.bench import (
    delivery,
    grouped_count,
    history,
    keyed_total,
    relay_parts,
    two_level,
)
from eddyline.bench.measure import Meter, aligned, same_rows, tree_cpu_seconds
from eddyline.bench.tuples import SCHEMA, tuples, write_tuples


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


@pytest.mark.spark
def test_grouped_count():
    result = grouped_count.run(rows=2000, repeat=1, epochs=2)
    assert result.equal
    assert result.ratio > 0
    assert "results are equal" in result.text()


@pytest.mark.spark
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_keyed_total(form):
    pytest.importorskip("google.protobuf", reason="transformWithState needs it")
    result = keyed_total.run(rows=40, repeat=2, form=form)
    assert result.equal
    assert len(result.eddyline) == len(result.transform_with_state) == 2
    assert "keys/s" in result.text()


@pytest.mark.spark
def test_history():
    result = history.run(rows=100, factor=3, delta=10, repeat=1)
    assert result.equal
    assert set(result.ratios) == set(history.SHAPES)
    assert "ratio" in result.text()


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


@pytest.mark.spark
def test_delivery():
    result = delivery.run(rows=20, repeat=1)
    assert result.equal
    assert "at_most_once" in result.text()
