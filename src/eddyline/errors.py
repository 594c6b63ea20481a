"""The tree of errors, and the table of their conditions.

Every error names its condition, the object concerned and the way out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

Fault = Literal["user", "data", "environment", "bug"]
USER: Fault = "user"
DATA: Fault = "data"
ENVIRONMENT: Fault = "environment"
BUG: Fault = "bug"

JVM_LOST = "JVM_LOST"
"""A condition after which nothing more can run in the process."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How to react to errors of one condition.

    Attributes:
        fault: what has to change: the user's code or call (user), rows of the input (data), the
            machine or another system (environment), Eddyline itself (bug).
        retryable: whether the same call can succeed later although the caller changes nothing.
        meaning: what it means and what to do.
    """

    fault: Fault
    retryable: bool
    meaning: str


CONDITIONS: dict[str, Condition] = {
    # queries and scripts
    "DUPLICATE_COLUMN": Condition(USER, False, "Two columns of a view's result, or of rows for a table, have the same name, or one has the name of a column that a form of its changes adds. Give one an alias with AS."),
    "INVALID_QUERY": Condition(USER, False, "Spark can't read the query. Correct it; SHOW TABLES, STREAMS and VIEWS list the names."),
    "NEEDS_SPARK": Condition(USER, False, "Without Spark only plain queries on one table or view are answered, from their files. Ask others with `eddyline sql` or `engine.sql`."),
    "NOT_ALLOWED": Condition(USER, False, "A query of the console, or one with `confined=True`, reads or calls something outside of the storage: a file, another table, a script, Java. Ask it with `eddyline sql` or `engine.sql`."),
    "QUERY_CANCELLED": Condition(USER, False, "A query of the console was cancelled by its reader, or because it took too long. Ask for less, or create a view."),
    "TOO_MANY_ROWS": Condition(USER, False, "An answer has more rows than the console gives as a file. Ask for fewer, or use `eddyline sql --format csv`."),
    "NOT_A_QUERY": Condition(USER, False, "`engine.sql`, `engine.view` and `engine.explain` take queries. Statements (CREATE, INSERT, DROP, SHOW, ...) go to `engine.execute` or into a script of `eddyline run`."),
    "NOT_LIVE": Condition(USER, False, "No live view can keep this query. Follow the hint, or ask ad hoc with `engine.sql`."),
    "NO_VIEW": Condition(USER, False, "`eddyline explain` needs a script that creates a view. Add CREATE VIEW."),
    "NO_WATERMARK": Condition(USER, False, "EMIT FINAL needs a column that follows a watermark. Declare one on the stream and select its column."),
    "PROJECT_INVALID": Condition(USER, False, "The spec file or the definitions of a project of Spark Declarative Pipelines are wrong. The message has Spark's condition, or names the datasets and their file and line."),
    "PROJECT_UNSUPPORTED": Condition(USER, False, "A project of Spark Declarative Pipelines defines something that Eddyline doesn't run. The hint names what to use instead."),
    "QUERY_FAILED": Condition(USER, False, "Spark fails while it plans or runs the query. The message says on what; correct those values, or write the query in another way."),
    "SCALAR_SUBQUERY_TOO_MANY_ROWS": Condition(DATA, False, "A scalar subquery of a view gives more than one row, as of the end of the epoch. The view is set aside. Delete the extra rows, or make it one row with an aggregate or LIMIT 1."),
    "SCHEMA_ONLY": Condition(USER, False, "An action was called on `engine.relation(name)`, or on a DataFrame made of it, which has columns but no rows. Make a view of it, or read the rows with `engine.sql` or `engine.snapshot`."),
    "SCRIPT_NOT_READABLE": Condition(USER, False, "The script can't be opened, or isn't UTF-8. Check its path and encoding."),
    "SCRIPT_SYNTAX": Condition(USER, False, "A statement of the script is wrong. Correct the line that the message names."),
    "SCRIPT_UNSUPPORTED": Condition(USER, False, "Eddyline doesn't support this statement or clause. The hint names what to use instead."),
    "UNKNOWN_FORM": Condition(USER, False, "A changelog has no such form. Use `retract`, `update` or `cdf`."),
    "UNKNOWN_STAGE": Condition(USER, False, "EXPLAIN has no such stage. Use `dag`, `logical` or `physical`."),
    "UNSUPPORTED_TYPE": Condition(USER, False, "A column has a type that no table, stream or view can keep. Cast it, or leave the column out."),
    # definitions
    "BAD_EXPECTATION": Condition(USER, False, "A stream or view can't have this CONSTRAINT ... EXPECT: its condition is wrong, or not always the same for a row, or the relation can't do what ON VIOLATION asks for. The message says which."),
    "INVALID_NAME": Condition(USER, False, "A name is empty, too long, not text, or contains a line break or another control character."),
    "NAME_TAKEN": Condition(USER, False, "The name belongs to another definition. Take another name, or drop that one first."),
    "NOT_CONNECTED": Condition(USER, False, "A stream or pipeline made in Python is not attached since the storage was opened. Build it first."),
    "NOT_FOUND": Condition(USER, False, "Nothing of this kind has this name. The hint lists the known names."),
    "NOT_STREAMING": Condition(USER, False, "`engine.stream` was given a DataFrame at rest. Make it with `spark.readStream`, or use a table."),
    "NOT_APPEND_ONLY": Condition(USER, False, "A streaming query without a change feed reads a view whose rows are changed or deleted. Set the option readChangeFeed = true."),
    "NOT_STORED": Condition(USER, False, "The rows of a stream are kept as a log, which only an engine reads. Use `engine.sql`, or create a view over the stream and read that."),
    "NO_PLAN": Condition(USER, False, "A stream of Spark is read as it comes, and has no plan to explain. Explain a view that reads it."),
    "NO_PRIMARY_KEY": Condition(USER, False, "Upserts and deletes by key need a table with a primary key. Give it one when creating it."),
    "READ_ONLY": Condition(USER, False, "The console only shows. Start it with a token and without `--read-only`, or use the command line."),
    "STILL_FED": Condition(USER, False, "A pipeline writes into this stream. Drop the pipeline first."),
    "BEING_ALTERED": Condition(ENVIRONMENT, True, "A DataFrame was written into a table while ALTER TABLE changed it. Nothing was inserted; write again."),
    "NOT_ALTERABLE": Condition(USER, False, "This column of a stream can't be changed in this way: it is the event time or the time of receipt, or a DataFrame, a pipeline or a table of another system gives it. Create a second stream, and a view that unites both."),
    "VIEW_CIRCLE": Condition(USER, False, "A new query of a view reads a view that reads it. Read what that one is made of instead."),
    "STILL_READ": Condition(USER, False, "Views or sinks read this definition, or this column. Drop them first, or replace them."),
    "UNKNOWN_COLUMN": Condition(USER, False, "A named column doesn't exist. The hint lists the columns."),
    "UPSTREAM_PAUSED": Condition(USER, False, "The view reads a paused view. Resume that one first."),
    # options and streams
    "BAD_BOLT": Condition(USER, False, "A bolt is not a function, is of two kinds at once, or can't be sent to Spark's workers. Give a function of one kind, which opens connections itself."),
    "BAD_DEFAULT": Condition(USER, False, "A column can't have this DEFAULT: it isn't a constant expression of the column's type. The message says why."),
    "BAD_OPTION": Condition(USER, False, "A setting or argument has a value that isn't allowed. The hint says what is."),
    "BAD_SCHEMA": Condition(USER, False, "A list of columns can't be read. Write it like `id BIGINT, name STRING`."),
    "BAD_STREAM": Condition(USER, False, "A stream's format, columns and options don't fit each other. Check them."),
    "NO_ADDRESS": Condition(ENVIRONMENT, False, "An HTTP endpoint can't listen on this address: its port is taken, or it isn't one of this machine. Give another."),
    "RESERVED_COLUMN": Condition(USER, False, "The column `_received_at` holds the time at which a stream's rows were received. Only streams have it, as a TIMESTAMP that is no key."),
    "BAD_RETENTION": Condition(USER, False, "A stream can't keep its rows for that time. The message says why."),
    "BAD_WATERMARK": Condition(USER, False, "A stream can't have this watermark. The message says why."),
    # rows and records
    "ARITHMETIC_OVERFLOW": Condition(DATA, False, "The sum of a group is beyond the range of its type, which is an error in Spark's ANSI mode. The view is set aside. Delete or correct the rows, or sum a wider type."),
    "EXPECTATION_VIOLATED": Condition(DATA, False, "A row of a stream violates a constraint with ON VIOLATION STOP, or a constraint of a stream of operations can't be evaluated for it: the stream waits before this row, and nothing is lost. ALTER STREAM ... DROP CONSTRAINT lets it go on, or drop the stream and mend its source."),
    "BAD_FILE": Condition(DATA, False, "A file of a stream can't be read. Mend or replace it; nothing of the epoch was committed."),
    "UNKNOWN_SOURCE": Condition(USER, False, "No registered format reads this data. Register the format of the stream before you open the storage."),
    "BAD_RECORDS": Condition(USER, False, "A data queue was given something other than records. Give bytes, text or an Arrow table."),
    "NEGATIVE_WEIGHT": Condition(DATA, False, "A change takes away a row that the state doesn't hold, or a stored result holds a row less than zero times. Drop the view and create it again."),
    "NULL_KEY": Condition(DATA, False, "A row has no value in a column of the primary key. Give every row its key."),
    "CONFLICTING_CHANGES": Condition(DATA, False, "MERGE would change a row of the table more than once, because several rows of the source match it. Let at most one match; nothing was written."),
    "NULL_VALUE": Condition(DATA, False, "A row has no value in a column that is NOT NULL, or the rows lack such a column. Give a value, or the column a DEFAULT; nothing was written."),
    "TOO_LONG": Condition(DATA, False, "A text has more characters than its column, CHAR(n) or VARCHAR(n), takes. Cut it, or give the column a larger length; nothing was written."),
    "WRONG_ROW": Condition(USER, False, "A row is neither a dict nor a tuple, or some rows are dicts and others not. Give one value for each column."),
    "WRONG_TYPE": Condition(DATA, False, "A value doesn't fit the type of its column. Convert it; nothing was written."),
    "WRONG_WIDTH": Condition(USER, False, "A row has more or fewer values than the table has columns. Name the columns, or complete the row."),
    # epochs, streams and pipelines at work
    "EPOCH_FAILED": Condition(ENVIRONMENT, True, "An epoch failed and nothing of it was committed. After a lost worker the next call succeeds; an error of a function or a query stays until it is corrected."),
    "MISSING_REPORT": Condition(BUG, True, "A task of an epoch ended without its report. The next call runs the epoch again; report it if it stays."),
    "WRONG_REPORT": Condition(BUG, False, "A task of an epoch has read another state than that of the last epoch. Nothing was committed; report it."),
    "WRONG_PARTITIONS": Condition(BUG, False, "Spark's plan of a view doesn't bring the rows of an operator into the buckets of its state. Nothing was stored. Report the query."),
    "WRONG_BUCKET": Condition(BUG, False, "A stored row isn't in its bucket, so the number of buckets can't be changed. The storage is as it was. Report it."),
    "NO_EPOCH": Condition(USER, False, "A compiled plan ran outside of an epoch. Read results with `view.snapshot()`."),
    "NO_REPLAY": Condition(USER, False, "The source gives each record once, so that a dead letter can't be read again. Put the mended record into the source."),
    "NO_STATEMENT": Condition(USER, False, "SHOW CREATE TABLE of what no statement of SQL makes: a view or stream of a DataFrame, a sink that calls a function, or what comes with another definition. The hint says what makes it."),
    "PIPELINE_FAILED": Condition(ENVIRONMENT, True, "A step of a pipeline failed and nothing of it was committed. The message ends with the cause; the records are tried again."),
    "SOURCE_CHANGED": Condition(DATA, False, "A table or topic that a stream follows is gone, has changed or is another one, or holds a value that the stream can't take, so that its changes don't fit the stream's columns any more. Drop the stream with its views and create them again: it begins anew."),
    "SOURCE_LOST": Condition(ENVIRONMENT, False, "A server, table or topic no longer has all changes that a stream hasn't read yet. Drop the stream with its views and create them again: it begins anew."),
    "STREAM_FAILED": Condition(ENVIRONMENT, True, "The source of a stream can't be read. Mend it; nothing was lost, and the next call reads on."),
    "VIEW_UNDEFINED": Condition(USER, False, "A view was defined by a DataFrame, which a catalog can't hold, and the program hasn't defined it again since it opened the storage. Call `engine.view` as before; until then the view is set aside."),
    "VIEW_FAILING": Condition(DATA, True, "The rows, expressions or functions of a view raise an error, or its query can't be compiled in this process. Mend the rows, mend or register the function: the view is tried again by itself, and `snapshot(last_good=True)` reads its last good rows."),
    "WORKER_DIED": Condition(ENVIRONMENT, True, "A Python worker of a pipeline died. Its records are tried one by one to find the one that kills it."),
    # data queues
    "ACCOUNT_WRONG": Condition(BUG, False, "A commit would count a record twice or not at all. Nothing was committed; report it."),
    "BATCH_PASSED": Condition(USER, False, "Batches of a queue have increasing numbers. Give a higher one than the last."),
    "KAFKA_FAILED": Condition(ENVIRONMENT, True, "Kafka's brokers can't be used. See that they run and can be reached."),
    "QUEUE_BEHIND": Condition(USER, False, "The queue is not the one that the pipeline has read so far. Give it that one, or drop and create the pipeline."),
    "QUEUE_FULL": Condition(ENVIRONMENT, True, "The consumer is slower than the producers. Put the records later, or read faster."),
    "QUEUE_IN_USE": Condition(USER, False, "Another reader has this queue. Stop it, or give each reader a queue of its own."),
    "QUEUE_TAKEN": Condition(USER, False, "A newer reader has taken the queue over. Run one reader for each application."),
    "RECORDS_EXPIRED": Condition(ENVIRONMENT, True, "Kafka deleted records of a batch after it was planned, so that it can't be loaded. Abandon the batch and plan again: reading goes on at the first record that exists, and the missing ones are counted as `missed`."),
    "RETENTION_TOO_SHORT": Condition(USER, False, "A topic of a queue on Kafka would lose failed records before their retry. Raise `retention.ms` of the topic above the retry delay, or shorten the delay."),
    "UNKNOWN_BATCH": Condition(USER, False, "Batches are settled in the order in which the queue has planned them. Settle the first one open."),
    # storage and catalog
    "CATALOG_CHANGED": Condition(USER, False, "Another engine has changed the catalog since it was read, perhaps that of a copied storage. Open the right storage."),
    "CATALOG_ELSEWHERE": Condition(USER, False, "The catalog of this storage is in the other kind of database. Set or clear EDDYLINE_CATALOG."),
    "CATALOG_UNAVAILABLE": Condition(ENVIRONMENT, True, "The database of the catalog can't be used. Mend the cause; nothing is half written."),
    "CHANGES_EXPIRED": Condition(USER, False, "The changes asked for are no longer retained, or the view they belong to was dropped, or replaced by one with other columns. Read a snapshot, and go on with the changes after its epoch; a reader with a name holds its epochs."),
    "DAMAGED_FILE": Condition(ENVIRONMENT, False, "A file of the storage is not what was written. Restore it from a copy."),
    "DAMAGED_MESSAGE": Condition(ENVIRONMENT, False, "A message of a queue on Kafka is not what was written. Restore the topic, or start a new application."),
    "DAMAGED_RUN": Condition(ENVIRONMENT, False, "A file of the state is not what was written. Restore it from a copy."),
    "EPOCH_COMMITTED": Condition(USER, False, "Another engine has committed this epoch. Open the storage with one engine only."),
    "FENCED": Condition(ENVIRONMENT, False, "Another engine has opened the storage for writing although this one had not stopped, so the file system's locks don't work. Nothing of this engine is committed any more; stop it."),
    "LOG_TOO_SHORT": Condition(ENVIRONMENT, False, "The redo log lacks entries that the manifest needs, at its begin or its end. Restore a later manifest or the log's folder from a copy."),
    "MISSING_CHECKPOINT": Condition(ENVIRONMENT, False, "A stream's checkpoint is gone while its redo log is there. Restore it, or drop and create the stream."),
    "NEWER_FORMAT": Condition(USER, False, "A newer version of Eddyline has written this storage or queue. Use that version."),
    "NO_STORAGE": Condition(USER, False, "The folder holds no stored engine. Give the one that `eddyline run` was given."),
    "NO_SUCH_EPOCH": Condition(USER, False, "The epoch is not committed, or no longer retained. Ask for a later one, or raise `retain_epochs`."),
    "OLD_FORMAT": Condition(USER, False, "An older version of Eddyline has written this catalog. Open the storage once with an engine."),
    "OTHER_PLAN": Condition(USER, False, "The state of a table or stream was written by another plan, so that its rows would be wrong. Set the options back with which it was made."),
    "ROWS_EXPIRED": Condition(USER, False, "Rows of a stream are gone, which are older than the stream retains, and a view that has counted them can't be computed again. It keeps its results; replace it to begin anew, with the rows that are left."),
    "SETTINGS_DIFFER": Condition(USER, False, "A setting of Spark that results depend on has another value than when the storage was made. Set the session back before opening it."),
    "READ_FAILED": Condition(ENVIRONMENT, True, "A file of the storage, or of a stream, is there but can't be read now: the disk, permissions, or too many open files. Mend the cause; nothing was changed."),
    "SNAPSHOT_EXPIRED": Condition(USER, False, "A DataFrame was run after the epoch that it reads was retired: it was open for longer than `lease_seconds`, or held more than `held_bytes`. Make it again. Spark runs the DataFrame, so this comes in the last line of a `PythonException` of PySpark. DataFrames of small results hold their rows, and don't expire."),
    "STORAGE_IN_USE": Condition(USER, False, "Another engine writes to this storage, or this one is stopped. Stop the other and open the storage again."),
    "TIME_ZONE_DIFFERS": Condition(USER, False, "The storage is kept in another time zone than the session's. Set the session's zone before opening it."),
    "UNKNOWN_TIME_ZONE": Condition(USER, False, "The session's time zone has no name that all parts know. Use a name of the IANA database."),
    "UNSUPPORTED_STORAGE": Condition(USER, False, "The storage is not on a file system that this version can use. Give a local or mounted path."),
    "UNUSABLE_STORAGE": Condition(ENVIRONMENT, False, "The storage folder can't be created. Give one that this process may write to."),
    "OUTPUT_FAILED": Condition(ENVIRONMENT, False, "What a command prints can't be written, such as to a file on a full disk. Make room, or write it elsewhere."),
    "WRITE_FAILED": Condition(ENVIRONMENT, True, "The storage can't be written. Free space or mend the disk; nothing is half written."),
    "WRITE_UNCERTAIN": Condition(ENVIRONMENT, False, "Rows were written, but the disk has neither made them durable nor let them be removed. Mend it, and look whether they are there before you write them again."),
    # sinks
    "SECRET_MISSING": Condition(ENVIRONMENT, True, "An option of a sink or stream, or the console's token, refers to an environment variable or file that can't be read. Set it for that process; a sink or stream tries again by itself."),
    "SINK_FAILED": Condition(ENVIRONMENT, True, "A sink's target can't be used: the message ends with the cause. Mend it; the sink tries again by itself, and nothing is lost."),
    "SINK_KEY": Condition(USER, False, "A sink's target needs a key that its view doesn't have. Leave the option key out, make the view unique by these columns, or take a format without a key."),
    "SINK_REFUSED": Condition(DATA, False, "A target refuses a row, and the sink has the option on_refused = 'stop'. Mend the row or the target's constraint, or let the sink keep such rows as dead letters."),
    "SINK_TARGET_AHEAD": Condition(USER, False, "A sink's target is ahead of the storage: one of them was restored from a copy, or they don't belong together. Connect the right target, or `resend`: the target's rows then become those of the view."),
    "SINK_TARGET_MOVED": Condition(ENVIRONMENT, True, "Another engine has delivered to a sink's target in the meantime. Stop one of the two; the delivery goes on from what the target holds."),
    "SINK_TARGET_NOT_EMPTY": Condition(USER, False, "A sink's target holds rows that this sink hasn't written, or is the target of another sink. Give another target, or empty it and drop the other sink; sinks to Delta, PostgreSQL and Kafka also have the option overwrite = true."),
    "SINK_TARGET_RESTORED": Condition(USER, False, "A sink's target lacks epochs or columns that were delivered to it, or another sink has taken it. Connect the right target, or `resend`: the target's rows then become those of the view."),
    # installation
    "MISSING_PACKAGE": Condition(ENVIRONMENT, False, "An optional package is not installed. The hint has the command that installs it."),
    "NOT_INSTALLED": Condition(ENVIRONMENT, False, "The command belongs to a package that is not installed. The hint has the command that installs it."),
    "UNKNOWN_SPARK_VERSION": Condition(ENVIRONMENT, False, "This version of PySpark is not supported. Install one that the hint names."),
    "JVM_LOST": Condition(ENVIRONMENT, True, "The JVM of Spark has ended: it was killed, often because memory was short, or has crashed. Nothing can run in this process any more, so `engine.start()` and `eddyline run` end. Start the process again, or let a supervisor do it: nothing is lost."),
    "NO_JAVA": Condition(ENVIRONMENT, False, "Spark runs on Java, and there is none on the PATH or in JAVA_HOME. Install a JRE, or the extra `jdk`."),
    "NO_CLASS_ARCHIVE": Condition(ENVIRONMENT, False, "`eddyline warm-up` can't make an archive of Spark's classes; the message says why. Spark starts without one, only slower."),
    "WORKER_LOST": Condition(ENVIRONMENT, True, "A process of Spark's, such as a Python worker, ended while it worked for a query or a statement, which has changed nothing. Run it again."),
    "WORKERS_LACK_PACKAGE": Condition(ENVIRONMENT, False, "Spark's Python workers can't load Eddyline. Set PYSPARK_PYTHON to a Python in which it is installed, before the session is made."),
    # applications and benchmarks
    "DATABASE_UNAVAILABLE": Condition(ENVIRONMENT, True, "The database of the log ETL can't be used. Mend the cause; with --storage the same command goes on."),
    "BAD_CONFIG": Condition(USER, False, "The configuration of `eddyline guard` can't be read, or has a setting that isn't known or allowed. The message names the file and the place."),
    "BAD_LABELS": Condition(USER, False, "The labels of `eddyline guard evaluate` can't be read, or a line is none. Write an address, and after a comma `attack` or `normal`."),
    "ENGINE_ENDED": Condition(ENVIRONMENT, True, "The engine that `eddyline cdc` has started has ended by itself. The message has the end of its log."),
    "LOG_FORMAT_UNKNOWN": Condition(USER, False, "The format of an access log can't be told from its lines, or the one after --log-format can't be used. Give a name, or the format string of the server's configuration."),
    "LOG_NOT_READABLE": Condition(USER, False, "The access log can't be opened. Check the path after --log."),
    "BENCHMARK_FAILED": Condition(ENVIRONMENT, False, "A run of `eddyline bench --against` has failed. The message has the end of its log."),
    "BROKER_FAILED": Condition(ENVIRONMENT, False, "A Kafka broker that the application starts has failed. Mend the cause; the message has the end of its log."),
    "NO_CLUSTER": Condition(ENVIRONMENT, False, "The cluster of a benchmark, of Spark or Flink, doesn't start or fails. It needs Java, memory and the address 127.0.0.1."),
    "NO_KAFKA": Condition(ENVIRONMENT, False, "Kafka's jars or Java are not installed. Fetch the jars with `make kafka`, or name their folder after --kafka-jars."),
    "NO_POSTGRESQL": Condition(ENVIRONMENT, False, "PostgreSQL is not installed on this machine. Install it, or give the URL of a database."),
    "OTHER_RUN": Condition(USER, False, "The storage belongs to a run with other arguments. Give those, or a new folder."),
    "PLACES_NOT_READABLE": Condition(USER, False, "A file of places (.mmdb) can't be opened, is damaged, or holds neither countries nor carriers. The message names it."),
    "POSTGRESQL_FAILED": Condition(ENVIRONMENT, False, "A PostgreSQL server that the application starts has failed. Mend the cause, or give the URL of a database."),
    "RUN_TOO_SHORT": Condition(USER, False, "A benchmark ended before its fault came. Give it more records."),
    "STORAGE_NOT_EMPTY": Condition(USER, False, "The folder holds something else. The demo starts from nothing; engines, queues and other commands go on with a folder of their own. Give an empty or a new folder."),
}  # fmt: skip
"""All conditions of Eddyline and its applications; `docs/errors.md` is made of them."""


class EddylineError(Exception):
    """Base of all errors that Eddyline raises on purpose.

    Attributes:
        condition: a stable upper-case name, for programs to decide on; see `CONDITIONS`.
        message: the text without condition, context and hint.
        context: the objects concerned (view, table, operator, SQL fragment, file, ...).
        hint: the way out, as a sentence; empty if there is none.
    """

    def __init__(self, message: str, *, condition: str, hint: str = "", **context: object) -> None:
        self.condition = condition
        self.message = message
        self.context = {key: value for key, value in context.items() if value is not None}
        self.hint = hint
        where = ", ".join(f"{key} {value}" for key, value in self.context.items())
        parts = [f"[{condition}] {message}"]
        if where:
            parts.append(f"({where})")
        if hint:
            parts.append(f"Way out: {hint}")
        super().__init__(" ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        """Allow errors to pass between processes; what they concern becomes text."""
        return _again, (type(self), self.message, self.condition, self.hint, self._context_texts)

    def concerning(self, **context: object) -> EddylineError:
        """Return the same error about other objects.

        Example:
            >>> str(DataError("a row is null", condition="NULL_KEY", table="p").concerning(pipeline="p"))
            '[NULL_KEY] a row is null (pipeline p)'
        """
        return _again(type(self), self.message, self.condition, self.hint, context)

    @property
    def retryable(self) -> bool:
        """Whether the same call can succeed later although the caller changes nothing."""
        known = CONDITIONS.get(self.condition)
        return known is not None and known.retryable

    @property
    def fault(self) -> Fault:
        """What has to change: see `Condition`. A condition outside the table is a bug."""
        known = CONDITIONS.get(self.condition)
        return BUG if known is None else known.fault

    def as_document(self) -> dict[str, Any]:
        """Return the error for JSON: its condition, message, context (as texts) and way out.

        Example:
            >>> EngineError("lag is 'x'", condition="BAD_OPTION", view="v", hint="give a number").as_document()
            {'condition': 'BAD_OPTION', 'message': "lag is 'x'", 'context': {'view': 'v'}, 'hint': 'give a number'}
        """
        return {
            "condition": self.condition,
            "message": self.message,
            "context": self._context_texts,
            "hint": self.hint,
        }

    @property
    def _context_texts(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.context.items()}


def error_of_text(text: str) -> EddylineError:
    """Return the error that has a text, without its context; INTERNAL if none of Eddyline has such a text.

    Example:
        >>> error_of_text("[NOT_FOUND] there is no view named v Way out: known: w").as_document()
        {'condition': 'NOT_FOUND', 'message': 'there is no view named v', 'context': {}, 'hint': 'known: w'}
    """
    known = re.fullmatch(r"\[(\w+)\] (.*)", text, re.DOTALL)
    condition, rest = known.groups() if known else ("INTERNAL", text)
    message, _, hint = rest.partition(" Way out: ")
    return EddylineError(message, condition=condition, hint=hint)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text for people, in which secrets are replaced by `***`.

    Example:
        >>> without_secrets("password s3cret is wrong", ["s3cret", ""])
        'password *** is wrong'
    """
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def _again(
    kind: type[EddylineError],
    message: str,
    condition: str,
    hint: str,
    context: Mapping[str, object],
) -> EddylineError:
    """Return an error of a class, without its own `__init__`: as another process has raised it, or about other objects."""
    error = kind.__new__(kind)
    EddylineError.__init__(error, message, condition=condition, hint=hint, **context)
    return error


class ScriptError(EddylineError):
    """A SQL script has a statement that is wrong or not supported."""


class QueryError(EddylineError):
    """A query is wrong, or no live view can keep it."""


class CatalogError(EddylineError):
    """A name is missing, taken, or has another definition than the call asks for."""


class DataError(EddylineError):
    """Rows or a source don't fit the table or stream."""


class StateError(EddylineError):
    """Stored state is damaged or contradicts itself."""


class StorageError(EddylineError):
    """The storage folder can't be used."""


class EngineError(EddylineError):
    """The engine was called with arguments or at a time that it doesn't support, or an epoch failed."""


class QueueError(EddylineError):
    """A data queue can't be used, or was called in a way that it doesn't support."""


class QueueFullError(QueueError):
    """A data queue has reached its limit: the consumer is slower than the producers."""


def condition_of(error: BaseException) -> str:
    """Return the condition of an error, or its class: what may be logged or sent, where its message can hold rows."""
    return error.condition if isinstance(error, EddylineError) else type(error).__name__


def message_text(error: BaseException) -> str:
    """Return the message of any error as text that can be encoded; empty if it has none, or can't give it."""
    try:
        return encodable(str(error))
    except (Exception, SystemExit):  # noqa: BLE001  # of the `__str__` of a user's class
        return ""


def encodable(text: str) -> str:
    """Return a text in which halves of surrogate pairs, which UTF-8 can't encode, are replaced by their escapes."""
    return text.encode(errors="backslashreplace").decode()


EXTRAS = {
    "delta": ("deltalake",),
    "kafka": ("confluent_kafka",),
    "postgres": ("psycopg",),
    "http": ("starlette", "uvicorn"),
    "console": ("starlette", "uvicorn", "jinja2", "prometheus_client"),
    "pipelines": ("yaml",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "lineage": ("openlineage.client",),
    "completion": ("shtab",),
}
"""The modules of each extra of the package."""


def has_module(module: str) -> bool:
    """Return whether a module can be imported; the packages that it lies in may be missing, too."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it isn't installed."""
    from importlib.metadata import (  # takes as long to import as all errors
        PackageNotFoundError,
        version,
    )

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def missing_package(what: str, package: str, extra: str) -> EngineError:
    """Return the error of `what`, which needs a package of an extra that isn't installed."""
    return EngineError(
        f"{what} needs the package {package}, which is not installed",
        condition="MISSING_PACKAGE",
        hint=f"pip install 'eddyline[{extra}]'",
    )


class ViewFailingWarning(UserWarning):
    """A view was created or resumed that fails on the rows of its inputs: it is set aside until they change."""


class StateGrowthWarning(UserWarning):
    """A view was created whose state grows as long as its streams do."""
