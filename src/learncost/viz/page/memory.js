// Memory over the step: stairs of what is alive at every line, and at the pointer the arrays that make them.
"use strict";

let memoryAt = null, // the line that is pointed at; null: that of the peak
  memoryOf = null;

section(
  "memory",
  "memory",
  (place) => {
    const { memory } = page.step,
      now = page.view.memory?.curve(),
      curve = now ?? memory?.curve;
    if (!curve) return false;
    if (memoryOf !== page.step) [memoryOf, memoryAt] = [page.step, null]; // of another step another moment
    const chartPlace = element("div"),
      list = element("div", { class: "panel", id: "alive", "aria-live": "off" });
    const rows = () =>
      curve.lines.map((line, at) => [
        at + 1,
        line.line,
        plainName(line.layer),
        passName(line.macro_operation),
        grouped(exact(line.bytes)),
      ]);
    place.replaceChildren(
      ...heading(
        findingOf(curve),
        "Every array is live from the line that writes it to the last line that reads it. Point at a line to see its live arrays.",
      ),
      ...fixedLine(now ? "" : fixedSizes()),
      element("div", { class: "with-panel" }, element("div", {}, chartPlace), list),
      element("p", { class: "caption" }, (page.view.memory?.other ?? memory).convention),
      asTable(["line", "name", "layer", "pass", "bytes"], rows()),
    );
    const show = (at) => {
      const place = Math.max(0, Math.min(curve.lines.length - 1, at ?? curve.peak_at));
      memoryAt = place === curve.peak_at ? null : place;
      movePointer(chartPlace, curve, place);
      drawAlive(list, curve, place);
    };
    drawCurve(chartPlace, curve, show);
    show(memoryAt);
  },
  () => Object.values(page.view.names).map(String),
);

function lineSaid(curve, at) {
  const line = curve.lines[at],
    layer = [line.block && page.step.summary.two_sided ? line.block : "", plainName(line.layer)]
      .filter(Boolean)
      .join(" ");
  return `${layer}${layer && line.macro_operation ? ", " : ""}${passName(line.macro_operation)}`;
}

function curveLayout(place, curve) {
  const width = widthOf(place),
    left = 62,
    right = 4,
    top = 54,
    bottom = 34,
    height = width < 500 ? 340 : 380;
  const peak = Number(curve.peak),
    scaleTicks = ticks(0, peak * 1.04, width < 500 ? 4 : 5);
  const high = Math.max(peak * 1.04, scaleTicks[scaleTicks.length - 1]);
  return {
    width,
    height,
    left,
    right,
    top,
    bottom,
    scaleTicks,
    x: linearScale(0, curve.lines.length, left, width - right),
    y: linearScale(0, high, height - bottom, top),
  };
}

function drawCurve(place, curve, show) {
  const layout = curveLayout(place, curve),
    { x, y, width, height } = layout,
    count = curve.lines.length;
  const svg = chart(width, height, "");
  for (const [name, value] of Object.entries({
    role: "slider",
    tabindex: 0,
    "aria-label": "Moment of the step, line by line",
    "aria-valuemin": 1,
    "aria-valuemax": count,
  }))
    svg.setAttribute(name, value);
  svg.style.cssText = "touch-action: pan-y; cursor: crosshair";
  for (const tick of layout.scaleTicks)
    svg.append(
      svgLine(layout.left, y(tick), width - layout.right, y(tick)),
      svgText(layout.left - 10, y(tick) + 4, tick ? tickText(bytes(tick)) : "0", { class: "axis", "text-anchor": "end" }),
    );
  let below = new Array(count).fill(0);
  for (const [kind, sizes] of Object.entries(curve.kinds)) {
    const above = below.map((size, at) => size + Number(sizes[at]));
    svg.append(svgElement("path", { d: stairs(x, y, below, above), fill: colourOf(kind), "fill-opacity": 0.88 }));
    labelArea(svg, layout, kind, below, above);
    below = above;
  }
  drawPhases(svg, layout, curve);
  drawBrackets(svg, layout, curve);
  svg.append(svgElement("g", { class: "pointer" }));
  const at = (event) =>
    Math.floor(
      ((((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width) * width - layout.left) /
        (width - layout.right - layout.left)) *
        count,
    );
  svg.addEventListener("pointermove", (event) => show(at(event)));
  svg.addEventListener("pointerdown", (event) => show(at(event)));
  svg.addEventListener("pointerleave", () => show(curve.peak_at));
  svg.addEventListener("keydown", (event) => {
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowDown: -1,
      ArrowUp: 1,
      PageUp: 10,
      PageDown: -10,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key === "p") show(curve.peak_at);
    else if (event.key in steps) show((memoryAt ?? curve.peak_at) + steps[event.key]);
    else return;
    event.preventDefault();
  });
  place.style.minHeight = `${height}px`;
  place.replaceChildren(svg);
}

function stairs(x, y, below, above) {
  const up = above.map(
    (size, at) => `${x(at).toFixed(1)},${y(size).toFixed(1)} ${x(at + 1).toFixed(1)},${y(size).toFixed(1)}`,
  );
  const down = below
    .map((size, at) => `${x(at + 1).toFixed(1)},${y(size).toFixed(1)} ${x(at).toFixed(1)},${y(size).toFixed(1)}`)
    .reverse();
  return `M${up.join(" L")} L${down.join(" L")} Z`;
}

const AREAS = { forward: "activations", "weight update": "weight gradients", gradients: "gradients of weights" };

/** The name of an area, in the widest run of lines in which it is high enough. */
function labelArea(svg, layout, kind, below, above) {
  const tall = above.map((size, at) => layout.y(below[at]) - layout.y(size) >= 20);
  let best = null,
    start = null;
  for (let at = 0; at <= tall.length; at += 1) {
    if (tall[at] && start === null) start = at;
    if (!tall[at] && start !== null) {
      const low = Math.min(...below.slice(start, at).map((size) => layout.y(size))),
        high = Math.max(...above.slice(start, at).map((size) => layout.y(size)));
      const run = {
        start,
        end: at,
        space: layout.x(at) - layout.x(start),
        middle: low - high >= 16 ? (low + high) / 2 : null,
      };
      if (run.middle !== null && (!best || run.space > best.space)) best = run;
      start = null;
    }
  }
  const text = AREAS[kind] ?? kind,
    phase = kind.replaceAll(" ", "_");
  if (best && textWidth(text, 13) < best.space - 12)
    svg.append(
      svgText(layout.x(best.start) + 8, best.middle + 5, text, {
        style: colourOf(kind).includes("neutral")
          ? ""
          : `fill: var(--on-${kind === "gradients" ? "weight_update" : phase})`,
      }),
    );
}

/** The passes as they follow each other, above the chart; alternating ones are merged. */
function drawPhases(svg, layout, curve) {
  const phases = [];
  for (let at = 0; at < curve.lines.length; at += 1) {
    const phase = curve.lines[at].macro_operation,
      last = phases[phases.length - 1];
    const learns = ["backward", "weight_update", "error_projection"].includes(phase),
      name = learns ? "learn" : phase;
    if (last && (last.name === name || (at - last.start < 3 && last.name === "learn"))) {
      last.end = at + 1;
      last.macros.add(phase);
    } else phases.push({ name, start: at, end: at + 1, macros: new Set([phase]) });
  }
  for (const phase of phases) {
    const from = layout.x(phase.start),
      to = layout.x(phase.end) - 3;
    if (to - from < 6) continue;
    const names = [...phase.macros].map(passName),
      text = [names.join(" and "), names[0], SHORT[names[0]]].find((name) => name && textWidth(name, 13) < to - from);
    svg.append(
      svgLine(from, layout.top - 18, to, layout.top - 18, { class: "rule", style: "stroke: var(--faint); stroke-width: 1" }),
    );
    if (text) svg.append(svgText(from, layout.top - 26, text, { class: "axis" }));
  }
}

function drawBrackets(svg, layout, curve) {
  for (const bracket of curve.brackets.filter((each) => each.depth === 0)) {
    const from = layout.x(bracket.first),
      to = layout.x(bracket.last + 1),
      y = layout.height - layout.bottom + 6;
    svg.append(
      svgElement("path", {
        d: `M${from},${y} v5 H${to} v-5`,
        class: "rule",
        style: "stroke: var(--faint); stroke-width: 1",
      }),
    );
    const iterations = `${grouped(exact(bracket.iterations))} ×`,
      text = [`${bracket.label} ${iterations}`, iterations].find((title) => textWidth(title, 12) < to - from);
    if (text) svg.append(svgText((from + to) / 2, y + 21, text, { class: "faint small", "text-anchor": "middle" }));
  }
}

function movePointer(place, curve, at) {
  const layout = curveLayout(place, curve),
    svg = place.querySelector("svg"),
    group = svg.querySelector(".pointer");
  const size = exact(curve.lines[at].bytes),
    x = (layout.x(at) + layout.x(at + 1)) / 2,
    y = layout.y(Number(size));
  const text = `${at === curve.peak_at ? "peak " : ""}${bytes(size)}`,
    space = textWidth(text, 13, 600) + 14,
    left = x + space + 10 > layout.width ? x - space - 8 : x + 8;
  group.replaceChildren(
    svgLine(x, layout.top - 14, x, layout.height - layout.bottom, { class: "rule" }),
    svgElement("circle", { cx: x, cy: y, r: 4.5, fill: "var(--page)", stroke: "var(--ink)", "stroke-width": 2 }),
    svgElement("rect", {
      x: left,
      y: y - 34 < layout.top - 14 ? layout.top - 14 : y - 34,
      width: space,
      height: 24,
      rx: 3,
      fill: "var(--ink)",
    }),
    svgText(left + 7, (y - 34 < layout.top - 14 ? layout.top - 14 : y - 34) + 17, text, {
      class: "strong",
      style: "fill: var(--page)",
    }),
  );
  svg.setAttribute("aria-valuenow", at + 1);
  svg.setAttribute("aria-valuetext", `${curve.lines[at].line}, ${lineSaid(curve, at)}: ${bytes(size)}`);
}

function drawAlive(list, curve, at) {
  const arrays = aliveAt(curve, at),
    line = curve.lines[at],
    largest = arrays.slice(0, 7),
    most = Number(arrays[0]?.bytes ?? 1);
  const rest = arrays.slice(7),
    left = rest.reduce((all, array) => all + array.bytes, 0n);
  const items = largest.map((array) => {
    const shape = [
      array.number > 1n ? `${grouped(array.number)} × ` : "",
      array.shape.map((size) => grouped(exact(size))).join(" × "),
    ].join("");
    return element(
      "li",
      {},
      element(
        "span",
        {},
        array.kind === array.name ? array.name : element("code", {}, array.name),
        " ",
        element("span", { class: "shape" }, shape),
      ),
      element("span", {}, bytes(array.bytes)),
      element("span", {
        class: "bar",
        style: `width: ${Math.max(0.5, (100 * Number(array.bytes)) / most)}%; background: ${colourOf(array.kind)}`,
      }),
    );
  });
  if (rest.length)
    items.push(
      element(
        "li",
        {},
        element("span", { class: "shape" }, `${rest.length} more`),
        element("span", { class: "shape" }, bytes(left)),
      ),
    );
  list.replaceChildren(
    element("p", { class: "path" }, at === curve.peak_at ? "Live at the peak" : "Live here"),
    element(
      "p",
      { class: "exact" },
      element("b", {}, bytes(exact(line.bytes))),
      " while ",
      element("code", {}, line.line),
      " runs",
    ),
    element("p", { class: "path" }, `${lineSaid(curve, at)} · line ${at + 1} of ${curve.lines.length}`),
    element("ul", { class: "alive" }, ...items),
  );
}
