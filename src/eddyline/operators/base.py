"""What a stateful operator is: a small value with one verb, `step`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.errors import StateError
from eddyline.state.arrangement import Arrangement, Layout

State = Mapping[str, Arrangement]


@dataclass(frozen=True, slots=True)
class Step:
    """What one epoch does to one bucket of an operator.

    Attributes:
        output: the operator's output delta, in tables of its output schema.
        appends: for each arrangement the rows to be added to it, in its layout.
    """

    output: Iterable[pa.Table]
    appends: dict[str, pa.Table] = field(default_factory=dict)


class Operator(Protocol):
    """A stateful operator over one bucket.

    Asserted: `step` is a pure function of the delta and the state, so that a task which runs twice
    writes the same bytes. Not asserted: any order of the delta's rows.
    """

    @property
    def layouts(self) -> dict[str, Layout]:
        """The arrangements that the operator keeps."""
        ...

    def step(self, delta: pa.Table, state: State) -> Step:
        """Take a delta in, give the output's delta and the state's delta."""
        ...


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    """Column names `prefix0`, `prefix1`, ...: kernels know columns by place, not by SQL name."""
    return tuple(f"{prefix}{i}" for i in range(count))


def negative_weight(operator: str, row: dict[str, object]) -> StateError:
    """A retraction of a row that is not there: the state and its input contradict each other."""
    return StateError(
        f"operator {operator} was told to retract a row that it doesn't hold",
        condition="NEGATIVE_WEIGHT",
        row=row,
        hint="the state doesn't belong to the input; drop and create again the view",
    )


def without_debts(operator: str, rows: pa.Table) -> pa.Table:
    """The same rows; StateError NEGATIVE_WEIGHT if one of them has a weight below zero."""
    weights = rows[WEIGHT].to_numpy()
    if len(weights) and weights.min() < 0:
        raise negative_weight(operator, rows.slice(int(weights.argmin()), 1).to_pylist()[0])
    return rows


def empty_like(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    """No rows, with the named columns of `table`."""
    return table.select(list(columns)).slice(0, 0)
