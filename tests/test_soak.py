"""A short run of the long test `soak.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak import soak

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_random_changes_and_faults_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = soak(tmp_path, minutes=0.8, seed=11)
    assert sum(outcome.faults.values()) >= 2
    assert outcome.numbers["records"] > 0
