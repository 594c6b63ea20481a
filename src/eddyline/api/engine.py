"""The public object: an engine over one storage, with its tables, streams and views."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from pyspark.sql import DataFrame, SparkSession

from eddyline.api.altering import Altering
from eddyline.api.cdc import ChangeFlows
from eddyline.api.definitions import Definitions
from eddyline.api.epochs import Epochs
from eddyline.api.expecting import Expecting
from eddyline.api.handles import Name, name_of
from eddyline.api.observing import Monitored
from eddyline.api.queries import Queried
from eddyline.api.reading import Reading
from eddyline.api.relations import Relations
from eddyline.api.run_loop import RunLoop
from eddyline.api.script import run_script
from eddyline.api.serving import Served
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.api.writing import Writing
from eddyline.arguments import checked
from eddyline.catalog.catalog import Catalog
from eddyline.options import Options
from eddyline.source.user_rows import Rows
from eddyline.storage.files import Files


@checked
class Engine(Relations, Queried, ChangeFlows, Monitored, Served):
    """Keeps SQL views live over tables and streams, durably, in one storage folder.

    Args:
        storage: folder of state, redo log and catalog; created if missing.
        spark: a SparkSession; None uses the active one, or starts a tuned local one. Days begin at
            midnight in its time zone, which the first epoch fixes for the storage.
        options: settings; None reads the `EDDYLINE_*` environment variables.
        read_only: read an existing storage, also beside the engine that writes to it.

    Raises:
        StateError, StorageError: the storage is damaged, or can't be used; the error names the file.
        EngineError: the session has another time zone, or this process has another engine on it.

    Attributes:
        writing, streams, altering, expecting, describing: what statements of scripts call.

    Example:
        >>> import tempfile
        >>> engine = Engine(tempfile.mkdtemp())
        >>> orders = engine.table("orders", "id BIGINT, item STRING", primary_key=["id"])
        >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        >>> orders.insert([(1, "tea"), (2, "tea")])
        >>> epoch = engine.advance()
        >>> [tuple(row) for row in counts.snapshot().collect()]
        [('tea', 2)]
        >>> engine.stop()
    """

    def __init__(
        self,
        storage: str | PathLike[str] | Files,
        spark: SparkSession | None = None,
        options: Options | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._workspace = Workspace(storage, spark, options, read_only=read_only)
        self._epochs = Epochs(self._workspace)
        self._reading = Reading(self._workspace)
        self.writing = Writing(self._workspace)
        self.streams = Streams(self._workspace, self.writing)
        self._definitions = Definitions(self._workspace, self._epochs)
        self.altering = Altering(self._workspace, self._epochs, self._definitions)
        self._running = RunLoop(
            self._workspace, self._epochs, self._definitions, self.streams, self._reading
        )
        self.streams.connect_stored()
        self.expecting = Expecting(
            self._workspace, self._definitions, self.streams
        ).repair_companions()

    @property
    def files(self) -> Files:
        """The storage."""
        return self._workspace.files

    @property
    def spark(self) -> SparkSession:
        """The user's session."""
        return self._workspace.spark

    @property
    def options(self) -> Options:
        """The settings."""
        return self._workspace.options

    @property
    def catalog(self) -> Catalog:
        """The definitions."""
        return self._workspace.catalog

    def advance(self) -> int:
        """Process all available input, in one epoch or several; return the last committed epoch.

        A view that fails on its rows, or can't be compiled, is set aside; each call tries it again. The
        error of a stream that can't be read is raised once all other input has been processed.

        Raises:
            EngineError: STORAGE_IN_USE. STREAM_FAILED: the source of a stream can't be used now. EPOCH_FAILED, JVM_LOST:
                nothing of the epoch was committed.
            DataError: BAD_FILE, EXPECTATION_VIOLATED, SOURCE_CHANGED: a stream waits before something that it can't take.
            StateError, StorageError: the storage is damaged, or can't be used; the error names the file.

        Example: see `Engine`.
        """
        return self._running.advance()

    def answer(self) -> None:
        """Answer the requests of other processes; `advance` and the background run do so too."""
        self._running.answer()

    def start(self, interval: float | None = None) -> None:
        """Run in the background until `stop()`, or damaged state; look for input every `interval` (0.1) seconds.

        What fails is tried again by itself: see `on_error` and the `run` of `status`.

        Raises:
            EngineError: BAD_OPTION: the interval is out of its range. STORAGE_IN_USE.

        Example:
            >>> import tempfile, time
            >>> from eddyline import Engine
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     orders = engine.table("orders", "item STRING, n INT")
            ...     total = engine.view("total", "SELECT sum(n) AS n FROM orders")
            ...     engine.start(interval=0.05)
            ...     orders.insert([("tea", 1)])
            ...     while total.snapshot().collect()[0]["n"] is None:
            ...         time.sleep(0.05)
            ...     total.snapshot().collect()
            [Row(n=1)]
        """
        self._running.start(interval)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of the background run, and raise its error; return False after `timeout` seconds.

        Raises:
            EngineError, StateError: what has ended the run, such as JVM_LOST, FENCED or damaged state.
        """
        return self._running.await_termination(timeout)

    def stop(self) -> None:
        """Stop the background run and the sources, and release the storage."""
        self._running.stop()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def execute(self, script: str) -> DataFrame | None:
        """Run SQL statements; return the result of the last SELECT, EXPLAIN, DESCRIBE or SHOW, if any.

        An epoch is run before a SELECT after statements that write, and before one that writes what it reads of views.

        Raises:
            ScriptError: SCRIPT_SYNTAX, SCRIPT_UNSUPPORTED: the text is no script; nothing has run.
            EddylineError: what the failing statement raises; those before it have run, it has changed nothing.

        Example:
            >>> import tempfile
            >>> with Engine(tempfile.mkdtemp()) as engine:
            ...     engine.execute('''
            ...         CREATE TABLE orders (item STRING, n INT);
            ...         CREATE VIEW total AS SELECT sum(n) AS n FROM orders;
            ...         INSERT INTO orders VALUES ('tea', 1), ('coffee', 2);
            ...         SELECT n FROM total
            ...     ''').collect()
            [Row(n=3)]
        """
        return run_script(self, script)

    def write(self, table: Name, operations: Sequence[tuple[str, Rows]]) -> None:
        """Write operations (`append` or `delete`, rows) into a table, all or none; errors as of `Table.insert`."""
        self.writing.write(name_of(table), operations)

    def dead_letters(self, name: Name) -> DataFrame:
        """Read the dead letters of a pipeline, stream or sink; see `Stream.dead_letters`."""
        return self.writing.dead_letters(name_of(name))

    def remove_dead_letters(self, name: Name, where: str | None, *, replay: bool) -> int:
        """Replay dead letters, or drop them for good; see `Pipeline.replay` and `discard`."""
        return self.streams.remove_dead_letters(name_of(name), where, replay=replay)
