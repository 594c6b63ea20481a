"""The columns of a stream's log, which keep their places when the columns of the stream are altered.

A log stores columns by place; the source knows them by the names that they had when they were added to the
stream. Once a column is dropped or renamed, an option of the stream stores places and names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eddyline.catalog.entries import LATER, LEFT, LOGGED, Entry

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType


@dataclass(frozen=True, slots=True)
class Logged:
    """The columns of a log.

    Attributes:
        columns: by place, under the names of the source. The metadata has `LEFT` for a dropped column, and
            `LATER` for one that was added to a stream of operations later.
        places: the place of each column of the stream; the reason of late rows comes last.
    """

    columns: StructType
    places: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, by place."""
        return tuple(self.columns.names)


def logged(stream: Entry) -> Logged:
    """Return the columns of a stream's log."""
    from pyspark.sql.types import StructType

    columns, stored = stream.columns, stream.options.get(LOGGED)
    if stored is None:
        return Logged(columns, tuple(range(len(columns))))
    document = json.loads(stored)
    held, places = StructType.fromJson(document["schema"]), tuple(document["places"])
    if stream.gives_reasons:
        held, places = StructType([*held, columns[-1]]), (*places, len(held))
    return Logged(held, places)


def as_source(stream: Entry) -> Entry:
    """Return a stream for its source: with the columns of the log, and without the engine's own options."""
    log, names = logged(stream), stream.columns.names

    def own(name: str) -> str:
        return log.names[log.places[names.index(name)]] if name else ""

    return replace(
        stream,
        schema=log.columns.json(),
        key=tuple(map(own, stream.key)),
        event_time=own(stream.event_time),
        options=stream.source_options,
    )


def with_fields(stream: Entry, fields: Sequence[tuple[StructField, str | None]]) -> Entry:
    """Return a stream with other columns.

    Args:
        fields: the columns, each with its old name; None for a new one.
    """
    from pyspark.sql.types import StructField, StructType

    before, names = logged(stream), stream.columns.names
    held: list[StructField] = []
    for place, field in enumerate(before.columns):
        name = field.name if LEFT in field.metadata else f"left {place} {field.name}"
        held.append(StructField(name, field.dataType, metadata={**field.metadata, LEFT: True}))
    places = []
    for field, old in fields:
        if old is None:
            places.append(len(held))
            later = {LATER: True} if stream.operation else {}
            held.append(StructField(field.name, field.dataType, metadata=later))
        else:
            place = before.places[names.index(old)]
            places.append(place)
            known = before.columns[place]
            held[place] = StructField(known.name, field.dataType, metadata=known.metadata)
    schema = StructType([field for field, _ in fields])
    options = {name: text for name, text in stream.options.items() if name != LOGGED}
    if held != schema.fields or places != list(range(len(held))):
        document = {"schema": json.loads(StructType(held).json()), "places": places}
        options[LOGGED] = json.dumps(document)
    return replace(stream, schema=schema.json(), options=options)
