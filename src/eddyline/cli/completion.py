"""The command `completion`: a script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from eddyline.cli.arguments import Commands, add_command
from eddyline.cli.output import TABLE, add_format, show_document
from eddyline.errors import missing_package

SHELLS = ("bash", "zsh", "fish")
_FILES = ("SCRIPT", "FILE", "PATH", "F", "LOG")
_FOLDERS = ("DIR",)


def add_to(commands: Commands, parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the command to the parser.

    Args:
        parser: makes the parser with all commands that are installed.
    """
    purpose = "print a script by which your shell completes commands, options and files"
    added = add_command(commands, "completion", lambda args: _completion(args, parser()), purpose)
    added.add_argument("shell", choices=SHELLS)
    add_format(added)


def _completion(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        import shtab
    except ImportError as error:
        raise missing_package("eddyline completion", "shtab", "completion") from error
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    script = shtab.complete(parser, args.shell)
    if args.format == TABLE:
        print(script)
    else:
        show_document({"shell": args.shell, "script": script})
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from _actions(below)
        else:
            yield action
