// What the pages of the console need beside htmx: live epochs, the changes of a view, and charts.
// Values from the storage are only ever set as text.
"use strict";

const SHOWN_CHANGES = 200;
const PAUSE_MS = 1000;
const SLIDE_MS = 200;
const PLOTTED_BARS = 50;
const LABEL_LENGTH = 20;
const PROPOSED = 8;
const IDLE_S = 2;
const BATCHES_MS = 5000;
const KEYWORDS = "SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT JOIN LEFT ON AS AND OR NOT IN IS NULL BETWEEN LIKE CASE WHEN THEN ELSE END DISTINCT UNION ALL WITH OVER PARTITION VERSION OF count sum avg min max coalesce".split(" ");

function follow() {
  const connection = document.getElementById("connection");
  if (!connection) return;
  const shown = document.getElementById("epoch");
  let last = Number(shown.textContent);
  let waiting = false;
  const tell = () => {
    waiting = false;
    if (document.hidden) return;
    document.body.dispatchEvent(new CustomEvent("epoch"));
  };
  const later = () => {
    if (!waiting) {
      waiting = true;
      setTimeout(tell, PAUSE_MS);
    }
  };
  const events = new EventSource("/api/events");
  events.addEventListener("open", () => {
    connection.textContent = "live";
    connection.className = "";
  });
  events.addEventListener("error", () => {
    connection.textContent = "connection lost, trying again";
    connection.className = "lost";
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 3 * PAUSE_MS);
  });
  events.addEventListener("epoch", (event) => {
    const epoch = JSON.parse(event.data).epoch;
    if (epoch === last) return;
    last = epoch;
    shown.textContent = epoch;
    later();
  });
  document.addEventListener("visibilitychange", later);
}

// a part that is replaced keeps the focus and how far its tables were scrolled
function steady() {
  const focusable = () => [...document.querySelectorAll("#live a[href], #live button, #live [tabindex='0']")];
  const scrolled = () => [...document.querySelectorAll("#live .scroll")];
  let focused = -1;
  let places = [];
  document.body.addEventListener("htmx:beforeSwap", () => {
    focused = focusable().indexOf(document.activeElement);
    places = scrolled().map((box) => box.scrollLeft);
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    scrolled().forEach((box, i) => (box.scrollLeft = places[i] || 0));
    if (focused >= 0) focusable()[focused]?.focus({ preventScroll: true });
  });
}

// the slider over the epochs that are kept: rows as of one of them; the last one is live
function travel() {
  const slider = document.getElementById("slider");
  if (!slider) return;
  const form = slider.form;
  const shown = document.getElementById("slider-at");
  let epochs = [];
  let later = 0;
  const chosen = () => epochs[Number(slider.value)];
  const last = () => Number(slider.value) === epochs.length - 1;
  const tell = () => {
    const one = chosen();
    const time = one.committed_at ? `, ${one.committed_at.slice(0, 19).replace("T", " ")} UTC` : "";
    shown.textContent = `${one.epoch}${time}${last() ? ", the last one, live" : ""}`;
    slider.setAttribute("aria-valuetext", `epoch ${shown.textContent}`);
  };
  const load = async () => {
    const answer = await fetch(slider.dataset.url).catch(() => null);
    if (!answer || !answer.ok) return;
    const found = (await answer.json()).epochs;
    if (!found.length) return;
    // the slider may have been moved since the request was sent
    const at = epochs.length && !last() ? String(chosen().epoch) : form.elements.epoch.value;
    const place = found.findIndex((one) => String(one.epoch) === at);
    epochs = found;
    slider.max = epochs.length - 1;
    slider.value = place < 0 ? epochs.length - 1 : place;
    document.getElementById("travel").hidden = false;
    tell();
  };
  const show = () => {
    form.elements.epoch.value = last() ? "" : chosen().epoch;
    const given = [...new FormData(form)].filter(([, value]) => value !== "");
    const query = new URLSearchParams(given).toString();
    const address = location.pathname + (query ? `?${query}` : "");
    history.replaceState(null, "", address);
    htmx.ajax("GET", address, { target: "#live", select: "#live", swap: "outerHTML" });
  };
  slider.addEventListener("input", () => {
    tell();
    clearTimeout(later);
    later = setTimeout(show, SLIDE_MS);
  });
  slider.addEventListener("pointerenter", load);
  slider.addEventListener("focus", load);
  load();
}

// finds boxes of the graph by name; the browser's own search finds no name that is cut
function find() {
  const field = document.getElementById("find");
  if (!field) return;
  const shown = document.getElementById("found");
  const boxes = () => [...document.querySelectorAll("#live .graph a")];
  let current = "";
  const key = (box) => `${box.getAttribute("href")} ${box.dataset.name}`;
  // mark what is found; return it, and the place of the current one
  const mark = () => {
    const wanted = field.value.trim().toLowerCase();
    const found = boxes().filter((box) => wanted && box.dataset.name.toLowerCase().includes(wanted));
    const place = Math.max(found.findIndex((box) => key(box) === current), 0);
    const all = new Set(found);
    document.querySelector("#live .graph")?.classList.toggle("finding", wanted !== "");
    for (const box of boxes()) {
      box.classList.toggle("found", all.has(box));
      box.classList.toggle("current", box === found[place]);
    }
    const text = found.length ? `${place + 1} of ${found.length}: ${found[place].dataset.name}` : wanted && "none";
    if (shown.textContent !== text) shown.textContent = text; // else it would be read out again
    return [found, place];
  };
  const go = (steps) => {
    const [found, place] = mark();
    if (!found.length) return;
    current = key(found[(place + steps + found.length) % found.length]);
    mark();
    document.querySelector("#live .graph .current").scrollIntoView({ block: "center", inline: "center" });
  };
  const open = () => {
    const box = document.querySelector("#live .graph .current");
    if (box) location.assign(box.getAttribute("href"));
  };
  field.addEventListener("input", () => {
    current = "";
    const query = field.value.trim() ? `?${new URLSearchParams({ find: field.value.trim() })}` : "";
    history.replaceState(null, "", location.pathname + query);
    go(0);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      field.value = "";
      field.dispatchEvent(new Event("input"));
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) open();
      else go(event.shiftKey ? -1 : 1);
    }
  });
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(1);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    event.preventDefault();
    field.select();
  });
  document.body.addEventListener("htmx:afterSwap", mark);
  go(0);
}

// when a request is answered, the page shows what has changed
function answered() {
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id !== "asked") return;
    const request = document.getElementById("request");
    if (request && request.dataset.state !== "waiting") document.body.dispatchEvent(new CustomEvent("epoch"));
  });
}

function cell(row, text, name) {
  const made = row.insertCell();
  if (text === null) {
    const nothing = document.createElement("i");
    nothing.className = "null";
    nothing.textContent = "NULL";
    made.append(nothing);
  } else {
    made.textContent = text;
  }
  if (name) made.className = name;
}

function changes() {
  const table = document.getElementById("changes-table");
  if (!table) return;
  const state = document.getElementById("changes-state");
  const body = table.tBodies[0];
  let count = 0;
  const events = new EventSource(table.dataset.url);
  events.addEventListener("changes", (event) => {
    const data = JSON.parse(event.data);
    for (const values of data.changes.slice(-SHOWN_CHANGES)) {
      const row = body.insertRow(0);
      const op = values[values.length - 1];
      row.className = `new ${op === "append" ? "append" : "delete"}`;
      if (!data.last) row.dataset.part = data.epoch;
      cell(row, data.epoch, "n");
      cell(row, op);
      values.slice(0, -1).forEach((value) => cell(row, value));
    }
    if (data.last) body.querySelectorAll("tr[data-part]").forEach((row) => delete row.dataset.part);
    while (body.rows.length > SHOWN_CHANGES) body.deleteRow(-1);
    count += data.changes.length;
    state.textContent = `${count.toLocaleString("en")} since this page was opened; the last ${SHOWN_CHANGES} are shown`;
  });
  // an epoch of which the lost connection has only brought a part comes again as a whole
  events.addEventListener("error", () => body.querySelectorAll("tr[data-part]").forEach((row) => row.remove()));
  events.addEventListener("expired", (event) => {
    state.textContent = `changes before epoch ${JSON.parse(event.data).epoch} were missed`;
  });
  events.addEventListener("gone", () => {
    state.textContent = "there is no such table or view any more";
    events.close();
  });
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const axis = () => ({ stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } });

const STROKES = ["--link", "--slow", "--good", "--dim"];

// draws and redraws the charts of a box, by their names; the first of the labels and columns is that of x
function drawing(box) {
  const made = {};
  const width = (name) => Math.max(box.querySelector(`[data-chart="${name}"]`).clientWidth, 200);
  window.addEventListener("resize", () => {
    for (const name of Object.keys(made)) made[name].setSize({ width: width(name), height: 180 });
  });
  return (name, labels, data, settings = {}) => {
    if (made[name] && made[name].series.length === labels.length) {
      made[name].setData(data);
      return;
    }
    made[name]?.destroy();
    made[name] = new uPlot({
      width: width(name),
      height: 180,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false } },
      axes: [axis(), { ...axis(), size: 60 }],
      series: [{ label: labels[0] }, ...labels.slice(1).map((label, i) => ({ label, stroke: color(STROKES[i]), width: 2, points: { show: data[0].length < 60 } }))],
      ...settings,
    }, data, box.querySelector(`[data-chart="${name}"]`));
  };
}

function charts() {
  const box = document.getElementById("charts");
  if (!box || !window.uPlot) return;
  const draw = drawing(box);
  const load = async () => {
    const answer = await fetch(box.dataset.url).catch(() => null);
    if (!answer || !answer.ok) return;
    const epochs = await answer.json();
    const numbers = epochs.map((one) => one.batchId);
    draw("changes", ["epoch", "changes"], [numbers, epochs.map((one) => one.sink.numOutputRows)]);
    const times = epochs.map((one) => Date.parse(one.timestamp) / 1000);
    const gaps = times.map((time, i) => (i ? time - times[i - 1] : null));
    const work = epochs.map((one) => ("triggerExecution" in one.durationMs ? one.durationMs.triggerExecution / 1000 : null));
    draw("seconds", ["epoch", "since the last", "work"], [numbers, gaps, work]);
  };
  load();
  document.body.addEventListener("epoch", load);
}

// the last batches of a pipeline: a line for each lane, of many lanes the smallest, middle and largest window
function batches(box) {
  const draw = drawing(box);
  const utc = { scales: { x: { time: true } }, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") };
  const load = async () => {
    const answer = await fetch(box.dataset.url).catch(() => null);
    if (!answer || !answer.ok) return;
    const points = [];
    for (const one of (await answer.json()).points) {
      const at = Date.parse(one.at) / 1000;
      const last = points[points.length - 1];
      // nothing is in flight between batches
      if (last && at - one.seconds - last.at > IDLE_S) {
        points.push({ ...last, at: last.at + 1, in_flight: 0 }, { ...last, at: at - one.seconds, in_flight: 0 });
      }
      points.push({ ...one, at });
    }
    if (!points.length) return;
    const times = points.map((one) => one.at);
    const lanes = Math.max(...points.map((one) => one.window_rows.length));
    const each = [...Array(lanes).keys()];
    if (lanes <= STROKES.length) {
      draw("windows", ["time", ...each.map((lane) => `lane ${lane}`)], [times, ...each.map((lane) => points.map((one) => one.window_rows[lane] ?? null))], utc);
    } else {
      const sorted = points.map((one) => [...one.window_rows].sort((a, b) => a - b));
      const at = (share) => sorted.map((windows) => windows[Math.round(share * (windows.length - 1))]);
      draw("windows", ["time", "smallest", "middle", "largest"], [times, at(0), at(0.5), at(1)], utc);
    }
    draw("flight", ["time", "records"], [times, points.map((one) => one.in_flight)], utc);
  };
  load();
  document.body.addEventListener("epoch", load);
  setInterval(load, BATCHES_MS);
}

function pipelines() {
  if (window.uPlot) document.querySelectorAll(".charts[data-url$='/history']").forEach(batches);
}

function ask() {
  const form = document.getElementById("ask");
  if (!form) return;
  const asking = document.getElementById("asking");
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  // the server cancels a query when its request is aborted
  document.getElementById("cancel").addEventListener("click", () => htmx.trigger(form, "htmx:abort"));
  form.addEventListener("htmx:beforeRequest", () => (asking.hidden = false));
  form.addEventListener("htmx:afterRequest", () => (asking.hidden = true));
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "result") plot();
  });
  complete(document.getElementById("sql"), document.getElementById("proposed"));
  plot();
}

// names that begin as the word before the cursor: columns behind the name of a relation and a dot, else everything
function complete(editor, list) {
  const relations = new Map([...document.querySelectorAll(".names li")].map((one) => [
    one.querySelector("b").textContent,
    [...one.querySelectorAll("small span")].map((column) => column.textContent),
  ]));
  const all = [...new Set([...relations.keys(), ...[...relations.values()].flat(), ...KEYWORDS])];
  let active = -1;
  let start = 0;
  const close = () => {
    list.hidden = true;
    active = -1;
    editor.removeAttribute("aria-activedescendant");
  };
  const mark = (place) => {
    active = place;
    [...list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === place)));
    editor.setAttribute("aria-activedescendant", list.children[place].id);
  };
  const insert = (name) => {
    const quoted = /^[A-Za-z_]\w*$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``;
    editor.setRangeText(quoted, start, editor.selectionStart, "end");
    close();
  };
  const propose = () => {
    close();
    const at = editor.selectionStart;
    if (at !== editor.selectionEnd || /^\w/.test(editor.value.slice(at))) return;
    const [, qualifier, word] = /(?:([\p{L}_][\p{L}\p{N}_]*)\.)?([\p{L}_][\p{L}\p{N}_]*)?$/u.exec(editor.value.slice(0, at));
    const typed = (word ?? "").toLowerCase();
    if (!typed && !qualifier) return;
    const columns = [...relations].find(([name]) => qualifier && name.toLowerCase() === qualifier.toLowerCase())?.[1];
    const found = (columns ?? all).filter((name) => name.toLowerCase().startsWith(typed) && name.toLowerCase() !== typed).slice(0, PROPOSED);
    if (!found.length || (!typed && !columns)) return;
    start = at - typed.length;
    list.replaceChildren(...found.map((name, i) => {
      const one = document.createElement("li");
      one.id = `proposed-${i}`;
      one.setAttribute("role", "option");
      one.textContent = name;
      // the editor keeps the focus
      one.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        insert(name);
      });
      return one;
    }));
    list.hidden = false;
  };
  editor.addEventListener("input", propose);
  editor.addEventListener("blur", close);
  editor.form.addEventListener("submit", close);
  editor.addEventListener("keydown", (event) => {
    if (list.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const count = list.children.length;
    if (event.key === "ArrowDown") mark((active + 1) % count);
    else if (event.key === "ArrowUp") mark((active <= 0 ? count : active) - 1);
    else if (event.key === "Tab" && !event.shiftKey) insert(list.children[Math.max(active, 0)].textContent);
    else if (event.key === "Enter" && active >= 0) insert(list.children[active].textContent);
    else {
      // any other key moves the cursor, or types
      if (event.key === "Escape" || event.key.startsWith("Arrow") || event.key === "Enter") close();
      return;
    }
    event.preventDefault();
  });
}

// an answer with numbers as a plot: lines over numbers and times, bars over anything else
function plot() {
  const table = document.getElementById("answer");
  const place = document.getElementById("plot");
  if (!table || !window.uPlot) return;
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((one) => (one.querySelector("i.null") ? null : one.textContent)));
  const numeric = heads.map((head, i) => (head.className === "n" ? i : -1)).filter((i) => i >= 0);
  const timed = rows.every((row) => row[0] === null || /^\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?)?$/.test(row[0]));
  const named = !timed && numeric[0] !== 0;
  const shown = numeric.filter((i) => i > 0).slice(0, named ? 2 : 4);
  if (rows.length < 2 || !shown.length) return;
  const at = (row, i) => {
    if (named) return i;
    return timed ? Date.parse(`${row[0].replace(" ", "T")}${row[0].includes(":") ? "Z" : ""}`) / 1000 : Number(row[0]);
  };
  const known = (named ? rows.slice(0, PLOTTED_BARS) : rows.filter((row) => row[0] !== null)).map((row, i) => [at(row, i), row]);
  if (!named) known.sort((a, b) => a[0] - b[0]);
  const columns = shown.map((i) => known.map(([, row]) => (row[i] === null ? null : Number(row[i]))));
  const strokes = STROKES.map(color);
  const label = (i) => {
    const text = known[i] ? known[i][1][0] ?? "NULL" : "";
    return text.length > LABEL_LENGTH ? `${text.slice(0, LABEL_LENGTH)}…` : text;
  };
  place.hidden = false;
  place.querySelector("figcaption").textContent = named && rows.length > PLOTTED_BARS ? `the first ${PLOTTED_BARS} rows` : "";
  new uPlot({
    width: Math.max(place.clientWidth, 200),
    height: 240,
    cursor: { drag: { x: false, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time: timed, ...(named ? { range: [-0.5, known.length - 0.5] } : {}) }, y: named ? { range: (_, least, most) => [Math.min(0, least), Math.max(0, 1.05 * most)] } : {} },
    axes: [{ ...axis(), ...(named ? { values: (_, splits) => splits.map((i) => (Number.isInteger(i) ? label(i) : "")) } : {}) }, { ...axis(), size: 70 }],
    series: [
      { label: heads[0].textContent, ...(named ? { value: (_, i) => (i === null ? "" : label(i)) } : {}) },
      ...shown.map((i, n) => ({
        label: heads[i].textContent,
        stroke: strokes[n],
        width: 2,
        ...(named ? { paths: uPlot.paths.bars({ size: [0.6 / shown.length, 60], align: shown.length > 1 ? (n ? 1 : -1) : 0 }), fill: strokes[n], points: { show: false } } : {}),
      })),
    ],
  }, [known.map(([x]) => x), ...columns], place);
}

document.addEventListener("DOMContentLoaded", () => {
  follow();
  steady();
  travel();
  find();
  answered();
  changes();
  charts();
  pipelines();
  ask();
});
