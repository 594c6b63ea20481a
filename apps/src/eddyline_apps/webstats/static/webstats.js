// The curves of the dashboard, drawn again with each epoch.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const strokes = ["--link", "--slow", "--focus"];
  const made = new Map();
  const width = (place) => Math.max(place.clientWidth, 200);

  const draw = (place, curve) => {
    const data = [curve.x, ...curve.series.map((one) => one.values)];
    if (made.has(place)) {
      made.get(place).setData(data);
      return;
    }
    const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const byDay = place.dataset.curve.includes("by=day");
    made.set(place, new uPlot({
      width: width(place),
      height: 180,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: byDay } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      axes: [{ ...axis }, { ...axis, size: 60 }],
      series: [{ label: byDay ? "day" : "hour" }, ...curve.series.map((one, i) => ({
        label: one.label,
        stroke: color(strokes[i]),
        width: 2,
        dash: one.label === "the day before" ? [4, 4] : undefined,
        points: { show: data[0].length < 40 },
      }))],
    }, data, place));
    place.dataset.drawn = "true";
  };

  const load = async () => {
    for (const place of document.querySelectorAll("[data-curve]")) {
      const answer = await fetch(place.dataset.curve).catch(() => null);
      if (answer && answer.ok) draw(place, await answer.json());
    }
  };
  load();
  document.body.addEventListener("epoch", load);
  window.addEventListener("resize", () => {
    for (const [place, plot] of made) plot.setSize({ width: width(place), height: 180 });
  });
});
