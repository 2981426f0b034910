// Blocks: boxes over moments and places, as arrays lie in a memory; at the pointer what one is.
"use strict";

function drawBlocks(chart, place) {
  const width = widthOf(place),
    left = 66,
    top = 30,
    bottom = 40,
    height = width < 560 ? 360 : 420;
  const moments = Math.max(1, ...chart.spans.map(([, , last]) => last)),
    x = linearScale(1, moments + 1, left, width - 4),
    y = linearScale(0, Number(chart.height) || 1, height - bottom, top);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": `${chart.heading}: ${chart.boxes.length} arrays in ${amountText(chart.height, chart.unit)} over ${moments} ${chart.moments}s`,
    style: "cursor: crosshair",
  });
  const kinds = [...new Set([...chart.boxes.map(([, kind]) => kind), ...chart.spans.map(([kind]) => kind)])],
    fills = fillsOf(kinds),
    description = element("p", { class: "caption described", "aria-live": "off" });
  for (const tick of ticks(0, Number(chart.height), 5))
    svg.append(
      svgLine(left, y(tick), width - 4, y(tick)),
      svgText(left - 8, y(tick) + 4, tick ? tickText(amountText(tick, chart.unit)) : "0", { class: "axis", "text-anchor": "end" }),
    );
  drawSpans(svg, chart, x, fills);
  const tell = (box) => {
    const [name, kind, where, first, last, begin, size] = box;
    const scratch = kind === "given" ? "" : `${passName(kind)}${where ? `, ${where}` : ""}: `;
    description.textContent = `${name} of ${scratch}${amountText(size, chart.unit)} from byte ${grouped(exact(begin))} on, from ${chart.moments} ${first} to ${last}.`;
  };
  const largest = chart.boxes.reduce((most, box) => (Number(box[6]) * (box[4] - box[3] + 1) > Number(most[6]) * (most[4] - most[3] + 1) ? box : most), chart.boxes[0]);
  for (const [number, box] of chart.boxes.entries()) {
    const [name, kind, , first, last, begin, size] = box,
      from = x(first),
      to = x(last + 1),
      low = y(Number(begin)),
      high = y(Number(begin) + Number(size));
    if (low - high < 0.3 || to - from < 0.3) continue;
    const rect = svgElement("rect", {
      x: from.toFixed(1),
      y: high.toFixed(1),
      width: Math.max(0.6, to - from - 0.6).toFixed(1),
      height: Math.max(0.6, low - high - 0.6).toFixed(1),
      fill: fills.get(kind),
      "fill-opacity": 0.88,
    });
    rect.addEventListener("pointerenter", () => tell(box));
    rect.addEventListener("pointerdown", () => tell(box));
    svg.append(rect);
    if (low - high > 16 && textWidth(name, 12) < Math.min(to, x(coveredFrom(chart.boxes, number))) - from - 10)
      svg.append(svgText(from + 5, (low + high) / 2 + 4, name, { class: "small", style: `${inkOn(fills.get(kind))}; pointer-events: none` }));
  }
  svg.append(svgText(width - 4, height - 8, `${chart.moments}s, one after the other →`, { class: "axis", "text-anchor": "end" }));
  if (largest) tell(largest);
  return [
    keysOf(fills),
    svg,
    description,
    asTable(
      ["array", "made in", "", `first ${chart.moments}`, `last ${chart.moments}`, "from byte", "bytes"],
      chart.boxes.map(([name, kind, where, first, last, begin, size]) => [name, passName(kind), where, first, last, grouped(exact(begin)), grouped(exact(size))]),
    ),
  ];
}

/** The moment from which another array is drawn over one: an in-place result has the address of its operand. */
function coveredFrom(boxes, number) {
  const [, , , first, last, begin, size] = boxes[number],
    middle = Number(begin) + Number(size) / 2;
  return boxes
    .slice(number + 1)
    .filter((other) => other[3] <= last && other[4] >= first && Number(other[5]) <= middle && Number(other[5]) + Number(other[6]) >= middle)
    .reduce((least, other) => Math.min(least, other[3]), last + 1);
}

/** The kinds as they follow each other, as a strip above the boxes. */
function drawSpans(svg, chart, x, fills) {
  for (const [kind, first, last] of chart.spans)
    svg.append(svgElement("rect", { x: x(first), y: 18, width: Math.max(0.6, x(last + 1) - x(first)), height: 6, fill: fills.get(kind) }));
  svg.append(svgText(x(1), 12, "what runs", { class: "axis small" }));
}
