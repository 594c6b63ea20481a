"""Streams of JSON documents that programs send over HTTP: `USING http`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from eddyline.catalog.entries import Entry
from eddyline.errors import DataError, EddylineError
from eddyline.intake.formats import Context
from eddyline.intake.sources import QUEUES
from eddyline.pipelines.documents import DocumentFormat, DocumentStream, check_documents
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue, Producer
from eddyline.sink.secrets import check_secrets, filled_in
from eddyline.source.base import Source, cannot_read
from eddyline.storage.files import Files

if TYPE_CHECKING:
    from eddyline.relay.ingest import Ingest

PORT, HOST, TOKEN = "port", "host", "token"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a stream's documents are sent to.

    Attributes:
        path: of the endpoint, `/streams/<name>`.
        token: a reference to the bearer token that clients send.
    """

    host: str
    port: int
    path: str
    token: str


class HttpFormat(DocumentFormat):
    """JSON documents over HTTP: an endpoint of the engine's process, and a queue in the storage."""

    def check(self, stream: Entry, context: Context) -> None:
        """Raise an error if an option is wrong or missing, or the address can't be bound."""
        from eddyline.relay import ingest  # its packages may not be installed

        check_documents(stream)
        address = address_of(stream)
        filled_in({TOKEN: address.token})
        new = context.opens and not stream.id
        if new and not ingest.is_served(address.host, address.port):
            ingest.SharedServer(address.host, address.port).close()

    def open(self, stream: Entry, letters: Entry | None, context: Context) -> Source:
        """Return the source, which answers requests from now on if its address can be bound."""
        assert letters is not None
        # named by the pipeline: the folder is removed when the stream has been dropped
        backend = LogBackend(Files(context.files.path(f"{QUEUES}/{letters.id}")))
        opened = HttpStream(stream, letters, backend, context)
        opened.listen()
        return opened


class HttpStream(DocumentStream):
    """The source of a stream `USING http`.

    Requests are answered while the source is open, whether epochs run or not. If the address can't be
    bound, or the token's reference leads to nothing, each `pull` and `follow` tries again.

    Args:
        stream: the stream.
        letters: the stream of its dead letters.
        backend: its queue.
        context: the storage and the session.
    """

    def __init__(
        self, stream: Entry, letters: Entry, backend: LogBackend, context: Context
    ) -> None:
        self._address = address_of(stream)
        self._producer = Producer(backend)
        self._endpoint: Ingest | None = None
        self._fault: EddylineError | None = None
        super().__init__(stream, letters, DataQueue(backend), context)

    def listen(self) -> None:
        """Begin to answer requests, unless it does already. A failure is raised by the next `pull`."""
        if self._endpoint is not None:
            return
        address = self._address
        try:
            from eddyline.relay.ingest import Ingest, add_endpoint

            endpoint = Ingest(self._producer, filled_in({TOKEN: address.token})[TOKEN])
            add_endpoint(address.host, address.port, address.path, endpoint)
            self._endpoint, self._fault = endpoint, None
        except EddylineError as error:
            self._fault = error

    def pull(self) -> None:
        """Process all documents that are in the queue now."""
        self.listen()
        super().pull()
        self._check_listens()

    def follow(self, interval_s: float) -> None:
        """Process documents as they arrive, in a background thread."""
        self.listen()
        super().follow(interval_s)
        self._check_listens()

    def stop(self) -> None:
        """Answer no more requests, stop processing, and close the queue."""
        if self._endpoint is not None:
            from eddyline.relay.ingest import remove_endpoint

            address = self._address
            remove_endpoint(address.host, address.port, address.path, self._endpoint)
            self._endpoint = None
        super().stop()

    def _check_listens(self) -> None:
        if self._fault is not None:
            raise cannot_read(self.name, f"it takes no requests: {self._fault}") from self._fault


def address_of(stream: Entry) -> Address:
    """Return the address of a stream.

    Raises:
        DataError: an option is unknown, missing, or no port.
        EngineError: BAD_OPTION: the token is in the clear.
    """
    options = {name.lower(): value for name, value in stream.options.items()}
    for name in options:
        if name not in (PORT, HOST, TOKEN):
            raise _wrong(stream, f"a stream of format http has no option {name}")
    for name in (PORT, TOKEN):
        if name not in options:
            raise _wrong(stream, f"a stream of format http needs the option {name}")
    port = options[PORT]
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise _wrong(stream, f"option {PORT} is {port!r}, which is no port")
    check_secrets(options, (TOKEN,))
    path = f"/streams/{quote(stream.name)}"
    return Address(options.get(HOST, LOOPBACK), int(port), path, options[TOKEN])


def _wrong(stream: Entry, why: str) -> DataError:
    return DataError(
        why,
        condition="BAD_STREAM",
        stream=stream.name,
        hint="the options are port (1 to 65535), token ('${env:NAME}' or '${file:PATH}'), and host",
    )
