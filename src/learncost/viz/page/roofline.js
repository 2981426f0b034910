// Time: what limits the step on the device, and every kernel under its roof.
"use strict";

const LIMITS = ["compute", "memory", "launch"];

section("time", "time", (place) => {
  const { step, view } = page,
    { timed } = view;
  if (!timed) return false;
  const order = LIMITS.filter((name) => timed.limits[name] > 0).sort(
    (left, right) => timed.limits[right] - timed.limits[left],
  );
  const all = order.reduce((sum, name) => sum + timed.limits[name], 0);
  const bounds = order.map((name) => `${share(timed.limits[name], all)} ${name}-bound`).join(", ");
  const finding = `On the ${step.summary.device} the step is ${bounds}`;
  const recordedNote = (recorded) =>
    recorded
      ? `These are the kernels of the table. ${recorded.program === "recorded" ? "The module’s own step, recorded operator by operator," : `The step ${recorded.program}`} takes ` +
        `${seconds(recorded.seconds)} at the report’s sizes: the GPU is busy for ${seconds(recorded.busy)} and waits ` +
        `for the CPU for ${seconds(recorded.waiting)}. `
      : "";
  const roof = roofOf(step.time.rates),
    points = pointsNow(view, timed);
  const places = [element("div"), element("div")];
  place.replaceChildren(
    ...heading(
      finding,
      "Every kernel of the step, its area the time that it takes. Under the slope memory bandwidth is the limit, under the flat roof compute. Kernels in the same place are one circle.",
    ),
    ...places,
    element(
      "p",
      { class: "caption" },
      `${recordedNote(step.time.recorded)}Predicted, not measured: ${seconds(view.totals.seconds)} is between ${between(view.totals.low, view.totals.high).replace("–", " and ")}. ${step.summary.device_source[0].toUpperCase()}${step.summary.device_source.slice(1)}. Lines that run inside another’s kernel have no point of their own.`,
    ),
    asTable(
      ["layer", "line", "pass", "FLOPs a byte", "FLOP/s", "time", "limit"],
      points.map((point) => [
        point.layer,
        point.line,
        passName(point.phase),
        digits(point.x),
        si(point.y),
        seconds(point.seconds),
        point.limit,
      ]),
    ),
  );
  drawLimits(places[0], timed, order, all);
  drawRoof(places[1], points, roof);
});

function pointsNow(view, timed) {
  return timed.points
    .filter((point) => point.flops > 0 && point.bytes > 0 && point.seconds > 0)
    .map((point) => {
      const line = view.lines[point.line];
      const limit = Object.keys(point.limits).reduce((most, name) =>
        point.limits[name] > point.limits[most] ? name : most,
      );
      return {
        x: point.flops / point.bytes,
        y: point.flops / point.seconds,
        seconds: point.seconds,
        phase: line.phase,
        layer: plainName(line.layer),
        line: line.line,
        limit,
      };
    });
}

function roofOf(rates) {
  const { values } = rates.bandwidth,
    bandwidth = values[values.length - 1];
  const peak = Math.max(...rates.grids.map((grid) => Math.max(...grid.rates)));
  return { bandwidth, peak, ridge: peak / bandwidth };
}

function drawLimits(place, timed, order, all) {
  const width = widthOf(place),
    svg = chart(
      width,
      26,
      `What limits the time: ${order.map((name) => `${name}-bound ${share(timed.limits[name], all)}`).join(", ")}`,
    );
  let x = 0;
  order.forEach((name, at) => {
    const span = (timed.limits[name] / all) * width,
      text = [
        `${name}-bound ${share(timed.limits[name], all)}`,
        `${name} ${share(timed.limits[name], all)}`,
        name,
      ].find((label) => textWidth(label, 13) < span - 14);
    svg.append(
      svgElement("rect", { x, y: 0, width: Math.max(1, span - 1), height: 26, fill: `var(--neutral-${3 - at})` }),
    );
    if (text) svg.append(svgText(x + 8, 18, text));
    x += span;
  });
  place.replaceChildren(svg);
  place.style.marginBottom = "12px";
}

/** Points that lie within five pixels of each other, as one with wedges by pass. */
function merged(points, x, y, radius) {
  const circles = [];
  for (const point of [...points].sort((left, right) => right.seconds - left.seconds)) {
    const near = circles.find(
      (circle) => Math.hypot(circle.x - x(point.x), circle.y - y(point.y)) < Math.max(5, 0.6 * radius(circle.seconds)),
    );
    if (near) {
      near.seconds += point.seconds;
      near.parts.push(point);
    } else circles.push({ x: x(point.x), y: y(point.y), seconds: point.seconds, parts: [point] });
  }
  return circles.map((circle) => ({ ...circle, radius: Math.max(2.5, radius(circle.seconds)) }));
}

function drawRoof(place, points, roof) {
  const width = widthOf(place),
    narrow = width < 560,
    height = page.paper ? 340 : narrow ? 360 : 420,
    left = 56,
    right = 8,
    top = 30,
    bottom = 48;
  const drawn = points.filter((point) => point.x >= 0.02 && point.y >= roof.peak / 1e5),
    left_out = points.length - drawn.length;
  const xs = drawn.map((point) => point.x),
    ys = drawn.map((point) => point.y);
  const low = Math.min(roof.ridge / 10, ...xs) * 0.7,
    high = Math.max(roof.ridge * 10, ...xs) * 1.6;
  const x = logScale(low, high, left, width - right),
    y = logScale(Math.min(roof.peak / 1000, ...ys) * 0.7, roof.peak * 3, height - bottom, top);
  const svg = chart(
    width,
    height,
    `Roofline: ${points.length} kernels, the ridge at ${digits(roof.ridge)} FLOPs a byte`,
  );
  for (const tick of decades(low, high))
    svg.append(
      svgLine(x(tick), top, x(tick), height - bottom),
      svgText(
        x(tick),
        height - bottom + 20,
        tick < 1 ? String(tick) : narrow ? tickText(si(tick)).replace(" ", "") : grouped(BigInt(Math.round(tick))),
        { class: "axis", "text-anchor": "middle" },
      ),
    );
  for (const tick of decades(Math.min(roof.peak / 1000, ...ys) * 0.7, roof.peak * 3))
    svg.append(
      svgLine(left, y(tick), width - right, y(tick)),
      svgText(left - 8, y(tick) + 4, tickText(si(tick)), { class: "axis", "text-anchor": "end" }),
    );
  const start = Math.max(
    low,
    Math.exp(
      Math.log(roof.ridge) -
        (y(Math.min(roof.peak / 1000, ...ys) * 0.7) - y(roof.peak)) /
          ((height - bottom - top) / Math.log((roof.peak * 3) / (Math.min(roof.peak / 1000, ...ys) * 0.7))),
    ),
  );
  svg.append(
    svgElement("path", {
      d: `M${x(start)},${y(start * roof.bandwidth)} L${x(roof.ridge)},${y(roof.peak)} H${width - right}`,
      class: "rule",
    }),
  );
  svg.append(
    svgLine(x(roof.ridge), y(roof.peak), x(roof.ridge), height - bottom, {
      "stroke-dasharray": "2 3",
      style: "stroke: var(--faint)",
    }),
    svgText(x(roof.ridge) + 5, height - bottom - 6, `ridge ${digits(roof.ridge)}`, { class: "faint small" }),
  );
  svg.append(
    svgText(width - right, y(roof.peak) - 28, `compute ${si(roof.peak, "FLOP/s")}, ${page.step.summary.dtype}`, {
      class: "faint small",
      "text-anchor": "end",
    }),
  );
  const angle = (Math.atan2(y(roof.peak) - y(start * roof.bandwidth), x(roof.ridge) - x(start)) * 180) / Math.PI,
    at = Math.sqrt(Math.max(start, low) * roof.ridge);
  svg.append(
    svgText(x(at), y(at * roof.bandwidth) - 7, `memory ${si(roof.bandwidth, "B/s")}`, {
      class: "faint small",
      "text-anchor": "middle",
      transform: `rotate(${angle} ${x(at)} ${y(at * roof.bandwidth) - 7})`,
    }),
  );
  svg.append(
    svgText(left, top - 14, "↑ FLOP/s reached", { class: "axis" }),
    svgText(width - right, height - 8, "FLOPs for each byte moved →", { class: "axis", "text-anchor": "end" }),
  );
  const most = Math.max(...drawn.map((point) => point.seconds)),
    radius = (amount) => Math.sqrt(amount / most) * (narrow ? 12 : 17);
  const circles = merged(drawn, x, y, radius);
  for (const circle of circles) svg.append(pie(circle));
  placeLabels(svg, circles, {
    left,
    right: width - right,
    top,
    bottom: height - bottom,
    roof: (px) =>
      y(
        Math.min(
          roof.peak,
          low * Math.exp(((px - left) / (width - right - left)) * Math.log(high / low)) * roof.bandwidth,
        ),
      ),
    most: narrow ? 4 : 11,
  });
  place.style.minHeight = `${height}px`;
  place.replaceChildren(
    svg,
    ...(left_out
      ? [
          element(
            "p",
            { class: "caption" },
            `${left_out} ${plural(BigInt(left_out), "kernel")} that ${left_out === 1 ? "computes" : "compute"} next to nothing ${left_out === 1 ? "is" : "are"} outside of the drawing; the table has all.`,
          ),
        ]
      : []),
  );
}

function pie(circle) {
  const parts = new Map();
  for (const part of circle.parts) parts.set(part.phase, (parts.get(part.phase) ?? 0) + part.seconds);
  const group = svgElement("g", {}, svgElement("title", {}, labelOf(circle)));
  if (parts.size === 1)
    return (
      group.append(
        svgElement("circle", {
          cx: circle.x,
          cy: circle.y,
          r: circle.radius,
          fill: colourOf([...parts.keys()][0]),
          stroke: "var(--page)",
        }),
      ),
      group
    );
  let from = -Math.PI / 2;
  for (const [phase, seconds] of parts) {
    const to = from + (seconds / circle.seconds) * 2 * Math.PI,
      point = (angle) => `${circle.x + circle.radius * Math.cos(angle)},${circle.y + circle.radius * Math.sin(angle)}`;
    group.append(
      svgElement("path", {
        d: `M${circle.x},${circle.y} L${point(from)} A${circle.radius},${circle.radius} 0 ${to - from > Math.PI ? 1 : 0} 1 ${point(to - 1e-6)} Z`,
        fill: colourOf(phase),
        stroke: "var(--page)",
        "stroke-width": 0.7,
      }),
    );
    from = to;
  }
  return group;
}

function labelOf(circle) {
  const layers = [...new Set(circle.parts.map((part) => part.layer))];
  return `${layers.slice(0, 2).join(", ")}${layers.length > 2 ? " …" : ""}${circle.parts.length > 1 ? ` · ${circle.parts.length} kernels` : ` ${circle.parts[0].line}`}`.replace(
    " …",
    ` and ${layers.length - 2} more`,
  );
}

/** Labels in seven positions, the longest times first: none over the roof, another label or another dot. */
function placeLabels(svg, circles, space) {
  const boxes = circles.map((circle) => ({
    x: circle.x - circle.radius,
    y: circle.y - circle.radius,
    width: 2 * circle.radius,
    height: 2 * circle.radius,
  }));
  let placed = 0;
  for (const circle of circles) {
    if (placed >= space.most) return;
    const text = labelOf(circle),
      width = textWidth(text, 13),
      r = circle.radius + 5;
    const places = [
      [r, -8],
      [-r - width, -8],
      [-width / 2, -r - 16],
      [-width / 2, r],
      [r, r - 10],
      [-r - width, r - 10],
      [r, -r - 10],
    ].map(([dx, dy]) => ({ x: circle.x + dx, y: circle.y + dy, width, height: 16 }));
    const free = places.find(
      (box) =>
        box.x > space.left &&
        box.x + box.width < space.right &&
        box.y > space.top &&
        box.y + 16 < space.bottom - 16 &&
        box.y > space.roof(box.x) + 4 &&
        boxes.every(
          (other) =>
            box.x + box.width < other.x ||
            other.x + other.width < box.x ||
            box.y + box.height < other.y ||
            other.y + other.height < box.y,
        ),
    );
    if (!free) continue;
    boxes.push(free);
    placed += 1;
    svg.append(svgText(free.x, free.y + 13, text, { class: "halo" }));
  }
}
