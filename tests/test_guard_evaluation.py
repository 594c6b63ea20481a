"""Precision and recall of the guard against labelled addresses."""

from __future__ import annotations

import json

import pytest

from eddyline.errors import DataError, EngineError
from eddyline_apps import guard
from eddyline_apps.guard.evaluation import evaluate, read_labels, report
from test_guard import CONFIG, line, normal
from test_guard_command import arguments

pytestmark = pytest.mark.usefixtures("own_sigterm")


def test_networks_block_their_addresses():
    labels = {"192.0.2.1": True, "192.0.2.9": True, "198.51.100.1": True, "203.0.113.5": False}
    seen = {"::ffff:192.0.2.1", "192.0.2.3", "203.0.113.5", "2001:db8::7", "-", "www.example:443"}
    found = evaluate(labels, seen, ["192.0.2.0/24", "2001:db8:0::/48", "203.0.113.5"])
    assert found.caught == ("192.0.2.1", "192.0.2.9")
    assert found.missed == ("198.51.100.1",)
    assert found.wrong == ("192.0.2.3", "203.0.113.5", "2001:db8::7")
    assert (found.precision, found.recall) == (2 / 5, 2 / 3)
    assert report(found).splitlines() == [
        "precision 0.4000",
        "recall    0.6667",
        "caught    2: 192.0.2.1, 192.0.2.9",
        "missed    1: 198.51.100.1",
        "wrong     3: 192.0.2.3, 203.0.113.5, 2001:db8::7",
    ]
    nothing = evaluate({}, [], [])
    assert (nothing.precision, nothing.recall) == (None, None)


def test_labels_are_read_in_each_form(tmp_path):
    path = tmp_path / "labels"
    path.write_text(
        "\ufeff192.0.2.1\n# who\n192.0.2.1\n\n192.0.2.2,Attack\n192.0.2.3\tnormal\n2001:DB8::1, 0\n"
    )
    assert read_labels(path) == {
        "192.0.2.1": True,
        "192.0.2.2": True,
        "192.0.2.3": False,
        "2001:db8::1": False,
    }
    for wrong in (
        "a.example", "192.0.2.1,perhaps", "192.0.2.1,1,2", "192.0.2.2,", ",attack", "::ffff:192.0.2.1 0",
    ):  # fmt: skip
        path.write_text(f"192.0.2.1\n{wrong}\n")
        with pytest.raises(DataError, match=r"BAD_LABELS.*labels, line 2"):
            read_labels(path)
    path.write_text("192.0.2.1\n", encoding="utf-16")
    for wrong in (path, tmp_path / "none"):
        with pytest.raises(DataError, match=f"BAD_LABELS.*{wrong}") as caught:
            read_labels(wrong)
        assert "UTF-8" in caught.value.hint


@pytest.mark.parametrize("words", [["evaluate"], ["--labels", "f"]])
def test_labels_belong_to_evaluate(tmp_path, words):
    (tmp_path / "guard.yml").write_text(CONFIG)
    with pytest.raises(EngineError, match="BAD_OPTION"):
        guard.run(arguments(*words, "--log", "x", "--config", tmp_path / "guard.yml"))


@pytest.mark.spark
def test_a_labelled_log_gives_precision_and_recall(tmp_path, capsys):
    (tmp_path / "guard.yml").write_text(CONFIG)
    (tmp_path / "labels").write_text("192.0.2.9\n192.0.2.10\n198.51.3.7,normal\n")
    lines = [
        *normal(40, 0, 9),
        *(line("192.0.2.9", 12, "/x.png") for _ in range(200)),
        line("192.0.2.10", 12),  # does too little
        *(line("192.0.2.200", 13, "/login", "POST") for _ in range(9)),  # isn't labelled
    ]
    log = tmp_path / "access.log"
    log.write_text("".join(f"{text}\n" for text in lines))
    words = ("--log", log, "--config", tmp_path / "guard.yml", "--labels", tmp_path / "labels")
    assert guard.run(arguments("evaluate", *words, "--format", "json")) == 0
    *blocked, replayed, found = map(json.loads, capsys.readouterr().out.splitlines())
    assert {one["target"]: one["event"] for one in blocked if one["event"] == "blocked"} == {
        "192.0.2.9": "blocked", "192.0.2.200": "blocked",
    }  # fmt: skip
    assert replayed == {"event": "replayed", "blocked": 2}
    assert found == {
        "event": "evaluation", "precision": 0.5, "recall": 0.5, "caught": ["192.0.2.9"],
        "missed": ["192.0.2.10"], "wrong": ["192.0.2.200"],
    }  # fmt: skip
