"""Releases the objects of the JVM that Python has dropped: many with one call.

Py4J sends a command for each of them, from a thread of its own. A view's plan is thousands of objects, and
these commands were more than half of all while it was compiled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID, Py4JError

from eddyline.spark.jvm import lost_jvm

_LOG = logging.getLogger("eddyline.spark")

PAUSE_S = 0.2
"""Between two looks for dropped objects."""

_LASTING = (ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID)
"""What Python may drop and find again: the JVM keeps it as long as it runs."""


class Releases(threading.Thread):
    """Releases what a client of Py4J has dropped, until the client ends.

    Args:
        client: Py4J's `JavaClient`, whose queue of dropped objects this thread reads from now on.
        trees: an object of `Trees.java`.
    """

    def __init__(self, client: Any, trees: Any) -> None:
        super().__init__(name="eddyline-releases", daemon=True)
        self._trees = trees
        self._before, self._dropped = client.finalizer_deque, deque[Any]()
        client.finalizer_deque = self._dropped

    def run(self) -> None:
        """Release what was dropped, a few times a second. What a call has failed for isn't released."""
        ended = False
        while not ended:
            time.sleep(PAUSE_S)
            ids = []
            while self._dropped:
                dropped = self._dropped.pop()
                if not isinstance(dropped, tuple):  # the client ends: its own thread, too
                    self._before.appendleft(dropped)
                    ended = True
                elif dropped[1] not in _LASTING:
                    ids.append(dropped[1])
            try:
                if ids:
                    self._trees.release(" ".join(ids))
            except (Py4JError, OSError) as error:
                if lost_jvm(error) is not None:
                    return
                _LOG.warning("%d objects of the JVM stay there: %s", len(ids), error)


def release_together(client: Any, trees: Any) -> None:
    """Begin to release the objects that a client drops by few calls, unless it is done already.

    Does nothing if the client has no queue of dropped objects: it was then told to release none, or each at once.

    Args:
        client, trees: see `Releases`.
    """
    if isinstance(getattr(client, "finalizer_deque", None), deque) and not hasattr(
        client, "eddyline_releases"
    ):
        client.eddyline_releases = Releases(client, trees)
        client.eddyline_releases.start()
