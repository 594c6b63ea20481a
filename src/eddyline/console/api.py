"""The JSON interface of the console, below `/api/`; `openapi.py` describes it."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from eddyline.answers.dead_letters import DeadLetter
from eddyline.answers.run_health import trouble
from eddyline.arguments import check_text, wrong_argument
from eddyline.catalog.catalog import Catalog
from eddyline.catalog.entries import VIEW, Entry
from eddyline.console.actions import SHOWN, Actions, request_json
from eddyline.console.events import Hub
from eddyline.console.graph import make_graph
from eddyline.console.guard import STRANGER, failure, limited_body
from eddyline.console.metrics import CONTENT_TYPE, metrics_text
from eddyline.console.observer import Observer, Rows
from eddyline.console.openapi import openapi
from eddyline.console.posted import Posted, posted
from eddyline.console.queries import Queries
from eddyline.console.settings import ConsoleSettings
from eddyline.console.tally import Tally, streaming_progress
from eddyline.console.values import as_json
from eddyline.errors import BUG, USER, EddylineError, EngineError
from eddyline.state.runs import ipc_bytes

ARROW = "application/vnd.apache.arrow.stream"
ROWS_DEFAULT, ROWS_MAX = 100, 10_000
LETTERS_MAX = 1000
STATUS = {
    "NOT_FOUND": 404,
    "READ_ONLY": 403,
    "NO_REPLAY": 409,
    "NO_STORAGE": 503,
    "NOT_STORED": 409,
    "VIEW_FAILING": 409,
    "CHANGES_EXPIRED": 410,
    "NO_SUCH_EPOCH": 410,
    "SNAPSHOT_EXPIRED": 410,
    "NEEDS_SPARK": 422,
    "NOT_ALLOWED": 403,
    "TOO_MANY_ROWS": 413,
}
"""The HTTP status of errors; others have 400 if the caller is at fault, else 503 or 500."""

T = TypeVar("T")
Explain = Callable[[Entry], str | None]
Endpoint = Callable[["Api", Request], Awaitable[Response]]


def status_of(error: EddylineError) -> int:
    """Return the HTTP status of an error."""
    other = 400 if error.fault == USER else 500 if error.fault == BUG else 503
    return STATUS.get(error.condition, other)


def error_response(error: EddylineError) -> Response:
    """Return an error as a response."""
    return failure(status_of(error), error.condition, error.message, error.hint)


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Make an endpoint answer with an error response if it raises an error of Eddyline."""

    @wraps(endpoint)
    async def answer(api: Api, request: Request) -> Response:
        try:
            return await endpoint(api, request)
        except EddylineError as error:
            return error_response(error)

    return answer


class Api:
    """The endpoints over one storage.

    Args:
        limiter: limits the threads that read the storage.
        explain: returns the plan of a view as text; None outside of the engine's process.
    """

    def __init__(
        self,
        observer: Observer,
        tally: Tally,
        hub: Hub,
        registry: CollectorRegistry,
        limiter: CapacityLimiter,
        actions: Actions,
        settings: ConsoleSettings,
        queries: Queries,
        explain: Explain | None = None,
    ) -> None:
        self.observer = observer
        self.actions = actions
        self.settings = settings
        self.queries = queries
        self.tally = tally
        self.hub = hub
        self.explain = explain
        self._registry = registry
        self._limiter = limiter

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        given: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/health": self.health,
            "/ready": self.ready,
            "/metrics": self.metrics,
            "/api/status": self.status,
            "/api/views": self.views,
            "/api/views/{name:path}/changes": self.changes,
            "/api/views/{name:path}/plan": self.plan,
            "/api/views/{name:path}/epochs": self.epochs,
            "/api/views/{name:path}": self.view,
            "/api/sources": self.sources,
            "/api/sinks": self.sinks,
            "/api/pipelines": self.pipelines,
            "/api/pipelines/{pipeline:path}/history": self.history,
            "/api/deadletters": self.deadletters,
            "/api/deadletters/{source:path}/{position:int}": self.deadletter,
            "/api/requests": self.requests,
            "/api/requests/{number:int}": self.request,
            "/api/profile": self.profile,
            "/api/settings": self.shown_settings,
            "/api/tasks": self.tasks,
            "/api/graph": self.graph,
            "/api/progress": self.progress,
            "/api/events": self.events,
            "/api/query/answer.{kind}": self.file,
            "/api/openapi.json": self.openapi,
        }
        routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in given.items()]
        acts = [
            Route(f"/api{one.path}", partial(self.act, one), methods=["POST"]) for one in posted()
        ]
        return [*acts, *routes, Route("/api/query", self.query, methods=["POST"])]

    async def run(self, read: Callable[[], T]) -> T:
        """Run a function that reads the storage in a thread."""
        return await to_thread.run_sync(read, limiter=self._limiter)

    async def answered(self, key: str, make: Callable[[], tuple[T, bytes]]) -> tuple[T, bytes]:
        """Return an answer that is kept, at once; else make it in a thread; see `Observer.answered`."""
        known = self.observer.remembered(key)
        if known is not None:
            found: tuple[T, bytes] = known
            return found
        return await self.run(lambda: self.observer.answered(key, make))

    async def health(self, _: Request) -> Response:
        """Answer while the console runs."""
        return Response(status_code=204)

    @_guarded
    async def ready(self, request: Request) -> Response:
        """Answer 200 while an engine runs, and neither its run nor a view fails; with `age`, if the last commit is younger.

        The reasons are for those who have the token.
        """
        stranger = bool(request.scope.get(STRANGER))
        try:
            status = await self.run(self.observer.status)
        except EddylineError:
            if stranger:
                return JSONResponse({"ready": False}, 503)
            raise
        failing = [view["name"] for view in status["views"] if view["state"] == "failing"]
        most = number_of(request, "age", 0)
        age = time.time() - status["committed_at"] if status["committed_at"] else None
        reasons = []
        if status["engine"] != "running":
            reasons.append("no engine runs on this storage")
        if problem := trouble(status["run"]):
            reasons.append(problem)
        if failing:
            reasons.append(f"views fail: {', '.join(failing)}")
        if most and (age is None or age > most):
            reasons.append(f"the last commit is older than {most} seconds")
        found = {"ready": not reasons, "reasons": reasons, "epoch": status["epoch"], "age": age}
        shown = {"ready": not reasons} if stranger else found
        return JSONResponse(shown, 503 if reasons else 200)

    @_guarded
    async def metrics(self, _: Request) -> Response:
        """Answer with Prometheus metrics."""
        text = await self.run(lambda: metrics_text(self._registry))
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @_guarded
    async def status(self, _: Request) -> Response:
        """Answer with the status of the storage."""
        return JSONResponse(await self.run(self.observer.status))

    async def _part(self, name: str) -> Response:
        status = await self.run(self.observer.status)
        return JSONResponse({"epoch": status["epoch"], name: status[name]})

    @_guarded
    async def views(self, _: Request) -> Response:
        """Answer with all views: state, query, columns."""
        status, (catalog, _now) = await self.run(
            lambda: (self.observer.status(), self.observer.now())
        )
        found = [
            {**item, **described(catalog, catalog.get(item["name"]))} for item in status["views"]
        ]
        return JSONResponse({"epoch": status["epoch"], "views": found})

    @_guarded
    async def view(self, request: Request) -> Response:
        """Answer with rows of a table or view; see `openapi.py`."""
        name = request.path_params["name"]
        offset = number_of(request, "offset", 0)
        epoch = number_of(request, "epoch", -1)
        arrow = ARROW in request.headers.get("accept", "")
        limit = number_of(request, "limit", -1 if arrow else ROWS_DEFAULT)
        if limit > ROWS_MAX and not arrow:
            raise wrong_argument("limit", limit, f"give at most {ROWS_MAX}, and an offset")
        known = None if epoch < 0 else epoch
        last_good = request.query_params.get("last_good") == "1"
        where = request.query_params.get("where", "")

        def read() -> tuple[Rows, bytes]:
            rows = self.observer.rows(name, known, last_good=last_good, where=where)
            part = rows.table.slice(offset, None if limit < 0 else limit)
            if arrow:
                return rows, ipc_bytes(part)
            head = {
                "view": rows.name,
                "epoch": rows.epoch,
                "total": rows.table.num_rows,
                "offset": offset,
                "ordered": not rows.ordered,
                "columns": self.observer.entry(name).columns.jsonValue()["fields"],
            }
            start = json.dumps(head, ensure_ascii=False)[:-1]
            return rows, f'{start}, "rows": [{",".join(as_json(part))}]}}'.encode()

        key = f"{'arrow' if arrow else 'json'} {request.url.path}?{request.url.query}"
        rows, body = await self.answered(key, read)
        answer = Response(body, media_type=ARROW if arrow else "application/json")
        answer.headers["Eddyline-Epoch"] = str(rows.epoch)
        return answer

    @_guarded
    async def plan(self, request: Request) -> Response:
        """Answer with the plan of a view, if the console is in the engine's process."""
        entry = await self.run(lambda: self.observer.entry(request.path_params["name"]))
        return JSONResponse({"view": entry.name, "plan": self.plan_of(entry)})

    def plan_of(self, entry: Entry) -> str | None:
        """Return the plan of a view as text; None if it isn't known here."""
        return self.explain(entry) if self.explain is not None and entry.kind == VIEW else None

    @_guarded
    async def epochs(self, request: Request) -> Response:
        """Answer with the retained epochs of which a table or view has rows."""
        name = request.path_params["name"]
        found = await self.run(lambda: self.observer.epochs(name))
        epochs = [{"epoch": epoch, "committed_at": moment(at)} for epoch, at in found]
        return JSONResponse({"view": name, "epochs": epochs})

    @_guarded
    async def profile(self, _: Request) -> Response:
        """Answer with what views and operators have spent time on in the last epochs."""
        epochs, spent = await self.run(self.observer.profile)
        return JSONResponse({"epochs": epochs, "spent": [asdict(one) for one in spent]})

    @_guarded
    async def shown_settings(self, _: Request) -> Response:
        """Answer with the settings of the console and its storage, without secrets."""
        return JSONResponse(await self.run(self.settings.document))

    @_guarded
    async def requests(self, request: Request) -> Response:
        """Answer with the last requests to the engine, the newest first."""
        last = number_of(request, "last", SHOWN)
        found = await self.run(lambda: self.actions.requests(max(last, 1)))
        return JSONResponse({"requests": [request_json(one) for one in found]})

    @_guarded
    async def request(self, request: Request) -> Response:
        """Answer with one request to the engine, and its outcome."""
        number = request.path_params["number"]
        return JSONResponse(request_json(await self.run(lambda: self.actions.request(number))))

    async def act(self, one: Posted, request: Request) -> Response:
        """Ask the engine for something; the answer is the request, whose outcome comes later."""
        try:
            self.actions.check()
            body = await limited_body(request)
            if body is None:
                return failure(413, "TOO_LARGE", "the request is too long", "shorten it")
            fields = _fields(body, one)
            asked = await self.run(lambda: one.ask(self.actions, request, fields))
        except EddylineError as error:
            return error_response(error)
        where = {"Location": f"/api/requests/{asked.number}"}
        return JSONResponse(request_json(asked), 202, where)

    @_guarded
    async def changes(self, request: Request) -> Response:
        """Answer with the changes of a table or view, as server-sent events."""
        name = request.path_params["name"]
        after = number_of(request, "after", -1)
        if given := request.headers.get("last-event-id", ""):
            after = _number("Last-Event-ID", given)
        await self.run(lambda: self.observer.checked(name))
        texts = request.query_params.get("as") == "texts"
        return _stream(self.hub.changes(name, None if after < 0 else after, texts=texts))

    async def events(self, _: Request) -> Response:
        """Answer with an event for each committed epoch."""
        return _stream(self.hub.epochs())

    @_guarded
    async def sources(self, _: Request) -> Response:
        """Answer with all tables and streams."""
        return await self._part("sources")

    @_guarded
    async def sinks(self, _: Request) -> Response:
        """Answer with all sinks."""
        return await self._part("sinks")

    @_guarded
    async def pipelines(self, _: Request) -> Response:
        """Answer with all pipelines."""
        return await self._part("pipelines")

    @_guarded
    async def history(self, request: Request) -> Response:
        """Answer with the last batches of a pipeline."""
        points = await self.run(lambda: self.observer.history(request.path_params["pipeline"]))
        return JSONResponse({"points": [{**asdict(one), "at": moment(one.at)} for one in points]})

    @_guarded
    async def deadletters(self, request: Request) -> Response:
        """Answer with dead letters, the newest first."""
        source = request.query_params.get("source")
        letters = await self.run(lambda: self.observer.letters(source))
        found = [letter_json(letter) for letter in letters[:LETTERS_MAX]]
        return JSONResponse({"total": len(letters), "letters": found})

    @_guarded
    async def deadletter(self, request: Request) -> Response:
        """Answer with one dead letter."""
        source, position = request.path_params["source"], request.path_params["position"]
        letter = await self.run(lambda: self.observer.letter(source, position))
        return JSONResponse(letter_json(letter))

    @_guarded
    async def tasks(self, _: Request) -> Response:
        """Answer with all definitions, and the requested views."""
        tasks = await self.run(self.observer.tasks)
        return JSONResponse({"tasks": [asdict(task) for task in tasks]})

    @_guarded
    async def graph(self, _: Request) -> Response:
        """Answer with the graph of sources, views and sinks."""

        def read() -> dict[str, Any]:
            catalog, _now = self.observer.now()
            return make_graph(catalog, self.observer.status(), self.tally.rates()).as_dict()

        return JSONResponse(await self.run(read))

    @_guarded
    async def progress(self, request: Request) -> Response:
        """Answer with the last epochs in the shape of Spark's StreamingQueryProgress."""
        last = number_of(request, "last", 100)
        return JSONResponse(
            await self.run(lambda: streaming_progress(self.observer, self.tally, max(last, 1)))
        )

    @_guarded
    async def query(self, request: Request) -> Response:
        """Answer a query."""
        return await self.queries.query(request)

    @_guarded
    async def file(self, request: Request) -> Response:
        """Answer a query with a file."""
        return await self.queries.file(request)

    async def openapi(self, _: Request) -> Response:
        """Answer with the description of this interface."""
        return JSONResponse(openapi())


def described(catalog: Catalog, entry: Entry) -> dict[str, Any]:
    """Return the definition of a relation as JSON: query, inputs, columns and readers."""
    return {
        "kind": entry.kind,
        "query": entry.query,
        "upstream": list(entry.upstream),
        "columns": entry.columns.jsonValue()["fields"],
        "read_by": catalog.readers(entry.name),
        "sinks": catalog.followers(entry.name) if entry.kind == VIEW else [],
    }


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as JSON; bytes that are no UTF-8 as hexadecimal digits."""
    found = asdict(letter)
    for name in ("payload", "key"):
        data = found[name]
        try:
            found[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            found[name] = data.hex(" ")
    return {**found, "received": str(letter.received), "died": str(letter.died)}


def number_of(request: Request, name: str, default: int) -> int:
    """Return a parameter of the query; BAD_OPTION if it isn't a whole number from 0 on."""
    given = request.query_params.get(name)
    return _number(name, given) if given else default  # a form's field may be empty


def _number(name: str, given: str) -> int:
    """Return a whole number from 0 on; BAD_OPTION for another text."""
    if not (given.isascii() and given.isdigit()) or len(given) > 15:
        raise wrong_argument(name, given, "give a whole number from 0 on")
    return int(given)


def moment(seconds: float) -> str | None:
    """Return a time in seconds since 1970 as ISO 8601 in UTC; None for 0, which is unknown."""
    return (
        datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None
    )


def _fields(body: bytes, one: Posted) -> dict[str, str]:
    """Return the fields of an action's JSON; raise BAD_OPTION for unknown fields, and for values that aren't texts."""
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        found = None
    if (
        not isinstance(found, dict)
        or found.keys() - set(one.fields)
        or not all(isinstance(value, str) for value in found.values())
    ):
        known = ", ".join(one.fields) or "none"
        raise EngineError(
            "the request is no JSON object of the action's fields, which are texts",
            condition="BAD_OPTION",
            hint=f"fields: {known}",
        )
    for name, value in found.items():
        check_text(name, value)
    return found


def _stream(events: Any) -> Response:
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
