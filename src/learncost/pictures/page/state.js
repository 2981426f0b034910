// What is chosen. It is the address: a link gives the same view. A report chooses among the documents inside of it,
// the explorer asks its server; either way sizes are answered here first.
"use strict";

const GIVEN = JSON.parse(document.getElementById("data").textContent);
GIVEN.documents.forEach(whole);

/** A document with what it shares with an earlier one in its place. */
function whole(found) {
  for (const name of ["conventions", "growth", "compared", "tables", "rates"])
    if (found[name]?.same !== undefined) found[name] = GIVEN.documents[found[name].same][name];
  if (found.rates && found.time) found.time.rates = found.rates;
}

const VIEW_KEYS = { show: "flops", order: "pass", at: null, to: null, grow: "seq_len" };
const CASES = ["model", "procedure"];

const page = { state: {}, found: null, view: null, root: null, fixed: null, said: "" };

/** In the explorer: what there is to choose from, by the name of what takes it. */
function choicesOf(name) {
  return GIVEN.fields?.choices?.[name] ?? null;
}

/** The state that an address says; what is not known is told and ignored. */
function stateOf(hash) {
  const state = {},
    unknown = [];
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key in VIEW_KEYS || CASES.includes(key) || knownKeys().has(key)) state[key] = text;
    else if (key) unknown.push(key);
  }
  if (state.show && !(state.show in QUANTITIES)) delete state.show;
  if (unknown.length) page.said = `The address has ${unknown.join(", ")}, which this page does not know.`;
  return state;
}

function knownKeys() {
  const keys = new Set((GIVEN.fields?.flags ?? []).map((flag) => flag.name));
  for (const size of choicesOf("sizes") ?? []) keys.add(size.name);
  for (const found of GIVEN.documents) for (const size of found.sizes) keys.add(size.name);
  for (const size of page.found?.sizes ?? []) keys.add(size.name);
  return keys;
}

/** The address of a state: only what differs from the first document as it is. */
function addressOf(state) {
  const first = GIVEN.documents[0],
    usual = { ...VIEW_KEYS, model: caseName(first, "model"), procedure: first.said.procedure, on: first.said.device };
  const own = Object.entries(state).filter(
    ([key, own]) => own !== undefined && own !== null && String(own) !== String(usual[key]),
  );
  return own.length ? `#${new URLSearchParams(own)}` : location.pathname + location.search;
}

function caseName(found, key) {
  return key === "model" ? found.asked.model : found.said.procedure;
}

/** Something else is chosen. While a value is dragged the history keeps one entry. */
function choose(changes, dragging = false) {
  const state = { ...page.state, ...changes };
  for (const key of Object.keys(state))
    if (state[key] === null || state[key] === undefined || state[key] === "") delete state[key];
  if ("model" in changes && changes.model !== caseName(page.found, "model"))
    for (const key of sizeKeys(page.found)) if (!(key in changes)) delete state[key];
  page.state = state;
  history[dragging ? "replaceState" : "pushState"](null, "", addressOf(state));
  schedule();
}

function sizeKeys(found) {
  return found.sizes.map((size) => size.name);
}

let scheduled = false,
  asked = 0;

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
  const matches = (found, key) => state[key] === undefined || caseName(found, key) === state[key];
  const documents = GIVEN.documents.filter((found) => CASES.every((key) => matches(found, key)));
  if (documents.length) return documents[0];
  return GIVEN.documents.find((found) => matches(found, "model")) ?? GIVEN.documents[0];
}

/** The sizes that a state puts in the place of a document's own. Throws what is wrong with one. */
function chosenSizes(found, state) {
  const chosen = {};
  for (const size of found.sizes) {
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

let waiting = null;

/** Ask a moment later, once for many changes: what the polynomials answer is shown already. */
function soon(state) {
  clearTimeout(waiting);
  waiting = setTimeout(() => ask(state), 60);
}

/** What a state asks the server for. */
function queryOf(state) {
  const query = new URLSearchParams(),
    first = GIVEN.first ?? GIVEN.documents[0].asked;
  // A device goes with what runs: it is asked for with another price book only where somebody chose it.
  const asked = {
    model: first.model,
    on: state.price_book && state.price_book !== "run" ? null : (first.on ?? null),
    ...state,
  };
  for (const [key, own] of Object.entries(asked))
    if (!(key in VIEW_KEYS) && own !== null && own !== "none") query.set(key, String(own));
  if (page.config && query.get("model") === "config.json") query.delete("model");
  else page.config = null;
  return query;
}

/** In the explorer: ask the server for what is chosen; a late answer to an earlier question is dropped. */
async function ask(state, undo = null) {
  const number = ++asked,
    key = queryKey(state),
    query = queryOf(state);
  document.body.classList.add("asking");
  try {
    const answer = await fetch(`${GIVEN.api}?${query}`, page.config ? { method: "POST", body: page.config } : {});
    const found = await answer.json();
    if (number !== asked) return;
    page.answered = key;
    if (!answer.ok) {
      undo?.();
      if (page.good) {
        page.state = page.good;
        page.answered = queryKey(page.state);
        history.replaceState(null, "", addressOf(page.state));
      } else page.state = {};
      page.refused = found.error ?? `The server said ${answer.status}.`;
      return render();
    }
    page.refused = null;
    page.good = { ...state };
    whole(found);
    page.current = found;
    if (undo) history.pushState(null, "", addressOf(page.state));
    render();
  } catch (error) {
    if (number === asked) problem(`The server does not answer: ${error.message}`);
  } finally {
    if (number === asked) document.body.classList.remove("asking");
  }
}

/** What of a state only the server can answer, as a key. */
function queryKey(state) {
  return JSON.stringify(
    Object.entries(state)
      .filter(([key]) => !(key in VIEW_KEYS))
      .sort(),
  );
}

function problem(text) {
  const place = document.getElementById("problem");
  place.hidden = !text;
  place.textContent = text;
}
