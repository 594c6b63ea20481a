"""Finds out whether anything in the JVM can still run a DataFrame."""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

_NODE, _HELD = "MapInArrow", "LogicalRDD"


class FrameReference:
    """A weak reference to the Python function that a DataFrame runs.

    All DataFrames derived from it, views of a session over it, cached copies and running jobs share that
    function, so it lives as long as any of them. A reference to the DataFrame itself wouldn't show that.

    If the function can't be found in the plan, it counts as alive. A DataFrame that holds its rows runs none.

    Args:
        frame: a `mapInArrow`, or rows that it holds, below nodes with one child each.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._reference = None
        self._held = False
        # PySpark has no public way to the plan; its nodes are those of this version of Spark
        with suppress(Py4JError):
            node = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
            while (name := node.nodeName()) not in (_NODE, _HELD):
                node = node.child()
            if name == _HELD:
                self._held = True
                return
            function = node.expressions().head().func()
            jvm = frame.sparkSession.sparkContext._jvm  # noqa: SLF001
            self._reference = jvm.java.lang.ref.WeakReference(function)  # type: ignore[union-attr]

    def alive(self) -> bool:
        """Whether the JVM may still run the function."""
        if self._held:
            return False
        try:
            return self._reference is None or not self._reference.refersTo(None)
        except (Py4JError, OSError):  # the JVM has ended
            return False
