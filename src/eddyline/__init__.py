"""Eddyline: write ordinary Spark SQL, and its result stays live over tables and streams that change."""

from __future__ import annotations

from eddyline.engine import Engine
from eddyline.errors import (
    CatalogError,
    DataError,
    EddylineError,
    EngineError,
    QueryError,
    ScriptError,
    StateError,
    StorageError,
)
from eddyline.handles import Stream, Table, View
from eddyline.options import Options
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
    "StorageError",
    "Stream",
    "Table",
    "View",
]
__version__ = "0.1.0"
