"""The interface of stateful operators, and helpers that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import pyarrow as pa

from eddyline.changes import WEIGHT
from eddyline.errors import StateError
from eddyline.state.arrangement import Arrangement, Layout

State = Mapping[str, Arrangement]

STATE_VERSION = 1
"""To be raised whenever an operator reads or writes its state in another way: stored views are then rebuilt."""


@dataclass(frozen=True, slots=True)
class BucketResult:
    """The result of one epoch for one bucket of an operator.

    Attributes:
        output: the change of the operator's output, in tables of its output schema. The column `h` comes first: a
            hash that also occurs in the delta, whose bucket the row belongs to. A `Timed` operator has none.
        appends: for each arrangement the rows to add to it, in its layout.
    """

    output: Iterable[pa.Table]
    appends: dict[str, pa.Table] = field(default_factory=dict)


class Operator(Protocol):
    """A stateful operator over one bucket.

    `step` must be a pure function of the delta and the state, so that a task which runs twice
    writes the same bytes. The rows of a delta come in no particular order.

    Attributes:
        family: what it does, in one word, for metrics.
    """

    family: ClassVar[str]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The arrangements that the operator keeps."""
        ...

    def step(self, delta: pa.Table, state: State) -> BucketResult:
        """Process the changes of one epoch; return the changes of output and state."""
        ...


class Timed(Operator):
    """An operator whose rows change as time passes: its tasks run even without input.

    Its only expiry is by the time of its rows, and it removes them from its state itself. This is no protocol: epochs ask of
    each operator whether it is one, which takes 17 microseconds with a protocol.
    """

    @abstractmethod
    def limited(self, bound: int | None) -> Operator:
        """Return the operator for an epoch in which times below the bound have passed."""
        ...


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    """Return column names `prefix0`, `prefix1`, ...: operators know columns by place, not by SQL name."""
    return tuple(f"{prefix}{i}" for i in range(count))


def negative_weight(operator: str, row: dict[str, object]) -> StateError:
    """Return the error for the retraction of a row that is not in the state."""
    return StateError(
        f"operator {operator} was told to retract a row that it doesn't hold",
        condition="NEGATIVE_WEIGHT",
        row=row,
        hint="the state doesn't belong to the input; drop and create again the view",
    )


def checked_weights(operator: str, rows: pa.Table) -> pa.Table:
    """Return the rows unchanged; StateError NEGATIVE_WEIGHT if a weight is below zero."""
    weights = rows[WEIGHT].to_numpy()
    if len(weights) and weights.min() < 0:
        raise negative_weight(operator, rows.slice(int(weights.argmin()), 1).to_pylist()[0])
    return rows


def empty_like(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    """Return an empty table with the named columns of `table`."""
    return table.select(list(columns)).slice(0, 0)
