"""For tests of Avro: an encoder that follows the specification, and a server with two routes of a schema registry."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def number(value: int) -> bytes:
    left, written = (value << 1) ^ (value >> 63), []
    while left > 127:
        written.append(left & 127 | 128)
        left >>= 7
    return bytes([*written, left])


def encoded(schema: Any, value: Any) -> bytes:
    """Return a value as Avro writes it: of a decimal the number without point, of a time the number."""
    if isinstance(schema, list):
        branch = next(at for at, one in enumerate(schema) if (one == "null") == (value is None))
        return number(branch) + encoded(schema[branch], value)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return number(value)
        case "float" | "double":
            return struct.pack("<f" if kind == "float" else "<d", value)
        case "bytes" | "string":
            if isinstance(value, int):
                value = value.to_bytes(8, "big", signed=True)
            data = value if isinstance(value, bytes) else value.encode()
            return number(len(data)) + data
        case "fixed":
            return (
                value
                if isinstance(value, bytes)
                else value.to_bytes(schema["size"], "big", signed=True)
            )
        case "enum":
            return number(schema["symbols"].index(value))
        case "array" | "map":
            items = value.items() if kind == "map" else value
            parts = [
                encoded("string", one[0]) + encoded(schema["values"], one[1])
                if kind == "map"
                else encoded(schema["items"], one)
                for one in items
            ]
            return (number(len(parts)) + b"".join(parts) if parts else b"") + b"\0"
        case "record":
            return b"".join(encoded(one["type"], value[one["name"]]) for one in schema["fields"])
    raise AssertionError(kind)


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

    No real registry can be installed here: it shows the interface that Confluent documents, not Confluent's program.
    """
    known = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = known.answer(self.path, self.headers.get("Authorization", ""))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    known.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
