"""The page script of the web statistics in a real browser, up to the numbers of the views."""

import json
import threading
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import pytest

from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import DataQueue
from eddyline_apps.webstats.command import create, take_beacons
from eddyline_apps.webstats.inputs import BEACONS, Run, open_streams
from eddyline_apps.webstats.places import define_place
from eddyline_apps.webstats.views import define_key, queries, script, secret_of
from waiting import PATIENCE_S, until

for needed in ("uvicorn", "jinja2", "prometheus_client"):
    pytest.importorskip(needed)


AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/149.0.0.0 Safari/537.36"
PAGE = """<!doctype html><title>a page</title><script async src="{script}"></script>
<a href="/b.html?x=1">b</a> <a href="/c.html">c</a>"""
NEVER_LOADED = '<img src="/hang">'
EXECUTED = "document.addEventListener('load', e => { window.executed = e.target.src }, true)"
AGAIN = "window.dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))"
PRERENDERING = "Object.defineProperty(document, 'prerendering', {value: true})"
OLD = "delete Request.prototype.keepalive"  # Firefox before 133 hasn't it
HIDDEN = {"Referrer-Policy": "no-referrer"}


@contextmanager
def pages(address, **headers):
    """A site whose pages have the script, and a policy that allows nothing else; yields its address.

    Args:
        headers: more headers of its answers.
    """

    ended = threading.Event()
    stats = address.removesuffix(urlparse(address).path)
    policy = f"default-src 'none'; img-src 'self'; script-src {stats}; connect-src {stats}"

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/hang":
                ended.wait(PATIENCE_S)
                return
            body = PAGE.format(script=address) if ".html" in self.path else ""
            body += NEVER_LOADED * self.path.startswith("/slow")
            self.send_response(200 if body else 204)
            self.send_header("Content-Security-Policy", policy)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("localhost", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            ended.set()
            server.shutdown()


@contextmanager
def left_early(browser, site):
    """A page of a site that was left before it had loaded."""
    with browser.window(user_agent=AGENT) as window:
        window.add_init_script(EXECUTED)
        shown = browser.watched(window.new_page())
        shown.goto(f"{site}/slow.html", wait_until="commit")
        until(lambda: shown.evaluate("window.executed"))  # the policy forbids wait_for_function
        shown.goto("about:blank")
        yield


def test_pages_that_hide_their_address_are_counted(browser, tmp_path):
    run, waiting, kinds = Run(sites=("localhost",)), LogBackend(tmp_path / BEACONS), []
    with ExitStack() as stack:
        address = take_beacons(run, tmp_path, "0" * 32, stack, ("127.0.0.1", 0))
        sandboxed = {"Content-Security-Policy": "sandbox allow-scripts"}
        site, opaque = (stack.enter_context(pages(address, **more)) for more in (HIDDEN, sandboxed))
        path = urlparse(address).path
        own = f"{address.replace('127.0.0.1', 'localhost').removesuffix(path)}/own.html"

        def own_page(route):
            body = PAGE.format(script=path)
            route.fulfill(body=body, content_type="text/html", headers=HIDDEN)

        def asked(request):
            if request.url.endswith("/hit"):
                kinds.append(request.resource_type)

        def window(script=""):
            window = stack.enter_context(browser.window())
            window.add_init_script(script)
            shown = window.new_page()
            shown.on("request", asked)
            shown.route(own, own_page)
            return shown

        browser.watched(shown := window()).goto(f"{site}/a.html")
        until(lambda: waiting.unread() == 1)
        with left_early(browser, site):
            until(lambda: waiting.unread() == 2)
        shown.goto(own)  # of the same origin as the endpoint
        until(lambda: waiting.unread() == 3)
        browser.watched(shown := window(OLD))
        shown.goto(f"{site}/old.html")
        until(lambda: waiting.unread() == 4)
        browser.watched(shown := window(PRERENDERING)).goto(
            f"{site}/c.html", wait_until="networkidle"
        )
        assert waiting.unread() == 4
        shown.evaluate("document.dispatchEvent(new Event('prerenderingchange'))")
        until(lambda: waiting.unread() == 5)
        for page in (f"{site.replace('localhost', '127.0.0.1')}/a.html", f"{opaque}/a.html"):
            shown = window()
            with shown.expect_console_message(lambda line: "CORS" in line.text):
                shown.goto(page)
    assert kinds == ["fetch", "fetch", "ping", "fetch", "fetch", "fetch"]
    with closing(DataQueue(waiting)) as queue:
        _, records = queue.read(1000)
        paths = [json.loads(one)["path"] for one in records["payload"].to_pylist()]
    assert paths == ["/a.html", "/slow.html", "/own.html", "/old.html", "/c.html"]


@pytest.mark.spark
def test_pages_in_a_browser_are_page_views_of_its_visitor(browser, spark, tmp_path):
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
            shown.evaluate(
                AGAIN
            )  # from the browser's cache of pages, which is off under its driver
            until(lambda: waiting.unread() == 4)
        with left_early(browser, site):
            until(lambda: waiting.unread() == 5)
        with browser.window(user_agent=AGENT) as window:
            shown = browser.watched(window.new_page())
            shown.goto(f"{site}/a.html")
            until(lambda: waiting.unread() == 6)
            for move in (
                "pushState({}, '', '/app/2?tab=x')",
                "pushState({}, '', '#part')",
                "back()",
                "back()",
            ):
                shown.evaluate(f"history.{move}")  # '#part' and its way back lead to no other page
            until(lambda: waiting.unread() == 8)
            shown.evaluate("history.replaceState({}, '', '/elsewhere')")
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
        # the beacon of the page that was left comes without the user agent that the driver has set: HeadlessChrome
        days = engine.sql("SELECT * FROM daily_statistics ORDER BY is_bot").collect()
        figures = [(day.site, day.is_bot, day.page_pv, day.pv, day.uv, day.visits) for day in days]
        assert figures == [("localhost", False, 7, 7, 1, 1), ("localhost", True, 1, 1, 1, 1)]
        visits = engine.sql("SELECT entry_page, exit_page, page_pv FROM visits").collect()
        assert sorted(map(tuple, visits)) == [
            ("/a.html", "/a.html", 7),
            ("/slow.html", "/slow.html", 1),
        ]
        values = engine.sql("SELECT kind, value, requests FROM day_values WHERE NOT is_bot")
        found = {(row.kind, row.value): row.requests for row in values.collect()}
        for path, views in (
            ("/a.html", 3),
            ("/b.html?x=1", 1),
            ("/c.html", 2),
            ("/app/2?tab=x", 1),
        ):
            assert found["page", path] == views
        assert found["browser", "Chrome"] == found["device", "computer"] == 7
        assert "referrer" not in {kind for kind, _ in found}
        times = engine.sql("SELECT path, requests, average_s FROM slowest_pages").collect()
        assert sorted((row.path, row.requests) for row in times) == [
            ("/a.html", 2), ("/b.html?x=1", 1), ("/c.html", 1),
        ]  # fmt: skip
        assert all(0 < row.average_s < 600 for row in times)
        assert engine.sql("SELECT malformed FROM malformed_count").first().malformed == 0
