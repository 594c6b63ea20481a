"""`eddyline cdc`: PostgreSQL through views into three targets, with everything killed meanwhile."""

from __future__ import annotations

import json

import pytest

import postgres
from broker import JARS, Broker
from eddyline.cli import main
from eddyline.cli.output import Output
from eddyline_apps import cdc, shop
from eddyline_apps.processes import listens
from waiting import PATIENCE_S, until


class Found:
    """Targets that hold given rows."""

    def __init__(self, doubled=0):
        self.all = {"a": cdc.Target("A", frozenset), "b": cdc.Target("B", frozenset)}
        self.doubled = doubled


class Committed:
    committed = 7


@pytest.mark.parametrize(
    ("found", "doubled", "equal"),
    [
        ({"a": {(1, 2)}, "b": set()}, 0, True),
        ({"a": {(1, 3)}, "b": set()}, 0, False),
        ({"a": {(1, 2)}, "b": {(5,)}}, 0, False),
        ({"a": set(), "b": set()}, 0, False),
        ({"a": {(1, 2)}, "b": set()}, 1, False),
        ({"a": cdc._distinct([(1, 2), (1, 2)]), "b": set()}, 0, False),
    ],
)
def test_a_target_that_differs_is_reported(found, doubled, equal, capsys):
    expected = {"a": frozenset({(1, 2)}), "b": frozenset()}
    held = {view: frozenset(rows) for view, rows in found.items()}
    assert cdc.report(expected, held, Found(doubled), Committed(), {"Kafka": 2}) is equal
    printed = capsys.readouterr().out
    assert "Kafka 2 times" in printed
    assert printed.count("yes") == 2 - sum(held[view] != expected[view] for view in held)


def test_programs_get_the_comparison_as_events(capsys):
    held = {"a": frozenset({(1, 2), (3, 4)}), "b": frozenset({(5,)})}
    expected = {"a": frozenset({(1, 2), (6, 7), (8, 9)}), "b": frozenset({(5,)})}
    killed = {"the engine": 2, "Kafka": 0}
    out = Output("json")
    assert not cdc.report(expected, held, Found(1), Committed(), killed, out)
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [
        {"event": "trade", "transactions": 7, "killed": {"engine": 2, "Kafka": 0}},
        {"event": "target", "view": "a", "target": "A", "rows": 3, "missing": 2, "foreign": 1, "equal": False},
        {"event": "target", "view": "b", "target": "B", "rows": 1, "missing": 0, "foreign": 0, "equal": True},
        {"event": "result", "equal": False, "doubled": 1},
    ]  # fmt: skip


def test_a_folder_in_use_and_missing_jars_are_refused(tmp_path, capsys):
    (tmp_path / "note").touch()
    assert main(["cdc", "--keep", str(tmp_path)]) == 2
    assert "STORAGE_NOT_EMPTY" in capsys.readouterr().err
    assert (tmp_path / "note").exists()
    with postgres.server():  # skips where there is none
        pass
    assert main(["cdc", "--kafka-jars", str(tmp_path)]) == 2
    assert "NO_KAFKA" in capsys.readouterr().err


def test_transactions_go_on_when_the_server_comes_back(tmp_path):
    with postgres.server() as server:
        shop.create_tables(server.url, seed=1)
        with shop.Trade(server.url, 600, rate=600, seed=2) as trade:
            until(lambda: trade.committed >= 200)
            server.kill()
            assert not listens(server.port)
            server.start()
            trade._thread.join(PATIENCE_S)
            assert trade.ended
            assert trade.failure is None
            assert trade.committed == 600
        answers = cdc.truth(server.url)
        assert len(answers["order_totals"]) > shop.ORDERS
        assert len(answers["best_countries"]) == 5


@pytest.mark.guarantee(
    "`postgres` to `delta`, `kafka` and `postgres`, by `eddyline cdc`",
    "exactly once",
    "the engine, PostgreSQL and Kafka, each twice by kill -9",
)
@pytest.mark.slow
@pytest.mark.kafka
def test_targets_equal_the_tables_after_kills(tmp_path, capsys):
    with postgres.server():
        pass
    (tmp_path / "probe").mkdir()
    Broker(tmp_path / "probe")  # fetches the jars, or skips
    arguments = ["--kills", "2", "--transactions", "3000", "--kafka-jars", str(JARS)]
    assert main(["cdc", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "killed: the engine 2 times, PostgreSQL 2 times, Kafka 2 times" in printed
    assert "NO" not in printed.split("In the targets:")[1]
