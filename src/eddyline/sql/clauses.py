"""Clauses of other systems' CREATE TABLE and CREATE VIEW, which are refused with a way out."""

from __future__ import annotations

from eddyline.sql.lexer import TokenCursor

_PARTS = "leave it out: rows are divided into buckets by their keys"
_FILES = "leave it out: all data is in the folder of the engine"

CLAUSES = {
    "CLUSTER": _PARTS,
    "CLUSTERED": _PARTS,
    "COMMENT": "leave it out, or write it as -- a comment of SQL",
    "DISTRIBUTED": _PARTS,
    "LOCATION": _FILES,
    "PARTITIONED": _PARTS,
    "REFRESH": "leave it out: a view is always up to date with the last committed epoch",
    "SCHEDULE": "leave it out: a view is always up to date with the last committed epoch",
    "STORED": _FILES,
    "TBLPROPERTIES": "leave it out: settings are given as Options or EDDYLINE_* variables",
    "USING": "leave it out; CREATE STREAM ... USING reads other systems' data",
}
"""Clauses of other systems after the name and columns of a table or view, each with a way out."""


def refuse_clauses(cursor: TokenCursor, kind: str) -> None:
    """Raise ScriptError if one of `CLAUSES` follows.

    Args:
        kind: `TABLE` or `VIEW`.
    """
    word = cursor.word()
    if word in CLAUSES:
        after = cursor.word(1) if cursor.word(1) in ("BY", "AS") else ""
        cursor.refuse(f"{word} {after}".strip() + f" of a {kind}", CLAUSES[word])
