"""Epochs as OpenTelemetry traces: epoch > ingest, plan, run > view, commit, and sink.

Spans are made of the times that an epoch has measured anyway, after its commit. They hold numbers, and names
of views and conditions of errors, but no rows, no messages and no query.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eddyline.answers.deliverer import Delivered
from eddyline.errors import EngineError, condition_of, missing_package
from eddyline.runtime.lane_choice import SHORT
from eddyline.runtime.progress import Progress, Span, Timer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OpenSpan
    from opentelemetry.trace import SpanContext
    from opentelemetry.util.types import AttributeValue

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"

EPOCHS_KEPT = 256
"""How many of the last epochs a delivery to a sink finds the spans of."""

LINKS_MAX = 32
PENDING_MAX = 64

CLOSE_S = 3.0
"""How long the end of an engine waits for a collector to take the last spans."""

_LOG = logging.getLogger("eddyline.telemetry")


class Traces:
    """Makes the spans of one engine.

    Args:
        provider: of OpenTelemetry's SDK.
        storage: the storage's folder, an attribute of each epoch.
        formats: returns the format of each sink by its name.
        close: ends the provider; None if it is the program's own.
    """

    def __init__(
        self,
        provider: TracerProvider,
        storage: str,
        formats: Callable[[], Mapping[str, str]],
        close: Callable[[], None] | None = None,
    ) -> None:
        self._tracer = provider.get_tracer("eddyline")
        self._storage = storage
        self._formats = formats
        self._close = close
        self._lock = threading.Lock()
        self._known: OrderedDict[int, SpanContext] = OrderedDict()
        self._pending: list[Delivered] = []
        self._warned = False

    def epoch(self, progress: Progress, timer: Timer) -> None:
        """Trace a committed epoch."""
        lanes = list(progress.lanes.values())
        numbers: dict[str, AttributeValue] = {
            "eddyline.rows.in": sum(progress.rows_in.values()),
            "eddyline.rows.out": sum(progress.rows_out.values()),
            "eddyline.views.short": lanes.count(SHORT),
            "eddyline.views.wide": len(lanes) - lanes.count(SHORT),
            "eddyline.views.failing": len(progress.failing),
        }
        with self._quietly():
            made = self._epoch(progress.epoch, timer, numbers, progress)
            with self._lock:
                self._known[progress.epoch] = made
                while len(self._known) > EPOCHS_KEPT:
                    self._known.popitem(last=False)
                pending, self._pending = self._pending, []
            for one in pending:
                self._sink(one)

    def failed(self, epoch: int, timer: Timer, error: BaseException) -> None:
        """Trace an epoch that failed: nothing of it is committed."""
        if timer.stages:
            with self._quietly():
                self._epoch(epoch, timer, {}, None, error)

    def delivered(self, delivery: Delivered) -> None:
        """Trace a delivery to a sink. The delivery may come before the span of its epoch: then it waits for it."""
        with self._quietly():
            with self._lock:
                early = delivery.error is None and delivery.epoch > max(self._known, default=0)
                if early and len(self._pending) < PENDING_MAX:
                    self._pending.append(delivery)
                    return
            self._sink(delivery)

    def close(self) -> None:
        """Send what is left, for `CLOSE_S` seconds at most."""
        with self._quietly():
            for one in self._pending:
                self._sink(one)
        self._pending = []
        if self._close is not None:
            self._close()

    def _epoch(
        self,
        epoch: int,
        timer: Timer,
        numbers: Mapping[str, AttributeValue],
        progress: Progress | None,
        error: BaseException | None = None,
    ) -> SpanContext:
        from opentelemetry import trace

        number = {"eddyline.epoch": int(epoch)}
        started = min(one.started for one in timer.stages)
        ended = max(one.ended for one in timer.stages)
        own = {"eddyline.storage": self._storage, **number, **numbers}
        root = self._tracer.start_span("epoch", start_time=started, attributes=own)
        if root.is_recording():
            context = trace.set_span_in_context(root)
            for stage in timer.stages:
                more = numbers if stage.name == "run" else {}
                made = self._tracer.start_span(
                    stage.name, context, start_time=stage.started, attributes={**number, **more}
                )
                if stage.name == "run":
                    below = trace.set_span_in_context(made)
                    for view in timer.views:
                        if stage.started <= view.started <= stage.ended:
                            self._view(view, number, progress, below)
                if stage.failed and error is not None:
                    _fail(made, error)
                made.end(stage.ended)
            if error is not None:
                _fail(root, error)
        root.end(ended)
        return root.get_span_context()

    def _view(
        self,
        view: Span,
        number: Mapping[str, int],
        progress: Progress | None,
        context: Context,
    ) -> None:
        attributes: dict[str, AttributeValue] = {**number, f"eddyline.{view.kind}": view.name}
        if progress is not None and view.name in progress.rows_in:
            attributes["eddyline.rows.in"] = progress.rows_in[view.name]
            attributes["eddyline.rows.out"] = progress.rows_out[view.name]
        if progress is not None and view.name in progress.lanes:
            attributes["eddyline.lane"] = progress.lanes[view.name]
        made = self._tracer.start_span(
            view.kind, context, start_time=view.started, attributes=attributes
        )
        if view.failed:
            _fail(made, None)
        made.end(view.ended)

    def _sink(self, one: Delivered) -> None:
        """Make the span of a delivery: below that of its last epoch, with links to those of the others."""
        from opentelemetry import trace

        with self._lock:
            known = dict(self._known)
        newest = max(known, default=0)
        epoch = one.epoch if one.error is None else newest
        parent = known.pop(epoch, None)
        context = None
        if parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        others = [
            made
            for number, made in known.items()
            if one.before < number < epoch and one.error is None
        ]
        kind = self._formats().get(one.sink, "")
        attributes: dict[str, AttributeValue] = {
            "eddyline.epoch": int(epoch),
            "eddyline.sink": one.sink,
            "eddyline.sink.format": kind,
            "eddyline.rows.out": one.rows,
            **({"db.system.name": "postgresql"} if kind == "postgres" else {}),
            **({"messaging.system": "kafka"} if kind == "kafka" else {}),
        }
        made = self._tracer.start_span(
            "sink",
            context,
            kind=trace.SpanKind.PRODUCER if kind == "kafka" else trace.SpanKind.CLIENT,
            attributes=attributes,
            links=[trace.Link(other) for other in others[-LINKS_MAX:]],
            start_time=one.started,
        )
        if one.error is not None:
            _fail(made, one.error)
        made.end(one.ended)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Log the first exception of a provider, and suppress all: a trace must not fail an epoch."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # samplers and processors can be the user's
            if not self._warned:
                self._warned = True
                _LOG.warning("epochs can't be traced: %s", type(error).__name__)


def _fail(span: OpenSpan, error: BaseException | None) -> None:
    """Give a span the condition of an error; None for that of a view that is set aside."""
    from opentelemetry.trace import Status, StatusCode

    condition = "VIEW_FAILING" if error is None else condition_of(error)
    span.set_attribute("error.type", condition)
    span.set_status(Status(StatusCode.ERROR, condition))


def traces_of(
    storage: str, endpoint: str, formats: Callable[[], Mapping[str, str]]
) -> Traces | None:
    """Return the tracer of an engine; None if neither the option, the environment nor the program asks for traces.

    Args:
        endpoint: the option `otlp_endpoint`.

    Raises:
        EngineError: MISSING_PACKAGE. BAD_OPTION: the environment asks for another protocol.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if (given := _given_provider()) is not None:
        return Traces(given, storage, formats)
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if "otlp" not in wanted.split(","):
        return None
    if not (endpoint or any(os.environ.get(name, "").strip() for name in ENDPOINTS)):
        return None
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), PROTOCOL)
    if protocol != PROTOCOL:
        raise EngineError(
            f"traces can't be sent by {protocol}",
            condition="BAD_OPTION",
            hint=f"set {PROTOCOLS[1]} to {PROTOCOL}, and the endpoint to the collector's port for it, often 4318",
        )
    try:
        from eddyline.telemetry.exporting import exporting
    except ModuleNotFoundError as error:
        raise missing_package("a trace of each epoch", str(error.name), "otel") from error
    provider, close = exporting(endpoint, CLOSE_S)
    return Traces(provider, storage, formats, close)


def _given_provider() -> TracerProvider | None:
    """Return the provider that the program has set for the process, if it is one of the SDK."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return None
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    found = trace.get_tracer_provider()
    return found if isinstance(found, TracerProvider) else None
