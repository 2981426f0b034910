// The answer as a sentence, whose values are the controls; below it the exact numbers and what they count.
"use strict";

function optionsOf(key) {
  const choices = choicesOf(key);
  if (choices) return choices.map((choice) => choice.name);
  const model = caseName(page.step, "model");
  const documents = GIVEN.documents.filter((step) => key !== "procedure" || caseName(step, "model") === model);
  return [...new Map(documents.map((step) => [caseName(step, key), step])).keys()];
}

function titleOf(procedure) {
  return (
    GIVEN.procedures[procedure] ??
    choicesOf("procedure")?.find((choice) => choice.name === procedure)?.title ??
    procedure
  ).split(":")[0];
}

const keptFields = new Map();

/** A field of the sentence, rebuilt only where something else would be in it, or something was chosen in it: who types
 * keeps what is typed while numbers change. */
function kept(name, inside, make) {
  const key = JSON.stringify(inside),
    before = keptFields.get(name);
  if (before?.key === key) return before.field;
  const field = make();
  field.addEventListener("change", () => keptFields.delete(name));
  keptFields.set(name, { key, field });
  return field;
}

/** A choice among several; where there is one, its name. */
function chooser(key, name, current, titles = (option) => option) {
  const options = optionsOf(key);
  if (options.length < 2) return element("b", {}, titles(current));
  if (GIVEN.api && key === "model") return modelPicker(current, options, name);
  if (!options.includes(current)) options.unshift(current);
  return kept(key, [current, options], () =>
    element(
      "select",
      {
        "aria-label": name,
        "data-control": key,
        onchange: (event) => choose({ [key]: event.target.value, at: page.state.at }),
      },
      ...options.map((option) => element("option", { value: option, selected: option === current }, titles(option))),
    ),
  );
}

let modelList = null;

function modelPicker(current, options, name) {
  modelList ??= element("datalist", { id: "models" }, ...options.map((option) => element("option", { value: option })));
  const input = kept("model", current, () => element("input", {
    type: "text",
    value: current,
    list: "models",
    size: Math.max(4, current.length),
    "aria-label": name,
    "data-control": "model",
    spellcheck: "false",
    autocomplete: "off",
    onfocus: (event) => event.target.select(),
    onchange: (event) => event.target.value.trim() && choose({ model: event.target.value.trim(), at: null }),
  }));
  return element("span", {}, input, modelList);
}

/** A size of the step as a field in the sentence. */
function sizeField(name, label) {
  const size = page.step.sizes.find((candidate) => candidate.name === name),
    now = grouped(page.view.names[name]);
  if (!size.changes && !GIVEN.api) return element("b", {}, now);
  return kept(name, now, () => element("input", {
    type: "text",
    inputmode: "numeric",
    value: now,
    size: now.length,
    "aria-label": label,
    "data-control": name,
    autocomplete: "off",
    onfocus: (event) => event.target.select(),
    onchange: (event) => choose({ [name]: event.target.value.replace(/[,\s]/g, "") || null }),
    onkeydown: (event) => stepField(event, name),
  }));
}

/** Arrow keys go up and down by the next round number. */
function stepField(event, name) {
  const ways = { ArrowUp: 1n, ArrowDown: -1n };
  if (!(event.key in ways)) return;
  event.preventDefault();
  const now = page.view.names[name],
    by = now >= 128n && now % 64n === 0n ? 64n : 1n;
  const next = now + ways[event.key] * by;
  if (next >= 1n) choose({ [name]: String(next) }, true);
}

const plural = (count, singular, many = `${singular}s`) => (count === 1n ? singular : many);

function drawSentence() {
  const { step, view } = page,
    { totals, names } = view,
    summary = step.summary;
  const inside = [],
    put = (...parts) => inside.push(...parts);
  const model = chooser("model", "Model", caseName(step, "model"));
  const isSequence = names.seq_len !== undefined,
    isBatch = names.batch_size !== undefined,
    batch = isBatch ? sizeField("batch_size", isSequence ? "Sequences in a step" : "Samples in a step") : "1",
    sequences = ` ${plural(names.batch_size ?? 1n, "sequence")}`;
  if (summary.procedure === "decode") {
    put(
      "One step of ",
      chooser("procedure", "Procedure", summary.procedure, titleOf),
      " by ",
      model,
      " for ",
      batch,
      sequences,
      " with ",
      sizeField("context", "Tokens in the cache"),
      ` ${plural(names.context, "token")} in the cache`,
    );
  } else {
    const tokens = [
      isSequence && sizeField("seq_len", summary.two_sided ? "Tokens in a sequence of the encoder" : "Tokens in a sequence"),
    ];
    if (summary.two_sided && names.target_len !== undefined)
      tokens.push(" and ", sizeField("target_len", "Tokens in a sequence of the decoder"));
    const opening = summary.learns ? "One training step of " : "One pass of ";
    const run = isSequence
      ? [" on ", batch, sequences, " of ", ...tokens, ` ${plural(names.seq_len, "token")}`]
      : isBatch
        ? [" on a batch of ", batch]
        : [];
    put(
      opening,
      model,
      ...run,
      summary.learns ? " by " : " for ",
      chooser("procedure", "Procedure", summary.procedure, titleOf),
    );
  }
  const facts = [["takes ", element("b", { id: "flops" }, `${words(totals.flops)} FLOPs`)]];
  if (totals.bytes) facts.push(["moves ", element("b", { id: "bytes" }, bytes(totals.bytes))]);
  if (step.memory?.peak)
    facts.push([
      "holds ",
      element(
        "b",
        { id: "peak", class: view.peak === null ? "wait" : null },
        view.peak === null ? "a peak not known here" : bytes(view.peak),
      ),
      ` at its peak${view.memory?.other ? ` by engine ${view.memory.other.engine}` : ""}`,
      view.peak !== null && step.memory.available && view.peak > exact(step.memory.available)
        ? element("b", { id: "unfit" }, `, which does not fit in ${bytes(exact(step.memory.available))}`)
        : "",
    ]);
  const recorded = step.time?.recorded;
  if (recorded)
    facts.push([
      "runs about ",
      element(
        "b",
        { id: "seconds", class: view.changed ? "wait" : null },
        view.changed ? "a time not known here" : seconds(recorded.seconds),
      ),
      view.changed ? "" : element("span", { class: "range" }, ` (${between(recorded.low, recorded.high)})`),
      " on ",
      deviceField(summary),
    ]);
  else if (totals.seconds)
    facts.push([
      "runs about ",
      element("b", { id: "seconds" }, seconds(totals.seconds)),
      " ",
      element("span", { class: "range" }, `(${between(totals.low, totals.high)})`),
      " on ",
      deviceField(summary),
    ]);
  put(" ");
  facts.forEach((fact, place) =>
    put(place === 0 ? "" : place === facts.length - 1 ? (facts.length > 2 ? ", and " : " and ") : ", ", ...fact),
  );
  if (!totals.seconds && choicesOf("on")) put(", on ", deviceField(summary));
  put(".");
  const place = document.getElementById("sentence"),
    focused = document.activeElement?.dataset?.control;
  place.replaceChildren(...inside);
  if (focused) place.querySelector(`[data-control="${focused}"]`)?.focus({ preventScroll: true });
  document.getElementById("exactly").replaceChildren(...exactly());
  document.title = `${summary.model}: what a step costs · learncost`;
}

function deviceField(summary) {
  const options = (choicesOf("on") ?? []).map((choice) => choice.name);
  if (!options.length) return element("b", {}, summary.device);
  const current = page.state.on === "none" ? "" : (summary.device ?? page.state.on ?? "");
  return kept("on", [current, summary.device], () => element(
    "select",
    { "aria-label": "Device", "data-control": "on", onchange: (event) => choose({ on: event.target.value || "none" }) },
    element("option", { value: "" }, summary.device ? "no device" : "no device yet"),
    ...options.map((option) => element("option", { value: option, selected: option === current }, option)),
  ));
}

/** The exact numbers, and what they count. */
function exactly() {
  const { step, view } = page,
    summary = step.summary,
    { totals } = view;
  const strong = (text) => element("strong", {}, text);
  const parts = [
    "Exactly ",
    strong(`${grouped(totals.flops)} FLOPs`),
    " and ",
    strong(`${grouped(totals.maccs)} MACCs`),
    `: ${summary.convention.replace(/^1 MACC = 2 FLOPs; /, "one multiply–accumulate (MACC) is two FLOPs; ")}. `,
  ];
  parts.push(strong(`${grouped(totals.parameters)} parameters`), `: ${summary.counted}. `);
  parts.push(summary.learns ? `Optimizer ${summary.optimizer}, ${summary.dtype}.` : `In ${summary.dtype}.`);
  if (summary.plan) parts.push(` Plan: ${summary.plan}.`);
  if (summary.trained !== "all") parts.push(` What learns: ${summary.trained}.`);
  const bars = step.conventions?.bars ?? [],
    chosen = bars.find((bar) => bar.price_book === summary.price_book);
  const others =
    chosen && summary.procedure === "bp" ? bars.filter((bar) => bar !== chosen).map((bar) => bar.ratio / chosen.ratio) : [];
  if (others.length)
    parts.push(
      ` Other price books say ${digits(Math.min(...others))} to ${digits(Math.max(...others))} times as many: `,
      element("a", { href: "#conventions", onclick: jump }, "why"),
      ".",
    );
  return parts;
}

function jump(event) {
  event.preventDefault();
  document.querySelector(event.currentTarget.getAttribute("href"))?.scrollIntoView();
}
