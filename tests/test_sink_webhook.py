"""The sink to a URL against a real HTTP server: a receiver adds the changes up."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from eddyline.changes import Epoch
from eddyline.errors import EddylineError, EngineError, StateError
from eddyline.sink.base import Notes, NotesInMemory, Refuse, keep_none
from eddyline.sink.webhook import WebhookFormat, WebhookSink
from receiver import Receiver, serving
from sink_changes import (
    SCHEMA,
    Changelog,
    Row,
    as_parsed,
    expected,
    parsed,
    target,
    weighted,
)

SECRET = "s3cret-word"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(parsed) as kept:
        yield kept


def opened(
    receiver: Receiver,
    *,
    keyed: bool = True,
    refuse: Refuse = keep_none,
    delivered: int | None = None,
    notes: Notes | None = None,
    **options: str,
) -> WebhookSink:
    followed = target("hook", keyed=keyed, refuse=refuse)
    followed = replace(followed, delivered=None if delivered is None else Epoch(delivered))
    if notes is not None:
        followed = replace(followed, notes=notes)
    given = {"url": receiver.url, **options}
    WebhookFormat().check(followed, given)
    return WebhookFormat().open(followed, given)


def failure(
    sink: WebhookSink, changelog: Changelog, base: Epoch | None, epoch: Epoch, *, snapshot: bool
) -> str:
    """Deliver an epoch; return why the receiver can't be used, empty if it can."""
    try:
        if snapshot:
            sink.replace(base, epoch, changelog.rows(epoch))
        else:
            sink.deliver(base, epoch, changelog.changes(base, epoch))
    except EngineError as error:
        if error.condition != "SINK_FAILED":
            raise
        return str(error)
    return ""


@pytest.mark.parametrize("keyed", [True, False])
def test_a_receiver_follows_a_view_through_errors(receiver: Receiver, keyed: bool) -> None:
    changelog, chance = Changelog(5, keyed=keyed), random.Random(2)
    sink, base = opened(receiver, keyed=keyed, batch_rows="7"), None
    texts: set[str] = set()
    for _ in range(40):
        epoch = Epoch((base or 0) + chance.choice([1, 1, 4]))
        snapshot = base is None or chance.random() < 0.2
        receiver.answers = [
            chance.choice([200, 200, 200, 0, -1, 500, 503, 429, 408, 404]) for _ in range(2)
        ]
        while sink.committed() != epoch:
            if error := failure(sink, changelog, base, epoch, snapshot=snapshot):
                texts.add(error)
        base = epoch
        assert +receiver.counts == expected(changelog.content(epoch))
        if chance.random() < 0.2:  # a crash
            sink.close()
            sink = opened(receiver, keyed=keyed, batch_rows="7", delivered=base)
    assert len(texts) > 3
    assert not [text for text in texts if "t0ken" in text]
    sink.close()


def one(k: int, count: int = 1) -> pa.Table:
    return weighted(Counter({(k, "é", None, None, None): count}))


def test_what_a_request_looks_like(receiver: Receiver) -> None:
    sink = opened(receiver, secret=SECRET)
    sink.replace(None, Epoch(3), one(1))
    sink.deliver(Epoch(3), Epoch(5), one(1, -1))
    sink.deliver(Epoch(5), Epoch(6), one(1).slice(0, 0))  # nothing changed: no request
    assert sink.committed() == 6
    sink.replace(Epoch(6), Epoch(7), one(1).slice(0, 0))
    assert [json.loads(body) for _, body in receiver.requests] == [
        {
            "sink": "hook",
            "epoch": epoch,
            "base": base,
            "part": 1,
            "parts": 1,
            "snapshot": snapshot,
            "changes": [
                {"k": 1, "s": "é", "v": None, "d": None, "op": None, "_change_type": kind}
                for kind in kinds
            ],
        }
        for epoch, base, snapshot, kinds in [
            (3, None, True, ["insert"]),
            (5, 3, False, ["delete"]),
            (7, 6, True, []),
        ]
    ]
    for headers, body in receiver.requests:
        signed = f"{headers['X-Eddyline-Timestamp']}.".encode() + body
        digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert headers["X-Eddyline-Signature"] == f"sha256={digest}"
        assert headers["Content-Type"] == "application/json"
    assert receiver.requests[1][0]["Idempotency-Key"] == "eddyline/test/hook/5/1"
    assert receiver.connections == 1
    sink.close()


def test_a_large_delivery_comes_in_parts(receiver: Receiver) -> None:
    sink = opened(receiver, batch_rows="10")
    rows = weighted(Counter((k, "", None, None, None) for k in range(25)))
    sink.replace(None, Epoch(1), rows)
    found = [json.loads(body) for _, body in receiver.requests]
    assert [(one["part"], one["parts"], len(one["changes"])) for one in found] == [
        (1, 3, 10),
        (2, 3, 10),
        (3, 3, 5),
    ]
    sink.close()


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_delivery_goes_on_at_the_part_that_failed(receiver: Receiver, snapshot: bool) -> None:
    notes, rows = NotesInMemory(), weighted(Counter((k, "", None, None, None) for k in range(40)))
    base = None if snapshot else Epoch(1)
    receiver.answers = ([200] * 4 + [500]) * 3
    failures = 0
    while failures < 20:
        sink = opened(receiver, batch_rows="4", notes=notes, delivered=base)
        with suppress(EngineError):
            sink.replace(None, Epoch(2), rows) if snapshot else sink.deliver(base, Epoch(2), rows)
            break
        failures += 1
        sink.close()
    assert failures == 2
    keys = [headers["Idempotency-Key"] for headers, _ in receiver.requests]
    assert len(set(keys)) == len(keys) == 10
    assert sum(receiver.counts.values()) == 40
    assert notes.texts == []
    sink.close()


@pytest.mark.parametrize(
    ("header", "waited"),
    [
        ("3", 3),
        ("86400", 10),
        ("Thu, 01 Jan 1970 00:00:07 GMT", 5),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
    ],
)
def test_a_receiver_says_when_a_request_may_come_again(
    receiver: Receiver, header: str, waited: float
) -> None:
    waits: list[float] = []
    sink = WebhookSink(
        target("hook"), urlsplit(receiver.url),
        secret=None, timeout_s=5, batch_rows=1, clock=lambda: 2, sleep=waits.append,
    )  # fmt: skip
    receiver.retry_after = header
    receiver.answers = [200, 429, 503, 200]
    rows = weighted(Counter((k, "", None, None, None) for k in range(4)))
    sink.replace(None, Epoch(1), rows)
    assert waits == [waited, waited]
    receiver.answers = [429] * 10
    with pytest.raises(EngineError, match="429"):
        sink.replace(Epoch(1), Epoch(2), rows)
    assert len(receiver.answers) == 4
    receiver.answers, receiver.retry_after, waits[:] = [429], "soon", []
    with pytest.raises(EngineError, match="429"):
        sink.replace(Epoch(1), Epoch(2), rows)
    assert waits == []
    sink.close()


class Letters:
    """Keeps the refused changes, and adds them up."""

    def __init__(self) -> None:
        self.found: list[tuple[Row, str]] = []
        self.counts: Counter[Row] = Counter()

    def __call__(self, rows: pa.Table, errors: Sequence[str]) -> None:
        assert rows.schema == SCHEMA
        for row, error in zip(rows.to_pylist(), errors, strict=True):
            self.found.append((tuple(row.values()), error))
            sign = 1 if error.startswith(("insert:", "update_postimage:")) else -1
            self.counts[as_parsed(tuple(row.values()))] += sign


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refused_change_becomes_a_dead_letter(receiver: Receiver, status: int) -> None:
    letters = Letters()
    sink = opened(receiver, refuse=letters, batch_rows="2")
    receiver.answers = [200, status, 200, status]
    rows = weighted(Counter((k, "", None, None, None) for k in range(5)))
    sink.replace(None, Epoch(1), rows)
    assert [row[0] for row, _ in letters.found] == [3]
    text = letters.found[0][1]
    assert text.startswith(f"insert: {status} ")
    assert "the reason is long" in text
    assert len(text) < 300
    assert {row[0] for row in receiver.counts} == {0, 1, 2, 4}
    assert sink.committed() == 1
    sink.close()


def test_a_refused_part_is_cut_until_its_bad_changes_are_found(receiver: Receiver) -> None:
    letters, bad = Letters(), {3, 500, 999, 1001}
    sink = opened(receiver, refuse=letters)
    sink.replace(None, Epoch(1), one(7).slice(0, 0))
    receiver.requests.clear()
    receiver.refuses = lambda change: change["k"] in bad
    rows = weighted(Counter((k, "", None, None, None) for k in range(1500)))
    sink.deliver(Epoch(1), Epoch(2), rows)
    assert [row[0] for row, _ in letters.found] == sorted(bad)
    assert sum(receiver.counts.values()) == 1500 - len(bad)
    sent = [json.loads(body) for _, body in receiver.requests]
    assert len(sent) < len(bad) * 12
    taken = [change["k"] for document in sent for change in document["changes"]]
    assert taken == [k for k in range(1500) if k not in bad]  # in their order
    keys = [headers["Idempotency-Key"] for headers, _ in receiver.requests]
    assert len(set(keys)) == len(keys)
    assert keys[0].startswith("eddyline/test/hook/2/1.")
    assert [document.get("piece", 1) for document in sent] == [
        int(key.partition("/2/")[2].partition(".")[2] or 1) for key in keys
    ]
    sink.close()


def test_pieces_of_a_snapshot_replace_what_the_receiver_has(receiver: Receiver) -> None:
    letters = Letters()
    sink = opened(receiver, refuse=letters, batch_rows="4")
    sink.replace(None, Epoch(1), one(77))
    receiver.refuses = lambda change: change["k"] < 5
    rows = weighted(Counter((k, "", None, None, None) for k in range(9)))
    sink.replace(Epoch(1), Epoch(2), rows)  # of the first part nothing is taken
    assert sorted(row[0] for row in receiver.counts) == [5, 6, 7, 8]
    assert [row[0] for row, _ in letters.found] == [0, 1, 2, 3, 4]
    receiver.refuses = lambda change: False
    receiver.answers = [422, 422]
    with pytest.raises(EngineError, match="refuses a request without changes"):
        sink.replace(Epoch(2), Epoch(3), one(1))
    assert sink.committed() == 2
    sink.close()


@pytest.mark.guarantee(
    "sink `webhook` and the dead letters of changes that are refused",
    "exactly once for receivers that take each `Idempotency-Key` once",
    "connections, and the sink, at random requests; the receiver refuses and takes at random",
)
@pytest.mark.parametrize("keyed", [True, False])
def test_refusals_errors_and_crashes_double_and_lose_nothing(
    receiver: Receiver, keyed: bool
) -> None:
    changelog, chance, notes = Changelog(6, keyed=keyed), random.Random(3), NotesInMemory()
    letters, base, cut = Letters(), None, 0
    sink = opened(receiver, keyed=keyed, batch_rows="7", refuse=letters, notes=notes)
    for _ in range(40):
        epoch = Epoch((base or 0) + chance.choice([1, 1, 4]))
        snapshot = base is None or chance.random() < 0.2
        if snapshot:
            letters.counts.clear()
        while sink.committed() != epoch:
            receiver.answers = [chance.choice([200, 200, 422, 422, 0, -1, 503]) for _ in range(9)]
            failed = failure(sink, changelog, base, epoch, snapshot=snapshot)
            if failed and chance.random() < 0.5:  # a crash
                sink.close()
                given = {"keyed": keyed, "refuse": letters, "notes": notes}
                sink = opened(receiver, **given, delivered=base, batch_rows="7")
            cut += bool(notes.texts)
        base = epoch
        content = Counter(receiver.counts)
        content.update(letters.counts)
        assert {row: n for row, n in content.items() if n} == expected(changelog.content(epoch))
        assert notes.texts == []
    assert cut > 5
    assert len(letters.found) > 5
    sink.close()


def test_a_refused_part_can_stop_the_sink(receiver: Receiver) -> None:
    sink = opened(receiver, on_refused="stop")
    receiver.answers = [400]
    with pytest.raises(StateError) as error:
        sink.replace(None, Epoch(1), one(1))
    assert error.value.condition == "SINK_REFUSED"
    assert sink.committed() is None
    sink.close()


@pytest.mark.parametrize("status", [301, 401, 403, 404, 408, 425, 429, 500, 503])
def test_answers_that_are_not_of_the_rows_pass(receiver: Receiver, status: int) -> None:
    sink = opened(receiver)
    receiver.answers = [status]
    with pytest.raises(EngineError, match=str(status)) as error:
        sink.replace(None, Epoch(1), one(1))
    assert error.value.condition == "SINK_FAILED"
    sink.replace(None, Epoch(1), one(1))
    assert sink.committed() == 1
    sink.close()


def test_a_receiver_that_never_answers_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        sink = opened(Receiver(parsed, url=address), timeout="1")
        with pytest.raises(EngineError, match="timed out") as error:
            sink.replace(None, Epoch(1), one(1))
        assert error.value.condition == "SINK_FAILED"
    with pytest.raises(EngineError, match="refused"):  # nobody listens
        sink.replace(None, Epoch(1), one(1))
    sink.close()


def test_an_idle_connection_that_was_closed_is_made_anew(receiver: Receiver) -> None:
    sink = opened(receiver)
    sink.replace(None, Epoch(1), one(1))
    receiver.answers = [0]
    sink.deliver(Epoch(1), Epoch(2), one(2))
    assert receiver.connections == 2
    with pytest.raises(EddylineError) as error:
        sink.deliver(Epoch(1), Epoch(3), one(3))
    assert error.value.condition == "SINK_TARGET_MOVED"
    sink.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"url": "ftp://h/"},
        {"url": "http:///x"},
        {"url": "http://h:x/"},
        {"url": "http://me:s3cret@h/"},
        {"url": "http://h/a b"},
        {"url": "http://h/\r\nX: y"},
        {"url": "http://h/", "timeout": "0"},
        {"url": "http://h/", "batch_rows": "many"},
        {"url": "http://h/", "on_refused": "drop"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(EngineError) as error:
        WebhookFormat().check(target("t"), options)
    assert error.value.condition == "BAD_OPTION"
    assert "s3cret" not in str(error.value)


def test_a_url_can_be_a_reference() -> None:
    WebhookFormat().check(target("t"), {"url": "${env:HOOK}", "secret": "${env:SECRET}"})
