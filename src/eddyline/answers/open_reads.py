"""Retains the epochs that DataFrames of an engine read, as long as the DataFrames exist."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pyspark.sql import DataFrame

from eddyline.changes import Epoch
from eddyline.spark.lifetime import FrameReference
from eddyline.state.leases import Leases
from eddyline.storage.files import Files


@dataclass(slots=True)
class _Epoch:
    """The readers of an epoch: DataFrames, until they are gone or expired, and calls that are making some.

    Attributes:
        frames: the DataFrames, each with its expiry by `time.monotonic`.
        calls: number of calls.
    """

    frames: list[tuple[FrameReference, float]]
    calls: int = 0


class OpenReads:
    """Leases for the DataFrames of an engine.

    A call that is making DataFrames retains its epoch as long as it takes, in a process that only reads, too.

    Args:
        seconds: how long a DataFrame retains its epoch at most.
    """

    def __init__(self, files: Files, seconds: float) -> None:
        self._leases = Leases(files)
        self._seconds = seconds
        self._open: dict[Epoch, _Epoch] = {}
        self._lock = threading.Lock()

    def begin(self, epoch: Epoch) -> bool:
        """Retain an epoch until `end`; return False if it is gone already."""
        self.sweep()
        with self._lock:
            if not self._leases.hold(epoch, untimed=True):
                return False
            self._open.setdefault(epoch, _Epoch([])).calls += 1
            return True

    def keep(self, epoch: Epoch, frame: DataFrame) -> DataFrame:
        """Retain an epoch until a DataFrame, and all that are derived from it, are gone; return the DataFrame.

        A DataFrame that holds its rows needs no epoch.
        """
        reference = FrameReference(frame)
        if reference.alive():
            with self._lock:
                until = time.monotonic() + self._seconds
                self._open[epoch].frames.append((reference, until))
        return frame

    def end(self, epoch: Epoch) -> None:
        """End a call that began with `begin`."""
        with self._lock:
            self._open[epoch].calls -= 1
            if not self._open[epoch].calls:
                self._leases.begin_time(epoch)

    def sweep(self) -> None:
        """Release the oldest epochs that nothing reads any more."""
        with self._lock:
            for epoch in sorted(self._open):
                reads = self._open[epoch]
                while reads.frames and not self._reads(*reads.frames[-1]):
                    reads.frames.pop()
                if reads.frames or reads.calls:
                    return  # all later ones stay with it
                del self._open[epoch]
                self._leases.release(epoch)

    def _reads(self, reference: FrameReference, until: float) -> bool:
        return time.monotonic() < until and reference.alive()
