"""Countries and carriers of requests, from files in MaxMind's format; live equals offline, also after a file has changed."""

import itertools
import json
import pickle
import re
import signal
import sys
from contextlib import ExitStack, closing
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from eddyline.answers.quick import quick_answer
from eddyline.answers.tasks import stored_catalog
from eddyline.cli.opening import open_catalog
from eddyline.errors import DataError, EddylineError, EngineError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.storage.files import Files
from eddyline_apps.places import Places
from eddyline_apps.processes import free_port
from eddyline_apps.webstats.command import take_beacons
from eddyline_apps.webstats.inputs import BEACONS, Run
from eddyline_apps.webstats.places import (
    PLACES_FILE,
    PlaceOf,
    keep_files,
    kept_periods,
    newest_places,
)
from mmdb_files import carriers, countries, write_mmdb
from test_web_statistics import line
from test_webstats_command import Follower, webstats

CODES = {"192.0.2.0/24": "DE", "203.0.113.0/25": "AT", "2001:db8::/32": "FR"}
NAMES = {"192.0.2.0/25": "Alpha, Ltd", "2001:db8:1::/48": "Beta Net"}
RUN = Run(sites=("www.example.org",), proxies=1)


@pytest.fixture
def files(tmp_path):
    return [countries(tmp_path / "country.mmdb", CODES), carriers(tmp_path / "asn.mmdb", NAMES)]


def of(files, address):
    return tuple(Places([str(file) for file in files]).of(address))


# --- without a JVM ---


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.1", ("DE", "Alpha, Ltd")),
        ("192.0.2.200", ("DE", "unknown")),
        ("::ffff:192.0.2.1", ("DE", "Alpha, Ltd")),
        ("203.0.113.127", ("AT", "unknown")),
        ("203.0.113.128", ("unknown", "unknown")),
        ("2001:db8:1::7", ("FR", "Beta Net")),
        ("2001:DB8:2::7", ("FR", "unknown")),
        ("10.1.2.3", ("unknown", "unknown")),
        ("fe80::1%eth0", ("unknown", "unknown")),
        ("www.example.com", ("unknown", "unknown")),
        ("192.0.2.1.example", ("unknown", "unknown")),
        ("192.0.2", ("unknown", "unknown")),
        ("é'\\\n", ("unknown", "unknown")),
        ("", ("unknown", "unknown")),
    ],
)
def test_addresses_have_a_country_and_a_carrier(files, address, place):
    assert of(files, address) == place
    assert of(files[:1], address) == (place[0], None)  # a file holds what it holds
    assert of(files[1:], address) == (None, place[1])


def test_files_of_other_vendors_and_of_ipv4_only_are_read(tmp_path):
    ipinfo = write_mmdb(
        tmp_path / "lite.mmdb",
        {
            "192.0.2.0/24": {"country": "Germany", "country_code": "DE", "as_name": "Gamma"},
            "198.51.100.0/24": {"country": "AT", "as_name": "Delta", "asn": "AS64501"},
        },
    )
    assert of([ipinfo], "192.0.2.1") == ("DE", "Gamma")
    assert of([ipinfo], "198.51.100.1") == ("AT", "Delta")
    old = countries(tmp_path / "v4.mmdb", {"192.0.2.0/24": "CH", "203.0.113.0/24": "IT"}, version=4)
    assert of([old], "192.0.2.1") == ("CH", None)
    assert of([old], "2001:db8::1") == ("unknown", None)
    assert of([ipinfo, old], "192.0.2.1") == ("DE", "Gamma")  # the first file that knows it
    assert of([ipinfo, old], "203.0.113.9") == ("IT", "unknown")


def test_what_cannot_be_read_is_named_before_anything_is_written(tmp_path, files, monkeypatch):
    (tmp_path / "log").write_text(line() + "\n")
    (tmp_path / "garbage.mmdb").write_bytes(b"\xab\xcd\xefMaxMind.com" + b"garbage" * 1000)
    (tmp_path / "cut.mmdb").write_bytes(files[0].read_bytes()[:-100])
    (tmp_path / "folder.mmdb").mkdir()
    write_mmdb(tmp_path / "other.mmdb", {"192.0.2.0/24": {"traits": {"is_anycast": True}}})
    inputs = itertools.cycle([("--log", tmp_path / "log"), ("--site", "www.example.org")])
    for name in ("missing", "garbage", "cut", "folder", "other", "missing"):
        with pytest.raises(DataError, match=rf"PLACES_NOT_READABLE.*/{name}\.mmdb") as caught:
            webstats(
                *next(inputs), "--places", files[0], tmp_path / f"{name}.mmdb",
                "--storage", tmp_path / "storage",
            )  # fmt: skip
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), DataError)
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    with pytest.raises(EngineError, match=r"MISSING_PACKAGE.*maxminddb.*eddyline\[apps\]"):
        webstats("--log", tmp_path / "log", "--places", files[0], "--storage", tmp_path / "storage")
    assert not (tmp_path / "storage").exists()


def test_a_storage_keeps_what_counts_for_which_lines(tmp_path, files):
    storage = Files(tmp_path / "storage")
    storage.make_folder("")
    assert kept_periods(storage) == []
    assert newest_places(storage, []) is None
    first, changed = keep_files(storage, files, lambda: 0)
    assert changed
    assert newest_places(storage, first).of("192.0.2.1") == ("DE", "Alpha, Ltd")
    assert kept_periods(storage) == first
    moved = [file.rename(tmp_path / f"moved-{file.name}") for file in files]
    assert keep_files(storage, moved, lambda: pytest.fail("they are the same")) == (first, False)
    newer = countries(tmp_path / "newer.mmdb", {"192.0.2.0/24": "CH"})
    second, changed = keep_files(storage, [newer], lambda: 7)
    assert changed
    assert [one.from_seq for one in second] == [0, 7]
    assert kept_periods(storage) == second
    assert newest_places(storage, second).of("192.0.2.1") == ("CH", None)
    again, _ = keep_files(storage, moved, lambda: 7)  # no line has come since
    assert [(one.from_seq, one.files) for one in again] == [
        (0, first[0].files),
        (7, first[0].files),
    ]
    (tmp_path / "storage" / PLACES_FILE).write_text("[]")
    with pytest.raises(EddylineError, match="DAMAGED_FILE"):
        kept_periods(storage)


def test_the_function_looks_each_address_up_once_for_each_period(tmp_path, files, monkeypatch):
    newer = countries(tmp_path / "newer.mmdb", {"192.0.2.0/24": "CH"})
    function = PlaceOf(((2, (str(files[0]),)), (4, (str(newer),))))
    looked_up = []
    find = Places._find
    monkeypatch.setattr(
        Places, "_find", lambda self, host: looked_up.append(host) or find(self, host)
    )
    hosts = ["192.0.2.1", None, "203.0.113.1"] * 2
    found = function(pa.array(hosts), pa.array(range(6), pa.int64())).to_pylist()
    names = [None, None, "AT", "DE", "unknown", "unknown"]
    assert [one["country"] for one in found] == names
    assert {one["carrier"] for one in found} == {None}
    assert len(looked_up) == 6  # three texts, in each of two periods
    for seq, host in enumerate(hosts):
        (one,) = function(pa.array([host], pa.string()), pa.array([seq])).to_pylist()
        assert one["country"] == names[seq]
    assert len(looked_up) == 6
    assert len(function(pa.array([], pa.string()), pa.array([], pa.int64()))) == 0
    assert function == pickle.loads(pickle.dumps(function))


def send(address, *clients):
    """Send a beacon of each client to the endpoint whose script is at an address, behind a proxy."""
    for client in clients:
        body = json.dumps({"path": "/", "referrer": "", "ms": 1}).encode()
        headers = {
            "Origin": "https://www.example.org",
            "User-Agent": "Mozilla/5.0 (X11) Firefox/140.0",
        }
        request = Request(
            address.replace("script.js", "hit"), body, {**headers, "X-Forwarded-For": client}
        )
        with urlopen(request) as answer:
            assert answer.status == 204


def test_a_beacon_is_stored_with_the_place_of_its_client_and_without_the_address(tmp_path, files):
    pytest.importorskip("uvicorn")
    places = [None, *(Places([str(file) for file in some]) for some in (files, files[:1]))]
    for some in places:
        with ExitStack() as stack:
            address = take_beacons(RUN, tmp_path, "0" * 32, stack, ("127.0.0.1", 0), some)
            send(address, "192.0.2.1", "::ffff:192.0.2.200", "2001:db8:1::7", "10.0.0.1")
    with closing(DataQueue(LogBackend(tmp_path / BEACONS))) as queue:
        _, records = queue.read(1000)
    texts = records["payload"].to_pylist()
    assert not re.search(rb"192\.0\.2|2001:db8|10\.0\.0", b"".join(texts))
    found = [json.loads(one) for one in texts]
    assert not any(one.keys() & {"country", "carrier"} for one in found[:4])
    known = [("DE", "Alpha, Ltd"), ("DE", "unknown"), ("FR", "Beta Net"), ("unknown", "unknown")]
    assert [(one["country"], one["carrier"]) for one in found[4:8]] == known
    assert [(one["country"], one["carrier"]) for one in found[8:]] == [
        (one, None) for one, _ in known
    ]


# --- live ---


def tops(storage, *kinds):
    """For each kind the requests by value, of all days; read without Spark."""
    with open_catalog(str(storage)) as store:
        catalog = stored_catalog(store)
        names = [entry.name for entry in catalog.entries if entry.kind == "view"]
        found = {
            name: quick_answer(store.files, catalog, f"SELECT * FROM {name}") for name in names
        }
    held = {name: answer.texts() for name, answer in found.items() if answer}  # none: no rows
    assert not re.search(r"192\.0\.2|2001:db8|10\.0\.0|host\.example", repr(held))
    return [
        {value: int(n) for _, _, _, name, _, value, n, _ in held["top_values"] if name == kind}
        for kind in kinds
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_requests_count_by_place_and_keep_it_when_a_file_changes(tmp_path, files, capsys):
    log, storage = tmp_path / "access.log", tmp_path / "storage"
    hosts = ["192.0.2.1", "192.0.2.1", "2001:db8:1::7", "2001:db8:2::7", "10.0.0.1", "host.example"]
    part = "".join(
        line(host=host, day="01/Aug/2026", time=f"06:00:0{second}") + "\n"
        for second, host in enumerate(hosts)
    )
    log.write_text(part)
    arguments = ("--log", log, "--storage", storage, "--verify")
    assert webstats(*arguments) == 0
    assert tops(storage, "country", "carrier") == [{}, {}]
    with log.open("a") as file:
        file.write(part)
    assert webstats(*arguments, "--places", *files) == 0  # from now on
    assert "places: the files are new" in capsys.readouterr().out
    known = {"DE": 2, "FR": 2, "unknown": 2}
    named = {"Alpha, Ltd": 2, "Beta Net": 1, "unknown": 3}
    assert tops(storage, "country", "carrier") == [known, named]
    countries(files[0], {"192.0.2.0/24": "CH"})
    with log.open("a") as file:
        file.write(part)
    assert webstats(*arguments, "--places", *files) == 0
    assert "places: the files are new" in capsys.readouterr().out
    files[0].unlink()  # the storage has its own
    assert webstats("--storage", storage, "--verify") == 0
    assert "places" not in capsys.readouterr().out
    found = tops(storage, "country", "carrier")
    assert found[0] == {"CH": 2, "DE": 2, "FR": 2, "unknown": 6}
    assert found[1] == {name: 2 * n for name, n in named.items()}


@pytest.mark.slow
@pytest.mark.spark
def test_beacons_count_by_place_once_there_are_files(tmp_path, files):
    pytest.importorskip("uvicorn")
    storage, port = tmp_path / "storage", free_port()
    arguments = ("--storage", storage, "--follow", "--port", 0, "--listen", port)
    arguments += ("--site", *RUN.sites, "--proxies", RUN.proxies)
    clients = ["192.0.2.1", "192.0.2.200", "2001:db8:1::7", "10.0.0.1"]

    def follow(*more, until):
        command = Follower(*arguments, *more)
        try:
            send(command.until("page script: (.*)")[1], *clients)
            command.until(until)
        finally:
            command.end(signal.SIGKILL)

    follow(until="epoch")
    with ExitStack() as stack:  # these wait for the next start
        send(take_beacons(RUN, storage, "0" * 32, stack, ("127.0.0.1", 0)), *clients[:2])
    follow("--places", *files, until="dashboard")
    countries(files[0], {"192.0.2.0/24": "CH"})
    assert webstats("--storage", storage, "--places", *files, "--verify") == 0
    found = tops(storage, "country", "carrier")
    assert found[0] == {"DE": 2, "FR": 1, "unknown": 3}
    assert found[1] == {"Alpha, Ltd": 1, "Beta Net": 1, "unknown": 4}
