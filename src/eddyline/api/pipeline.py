"""The object that users hold for a pipeline: bolts between a data queue and a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eddyline.api.drafts import Key, columns_of, stream, time_options
from eddyline.api.streams import Streams
from eddyline.api.workspace import Workspace
from eddyline.api.writing import Writing
from eddyline.arguments import check_choice, checked
from eddyline.catalog.entries import PIPELINE
from eddyline.errors import EngineError
from eddyline.pipelines.batches import PipelineSettings
from eddyline.pipelines.waves import check_bolts
from eddyline.relay.account import Account
from eddyline.relay.bolts import CONCURRENCY, MAX_ATTEMPTS, RETRY_DELAY_S, TTL_S, Bolt
from eddyline.relay.queue import DataQueue
from eddyline.sql.names import check_name

FREE, BY_KEY = "free", "key"


@checked
@dataclass(frozen=True, slots=True)
class Pipeline:
    """Reads records from a queue, calls bolts on them, and writes the results into a stream.

    Make one with `engine.pipeline`, add bolts, and start it with `into`; it runs whenever the engine
    runs. A record that fails is retried before new records are read; the others go on. After
    `max_attempts` it becomes a dead letter, a row of the stream `<name>__dead`.

    Example:
        >>> import json, tempfile
        >>> from eddyline import Engine
        >>> from eddyline.relay.embedded import LogBackend
        >>> from eddyline.relay.queue import DataQueue
        >>> engine = Engine(tempfile.mkdtemp())
        >>> queue = DataQueue(LogBackend(tempfile.mkdtemp()))
        >>> def parse(record):
        ...     return json.loads(record["payload"])
        >>> pipeline = engine.pipeline("orders", queue).bolt(parse, max_attempts=1)
        >>> pipeline = pipeline.into("orders", "item STRING")
        >>> counts = engine.view("counts", "SELECT item, count(*) AS n FROM orders GROUP BY item")
        >>> queue.put(['{"item": "tea"}', "poison", '{"item": "tea"}'])
        3
        >>> epoch = engine.advance()
        >>> [tuple(row) for row in counts.snapshot().collect()]
        [('tea', 2)]
        >>> [(bytes(row.payload), row.bolt) for row in pipeline.dead_letters().collect()]
        [(b'poison', 'parse')]
        >>> pipeline.account()
        Account(received=3, done=2, dead=1, retry=0, in_flight=0, missed=0)
        >>> pipeline.replay("bolt = 'parse'")
        1
        >>> pipeline.account().retry
        1
        >>> pipeline.discard()  # none is left
        0
        >>> engine.stop()
    """

    name: str
    source: DataQueue
    settings: PipelineSettings
    _workspace: Workspace = field(repr=False)
    _writing: Writing = field(repr=False)
    _streams: Streams = field(repr=False)
    bolts: tuple[Bolt, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "pipeline")

    def bolt(
        self,
        function: Callable[[Any], Any],
        name: str | None = None,
        *,
        vectorised: bool = False,
        by_key: bool = False,
        once: bool = False,
        order: str = FREE,
        ttl: float = TTL_S,
        max_attempts: int = MAX_ATTEMPTS,
        retry_delay: float = RETRY_DELAY_S,
        concurrency: int = CONCURRENCY,
    ) -> Pipeline:
        """Return the pipeline with one more bolt.

        The first bolt gets records: dicts (or a table) with `payload`, `key`, `ts`, `position`,
        `attempts` and `reason`. Each later bolt gets what the bolt before it returned. A function
        returns None, one row, or a list or an iterator of rows.

        Args:
            function: called with one row; a coroutine function is called for many rows concurrently.
            name: shown in dead letters; the function's own name by default.
            vectorised: the function gets a pyarrow Table, and returns one with a row for each of its
                rows, or `Emitted`. If it raises, it is called again with halves of the rows until
                the bad ones are found. So its side effects must be idempotent; otherwise use `once`.
            by_key: the function gets the list of all rows of a batch whose records have one key,
                and its output is made from all of them. Only with `order="key"`.
            once: when a vectorised function raises, all its rows have failed; it isn't called with
                them again in this attempt.
            order: `key`: records of one key are processed in order, and wait while one of them is
                being retried. This holds for the whole pipeline.
            ttl: seconds that a call may take; a longer call has failed.
            max_attempts: failures after which a record becomes a dead letter, counted when this bolt
                fails.
            retry_delay: seconds before a record that failed here is retried; where bolts differ, up
                to a tenth of the longest delay more.
            concurrency: calls of a coroutine function that may wait at the same time.

        Raises:
            EngineError: BAD_OPTION: the function or a setting can't be used. BAD_BOLT: the bolt is more than one of
                vectorised, by key and a coroutine function.
            CatalogError: INVALID_NAME.
        """
        if name is not None:
            check_name(name, "bolt")
        check_choice("order", order, (FREE, BY_KEY))
        if by_key and order != BY_KEY:
            raise EngineError(
                "a bolt of rows by key needs all records of a key in one place",
                condition="BAD_OPTION",
                hint='give it order="key" too',
            )
        added = Bolt.of(
            function, name, vectorised=vectorised, by_key=by_key, once=once,
            ttl=ttl, max_attempts=max_attempts, retry_delay=retry_delay, concurrency=concurrency,
        )  # fmt: skip
        ordered = self.settings.ordered or order == BY_KEY
        return replace(
            self,
            bolts=(*self.bolts, added),
            settings=replace(self.settings, ordered=ordered),
        )

    def into(
        self,
        target: str | Callable[[Any], Any] | None = None,
        schema: str | StructType | None = None,
        primary_key: Key = (),
        watermark: tuple[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Start the pipeline; it runs whenever the engine runs. Call it again after reopening.

        Args:
            target: name of the stream that the rows of the last bolt go to; a record whose row
                doesn't fit its columns becomes a dead letter at once. Or a function of one row,
                which becomes the last bolt. None: the last bolt keeps the results itself.
            schema: columns of the stream.
            primary_key: the last record of a key replaces the row. A retried record comes late,
                unless the pipeline has `order="key"`.
            watermark: as for `engine.stream`.
            options: as for `engine.stream`.

        Raises:
            EngineError: BAD_OPTION: there is no bolt, or the stream has no columns. BAD_BOLT: Spark can't send a bolt to
                its workers. QUEUE_IN_USE: another pipeline
                reads the queue. STORAGE_IN_USE: another engine writes to the storage, or this one is stopped or
                only reads.
            CatalogError: NAME_TAKEN: a name is taken by something else. UNKNOWN_COLUMN: the key isn't one of columns.
            DataError: BAD_SCHEMA: the columns can't be used.
        """
        if callable(target):
            return self.bolt(target).into(None, schema)
        if not self.bolts:
            raise EngineError(
                f"pipeline {self.name} has no bolt",
                condition="BAD_OPTION",
                hint="add one with .bolt(function)",
            )
        if (target is None) != (schema is None):
            raise EngineError(
                f"pipeline {self.name} feeds a stream, or columns, and not both",
                condition="BAD_OPTION",
                hint='write .into("name", "column TYPE, ..."), or .into(function)',
            )
        check_bolts(self.bolts)
        draft = None
        if target is not None and schema is not None:
            # PIPELINE: so that nothing else writes it
            fed = {**time_options(options or {}), PIPELINE: self.name}
            draft = stream(
                target,
                columns_of(schema),
                primary_key,
                watermark,
                self._workspace.spark,
                options=fed,
            )
        self._streams.attach_pipeline(self.name, self.source, self.bolts, self.settings, draft)
        return self

    def account(self) -> Account:
        """Count the records by state: `received = done + dead + retry + in_flight + missed`.

        While a started engine is in an epoch, it counts those of that epoch already, which views show at its commit.
        """
        return self.source.account()

    def dead_letters(self) -> DataFrame:
        """Read the dead letters: position, payload, key, bolt, error, attempts, and times.

        Raises:
            CatalogError: NOT_FOUND: the pipeline hasn't been started with `into`, or was dropped.
        """
        return self._writing.dead_letters(self.name)

    def replay(self, where: str | None = None) -> int:
        """Retry dead letters, as if they arrived now; return how many.

        In a stream with a primary key their rows replace those of their keys, also rows of records that came after
        them, whatever the pipeline's `order` is.

        Args:
            where: a condition on their columns, as in SQL; None: all.

        Raises:
            QueryError: Spark can't read the condition. EngineError: BAD_OPTION: it is blank.
            CatalogError: NOT_FOUND: the pipeline hasn't been started with `into`, or was dropped. NOT_CONNECTED:
                it hasn't been started since the storage was reopened.
            EngineError: STORAGE_IN_USE: another engine writes to the storage, or this one is stopped or only reads.
        """
        return self._streams.remove_dead_letters(self.name, where, replay=True)

    def discard(self, where: str | None = None) -> int:
        """Drop dead letters for good; return how many.

        Args:
            where: as for `replay`.

        Raises:
            QueryError, CatalogError, EngineError: as for `replay`.
        """
        return self._streams.remove_dead_letters(self.name, where, replay=False)
