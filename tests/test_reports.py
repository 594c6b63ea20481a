"""What the driver checks of the reports that the tasks of an epoch leave."""

from __future__ import annotations

import pytest

from eddyline.changes import BucketId
from eddyline.errors import StateError
from eddyline.runtime.reports import EpochState, _slot
from eddyline.state.runs import Run

WRITTEN = {"kept": 2, "runs": [], "merge": False, "delta": []}


def test_a_report_of_another_state_is_refused() -> None:
    """Its task has read more runs than the last epoch has."""
    run = Run("epochs/1-a/v1.op0", 10, 100, 7)
    held = {"v1/op0": {BucketId(3): (run, run)}}
    assert _slot("v1/op0", BucketId(3), WRITTEN, EpochState(held)) == []
    held = {"v1/op0": {BucketId(3): (run,)}}
    with pytest.raises(
        StateError, match="2 runs of bucket 3, of which the last epoch has 1"
    ) as error:
        _slot("v1/op0", BucketId(3), WRITTEN, EpochState(held))
    assert error.value.condition == "WRONG_REPORT"
