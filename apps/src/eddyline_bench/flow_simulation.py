"""Flow control in simulated time: consumers that are slow, stall, recover and flap.

Each lane works on one tuple after the other, at a speed that changes with time. Ways of sending are
compared under the same conditions: the adaptive windows of `eddyline.relay.flow`, a static limit
a lane, round robin, and hashing to lanes (as the log ETL did of which the adaptive one is the heir).
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
"""From which moment on (ms) a lane has which speed; 1 is its usual one, 0 is a stall."""

STEADY: Speed = ((0.0, 1.0),)


class Policy(Protocol):
    """A way of sending: `FlowControl` is one."""

    def put(self, number: int) -> None:
        """A tuple is to be sent."""
        ...

    def sendings(self, now: float) -> Iterator[Sending]:
        """What to send now."""
        ...

    def ack(self, sending: Sending, now: float) -> None:
        """A lane has done a tuple."""
        ...

    def expire(self, now: float) -> list[Sending]:
        """What was under way for too long, and is sent again."""
        ...


class StaticLimit:
    """At most `limit` tuples under way to each lane, in turns; what is late is sent again."""

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
    """In turns, with one limit for all lanes together (Storm's `max.spout.pending`)."""

    def sendings(self, now: float) -> Iterator[Sending]:
        lanes = len(self._under_way)
        while self._waiting and sum(map(len, self._under_way)) < self.limit:
            lane, self._turn = self._turn, (self._turn + 1) % lanes
            number = self._waiting.popleft()
            self._under_way[lane][number] = now
            yield Sending(number, lane)


class Hashed:
    """Each tuple has its lane, by hash; there are no acks, so nothing is limited or sent again."""

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
    """The measurements of one simulation.

    Attributes:
        ends: when each tuple was first done, by number; NaN for those that weren't.
        latencies: from a tuple's arrival to its first end.
        by_lane: when each lane has ended its tuples.
        replays: tuples that were sent again.
        windows: every `TICK_MS`, the window of each lane; empty for ways without.
        waiting_most: most tuples under way and in the lanes' queues.
    """

    ends: np.ndarray
    latencies: np.ndarray
    by_lane: list[list[float]]
    replays: int = 0
    windows: list[list[int]] = field(default_factory=list)
    waiting_most: int = 0

    def throughput(self, start_ms: float, end_ms: float) -> float:
        """Tuples done for the first time per second, within a time."""
        done = np.count_nonzero((self.ends >= start_ms) & (self.ends < end_ms))
        return float(done) * 1000 / (end_ms - start_ms)

    def shares(self, start_ms: float, end_ms: float) -> np.ndarray:
        """How many tuples each lane has ended within a time."""
        counts = [sum(start_ms <= at < end_ms for at in ends) for ends in self.by_lane]
        return np.array(counts, float)


def fairness(shares: np.ndarray) -> float:
    """Jain's index of shares: 1 if all are equal, 1/n if one has all."""
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
    """Run a way of sending.

    Args:
        policy: the way of sending.
        speeds: how the speed of each lane changes.
        service_ms: what a tuple takes at speed 1, in all lanes or in each.
        duration_ms: how long.
        load: tuples that arrive, relative to what all lanes can do at speed 1; they come evenly.
            A way that limits itself takes them from a source that keeps them; the others get them
            all.
        noise: how far the work in a tuple differs from the mean, as a part of it.
        seed: of the noise.
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
    """When work that begins at a moment is done."""
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
    """A lane that is slower for a while; factor 0 is a stall."""
    return (0.0, 1.0), (start_ms, factor), (end_ms, 1.0)


def flapping(factor: float, period_ms: float, duration_ms: float) -> Speed:
    """A lane that is slow in every second period."""
    moments = np.arange(0.0, duration_ms, period_ms)
    return [(float(at), factor if i % 2 else 1.0) for i, at in enumerate(moments)]
