"""The console, and servers for SQL clients, of an engine in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eddyline.api.epochs import Epochs
from eddyline.api.reading import Reading
from eddyline.api.run_loop import RunLoop
from eddyline.api.sql_servers import Published, start_connect, start_thrift
from eddyline.api.workspace import Workspace
from eddyline.arguments import check_number, checked
from eddyline.catalog.entries import Entry
from eddyline.console.additions import Addition  # light: hints are looked up when it is called
from eddyline.plan.explain import explain_text

if TYPE_CHECKING:
    from eddyline.console.server import Console


@checked
class Served:
    """The part of an engine that serves its console and SQL clients."""

    _workspace: Workspace
    _epochs: Epochs
    _reading: Reading
    _running: RunLoop
    _console: Console | None = None
    _published: Published | None = None

    def serve(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str = "",
        *,
        additions: Sequence[Addition] = (),
    ) -> str:
        """Serve the console, its JSON interface below `/api/`, `/metrics`, `/health` and `/ready`.

        It reads the storage in threads of this process, and ends with the engine. A second call returns
        the same address, and changes nothing.

        Args:
            port: 0 for any that is free.
            host: address to bind. Others than loopback need a token.
            token: a reference to a secret, `${env:NAME}` or `${file:PATH}`, that requests have to send.
            additions: pages of applications.

        Returns:
            The address, such as `http://127.0.0.1:43121`.

        Raises:
            EngineError: NO_ADDRESS: the port is taken. MISSING_PACKAGE: `eddyline[console]` isn't installed.

        Example:
            >>> import tempfile
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     engine.serve().startswith("http://127.0.0.1:")
            True
        """
        # importing it takes a quarter of a second, and needs packages that may be missing
        from eddyline.console.server import Console

        if self._console is None:
            check_number("port", port, 0, 65_535)
            workspace = self._workspace
            console = Console(
                workspace.files,
                workspace.options,
                host=host,
                port=port,
                token=token,
                additions=additions,
                explain=self._known_plan,
                health=self._running.health,
                sql=lambda query: self._reading.sql(query, confined=True),
            ).start()
            self._epochs.reporting.callbacks.append(
                lambda done: console.observe(done.epoch, done.seconds)
            )
            self._epochs.reporting.delivery_callbacks.append(console.delivered)
            workspace.closing.append(console.stop)
            self._console = console
        return self._console.url

    def serve_thrift(self, port: int = 0) -> str:
        """Serve tables and views to JDBC and ODBC clients, by Spark's Thrift server, until the engine stops.

        It listens on loopback only, and asks for no password: who reaches it can run any SQL as this
        process. Each query reads the last epoch.

        Args:
            port: 0 for any that is free.

        Returns:
            The JDBC address, such as `jdbc:hive2://127.0.0.1:10000`.

        Raises:
            EngineError: NO_ADDRESS: the port is taken.
        """
        check_number("port", port, 0, 65_535)
        self._publish()
        return start_thrift(self._workspace, port)

    def serve_connect(self, port: int = 0) -> str:
        """Serve tables and views to clients of Spark Connect, until the engine stops.

        It listens on loopback only, and clients need the token that the address has: they can run any
        code as this process. Each query reads the last epoch.

        Args:
            port: 0 for any that is free.

        Returns:
            The address for `SparkSession.builder.remote`.

        Raises:
            EngineError: NO_ADDRESS: the port is taken.
        """
        check_number("port", port, 0, 65_535)
        self._publish()
        return start_connect(self._workspace, port)

    def _publish(self) -> None:
        """Let all sessions of the JVM see the tables and views, also those that come later."""
        if self._published is None:
            published = Published(self._workspace)
            self._epochs.reporting.callbacks.append(lambda _: published.update())
            self._published = published
        self._published.update()

    def _known_plan(self, entry: Entry) -> str | None:
        """Return a view's plan as text; None if it isn't compiled now."""
        known = self._workspace.known_plan(entry)
        return None if known is None else explain_text(known.compiled, "dag")
