"""A made-up view for tests of sinks: the same changes for the same seed, in every process."""

from __future__ import annotations

import base64
import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from eddyline.sink.base import Refuse, Target, keep_none

Row = tuple[Any, ...]

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("v", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("op", pa.binary()),  # a name that the weights' columns have too
    ]
)
KINDS = (LongType(), StringType(), DoubleType(), DecimalType(12, 2), BinaryType())
COLUMNS = StructType(
    [StructField(name, kind) for name, kind in zip(SCHEMA.names, KINDS, strict=True)]
)
KEY = ("k", "s")
HOSTILE = [
    None,
    "",
    "tea",
    'quote " and \\ backslash',
    ',"_change_type":"insert","_commit_version":7}',
    '{"before":null,"after":{}}',
    "null",
    "line\nbreak\r\n\t\x00\x01\x1f\x7f",
    "\u2028\u2029 é 漢 😀 \ufeff",
    "'; DROP TABLE x; --",
    "x" * 3000,
]
NUMBERS = [None, 0.0, 1.5, 1e300, -5e-324, 0.1, math.nan, math.inf, -math.inf]


class Changelog:
    """The rows of a view as of each epoch.

    Args:
        keyed: whether no two rows have the same `k` and `s`.
        keys: how many values `k` has.
    """

    def __init__(self, seed: int, *, keyed: bool = True, keys: int = 8) -> None:
        self._random = random.Random(seed)
        self._keyed = keyed
        self._keys = keys
        self._states: list[Counter[Row]] = [Counter()]

    def content(self, epoch: int) -> Counter[Row]:
        """Return how often each row occurs as of an epoch."""
        while len(self._states) <= epoch:
            self._states.append(self._next(self._states[-1]))
        return self._states[epoch]

    def rows(self, epoch: int) -> pa.Table:
        """Return all rows as of an epoch, in the form that sinks get."""
        return weighted(self.content(epoch))

    def changes(self, base: int, epoch: int) -> pa.Table:
        """Return the net changes from one epoch to another."""
        net = Counter(self.content(epoch))
        net.subtract(self.content(base))
        return weighted(net)

    def _next(self, state: Counter[Row]) -> Counter[Row]:
        chance, state = self._random, Counter(state)
        for _ in range(chance.choice([0, 1, 3, 10])):
            key = (chance.choice([None, *range(self._keys)]), chance.choice(HOSTILE))
            present = [row for row in state if state[row] > 0 and same(row[:2], key)]
            if present and (self._keyed or chance.random() < 0.5):
                state[present[0]] -= 1
                if chance.random() < 0.5:
                    continue
            digits = chance.choice([None, Decimal(chance.randrange(10**6)).scaleb(-2)])
            noise = chance.choice([None, b"", chance.randbytes(5)])
            state[(*key, chance.choice(NUMBERS), digits, noise)] += 1
        return +state


def same(left: Row, right: Row) -> bool:
    return repr(left) == repr(right)


def weighted(counts: Counter[Row]) -> pa.Table:
    """Return rows with weights as a table in the form that sinks get."""
    found = [(row, count) for row, count in counts.items() if count]
    columns = [
        pa.array([row[place] for row, _ in found], field.type) for place, field in enumerate(SCHEMA)
    ]
    signs = ["append" if count > 0 else "delete" for _, count in found]
    weights = [count for _, count in found]
    return pa.Table.from_arrays(
        [*columns, pa.array(signs, pa.string()), pa.array(weights, pa.int64())],
        names=[*SCHEMA.names, "op", "w"],
    )


def as_parsed(row: Row) -> Row:
    """Return a row as a reader of JSON gets it, floats as text: NaN equals NaN."""
    k, s, v, d, noise = row
    v = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(v), v)
    b = None if noise is None else base64.b64encode(noise).decode()
    return (k, s, repr(v), None if d is None else float(d), b)


def parsed(document: dict[str, Any]) -> Row:
    """Return the row of a JSON object as `as_parsed` does."""
    k, s, v, d, noise = (document[name] for name in SCHEMA.names)
    return (k, s, repr(v), d, noise)


def expected(counts: Counter[Row]) -> Counter[Row]:
    """Return a content as a reader of JSON gets it."""
    found: Counter[Row] = Counter()
    for row, count in counts.items():
        found[as_parsed(row)] += count
    return found


def target(app: str, *, keyed: bool = True, refuse: Refuse = keep_none) -> Target:
    return Target(
        f"eddyline/test/{app}",
        app,
        COLUMNS,
        SCHEMA,
        KEY if keyed else None,
        refuse=refuse,
    )
