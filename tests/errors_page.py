"""Writes docs/errors.md from the table of error conditions: `make docs`."""

from __future__ import annotations

from pathlib import Path

from eddyline.errors import CONDITIONS

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """\
# Error conditions

Every error of Eddyline is an `EddylineError` with a `condition`, a stable name for programs to decide
on; its message adds what is concerned and a way out. `error.fault` says what has to change: the code
or the call (`user`), rows of the input (`data`), the machine or another system (`environment`), or
Eddyline itself (`bug`). `error.retryable` says whether the same call can succeed later although the
caller changes nothing.

`make docs` writes this page from `CONDITIONS` in `src/eddyline/errors.py`.

| condition | fault | retry helps | meaning, and what to do |
|---|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    rows = (
        f"| `{name}` | {known.fault} | {'yes' if known.retryable else 'no'} | {known.meaning} |\n"
        for name, known in sorted(CONDITIONS.items())
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
