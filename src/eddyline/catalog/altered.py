"""The columns of an altered table or stream as its older views see them.

A view keeps the columns that its tables had when it was created, as in PostgreSQL: `SELECT *` doesn't include
columns that were added later. Dropped columns are read as nulls, so that the plans stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eddyline.catalog.entries import Entry

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OPTION = "columns of "  # then the name of the table in lower case


@dataclass(frozen=True, slots=True)
class Seen:
    """The columns of a relation as a view sees them.

    Attributes:
        columns: names and types.
        names: for each its present name in the relation; None for a dropped one.
        key: places of the primary key's columns.
        altered: whether they may differ from the relation's own.
    """

    columns: StructType
    names: tuple[str | None, ...]
    key: tuple[int, ...]
    altered: bool


def seen_by(view: Entry, relation: Entry) -> Seen:
    """Return the columns of a relation as a view sees them."""
    from pyspark.sql.types import StructType

    stored = view.options.get(_OPTION + relation.name.lower())
    columns, names = relation.columns, list(relation.columns.names)
    if stored is not None:
        document = json.loads(stored)
        columns, names = StructType.fromJson(document["schema"]), document["names"]
    key = tuple(names.index(name) for name in relation.key)
    return Seen(columns, tuple(names), key, stored is not None)


def keep_seen(view: Entry, relation: Entry, now: Mapping[str, str | None]) -> Entry:
    """Return a view that still sees the present columns of a relation after an alteration.

    Args:
        now: by present name of a column the new name; None for a dropped one.
    """
    seen = seen_by(view, relation)
    names: Sequence[str | None] = [None if name is None else now[name] for name in seen.names]
    document = {"schema": json.loads(seen.columns.json()), "names": names}
    option = _OPTION + relation.name.lower()
    return replace(view, options={**view.options, option: json.dumps(document)})
