"""The console: an HTTP server over one storage, beside the engine that may write to it, or in its process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from eddyline.catalog.store import CatalogStore, open_store
from eddyline.errors import missing_package
from eddyline.options import Options
from eddyline.sink.secrets import check_secrets, filled_in
from eddyline.storage.files import Files

try:
    from anyio import CapacityLimiter
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException

    from eddyline.console.actions import Actions
    from eddyline.console.additions import Addition
    from eddyline.console.api import Api, Explain
    from eddyline.console.events import Hub
    from eddyline.console.guard import Guard, check_token
    from eddyline.console.metrics import registry_of
    from eddyline.console.observer import Health, Observer
    from eddyline.console.pages import Pages
    from eddyline.console.queries import Queries, Sql
    from eddyline.console.settings import ConsoleSettings
    from eddyline.console.tally import Tally
    from eddyline.relay.asgi_server import LOOPBACK, AppServer
except ImportError as error:
    raise missing_package("the console", str(error.name), "console") from error

if TYPE_CHECKING:
    from eddyline.answers.deliverer import Delivered

READERS_MAX = 4
"""The threads that read the storage at the same time; more requests wait."""


class Console:
    """Serves pages, a JSON interface, metrics and live events of one storage.

    It only reads. With a token it also requests actions of the engine, and accepts the forms of additions.

    Args:
        files: the storage.
        options: where its catalog is.
        host: address to bind.
        port: port to bind; 0 for any free one.
        token: a reference, `${env:NAME}` or `${file:PATH}`, to the token that requests need. Addresses
            other than loopback can't do without.
        explain: in the process of the storage's engine, which also calls `observe` and `delivered`: returns the plan of a
            view as text, None if that isn't compiled.
        health: in that process: returns the health of the engine's background run.
        sql: runs a query that readers ask, as `Engine.sql` with `confined`. Without, only plain queries are answered,
            from the files.
        additions: pages of applications.
        read_only: no actions and forms, even with a token. A storage on a read-only mount has none either, unless
            its catalog is in PostgreSQL.

    Attributes:
        url: its address.

    Raises:
        StorageError: NO_STORAGE: there is none.
        EngineError: NO_ADDRESS: the address can't be bound. BAD_OPTION: a token is missing or too
            short, or no reference. SECRET_MISSING: what it refers to can't be read.
    """

    def __init__(
        self,
        files: Files,
        options: Options,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        token: str = "",
        explain: Explain | None = None,
        health: Health | None = None,
        sql: Sql | None = None,
        additions: Sequence[Addition] = (),
        read_only: bool = False,
    ) -> None:
        secret = token_of(token, host)
        self._store: CatalogStore = open_store(files, options.catalog)
        try:
            observer = Observer(self._store, health)
            self._tally = Tally(observer)
            limiter = CapacityLimiter(READERS_MAX)
            self._hub = Hub(observer, limiter)
            registry = registry_of(observer, self._tally, inside=explain is not None)
            # requests are written into the catalog
            writes = self._store.database.shared or os.access(files.root, os.W_OK)
            actions = Actions(
                observer, self._store, allowed=bool(secret) and writes and not read_only
            )
            settings = ConsoleSettings(
                observer, self._store, options, actions,
                inside=explain is not None, address=f"{host}:{port}" if port else host, token=bool(secret),
            )  # fmt: skip
            queries = Queries(observer, limiter, sql)
            api = Api(
                observer,
                self._tally,
                self._hub,
                registry,
                limiter,
                actions,
                settings,
                queries,
                explain,
            )
            name = os.path.basename(files.root.rstrip("/"))
            pages = Pages(api, name, additions)
            routes = [*api.routes(), *pages.routes()]
            handlers: dict[Any, Any] = {HTTPException: pages.missing, Exception: pages.crashed}
            app = Guard(Starlette(routes=routes, exception_handlers=handlers), host, secret)
            self._server = AppServer(app, "eddyline-console", host=host, port=port)
        except BaseException:
            self._store.close()
            raise
        self.url = self._server.url

    def observe(self, epoch: int, seconds: Mapping[str, float]) -> None:
        """Record the durations of an epoch of the engine in this process, by stage."""
        self._tally.observe(epoch, seconds)

    def delivered(self, done: Delivered) -> None:
        """Record a delivery to a sink of the engine in this process, or a try that failed."""
        seconds, failed = (done.ended - done.started) / 1e9, done.error is not None
        self._tally.delivered(
            done.sink, done.rows - done.deletes, done.deletes, seconds, failed=failed
        )

    def start(self) -> Console:
        """Begin to answer requests."""
        self._server.start()
        return self

    def stop(self) -> None:
        """End the streams of events, then the server."""
        with closing(self._store):
            self._hub.close()
            self._server.stop()

    def __enter__(self) -> Console:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()


def token_of(reference: str, host: str = LOOPBACK) -> str:
    """Return the token that a reference stands for; empty for none.

    Raises:
        EngineError: BAD_OPTION: it is too short, or missing for an address that other machines reach.
    """
    given = {"token": reference}
    if reference:
        check_secrets(given, given)
        given = filled_in(given)
    check_token(host, given["token"])
    return given["token"]
