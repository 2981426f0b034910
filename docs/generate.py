"""Write the pages that say what the package computes: one for each layer, the errata, the example, the vocabulary.

    python docs/generate.py [FOLDER]

Everything here is read off the layers' tables, the price books and the data files; no number is typed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
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
from learncost.reports.formulas.formulas import formulas
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
    """Write every generated page under the folder; the paths written."""
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
    """The first clause of a layer's source, for lists."""
    return text.split(":")[0].rstrip(".")


def layers_page() -> str:
    """The list of layers."""
    found = [subject(name) for name in layers()]
    rows = [(f"[{s.name}]({s.name}.md)", first(s.layer.source), f"`{s.layer.text.splitlines()[0]}`") for s in found]
    names = "\n".join(s.name for s in found)
    return (
        "# Layers\n\n"
        "Every layer is a table of equations. Its backward pass, its weight update, all its counts and its page here "
        "are read off that table.\n\n"
        f"{table(('layer', 'what it is', 'header'), rows)}\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def layer_page(name: str) -> str:
    """A layer: its equations and what forward costs; behind a click every pass under every book, and line by line."""
    found, explained = subject(name), explain(name)
    table_of = found.layer.table if found.layer.table.lines else next(iter(found.tables.values()))
    parts = [
        f"# {name}",
        plain(explained.source),
        f'<div class="equations">\n{print_reading.mathml(table_of)}\n</div>',
        "In the [notation](../notation.md):",
        f"```text\n{written(found)}\n```",
        f"## {first_pass(explained)}",
        costs_of(name, next(iter(explained.parts)).macro_operation),
        "More of it on the command line, or in a click below:",
        f"```sh\nlearncost explain {name}\nlearncost formulas {name} --price-book paper\n```",
        folded("Every pass under every price book", costs(name)),
        *(folded(f"{part.title}, line by line", lines_of(explained, part)) for part in explained.parts),
    ]
    if explained.kept:
        parts.append(folded("Kept between the passes", kept_of(explained)))
    notes = " ".join(plain(note) for note in explained.notes)
    page = "\n\n".join([*parts, f"In the lines, and in what is kept: {notes}"]) + "\n"
    if "[n_parameters]" in page:
        page = page.replace("[n_parameters]", "[n]").replace("<mi>n_parameters</mi>", "<mi>n</mi>")
        page += "\nThe axis n counts the parameters.\n"
    return page


def written(found: Subject) -> str:
    """The layer as it is written, its remarks aside: they stand above."""
    text = found.layer.text or str(next(iter(found.tables.values())))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("%"))


def first_pass(explained: Explanation) -> str:
    """The heading of the first macro-operation's costs."""
    return f"{next(iter(explained.parts)).title} cost"


def folded(title: str, text: str) -> str:
    """What is shown by a click on its title."""
    return f"<details>\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def lines_of(explained: Explanation, part: ExplainedPhase) -> str:
    """The lines of a macro-operation: number, line and formula, MACCs, FLOPs."""
    if not part.steps:
        return "Nothing."
    rows = []
    for one in part.steps:
        line = f"{code(one.text)}<br>{one.mathml}" if one.latex else one.text
        counts = (print_reading.breakable(explained.written(c)) for c in (one.maccs, one.flops))
        rows.append((one.equation, line, *counts))
    sums = (print_reading.breakable(explained.written(c)) for c in (part.maccs, part.flops))
    return table(("", "line", "MACCs", "FLOPs"), [*rows, ("", "**total**", *sums)])


def code(text: str) -> str:
    """A line of the notation, which may be broken between its terms but not within one."""
    return "`" + re.sub(r"\[[^\]]*\]", lambda axes: axes[0].replace(" ", "\u00a0"), text) + "`"


def kept_of(explained: Explanation) -> str:
    """The values that forward keeps, and the lines that read them."""
    rows = [
        (
            code(kept.text) + (" (input)" if kept.given else ""),
            print_reading.breakable(explained.written(kept.elements)),
            ", ".join(f"`{reader}`" for reader in kept.readers) or "later turns",
        )
        for kept in explained.kept
    ]
    whole = ("**total**", print_reading.breakable(explained.written(explained.kept_total)), "")
    return table(("value", "elements", "read by"), [*rows, whole])


def costs_of(name: str, phase: str) -> str:
    """MACCs and FLOPs of one macro-operation, price books that agree in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for book in BOOKS:
        found = formulas(name, price_book=book)
        row = next(row for row in (*found.rows, found.total) if row.macro_operation == phase or row is found.total)
        counts = tuple(print_reading.breakable(found.written(c)) for c in (row.maccs, row.flops))
        rows.setdefault(counts, []).append(f"`{book}`")
    times = "Per sequence; a batch of B sequences costs B times as much." if found.per_sequence else ""
    shown = ((", ".join(books), *counts) for counts, books in rows.items())
    return f"{table(('[price book](../conventions.md)', 'MACCs', 'FLOPs'), shown)}\n{times}".rstrip()


def costs(name: str) -> str:
    """MACCs and FLOPs of every macro-operation under every book; of books that agree once."""
    parts: dict[str, list[str]] = {}
    for book in BOOKS:
        found = formulas(name, price_book=book)
        rows = []
        for row in (*found.rows, *found.others, found.total) if len(found.rows) > 1 else found.rows:
            label = f"{row.title} {row.subtitle}".strip()
            counts = (print_reading.breakable(found.written(c)) for c in (row.maccs, row.flops))
            rows.append((f"**{label}**" if row is found.total else label, *counts))
        parts.setdefault(table(("", "MACCs", "FLOPs"), rows), []).append(book)
    return "\n".join(
        f"Price book{'s' if len(books) > 1 else ''} {', '.join(f'`{book}`' for book in books)}:\n\n{text}"
        for text, books in parts.items()
    )


def totals(found: Subject) -> list[tuple[str, int, int]]:
    """MACCs and FLOPs of every macro-operation at the example's sizes."""
    sizes = {axis: EXAMPLE.get(axis, 1) for axis in found.axes | {base(a) for a in EXAMPLE}}
    result = []
    for phase, own in found.tables.items():
        priced = price(own, sizes, found.book)
        result.append((phase.replace("_", " "), priced.maccs, priced.flops))
    return result


def example_page() -> str:
    """One example priced under every book; books that say the same of all layers share a column."""
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
    """What every price book is and what it says of words and lines."""
    words: dict[tuple[str, ...], list[str]] = {}
    lines: dict[tuple[str, ...], list[str]] = {}
    for book in BOOKS.values():
        for word, own in book.ops.items():
            each = ("" if n is None else str(n) for n in (own.body, own.gradient, own.jacobian))
            words.setdefault((f"`{word}`", *each, own.source), []).append(f"`{book.name}`")
        for (layer, line), said in book.overrides.items():
            counts = (print_reading.breakable(c) for c in (said.maccs, said.flops))
            lines.setdefault((layer, f"`{line}`", *counts, said.source), []).append(f"`{book.name}`")
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
            table(("price book", "what it counts", "source"), books),
            "The rows of formulas, FLOPs of the forward pass of a step; backward takes twice as many:\n",
            table(("price book", "operation", "FLOPs", "letters, as axes or what is read off the model"), rows),
            "What a book says of a word, in FLOPs per element of the result:\n",
            table(("word", "forward", "gradient", "Jacobian", "source", "books"), _with_books(words)),
            "What a book says of one line instead of its rule:\n",
            table(("layer", "line", "MACCs", "FLOPs", "source", "books"), _with_books(lines)),
        )
    )


def _with_books(rows: dict[tuple[str, ...], list[str]]) -> Iterable[tuple[str, ...]]:
    return ((*row, ", ".join(books)) for row, books in rows.items())


def errata_page() -> str:
    """Every erratum, document by document."""
    parts = []
    documents = dict.fromkeys(row.document for row in errata())
    for document in documents:
        parts.append(f"## {document}\n")
        for row in (r for r in errata() if r.document == document):
            parts.append(f"### {row.id}: {row.where}\n")
            changes = ""
            if (row.maccs, row.flops) != ("0", "0"):
                changes = f" Right minus printed: {row.maccs} MACCs, {row.flops} FLOPs."
            mended = [name for name, how in row.books.items() if how == "mended"]
            books = f"\n\nMended in: {', '.join(f'`{name}`' for name in mended)}." if mended else ""
            terms = (("Printed", row.printed), ("Right", row.right), ("Effect", row.effect + changes))
            parts.append("".join(f"{term}\n: {plain(text)}\n\n" for term, text in terms).rstrip() + books + "\n")
    return "\n".join(parts)


def plain(text: str) -> str:
    """Text in which stars, underscores and angle brackets are themselves."""
    for mark in "\\*_<>[]`$":
        text = text.replace(mark, "\\" + mark)
    return text


def words_page() -> str:
    """Every word of the vocabulary: its body, its gradient, its explicit Jacobian."""
    parts = []
    for word in entries():
        takes = ", ".join(word.inputs)
        parts.append(f"### {word.name}\n")
        source = f" {plain(word.source)}" if word.source else ""
        acts = "acts on each element" if word.pointwise else "acts on the axes named in brackets"
        kind = f"a primitive ({word.kind})" if not word.body_text else "a word"
        parts.append(f"`{word.name}({takes})` gives {', '.join(word.outputs)}; {kind}, {acts}.{source}\n")
        for title, text in (("", word.body_text), ("gradient", word.gradient_text), ("Jacobian", word.jacobian_text)):
            if text:
                lines = "\n".join(line.strip() for line in text.strip().splitlines())
                parts.append(
                    f"{title.capitalize()}:\n\n```text\n{lines}\n```\n" if title else f"```text\n{lines}\n```\n"
                )
    return "\n".join(parts)


def emit_page() -> str:
    """The emitted programs of attention."""
    parts = (f"{title}:\n\n```python\n{emit('attention', name)}```\n" for name, title in LIBRARIES.items())
    return "\n".join(parts)


def plans_page(name: str, plans: Iterable[str]) -> str:
    """One step of a model with AdamW on 8 sequences of 1,024 tokens, under one plan after another."""
    model = build(configure(name))
    plain, sizes = step(model, "bp", "adamw"), run_sizes(model, 8, 1024, None)
    rows = []
    for text in plans:
        one = planned(plain, text)
        flops, found = price(one, sizes, BOOKS["run"]).flops, memory(one, sizes)
        amounts = (f"{flops / 1e12:.4f}", f"{found.kept_bytes / 1e9:.2f} GB", f"{found.peak / 1e9:.2f} GB")
        rows.append((f"`{text}`" if text else "none", *amounts))
    return table(("plan", "10^12 FLOPs", "kept for the backward pass", "peak"), rows)


def symbols_page() -> str:
    """Axes and their symbols."""
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
    return table(("axis", "in formulas", "what it counts"), rows)


if __name__ == "__main__":
    for page in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(page)
