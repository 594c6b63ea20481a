"""The wide lane: an epoch of one view as jobs of Spark, for many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import Plan
from eddyline.plan.nodes import StatefulPart
from eddyline.plan.partitions import check_partitions
from eddyline.runtime.sizes import keeps_rows_short


@dataclass(frozen=True, slots=True)
class Jobs:
    """What Spark runs for a view.

    Attributes:
        plans: physical plans, in their order; those before the last one write rows that it reads more than once.
        short_rows: whether no output row is much longer than the input rows that it is computed from.
    """

    plans: Sequence[Plan]
    short_rows: bool


class WidePlan:
    """A view's plan for the wide lane.

    Spark plans it when it is first used. That takes about as long as all the rest of making a view, and most views
    never get so many rows.

    Args:
        catalyst: of the session in which the view was compiled; its optimiser keeps operators.
        compose: returns Spark's logical plans, in the order in which they run.
        parts: the stateful operators.
    """

    def __init__(
        self,
        view: str,
        catalyst: Catalyst,
        compose: Callable[[], Sequence[Plan]],
        parts: Sequence[StatefulPart],
    ) -> None:
        self._view, self._catalyst, self._compose, self._parts = view, catalyst, compose, parts

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs.

        Raises:
            EngineError: WRONG_PARTITIONS, the rows of an operator aren't in the buckets of its state.
            Exception: whatever Spark raises.
        """
        physicals = [*map(self._catalyst.executable, self._compose())]
        check_partitions(self._view, physicals, self._parts)
        shown = "\n".join(physical.toString() for physical in physicals)
        return Jobs(physicals, keeps_rows_short(shown))
