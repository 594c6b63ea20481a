"""Tables: the driver applies their operations without a Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from eddyline.changes import HASH
from eddyline.runtime.context import EpochContext
from eddyline.runtime.kernel import Kernel
from eddyline.runtime.plans import Reports
from eddyline.runtime.sizes import bytes_of
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

    def __call__(self, context: EpochContext, segments: Sequence[Segment]) -> Reports:
        """Apply the operations of some segments of the redo log.

        Operations that take more than a slice of memory are read several times, each time for some of the buckets: of
        one bucket all are in memory at once.
        """
        files, reports = self.kernel.files, list[dict[str, Any]]()
        size = sum(bytes_of(files, segment) for segment in segments)
        passes = min(-(-size // self.kernel.slice_bytes) or 1, self.buckets)
        for number in range(passes):
            read = self._read(segments)
            if passes == 1:
                delta = self._hashed(pa.concat_tables(read))
            else:
                parts = map(self._hashed, read)
                delta = pa.concat_tables(
                    part.filter(pa.array(self._buckets(part) % passes == number)) for part in parts
                )
            if delta.num_rows:
                of = self._buckets(delta)
                self.kernel.run_all(context, delta, of, self.buckets, reports.append)
        return {self.kernel.part: reports}

    def _hashed(self, operations: pa.Table) -> pa.Table:
        return operations.add_column(0, HASH, pa.array(key_hashes(operations, self.key)))

    def _buckets(self, hashed: pa.Table) -> np.ndarray:
        found: np.ndarray = hashed[HASH].to_numpy() % self.buckets
        return found

    def _read(self, segments: Sequence[Segment]) -> Iterator[pa.Table]:
        columns = range(len(self.wire) - 3)
        for segment in segments:
            for table in read_segment(self.kernel.files, segment, (), columns, self.wire):
                yield cast_to(table, self.wire)
