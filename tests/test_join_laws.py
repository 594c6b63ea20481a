"""The laws of joins, against models that a reader can check by eye. No JVM: see `test_laws.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.errors import StateError
from eddyline.operators.conditional_join import ConditionalJoin, PairTest, Sign
from eddyline.operators.join import Join
from eddyline.operators.pairing import Carried, JoinKind
from laws import (
    KINDS,
    Bucket,
    Change,
    Row,
    epochs_of,
    floats,
    integrated,
    laws,
    small,
    table,
    weighted,
    words,
    z_set,
)

joined = st.tuples(st.integers(0, 1), small, words)  # side, key, value


def join_delta(changes: list[Change], kind: JoinKind) -> pa.Table:
    keys = {} if kind is JoinKind.INNER else {"k0": (pa.int64(), [r[1] for r, _ in changes])}
    return table(
        {
            "h": (pa.int64(), [(r[1] or 0) % 2 if keys else r[1] or 0 for r, _ in changes]),
            "side": (pa.int32(), [r[0] for r, _ in changes]),
            "matchable": (pa.bool_(), [r[1] is not None for r, _ in changes]),
            **keys,
            "l0": (pa.int64(), [None if r[0] else r[1] for r, _ in changes]),
            "l1": (pa.string(), [None if r[0] else r[2] for r, _ in changes]),
            "r0": (pa.string(), [r[2] if r[0] else None for r, _ in changes]),
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


def carrying(delta: pa.Table, carried: Carried) -> pa.Table:
    """Hold columns of the right side's rows in columns of the left side."""
    of_right = pc.equal(delta["side"], 1)
    for name, carrier in carried:
        values = pc.if_else(of_right, delta[name], delta[carrier])
        delta = delta.set_column(delta.column_names.index(carrier), carrier, values)
        delta = delta.drop_columns([name])
    return delta


def joined_rows(rows: list[Row], kind: JoinKind) -> list[Change]:
    left = [row[1:] for row in rows if row[0] == 0]
    right = [row[1:] for row in rows if row[0] == 1]
    if kind is JoinKind.EXISTS:
        keys = {key for key, _ in right} - {None}
        return [((*row, row[0] in keys), 1) for row in left]
    found: list[Change] = [
        ((*a, b[1]), 1) for a, b in product(left, right) if a[0] == b[0] and a[0] is not None
    ]
    if kind.watches_left:
        keys = {key for key, _ in right} - {None}
        found += [((*row, None), 1) for row in left if row[0] not in keys]
    if kind.watches_right:
        keys = {key for key, _ in left} - {None}
        found += [((None, None, row[1]), 1) for row in right if row[0] not in keys]
    return found


@pytest.mark.parametrize("carried", [(), (("r0", "l1"),)])
@pytest.mark.parametrize("kind", JoinKind)
@laws
@given(epochs=epochs_of(joined))
def test_joins_follow_from_the_rows(
    kind: JoinKind, carried: Carried, epochs: list[list[Change]]
) -> None:
    names = ("l0", "l1", "x") if kind is JoinKind.EXISTS else ("l0", "l1", "r0")
    operator = Join(kind, 0 if kind is JoinKind.INNER else 1, 2, 1, carried=carried)
    for cut in (epochs, [[change] for epoch in epochs for change in epoch]):
        bucket, output = Bucket(operator), list[Change]()
        for number, epoch in enumerate(cut, start=1):
            taken = epoch
            if kind is JoinKind.INNER:  # rows without a key never reach its kernel
                taken = [(row, w) for row, w in epoch if row[1] is not None]
            for part in bucket.feed(carrying(join_delta(taken, kind), carried)):
                output += weighted(part, names)
            assert z_set(output) == z_set(joined_rows(integrated(cut[:number]), kind))


VALUES = {"double": floats, "string": words, "int": small}


def compared_delta(changes: list[Change], values: str, inner: bool) -> pa.Table:
    kind = KINDS[values][0]
    keys = {} if inner else {"k0": (pa.int64(), [r[1] for r, _ in changes])}
    return table(
        {
            "h": (pa.int64(), [(r[1] or 0) % 2 if keys else r[1] for r, _ in changes]),
            "side": (pa.int32(), [r[0] for r, _ in changes]),
            "matchable": (pa.bool_(), [r[1] is not None for r, _ in changes]),
            **keys,
            "l0": (pa.int64(), [None if r[0] else r[1] for r, _ in changes]),
            "a0": (kind, [None if r[0] else r[2] for r, _ in changes]),
            "r0": (pa.int64(), [r[1] if r[0] else None for r, _ in changes]),
            "b0": (kind, [r[2] if r[0] else None for r, _ in changes]),
            "w": (pa.int64(), [w for _, w in changes]),
        }
    )


def in_order(value: Any) -> tuple[bool, Any]:
    """As Spark compares doubles: NaN is the largest and equals itself."""
    return (True, 0.0) if isinstance(value, float) and math.isnan(value) else (False, value)


MEETS: dict[Sign, Callable[[Any, Any], bool]] = {
    Sign.EQUAL: lambda a, b: a == b,
    Sign.DIFFERENT: lambda a, b: a != b,
    Sign.LESS: lambda a, b: a < b,
    Sign.AT_MOST: lambda a, b: a <= b,
    Sign.MORE: lambda a, b: a > b,
    Sign.AT_LEAST: lambda a, b: a >= b,
    Sign.SAME: lambda a, b: a == b,
    Sign.DISTINCT: lambda a, b: a != b,
    Sign.EQUAL_OR_UNKNOWN: lambda a, b: a == b,
}


def meets(sign: Sign, left: Any, right: Any) -> bool:
    if left is None or right is None:
        both = left is None and right is None
        unlike = sign is Sign.DISTINCT and not both
        return sign is Sign.EQUAL_OR_UNKNOWN or unlike or (sign is Sign.SAME and both)
    return MEETS[sign](in_order(left), in_order(right))


def compared_rows(rows: list[Row], kind: JoinKind, sign: Sign) -> list[Change]:
    left = [row[1:] for row in rows if row[0] == 0]
    right = [row[1:] for row in rows if row[0] == 1]

    def match(a: Row, b: Row) -> bool:
        return a[0] is not None and a[0] == b[0] and meets(sign, a[1], b[1])

    if kind is JoinKind.EXISTS:
        return [((a[0], any(match(a, b) for b in right)), 1) for a in left]
    found: list[Change] = [((a[0], b[0]), 1) for a, b in product(left, right) if match(a, b)]
    if kind.watches_left:
        found += [((a[0], None), 1) for a in left if not any(match(a, b) for b in right)]
    if kind.watches_right:
        found += [((None, b[0]), 1) for b in right if not any(match(a, b) for a in left)]
    return found


@pytest.mark.parametrize("sign", Sign)
@pytest.mark.parametrize("kind", JoinKind)
@laws
@given(
    data=st.data(),
    values=st.sampled_from(sorted(VALUES)),
    carried=st.sampled_from([(), (("b0", "a0"),), (("r0", "l0"), ("b0", "a0"))]),
)
def test_joins_with_a_condition_follow_from_the_rows(
    kind: JoinKind, sign: Sign, data: st.DataObject, values: str, carried: Carried
) -> None:
    """Side, key and value of each row; the value is only compared."""
    epochs = data.draw(epochs_of(st.tuples(st.integers(0, 1), small, VALUES[values])))
    inner = kind is JoinKind.INNER  # pairs by hash alone; rows without a key never reach its kernel
    tests = (PairTest("a0", sign, "b0"),)
    operator = ConditionalJoin(kind, 0 if inner else 1, 1, 1, (1, 1), tests, carried)
    names = ("l0", "x") if kind is JoinKind.EXISTS else ("l0", "r0")
    for cut in (epochs, [[change] for epoch in epochs for change in epoch]):
        bucket, output = Bucket(operator), list[Change]()
        for number, epoch in enumerate(cut, start=1):
            taken = [(row, w) for row, w in epoch if not inner or row[1] is not None]
            for part in bucket.feed(carrying(compared_delta(taken, values, inner), carried)):
                output += weighted(part, names)
            assert z_set(output) == z_set(compared_rows(integrated(cut[:number]), kind, sign))


def side_delta(side: int, weight: int) -> pa.Table:
    """One row of one side of a join by k0, whose other side is null."""
    return table(
        {
            "h": (pa.int64(), [1]),
            "side": (pa.int8(), [side]),
            "matchable": (pa.bool_(), [True]),
            "k0": (pa.string(), ["a"]),
            "l0": (pa.int64(), [None if side else 7]),
            "r0": (pa.int64(), [7 if side else None]),
            "w": (pa.int64(), [weight]),
        }
    )


def conditional(kind: JoinKind, keys: int, left: int, right: int) -> ConditionalJoin:
    return ConditionalJoin(kind, keys, left, right, (0, 0), (PairTest("l0", Sign.EQUAL, "r0"),))


@pytest.mark.parametrize("operator", [Join, conditional])
@pytest.mark.parametrize("kind", JoinKind)
def test_a_join_refuses_rows_that_are_held_less_than_zero_times(
    kind: JoinKind, operator: Callable[..., Any]
) -> None:
    """At once where it looks the row up, else when the row is to be paired."""
    with pytest.raises(StateError) as refused:  # noqa: PT012  # one of the two
        bucket = Bucket(operator(kind, 1, 1, 1))
        bucket.feed(side_delta(0, -1))
        bucket.feed(side_delta(1, 1))
    assert refused.value.condition == "NEGATIVE_WEIGHT"
    assert "operator join" in str(refused.value)
