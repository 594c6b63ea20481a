"""The vocabulary of changes that all layers share: columns, operations, and kinds of numbers and ids."""

from __future__ import annotations

from typing import NewType

Epoch = NewType("Epoch", int)
"""The number of an epoch, from 1; 0 is the empty storage."""

BucketId = NewType("BucketId", int)
"""The number of a bucket of the state."""

ViewId = NewType("ViewId", str)
"""The id of a view in the catalog, such as `v3`; it is never given to another view."""

HASH = "h"  # 64-bit hash of the key, an index only
BUCKET = "bucket"  # the bucket of the state that a row belongs to
WEIGHT = "w"  # signed count of a row: +n append, -n delete
SEQUENCE = "seq"  # order of the operations on a table
OPERATION = "op"

APPEND = "append"
DELETE = "delete"
REPLACED = "replaced"
"""The operation of a row as it was before an update, in a stream with a key: its after-image follows."""

REJECTED = "rejected"
"""The operation of a row that an expectation keeps out; a log never has it."""

INSERT = "insert"
BEFORE, AFTER = "update_preimage", "update_postimage"
"""With `DELETE`, the values of `_change_type` in the change feeds of Spark and Delta."""

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
"""The columns that change feeds add: the kind of change, the epoch, and when that was committed."""
