"""Search engines are told by reverse DNS, against a real name server: who lies, or gets no answer, is none."""

import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from dns_server import FAILING, SILENT, name_server
from eddyline.errors import EngineError, ScriptError
from eddyline_apps.guard.config import load_config
from eddyline_apps.guard.verifying import DOMAINS, LOOKUPS_MAX, Verification, Verifier
from waiting import until

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POINTERS = {
    "192.0.2.1": "crawl-1.googlebot.com",
    "192.0.2.2": "crawl-1.googlebot.com",  # which isn't its own
    "192.0.2.3": "crawl-3.googlebot.com",  # which doesn't exist
    "192.0.2.4": "www.example",
    "192.0.2.5": "googlebot.com.evil.example",
    "192.0.2.6": "notgooglebot.com",
    "192.0.2.7": SILENT,
    "192.0.2.8": FAILING,
    "192.0.2.9": "GoogleBot.COM",
    "2001:db8::1": "six.search.msn.com",
    "2001:db8::2": "four.search.msn.com",  # which has addresses of IPv4 only
}
HOSTS = {
    "crawl-1.googlebot.com": ["192.0.2.77", "192.0.2.1"],
    "googlebot.com": ["192.0.2.9"],
    "notgooglebot.com": ["192.0.2.6"],
    "googlebot.com.evil.example": ["192.0.2.5"],
    "www.example": ["192.0.2.4"],
    "six.search.msn.com": ["2001:db8:0::1"],
    "four.search.msn.com": ["192.0.2.8"],
}
LIAR = "its name is {}, which has other addresses"


@pytest.fixture(scope="module")
def server():
    with name_server(POINTERS, HOSTS) as server:
        yield server


def verifier(server, timeout_s=60.0):
    return Verifier(Verification(DOMAINS, ("127.0.0.1", server.server_address[1]), timeout_s))


@pytest.mark.parametrize(
    ("address", "name", "note"),
    [
        ("192.0.2.1", "crawl-1.googlebot.com", ""),
        ("192.0.2.2", "", LIAR.format("crawl-1.googlebot.com")),
        ("192.0.2.3", "", LIAR.format("crawl-3.googlebot.com")),
        ("192.0.2.4", "", ""),
        ("192.0.2.5", "", ""),
        ("192.0.2.6", "", ""),
        ("192.0.2.9", "googlebot.com", ""),
        ("192.0.2.10", "", ""),  # without a name
        ("2001:db8::1", "six.search.msn.com", ""),
        ("2001:DB8:0::1", "six.search.msn.com", ""),
        ("2001:db8::2", "", LIAR.format("four.search.msn.com")),
    ],
)
def test_a_search_engine_has_a_name_that_leads_back_to_it(server, address, name, note):
    assert verifier(server).verify([address], NOW)[address] == (name, note)


def test_silence_takes_a_bounded_time_and_holds_up_nobody_else(server):
    silent = ["192.0.2.7", "192.0.2.8"]
    asked = [*silent, "192.0.2.1", "192.0.2.2"]
    asked += [f"192.0.2.{n}" for n in range(20, 20 + LOOKUPS_MAX - len(asked))]

    def in_time():
        began = time.monotonic()
        found = verifier(server, 1.0).verify(asked, NOW)
        return found if time.monotonic() - began < 2.5 and found["192.0.2.1"].name else None

    found = until(in_time)  # on a machine that stands still, another time
    assert found["192.0.2.7"].note == "its name isn't known: DNS didn't answer in 1 s"
    assert found["192.0.2.8"].note.startswith("its name isn't known: ")
    assert found["192.0.2.1"].name == "crawl-1.googlebot.com"
    assert {found[one].name for one in silent} == {""}


def test_answers_are_remembered_and_silence_not_for_long(server):
    answers = verifier(server), ["192.0.2.1", "192.0.2.4", "192.0.2.8"]
    silence = verifier(server, 0.4), ["192.0.2.7"]

    def questions(asked, seconds):
        before = len(server.questions)
        checked, addresses = asked
        checked.verify(addresses, NOW + timedelta(seconds=seconds))
        return lambda: {one.split(".")[0] for one in server.questions[before:]}

    every = {"PTR 1", "A crawl-1", "PTR 4", "PTR 8"}
    for seconds, wanted in ((0, every), (59, set()), (61, {"PTR 8"}), (3601, every)):
        assert questions(answers, seconds)() == wanted
    for seconds, wanted in ((0, {"PTR 7"}), (59, set()), (61, {"PTR 7"})):
        found = questions(silence, seconds)
        until(lambda found=found, wanted=wanted: found() == wanted, found)  # nobody waits for it


def test_a_server_that_is_not_there_verifies_nobody():
    with name_server({}, {}) as server:
        port = server.server_address[1]
    checked = Verifier(Verification(DOMAINS, ("127.0.0.1", port), 0.5))
    found = checked.verify(["192.0.2.1"], NOW)
    assert found["192.0.2.1"].name == ""
    assert found["192.0.2.1"].note.startswith("its name isn't known: ")


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dns.asyncresolver", None)
    with pytest.raises(EngineError, match=r"MISSING_PACKAGE.*dnspython.*eddyline\[apps\]"):
        Verifier(Verification())


# --- the configuration ---

RULES = "rules: {a: {by: address, metric: pages, window: 1 s, at_least: 9, block: 30 s}}\n"


def configured(folder, more):
    path = folder / "guard.yml"
    path.write_text(RULES + more)
    return load_config(path).verify


@pytest.mark.parametrize(
    ("more", "verification"),
    [
        ("", None),
        ("verify: false", None),
        ("verify: true", Verification()),
        ("verify: [Example.COM.]", Verification(("example.com",))),
        ("verify: {timeout: 5 s}", Verification(timeout_s=5)),
        ("verify: {nameserver: 192.0.2.53}", Verification(nameserver=("192.0.2.53", 53))),
        (
            "verify: {domains: [a.example], nameserver: '127.0.0.1:5353'}",
            Verification(("a.example",), ("127.0.0.1", 5353)),
        ),
        ("verify: {nameserver: '2001:db8::53'}", Verification(nameserver=("2001:db8::53", 53))),
        ("verify: {nameserver: '[::1]:5353'}", Verification(nameserver=("::1", 5353))),
    ],
)
def test_the_configuration_says_how_to_verify(tmp_path, more, verification):
    assert configured(tmp_path, more) == verification


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("verify: perhaps", "verify: 'perhaps' isn't allowed"),
        ("verify: []", "verify.domains: there are none"),
        ("verify: {domains: [com]}", "verify.domains: 'com' isn't a domain"),
        ("verify: {domains: ['*.google.com']}", "isn't a domain"),
        ("verify: {nameserver: dns.example}", "verify.nameserver: 'dns.example' isn't an address"),
        ("verify: {nameserver: '127.0.0.1:0'}", "verify.nameserver: '127.0.0.1:0' isn't"),
        ("verify: {timeout: 1 min}", "verify.timeout: '1 min' isn't a time"),
        ("verify: {names: []}", "verify.names: there is no such setting"),
    ],
)
def test_a_wrong_verification_is_named(tmp_path, more, message):
    with pytest.raises(ScriptError, match="BAD_CONFIG") as caught:
        configured(tmp_path, more)
    assert message in str(caught.value)
