"""Settings of the whole test run, made before any JVM starts."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from lanes import drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker import Broker
    from console_browser import Browser

# A test's JVM lives for minutes: on two cores the optimising compiler costs more than it gives.
# Without it the JVM would reserve 48 MB for code, which the classes of many queries fill.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=512m"
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS", f"--driver-java-options '{JAVA_OPTIONS}' pyspark-shell"
)
# Spark takes the first python3 on the path otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# How long an example takes says something of the machine only.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from the tests, a million objects that stay: it took a third of the time to collect them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # only the tests that run count
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests an hour, where they don't say how much they need; begin with the files of most work.

    Of parallel runs none is then busy with a long file when the others have ended.
    """
    work: Counter[Path] = Counter()
    for item in items:
        kills, on_spark = map(item.get_closest_marker, ("guarantee", "spark"))
        work[item.path] += 50 if kills else 5 if on_spark else 1
    items.sort(key=lambda item: -work[item.path])
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running Kafka broker."""
    from broker import Broker

    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A running Chromium."""
    from console_browser import launched

    with launched() as running:
        yield running


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """A Browser; the test fails if a page complains of anything."""
    from console_browser import Browser

    browser = Browser(chromium)
    yield browser
    assert browser.complaints == []


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """The session that modules without settings of their own share."""
    from eddyline.spark.session import local_session

    return local_session()


@pytest.fixture(autouse=True, scope="module")
def first_session_is_active() -> Iterator[None]:
    """Let each module begin with the first session of the process as the active one.

    A test of another time zone or of other settings may have left its own session active. It must not
    have changed the first one, which the modules after it share.
    """
    if first := first_session():
        sys.modules["pyspark.sql.session"].SparkSession._activeSession = first
        first._jvm.SparkSession.setActiveSession(first._jsparkSession)
    yield
    if first := first_session():
        zone = first.conf.get("spark.sql.session.timeZone")
        assert zone == "UTC", f"this module leaves the first session of the process in {zone}"


def first_session() -> Any:
    """Return the first session of this process that still runs; None if there is none."""
    sessions = sys.modules.get("pyspark.sql.session")
    first = sessions and sessions.SparkSession._instantiatedSession
    return first if first and first._sc._jsc is not None else None


@pytest.fixture
def own_sigterm() -> Iterator[None]:
    """Let a command set a handler of SIGTERM until the test ends."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(autouse=True)
def lane_at_random(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each epoch of each view run in the driver or as a Spark job, by a seed from the test's name.

    In the driver, inputs are evaluated whole or in parts, by generated code or interpreted, and go through operators whole or in
    slices. Small results are read in the driver or by workers.
    """
    if request.node.get_closest_marker("spark") is None:
        return
    from eddyline.runtime.lane_choice import Lanes

    monkeypatch.setattr(Lanes, "choose", drawn(request.node.nodeid))
    die = random.Random(request.node.nodeid)
    monkeypatch.setattr("eddyline.runtime.short_lane.PART_ROWS", die.choice((2, 10_000)))
    monkeypatch.setattr("eddyline.runtime.kernel.CACHED_BYTES", die.choice((1 << 10, 4 << 20)))
    monkeypatch.setattr("eddyline.answers.reader.HELD_ROWS", die.choice((-1, 10_000)))
    monkeypatch.setattr("eddyline.spark.driver.INTERPRETED_ROWS_MAX", die.choice((-1, 50, 2000)))


@pytest.fixture
def be_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """What puts this process into a time zone, until the end of the test."""

    def be_in(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield be_in
    monkeypatch.undo()
    time.tzset()
