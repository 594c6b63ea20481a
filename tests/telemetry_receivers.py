"""Servers on loopback that take what engines tell others of themselves: spans by OTLP, events of OpenLineage."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import listening


@dataclass
class Taken:
    """What a server has got.

    Attributes:
        bodies: of all requests.
        headers: of all requests.
        items: what `parse` has made of the bodies.
        status: what to answer.
    """

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    status: int = 200


@contextmanager
def taking(parse: Callable[[bytes], list[Any]]) -> Iterator[Taken]:
    """Run a server on a free port."""
    taken = Taken()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if taken.status == 200:
                taken.bodies.append(body)
                taken.headers.append({key.lower(): value for key, value in self.headers.items()})
                taken.paths.append(self.path)
                taken.items += parse(body)
            self.send_response(taken.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Answers) as taken.url:
        yield taken


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    started: int
    ended: int
    kind: int
    failed: bool
    message: str
    attributes: dict[str, Any]
    links: tuple[bytes, ...]
    resource: dict[str, Any]


def spans_in(body: bytes) -> list[Received]:
    """The spans of a request of OTLP."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        Received(
            span.name,
            span.trace_id,
            span.span_id,
            span.parent_span_id,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.kind,
            span.status.code == span.status.STATUS_CODE_ERROR,
            span.status.message,
            values(span.attributes),
            tuple(link.span_id for link in span.links),
            values(group.resource.attributes),
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def events_in(body: bytes) -> list[Any]:
    """The event of a request of OpenLineage."""
    return [json.loads(body)]
