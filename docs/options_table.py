"""Write the table of options in docs/operations.md from the code. `make docs` runs it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from eddyline.options import Options

PAGE = Path(__file__).with_name("operations.md")
TABLE = re.compile(r"(?<=<!-- options -->\n\n).*?(?=\n\n<!-- end of options -->)", re.DOTALL)


def options_table() -> str:
    """The options as a Markdown table."""
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    for item in fields(Options):
        limits = item.metadata
        if "choices" in limits:
            values = ", ".join(f"`{choice}`" for choice in limits["choices"])
        elif "least" in limits:
            values = f"{limits['least']:,} to {limits['most']:,}"
        else:
            values = "text"
        default = f"`{item.default}`" if item.default != "" else "empty"
        lines.append(f"| `{item.name}` | {default} | {values} | {limits['help']} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The text of the page with the table as the code says."""
    return TABLE.sub(lambda _: options_table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
