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
    QueueError,
    QueueFullError,
    ScriptError,
    StateError,
    StateGrowthWarning,
    StorageError,
)
from eddyline.options import Options

if TYPE_CHECKING:
    from eddyline.engine import Engine
    from eddyline.handles import Stream, Table, View
    from eddyline.pipeline import Pipeline
    from eddyline.relay.bolts import Emitted
    from eddyline.relay.kafka import KafkaBackend
    from eddyline.relay.log_queue import LogBackend
    from eddyline.relay.queue import DataQueue, Producer
    from eddyline.runtime.epoch import Progress
    from eddyline.runtime.verify import Report

__all__ = [
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
    "StateError",
    "StateGrowthWarning",
    "StorageError",
    "Stream",
    "Table",
    "View",
]
__version__ = "0.1.0"

_WHEN_ASKED = {
    "DataQueue": "eddyline.relay.queue",
    "Emitted": "eddyline.relay.bolts",
    "Engine": "eddyline.engine",
    "KafkaBackend": "eddyline.relay.kafka",
    "LogBackend": "eddyline.relay.log_queue",
    "Pipeline": "eddyline.pipeline",
    "Producer": "eddyline.relay.queue",
    "Progress": "eddyline.runtime.epoch",
    "Report": "eddyline.runtime.verify",
    "Stream": "eddyline.handles",
    "Table": "eddyline.handles",
    "View": "eddyline.handles",
}


def __getattr__(name: str) -> Any:
    """What needs PySpark or Arrow is imported when it is first asked for: the command line often needn't."""
    if name not in _WHEN_ASKED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHEN_ASKED[name]), name)
    return found
