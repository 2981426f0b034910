// Conventions: all price books on one line as multiples of the matrix products, and the way to one of them.
"use strict";

section(
  "conventions",
  "conventions",
  (place) => {
    const conventions = page.step.conventions;
    if (!conventions?.bars?.length || !page.step.summary.learns) return false;
    const names = Object.keys(conventions.to),
      usual = names.includes("torch-flop-counter") ? "torch-flop-counter" : names[names.length - 1];
    const to = names.includes(page.state.to) ? page.state.to : usual;
    const strip = element("div"),
      picks = element("div", { class: "controls" }),
      bars = element("div");
    const books = new Set(conventions.bars.map((bar) => bar.price_book)).size;
    const end = conventions.bars.find((bar) => bar.price_book === to),
      start = conventions.bars.find((bar) => bar.price_book === "matmul");
    place.replaceChildren(
      ...heading(
        "Why others count differently",
        `${conventions.findings[to][0].toUpperCase()}${conventions.findings[to].slice(1)}. ${books} price books count the same step of backpropagation, as multiples of its matrix products; choose one to see the difference, item by item.`,
      ),
      ...fixedLine(fixedSizes()),
      strip,
      picks,
      bars,
      element(
        "p",
        { class: "caption" },
        `FLOPs of forward, backward and the weights’ gradients; without the optimizer step. ${end.price_book}: ${end.title}; ${end.source}.`,
      ),
      asTable(
        ["what", "FLOPs"],
        [
          ["matmul", grouped(exact(start.amount))],
          ...conventions.to[to].items.map((item) => [item.what, grouped(exact(item.amount))]),
          [to, grouped(exact(end.amount))],
        ],
      ),
    );
    const select = element(
      "select",
      { "aria-label": "Price book", "data-control": "to", onchange: (event) => choose({ to: event.target.value }) },
      ...names.map((name) => element("option", { value: name, selected: name === to }, name)),
    );
    picks.replaceChildren(
      element("span", { class: "what" }, "from matmul to"),
      element("div", { class: "field" }, select),
    );
    drawStrip(strip, conventions.bars, to);
    drawBridge(bars, conventions.to[to], start, end);
  },
  () => [page.state.to, fixedSizes()],
);

function drawStrip(place, all, to) {
  const bars = all.filter((bar) => bar.ratio !== null),
    width = widthOf(place),
    low = Math.min(...bars.map((bar) => bar.ratio)),
    high = Math.max(...bars.map((bar) => bar.ratio));
  const pad = (high - low || 0.2) * 0.06,
    x = linearScale(low - pad, high + pad, 40, width - 40),
    groups = [];
  for (const bar of [...bars].sort((left, right) => left.ratio - right.ratio)) {
    const last = groups[groups.length - 1];
    if (last && x(bar.ratio) - x(last.ratio) < 9) last.bars.push(bar);
    else groups.push({ ratio: bar.ratio, bars: [bar] });
  }
  const levels = [];
  for (const group of groups) {
    const chosen =
      group.bars.find((bar) => bar.price_book === to) ??
      group.bars.find((bar) => bar.price_book === "run") ??
      group.bars[0];
    group.text = chosen.price_book + (group.bars.length > 1 ? ` +${group.bars.length - 1}` : "");
    const half = textWidth(group.text, 13, chosen.price_book === to ? 600 : 400) / 2,
      at = Math.min(width - half, Math.max(half, x(group.ratio)));
    let level = 0;
    while ((levels[level] ?? -Infinity) > at - half - 8) level += 1;
    levels[level] = at + half;
    Object.assign(group, { level, at, chosen: chosen.price_book === to });
  }
  const height = 58 + 18 * levels.length,
    y = height - 30,
    svg = chart(
      width,
      height,
      `Price books as multiples of the matrix products: ${bars.map((bar) => `${bar.price_book} ${digits(bar.ratio)}`).join(", ")}`,
    );
  svg.append(svgLine(0, y, width, y));
  const marks = ticks(low, high, 6),
    digitsAfter = decimalsOf(marks);
  for (const tick of marks)
    svg.append(
      svgLine(x(tick), y - 4, x(tick), y + 4),
      svgText(x(tick), y + 24, tick.toFixed(digitsAfter), { class: "axis", "text-anchor": "middle" }),
    );
  for (const group of groups) {
    const top = y - 14 - 18 * group.level;
    if (group.level || Math.abs(group.at - x(group.ratio)) > 1)
      svg.append(svgLine(x(group.ratio), top + 4, x(group.ratio), y - 6));
    const dot = svgElement(
      "circle",
      {
        cx: x(group.ratio),
        cy: y,
        r: group.chosen ? 6 : 5,
        fill: group.chosen ? "var(--ink)" : "var(--page)",
        stroke: "var(--ink)",
        "stroke-width": 1.8,
        style: "cursor: pointer",
      },
      svgElement(
        "title",
        {},
        group.bars.map((bar) => `${bar.price_book}: ${bar.title}, ${digits(bar.ratio)} ×`).join("\n"),
      ),
    );
    const next = group.bars.find((bar) => bar.price_book in page.step.conventions.to);
    if (next) dot.addEventListener("click", () => choose({ to: next.price_book }));
    svg.append(
      dot,
      svgText(group.at, top, group.text, { "text-anchor": "middle", class: group.chosen ? "strong" : "" }),
    );
  }
  place.replaceChildren(svg);
  place.style.marginBottom = "20px";
}

function drawBridge(place, bridge, start, end) {
  const width = widthOf(place),
    [low, high] = bridge.reach.map(Number);
  const rows = [
    {
      what: `matmul: ${start.title}`,
      short: "matmul",
      from: low,
      to: Number(start.amount),
      kind: "total",
      amount: exact(start.amount),
    },
  ];
  let level = Number(start.amount);
  for (const item of bridge.drawn) {
    const next = level + Number(item.amount);
    rows.push({
      what: item.what,
      from: level,
      to: next,
      kind: next >= level ? "more" : "less",
      amount: exact(item.amount),
    });
    level = next;
  }
  rows.push({
    what: end.price_book,
    short: end.price_book,
    from: low,
    to: Number(end.amount),
    kind: "total",
    amount: exact(end.amount),
  });
  const labelWidth = Math.min(400, width * 0.36),
    fits = (space) => (text) => text && textWidth(text, 13, 500) < space;
  const narrow = width < 620 || !rows.every((bar) => [bar.what, bar.short].some(fits(labelWidth - 12))), // names are above bars
    row = narrow ? 50 : 34,
    label = narrow ? 0 : labelWidth,
    space = narrow ? width : label - 12;
  const x = linearScale(low, high, label, width - 90),
    svg = chart(width, rows.length * row, `From matmul to ${end.price_book}, item by item`);
  rows.forEach((bar, at) => {
    const y = at * row + (narrow ? 22 : 5),
      from = Math.min(x(bar.from), x(bar.to)),
      wide = Math.max(1, Math.abs(x(bar.to) - x(bar.from)));
    const name = [bar.what, bar.short].find(fits(space)) ?? bar.short ?? shortened(bar.what, space);
    svg.append(svgText(0, narrow ? y - 6 : y + 16, name, { class: bar.kind === "total" ? "strong halo" : "halo" }));
    svg.append(
      svgElement(
        "rect",
        {
          x: from,
          y,
          width: wide,
          height: 22,
          fill: bar.kind === "total" ? "var(--ink)" : bar.kind === "more" ? "var(--neutral-3)" : "var(--page)",
          stroke: bar.kind === "less" ? "var(--ink)" : "none",
          "stroke-width": 1.2,
        },
        svgElement("title", {}, bar.what),
      ),
    );
    if (at < rows.length - 1)
      svg.append(
        svgLine(x(bar.to), y + 22, x(bar.to), y + row, {
          "stroke-dasharray": "1.5 2.5",
          style: "stroke: var(--faint)",
        }),
      );
    svg.append(
      svgText(Math.max(x(bar.from), x(bar.to)) + 8, y + 16, `${bar.kind === "more" ? "+" : ""}${si(bar.amount)}`, {
        class: bar.kind === "total" ? "strong" : "",
      }),
    );
  });
  place.replaceChildren(
    svg,
    ...(low > 0 ? [element("p", { class: "caption" }, `The bars begin at ${si(low)}, not at 0.`)] : []),
  );
}

/** The words of a name that fit. */
function shortened(text, space) {
  const words = text.split(" ");
  while (words.length > 1 && textWidth(words.join(" "), 13, 500) > space) words.pop();
  return words.join(" ").replace(/[,:;]$/, "");
}
