// The sizes of the model and the step, each with a slider, and what else may be chosen.
"use strict";

let moreFields = { key: null, refresh: [] };

/** The sizes of the model, each with a slider where counts stay the same polynomials, and what else may be chosen. They
 * are made once for a model and its settings: who drags a slider, or types, holds it while the numbers change. */
function drawMore() {
  const { step } = page,
    place = document.getElementById("more");
  const run = ["batch_size", "seq_len", "target_len", "context"],
    first = (size) => (run.includes(size.name) ? 0 : 1);
  const sizes = step.sizes
    .filter((size) => size.changes || GIVEN.api)
    .sort((left, right) => first(left) - first(right));
  const inSentence = ["model", "procedure", "on", "context", ...sizeKeys(step), "seq_len", "target_len", "batch_size"];
  const flags = (GIVEN.fields?.flags ?? []).filter((flag) => !inSentence.includes(flag.name));
  const key = JSON.stringify([caseName(step, "model"), sizes.map((size) => [size.name, size.changes]), flags.map((flag) => [flag.name, page.state[flag.name]])]);
  if (key === moreFields.key) return moreFields.refresh.forEach((refresh) => refresh());
  const isOpen = place.querySelector("details")?.open ?? false,
    focused = document.activeElement?.dataset?.more,
    fields = element("div", { class: "fields", onchange: () => (moreFields.key = null) }); // what is refused goes back
  moreFields = { key, refresh: [] };
  const fill = () => {
    if (inside.open && !fields.childElementCount) fields.append(...sizes.map(({ name }) => sliderField(name)), ...flags.map(otherField));
  };
  const inside = element(
    "details",
    { class: "no-print", ontoggle: fill },
    element("summary", {}, `Sizes${flags.length ? ", types, optimizer, plan" : " of the model and the step"}`),
    fields,
  );
  inside.open = isOpen;
  fill();
  place.replaceChildren(inside);
  if (focused) place.querySelector(`[data-more="${focused}"]`)?.focus({ preventScroll: true });
}

/** A size as a field, with a slider where counts stay the same polynomials; it shows what holds now. */
function sliderField(name) {
  const sizeNow = () => page.step.sizes.find((size) => size.name === name),
    size = sizeNow(),
    id = `size-${name}`;
  let steps = [];
  const input = element("input", {
    type: "text",
    inputmode: "numeric",
    id,
    "data-more": name,
    title: size.meaning || null,
    onchange: (event) => choose({ [name]: event.target.value.replace(/[,\s]/g, "") || null }),
  });
  const slide = (event) => choose({ [name]: String(steps[event.target.value]) }, event.type === "input");
  const slider = size.changes
    ? element("input", {
        type: "range",
        min: 0,
        step: 1,
        "data-more": `${name}-slider`,
        "aria-label": `${name}, ${size.meaning || "a size"}`,
        oninput: slide,
        onchange: slide,
      })
    : null;
  const follows = element("span", { class: "follows" });
  const refresh = () => {
    const { rule, most } = sizeNow(),
      now = page.view.names[name],
      limit = most === null || most === undefined ? null : value(most, page.view.names);
    input.value = grouped(now);
    follows.textContent = rule !== null && rule !== undefined && Number.isNaN(Number(rule)) && page.state[name] === undefined ? `follows: ${expressionText(rule)}` : "";
    if (!slider) return;
    slider.setAttribute("aria-valuetext", grouped(now));
    if (slider.matches(":active")) return; // the user sets it while dragging
    steps = stepsOf(sizeNow(), limit > 0n ? limit : null);
    slider.max = steps.length - 1;
    slider.value = steps.reduce((best, step, index) => (step <= now ? index : best), 0);
  };
  refresh();
  moreFields.refresh.push(refresh);
  return element("div", { class: "field" }, element("label", { for: id }, name.replaceAll("_", " ")), input, slider, follows);
}

/** The positions of a slider: powers of two, their halves between, and the document's own value. */
function stepsOf(size, most) {
  const usual = exact(size.value),
    heads = /heads|layers|^n_|batch|experts/.test(size.name),
    top = most ?? usual * 64n;
  const steps = new Set([usual]);
  for (let step = 1n; step <= top; step *= 2n) {
    steps.add(step);
    if (!heads && step >= 4n && step + step / 2n <= top) steps.add(step + step / 2n);
  }
  if (heads) for (let step = 1n; step <= 16n && step <= top; step += 1n) steps.add(step);
  for (const [up, down] of [
    [1n, 2n],
    [2n, 1n],
    [3n, 2n],
    [1n, 4n],
    [4n, 1n],
  ])
    if ((usual * up) % down === 0n && (usual * up) / down <= top) steps.add((usual * up) / down);
  return [...steps].filter((step) => step >= 1n).sort((left, right) => (left < right ? -1 : 1));
}

/** Any other flag of the question: a choice where there is a list, a switch, or a text. */
function otherField(flag) {
  const { name } = flag,
    current = page.state[name] ?? "",
    id = `more-${name}`,
    choices = choicesOf(name),
    usual = flag.default ? `default: ${flag.default}` : "default";
  const change = (event) =>
    choose({
      [name]: event.target.type === "checkbox" ? (event.target.checked ? "true" : null) : event.target.value || null,
    });
  let input,
    list = null;
  if (choices && !flag.several)
    input = element(
      "select",
      { id, "data-more": name, onchange: change },
      element("option", { value: "" }, usual),
      ...choices.map((choice) => element("option", { value: choice.name, selected: choice.name === current }, choice.name)),
    );
  else if (name === "price_book")
    input = element(
      "select",
      { id, "data-more": name, onchange: change },
      ...choices.map((choice) =>
        element("option", { value: choice.name, selected: choice.name === (current || flag.default) }, choice.name),
      ),
    );
  else if (flag.kind === "boolean")
    input = element("input", {
      id,
      type: "checkbox",
      "data-more": name,
      checked: current === "true",
      onchange: change,
    });
  else {
    input = element("input", {
      id,
      type: "text",
      "data-more": name,
      value: current,
      placeholder: usual,
      list: choices ? `${id}-list` : null,
      onchange: change,
    });
    if (choices)
      list = element("datalist", { id: `${id}-list` }, ...choices.map((choice) => element("option", { value: choice.name })));
  }
  return element(
    "div",
    { class: "field", title: flag.meaning },
    element("label", { for: id }, name.replaceAll("_", " ")),
    input,
    list,
  );
}
