"""Bolts and their chain: what is called, what is tracked, what fails."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.errors import EngineError
from eddyline.relay.bolts import Bolt, BoltChain, Emitted
from eddyline.relay.keys import rounds
from eddyline.relay.records import as_read, new_records
from waiting import PATIENCE_S


def records(*payloads: str, keys: list[str] | None = None) -> pa.Table:
    return as_read(new_records(list(payloads), keys), range(len(payloads)), 0)


def text(record: dict[str, Any]) -> str:
    return record["payload"].decode()


def chain(*functions: Any, acks: bool = True, **settings: Any) -> BoltChain:
    return BoltChain([Bolt.of(function, None, **settings) for function in functions], acks=acks)


def test_none_one_or_many_rows_come_of_each_row() -> None:
    def times(row: str) -> Any:
        many = int(row)
        if many < 2:
            return row if many else None
        return [row] * many if many < 4 else (row for _ in range(many))

    worked = chain(text, times).run(records("0", "1", "2", "4"))
    assert worked.rows == ["1", "2", "2", "4", "4", "4", "4"]
    assert worked.done.all()


def test_what_fails_anywhere_in_a_tree_fails_its_record_alone() -> None:
    seen = []

    def halves(row: str) -> list[str]:
        return [row[0], row[1]]

    def check(part: str) -> str:
        seen.append(part)
        if part == "x":
            raise ValueError("no x")
        return part

    worked = chain(text, halves, check, lambda row: row).run(records("ab", "xc", "dx", "ef"))
    assert worked.rows == ["a", "b", "e", "f"]
    assert worked.done.tolist() == [True, False, False, True]
    assert worked.bolts.tolist() == [-1, 2, 2, -1]
    assert worked.reasons == {1: "ValueError: no x", 2: "ValueError: no x"}
    assert seen == list("abxcdxef")  # each once


def test_a_row_of_a_record_that_has_failed_goes_no_further() -> None:
    seen = []

    def fail(row: str) -> str:
        if row == "bad":
            raise ValueError
        return row

    chain(lambda r: [text(r), "other"], fail, seen.append).run(records("bad"))
    assert seen == []


def test_without_acks_what_fails_is_left_out() -> None:
    worked = chain(text, int, acks=False).run(records("1", "x", "3"))
    assert worked.rows == [1, 3]
    assert worked.done.all()


def test_a_call_that_takes_too_long_is_left_to_itself() -> None:
    def wait(row: str) -> str:
        time.sleep(float(row))
        return row

    started = time.monotonic()
    worked = chain(text, wait, ttl=1.0).run(records("0", "600", "0.01", "600", "0"))
    assert worked.done.tolist() == [True, False, True, False, True]
    assert worked.reasons[1] == "TimeoutError: no answer within 1 s"
    assert worked.rows == ["0", "0.01", "0"]
    assert time.monotonic() - started < 300


def test_a_function_that_hangs_is_given_up_and_the_others_wait() -> None:
    def hang(row: str) -> str:
        time.sleep(60 if row == "hang" else 0)
        return row

    worked = chain(text, hang, ttl=0.1).run(records("a", "hang", "b", *["hang"] * 9))
    assert worked.rows == ["a", "b"]
    assert np.flatnonzero(worked.bolts >= 0).tolist() == [1, 3, 4]
    assert worked.held.tolist() == [False] * 5 + [True] * 7


def test_threads_do_not_pile_up() -> None:
    chain(text).run(records("a"))
    before = set(threading.enumerate())  # those of earlier tests may end
    for _ in range(20):
        pickle.loads(pickle.dumps(chain(text))).run(records("a"))
    assert set(threading.enumerate()) <= before


def test_coroutine_functions_wait_side_by_side_up_to_a_limit() -> None:
    running, most = 0, 0

    async def wait(row: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(60 if row == "60" else 0)
        running -= 1
        if row == "bad":
            raise ValueError("bad")
        return row

    bolts = [Bolt.of(text, None), Bolt.of(wait, None, concurrency=4, ttl=1.0)]
    worked = BoltChain(bolts).run(records("60", *"abcdefgh", "bad"))
    assert most == 4
    assert worked.rows == list("abcdefgh")
    assert worked.reasons == {0: "TimeoutError: no answer within 1 s", 9: "ValueError: bad"}


def test_a_coroutine_that_holds_the_loop_does_not_stop_the_others_for_good() -> None:
    enough = threading.Event()

    async def hold(row: str) -> str:
        if row == "hold":
            enough.wait(600)
        return row

    try:
        assert not chain(text, hold, ttl=0.2, concurrency=8).run(records("hold")).done.any()
        others = chain(text, hold, ttl=60, concurrency=8).run(records("a", "b"))
    finally:
        enough.set()
    assert others.rows == ["a", "b"]


class TestVectorised:
    def test_rows_go_one_to_one(self) -> None:
        def shout(table: pa.Table) -> pa.Table:
            return table.select(["payload"])

        worked = chain(shout, vectorised=True).run(records("a", "b"))
        assert worked.rows["payload"].to_pylist() == [b"a", b"b"]

    def test_the_bad_rows_are_found(self) -> None:
        calls = []

        def check(table: pa.Table) -> pa.Table:
            calls.append(table.num_rows)
            if b"bad" in table["payload"].to_pylist():
                raise ValueError("bad")
            return table.select(["payload"])

        worked = chain(check, vectorised=True).run(records(*["a"] * 700, "bad", *["b"] * 323))
        assert np.flatnonzero(~worked.done).tolist() == [700]
        assert worked.rows.num_rows == 1023
        assert worked.rows["payload"][699:701].to_pylist() == [b"a", b"b"]
        assert len(calls) == 1 + 2 * 10

    def test_the_rest_may_have_columns_of_several_types(self) -> None:
        def typed(table: pa.Table) -> pa.Table:
            payloads = table["payload"].to_pylist()
            if b"bad" in payloads:
                raise ValueError(payloads)
            return pa.table({"v": [1 if payload == b"1" else "s" for payload in payloads]})

        worked = chain(typed, vectorised=True).run(records("1", "1", "bad", "s"))
        assert worked.rows == [{"v": 1}, {"v": 1}, {"v": "s"}]
        assert worked.done.tolist() == [True, True, False, True]

    def test_a_slow_row_is_found_and_a_function_that_hangs_is_given_up(self) -> None:
        def wait(table: pa.Table) -> pa.Table:
            if b"slow" in table["payload"].to_pylist():
                time.sleep(60)
            return table.select(["payload"])

        worked = chain(wait, vectorised=True, ttl=0.1).run(records(*"abcdefg", "slow", *"hijkl"))
        assert np.flatnonzero(~worked.done).tolist() == [7]
        calls = []

        def hang(table: pa.Table) -> pa.Table:
            calls.append(table.num_rows)
            time.sleep(60)
            return table

        worked = chain(hang, vectorised=True, ttl=0.05).run(records(*["a"] * 64))
        assert not worked.done.any()
        assert len(calls) <= 2 * 7 + 1

    def test_with_once_all_have_failed(self) -> None:
        calls = []

        def write(table: pa.Table) -> None:
            calls.append(table.num_rows)
            raise OSError("no disk")

        worked = chain(write, vectorised=True, once=True).run(records("a", "b"))
        assert calls == [2]
        assert worked.reasons == {0: "OSError: no disk", 1: "OSError: no disk"}

    def test_it_can_say_itself_what_has_failed(self) -> None:
        def write(table: pa.Table) -> Emitted:
            return Emitted(table.take([0, 2]), failed={1: "refused"})

        worked = chain(write, vectorised=True).run(records("a", "b", "c"))
        assert worked.rows["position"].to_pylist() == [0, 2]
        assert worked.reasons == {1: "refused"}

    def test_rows_may_be_made_of_several(self) -> None:
        def pair(table: pa.Table) -> Emitted:
            return Emitted(table.slice(0, 2), inputs=[[0, 1], [2, 3]])

        def refuse(table: pa.Table) -> Emitted:
            return Emitted(table.slice(0, table.num_rows - 1), failed={table.num_rows - 1: "no"})

        worked = chain(pair, refuse, vectorised=True).run(records("a", "b", "c", "d"))
        assert worked.done.tolist() == [True, True, False, False]
        assert worked.rows.num_rows == 1

    def test_which_is_made_of_which_must_be_told(self) -> None:
        worked = chain(lambda table: table.slice(1), vectorised=True).run(records("a", "b"))
        assert "which is made of which" in worked.reasons[0]
        worked = chain(lambda t: Emitted(t, inputs=[0, 7]), vectorised=True).run(records("a", "b"))
        assert "inputs must name places" in worked.reasons[0]

    @pytest.mark.parametrize("place", [-1, 2, 0.5, 1.0, True, None, "0"])
    def test_what_has_failed_and_what_is_made_of_which_are_places_of_rows(self, place: Any) -> None:
        def rejecting(table: pa.Table) -> Emitted:
            return Emitted(table.slice(0, 0), inputs=[], failed={place: "bad"})

        def making(table: pa.Table) -> Emitted:
            return Emitted(table.slice(0, 1), inputs=pa.array([place]))

        def joining(table: pa.Table) -> Emitted:
            return Emitted(table.slice(0, 1), inputs=pa.array([[place]]))

        for function in (rejecting, making, joining):
            worked = chain(function, vectorised=True, once=True).run(records("a", "b"))
            assert not worked.done.any()
            assert "must name places of the 2 rows" in worked.reasons[0]

    def test_a_row_made_may_be_of_none_but_not_of_null(self) -> None:
        of_none, of_null = [[], [0]], [None, [0]]
        worked = chain(lambda t: Emitted(t, inputs=of_none), vectorised=True).run(records("a", "b"))
        assert (worked.done.all(), worked.rows.num_rows) == (True, 2)
        once = chain(lambda t: Emitted(t, inputs=of_null), vectorised=True, once=True)
        assert not once.run(records("a", "b")).done.any()

    def test_rows_without_columns_are_rows(self) -> None:
        def bare(table: pa.Table) -> pa.Table:
            if b"bad" in table["payload"].to_pylist():
                raise ValueError("bad")
            return table.select([] if b"a" in table["payload"].to_pylist() else ["position"])

        def as_it_is(table: pa.Table) -> pa.Table:
            return table

        plain = Bolt.of(lambda _: {}, "plain")
        whole = Bolt.of(as_it_is, None, vectorised=True)
        assert BoltChain([plain]).run(records("a", "b")).rows == [{}, {}]
        assert BoltChain([plain, whole]).run(records("a", "b")).rows == [{}, {}]
        worked = BoltChain([Bolt.of(bare, None, vectorised=True)]).run(records("a", "bad", "b"))
        assert worked.rows == [{}, {"position": 2}]
        assert worked.done.tolist() == [True, False, True]

    def test_it_gets_the_rows_of_plain_functions(self) -> None:
        def double(table: pa.Table) -> pa.Table:
            return pa.table({"v": pa.compute.multiply(table["v"], 2)})

        bolts = [
            Bolt.of(lambda record: {"v": int(text(record))}, "parse"),
            Bolt.of(double, None, vectorised=True),
            Bolt.of(lambda row: row["v"], "plain"),
        ]
        assert BoltChain(bolts).run(records("1", "x", "3")).rows == [2, 6]

    def test_it_gets_what_only_some_rows_of_plain_functions_have(self) -> None:
        plain = Bolt.of(lambda record: {text(record): 1}, "parse")
        whole = Bolt.of(lambda table: table, None, vectorised=True)
        worked = BoltChain([plain, whole]).run(records("a", "b"))
        assert worked.rows.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 1}]


def far(table: pa.Table) -> pa.Table:
    """Give the record `bad` a time that Python has none of."""
    times = [2**60 if value == b"bad" else 0 for value in table["payload"].to_pylist()]
    return pa.table({"at": pa.array(times).cast(pa.timestamp("us"))})


def test_a_row_that_python_has_no_values_for_fails_its_record_alone() -> None:
    def year(row: dict[str, Any]) -> int:
        return row["at"].year

    async def later(row: dict[str, Any]) -> int:
        return year(row)

    first = Bolt.of(far, None, vectorised=True)
    for function in (year, later):
        worked = BoltChain([first, Bolt.of(function, None)]).run(records("a", "bad", "b"))
        assert worked.rows == [1970, 1970]
        assert worked.done.tolist() == [True, False, True]
        assert worked.reasons == {1: "OverflowError: date value out of range"}
    assert BoltChain([first, Bolt.of(year, None)]).run(records("bad")).rows == []


def test_a_key_with_such_a_row_is_not_joined() -> None:
    bolts = [Bolt.of(far, None, vectorised=True), Bolt.of(len, "join", by_key=True)]
    worked = BoltChain(bolts).run(records("a", "bad", "b", "c", keys=["x", "x", "y", "y"]))
    assert worked.rows == [2]
    assert worked.done.tolist() == [False, False, True, True]
    assert (list(worked.reasons), worked.held.tolist()) == ([1], [True, False, False, False])


def test_rows_of_one_key_are_joined_and_fail_together() -> None:
    def join(rows: list[dict[str, Any]]) -> str:
        if len(rows) == 1:
            raise ValueError("no partner")
        return "".join(text(row) for row in rows)

    worked = chain(join, by_key=True).run(records(*"abcde", keys=["k", "l", "k", "m", "m"]))
    assert sorted(worked.rows) == ["ac", "de"]
    assert worked.done.tolist() == [True, False, True, True, True]
    assert worked.reasons == {1: "ValueError: no partner"}


def test_a_key_of_which_a_record_has_failed_is_not_joined() -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        if text(row) == "bad":
            raise ValueError("bad")
        return row

    bolts = [
        Bolt.of(check, None),
        Bolt.of(lambda rows: len(rows), "join", by_key=True),
    ]
    worked = BoltChain(bolts).run(records("a", "bad", "b", "c", keys=["k", "k", "l", "l"]))
    assert worked.rows == [2]
    assert worked.done.tolist() == [False, False, True, True]
    assert worked.held.tolist() == [True, False, False, False]


def test_who_shared_a_row_with_one_that_failed_is_held() -> None:
    def halves(table: pa.Table) -> Emitted:
        # a row of the first two records, and one of the second and third
        return Emitted(table.slice(0, 2), inputs=[[0, 1], [1, 2]])

    def last(table: pa.Table) -> Emitted:
        return Emitted(table.slice(0, 1), failed={1: "no"})

    worked = chain(halves, last, vectorised=True).run(records("a", "b", "c"))
    assert worked.rows.num_rows == 0  # what the second made with the first doesn't count either
    assert worked.held.tolist() == [True, False, False]
    assert not worked.done.any()


def test_the_chain_travels() -> None:
    twin = pickle.loads(pickle.dumps(chain(text)))
    assert twin.run(records("a")).rows == ["a"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 1.5}, "whole number from 1 to 1000000000"),
        ({"max_attempts": 10**30}, "whole number from 1 to 1000000000"),
        ({"retry_delay": -1}, "number from 0 to"),
        ({"retry_delay": float("inf")}, "retry_delay"),
        ({"concurrency": True}, "conc"),
        ({"concurrency": 10**9}, "whole number from 1 to 10000"),
    ],
)
def test_a_bad_setting_is_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(EngineError, match=what):
        Bolt.of(text, None, **settings)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(EngineError, match="not a function"):
        Bolt.of("parse", None)  # type: ignore[arg-type]

    async def wait(row: Any) -> Any:
        return row

    with pytest.raises(EngineError, match="more than one"):
        Bolt.of(wait, None, vectorised=True)

    async def one_by_one(row: Any) -> Any:
        yield row

    for function in (one_by_one, partial(one_by_one)):
        with pytest.raises(EngineError, match="asynchronous generator"):
            Bolt.of(function, None)


def test_a_partial_of_a_coroutine_function_is_awaited() -> None:
    async def join(before: str, row: str) -> str:
        await asyncio.sleep(0)
        return before + row

    bolt = Bolt.of(partial(join, "x"), None)
    assert BoltChain([Bolt.of(text, None), bolt]).run(records("a")).rows == ["xa"]


@pytest.mark.filterwarnings("error")
def test_what_nobody_awaits_fails_its_record() -> None:
    async def save(row: str) -> None:
        """Would write it to a service."""

    async def one_by_one(row: str) -> Any:
        yield row

    for function in (lambda row: save(row), lambda row: one_by_one(row)):
        worked = chain(text, function).run(records("a", "b"))
        assert not worked.done.any()
        assert all("nobody awaits" in str(why) for why in worked.reasons.values())


class PanicError(BaseException):
    """As of a library in Rust."""


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, PanicError]
)
def test_no_error_of_one_record_ends_the_calls_for_the_others(error: type[BaseException]) -> None:
    def plain(row: str) -> str:
        if row == "bad":
            raise error("config is missing")
        return row

    async def waiting(row: str) -> str:
        await asyncio.sleep(0.01)
        return plain(row)

    begun = time.monotonic()
    for function in (plain, waiting):
        worked = chain(text, function, ttl=PATIENCE_S).run(records("a", "bad", "b", "c"))
        assert worked.rows == ["a", "b", "c"]
        assert worked.done.tolist() == [True, False, True, True]
        assert list(worked.reasons.values()) == [f"{error.__name__}: config is missing"]
    assert time.monotonic() - begun < PATIENCE_S


class SpeechlessError(Exception):
    """Can't say what it is."""

    def __str__(self) -> str:
        raise ValueError("no text")


class NumberedError(Exception):
    """Says what it is in another type."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SpeechlessError(), "SpeechlessError"),
        (NumberedError(), "NumberedError"),
        (ValueError("half \ud800"), "ValueError: half \\ud800"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * 488),
    ],
)
def test_an_error_whose_text_cannot_be_kept_fails_its_record_alone(
    error: Exception, reason: str
) -> None:
    def plain(row: str) -> str:
        if row == "bad":
            raise error
        return row

    async def waiting(row: str) -> str:
        return plain(row)

    def whole(rows: pa.Table) -> pa.Table:
        for row in rows.to_pylist():
            plain(text(row))
        return rows

    for one in (chain(text, plain), chain(text, waiting), chain(whole, vectorised=True)):
        worked = one.run(records("a", "bad", "b"))
        assert worked.done.tolist() == [True, False, True]
        assert worked.reasons == {1: reason}
        pa.array(worked.reasons.values(), pa.string())


def test_a_reason_that_a_function_gives_becomes_text() -> None:
    def refuse(table: pa.Table) -> Emitted:
        failed: Any = {0: "half \ud800", 1: ValueError("no"), 2: "x" * 10_000}
        return Emitted(table.slice(0, 0), failed=failed)

    worked = chain(refuse, vectorised=True).run(records("a", "b", "c"))
    assert worked.reasons == {0: "half \\ud800", 1: "no", 2: "x" * 500}


def test_no_error_of_a_vectorised_function_ends_its_process() -> None:
    def stop(rows: pa.Table) -> pa.Table:
        if b"bad" in rows["payload"].to_pylist():
            raise SystemExit("config is missing")
        return rows.select(["payload"])

    worked = chain(stop, vectorised=True).run(records("a", "bad", "b"))
    assert worked.done.tolist() == [True, False, True]


def test_a_generator_may_yield_the_same_dict_again() -> None:
    def numbered(row: str) -> Iterator[dict[str, Any]]:
        out = {"row": row}
        for out["n"] in range(3):
            yield out

    assert [row["n"] for row in chain(text, numbered).run(records("a")).rows] == [0, 1, 2]


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=30))
def test_rounds_keep_the_order_of_a_key(keys: list[str | None]) -> None:
    found = rounds(pa.chunked_array([pa.array(keys, pa.string())]))
    assert sorted(place for part in found for place in part) == list(range(len(keys)))
    for key in "abc":
        places = [[p for p in part if keys[p] == key] for part in found]
        assert all(len(part) <= 1 for part in places)
        flat = [p for part in places for p in part]
        assert flat == sorted(flat)
    assert all(keys[p] is not None for part in found[1:] for p in part)


@settings(deadline=None)
@given(st.data())
def test_any_chain_does_what_plain_python_does(data: st.DataObject) -> None:
    """Random fan-out and failures: done, outputs and calls are those of a loop over records."""
    count = data.draw(st.integers(1, 12))
    stages = data.draw(st.integers(1, 4))
    table = data.draw(
        st.dictionaries(
            st.tuples(st.integers(0, stages - 1), st.integers(0, 40)),
            st.sampled_from(["fail", 0, 2, 3]),
            max_size=12,
        )
    )

    def stage(number: int) -> Any:
        def work(row: Any) -> Iterator[int]:
            value = row["position"] if isinstance(row, dict) else row
            what = table.get((number, value % 41), 1)
            if what == "fail":
                raise ValueError(f"{number}")
            return iter([(value * 7 + i) for i in range(what)])

        return work

    work = [stage(number) for number in range(stages)]
    rows, done = [], []
    for position in range(count):
        mine: list[Any] = [{"position": position}]
        try:
            for function in work:
                mine = [made for row in mine for made in function(row)]
        except ValueError:
            done.append(False)
            continue
        done.append(True)
        rows += mine
    vectorised = data.draw(st.lists(st.booleans(), min_size=stages, max_size=stages))

    def as_table(function: Any) -> Any:
        def whole(given: pa.Table) -> Emitted:
            made = [list(function(row)) for row in given["v"].to_pylist()]
            flat = [value for part in made for value in part]
            inputs = [place for place, part in enumerate(made) for _ in part]
            return Emitted(pa.table({"v": pa.array(flat, pa.int64())}), inputs=inputs)

        return whole

    bolts = [Bolt.of(lambda record: {"v": record["position"]}, "first")]
    for function, as_whole in zip(work, vectorised, strict=True):
        if as_whole:
            bolts.append(Bolt.of(as_table(function), "t", vectorised=True))
        else:
            each = lambda row, f=function: [{"v": value} for value in f(row["v"])]  # noqa: E731
            bolts.append(Bolt.of(each, "r"))
    worked = BoltChain(bolts).run(records(*map(str, range(count))))
    found = worked.rows if isinstance(worked.rows, list) else worked.rows.to_pylist()
    assert worked.done.tolist() == done
    assert sorted(row["v"] for row in found) == sorted(rows)
