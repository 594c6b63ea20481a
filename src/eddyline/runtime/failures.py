"""What an error says that has come through Spark as text."""

from __future__ import annotations

_TRACEBACK = "Traceback (most recent call last):"


def told_by(error: Exception) -> str:
    """The line that says most: of a Python function, what it has ended with."""
    text = str(error)
    if _TRACEBACK in text:
        python = text.partition(_TRACEBACK)[2].partition("\n\n")[0]
        text = [line for line in python.splitlines() if line[:1].strip()][-1]
    named = [
        line.strip()
        for line in text.splitlines()
        if "eddyline.errors" in line or line.strip().startswith("[")
    ]
    return named[-1] if named else (text.splitlines() or [""])[0]
