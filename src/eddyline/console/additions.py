"""Pages that applications add to the console."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from eddyline.console.observer import Observer

Answered: TypeAlias = Union[tuple[str, dict[str, Any]], "Response"]
"""A template and its values, or a response of another kind."""
Action: TypeAlias = Callable[["Observer", Mapping[str, str]], str]
"""Does what a form with these fields asks for; returns the path of the page to show then."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Pages that an application adds to the console, behind the same guard and in the same layout.

    Attributes:
        name: of the application: its files are below `/static/NAME/`.
        package: has the folders `templates` and `static`. Templates may extend those of the console.
        links: paths and titles for the navigation.
        pages: by path the function that answers it; called in a thread.
        actions: by path the function for forms that are posted there; called in a thread with the form's fields. It
            returns the path of the page to show next. Only a console with a token has actions.
    """

    name: str
    package: str
    links: Sequence[tuple[str, str]]
    pages: Mapping[str, Callable[[Observer, Request], Answered]]
    actions: Mapping[str, Action] = field(default_factory=dict)
