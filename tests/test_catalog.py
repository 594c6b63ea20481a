"""The catalog in its database, and the requests beside it: SQLite and a real PostgreSQL. No JVM."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postgres
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import STREAM, TABLE, VIEW, Entry
from eddyline.catalog.postgres import POINTER, PostgresDatabase, _Watchdog
from eddyline.catalog.requests import DONE, REFUSED, WAITING, Inbox
from eddyline.catalog.sqlite import NAME
from eddyline.catalog.store import DOCUMENT, CatalogStore, open_store
from eddyline.errors import CatalogError, EddylineError, EngineError, StateError, StorageError
from eddyline.options import Options
from eddyline.storage.files import Files
from eddyline.testing import FaultyFiles
from waiting import until

READER = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    found: postgres.Server = request.getfixturevalue("server")
    return found.url


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    made = FaultyFiles(str(tmp_path / "storage"))
    made.make_folder("")
    return made


@pytest.fixture
def store(files: FaultyFiles, url: str) -> Iterator[CatalogStore]:
    made = open_store(files, url)
    yield made
    made.close()


def some(number: int = 0) -> Catalog:
    table = Entry("", TABLE, "Übung", '{"type": "struct"}', ("a", "b c"))
    stream = Entry(
        "", STREAM, "s'q", "{}", format="csv", options={"path": f"/x{number}", "?": "%s"}
    )
    view = Entry(
        "", VIEW, "v", "{}", query="SELECT '?', \"%\"\n", upstream=("Übung", "s'q"), since=3
    )
    return Catalog(4).add(table).add(stream).add(view).pause("v", 7)


def again(store: CatalogStore, url: str) -> Catalog | None:
    """What another process sees."""
    other = open_store(Files(store.files.root), url)
    try:
        return other.read()
    finally:
        other.close()


# -- the catalog -------------------------------------------------------------------------------


def test_it_comes_back_as_it_was(store: CatalogStore, url: str) -> None:
    assert store.read() is None
    for catalog in (Catalog(2), some(), some(1), some().drop("v"), Catalog(2, (), 9)):
        store.write(catalog)
        assert store.read() == again(store, url) == catalog
    assert store.read() is store.read(), "what hasn't changed isn't read again"


def test_every_field_of_an_entry_is_kept(store: CatalogStore, url: str) -> None:
    kinds = {
        "str": "x",
        "int": 5,
        "bool": True,
        "tuple[str, ...]": ("x",),
        "dict[str, str]": {"x": "y"},
    }
    entry = Entry(**{item.name: kinds[str(item.type)] for item in fields(Entry)})
    store.write(Catalog(2, (entry,)))
    found = again(store, url)
    assert found is not None
    assert found.entries == (entry,)


def test_ids_are_never_used_again(store: CatalogStore, url: str) -> None:
    store.write(some().drop("v"))
    found = again(store, url)
    assert found is not None
    assert found.add(Entry("", VIEW, "b", "{}")).get("b").id == "v4"


def test_a_name_of_another_kind_is_told() -> None:
    with pytest.raises(CatalogError, match="no table named v Way out: v is a view; known: Übung"):
        some().get("v", TABLE)


def test_a_reader_sees_whole_catalogs_only(store: CatalogStore, url: str) -> None:
    """Another process reads all the time while 60 catalogs are written, or more until it has three."""

    def made(number: int) -> Catalog:
        entries = (replace(e, since=number) for e in some(number).entries)
        return Catalog(2, tuple(entries)[: 1 + number % 3], number)

    store.write(made(1))
    mine, theirs = READER.Pipe()
    process = READER.Process(target=read_on, args=(store.files.root, url, theirs))
    process.start()
    try:
        assert mine.recv() == "ready"
        last = 1
        while last < 61 or not mine.poll():
            last += 1
            store.write(made(last))
        assert mine.recv() == "three"
        mine.send("end")
        seen: list[Catalog] = mine.recv()
    finally:
        process.join()
    assert all(catalog == made(catalog.next_id) for catalog in seen)
    assert seen[-1] == made(last)


def read_on(root: str, url: str, pipe: multiprocessing.connection.Connection) -> None:
    store = open_store(Files(root), url)
    pipe.send("ready")
    seen = []
    while not pipe.poll():
        seen.append(store.read())
        if len(seen) == 3:
            pipe.send("three")
    pipe.send([*seen, store.read()])
    store.close()


def test_at_every_effect_of_a_write_it_is_the_old_or_the_new_one(
    store: CatalogStore, files: FaultyFiles, url: str
) -> None:
    old, new = some(), some(1)
    store.write(old)
    files.arm(0)
    store.write(old)
    effects = files.effects()
    assert effects == [f"{what} {store.name}" for what in ("commit", "committed")]
    for number in (1, 2):
        files.arm(number)
        with pytest.raises(StorageError) as caught:
            store.write(new)
        assert caught.value.condition == "WRITE_FAILED"
        assert again(store, url) == (old if number == 1 else new)
        assert store.read() == again(store, url), "the writer itself goes on from what is there"
        assert store.certain
        files.arm(0)
        store.write(old)


def test_a_request_is_done_in_the_transaction_that_does_it(
    store: CatalogStore, files: FaultyFiles, url: str
) -> None:
    store.write(some())
    number = store.add_request("drop", "v")
    for effect, state in ((1, WAITING), (2, DONE)):
        files.arm(effect)
        with pytest.raises(StorageError):
            store.write(some().drop("v"), answers=number)
        found = again(store, url)
        assert found is not None
        assert store.request(number).state == state
        assert (found.find("v") is None) == (state == DONE)
        store.read()
    files.arm(0)


def test_two_writers_do_not_undo_each_other(store: CatalogStore, url: str) -> None:
    store.write(some())
    other = open_store(store.files, url)
    other.read()
    other.write(some(1))
    with pytest.raises(StateError) as caught:
        store.write(some(2))
    assert caught.value.condition == "CATALOG_CHANGED"
    assert store.read() == some(1)
    store.write(some(2))
    other.close()


def test_a_newer_format_is_refused(store: CatalogStore, url: str) -> None:
    store.write(some())
    with store.database.transaction(write=True) as execute:
        execute("UPDATE eddyline_storages SET format = 99", [])
    try:
        with pytest.raises(StateError) as caught:
            again(store, url)
        assert caught.value.condition == "NEWER_FORMAT"
        assert caught.value.context["file"] == store.name
    finally:
        with store.database.transaction(write=True) as execute:
            execute("UPDATE eddyline_storages SET format = 2", [])


def test_what_was_changed_behind_its_back_is_refused(store: CatalogStore, url: str) -> None:
    store.write(some())
    with store.database.transaction(write=True) as execute:
        execute("UPDATE eddyline_entries SET query = 'SELECT 2' WHERE name = 'v'", [])
    with pytest.raises(StateError) as caught:
        again(store, url)
    assert caught.value.condition == "DAMAGED_FILE"
    assert caught.value.context["file"] == store.name


def test_the_catalog_of_format_1_is_taken_over(
    store: CatalogStore, files: FaultyFiles, url: str
) -> None:
    entry = {
        "id": "v7", "kind": "view", "name": "v", "schema": "{}", "key": [], "query": "SELECT 1",
        "upstream": [], "format": "", "options": {}, "operation": "", "since": 4,
    }  # fmt: skip
    document = {"format": 1, "buckets": 3, "next_id": 8, "entries": [entry]}
    files.write_json(DOCUMENT, document)
    old = store.read()
    assert old == Catalog(3, (Entry("v7", VIEW, "v", "{}", query="SELECT 1", since=4),), 8)
    assert store.outdated
    files.arm(0)
    open_store(files, url).write(old)
    count = len(files.effects())
    for number in range(1, count + 1):  # a crash anywhere: it is there, once
        for name in (NAME, POINTER):
            files.remove(name)
        files.arm(0)
        files.write_json(DOCUMENT, document)
        files.arm(number, "crash")
        writer = open_store(files, url)
        with pytest.raises(StorageError):
            writer.write(old)
        files.arm(0)
        writer.close()
        assert again(writer, url) == old
    store = open_store(files, url)
    store.write(store.read() or Catalog(1))
    assert not store.outdated
    assert again(store, url) == old
    store.close()


def test_a_damaged_file_is_named_or_reads_as_before(files: FaultyFiles) -> None:
    """Whichever byte: SQLite has bytes that mean nothing, all others are told."""
    store = open_store(files)
    store.write(some())
    path = Path(files.path(NAME))
    whole = path.read_bytes()
    spoilt = [whole[:at] for at in range(0, len(whole), 500)]
    places = [*range(100), *range(100, len(whole), 31)]
    spoilt += [whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :] for at in places]
    told = []
    for data in spoilt:
        path.write_bytes(data)
        try:
            assert again(store, "") == (some() if data else None)
        except (StateError, StorageError) as error:
            told.append(error.context["file"])
    assert len(told) > 100
    assert set(told) == {NAME}


def test_what_a_writer_that_died_has_left_is_taken_back(files: FaultyFiles) -> None:
    """SQLite's journal is there, and half of the change in the file."""
    store = open_store(files)
    store.write(some())
    process = READER.Process(target=die_within_a_write, args=(files.root,))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert Path(files.path(f"{NAME}-journal")).stat().st_size > 0
    assert again(store, "") == some()
    store.write(some(1))


def die_within_a_write(root: str) -> None:
    import os

    connection = sqlite3.connect(f"{root}/{NAME}", isolation_level=None)
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("PRAGMA cache_size = 1")  # so that it writes before the commit
    connection.execute("BEGIN")
    connection.execute("UPDATE eddyline_entries SET query = hex(randomblob(100000))")
    connection.execute("UPDATE eddyline_entries SET schema = hex(randomblob(100000))")
    os._exit(1)


# -- PostgreSQL --------------------------------------------------------------------------------


def test_storages_share_a_database(tmp_path: Path, server: postgres.Server) -> None:
    stores = [open_store(Files(str(tmp_path / name)), server.url) for name in "ab"]
    for number, store in enumerate(stores):
        store.files.make_folder("")
        store.write(some(number))
        store.add_request("pause", f"v{number}")
    for number, store in enumerate(stores):
        assert again(store, server.url) == some(number)
        assert [request.name for request in store.waiting()] == [f"v{number}"]
        store.close()


def test_a_storage_says_where_its_catalog_is(
    store: CatalogStore, files: FaultyFiles, server: postgres.Server, url: str
) -> None:
    store.write(some())
    with pytest.raises(StorageError) as caught:
        open_store(files, "" if url else server.url)
    assert caught.value.condition == "CATALOG_ELSEWHERE"


def test_a_request_waits_for_the_next_process_if_the_jvm_is_lost(store: CatalogStore) -> None:
    store.write(Catalog(2))
    number, inbox = store.add_request("drop", "v"), Inbox(store)
    with pytest.raises(EngineError), inbox.answering(store.request(number)):
        raise EngineError("the JVM of Spark was killed by signal 9", condition="JVM_LOST")
    assert store.request(number).state == WAITING
    with inbox.answering(store.request(number)):
        raise EngineError("there is no such view", condition="NOT_FOUND")
    assert store.request(number).state == REFUSED


def test_a_connection_that_is_frozen_is_given_up(
    files: FaultyFiles, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.catalog.postgres.SILENT_S", 1.0)
    with closing(open_store(files, server.url)) as store:
        store.write(Catalog(2))
        assert isinstance(store.database, PostgresDatabase)
        assert store.database._connection is not None
        process = store.database._connection.info.backend_pid
        os.kill(process, signal.SIGSTOP)
        try:
            assert store.waiting() == []  # by another connection
            assert store.database._connection.info.backend_pid != process
        finally:
            os.kill(process, signal.SIGCONT)


def test_a_watchdog_outlives_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eddyline.catalog.postgres.SILENT_S", 0.05)
    calls = []

    class Failing:
        def act(self) -> None:
            calls.append(1)
            raise OSError("the file descriptor is closed")

    failing = Failing()
    watchdog = _Watchdog(failing.act)
    for times in (1, 2):
        with watchdog.watching():
            until(lambda times=times: len(calls) == times)
    watchdog.stop()
    assert len(caplog.records) == 2


def test_a_poll_of_the_requests_starts_no_thread(
    files: FaultyFiles, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run loop asks ten times a second."""
    before, starts = threading.active_count(), []
    real = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: (starts.append(thread.name), real(thread))
    )
    store = open_store(files, server.url)
    store.write(Catalog(2))
    for _ in range(20):
        assert store.waiting() == []
    assert starts == ["eddyline-catalog"]
    store.close()
    until(lambda: threading.active_count() <= before)


def test_a_server_that_was_away_is_found_again(files: FaultyFiles, server: postgres.Server) -> None:
    store = open_store(files, server.url)
    store.write(some())
    inbox = Inbox(store)
    store.add_request("drop", "v")
    assert len(inbox.waiting()) == 1
    server.stop()
    try:
        for call in (store.read, lambda: store.write(some(1)), store.waiting):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.condition == "CATALOG_UNAVAILABLE"
            assert store.certain
        assert inbox.waiting() == [], "epochs go on without it"
    finally:
        server.start()
    store.write(some(1))
    assert again(store, server.url) == some(1)
    assert len(Inbox(store).waiting()) == 1
    store.close()


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda url: url,
        lambda url: url.replace("/postgres", "/nowhere"),
        lambda url: url.replace("eddy:", "nobody:"),
        lambda url: url.replace("@127", "x@127"),  # a wrong password
        lambda url: url.replace("@127.0.0.1:", "@127.0.0.1:1"),
        lambda url: url.replace(postgres.QUOTED, "s3cret%zz"),
        lambda url: url.replace(postgres.QUOTED, postgres.PASSWORD),  # not quoted
        lambda url: url.replace("postgresql:", "mysql:"),
        lambda url: f"{url}?nonsense=1",
    ],
)
def test_the_password_is_never_shown(
    files: FaultyFiles, server: postgres.Server, spoilt: object
) -> None:
    assert callable(spoilt)
    url = spoilt(server.url)
    shown, refused = [], ""
    try:
        options = Options.from_environment({"EDDYLINE_CATALOG": url})
        shown.append(repr(options))
        store = open_store(files, options.catalog)
        shown.append(f"{store!r} {store.database!r} {vars(store)}")
        store.read()
        store.close()
    except EddylineError as error:
        refused = error.condition
        shown += ["".join(traceback.format_exception(error)), repr(error)]
    assert refused in (("BAD_OPTION", "CATALOG_UNAVAILABLE") if url != server.url else ("",))
    # the source lines of a traceback name no values
    assert not any("s3cret" in text for text in shown), shown


def test_the_log_says_that_the_server_is_away_and_not_the_password(
    files: FaultyFiles, server: postgres.Server, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(files, server.url.replace("/postgres", "/nowhere"))) as store:
        inbox = Inbox(store)
        with caplog.at_level("DEBUG"):
            assert inbox.waiting() == []
    # other tests may have left threads whose libraries log, too
    (record,) = [one for one in caplog.records if one.name.startswith("eddyline")]
    assert (record.name, record.levelname) == ("eddyline.catalog.requests", "WARNING")
    assert "CATALOG_UNAVAILABLE" in caplog.text
    assert "s3cret" not in caplog.text


# -- requests ----------------------------------------------------------------------------------


def test_the_log_names_requests_and_not_their_queries(
    store: CatalogStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(some())
    inbox = Inbox(store)
    for name in ("w", "x"):
        store.add_request("add", name, "SELECT 'private'")
    with caplog.at_level("INFO"):
        for request in inbox.waiting():
            with inbox.answering(request):
                if request.name == "x":
                    raise CatalogError("no 'private'", condition="NAME_TAKEN")
    assert caplog.messages == ["request 1 done: add w", "request 2 refused: add x: NAME_TAKEN"]


def test_requests_wait_in_order_and_are_answered_once(store: CatalogStore, url: str) -> None:
    store.write(some())
    others = [open_store(store.files, url) for _ in range(4)]

    def ask(other: CatalogStore) -> None:
        for _ in range(10):
            other.add_request("add", "w", "SELECT '?' AS q")

    threads = [threading.Thread(target=ask, args=[other]) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [request.number for request in store.waiting()] == [*range(1, 41)]
    assert {request.query for request in store.waiting()} == {"SELECT '?' AS q"}
    store.settle(2, REFUSED, "it can't")
    store.settle(2, DONE)
    found = others[0].request(2)
    assert (found.state, found.message, len(store.waiting())) == (REFUSED, "it can't", 39)
    for other in others:
        other.close()


def test_an_answer_that_could_not_be_given_is_given_later(
    store: CatalogStore, files: FaultyFiles
) -> None:
    store.write(some())
    number = store.add_request("drop", "v")
    inbox = Inbox(store)
    [request] = inbox.waiting()
    files.arm(1)
    with inbox.answering(request):
        store.write(some().drop("v"), inbox.number)
    assert store.request(number).state == WAITING
    files.arm(0)
    assert inbox.waiting() == [], "not at once"
    with Inbox(store).answering(request):
        raise CatalogError("no", condition="NOT_FOUND", hint="look")
    assert store.request(number).message == "[NOT_FOUND] no Way out: look"


# -- pauses ------------------------------------------------------------------------------------


def reading(*views: tuple[str, ...]) -> Catalog:
    """Views a, b, c, ... that read these."""
    catalog = Catalog(2)
    for name, upstream in zip("abcdefgh", views, strict=False):
        catalog = catalog.add(Entry("", VIEW, name, "{}", upstream=upstream))
    return catalog


def pauses(catalog: Catalog) -> dict[str, tuple[int, str]]:
    return {e.name: (e.paused, e.paused_with) for e in catalog.entries if e.paused}


def test_a_pause_takes_readers_along_and_gives_them_back() -> None:
    catalog = reading((), ("a",), ("b",), ())
    paused = catalog.pause("A", 5)
    assert pauses(paused) == {"a": (5, ""), "b": (5, "a"), "c": (5, "b")}
    assert paused.resume("a") == catalog
    with pytest.raises(CatalogError, match="resume a first"):
        paused.resume("b")
    early = catalog.pause("c", 3).pause("a", 5)
    assert pauses(early) == {"a": (5, ""), "b": (5, "a"), "c": (3, "")}
    assert pauses(early.resume("a")) == {"c": (3, "")}


def test_a_reader_of_two_goes_on_when_both_do() -> None:
    both = reading((), (), ("a", "b"), ("c",)).pause("a", 5).pause("b", 7)
    assert pauses(both) == {"a": (5, ""), "b": (7, ""), "c": (5, "a"), "d": (5, "c")}
    one = both.resume("a")
    assert pauses(one) == {"b": (7, ""), "c": (5, "b"), "d": (5, "c")}
    assert pauses(one.resume("b")) == {}


def test_an_epoch_that_rebuilt_a_view_has_ended_its_pause() -> None:
    paused = reading((), ("a",)).pause("a", 5)
    assert paused.without_ended_pauses({"v1": 5, "v2": 4}) == paused, "these were before"
    over = paused.without_ended_pauses({"v1": 6, "v2": 6})
    assert pauses(over) == {}
    assert [entry.since for entry in over.entries] == [6, 6]
    assert over.without_ended_pauses({"v1": 6, "v2": 6}) is over
    both = reading((), (), ("a", "b")).pause("a", 5).pause("b", 7)
    assert pauses(both.without_ended_pauses({"v1": 8})) == {"b": (7, ""), "c": (5, "b")}


@given(st.data())
def test_no_running_view_reads_a_paused_one(data: st.DataObject) -> None:
    names = "abcdef"
    above = [
        tuple(data.draw(st.lists(st.sampled_from(names[:i]), unique=True, max_size=2)) if i else ())
        for i in range(len(names))
    ]
    catalog = reading(*above)
    for epoch in range(1, data.draw(st.integers(1, 8)) + 1):
        name = data.draw(st.sampled_from(names))
        before = pauses(catalog)
        if data.draw(st.booleans()):
            catalog = catalog.pause(name, epoch)
            assert catalog.get(name).paused
        else:
            try:
                catalog = catalog.resume(name)
                assert not catalog.get(name).paused
            except CatalogError:
                assert any(catalog.get(upstream).paused for upstream in catalog.get(name).upstream)
        for entry, upstream in itertools.product(catalog.entries, names):
            if upstream in entry.upstream and catalog.get(upstream).paused:
                assert entry.paused
        for entry in catalog.entries:
            if entry.paused_with:
                assert catalog.get(entry.paused_with).paused
                assert entry.paused_with in entry.upstream
            if entry.paused and entry.name in before:
                assert entry.paused == before[entry.name][0], "it keeps what it has"
