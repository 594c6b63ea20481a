"""A sink in memory."""

from __future__ import annotations

import pyarrow as pa

from eddyline.changes import APPEND, Epoch
from eddyline.testing.offline import Row


class MemorySink:
    """A sink that keeps the rows of a view, as of an epoch, in memory.

    It commits rows and epoch together, as a database does, and raises AssertionError for changes
    that don't fit the rows it holds.

    Attributes:
        epoch: the epoch of the rows; None before the first delivery.
        rows: all rows; equal rows are repeated.
        received: for each call so far its name, `replace` or `deliver`, and the epoch.
    """

    def __init__(self) -> None:
        self.epoch: Epoch | None = None
        self.received: list[tuple[str, Epoch]] = []
        self._held: dict[str, tuple[Row, int]] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for row, count in self._held.values() for _ in range(count)]

    def committed(self) -> Epoch | None:
        return self.epoch

    def deliver(self, base: Epoch, epoch: Epoch, changes: pa.Table) -> None:
        if self.epoch != base or epoch <= base:
            raise AssertionError(
                f"changes from {base} to {epoch} come to a target with {self.epoch}"
            )
        self._commit("deliver", epoch, dict(self._held), changes)

    def replace(self, base: Epoch | None, epoch: Epoch, rows: pa.Table) -> None:
        if self.epoch != base:
            raise AssertionError(f"a target with {self.epoch} is replaced as if it had {base}")
        self._commit("replace", epoch, {}, rows)

    def close(self) -> None:
        pass

    def _commit(
        self, call: str, epoch: Epoch, held: dict[str, tuple[Row, int]], changes: pa.Table
    ) -> None:
        for *values, operation, weight in zip(
            *(c.to_pylist() for c in changes.columns), strict=True
        ):
            row = tuple(values)
            count = held.get(repr(row), (row, 0))[1] + weight
            if count < 0 or (operation == APPEND) != (weight > 0):
                raise AssertionError(f"{operation} of {row} with weight {weight} doesn't fit")
            held[repr(row)] = row, count
        self.epoch, self._held = epoch, {text: own for text, own in held.items() if own[1]}
        self.received.append((call, epoch))
