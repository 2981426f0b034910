// Charts of a few kinds, drawn from their data alone: bars, lanes, blocks, trees, lines and rows. What they are of
// is in the data; here is only how much, how long, how deep.
"use strict";

const UNITS = {
  bytes: bytes,
  seconds: seconds,
  FLOPs: (amount) => si(amount),
  MACCs: (amount) => si(amount),
  times: (amount) => grouped(exact(amount)),
};

/** An amount with its unit; exact ones come as texts where JavaScript would round them. */
function amountText(amount, unit) {
  const value = typeof amount === "string" && /^-?\d+$/.test(amount) ? BigInt(amount) : amount;
  return (UNITS[unit] ?? String)(value);
}

/** An amount to the unit, for who reads the table. */
function amountExact(amount, unit) {
  if (unit === "seconds") return seconds(amount);
  return /^-?\d+$/.test(String(amount)) ? grouped(BigInt(amount)) : String(amount);
}

const GREYS = ["var(--neutral-3)", "var(--neutral-1)", "url(#hatch-2)", "var(--faint)", "url(#dots)", "var(--neutral-2)"];

/** Fills by kinds: a pass has its colour; what no pass made is grey, distinguished by its place and pattern. */
function fillsOf(kinds, made = {}) {
  const fills = new Map();
  let next = 0;
  for (const kind of kinds) {
    const pass = made[kind] ?? kind;
    fills.set(kind, isPass(pass) ? colourOf(pass) : GREYS[next++ % GREYS.length]);
  }
  return fills;
}

function inkOn(fill) {
  const colour = fill.match(/^var\(--(.*)\)$/)?.[1];
  if (colour && isPass(colour)) return `fill: var(--on-${colour})`;
  return fill === "var(--faint)" ? "fill: var(--page)" : "";
}

function patterns() {
  const lines = svgElement("rect", { width: 2, height: 6, fill: "var(--faint)" });
  const ground = () => svgElement("rect", { width: 6, height: 6, fill: "var(--neutral-2)" });
  const settings = { width: 6, height: 6, patternUnits: "userSpaceOnUse" };
  return svgElement(
    "defs",
    {},
    svgElement("pattern", { id: "hatch-2", ...settings, patternTransform: "rotate(45)" }, ground(), lines),
    svgElement("pattern", { id: "dots", ...settings }, ground(), svgElement("circle", { cx: 3, cy: 3, r: 1.3, fill: "var(--ink)" })),
  );
}

/** What the fills are, as a line of keys. */
function keysOf(fills) {
  return element(
    "div",
    { class: "keys" },
    ...[...fills].map(([kind, fill]) =>
      element(
        "span",
        { class: "key" },
        svgElement(
          "svg",
          { class: "swatch", viewBox: "0 0 13 13", width: 13, height: 13, "aria-hidden": "true" },
          svgElement("rect", { width: 13, height: 13, fill }),
        ),
        passName(kind),
      ),
    ),
  );
}

function drawBars(chart, place, pick) {
  const kinds = [...new Set(chart.rows.flatMap((row) => Object.keys(row.parts)))],
    fills = fillsOf(kinds, chart.made),
    totals = chart.rows.map((row) => Object.values(row.parts).reduce((all, part) => all + Number(part), 0));
  const most = Math.max(...totals, 0),
    limit = chart.limit && Number(chart.limit[0]) < 2 * most ? Number(chart.limit[0]) : null;
  const wide = widthOf(place) > 640,
    // A row has a name, a bar and its total behind it.
    space = wide ? widthOf(place) - 330 : widthOf(place) - 100,
    scale = (amount) => (Number(amount) / (Math.max(most, limit ?? 0) || 1)) * space;
  const rows = chart.rows.map((row, at) => {
    const chosen = Object.keys(row.choose).length && !row.here;
    const name = chosen
      ? element("button", { type: "button", class: "pick", onclick: () => pick(row.choose) }, row.name)
      : element("span", {}, row.name);
    const bar = row.refused
      ? element("span", { class: "refused" }, row.refused)
      : stackedBar(row, totals[at], chart.unit, { fills, scale, space, limit, isBelow: at === 0 && limit !== null });
    return element("tr", {}, element("td", { class: `name ${row.here ? "here" : ""}` }, name, row.here ? element("small", {}, "shown here") : null), element("td", {}, bar));
  });
  const limitNote = chart.limit ? element("p", { class: "caption" }, `${chart.limit[1]}${limit === null ? "" : ", the upright line"}.`) : null;
  return [
    keysOf(fills),
    element("table", { class: "rows bars" }, element("tbody", {}, ...rows)),
    limitNote,
    asTable(
      ["", ...kinds.map(passName), "in all"],
      chart.rows.filter((row) => !row.refused).map((row, at) => [
        row.name,
        ...kinds.map((kind) => (row.parts[kind] === undefined ? "" : amountExact(row.parts[kind], chart.unit))),
        amountText(totals[chart.rows.indexOf(row)], chart.unit),
      ]),
    ),
  ];
}

function stackedBar(row, total, unit, { fills, scale, space, limit }) {
  const text = amountText(total, unit),
    svg = svgElement("svg", {
      viewBox: `0 0 ${space + 96} 34`,
      height: 34,
      style: `width: ${space + 96}px; max-width: 100%`,
      role: "img",
      "aria-label": `${row.name}: ${text}${row.note ? `, ${row.note}` : ""}; ${Object.entries(row.parts)
        .map(([kind, part]) => `${passName(kind)} ${amountText(part, unit)}`)
        .join(", ")}`,
    });
  svg.append(patterns());
  let x = 0;
  for (const [kind, part] of Object.entries(row.parts)) {
    const span = scale(part),
      fill = fills.get(kind);
    if (span >= 0.4) svg.append(svgElement("rect", { x, y: 4, width: Math.max(0.5, span - 1), height: 26, fill }));
    const plain = !fill.startsWith("url"),
      value = amountText(part, unit),
      name = [`${passName(kind)} ${value}`, passName(kind), value].find((words) => textWidth(words, 12) < span - 14);
    if (plain && name) svg.append(svgText(x + 7, 21, name, { class: "small", style: inkOn(fill) }));
    x += span;
  }
  if (limit !== null) svg.append(svgLine(scale(limit), 0, scale(limit), 34, { class: "rule" }));
  const note = row.note && textWidth(row.note, 12) < 96 ? row.note : "";
  const line = limit === null ? -1 : scale(limit), // a text that the limit would cross is after it
    end = x + 12 + Math.max(textWidth(text, 13, 600), textWidth(note, 12)),
    start = x + 4 <= line && line <= end ? line + 6 : x + 8;
  svg.append(svgText(start, note ? 15 : 22, text, { class: "strong halo" }));
  if (note) svg.append(svgText(start, 30, note, { class: "faint small halo" }));
  return svg;
}

function drawLanes(chart, place) {
  const width = widthOf(place),
    left = Math.max(...chart.lanes.map(([name]) => textWidth(name, 13))) + 12,
    lane = 30,
    height = chart.lanes.length * lane + 34;
  const slices = chart.lanes.flatMap(([, several]) => several),
    end = Math.max(...slices.map((slice) => slice[3])),
    x = linearScale(0, end, left, width - 12),
    fills = fillsOf([...new Set(slices.map(([kind]) => kind))]);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": `${chart.heading}: ${chart.lanes.length} lanes, ${amountText(end, chart.unit)}`,
  });
  for (const tick of ticks(0, end, width < 560 ? 3 : 6))
    svg.append(
      svgLine(x(tick), 0, x(tick), height - 30),
      svgText(x(tick), height - 12, tick ? tickText(amountText(tick, chart.unit)) : "0", {
        class: "axis",
        "text-anchor": tick && x(tick) > width - 40 ? "end" : "middle",
      }),
    );
  chart.lanes.forEach(([name, several], at) => {
    svg.append(svgText(0, at * lane + 19, name));
    for (const [kind, text, begin, stop] of several) {
      const span = x(stop) - x(begin);
      svg.append(
        svgElement(
          "rect",
          { x: x(begin), y: at * lane + 3, width: Math.max(0.6, span - 1), height: lane - 6, fill: fills.get(kind) },
          svgElement("title", {}, `${name}, ${kind} ${text}: from ${amountText(begin, chart.unit)} to ${amountText(stop, chart.unit)}`),
        ),
      );
      if (textWidth(text, 12) < span - 5)
        svg.append(svgText(x(begin) + span / 2, at * lane + 19, text, { class: "small", "text-anchor": "middle", style: inkOn(fills.get(kind)) }));
    }
  });
  return [
    keysOf(fills),
    svg,
    asTable(
      ["", "what", "", "from", "to"],
      chart.lanes.flatMap(([name, several]) =>
        several.map(([kind, text, begin, stop]) => [name, kind, text, amountText(begin, chart.unit), amountText(stop, chart.unit)]),
      ),
    ),
  ];
}

/** A table with a head, in a box that is moved sideways where it is wider than the page. */
function tableBox(kind, heads, body) {
  return scrollBox("table", element("table", { class: kind }, element("thead", {}, element("tr", {}, ...heads)), body));
}

function drawTree(chart, place) {
  const whole = chart.rows[0]?.[2] ?? [],
    open = new Set([0]),
    parents = [],
    above = [];
  chart.rows.forEach(([depth], at) => {
    parents[at] = depth ? above[depth - 1] : -1;
    above[depth] = at;
  });
  const branches = new Set(parents),
    shown = (at) => parents[at] < 0 || (open.has(parents[at]) && shown(parents[at])),
    body = element("tbody"),
    narrow = widthOf(place) < 640;
  const columns = narrow ? chart.columns.slice(0, 1) : chart.columns;
  const draw = () =>
    body.replaceChildren(
      ...chart.rows.flatMap(([depth, name, values], at) => {
        if (!shown(at)) return [];
        const toggle = () => (open.has(at) ? open.delete(at) : open.add(at), draw(), body.querySelector(`[data-at="${at}"]`)?.focus());
        const label = branches.has(at)
          ? element("button", { type: "button", class: "pick", "data-at": at, "aria-expanded": String(open.has(at)), onclick: toggle }, `${open.has(at) ? "−" : "+"} ${name}`)
          : element("span", { class: "leaf" }, name);
        const part = Number(whole[0]) ? Number(values[0]) / Number(whole[0]) : 0;
        return [
          element(
            "tr",
            {},
            element("td", { style: `padding-left: ${depth * (narrow ? 10 : 20)}px` }, label),
            ...columns.map(([, unit], column) => element("td", { class: "number", title: amountExact(values[column], unit) }, amountText(values[column], unit))),
            element("td", { class: "share" }, element("span", { class: "bar", style: `width: ${(100 * part).toFixed(1)}%` })),
            element("td", { class: "number" }, share(values[0], whole[0])),
          ),
        ];
      }),
    );
  draw();
  const heads = [
    element("th", {}, "module"),
    ...columns.map(([name]) => element("th", { class: "number" }, name)),
    element("th", { colspan: 2 }, `share of ${chart.columns[0][0]}`),
  ];
  return [tableBox("tree", heads, body)];
}

function drawLines(chart) {
  if (!chart.rows.length) return [];
  const rows = chart.rows.map(([depth, text, marked, amount, why]) =>
    element(
      "div",
      { class: `line ${marked ? "marked" : ""} ${depth ? "" : "part"}`, style: `padding-left: ${Math.max(0, depth - 1) * 16 + 8}px` },
      depth ? element("code", {}, text) : element("b", {}, text),
      amount === null ? null : element("span", { class: "amount" }, amountText(amount, chart.unit)),
      why ? element("span", { class: "why" }, why) : null,
    ),
  );
  return [element("div", { class: "lines", tabindex: 0, role: "group", "aria-label": chart.heading }, ...rows)];
}

function drawRows(chart, place, pick) {
  const cell = (content, unit) => (unit ? amountText(content, unit) : String(content));
  const body = chart.rows.map((row, at) =>
    element(
      "tr",
      {},
      ...row.map((content, column) => {
        const [, unit] = chart.columns[column],
          text = cell(content, unit),
          choice = column === 0 ? chart.choose[at] : null;
        return element(
          "td",
          { class: unit ? "number" : null, title: unit ? amountExact(content, unit) : null },
          choice && Object.keys(choice).length ? element("button", { type: "button", class: "pick", onclick: () => pick(choice) }, text) : text,
        );
      }),
    ),
  );
  const heads = chart.columns.map(([name, unit]) => element("th", { class: unit ? "number" : null }, name));
  return [tableBox("table", heads, element("tbody", {}, ...body))];
}
