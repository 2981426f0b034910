// The page put together: what is drawn when something is chosen.
"use strict";

const SECTIONS = [];

/** A section below the cost: its id, its word in the head, and what draws it into its place; false leaves it out.
 * `rests` returns its inputs other than the document: it is drawn again only if they change. */
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
  const chosen = page.state.show ?? VIEW_KEYS.show;
  return page.view.totals[chosen] ? chosen : "flops";
}

function drawCost() {
  const quantity = shownQuantity(),
    order = page.state.order ?? VIEW_KEYS.order;
  const available = Object.fromEntries(
    Object.entries(QUANTITIES)
      .filter(([name]) => page.view.totals[name])
      .map(([name, { title, exact }]) => [name, exact || !page.step.time?.recorded ? title : `${title} of lines`]),
  );
  const place = document.getElementById("cost-controls"),
    focused = document.activeElement?.name;
  place.replaceChildren(
    segments("show", available, quantity, (show) => choose({ show }), "What is shown"),
    segments(
      "order",
      { pass: "passes first", layer: "layers first" },
      order,
      (chosen) => choose({ order: chosen, at: null, in: null }),
      "Order",
    ),
  );
  if (focused) place.querySelector(`input[name="${focused}"]:checked`)?.focus({ preventScroll: true });
  page.root = treeOf(page.view, quantity, order);
  page.fixed =
    page.state.at != null ? nodeAt(page.root, page.state.at) : (firstShown(page.root, quantity) ?? page.root);
  drawCells(page.fixed);
  drawLegend(document.getElementById("legend"), page.root, quantity);
}

function drawCells(node) {
  const quantity = shownQuantity();
  page.top = page.state.in ? nodeAt(page.root, page.state.in) : page.root;
  if (page.top.line) page.top = page.top.parent;
  if (!within(page.fixed, page.top)) node = page.fixed = page.top;
  drawBreadcrumb(document.getElementById("breadcrumb"), page.top, zoomTo);
  drawIcicle(document.getElementById("icicle"), page.root, page.top, quantity, page.fixed, chooseNode, zoomTo);
  drawInspector(document.getElementById("inspector"), page.view, node, page.root, quantity);
}

function within(node, top) {
  return node === top || (node.parent ? within(node.parent, top) : false);
}

/** Show a part of the step alone, or with null what there is as it was; a line is no part. */
function zoomTo(node) {
  const top = node?.line ? node.parent : node;
  if (top) choose({ in: top.key || null });
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
  keepAddress(page.state, false);
  drawCells(node);
}

function render(all = false) {
  const { state } = page;
  try {
    const step = documentOf(state);
    // Until the server has described another model, its sizes are not those of the model that is shown.
    const another = GIVEN.api && state.model !== undefined && state.model !== caseName(step, "model");
    page.view = viewOf(step, another ? {} : chosenSizes(step, state));
    page.step = step;
    problem(page.refused || page.notice);
  } catch (error) {
    if (!(error instanceof NotWhole)) throw error;
    problem(error.message);
    if (!page.view) page.view = viewOf((page.step = documentOf(state)), {});
  }
  if (GIVEN.api && page.answered !== queryKey(state, ofViews())) soon(state);
  drawSentence();
  drawMore();
  drawSections(all === true);
  drawFooter();
}

let later = null;

const unseen = new Set(); // sections that are not in view, which are drawn a moment later
const inView =
  "IntersectionObserver" in window
    ? new IntersectionObserver((entries) =>
        entries.forEach(({ target, isIntersecting }) => unseen[isIntersecting ? "delete" : "add"](target.id)),
      )
    : null;

/** Draw what is seen now; the rest when nothing has changed for a moment, each by itself, so that none waits for all. */
function drawSections(all = false) {
  const place = document.getElementById("sections"),
    left = all || !unseen.has("cost") ? [] : [drawCost];
  clearTimeout(later);
  if (!left.length) drawCost();
  SECTIONS.forEach((section) => {
    let block = document.getElementById(section.id);
    if (!block) {
      place.append((block = element("section", { id: section.id, "aria-label": section.word })));
      inView?.observe(block);
    }
    if (!all && section.drawn && unseen.has(section.id)) left.push(() => drawSection(section));
    else drawSection(section);
  });
  const drawRest = () => {
    left.shift()();
    if (left.length) later = setTimeout(drawRest, 0);
    else drawLinks();
  };
  if (left.length) later = setTimeout(drawRest, 250);
  drawLinks();
}

/** Draw a section where it is of something else than it was. */
function drawSection(section) {
  const block = document.getElementById(section.id),
    rests = section.rests ? JSON.stringify([section.rests(), page.width, page.paper]) : null;
  if (rests !== null && section.drawn?.rests === rests && section.drawn.step === page.step) return;
  block.classList.toggle("hidden", section.draw(block) === false);
  section.drawn = { rests, step: page.step };
}

/** The words in the head, which lead to the sections that are there. */
function drawLinks() {
  const links = [
    ["cost", "cost"],
    ...SECTIONS.filter(({ id }) => !document.getElementById(id).classList.contains("hidden")).map(({ id, word }) => [
      id,
      word,
    ]),
  ];
  const nav = document.querySelector("header nav"),
    linkText = links.join();
  if (nav.dataset.links !== linkText)
    nav.replaceChildren(...links.map(([id, word]) => element("a", { href: `#${id}`, onclick: jump }, word)));
  nav.dataset.links = linkText;
}

function heading(title, lead) {
  return [element("h2", {}, title), element("p", { class: "lead" }, lead)];
}

/** The rows of a chart as a table, for who reads rather than looks. */
function asTable(columns, rows) {
  const details = element("details", { class: "no-print" }, element("summary", {}, "as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const cell = (name, content) =>
      element(name, { class: typeof content === "string" && /^[−\d]/.test(content) ? "number" : null }, String(content));
    details.append(
      element(
        "div",
        { class: "table-box", tabindex: 0 },
        element(
          "table",
          { class: "table" },
          element("thead", {}, element("tr", {}, ...columns.map((content) => cell("th", content)))),
          element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((content) => cell("td", content))))),
        ),
      ),
    );
  });
  return details;
}

function callOf() {
  const sizes = page.step.sizes.filter((size) => page.state[size.name] !== undefined);
  const flags = sizes.map((size) => ` --${size.name.replaceAll("_", "-")} ${page.view.names[size.name]}`).join("");
  const keywords = sizes.map((size) => `, ${size.name}=${page.view.names[size.name]}`).join("");
  const without = (text, pattern) => sizes.reduce((all, size) => all.replace(pattern(size.name), ""), text);
  const command = without(page.step.command, (name) => new RegExp(` --${name.replaceAll("_", "-")} \\S+`)) + flags;
  const python = without(page.step.python, (name) => new RegExp(`, ${name}=('[^']*'|[^,)]+)`)).replace(/\)$/, `${keywords})`);
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
        `learncost ${page.step.version}. ${page.step.summary.counted[0].toUpperCase()}${page.step.summary.counted.slice(1)}; sizes: ${page.step.summary.source}. Counts are exact; time and energy are predicted, not measured.`,
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

/** How wide the page is, also where that changes without its window: in a tab or a cell that was not shown. Whether it
 * has changed. */
function measureRoom() {
  if (page.paper) return false;
  const before = page.width;
  page.width = document.getElementById("top").clientWidth;
  return page.width !== before;
}

/** Everything is drawn again for paper, and for the screen again. */
function onPaper(paper) {
  page.paper = paper;
  render(true);
}

function start() {
  measureRoom();
  page.current = GIVEN.documents[0];
  page.answered = queryKey({});
  page.good = { state: {}, config: null };
  page.state = stateOf(location.hash);
  inView?.observe(document.getElementById("cost"));
  drawExport();
  takeDrops();
  render();
  new ResizeObserver(() => measureRoom() && schedule()).observe(document.getElementById("top"));
  addEventListener("popstate", () => ((page.state = stateOf(location.hash)), render()));
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  document.documentElement.dataset.ready = "true";
}
