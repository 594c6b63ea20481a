"""How large the state of views and of their operators is."""

from __future__ import annotations

from eddyline.answers.state_sizes import operator_sizes, state_size
from eddyline.catalog.entries import VIEW, Entry
from eddyline.changes import BucketId, Epoch
from eddyline.state.manifest import Manifest
from eddyline.state.runs import Run


def test_arrangements_of_an_operator_are_added_up() -> None:
    run = Run("r", 2, 100, 0)
    manifest = Manifest(
        Epoch(1),
        arrangements={
            "v1/op0/left": {BucketId(0): (run, run), BucketId(1): (run,)},
            "v1/op0/right": {BucketId(0): (run,)},
            "v1/op1/rows": {BucketId(1): (run,)},
            "v12/op0/rows": {},
        },
    )
    assert operator_sizes(manifest) == {
        "v1": {"op0": (8, 400), "op1": (2, 100)},
        "v12": {"op0": (0, 0)},
    }
    assert state_size(manifest, Entry("v1", VIEW, "v", "")) == (10, 500)
