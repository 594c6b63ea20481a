"""The page script of the web statistics in a real browser, up to the numbers of the views."""

import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import pytest

from eddyline.relay.embedded import LogBackend
from eddyline_apps.webstats.command import create, take_beacons
from eddyline_apps.webstats.inputs import BEACONS, Run, open_streams
from eddyline_apps.webstats.places import define_place
from eddyline_apps.webstats.views import define_key, queries, script, secret_of
from waiting import until

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)

from test_console_pages import browser, chromium  # noqa: E402, F401

pytestmark = pytest.mark.spark

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/149.0.0.0 Safari/537.36"
PAGE = """<!doctype html><title>a page</title><script async src="{script}"></script>
<a href="/b.html?x=1">b</a> <a href="/c.html">c</a>"""


@contextmanager
def pages(address):
    """A site whose pages have the script, and a policy that allows nothing else; yields its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            body = PAGE.format(script=address).encode() if ".html" in self.path else b""
            self.send_response(200 if body else 204)
            stats = address.removesuffix(urlparse(address).path)
            policy = f"default-src 'none'; script-src {stats}; connect-src {stats}"
            self.send_header("Content-Security-Policy", policy)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("localhost", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()


def test_three_pages_in_a_browser_are_three_page_views_of_one_visitor(browser, spark, tmp_path):  # noqa: F811
    import eddyline as el

    storage, run = tmp_path / "storage", Run(sites=("localhost",))
    secret = secret_of(storage)
    with ExitStack() as stack:
        queues = stack.enter_context(ExitStack())
        engine = stack.enter_context(el.Engine(str(storage), spark))
        define_key(engine.spark, secret)
        define_place(engine.spark)
        open_streams(engine, run, storage, queues)
        create(engine, queries(script(run.settings())))
        address = take_beacons(run, storage, secret, stack, ("127.0.0.1", 0))
        site = stack.enter_context(pages(address))
        waiting = LogBackend(storage / BEACONS)

        with browser.window(user_agent=AGENT) as window:
            shown = browser.watched(window.new_page())
            shown.goto(f"{site}/a.html")
            until(lambda: waiting.unread() == 1)
            shown.get_by_role("link", name="b").click()
            until(lambda: waiting.unread() == 2)
            shown.get_by_role("link", name="c").click()
            until(lambda: waiting.unread() == 3)
        for wish in ("doNotTrack: {value: '1'}", "globalPrivacyControl: {value: true}"):
            with browser.window(user_agent=AGENT) as window:
                window.add_init_script(f"Object.defineProperties(navigator, {{{wish}}})")
                shown = browser.watched(window.new_page())
                asked = []
                shown.on("request", lambda request, asked=asked: asked.append(request.url))
                shown.goto(f"{site}/a.html", wait_until="networkidle")
                assert address in asked
                shown.goto("about:blank")
                assert not [url for url in asked if url.endswith("/hit")]
        engine.advance()
        (day,) = engine.sql("SELECT * FROM daily_statistics").collect()
        assert (day.site, day.is_bot, day.page_pv, day.pv, day.uv, day.visits) == (
            "localhost", False, 3, 3, 1, 1,
        )  # fmt: skip
        tops = engine.sql("SELECT kind, value, requests FROM top_values").collect()
        found = {(row.kind, row.value): row.requests for row in tops}
        for path in ("/a.html", "/b.html?x=1", "/c.html"):
            assert found["page", path] == 1
        assert found["entry page", "/a.html"] == found["exit page", "/c.html"] == 1
        assert found["browser", "Chrome"] == found["device", "computer"] == 3
        assert "referrer" not in {kind for kind, _ in found}
        times = engine.sql("SELECT average_s FROM slowest_pages").collect()
        assert len(times) == 3
        assert all(0 < row.average_s < 600 for row in times)
        assert engine.sql("SELECT malformed FROM malformed_count").first().malformed == 0
