"""Write the pages of computed data: one for each layer, the errata, the example, the vocabulary.

    python docs/generate.py [FOLDER]

Everything here is read off the layers' tables, the price books and the data files; no number is typed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import gallery
import reference

from learncost.cli.emit import LIBRARIES, emit
from learncost.cost_models import price
from learncost.cost_models.books import BOOKS, every
from learncost.cost_models.errata import errata
from learncost.cost_models.formula import formulas as formula_books
from learncost.ir.polynomial import base
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.ops import entries
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.reports import notation as print_reading
from learncost.reports.formulas.explain import explain
from learncost.reports.formulas.explanation import ExplainedPhase, Explanation
from learncost.reports.formulas.formulas import Formulas, formulas
from learncost.reports.formulas.subject import Subject, layers, subject
from learncost.reports.memory.planner import memory

# The sizes of bert-base at 128 tokens, on which the conventions page compares the price books.
EXAMPLE = {"B": 1, "M": 128, "N": 128, "d": 768, "k": 64, "h": 12, "f": 3072, "v": 30522}
# Alone, and together.
EXAMPLE_PLANS = (
    *("", "flash", "chunked-loss", "recompute=gelu+norm", "recompute=attention", "recompute=all"),
    *("recompute=block/4", "fused-update", "fused"),
    "flash,fused,chunked-loss,fused-update",
    "flash,fused,chunked-loss,fused-update,recompute=gelu+norm",
    "flash,fused,chunked-loss,fused-update,recompute=all",
    "flash,fused,chunked-loss,epilogue-update,recompute=all",
)
SEGMENTS = tuple(
    f"flash,chunked-loss,fused-update{more}"
    for more in ("", *(f",recompute=block{part}" for part in ("", "/2", "/3", "/4", "/2+gelu+norm", "/6+all")))
)
EXAMPLE_LAYERS = ("embedding", "attention", "add_norm", "feed_forward", "head")


def write(folder: Path) -> list[Path]:
    """Write every generated page under the folder; return the written paths."""
    pages = {f"layers/{name}.md": layer_page(name) for name in layers()}
    pages["layers/index.md"] = layers_page()
    pages["generated/errata.md"] = errata_page()
    pages["generated/example.md"] = example_page()
    pages["generated/words.md"] = words_page()
    pages["generated/books.md"] = books_page()
    pages["generated/symbols.md"] = symbols_page()
    pages["generated/emit.md"] = emit_page()
    pages["generated/plans.md"] = plans_page("gpt2", EXAMPLE_PLANS)
    pages["generated/segments.md"] = plans_page("gpt2-xl", SEGMENTS)
    pages["generated/gallery.md"] = gallery.page(folder)
    pages["generated/pictures.md"] = gallery.pictures(pages["generated/gallery.md"])
    pages |= reference.pages()
    written = []
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # An unchanged page keeps its date, so that a second build has nothing to do.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        written.append(path)
    for old in {*(folder / "layers").glob("*.md"), *(folder / "api").glob("*.md")} - set(written):
        old.unlink()
    return written


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(head)
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "&#124;") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def first(text: str) -> str:
    """Return the first clause of a layer's source, for lists."""
    return text.split(":")[0].rstrip(".")


def layers_page() -> str:
    """Return the page that lists the layers."""
    found = [subject(name) for name in layers()]
    rows = [(f"[{s.name}]({s.name}.md)", first(s.layer.source), f"`{s.layer.text.splitlines()[0]}`") for s in found]
    names = "\n".join(s.name for s in found)
    return (
        "# Layers\n\n"
        "Every layer is a table of equations. Its backward pass, its weight update, its counts and its page are "
        "derived from that table.\n\n"
        f"{table(('layer', 'definition', 'header'), rows)}\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def layer_page(name: str) -> str:
    """Return the page of a layer: equations and forward cost; folded, every phase under every book, line by line."""
    found, explained = subject(name), explain(name)
    answers = {book: formulas(name, price_book=book) for book in BOOKS}
    table_of = found.layer.table if found.layer.table.lines else next(iter(found.tables.values()))
    parts = [
        f"# {name}",
        plain(explained.source),
        f'<div class="equations">\n{print_reading.mathml(table_of)}\n</div>',
        "In the [notation](../notation.md):",
        f"```text\n{written(found)}\n```",
        f"## {first_pass(explained)}",
        costs_of(answers, next(iter(explained.parts)).macro_operation),
        "For more, run these commands or open the sections below:",
        f"```sh\nlearncost explain {name}\nlearncost formulas {name} --price-book paper\n```",
        folded("Every phase under every price book", costs(answers)),
        *(folded(f"{part.title}, line by line", lines_of(explained, part)) for part in explained.parts),
    ]
    if explained.saved:
        parts.append(folded("Saved tensors", saved_of(explained)))
    notes = " ".join(plain(note) for note in explained._notes)
    page = "\n\n".join([*parts, f"Notes on the lines and the saved tensors: {notes}"]) + "\n"
    if "[n_parameters]" in page:
        page = page.replace("[n_parameters]", "[n]").replace("<mi>n_parameters</mi>", "<mi>n</mi>")
        page += "\nThe axis n counts the parameters.\n"
    return page


def written(found: Subject) -> str:
    """Return the layer's text without its comments, which the page shows above it."""
    text = found.layer.text or str(next(iter(found.tables.values())))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("%"))


def first_pass(explained: Explanation) -> str:
    """Return the heading of the first phase's costs."""
    return f"{next(iter(explained.parts)).title} cost"


def folded(title: str, text: str) -> str:
    """Return a text that a click on its title unfolds."""
    return f"<details>\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def lines_of(explained: Explanation, part: ExplainedPhase) -> str:
    """Return the lines of a phase: number, line and formula, MACCs, FLOPs."""
    if not part.steps:
        return "Nothing."
    rows = []
    for one in part.steps:
        line = f"{code(one.text)}<br>{one.mathml}" if one.latex else one.text
        counts = (print_reading.breakable(explained._written(c)) for c in (one.maccs, one.flops))
        rows.append((one.equation, line, *counts))
    sums = (print_reading.breakable(explained._written(c)) for c in (part.maccs, part.flops))
    return table(("", "line", "MACCs", "FLOPs"), [*rows, ("", "**total**", *sums)])


def code(text: str) -> str:
    """Return a line of the notation that breaks only between its terms."""
    return "`" + re.sub(r"\[[^\]]*\]", lambda axes: axes[0].replace(" ", "\u00a0"), text) + "`"


def saved_of(explained: Explanation) -> str:
    """Return the saved tensors of the forward pass, and the lines that read them."""
    rows = [
        (
            code(kept.text) + (" (input)" if kept.given else ""),
            print_reading.breakable(explained._written(kept.elements)),
            ", ".join(f"`{reader}`" for reader in kept.readers) or "later iterations",
        )
        for kept in explained.saved
    ]
    whole = ("**total**", print_reading.breakable(explained._written(explained.saved_total)), "")
    return table(("value", "elements", "read by"), [*rows, whole])


def costs_of(answers: Mapping[str, Formulas], phase: str) -> str:
    """Return MACCs and FLOPs of one phase, with price books that agree in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for book, found in answers.items():
        row = next(row for row in (*found.rows, found.total) if row.macro_operation == phase or row is found.total)
        counts = tuple(print_reading.breakable(found._written(c)) for c in (row.maccs, row.flops))
        rows.setdefault(counts, []).append(f"`{book}`")
    times = "Per sequence; a batch of B sequences costs B times as much." if found._per_sequence else ""
    shown = ((", ".join(books), *counts) for counts, books in rows.items())
    return f"{table(('[price book](../conventions.md)', 'MACCs', 'FLOPs'), shown)}\n{times}".rstrip()


def costs(answers: Mapping[str, Formulas]) -> str:
    """Return MACCs and FLOPs of every phase under every book, once for books that agree."""
    parts: dict[str, list[str]] = {}
    for book, found in answers.items():
        rows = []
        for row in (*found.rows, *found.others, found.total) if len(found.rows) > 1 else found.rows:
            label = f"{row.title} {row.subtitle}".strip()
            counts = (print_reading.breakable(found._written(c)) for c in (row.maccs, row.flops))
            rows.append((f"**{label}**" if row is found.total else label, *counts))
        parts.setdefault(table(("", "MACCs", "FLOPs"), rows), []).append(book)
    return "\n".join(
        f"Price book{'s' if len(books) > 1 else ''} {', '.join(f'`{book}`' for book in books)}:\n\n{text}"
        for text, books in parts.items()
    )


def totals(found: Subject) -> list[tuple[str, int, int]]:
    """Return MACCs and FLOPs of every phase at the example's sizes."""
    sizes = {axis: EXAMPLE.get(axis, 1) for axis in found.axes | {base(a) for a in EXAMPLE}}
    result = []
    for phase, own in found.tables.items():
        priced = price(own, sizes, found.book)
        result.append((phase.replace("_", " "), priced.maccs, priced.flops))
    return result


def example_page() -> str:
    """Return one example priced under every book; books that agree on all layers share a column."""
    priced = {book: [totals(subject(name, book)) for name in EXAMPLE_LAYERS] for book in BOOKS}
    columns: dict[str, list[str]] = {}
    for book, found in priced.items():
        columns.setdefault(str(found), []).append(book)
    together = [books[0] for books in columns.values()]
    rows = []
    for place, name in enumerate(EXAMPLE_LAYERS):
        for phase, (label, *_) in enumerate(priced["run"][place]):
            for quantity, unit in enumerate(("MACCs", "FLOPs"), start=1):
                counts = (f"{priced[book][place][phase][quantity]:,}" for book in together)
                first = (f"[{name}](layers/{name}.md)", label) if quantity == 1 else ("", "")
                rows.append((*first, unit, *counts))
    sizes = ", ".join(f"{print_reading.SYMBOLS[a]} = {n:,}" for a, n in EXAMPLE.items())
    heads = ("layer", "macro-operation", "", *(", ".join(books) for books in columns.values()))
    return f"One layer at {sizes}:\n\n{table(heads, rows)}"


def books_page() -> str:
    """Return the price books, with their costs of ops and their overrides of lines."""
    words: dict[tuple[str, ...], list[str]] = {}
    lines: dict[tuple[str, ...], list[str]] = {}
    for book in BOOKS.values():
        for word, own in book.ops.items():
            each = ("" if n is None else str(n) for n in (own.body, own.gradient, own.jacobian))
            words.setdefault((f"`{word}`", *each, own.source), []).append(f"`{book.name}`")
        for (layer, line), override in book.overrides.items():
            counts = (print_reading.breakable(c) for c in (override.maccs, override.flops))
            lines.setdefault((layer, f"`{line}`", *counts, override.source), []).append(f"`{book.name}`")
    books = ((f"`{b.name}`", b.title, b.source) for b in every().values())
    rows = (
        (
            f"`{name}`",
            row.name,
            f"`{row.flops}`",
            ", ".join(f"{k} {v}" for k, v in own.letters.items() if k in row.flops),
        )
        for name, own in formula_books().items()
        for row in own.rows
    )
    return "\n".join(
        (
            table(("price book", "counted operations", "source"), books),
            "Formulas for the FLOPs of a forward pass; the backward pass has twice as many:\n",
            table(("price book", "operation", "FLOPs", "letters, as axes or settings of the model"), rows),
            "The cost of an op in a book, in FLOPs per element of the result:\n",
            table(("op", "forward", "gradient", "Jacobian", "source", "books"), _with_books(words)),
            "The cost of a single line that replaces the rule of a book:\n",
            table(("layer", "line", "MACCs", "FLOPs", "source", "books"), _with_books(lines)),
        )
    )


def _with_books(rows: dict[tuple[str, ...], list[str]]) -> Iterable[tuple[str, ...]]:
    return ((*row, ", ".join(books)) for row, books in rows.items())


def errata_page() -> str:
    """Return every erratum, document by document."""
    parts = []
    documents = dict.fromkeys(row.document for row in errata())
    for document in documents:
        parts.append(f"## {document}\n")
        for row in (r for r in errata() if r.document == document):
            parts.append(f"### {row.id}: {row.where}\n")
            changes = ""
            if (row.maccs, row.flops) != ("0", "0"):
                changes = f" Correct minus printed: {row.maccs} MACCs, {row.flops} FLOPs."
            corrected = [name for name, how in row.books.items() if how == "corrected"]
            books = f"\n\nCorrected in: {', '.join(f'`{name}`' for name in corrected)}." if corrected else ""
            terms = (("Printed", row.printed), ("Correct", row.right), ("Effect", row.effect + changes))
            parts.append("".join(f"{term}\n: {plain(text)}\n\n" for term, text in terms).rstrip() + books + "\n")
    return "\n".join(parts)


def plain(text: str) -> str:
    """Return a text with escaped stars, underscores and angle brackets."""
    for mark in "\\*_<>[]`$":
        text = text.replace(mark, "\\" + mark)
    return text


def words_page() -> str:
    """Return every op of the vocabulary: its body, its gradient, its explicit Jacobian."""
    parts = []
    for word in entries():
        takes = ", ".join(word.inputs)
        parts.append(f"### {word.name}\n")
        source = f" {plain(word.source)}" if word.source else ""
        acts = "elementwise" if word.pointwise else "over the axes in brackets"
        kind = f"a primitive ({word.kind})" if not word.body_text else "an op with a body"
        parts.append(f"`{word.name}({takes})` returns {', '.join(word.outputs)}: {kind}, {acts}.{source}\n")
        for title, text in (("", word.body_text), ("gradient", word.gradient_text), ("Jacobian", word.jacobian_text)):
            if text:
                lines = "\n".join(line.strip() for line in text.strip().splitlines())
                parts.append(
                    f"{title.capitalize()}:\n\n```text\n{lines}\n```\n" if title else f"```text\n{lines}\n```\n"
                )
    return "\n".join(parts)


def emit_page() -> str:
    """Return the emitted programs of attention."""
    parts = (f"{title}:\n\n```python\n{emit('attention', name)}```\n" for name, title in LIBRARIES.items())
    return "\n".join(parts)


def plans_page(name: str, plans: Iterable[str]) -> str:
    """Return the cost of one step of a model with AdamW on 8 sequences of 1,024 tokens, plan by plan."""
    model = build(configure(name))
    plain, sizes = step(model, "bp", "adamw"), run_sizes(model, 8, 1024, None)
    rows = []
    for text in plans:
        one = planned(plain, text)
        flops, found = price(one, sizes, BOOKS["run"]).flops, memory(one, sizes)
        amounts = (f"{flops / 1e12:.4f}", f"{found.saved_bytes / 1e9:.2f} GB", f"{found.peak / 1e9:.2f} GB")
        rows.append((f"`{text}`" if text else "none", *amounts))
    return table(("plan", "10^12 FLOPs", "saved tensors", "peak"), rows)


def symbols_page() -> str:
    """Return axes and their symbols."""
    meaning = {
        "B": "sequences of a batch",
        "M": "queries, the decoder's length",
        "N": "keys and values, the encoder's length",
        "v": "vocabulary",
        "d": "width of the model",
        "f": "width of the feed-forward network",
        "k": "width of a head",
        "h": "heads",
        "p": "positions of the model",
    }
    rows = ((f"`{a}`", print_reading.size_mathml(a), meaning[a]) for a in print_reading.SYMBOLS)
    return table(("axis", "in formulas", "meaning"), rows)


if __name__ == "__main__":
    for page in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(page)
