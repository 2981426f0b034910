// Formulas: every line of the step as an equation with what it costs, and what is printed wrong.
"use strict";

let formulasOpen = null;

section("formulas", "formulas", (place) => {
  const { step, view } = page,
    groups = new Map();
  for (const line of view.lines) {
    if (line.mathml === undefined) continue;
    const key = `${passName(line.macro)}: ${layerName(line, step.said.two_sided)}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(line);
  }
  if (!groups.size) return false;
  place.classList.add("long");
  const quantity = QUANTITIES[shownQuantity()].exact ? shownQuantity() : "flops";
  if (!groups.has(formulasOpen))
    formulasOpen = [...groups.keys()].find((key) => /attention/.test(key)) ?? [...groups.keys()][0];
  const inside = [...groups].map(([key, lines]) => {
    const total = lines.reduce((all, line) => all + line.values[quantity], 0n);
    const details = element(
      "details",
      {},
      element(
        "summary",
        {},
        `${key} · ${QUANTITIES[quantity].short(total)} ${quantity === "bytes" ? "" : QUANTITIES[quantity].title}`,
      ),
    );
    const fill = () =>
      details.childElementCount === 1 && details.append(...lines.map((line) => formulaLine(view, line, quantity)));
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
  letters.innerHTML = step.legend
    .map((letter) => `${letter.mathml} = ${grouped(view.axes[letter.axis] ?? exact(letter.value))}`)
    .join(", ");
  const groupsPlace = element("div", { class: "formula-groups" }, ...inside);
  place.replaceChildren(
    ...heading(
      "Every number has its formula",
      `${view.lines.filter((line) => line.mathml !== undefined).length} lines, each read off the table that runs; a number in parentheses is the equation’s in print. What is counted: ${QUANTITIES[quantity].title}.`,
    ),
    groupsPlace,
    letters,
    ...(errata.length
      ? [element("h3", {}, "What is printed wrong"), element("ul", { class: "caption" }, ...errata)]
      : []),
  );
});

function formulaLine(view, line, quantity) {
  const equation = scrollBox("formula"),
    count = element("div", { class: "scroll count" }),
    formula = line.formulas?.[quantity];
  equation.innerHTML = mathOf(view.step, line.mathml);
  if (formula) count.innerHTML = mathOf(view.step, formula.mathml);
  return element(
    "div",
    { class: "formula-line", "data-line": line.place },
    element("span", { class: "equation" }, line.equation ? `(${line.equation})` : ""),
    equation,
    count,
    element("span", { class: "number" }, formula ? `= ${grouped(line.values[quantity])}` : "0"),
  );
}
