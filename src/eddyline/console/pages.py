"""The pages of the console: made on the server, and live by events."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from eddyline.answers.run_health import trouble
from eddyline.catalog.entries import VIEW
from eddyline.console.actions import outcome, report_of
from eddyline.console.additions import Action, Addition, Answered
from eddyline.console.api import Api, number_of, status_of
from eddyline.console.graph import HEIGHT, WIDTH, make_graph
from eddyline.console.guard import failure, internal, limited_body
from eddyline.console.lists import Lists
from eddyline.console.observer import Observer
from eddyline.console.posted import Posted, posted
from eddyline.console.queries import Shown
from eddyline.console.view_page import view_page
from eddyline.errors import EddylineError
from eddyline.source.lag import lag_text, total_lag
from eddyline.storage.lock import in_use

PAGES = (
    ("/", "Overview"),
    ("/graph", "Graph"),
    ("/ask", "Ask"),
    ("/sources", "Sources"),
    ("/sinks", "Sinks"),
    ("/pipelines", "Pipelines"),
    ("/deadletters", "Dead letters"),
    ("/tasks", "Tasks"),
    ("/requests", "Requests"),
    ("/settings", "Settings"),
)
FIND_LENGTH = 200
"""The characters of a name to find in the graph."""
STATIC = Path(__file__).with_name("static")

Page = Callable[[Request], Answered]
Form = Callable[[Request, Mapping[str, str]], str]
"""Does what a form with these fields asks for; returns the path of the page to show then."""


class Pages:
    """The pages over one storage.

    Args:
        api: the JSON interface, which reads the same.
        name: the name of the storage, for titles.
        additions: pages of applications.
    """

    def __init__(self, api: Api, name: str, additions: Sequence[Addition] = ()) -> None:
        self._api = api
        self._observer = api.observer
        self._name = name
        self._additions = additions
        self._actions = api.actions
        self._lists = Lists(api.observer, api.actions)
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
            "/views/{name:path}": partial(view_page, self._api),
            "/sources": self._lists.sources,
            "/sinks": self._lists.sinks,
            "/pipelines": self._lists.pipelines,
            "/deadletters": self._lists.deadletters,
            "/deadletters/{source:path}/{position:int}": self._lists.letter,
            "/tasks": self._lists.tasks,
            "/settings": self.settings,
        }
        others: dict[str, Page] = {
            "/requests": self._lists.requests,
            "/requests/{number:int}": self.request,
        }
        files = []
        for addition in self._additions:
            added = addition.pages.items()
            others |= {path: partial(page, self._observer) for path, page in added}
            static = StaticFiles(packages=[(addition.package, "static")])
            files.append(Mount(f"/static/{addition.name}", static))
        routes = [
            Route(path, self._page_endpoint(page), methods=["GET"]) for path, page in pages.items()
        ]
        routes += [
            Route(path, self._page_endpoint(page, fresh=True), methods=["GET"])
            for path, page in others.items()
        ]
        forms: dict[str, Form] = {one.path: partial(self._request_action, one) for one in posted()}
        for addition in self._additions:
            for path, act in addition.actions.items():
                forms[path] = partial(_applied, act, self._observer)
        routes += [
            Route(path, self._form_endpoint(act), methods=["POST"]) for path, act in forms.items()
        ]
        files.append(Mount("/static", StaticFiles(directory=STATIC)))
        own = [
            Route("/ask", self.ask, methods=["GET"]),
            Route("/login", self.login, methods=["GET"]),
        ]
        return [*routes, *own, *files]

    def _page_endpoint(
        self, page: Page, *, fresh: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page; an error of Eddyline is shown as a page.

        Args:
            fresh: make the page anew for each request: it depends on more than epochs and definitions.
        """

        def render(request: Request) -> tuple[Response | None, bytes]:
            asked = number_of(request, "asked", 0)
            # read before the page, so that a page that says "done" also shows the effect
            requested = self._outcome(asked) if asked else None
            found = page(request)
            if isinstance(found, Response):
                return found, b""
            template, values = found
            html = self._rendered(request, template, {"requested": requested, **values})
            return None, html.encode()

        async def endpoint(request: Request) -> Response:
            try:
                if fresh or "asked" in request.query_params:
                    other, body = await self._api.run(lambda: render(request))
                else:
                    key = f"page {request.url.path}?{request.url.query}"
                    other, body = await self._api.answered(key, lambda: render(request))
                return other or HTMLResponse(body)
            except EddylineError as error:
                html = self._problem(request, error.condition, error.message, error.hint)
                return HTMLResponse(html, status_of(error))

        return endpoint

    def _form_endpoint(self, form: Form) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a form."""

        async def endpoint(request: Request) -> Response:
            try:
                self._actions.check()
                body = await limited_body(request)
                if body is None:
                    html = self._problem(request, "TOO_LARGE", "the form is too long", "shorten it")
                    return HTMLResponse(html, 413)
                given = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
                fields = {name: values[0] for name, values in given.items()}
                return RedirectResponse(await self._api.run(lambda: form(request, fields)), 303)
            except EddylineError as error:
                html = self._problem(request, error.condition, error.message, error.hint)
                return HTMLResponse(html, status_of(error))

        return endpoint

    def _request_action(self, one: Posted, request: Request, fields: Mapping[str, str]) -> str:
        """Request an action of the engine; return the path of the page that shows its outcome."""
        typed = {name: fields[name].replace("\r\n", "\n") for name in one.fields if name in fields}
        asked = one.ask(self._actions, request, typed)
        return f"{one.back(request)}?asked={asked.number}"

    def _rendered(self, request: Request, template: str, values: Mapping[str, Any]) -> str:
        query = f"?{request.url.query}" if request.url.query else ""
        common = {
            "pages": self._links,
            "here": request.url.path,
            "self_url": request.url.path + query,
            "storage": self._name,
            "acts": self._actions.allowed,
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
                "requested": None,
            }
        )

    def _outcome(self, number: int) -> dict[str, Any]:
        """Return a request, its state in words, and the report of a verification."""
        request = self._actions.request(number)
        running = in_use(self._observer.files)
        return {
            "request": request,
            "outcome": outcome(request, running=running),
            "report": report_of(request),
        }

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        """One request to the engine, and its outcome."""
        number = request.path_params["number"]
        return "request.html", {"title": f"Request {number}", "found": self._outcome(number)}

    def settings(self, _: Request) -> tuple[str, dict[str, Any]]:
        """The settings of the console and its storage."""
        return "settings.html", {"title": "Settings", "settings": self._api.settings.document()}

    async def missing(self, request: Request, error: Exception) -> Response:
        """Answer a request for a path that isn't there, or with another method."""
        assert isinstance(error, HTTPException)
        hint = "the navigation lists the pages, /api/openapi.json the paths of the JSON interface"
        if request.url.path.startswith("/api/"):
            known = "NOT_FOUND" if error.status_code == 404 else str(error.status_code)
            return failure(error.status_code, known, str(error.detail), hint)
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
        inside = self._api.explain is not None
        compared = [view for view in status["views"] if "verified" in view]
        sources = [*status["sources"], *status["pipelines"]]
        moment = datetime.fromtimestamp(committed, UTC) if committed else None
        return "overview.html", {
            "title": "Overview",
            "status": status,
            "trouble": trouble(status["run"]),
            "failing": [view for view in status["views"] if view["state"] == "failing"],
            "committed": moment.isoformat(timespec="seconds") if moment else "",
            "age": _age(time.time() - committed) if committed else "",
            "rates": rates,
            "rate": sum(rates.values()),
            "state_rows": sum(view["state_rows"] for view in status["views"]),
            "state_bytes": sum(view["state_bytes"] for view in status["views"]),
            "dead": sum(status["dead_letters"].values()),
            "behind": sum(sink["behind"] > 0 for sink in status["sinks"]),
            "lag": lag_text(total_lag(one["lag"] for one in sources if "lag" in one)),
            "inside": inside,
            "usage": self._api.tally.usage() if inside else None,
            "compared": compared,
            "differing": [view["name"] for view in compared if not view["verified"]["equal"]],
        }

    def graph(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Sources, views and sinks, as a graph; those whose names contain the text `find` stand out."""
        find = request.query_params.get("find", "").strip()[:FIND_LENGTH]
        catalog, _now = self._observer.now()
        graph = make_graph(catalog, self._observer.status(), self._api.tally.rates())
        wanted = find.lower()
        return "graph.html", {
            "title": "Graph",
            "graph": graph,
            "width": WIDTH,
            "height": HEIGHT,
            "find": find,
            "find_length": FIND_LENGTH,
            "found": {one.id for one in graph.nodes if find and wanted in one.name.lower()},
        }

    async def ask(self, request: Request) -> Response:
        """Answer with the page of a query and its answer."""
        text = request.query_params.get("sql", "").strip()
        answer: Shown | None = None
        problem: EddylineError | None = None
        if text:
            try:
                answer = await self._api.queries.shown(request, text)
            except EddylineError as error:
                problem = error
        given = {"sql": text, "answer": answer, "problem": problem, "requested": None}

        def render() -> str:
            catalog, _ = self._observer.now()
            spark = self._api.queries.has_spark
            names = [
                (entry.name, entry.columns.names)
                for entry in catalog.entries
                if spark or entry.kind == VIEW or entry.arranged
            ]
            more = {"title": "Ask", "names": names, "spark": spark}
            return self._rendered(request, "ask.html", {**given, **more})

        return HTMLResponse(await self._api.run(render))


def _applied(act: Action, observer: Observer, _: Request, fields: Mapping[str, str]) -> str:
    return act(observer, fields)


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
