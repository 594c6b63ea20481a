// Eddyline: a beacon a page view. No cookie, no id.
((d, n, l, h) => {
  if ((n.doNotTrack || self.doNotTrack) === "1" || n.globalPrivacyControl || !n.sendBeacon) return;
  let to = new URL("hit", d.currentScript.src), on = addEventListener, push = h.pushState, sent;
  let path = () => l.pathname + l.search;
  let send = (referrer, ms) =>
    n.sendBeacon(to, JSON.stringify({ path: sent = path(), referrer, ms }));
  let first = () => {
    let [t] = performance.getEntriesByType("navigation");
    if (!sent) send(d.referrer, t && Math.round(t.loadEventStart));
  };
  let moved = () => sent === path() || send(l.href);
  let start = () => {
    d.readyState === "complete" ? first() : on("load", first);
    on("pagehide", first);
    on("popstate", moved);
    on("pageshow", e => e.persisted && send(d.referrer));
    h.pushState = (...args) => { first(); push.apply(h, args); moved(); };
  };
  d.prerendering ? d.addEventListener("prerenderingchange", start) : start();
})(document, navigator, location, history);
