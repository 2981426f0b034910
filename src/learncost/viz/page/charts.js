// What charts have in common: scales, ticks, texts, and which pass has which colour.
"use strict";

function logScale(low, high, from, to) {
  const start = Math.log(low),
    span = Math.log(high) - start || 1;
  return (value) => from + ((Math.log(value) - start) / span) * (to - from);
}

function linearScale(low, high, from, to) {
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}

/** Round numbers between two ends, about so many. */
function ticks(low, high, count) {
  const span = high - low || 1,
    raw = span / count,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((multiple) => multiple * power).find((multiple) => multiple >= raw * 0.999);
  const places = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step)
    places.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return places;
}

/** How many digits after the point tell ticks apart. */
function decimalsOf(places) {
  return [0, 1, 2, 3, 4, 5].find((many) => places.every((tick) => Math.abs(Number(tick.toFixed(many)) - tick) < 1e-9)) ?? 6;
}

/** A number at an axis: no zeros after the point that say nothing there. */
function tickText(text) {
  return text.replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
}

/** Powers of ten between two ends. */
function decades(low, high) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.floor(Math.log10(high) + 1e-9); power += 1)
    powers.push(10 ** power);
  return powers;
}

function svgText(x, y, text, attributes = {}) {
  return svgElement("text", { x, y, ...attributes }, text);
}

function svgLine(x1, y1, x2, y2, attributes = {}) {
  return svgElement("line", { x1, y1, x2, y2, class: "grid", ...attributes });
}

function chart(width, height, label) {
  return svgElement("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
}

const PASSES = ["forward", "recomputation", "backward", "error_projection", "weight_update", "optimizer_step"];

function isPass(kind) {
  return PASSES.includes(kind.replaceAll(" ", "_"));
}

function colourOf(kind) {
  if (isPass(kind)) return `var(--${kind.replaceAll(" ", "_")})`;
  return (
    {
      weights: "var(--neutral-2)",
      "optimizer state": "var(--neutral-3)",
      gradients: "var(--weight_update)",
      batch: "var(--neutral-1)",
    }[kind] ?? "var(--neutral-1)"
  );
}

/** Whether a name of a line or a layer in a table of the data is meant: "feed_forward" is "feed forward". */
function plainName(name) {
  return (name ?? "").replaceAll("_", " ");
}

const PAPER = { whole: 688, withPanel: 418 }; // an A4 page within its margins, as style.css has them
const sectionWidths = new Map();

/** Return the width of a place. All places of a section have the same width, except those with a panel, so that each is
 * measured once per page width, because measuring forces a layout. The widths on paper are constants. */
function widthOf(place, least = 280) {
  const section = place.closest("section")?.id,
    withPanel = place.closest(".with-panel") !== null,
    key = `${section} ${withPanel} ${page.width}`;
  if (page.paper) return withPanel ? PAPER.withPanel : PAPER.whole;
  if (!section || !sectionWidths.get(key)) sectionWidths.set(key, place.clientWidth);
  return Math.max(least, sectionWidths.get(key) || 760);
}

/** Data of other procedures of the same model, which a document for one of them may have and another not. */
function siblings() {
  const model = caseName(page.step, "model");
  return GIVEN.documents.filter((step) => caseName(step, "model") === model && !GIVEN.api);
}

/** Return the note of a section that keeps the document's sizes while others are chosen, or "". `follows` are sizes that
 * the section does follow. */
function fixedSizes(...follows) {
  if (!page.view.changed || GIVEN.api) return "";
  const { step, view } = page;
  const others = step.sizes.filter(({ name, value }) => !follows.includes(name) && view.names[name] !== exact(value)),
    chosen = others.filter(({ name }) => page.state[name] !== undefined);
  const made = (chosen.length ? chosen : others).map(({ name, value }) => `${name.replaceAll("_", " ")} ${grouped(exact(value))}`);
  return made.length ? `Sliders do not move this part. It shows the sizes of the report: ${made.join("; ")}.` : "";
}

/** The same as a line below the heading of a section. */
function fixedLine(text) {
  return text ? [element("p", { class: "mark fixed" }, text)] : [];
}
