"""The log ETL: with a real PostgreSQL and a real HTTP service every record is accounted for."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import postgres
from eddyline.cli import main
from eddyline.cli.output import Output
from eddyline.errors import EngineError, StorageError
from eddyline.relay.account import Account
from eddyline.relay.bolts import Bolt, BoltChain
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.relay.records import as_read, new_records
from eddyline_apps import demo, enrichment, etl, etl_bolts, script, views
from eddyline_apps.enrichment import ANSWERED, BUSY, POISONED, STALLED, Service, place
from eddyline_apps.traffic import Traffic, damage
from processes import Child

RECORDS = 1_000
ATTEMPTS = 5
GOOD = 'h - - [01/Aug/1995:06:00:00 +0000] "GET / HTTP/1.0" 200 7'


class Remembering(Service):
    """A service that remembers each call, and answers all: no clock decides what fails."""

    def __init__(self, **given):
        super().__init__(**given)
        self.asked = []

    def outcome(self, host, record, attempt):
        found = super().outcome(host, record, attempt)
        return BUSY if found == STALLED else found

    def count(self, host, record, attempt, outcome):
        super().count(host, record, attempt, outcome)
        self.asked.append((host, record, attempt, outcome))


@pytest.fixture(scope="module")
def server():
    with postgres.server() as running:
        yield running


def hosts(lines):
    """The host of each line that is one, by its place."""
    parsed = etl_bolts.parse(as_read(new_records(list(lines)), range(len(lines)), 0))
    return dict(zip(*(parsed.rows[name].to_pylist() for name in ("position", "host")), strict=True))


# --- the bolts by themselves ---


def test_lines_are_parsed_as_they_were_written():
    line = (
        'www.a.example:443 192.0.2.1 - eva [01/Aug/1995:02:00:00 -0400] "GET /a b?c=\\"d\\" HTTP/1.1"'
        ' 304 - "-" "x \\"y\\""'
    )
    made = etl_bolts.parse(
        as_read(new_records([line, GOOD, GOOD.replace("GET / HTTP/1.0", "")]), [5, 6, 7], 0)
    )
    assert made.failed == {}
    first, second, third = made.rows.to_pylist()
    assert first["ts"].isoformat() == "1995-08-01T06:00:00+00:00"
    assert [first[name] for name in ("position", "attempts", "host", "path", "status", "bytes")] == [
        5, 0, "192.0.2.1", '/a b?c=\\"d\\"', 304, 0,
    ]  # fmt: skip
    assert (second["host"], second["path"], second["bytes"]) == ("h", "/", 7)
    assert third["path"] == ""


def test_every_way_to_damage_a_line_makes_it_malformed():
    (lines,) = Traffic(lines=100, malformed_share=0).batches(100)
    damaged = [damage(line, how) for how, line in enumerate(lines)]
    mixed = [text for pair in zip(lines, damaged, strict=True) for text in pair]
    made = etl_bolts.parse(as_read(new_records(mixed), range(200), 0))
    assert made.failed == dict.fromkeys(range(1, 200, 2), etl_bolts.MALFORMED)
    assert made.rows["position"].to_pylist() == list(range(0, 200, 2))


def test_the_service_fails_at_random_but_the_same_each_time():
    service, other = Service(seed=1), Service(seed=2)
    outcomes = [service.outcome("h", record, 1) for record in range(20_000)]
    assert outcomes == [service.outcome("h", record, 1) for record in range(20_000)]
    assert outcomes != [other.outcome("h", record, 1) for record in range(20_000)]
    shares = {name: number / 20_000 for name, number in Counter(outcomes).items()}
    assert shares[BUSY] + shares[STALLED] == pytest.approx(0.05, abs=0.01)
    again = [service.outcome("h", r, 2) for r, o in enumerate(outcomes) if o != ANSWERED]
    assert 0.01 < 1 - again.count(ANSWERED) / len(again) < 0.1, "an attempt knows nothing of others"
    poisonous = [host for host in map(str, range(2_000)) if service.poisonous(host)]
    assert 0 < len(poisonous) < 20
    assert {service.outcome(poisonous[0], record, 1) for record in range(100)} <= {
        POISONED, BUSY, STALLED,
    }  # fmt: skip


class Stalling(Service):
    def outcome(self, host, record, attempt):
        return STALLED if record == 1 else ANSWERED


def test_a_call_that_stalls_fails_alone(monkeypatch):
    monkeypatch.setattr(enrichment, "STALL_S", 60)
    records = as_read(new_records([GOOD] * 4), range(4), 0)
    with Stalling() as service:
        enrich = Bolt.of(etl_bolts.Enrich(service.url), "enrich", ttl=5)
        worked = BoltChain([Bolt.of(etl_bolts.parse, None, vectorised=True), enrich]).run(records)
    assert worked.done.tolist() == [True, False, True, True]
    assert worked.reasons == {1: "TimeoutError: no answer within 5 s"}
    assert {(row["region"], row["carrier"]) for row in worked.rows} == {place("h")}
    assert service.calls == {(1, ANSWERED): 3, (1, STALLED): 1}


@pytest.fixture
def table(server):
    """A schema of the test's own."""
    schema = f"test_{random.getrandbits(60):x}"
    etl_bolts.create_table(server.url, schema)
    return schema


def nobody_can_load(lines, service):
    """The places of lines that must become dead letters, by bolt."""
    parsed = hosts(lines)
    malformed = set(range(len(lines))) - parsed.keys()
    enriched = {
        number
        for number, host in parsed.items()
        if all(service.outcome(host, number, n + 1) != ANSWERED for n in range(ATTEMPTS))
    }
    refused = {number for number in parsed if '" 999 ' in lines[number]} - enriched
    return malformed, enriched, refused


def rows(*positions, **changed):
    """Rows for PostgreSQL; `changed`: column -> values by position."""
    (at,) = etl_bolts.parse(as_read(new_records([GOOD]), [0], 0)).rows["ts"].to_pylist()
    given = {
        "ts": at,
        "host": "h",
        "path": "/",
        "status": 200,
        "bytes": 1,
        "region": "r",
        "carrier": "c",
    }
    return pa.Table.from_pylist(
        [
            {"position": p, **given, **{n: v[p] for n, v in changed.items() if p in v}}
            for p in positions
        ]
    )  # fmt: skip


def stored(server, schema):
    return etl_bolts.fetch_rows(
        server.url, schema, "SELECT position, region FROM visits ORDER BY 1"
    )


def test_postgresql_refuses_rows_one_by_one(server, table):
    made = etl_bolts.Load(server.url, table)(
        rows(*range(20), status={3: 999, 17: 0}, path={4: "/\0"}, host={19: None})
    )
    assert sorted(made.failed) == [3, 4, 17, 19]
    assert made.failed[3] == made.failed[17]
    assert made.failed[3].startswith("CheckViolation: ")
    assert made.failed[4].startswith("DataError: ")
    assert made.failed[19].startswith("NotNullViolation: ")
    kept = [p for p in range(20) if p not in made.failed]
    assert made.rows["position"].to_pylist() == kept
    assert [position for position, _ in stored(server, table)] == kept


def test_a_row_that_comes_again_takes_its_own_place(server, table):
    load = etl_bolts.Load(server.url, table)
    load(rows(1, 2))
    load(rows(2, 3, region={2: "other"}))
    assert stored(server, table) == [(1, "r"), (2, "other"), (3, "r")]


def test_a_server_that_was_away_is_waited_for(server, table):
    load = etl_bolts.Load(server.url, table)
    load(rows(1))
    server.stop()
    server.start()
    assert load(rows(2)).failed == {}, "its old connection is broken"
    assert stored(server, table) == [(1, "r"), (2, "r")]


# --- reporting ---


def test_programs_get_the_result_as_events(capsys):
    service = Service()
    service.calls.update({(1, ANSWERED): 1200, (1, BUSY): 2, (2, ANSWERED): 1, (2, POISONED): 1})
    place = ("coast", "Beacon")
    account = Account(received=1300, done=1299, dead=1, retry=0, in_flight=0)
    letters = [("load", "CheckViolation: x", 1)]
    sides = {place: (1299, 5_000)}, {place: (1298, 4_000)}
    assert not etl.report(etl.RunResult(1300, account, *sides, letters), service, Output("json"))
    hits, told, dead, *calls, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert hits == {
        "event": "hits", "region": "coast", "carrier": "Beacon", "hits": 1299, "bytes": 5_000,
        "hits_in_postgres": 1298, "bytes_in_postgres": 4_000,
    }  # fmt: skip
    assert told == {
        "event": "account", "received": 1300, "done": 1299, "dead": 1, "retry": 0, "in_flight": 0,
    }  # fmt: skip
    assert (dead["event"], dead["reason"], dead["records"]) == ("dead_letters", letters[0][1], 1)
    assert [list(one.values()) for one in calls] == [
        ["calls", 1, 1202, 1200, 2, 0, 0], ["calls", 2, 2, 1, 0, 0, 1],
    ]  # fmt: skip
    assert list(calls[0])[3:] == ["answered", "busy", "stalled", "poisoned"]
    different = ["the live view differs from PostgreSQL"]
    assert result == {"event": "result", "equal": False, "differences": different}


# --- refusals ---


@pytest.mark.parametrize(
    ("url", "condition"),
    [
        ("postgresql://eddy:s3cret%zz@127.0.0.1/postgres", "BAD_OPTION"),
        ("postgresql://eddy:s3cret@127.0.0.1:1/postgres", "DATABASE_UNAVAILABLE"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_without_its_password(url, condition):
    with pytest.raises((EngineError, StorageError)) as caught:
        etl_bolts.create_table(url, "s")
    assert caught.value.condition == condition
    assert "s3cret" not in str(caught.value)


def test_without_postgresql_and_url_the_way_out_is_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("eddyline_apps.postgres.programs", lambda: None)
    assert main(["etl", "--storage", str(tmp_path / "new")]) == 2
    assert "[NO_POSTGRESQL]" in capsys.readouterr().err


def test_a_storage_of_other_lines_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("eddyline_apps.postgres.programs", lambda: None)
    main(["etl", "--storage", str(tmp_path), "--records", "10"])
    capsys.readouterr()
    assert main(["etl", "--storage", str(tmp_path), "--records", "11"]) == 2
    assert "[OTHER_RUN]" in capsys.readouterr().err


def test_filling_goes_on_where_it_was_broken_off(monkeypatch, tmp_path):
    monkeypatch.setattr(etl, "PUT_ROWS", 4)
    lines = [f"line {number}" for number in range(10)]

    def broken_off():
        yield from lines[:9]
        raise KeyboardInterrupt

    queue = DataQueue(LogBackend(str(tmp_path)))
    with pytest.raises(KeyboardInterrupt):
        etl.fill(queue, broken_off())
    batch, _ = queue.read(3)
    queue.ack(batch.number, [0, 1, 2])
    queue.commit()
    queue.close()
    queue = DataQueue(LogBackend(str(tmp_path)))
    assert etl.fill(queue, lines) == 10
    _, records = queue.read(100)
    assert records["payload"].to_pylist() == [line.encode() for line in lines[3:]]
    queue.close()


# --- from end to end ---


@pytest.fixture(scope="module")
def ran(server, tmp_path_factory):
    """A run: its lines, service, result, dead letters by position, and schema."""
    from eddyline.api.engine import Engine

    folder = tmp_path_factory.mktemp("etl")
    schema = "end_to_end"
    lines = list(etl.made_up_lines(RECORDS, seed=1))
    etl_bolts.create_table(server.url, schema)
    queue = DataQueue(LogBackend(str(folder / "queue")))
    total = etl.fill(queue, lines)
    with (
        Remembering(seed=3) as service,
        Engine(str(folder / "engine")) as engine,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(etl, "ENRICH_TTL_S", 60)
        pipeline = etl.create(engine, queue, service.url, server.url, schema)
        etl.drain(engine, pipeline, service, total)
        found = etl.collect_result(engine, pipeline, total, server.url, schema)
        dead = {row.position: row for row in pipeline.dead_letters().collect()}
        path = folder / "lines.parquet"
        pq.write_table(pa.table({"line": lines, "seq": range(len(lines))}), path)
        offline = demo.offline(engine.spark, path, views(script("web_statistics")))
        malformed = {row.seq for row in offline.table("malformed_lines").collect()}
        assert engine.verify()
    queue.close()
    return lines, service, found, dead, malformed


@pytest.mark.spark
def test_the_live_view_equals_postgresql(ran):
    lines, _, found, dead, _ = ran
    assert found.differences == []
    expected = Counter(place(host) for number, host in hosts(lines).items() if number not in dead)
    assert {at: hits for at, (hits, _) in found.live.items()} == expected
    assert len(expected) == 15


@pytest.mark.spark
def test_dead_letters_are_what_nobody_can_load(ran):
    lines, service, _, dead, malformed = ran
    not_parsed, poisonous, refused = nobody_can_load(lines, service)
    assert not_parsed == malformed, "the web statistics read lines in the same way"
    assert poisonous == {n for n, host in hosts(lines).items() if service.poisonous(host)}
    assert malformed
    assert poisonous
    assert refused
    by_bolt = Counter(row.bolt for row in dead.values())
    assert dead.keys() == malformed | poisonous | refused
    assert {number for number, row in dead.items() if row.bolt == "parse"} == malformed
    assert by_bolt["enrich"] + by_bolt["load"] == len(poisonous) + len(refused)
    assert {number for number, row in dead.items() if row.bolt == "load"} <= refused
    assert all(bytes(row.payload).decode() == lines[number] for number, row in dead.items())
    assert {row.attempts for number, row in dead.items() if number in malformed} == {1}
    assert {row.attempts for number, row in dead.items() if number not in malformed} == {ATTEMPTS}


@pytest.mark.spark
def test_the_account_is_exact(ran):
    lines, _, found, dead, _ = ran
    account = found.account
    assert (account.received, account.done, account.dead) == (
        len(lines), len(lines) - len(dead), len(dead),
    )  # fmt: skip
    assert (account.retry, account.in_flight) == (0, 0)
    assert sum(records for _, _, records in found.failures) == len(dead)


@pytest.mark.spark
def test_each_record_is_sent_to_the_service_once_an_attempt(ran):
    lines, service, _, dead, malformed = ran
    calls = Counter((record, attempt) for _, record, attempt, _ in service.asked)
    assert set(calls.values()) == {1}
    attempts = Counter(record for record, _ in calls)
    assert attempts.keys() == set(range(len(lines))) - malformed
    # Nothing but its own failures makes a record be sent again.
    parsed = hosts(lines)
    for record, host in parsed.items():
        outcomes = [service.outcome(host, record, n + 1) for n in range(ATTEMPTS)]
        if record in dead:
            assert attempts[record] == ATTEMPTS
        else:
            assert attempts[record] == outcomes.index(ANSWERED) + 1, outcomes
    again = {record for record, number in attempts.items() if number > 1 and record not in dead}
    assert again, "no call failed"


@pytest.mark.spark
def test_one_command_does_it_all(ran, capfd, tmp_path):
    lines = ran[0][:300]
    log = tmp_path / "access.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    assert main(["etl", "--log", str(log)]) == 0
    shown = capfd.readouterr().out
    assert "300 records in the queue" in shown
    assert "The live view equals PostgreSQL, and every record is accounted for." in shown
    (account,) = [
        line
        for line in shown.splitlines()
        if line.split()[:1] == ["300"] and len(line.split()) == 5
    ]
    received, done, dead, retry, in_flight = map(int, account.split())
    assert (received, retry, in_flight) == (300, 0, 0)
    assert received == done + dead


@pytest.mark.spark
def test_a_difference_is_told(ran, capsys):
    *_, found, _, _ = ran
    at, (hits, size) = next(iter(found.live.items()))
    other = etl.RunResult(
        found.total,
        found.account,
        found.live,
        {**found.stored, at: (hits - 1, size)},
        found.failures,
    )
    assert not etl.report(other, Service())
    assert "DIFFERENT: the live view differs from PostgreSQL." in capsys.readouterr().out


# --- killed ---


@pytest.mark.guarantee(
    "pipeline into PostgreSQL and views, by `eddyline etl`",
    "exactly once",
    "engine and pipeline, by kill -9, again and again",
)
@pytest.mark.slow
@pytest.mark.spark
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(server, tmp_path):
    records, storage = 9_000, tmp_path / "storage"
    command = [
        sys.executable, "-m", "eddyline", "etl", "--storage", str(storage),
        "--records", str(records), "--postgres", server.url,
    ]  # fmt: skip

    def started():
        return Child(command, tmp_path / "errors")

    def settled_and_calls(line):
        words = line.split()
        if words[2:3] != [f"{records:,}"]:
            return None
        return int(words[0].replace(",", "")), int(words[-1].replace(",", ""))

    def kill_when(reached):
        child = started()
        seen = None
        for line in child.process.stdout:
            seen = settled_and_calls(line)
            if seen is not None and reached(*seen):
                break
        else:
            raise AssertionError(child.last_words())
        child.kill()
        return seen

    first, _ = kill_when(lambda settled, calls: calls > 300)
    assert first == 0, "the first batch was to be under way"
    second, _ = kill_when(lambda settled, calls: settled > 0)
    assert second < records, "more batches were to come"
    server.stop()
    server.start()

    child = started()
    try:
        shown = []
        for line in child.process.stdout:
            shown.append(line)
            seen = settled_and_calls(line)
            if seen is not None and seen[1] > 300 and not any("again" in said for said in shown):
                server.stop()  # and while it is loading
                server.start()
                shown.append("again")
        assert child.process.wait() == 0, "".join(shown) + child.last_words()
    finally:
        child.kill()
    assert "The live view equals PostgreSQL, and every record is accounted for.\n" in shown
    assert "again" in shown

    lines = list(etl.made_up_lines(records, seed=1))
    malformed, enriched, refused = nobody_can_load(lines, Service(seed=1))
    schema = json.loads((storage / "run.json").read_text())["schema"]
    positions = [number for number, _ in stored(server, schema)]
    assert positions == sorted(set(range(records)) - malformed - enriched - refused)
    account = (records, len(positions), records - len(positions), 0, 0)
    assert [f"{number:,}" for number in account] in [line.split() for line in shown]
