"""The settings of a console and its storage: options and where they come from, versions, size. No secrets."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from eddyline.catalog.store import FORMAT_VERSION as CATALOG_FORMAT
from eddyline.catalog.store import CatalogStore
from eddyline.console.actions import LETTER_ACTIONS, SINK_ACTIONS, VIEW_ACTIONS, Actions
from eddyline.console.observer import Observer
from eddyline.errors import EXTRAS, has_module, installed_version
from eddyline.options import ENVIRONMENT_PREFIX, Options
from eddyline.storage.files import folder_size

SIZE_S = 60.0
"""How old, in seconds, the size of the storage may be: all its files are counted."""
BY_CORES = ("buckets", "scan_tasks")
"""Options which the engine sets to the number of cores where they are 0."""
PACKAGES = (
    "eddyline", "eddyline-apps", "pyspark", "pyarrow", "polars", "numpy", "starlette", "uvicorn",
)  # fmt: skip


class ConsoleSettings:
    """The settings of a console.

    Args:
        options: of the engine in this process; beside one, of the console's environment.
        inside: whether the engine is in this process.
        address: host and port.
        token: whether requests need one.
    """

    def __init__(
        self,
        observer: Observer,
        store: CatalogStore,
        options: Options,
        actions: Actions,
        *,
        inside: bool,
        address: str,
        token: bool,
    ) -> None:
        self._observer = observer
        self._store = store
        self._options = options
        self._actions = actions
        self._inside = inside
        self._address = address
        self._token = token
        self._lock = threading.Lock()
        self._size: tuple[float, int, int] = (0.0, 0, 0)

    def document(self) -> dict[str, Any]:
        """Return all settings as JSON.

        | key | value |
        |---|---|
        | `storage` | `path`, `bytes` and `files` (at most a minute old), `catalog`, `buckets`, `formats` of manifest and catalog |
        | `console` | `address`, `token`: whether one is needed, `engine`: whether it is in this process, `actions` |
        | `options` | each with `name`, `value`, `source` and `help`; never a secret |
        | `versions`, `extras` | of packages, by name; None for one that isn't installed. Whether each extra is installed |
        """
        catalog, manifest = self._observer.now()
        size, count = self._stored()
        shared = self._store.database.shared
        return {
            "storage": {
                "path": os.path.abspath(self._observer.files.root),
                "bytes": size,
                "files": count,
                "catalog": "PostgreSQL" if shared else "SQLite, in the storage",
                "buckets": catalog.buckets,
                "formats": {"manifest": manifest.format, "catalog": CATALOG_FORMAT},
            },
            "console": {
                "address": self._address,
                "token": self._token,
                "engine": "in this process" if self._inside else "in another process, or none",
                "actions": actions_of(self._actions),
            },
            "options": options_in_force(self._options),
            "versions": {
                **{name: installed_version(name) for name in PACKAGES},
                "Python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            },
            "extras": {extra: all(map(has_module, modules)) for extra, modules in EXTRAS.items()},
        }

    def _stored(self) -> tuple[int, int]:
        """Return bytes and number of the files of the storage."""
        with self._lock:
            looked, size, count = self._size
            if not looked or time.monotonic() - looked > SIZE_S:
                size, count = folder_size(self._observer.files.root)
                self._size = (time.monotonic(), size, count)
            return size, count


def actions_of(actions: Actions) -> list[str]:
    """Return the names of the actions that a console may request; empty if it only shows."""
    if not actions.allowed:
        return []
    kinds = {"view": VIEW_ACTIONS, "sink": SINK_ACTIONS, "dead letter": LETTER_ACTIONS}
    return [f"{action} {kind}" for kind, known in kinds.items() for action in known]


def options_in_force(
    options: Options, environment: Mapping[str, str] = os.environ
) -> list[dict[str, Any]]:
    """Return each option with `name`, `value`, `source` and `help`.

    `source` is the environment variable, `default`, or `program` for one that was given in Python; `program or
    cores` where it can also be the number of cores. Of an option that may hold a password, and which `repr`
    omits, only whether it is set.

    Example:
        >>> [one["source"] for one in options_in_force(Options(retain_epochs=4), {}) if one["value"] == 4]
        ['program']
    """
    found = []
    for item in fields(Options):
        value, name = getattr(options, item.name), ENVIRONMENT_PREFIX + item.name.upper()
        given = environment.get(name)
        if given is not None and given == str(value):
            source = name
        elif value == item.default:
            source = "default"
        else:
            source = "program or cores" if item.name in BY_CORES else "program"
        shown = value if item.repr else "given, not shown" if value else ""
        text = item.metadata["help"]
        found.append({"name": item.name, "value": shown, "source": source, "help": text})
    return found
