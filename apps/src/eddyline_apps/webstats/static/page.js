// Eddyline: one beacon a page view: path, referrer, load time in ms. No cookie, no id.
(function (d, n, w) {
  "use strict";
  if (n.doNotTrack === "1" || w.doNotTrack === "1" || n.globalPrivacyControl || !n.sendBeacon) return;
  var to = new URL("hit", d.currentScript.src), sent;
  function send(again) {
    if (sent && !again) return;
    sent = 1;
    var t = performance.getEntriesByType("navigation")[0], l = location;
    n.sendBeacon(to, JSON.stringify({
      path: l.pathname + l.search,
      referrer: d.referrer,
      ms: again || !t ? 0 : Math.round(t.loadEventStart)
    }));
  }
  function start() {
    if (d.readyState === "complete") send();
    else w.addEventListener("load", function () { send(); });
    w.addEventListener("pagehide", function () { send(); });
    w.addEventListener("pageshow", function (e) { if (e.persisted) send(1); });
  }
  if (d.prerendering) d.addEventListener("prerenderingchange", start, { once: true });
  else start();
})(document, navigator, window);
