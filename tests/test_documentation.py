"""The documentation's generator runs and speaks of every layer; every table and program on the pages is right."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import learncost as lc
from learncost.backends.backend import BACKENDS
from learncost.cost_models.books import BOOKS
from learncost.cost_models.errata import errata
from learncost.ops import entries
from learncost.reports.formulas.subject import layers
from learncost.viz.figures import FIGURES

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(generate: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the gallery, of which tests/test_figures.py draws every kind."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate.gallery, "page", lambda _: "")
        generate.write(folder)
    return folder


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.md")}


def blocks(page: str, kind: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_a_page_for_every_layer(pages: dict[str, str]) -> None:
    for name in layers():
        page = pages[f"layers/{name}.md"]
        assert f"# {name}" in page
        assert all(f"`{book}`" in page for book in BOOKS)
        # Its equations come first, then what its first pass costs; all else is behind a click.
        places = [page.index(text) for text in ("<mtable>", "```text", "\n## ", "<details>")]
        assert places == sorted(places)
        assert page.count("\n## ") == 1
        assert page.count("<details>") == page.count("</details>") >= 2
        assert f"[{name}]({name}.md)" in pages["layers/index.md"]


def test_every_erratum_and_every_word(pages: dict[str, str]) -> None:
    assert all(f"### {row.id}:" in pages["generated/errata.md"] for row in errata())
    assert all(f"### {word.name}\n" in pages["generated/words.md"] for word in entries())


def test_the_example_is_computed(pages: dict[str, str]) -> None:
    # 2 x 128 x 768^2 x 2 + 2 x 128^2 x 768 MACCs of attention's forward pass in every column of books that agree.
    expected = f"{4 * 128 * 768**2 + 2 * 128**2 * 768:,}"
    page = pages["generated/example.md"]
    heads = next(line for line in page.splitlines() if "macro-operation" in line).split("|")[4:-1]
    assert sorted(book for head in heads for book in head.strip().split(", ")) == sorted(BOOKS)
    (row,) = (line for line in page.splitlines() if "[attention](" in line and "forward" in line)
    assert row.split("|")[4:-1] == [f" {expected} "] * len(heads)


@pytest.mark.slow
def test_a_second_run_writes_nothing(generate: ModuleType, folder: Path) -> None:
    generate.write(folder)  # with the gallery
    dates = {path: path.stat().st_mtime_ns for path in folder.rglob("*.md")}
    (folder / "layers" / "gone.md").write_text("of a layer that is no more")
    assert {path: path.stat().st_mtime_ns for path in generate.write(folder)} == dates
    assert not (folder / "layers" / "gone.md").exists()


def test_every_included_page_is_generated(pages: dict[str, str]) -> None:
    for page in DOCS.glob("*.md"):
        for name in re.findall(r"```\{include\} (\S+)", page.read_text(encoding="utf-8")):
            assert name in pages


@pytest.mark.parametrize("text", blocks("notation.md", "text"))
def test_the_layers_on_the_page_of_the_notation(text: str) -> None:
    layer = lc.layer(text)
    lc.derive(layer)


def test_the_emitted_attention_is_that_of_the_page(pages: dict[str, str]) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", pages["generated/emit.md"], re.DOTALL | re.MULTILINE)
    assert programs == [lc.emit("attention", backend) for backend in ("numpy", "torch", "jax")]
    scope: dict[str, object] = {}
    for program in blocks("emit.md", "python"):
        exec(compile(program, "emit.md", "exec"), scope)


def test_add_a_layer_by_following_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (table,) = blocks("add-a-layer.md", "text")
    name = lc.layer(table).name
    Path(f"{name}.table").write_text(table, encoding="utf-8")
    from learncost.reports.formulas.explain import explain
    from learncost.reports.formulas.formulas import formulas

    assert "Shazeer" in str(explain(f"{name}.table"))
    assert "Shazeer" in str(formulas(f"{name}.table"))
    scope: dict[str, object] = {}
    for program in blocks("add-a-layer.md", "python"):
        if not hasattr(lc, "check_layer"):
            program = program.replace("lc.check_layer(layer)\n", "")
        exec(compile(program, "add-a-layer.md", "exec"), scope)


def test_add_a_backend_by_following_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learncost.backends.backend.BACKENDS", {**BACKENDS})
    monkeypatch.setitem(sys.modules, "toy", ModuleType("toy"))
    scope: dict[str, object] = {}
    for program in blocks("add-a-backend.md", "python"):
        exec(compile(program, "add-a-backend.md", "exec"), scope)
    text = lc.emit("attention", "toy")
    assert "toy.contract(" in text
    assert "np." not in text


def test_the_page_about_the_ledger_explains_every_word_of_its_screen() -> None:
    text = (DOCS / "reading-a-ledger.md").read_text(encoding="utf-8")
    (screen,) = blocks("reading-a-ledger.md", "console")
    explained = " ".join(re.findall(r"^(`.+`)$", text, re.MULTILINE))
    for row in lc.cost("gpt2").rows:
        assert str(row.layer) in explained
        assert row.macro_operation.replace("_", " ") in explained
    for word in ("MACCs", "FLOPs", "bytes", "share", "total", "gpt2", "one step of bp"):
        assert f"`{word}`" in explained
        assert word in screen
    terms = [term for terms in re.findall(r"^`.+`$", text, re.MULTILINE) for term in re.findall(r"`([^`]+)`", terms)]
    flat = " ".join(screen.split())
    assert [term for term in terms if term not in flat] == []


@pytest.mark.slow
def test_the_gallery_has_every_kind_of_figure(generate: ModuleType, tmp_path: Path) -> None:
    gallery = generate.gallery.page(tmp_path)
    images = re.findall(r"!\[(.+)\]\((generated/figures/(.+)\.svg)\)", gallery)
    answers = {"contest", "complexity", "fit", "sweep"}  # no commands of their own: the calls of Python stand there
    assert {kind for *_, kind in images} == FIGURES.keys() | answers
    for finding, path, kind in images:
        assert f"## {finding}\n" in gallery
        made_by = f"{kind}(" if kind in answers else f"learncost figure {kind} "
        assert made_by in (tmp_path / path).read_text(encoding="utf-8")
    assert not (tmp_path / "generated" / "figures" / "new.svg").exists()


def test_the_programs_about_any_module_run():
    pytest.importorskip("torch")
    scope: dict[str, object] = {}
    for program in blocks("any-module.md", "python"):
        exec(compile(program, "any-module.md", "exec"), scope)
