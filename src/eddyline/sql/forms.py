"""The statements of scripts as plain data; `statements.py` parses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from eddyline.sql.cdc import ChangeFlow
from eddyline.sql.expectations import Expectation


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
    """`CREATE [OR REPLACE] [MATERIALIZED | LIVE] VIEW name (expectations) AS query`."""

    kind: ClassVar[str] = "view"
    name: str
    query: str
    replace: bool = False
    if_not_exists: bool = False
    expectations: tuple[Expectation, ...] = ()


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
class Insert(Statement):
    """`INSERT INTO table (columns) VALUES ...` or a query; `columns` is None for all, in order."""

    table: str
    columns: tuple[str, ...] | None
    query_text: str


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """`DELETE FROM table [AS alias] WHERE condition`; `where_text` is None for every row."""

    table: str
    where_text: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """`UPDATE table [AS alias] SET column = expression, ... WHERE condition`; None updates every row."""

    table: str
    assignments: tuple[tuple[str, str], ...]
    where_text: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Drop(Statement):
    """`DROP TABLE | STREAM | VIEW | SINK [IF EXISTS] name`; `kind` is one of the values of `KINDS`."""

    kind: str
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterColumn(Statement):
    """`ALTER TABLE name ADD COLUMN c type`, `DROP COLUMN c`, `RENAME COLUMN c TO d`, `ALTER COLUMN c TYPE type`.

    `action` is `add`, `drop`, `rename` or `type`; `to` the type, with its rules, or the new name. Of `ALTER COLUMN c SET
    DEFAULT e` and the like `action` is `set default`, `drop default`, `set not null` or `drop not null`; `to` the expression.
    """

    kind: str
    name: str
    action: str
    column: str
    to: str = ""


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
    """`SHOW TABLES | STREAMS | VIEWS | SINKS`; `kind` is one of the values of `KINDS`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """`EXPLAIN [stage] view-or-query`."""

    target_text: str
    stage: str = "dag"


@dataclass(frozen=True, slots=True)
class Select(Statement):
    """Any query, answered as of the last committed epoch."""

    text: str
