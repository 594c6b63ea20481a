"""Draw docs/demo.svg: a terminal with what the demo printed. `make docs-picture` runs both.

It reads the demo's output from standard input. Each line has a fixed width (`textLength`), so columns
are aligned in whatever monospaced font the reader's machine has.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

PICTURE = Path(__file__).with_name("demo.svg")
COMMAND = "make demo ARGS='--lines 30000'"
END = "are equal to offline Spark."
CUT = "  ..."

CHARACTER, LINE, MARGIN, BAR = 7.2, 17, 18, 34
BACKGROUND, FRAME, TEXT = "#10202b", "#0a161e", "#cfdde4"
GREEN, GREY, TEAL = "#6fd08c", "#7a93a0", "#57c7c1"
STYLES = (
    (re.compile(r"^\$ .*"), TEAL),
    (re.compile(r"^[ -]*-{3,}[ -]*$"), GREY),
    (re.compile(r"equal$|^All \d+ views.*"), GREEN),
    (re.compile(r"epoch +\d+ in +[\d.]+ s"), TEAL),
)


def shown(output: str) -> list[str]:
    """The lines of the picture: the output, without the examples of malformed lines."""
    lines, cut = [f"$ {COMMAND}"], False
    for line in output.rstrip().splitlines():
        if line.startswith("  line "):
            lines += [] if cut else [CUT]
            cut = True
        else:
            lines.append(line.rstrip())
    return lines


def spans(line: str) -> list[tuple[str, str]]:
    """Pieces of a line with the colour of each."""
    for pattern, colour in STYLES:
        found = pattern.search(line)
        if found:
            start, end = found.span()
            pieces = [(line[:start], TEXT), (line[start:end], colour), (line[end:], TEXT)]
            return [piece for piece in pieces if piece[0]]
    return [(line, TEXT)]


def drawn(lines: list[str]) -> str:
    """The lines as SVG."""
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = BAR + 2 * MARGIN + LINE * len(lines)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="12">',
        "<title>Output of eddyline demo in a terminal</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<path d="M0 {BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{BAR}Z" fill="{FRAME}"/>',
    ]
    for place, colour in enumerate(("#e0605e", "#dfb44f", "#6fbf73")):
        svg.append(f'<circle cx="{20 + 18 * place}" cy="{BAR / 2:g}" r="5.5" fill="{colour}"/>')
    for row, line in enumerate(lines):
        if line:
            length = f"{CHARACTER * len(line):g}"
            pieces = "".join(f'<tspan fill="{c}">{escape(t)}</tspan>' for t, c in spans(line))
            svg.append(
                f'<text x="{MARGIN}" y="{BAR + MARGIN + LINE * row + 12}" xml:space="preserve"'
                f' textLength="{length}" lengthAdjust="spacingAndGlyphs">{pieces}</text>'
            )
    return "\n".join([*svg, "</svg>"]) + "\n"


def main() -> None:
    """Draw what standard input holds, if the demo came to its good end."""
    output = sys.stdin.read()
    if not output.rstrip().endswith(END):
        sys.exit(f"no picture: the demo's output doesn't end with {END!r}")
    PICTURE.write_text(drawn(shown(output)), encoding="utf-8")


if __name__ == "__main__":
    main()
