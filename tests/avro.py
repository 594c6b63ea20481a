"""For tests of Avro: values, and a server with two routes of a schema registry."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from loopback import listening


def encoded(schema: Any, value: Any) -> bytes:
    """Return a value as Avro writes it."""
    written = BytesIO()
    schemaless_writer(written, parse_schema(schema), value)
    return written.getvalue()


def framed(number: int, schema: Any, value: Any) -> bytes:
    """Return a value in Confluent's wire format."""
    return struct.pack(">bI", 0, number) + encoded(schema, value)


class Registry:
    """What the server knows; `asked` are the paths of all requests."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, int] = {}
        self.asked: list[str] = []
        self.user = ""
        self.url = ""

    def add(self, subject: str, schema: Any, **more: Any) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": json.dumps(schema), **more}
        self.subjects[subject] = number
        return number

    def answer(self, path: str, user: str) -> tuple[int, Any]:
        self.asked.append(path)
        if user != self.user:
            return 401, {"error_code": 401}
        match path.strip("/").split("/"):
            case ["schemas", "ids", text]:
                found = self.schemas.get(int(text))
                return (200, found) if found else (404, {"error_code": 40403})
            case ["subjects", subject, "versions", _]:
                at = self.subjects.get(subject)
                found = self.schemas[at] if at else None
                return (200, {**found, "id": at}) if found else (404, {"error_code": 40401})
        return 404, {}


@contextmanager
def registry() -> Iterator[Registry]:
    """Run a server of our own with `GET /schemas/ids/{id}` and `GET /subjects/{subject}/versions/{version}`.

    Slow tests have a real registry, `schema_registry`, with the same answers.
    """
    known = Registry()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = known.answer(self.path, self.headers.get("Authorization", ""))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with listening(Answers) as known.url:
        yield known
