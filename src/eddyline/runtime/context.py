"""The epoch of a Spark task, and the names of the files that tasks and the driver exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark import TaskContext

from eddyline.changes import Epoch, ViewId
from eddyline.errors import EngineError

PROPERTY = "eddyline.epoch"
REPORT = ".report.json"


@dataclass(frozen=True, slots=True)
class EpochContext:
    """The epoch that a task works for. It is passed as a local property of the Spark job.

    Attributes:
        folder: folder in the storage for the files of this attempt at the epoch.
        base: the last committed epoch, whose state is read.
        limits: for a stateful operator (`part_name`) one value for each of its expiries: rows of
            its state below that value may be dropped; None if no row may be dropped yet.
        rebuilt: ids of views whose state is computed again: their stored state isn't read.
        adopted: id of a new view whose state was computed before the epoch, and the file that lists its runs.
    """

    folder: str
    base: Epoch
    limits: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    rebuilt: tuple[ViewId, ...] = ()
    adopted: tuple[str, str] = ("", "")

    def as_property(self) -> str:
        """Return the text of the local property."""
        return json.dumps([self.folder, self.base, self.limits, self.rebuilt, self.adopted])

    @classmethod
    def current(cls) -> EpochContext:
        """Return the context of the running task.

        Raises:
            EngineError: the task doesn't belong to an epoch.
        """
        context = TaskContext.get()
        text = context.getLocalProperty(PROPERTY) if context else None
        if text is None:
            raise EngineError(
                "a kernel ran outside of an epoch",
                condition="NO_EPOCH",
                hint="read results with view.snapshot(), not through the compiled plan",
            )
        return cls(*json.loads(text))


def inputs_name(folder: str, node: str) -> str:
    """Return the name of the file that lists the segments which a view's leaves read."""
    return f"{folder}/{node}.inputs.json"


def part_name(node: str, part: str) -> str:
    """Return the name of a stateful operator, unique in the storage."""
    return f"{node}/{part}"


def arrangement_name(node: str, part: str, slot: str) -> str:
    """Return the name of an arrangement in the manifest."""
    return f"{part_name(node, part)}/{slot}"
