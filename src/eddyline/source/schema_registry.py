"""A schema registry with the interface of Confluent's: schemas of Avro, by number and by subject."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from eddyline.errors import EngineError
from eddyline.source.avro_schema import AvroType, UnreadableError, parsed
from eddyline.source.base import cannot_read

WAIT_S = 10.0
_NOT_FOUND = (40401, 40402, 40403)  # the registry's codes: no such subject, version, schema


class Registry:
    """A schema registry.

    Args:
        stream: name of the stream that asks, for errors.
        url: its address, of http or https, such as http://registry:8081.
        user: name and password with a colon between; empty for none.
    """

    def __init__(self, stream: str, url: str, user: str = "") -> None:
        self._stream, self._url = stream, url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user:
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"

    def numbered(self, number: int) -> AvroType:
        """Return the schema of a number.

        Raises:
            UnreadableError: there is none, or it can't be read.
            EngineError: STREAM_FAILED, the registry doesn't answer.
        """
        return self._schema(f"/schemas/ids/{number}", f"schema {number}")

    def latest(self, subject: str) -> AvroType:
        """Return the latest schema of a subject; raises the same errors."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        return self._schema(path, f"subject {subject}")

    def _schema(self, path: str, what: str) -> AvroType:
        document = self._get(path, what)
        kind = document.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnreadableError(f"{what} is one of {kind}, not of Avro")
        references: dict[str, str] = {}
        self._add_references(document, references)
        return parsed(document["schema"], references)

    def _add_references(self, document: Any, found: dict[str, str]) -> None:
        """Add the schemas that a schema references, each after its own references."""
        for one in document.get("references") or ():
            if one["name"] not in found:
                subject = quote(one["subject"], safe="")
                path = f"/subjects/{subject}/versions/{one['version']}"
                other = self._get(path, f"subject {one['subject']}")
                self._add_references(other, found)
                found[one["name"]] = other["schema"]

    def _get(self, path: str, what: str) -> Any:
        request = Request(self._url + path, headers=self._headers)  # http or https
        try:
            with urlopen(request, timeout=WAIT_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code == 404 and _code(error) in _NOT_FOUND:
                raise UnreadableError(f"the schema registry has no {what}") from error
            raise self._failed(f"{error.code} {error.reason}") from error
        except (URLError, OSError, ValueError) as error:
            raise self._failed(str(getattr(error, "reason", error))) from error

    def _failed(self, why: str) -> EngineError:
        return cannot_read(
            self._stream, f"the schema registry at {self._url} doesn't answer: {why}"
        )


def _code(error: HTTPError) -> int | None:
    """Return the registry's own code of an error."""
    try:
        document = json.load(error)
        return document.get("error_code") if isinstance(document, dict) else None
    except ValueError:
        return None
