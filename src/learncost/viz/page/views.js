// Views in addition to the document: each a picture that a report has inside of it, and that the explorer asks its server for
// when it comes into sight. Controls are made of the flags that a view takes, charts of the kinds that it has.
"use strict";

const DRAWN = {
  bars: drawBars,
  lanes: drawLanes,
  blocks: drawBlocks,
  tree: drawTree,
  lines: drawLines,
  rows: drawRows,
};

for (const view of GIVEN.views ?? []) {
  const state = { key: null, picture: null, refused: null, number: 0, asked: 0, waiting: null };
  section(view.name, view.word, (place) => drawView(place, view, state), () => [
    GIVEN.api ? queryKey(page.state) : fixedSizes(),
    state.number,
  ]);
  const added = SECTIONS.pop();
  const after = SECTIONS.findIndex((other) => other.id === view.after);
  SECTIONS.splice(after < 0 ? SECTIONS.length : after + 1, 0, added);
}

/** The names of what views take and the document does not. */
function ofViews() {
  return new Set((GIVEN.fields?.views ?? []).flatMap((view) => view.flags.map((flag) => flag.name)));
}

function drawView(place, view, state) {
  const flags = GIVEN.fields?.views.find((other) => other.name === view.name)?.flags ?? [];
  if (!GIVEN.api) {
    const picture = page.step.views?.[view.name];
    if (!picture) return false;
    drawPicture(place, view, picture, []);
    return true;
  }
  if (page.step.views && !page.step.views.includes(view.name)) return false;
  const key = queryKey(page.state),
    asked = flags.some((flag) => page.state[flag.name] !== undefined);
  if (state.key === key && state.refused && !asked) return false;
  if (state.key === key && state.refused)
    drawPicture(place, view, { title: `${view.title}: not for these settings`, lead: state.refused, charts: [], notes: [] }, flags);
  else if (state.picture) drawPicture(place, view, state.picture, flags);
  else place.replaceChildren(...heading(view.title, "Counting …"));
  place.classList.toggle("late", state.key !== key);
  if (state.key !== key) whenSeen(place, () => askView(view, state));
  return true;
}

const watched = new WeakMap();
const sight =
  "IntersectionObserver" in window
    ? new IntersectionObserver(
        (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => watched.get(entry.target)?.()),
        { rootMargin: "300px" },
      )
    : null;

/** Do something when a place comes into sight: now, where it is. */
function whenSeen(place, act) {
  watched.set(place, () => {
    sight?.unobserve(place);
    act();
  });
  sight?.unobserve(place);
  sight ? sight.observe(place) : act();
}

/** Ask for a picture a moment later; what comes late is dropped. */
function askView(view, state) {
  clearTimeout(state.waiting);
  state.waiting = setTimeout(async () => {
    const key = queryKey(page.state),
      number = ++state.asked,
      query = queryOf(page.state, true);
    query.set("view", view.name);
    try {
      const answer = await fetch(`${GIVEN.api.replace(/document$/, "view")}?${query}`, page.config ? { method: "POST", body: page.config } : {});
      const content = await answer.json();
      if (number !== state.asked) return;
      state.key = key;
      state.refused = answer.ok ? null : (content.error ?? `The server answered ${answer.status}.`);
      if (answer.ok) state.picture = content;
      state.number += 1;
      drawSection(SECTIONS.find(({ id }) => id === view.name));
      drawLinks();
    } catch (error) {
      problem(`The server does not answer: ${error.message}`);
    }
  }, 250);
}

function drawPicture(place, view, picture, flags) {
  const controls = flags.length ? [element("div", { class: "fields view-fields no-print" }, ...flags.map(viewField))] : [];
  const focused = document.activeElement?.dataset?.more;
  const charts = element("div");
  const notes = picture.notes.length
    ? [element("details", { class: "no-print" }, element("summary", {}, "what this rests on"), ...picture.notes.map((note) => element("p", { class: "caption" }, note)))]
    : [];
  const command = picture.command
    ? [
        element(
          "div",
          { class: "call no-print" },
          element("pre", {}, picture.command),
          element("button", { type: "button", onclick: (event) => copy(event.target, picture.command) }, "Copy"),
        ),
      ]
    : [];
  place.classList.toggle("long", picture.charts.some((chart) => chart.rows?.length > 20)); // else it stays on one page
  place.replaceChildren(...heading(picture.title, picture.lead), ...fixedLine(fixedSizes()), ...controls, charts, ...notes, ...command);
  for (const chart of picture.charts) {
    const drawn = DRAWN[chart.kind]?.(chart, charts, (choice) => choose(choice)) ?? [];
    charts.append(...(chart.heading ? [element("h3", {}, chart.heading)] : []), ...drawn.filter(Boolean));
  }
  if (focused) place.querySelector(`[data-more="${focused}"]`)?.focus({ preventScroll: true });
}

/** The control of a flag: sliders where it has parts with a size each, else as among the other settings. */
function viewField(flag) {
  const parts = choicesOf(flag.name)?.parts;
  return parts ? partsField(flag, parts) : otherField(flag);
}

function partsField(flag, parts) {
  const sizes = Object.fromEntries((page.state[flag.name] ?? "").split(",").filter(Boolean).map((part) => part.split("=")));
  const put = (name, size, dragging) => {
    const all = { ...sizes, [name]: String(size) };
    const text = [...parts.map((part) => part.name), ...Object.keys(sizes).filter((other) => !parts.some((part) => part.name === other))]
      .filter((part) => Number(all[part]) > 1)
      .map((part) => `${part}=${all[part]}`)
      .join(",");
    choose({ [flag.name]: text || null }, dragging);
  };
  const rows = parts.map((part) => {
    const now = Number(sizes[part.name] ?? 1),
      steps = Math.log2(part.most),
      out = element("output", {}, grouped(BigInt(now)));
    return element(
      "label",
      {},
      element("b", {}, part.name),
      element("small", {}, part.title),
      element("input", {
        type: "range",
        min: 0,
        max: steps,
        step: 1,
        value: Math.round(Math.log2(now)),
        "data-more": `${flag.name}-${part.name}`,
        "aria-label": `${flag.name} ${part.name}`,
        "aria-valuetext": String(now),
        oninput: (event) => (out.textContent = grouped(BigInt(2 ** event.target.value))),
        onchange: (event) => put(part.name, 2 ** event.target.value, false),
      }),
      out,
    );
  });
  const text = element("input", {
    type: "text",
    id: `more-${flag.name}`,
    "data-more": flag.name,
    value: page.state[flag.name] ?? "",
    placeholder: "none",
    onchange: (event) => choose({ [flag.name]: event.target.value || null }),
  });
  return element("div", { class: "field parts", title: flag.meaning }, element("label", { for: `more-${flag.name}` }, flag.name), text, element("div", { class: "sliders" }, ...rows));
}
