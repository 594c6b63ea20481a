"""Rules that rows of a stream or view are expected to meet: `CONSTRAINT name EXPECT (condition)`."""

from __future__ import annotations

from dataclasses import dataclass

KEEP, DROP_ROW, DEAD_LETTER, STOP = "keep", "drop row", "dead letter", "stop"
"""What becomes of a row that violates an expectation."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A rule: a row meets it if `condition`, which is SQL, is true, and violates it if it is false or null.

    Attributes:
        action: `KEEP`, `DROP_ROW`, `DEAD_LETTER` or `STOP`.
    """

    name: str
    condition: str
    action: str = KEEP

    @property
    def removes(self) -> bool:
        """Whether a row that violates it is dropped from the relation."""
        return self.action in (DROP_ROW, DEAD_LETTER)

    @property
    def violated(self) -> str:
        """SQL that is true for a row that violates the rule, and false for any other; never NULL."""
        return f"({self.condition}\n) IS NOT TRUE"
