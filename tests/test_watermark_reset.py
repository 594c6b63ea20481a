"""A watermark is reset by command: rows are accepted again, and views have the state for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from eddyline import cli
from eddyline.errors import CatalogError, DataError, EddylineError, ScriptError
from eddyline.testing import Crash, replayed
from test_max_ahead import DELAY, FAR, MAX_AHEAD, NOW, VIEWS, Fed

pytestmark = pytest.mark.spark

MINUTE = timedelta(minutes=1)
STATE = {name: VIEWS[name] for name in ("counts", "pairs", "last")}


@pytest.fixture
def fed(tmp_path: Path, spark: SparkSession) -> Iterator[Fed]:
    fed = Fed(tmp_path, spark)
    yield fed
    fed.engine.stop()


def watermark(fed: Fed) -> str | None:
    (status,) = fed.engine.status()["sources"]
    found: str | None = status["watermark"]
    return found


def test_a_stream_that_a_row_of_2999_has_stopped_goes_on(fed: Fed) -> None:
    """In a storage of an older version, where no limit has kept the row out."""
    fed.without_limit()
    for name, query in VIEWS.items():
        fed.engine.view(name, query)
    fed.feed((NOW, "a", 1), (NOW - MINUTE, "b", 2))
    fed.feed((FAR, "a", 2))
    fed.feed((NOW + MINUTE, "a", 3))
    fed.engine.advance()
    assert watermark(fed) == (FAR - DELAY).isoformat()
    before = fed.engine.advance()
    assert fed.engine.reset_watermark("s") == list(VIEWS)
    fed.resets[3] = NOW - DELAY
    assert watermark(fed) == (NOW - DELAY).isoformat()
    # no row has changed: readers see nothing
    assert fed.engine.changes("counts", before, "retract").count() == 0
    fed.feed((NOW + MINUTE, "a", 4), (NOW - 11 * MINUTE, "b", 5), (NOW - 9 * MINUTE, "b", 6))
    fed.engine.advance()
    fed.check()
    accepted, late, _ = fed.judged()
    assert Counter(v for _, _, v in late) == {3: 1, 5: 1}  # what was late stays so
    assert {v for _, _, v in accepted} == {1, 2, 4, 6}
    # neither a view that reads the old row, nor an engine that opens the storage again, moves it
    fed.engine.view("after", VIEWS["counts"])
    fed.engine.pause("rows")
    fed.engine.resume("rows")
    fed.engine.stop()
    fed.open()
    fed.engine.advance()
    assert watermark(fed) == (NOW + MINUTE - DELAY).isoformat()
    fed.feed((NOW + 2 * MINUTE, "c", 7))
    fed.engine.advance()
    fed.check()
    assert fed.engine.verify(), str(fed.engine.verify())


def test_rows_of_closed_windows_meet_the_state_that_they_need(fed: Fed) -> None:
    for name, query in STATE.items():
        fed.engine.view(name, query)
    fed.engine.view("above", "SELECT k, sum(n) AS n FROM counts GROUP BY k")
    fed.engine.view("final", VIEWS["counts"] + " EMIT FINAL")
    fed.engine.view("frozen", VIEWS["counts"])
    for number in range(8):
        fed.feed(*((NOW + (6 * number - i) * MINUTE, "ab"[i % 2], i) for i in range(6)))
        fed.engine.advance()
    fed.engine.pause("frozen")
    assert fed.engine.snapshot("final").count() > 0
    back = NOW + 3 * MINUTE
    shown = back.strftime("%Y-%m-%d %H:%M:%S")
    fed.engine.execute(f"ALTER STREAM s RESET WATERMARK TO TIMESTAMP '{shown}'")
    fed.resets[8] = back
    fed.check(STATE)
    assert {row.w.end for row in fed.engine.snapshot("final").collect()} <= {
        (NOW + n * MINUTE).replace(tzinfo=None) for n in (-10, 0)
    }
    fed.feed(*((NOW + (3 + i) * MINUTE, "ab"[i % 2], 10 + i) for i in range(0, 40, 3)))
    fed.feed((NOW + 2 * MINUTE, "a", 99))
    fed.engine.advance()
    fed.check(STATE)
    accepted, _, _ = fed.judged()
    found = {row.k: row.n for row in fed.engine.snapshot("above").collect()}
    assert found == Counter(k for _, k, _ in accepted)
    fed.engine.resume("frozen")
    for name in ("counts", "frozen"):
        changes = fed.engine.changes(name, None, "retract")
        held = replayed([tuple(row) for row in changes.collect()])
        expected = [tuple(row) for row in fed.engine.snapshot("counts").collect()]
        assert sorted(map(repr, held)) == sorted(map(repr, expected))
    assert fed.engine.verify(), str(fed.engine.verify())


@pytest.mark.parametrize("seed", [5, *(pytest.param(s, marks=pytest.mark.slow) for s in (6, 7, 8))])
def test_live_equals_offline_through_resets_and_crashes(fed: Fed, seed: int) -> None:
    chance = random.Random(seed)
    for name, query in STATE.items():
        fed.engine.view(name, query)
    for _ in range(7):
        for _ in range(chance.choice([1, 2])):
            ages = [chance.choice([0, 60, 400, 599, 1500, 4000, -3000]) for _ in range(6)]
            fed.feed(
                *(
                    (fed.now - timedelta(seconds=age), chance.choice("abc"), chance.randrange(5))
                    for age in ages
                )
            )
        fed.engine.advance()
        fed.check(STATE)
        if chance.random() < 0.6:
            to = fed.now + chance.choice([-90, -30, -5, 10]) * MINUTE
            fed.files.arm(chance.randrange(1, 200), "crash")
            with suppress(Crash, EddylineError):
                fed.engine.reset_watermark("s", to)
            fed.files.arm(0)
            fed.engine._workspace.release()
            fed.open()
            if watermark(fed) != to.isoformat():  # all of it or nothing
                fed.check(STATE)
                fed.engine.reset_watermark("s", to)
            fed.resets[len(fed.fed)] = to
            fed.check(STATE)
        fed.now += chance.choice([1, 20]) * MINUTE
    assert fed.resets
    assert fed.engine.verify(), str(fed.engine.verify())


def test_what_is_refused(fed: Fed) -> None:
    fed.engine.view("t", "SELECT 1 AS n")
    for name in ("s__late", "t", "u"):
        with pytest.raises((CatalogError, DataError), match=r"no stream named|declares none"):
            fed.engine.reset_watermark(name)
    for to in ("a while ago", NOW + MAX_AHEAD + MINUTE):
        with pytest.raises(DataError, match=r"is no moment|more than max_ahead after now") as found:
            fed.engine.reset_watermark("s", to)
        assert found.value.condition == "BAD_WATERMARK"
    for text in (
        "ALTER STREAM s RESET WATERMARK TO",
        "ALTER STREAM s RESET WATERMARK TO TIMESTAMP 3",
        "ALTER STREAM s RESET WATERMARK now",
        "ALTER TABLE t RESET WATERMARK",
        "ALTER",
    ):
        with pytest.raises(ScriptError):
            fed.engine.execute(text)
    epoch = fed.engine.advance()
    assert fed.engine.reset_watermark("s") == []  # no row, no view
    assert watermark(fed) is None
    fed.engine.reset_watermark("s", "2026-01-01 10:00:00")
    assert watermark(fed) == "2026-01-01T10:00:00+00:00"
    assert fed.engine.advance() == epoch + 2


def test_the_command_with_and_without_a_running_engine(
    fed: Fed, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = fed.files.root
    fed.engine.view("counts", VIEWS["counts"])
    fed.feed((NOW + 30 * MINUTE, "a", 1))
    fed.engine.advance()
    fed.engine.start(0.05)
    to = ["--to", "2026-01-01 11:00:00"]
    assert cli.main(["watermark", "reset", "S", *to, "--storage", storage]) == 0
    assert capsys.readouterr().out == "s: watermark 2026-01-01T11:00:00+00:00\n"
    assert cli.main(["watermark", "reset", "s", "--to", "x", "--storage", storage]) == 1
    assert "is no moment" in capsys.readouterr().err
    fed.engine.stop()
    fed.resets[1] = NOW - 60 * MINUTE
    assert cli.main(["watermark", "reset", "s", "--storage", storage]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"s: watermark {(NOW + 20 * MINUTE).isoformat()}\n"
    assert "no engine runs" in shown.err
    assert cli.main(["status", "--storage", storage]) == 0
    assert "2026-01-01T12:20:00+00:00" in capsys.readouterr().out
    fed.open()
    fed.resets[1] = NOW + 20 * MINUTE
    fed.feed((NOW + 19 * MINUTE, "a", 2), (NOW + 21 * MINUTE, "a", 3))
    fed.engine.advance()
    fed.check(["counts"])
