"""ALTER TABLE and the rules of columns: NOT NULL, DEFAULT and lengths of texts after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from eddyline.api.altered_columns import (
    ADD,
    DROP,
    RENAME,
    TYPE,
    Fields,
    changed_columns,
    declared_column,
    stored_columns,
    wrong,
)
from eddyline.api.column_defaults import evaluated
from eddyline.api.workspace import Workspace
from eddyline.catalog.column_rules import (
    NO_RULE,
    RULES,
    ColumnRule,
    row_rules,
    rules_of,
    with_rules,
)
from eddyline.catalog.entries import TABLE, Entry
from eddyline.errors import DataError
from eddyline.source.row_rules import Length, in_rows
from eddyline.spark.schema import arrow_schema
from eddyline.sql.forms import ColumnChange

SET_NOT_NULL, DROP_NOT_NULL = "set not null", "drop not null"
SET_DEFAULT, DROP_DEFAULT = "set default", "drop default"
"""Actions of `ColumnChange` that change only rules."""

_OF_RULES = (SET_NOT_NULL, DROP_NOT_NULL, SET_DEFAULT, DROP_DEFAULT)


def is_of_rules(table: Entry, change: ColumnChange) -> bool:
    """Return whether a change of a column leaves its type as it is stored, as `TYPE VARCHAR(20)` does of a text."""
    if change.action != TYPE:
        return change.action in _OF_RULES
    kinds = {field.name.lower(): field.dataType for field in table.columns}
    declared, _ = declared_column(table, change.column, change.to)
    return kinds.get(change.column.lower()) == declared.dataType


def changed_rules(table: Entry, change: ColumnChange) -> dict[str, ColumnRule]:
    """Return the rules of a table's columns after a change.

    Raises:
        DataError: BAD_SCHEMA, UNKNOWN_COLUMN: the column isn't there, or can't have the rule.
    """
    rules = rules_of(table)
    if change.action == ADD:
        _, rule = declared_column(table, change.column, change.to)
        if rule.not_null and not rule.default:
            raise wrong(
                table,
                f"a new column {change.column} would be null in the rows that are there, and is NOT NULL",
                f"ADD COLUMN {change.column} {change.to} DEFAULT ...; or add it without NOT NULL, fill it with UPDATE, and "
                f"then ALTER COLUMN {change.column} SET NOT NULL",
            )
        return {**rules, change.column: rule}
    name = _name(table, change.column)
    rule = rules.get(name, NO_RULE)
    if change.action == DROP:
        return {known: one for known, one in rules.items() if known != name}
    if change.action == RENAME:
        return {change.to if known == name else known: one for known, one in rules.items()}
    if change.action == TYPE:
        _, given = declared_column(table, name, change.to)
        if given.not_null or given.default:
            raise wrong(
                table,
                f"ALTER COLUMN {name} TYPE takes a type only",
                f"ALTER COLUMN {name} SET NOT NULL, or SET DEFAULT, in a statement of its own",
            )
        return {**rules, name: replace(rule, type=given.type)}
    if change.action == DROP_NOT_NULL and name in table.key:
        raise wrong(
            table,
            f"column {name} is part of the primary key, which is never null",
            "create a table with another key, and INSERT INTO it SELECT from this one",
        )
    changed = {
        SET_NOT_NULL: replace(rule, not_null=True),
        DROP_NOT_NULL: replace(rule, not_null=False),
        SET_DEFAULT: replace(rule, default=change.to),
        DROP_DEFAULT: replace(rule, default=""),
    }
    return {**rules, name: changed[change.action]}


def changed(
    relation: Entry, changes: Sequence[ColumnChange]
) -> tuple[Fields, tuple[str, ...], dict[str, ColumnRule]]:
    """Return the columns of a table or stream after some changes, one after the other; the key, and the rules of a table.

    Raises:
        DataError: as from `changed_columns` and `changed_rules`.
    """
    fields: Fields = [(field, field.name) for field in relation.columns]
    rules: dict[str, ColumnRule] = {}
    for change in changes:
        after, key = changed_columns(relation, change)
        names = {field.name: before for field, before in fields}
        fields = [(field, None if name is None else names[name]) for field, name in after]
        schema = StructType([field for field, _ in fields]).json()
        rules = changed_rules(relation, change) if relation.kind == TABLE else {}
        relation = with_changed(replace(relation, schema=schema, key=key), rules)
    return fields, relation.key, rules


def needed(relation: Entry, changes: Sequence[ColumnChange]) -> list[ColumnChange]:
    """Return the changes without those that add a column which is there, or drop one which isn't."""
    known = {name.lower() for name in relation.columns.names}
    return [one for one in changes if (one.column.lower() in known) is (one.action == DROP)]


def with_changed(table: Entry, rules: Mapping[str, ColumnRule]) -> Entry:
    """Return a table with the rules after a change; one of an older version stays without, if there are none."""
    if RULES not in table.options and all(rule == NO_RULE for rule in rules.values()):
        return table
    return with_rules(table, rules)


def is_stricter(altered: Entry, table: Entry) -> bool:
    """Return whether rows that met the rules of a table can break those of an altered one."""
    rules, before = row_rules(altered), row_rules(table)
    if rules is None:
        return False
    required, lengths = (before.required, before.lengths) if before is not None else ((), ())
    known = {(one.column, one.path): one.most for one in lengths}
    return not set(rules.required) <= set(required) or any(
        known.get((one.column, one.path), one.most + 1) > one.most for one in rules.lengths
    )


def check_stored(workspace: Workspace, table: Entry, altered: Entry) -> None:
    """Raise DataError if rows of a table break the rules of an altered one; it says how many."""
    rules = row_rules(altered)
    if rules is None:
        return
    kinds = arrow_schema(table.columns, workspace.zone)
    nulls: Counter[str] = Counter()
    longer: dict[Length, tuple[int, int]] = {}
    for own in stored_columns(workspace, table, table.columns.names, kinds):
        rows = pa.table(own, schema=kinds)
        nulls.update({name: rows[name].null_count for name in rules.required})
        for one in rules.lengths:
            count, longest = one.exceeded(rows[one.column])
            before = longer.get(one, (0, 0))
            longer[one] = before[0] + count, max(before[1], longest)
    hint = f"change these rows first: UPDATE {table.name} SET ...; nothing was altered"
    for name, count in nulls.items():
        if count:
            raise DataError(
                f"column {name} can't be NOT NULL: it is null in {in_rows(count)}",
                condition="NULL_VALUE",
                table=table.name,
                hint=hint,
            )
    for one, (count, longest) in longer.items():
        if count:
            message = one.error(count, longest, table.name).message
            raise DataError(message, condition="TOO_LONG", table=table.name, hint=hint)


def new_values(
    altered: Entry, fields: Fields, session: Callable[[], SparkSession]
) -> dict[str, pa.Scalar]:
    """Return the values that the rows which are there get in new columns; null in those that aren't named."""
    rules = rules_of(altered)
    added = [field.name for field, before in fields if before is None]
    given = [name for name in added if rules.get(name, NO_RULE).default]
    if not given:
        return {}
    values = evaluated(altered, given, session())
    return {name: values[name][0] for name in values.column_names}


def _name(table: Entry, column: str) -> str:
    """Return the name of a column in the spelling of the table."""
    for name in table.columns.names:
        if name.lower() == column.lower():
            return name
    raise DataError(
        f"there is no column {column}",
        condition="UNKNOWN_COLUMN",
        table=table.name,
        hint=f"the columns are {', '.join(table.columns.names)}",
    )
