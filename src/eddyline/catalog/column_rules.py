"""The rules of a table's columns in its catalog entry: NOT NULL, CHAR(n) and VARCHAR(n), DEFAULT.

They concern rows that are written. Plans and stored rows know nothing of them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from eddyline.catalog.entries import Entry
from eddyline.source.row_rules import RowRules, lengths_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

RULES = "column rules"
"""Option of a table; those of older versions lack it."""
VALUES = "default values"
"""Option of a table: the values of the defaults that are the same at any time."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The rules of one column.

    Attributes:
        not_null: whether each row needs a value.
        default: the expression after DEFAULT; empty for none.
        type: the declared type as Spark writes it in JSON, if it has lengths of texts; else None.
    """

    not_null: bool = False
    default: str = ""
    type: Any = None


NO_RULE = ColumnRule()


def rules_of(table: Entry) -> dict[str, ColumnRule]:
    """Return the rules of the columns that have some, by name."""
    stored = json.loads(table.options.get(RULES, "{}"))
    return {name: ColumnRule(**rule) for name, rule in stored.items()}


def with_rules(table: Entry, rules: Mapping[str, ColumnRule]) -> Entry:
    """Return a table with other rules.

    Columns of the primary key are never null, with and without NOT NULL.
    """
    own = {
        name: replace(rules[name], not_null=rules[name].not_null and name not in table.key)
        for name in table.columns.names
        if name in rules
    }
    kept = {
        name: {word: value for word, value in asdict(rule).items() if value}
        for name, rule in own.items()
        if rule != NO_RULE
    }
    options = {name: text for name, text in table.options.items() if name != VALUES}
    return replace(table, options={**options, RULES: json.dumps(kept)})


def same_rules(table: Entry, present: Entry) -> bool:
    """Return whether a definition has the rules of the present table; one of an older version is the same as any."""
    return RULES not in present.options or rules_of(table) == rules_of(present)


def without_rules(table: Entry) -> Entry:
    """Return a table without its rules, to compare the rest."""
    own = {name: text for name, text in table.options.items() if name not in (RULES, VALUES)}
    return replace(table, options=own)


def with_values(table: Entry, values: pa.Table) -> Entry:
    """Return a table with the values of its defaults.

    Args:
        values: one row, with a column for each default that is the same at any time.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, values.schema) as stream:
        stream.write_table(values)
    text = base64.b64encode(sink.getvalue().to_pybytes()).decode("ascii")
    return replace(table, options={**table.options, VALUES: text})


def row_rules(table: Entry) -> RowRules | None:
    """Return the rules for rows that are written into a table; None if it has none."""
    rules = rules_of(table)
    if not rules:
        return None
    values = table.options.get(VALUES)
    known = pa.ipc.open_stream(base64.b64decode(values)).read_all() if values else None
    evaluated = known.column_names if known is not None else ()
    return RowRules(
        tuple(name for name, rule in rules.items() if rule.not_null),
        tuple(one for name, rule in rules.items() for one in lengths_of(name, rule.type)),
        known,
        tuple(n for n, rule in rules.items() if rule.default and n not in evaluated),
    )


def declared_columns(table: Entry) -> StructType:
    """Return the columns of a table; those that are NOT NULL aren't nullable."""
    from pyspark.sql.types import StructField, StructType

    rules = rules_of(table)
    return StructType(
        [
            StructField(f.name, f.dataType, not rules.get(f.name, NO_RULE).not_null, f.metadata)
            for f in table.columns
        ]
    )


def declared_type(column: StructField, rule: ColumnRule) -> DataType:
    """Return the type with which a column was declared: it is stored as STRING if that is VARCHAR(n)."""
    from pyspark.sql.types import _parse_datatype_json_value

    return _parse_datatype_json_value(rule.type) if rule.type else column.dataType
