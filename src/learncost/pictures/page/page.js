// The page put together: what is drawn when something is chosen.
"use strict";

const SECTIONS = [];

/** A section below the cost: its id, its word in the head, and what draws it into its place; false leaves it out.
 * `rests` says what it is drawn of beside the document: while that is the same it is not drawn again. */
function section(id, word, draw, rests = null) {
  SECTIONS.push({ id, word, draw, rests, drawn: null });
}

function segments(name, options, current, pick, label) {
  const inside = Object.entries(options).map(([key, title]) =>
    element(
      "label",
      {},
      element("input", { type: "radio", name, value: key, checked: key === current, onchange: () => pick(key) }),
      element("span", {}, title),
    ),
  );
  return element("div", { class: "segments", role: "radiogroup", "aria-label": label }, ...inside);
}

function shownQuantity() {
  const wanted = page.state.show ?? VIEW_KEYS.show;
  return page.view.totals[wanted] ? wanted : "flops";
}

function drawCost() {
  const quantity = shownQuantity(),
    order = page.state.order ?? VIEW_KEYS.order;
  const there = Object.fromEntries(
    Object.entries(QUANTITIES)
      .filter(([name]) => page.view.totals[name])
      .map(([name, own]) => [name, own.title]),
  );
  const place = document.getElementById("cost-controls"),
    held = document.activeElement?.name;
  place.replaceChildren(
    segments("show", there, quantity, (show) => choose({ show }), "What is shown"),
    segments(
      "order",
      { pass: "passes first", layer: "layers first" },
      order,
      (own) => choose({ order: own, at: null }),
      "Order",
    ),
  );
  if (held) place.querySelector(`input[name="${held}"]:checked`)?.focus({ preventScroll: true });
  page.root = treeOf(page.view, quantity, order);
  page.fixed =
    page.state.at != null ? nodeAt(page.root, page.state.at) : (firstShown(page.root, quantity) ?? page.root);
  drawCells(page.fixed);
  drawLegend(document.getElementById("legend"), page.root, quantity);
}

function drawCells(shown) {
  const quantity = shownQuantity();
  drawIcicle(document.getElementById("icicle"), page.root, quantity, page.fixed, chooseNode);
  drawInspector(document.getElementById("inspector"), page.view, shown, page.root, quantity);
}

/** Look at a cell while the pointer is there, or stay at it. */
function chooseNode(node, how) {
  if (how === "look")
    return drawInspector(
      document.getElementById("inspector"),
      page.view,
      node ?? page.fixed,
      page.root,
      shownQuantity(),
    );
  page.fixed = node;
  page.state = { ...page.state, at: node.key };
  history.replaceState(null, "", addressOf(page.state));
  drawCells(node);
}

function render(all = false) {
  const { state } = page;
  try {
    const found = documentOf(state);
    // Until the server has told of another model, its sizes are not those of the model that is shown.
    const another = GIVEN.api && state.model !== undefined && state.model !== caseName(found, "model");
    page.view = viewOf(found, another ? {} : chosenSizes(found, state));
    page.found = found;
    problem(page.refused || page.said);
  } catch (error) {
    if (!(error instanceof NotWhole)) throw error;
    problem(error.message);
    if (!page.view) page.view = viewOf((page.found = documentOf(state)), {});
  }
  if (GIVEN.api && page.answered !== queryKey(state)) soon(state);
  drawSentence();
  drawMore();
  drawCost();
  drawSections(all === true);
  drawFooter();
}

let later = null;

/** Draw what is seen now, and the rest when nothing has changed for a moment. */
function drawSections(all = false) {
  const place = document.getElementById("sections");
  clearTimeout(later);
  const rects = SECTIONS.map(({ id }) => document.getElementById(id)?.getBoundingClientRect());
  let left = false;
  SECTIONS.forEach((section, at) => {
    let own = document.getElementById(section.id);
    if (!own) place.append((own = element("section", { id: section.id, "aria-label": section.word })));
    const seen = all || !section.drawn || (rects[at] && rects[at].bottom > -200 && rects[at].top < innerHeight + 200);
    if (!seen) return (left = true);
    const rests = section.rests ? JSON.stringify([section.rests(), innerWidth, matchMedia("print").matches]) : null;
    if (rests !== null && section.drawn?.rests === rests && section.drawn.found === page.found) return;
    own.classList.toggle("hidden", section.draw(own) === false);
    section.drawn = { rests, found: page.found };
  });
  if (left) later = setTimeout(() => drawSections(true), 90);
  const links = [
    ["cost", "cost"],
    ...SECTIONS.filter(({ id }) => !document.getElementById(id).classList.contains("hidden")).map(({ id, word }) => [
      id,
      word,
    ]),
  ];
  const nav = document.querySelector("nav"),
    said = links.join();
  if (nav.dataset.links !== said)
    nav.replaceChildren(...links.map(([id, word]) => element("a", { href: `#${id}`, onclick: jump }, word)));
  nav.dataset.links = said;
}

function heading(title, lead) {
  return [element("h2", {}, title), element("p", { class: "lead" }, lead)];
}

/** The rows of a chart as a table, for who reads rather than looks. */
function asTable(columns, rows) {
  const made = element("details", { class: "no-print" }, element("summary", {}, "as a table"));
  made.addEventListener("toggle", () => {
    if (!made.open || made.querySelector("table")) return;
    const cell = (name, own) =>
      element(name, { class: typeof own === "string" && /^[−\d]/.test(own) ? "number" : null }, String(own));
    made.append(
      element(
        "div",
        { class: "table-box", tabindex: 0 },
        element(
          "table",
          { class: "table" },
          element("thead", {}, element("tr", {}, ...columns.map((own) => cell("th", own)))),
          element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((own) => cell("td", own))))),
        ),
      ),
    );
  });
  return made;
}

function callOf() {
  const sizes = page.found.sizes.filter((size) => page.state[size.name] !== undefined);
  const flags = sizes.map((size) => ` --${size.name.replaceAll("_", "-")} ${page.view.names[size.name]}`).join("");
  const named = sizes.map((size) => `, ${size.name}=${page.view.names[size.name]}`).join("");
  const without = (text, pattern) => sizes.reduce((all, size) => all.replace(pattern(size.name), ""), text);
  const command = without(page.found.command, (name) => new RegExp(` --${name.replaceAll("_", "-")} \\S+`)) + flags;
  const python = without(page.found.python, (name) => new RegExp(`, ${name}=[^,)]+`)).replace(/\)$/, `${named})`);
  return { command, python };
}

function drawFooter() {
  const call = (label, text) =>
    element(
      "div",
      {},
      element("div", {}, label),
      element(
        "div",
        { class: "call" },
        element("pre", {}, text),
        element("button", { type: "button", onclick: (event) => copy(event.target, text) }, "Copy"),
      ),
    );
  const { command, python } = callOf();
  document
    .getElementById("footer")
    .replaceChildren(
      element("h2", {}, "The same elsewhere"),
      call("On the command line", command),
      call("In Python, after import learncost as lc", python),
      element(
        "p",
        {},
        `learncost ${page.found.version}. ${page.found.said.counted[0].toUpperCase()}${page.found.said.counted.slice(1)}; sizes: ${page.found.said.source}. Counts are exact; time and energy are predicted, not measured.`,
      ),
    );
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function start() {
  page.current = GIVEN.documents[0];
  page.answered = queryKey({});
  page.state = stateOf(location.hash);
  drawExport();
  takeDrops();
  render();
  let width = innerWidth;
  addEventListener("resize", () => width !== innerWidth && ((width = innerWidth), schedule()));
  addEventListener("popstate", () => ((page.state = stateOf(location.hash)), render()));
  addEventListener("beforeprint", () => render(true));
  addEventListener("afterprint", () => render(true));
  document.documentElement.dataset.ready = "true";
}
