"""Names tables, streams, views and external data as datasets of OpenLineage, by its naming conventions.

Names consist of addresses and paths. Passwords, tokens and the parts of URLs that can contain them are omitted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eddyline.sink.kafka import SERVERS, SPARK_SERVERS

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

Named = tuple[str, str]
"""A namespace and a name."""

_TOPICS = ("topic", "subscribe")
_PAIR = re.compile(r"(\w+)\s*=\s*('[^']*'|\S+)")
_POSTGRES_PORT, _KAFKA_PORT = 5432, 9092


def namespace_of(storage: str) -> str:
    """Return the namespace of a storage's tables, streams and views.

    Example:
        >>> namespace_of("/data/shop")
        'eddyline:///data/shop'
    """
    return f"eddyline://{storage}"


def outside(format: str, options: Mapping[str, str]) -> list[Named]:
    """Return the external datasets that the options of a stream or sink name; empty if they name none, or only by a reference to a secret.

    Example:
        >>> outside("kafka", {"bootstrap_servers": "broker:9092,other:9092", "topic": "clicks"})
        [('kafka://broker:9092', 'clicks')]
        >>> outside("postgres", {"url": "postgresql://ann:pw@db/shop", "table": "orders"})
        [('postgres://db:5432', 'shop.public.orders')]
        >>> outside("webhook", {"url": "https://example.org/hook?token=t"})
        [('https://example.org', '/hook')]
    """
    given = {name.lower(): value for name, value in options.items()}
    if format == "kafka":
        return _topics(given)
    if format == "postgres":
        return _postgres(given.get("url", ""), given.get("table", ""))
    if "path" in given:
        return _path(given["path"])
    return _url(given.get("url", ""))


def _topics(options: Mapping[str, str]) -> list[Named]:
    servers = options.get(SERVERS) or options.get(SPARK_SERVERS, "")
    first = servers.split(",")[0].strip()
    topics = next((options[name] for name in _TOPICS if options.get(name)), "")
    if not first or "$" in first + topics:
        return []
    host, _, port = first.rpartition("://")[2].partition(":")
    namespace = f"kafka://{host}:{port or _KAFKA_PORT}"
    return [(namespace, name.strip()) for name in topics.split(",") if name.strip()]


def _postgres(url: str, table: str) -> list[Named]:
    if "://" in url:
        parts = urlsplit(url)
        host, port, database = parts.hostname, parts.port, parts.path.strip("/")
    else:
        pairs = {name: text.strip("'") for name, text in _PAIR.findall(url)}
        host, database = pairs.get("host"), pairs.get("dbname", "")
        port = int(pairs["port"]) if pairs.get("port", "").isdigit() else None
    if not (host and database and table) or "$" in host + database + table:
        return []
    plain = table.replace('"', "")
    name = f"{database}.{plain if '.' in plain else f'public.{plain}'}"
    return [(f"postgres://{host}:{port or _POSTGRES_PORT}", name)]


def _path(path: str) -> list[Named]:
    if "$" in path:
        return []
    parts = urlsplit(path)
    if not parts.netloc:
        return [("file", os.path.abspath(parts.path if parts.scheme == "file" else path))]
    return [(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.strip("/") or "/")]


def _url(url: str) -> list[Named]:
    parts = urlsplit(url)
    if not parts.hostname or "$" in url:
        return []
    return [(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path or "/")]


def nested(kind: DataType) -> list[StructField]:
    """Return the fields of a struct; none for other types."""
    from pyspark.sql.types import StructType

    return list(kind.fields) if isinstance(kind, StructType) else []
