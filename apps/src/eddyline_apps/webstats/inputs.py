"""The inputs of a storage of web statistics: what it was made for, and the streams that read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.errors import DataError, StorageError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline.relay.records import KEY, PAYLOAD, POSITION
from eddyline_apps.webstats.log_formats import COMBINED, named
from eddyline_apps.webstats.views import HOST, Settings

if TYPE_CHECKING:
    from contextlib import ExitStack

    from eddyline.api.engine import Engine

RUN_FILE = "webstats.json"
STREAM = "log_{}"
TAIL, QUEUE, KAFKA = "tail", "queue", "kafka"
COLUMNS = "value STRING, line BIGINT, file STRING"
BEACONS = "beacons"
"""The stream of the page script's beacons, and the folder of their queue in the storage."""

RECORD = r"rtrim('\r\n', make_valid_utf8(CAST(value AS STRING)))"
"""The line in a record of Kafka. What isn't UTF-8 is replaced, as in lines of files."""
PARTITIONS = 10_000
"""More than a topic has."""
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Run:
    """What the inputs of a storage are, and how they are read. But for `sites` and `proxies` it stays the same.

    Attributes:
        logs: absolute paths or globs.
        queues: absolute paths of queues of lines.
        brokers: addresses of brokers of Kafka, such as `host:9092`.
        topics: topics of lines on these brokers.
        client: other settings of the client of Kafka, such as `security.protocol`; secrets are references.
        log_format: what `named` takes; empty without any of these.
        site_from: see `Settings`.
        zones: pairs of a site and its zone, see `Settings`.
        sites: whose pages have the page script; none: there is no input of that kind.
        proxies: in front of the page script's endpoint, see `Beacons`.
        views: what tells a file of changed views; empty for those of `template`.
    """

    logs: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    brokers: str = ""
    topics: tuple[str, ...] = ()
    client: tuple[tuple[str, str], ...] = ()
    log_format: str = ""
    site_from: str = HOST
    zones: tuple[tuple[str, str], ...] = ()
    sites: tuple[str, ...] = ()
    proxies: int = 0
    views: str = ""

    @property
    def fixed(self) -> Run:
        """The run without what may be changed; whether there are sites may not."""
        return replace(self, sites=self.sites and ("*",), proxies=0)

    @property
    def kafka_options(self) -> dict[str, str]:
        """The options of streams of its topics, without the topic."""
        client = {f"kafka.{name}": value for name, value in self.client}
        return {**client, "kafka.bootstrap.servers": self.brokers}

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        """The inputs of lines: stream, kind and place of each."""
        kinds = ((TAIL, self.logs), (QUEUE, self.queues), (KAFKA, self.topics))
        found = [(kind, place) for kind, places in kinds for place in places]
        return [(STREAM.format(number), *one) for number, one in enumerate(found, start=1)]

    def settings(self) -> Settings:
        """Return how lines are parsed."""
        lines = self.lines
        files: list[str] = []
        records: list[str] = []
        for place, (stream, kind, _) in enumerate(lines):
            if kind == KAFKA:
                line, number, file = RECORD, f"(offset * {PARTITIONS} + partition)", "topic"
            else:
                line, number, file = "value", "line", "file"
            part = f"SELECT {line} AS line, {number} * {len(lines)} + {place} AS seq, {file} AS file FROM {stream}"
            parts = files if kind == TAIL else records
            parts.append(f"{part} WHERE value IS NOT NULL" if kind == KAFKA else part)
        beacons = f"(SELECT value AS line, line AS seq, file FROM {BEACONS})" if self.sites else ""
        log_format = named(self.log_format) if self.log_format else COMBINED
        return Settings(
            log_format,
            self.site_from,
            dict(self.zones),
            _union(files),
            _union(records),
            beacons,
        )


def _union(parts: Iterable[str]) -> str:
    """Return SELECTs as one relation; empty if there are none."""
    text = " UNION ALL ".join(parts)
    return text and f"({text})"


class Sites:
    """The sites whose pages may send beacons.

    Args:
        names: hosts in lower case; `*.example.org` stands for all hosts under `example.org`.

    Example:
        >>> sites = Sites(["www.example.org", "*.example.com"])
        >>> sites.of("https://www.example.org"), sites.of("https://a.example.com:8080")
        ('www.example.org', 'a.example.com')
        >>> sites.of("https://example.com"), sites.of("null")
        (None, None)

    Raises:
        DataError: BAD_OPTION: a name is no host.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        for name in self._names:
            if not NAME.fullmatch(name.removeprefix("*.")):
                raise DataError(
                    f"{name!r} is no name of a site",
                    condition="BAD_OPTION",
                    hint="give a host as browsers send it, such as www.example.org or *.example.org, without https://",
                )

    def of(self, origin: str) -> str | None:
        """Return the site that the header Origin names; None if it is none of these."""
        scheme, _, rest = origin.partition("://")
        host = re.sub(r":\d+$", "", rest.lower())
        if scheme not in ("http", "https") or not NAME.fullmatch(host):
            return None
        parents = [f"*.{host[at + 1 :]}" for at, letter in enumerate(host) if letter == "."]
        return host if not self._names.isdisjoint([host, *parents]) else None


# --- the run of a storage ---


def stored_run(storage: Path) -> Run | None:
    """Return what a storage was made for; None if it is new.

    Raises:
        StorageError: STORAGE_NOT_EMPTY: the folder holds something else.
    """
    path = storage / RUN_FILE
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        for pairs in found.keys() & {"zones", "client"}:
            found[pairs] = [tuple(one) for one in found[pairs]]
        return Run(**{name: _frozen(value) for name, value in found.items()})
    if storage.is_dir() and any(storage.iterdir()):
        raise StorageError(
            "the folder holds something else",
            condition="STORAGE_NOT_EMPTY",
            hint="give an empty or a new folder, or one of this command",
            storage=storage,
        )
    return None


def store_run(storage: Path, run: Run, known: Run | None) -> None:
    """Write what a storage is made for.

    Args:
        known: what it was made for; None if it is new.

    Raises:
        StorageError: OTHER_RUN: something is asked for that can't be changed.
    """
    path = storage / RUN_FILE
    if known is not None and known.fixed != run.fixed:
        raise StorageError(
            f"the storage was made for other arguments, which {path} lists",
            condition="OTHER_RUN",
            hint="give those, or none but --storage; or a new folder",
            storage=storage,
        )
    if known != run:
        run.settings()  # refuses what can't be used, before anything is written
        storage.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(run), indent=1) + "\n"
        new = path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# --- streams ---


def open_streams(engine: Engine, run: Run, storage: Path, queues: ExitStack) -> None:
    """Create the streams that the storage doesn't have yet, and connect those that read queues.

    Args:
        queues: closes the queues; must be closed after the engine.
    """
    have = {source["name"] for source in engine.status()["sources"]}
    for stream, kind, place in run.lines:
        if kind == QUEUE:
            connect(engine, stream, Path(place), queues)
        elif stream not in have and kind == TAIL:
            engine.create_stream(stream, COLUMNS, kind, {"path": place})
        elif stream not in have:
            engine.create_stream(stream, None, kind, {**run.kafka_options, "subscribe": place})
    if run.sites:
        connect(engine, BEACONS, storage / BEACONS, queues)


def connect(engine: Engine, stream: str, folder: Path, queues: ExitStack) -> None:
    """Let an engine read the lines in a queue as a stream with `COLUMNS`; each record is a line."""
    queue = queues.enter_context(closing(DataQueue(LogBackend(folder))))
    pipeline = engine.pipeline(stream, queue).bolt(as_lines, vectorised=True, max_attempts=1)
    pipeline.into(stream, COLUMNS)


def as_lines(records: pa.Table) -> pa.Table:
    """Return the records of a queue as lines: the text, its position, and the record's key as the file.

    What isn't UTF-8 is replaced, as in lines of files.
    """
    lines, keys = _decoded(records[PAYLOAD]), _decoded(records[KEY])
    lines = pc.utf8_rtrim(lines, characters="\r\n")
    return pa.table({"value": lines, "line": records[POSITION], "file": pc.fill_null(keys, "")})


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:  # few batches hold such bytes
        texts = [
            None if one is None else one.decode("utf-8", "replace") for one in values.to_pylist()
        ]
        return pa.chunked_array([pa.array(texts, pa.string())])
