"""The description of the console's JSON interface, by the OpenAPI specification."""

from __future__ import annotations

import re
from typing import Any

from eddyline.console.posted import Posted, posted

VERSION = "1"
"""Raised when something is removed or changes its meaning; more may be added at any time."""


def _in_path(name: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}}


_NAME, _SOURCE = _in_path("name"), _in_path("source")
_POSITION, _NUMBER = _in_path("position", "integer"), _in_path("number", "integer")


def _parameter(name: str, text: str, kind: str = "integer") -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": kind}}


_AFTER = _parameter("after", "the epoch after which changes begin; without: the last one")
_PATHS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "/health": ("204 while the console runs", [], ""),
    "/ready": (
        "200 while an engine runs, and neither its background run nor a view fails, else 503",
        [_parameter("age", "the greatest age of the last commit, in seconds")],
        "application/json",
    ),
    "/metrics": ("Prometheus metrics", [], "text/plain"),
    "/api/status": ("status of the storage, as engine.status()", [], "application/json"),
    "/api/views": ("views: state, size, query, columns", [], "application/json"),
    "/api/views/{name}": (
        "rows of a table or view, as JSON or, by the header Accept, as an Arrow IPC stream",
        [
            _NAME,
            _parameter("limit", "number of rows: 100, at most 10000; Arrow: all"),
            _parameter("offset", "number of rows to skip"),
            _parameter("epoch", "a retained epoch; without: the last one"),
            _parameter(
                "where", "only rows that meet these conditions, as /api/query takes them", "string"
            ),
            _parameter("last_good", "1: a failing view gives the rows of its last good epoch"),
        ],
        "application/json",
    ),
    "/api/views/{name}/changes": (
        "changes as server-sent events: the id is the epoch, and Last-Event-ID resumes",
        [_NAME, _AFTER, _parameter("as", "texts: rows as lists of texts", "string")],
        "text/event-stream",
    ),
    "/api/views/{name}/plan": (
        "plan of a view as text; null outside of the engine's process",
        [_NAME],
        "application/json",
    ),
    "/api/views/{name}/epochs": (
        "the retained epochs of which a table or view has rows, and when each was committed",
        [_NAME],
        "application/json",
    ),
    "/api/sources": ("tables and streams", [], "application/json"),
    "/api/sinks": ("sinks, and how far they are", [], "application/json"),
    "/api/pipelines": ("pipelines and their accounts", [], "application/json"),
    "/api/pipelines/{pipeline}/history": (
        "the last batches of a pipeline by second: their time, records in flight, windows of lanes",
        [_in_path("pipeline")],
        "application/json",
    ),
    "/api/deadletters": (
        "dead letters, the newest first, at most 1000",
        [_parameter("source", "one pipeline or stream", "string")],
        "application/json",
    ),
    "/api/deadletters/{source}/{position}": (
        "one dead letter",
        [_SOURCE, _POSITION],
        "application/json",
    ),
    "/api/requests": (
        "the last requests to the engine, the newest first, and their outcomes",
        [_parameter("last", "number of requests: 200")],
        "application/json",
    ),
    "/api/requests/{number}": (
        "a request to the engine: state waiting, done or refused; the report of a verification",
        [_NUMBER],
        "application/json",
    ),
    "/api/profile": (
        "what views and operators have spent time on in the last epochs",
        [],
        "application/json",
    ),
    "/api/settings": (
        "options and where they come from, versions, storage, allowed actions; no secrets",
        [],
        "application/json",
    ),
    "/api/tasks": ("definitions, and views that are requested", [], "application/json"),
    "/api/graph": ("sources, views and sinks, and what reads what", [], "application/json"),
    "/api/progress": (
        "epochs in the shape of Spark's StreamingQueryProgress, oldest first",
        [_parameter("last", "number of epochs: 100")],
        "application/json",
    ),
    "/api/events": ("an event for each committed epoch", [], "text/event-stream"),
    "/api/query/answer.{kind}": (
        "a query's rows as a file, csv or parquet; at most 100,000",
        [_in_path("kind"), {**_parameter("sql", "the query", "string"), "required": True}],
        "text/csv",
    ),
    "/api/openapi.json": ("this description", [], "application/json"),
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                name: {"type": "string"} for name in ("condition", "message", "hint")
            },
        }
    },
}  # fmt: skip


def openapi() -> dict[str, Any]:
    """Return the description, as a document of OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for path, (text, parameters, kind) in _PATHS.items():
        found = {"description": text, **({"content": {kind: {}}} if kind else {})}
        operation = {
            "summary": text,
            "responses": {"200" if kind else "204": found, "default": _failed()},
            **({"parameters": parameters} if parameters else {}),
        }
        paths[path] = {"get": operation}
    paths["/api/query"] = {"post": _query()}
    for one in posted():
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", f"/api{one.path}")
        paths.setdefault(path, {})["post"] = _action(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Eddyline console", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _action(one: Posted) -> dict[str, Any]:
    places = re.findall(r"\{(\w+):(\w+)\}", one.path)
    found = {"description": "the request; GET /api/requests/{number} tells its outcome"}
    described = {
        "summary": f"ask the engine: {one.text}; only where actions are allowed",
        "parameters": [
            _in_path(name, "integer" if kind == "int" else "string") for name, kind in places
        ],
        "responses": {
            "202": {**found, "content": {"application/json": {}}},
            "403": {"description": "this console only shows"},
            "default": _failed(),
        },
    }
    if one.fields:
        texts = {name: {"type": "string"} for name in one.fields}
        schema = {"type": "object", "properties": texts, "additionalProperties": False}
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return described


def _query() -> dict[str, Any]:
    text = "answer a query, by Spark where that is needed; at most 1000 rows, values as texts"
    query = {"type": "object", "required": ["sql"], "properties": {"sql": {"type": "string"}}}
    return {
        "summary": text,
        "requestBody": {"required": True, "content": {"application/json": {"schema": query}}},
        "responses": {
            "200": {"description": text, "content": {"application/json": {}}},
            "403": {"description": "the query reads or calls something outside of the storage"},
            "422": {"description": "only Spark answers this query, and the console has none"},
            "default": _failed(),
        },
    }


def _failed() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": "an error", "content": {"application/json": {"schema": schema}}}
