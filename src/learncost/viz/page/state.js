// What is chosen. It is the address: a link gives the same view. A report chooses among the documents inside of it,
// the explorer asks its server; either way sizes are answered here first.
"use strict";

const GIVEN = JSON.parse(document.getElementById("data").textContent);
GIVEN.documents.forEach(withShared);

/** A document with what it shares with an earlier one in its place. */
function withShared(step) {
  for (const name of ["conventions", "growth", "compared", "tables", "rates"])
    if (step[name]?.same !== undefined) step[name] = GIVEN.documents[step[name].same][name];
  if (step.rates && step.time) step.time.rates = step.rates;
}

const VIEW_KEYS = { show: "flops", order: "pass", at: null, in: null, to: null, grow: "seq_len" };
const CASES = ["model", "procedure"];

const page = { state: {}, step: null, view: null, root: null, fixed: null, notice: "", width: 0, paper: false };

/** In the explorer: what there is to choose from, by the name of what takes it. */
function choicesOf(name) {
  return GIVEN.fields?.choices?.[name] ?? null;
}

/** The state that an address says; unknown parts are reported and ignored. */
function stateOf(hash) {
  const state = {},
    unknown = [];
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key in VIEW_KEYS || CASES.includes(key) || knownKeys().has(key)) state[key] = text;
    else if (key) unknown.push(key);
  }
  if (state.show && !(state.show in QUANTITIES)) delete state.show;
  if (unknown.length) page.notice = `The address has ${unknown.join(", ")}, which this page does not know.`;
  return state;
}

function knownKeys() {
  const keys = new Set((GIVEN.fields?.flags ?? []).map((flag) => flag.name));
  for (const name of ofViews()) keys.add(name);
  for (const size of choicesOf("sizes") ?? []) keys.add(size.name);
  for (const step of GIVEN.documents) for (const size of step.sizes) keys.add(size.name);
  for (const size of page.step?.sizes ?? []) keys.add(size.name);
  return keys;
}

/** The address of a state: only what differs from the first document as it is. */
function addressOf(state) {
  const first = GIVEN.documents[0],
    usual = { ...VIEW_KEYS, model: caseName(first, "model"), procedure: first.summary.procedure, on: first.summary.device };
  const settings = Object.entries(state).filter(
    ([key, setting]) => setting !== undefined && setting !== null && String(setting) !== String(usual[key]),
  );
  return settings.length ? `#${new URLSearchParams(settings)}` : location.pathname + location.search;
}

/** The address says a state: in a new entry of the history, or in place of the last one. A page inside of another, as a
 * notebook shows a report, has no address. */
function keepAddress(state, isEntry) {
  if (location.protocol !== "about:") history[isEntry ? "pushState" : "replaceState"](null, "", addressOf(state));
}

function caseName(step, key) {
  return key === "model" ? step.asked.model : step.summary.procedure;
}

/** Something else is chosen. While a value is dragged the history keeps one entry. */
function choose(changes, dragging = false) {
  const state = { ...page.state, ...changes };
  for (const key of Object.keys(state))
    if (state[key] === null || state[key] === undefined || state[key] === "") delete state[key];
  if ("model" in changes && changes.model !== caseName(page.step, "model"))
    for (const key of sizeKeys(page.step)) if (!(key in changes)) delete state[key];
  if ("model" in changes) page.notice = "";
  page.state = state;
  keepAddress(state, !dragging);
  schedule();
}

function sizeKeys(step) {
  return step.sizes.map((size) => size.name);
}

let scheduled = false,
  questions = 0;

/** Draw once for many changes, the last of which counts. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render();
  });
}

/** The document that a state asks for, among those inside of the page. */
function documentOf(state) {
  if (GIVEN.api) return page.current;
  const matches = (step, key) => state[key] === undefined || caseName(step, key) === state[key];
  const documents = GIVEN.documents.filter((step) => CASES.every((key) => matches(step, key)));
  if (documents.length) return documents[0];
  return GIVEN.documents.find((step) => matches(step, "model")) ?? GIVEN.documents[0];
}

/** The sizes that a state puts in the place of a document's own. Throws what is wrong with one. */
function chosenSizes(step, state) {
  const chosen = {};
  for (const size of step.sizes) {
    if (state[size.name] === undefined || state[size.name] === null) continue;
    const text = String(state[size.name]).replace(/[,\s_]/g, "");
    if (!/^\d{1,13}$/.test(text) || BigInt(text) < 1n || BigInt(text) > 10n ** 12n)
      throw new NotWhole(
        `${size.name} must be a whole number from 1 to ${grouped(10n ** 12n)}, not ${text || "nothing"}`,
      );
    if (!size.changes && BigInt(text) !== exact(size.value) && !GIVEN.api)
      throw new NotWhole(
        `${size.name} is ${grouped(exact(size.value))} in this report; learncost report makes one with another`,
      );
    chosen[size.name] = BigInt(text);
  }
  return chosen;
}

let waiting = null,
  underWay = false;

/** Ask a moment later, once for many changes: what the polynomials answer is shown already. While a question is under
 * way no other is asked: its answer is drawn, and what was chosen last is asked then. */
function soon(state) {
  clearTimeout(waiting);
  waiting = setTimeout(() => underWay || ask(state), 60);
}

/** What a state asks the server for. */
function queryOf(state, withViews = false) {
  const others = withViews ? new Set() : ofViews(),
    query = new URLSearchParams(),
    first = GIVEN.first ?? GIVEN.documents[0].asked;
  // A device goes with what runs: it is asked for with another price book only where somebody chose it.
  const settings = {
    model: first.model,
    on: state.price_book && state.price_book !== "run" ? null : (first.on ?? null),
    ...state,
  };
  for (const [key, setting] of Object.entries(settings))
    if (!(key in VIEW_KEYS) && !others.has(key) && setting !== null && setting !== "none") query.set(key, String(setting));
  if (page.config && query.get("model") === "config.json") query.delete("model");
  else page.config = null;
  return query;
}

/** In the explorer: ask the server for what is chosen; a late answer to an earlier question is dropped, and what was
 * to be asked a moment later is not asked. What is refused changes nothing: what was answered last is chosen again. */
async function ask(state, isEntry = false) {
  clearTimeout(waiting);
  const number = ++questions,
    key = queryKey(state, ofViews()),
    query = queryOf(state);
  document.body.classList.add("asking");
  underWay = true;
  try {
    const answer = await fetch(`${GIVEN.api}?${query}`, page.config ? { method: "POST", body: page.config } : {});
    if (number === questions && answer.ok && key !== queryKey(page.state, ofViews()) && answeredHere()) {
      answer.body?.cancel();
      return soon(page.state);
    }
    const content = await answer.json();
    if (number !== questions) return;
    underWay = false;
    page.answered = key;
    if (!answer.ok && key !== queryKey(page.state, ofViews())) return render(); // something else is chosen by now
    if (!answer.ok) {
      Object.assign(page, page.good);
      page.answered = queryKey(page.state, ofViews());
      keepAddress(page.state, false);
      page.refused = content.error ?? `The server answered ${answer.status}.`;
      return render();
    }
    page.refused = null;
    page.good = { state: { ...state }, config: page.config };
    withShared(content);
    page.current = content;
    if (isEntry) keepAddress(page.state, true);
    render();
  } catch (error) {
    if (number === questions) problem(`The server does not answer: ${error.message}`);
  } finally {
    if (number === questions) {
      underWay = false;
      document.body.classList.remove("asking");
    }
  }
}

/** Whether the polynomials of the document that is shown answer what is chosen: sizes alone differ from what it was
 * asked for. An answer to an earlier question is then older than what is shown. */
function answeredHere() {
  const { state, config } = page.good,
    others = ofViews();
  const changed = Object.keys({ ...state, ...page.state }).filter(
    (key) => !(key in VIEW_KEYS) && !others.has(key) && state[key] !== page.state[key],
  );
  const size = (key) => page.current.sizes.find(({ name }) => name === key);
  return config === page.config && changed.every((key) => size(key)?.changes);
}

/** What of a state only the server can answer, as a key; `others` are names that the document is not asked with. */
function queryKey(state, others = null) {
  return JSON.stringify(
    Object.entries(state)
      .filter(([key]) => !(key in VIEW_KEYS) && !others?.has(key))
      .sort(),
  );
}

function problem(text) {
  const place = document.getElementById("problem");
  place.hidden = !text;
  place.textContent = text;
}
