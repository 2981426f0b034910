// How trainings go: the server is asked every two seconds, and what is new is drawn. uPlot draws the losses.
"use strict";

const EVERY = 2000;
const AXES = { flops: "FLOPs", step: "steps", seconds: "seconds" };
const NAMES = { bp: "backpropagation", recompute: "backpropagation with recomputation", pepita: "PEPITA", mempepita: "MEMPEPITA", fa: "feedback alignment" };
const LOOKS = [["--ink", []], ["--link", []], ["--link", [3, 3]], ["--ink", [7, 4]], ["--faint", []], ["--faint", [3, 3]], ["--link", [9, 3, 2, 3]], ["--ink", [1, 3]]];
const view = { all: [], runs: [], version: "", axis: null, model: null, chart: null, key: "" };
const byId = (name) => document.getElementById(name);

/** An element with its text, which is never read as HTML. */
function element(name, text = "", attributes = {}) {
  const svg = ["svg", "line", "circle"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== "") node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** What a run is called: its procedure where that tells it from the others, else its own name. */
function label(run) {
  const name = NAMES[run.procedure] ?? (run.procedure || "training");
  if (view.runs.every((other) => other === run || other.procedure !== run.procedure)) return name;
  return run.name.replace(/^[^:]*: /, "");
}

/** Runs of one model are compared; which, is a choice. The one that was written to last comes first. */
function models() {
  const names = [...new Set(view.all.map((run) => run.model))], place = byId("models");
  if (!names.includes(view.model)) view.model = view.all.reduce((latest, run) => (run.changed > latest.changed ? run : latest), view.all[0])?.model ?? null;
  view.runs = view.all.filter((run) => run.model === view.model);
  place.hidden = names.length < 2;
  segments(byId("model"), Object.fromEntries(names.map((name) => [name, name])), view.model, (name) => { view.model = name; });
}

/** A choice of one of several, as radios. */
function segments(place, names, chosen, choose) {
  const key = JSON.stringify([names, chosen]);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const focused = place.contains(document.activeElement);
  place.replaceChildren();
  for (const [name, title] of Object.entries(names)) {
    const option = element("label"), input = element("input", "", { type: "radio", name: place.id, value: name });
    input.checked = name === chosen;
    input.addEventListener("change", () => { choose(name); history.replaceState(null, "", `#${new URLSearchParams({ against: view.axis, of: view.model })}`); draw(); });
    option.append(input, element("span", title));
    place.append(option);
    if (input.checked && focused) input.focus();
  }
}

const look = (run) => LOOKS[view.runs.indexOf(run) % LOOKS.length];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const median = (values) => { const sorted = values.filter((value) => value !== null).sort((a, b) => a - b); return sorted.length ? sorted[sorted.length >> 1] : null; };
const last = (values) => values[values.length - 1];

/** A loss to a hundredth of its size, so that neighbours differ. */
const loss = (value) => (value === null || value === undefined ? "none" : value >= 100 ? digits(value) : value.toPrecision(4).replace(/(\.\d\d)\d*$/, "$1"));
const power = (value) => { if (!value) return "0"; const at = Math.floor(Math.log10(value)); return `${(value / 10 ** at).toFixed(1)} × 10${[...String(at)].map((sign) => (sign === "-" ? "⁻" : SUPERSCRIPTS[sign])).join("")}`; };

/** The place of each point on the chosen axis. */
function places(run) {
  if (view.axis === "seconds") return run.seconds;
  if (view.axis === "flops") return run.step.map((step) => Number(BigInt(step) * BigInt(run.flops_per_step)));
  return run.step;
}

/** The loss at a place, of the last step before it: its mean over nine steps. */
function lossAt(run, place) {
  const at = places(run).filter((other) => other <= place * (1 + 1e-12)).length;
  const near = run.loss.slice(Math.max(0, at - 9), at).filter((other) => other !== null);
  return near.length ? near.reduce((sum, other) => sum + other, 0) / near.length : null;
}

function smoothed(values) {
  return values.map((value, at) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, at - 4), at + 5).filter((other) => other !== null);
    return near.reduce((sum, other) => sum + other, 0) / near.length;
  });
}

// The sentence and the tiles.

function sentence() {
  const place = byId("sentence"), begun = view.runs.filter((run) => run.step.length);
  place.className = "";
  place.replaceChildren();
  const say = (text, bold = false) => place.append(bold ? element("b", text) : text);
  if (!view.all.length) {
    say("No training is in this folder yet.");
    byId("exactly").textContent = "learncost train writes one, with --out a folder inside of it; this page finds it by itself.";
    return;
  }
  if (!begun.length) {
    say(`${view.runs.length === 1 ? "A training has" : `${view.runs.length} trainings have`} begun; no step is done yet.`);
  } else if (begun.length === 1) {
    const [run] = begun, checked = last(run.validation);
    say(label(run)[0].toUpperCase() + label(run).slice(1)); say(" has reached a loss of "); say(loss(last(run.loss)), true);
    say(` after ${grouped(run.done)} ${run.done === 1 ? "step" : "steps"}`);
    if (checked) { say(", and "); say(loss(checked.loss), true); say(" on data that it does not learn from"); }
    say(".");
  } else {
    const ends = begun.map((run) => last(places(run))), least = Math.min(...ends);
    const amount = { flops: `${words(least)} FLOPs`, step: `${grouped(least)} steps`, seconds: seconds(least) }[view.axis];
    say("With the same "); say(amount, true); say(" ");
    const ranked = begun.map((run) => [lossAt(run, least), run]).sort((left, right) => (left[0] ?? Infinity) - (right[0] ?? Infinity)).slice(0, 6);
    ranked.forEach(([value, run], at) => {
      say(at ? `, ${label(run)} ` : `${label(run)} reaches a loss of `); say(loss(value), true);
    });
    say(begun.length > 6 ? ` (the best 6 of ${begun.length}).` : ".");
  }
  const kinds = [...new Set(view.runs.map((run) => [run.model, run.engine && `${run.engine} engine`, run.optimizer, run.batch_size && `batches of ${grouped(run.batch_size)}`].filter(Boolean).join(", ")))];
  const ended = view.runs.filter((run) => run.ended).length;
  const state = ended === view.runs.length ? (ended === 1 ? "It has finished." : "All have finished.") : view.runs.length === 1 ? "It has steps left." : `${view.runs.length - ended} of ${view.runs.length} have steps left.`;
  byId("exactly").textContent = `${kinds.slice(0, 3).join("; ")}. ${state}${begun.length > 1 ? " Losses are means over nine steps." : ""}`;
}

function tiles() {
  const place = byId("tiles"), begun = view.runs.filter((run) => run.step.length);
  place.replaceChildren();
  if (!begun.length) return;
  const best = begun.reduce((least, run) => ((last(run.validation)?.loss ?? Infinity) < (last(least.validation)?.loss ?? Infinity) ? run : least));
  const checked = last(best.validation), speed = median(best.speed), name = label(best);
  const done = best.flops_per_step ? BigInt(best.flops_per_step) * BigInt(best.done) : null;
  const others = checked ? [checked.bits_per_byte && `${digits(checked.bits_per_byte)} bits a byte`, checked.accuracy !== undefined && `${digits(100 * checked.accuracy)} % right`].filter(Boolean) : [];
  const rows = [
    checked ? ["loss, validation", loss(checked.loss), [...others, name].join(" · ")] : ["loss, last step", loss(last(best.loss)), name],
    speed ? [`${best.unit} a second`, grouped(Math.round(speed)), `median, ${name}`] : ["seconds a step", seconds(last(best.seconds) / best.done), name],
    done === null ? ["steps so far", grouped(best.done), best.steps ? `of ${grouped(best.steps)}` : name] : ["FLOPs so far", si(done), `${si(BigInt(best.flops_per_step))} a step, exact`],
    ...(typeof best.learning_rate === "number" ? [["learning rate", power(best.learning_rate), `step ${grouped(best.done)}${best.steps ? ` of ${grouped(best.steps)}` : ""}`]] : []),
  ];
  for (const [name, value, more] of rows) {
    const tile = element("div", "", { class: "tile" });
    tile.append(element("p", name), element("p", value, { class: "big" }), element("p", more));
    place.append(tile);
  }
}

// The losses.

function axes() {
  const begun = view.runs.filter((run) => run.step.length);
  const available = Object.keys(AXES).filter((name) => name !== "flops" || begun.every((run) => run.flops_per_step));
  if (!available.includes(view.axis)) view.axis = available[0];
  segments(byId("axis"), Object.fromEntries(available.map((name) => [name, AXES[name]])), view.axis, (name) => { view.axis = name; });
}

/** The name of each run at the end of its line, where there is space. */
function ends(plot) {
  const ctx = plot.ctx, ratio = devicePixelRatio || 1, spans = [];
  ctx.save();
  ctx.font = `${13 * ratio}px ${colour("--sans")}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  plot.series.forEach((series, at) => {
    if (!at || at % 2) return;
    const values = plot.data[at];
    let place = values.length - 1;
    while (place >= 0 && (values[place] === null || values[place] === undefined)) place -= 1;
    if (place < 0) return;
    const x = plot.valToPos(plot.data[0][place], "x", true), width = ctx.measureText(series.label).width;
    let y = Math.max(plot.bbox.top + 8 * ratio, plot.valToPos(values[place], "y", true));
    const right = x + 8 * ratio + width <= plot.bbox.left + plot.bbox.width + (plot.width < 560 ? 8 : 130) * ratio;
    if (!right && plot.width < 560) return; // the key below the chart names it
    const left = right ? x + 8 * ratio : x - width - 2 * ratio;
    if (!right) y -= 12 * ratio;
    for (let attempt = 0; attempt < 20 && spans.some(([l, r, t]) => left < r && left + width > l && Math.abs(t - y) < 15 * ratio); attempt += 1) y += (attempt % 2 ? 1 : -1) * (attempt + 1) * 8 * ratio;
    if (y > plot.bbox.top + plot.bbox.height) return;
    spans.push([left, left + width, y]);
    ctx.strokeStyle = colour("--page");
    ctx.lineWidth = 4 * ratio;
    ctx.lineJoin = "round";
    ctx.setLineDash([]);
    ctx.strokeText(series.label, left, y);
    ctx.fillStyle = series.stroke(plot, at);
    ctx.fillText(series.label, left, y);
  });
  ctx.restore();
}

function chart() {
  const begun = view.runs.filter((run) => run.step.length), place = byId("loss-chart");
  byId("loss").hidden = !begun.length;
  if (!begun.length) return;
  const starts = begun.map((run) => run.loss.find((value) => value !== null)).filter((value) => value !== undefined);
  const most = Math.max(...starts) * 1.02, tops = begun.map((run) => Math.max(...run.loss.filter((value) => value !== null)));
  const lows = begun.map((run) => Math.min(...run.loss.filter((value) => value !== null)));
  const low = Math.min(...lows), space = Math.max(most - low, 1e-6);
  const cut = begun.filter((_, at) => tops[at] > most * 1.001);
  byId("loss-lead").textContent = "Cross-entropy in nats for each answer, smoothed over nine steps; each step is a faint line behind.";
  byId("loss-caption").textContent = cut.length ? `The chart ends a little above the loss at the start: ${cut.map((run) => `${label(run)} goes up to ${loss(tops[begun.indexOf(run)])}`).join(", ")}.` : "";
  const tables = begun.flatMap((run) => [[places(run), run.loss], [places(run), smoothed(run.loss)]]);
  const data = uPlot.join(tables);
  const series = begun.flatMap((run) => {
    const [name, dash] = look(run), stroke = colour(name);
    return [
      { label: label(run), stroke: stroke + "55", width: 1, spanGaps: true, points: { show: false }, legend: { show: false } },
      { label: label(run), stroke, width: 2, dash, spanGaps: true, points: { show: false }, value: (_, amount) => (amount === null || amount === undefined ? "–" : loss(amount)) },
    ];
  });
  const key = JSON.stringify([view.axis, begun.map(label), place.clientWidth, colour("--ink")]);
  const range = [low - 0.06 * space, most + 0.02 * space];
  view.range = range;
  if (view.chart && view.key === key) {
    view.chart.setData(data);
    return;
  }
  view.chart?.destroy();
  view.key = key;
  place.replaceChildren();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: `13px ${colour("--sans")}` };
  const value = { flops: (amount) => si(amount), seconds: (amount) => (amount ? seconds(amount) : "0"), step: (amount) => grouped(BigInt(Math.round(amount))) }[view.axis];
  const height = place.clientWidth < 560 ? 240 : 300;
  view.chart = new uPlot({
    width: place.clientWidth, height,
    scales: { x: { time: false }, y: { range: () => view.range } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map(value), space: 70 }, { ...axis, values: (_, ticks) => ticks.map((amount) => amount.toString()), size: 44 }],
    padding: [8, place.clientWidth < 560 ? 24 : 130, 0, 0],
    series: [{ label: AXES[view.axis], value: (_, amount) => (amount === null || amount === undefined ? "–" : value(amount)) }, ...series],
    legend: { show: true, live: true, markers: { width: 2, fill: () => "transparent", dash: (_, at) => (series[at - 1]?.dash?.length ? "dashed" : "solid") } },
    cursor: { drag: { x: false, y: false } },
    hooks: { draw: [ends], ready: [(plot) => plot.root.querySelectorAll(".u-series").forEach((row, at) => { if (at && at % 2) row.classList.add("hidden"); })] },
  }, data, place);
  place.style.height = "auto";
}

function table() {
  const content = element("table", "", { class: "table" }), head = element("tr");
  for (const name of ["run", "procedure", "step", "loss", "validation", "seconds", "FLOPs", "predicted bytes", "measured bytes"]) head.append(element("th", name, { scope: "col" }));
  content.append(element("thead"), element("tbody"));
  content.tHead.append(head);
  for (const run of view.runs) {
    const row = element("tr"), flops = run.flops_per_step ? grouped(BigInt(run.flops_per_step) * BigInt(run.done)) : "";
    const cells = [run.name, run.procedure, grouped(run.done), run.step.length ? String(last(run.loss)) : "", last(run.validation)?.loss ?? "", run.seconds.length ? last(run.seconds).toFixed(2) : "", flops, run.predicted ? grouped(run.predicted) : "", run.measured ? grouped(run.measured) : ""];
    for (const cell of cells) row.append(element("td", String(cell)));
    content.tBodies[0].append(row);
  }
  byId("loss-table").replaceChildren(content);
}

// Speed and memory: a strip for each run.

function strip(name, value, spoken) {
  const box = element("div", "", { class: "strip" }), head = element("div", "", { class: "head" });
  head.append(element("span", name), element("b", value));
  const svg = element("svg", "", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": spoken });
  box.append(head, svg);
  return [box, svg];
}

function speeds() {
  const place = byId("speed-chart"), begun = view.runs.filter((run) => median(run.speed) !== null);
  place.replaceChildren();
  byId("speed").hidden = !begun.length;
  if (!begun.length) return;
  const units = [...new Set(begun.map((run) => run.unit))];
  byId("speed-title").textContent = `${units.length === 1 ? units[0][0].toUpperCase() + units[0].slice(1) : "Tokens or examples"} a second`;
  const most = Math.max(...begun.flatMap((run) => run.speed.filter((speed) => speed !== null)));
  for (const run of begun) {
    const middle = median(run.speed), [box, svg] = strip(label(run), grouped(Math.round(middle)), `${label(run)}: median ${grouped(Math.round(middle))} ${run.unit} a second`);
    const every = Math.max(1, Math.ceil(run.speed.length / 300));
    run.speed.forEach((speed, at) => { if (speed !== null && at % every === 0) svg.append(line(speed / most, "tick")); });
    svg.append(line(middle / most, "median"));
    place.append(box);
  }
}

const line = (share, name) => element("line", "", { x1: 1000 * share, x2: 1000 * share, y1: 1, y2: 15, class: name, "vector-effect": "non-scaling-stroke" });

function memories() {
  const place = byId("memory-chart"), runs = view.runs.filter((run) => run.predicted || run.measured);
  place.replaceChildren();
  byId("memory").hidden = !runs.length;
  const all = runs.flatMap((run) => [run.predicted, run.measured]).filter(Boolean);
  const least = Math.log(Math.min(...all) / 1.5), most = Math.log(Math.max(...all) * 1.5), at = (value) => (Math.log(value) - least) / (most - least);
  for (const run of runs) {
    const text = [run.predicted && `${bytes(run.predicted)} predicted`, run.measured && `${bytes(run.measured)} measured`].filter(Boolean).join(", ");
    const [box, svg] = strip(label(run), text, `${label(run)}: ${text}`);
    const mark = (value, name) => svg.append(element("line", "", { x1: 1000 * at(value), x2: 1000 * at(value), y1: name === "tick" ? 4 : 1, y2: name === "tick" ? 12 : 15, class: name, "vector-effect": "non-scaling-stroke" }));
    if (run.predicted && run.measured) svg.append(element("line", "", { x1: 1000 * at(run.predicted), x2: 1000 * at(run.measured), y1: 8, y2: 8, class: "span", "vector-effect": "non-scaling-stroke" }));
    if (run.predicted) mark(run.predicted, "hollow");
    if (run.measured) mark(run.measured, "median");
    place.append(box);
  }
  if (runs.length) place.append(element("p", `Blue: predicted. Black or white: measured. From ${bytes(Math.round(Math.exp(least)))} to ${bytes(Math.round(Math.exp(most)))}.`, { class: "caption" }));
  byId("pair").hidden = byId("speed").hidden && byId("memory").hidden;
}

function samples() {
  const written = view.runs.filter((run) => run.sample), best = written.reduce((least, run) => ((last(run.validation)?.loss ?? Infinity) < (last(least.validation)?.loss ?? Infinity) ? run : least), written[0]);
  byId("sample").hidden = !best;
  if (!best) return;
  byId("sample-title").textContent = `What ${label(best)} writes now`;
  byId("sample-lead").textContent = `Sample at step ${grouped(best.sample.step)}${best.steps ? ` of ${grouped(best.steps)}` : ""}.`;
  byId("sample-text").textContent = best.sample.text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, "\ufffd");
}

function draw() {
  models();
  axes();
  sentence();
  tiles();
  chart();
  table();
  speeds();
  memories();
  samples();
}

async function ask() {
  try {
    const answer = await fetch(`/api/runs?since=${encodeURIComponent(view.version)}`), content = await answer.json();
    if (!answer.ok) throw new Error(content.error ?? answer.status);
    problem("");
    if (!content.same) {
      view.version = content.version;
      view.all = content.runs;
      byId("footer").textContent = `Folder ${content.folder}. The numbers are those of metrics.jsonl, and of the file of a contest.`;
      draw();
      document.documentElement.dataset.ready = "yes";
    }
  } catch (error) {
    problem(`The server does not answer: ${error.message}. The last numbers stay.`);
  }
  setTimeout(ask, EVERY);
}

function problem(text) {
  byId("problem").hidden = !text;
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
}

const address = new URLSearchParams(location.hash.slice(1));
view.axis = address.get("against");
view.model = address.get("of");
window.addEventListener("resize", () => { if (view.all.length) draw(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
ask();
