"""The compiled form of a view: a DAG of operators, cut into parts at the shuffles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eddyline.operators.base import Operator
from eddyline.plan.eventtime import Expiry


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a view's DAG, as `explain` shows it.

    Attributes:
        name: what it does, in the words of SQL.
        rule: the incremental rule (DESIGN: stateless, linear, recompute, bilinear, ...).
        detail: expressions, shortened.
        keys: what its state is keyed by.
        state: what it keeps; empty for a stateless operator.
        shuffle: its input is shuffled by its keys: a new part begins here.
        children: where its input comes from.
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
        """Class 2 (keeps logical state) rather than class 1."""
        return bool(self.state)

    @property
    def level(self) -> int:
        """How many shuffles lie below, this one's included."""
        below = max((child.level for child in self.children), default=1)
        return below + self.shuffle

    def over(self, *children: Node) -> Node:
        """The same operator over other inputs."""
        return replace(self, children=children)


@dataclass(frozen=True, slots=True)
class StatefulPart:
    """A stateful operator as the epoch runs it.

    Attributes:
        name: within the view.
        buckets: how many tasks keep its state.
        expiry: which rows of its state a watermark makes useless.
    """

    name: str
    operator: Operator
    buckets: int
    expiry: tuple[Expiry, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One input of a compiled view.

    Attributes:
        name: within the view, unique.
        relation: table, stream or view that it reads; empty for constant rows.
        columns: places of the columns that are needed.
        time: of a stream with a watermark the place of its event time.
        late: it reads the late rows, not those in time.
    """

    name: str
    relation: str
    columns: tuple[int, ...]
    time: int | None = None
    late: bool = False
