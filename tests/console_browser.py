"""Chromium for tests of the console; the fixtures `chromium` and `browser` are in conftest.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(__file__).parents[1] / "build" / "console"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 240_000


@contextmanager
def launched() -> Iterator[Any]:
    """A running Chromium; the test is skipped if there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("there is no Chromium: `make chromium` installs it from apt")
    with playwright.sync_playwright() as running:
        # the sandbox needs rights that root and containers lack; only pages of this test are opened
        browser = running.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=WAIT_MS
        )
        yield browser
        browser.close()


class Browser:
    """Chromium, driven by a script; remembers what pages complain of."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium
        self.complaints: list[str] = []

    def window(self, **settings: Any) -> Any:
        """Return a window of its own, without a page."""
        given = {"viewport": {"width": 1200, "height": 800}, **settings}
        context = self.chromium.new_context(**given)
        context.set_default_timeout(WAIT_MS)
        return context

    @contextmanager
    def open(self, address: str, **settings: Any) -> Iterator[Any]:
        """Open a page in a window of its own, and wait until it is live."""
        context = self.window(**settings)
        shown = self.watched(context.new_page())
        shown.goto(address)
        shown.locator("#connection", has_text="live").wait_for()
        try:
            yield shown
        finally:
            context.close()

    def watched(self, shown: Any) -> Any:
        """Return a page of whose complaints this browser takes note."""
        shown.on("console", lambda line: self.complain(line.type, line.text))
        shown.on("pageerror", lambda error: self.complain("error", str(error)))
        shown.on("dialog", lambda dialog: self.complain("error", f"a dialog: {dialog.message}"))
        return shown

    def complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)


def picture(shown: Any, name: str, **settings: Any) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    shown.screenshot(path=PICTURES / f"{name}.png", **settings)
