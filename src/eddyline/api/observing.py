"""Connects an engine to the systems that watch it: traces of its epochs."""

from __future__ import annotations

from collections.abc import Mapping

from eddyline.api.reporting import Reporting
from eddyline.api.workspace import Workspace
from eddyline.telemetry.traces import traces_of


def observe(workspace: Workspace, reporting: Reporting) -> None:
    """Trace the epochs of an engine that writes, if its options or the environment ask for it.

    Raises:
        EngineError: MISSING_PACKAGE, BAD_OPTION: it can't be done. The storage is released.
    """
    if not workspace.writes:
        return

    def formats() -> Mapping[str, str]:
        return {sink.name: sink.format for sink in workspace.catalog.sinks}

    try:
        reporting.traces = traces_of(workspace.files.root, workspace.options.otlp_endpoint, formats)
    except BaseException:
        workspace.release()
        raise
