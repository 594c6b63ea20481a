"""Results of benchmarks as plain data, for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def figures(value: object) -> Any:
    """Return a result as mappings, lists, texts and numbers; numbers that are none (NaN) become None.

    Example:
        >>> from eddyline_bench.measure import Cost
        >>> figures({"sides": (Cost(1.5, float("nan")),)})
        {'sides': [{'seconds': 1.5, 'cpu_seconds': None}]}

    Raises:
        TypeError: it holds something else.
    """
    if is_dataclass(value):
        return {field.name: figures(getattr(value, field.name)) for field in fields(value)}
    match value:
        case Mapping():
            return {str(key): figures(one) for key, one in value.items()}
        case list() | tuple():
            return [figures(one) for one in value]
        case np.ndarray() | np.generic():
            return figures(value.tolist())
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a result holds a value of {type(value)}")
