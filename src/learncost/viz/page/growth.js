// Growth: what the step costs over its length, batch, depth and width; where one procedure overtakes another.
"use strict";

const ALONG = { length: "length", batch: "batch", depth: "depth", width: "width" };
const GROWS = { length: ["seq_len", "target_len"], batch: ["batch_size"] };
const DASHES = { bp: "", recompute: "7 4", pepita: "", mempepita: "2 3" };

section(
  "growth",
  "growth",
  (place) => {
    const all = page.step.growth ?? {},
      available = Object.keys(ALONG).filter((name) => all[name]?.places.length > 1);
    if (!available.length || !page.step.summary.learns) return false;
    const along = available.includes(page.state.grow) ? page.state.grow : available[0],
      grown = all[along];
    const ratios = grown.series.length > 1 && page.state.scale !== "absolute";
    const controls = element(
      "div",
      { class: "controls no-print" },
      segments(
        "grow",
        Object.fromEntries(available.map((name) => [name, ALONG[name]])),
        along,
        (grow) => choose({ grow }),
        "What grows",
      ),
      ...(grown.series.length > 1
        ? [
            segments(
              "scale",
              { ratio: "ratio to backpropagation", absolute: "FLOPs" },
              ratios ? "ratio" : "absolute",
              (scale) => choose({ scale }),
              "Scale",
            ),
          ]
        : []),
    );
    const drawn = element("div");
    place.replaceChildren(
      ...heading(
        grown.finding,
        `${ratios ? "FLOPs of a step as multiples of backpropagation’s" : "FLOPs of a step"}, by ${along === "length" ? "the length of a sequence" : along === "batch" ? "sequences in a batch" : along === "depth" ? "the number of blocks" : "the width of the model"}.${grown.crossings.length ? " Crossings are solved exactly, not estimated from the chart." : ""}`,
      ),
      ...fixedLine(fixedSizes(...(GROWS[along] ?? []))),
      controls,
      drawn,
      asTable(
        [grown.unit, ...grown.series.map((series) => series.procedure)],
        grown.places.map((size, at) => [
          grouped(exact(size)),
          ...grown.series.map((series) => grouped(exact(series.totals[at]))),
        ]),
      ),
    );
    drawGrowth(drawn, grown, ratios);
  },
  () => [
    page.state.grow,
    page.state.scale,
    fixedSizes(),
    ...["seq_len", "batch_size"].map((name) => String(page.view.names[name])),
  ],
);

VIEW_KEYS.grow = "length";
VIEW_KEYS.scale = "ratio";

function hereIn(grown) {
  const name = GROWS[grown.along]?.[0];
  return name && page.view.names[name] !== undefined ? Number(page.view.names[name]) : Number(grown.here);
}

function drawGrowth(place, grown, ratios) {
  const width = widthOf(place),
    narrow = width < 560,
    left = 54,
    right = narrow ? 8 : 120,
    top = narrow ? 20 + 20 * grown.series.length : 28,
    height = page.paper ? 320 : 400,
    bottom = 48;
  const places = grown.places.map(Number),
    values = grown.series.map((series) => (ratios ? series.ratios.map(Number) : series.totals.map(Number)));
  const x = logScale(places[0], places[places.length - 1], left, width - right),
    flat = values.flat();
  const low = Math.min(...flat),
    high = Math.max(...flat),
    ends = ratios
      ? [Math.max(0, low - (high - low || 0.1) * 0.12), high + (high - low || 0.1) * 0.12]
      : [low / 1.6, high * 1.6];
  const y = ratios ? linearScale(...ends, height - bottom, top) : logScale(...ends, height - bottom, top);
  const svg = chart(
    width,
    height,
    `${grown.finding}. ${grown.series.map((series) => series.procedure).join(", ")} from ${grouped(exact(grown.places[0]))} to ${grouped(exact(grown.places[grown.places.length - 1]))} ${grown.unit}`,
  );
  let ground = null;
  if (grown.limit && grown.limit < places[places.length - 1]) {
    const from = Math.max(left, x(Math.max(grown.limit, places[0])));
    svg.append(
      svgElement("rect", {
        x: from,
        y: top,
        width: width - right - from,
        height: height - bottom - top,
        fill: "var(--panel)",
      }),
    );
    ground = from;
  }
  const marks = ratios ? ticks(...ends, 6) : decades(...ends),
    digitsAfter = decimalsOf(marks);
  for (const tick of marks)
    svg.append(
      svgLine(left, y(tick), width - right, y(tick)),
      svgText(
        left - 8,
        y(tick) + 4,
        ratios ? `${tick.toFixed(digitsAfter)} ×` : tickText(si(tick)),
        { class: "axis", "text-anchor": "end" },
      ),
    );
  if (ground !== null) {
    const text = [
      `beyond the ${grouped(BigInt(grown.limit))} positions that ${page.step.summary.model} learns →`,
      "beyond its positions →",
    ].find((words) => textWidth(words, 12) < width - right - ground - 12);
    if (text)
      svg.append(
        svgText(ground + 7, top + 15, text, {
          class: "faint small",
          style: "paint-order: stroke; stroke: var(--panel); stroke-width: 6px",
        }),
      );
  }
  let last = -Infinity;
  for (const tick of powersBetween(places[0], places[places.length - 1], narrow ? 3 : 6)) {
    const text = narrow ? si(tick).replace(/\.0+(?= |$)/, "") : grouped(BigInt(tick)),
      half = textWidth(text, 13) / 2;
    if (x(tick) - half < last + 10 || x(tick) + half > width) continue;
    last = x(tick) + half;
    svg.append(svgText(x(tick), height - bottom + 20, text, { class: "axis", "text-anchor": "middle" }));
  }
  const unit = { length: "tokens in a sequence", batch: "sequences", depth: "blocks", width: "width" }[grown.along];
  svg.append(svgText(width - right, height - 8, `${unit} →`, { class: "axis", "text-anchor": "end" }));
  const here = hereIn(grown);
  if (here >= places[0] && here <= places[places.length - 1])
    svg.append(
      svgLine(x(here), top, x(here), height - bottom, { style: "stroke: var(--faint); stroke-width: 1.5" }),
      svgText(x(here) - 6, top - 8, `here: ${grouped(BigInt(here))}`, {
        class: "faint small",
        "text-anchor": x(here) - left < 90 ? "start" : "end",
      }),
    );
  const labels = [];
  grown.series.forEach((series, at) => {
    const forwardOnly = /pepita/.test(series.procedure),
      style = `stroke: ${forwardOnly ? "var(--link)" : "var(--ink)"}; stroke-width: ${series.procedure === "bp" ? 2.4 : 2}`;
    svg.append(
      svgElement("path", {
        d: `M${places.map((size, index) => `${x(size).toFixed(1)},${y(values[at][index]).toFixed(1)}`).join(" L")}`,
        class: "rule",
        style,
        "stroke-dasharray": DASHES[series.procedure] ?? "9 3 2 3",
      }),
    );
    labels.push({
      y: y(values[at][values[at].length - 1]),
      text: textWidth(titleOf(series.procedure), 13) < 112 ? titleOf(series.procedure) : series.procedure,
      colour: forwardOnly ? "var(--link)" : "var(--ink)",
      style,
      dash: DASHES[series.procedure] ?? "9 3 2 3",
    });
  });
  if (narrow)
    labels.forEach((label, at) =>
      svg.append(
        svgElement("line", {
          x1: left,
          x2: left + 28,
          y1: 12 + 20 * at,
          y2: 12 + 20 * at,
          style: label.style,
          "stroke-dasharray": label.dash,
        }),
        svgText(left + 36, 16 + 20 * at, label.text, { style: `fill: ${label.colour}` }),
      ),
    );
  else {
    labels.sort((upper, lower) => upper.y - lower.y);
    labels.forEach((label, at) => (label.y = at ? Math.max(label.y, labels[at - 1].y + 17) : label.y));
    for (const label of labels)
      svg.append(svgText(width - right + 8, label.y + 4, label.text, { style: `fill: ${label.colour}` }));
  }
  if (ratios) drawCrossings(svg, grown, values, places, x, y, height - bottom, width - right);
  place.style.minHeight = `${height}px`;
  place.replaceChildren(svg);
}

function powersBetween(low, high, count) {
  const powers = [];
  for (let power = 1; power <= high; power *= 2) if (power >= low) powers.push(power);
  const every = Math.max(1, Math.ceil(powers.length / (count + 1)));
  return powers.filter((_, at) => at % every === 0);
}

/** Crossings with backpropagation: a ring where they are, and what begins there. */
function drawCrossings(svg, grown, values, places, x, y, bottom, right) {
  for (const crossing of grown.crossings.filter((each) => each.cheaper === "bp" || each.dearer === "bp")) {
    const at = Number(crossing.at);
    if (at < places[0] || at > places[places.length - 1]) continue;
    svg.append(
      svgLine(x(at), y(1), x(at), bottom, { "stroke-dasharray": "2 3", style: "stroke: var(--ink)" }),
      svgElement("circle", {
        cx: x(at),
        cy: y(1),
        r: 5,
        fill: "var(--page)",
        stroke: "var(--ink)",
        "stroke-width": 1.8,
      }),
    );
    const text = `${titleOf(crossing.cheaper)} is cheaper`,
      fits = x(at) + textWidth(text, 13) + 16 < right;
    const place = { x: x(at) + (fits ? 8 : -8), anchor: fits ? "start" : "end" };
    svg.append(
      svgText(place.x, bottom - 30, `from ${grouped(exact(crossing.at))} tokens`, {
        class: "strong halo",
        "text-anchor": place.anchor,
      }),
      svgText(place.x, bottom - 12, text, { class: "halo", "text-anchor": place.anchor }),
    );
  }
}
