// Formulas: every line of the step as an equation with what it costs, and what is printed wrong.
"use strict";

let formulasOpen = null;

section("formulas", "formulas", (place) => {
  const { found, view } = page,
    groups = new Map();
  for (const line of view.lines) {
    if (line.mathml === undefined) continue;
    const key = `${passName(line.macro)}: ${layerName(line, found.said.two_sided)}`;
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
    const made = element(
      "details",
      {},
      element(
        "summary",
        {},
        `${key} · ${QUANTITIES[quantity].short(total)} ${quantity === "bytes" ? "" : QUANTITIES[quantity].title}`,
      ),
    );
    const fill = () =>
      made.childElementCount === 1 && made.append(...lines.map((line) => formulaLine(view, line, quantity)));
    made.addEventListener("toggle", () => made.open && fill());
    if (formulasOpen === key) {
      made.open = true;
      fill();
    }
    return made;
  });
  const errata = found.errata.map((one) =>
    element(
      "li",
      {},
      element("b", {}, one.id),
      ` ${one.document}, ${one.where}: printed “${one.printed}”, right is “${one.right}”. ${one.effect}`,
    ),
  );
  const letters = element("p", { class: "caption" });
  letters.innerHTML = found.legend
    .map((one) => `${one.mathml} = ${grouped(view.axes[one.axis] ?? exact(one.value))}`)
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
  const equation = element("div", { class: "scroll" }),
    count = element("div", { class: "scroll count" }),
    formula = line.formulas?.[quantity];
  equation.innerHTML = mathOf(view.found, line.mathml);
  if (formula) count.innerHTML = mathOf(view.found, formula.mathml);
  return element(
    "div",
    { class: "formula-line", "data-line": line.place },
    element("span", { class: "equation" }, line.equation ? `(${line.equation})` : ""),
    equation,
    count,
    element("span", { class: "number" }, formula ? `= ${grouped(line.values[quantity])}` : "0"),
  );
}
