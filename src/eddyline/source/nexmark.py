"""The events of Nexmark's auction site, each computed from its number alone.

Of each 50 events 1 is a person, 3 are auctions and 46 are bids. Ids increase with the event
number; half of the bids go to the current hot auction, and three quarters of bidders and sellers
are hot ones. Sizes, prices and these ratios are those of the public model; the random
numbers are not: here they are hashes of seed, event number and column, so that any part of the
sequence can be generated independently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Bits: TypeAlias = NDArray[np.uint64]

EVENTS = 50
PEOPLE, AUCTIONS, BIDS = 1, 3, 46
"""How many of each 50 events are of a kind; they come in this order."""

FIRST_TIME_US = 1_436_918_400_000_000
"""Event time of event 0, in microseconds since 1970: 2015-07-15 00:00 UTC."""

FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1000, 1000, 10
CATEGORIES = 5
HOT_AUCTION_RATIO, HOT_BIDDER_RATIO, HOT_SELLER_RATIO, HOT_CHANNEL_RATIO = 2, 4, 4, 2
"""One in so many is not hot."""

HOT_EVERY = 100
"""One in so many auctions or persons is the hot one until the next."""

ACTIVE_PEOPLE, OPEN_AUCTIONS = 1000, 100
LEAD = 10
"""How far bids and auctions may name auctions or persons that are still to come."""

CHANNELS = 10_000
CHANNEL_ID_SHARE = 0.9

FIRST_NAMES = ("Ada", "Boris", "Carla", "Dmitri", "Elsa", "Farid", "Greta", "Hugo", "Ines", "Jonas")
LAST_NAMES = ("Adler", "Brook", "Costa", "Dahl", "Ekman", "Ferry", "Gale", "Harbour", "Isle")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")

MOMENT = pa.timestamp("us", "UTC")

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@dataclass(frozen=True, slots=True)
class GeneratedEvents:
    """A selection of events of the common sequence, and their random values.

    Attributes:
        numbers: their positions in the common sequence, from 0.
        seed: 64 bits; each seed has its own sequence.
        rate: events of all kinds in a second of event time.
    """

    numbers: Ints
    seed: int
    rate: int

    def bits(self, label: str) -> Bits:
        """Return 64 random bits for each event, independent for each label."""
        salt = np.array([self.seed, crc32(label.encode())], np.uint64)
        start = _mix64(_mix64(salt[:1]) ^ salt[1:])
        return _mix64(start + self.numbers.astype(np.uint64) * _STEP)

    def integers(self, label: str, bound: int | Ints) -> Ints:
        """Return for each event an integer from 0 up to but not including `bound`."""
        found: Ints = (self.bits(label) >> np.uint64(1)).astype(np.int64) % bound
        return found

    def fractions(self, label: str) -> NDArray[np.float64]:
        """Return for each event a number in [0, 1)."""
        found: NDArray[np.float64] = (self.bits(label) >> np.uint64(11)).astype(
            np.float64
        ) * 2.0**-53
        return found

    def hot(self, label: str, ratio: int) -> NDArray[np.bool_]:
        """Return a mask of the events with the hot choice: all except one in `ratio`."""
        found: NDArray[np.bool_] = self.integers(label, ratio) > 0
        return found

    def texts(self, label: str, least: int, most: int) -> pa.Array:
        """Return for each event a text of `least` to `most` lower-case letters."""
        lengths = least + self.integers(f"{label} length", most - least + 1)
        words = -(-most // 8)
        steps = np.arange(1, words + 1, dtype=np.uint64) * _STEP
        drawn = _mix64(self.bits(label)[:, None] + steps).view(np.uint8) % 26 + ord("a")
        kept = drawn[np.arange(words * 8) < lengths[:, None]].astype(np.uint8)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(kept))

    def one_of(self, label: str, choices: Sequence[str]) -> pa.Array:
        """Return for each event one of the choices, with equal probability."""
        return pa.array(choices).take(pa.array(self.integers(label, len(choices))))

    def prices(self, label: str) -> Ints:
        """Return for each event a price in cents from 100 to 100,000,000, log-uniform."""
        return np.rint(10.0 ** (self.fractions(label) * 6) * 100).astype(np.int64)

    def times(self, later: int | Ints = 0) -> Ints:
        """Return the event times, in microseconds since 1970, of the events `later` positions after these."""
        numbers = self.numbers + later
        found: Ints = FIRST_TIME_US + numbers * 1_000_000 // self.rate
        return found

    def last_person(self) -> Ints:
        """Return for each event the number of the newest person so far, from 0."""
        return self.numbers // EVENTS

    def last_auction(self) -> Ints:
        """Return for each event the number of the newest auction so far, from 0; -1 before the first."""
        whole, rest = np.divmod(self.numbers, EVENTS)
        found: Ints = whole * AUCTIONS + np.clip(rest - PEOPLE, -1, AUCTIONS - 1)
        return found

    def person(self, label: str) -> Ints:
        """Return for each event the number of an active or upcoming person, from 0."""
        people = self.last_person() + 1
        active = np.minimum(people, ACTIVE_PEOPLE)
        return people - active + self.integers(label, active + LEAD)

    def auction(self, label: str) -> Ints:
        """Return for each event the number of an open or upcoming auction, from 0."""
        last = self.last_auction()
        oldest = np.maximum(last - OPEN_AUCTIONS, 0)
        return oldest + self.integers(label, last - oldest + 1 + LEAD)


def _mix64(state: Bits) -> Bits:
    """Apply the final mixing step of SplitMix64, a bijection of 64 bits that looks random."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        state = (state ^ (state >> shift)) * multiplier
    return state ^ (state >> _SHIFTS[-1])


def _concat_texts(*parts: pa.Array | str) -> pa.Array:
    texts = [part if isinstance(part, str) else part.cast(pa.string()) for part in parts]
    return pc.binary_join_element_wise(*texts, "")


def _extra(least: int, most: int) -> Callable[[GeneratedEvents], pa.Array]:
    """Return the function for a padding column, which gives events the public model's size."""
    return lambda events: events.texts("extra", least, most)


def _credit_card(events: GeneratedEvents) -> pa.Array:
    groups = [events.integers(f"credit card {i}", 10_000) for i in range(4)]
    digits = [pc.utf8_lpad(pa.array(group).cast(pa.string()), 4, "0") for group in groups]
    return pc.binary_join_element_wise(*digits, " ")


def _person_name(events: GeneratedEvents) -> pa.Array:
    first, last = events.one_of("first name", FIRST_NAMES), events.one_of("last name", LAST_NAMES)
    return _concat_texts(first, " ", last)


def _email(events: GeneratedEvents) -> pa.Array:
    return _concat_texts(
        events.texts("mailbox", 3, 6), "@", events.texts("mail host", 3, 4), ".com"
    )


def _expires(events: GeneratedEvents) -> Ints:
    """Return the end of each auction: at most twice the average duration after its start."""
    later = OPEN_AUCTIONS * EVENTS // AUCTIONS
    horizon = events.times(later) - events.times()
    return events.times() + 1 + events.integers("length", np.maximum(horizon * 2, 1))


def _seller(events: GeneratedEvents) -> Ints:
    hot = events.hot("hot seller", HOT_SELLER_RATIO)
    star = events.last_person() // HOT_EVERY * HOT_EVERY
    return FIRST_PERSON + np.where(hot, star, events.person("seller"))


def _bid_auction(events: GeneratedEvents) -> Ints:
    hot = events.hot("hot auction", HOT_AUCTION_RATIO)
    star = events.last_auction() // HOT_EVERY * HOT_EVERY
    return FIRST_AUCTION + np.where(hot, star, events.auction("auction"))


def _bidder(events: GeneratedEvents) -> Ints:
    hot = events.hot("hot bidder", HOT_BIDDER_RATIO)
    star = events.last_person() // HOT_EVERY * HOT_EVERY + 1  # not the hot seller
    return FIRST_PERSON + np.where(hot, star, events.person("bidder"))


def _channel_numbers(events: GeneratedEvents) -> Ints:
    """Return channel numbers: from 0 up to `CHANNELS`, and the hot ones after that."""
    hot = events.hot("hot channel", HOT_CHANNEL_RATIO)
    star = CHANNELS + events.integers("which hot channel", len(HOT_CHANNELS))
    return np.where(hot, star, events.integers("channel", CHANNELS))


def _channel(events: GeneratedEvents) -> pa.Array:
    numbers = _channel_numbers(events)
    names = pa.array(HOT_CHANNELS).take(pa.array(np.maximum(numbers - CHANNELS, 0)))
    return pc.if_else(
        pa.array(numbers >= CHANNELS), names, _concat_texts("channel-", pa.array(numbers))
    )


def _url(events: GeneratedEvents) -> pa.Array:
    """Return the URL of each bid's channel; most URLs of cold channels contain an id."""
    numbers = _channel_numbers(events)
    channels = replace(events, numbers=numbers)
    folders = [channels.texts(f"folder {i}", 3, 5) for i in range(3)]
    path = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    with_id = (numbers < CHANNELS) & (channels.fractions("channel id is told") < CHANNEL_ID_SHARE)
    tail = _concat_texts("&channel_id=", pa.array(channels.integers("channel id", 1 << 31)))
    return _concat_texts(path, pc.if_else(pa.array(with_id), tail, ""))


Column: TypeAlias = Callable[[GeneratedEvents], Any]


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event.

    Attributes:
        first: the position of its first event in each 50.
        share: the number of its events in each 50.
        columns: for each column its type and the function that computes its values.
    """

    first: int
    share: int
    columns: dict[str, tuple[pa.DataType, Column]]

    @property
    def schema(self) -> pa.Schema:
        """The columns, in order."""
        return pa.schema([(name, kind) for name, (kind, _) in self.columns.items()])

    def count(self, events: int) -> int:
        """Return the number of events of this kind among the first `events` of the common sequence."""
        whole, rest = divmod(events, EVENTS)
        return whole * self.share + min(max(rest - self.first, 0), self.share)

    def numbers(self, start: int, rows: int) -> Ints:
        """Return the positions in the common sequence of `rows` events of this kind from `start` on."""
        whole, rest = np.divmod(np.arange(start, start + rows), self.share)
        return whole * EVENTS + self.first + rest


PERSON, AUCTION, BID = "nexmark.person", "nexmark.auction", "nexmark.bid"

KINDS = {
    PERSON: EventKind(
        0,
        PEOPLE,
        {
            "id": (pa.int64(), lambda events: FIRST_PERSON + events.last_person()),
            "name": (pa.string(), _person_name),
            "emailAddress": (pa.string(), _email),
            "creditCard": (pa.string(), _credit_card),
            "city": (pa.string(), lambda events: events.one_of("city", CITIES)),
            "state": (pa.string(), lambda events: events.one_of("state", STATES)),
            "dateTime": (MOMENT, GeneratedEvents.times),
            "extra": (pa.string(), _extra(100, 150)),
        },
    ),
    AUCTION: EventKind(
        PEOPLE,
        AUCTIONS,
        {
            "id": (pa.int64(), lambda events: FIRST_AUCTION + events.last_auction()),
            "itemName": (pa.string(), lambda events: events.texts("item name", 3, 20)),
            "description": (pa.string(), lambda events: events.texts("description", 3, 100)),
            "initialBid": (pa.int64(), lambda events: events.prices("initial bid")),
            "reserve": (
                pa.int64(),
                lambda events: events.prices("initial bid") + events.prices("reserve"),
            ),
            "dateTime": (MOMENT, GeneratedEvents.times),
            "expires": (MOMENT, _expires),
            "seller": (pa.int64(), _seller),
            "category": (
                pa.int64(),
                lambda events: FIRST_CATEGORY + events.integers("category", CATEGORIES),
            ),
            "extra": (pa.string(), _extra(310, 460)),
        },
    ),
    BID: EventKind(
        PEOPLE + AUCTIONS,
        BIDS,
        {
            "auction": (pa.int64(), _bid_auction),
            "bidder": (pa.int64(), _bidder),
            "price": (pa.int64(), lambda events: events.prices("price")),
            "channel": (pa.string(), _channel),
            "url": (pa.string(), _url),
            "dateTime": (MOMENT, GeneratedEvents.times),
            "extra": (pa.string(), _extra(54, 82)),
        },
    ),
}
"""The kinds of event, in the order in which they come in each 50."""


@dataclass(frozen=True, slots=True)
class Nexmark:
    """The events of one kind in the common sequence of one seed.

    Attributes:
        kind: one of `KINDS`.
        seed: from 0; events of all kinds with the same seed and rate refer to each other.
        rate: events of all kinds in a second of event time.

    Example:
        >>> bids = Nexmark("nexmark.bid", seed=1, rate=10_000)
        >>> bids == Nexmark.parse(bids.text)
        True
        >>> bids.rows(46, 2, pa.schema([("dateTime", MOMENT)]))["dateTime"][0].as_py().isoformat()
        '2015-07-15T00:00:00.005400+00:00'
    """

    kind: str
    seed: int
    rate: int

    @property
    def text(self) -> str:
        """The name of this generator in a segment."""
        return f"{self.kind}?{urlencode({'seed': self.seed, 'rate': self.rate})}"

    @classmethod
    def parse(cls, text: str) -> Nexmark:
        """Return the generator that `text` names."""
        kind, _, rest = text.partition("?")
        return cls(kind, **{name: int(value) for name, value in parse_qsl(rest)})

    def rows(self, start: int, rows: int, schema: pa.Schema) -> pa.Table:
        """Return events of this kind, with the columns and types of `schema`.

        Args:
            start: number of the first event among those of this kind, from 0.
            rows: number of events.
        """
        kind = KINDS[self.kind]
        events = GeneratedEvents(kind.numbers(start, rows), self.seed, self.rate)
        columns = []
        for field in schema:
            own, values = kind.columns[field.name]
            columns.append(pa.array(values(events), own).cast(field.type))
        return pa.table(columns, schema=schema)
