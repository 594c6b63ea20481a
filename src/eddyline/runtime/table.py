"""Tables: the driver applies their operations without a Spark job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from eddyline.changes import HASH
from eddyline.runtime.context import EpochContext
from eddyline.runtime.kernel import Kernel
from eddyline.runtime.plans import Reports
from eddyline.source.segment_readers import read_segment
from eddyline.source.segments import Segment
from eddyline.state.kernels import key_hashes
from eddyline.state.retyping import cast_to


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """Applies a table's operations to its rows in the driver, which has received them anyway.

    Attributes:
        kernel: runs the table's one stateful operator.
        buckets: number of buckets; a row's bucket is the hash of its key modulo this number.
        key: columns to hash.
        wire: Arrow schema `seq, op, c0.., w`.
    """

    kernel: Kernel
    buckets: int
    key: tuple[str, ...]
    wire: pa.Schema

    def __call__(self, context: EpochContext, segments: Iterable[Segment]) -> Reports:
        """Apply the operations of some segments of the redo log."""
        files, columns = self.kernel.files, range(len(self.wire) - 3)
        tables = [
            table
            for segment in segments
            for table in read_segment(files, segment, (), columns, self.wire)
        ]
        operations = cast_to(pa.concat_tables(tables), self.wire)
        hashes = key_hashes(operations, self.key)
        operations = operations.add_column(0, HASH, pa.array(hashes))
        reports: list[dict[str, Any]] = []
        of = hashes % self.buckets
        self.kernel.run_all(context, operations, of, self.buckets, reports.append)
        return {self.kernel.part: reports}
