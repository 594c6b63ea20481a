"""The compiled form of a view: a DAG of operators, cut into parts at the shuffles."""

from __future__ import annotations

from dataclasses import dataclass, field

from eddyline.operators.base import Operator
from eddyline.plan.eventtime import Bound, Expiry
from eddyline.source.conditions import Condition
from eddyline.source.rounding import Rounding
from eddyline.state.expiry import ExpiryColumn


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a view's DAG, as `explain` shows it.

    Attributes:
        name: what the operator does, as SQL calls it.
        rule: the incremental rule: stateless, linear, recompute, bilinear, ...
        detail: its expressions, shortened.
        keys: the keys of its state.
        state: which rows it keeps; empty for a stateless operator.
        shuffle: whether its input is shuffled by its keys, which begins a new part.
        children: its inputs.
    """

    name: str
    rule: str
    detail: str = ""
    keys: tuple[str, ...] = ()
    state: str = ""
    shuffle: bool = False
    children: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        if self.shuffle and not self.children:
            raise ValueError("a leaf has no input to shuffle")

    @property
    def stateful(self) -> bool:
        """Whether the operator keeps state; `explain` calls it class 2, others class 1."""
        return bool(self.state)

    @property
    def level(self) -> int:
        """The number of shuffles from the leaves up to here, plus one."""
        below = max((child.level for child in self.children), default=1)
        return below + self.shuffle


@dataclass(frozen=True, slots=True)
class StatefulPart:
    """A stateful operator as the epoch runs it.

    Attributes:
        name: unique within the view; part of file names.
        buckets: number of tasks, each with one bucket of its state.
        expiry: the rows of its state that a watermark allows to drop.
    """

    name: str
    operator: Operator
    buckets: int
    expiry: tuple[Expiry, ...] = ()

    @property
    def expiry_columns(self) -> tuple[ExpiryColumn, ...]:
        """What is compared with the limits of an epoch, in the order of `expiry`."""
        return tuple(ExpiryColumn(e.slot, e.column, e.bound.field, e.sessions) for e in self.expiry)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One input of a compiled view.

    Attributes:
        name: within the view, unique.
        relation: table, stream or view that it reads; empty for constant rows.
        columns: positions of the columns that are needed.
        time: position of the event-time column of a stream with a watermark; else None.
        late: whether it reads the late rows instead of those in time.
        where: rows for which this isn't true may be left out; it isn't a part of the plan's fingerprint.
        rounded: times that may be rounded down; neither is this.
    """

    name: str
    relation: str
    columns: tuple[int, ...]
    time: int | None = None
    late: bool = False
    where: Condition | None = field(default=None, repr=False)
    rounded: tuple[Rounding, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a row's moment with the clock.

    Attributes:
        first: its value until the moment has come.
        bound: a row's moment has come when it is below this value of the clock.
        text: the comparison, for `explain`.
    """

    first: bool
    bound: Bound
    text: str
