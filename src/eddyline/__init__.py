"""Eddyline: write ordinary Spark SQL, and its result stays live over tables and streams that change."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eddyline.errors import (
    CatalogError,
    DataError,
    EddylineError,
    EngineError,
    QueryError,
    QueueError,
    QueueFullError,
    ScriptError,
    StateError,
    StateGrowthWarning,
    StorageError,
    ViewFailingWarning,
)
from eddyline.options import Options

if TYPE_CHECKING:
    from eddyline.answers.verify import Report
    from eddyline.api.engine import Engine
    from eddyline.api.handles import Sink, Stream, Table, View
    from eddyline.api.pipeline import Pipeline
    from eddyline.relay.backflow import Backflow
    from eddyline.relay.bolts import Emitted
    from eddyline.relay.embedded import LogBackend
    from eddyline.relay.kafka import KafkaBackend
    from eddyline.relay.queue import DataQueue, Producer
    from eddyline.runtime.progress import Progress

__all__ = [
    "Backflow",
    "CatalogError",
    "DataError",
    "DataQueue",
    "EddylineError",
    "Emitted",
    "Engine",
    "EngineError",
    "KafkaBackend",
    "LogBackend",
    "Options",
    "Pipeline",
    "Producer",
    "Progress",
    "QueryError",
    "QueueError",
    "QueueFullError",
    "Report",
    "ScriptError",
    "Sink",
    "StateError",
    "StateGrowthWarning",
    "StorageError",
    "Stream",
    "Table",
    "View",
    "ViewFailingWarning",
]
__version__ = "0.1.0"

_LAZY = {
    "Backflow": "eddyline.relay.backflow",
    "DataQueue": "eddyline.relay.queue",
    "Emitted": "eddyline.relay.bolts",
    "Engine": "eddyline.api.engine",
    "KafkaBackend": "eddyline.relay.kafka",
    "LogBackend": "eddyline.relay.embedded",
    "Pipeline": "eddyline.api.pipeline",
    "Producer": "eddyline.relay.queue",
    "Progress": "eddyline.runtime.progress",
    "Report": "eddyline.answers.verify",
    "Sink": "eddyline.api.handles",
    "Stream": "eddyline.api.handles",
    "Table": "eddyline.api.handles",
    "View": "eddyline.api.handles",
}


# a library is silent until the application configures logging
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Import names that need PySpark or Arrow at their first use: many commands don't need them."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return found
