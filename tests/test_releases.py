"""Objects of the JVM that Python drops are forgotten there, too, by few calls."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import GATEWAY_SERVER_OBJECT_ID, Py4JNetworkError
from pyspark.sql import SparkSession

from eddyline.spark import plan_trees as trees
from eddyline.spark.releases import PAUSE_S, Releases
from eddyline.spark.scala import scala_of
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.spark

MANY = 500


@pytest.fixture
def held(spark: SparkSession) -> Callable[[], int]:
    """The number of objects that the JVM holds for Python."""
    _ = scala_of(spark).trees  # from now on
    gateway: Any = spark.sparkContext._gateway
    bindings = gateway.java_gateway_server.getGateway().getBindings()
    return lambda: int(bindings.size())


def settled(held: Callable[[], int]) -> int:
    """Return the number of objects once no more of those that were dropped are being forgotten."""
    found = held()
    while True:
        time.sleep(5 * PAUSE_S)
        last, found = found, held()
        if found == last:
            return found


def test_dropped_objects_are_forgotten_and_kept_ones_are_not(
    spark: SparkSession, held: Callable[[], int]
) -> None:
    gc.collect()
    scala = scala_of(spark)
    before = settled(held)  # other tests have dropped objects, too
    kept = [scala.new("java.util.ArrayList") for _ in range(3)]
    dropped = [scala.new("java.util.ArrayList") for _ in range(MANY)]
    assert held() >= before + MANY
    del dropped
    gc.collect()
    until(lambda: held() < before + MANY // 10)
    assert [one.size() for one in kept] == [0, 0, 0]


def test_many_objects_are_forgotten_by_few_calls(
    spark: SparkSession, held: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = spark.sparkContext._gateway._gateway_client
    calls = []
    send = client.send_command

    def counted(command: str, *more: Any, **others: Any) -> Any:
        calls.append(command)
        return send(command, *more, **others)

    plan = spark.range(1).selectExpr(*(f"id + {n} AS c{n}" for n in range(MANY)))
    analyzed: Any = plan._jdf.queryExecution().analyzed()
    described = trees.children(analyzed) + trees.elements(analyzed.expressions())
    assert len(described) > MANY
    full = held()
    monkeypatch.setattr(client, "send_command", counted)
    del described, analyzed
    gc.collect()
    until(lambda: held() < full - MANY)
    asked = [command for command in calls if "size" not in command]
    assert len(asked) < MANY / 10


def test_the_server_is_found_again_after_python_has_dropped_it(
    spark: SparkSession, held: Callable[[], int]
) -> None:
    client: Any = spark.sparkContext._gateway._gateway_client
    server = JavaObject(GATEWAY_SERVER_OBJECT_ID, client)
    dropped = scala_of(spark).new("java.util.ArrayList")
    before = held()
    del server, dropped
    gc.collect()
    until(lambda: held() < before)
    assert JavaObject(GATEWAY_SERVER_OBJECT_ID, client).getGateway().getBindings().size() > 0


def test_a_call_that_fails_does_not_end_the_release_of_later_objects() -> None:
    class Client:
        def __init__(self) -> None:
            self.finalizer_deque = deque[Any]()

    class Trees:
        def __init__(self) -> None:
            self.released = list[str]()

        def release(self, ids: str) -> None:
            self.released.append(ids)
            if len(self.released) == 1:
                raise Py4JNetworkError("out of memory")

    client, trees = Client(), Trees()
    thread = Releases(client, trees)
    thread.start()
    client.finalizer_deque.appendleft((None, "o1"))
    until(lambda: trees.released == ["o1"])
    client.finalizer_deque.appendleft((None, "o2"))
    until(lambda: trees.released == ["o1", "o2"])
    client.finalizer_deque.appendleft(None)  # the client ends
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
