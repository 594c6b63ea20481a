"""The names of members in a block of JSON objects, found by numpy without decoding the block."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, TypeAlias

import numpy as np

_Positions: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


_AFTER_NAMES = list(b": \t\r")


class Members:
    """The texts of a block of valid JSON objects, one a line, by the positions of their quotes."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._data = np.frombuffer(block, np.uint8)
        self._escapes = _escapes(self._data)
        quotes = self._data == 34
        quotes[self._escapes + 1] = False
        self._quotes: _Positions = np.flatnonzero(quotes)

    def has_escaped_name(self, names: Container[str]) -> bool:
        """Return whether one of these names is written with escapes."""
        if not len(self._escapes):
            return False
        first, last = self._quotes[::2], self._quotes[1::2]
        escaped = np.searchsorted(self._escapes, first) < np.searchsorted(self._escapes, last)
        first, last = first[escaped], last[escaped]
        name = self._are_names(last)
        spans = zip(first[name].tolist(), (last[name] + 1).tolist(), strict=True)
        written = {self._block[slice(*span)] for span in spans}
        return any(json.loads(text) in names for text in written)

    def repeats(self, name: bytes) -> bool:
        """Return whether a line has two members of a name, given with its quotes; inner objects don't count."""
        first, last = self._quotes[::2], self._quotes[1::2]
        fits = last - first == len(name) - 1
        first, last = first[fits], last[fits]
        for place in range(1, len(name) - 1):
            same = self._data[first + place] == name[place]
            first, last = first[same], last[same]
        first = first[self._are_names(last)]
        ends = np.flatnonzero(self._data == 10)
        if (np.diff(np.searchsorted(ends, first)) != 0).all():
            return False
        outer = np.searchsorted(ends, first[self._depths(first) == 1])
        return bool((np.diff(outer) == 0).any())

    def _are_names(self, last: _Positions) -> np.ndarray[Any, Any]:
        """Return which texts, given by their last quotes, are names of members; True in doubt, before a blank."""
        after = self._data[np.minimum(last + 1, len(self._data) - 1)]
        names: np.ndarray[Any, Any] = np.isin(after, _AFTER_NAMES)
        return names

    def _depths(self, at: _Positions) -> np.ndarray[Any, Any]:
        """Return how many objects and arrays are open at some positions."""
        found = np.flatnonzero((self._data & 0xD9) == 0x59)  # a bracket, or one of yY_
        outside = np.searchsorted(self._quotes, found) % 2 == 0
        brackets = found[outside]
        kinds = self._data[brackets] | 0x20
        depths = np.cumsum((kinds == 0x7B).astype(np.int64) - (kinds == 0x7D))
        inner: np.ndarray[Any, Any] = depths[np.searchsorted(brackets, at) - 1]
        return inner


def _escapes(data: np.ndarray[Any, np.dtype[np.uint8]]) -> _Positions:
    """Return the positions of the backslashes that escape the next byte."""
    found = np.flatnonzero(data == 92)
    if not len(found):
        return found
    begins = np.diff(found, prepend=-2) != 1  # of a run of backslashes, every other one escapes
    places = np.arange(len(found))
    run = np.maximum.accumulate(np.where(begins, places, 0))
    escaping: _Positions = found[(places - run) % 2 == 0]
    return escaping
