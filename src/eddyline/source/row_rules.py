"""The rules for rows that are appended to a table: NOT NULL, lengths of texts, and defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eddyline.errors import DataError

Step = str | int
ELEMENT, KEY, VALUE = 0, 1, 2
"""Steps into an array and a map; a text is a step into a field of a struct."""
_NAMES = ("element", "key", "value")


@dataclass(frozen=True, slots=True)
class Length:
    """How many characters the texts of a column have at most.

    Attributes:
        column: its name.
        path: the steps from the column to the texts within it; empty for a column of texts.
        kind: `CHAR` or `VARCHAR`.
        most: the number of characters.
    """

    column: str
    path: tuple[Step, ...]
    kind: str
    most: int

    def exceeded(self, column: pa.ChunkedArray) -> tuple[int, int]:
        """Return how many texts of a column are longer, and the length of the longest; zeros for none."""
        lengths = pc.utf8_length(_within(column.combine_chunks(), self.path))
        longest = pc.max(lengths).as_py() or 0
        if longest <= self.most:
            return 0, 0
        return pc.sum(pc.greater(lengths, self.most)).as_py(), longest

    def error(self, count: int, longest: int, relation: str) -> DataError:
        """Return the error for texts that are longer."""
        where = "".join(f".{one if isinstance(one, str) else _NAMES[one]}" for one in self.path)
        longer = "a text has" if count == 1 else f"{count} texts have more, the longest"
        return DataError(
            f"column {self.column}{where} is {self.kind}({self.most}), and {longer} {longest} characters",
            condition="TOO_LONG",
            table=relation,
            hint=f"cut them, as with left({self.column}, {self.most}), or ALTER TABLE {relation} ALTER COLUMN "
            f"{self.column} TYPE with a larger length; nothing was written",
        )


@dataclass(frozen=True, slots=True)
class RowRules:
    """What rows must meet, and what they get in columns that they don't give.

    Attributes:
        required: columns that must not be null.
        lengths: of texts.
        defaults: one row: for columns with a DEFAULT their values; None if there are none.
        unknown: columns whose DEFAULT only an engine evaluates, for each statement; in an engine none.
    """

    required: tuple[str, ...] = ()
    lengths: tuple[Length, ...] = ()
    defaults: pa.Table | None = None
    unknown: tuple[str, ...] = ()

    @property
    def default_names(self) -> list[str]:
        """The columns of which the default is known."""
        return [] if self.defaults is None else self.defaults.column_names

    def default(self, name: str, kind: pa.DataType) -> pa.Scalar | None:
        """Return the value of a column that rows don't give; None without a DEFAULT."""
        if self.defaults is None or name not in self.defaults.column_names:
            return None
        return self.defaults[name].cast(kind)[0]

    def default_values(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the defaults as Python values, by column."""
        values = {n: self.default(n, schema.field(n).type) for n in self.default_names}
        return {name: value.as_py() for name, value in values.items() if value is not None}

    def check_given(self, names: Collection[str], relation: str) -> None:
        """Raise DataError if rows lack a column that they must give.

        Args:
            names: the columns that they give.
        """
        lacking = [name for name in self.unknown if name not in names]
        if lacking:
            raise DataError(
                f"the rows lack column {', '.join(lacking)}, whose DEFAULT depends on the time",
                condition="NULL_VALUE",
                table=relation,
                hint="only the engine evaluates it: give the column, as with "
                f'.withColumn("{lacking[0]}", expr("current_timestamp()")), or write with engine.table',
            )
        known = {*names, *self.default_names}
        lacking = [name for name in self.required if name not in known]
        if lacking:
            raise DataError(
                f"the rows lack column {', '.join(lacking)}, which is NOT NULL and has no DEFAULT",
                condition="NULL_VALUE",
                table=relation,
                hint=f"give it a value, or ALTER TABLE {relation} ALTER COLUMN {lacking[0]} SET DEFAULT ...; "
                "nothing was written",
            )

    def check(self, rows: pa.Table, relation: str) -> None:
        """Raise DataError if rows break a rule; they have all columns."""
        for name in self.required:
            if nulls := rows[name].null_count:
                raise DataError(
                    f"column {name} is NOT NULL, and null in {in_rows(nulls)}",
                    condition="NULL_VALUE",
                    table=relation,
                    hint=f"give every row a value, or ALTER TABLE {relation} ALTER COLUMN {name} DROP NOT NULL; "
                    "nothing was written",
                )
        for length in self.lengths:
            count, longest = length.exceeded(rows[length.column])
            if count:
                raise length.error(count, longest, relation)


def filled(value: pa.Scalar | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with the same value in all rows; None for null."""
    if value is None or not count:
        return pa.nulls(count, kind)
    return pa.repeat(value.cast(kind), count)


def in_rows(count: int) -> str:
    """Return a number of rows for a message."""
    return "1 row" if count == 1 else f"{count} rows"


def lengths_of(column: str, kind: object, path: Sequence[Step] = ()) -> Iterable[Length]:
    """Yield the lengths that a type has.

    Args:
        kind: the type as Spark writes it in JSON.
    """
    if isinstance(kind, str):
        name, _, most = kind.rstrip(")").partition("(")
        if name in ("char", "varchar"):
            yield Length(column, tuple(path), name.upper(), int(most))
    elif isinstance(kind, dict) and kind["type"] == "array":
        yield from lengths_of(column, kind["elementType"], [*path, ELEMENT])
    elif isinstance(kind, dict) and kind["type"] == "map":
        yield from lengths_of(column, kind["keyType"], [*path, KEY])
        yield from lengths_of(column, kind["valueType"], [*path, VALUE])
    elif isinstance(kind, dict) and kind["type"] == "struct":
        for field in kind["fields"]:
            yield from lengths_of(column, field["type"], [*path, field["name"]])


def _within(column: pa.Array, path: Sequence[Step]) -> pa.Array:
    """Return the values within a column of arrays, maps or structs."""
    for step in path:
        if step == ELEMENT:
            column = pc.list_flatten(column)
        elif step in (KEY, VALUE):
            entries = column.cast(
                pa.list_(pa.struct([("k", column.type.key_type), ("v", column.type.item_type)]))
            )
            column = pc.struct_field(pc.list_flatten(entries), 0 if step == KEY else 1)
        else:
            column = pc.struct_field(column, step)
    return column
