"""Checks of the arguments of public calls: types by their hints, numbers and choices by limits."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar

from eddyline.errors import EngineError

Class = TypeVar("Class")

_TEXTS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    Callable: "a function",
    Iterable: "a list or another iterable",
    Sequence: "a list or tuple",
    Mapping: "a dict",
}


def check_number(
    what: str, value: object, least: float, most: float = math.inf, *, whole: bool = True
) -> None:
    """Raise EngineError BAD_OPTION if a value isn't a number within limits.

    Args:
        what: name of the value, for the message.
        least, most: limits, both included.
        whole: whether the value must be an integer.
    """
    if not _fits(value, int if whole else float) or not least <= typing.cast(float, value) <= most:
        limits = f"from {least} " + ("on" if most == math.inf else f"to {most}")
        raise wrong_argument(what, value, f"give a {'whole ' * whole}number {limits}")


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """Raise EngineError BAD_OPTION if a value is not one of the allowed ones."""
    if value not in choices:
        raise wrong_argument(what, value, f"choose of {', '.join(choices)}")


def check_text(what: str, value: str) -> None:
    """Raise EngineError BAD_OPTION if a text has half of a surrogate pair, which neither Spark nor a file takes."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        way_out = "leave out the half of a surrogate pair in it, which is no character"
        raise wrong_argument(what, value, way_out) from error


def checked(cls: type[Class]) -> type[Class]:
    """Make the public methods of a class check their arguments against their type hints.

    A wrong argument raises EngineError BAD_OPTION, which names the method and the argument.

    Example:
        >>> @checked
        ... class Greeter:
        ...     def greet(self, name: str) -> str:
        ...         return f"hello {name}"
        >>> Greeter().greet(5)
        Traceback (most recent call last):
        eddyline.errors.EngineError: [BAD_OPTION] name of Greeter.greet is 5 Way out: give text
    """
    for name, function in list(vars(cls).items()):
        own_init = name == "__init__" and not is_dataclass(cls)
        if inspect.isfunction(function) and (own_init or not name.startswith("_")):
            setattr(cls, name, _checking(function, "" if own_init else f".{name}"))
    return cls


def wrong_argument(what: str, value: object, hint: str) -> EngineError:
    """Return the error for an argument or setting that can't be used."""
    return EngineError(f"{what} is {reprlib.repr(value)}", condition="BAD_OPTION", hint=hint)


def _checking(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    signature = inspect.signature(function)
    hints = functools.cache(lambda: typing.get_type_hints(function))  # may name later classes

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError:
            return function(*args, **named)  # Python's own error names the argument
        for name, value in given.items():
            if not _fits(value, hint := hints().get(name, Any)):
                what = f"{name} of {type(args[0]).__name__}{method}"
                raise wrong_argument(what, value, f"give {_text(hint)}")
        return function(*args, **named)

    return call


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value has a type; of the items of a list or dict, check their types too."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool) and value == value
    if getattr(kind, "_is_protocol", False) and kind.__module__.startswith("eddyline."):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    if not isinstance(value, tuple | list if kind is tuple else kind):
        return False
    return kind not in _ITEMS or _ITEMS[kind](typing.cast(Any, value), arguments)


def _fits_sequence(value: Sequence[object], arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes):
        return False
    # items of others may be expensive to get: those of a pandas Series, a column of Arrow
    is_plain = isinstance(value, list | tuple)
    return not is_plain or all(_fits(item, arguments[0]) for item in value)


def _fits_tuple(value: Sequence[object], arguments: tuple[Any, ...]) -> bool:
    if arguments[-1] is Ellipsis:
        return all(_fits(item, arguments[0]) for item in value)
    return len(value) == len(arguments) and all(map(_fits, value, arguments))


def _fits_mapping(value: Mapping[object, object], arguments: tuple[Any, ...]) -> bool:
    key_hint, item_hint = arguments
    return all(_fits(key, key_hint) and _fits(item, item_hint) for key, item in value.items())


_NUMBERS: Mapping[Any, Any] = {int: numbers.Integral, float: numbers.Real}
_ITEMS: Mapping[Any, Callable[[Any, tuple[Any, ...]], bool]] = {
    Sequence: _fits_sequence,
    tuple: _fits_tuple,
    Mapping: _fits_mapping,
    dict: _fits_mapping,
}
"""By type the check of what a value of it contains."""


def _text(hint: Any) -> str:
    """Return a type in words."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return " or ".join(map(_text, arguments))
    if kind is tuple:
        return f"a tuple of {', '.join(_text(one) for one in arguments if one is not ...)}"
    if kind in (Mapping, dict, Sequence):
        return f"{_TEXTS.get(kind, 'a dict')} of {' and '.join(map(_text, arguments))}"
    return _TEXTS.get(kind) or str(getattr(kind, "__name__", kind))
