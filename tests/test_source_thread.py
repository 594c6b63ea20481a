"""The background thread of a source."""

from __future__ import annotations

import pytest

from eddyline.source.source_thread import SourceThread
from waiting import until


class Panic(BaseException):
    """What libraries in Rust raise for a fault of theirs: it is no Exception."""


@pytest.mark.parametrize("raised", [ValueError("bad"), Panic("index out of bounds")])
def test_whatever_ends_the_thread_is_raised_by_the_next_look(raised: BaseException) -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise raised

    thread = SourceThread("source s", work)
    with pytest.raises(Exception, match=str(raised)):
        until(thread.run_in_background)  # a look doesn't wait long for the thread
    assert len(calls) == 1
