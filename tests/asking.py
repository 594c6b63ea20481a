"""What tests of statements ask an engine."""

from __future__ import annotations

from collections import Counter

import pytest

import eddyline as el
from eddyline.errors import CONDITIONS, EddylineError


def rows(engine: el.Engine, name: str) -> Counter:
    """The rows of a relation."""
    return Counter(tuple(row) for row in engine.sql(f"SELECT * FROM `{name}`").collect())


def refused(engine: el.Engine, statement: str, condition: str) -> str:
    """The error of a statement that is refused with a condition."""
    assert condition in CONDITIONS
    with pytest.raises(EddylineError) as error:
        engine.execute(statement)
    assert error.value.condition == condition
    return str(error.value)
