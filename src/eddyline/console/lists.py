"""The pages that are lists: sources, sinks, pipelines, dead letters, tasks, requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from eddyline.answers.status import files_set_aside, violations_text
from eddyline.catalog.requests import REFUSED
from eddyline.console.actions import LETTER_ACTIONS, Actions, outcome
from eddyline.console.api import LETTERS_MAX, letter_json
from eddyline.console.observer import Observer
from eddyline.pipelines.outcomes import lane_windows
from eddyline.source.lag import lag_text
from eddyline.storage.lock import in_use

PAYLOAD_LENGTH = 300
"""The characters of a dead letter's payload and error in the list."""
EDITED_LENGTH = 20_000
"""The characters of a payload that can be edited on the page."""

LAG_NOTE = (
    "The lag is what no epoch has processed yet, as far as the source knows: rows, bytes of files, of a followed log or of "
    "PostgreSQL's log, or versions of a Delta table; and since when the oldest waits. It is measured each few seconds while an engine runs."
)

Button = tuple[str, str, str]
"""Where a form is posted to, its button's text, and what a screen reader says of it."""
Values = tuple[str, dict[str, Any]]


class Lists:
    """The lists of one storage; each returns a template and its values."""

    def __init__(self, observer: Observer, actions: Actions) -> None:
        self._observer = observer
        self._actions = actions

    def sources(self, _: Request) -> Values:
        """Tables and streams."""
        sources = self._observer.status()["sources"]
        heads = {
            "source": "name",
            "kind": "kind",
            "position": "position",
            "lag": "lag",
            "watermark": "watermark",
            "late rows": "late_rows",
            "ahead": "ahead_rows",
            "dead letters": "dead_letters",
            "violations": "violations",
            "last received": "received_at",
        }
        sources = [
            {
                **source,
                "lag": lag_text(source.get("lag", {})),
                "violations": violations_text(source.get("violations", {})),
            }
            for source in sources
        ]
        problems = [
            f"{stream}: the file {path} is set aside: {why}"
            for stream, path, why in files_set_aside(sources)
        ]
        right = ("position", "late rows", "ahead", "dead letters")
        return "list.html", _list(
            "Sources", heads, sources, right, links=("source",), problems=problems,
            empty="There are no tables and streams yet.", note=LAG_NOTE if sources else "",
        )  # fmt: skip

    def sinks(self, _: Request) -> Values:
        """Sinks, how far they are, and what can be done with them."""
        names = ("sink", "view", "format", "state", "epoch", "behind", "failing since", "error")
        heads = {name: name.replace(" ", "_") for name in names}
        sinks = self._observer.status()["sinks"]
        buttons = [_sink_buttons(sink) for sink in sinks]
        return "list.html", _list(
            "Sinks", heads, sinks, ("epoch", "behind"), links=("view",),
            bad=[sink["state"] == "failing" for sink in sinks],
            empty="No sink follows a view.", buttons=buttons if self._actions.allowed else None,
            note="A sink is behind by the epochs that it has not delivered yet."
            + (" Resend makes the target's rows those of the view, whatever it holds." if self._actions.allowed else ""),
        )  # fmt: skip

    def pipelines(self, _: Request) -> Values:
        """Pipelines and their accounts."""
        heads = {
            "pipeline": "name",
            "received": "received",
            "done": "done",
            "dead": "dead",
            "in retry": "retry",
            "in flight": "in_flight",
            "missed": "missed",
            "lag": "lag",
            "windows of lanes": "windows",
            "acker": "acker",
        }
        pipelines = [
            {
                **one,
                "lag": lag_text(one.get("lag", {})),
                "windows": ", ".join(f"{window:,}" for window in lane_windows(one)),
                "acker": _acked(one.get("acker", {})),
            }
            for one in self._observer.status()["pipelines"]
        ]
        values = _list(
            "Pipelines", heads, pipelines, tuple(heads)[1:-2], empty="There are no pipelines.",
            note="Received = done + dead + in retry + in flight + missed, in or after the last batch. The lag is what waits in "
            "the queue. A window is how many records a lane may have in flight. The acker counts tuples that were sent to "
            "lanes since the pipeline was connected; one that isn't acknowledged in time is sent again.",
        )  # fmt: skip
        return "pipelines.html", {**values, "pipelines": [one["name"] for one in pipelines]}

    def deadletters(self, request: Request) -> Values:
        """Records that have failed permanently."""
        letters = self._observer.letters(request.query_params.get("source"))
        found = [letter_json(letter) for letter in letters[:LETTERS_MAX]]
        for letter in found:
            for name in ("payload", "error"):
                text = letter[name] or ""
                cut = len(text) > PAYLOAD_LENGTH
                letter[name] = text[:PAYLOAD_LENGTH] + "…" if cut else text
        names = ("source", "position", "died", "bolt", "error", "payload", "attempts")
        more = (
            f", of which the newest {LETTERS_MAX:,} are shown" if len(letters) > LETTERS_MAX else ""
        )
        hrefs = [f"/deadletters/{quote(one['source'])}/{one['position']}" for one in found]
        values = _list(
            "Dead letters", {name: name for name in names}, found, ("position", "attempts"),
            code=("payload",), empty="There are no dead letters.", hrefs={"position": hrefs},
            note=f"{len(letters):,} records have failed for good{more}." if letters else "",
        )  # fmt: skip
        counts = {name: count for name, count in self._observer.dead_letters().items() if count}
        everything = [
            {
                "source": source,
                "count": count,
                "actions": [
                    (action, f"/deadletters/{quote(source)}/all/{action}")
                    for action in LETTER_ACTIONS
                    if action == "drop" or self._observer.can_replay(source)
                ],
            }
            for source, count in counts.items()
        ]
        return "deadletters.html", {**values, "everything": everything}

    def letter(self, request: Request) -> Values:
        """One dead letter, and actions on it."""
        source, position = request.path_params["source"], request.path_params["position"]
        letter = self._observer.letter(source, position)
        return "letter.html", {
            "title": f"Dead letter {position} of {letter.source}",
            "letter": letter_json(letter),
            "text": _editable(letter.payload),
            "replays": self._observer.can_replay(source),
            "path": f"/deadletters/{quote(letter.source)}/{position}",
        }

    def tasks(self, _: Request) -> Values:
        """All definitions, and views that the engine was asked to add."""
        names = ("name", "kind", "state", "level", "since", "rows")
        tasks = [{name: getattr(task, name) for name in names} for task in self._observer.tasks()]
        return "list.html", _list(
            "Tasks", {name: name for name in names}, tasks, ("level", "since", "rows"),
            links=("name",), empty="There are no definitions yet.",
        )  # fmt: skip

    def requests(self, _: Request) -> Values:
        """Requests to the engine, of this console, others and the command line."""
        running = in_use(self._observer.files)
        found = self._actions.requests()
        items = [
            {
                "request": one.number,
                "asked at": one.asked_at,
                "action": one.action,
                "name": one.name,
                "state": one.state,
                "outcome": outcome(one, running=running),
            }
            for one in found
        ]
        names = ("request", "asked at", "action", "name", "state", "outcome")
        return "list.html", _list(
            "Requests", {name: name for name in names}, items, ("request",),
            empty="Nothing was asked for yet.",
            hrefs={"request": [f"/requests/{one.number}" for one in found]},
            note="The engine answers requests of the console and the command line before its next epoch.",
            bad=[one.state == REFUSED for one in found],
        )  # fmt: skip


def _acked(counts: Mapping[str, int]) -> str:
    """Return the acker's counts of tuples for people.

    Example:
        >>> _acked({"started": 1200, "done": 1196, "failed": 1, "timed_out": 2, "in_flight": 1})
        '1,196 of 1,200 tuples acknowledged, 3 failed, 1 open'
    """
    if not counts:
        return ""
    failed = counts["failed"] + counts["timed_out"]
    text = f"{counts['done']:,} of {counts['started']:,} tuples acknowledged"
    return text + "".join(
        f", {count:,} {word}"
        for count, word in ((failed, "failed"), (counts["in_flight"], "open"))
        if count
    )


def _sink_buttons(sink: Mapping[str, Any]) -> list[Button]:
    paused = sink["state"] == "paused"
    name, path = sink["sink"], f"/sinks/{quote(sink['sink'])}"
    return [
        (f"{path}/{action}", action.capitalize(), f"{action.capitalize()} sink {name}")
        for action in (("resume" if paused else "pause"), "resend")
    ]


def _editable(payload: bytes) -> str | None:
    """Return a payload as the text that a form gives back unchanged; None if it can't."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    plain = all(letter >= " " or letter in "\t\n" for letter in text)
    return text if plain and len(text) <= EDITED_LENGTH else None


def _list(
    title: str,
    heads: Mapping[str, str],
    items: list[dict[str, Any]],
    right: tuple[str, ...],
    *,
    empty: str,
    links: tuple[str, ...] = (),
    code: tuple[str, ...] = (),
    note: str = "",
    problems: list[str] | None = None,
    hrefs: Mapping[str, Sequence[str]] | None = None,
    buttons: Sequence[Sequence[Button]] | None = None,
    bad: Sequence[bool] = (),
) -> dict[str, Any]:
    """Return the values of a page with one table.

    Args:
        heads: for each head of a column the name of its values in `items`.
        right: heads of columns of numbers.
        links: heads of columns of names of tables and views.
        code: heads of columns of data.
        hrefs: by head the links of the column's values, for each row.
        buttons: the actions on each row; None for a list without actions.
        bad: which rows show a failure.
    """
    return {
        "title": title,
        "heads": list(heads),
        "items": [[item.get(name) for name in heads.values()] for item in items],
        "right": right,
        "links": links,
        "code": code,
        "empty": empty,
        "note": note,
        "problems": problems or [],
        "hrefs": hrefs or {},
        "buttons": buttons,
        "bad": bad,
    }
