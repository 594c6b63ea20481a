"""Wrong arguments of public calls: a clear error that names the argument, never a crash or silence."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import eddyline as el
from eddyline.api.cdc import ChangeFlows
from eddyline.api.observing import Monitored
from eddyline.api.queries import Queried
from eddyline.api.relations import Relations
from eddyline.arguments import check_choice, checked
from eddyline.errors import EddylineError, ViewFailingWarning
from eddyline.relay.acker import Acker, Ackers
from eddyline.relay.flow import FlowControl
from eddyline.spark.session import local_session
from eddyline.sql.forms import Delete, Update


class Thing:
    """An object of no known type, with the same name in every process."""

    def __repr__(self) -> str:
        return "Thing()"


WRONG: list[Any] = [
    None,
    -1,
    0,
    "",
    " ",
    [],
    {},
    (),
    1.5,
    float("nan"),
    Thing(),
    b"",
    True,
    "\0",
    [1.5],
    [None],
]

CLASSES = [
    el.Engine, el.Table, el.Stream, el.View, el.Pipeline,
    el.DataQueue, el.Producer, el.LogBackend, el.Options, FlowControl, Acker, Ackers,
]  # fmt: skip


def raises_clearly(call: Callable[[], object], argument: str) -> bool:
    """Whether a call is refused with an error of Eddyline, or a TypeError that names the argument."""
    refused: Exception | None = None
    try:
        call()
    except (EddylineError, TypeError) as error:
        refused = error
    if isinstance(refused, TypeError):
        assert argument in str(refused), refused
    return refused is not None


# --- without Spark ---


def test_every_hint_resolves() -> None:
    """A hint that can't be resolved would break the first call."""
    for cls in (*CLASSES, el.KafkaBackend):
        for name, function in vars(cls).items():
            if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
                inspect.signature(function)
                if hasattr(function, "__wrapped__"):
                    typing.get_type_hints(function.__wrapped__)


@pytest.mark.parametrize("value", [v for v in WRONG if v not in (0, True)], ids=repr)
@pytest.mark.parametrize(
    "setting",
    [
        "buckets",
        "scan_tasks",
        "retain_epochs",
        "compaction_fan_in",
        "delivery",
        "catalog",
        "otlp_endpoint",
    ],
)
def test_options(setting: str, value: object) -> None:
    if setting in ("catalog", "otlp_endpoint") and value == "":
        return  # means none
    assert raises_clearly(lambda: el.Options(**{setting: value}), setting)


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match="nope"):
        el.Options(nope=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "setting", ["ttl_ms", "retry_delay_ms", "together", "unread_rows_max", "clock"]
)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_queues(tmp_path: Path, setting: str, value: object) -> None:
    backend = el.LogBackend(tmp_path)
    right = [("retry_delay_ms", 0), ("together", True)]
    if any(setting == name and same(value, one) for name, one in right):
        return
    assert raises_clearly(lambda: el.DataQueue(backend, **{setting: value}), setting)
    assert backend.claim().number == 0
    backend.close()


def test_a_queue_needs_a_backend() -> None:
    for value in WRONG:
        assert raises_clearly(lambda value=value: el.DataQueue(value), "backend")
        assert raises_clearly(lambda value=value: el.Producer(value), "backend")


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_folders(value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert raises_clearly(lambda: el.LogBackend(value), "folder")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "records", ["text", b"bytes", {"a": 1}, {}, None, 5, Thing(), [1.5], [None], ["a", 5], "", bytearray(b"a")],
    ids=repr,
)  # fmt: skip
def test_records(tmp_path: Path, records: Any) -> None:
    queue = el.DataQueue(el.LogBackend(tmp_path))
    with pytest.raises(EddylineError, match="BAD_RECORDS"):
        queue.put(records)
    if records not in (None, [None]):
        with pytest.raises(EddylineError, match="BAD_RECORDS"):
            queue.put([b"a"], records)
    assert queue.read(10) is None
    assert queue.put([]) == 0
    assert queue.put(["a", "b"], ["k", None]) == 2
    queue.close()


def test_reports_of_records(tmp_path: Path) -> None:
    queue = el.DataQueue(el.LogBackend(tmp_path))
    queue.put([b"a", b"b"])
    batch, _ = queue.read(10) or (None, None)
    assert batch is not None
    for places in ([99], [-1], [2], [1.5], ["a"], [None], [0, 99], None, Thing()):
        for report in (queue.ack, queue.bury, lambda n, p: queue.fail(n, p, "why")):
            assert raises_clearly(lambda r=report, p=places: r(batch.number, p), "places"), places
    for number in (None, "1", 1.5, [], Thing()):
        assert raises_clearly(lambda n=number: queue.ack(n, [0]), "number")
    for rows_max in (None, 0, -1, 1.5, "1", []):
        assert raises_clearly(lambda m=rows_max: queue.read(m), "rows_max")
        assert raises_clearly(lambda m=rows_max: queue.plan(m), "rows_max")
    queue.ack(batch.number, np.array([0]))
    queue.ack(batch.number, [])
    queue.ack(batch.number, [1])
    assert queue.commit() == 1
    queue.close()


def test_an_app_that_kafka_can_not_name() -> None:
    """librdkafka aborts the process for an empty id of transactions."""
    pytest.importorskip("confluent_kafka")
    for app in ("", " ", "a b", "a/b", "x" * 250, None, 5):
        assert raises_clearly(lambda app=app: el.KafkaBackend("127.0.0.1:1", app), "app")
    for servers in ("", " ", None, 5, []):
        assert raises_clearly(lambda servers=servers: el.KafkaBackend(servers, "app"), "servers")
    for setting in ("partitions", "replication", "settings"):
        for value in (0, -1, 1.5, "", [], Thing()):
            wrong = {setting: value}
            assert raises_clearly(lambda w=wrong: el.KafkaBackend("127.0.0.1:1", "a", **w), setting)


def test_flow_control() -> None:
    good: dict[str, Any] = {"lanes": 2, "slow_ms": 50, "ttl_ms": 1000, "window_max": 8, "window": 1}
    for setting in good:
        for value in (None, -1, "", [], {}, Thing(), float("nan")):
            call = lambda s=setting, v=value: FlowControl(**{**good, s: v})  # noqa: E731
            assert raises_clearly(call, setting)
    assert raises_clearly(lambda: FlowControl(0, slow_ms=1, ttl_ms=1), "lanes")
    assert raises_clearly(
        lambda: FlowControl(1, slow_ms=1, ttl_ms=1, window=9, window_max=8), "window"
    )


@pytest.mark.parametrize("ids", [[1.5], ["a"], [None], 1.5, None, Thing(), [True]], ids=repr)
def test_ackers(ids: Any) -> None:
    for acker in (Acker(), Ackers(2)):
        assert raises_clearly(lambda a=acker: a.fold(ack=(ids, ids)), "")
        assert raises_clearly(lambda a=acker: a.fold(init=([1], [1], ids)), "")
    assert raises_clearly(lambda: Acker().ack(ids, [1]), "")
    assert raises_clearly(lambda: Acker().init([1], ids, [1]), "")
    with pytest.raises(TypeError, match="roots"):
        Acker().ack([1.5], [2])
    with pytest.raises(ValueError, match="different lengths"):
        Acker().ack([1, 2], [3])
    assert raises_clearly(lambda: Ackers(0), "count")


def test_the_decorator() -> None:
    @checked
    class Thing:
        def __init__(self, size: int = 1) -> None:
            self.size = size

        def call(self, names: typing.Sequence[str], by: dict[str, int] | None = None) -> int:
            return len(names)

    assert Thing(np.int64(3)).call(["a"], {"a": 1}) == 1  # type: ignore[arg-type]
    for call in (
        lambda: Thing("1"),  # type: ignore[arg-type]
        lambda: Thing(True),
        lambda: Thing().call([1]),  # type: ignore[list-item]
        lambda: Thing().call(["a"], {"a": "b"}),  # type: ignore[dict-item]
    ):
        with pytest.raises(EddylineError, match="BAD_OPTION"):
            call()
    with pytest.raises(TypeError, match="names"):
        Thing().call()  # type: ignore[call-arg]
    with pytest.raises(EddylineError, match="choose of a, b"):
        check_choice("which", ["c"], ("a", "b"))


# --- the engine: each method, each parameter, each wrong value ---


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Engine]:
    root = tmp_path_factory.mktemp("arguments")
    with el.Engine(root / "storage", local_session()) as engine:
        table = engine.table("t", "a INT, b STRING", primary_key=["a"])
        table.insert([(1, "x")])
        engine.view("v", "SELECT a, count(*) AS n FROM t GROUP BY a")
        (root / "in").mkdir()
        engine.create_stream(
            "s", "a INT", "json", {"path": str(root / "in"), "mode": "DROPMALFORMED"}
        )
        queue = el.DataQueue(el.LogBackend(root / "queue"))
        engine.pipeline("p", queue).bolt(lambda record: None).into()
        engine.advance()
        yield engine
        queue.close()


def valid(engine: el.Engine, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """For each method arguments of which one at a time is replaced by a wrong one."""
    rate = engine.spark.readStream.format("rate").load()
    rows = [(1, "x")]
    engine.stream("timed", rate, watermark=("timestamp", "1 minute"))
    return {
        "table": {"name": "new", "schema": "a INT", "primary_key": ["a"]},
        "stream": {
            "name": "new", "dataframe": rate, "op": None, "primary_key": (), "watermark": None, "options": None,
        },
        "reset_watermark": {"name": "timed", "to": None},
        "create_stream": {
            "name": "new", "schema": "a INT", "format": "json", "options": {"path": str(tmp_path)},
            "op": None, "primary_key": (), "watermark": None,
        },
        "pipeline": {"name": "q", "source": None, "lanes": 1, "tuple_rows": 1, "slow": 1.0, "acks": True, "ackers": 1},
        "relation": {"name": "v"},
        "view": {"name": "new", "query": "SELECT 1 AS one", "replace": False},
        "auto_cdc": {
            "target": "new", "source": "t", "keys": ["a"], "sequence_by": "b", "apply_as_deletes": None,
            "apply_as_truncates": None, "column_list": None, "except_column_list": None, "stored_as_scd_type": 1,
        },
        "drop": {"kind": "view", "name": "missing", "if_exists": True},
        "pause": {"name": "v"},
        "resume": {"name": "v"},
        "rebucket": {"buckets": engine.status()["buckets"]},
        "show": {"kind": "view"},
        "start": {"interval": 1.0},
        "await_termination": {"timeout": 0.0},
        "on_progress": {"callback": print},
        "on_error": {"callback": print},
        "execute": {"script": "SELECT 1"},
        "sql": {"query": "SELECT 1", "args": None, "confined": False},
        "snapshot": {"name": "v", "epoch": None},
        "sink": {"name": "k", "view": "v", "format": "csv"},
        "explain": {"name_or_query": "v", "stage": "dag"},
        "lineage": {"view": "v"},
        "verify": {"view": "v"},
        "changes": {"view": "v", "after": None, "form": "retract"},
        "write": {"table": "t", "operations": [("append", rows)]},
        "dead_letters": {"name": "p"},
        "remove_dead_letters": {"name": "p", "where": None, "replay": False},
    }  # fmt: skip


# what may be given although it looks wrong: method, parameter, values
ALLOWED: dict[tuple[str, str], list[Any]] = {
    ("sql", "args"): [None, [], {}, [1.5], [None]],  # more values than parameters, as in Spark
    ("sql", "confined"): [True],
    ("table", "primary_key"): [[], (), ""],
    ("stream", "op"): [None],
    ("stream", "primary_key"): [[], (), ""],
    ("stream", "watermark"): [None],
    ("stream", "options"): [None, {}],
    ("reset_watermark", "to"): [None],
    ("create_stream", "op"): [None, "\0"],
    ("create_stream", "primary_key"): [[], ()],
    ("create_stream", "watermark"): [None],
    ("pipeline", "lanes"): [0],
    ("pipeline", "acks"): [True],
    ("view", "replace"): [True],
    ("auto_cdc", "apply_as_deletes"): [None],
    ("auto_cdc", "apply_as_truncates"): [None],
    ("auto_cdc", "column_list"): [None],
    ("auto_cdc", "except_column_list"): [None, [], ()],
    ("drop", "name"): ["", " ", "\0"],  # if_exists: nothing has these names
    ("drop", "if_exists"): [True],
    ("start", "interval"): [None, 0, 1.5],
    ("await_termination", "timeout"): [None, 0, 1.5],
    ("execute", "script"): ["", " "],  # a script without statements
    ("snapshot", "epoch"): [None, 0],
    ("verify", "view"): [None],
    ("changes", "after"): [None, 0],
    ("write", "operations"): [[], ()],
    ("remove_dead_letters", "where"): [None],
    ("remove_dead_letters", "replay"): [True],
}


def same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_engine_methods(engine: el.Engine, tmp_path: Path) -> None:
    names = {
        name
        for part in (ChangeFlows, Monitored, Queried, Relations, el.Engine)
        for name, function in vars(part).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }
    parameters = {
        name: [
            parameter.name
            for parameter in inspect.signature(getattr(el.Engine, name)).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "self"
        ]
        for name in names
    }
    calls = valid(engine, tmp_path)
    assert {name for name, found in parameters.items() if found} == set(calls)
    silent = []
    for name, arguments in calls.items():
        assert list(arguments) == parameters[name]
        for parameter in arguments:
            for value in WRONG:
                if any(same(value, fine) for fine in ALLOWED.get((name, parameter), ())):
                    continue
                given = {**arguments, parameter: value}
                method = getattr(engine, name)
                if not raises_clearly(lambda m=method, g=given: m(**g), parameter):
                    silent.append((name, parameter, value))
    assert silent == [], str(silent)


@pytest.mark.spark
def test_texts_that_are_no_unicode_are_refused(engine: el.Engine) -> None:
    given = "SELECT 1 AS \ud800"
    calls = (engine.sql, engine.execute, engine.explain, lambda text: engine.view("new", text))
    for call in calls:
        with pytest.raises(EddylineError, match="half of a surrogate pair") as error:
            call(given)
        assert error.value.condition == "BAD_OPTION"


@pytest.mark.spark
def test_dml_without_a_condition_or_an_assignment(engine: el.Engine) -> None:
    for call in (
        lambda: engine.writing.delete(Delete("t", " ")),
        lambda: engine.writing.update(Update("t", (("b", "'y'"),), "")),
        lambda: engine.writing.update(Update("t", ())),
        lambda: engine.remove_dead_letters("p", "", replay=False),
    ):
        with pytest.raises(EddylineError, match="BAD_OPTION"):
            call()
    engine.advance()
    assert engine.snapshot("t").count() == 1


@pytest.mark.spark
def test_handles(engine: el.Engine) -> None:
    table, view = (
        engine.table("t", "a INT, b STRING", primary_key=["a"]),
        engine.view("v", "SELECT a, count(*) AS n FROM t GROUP BY a"),
    )
    silent = []
    empty = ([], (), {}, "", b"")  # no rows
    for method in (table.insert, table.delete, table.upsert):
        silent += [
            (method.__name__, v) for v in WRONG
            if v not in empty and not raises_clearly(lambda m=method, v=v: m(v), "rows")
        ]  # fmt: skip
        silent += [
            (method.__name__, v) for v in ("", b"", {}, "x")
            if not raises_clearly(lambda m=method, v=v: m(v), "rows")
        ]  # fmt: skip
    for method in (table.snapshot, view.snapshot):
        silent += [
            (method.__name__, v) for v in WRONG
            if v is not None and not same(v, 0) and not raises_clearly(lambda m=method, v=v: m(v), "epoch")
        ]  # fmt: skip
    queue = el.DataQueue(el.LogBackend(engine.files.path("../other")))
    pipeline = engine.pipeline("other", queue)
    good: dict[str, Any] = {"function": print}
    settings = ["function", "name", "vectorised", "by_key", "once", "order", "ttl", "max_attempts"]
    for setting in (*settings, "retry_delay", "concurrency"):
        for value in WRONG:
            fine = (setting in ("vectorised", "by_key", "once") and value is True) or (
                (setting in ("ttl", "retry_delay") and same(value, 1.5))
                or (setting == "retry_delay" and same(value, 0))
                or (setting == "name" and value is None)
            )
            if not fine and not raises_clearly(
                lambda s=setting, v=value: pipeline.bolt(**{**good, s: v}), setting
            ):
                silent.append((setting, value))
    started = pipeline.bolt(print)
    for value in WRONG:
        for given in ({"target": value, "schema": "a INT"}, {"target": "x", "schema": value}):
            if not raises_clearly(lambda g=given: started.into(**g), "target"):
                silent.append(given)
    queue.close()
    assert silent == [], str(silent)


@pytest.mark.spark
def test_schemas_and_paths(engine: el.Engine, tmp_path: Path) -> None:
    for schema in (
        "nonsense",
        "a",
        "INT",
        "a NOTHING",
        "(",
        "a INT,",
        "a INT, a INT",
        "a INT, A STRING",
    ):
        assert raises_clearly(lambda s=schema: engine.table("bad", s), "schema"), schema
        call = partial(engine.create_stream, "bad", schema, "json", {"path": str(tmp_path)})
        assert raises_clearly(call, "schema")
    for source, path in product(("json", "parquet", "csv"), (str(tmp_path / "missing"), "", " ")):
        options = {"path": path}
        call = partial(engine.create_stream, "bad", "value STRING", source, options)
        assert raises_clearly(call, "path"), (source, path)
    assert [e.name for e in engine.catalog.entries if e.name.startswith("bad")] == []


@pytest.mark.spark
def test_storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        assert raises_clearly(lambda v=value: el.Engine(v, spark), "storage")
        if value is not None:
            assert raises_clearly(lambda v=value: el.Engine("x", v), "spark")
            assert raises_clearly(lambda v=value: el.Engine("x", spark, v), "options")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_warnings_point_at_the_caller(engine: el.Engine) -> None:
    """The check of arguments is one frame more between the engine and its user."""
    with pytest.warns(el.StateGrowthWarning) as grows:
        engine.view("grows", "SELECT a, percentile(a, 0.5) AS p FROM s GROUP BY a")
    with pytest.warns(ViewFailingWarning) as fails:
        engine.view("fails", "SELECT raise_error(b) AS e FROM t")
    assert {warning.filename for warning in (*grows, *fails)} == {__file__}
    for name in ("grows", "fails"):
        engine.drop("view", name)
