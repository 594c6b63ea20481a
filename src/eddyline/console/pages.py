"""The pages of the console: made on the server, and live by events. Its own are read-only."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from eddyline.answers.status import violations_text
from eddyline.catalog.entries import VIEW, Entry
from eddyline.console.api import (
    LETTERS_MAX,
    Api,
    answer_json,
    described,
    letter_json,
    number_of,
    status_of,
)
from eddyline.console.graph import HEIGHT, WIDTH, make_graph
from eddyline.console.guard import internal, limited_body
from eddyline.console.observer import Observer
from eddyline.console.values import as_texts, numeric
from eddyline.errors import EddylineError

PAGES = (
    ("/", "Overview"),
    ("/graph", "Graph"),
    ("/ask", "Ask"),
    ("/sources", "Sources"),
    ("/sinks", "Sinks"),
    ("/pipelines", "Pipelines"),
    ("/deadletters", "Dead letters"),
    ("/tasks", "Tasks"),
)
ROWS = 100
STATIC = Path(__file__).with_name("static")
PAYLOAD_LENGTH = 300
"""The characters of a dead letter's payload and error in the list."""

Answered: TypeAlias = tuple[str, dict[str, Any]] | Response
"""A template and its values, or a response of another kind."""
Page = Callable[[Request], Answered]
Action = Callable[[Observer, Mapping[str, str]], str]


@dataclass(frozen=True, slots=True)
class Addition:
    """Pages that an application adds to the console, behind the same guard and in the same layout.

    Attributes:
        name: of the application: its files are below `/static/NAME/`.
        package: has the folders `templates` and `static`. Templates may extend those of the console.
        links: paths and titles for the navigation.
        pages: by path what answers it; called in a thread.
        actions: by path what a form posted there does; called in a thread with the form's fields. It returns the
            path of the page that is shown then. Only a console with a token acts.
    """

    name: str
    package: str
    links: Sequence[tuple[str, str]]
    pages: Mapping[str, Callable[[Observer, Request], Answered]]
    actions: Mapping[str, Action] = field(default_factory=dict)


class Pages:
    """The pages over one storage.

    Args:
        api: the JSON interface, which reads the same.
        name: the name of the storage, for titles.
        additions: pages of applications.
        acts: whether their forms may change something.
    """

    def __init__(
        self, api: Api, name: str, additions: Sequence[Addition] = (), *, acts: bool = False
    ) -> None:
        self._api = api
        self._observer = api.observer
        self._name = name
        self._additions = additions
        self._acts = acts
        self._links = (*PAGES, *(link for addition in additions for link in addition.links))
        packages = ("eddyline.console", *(addition.package for addition in additions))
        self._templates = Environment(
            loader=ChoiceLoader([PackageLoader(package) for package in packages]),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        pages: dict[str, Page] = {
            "/": self.overview,
            "/graph": self.graph,
            "/views/{name:path}": self.view,
            "/ask": self.ask,
            "/sources": self.sources,
            "/sinks": self.sinks,
            "/pipelines": self.pipelines,
            "/deadletters": self.deadletters,
            "/tasks": self.tasks,
        }
        files = []
        for addition in self._additions:
            added = addition.pages.items()
            pages |= {path: partial(page, self._observer) for path, page in added}
            static = StaticFiles(packages=[(addition.package, "static")])
            files.append(Mount(f"/static/{addition.name}", static))
        routes = [Route(path, self._served(page), methods=["GET"]) for path, page in pages.items()]
        actions = {path: act for one in self._additions for path, act in one.actions.items()}
        routes += [Route(path, self._acted(act), methods=["POST"]) for path, act in actions.items()]
        files.append(Mount("/static", StaticFiles(directory=STATIC)))
        return [*routes, Route("/login", self.login, methods=["GET"]), *files]

    def _served(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page; an error of Eddyline's has a page of its own."""

        def answer(request: Request) -> Response:
            found = page(request)
            if isinstance(found, Response):
                return found
            return HTMLResponse(self._rendered(request, *found))

        async def endpoint(request: Request) -> Response:
            try:
                return await self._api.run(lambda: answer(request))
            except EddylineError as error:
                html = self._problem(request, error.condition, error.message, error.hint)
                return HTMLResponse(html, status_of(error))

        return endpoint

    def _acted(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a form."""

        async def endpoint(request: Request) -> Response:
            if not self._acts:
                html = self._problem(request, "READ_ONLY", "this console only shows", "start it with a token")  # fmt: skip
                return HTMLResponse(html, 403)
            body = await limited_body(request)
            if body is None:
                html = self._problem(request, "TOO_LARGE", "the form is too long", "shorten it")
                return HTMLResponse(html, 413)
            fields = parse_qs(body.decode("utf-8", "replace"))
            form = {name: values[0] for name, values in fields.items()}
            try:
                return RedirectResponse(
                    await self._api.run(lambda: action(self._observer, form)), 303
                )
            except EddylineError as error:
                html = self._problem(request, error.condition, error.message, error.hint)
                return HTMLResponse(html, status_of(error))

        return endpoint

    def _rendered(self, request: Request, template: str, values: Mapping[str, Any]) -> str:
        query = f"?{request.url.query}" if request.url.query else ""
        common = {
            "pages": self._links,
            "here": request.url.path,
            "self_url": request.url.path + query,
            "storage": self._name,
            "acts": self._acts,
            "epoch": self._observer.now()[1].epoch,
        }
        return self._templates.get_template(template).render({**common, **values})

    def _problem(self, request: Request, condition: str, message: str, hint: str) -> str:
        values = {"condition": condition, "message": message, "hint": hint, "epoch": ""}
        page = self._templates.get_template("error.html")
        return page.render(
            {
                **values,
                "pages": self._links,
                "here": request.url.path,
                "storage": self._name,
                "title": "Error",
            }
        )

    async def missing(self, request: Request, error: Exception) -> Response:
        """Answer a request for a path that isn't there, or with another method."""
        assert isinstance(error, HTTPException)
        hint = "the navigation lists the pages, /api/openapi.json the paths of the JSON interface"
        html = self._problem(request, str(error.status_code), str(error.detail), hint)
        return HTMLResponse(html, error.status_code, headers=error.headers)

    async def crashed(self, request: Request, error: Exception) -> Response:
        """Answer a request that has failed by a fault of the console."""
        if request.url.path.startswith("/api/"):
            return internal(error)
        hint = "see the log of the console, and report it"
        return HTMLResponse(self._problem(request, "INTERNAL", type(error).__name__, hint), 500)

    async def login(self, request: Request) -> Response:
        """Answer with the form that takes the token."""
        values = {
            "wrong": "wrong" in request.query_params,
            "next": request.query_params.get("next", "/"),
        }
        html = self._templates.get_template("login.html").render(values)
        return HTMLResponse(html, 401 if values["wrong"] else 200)

    def overview(self, _: Request) -> tuple[str, dict[str, Any]]:
        """Health, the last epochs, all views."""
        status, rates = self._observer.status(), self._api.tally.rates()
        committed = status["committed_at"]
        moment = datetime.fromtimestamp(committed, UTC) if committed else None
        return "overview.html", {
            "title": "Overview",
            "status": status,
            "failing": [view for view in status["views"] if view["state"] == "failing"],
            "committed": moment.isoformat(timespec="seconds") if moment else "",
            "age": _age(time.time() - committed) if committed else "",
            "rates": rates,
            "rate": sum(rates.values()),
            "state_rows": sum(view["state_rows"] for view in status["views"]),
            "state_bytes": sum(view["state_bytes"] for view in status["views"]),
            "dead": sum(status["dead_letters"].values()),
            "behind": sum(sink["behind"] > 0 for sink in status["sinks"]),
            "inside": self._api.explain is not None,
        }

    def graph(self, _: Request) -> tuple[str, dict[str, Any]]:
        """Sources, views and sinks, and what reads what."""
        catalog, _now = self._observer.now()
        graph = make_graph(catalog, self._observer.status(), self._api.tally.rates())
        return "graph.html", {"title": "Graph", "graph": graph, "width": WIDTH, "height": HEIGHT}

    def view(self, request: Request) -> tuple[str, dict[str, Any]]:
        """One table, stream or view: rows, changes, query, state."""
        catalog, manifest = self._observer.now()
        entry = catalog.get(request.path_params["name"])
        views = {view["name"]: view for view in self._observer.status()["views"]}
        epoch, offset = number_of(request, "epoch", -1), number_of(request, "offset", 0)
        asked = None if epoch < 0 else epoch
        values: dict[str, Any] = {"rows": None, "problem": None, "columns": [], "numeric": []}
        try:
            values |= self._rows(entry, asked, offset)
        except EddylineError as error:
            if error.condition == "VIEW_FAILING":  # the page shows why
                values |= self._rows(entry, asked, offset, last_good=True)
            else:
                values["problem"] = error
        held = sorted(manifest.of(entry.id).items())

        def page(start: int) -> str:
            return urlencode({"offset": start, **({} if asked is None else {"epoch": asked})})

        return "view.html", {
            "title": entry.name,
            "entry": entry,
            "view": views.get(entry.name),
            "described": described(catalog, entry),
            "types": [(field.name, field.dataType.simpleString()) for field in entry.columns],
            "operators": [
                (
                    name.partition("/")[2],
                    sum(run.rows for run in runs),
                    sum(run.bytes for run in runs),
                    len(runs),
                )
                for name, runs in held
            ],
            "asked": asked,
            "page": page,
            "plan": self._api.plan_of(entry),
            **values,
        }

    def _rows(
        self, entry: Entry, epoch: int | None, offset: int, *, last_good: bool = False
    ) -> dict[str, Any]:
        found = self._observer.rows(entry.name, epoch, last_good=last_good)
        part = found.table.slice(offset, ROWS)
        return {
            "columns": found.table.column_names,
            "numeric": numeric(found.table.schema.types),
            "rows": {
                "epoch": found.epoch,
                "total": found.table.num_rows,
                "offset": offset,
                "before": max(offset - ROWS, 0),
                "after": offset + ROWS,
                "texts": as_texts(part),
                "ordered": found.ordered,
                "last_good": last_good,
            },
        }

    def ask(self, request: Request) -> tuple[str, dict[str, Any]]:
        """A query and its answer."""
        text = request.query_params.get("sql", "").strip()
        catalog, _ = self._observer.now()
        names = [
            (entry.name, entry.columns.names)
            for entry in catalog.entries
            if entry.kind == VIEW or entry.arranged
        ]
        values: dict[str, Any] = {"answer": None, "problem": None, "numeric": [], "spent_ms": 0.0}
        if text:
            started = time.perf_counter()
            try:
                answer = self._observer.query(text)
                values |= {"answer": answer_json(answer), "numeric": answer.numeric}
            except EddylineError as error:
                values["problem"] = error
            values["spent_ms"] = 1000 * (time.perf_counter() - started)
        return "ask.html", {"title": "Ask", "sql": text, "names": names, **values}

    def sources(self, _: Request) -> tuple[str, dict[str, Any]]:
        """Tables and streams."""
        sources = self._observer.status()["sources"]
        heads = {
            "source": "name",
            "kind": "kind",
            "position": "position",
            "watermark": "watermark",
            "late rows": "late_rows",
            "ahead": "ahead_rows",
            "dead letters": "dead_letters",
            "violations": "violations",
            "last received": "received_at",
        }
        sources = [
            {**source, "violations": violations_text(source.get("violations", {}))}
            for source in sources
        ]
        problems = [
            f"{source['name']}: the file {path} is set aside: {fault}"
            for source in sources
            for path, fault in source.get("set_aside", {}).items()
        ]
        right = ("position", "late rows", "ahead", "dead letters")
        return "list.html", _list(
            "Sources", heads, sources, right, links=("source",), problems=problems,
            empty="There are no tables and streams yet.",
        )  # fmt: skip

    def sinks(self, _: Request) -> tuple[str, dict[str, Any]]:
        """Sinks, and how far they are."""
        names = ("sink", "view", "format", "state", "epoch", "behind")
        sinks = self._observer.status()["sinks"]
        return "list.html", _list(
            "Sinks", {name: name for name in names}, sinks, ("epoch", "behind"), links=("view",),
            empty="No sink follows a view.",
            note="A sink is behind by the epochs that it has not delivered yet.",
        )  # fmt: skip

    def pipelines(self, _: Request) -> tuple[str, dict[str, Any]]:
        """Pipelines and their accounts."""
        heads = {
            "pipeline": "name",
            "received": "received",
            "done": "done",
            "dead": "dead",
            "in retry": "retry",
            "in flight": "in_flight",
            "missed": "missed",
        }
        pipelines = self._observer.status()["pipelines"]
        return "list.html", _list(
            "Pipelines", heads, pipelines, tuple(heads)[1:], empty="There are no pipelines.",
            note="Received = done + dead + in retry + in flight, after the last batch.",
        )  # fmt: skip

    def deadletters(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Records that have failed for good."""
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
        return "list.html", _list(
            "Dead letters", {name: name for name in names}, found, ("position", "attempts"),
            code=("payload",), empty="There are no dead letters.",
            note=f"{len(letters):,} records have failed for good{more}." if letters else "",
        )  # fmt: skip

    def tasks(self, _: Request) -> tuple[str, dict[str, Any]]:
        """All definitions, and views that the engine was asked to add."""
        names = ("name", "kind", "state", "level", "since", "rows")
        tasks = [{name: getattr(task, name) for name in names} for task in self._observer.tasks()]
        return "list.html", _list(
            "Tasks", {name: name for name in names}, tasks, ("level", "since", "rows"),
            links=("name",), empty="There are no definitions yet.",
        )  # fmt: skip


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
) -> dict[str, Any]:
    """Return the values of a page with one table.

    Args:
        heads: for each head of a column the name of its values in `items`.
        right: heads of columns of numbers.
        links: heads of columns of names of tables and views.
        code: heads of columns of data.
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
    }


def _age(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> _age(7), _age(7200)
        ('7 s ago', '2 h ago')
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{math.floor(seconds / size)} {unit} ago"
    return f"{math.floor(max(seconds, 0))} s ago"
