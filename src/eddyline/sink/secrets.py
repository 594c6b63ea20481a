"""References to secrets in the options of sinks and streams: the catalog holds the reference, never the secret."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from eddyline.errors import EngineError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_WORDS = (
    r"password|passwd|passphrase|pwd|secret|token|credential|signature|authorization|user\.info|key\.pem|"
    r"(?:access|account|api|private)[._-]?key|keystore\.key|(?<![a-z])(?:pass|auth|sig|jwt|bearer)(?![a-z])"
)
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
# up to the last @: a password may hold one, and a slash; but 80/ is a port
_IN_URL = re.compile(r"(?<=://)([^:@\s/?]*:)(?!\d+/)((?:\$\{[^}]*\}|[^\s?])+)(?=@)")
_ASSIGNED = re.compile(
    rf"((?:{_WORDS})[\w.-]*[\"']?\s*[=:]\s*(?:(?:Bearer|Basic)\s+)?)"
    r"(\$\{[^}]*\}|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|[^\s&;'\"]+)",
    re.IGNORECASE,
)
HIDDEN = "***"
"""What is shown in the place of a secret."""


def check_secrets(options: Mapping[str, str], secret: Collection[str]) -> None:
    """Raise EngineError BAD_OPTION if an option holds a secret in the clear.

    Args:
        options: by names in lower case.
        secret: names of options that hold secrets.
    """
    for name in secret:
        if name in options and not _REFERENCE.fullmatch(options[name]):
            raise EngineError(
                f"the option {name} would be stored in the clear",
                condition="BAD_OPTION",
                hint=f"write {name} '${{env:NAME}}' for an environment variable, or "
                f"{name} '${{file:/path}}' for a file that only this user can read",
            )


def without_secrets_in(options: Mapping[str, str]) -> dict[str, str]:
    """Return options to show to people: what can be a secret is replaced by `HIDDEN`, references to secrets stay.

    Secrets are known by the names of options, such as `password`; within a value by `password=...`, and by their
    place in a URL.

    Example:
        >>> without_secrets_in({"url": "postgresql://ann:pw@db/shop", "apiKey": "k", "password": "${env:PW}"})
        {'url': 'postgresql://ann:***@db/shop', 'apiKey': '***', 'password': '${env:PW}'}
    """
    return {name: _shown(name, value) for name, value in options.items()}


def _shown(name: str, value: str) -> str:
    if _SECRET_NAME.search(name):
        return value if _REFERENCE.fullmatch(value) else HIDDEN
    return _ASSIGNED.sub(_hidden, _IN_URL.sub(_hidden, value))


def _hidden(found: re.Match[str]) -> str:
    before, value = found.groups()
    return before + (value if _REFERENCE.fullmatch(value) else HIDDEN)


def filled_in(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with each `${env:NAME}` and `${file:PATH}` replaced by what it refers to.

    Raises:
        EngineError: SECRET_MISSING, the variable isn't set or the file can't be read.

    Example:
        >>> os.environ["EDDYLINE_EXAMPLE"] = "s3cret"
        >>> filled_in({"password": "${env:EDDYLINE_EXAMPLE}"})
        {'password': 's3cret'}
    """
    return {name: _REFERENCE.sub(_secret, value) for name, value in options.items()}


def secret_values(options: Mapping[str, str]) -> list[str]:
    """Return what the references in options refer to; raises as `filled_in` does."""
    found = (_secret(one) for value in options.values() for one in _REFERENCE.finditer(value))
    return [value for value in found if value]


def _secret(reference: re.Match[str]) -> str:
    kind, name = reference.groups()
    try:
        if kind == "env":
            return os.environ[name]
        with open(name, encoding="utf-8") as stream:
            return stream.read().rstrip("\r\n")
    except (KeyError, OSError, UnicodeDecodeError) as error:
        what = "environment variable" if kind == "env" else "file"
        raise EngineError(
            f"the {what} {name}, which an option refers to, can't be read",
            condition="SECRET_MISSING",
            hint=f"set the variable for this process, or mend the option: ${{{kind}:{name}}}",
        ) from error
