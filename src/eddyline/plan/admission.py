"""The expectations of a stream of operations: which change records are applied, and what is stored of rejected ones.

Records that insert or update a row are checked. Deletes are not, because they often have only the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from eddyline.changes import APPEND, OPERATION, REJECTED, SEQUENCE, WEIGHT
from eddyline.operators.base import numbered
from eddyline.sql.expectations import DEAD_LETTER, Expectation
from eddyline.sql.names import literal, quoted


def with_rejected(
    operations: DataFrame, names: Sequence[str], rules: Sequence[Expectation]
) -> DataFrame:
    """Mark operations (`seq, op, c0.., w`) as `REJECTED` if they append a row that violates a rule.

    Args:
        names: of the columns, which the conditions use.
        rules: those that keep rows out.
    """
    named, own = _named(operations, names)
    kinds = (
        f"CASE WHEN {own}.{OPERATION} <> '{APPEND}' THEN {own}.{OPERATION} "
        f"WHEN {_met(rules)} THEN {own}.{OPERATION} ELSE '{REJECTED}' END AS {OPERATION}"
    )
    values = [f"{quoted(name)} AS c{place}" for place, name in enumerate(names)]
    return named.selectExpr(
        f"{own}.{SEQUENCE} AS {SEQUENCE}", kinds, *values, f"{own}.{WEIGHT} AS {WEIGHT}"
    )


def kept_out(
    operations: DataFrame, names: Sequence[str], rules: Sequence[Expectation]
) -> DataFrame:
    """Return the rejected appends among operations, as operations on the stream of rejected records.

    Two columns follow those of the row: the names of the violated rules with DEAD LETTER as a text, null for
    none, and the names of all violated rules. A row has its values only if a rule with DEAD LETTER is violated;
    otherwise they are null, so that equal rejections become one row with a count.

    Args:
        names: of the columns, which the conditions use.
        rules: those that keep rows out.
    """
    named, own = _named(operations, names)
    violating = named.where(
        f"CASE WHEN {own}.{OPERATION} <> '{APPEND}' THEN false WHEN {_met(rules)} THEN false ELSE true END"
    )
    columns = numbered("c", len(names) + 2)
    reason, violated = columns[-2:]
    letters = [one for one in rules if one.action == DEAD_LETTER]
    found = violating.selectExpr(
        "*",
        f"nullif(concat_ws(', ', {_names(letters) or 'NULL'}), '') AS `{own} reason`",
        f"array_compact(CAST(array({_names(rules)}) AS ARRAY<STRING>)) AS `{own} violated`",
    )
    values = [
        f"CASE WHEN `{own} reason` IS NOT NULL THEN {quoted(name)} END AS c{place}"
        for place, name in enumerate(names)
    ]
    return found.selectExpr(
        f"{own}.{SEQUENCE} AS {SEQUENCE}",
        f"{own}.{OPERATION} AS {OPERATION}",
        *values,
        f"`{own} reason` AS {reason}",
        f"`{own} violated` AS {violated}",
        f"{own}.{WEIGHT} AS {WEIGHT}",
    )


def _named(operations: DataFrame, names: Sequence[str]) -> tuple[DataFrame, str]:
    """Return operations with the columns' names, and the name of a struct with the others."""
    own = "eddyline"
    while any(name.lower().startswith(own) for name in names):
        own += "_"
    values = [f"c{place} AS {quoted(name)}" for place, name in enumerate(names)]
    return operations.selectExpr(
        f"struct({SEQUENCE}, {OPERATION}, {WEIGHT}) AS {own}", *values
    ), own


def _met(rules: Sequence[Expectation]) -> str:
    return " AND ".join(f"({one.condition}\n)" for one in rules) or "true"


def _names(rules: Sequence[Expectation]) -> str:
    return ", ".join(f"CASE WHEN {one.violated} THEN {literal(one.name)} END" for one in rules)
