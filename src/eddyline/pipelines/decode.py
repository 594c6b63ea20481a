"""The bolt that decodes the JSON documents of records."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from eddyline.relay.bolts import Emitted
from eddyline.relay.calls import failure_reason
from eddyline.relay.records import PAYLOAD
from eddyline.source.json import decode_documents


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode the payloads of records, as a vectorised bolt.

    Missing members are null; members without a column are ignored; of repeated ones the last counts. A
    record fails if its payload is no JSON object, or has a value that doesn't fit its column's type.

    Attributes:
        schema: columns and types.
        zone: time zone of timestamps without an offset.
    """

    schema: pa.Schema
    zone: str

    def __call__(self, records: pa.Table) -> Emitted:
        """Return a row for each decoded record, and the errors of the others, by index."""
        rows, errors = decode_documents(records[PAYLOAD], self.schema, self.zone)
        return Emitted(
            rows, failed={place: failure_reason(error) for place, error in errors.items()}
        )
