"""Connects an engine to OpenTelemetry and OpenLineage: traces of its epochs, and lineage events."""

from __future__ import annotations

from collections.abc import Mapping

from eddyline.api.reporting import Reporting
from eddyline.api.workspace import Workspace
from eddyline.telemetry.traces import traces_of
from eddyline.telemetry.tracker import tracker_of


def connect_telemetry(workspace: Workspace, reporting: Reporting) -> None:
    """Begin to export traces and lineage events of an engine that writes, as options and environment ask for.

    Raises:
        EngineError: MISSING_PACKAGE, BAD_OPTION: an exporter can't be made. The storage is released.
    """
    if not workspace.writes:
        return

    def formats() -> Mapping[str, str]:
        return {sink.name: sink.format for sink in workspace.catalog.sinks}

    def definitions() -> None:
        now = workspace.manifest
        if reporting.tracker is not None:
            reporting.tracker.observe(workspace.catalog, now.epoch, frozenset(now.failing))

    root, options = workspace.files.root, workspace.options
    try:
        reporting.traces = traces_of(root, options.otlp_endpoint, formats)
        lineage = workspace.compiler.lineage
        reporting.tracker = tracker_of(root, lineage, options.lineage_seconds)
    except BaseException:
        reporting.close()
        workspace.release()
        raise
    if reporting.tracker is not None:
        workspace.saved.append(definitions)
        definitions()
