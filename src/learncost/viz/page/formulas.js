// Formulas: every line of the step as an equation with what it costs, and what is printed wrong.
"use strict";

let formulasOpen = null,
  formulasOf = { step: null, quantity: null, refresh: [] };

/** Formulas are laid out once for a document: while its sizes change, only their numbers do. */
section("formulas", "formulas", (place) => {
  const { step, view } = page,
    quantity = QUANTITIES[shownQuantity()].exact ? shownQuantity() : "flops",
    groups = new Map();
  if (formulasOf.step === step && formulasOf.quantity === quantity) {
    formulasOf.refresh.forEach((refresh) => refresh());
    return formulasOf.refresh.length > 0;
  }
  formulasOf = { step, quantity, refresh: [] };
  for (const line of view.lines) {
    if (line.mathml === undefined) continue;
    const key = `${passName(line.phase)}: ${layerName(line, step.summary.two_sided)}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(line);
  }
  if (!groups.size) return false;
  place.classList.add("long");
  if (!groups.has(formulasOpen))
    formulasOpen = [...groups.keys()].find((key) => /attention/.test(key)) ?? [...groups.keys()][0];
  const inside = [...groups].map(([key, lines]) => {
    const total = () => lines.reduce((all, { place }) => all + page.view.lines[place].values[quantity], 0n);
    const summary = element("summary"),
      details = element("details", {}, summary);
    refreshed(() => {
      const unit = quantity === "bytes" ? "" : QUANTITIES[quantity].title;
      summary.textContent = `${key} · ${QUANTITIES[quantity].short(total())} ${unit}`;
    });
    const fill = () =>
      details.childElementCount === 1 && details.append(...lines.map((line) => formulaLine(step, line, quantity)));
    details.addEventListener("toggle", () => details.open && fill());
    if (formulasOpen === key) {
      details.open = true;
      fill();
    }
    return details;
  });
  const errata = step.errata.map((erratum) =>
    element(
      "li",
      {},
      element("b", {}, erratum.id),
      ` ${erratum.document}, ${erratum.where}: printed “${erratum.printed}”, right is “${erratum.right}”. ${erratum.effect}`,
    ),
  );
  const letters = element("p", { class: "caption" });
  step.legend.forEach((letter, at) => {
    const name = element("span"),
      now = element("span");
    name.innerHTML = letter.mathml;
    refreshed(() => (now.textContent = ` = ${grouped(page.view.axes[letter.axis] ?? exact(letter.value))}`));
    letters.append(at ? ", " : "", name, now);
  });
  const groupsPlace = element("div", { class: "formula-groups" }, ...inside);
  place.replaceChildren(
    ...heading(
      "Every number has its formula",
      `${view.lines.filter((line) => line.mathml !== undefined).length} lines, each derived from the table that runs; a number in parentheses is the equation’s in print. What is counted: ${QUANTITIES[quantity].title}.`,
    ),
    groupsPlace,
    letters,
    ...(errata.length
      ? [element("h3", {}, "What is printed wrong"), element("ul", { class: "caption" }, ...errata)]
      : []),
  );
});

/** Do something now, and again when the sizes have changed. */
function refreshed(act) {
  act();
  formulasOf.refresh.push(act);
}

function formulaLine(step, line, quantity) {
  const number = element("span", { class: "number" }),
    equation = scrollBox("formula"),
    count = element("div", { class: "scroll count" }),
    formula = line.formulas?.[quantity];
  equation.innerHTML = mathOf(step, line.mathml);
  if (formula) count.innerHTML = mathOf(step, formula.mathml);
  refreshed(() => (number.textContent = formula ? `= ${grouped(page.view.lines[line.place].values[quantity])}` : "0"));
  return element(
    "div",
    { class: "formula-line", "data-line": line.place },
    element("span", { class: "equation" }, line.equation ? `(${line.equation})` : ""),
    equation,
    count,
    number,
  );
}
