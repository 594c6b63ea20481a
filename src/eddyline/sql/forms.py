"""The statements of scripts as plain data; `statements.py` parses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from eddyline.sql.cdc import ChangeFlow
from eddyline.sql.expectations import Expectation

QUERY_HEADS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "TABLE", "("})
"""The words, and the bracket, that a query can start with."""

KINDS = {"TABLE": "table", "STREAM": "stream", "VIEW": "view", "SINK": "sink"}
"""What a script can create, show and drop."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script. `line` is where it starts, from 1; comparisons ignore it."""

    line: int = field(default=1, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """`CREATE TABLE name (columns, PRIMARY KEY (...))`."""

    kind: ClassVar[str] = "table"
    name: str
    schema_ddl: str
    primary_key: tuple[str, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateTableAs(Statement):
    """`CREATE TABLE [IF NOT EXISTS] name AS query`, which may be `VALUES ...`."""

    kind: ClassVar[str] = "table"
    name: str
    query: str
    if_not_exists: bool = False

    @property
    def reads(self) -> str:
        """The text that names the relations whose rows it reads."""
        return self.query


@dataclass(frozen=True, slots=True)
class CreateStream(Statement):
    """`CREATE STREAM name (columns, PRIMARY KEY (...)) USING format OP column OPTIONS (...)`.

    `schema_ddl` is None if the statement has no columns, because the source declares them. `op` names
    the column with the operation of each record; without it all records are appended.
    """

    kind: ClassVar[str] = "stream"
    name: str
    schema_ddl: str | None
    format: str
    options: tuple[tuple[str, str], ...] = ()
    primary_key: tuple[str, ...] = ()
    op: str | None = None
    watermark: tuple[str, str] | None = None
    if_not_exists: bool = False
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateView(Statement):
    """`CREATE [OR REPLACE] [MATERIALIZED | LIVE] VIEW name (columns, expectations) AS query`.

    `query` gives its columns the names `columns`, if there are any.
    """

    kind: ClassVar[str] = "view"
    name: str
    query: str
    replace: bool = False
    if_not_exists: bool = False
    expectations: tuple[Expectation, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateSink(Statement):
    """`CREATE SINK name FROM view USING format OPTIONS (...)`."""

    kind: ClassVar[str] = "sink"
    name: str
    view: str
    format: str
    options: tuple[tuple[str, str], ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateFlow(Statement):
    """`CREATE FLOW name AS AUTO CDC INTO target ...`; the name isn't kept."""

    name: str
    target: str
    flow: ChangeFlow


@dataclass(frozen=True, slots=True)
class SessionFunction(Statement):
    """`CREATE [OR REPLACE] TEMPORARY FUNCTION name(...) RETURNS type RETURN expression`, or `DROP TEMPORARY FUNCTION name`.

    Spark's session keeps the function, so `text` is the whole statement.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Insert(Statement):
    """`INSERT INTO | OVERWRITE table [(columns) | BY NAME] query`, which may be `VALUES ...`.

    `columns` is None for all, in order. With `by_name` they are those of the query.
    """

    table: str
    columns: tuple[str, ...] | None
    query_text: str
    by_name: bool = False
    overwrite: bool = False

    @property
    def reads(self) -> str:
        """The text that names the relations whose rows it reads."""
        return self.query_text


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """`DELETE FROM table [AS alias] WHERE condition`; `where_text` is None for every row, as for `TRUNCATE TABLE table`."""

    table: str
    where_text: str | None = None
    alias: str | None = None

    @property
    def reads(self) -> str:
        """The text that names the relations whose rows it reads, besides the table."""
        return self.where_text or ""


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """`UPDATE table [AS alias] SET column = expression, ... WHERE condition`; None updates every row."""

    table: str
    assignments: tuple[tuple[str, str], ...]
    where_text: str | None = None
    alias: str | None = None

    @property
    def reads(self) -> str:
        """The text that names the relations whose rows it reads, besides the table."""
        return " ".join([*(text for _, text in self.assignments), self.where_text or ""])


@dataclass(frozen=True, slots=True)
class When:
    """`WHEN MATCHED | NOT MATCHED [BY SOURCE] [AND condition] THEN action` of a MERGE.

    `of` says which rows it is for: pairs of a row of the table and one of the source (`MATCHED`), or rows without a
    partner, of the source (`NOT MATCHED`) or of the table (`NOT MATCHED BY SOURCE`). `action` is `update`, `insert` or `delete`; `values`
    are columns with their expressions, None for `*`, all columns of the source.
    """

    of: str
    action: str
    values: tuple[tuple[str, str], ...] | None = ()
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Merge(Statement):
    """`MERGE INTO table [AS alias] USING source ON condition WHEN ...`.

    `source_text` is a name or a query in brackets, with the alias if it has one; `source` is the name that conditions
    and expressions call it, empty if it has none. `tables_text` is a WITH clause before the statement.
    """

    table: str
    alias: str | None
    source_text: str
    source: str
    condition: str
    clauses: tuple[When, ...]
    tables_text: str = ""

    @property
    def reads(self) -> str:
        """The text that names the relations whose rows it reads, besides the table."""
        conditions = [self.condition, *(one.condition or "" for one in self.clauses)]
        values = [text for one in self.clauses for _, text in one.values or ()]
        return " ".join([self.tables_text, self.source_text, *conditions, *values])


@dataclass(frozen=True, slots=True)
class Drop(Statement):
    """`DROP TABLE | STREAM | VIEW | SINK [IF EXISTS] name`; `kind` is one of the values of `KINDS`."""

    kind: str
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterView(Statement):
    """`ALTER VIEW name AS query`."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """`ADD COLUMN c type`, `DROP COLUMN c`, `RENAME COLUMN c TO d` or `ALTER COLUMN c TYPE type`.

    `action` is `add`, `drop`, `rename` or `type`; `to` the type, with its rules, or the new name. Of `ALTER COLUMN c SET
    DEFAULT e` and the like `action` is `set default`, `drop default`, `set not null` or `drop not null`; `to` the expression.
    """

    action: str
    column: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class AlterColumns(Statement):
    """`ALTER TABLE | STREAM name change`; `ADD COLUMNS (c type, ...)` and `DROP COLUMNS (c, ...)` are several changes at once.

    `if_needed` is for `ADD COLUMN IF NOT EXISTS` and `DROP COLUMN IF EXISTS`.
    """

    kind: str
    name: str
    changes: tuple[ColumnChange, ...]
    if_needed: bool = False


@dataclass(frozen=True, slots=True)
class DropConstraint(Statement):
    """`ALTER STREAM name DROP CONSTRAINT constraint`."""

    name: str
    constraint: str


@dataclass(frozen=True, slots=True)
class ResetWatermark(Statement):
    """`ALTER STREAM name RESET WATERMARK [TO TIMESTAMP '...']`; `to` is None without a moment."""

    name: str
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Retain(Statement):
    """`ALTER STREAM name RETAIN '30 days'`, or `RETAIN ALL`; `interval` is None for all."""

    name: str
    interval: str | None = None


@dataclass(frozen=True, slots=True)
class Show(Statement):
    """`SHOW TABLES | STREAMS | VIEWS | SINKS [LIKE 'pattern']`; `kind` is one of the values of `KINDS`.

    `pattern` is None for all; see `name_pattern`.
    """

    kind: str
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Describe(Statement):
    """`DESCRIBE [TABLE | STREAM | VIEW | SINK] [EXTENDED] name`; `kind` is empty after TABLE, and for any kind."""

    name: str
    kind: str = ""
    extended: bool = False


@dataclass(frozen=True, slots=True)
class DescribeQuery(Statement):
    """`DESCRIBE [QUERY] query`."""

    query: str


@dataclass(frozen=True, slots=True)
class ShowColumns(Statement):
    """`SHOW COLUMNS IN name`."""

    name: str


@dataclass(frozen=True, slots=True)
class ShowCreate(Statement):
    """`SHOW CREATE TABLE | STREAM | VIEW | SINK name`; `kind` is empty after TABLE."""

    name: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """`EXPLAIN [stage] view-or-query`."""

    target_text: str
    stage: str = "dag"


@dataclass(frozen=True, slots=True)
class Select(Statement):
    """Any query, answered as of the last committed epoch."""

    text: str
