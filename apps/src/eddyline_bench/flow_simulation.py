"""Simulate flow control: consumers that are slow, stall, recover and flap, in simulated time.

Each lane processes one tuple after the other, at a speed that changes over time. Four sending policies
are compared under the same conditions: the adaptive windows of `eddyline.relay.flow`, a static limit per
lane, round robin, and hashing tuples to lanes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np

from eddyline.relay.flow import FlowControl, Sending

NETWORK_MS = 1.0
TICK_MS = 10.0

Speed = Sequence[tuple[float, float]]
"""Pairs (start in ms, speed): a lane has the speed from then on. 1 is normal, 0 is a stall."""

STEADY: Speed = ((0.0, 1.0),)


class Policy(Protocol):
    """A sending policy; `FlowControl` is one."""

    def put(self, number: int) -> None:
        """Queue a tuple for sending."""
        ...

    def sendings(self, now: float) -> Iterator[Sending]:
        """Return the tuples to send now, each with its lane."""
        ...

    def ack(self, sending: Sending, now: float) -> None:
        """Register that a lane has processed a tuple."""
        ...

    def expire(self, now: float) -> list[Sending]:
        """Take back the tuples in flight for longer than their TTL, to be sent again; return them."""
        ...


class StaticLimit:
    """Lanes in turn, with at most `limit` tuples in flight to each; expired tuples are sent again."""

    def __init__(self, lanes: int, limit: int, ttl_ms: float) -> None:
        self.limit = limit
        self.ttl_ms = ttl_ms
        self._under_way: list[dict[int, float]] = [{} for _ in range(lanes)]
        self._waiting: deque[int] = deque()
        self._turn = 0

    def put(self, number: int) -> None:
        self._waiting.append(number)

    def sendings(self, now: float) -> Iterator[Sending]:
        passed, lanes = 0, len(self._under_way)
        while self._waiting and passed < lanes:
            lane, self._turn = self._turn, (self._turn + 1) % lanes
            if len(self._under_way[lane]) < self.limit:
                number, passed = self._waiting.popleft(), 0
                self._under_way[lane][number] = now
                yield Sending(number, lane)
            else:
                passed += 1

    def ack(self, sending: Sending, now: float) -> None:
        self._under_way[sending.lane].pop(sending.number, None)

    def expire(self, now: float) -> list[Sending]:
        late = [
            Sending(number, lane)
            for lane, held in enumerate(self._under_way)
            for number, sent_ms in held.items()
            if sent_ms + self.ttl_ms <= now
        ]
        for sending in late:
            del self._under_way[sending.lane][sending.number]
            self._waiting.append(sending.number)
        return late


class RoundRobin(StaticLimit):
    """Lanes in turn, with one limit for all lanes together (Storm's `max.spout.pending`)."""

    def sendings(self, now: float) -> Iterator[Sending]:
        lanes = len(self._under_way)
        while self._waiting and sum(map(len, self._under_way)) < self.limit:
            lane, self._turn = self._turn, (self._turn + 1) % lanes
            number = self._waiting.popleft()
            self._under_way[lane][number] = now
            yield Sending(number, lane)


class Hashed:
    """The lane of each tuple is chosen by hash. Acks are ignored: nothing is limited or sent again."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._waiting: deque[int] = deque()

    def put(self, number: int) -> None:
        self._waiting.append(number)

    def sendings(self, now: float) -> Iterator[Sending]:
        while self._waiting:
            number = self._waiting.popleft()
            yield Sending(number, (number * 0x9E3779B97F4A7C15 >> 40) % self.lanes)

    def ack(self, sending: Sending, now: float) -> None:
        pass

    def expire(self, now: float) -> list[Sending]:
        return []


@dataclass(slots=True)
class Simulation:
    """The measurements of one simulation, times in milliseconds.

    Attributes:
        ends: time of the first completion of each tuple, by number; NaN if there was none.
        latencies: time from the arrival of each completed tuple to its first completion.
        by_lane: times of all completions, by lane.
        replays: number of tuples that were sent again.
        windows: the window of each lane every `TICK_MS`; empty for policies without windows.
        waiting_most: maximum number of tuples in flight, those in the lanes' queues included.
    """

    ends: np.ndarray
    latencies: np.ndarray
    by_lane: list[list[float]]
    replays: int = 0
    windows: list[list[int]] = field(default_factory=list)
    waiting_most: int = 0

    def throughput(self, start_ms: float, end_ms: float) -> float:
        """Return first completions per second, within a period."""
        done = np.count_nonzero((self.ends >= start_ms) & (self.ends < end_ms))
        return float(done) * 1000 / (end_ms - start_ms)

    def shares(self, start_ms: float, end_ms: float) -> np.ndarray:
        """Return the number of completions of each lane within a period."""
        counts = [sum(start_ms <= at < end_ms for at in ends) for ends in self.by_lane]
        return np.array(counts, float)


def fairness(shares: np.ndarray) -> float:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything."""
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def simulate(
    policy: Policy,
    speeds: Sequence[Speed],
    *,
    service_ms: float | Sequence[float] = 5.0,
    duration_ms: float = 10_000.0,
    load: float = 2.0,
    noise: float = 0.0,
    seed: int = 1,
) -> Simulation:
    """Simulate a sending policy.

    Args:
        policy: the sending policy.
        speeds: speed of each lane over time.
        service_ms: processing time of a tuple at speed 1, for all lanes or for each.
        duration_ms: simulated duration.
        load: arrival rate relative to the capacity of all lanes at speed 1; arrivals are evenly
            spaced. A policy with a limit leaves the excess at the source; the others send it all.
        noise: maximum relative deviation of a tuple's work from the mean.
        seed: seed of the noise.
    """
    lanes = len(speeds)
    services = np.broadcast_to(np.asarray(service_ms, float), lanes)
    every_ms = 1.0 / (load * float((1.0 / services).sum()))
    arrivals = np.arange(0.0, duration_ms, every_ms)
    random = np.random.default_rng(seed)
    work = 1.0 + noise * random.uniform(-1, 1, len(arrivals))
    outcome = Simulation(np.full(len(arrivals) + 1, np.nan), np.empty(0), [[] for _ in speeds])
    order = count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    queues: list[deque[Sending]] = [deque() for _ in speeds]
    arrived = 0
    waiting = 0

    def at(moment: float, event: Callable[[float], None]) -> None:
        heapq.heappush(events, (moment, next(order), event))

    def begin(lane: int, now: float) -> None:
        sending = queues[lane][0]
        needed = services[lane] * work[sending.number - 1]
        at(_finish(speeds[lane], now, needed), lambda then: finished(sending, then))

    def receive(sending: Sending, now: float) -> None:
        queues[sending.lane].append(sending)
        if len(queues[sending.lane]) == 1:
            begin(sending.lane, now)

    def finished(sending: Sending, now: float) -> None:
        queues[sending.lane].popleft()
        outcome.by_lane[sending.lane].append(now)
        at(now + NETWORK_MS, lambda then: acked(sending, then))
        if queues[sending.lane]:
            begin(sending.lane, now)

    def acked(sending: Sending, now: float) -> None:
        nonlocal waiting
        waiting -= 1
        if np.isnan(outcome.ends[sending.number]):
            outcome.ends[sending.number] = now
        policy.ack(sending, now)
        send(now)

    def send(now: float) -> None:
        nonlocal waiting
        for sending in policy.sendings(now):
            waiting += 1
            at(now + NETWORK_MS, lambda then, sending=sending: receive(sending, then))  # type: ignore[misc]

    def tick(now: float) -> None:
        nonlocal arrived
        outcome.replays += len(policy.expire(now))
        while arrived < len(arrivals) and arrivals[arrived] <= now:
            arrived += 1
            policy.put(arrived)
        if isinstance(policy, FlowControl):
            outcome.windows.append([lane.window for lane in policy.lanes])
        outcome.waiting_most = max(outcome.waiting_most, waiting)
        send(now)
        at(now + TICK_MS, tick)

    at(0.0, tick)
    while events and events[0][0] < duration_ms:
        now, _, event = heapq.heappop(events)
        event(now)
    done = ~np.isnan(outcome.ends[1:])
    outcome.latencies = outcome.ends[1:][done] - arrivals[done]
    return outcome


def _finish(speed: Speed, start: float, work: float) -> float:
    """Return when work that begins at `start` is complete; infinity if never."""
    ends = [moment for moment, _ in speed[1:]] + [float("inf")]
    for (_, rate), end in zip(speed, ends, strict=True):
        if end <= start:
            continue
        if rate > 0 and start + work / rate <= end:
            return start + work / rate
        work -= rate * (end - start)
        start = end
    return float("inf")


def slowed(factor: float, start_ms: float, end_ms: float) -> Speed:
    """Return the speed of a lane that is slower for a while; factor 0 is a stall."""
    return (0.0, 1.0), (start_ms, factor), (end_ms, 1.0)


def flapping(factor: float, period_ms: float, duration_ms: float) -> Speed:
    """Return the speed of a lane that is slow in every second period."""
    moments = np.arange(0.0, duration_ms, period_ms)
    return [(float(at), factor if i % 2 else 1.0) for i, at in enumerate(moments)]
