"""Flow control: its rules one by one, and what it makes of consumers that misbehave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.relay.flow import Checkpoint, FlowControl, LaneState, Sending
from eddyline_bench.flow_simulation import (
    STEADY,
    Hashed,
    RoundRobin,
    Speed,
    StaticLimit,
    fairness,
    flapping,
    simulate,
    slowed,
)

SLOW_MS, TTL_MS, SERVICE_MS = 50, 1000, 5
IDEAL = SLOW_MS / SERVICE_MS


def adaptive(lanes: int) -> FlowControl:
    return FlowControl(lanes, slow_ms=SLOW_MS, ttl_ms=TTL_MS)


def sent(flow: FlowControl, now: float, *numbers: int) -> list[Sending]:
    for number in numbers:
        flow.put(number)
    return list(flow.sendings(now))


def test_the_checkpoint_of_the_source():
    checkpoint = Checkpoint()
    assert [checkpoint.done(number) for number in (1, 3, 4, 2)] == [1, 1, 1, 4]
    assert [checkpoint.done(number) for number in (4, 2, 5)] == [4, 4, 5]


@settings(deadline=None)
@given(st.permutations(range(1, 20)))
def test_a_checkpoint_is_the_longest_prefix(numbers):
    checkpoint = Checkpoint()
    for place in range(len(numbers)):
        done = set(numbers[: place + 1])
        expected = next(n for n in range(21) if n + 1 not in done)
        assert checkpoint.done(numbers[place]) == expected


def test_normal_acks_widen_the_window_by_one_a_round_trip():
    flow, widths = adaptive(1), []
    sendings = sent(flow, 0, *range(1, 100))
    for now in range(10, 60, 10):
        for sending in sendings:
            flow.ack(sending, now)
        widths.append(flow.lanes[0].window)
        sendings = list(flow.sendings(now))
        assert len(sendings) == widths[-1]
    assert widths == [2, 3, 4, 5, 6]
    assert flow.lanes[0].state is LaneState.NORMAL


def test_slow_acks_narrow_it_by_one_a_round_trip_and_never_below_one():
    flow, widths, now = adaptive(1), [], 0
    flow.lanes[0].window = 4
    sendings = sent(flow, now, *range(1, 100))
    for _ in range(5):
        now += SLOW_MS + 1
        for sending in sendings:
            flow.ack(sending, now)
        widths.append(flow.lanes[0].window)
        sendings = list(flow.sendings(now))
    assert widths == [3, 2, 1, 1, 1]
    assert flow.lanes[0].state is LaneState.SLOW


def test_a_window_that_is_not_used_does_not_grow():
    flow = adaptive(1)
    flow.lanes[0].window = 5
    for number in range(1, 50):
        (sending,) = sent(flow, number, number)
        flow.ack(sending, number + 1)
    assert flow.lanes[0].window == 5


def test_a_late_tuple_narrows_at_once_and_goes_to_another_lane():
    flow = adaptive(2)
    flow.lanes[0].window = 3
    sendings = sent(flow, 0, 1, 2, 3, 4)
    assert sorted(s.lane for s in sendings) == [0, 0, 0, 1]
    flow.ack(next(s for s in sendings if s.lane == 1), 10)
    assert flow.expire(TTL_MS - 1) == []
    expired = flow.expire(TTL_MS)
    assert len(expired) == flow.replays == 3
    assert (flow.lanes[0].window, flow.lanes[0].state) == (1, LaneState.BUSY)
    again = list(flow.sendings(TTL_MS))
    assert again
    assert {s.lane for s in again} == {1}
    assert {s.number for s in again} <= {s.number for s in expired}
    flow.ack(expired[0], TTL_MS + 1)
    assert flow.late == 1


def test_a_returned_tuple_goes_to_the_only_lane_if_there_is_no_other():
    flow = adaptive(1)
    (sending,) = sent(flow, 0, 1)
    flow.fail(sending, 5)
    assert list(flow.sendings(6)) == [sending]


def test_the_idlest_lane_comes_first():
    """Not the one with the fewest tuples: the one that is expected to be clear first."""
    flow = adaptive(2)
    for lane, tuple_ms in zip(flow.lanes, (10.0, 1.0), strict=True):
        lane.window, lane.tuple_ms = 10, tuple_ms
    assert [s.lane for s in sent(flow, 0, *range(1, 12))] == [1] * 9 + [0, 1]


def test_lanes_that_are_not_known_yet_share_the_work():
    flow = FlowControl(3, slow_ms=50, ttl_ms=1000, window=16)
    assert [sending.lane for sending in sent(flow, 0, *range(1, 8))] == [0, 1, 2, 0, 1, 2, 0]


def test_the_checkpoint_passes_tuples_that_were_let_go():
    flow = adaptive(2)
    (first, _) = sent(flow, 0, 1, 2)
    flow.ack(first, 1)
    flow.reset()
    assert flow.checkpoint.position == 2
    (third,) = sent(flow, 2, 3)
    flow.ack(third, 3)
    assert flow.checkpoint.position == 3


def test_the_windows_admit_the_next_batch():
    flow = adaptive(3)
    assert flow.room == 3
    flow.lanes[1].window = 4
    sent(flow, 0, 1, 2)
    assert flow.room == 4
    flow.put(3)
    assert flow.room == 3


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.sampled_from(["put", "send", "ack", "fail", "expire"]), st.integers(0, 99)),
        max_size=80,
    ),
)
def test_every_tuple_is_in_one_place(lanes, steps):
    flow, now, put = adaptive(lanes), 0.0, 0
    under_way: list[Sending] = []
    done: set[int] = set()
    for what, value in steps:
        now += value
        if what == "put":
            put += 1
            flow.put(put)
        elif what == "send":
            room = [lane.window - len(lane.in_flight) for lane in flow.lanes]
            new = list(flow.sendings(now))
            for lane in range(lanes):
                count = sum(s.lane == lane for s in new)
                assert count <= max(room[lane], 0)
            under_way += new
        elif what in ("ack", "fail") and under_way:
            sending = under_way.pop(value % len(under_way))
            getattr(flow, what)(sending, now)
            if what == "ack":
                done.add(sending.number)
        elif what == "expire":
            for sending in flow.expire(now):
                under_way.remove(sending)
        assert flow.in_flight == len(under_way)
        assert flow.buffered + flow.in_flight + len(done) == put
        assert all(1 <= lane.window <= 1024 for lane in flow.lanes)
        assert flow.checkpoint.position == next(n for n in range(put + 1) if n + 1 not in done)
        assert flow.late == 0


# What follows is the evidence for the numbers in the docstring of eddyline.relay.flow.


@pytest.mark.parametrize("lanes", [2, 8, 64])
@pytest.mark.parametrize(("noise", "least", "most"), [(0, 10, 12), (0.3, 8, 13), (0.9, 6, 14)])
def test_steady_lanes_converge_without_oscillation_and_share_fairly(lanes, noise, least, most):
    duration = 2000
    outcome = simulate(adaptive(lanes), [STEADY] * lanes, noise=noise, duration_ms=duration)
    windows = np.array(outcome.windows)
    assert np.all((windows[25:] >= 0.9 * IDEAL).any(0))
    settled = windows[50:]
    assert settled.min() >= least
    assert settled.max() <= most
    assert outcome.throughput(500, duration) >= 0.97 * lanes * 1000 / SERVICE_MS
    assert fairness(outcome.shares(500, duration)) >= 0.999
    assert outcome.replays == 0


def test_a_window_fits_the_speed_of_its_lane():
    services = np.array([2, 5, 10, 20, 40])
    outcome = simulate(adaptive(5), [STEADY] * 5, service_ms=services, noise=0.3)
    windows = np.array(outcome.windows)[300:].mean(0)
    assert np.all(windows <= 1.5 * SLOW_MS / services + 1.5)
    busy = outcome.shares(3000, 10_000) * services / 7000
    assert busy.min() > 0.97


@pytest.mark.parametrize("lanes", [2, 12])
@pytest.mark.parametrize("factor", [0.1, 0.0])
def test_a_lane_that_was_slow_or_stalled_recovers(lanes, factor):
    speeds = [slowed(factor, 2000, 5000)] + [STEADY] * (lanes - 1)
    outcome = simulate(adaptive(lanes), speeds, noise=0.3, duration_ms=7000)
    windows = np.array(outcome.windows)[:, 0]
    assert windows[490] <= 3
    assert np.argmax(windows[500:] >= 0.9 * IDEAL) * 10 <= 300
    assert outcome.throughput(5200, 6800) >= 0.97 * lanes * 1000 / SERVICE_MS
    rest = lanes - 1 + factor
    assert outcome.throughput(2500, 4900) >= 0.97 * rest * 1000 / SERVICE_MS
    assert outcome.replays < 0.01 * np.isfinite(outcome.ends).sum()
    assert outcome.waiting_most <= 15 * lanes


SCHEDULES: dict[str, Speed] = {
    "slow": slowed(0.1, 1500, 3500),
    "stall": slowed(0.0, 1500, 3500),
    "flap": flapping(0.1, 500, 6000),
    "flap fast": flapping(0.2, 60, 6000),
    "flap with stalls": flapping(0.0, 300, 6000),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_under_overload_it_is_as_good_as_the_best_static_limit(schedule):
    lanes = 12
    speeds = [SCHEDULES[schedule]] * 2 + [STEADY] * (lanes - 2)
    policies = {limit: StaticLimit(lanes, limit, TTL_MS) for limit in (1, 2, 4, 16, 64)}
    best = max(
        simulate(policy, speeds, noise=0.3, duration_ms=4000).throughput(500, 4000)
        for policy in policies.values()
    )
    mine = simulate(adaptive(lanes), speeds, noise=0.3, duration_ms=4000)
    turns = simulate(RoundRobin(lanes, 8 * lanes, TTL_MS), speeds, noise=0.3, duration_ms=4000)
    assert mine.throughput(500, 4000) >= 0.97 * best
    assert mine.throughput(500, 4000) > 1.2 * turns.throughput(500, 4000)
    assert mine.replays < 0.01 * np.isfinite(mine.ends).sum()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_below_capacity_a_bad_lane_holds_up_hardly_a_tuple(schedule):
    """Against the old log ETL, which hashed to 12 bolts, and against turns."""
    lanes = 12
    speeds = [SCHEDULES[schedule]] + [STEADY] * (lanes - 1)
    outcomes = [
        simulate(policy, speeds, noise=0.3, load=0.7, duration_ms=6000)
        for policy in (adaptive(lanes), Hashed(lanes), RoundRobin(lanes, 8 * lanes, TTL_MS))
    ]
    mine, hashed, turns = (float(np.percentile(outcome.latencies, 99)) for outcome in outcomes)
    assert mine <= 25
    if schedule not in ("flap fast", "flap with stalls"):
        assert hashed > 20 * mine
        assert turns > 20 * mine
    assert hashed > 2 * mine
