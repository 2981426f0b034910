// The icicle: the step, its passes, their layers, their lines; every cell as wide as its share. On phones it is vertical.
"use strict";

const ROW = 58;

function svgElement(name, attributes = {}, ...inner) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style" && value)
      element.style.cssText = value; // which a content security policy allows
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...inner.filter((child) => child !== null && child !== undefined));
  return element;
}

function element(name, attributes = {}, ...inner) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value ?? "";
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...inner.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A box that is moved sideways where what is in it is wider, by keys too. */
function scrollBox(name, ...inner) {
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": name }, ...inner);
}

const widths = new Map();
const measuring = document.createElement("canvas").getContext("2d");
const family = getComputedStyle(document.body).fontFamily;

function textWidth(text, size = 13, weight = 400) {
  const key = `${weight} ${size} ${text}`;
  if (!widths.has(key)) {
    measuring.font = `${weight} ${size}px ${family}`;
    widths.set(key, measuring.measureText(text).width);
  }
  return widths.get(key);
}

/** The cells of a tree: x and width along the cost, as shares of the whole; those of no width are left out. */
function cells(root, width) {
  const boxes = [];
  const place = (node, x) => {
    const span = root.value ? (Number(node.value) / Number(root.value)) * width : node === root ? width : 0;
    if (span < 0.6) return;
    boxes.push({ node, x, width: span });
    let at = x;
    for (const part of node.parts) {
      place(part, at);
      at += root.value ? (Number(part.value) / Number(root.value)) * width : 0;
    }
  };
  place(root, 0);
  return boxes;
}

function nameOf(node) {
  return node.kind === "layer" && node.repeat > 1 ? `${node.name} × ${node.repeat}` : node.word || node.name;
}

/** What is written in a cell: never more than fits, never cut. */
function label(node, space, height, root, quantity) {
  if (height < 17) return [];
  const description = QUANTITIES[quantity];
  const times = nameOf(node);
  const number = node.line?.equation ? `(${node.line.equation})` : "";
  const value = description.short(node.value),
    full = `${value} · ${share(node.value, root.value)}`;
  const second =
    node.depth === 0
      ? [`${value} ${quantity === "flops" ? "FLOPs" : quantity === "maccs" ? "MACCs" : ""}`]
      : node.line
        ? number
          ? [`${number} ${value}`, number]
          : [value]
        : [full, value];
  const names = [times, node.name, ...(node.shorter ?? [node.short])].filter(Boolean);
  const fits = (text, size, weight) => textWidth(text, size, weight) <= space - 15;
  const name = names.find((candidate) => fits(candidate, 13, 500));
  if (!name) return [];
  const below = height >= 36 ? second.find((candidate) => fits(candidate, 12, 400)) : null;
  return below ? [name, below] : [name];
}

/** The cells of the part `top` of the tree `root`; shares are those of the whole tree. */
function drawIcicle(place, root, top, quantity, current, choose, zoom) {
  const width = widthOf(place);
  const vertical = width < 560 && !page.paper;
  const levels = 4 - top.depth;
  const height = vertical ? 560 : levels * (ROW + 1) - 1;
  const boxes = cells(top, vertical ? height : width);
  const columns = { 4: [0, 0, 0.3, 0.66, 1], 3: [0, 0, 0.45, 1], 2: [0, 0, 1] }[levels].map((part) => part * width);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "tree",
    "aria-label": `Cost of ${root.name} by ${QUANTITIES[quantity].title}: arrow keys walk from cell to cell, Enter zooms in, Escape out`,
    id: "icicle-svg",
  });
  let ring = null;
  for (const cell of boxes) {
    const { node } = cell;
    const row = node.depth - top.depth;
    if (vertical && row === 0) continue;
    const box = vertical
      ? {
          x: columns[row],
          y: cell.x,
          width: columns[row + 1] - columns[row] - 1,
          height: Math.max(0.5, cell.width - 1),
        }
      : { x: cell.x, y: row * (ROW + 1), width: Math.max(0.5, cell.width - 1), height: ROW };
    const texts = label(node, box.width, box.height, root, quantity);
    const pass = node.phase;
    const level = pass ? (node.depth === 1 ? "level-1" : `level-${node.depth}`) : null;
    const strong = node.kind === "pass" && node.depth === 1;
    const rect = svgElement("rect", { ...box, class: pass ? level : null, fill: pass ? null : "var(--neutral-1)" });
    const words = texts.map((text, line) =>
      svgElement(
        "text",
        {
          x: box.x + 7,
          y:
            box.y +
            (texts.length > 1 || box.height > 40
              ? (box.height >= 40 ? 22 : 15) + 18 * line
              : Math.min(box.height - 4, box.height / 2 + 5)),
          class: `${line ? "small" : "strong"} ${strong ? "on" : ""}`,
        },
        text,
      ),
    );
    const spoken = [
      ...texts,
      `${node.name}: ${QUANTITIES[quantity].prose(node.value)} ${QUANTITIES[quantity].unit}, ${share(node.value, root.value)}`,
    ].join(" ");
    const group = svgElement(
      "g",
      {
        role: "treeitem",
        tabindex: node.key === current.key ? 0 : -1,
        "data-key": node.key,
        "aria-level": node.depth + 1,
        "aria-selected": node.key === current.key,
        "aria-label": spoken,
        style: pass ? `--pass: var(--${pass}); --on-pass: var(--on-${pass})` : null,
      },
      rect,
      ...words,
    );
    if (pass === "recomputation" && node.depth < 3)
      group.append(svgElement("rect", { ...box, fill: "url(#hatch)", "pointer-events": "none" }));
    group.addEventListener("click", () => choose(node, "fix"));
    group.addEventListener("dblclick", () => zoom(node === top ? top.parent : node));
    group.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && choose(node, "look"));
    if (node.key === current.key)
      ring = svgElement("rect", {
        x: box.x,
        y: box.y,
        width: Math.max(1.5, box.width),
        height: Math.max(1.5, box.height),
        fill: "none",
        stroke: "var(--ink)",
        "stroke-width": 2.5,
        "pointer-events": "none",
      });
    svg.append(group);
  }
  svg.prepend(hatch());
  if (ring) svg.append(ring);
  svg.addEventListener("pointerleave", () => choose(null, "look"));
  svg.addEventListener("keydown", (event) => walkIcicle(event, top, current, boxes, choose, zoom));
  const focused = place.contains(document.activeElement);
  place.style.minHeight = `${height}px`;
  place.replaceChildren(svg);
  if (focused) svg.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
}

/** The part that is shown alone, and what it is part of, each a button that zooms out to it. */
function drawBreadcrumb(place, top, zoom) {
  const path = [];
  for (let node = top; node; node = node.parent) path.unshift(node);
  const steps = path.flatMap((node, at) => [
    at ? " › " : null,
    node === top
      ? element("b", { "aria-current": "true" }, nameOf(node))
      : element("button", { type: "button", onclick: () => zoom(node) }, nameOf(node)),
  ]);
  place.replaceChildren(...(top.parent ? steps.filter(Boolean) : []));
}

function hatch() {
  return svgElement(
    "defs",
    {},
    svgElement(
      "pattern",
      { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svgElement("rect", { width: 1.5, height: 6, fill: "#16191d", "fill-opacity": 0.35 }),
    ),
  );
}

function walkIcicle(event, top, current, boxes, choose, zoom) {
  const drawn = new Set(boxes.map((cell) => cell.node));
  const above = current === top ? null : current.parent,
    among = (above?.parts ?? [top]).filter((node) => drawn.has(node));
  const at = among.indexOf(current);
  const largest = current.parts
    .filter((node) => drawn.has(node))
    .reduce((most, node) => (!most || node.value > most.value ? node : most), null);
  const next = {
    ArrowRight: among[at + 1],
    ArrowLeft: among[at - 1],
    ArrowDown: largest,
    ArrowUp: above,
    Home: among[0],
    End: among[among.length - 1],
    " ": current,
  };
  if (event.key === "Enter") zoom(current);
  else if (event.key === "Escape" && current === top) zoom(top.parent);
  else if (event.key === "Escape") choose(top, "fix");
  else if (!(event.key in next)) return;
  else if (next[event.key]) choose(next[event.key], "fix");
  event.preventDefault();
}

function drawLegend(place, root, quantity) {
  const passes = new Map();
  for (const line of root.lines)
    passes.set(line.phase, (passes.get(line.phase) ?? (QUANTITIES[quantity].exact ? 0n : 0)) + line.values[quantity]);
  place.replaceChildren(
    ...[...passes]
      .filter(([, value]) => value)
      .map(([phase, value]) =>
        element(
          "span",
          { class: "key" },
          element("i", { class: "swatch", style: `background: var(--${phase})` }),
          element("span", {}, passName(phase)),
          element("b", {}, QUANTITIES[quantity].short(value)),
          element("small", {}, share(value, root.value)),
        ),
      ),
  );
}
