"""Dead letters are decided on once: replays, drops, crashes and requests in random orders."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from eddyline import Engine
from eddyline.answers.dead_letters import list_letters, request_action, request_mended
from eddyline.api.pipeline import Pipeline
from eddyline.cli.opening import open_catalog
from eddyline.errors import CatalogError, EddylineError, QueueError
from eddyline.options import Options
from eddyline.relay.account import Account
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.testing import FaultyFiles

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests


class Shop:
    """An engine, a pipeline whose bolt fails until the file `fixed` exists, and a view."""

    def __init__(self, root: Path, spark: SparkSession, options: Options | None = None) -> None:
        self.root, self.spark, self.options = root, spark, options
        self.storage = FaultyFiles(str(root / "storage"))
        self.folder = FaultyFiles(str(root / "queue"))
        self.open()

    def open(self) -> None:
        fixed = self.root / "fixed"

        def parse(record: dict[str, Any]) -> dict[str, int]:
            word = record["payload"].decode()
            if word.startswith("bad") and not fixed.exists():
                raise ValueError(word)
            return {"n": int(word.removeprefix("bad"))}

        self.engine = Engine(self.storage, self.spark, self.options)
        self.queue = DataQueue(LogBackend(self.folder))
        made = self.engine.pipeline("p", self.queue, lanes=1).bolt(
            parse, max_attempts=1, retry_delay=0.0
        )
        self.pipeline: Pipeline = made.into("s", "n BIGINT")
        self.engine.view("v", "SELECT n, count(*) AS c FROM s GROUP BY n")

    def close(self) -> None:
        for files in (self.storage, self.folder):
            files.arm(0)
        self.engine.stop()
        self.queue.close()

    def fix(self, *, fixed: bool) -> None:
        path = self.root / "fixed"
        path.touch() if fixed else path.unlink(missing_ok=True)

    def counted(self) -> Counter[int]:
        return Counter({row.n: row.c for row in self.engine.snapshot("v").collect()})

    def letters(self) -> list[str]:
        return sorted(bytes(row.payload).decode() for row in self.pipeline.dead_letters().collect())

    def request(self, action: str) -> None:
        """Ask as another process does."""
        with open_catalog(self.storage.root) as store:
            request_action(store, action, "p", ())


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    opened = Shop(tmp_path, spark)
    yield opened
    opened.close()


@pytest.mark.spark
def test_a_letter_is_replayed_once(shop: Shop) -> None:
    shop.queue.put(["1", "bad2", "bad3"])
    shop.engine.advance()
    assert shop.letters() == ["bad2", "bad3"]
    shop.fix(fixed=True)
    assert shop.pipeline.replay("CAST(payload AS STRING) = 'bad2'") == 1
    assert shop.letters() == ["bad3"]  # what is decided waits no more
    assert (shop.pipeline.replay(), shop.pipeline.replay(), shop.pipeline.discard()) == (1, 0, 0)
    assert shop.pipeline.account() == Account(3, 1, 0, 2, 0)
    shop.engine.advance()
    assert shop.counted() == {1: 1, 2: 1, 3: 1}
    assert shop.pipeline.account() == Account(3, 3, 0, 0, 0)
    assert shop.engine.verify()


@pytest.mark.spark
def test_a_dropped_letter_stays_dropped(shop: Shop) -> None:
    shop.queue.put(["bad1"])
    shop.engine.advance()
    shop.fix(fixed=True)
    assert (shop.pipeline.discard(), shop.pipeline.discard(), shop.pipeline.replay()) == (1, 0, 0)
    assert shop.pipeline.account() == Account(1, 1, 0, 0, 0)
    shop.engine.advance()
    assert shop.counted() == {}
    assert shop.letters() == []


@pytest.mark.spark
def test_requests_of_other_processes_are_carried_out_once(shop: Shop) -> None:
    shop.queue.put(["bad1", "bad2"])
    shop.engine.advance()
    shop.fix(fixed=True)
    store = shop.engine._workspace.store
    positions = sorted(letter.position for letter in list_letters(store, "p"))
    for action in ("replay", "replay", "drop"):
        shop.request(action)
    late = request_action(store, "drop", "p", positions)
    with pytest.raises(CatalogError, match=r"no dead letter of p where position IN \(99\)"):
        request_action(store, "replay", "p", (99,))
    shop.engine.advance()
    shop.engine.advance()
    assert shop.counted() == {1: 1, 2: 1}
    answer = store.request(late)
    assert answer.state == "refused"
    assert f"position IN ({positions[0]}, {positions[1]})" in answer.message
    assert shop.pipeline.account() == Account(2, 2, 0, 0, 0)


@pytest.mark.spark
def test_a_mended_letter_is_read_once_with_its_new_payload(shop: Shop) -> None:
    shop.queue.put(["bad1", "bad2"])
    shop.engine.advance()
    with open_catalog(shop.storage.root) as store:
        (chosen,) = [one for one in list_letters(store, "p") if one.payload == b"bad2"]
        numbers = [request_mended(store, "p", chosen.position, b"5") for _ in range(2)]
        with pytest.raises(CatalogError, match="NOT_FOUND"):
            request_mended(store, "p", chosen.position + 9, b"5")
    shop.engine.advance()
    shop.engine.advance()
    assert shop.counted() == {5: 1}
    assert shop.letters() == ["bad1"]
    assert shop.pipeline.account() == Account(2, 1, 1, 0, 0)
    with open_catalog(shop.storage.root) as store:
        answers = [store.request(number) for number in numbers]
    assert [one.state for one in answers] == ["done", "refused"]
    assert "no dead letter" in answers[1].message
    assert shop.engine.verify()


@pytest.mark.spark
def test_a_letter_that_dies_again_can_be_decided_on_again(shop: Shop) -> None:
    shop.queue.put(["bad1"])
    shop.engine.advance()
    assert shop.pipeline.replay() == 1
    shop.engine.advance()
    assert shop.pipeline.account() == Account(1, 0, 1, 0, 0)
    assert shop.letters() == ["bad1"]
    shop.fix(fixed=True)
    assert (shop.pipeline.replay(), shop.pipeline.replay()) == (1, 0)
    shop.engine.advance()
    assert shop.counted() == {1: 1}


@pytest.mark.spark
@pytest.mark.parametrize("what", ["storage", "folder"])
def test_a_decision_that_fails_half_way_counts_once(shop: Shop, what: str) -> None:
    """At each effect on the disk: the decision is carried out, or it isn't, and never twice."""
    shop.fix(fixed=False)
    number = effects = 0
    while effects <= number:
        effects += 1
        number += 1
        shop.fix(fixed=False)
        shop.queue.put([f"bad{number}"])
        shop.engine.advance()
        shop.fix(fixed=True)
        files = getattr(shop, what)
        files.arm(number, "fail")
        with suppress(EddylineError):
            shop.pipeline.replay()
        hit = files.hit()
        files.arm(0)
        shop.pipeline.replay()
        shop.engine.advance()
        assert shop.counted() == dict.fromkeys(range(1, number + 1), 1)
        assert shop.pipeline.account() == Account(number, number, 0, 0, 0)
        if not hit:
            break
    assert number > 3
    assert shop.engine.verify()


@pytest.mark.spark
def test_a_decision_outlives_a_restart_that_skips_input(
    tmp_path: Path, spark: SparkSession
) -> None:
    shop = Shop(tmp_path, spark, Options(delivery="at_most_once"))
    shop.queue.put(["bad1", "bad2"])
    shop.engine.advance()
    shop.fix(fixed=True)
    assert shop.pipeline.replay("position = 0") == 1
    shop.close()
    shop.open()
    assert shop.letters() == ["bad2"]
    assert shop.pipeline.discard() == 1
    shop.engine.advance()
    assert shop.pipeline.account() == Account(2, 2, 0, 0, 0)
    assert shop.counted() == {1: 1}
    shop.close()


@pytest.mark.spark
def test_dead_letters_are_kept_within_limits(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.api.run_loop.RETIRE_EVERY_S", 0.0)
    shop = Shop(tmp_path, spark, Options(dead_letter_rows=3, dead_letter_days=10))
    shop.queue.put([f"bad{n}" for n in range(5)])
    shop.engine.advance()
    assert shop.letters() == ["bad2", "bad3", "bad4"]  # the newest
    assert shop.pipeline.account() == Account(5, 2, 3, 0, 0)
    assert shop.engine.verify()
    streams = shop.engine.streams
    now = time.time()
    assert streams.retire_dead_letters(now + 9 * 86_400) == 0
    assert streams.retire_dead_letters(now + 11 * 86_400) == 3
    shop.engine.advance()
    assert shop.letters() == []
    assert shop.pipeline.account() == Account(5, 5, 0, 0, 0)
    shop.close()


@pytest.mark.spark
def test_verify_compares_accounts(shop: Shop) -> None:
    shop.queue.put(["1", "bad2"])
    shop.engine.advance()
    report = shop.engine.verify()
    assert report
    assert report.pipelines["p"].account == Account(2, 1, 1, 0, 0)
    assert report.pipelines["p"].letters == 1
    assert "dead letters" in str(report)
    state = shop.queue._state
    shop.queue._state = type(state)(**{**state.as_dict(), "dead": 0, "done": 2})
    wrong = shop.engine.verify()
    assert not wrong
    assert "NO" in str(wrong).splitlines()[-1]
    shop.queue._state = state


def test_an_account_that_does_not_add_up_is_refused() -> None:
    """A removal of more letters than there are must not reach the disk."""
    queue = DataQueue(LogBackend(tempfile.mkdtemp()))
    queue.put([b"a"])
    batch = queue.plan(10)
    assert batch is not None
    queue.settle(batch, dead=1)
    queue.commit()
    queue.settle(type(batch)(2, ()), dead=-2)
    with pytest.raises(QueueError, match="ACCOUNT_WRONG"):
        queue.commit()
    queue.close()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_random_decisions(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    """In any order of puts, fixes, decisions, requests, crashes and runs, a record counts once."""
    chance, shop, put = random.Random(seed), Shop(tmp_path, spark), 0
    dropped = 0
    for _ in range(25):
        step = chance.choice(["put", "fix", "replay", "discard", "request", "crash", "run", "run"])
        if step == "put":
            words = [f"{chance.choice(['', 'bad'])}{put + i}" for i in range(3)]
            put += len(words)
            shop.queue.put(words)
        elif step == "fix":
            shop.fix(fixed=chance.random() < 0.5)
        elif step in ("replay", "discard"):
            act = shop.pipeline.replay if step == "replay" else shop.pipeline.discard
            where = chance.choice([None, "position % 2 = 0"])
            removed = [act(where), act(where)]
            assert removed[1] == 0
            dropped += removed[0] if step == "discard" else 0
        elif step == "request":
            for _ in range(2):
                shop.request("replay")
        elif step == "crash":
            for files in (shop.storage, shop.folder):
                files.arm(chance.randint(1, 12), "crash")
            with suppress(EddylineError):
                shop.engine.advance()
                shop.pipeline.replay()
                shop.engine.advance()
            shop.close()
            shop.open()
        else:
            shop.engine.advance()
        check(shop)
    shop.fix(fixed=True)
    shop.pipeline.replay()
    for _ in range(3):
        shop.engine.advance()
        shop.pipeline.replay()
    shop.engine.advance()
    counted = shop.counted()
    assert set(counted.values()) <= {1}
    assert len(counted) == put - dropped
    assert shop.pipeline.account() == Account(put, put, 0, 0, 0)
    assert shop.engine.verify()
    shop.close()


def check(shop: Shop) -> None:
    """The account adds up, and has a letter for each dead record."""
    account = shop.pipeline.account()
    assert account.balanced, account
    assert len(shop.letters()) == account.dead
    assert set(shop.counted().values()) <= {1}
