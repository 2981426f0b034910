// What is shown as files: the numbers as JSON and CSV, the icicle as SVG and PNG; in the explorer what the server
// writes too. And a config.json, or a table, dropped on the window.
"use strict";

function drawExport() {
  const forms = {
    "Numbers as JSON": saveJson,
    "Lines as CSV": saveCsv,
    "Icicle as SVG": saveSvg,
    "Icicle as PNG": savePng,
  };
  const buttons = Object.entries(forms).map(([title, save]) =>
    element("button", { type: "button", role: "menuitem", onclick: () => (save(), close()) }, title),
  );
  if (GIVEN.api)
    for (const [form, title] of Object.entries({
      tex: "Table as LaTeX",
      md: "Table as Markdown",
      "trace.json": "Trace for Perfetto",
    }))
      buttons.push(
        element("button", { type: "button", role: "menuitem", onclick: () => (fetchExport(form), close()) }, title),
      );
  const menu = element("div", { role: "menu", hidden: true }, ...buttons);
  const opener = element(
    "button",
    { type: "button", "aria-haspopup": "menu", "aria-expanded": "false", onclick: () => toggle(menu.hidden) },
    "Export",
  );
  const toggle = (open) => {
    menu.hidden = !open;
    opener.setAttribute("aria-expanded", open);
    if (open) buttons[0].focus();
  };
  const close = () => toggle(false);
  const place = element("div", { class: "menu" }, opener, menu);
  place.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") (close(), opener.focus());
    else if (event.key === "ArrowDown") buttons[(at + 1) % buttons.length].focus();
    else if (event.key === "ArrowUp") buttons[(at + buttons.length - 1) % buttons.length].focus();
    else return;
    event.preventDefault();
  });
  document.addEventListener("pointerdown", (event) => place.contains(event.target) || close());
  document.getElementById("export").replaceChildren(place);
}

function save(name, type, content) {
  const link = element("a", {
    href: URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type })),
    download: name,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileName(ending) {
  return `${page.step.summary.model.replace(/[^\w.-]+/g, "-")}-${page.step.summary.procedure}.${ending}`;
}

/** What is shown, exactly: sizes, totals and lines; whole numbers as numbers, whatever their length. */
function saveJson() {
  const { step, view } = page,
    { command, python } = callOf();
  const lines = view.lines.map((line) => ({
    macro_operation: line.phase,
    block: line.block ?? null,
    layer: line.layer,
    line: line.line,
    equation: line.equation ?? "",
    repeat: line.repeat,
    text: line.text ?? "",
    ...line.values,
  }));
  const content = {
    learncost: step.version,
    model: step.summary.model,
    procedure: step.summary.procedure,
    price_book: step.summary.price_book,
    dtype: step.summary.dtype,
    device: step.summary.device,
    sizes: view.names,
    totals: view.totals,
    peak_bytes: view.peak,
    command,
    python,
    lines,
  };
  save(fileName("json"), "application/json", asJson(content) + "\n");
}

function asJson(content) {
  if (typeof content === "bigint") return content.toString();
  if (Array.isArray(content)) return `[${content.map(asJson).join(",")}]`;
  if (content && typeof content === "object")
    return `{${Object.entries(content)
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => `${JSON.stringify(key)}:${asJson(value)}`)
      .join(",")}}`;
  return JSON.stringify(content ?? null);
}

function saveCsv() {
  const columns = ["macro_operation", "block", "layer", "line", "equation", "repeat", ...Object.keys(QUANTITIES)];
  const cell = (content) => (/[",\n]/.test(String(content)) ? `"${String(content).replaceAll('"', '""')}"` : String(content));
  const rows = page.view.lines.map((line) =>
    [
      line.phase,
      line.block ?? "",
      line.layer,
      line.line,
      line.equation ?? "",
      line.repeat,
      ...Object.keys(QUANTITIES).map((name) => line.values[name] ?? ""),
    ]
      .map(cell)
      .join(","),
  );
  save(fileName("csv"), "text/csv", [columns.join(","), ...rows].join("\n") + "\n");
}

/** The icicle as a drawing of its own: colours and fonts resolved into it. */
function drawingOf() {
  const drawing = document.getElementById("icicle-svg"),
    copy = drawing.cloneNode(true),
    originals = drawing.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, at) => {
    const style = getComputedStyle(originals[at]);
    for (const name of ["fill", "stroke", "stroke-width", "font-size", "font-weight"])
      part.setAttribute(name, style.getPropertyValue(name));
    part.removeAttribute("style");
    part.removeAttribute("class");
  });
  const { width, height } = drawing.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("font-family", getComputedStyle(document.body).fontFamily);
  copy.prepend(
    svgElement("metadata", {}, `${callOf().command}; ${page.step.summary.convention}; learncost ${page.step.version}`),
    svgElement("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }),
  );
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function saveSvg() {
  save(fileName("svg"), "image/svg+xml", drawingOf().text);
}

function savePng() {
  const { text, width, height } = drawingOf(),
    image = new Image(),
    canvas = element("canvas");
  image.onload = () => {
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(fileName("png"), "image/png", blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

async function fetchExport(form) {
  const query = queryOf(page.state);
  query.set("as", form);
  const answer = await fetch(
    `${GIVEN.api.replace(/document$/, "export")}?${query}`,
    page.config ? { method: "POST", body: page.config } : {},
  );
  if (!answer.ok) return problem((await answer.json()).error);
  save(fileName(form), answer.headers.get("content-type"), await answer.blob());
}

/** A model's file, or a trainer's, that is dropped on the window is requested; a broken one changes nothing. */
function takeDrops() {
  const hint = document.querySelector(".drop-hint");
  hint.hidden = !GIVEN.api;
  if (!GIVEN.api) return;
  addEventListener("dragover", (event) => (event.preventDefault(), document.body.classList.add("dropping")));
  addEventListener("dragleave", (event) => event.relatedTarget === null && document.body.classList.remove("dropping"));
  addEventListener("drop", async (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const files = await Promise.all([...event.dataTransfer.files].map(async (file) => [file.name, await file.text()]));
    if (files.length) takeFiles(files);
  });
}

/** Take a model's file, or those of a trainer, each with its name and its text; the server recognises them. */
async function takeFiles(files) {
  let content,
    parsed = "";
  try {
    for (const [name, text] of files) if (name.endsWith(".json")) (parsed = name), JSON.parse(text);
    const body = JSON.stringify(Object.fromEntries(files)),
      answer = await fetch(GIVEN.api.replace(/document$/, "files"), { method: "POST", body });
    content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
  } catch (error) {
    page.refused = error instanceof SyntaxError ? `${parsed} is no JSON: ${error.message}` : error.message;
    return render();
  }
  const { chosen, config, notes } = content,
    kept = notes.length ? ["on", "show", "order"] : ["procedure", "on", "show", "order"];
  page.config = config || null;
  page.notice = notes.join(" ");
  page.state = { ...Object.fromEntries(Object.entries(page.state).filter(([key]) => kept.includes(key))), ...chosen };
  ask(page.state, true);
}
