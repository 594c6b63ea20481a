"""Help for tests of programs that use Eddyline: offline results to compare with, a sink, and disk faults."""

from eddyline.testing.faults import Crash, FaultyFiles, kill
from eddyline.testing.offline import Offline, PlainTable, Row, replayed
from eddyline.testing.sink import MemorySink

__all__ = ["Crash", "FaultyFiles", "MemorySink", "Offline", "PlainTable", "Row", "kill", "replayed"]
