"""Sends spans by OTLP over HTTP, and says once that it can't."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

PATH = "/v1/traces"

_LOG = logging.getLogger("eddyline.telemetry")


class Exporter(SpanExporter):
    """The SDK's exporter, with one log line for each outage in place of one for each failed try.

    Args:
        url: of the collector's traces; None for that of the environment.
    """

    def __init__(self, url: str | None) -> None:
        self._sending = OTLPSpanExporter(endpoint=url)
        self._failing = self._has_logged = self._ended = False
        self._turn, self._exporting = threading.Lock(), False
        self._log = logging.getLogger(trace_exporter.__name__)
        self._log.addFilter(self._is_shown)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self._begin():
            return SpanExportResult.FAILURE
        try:
            result = self._sending.export(spans)
        finally:
            self._end()
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            _LOG.warning("the collector doesn't take spans: they are dropped until it does")
        elif self._failing and not failed:
            _LOG.info("the collector takes spans again")
            self._has_logged = False
        self._failing = failed
        return result

    def _begin(self) -> bool:
        """Return whether spans may be sent, as this exporter hasn't been shut down."""
        with self._turn:
            self._exporting = not self._ended
            return self._exporting

    def _end(self) -> None:
        with self._turn:
            self._exporting = False
            if self._ended:
                self._log.removeFilter(self._is_shown)

    def shutdown(self) -> None:
        with self._turn:
            if self._ended:
                return
            self._ended = True
            if not self._exporting:  # else it still has to say that it has failed
                self._log.removeFilter(self._is_shown)
        self._sending.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._sending.force_flush(timeout_millis)

    def _is_shown(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR or self._has_logged:
            return False
        self._has_logged = True
        return True


def exporting(endpoint: str, wait_s: float) -> tuple[TracerProvider, Callable[[], None]]:
    """Return a provider that exports in the background, and the function that stops it.

    Args:
        endpoint: of the collector; empty for that of the environment.
        wait_s: how long the end waits for the collector.
    """
    named = os.environ.get("OTEL_SERVICE_NAME") or (
        "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    )
    resource = Resource.create({} if named else {SERVICE_NAME: "eddyline"})
    url = endpoint.rstrip("/")
    if url and not url.endswith(PATH):
        url += PATH
    exporter = Exporter(url or None)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))

    def close() -> None:
        atexit.unregister(close)
        ending = threading.Thread(target=provider.shutdown, name="end of traces", daemon=True)
        ending.start()
        ending.join(wait_s)
        if ending.is_alive():  # it tries no longer
            exporter.shutdown()

    atexit.register(close)
    return provider, close
