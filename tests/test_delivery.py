"""What of the input counts after kills and power cuts, by the engine's delivery semantics."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

import eddyline as el
from delivery_child import RETIRE_EVERY
from eddyline.errors import EngineError, StateError
from eddyline.source.redo_log import RedoLog
from eddyline.spark.session import local_session
from eddyline.state.manifest import committed_epochs
from eddyline.state.recover import open_storage
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from processes import Child

HERE = Path(__file__).parent
RECORDS = 20


def feed(folder: Path, number: int) -> None:
    text = "".join(
        json.dumps({"k": "abcde"[i % 5], "n": number * RECORDS + i}) + "\n" for i in range(RECORDS)
    )
    (folder / f".{number}").write_text(text)
    (folder / f".{number}").rename(folder / f"{number:05d}.json")


def power_cut(storage: Path, chance: random.Random) -> int:
    """Cut off what was written since the last flush, in some files; how many."""
    epochs = committed_epochs(Files(str(storage)))
    flushed = max(e for e in epochs if e % RETIRE_EVERY == 0 or e == min(epochs))
    cut = 0
    for path in sorted([*storage.glob("epochs/*/*"), *storage.glob("manifests/*.json")]):
        number = re.search(r"/(\d{12})[-.]", str(path))
        if number and int(number[1]) > flushed and chance.random() < 0.3:
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])
            cut += 1
    return cut


@pytest.mark.guarantee(
    "stream of files, delivery `{delivery}`",
    "`{delivery}`",
    "the engine, {rounds} times by kill -9",
)
@pytest.mark.spark
@pytest.mark.parametrize(
    ("delivery", "rounds"),
    [
        pytest.param("exactly_once", 1, marks=pytest.mark.slow),
        pytest.param("at_least_once", 1, marks=pytest.mark.slow),
        pytest.param("at_most_once", 1, marks=pytest.mark.slow),
        pytest.param("exactly_once", 15, marks=pytest.mark.slow),
        pytest.param("at_least_once", 15, marks=pytest.mark.slow),
        pytest.param("at_most_once", 15, marks=pytest.mark.slow),
    ],
)
def test_the_sum_of_all_counts_after_kills(tmp_path: Path, delivery: str, rounds: int) -> None:
    """The number of records; under at-most-once never more."""
    chance = random.Random(rounds)
    incoming = tmp_path / "in"
    incoming.mkdir()
    command = [sys.executable, str(HERE / "delivery_child.py"), str(tmp_path), delivery]
    number, cut = 0, 0
    for _ in range(rounds):
        child = Child(command, tmp_path / "last")
        try:
            child.wait_for("ready")
            end = time.monotonic() + chance.uniform(2, 6)
            while time.monotonic() < end:
                feed(incoming, number)
                number += 1
                time.sleep(0.1)
            assert child.process.poll() is None, child.last_words()
        finally:
            child.kill()
        if delivery != "exactly_once":
            cut += power_cut(tmp_path / "storage", chance)
    child = Child(command, tmp_path / "last")
    try:
        child.wait_for("ready")
        feed(incoming, number)  # none of these can have been skipped
        number += 1
        child.say("end")
        total, equal = child.wait_for("total").split()
    finally:
        child.kill()
    print(f"{delivery}: {total} of {number * RECORDS} records counted, {cut} files cut off")
    assert equal == "True"
    if delivery == "at_most_once":
        assert 0 < int(total) <= number * RECORDS
    else:
        assert int(total) == number * RECORDS


@pytest.mark.spark
def test_at_most_once_skips_what_was_not_committed(tmp_path: Path) -> None:
    options = el.Options(delivery="at_most_once")
    storage = str(tmp_path / "storage")
    spark = local_session()
    engine = el.Engine(storage, spark, options)
    engine.table("t", "k STRING").insert([("counted",)])
    engine.view("v", "SELECT k FROM t")
    engine.advance()
    engine.table("t", "k STRING").insert([("lost",)])
    engine.stop()
    with el.Engine(storage, spark, options) as again:
        again.advance()
        again.table("t", "k STRING").insert([("next",)])
        again.advance()
        assert sorted(row.k for row in again.snapshot("v").collect()) == ["counted", "next"]
        assert again.verify().equal


def test_a_log_counts_on_behind_what_was_skipped(tmp_path: Path) -> None:
    log = RedoLog(Files(str(tmp_path)), "t1")
    for number in range(4):
        log.append(number, [])
    log.forget(2)
    log.skip(2)
    assert (log.start(), log.end()) == (2, 2)
    log.append(log.end(), [])
    assert log.end() == 3


@pytest.mark.spark
def test_flushed_epochs_outlive_a_power_cut_and_others_are_told_apart(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    options = el.Options(delivery="at_least_once")
    with el.Engine(str(storage), local_session(), options) as engine:
        table = engine.table("t", "n BIGINT")
        engine.view("v", "SELECT sum(n) AS n FROM t")
        table.insert([(1,)])
        first = engine.advance()
    damaged = storage / "manifests" / f"{first + 1:012d}.json"
    damaged.write_text("cut off")
    with pytest.raises(StateError):
        open_storage(Files(str(storage)), writable=False)
    with el.Engine(str(storage), local_session(), options) as engine:
        assert not damaged.exists()
        assert [row.n for row in engine.snapshot("v").collect()] == [1]
        table = engine.table("t", "n BIGINT")
        table.insert([(2,)])
        assert engine.advance() == first + 1
        assert [row.n for row in engine.snapshot("v").collect()] == [3]


@pytest.mark.spark
def test_an_earlier_epoch_that_a_power_cut_has_damaged_is_left_out(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    options = el.Options(delivery="at_least_once")
    with el.Engine(str(storage), local_session(), options) as engine:
        table = engine.table("t", "n BIGINT")
        engine.view("v", "SELECT sum(n) AS n FROM t")
        for number in range(4):
            table.insert([(number,)])
            engine.advance()
    first, second, _, last = committed_epochs(Files(str(storage)))[-4:]
    for epoch in (first, second):
        (storage / "manifests" / f"{epoch:012d}.json").write_text("cut off")
    with el.Engine(str(storage), local_session(), options) as engine:
        epochs = committed_epochs(Files(str(storage)))
        assert first not in epochs
        assert second not in epochs
        assert epochs[-1] == last
        assert [row.n for row in engine.snapshot("v").collect()] == [6]
        engine.table("t", "n BIGINT").insert([(7,)])
        engine.advance()
        assert [row.n for row in engine.snapshot("v").collect()] == [13]


def test_an_unknown_delivery_is_refused() -> None:
    with pytest.raises(EngineError, match="option delivery is 'twice'") as caught:
        el.Options(delivery="twice")
    assert "at_least_once" in (caught.value.hint or "")
    found = el.Options.from_environment({"EDDYLINE_DELIVERY": "at_most_once"})
    assert found.delivery == "at_most_once"


@pytest.mark.spark
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once", "at_most_once"])
def test_what_is_flushed_when(tmp_path: Path, delivery: str) -> None:
    files = FaultyFiles(str(tmp_path / "storage"))
    options = el.Options(delivery=delivery)
    with (
        patch("eddyline.api.epochs.RETIRE_EVERY", RETIRE_EVERY),
        el.Engine(files, local_session(), options) as engine,
    ):
        table = engine.table("t", "n BIGINT")
        engine.view("v", "SELECT sum(n) AS n FROM t")
        flushed: dict[int, set[str]] = {}
        for number in range(2 * RETIRE_EVERY):
            files.arm(0)
            table.insert([(number,)])
            epoch = engine.advance()
            synced = [effect.split()[1] for effect in files.effects() if effect.startswith("sync")]
            flushed[epoch] = {name.split("/")[0] for name in synced}
    state, log = {"epochs", "manifests"}, {"logs"}
    for epoch, found in flushed.items():
        everything = delivery == "exactly_once" or epoch % RETIRE_EVERY == 0
        assert found & state == (state if everything else set()), epoch
        assert (log <= found) == (delivery != "at_most_once"), epoch
