// A beacon a page view. It is served without its comments, indentation and line ends.
((d, n, l, h) => {
  if ((n.doNotTrack || self.doNotTrack) === "1" || n.globalPrivacyControl || !n.sendBeacon) return;
  let to = new URL("hit", d.currentScript.src), on = addEventListener, push = h.pushState, sent;
  let path = () => l.pathname + l.search, moved = () => sent === path() || send(l.href);
  let send = (referrer, ms) => {
    let body = JSON.stringify({ path: sent = path(), referrer, ms });
    // requests of mode "cors", unlike beacons, name their origin under any Referrer-Policy
    "keepalive" in Request.prototype
      ? fetch(to, { method: "POST", body, keepalive: true, credentials: "omit" }).catch(() => 0)
      : n.sendBeacon(to, body);
  };
  let first = () => {
    let [t] = performance.getEntriesByType("navigation");
    if (!sent) send(d.referrer, t && t.loadEventStart);
  };
  let start = () => {
    d.readyState === "complete" ? first() : on("load", first);
    on("pagehide", first);
    on("popstate", moved);
    on("pageshow", e => e.persisted && send(d.referrer));
    h.pushState = (...args) => { first(); push.apply(h, args); moved(); };
  };
  d.prerendering ? on("prerenderingchange", start, true) : start();
})(document, navigator, location, history);
