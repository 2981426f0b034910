// What is shown of a document at the sizes that are chosen: the values of every line, and the tree that they make.
"use strict";

const COUNTED = ["flops", "maccs", "bytes", "parameters"];

/** The document at its own sizes or at others. Throws `NotWhole` for sizes that make no model. */
function viewOf(step, chosen) {
  const names = sizesWith(step, chosen);
  const axes = axesOf(step, names);
  const monomials = monomialsAt(step, axes);
  const timed = step.time ? timesAt(step.time, axes) : null;
  const changed = step.sizes.some((size) => names[size.name] !== exact(size.value));
  const watts = step.time?.watts;
  const lines = step.lines.map((line, place) => {
    const values = {};
    for (const name of COUNTED) {
      const formula = line.formulas?.[name];
      values[name] = formula ? countAt(formula.count, monomials) : 0n;
    }
    values.seconds = timed ? (timed.lines[place] ?? 0) : (line.seconds ?? 0);
    values.joules = watts ? values.seconds * watts[1] : (line.joules ?? 0);
    return { ...line, place, values };
  });
  const totals = {};
  for (const name of COUNTED) totals[name] = lines.reduce((all, line) => all + line.values[name], 0n);
  totals.seconds = timed ? timed.total : step.totals.seconds;
  totals.low = timed ? timed.total * step.time.low : step.totals.low;
  totals.high = timed ? timed.total * step.time.high : step.totals.high;
  totals.joules = watts ? totals.seconds * watts[1] : step.totals.joules;
  const memory = memoryNow(step.memory, axes, changed);
  return {
    step,
    names,
    axes,
    monomials,
    lines,
    totals,
    timed,
    changed,
    memory,
    peak: memory?.peak ?? null,
  };
}

function passName(phase) {
  return phase.replaceAll("_", " ");
}

function layerName(line, twoSided) {
  const name = line.layer.replaceAll("_", " ");
  return twoSided && line.block ? `${line.block} ${name}` : name;
}

const SHORT = {
  "feed forward": "ff",
  attention: "attn",
  "grouped attention": "attn",
  "optimizer step": "opt.",
  optimizer: "opt.",
  "weight update": "update",
  embedding: "emb",
  "mixture of experts": "experts",
  recomputation: "again",
  "error projection": "error",
};

const MOST_MODULES = 12;

/** How deep paths of modules are cut for the icicle: where there are the most, up to MOST_MODULES, and no deeper. */
function depthOfModules(step) {
  if (step.moduleDepth !== undefined) return step.moduleDepth;
  const paths = [...new Set(step.lines.map((line) => line.module).filter(Boolean))].map((path) => path.split("."));
  const several = (depth) => new Set(paths.map((path) => path.slice(0, depth).join("."))).size;
  const deepest = Math.max(0, ...paths.map((path) => path.length));
  let depth = Math.min(1, deepest);
  for (let deeper = depth + 1; deeper <= deepest && several(deeper) <= MOST_MODULES; deeper += 1)
    if (several(deeper) > several(depth)) depth = deeper;
  return (step.moduleDepth = depth);
}

/** The level of the icicle that a line's layer is, or its module where it says one: key, name, a shorter name. */
function partOf(view, line, twoSided) {
  if (!line.module) {
    const name = layerName(line, twoSided) || "stored";
    return { key: `${line.block ?? ""}.${line.layer}`, name, kind: "layer", short: SHORT[line.layer.replaceAll("_", " ")] };
  }
  const parts = line.module.split(".").slice(0, depthOfModules(view.step)),
    endings = parts.map((_, from) => parts.slice(from).join("."));
  const named = endings.filter((ending) => !/^(\d+|\*)(\.|$)/.test(ending)); // a number says nothing without its list
  return { key: endings[0], name: endings[0], kind: "layer", shorter: named.slice(1) };
}

/** The step as a tree by passes or by layers first: each node has a key, a name, its value in a quantity, its parts. */
function treeOf(view, quantity, order) {
  const twoSided = view.step.summary.two_sided;
  const root = {
    key: "",
    name: view.step.summary.learns ? "one step" : "one pass",
    depth: 0,
    parts: new Map(),
    lines: [],
    phase: "",
    repeat: 1,
  };
  for (const line of view.lines) {
    const pass = {
      key: line.phase,
      name: passName(line.phase),
      phase: line.phase,
      kind: "pass",
      short: SHORT[passName(line.phase)],
    };
    const block = partOf(view, line, twoSided);
    const levels = order === "layer" ? [block, pass] : [pass, block];
    let node = root;
    node.lines.push(line);
    for (const level of levels) {
      if (!node.parts.has(level.key)) {
        node.parts.set(level.key, {
          ...level,
          key: node.key ? `${node.key}/${level.key}` : level.key,
          depth: node.depth + 1,
          parts: new Map(),
          lines: [],
          parent: node,
          phase: level.phase ?? node.phase,
          repeat: 1,
        });
      }
      node = node.parts.get(level.key);
      node.lines.push(line);
      if (level.kind === "layer" || order === "layer") node.repeat = Math.max(node.repeat, line.repeat ?? 1);
    }
    let key = `${node.key}/${line.line}`;
    while (node.parts.has(key)) key += "+";
    node.parts.set(key, {
      key,
      name: line.line,
      word: wordOf(view.step, line),
      kind: "line",
      depth: 3,
      parts: new Map(),
      lines: [line],
      line,
      parent: node,
      phase: line.phase,
      repeat: line.repeat ?? 1,
    });
  }
  const measured = (node) => {
    node.parts = [...node.parts.values()];
    node.parts.forEach(measured);
    node.value = node.lines.reduce((all, line) => all + line.values[quantity], QUANTITIES[quantity].exact ? 0n : 0);
    if (node.depth > 0 || order === "layer")
      node.parts.sort((left, right) => (right.value > left.value ? 1 : right.value < left.value ? -1 : 0));
  };
  measured(root);
  if (order !== "layer")
    root.parts.sort((left, right) => view.step.macros.indexOf(left.phase) - view.step.macros.indexOf(right.phase));
  return root;
}

/** The node of a key, or of the nearest that there is above it. */
function nodeAt(root, key) {
  let node = root;
  for (;;) {
    const next = node.parts.find((part) => part.key === key || key.startsWith(part.key + "/"));
    if (!next) return node;
    node = next;
  }
}

/** What the first view shows: the scores of attention, equation (3), or where there is none the largest line. */
function firstShown(root, quantity) {
  const lines = [];
  const walk = (node) => (node.line ? lines.push(node) : node.parts.forEach(walk));
  walk(root);
  const scores = lines.filter((node) => node.line.equation === "3" && node.line.phase === "forward");
  const scoresByName = lines.filter(
    (node) => node.line.line === "R" && node.line.phase === "forward" && /attention/.test(node.line.layer),
  );
  const among = [scores, scoresByName, lines].find((several) => several.some((node) => node.value));
  return (among ?? lines).reduce((most, node) => (node.value > most.value ? node : most), (among ?? lines)[0]);
}

/** What people call the result of a line, such as queries for Q; "" where its table does not say. */
function wordOf(step, line) {
  const names = step.tables?.[line.table]?.names ?? {};
  const [letter, part] = line.line.split(".");
  if (line.phase === "forward" || line.phase === "recomputation")
    return names[letter] ? `${names[letter]}${part === "linear" ? " before the bias" : ""}` : "";
  const of = letter.startsWith("d") && names[letter.slice(1)];
  return of ? `gradient of ${of}` : "";
}
