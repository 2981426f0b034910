// The inspector: from a number to the formula that gives it, to its equation, to the line of the table that made it.
"use strict";

function drawInspector(place, view, node, root, quantity) {
  const description = QUANTITIES[quantity];
  const path = [];
  for (let above = node.parent; above; above = above.parent) {
    const name = above.kind === "layer" ? (node.line?.module ?? above.name) : above.name;
    path.unshift(above.kind === "layer" && above.repeat > 1 ? `${name} × ${above.repeat}` : name);
  }
  const number = node.line?.equation ? ` · equation (${node.line.equation})` : "";
  const name = node.line
    ? [document.createTextNode(node.word ? `${node.word} · line ` : "line "), element("code", {}, node.line.line), document.createTextNode(number)]
    : [document.createTextNode(nameOf(node))];
  const inside = node.line?.inside && (quantity === "seconds" || quantity === "joules");
  const head = element(
    "div",
    {},
    element("p", { class: "path" }, path.join(" › ") || " "),
    element("p", { class: "name" }, ...name),
    element(
      "p",
      { class: "big" },
      inside ? "no time of its own" : description.prose(node.value),
      " ",
      element("small", {}, inside ? "" : description.unit),
    ),
    element(
      "p",
      { class: "exact" },
      inside
        ? `It runs inside the kernel of ${node.line.inside}.`
        : `${description.exact ? `${grouped(node.value)} · ` : ""}${share(node.value, root.value)} of ${root.name === "one step" ? "the step" : "the pass"}`,
    ),
  );
  const rest = element("div", {}, node.line ? chain(view, node.line, quantity) : largest(node, root, quantity));
  place.className = `panel${matchMedia("(max-width: 1080px)").matches ? " two" : ""}`;
  place.replaceChildren(head, rest);
}

/** Why, the equation, the table's line; then what is wrong in print. */
function chain(view, line, quantity) {
  const list = element("dl", { class: "chain" });
  const add = (term, ...inner) => list.append(element("dt", {}, term), element("dd", {}, ...inner));
  const counted = QUANTITIES[quantity].exact ? quantity : "flops";
  const formula = line.formulas?.[counted];
  if (formula) {
    const why = scrollBox("formula");
    why.innerHTML = mathOf(view.step, formula.mathml);
    add(
      counted === quantity ? "why" : counted === "flops" ? "FLOPs" : counted,
      why,
      element("div", { class: "numbers" }, `= ${inNumbers(view, formula.count)}`),
      ...(counted === quantity ? [] : [element("div", {}, grouped(line.values[counted]))]),
    );
  } else if (QUANTITIES[quantity].exact) {
    add("why", "This line has none of them.");
  }
  if (!QUANTITIES[quantity].exact && line.bound)
    add(
      "limit",
      {
        compute: "Arithmetic takes the most of its time.",
        memory: "Memory takes the most of its time.",
        launch: "Calling the kernel takes the most of its time.",
      }[line.bound] ?? line.bound,
    );
  if (line.mathml !== undefined) {
    const equation = scrollBox("formula");
    equation.innerHTML = mathOf(view.step, line.mathml);
    add(line.equation ? `(${line.equation})` : "line", equation);
  }
  if (line.text) {
    const table = view.step.tables[line.table];
    const derived = line.phase !== "forward" && line.phase !== "recomputation";
    add("table", element("pre", {}, line.text), ...(table ? [tableOf(table, line, derived)] : []));
  }
  const parts = [list];
  for (const name of line.errata ?? []) {
    const erratum = view.step.errata.find((candidate) => candidate.id === name);
    if (erratum)
      parts.push(
        element(
          "p",
          { class: "mark" },
          `Erratum ${name}, ${erratum.where}: printed “${erratum.printed}”, right is “${erratum.right}”. `,
        ),
      );
  }
  if (line.outside_paper)
    parts.push(element("p", { class: "caption" }, "The publication does not have this line; it is priced as it runs."));
  return element("div", {}, ...parts);
}

function tableOf(table, line, derived) {
  const origin = derived ? "derived from" : "as written in";
  return element(
    "details",
    {},
    element("summary", {}, `${origin} ${table.file}`),
    element("pre", {}, table.text),
    table.source ? element("p", { class: "caption" }, table.source) : null,
  );
}

function mathOf(step, place) {
  const formula = step.mathml[place];
  return (typeof formula === "number" ? GIVEN.mathml[formula] : formula) ?? ""; // documents of a report share theirs
}

/** A count with its sizes put in: every term as a product of numbers. */
function inNumbers(view, count) {
  const terms = count.slice(1).map(([place, coefficient]) => {
    const factors = view.step.monomials[place].map((axis) => grouped(sizeOf(axis, view.axes)));
    const factor = exact(coefficient);
    return [
      factor < 0n ? "−" : "+",
      (factor === 1n || factor === -1n) && factors.length ? factors : [grouped(factor < 0n ? -factor : factor), ...factors],
    ];
  });
  const written = terms
    .slice(0, 4)
    .map(([sign, factors], place) => (place || sign === "−" ? `${sign} ` : "") + factors.join(" × "));
  const over = exact(count[0]) === 1n ? "" : ` over ${count[0]}`;
  return written.join(" ") + (terms.length > 4 ? ` + ${terms.length - 4} terms` : "") + over;
}

/** The four largest parts of a group. */
function largest(node, root, quantity) {
  const parts = [...node.parts].sort((left, right) => (right.value > left.value ? 1 : -1)).filter((part) => part.value);
  const rows = parts.slice(0, 4).map((part) => {
    const go = element("button", { type: "button", onclick: () => chooseNode(part, "fix") }, nameOf(part));
    return element(
      "tr",
      {},
      element("td", {}, go),
      element("td", {}, `${QUANTITIES[quantity].short(part.value)} · ${share(part.value, root.value)}`),
    );
  });
  if (parts.length > 4)
    rows.push(element("tr", {}, element("td", {}, `${parts.length - 4} more`), element("td", {}, "")));
  const zoom =
    node !== page.top && element("button", { type: "button", class: "zoom", onclick: () => zoomTo(node) }, "Zoom in");
  return element("div", {}, element("table", { class: "parts" }, element("tbody", {}, ...rows)), zoom || null);
}
