"""The plans that an epoch runs: compiled tables and views, and their input in that epoch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyspark

from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, Entry
from eddyline.errors import EddylineError, StateError
from eddyline.intake.sources import Sources
from eddyline.operators.base import STATE_VERSION
from eddyline.plan.nodes import Leaf, StatefulPart
from eddyline.runtime.context import EpochContext, arrangement_name
from eddyline.runtime.shared_scans import SharedScans
from eddyline.runtime.wide_lane import WidePlan
from eddyline.source.segments import Segment
from eddyline.state.manifest import ROWS, Manifest

Reports = Mapping[str, Sequence[dict[str, Any]]]
"""What the tasks of a plan have done, by the name of the leaf or operator."""

# what differs between two compilations of one plan: ids, numbers of stages and tasks
_VOLATILE = re.compile(r"#\d+L?|\*\(\d+\) |\[plan_id=\d+\]|Range \(.*?\)")
_LAMBDA = re.compile(r"lambda (\w+?)_\d+(?=#)")  # PySpark numbers the variables of its lambdas
_COMMON = re.compile(r"_common_expr_\d+")  # Spark numbers them through all plans of a JVM


def fingerprint(
    parts: Sequence[StatefulPart], leaves: Sequence[Leaf], hash_bits: int, steps: str = ""
) -> str:
    """Return a text that is equal for plans that write and read the same state.

    It covers the operators and layouts in their order, the columns that they read, and for a view
    Spark's plan between them and Spark's version.

    Args:
        steps: the text of Spark's plans between the operators; empty for a table or stream.
    """
    layouts = [(part.name, part.operator, part.buckets, part.operator.layouts) for part in parts]
    stable = _VOLATILE.sub("", _LAMBDA.sub(r"lambda \1", steps))
    numbers = {name: place for place, name in enumerate(dict.fromkeys(_COMMON.findall(stable)))}
    stable = _COMMON.sub(lambda name: f"_common_expr_{numbers[name[0]]}", stable)
    lines = [_canonical(line) for line in stable.splitlines()]
    expiry = [part.expiry for part in parts]
    form = repr((STATE_VERSION, hash_bits, layouts, expiry, list(leaves), lines))
    digest = hashlib.sha256(form.encode()).hexdigest()[:16]
    return f"{digest} spark {pyspark.__version__}" if steps else digest


def _canonical(line: str) -> str:
    """Return a line of a plan with the terms of a condition sorted: Spark keeps them in sets."""
    return " AND ".join(sorted(line.split(" AND "))) if "Filter" in line else line


def other_plan(entry: Entry) -> EddylineError:
    """Return the error for a table or stream whose state another plan has written."""
    return StateError(
        f"the rows of {entry.kind} {entry.name} were written by another plan",
        condition="OTHER_PLAN",
        hint="open the storage with the options (EDDYLINE_*) and the version that it was made with",
    )


class ShortPlan(Protocol):
    """A plan that runs in the driver; see `runtime/short_lane.py`."""

    def run(
        self,
        context: EpochContext,
        segments: Mapping[str, Sequence[Segment]],
        shared: SharedScans | None = None,
    ) -> Reports | None:
        """Run one epoch over the segments of each leaf; None if there are too many rows.

        Args:
            shared: reads what other plans of the epoch read, too.

        Raises:
            Exception: whatever Spark or an operator raises.
        """
        ...


class Upkeep(Protocol):
    """Applies the operations of a table; see `runtime/table.py`."""

    def __call__(self, context: EpochContext, segments: Sequence[Segment]) -> Reports:
        """Apply the operations of some segments of the redo log."""
        ...


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """A compiled table or view as epochs run it.

    Attributes:
        id, name: id and name of the catalog entry.
        upkeep: applies the operations of a table in the driver; None for a view or stream.
        wide: the plan for the wide lane; None for a table.
        leaves, parts: inputs and stateful operators; the last part holds the result.
        level: distance from the sources; plans of one level run side by side.
        fingerprint: equal for plans that write and read the same state; see `fingerprint`.
        short: the plan for the short lane; None if it can't run there.
        key: places of the columns that identify a row of the result; None if there is no known key.
        maker: versions, options and definitions with which a view's plan is always the same one; empty if its plan, or its
            rows, may become others without new input.
        earlier: for leaves the ones that a filling in pieces reads before them; see `plan/reading_order.py`.
    """

    id: str
    name: str
    upkeep: Upkeep | None
    wide: WidePlan | None
    leaves: tuple[Leaf, ...]
    parts: tuple[StatefulPart, ...]
    level: int
    fingerprint: str
    short: ShortPlan | None = None
    key: tuple[int, ...] | None = None
    maker: str = ""
    earlier: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """The name of the arrangement that holds the result."""
        return arrangement_name(self.id, self.parts[-1].name, ROWS)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The input of one plan in one epoch.

    Attributes:
        segments: by leaf name, the segments that are known before the epoch.
        deltas: names of the leaves that read the changes of their relation in this epoch.
    """

    plan: EpochPlan
    segments: Mapping[str, Sequence[Segment]]
    deltas: frozenset[str] = frozenset()

    def resolved(self, changed: Mapping[str, Sequence[Segment]]) -> dict[str, list[Segment]]:
        """Return the segments of each leaf.

        Args:
            changed: the changes of this epoch so far, by the relation's name in lower case.
        """
        return {
            leaf.name: list(
                changed.get(leaf.relation.lower(), ())
                if leaf.name in self.deltas
                else self.segments.get(leaf.name, ())
            )
            for leaf in self.plan.leaves
        }


def new_input(
    plan: EpochPlan,
    catalog: Catalog,
    sources: Sources,
    base: Manifest,
    positions: Mapping[str, int],
) -> PlanInput:
    """Return the input of a plan in an ordinary epoch: new rows of streams, changes of other relations.

    Args:
        base: the last committed epoch.
        positions: for sources with new input, the end of the part that the epoch reads.
    """
    segments: dict[str, list[Segment]] = {}
    deltas = set()
    for leaf in plan.leaves:
        if not leaf.relation:
            continue  # constant rows are read in the view's first epoch only
        entry = catalog.get(leaf.relation)
        if entry.id == plan.id or (entry.kind == STREAM and not entry.arranged):
            segments[leaf.name] = sources.between(entry, base, positions.get(entry.source))
        else:
            deltas.add(leaf.name)
    return PlanInput(plan, segments, frozenset(deltas))
