"""The paths of actions: for forms, and below `/api` for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from starlette.requests import Request

from eddyline.arguments import wrong_argument
from eddyline.catalog.requests import Request as Asked
from eddyline.console.actions import LETTER_ACTIONS, SINK_ACTIONS, VIEW_ACTIONS, Actions

PAYLOAD = "payload"
"""The field with what a replayed record shall hold instead."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A path for POST requests, and the action that it requests of the engine.

    Attributes:
        path: as Starlette's routes write it.
        text: what it does, for the description of the interface.
        ask: makes the request from the posted fields.
        back: returns the path of the page to show then.
        fields: the fields that it takes.
    """

    path: str
    text: str
    ask: Callable[[Actions, Request, Mapping[str, str]], Asked]
    back: Callable[[Request], str]
    fields: tuple[str, ...] = ()


def posted() -> list[Posted]:
    """Return all actions, the more specific paths first."""
    return [
        *(
            Posted(
                f"/deadletters/{{source:path}}/all/{action}",
                f"{action} all dead letters of a pipeline or stream",
                partial(_letters, action),
                lambda _: "/deadletters",
            )
            for action in LETTER_ACTIONS
        ),
        *(
            Posted(
                f"/deadletters/{{source:path}}/{{position:int}}/{action}",
                f"{action} a dead letter",
                partial(_letter, action),
                lambda _: "/deadletters",
                (PAYLOAD,) if action == "replay" else (),
            )
            for action in LETTER_ACTIONS
        ),
        *(
            Posted(
                f"/sinks/{{name:path}}/{action}",
                f"{action} a sink",
                partial(_sink, action),
                lambda _: "/sinks",
            )
            for action in SINK_ACTIONS
        ),
        *(
            Posted(
                f"/views/{{name:path}}/{action}",
                f"{action} a view",
                partial(_view, action),
                lambda request: f"/views/{quote(request.path_params['name'])}",
            )
            for action in VIEW_ACTIONS
        ),
    ]


def _view(action: str, actions: Actions, request: Request, _: Mapping[str, str]) -> Asked:
    return actions.on_view(action, request.path_params["name"], _who(request))


def _sink(action: str, actions: Actions, request: Request, _: Mapping[str, str]) -> Asked:
    return actions.on_sink(action, request.path_params["name"], _who(request))


def _letters(action: str, actions: Actions, request: Request, _: Mapping[str, str]) -> Asked:
    return actions.on_letters(action, request.path_params["source"], _who(request))


def _letter(action: str, actions: Actions, request: Request, fields: Mapping[str, str]) -> Asked:
    source, position = request.path_params["source"], request.path_params["position"]
    payload = fields.get(PAYLOAD) if action == "replay" else None
    try:
        data = None if payload is None else payload.encode()
    except UnicodeEncodeError:  # half a character, which JSON can spell
        raise wrong_argument("payload", payload, "give whole characters") from None
    return actions.on_letter(action, source, position, _who(request), data)


def _who(request: Request) -> str:
    return request.client.host if request.client else "unknown"
