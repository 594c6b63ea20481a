"""Eddyline: write ordinary Spark SQL, and its result stays live over tables and streams that change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eddyline.errors import (
    CatalogError,
    DataError,
    EddylineError,
    EngineError,
    QueryError,
    ScriptError,
    StateError,
    StateGrowthWarning,
    StorageError,
)
from eddyline.options import Options

if TYPE_CHECKING:
    from eddyline.engine import Engine
    from eddyline.handles import Stream, Table, View
    from eddyline.runtime.epoch import Progress
    from eddyline.runtime.verify import Report

__all__ = [
    "CatalogError",
    "DataError",
    "EddylineError",
    "Engine",
    "EngineError",
    "Options",
    "Progress",
    "QueryError",
    "Report",
    "ScriptError",
    "StateError",
    "StateGrowthWarning",
    "StorageError",
    "Stream",
    "Table",
    "View",
]
__version__ = "0.1.0"

_WITH_SPARK = {
    "Engine": "eddyline.engine",
    "Progress": "eddyline.runtime.epoch",
    "Report": "eddyline.runtime.verify",
    "Stream": "eddyline.handles",
    "Table": "eddyline.handles",
    "View": "eddyline.handles",
}


def __getattr__(name: str) -> Any:
    """What needs PySpark is imported when it is first asked for: the command line often needn't."""
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WITH_SPARK[name]), name)
    return found
