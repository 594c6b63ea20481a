"""Manifests that name only what their epoch has changed: every retained epoch reads as it was written. No JVM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.changes import BucketId, Epoch
from eddyline.errors import StateError, StorageError
from eddyline.state import manifest as manifests
from eddyline.state.manifest import (
    BASED_VERSION,
    FORMAT_VERSION,
    Manifest,
    base_name,
    committed_epochs,
    last_committed,
    manifest_name,
    read_manifest,
    recent,
    stored_manifest,
    write_manifest,
)
from eddyline.state.recover import open_storage
from eddyline.state.run_lists import Arrangements, Buckets, changed_by, changes_to_json, to_json
from eddyline.state.runs import Run
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from retired import retire

EVERY = 4


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "SMALL_RUNS", 3)
    monkeypatch.setattr(manifests, "WHOLE_EVERY", EVERY)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FaultyFiles]:
    files = FaultyFiles(str(tmp_path / "storage"))
    files.make_folder("manifests")
    yield files
    recent.forget(files)


def run(number: int) -> Run:
    return Run(f"epochs/{number:012d}-aa/t1.op0.rows.arrow", number, 8 * number, number * 77)


def grown(epoch: int) -> Arrangements:
    """Return two arrangements: one of which an epoch adds to a bucket, and one that stays."""
    number = range(1, epoch + 1)
    return {
        "t1/op0/rows": {BucketId(b): tuple(run(n) for n in number if n % 2 == b) for b in (0, 1)},
        "v2/op1/rows": {BucketId(0): tuple(run(-n) for n in range(1, 30))},
    }


def commit(files: Files, epoch: int) -> Manifest:
    delta = {"t1/op0/rows": {BucketId(epoch % 2): (run(epoch),)}}
    made = Manifest(Epoch(epoch), {"t1": epoch}, grown(epoch), delta, {"t": {"out": epoch}})
    return write_manifest(files, made)


def assert_as_written(files: Files, epochs: list[int]) -> None:
    """Assert that each epoch reads as it was written: by a process that knows others, and by one that doesn't."""
    for known in (True, False):
        for epoch in epochs:
            if not known:
                recent.forget(files)
            found = read_manifest(files, Epoch(epoch))
            assert found.arrangements == grown(epoch)
            assert found.positions == {"t1": epoch}
            assert found.deltas == {"t1/op0/rows": {BucketId(epoch % 2): (run(epoch),)}}


def bases(files: Files) -> list[int]:
    return [int(name.removesuffix(".json")) for name in files.names("bases")]


# -- lists of runs -----------------------------------------------------------------------------

RUNS = st.lists(st.integers(1, 6).map(run), max_size=5).map(tuple)
BUCKETS: st.SearchStrategy[Buckets] = st.dictionaries(
    st.integers(0, 2).map(BucketId), RUNS, max_size=3
)
ARRANGEMENTS: st.SearchStrategy[Arrangements] = st.dictionaries(
    st.sampled_from(["t1/op0/rows", "v2/op0/rows", "v2/op1/held"]), BUCKETS
)


@given(ARRANGEMENTS, ARRANGEMENTS)
def test_changes_lead_from_any_lists_to_any_others(old: Arrangements, new: Arrangements) -> None:
    changes, added = changes_to_json(old, new)
    assert changed_by(old, changes) == new
    assert added <= sum(len(runs) for buckets in new.values() for runs in buckets.values())
    assert changes_to_json(new, new) == ({}, 0)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            ARRANGEMENTS,
            st.sampled_from(["forget", "open"]),
            st.integers(1, 4),  # how many epochs are retained from here on
        ),
        max_size=16,
    ),
    st.integers(1, 6),
    st.integers(0, 8),
)
def test_every_retained_epoch_reads_as_it_was_given(
    steps: list[Arrangements | str | int], every: int, small: int
) -> None:
    with (
        TemporaryDirectory() as folder,
        patch.object(manifests, "WHOLE_EVERY", every),
        patch.object(manifests, "SMALL_RUNS", small),
        patch("eddyline.state.recover.verify_run"),
    ):
        files = Files(folder)
        files.make_folder("manifests")
        given: dict[int, Arrangements] = {}
        for step in steps:
            if isinstance(step, dict):
                epoch = len(given) + 1
                write_manifest(files, Manifest(Epoch(epoch), arrangements=step, zone=str(epoch)))
                given[epoch] = step
            elif step == "forget":
                recent.forget(files)
            elif step == "open":
                open_storage(files, writable=True)
            elif given and isinstance(step, int):
                retire(files, step)
                assert committed_epochs(files) == committed_epochs(files)[-step:]
            for epoch in committed_epochs(files):
                found = read_manifest(files, epoch)
                assert (found.arrangements, found.zone) == (given[epoch], str(epoch))
            retained = committed_epochs(files)
            needed = stored_manifest(files, retained[0]).bases if retained else []
            assert bases(files) == [epoch for epoch in needed if epoch not in retained]


# -- what is written ---------------------------------------------------------------------------


def test_a_manifest_names_what_its_epoch_has_changed(files: FaultyFiles) -> None:
    for epoch in range(1, 11):
        commit(files, epoch)
    documents = {e: files.read_json(manifest_name(e)) for e in committed_epochs(files)}
    assert [e for e, found in documents.items() if "base" not in found] == [1, 5, 9]
    assert documents[9]["arrangements"] == to_json(grown(9))
    assert documents[7]["arrangements"] == {"t1/op0/rows": {"1": [3, run(7).as_list()]}}
    assert documents[7]["base"] == [6, stored_manifest(files, Epoch(6)).crc, 5, 2]
    assert {found["format"] for found in documents.values()} == {BASED_VERSION}
    assert_as_written(files, list(documents))


def test_it_names_all_again_once_the_changes_since_are_as_many(files: FaultyFiles) -> None:
    with patch.object(manifests, "WHOLE_EVERY", 100):
        for epoch in range(1, 13):
            arrangements = {
                "t1/op0/rows": {BucketId(0): tuple(run(epoch * 10 + i) for i in range(6))}
            }
            if epoch % 3:
                arrangements["t1/op0/rows"][BucketId(1)] = tuple(run(i) for i in range(1, 13))
            write_manifest(files, Manifest(Epoch(epoch), arrangements=arrangements))
            assert read_manifest(files, Epoch(epoch)).arrangements == arrangements
    whole = [e for e in committed_epochs(files) if "base" not in files.read_json(manifest_name(e))]
    assert whole == [1, 3, 5, 7, 9, 11]


def test_a_small_storage_stays_readable_for_older_versions(files: FaultyFiles) -> None:
    few = {"t1/op0/rows": {BucketId(0): (run(1), run(2))}}
    small = write_manifest(files, Manifest(Epoch(1), arrangements=few))
    assert files.read_json(manifest_name(1))["format"] == FORMAT_VERSION
    large = write_manifest(files, Manifest(Epoch(2), arrangements=grown(2), format=small.format))
    assert "base" in files.read_json(manifest_name(2))
    recent.forget(files)
    assert read_manifest(files, Epoch(2)).format == large.format == BASED_VERSION
    # the retained epochs before it have bases, so a small one isn't for older versions any more
    write_manifest(files, Manifest(Epoch(3), arrangements=few, format=large.format))
    assert files.read_json(manifest_name(3))["format"] == BASED_VERSION
    assert "base" not in files.read_json(manifest_name(3))


@pytest.mark.parametrize("form", [1, 2])
def test_a_storage_of_an_older_format_goes_on(files: FaultyFiles, form: int) -> None:
    """Older versions wrote all runs into each manifest, and nothing of bases."""
    for epoch in (1, 2):
        made = Manifest(Epoch(epoch), {"t1": epoch}, grown(epoch), {}, buckets=form - 1)
        files.write_json(manifest_name(Epoch(epoch)), made.as_document(to_json(made.arrangements)))
        assert files.read_json(manifest_name(Epoch(epoch)))["format"] == form
    commit(files, 3)
    assert files.read_json(manifest_name(3))["base"][0] == 2
    retire(files, 1)
    recent.forget(files)
    assert read_manifest(files, Epoch(3)).arrangements == grown(3)
    assert bases(files) == [2]


def test_nothing_is_read_again_that_is_known(files: FaultyFiles) -> None:
    for epoch in (1, 2, 3):
        commit(files, epoch)
    read: list[str] = []
    whole = Files.read_checked

    def counted(self: Files, name: str) -> tuple[bytes, int]:
        read.append(name)
        return whole(self, name)

    with patch.object(Files, "read_checked", counted):
        recent.forget(files)
        read_manifest(files, Epoch(2))
        assert read == [manifest_name(Epoch(2)), manifest_name(Epoch(1))]
        read.clear()
        read_manifest(files, Epoch(3))
        assert read == [manifest_name(Epoch(3))]


def test_another_storage_at_the_same_path_is_not_the_one_that_is_known(files: FaultyFiles) -> None:
    for epoch in (1, 2, 3):
        commit(files, epoch)
    shutil.rmtree(files.root)
    files.make_folder("manifests")
    for epoch in (1, 2):
        made = Manifest(Epoch(epoch), arrangements={"t9/op0/rows": grown(epoch + 9)["t1/op0/rows"]})
        write_manifest(files, made)
        assert last_committed(files).arrangements == made.arrangements


# -- retired epochs ----------------------------------------------------------------------------


def test_bases_outlive_their_epochs_and_are_none_themselves(files: FaultyFiles) -> None:
    for epoch in range(1, 8):
        commit(files, epoch)
    retire(files, 1)
    assert committed_epochs(files) == [7]
    assert bases(files) == [5, 6]
    assert_as_written(files, [7])
    with pytest.raises(StateError) as caught:
        read_manifest(files, Epoch(6))
    assert caught.value.condition == "NO_SUCH_EPOCH"
    for epoch in (8, 9, 10):
        commit(files, epoch)
    retire(files, 2)
    assert committed_epochs(files) == [9, 10]
    assert bases(files) == []  # epoch 9 names all runs
    assert_as_written(files, [9, 10])


def test_a_fault_at_every_effect_of_commits_and_retirements(tmp_path: Path) -> None:
    def work(files: FaultyFiles, first: int) -> None:
        for epoch in range(first, 8):
            commit(files, epoch)
            if epoch % 3 == 0:
                retire(files, 2)

    whole = FaultyFiles(str(tmp_path / "whole"))
    open_storage(whole, writable=True)
    whole.arm(0)
    work(whole, 1)
    effects = whole.effects()
    assert {effect.split()[0] for effect in effects} >= {"write", "link", "sync", "remove"}
    with patch("eddyline.state.recover.verify_run"):
        for kind in ("fail", "crash"):
            for n in range(1, len(effects) + 1):
                files = FaultyFiles(str(tmp_path / f"{kind}{n}"))
                open_storage(files, writable=True)
                files.arm(n, kind)
                with pytest.raises(StorageError):
                    work(files, 1)
                files.arm(0)
                last = open_storage(files, writable=True).epoch
                assert_as_written(files, list(committed_epochs(files)))
                work(files, last + 1)
                assert_as_written(files, list(committed_epochs(files)))
                retire(files, 2)
                assert committed_epochs(files) == [6, 7]
                assert bases(files) == [5]
                assert_as_written(files, [6, 7])


def test_a_reader_finds_a_base_that_is_retired_meanwhile(files: FaultyFiles) -> None:
    for epoch in range(1, 5):
        commit(files, epoch)
    assert read_while(files, 4, 3, lambda: retire(files, 1)).arrangements == grown(4)
    commit(files, 5)
    commit(files, 6)

    def gone() -> None:
        retire(files, 1)
        commit(files, 7)
        commit(files, 8)
        commit(files, 9)
        retire(files, 1)

    with pytest.raises(StateError) as caught:
        read_while(files, 6, 5, gone)
    assert caught.value.condition == "NO_SUCH_EPOCH"


def read_while(files: Files, epoch: int, base: int, action: Callable[[], None]) -> Manifest:
    """Read an epoch; another process acts just before this one reads a base of it."""
    recent.forget(files)
    whole, due = Files.read_checked, [manifest_name(Epoch(base))]

    def interrupted(self: Files, name: str) -> tuple[bytes, int]:
        if name in due:
            due.clear()
            action()
            recent.forget(files)
        return whole(self, name)

    with patch.object(Files, "read_checked", interrupted):
        return read_manifest(files, Epoch(epoch))


# -- damage ------------------------------------------------------------------------------------


def damage(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)


@pytest.mark.parametrize("harm", [damage, os.remove])
@pytest.mark.parametrize("number", [5, 6, 7, 8])
@pytest.mark.parametrize("retained", [1, 2, 8])
def test_a_damaged_base_is_named(
    files: FaultyFiles, harm: Callable[[str], None], number: int, retained: int
) -> None:
    for epoch in range(1, 9):
        commit(files, epoch)
    retire(files, retained)
    name = manifest_name(Epoch(number)) if number > 8 - retained else base_name(Epoch(number))
    harm(files.path(name))
    if number not in committed_epochs(files) and number == 9 - retained:
        name = base_name(Epoch(number))  # nothing tells that its epoch was retained
    if number == 8 and harm is os.remove:
        return  # another epoch is the last one then
    with patch("eddyline.state.recover.verify_run"), pytest.raises(StateError) as caught:
        open_storage(files, writable=True)
    assert caught.value.condition == "DAMAGED_FILE"
    assert caught.value.context["file"] == name


def test_a_manifest_of_another_history_is_no_base(files: FaultyFiles) -> None:
    for epoch in (1, 2, 3):
        commit(files, epoch)
    name = manifest_name(Epoch(2))
    files.write_json(name, {**files.read_json(name), "zone": "Mars"})
    recent.forget(files)
    with pytest.raises(StateError, match="based on another one") as caught:
        read_manifest(files, Epoch(3))
    assert caught.value.context["file"] == name


def test_a_base_of_a_newer_format_is_refused(files: FaultyFiles) -> None:
    for epoch in (1, 2):
        commit(files, epoch)
    name = manifest_name(Epoch(2))
    files.write_json(name, {**files.read_json(name), "format": BASED_VERSION + 1})
    with pytest.raises(StateError) as caught:
        last_committed(files)
    assert caught.value.condition == "NEWER_FORMAT"


def test_the_next_epoch_names_all_runs_where_its_base_is_damaged(files: FaultyFiles) -> None:
    commit(files, 1)
    commit(files, 2)
    damage(files.path(manifest_name(Epoch(2))))
    commit(files, 3)
    assert "base" not in files.read_json(manifest_name(3))
    assert_as_written(files, [3])


def test_epochs_that_are_not_flushed_end_before_a_damaged_base(files: FaultyFiles) -> None:
    """With `at_least_once` a power cut may damage any of the newest files."""
    for epoch in range(1, 9):
        commit(files, epoch)
    damage(files.path(manifest_name(Epoch(7))))
    with (
        patch("eddyline.state.recover.verify_run"),
        patch.object(FaultyFiles, "exists", lambda self, name: "epochs/" in name or Files.exists(self, name)),
        patch.object(FaultyFiles, "sync"),
    ):  # fmt: skip
        assert open_storage(files, writable=True, lenient=True).epoch == 6
    assert committed_epochs(files) == [1, 2, 3, 4, 5, 6]
    commit(files, 7)
    assert_as_written(files, [5, 6, 7])


def test_a_base_stays_although_runs_of_its_epoch_are_missing(files: FaultyFiles) -> None:
    """Its epoch can't be read any more; later ones, which have merged those runs, can."""
    merged = {"t1/op0/rows": {BucketId(0): tuple(run(n) for n in range(10, 20))}}
    commit(files, 1)
    commit(files, 2)
    last = write_manifest(files, Manifest(Epoch(3), arrangements={**grown(2), **merged}))
    assert "base" in files.read_json(manifest_name(3))
    lost = run(2).name
    with (
        patch("eddyline.state.recover.verify_run"),
        patch.object(FaultyFiles, "exists", lambda self, name: name != lost and ("epochs/" in name or Files.exists(self, name))),
        patch.object(FaultyFiles, "sync"),
    ):  # fmt: skip
        assert open_storage(files, writable=True, lenient=True) == last
    assert committed_epochs(files) == [1, 3]
    assert bases(files) == [2]
    recent.forget(files)
    assert read_manifest(files, Epoch(3)) == last
