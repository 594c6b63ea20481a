"""The choice between a run in the driver and a Spark job follows what epochs have taken."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from eddyline.runtime.lane_choice import SHORT, WIDE, Cost, CostLine, Lanes


def run(lanes, cost, rows, epochs):
    """Run epochs of one view with the given costs; return the lanes."""
    taken = []
    for _ in range(epochs):
        lane = lanes.choose("v", rows, 2)
        lanes.measured("v", lane, rows, cost[lane](rows), 2)
        taken.append(lane)
    return taken


def test_few_rows_begin_in_the_short_lane_and_many_in_the_wide_one():
    assert Lanes(200_000, cores=2).choose("v", 200_000, 2) == SHORT
    lanes = Lanes(200_000, cores=8)
    assert lanes.choose("v", 100, 2) == SHORT
    assert lanes.choose("v", 200_000, 2) == WIDE
    assert lanes.choose("v", 200_001, 2) == WIDE
    assert Lanes(0).choose("v", 1, 2) == WIDE
    assert 10_000 < lanes.turning("v", 2) < 100_000


def test_the_measured_lane_wins_over_the_typical_one():
    slow_jobs = {SHORT: lambda rows: 0.05 + 2e-6 * rows, WIDE: lambda rows: 0.6 + 2e-6 * rows}
    taken = run(Lanes(200_000), slow_jobs, 100_000, 20)
    assert taken[-5:] == [SHORT] * 5
    quick_jobs = {SHORT: lambda rows: 0.05 + 2e-5 * rows, WIDE: lambda rows: 0.08 + 1e-6 * rows}
    taken = run(Lanes(200_000, cores=8), quick_jobs, 15_000, 20)
    assert taken[0] == SHORT
    assert taken[-5:] == [WIDE] * 5


def test_a_slow_view_or_machine_does_not_try_jobs_that_would_be_slow_too():
    """The first job of a view takes seconds: Python workers start, code is generated."""

    def slow(rows):
        return 0.1 + 1e-5 * rows

    lanes = Lanes(200_000)
    assert run(lanes, {SHORT: slow, WIDE: slow}, 100_000, 20) == [SHORT] * 20
    assert lanes.turning("v", 2) == 200_000
    lanes = Lanes(200_000)
    for _ in range(5):  # of more rows than the short lane takes
        lanes.measured("v", WIDE, 300_000, slow(300_000), 2)
    assert lanes.choose("v", 100_000, 2) == WIDE  # short, it wouldn't take less than three quarters
    assert lanes.choose("v", 100, 2) == SHORT


def test_many_cores_share_what_a_slow_view_takes():
    def slow(rows):
        return 0.02 + 1e-5 * rows

    lanes = Lanes(200_000, cores=8)
    for _ in range(5):
        lanes.measured("v", SHORT, 50_000, slow(50_000), 2)
    assert lanes.choose("v", 50_000, 2) == WIDE
    assert lanes.choose("v", 1_000, 2) == SHORT


def test_noise_does_not_make_it_swing():
    chance = random.Random(1)

    def noisy(_rows):
        return 0.1 * chance.uniform(0.9, 1.1)

    taken = run(Lanes(200_000), {SHORT: noisy, WIDE: noisy}, 30_000, 100)
    assert len(set(taken)) == 1


def test_the_first_epoch_in_a_lane_counts_for_nothing():
    lanes = Lanes(200_000)
    lanes.measured("v", SHORT, 100, 30.0, 2)  # code was compiled
    assert lanes.choose("v", 100, 2) == SHORT
    lanes.measured("v", SHORT, 1 << 62, 30.0, 2)  # rows that could only be guessed
    assert lanes.choose("v", 100, 2) == SHORT


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0, 100)), max_size=30),
    st.integers(0, 1 << 40),
)
def test_a_line_never_falls_and_is_never_negative(points, rows):
    line = CostLine(Cost(0.1, 1e-6))
    for each, seconds in points:
        line.add(each, seconds)
    fixed, slope = line.fitted()
    assert fixed >= 0
    assert slope >= 0
    assert line.fitted().at(rows) >= 0
