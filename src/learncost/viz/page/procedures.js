// Procedures side by side: the passes of each on one scale, its total, and its memory at the peak.
"use strict";

section("procedures", "procedures", (place) => {
  if (!page.step.summary.learns) return false;
  const rows = proceduresNow();
  if (rows.length < 2) return false;
  const base = rows.find((row) => row.name === "bp") ?? rows[0];
  const others = rows.filter((row) => row !== base);
  const least = others.reduce((best, row) => (row.flops < best.flops ? row : best)),
    most = others.reduce((best, row) => (row.flops > best.flops ? row : best));
  const name = (row) => titleOf(row.name),
    times = (row) => digits(Number(row.flops) / Number(base.flops));
  const finding =
    least === most
      ? `By ${name(least)} the step takes ${times(least)} times the FLOPs of ${name(base)}`
      : `${["", "One", "Two", "Three", "Four", "Five", "Six"][rows.length] ?? rows.length} learning procedures take ${times(least) < 1 ? times(least) : "1.00"} to ${times(most)} times the FLOPs of ${name(base)}`;
  const wide = widthOf(place) > 640,
    scale = Math.max(...rows.map((row) => Number(row.flops))),
    peaks = rows.some((row) => row.peak !== null),
    peakWidth = widthOf(place) > 900 ? 150 : 60;
  const top = Math.max(1, ...rows.map((row) => Number(row.peak ?? 0)));
  const columns = element(
    "tr",
    {},
    element("th", {}, ""),
    element("th", {}, "FLOPs in a step"),
    ...(peaks ? [element("th", {}, `memory at the peak, all by ${page.step.compared.memory}`)] : []),
  );
  const body = rows.map((row) => {
    const here = row.name === page.step.summary.procedure;
    const ratioText = row === base ? "1.00 × (base)" : ratio(row.flops, base.flops);
    return element(
      "tr",
      {},
      element("td", { class: `name ${here ? "here" : ""}` }, name(row), element("small", {}, row.name)),
      element(
        "td",
        {},
        passesBar(
          row,
          scale,
          wide ? Math.min(560, widthOf(place) - 346 - (peaks ? peakWidth + 112 : 0)) : widthOf(place) - 110,
          ratioText,
        ),
      ),
      ...(peaks ? [element("td", {}, peakBar(row, top, wide ? peakWidth : widthOf(place) - 110))] : []),
    );
  });
  place.replaceChildren(
    ...heading(finding, "Every bar is one training step at the same sizes; its parts are the passes of the procedure."),
    element("table", { class: "rows" }, element("thead", {}, columns), element("tbody", {}, ...body)),
    asTable(
      ["procedure", "pass", "FLOPs", "MACCs"],
      rows.flatMap((row) => [
        ...row.passes.map((pass) => [row.name, passName(pass.phase), grouped(pass.flops), grouped(pass.maccs)]),
        [row.name, "total", grouped(row.flops), grouped(row.maccs)],
      ]),
    ),
  );
});

/** The procedures at the sizes that are chosen: from the documents of each where they are there, else as they are. */
function proceduresNow() {
  const compared = page.step.compared?.procedures ?? [];
  const documents = new Map(siblings().map((step) => [step.summary.procedure, step]));
  return compared
    .filter((procedure) => !page.view.changed || documents.has(procedure.name) || GIVEN.api)
    .map((procedure) => {
      const step = documents.get(procedure.name);
      const view = step === page.step ? page.view : step ? viewTotals(step) : null;
      if (!view)
        return {
          name: procedure.name,
          flops: exact(procedure.flops),
          maccs: exact(procedure.maccs),
          peak: procedure.peak === null ? null : exact(procedure.peak),
          passes: procedure.passes.map((pass) => ({
            phase: pass.macro_operation,
            flops: exact(pass.flops),
            maccs: exact(pass.maccs),
          })),
        };
      const passes = new Map();
      for (const line of view.lines) {
        const pass = passes.get(line.phase) ?? { phase: line.phase, flops: 0n, maccs: 0n };
        pass.flops += line.values.flops;
        pass.maccs += line.values.maccs;
        passes.set(line.phase, pass);
      }
      return {
        name: procedure.name,
        flops: view.totals.flops,
        maccs: view.totals.maccs,
        // One engine for all: that of other sizes is the comparison's.
        peak: view.changed ? view.peak : procedure.peak === null ? null : exact(procedure.peak),
        passes: [...passes.values()],
      };
    });
}

/** Another document at the sizes that are chosen; null where it has no such sizes. */
function viewTotals(step) {
  try {
    return viewOf({ ...step, time: null }, chosenSizes(step, page.state));
  } catch (error) {
    if (error instanceof NotWhole) return null;
    throw error;
  }
}

function passesBar(row, scale, width, ratioText) {
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width + 110} 30`,
    height: 30,
    style: `width: ${width + 110}px`,
    role: "img",
    "aria-label": `${titleOf(row.name)}: ${grouped(row.flops)} FLOPs, ${ratioText}`,
  });
  let x = 0;
  svg.append(hatch());
  for (const pass of row.passes) {
    const span = (Number(pass.flops) / scale) * width;
    if (span < 0.4) continue;
    svg.append(svgElement("rect", { x, y: 2, width: Math.max(0.5, span - 1), height: 26, fill: colourOf(pass.phase) }));
    if (pass.phase === "recomputation")
      svg.append(svgElement("rect", { x, y: 2, width: Math.max(0.5, span - 1), height: 26, fill: "url(#hatch)" }));
    const word = passName(pass.phase);
    if (textWidth(word, 12) < span - 14)
      svg.append(svgText(x + 7, 19, word, { class: "small", style: `fill: var(--on-${pass.phase})` }));
    x += span;
  }
  svg.append(
    svgText(x + 8, 13, si(row.flops), { class: "strong" }),
    svgText(x + 8, 28, ratioText, { class: "faint small" }),
  );
  return svg;
}

function peakBar(row, top, width) {
  if (row.peak === null) return element("span", { class: "wait" }, "not known here");
  const span = (Number(row.peak) / top) * width;
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width + 80} 30`,
    height: 30,
    style: `width: ${width + 80}px`,
    role: "img",
    "aria-label": `${bytes(row.peak)} at the peak`,
  });
  svg.append(
    svgElement("rect", { x: 0, y: 9, width: span, height: 12, fill: "var(--neutral-3)" }),
    svgText(span + 8, 20, bytes(row.peak), { class: "strong" }),
  );
  return svg;
}
