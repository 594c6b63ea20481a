"""The last step of a pipeline: rows of bolts become rows of its stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from eddyline.errors import DataError
from eddyline.source.user_rows import as_arrow


@dataclass(frozen=True, slots=True)
class Fit:
    """The last step of a pipeline: converts rows to the columns of the stream.

    Attributes:
        schema: the columns of the stream, without `_received_at`.
        name: name of the pipeline, for errors.
        zone: time zone of the session.
    """

    schema: pa.Schema
    name: str
    zone: str

    def __call__(self, rows: Any) -> pa.Table:
        """Return the rows as a table.

        Raises:
            DataError: a row doesn't fit.
        """
        try:
            return as_arrow(rows, self.schema, relation=self.name, zone=self.zone)
        except DataError as error:
            raise error.concerning(pipeline=self.name) from error
