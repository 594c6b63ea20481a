"""The runs of arrangements as JSON: all of them, or the changes between two lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eddyline.changes import BucketId
from eddyline.state.runs import Run
from eddyline.storage.files import Files

Buckets = dict[BucketId, tuple[Run, ...]]
Arrangements = dict[str, Buckets]
Place = tuple[str, BucketId]
"""An arrangement and one of its buckets."""


def to_json(arrangements: Mapping[str, Buckets]) -> dict[str, Any]:
    """Return all runs: name of the arrangement -> bucket -> runs."""
    return {
        name: {str(bucket): [run.as_list() for run in runs] for bucket, runs in buckets.items()}
        for name, buckets in arrangements.items()
    }


def from_json(document: Mapping[str, Any]) -> Arrangements:
    """Return the arrangements from a document of `to_json`."""
    return {
        name: {
            BucketId(int(bucket)): tuple(Run(*run) for run in runs)
            for bucket, runs in buckets.items()
        }
        for name, buckets in document.items()
    }


def write_arrangements(files: Files, name: str, arrangements: Mapping[str, Buckets]) -> None:
    """Write a list of runs that no epoch has committed yet, for the tasks of an epoch."""
    files.write_json(name, to_json(arrangements), durable=False)


def read_arrangements(files: Files, name: str) -> Arrangements:
    """Read a list of runs that `write_arrangements` has written."""
    return from_json(files.read_json(name))


def renamed(arrangements: Mapping[str, Buckets], name: Callable[[str], str]) -> Arrangements:
    """Return the same runs under other names of their files."""
    return {
        arrangement: {
            bucket: tuple(replace(run, name=name(run.name)) for run in runs)
            for bucket, runs in buckets.items()
        }
        for arrangement, buckets in arrangements.items()
    }


def count_runs(arrangements: Mapping[str, Buckets]) -> int:
    """Return the number of runs in all buckets."""
    return sum(sum(map(len, buckets.values())) for buckets in arrangements.values())


def changes_to_json(
    old: Mapping[str, Buckets], new: Mapping[str, Buckets]
) -> tuple[dict[str, Any], int]:
    """Return the changes between two lists of runs, and how many runs they add.

    A changed bucket is a list: how many of its first runs stay, then the runs that follow them. A bucket
    or arrangement that is gone is null.
    """
    changes: dict[str, Any] = dict.fromkeys(name for name in old if name not in new)
    added = 0
    for name, buckets in new.items():
        known = old.get(name)
        if known is buckets:
            continue
        before = known or {}
        changed: dict[str, Any] = {str(b): None for b in before if b not in buckets}
        for bucket, runs in buckets.items():
            had = before.get(bucket)
            if had is runs or had == runs:
                continue
            kept = common_start(had or (), runs)
            changed[str(bucket)] = [kept, *(run.as_list() for run in runs[kept:])]
            added += len(runs) - kept
        if changed or known is None:
            changes[name] = changed
    return changes, added


def changed_by(arrangements: Mapping[str, Buckets], changes: Mapping[str, Any]) -> Arrangements:
    """Apply changes of `changes_to_json` to arrangements; unchanged parts are shared."""
    return _after(
        arrangements,
        {
            name: None
            if changed is None
            else {
                BucketId(int(bucket)): runs and (runs[0], *(Run(*run) for run in runs[1:]))
                for bucket, runs in changed.items()
            }
            for name, changed in changes.items()
        },
    )


def apply_json_changes(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes of `changes_to_json` to a document of `to_json`; unchanged parts are shared."""
    return _after(document, changes)


def _after(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for name, changed in changes.items():
        if changed is None:
            del result[name]
            continue
        buckets = result[name] = dict(result.get(name, {}))
        for bucket, runs in changed.items():
            if runs is None:
                del buckets[bucket]
            else:
                kept, *added = runs
                buckets[bucket] = (*buckets.get(bucket, ())[:kept], *added)
    return result


def common_start(old: Sequence[Run], new: Sequence[Run]) -> int:
    """Return how many runs two lists have in common at their start."""
    most = min(len(old), len(new))
    if old[:most] == new[:most]:
        return most
    pairs = enumerate(zip(old, new, strict=False))
    return next(at for at, (one, other) in pairs if one is not other and one != other)
