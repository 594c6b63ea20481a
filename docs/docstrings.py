"""An extension of griffe: docstrings say `Example:`, which it knows only as `Examples:`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Let the examples of docstrings show as code."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rename the section of one docstring, before it is parsed."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
