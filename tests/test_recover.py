"""What is left after a crash or damage, and what opening makes of it. No JVM."""

from __future__ import annotations

import contextlib
import doctest
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eddyline.state.manifest
import eddyline.state.recover
import eddyline.testing.faults
from eddyline.catalog.store import open_store
from eddyline.changes import Epoch
from eddyline.errors import EddylineError, StateError, StorageError
from eddyline.source.files import FileStream
from eddyline.source.log_files import write_rows
from eddyline.source.redo_log import RedoLog
from eddyline.source.segment_readers import read_segment
from eddyline.source.segments import NDJSON, PARQUET
from eddyline.state.manifest import (
    Manifest,
    committed_epochs,
    last_committed,
    manifest_name,
    read_manifest,
    without_gaps,
    write_manifest,
)
from eddyline.state.recover import Recovery, decide, open_storage
from eddyline.state.runs import Run, keep_open, read_run, verify_run, write_run
from eddyline.storage.files import Files
from eddyline.storage.lock import StorageLock, in_use
from eddyline.testing import FaultyFiles
from retired import retire

ROWS = pa.table({"h": [1, 2, 3], "c0": ["x", "y", "z"], "w": [1, 1, 1]})
WIRE = pa.schema([("seq", pa.int64()), ("op", pa.string()), ("c0", pa.string()), ("w", pa.int64())])


@pytest.fixture(params=[False, True], ids=["small", "based"])
def based(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether manifests have bases, as in storages that aren't small."""
    if request.param:
        monkeypatch.setattr(eddyline.state.manifest, "SMALL_RUNS", 0)
    return bool(request.param)


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(str(tmp_path / "storage"))


def all_names(files: Files) -> set[str]:
    root = Path(files.root)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def commit(files: Files, epoch: int, kept: tuple[Run, ...] = (), attempt: str = "aa") -> Manifest:
    """An epoch with one new run, and one file that no manifest names."""
    folder = f"epochs/{epoch:012d}-{attempt}"
    files.make_folder(folder)
    files.write_json(f"{folder}/t1.op0.0.report.json", {}, durable=False)
    run = write_run(files, f"{folder}/t1.op0.rows.0.arrow", ROWS)
    manifest = Manifest(
        epoch,
        {"t1": epoch},
        {"t1/op0/rows": {0: (*kept, run)}},
        {"t1/op0/rows": {0: (run,)}},
        {"t": {"in": 3, "out": 3}},
    )
    write_manifest(files, manifest)
    return manifest


def runs(manifest: Manifest) -> tuple[Run, ...]:
    return manifest.runs("t1/op0/rows", 0)


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


def cut(path: str, at: int) -> None:
    os.truncate(path, at)


def gone(path: str, at: int) -> None:
    os.remove(path)


DAMAGES: list[Callable[[str, int], None]] = [flip, cut, gone]


@pytest.mark.parametrize(
    "module", [eddyline.state.manifest, eddyline.state.recover, eddyline.testing.faults]
)
def test_examples(module: object) -> None:
    globs = {"FaultyFiles": FaultyFiles, "tempfile": __import__("tempfile")}
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in finder.find(module):
        if "spark" not in (test.docstring or ""):
            test.globs.update(globs)
            runner.run(test)
    assert runner.failures == 0


# -- decisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "attempts", "decision"),
    [
        ([], [], Recovery(0)),
        ([], ["000000000001-aa"], Recovery(0, ("000000000001-aa",))),
        ([1], ["000000000001-aa", "000000000001-bb"], Recovery(1)),
        ([7, 8], ["000000000003-aa", "000000000009-cc"], Recovery(8, ("000000000009-cc",))),
    ],
)
def test_decide(epochs: list[int], attempts: list[str], decision: Recovery) -> None:
    assert decide(epochs, attempts) == decision


@given(st.sets(st.integers(1, 30)), st.lists(st.integers(1, 30)))
def test_what_is_committed_is_never_stale(epochs: set[int], attempts: list[int]) -> None:
    names = [f"{epoch:012d}-{i:02x}" for i, epoch in enumerate(attempts)]
    decision = decide(sorted(epochs), names)
    assert decision.epoch == max(epochs, default=0)
    assert {int(name[:12]) for name in decision.stale} == {
        epoch for epoch in attempts if epoch > decision.epoch
    }


@given(st.sets(st.integers(1, 30)))
def test_unbroken_ends_with_the_last_and_has_no_gap(epochs: set[int]) -> None:
    found = without_gaps(sorted(epochs))
    assert bool(found) == bool(epochs)
    if found:
        assert found == list(range(found[0], max(epochs) + 1))
        assert found[0] - 1 not in epochs


# -- files -------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_or_the_new_one(files: FaultyFiles) -> None:
    files.make_folder("")
    files.write_json("a", "old")
    for n in (1, 2, 3):
        files.arm(n)
        with pytest.raises(StorageError) as caught:
            files.write_json("a", "new")
        assert caught.value.condition == "WRITE_FAILED"
        assert caught.value.context["file"] == ("a" if n < 3 else "")  # the folder's entries
        assert files.read_json("a") == ("old" if n < 3 else "new")
        assert all_names(files) == {"a"}


@pytest.mark.usefixtures("based")
def test_a_crashed_write_leaves_a_file_that_opening_removes(files: FaultyFiles) -> None:
    open_storage(files, writable=True)
    for n in (1, 2):
        files.arm(n, "crash")
        with pytest.raises(StorageError):
            commit(files, 1, attempt=str(n))
    files.arm(2, "crash")
    with pytest.raises(StorageError):
        files.write_json("postgresql.json", {})
    assert any(name.endswith(".tmp") for name in all_names(files))
    files.arm(0)
    open_storage(files, writable=True)
    assert not all_names(files)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_document_is_named(
    files: FaultyFiles, damage: Callable[[str, int], None]
) -> None:
    files.make_folder("")
    files.write_json("document.json", {"some": "thing"})
    size = os.path.getsize(files.path("document.json"))
    whole = Path(files.path("document.json")).read_bytes()
    for at in range(size):
        Path(files.path("document.json")).write_bytes(whole)
        damage(files.path("document.json"), at)
        with pytest.raises(StateError) as caught:
            files.read_json("document.json")
        assert caught.value.condition == "DAMAGED_FILE"
        assert caught.value.context["file"] == "document.json"


def test_effects_are_counted_over_processes(files: FaultyFiles) -> None:
    files.make_folder("")
    files.arm(4)
    child = os.fork()
    if child == 0:
        files.write_json("a", 1)  # three effects
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(StorageError, match="effect 4"):
        files.write_json("b", 1)
    assert files.hit()
    assert files.effects()[:4] == ["write a", "rename a", "sync ", "write b"]


def test_kill_ends_the_process_that_makes_the_effect(files: FaultyFiles) -> None:
    files.make_folder("")
    files.arm(2, "kill")
    child = os.fork()
    if child == 0:
        files.write_json("a", 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == 9
    files.write_json("b", 1)
    assert not files.exists("a")
    assert files.read_json("b") == 1


def test_the_lock_is_free_when_its_process_dies(files: FaultyFiles) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if StorageLock(files).held else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert not in_use(files)
    lock = StorageLock(files)
    assert lock.held
    assert in_use(files)
    lock.release()
    assert not in_use(files)


# -- manifests and runs ------------------------------------------------------------------------


@pytest.mark.usefixtures("based")
def test_a_manifest_comes_back_as_it_was(files: FaultyFiles) -> None:
    open_storage(files, writable=True)
    assert last_committed(files) == Manifest(0)
    manifest = commit(files, 1)
    assert read_manifest(files, 1) == last_committed(files) == manifest
    with pytest.raises(StateError) as caught:
        read_manifest(files, 2)
    assert caught.value.condition == "NO_SUCH_EPOCH"


@pytest.mark.usefixtures("based")
def test_a_committed_epoch_is_never_written_again(files: FaultyFiles) -> None:
    open_storage(files, writable=True)
    manifest = commit(files, 1)
    with pytest.raises(StateError) as caught:
        commit(files, 1, attempt="bb")
    assert caught.value.condition == "EPOCH_COMMITTED"
    assert read_manifest(files, 1) == manifest


def test_a_manifest_keeps_what_has_an_owner(files: FaultyFiles) -> None:
    open_storage(files, writable=True)
    manifest = commit(files, 1)
    assert manifest.owned({"t1"}) == manifest
    bare = manifest.owned({"t11", "v2"})
    assert (bare.epoch, bare.positions, bare.arrangements, bare.deltas) == (1, {}, {}, {})


@pytest.mark.parametrize("newer", ["catalog.json", manifest_name(1)])
def test_a_newer_format_is_refused(files: FaultyFiles, newer: str) -> None:
    open_storage(files, writable=True)
    commit(files, 1)
    files.write_json("catalog.json", {"format": 1, "buckets": 2, "next_id": 1, "entries": []})
    files.write_json(newer, {**files.read_json(newer), "format": 99})
    with pytest.raises(StateError) as caught:
        open_store(files).read() if newer == "catalog.json" else open_storage(files, writable=True)
    assert caught.value.condition == "NEWER_FORMAT"
    assert caught.value.context["file"] == newer


@pytest.mark.usefixtures("based")
@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_last_manifest_is_named(
    files: FaultyFiles, damage: Callable[[str, int], None]
) -> None:
    open_storage(files, writable=True)
    kept = runs(commit(files, 1))
    commit(files, 2, kept)
    damage(files.path(manifest_name(2)), 30)
    with pytest.raises(StateError, match=manifest_name(2)):
        open_storage(files, writable=True)
    os.remove(files.path(manifest_name(2)))
    # the way out that is left: the epoch before, and the redo log again
    assert open_storage(files, writable=True).epoch == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named(files: FaultyFiles, damage: Callable[[str, int], None]) -> None:
    open_storage(files, writable=True)
    (run,) = runs(commit(files, 1))
    whole = Path(files.path(run.name)).read_bytes()
    for at in range(0, run.bytes, 97):
        Path(files.path(run.name)).write_bytes(whole)
        damage(files.path(run.name), at)
        with pytest.raises(StateError) as caught:
            open_storage(files, writable=True)
        assert caught.value.condition == "DAMAGED_RUN"
        assert caught.value.context["file"] == run.name


def test_a_run_that_is_cut_is_named_when_read(files: FaultyFiles) -> None:
    open_storage(files, writable=True)
    (run,) = runs(commit(files, 1))
    verify_run(files, run)
    assert read_run(files, run)["h"].to_pylist() == [1, 2, 3]
    (cut_run,) = runs(commit(files, 2))
    cut(files.path(cut_run.name), cut_run.bytes - 8)
    keep_open(files, [])  # else it is read from memory
    with pytest.raises(StateError, match=cut_run.name):
        read_run(files, cut_run)


def history(files: Files, epochs: int) -> list[Manifest]:
    """Epochs of which every third one merges all runs before it into one."""
    open_storage(files, writable=True)
    made: list[Manifest] = []
    kept: tuple[Run, ...] = ()
    for epoch in range(1, epochs + 1):
        made.append(commit(files, epoch, kept))
        kept = runs(made[-1]) if epoch % 3 else runs(made[-1])[-1:]
    return made


@pytest.mark.usefixtures("based")
def test_retiring_keeps_what_the_retained_epochs_need(files: FaultyFiles) -> None:
    made = history(files, 10)
    retire(files, 20)
    assert committed_epochs(files) == list(range(1, 11))
    retire(files, 3)
    assert committed_epochs(files) == [8, 9, 10]
    for manifest in made[7:]:
        for run in manifest.all_runs():
            verify_run(files, run)
    needed = {run.name for manifest in made[7:] for run in manifest.all_runs()}
    old = {
        name for name in all_names(files) if name.startswith("epochs/") and name[7:19] < f"{8:012d}"
    }
    assert old <= needed
    retire(files, 1)
    for run in made[-1].all_runs():
        verify_run(files, run)


@pytest.mark.usefixtures("based")
def test_retiring_leaves_epochs_that_are_still_needed(files: FaultyFiles) -> None:
    made = history(files, 10)
    retire(files, 3, Epoch(5))
    assert committed_epochs(files) == list(range(5, 11))
    for run in {run for manifest in made[4:] for run in manifest.all_runs()}:
        verify_run(files, run)
    retire(files, 3, Epoch(9))
    assert committed_epochs(files) == [8, 9, 10]
    retire(files, 2, Epoch(4))  # it is gone already
    assert committed_epochs(files) == [8, 9, 10]
    retire(files, 2, Epoch(11))  # not there yet
    assert committed_epochs(files) == [9, 10]


def test_retiring_may_be_broken_off_anywhere(tmp_path: Path, based: bool) -> None:
    whole = FaultyFiles(str(tmp_path / "whole"))
    made = history(whole, 10)
    whole.arm(0)
    retire(whole, 3)
    assert any(name.startswith("bases/") for name in all_names(whole)) == based
    wanted, count = all_names(whole), len(whole.effects())
    for n in range(1, count + 1):
        files = FaultyFiles(str(tmp_path / str(n)))
        history(files, 10)
        files.arm(n, "crash")
        with pytest.raises(StorageError):
            retire(files, 3)
        files.arm(0)
        assert open_storage(files, writable=True) == made[-1]
        retire(files, 3)
        assert all_names(files) == wanted


def test_stale_attempts_go_and_committed_ones_stay(files: FaultyFiles) -> None:
    open_storage(files, writable=True)
    commit(files, 1)
    files.make_folder("epochs/000000000002-aa")
    write_run(files, "epochs/000000000002-aa/v.arrow", ROWS)
    before = all_names(files)
    open_storage(files, writable=False)
    assert all_names(files) - {"leases/gate"} == before, "a reader removes nothing"
    open_storage(files, writable=True)
    assert before - all_names(files) == {"epochs/000000000002-aa/v.arrow"}


# -- redo logs ---------------------------------------------------------------------------------


def operations(*values: str) -> pa.Table:
    return pa.table({"c0": list(values), "op": ["append"] * len(values)})


def content(log: RedoLog, first: int = 0) -> list[str]:
    tables = [
        table
        for segment in log.segments(first, max(log.end(), first))
        for table in read_segment(log.files, segment, (), [0], WIRE)
    ]
    sequence = [n for table in tables for n in table["seq"].to_pylist()]
    assert sequence == sorted(set(sequence))
    return [value for table in tables for value in table["c0"].to_pylist()]


def test_a_log_counts_on_after_it_has_forgotten_everything(files: FaultyFiles) -> None:
    files.make_folder("")
    log = RedoLog(files, "t1")
    assert (log.start(), log.end()) == (0, 0)
    log.append_tables([operations("a", "b")])
    log.append_tables([operations("c")])
    assert content(log) == ["a", "b", "c"]
    log.forget(2)
    log = RedoLog(files, "t1")
    assert (log.start(), log.end()) == (2, 2)
    assert all_names(files) == {"logs/t1/start"}
    assert log.has(1)
    assert not log.has(2)
    log.append_tables([operations("d")])
    assert content(log, 2) == ["d"]
    with pytest.raises(StateError) as caught:
        log.verify(1)
    assert caught.value.condition == "LOG_TOO_SHORT"
    log.verify(2)
    log.verify(3)


def test_a_log_that_ends_before_the_position_is_noticed(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    files.make_folder("")
    log = RedoLog(files, "t1")
    for value in "abc":
        log.append_tables([operations(value)])
    files.remove("logs/t1/000000000002.json")
    log = RedoLog(files, "t1")
    log.verify(2)
    with pytest.raises(
        StateError, match="ends before entry 2, processed are those before 3"
    ) as caught:
        log.verify(3)
    assert caught.value.condition == "LOG_TOO_SHORT"
    log.skip(3)  # as a storage does that is opened as the error says
    log.verify(3)
    log.append_tables([operations("d")])
    assert content(log, 3) == ["d"]


def test_an_entry_is_there_or_not(tmp_path: Path) -> None:
    for n in range(1, 8):
        files = FaultyFiles(str(tmp_path / str(n)))
        log = RedoLog(files, "t1")
        log.append_tables([operations("a")])
        files.arm(n, "crash")
        failed = False
        try:
            log.append_tables([operations("b", "c")])
        except StorageError:
            failed = True
        assert failed == (n < 7)
        files.arm(0)
        log = RedoLog(files, "t1")
        log.tidy()
        log.verify(0)
        found = content(log)
        assert found == (["a"] if n < 6 else ["a", "b", "c"])
        named = {segment.file for segment in log.segments(0, log.end())}
        entries = {f"logs/t1/{number:012d}.json" for number in range(log.end())}
        assert all_names(files) == named | entries
        log.append_tables([operations("d")])
        assert content(log) == [*found, "d"]


def test_forgetting_may_be_broken_off_anywhere(tmp_path: Path) -> None:
    for n in range(1, 9):
        files = FaultyFiles(str(tmp_path / str(n)))
        log = RedoLog(files, "t1")
        for value in "abc":
            log.append_tables([operations(value)])
        files.arm(n, "crash")
        try:
            log.forget(2)
        except StorageError:
            assert n < 8
        files.arm(0)
        log = RedoLog(files, "t1")
        log.tidy()
        assert log.end() == 3
        assert content(log, 2) == ["c"]
        assert log.start() == (0 if n < 3 else 2)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("begin"), st.integers(0, 3)),
    st.tuples(st.just("mark"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["skip", "forget"]), st.integers(0, 3)),
)


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 12)), max_size=25))
def test_a_log_knows_what_is_there(steps: list[tuple[tuple[str, int], int]]) -> None:
    """What a writer has in mind is what the disk tells a new reader, also after failed writes."""
    with TemporaryDirectory() as folder:
        files = FaultyFiles(folder)
        log = RedoLog(files, "t1")
        for (step, by), fault in steps:
            number = max(log.end() - by, log.start())
            files.arm(fault, "fail")
            try:
                if step == "append":
                    log.append_tables([operations("a")] * by)
                elif step == "begin":
                    log.clear(log.end() + by)
                    write_rows(files, f"logs/t1/{log.end() + by:012d}-x.arrow", operations("b"))
                elif step == "mark":
                    log.mark(number, 1000 * number + by)
                else:
                    getattr(log, step)(number)
            except StorageError:
                pass
            files.arm(0)
            fresh = RedoLog(files, "t1")
            assert (log.start(), log.end()) == (fresh.start(), fresh.end())
            start, end = fresh.start(), fresh.end()
            assert log.segments(start, end) == fresh.segments(start, end)
        log.append_tables([operations("z")])
        own = f"logs/t1/{log.end() - 1:012d}-"
        named = {segment.file for segment in log.segments(log.end() - 1, log.end())}
        assert {name for name in all_names(files) if name.startswith(own)} == named


def test_forgetting_spares_an_entry_that_is_being_made(files: FaultyFiles) -> None:
    log = RedoLog(files, "t1")
    for value in "ab":
        log.append_tables([operations(value)])
    log.clear(2)
    segment = write_rows(files, f"{log.folder}/{2:012d}-x.arrow", operations("c"))
    log.forget(1)
    log.append(2, [segment])
    log.verify(1)
    assert content(log, 1) == ["b", "c"]
    assert content(RedoLog(files, "t1"), 1) == ["b", "c"]


def test_an_old_log_costs_no_more_than_a_young_one(
    files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, listed = RedoLog(files, "t1"), []
    log.append_tables([operations("a")])
    monkeypatch.setattr(files, "names", listed.append)
    for number in range(1, 5):
        log.append_tables([operations("b")])
        log.mark(number, number)
        (segment,) = log.segments(number, log.end())
        assert segment.watermark == number
    assert listed == []


def test_readers_see_what_another_process_has_logged(files: FaultyFiles) -> None:
    log, reader = RedoLog(files, "t1"), RedoLog(files, "t1")
    log.append_tables([operations("a")])
    assert content(reader) == ["a"]
    reader.append_tables([operations("b")])  # it has taken the storage over
    assert [len(log.segments(0, end)) for end in (1, 2)] == [1, 2]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_is_named(files: FaultyFiles, damage: Callable[[str, int], None]) -> None:
    log = RedoLog(files, "t1")
    log.append_tables([operations("a" * 100)])
    (segment,) = log.segments(0, 1)
    for name in ("logs/t1/000000000000.json", segment.file):
        path = Path(files.path(name))
        whole = path.read_bytes()
        for at in range(0, len(whole), 41):
            path.write_bytes(whole)
            if damage is gone and name.endswith(".json"):
                continue  # an entry that is gone was never made
            damage(str(path), at)
            with pytest.raises(StateError) as caught:
                log.verify(0)
            assert caught.value.context["file"] == name
            with pytest.raises(StateError):
                content(log)
        path.write_bytes(whole)
    log.verify(0)


def test_files_of_a_stream_are_noted_once(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.json").write_text(f'{{"v": {i}}}\n')
    for n in range(1, 14):
        for kind in ("crash", "fail"):
            files = FaultyFiles(str(tmp_path / f"{kind}{n}"))
            log = RedoLog(files, "s1")
            stream = FileStream("s", NDJSON, str(folder), 2, log)
            files.arm(n, kind)
            with contextlib.suppress(EddylineError):
                stream.pull()
            files.arm(0)
            if kind == "crash":
                stream = FileStream("s", NDJSON, str(folder), 2, RedoLog(files, "s1"))
            stream.pull()
            stream.pull()
            names = [Path(segment.file).name for segment in log.segments(0, log.end())]
            assert names == ["0.json", "1.json", "2.json"]


def test_rows_are_counted_without_any_column(files: FaultyFiles, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"v": 1}\n\n{"v": 2}\nbroken\n')
    pq.write_table(pa.table({"v": [1, 2, 3]}), tmp_path / "a.parquet")
    for kind, name in ((NDJSON, "a.json"), (PARQUET, "a.parquet")):
        log = RedoLog(files, kind)
        FileStream("s", kind, str(tmp_path / name), 10, log).pull()
        (segment,) = log.segments(0, 1)
        schema = pa.schema([("w", pa.int64())])
        read = [t["w"].to_pylist() for t in read_segment(files, segment, ("v",), [], schema)]
        assert read == [[1, 1, 1]]


def test_a_stream_file_that_shrank_is_named(files: FaultyFiles, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"v": "x"}\n' * 10)
    log = RedoLog(files, "s1")
    FileStream("s", NDJSON, str(path), 10, log).pull()
    (segment,) = log.segments(0, 1)
    schema = pa.schema([("c0", pa.string()), ("w", pa.int64())])
    read = [t["c0"].to_pylist() for t in read_segment(files, segment, ("v",), [0], schema)]
    assert read == [["x"] * 10]
    cut(str(path), 40)
    with pytest.raises(StateError, match=r"a\.json"):
        list(read_segment(files, segment, ("v",), [0], schema))
