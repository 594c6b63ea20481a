"""Generated streams: the model's proportions, any cut, crashes and reopening."""

from __future__ import annotations

import contextlib
import doctest
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eddyline as el
from eddyline.errors import EddylineError
from eddyline.source import generator as generator_module
from eddyline.source import nexmark
from eddyline.source.generator import GeneratedStream, Generator
from eddyline.source.nexmark import AUCTION, BID, EVENTS, KINDS, PERSON, Nexmark
from eddyline.source.redo_log import RedoLog
from eddyline.source.segment_readers import read_segment
from eddyline.source.segments import Segment, distribute
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles

MANY = 500_000
CHECKSUMS = {PERSON: 1145965254, AUCTION: 3870413302, BID: 3306452015}
SECOND = 1_000_000


def rows(kind: str, start: int, count: int, seed: int = 1, rate: int = 10_000) -> pa.Table:
    return Nexmark(kind, seed, rate).rows(start, count, KINDS[kind].schema)


def first(kind: str, events: int, seed: int = 1) -> pl.DataFrame:
    """What the first `events` events hold of a kind."""
    return pl.DataFrame(rows(kind, 0, KINDS[kind].count(events), seed))


def wire(kind: str) -> pa.Schema:
    """What a leaf asks for that reads all columns."""
    fields = [pa.field(f"c{i}", field.type) for i, field in enumerate(KINDS[kind].schema)]
    return pa.schema([*fields, pa.field("w", pa.int64())])


def logged(log: RedoLog, kind: str) -> pa.Table:
    """All rows that a log stands for, under the names of their columns."""
    names = KINDS[kind].schema.names
    segments = log.segments(0, log.end())
    tables = [
        table.select(range(len(names))).rename_columns(names)
        for segment in segments
        for table in read_segment(log.files, segment, names, range(len(names)), wire(kind))
    ]
    return pa.concat_tables(tables) if tables else KINDS[kind].schema.empty_table()


@pytest.mark.parametrize("module", [generator_module, nexmark])
def test_examples_in_docstrings(module) -> None:
    assert doctest.testmod(module).failed == 0


def test_each_number_belongs_to_one_kind() -> None:
    for events in (0, 1, 2, 4, 5, 49, 50, 51, 1003):
        numbers = [kind.numbers(0, kind.count(events)) for kind in KINDS.values()]
        assert sorted(np.concatenate(numbers)) == list(range(events))
    assert [kind.count(EVENTS) for kind in KINDS.values()] == [1, 3, 46]


@given(
    st.sampled_from(list(KINDS)),
    st.integers(0, 10**9),
    st.lists(st.integers(0, 40), max_size=6),
    st.integers(0, 2**63 - 1),
)
@settings(deadline=None)
def test_any_cut_gives_the_same_events(kind, start, sizes, seed) -> None:
    cuts = np.cumsum([start, *sizes]).tolist()
    parts = [rows(kind, a, b - a, seed) for a, b in pairwise(cuts)]
    parts.append(KINDS[kind].schema.empty_table())
    assert pa.concat_tables(parts) == rows(kind, start, sum(sizes), seed)


def test_a_column_is_the_same_without_the_others() -> None:
    for kind, model in KINDS.items():
        whole = rows(kind, 7, 100)
        for field in model.schema:
            alone = Nexmark(kind, 1, 10_000).rows(7, 100, pa.schema([field]))
            assert alone == whole.select([field.name])


def test_another_seed_gives_other_events_at_the_same_times() -> None:
    one, other = rows(BID, 0, 1000, seed=1), rows(BID, 0, 1000, seed=2)
    assert one["dateTime"] == other["dateTime"]
    for name in ("auction", "bidder", "price", "channel", "url", "extra"):
        assert one[name] != other[name]


def test_events_never_change() -> None:
    """A stored stream is made anew from its numbers: this must hold in all versions."""
    for kind, expected in CHECKSUMS.items():
        made = rows(kind, 1_000, 500)
        plain = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in made.columns
        ]
        assert crc32(repr([column.to_pylist() for column in plain]).encode()) == expected


def test_event_time_advances_evenly() -> None:
    times = np.sort(
        np.concatenate(
            [
                rows(kind, 0, model.count(30_000), rate=7)["dateTime"].cast(pa.int64()).to_numpy()
                for kind, model in KINDS.items()
            ]
        )
    )
    assert times[0] == nexmark.FIRST_TIME_US
    assert times[7 * 60] - times[0] == 60 * SECOND
    assert set(np.diff(times)) <= {SECOND // 7, SECOND // 7 + 1}


def test_identities_are_unique_and_grow() -> None:
    for kind in (PERSON, AUCTION):
        ids = first(kind, MANY)["id"].to_numpy()
        assert (np.diff(ids) == 1).all()


def test_hot_auctions_bidders_and_sellers() -> None:
    """Half of the bids are for the hot auction; three of four bidders and sellers are hot."""
    people, auctions, bids = (first(kind, MANY) for kind in KINDS)
    hot = (pl.col("auction") - 1000) % 100 == 0
    # of the others 1 in about 100 comes to it by chance
    assert bids.filter(hot).height / bids.height == pytest.approx(1 / 2 + 1 / 2 / 100, abs=0.01)
    hot = (pl.col("bidder") - 1000) % 100 == 1
    assert bids.filter(hot).height / bids.height == pytest.approx(3 / 4 + 1 / 4 / 100, abs=0.01)
    hot = (pl.col("seller") - 1000) % 100 == 0
    assert auctions.filter(hot).height / auctions.height == pytest.approx(0.7525, abs=0.01)
    channels = bids["channel"].is_in(nexmark.HOT_CHANNELS)
    assert channels.mean() == pytest.approx(1 / 2, abs=0.01)
    assert people.height * 3 == auctions.height


def test_what_events_name_is_there_or_comes_soon() -> None:
    people, auctions, bids = (first(kind, MANY) for kind in KINDS)
    assert bids["auction"].max() <= auctions["id"].max() + nexmark.LEAD
    for seller in (auctions["seller"], bids["bidder"]):
        assert seller.min() >= 1000
        assert seller.max() <= people["id"].max() + nexmark.LEAD
    assert (bids.join(auctions, left_on="auction", right_on="id").height / bids.height) > 0.99
    early = bids.join(auctions, left_on="auction", right_on="id", suffix="_auction")
    assert early.filter(pl.col("dateTime") < pl.col("dateTime_auction")).height > 0
    open_for = (auctions["expires"] - auctions["dateTime"]).dt.total_microseconds()
    assert open_for.min() > 0
    assert open_for.mean() == pytest.approx(100 * 50 / 3 * 100, rel=0.05)  # events of 100 us


def test_values_have_the_form_of_the_model() -> None:
    people, auctions, bids = (first(kind, MANY // 10) for kind in KINDS)
    assert people["emailAddress"].str.contains(r"^[a-z]{3,6}@[a-z]{3,4}\.com$").all()
    assert people["creditCard"].str.contains(r"^\d{4}( \d{4}){3}$").all()
    assert set(people["state"]) == set(nexmark.STATES)
    assert set(auctions["category"]) == set(range(10, 15))
    assert (auctions["reserve"] > auctions["initialBid"]).all()
    address = r"^https://www\.nexmark\.com/[a-z]+/[a-z]+/[a-z]+/item\.htm\?query=1"
    assert bids["url"].str.contains(address + r"(&channel_id=\d+)?$").all()
    assert bids.group_by("channel").agg(pl.col("url").n_unique())["url"].max() == 1
    assert 100 <= bids["price"].min() < 200
    assert 9e7 < bids["price"].max() <= 1e8
    for frame, size in ((people, 125), (auctions, 385), (bids, 68)):
        assert frame["extra"].str.len_bytes().mean() == pytest.approx(size, rel=0.02)


OPTIONS = {"kind": BID, "total": "230", "eventsPerEpoch": "20", "seed": "5"}


def stream(files: Files, kind: str = BID, **options: str) -> GeneratedStream:
    generator = Generator.of({**OPTIONS, "kind": kind, **options})
    return GeneratedStream("s", generator, RedoLog(files, kind))


def test_any_step_notes_the_same_rows(tmp_path: Path) -> None:
    for kind, model in KINDS.items():
        expected = rows(kind, 0, model.count(230), seed=5)
        for step in (1, 7, 50, 229, 230, 1000):
            files = Files(str(tmp_path / f"{kind}{step}"))
            made = stream(files, kind, eventsPerEpoch=str(step))
            made.pull()
            made.pull()
            assert made.log.end() == -(-230 // step)
            assert logged(made.log, kind) == expected


def test_streams_of_one_seed_stay_side_by_side(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    made = {kind: stream(files, kind, eventsPerEpoch="10") for kind in KINDS}
    for one in made.values():
        one.pull()
    assert {one.log.end() for one in made.values()} == {23}
    for number in range(23):
        noted = sum(
            segment.rows
            for one in made.values()
            for segment in one.log.segments(number, number + 1)
        )
        assert noted == 10


def test_large_steps_are_cut_for_tasks(tmp_path: Path) -> None:
    segment = Segment("nexmark", Nexmark(BID, 1, 10_000).text, 300_001, start=11)
    dealt = [piece for task in distribute([segment], 2) for piece in task]
    assert len(dealt) > 1
    names, columns = KINDS[BID].schema.names, [0, 2]
    schema = pa.schema([("c0", pa.int64()), ("c1", pa.int64()), ("w", pa.int64())])
    files = Files(str(tmp_path))
    tables = [
        table
        for piece in sorted(dealt, key=lambda piece: piece.start)
        for table in read_segment(files, piece, names, columns, schema)
    ]
    wanted = pa.schema([KINDS[BID].schema.field(i) for i in columns])
    whole = Nexmark(BID, 1, 10_000).rows(11, 300_001, wanted)
    assert pa.concat_tables(tables).select(["c0", "c1"]).rename_columns(wanted.names) == whole
    only_weights = list(read_segment(files, segment, names, [], pa.schema([("w", pa.int64())])))
    assert sum(table.num_rows for table in only_weights) == 300_001


def test_a_crash_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    expected = rows(BID, 0, KINDS[BID].count(50), seed=5)
    for n in range(1, 14):
        for kind in ("crash", "fail"):
            files = FaultyFiles(str(tmp_path / f"{kind}{n}"))
            made = stream(files, total="50")
            files.arm(n, kind)
            with contextlib.suppress(EddylineError):
                made.pull()
            files.arm(0)
            if kind == "crash":
                made = stream(files, total="50")
            made.pull()
            assert logged(made.log, BID) == expected


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": None}, "option kind is missing"),
        ({"kind": "nexmark.bids"}, "kind is 'nexmark.bids'"),
        ({"total": None}, "option total is missing"),
        ({"total": "-1"}, "total is '-1'"),
        ({"total": "1e6"}, "total is '1e6'"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"eventsPerEpoch": "0"}, "eventsPerEpoch is '0'"),
        ({"eventsPerSecond": "1000001"}, "eventsPerSecond is '1000001'"),
        ({"rows": "5"}, "no option rows"),
    ],
)
def test_bad_options_are_named(change, told) -> None:
    options = {name: value for name, value in {**OPTIONS, **change}.items() if value is not None}
    with pytest.raises(el.DataError) as error:
        Generator.of(options)
    assert error.value.condition == "BAD_STREAM"
    assert told in str(error.value)
    assert "Way out: give " in str(error.value)


def test_names_of_options_have_no_case() -> None:
    shouted = {name.upper(): value for name, value in OPTIONS.items()}
    assert Generator.of(shouted) == Generator.of(OPTIONS)


CREATE = """
CREATE STREAM IF NOT EXISTS auction USING generator
    OPTIONS (kind 'nexmark.auction', seed 3, total 500, eventsPerEpoch 200, eventsPerSecond 10);
CREATE STREAM IF NOT EXISTS bid (auction BIGINT, price BIGINT) USING generator
    OPTIONS (kind 'nexmark.bid', seed 3, total 500, eventsPerEpoch 200, eventsPerSecond 10);
"""
COUNTS = """
    SELECT a.category, count(*) AS bids, max(b.price) AS highest
    FROM auction a JOIN bid b ON a.id = b.auction GROUP BY a.category
"""


def counted(events: int) -> list[tuple[int, int, int]]:
    auctions, bids = first(AUCTION, events, seed=3), first(BID, events, seed=3)
    joined = auctions.join(bids, left_on="id", right_on="auction").group_by("category")
    return sorted(joined.agg(pl.len(), pl.col("price").max()).rows())


@pytest.mark.spark
def test_a_generated_stream_in_an_engine(tmp_path, spark) -> None:
    storage = str(tmp_path / "storage")
    with el.Engine(storage, spark=spark) as engine:
        engine.execute(CREATE)
        view = engine.view("counts", COUNTS)
        total = engine.view("total", "SELECT count(*) AS n FROM bid")
        before = engine.status()["epoch"]
        after = engine.advance()
        assert after == before + 3
        for step in (1, 2, 3):
            shown = view.snapshot(before + step).collect()
            assert sorted(map(tuple, shown)) == counted(min(200 * step, 500))
        assert [row.n for row in total.snapshot().collect()] == [460]
        assert engine.advance() == after
        assert engine.verify()


@pytest.mark.spark
def test_a_reopened_engine_goes_on_where_it_stopped(tmp_path, spark) -> None:
    storage = str(tmp_path / "storage")

    class Enough(BaseException):  # no error: the test has seen what it wanted
        pass

    def stop(progress: el.Progress) -> None:
        if progress.rows_in.get("total"):
            raise Enough

    with el.Engine(storage, spark=spark) as engine:
        engine.execute(CREATE)
        engine.execute("CREATE VIEW total AS SELECT count(*) AS n FROM bid")
        engine.on_progress(stop)
        with pytest.raises(Enough):
            engine.advance()
    with el.Engine(storage, spark=spark) as again:
        again.execute(CREATE)
        view = again.view("total", "SELECT count(*) AS n FROM bid")
        assert [row.n for row in view.snapshot().collect()] == [184]
        later = again.view("counts", COUNTS)  # starts from what is committed
        assert sorted(map(tuple, later.snapshot().collect())) == counted(200)
        again.advance()
        assert [row.n for row in view.snapshot().collect()] == [460]
        assert sorted(map(tuple, later.snapshot().collect())) == counted(500)


@pytest.mark.spark
def test_what_a_generator_does_not_give_is_refused(tmp_path, spark) -> None:
    tail = "USING generator OPTIONS (kind 'nexmark.bid', total 10)"
    with el.Engine(str(tmp_path), spark=spark) as engine:
        for columns, told in (
            ("(auction INT)", "auction int is no column"),
            ("(bid BIGINT)", "bid bigint is no column"),
            ("(auction BIGINT, PRIMARY KEY (auction))", "only appends"),
        ):
            with pytest.raises(el.DataError) as error:
                engine.execute(f"CREATE STREAM bid {columns} {tail}")
            assert told in str(error.value)
            assert "Way out: " in str(error.value)
        assert engine.show("stream").collect() == []
        engine.execute(f"CREATE STREAM bid {tail}")
        (shown,) = engine.show("stream").collect()
        assert shown.columns.startswith("auction bigint, bidder bigint, price bigint")
