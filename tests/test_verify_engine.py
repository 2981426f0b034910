"""What the engines execute equals what is priced, line by line; a program that does something else is found out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learncost.autodiff.derive import derive
from learncost.cli.command import main
from learncost.cost_models.books import book, price
from learncost.engines import compiler, emitted
from learncost.ir.errors import InputError
from learncost.layers.layer import shipped_layer
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.flash import QUERIES
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.verification.engine_in_place import BLOCKS, StatementWatch, places
from learncost.verification.engine_run import verify_engine, verify_layer
from tiny_models import GPT2 as SHORT
from tiny_models import LLAMA

torch = pytest.importorskip("torch")
compiled = pytest.mark.skipif(compiler.compiler() is None, reason="no C compiler found")

GPT2 = ("gpt2", {**SHORT[1], "n_layer": 2, "n_positions": 80})
ALL = "flash,fused,chunked-loss,fused-update,recompute=gelu+norm"


def _checked(model: tuple[str, dict[str, Any]], engine: str = "torch", **options: Any) -> Any:
    return verify_engine(model[0], engine, sizes=model[1], **options)


def _failures(report: Any) -> list[str]:
    return [str(check) for check in report.failed]


@compiled
@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(
    ("model", "plan", "procedure"),
    [
        (GPT2, "", "bp"),
        (GPT2, ALL, "bp"),
        (GPT2, ALL, "recompute"),
        (GPT2, "fused", "pepita"),
        (LLAMA, "fused", "bp"),
        (LLAMA, ALL, "bp"),
        (LLAMA, ALL, "pepita"),
        (GPT2, "fused,epilogue-update", "bp"),
        (LLAMA, "epilogue-update", "pepita"),
    ],
)
def test_in_place_executes_what_is_priced(model: Any, plan: str, procedure: str) -> None:
    """2 x 80 tokens: of the blocks of queries there are whole ones and a part of one."""
    report = _checked(model, plan=plan, procedure=procedure, optimizer="momentum")
    assert not _failures(report)
    assert all("elements written" in check.found for check in report.checks)  # in place, not the operators
    assert {check.compared.partition(" executed")[0] for check in report.checks} >= {"forward", "optimizer step"}


@compiled
def test_products_of_experts_are_said_to_be_taken_in_loops() -> None:
    """Kernels read a token's experts at an index, in loops of their own: said, neither failed nor counted as seen."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"intermediate_size": 6, "vocab_size": 11, "num_local_experts": 3, "num_experts_per_tok": 2}
    report = verify_engine("mixtral-8x7b", "torch", seq_len=4, sizes=sizes)
    assert not _failures(report)
    # Forward: 2 x 4 tokens, 2 experts each, 3 products of 8 x 6.
    assert f"{2 * 4 * 2 * 3 * 8 * 6:,} more are priced in loops of kernels" in report.checks[0].found


def _pairs(window: int | None = None) -> int:
    """Of 80 tokens: a block has the keys that any of its queries sees, those up to itself or the last `window`."""
    pairs = 0
    for query in range(80):
        block = [other for other in range(80) if other // QUERIES == query // QUERIES]
        pairs += len(
            {key for query in block for key in range(0 if window is None else max(0, query - window + 1), query + 1)}
        )
    return pairs


@compiled
def test_flash_executes_its_blocks_and_no_more() -> None:
    """Two products of 6 wide heads in 2 layers take the pairs that the blocks see, of 6,400."""
    texts = [check.found for check in _checked(GPT2, plan="flash,fused").checks if check.compared.startswith("forward")]
    pairs, square = _pairs(), 80 * 80
    linear = 2 * 80 * (2 * (4 * 24 * 24 + 2 * 24 * 96) + 24 * 61)
    each = 2 * 4 * 6 * 2 * 2  # sequences, heads, width of a head, products, layers
    executed = f"{linear + each * pairs:,} MACCs executed, {linear + each * pairs:,} priced"
    assert f"{executed} ({linear + each * square:,} with what blocks skip)" in texts[0]


@pytest.mark.parametrize("window", [None, 10])
def test_price_of_blocks(window: int | None) -> None:
    """In each of 2 layers, for 2 sequences and 4 heads that are 8 wide."""
    model, sizes = ("mistral-7b-v0.1", {**LLAMA[1], "sliding_window": window}) if window else LLAMA
    built = build(configure(model, sizes))
    lengths = run_sizes(built, 2, 80, None)
    table = planned(step(built, "bp", "sgd"), "flash")
    rows = [row for row in price(table, lengths, BLOCKS).rows if row.text.startswith("attn.R[")]
    assert rows
    assert {int(row.maccs.at(lengths)) for row in rows} == {2 * 2 * 4 * 8 * _pairs(window)}


def test_without_kernels_blocks_cost_what_products_cost() -> None:
    built = build(configure(*GPT2))
    lengths = run_sizes(built, 2, 80, None)
    table = step(built, "bp", "adamw")
    assert price(table, lengths, BLOCKS).maccs == price(table, lengths, book("matmul")).maccs


@compiled
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    torch.mm(m.H, m.attn_WK, out=", "    if 0: torch.mm(m.H, m.attn_WK, out=", "0 MACCs executed, 184,320"),
        ("    torch.mm(m.H, m.attn_WK, out=", "    for _ in 0, 1: torch.mm(m.H, m.attn_WK, out=", "368,640 MACCs"),
        (
            "    kernels.attention(m.attn_K_",
            "    lambda: kernels.attention(m.attn_K_",
            "0 elements written, 7,680 priced",
        ),
    ],
    ids=["dropped", "twice", "kernel dropped"],
)
def test_a_wrong_program_is_found(monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str) -> None:
    """2 layers, 2 x 80 tokens, 24 x 24: 184,320 MACCs and 7,680 elements of keys, of no other line."""
    from learncost.engines import in_place

    right = in_place.placed

    def wrong(*arguments: Any) -> Any:
        program = right(*arguments)
        assert old in program.text
        return replace(program, text=program.text.replace(old, new, 1))

    monkeypatch.setattr(in_place, "placed", wrong)
    (failure,) = _checked(GPT2, plan="fused").failed
    assert failure.compared.startswith("forward")
    difference = failure.found.rpartition(" priced: ")[2]
    assert says in difference
    assert "attention: attn.K" in difference


@compiled
def test_a_kernel_that_multiplies_too_often_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every product in a kernel ran twice: 8 turns of 2 layers, heads 6 wide."""
    once = StatementWatch.product

    def twice(self: StatementWatch, *extents: int) -> None:
        once(self, *extents)
        once(self, *extents)

    monkeypatch.setattr(StatementWatch, "product", twice)
    failure = _checked(GPT2, plan="flash,fused").failed[0]
    assert f"MACCs executed, {2 * 8 * 6 * _pairs():,} priced, of attention: attn" in failure.found


def test_without_a_compiler_the_operators_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    monkeypatch.setattr("learncost.verification.engine_run.compiler", lambda: None)
    for model in (GPT2, LLAMA):
        report = _checked(model, plan="chunked-loss,recompute=gelu+norm", procedure="bp")
        assert not _failures(report)
        assert "on PyTorch's operators" in report.checks[0].subject


def test_segments_and_kernels_run() -> None:
    report = _checked(GPT2, plan="flash,fused,fused-update,recompute=block/2", procedure="bp")
    assert not _failures(report)


def test_a_wrong_emitted_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = emitted.program

    def twice(*arguments: Any, **options: Any) -> Any:
        """The program with its first product taken two times."""
        program = right(*arguments, **options)
        lines = program.text.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if "torch.einsum(" in line or " @ " in line)
        return replace(program, text="".join([*lines[:at], lines[at], *lines[at:]]))

    monkeypatch.setattr(emitted, "program", twice)
    table = derive(shipped_layer("feed_forward").table).step
    failed = [c for c in verify_layer(table, "feed_forward", "torch") if not c.passed]
    assert len(failed) == 1
    assert failed[0].compared.startswith("forward")


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("layer", ["grouped_attention", "mixture_of_experts"])
def test_layers_as_emitted(layer: str, backend: str) -> None:
    pytest.importorskip(backend)
    table = derive(shipped_layer(layer).table).step
    checks_found = list(verify_layer(table, layer, backend))
    assert checks_found[0].compared.startswith("values")
    assert [str(check) for check in checks_found if not check.passed] == []


def test_jax() -> None:
    pytest.importorskip("jax")
    report = verify_engine("gpt2", "jax", sizes={**GPT2[1], "n_layer": 1})
    assert not _failures(report)


def test_what_differs_is_put_where_it_belongs() -> None:
    assert places("abc", "abc") == [0, 1, 2]
    assert places("ac", "abc") == [0, 2]
    assert places("abbc", "abc") in ([0, 1, 1, 2], [0, 0, 1, 2])
    assert places("axc", "abc") == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verify", "gpt2", "--plan", "flash"], "--plan requires --engine"),
        (["verify", "deepseek-v3", "--engine", "torch"], "more than this machine has: give small sizes"),
        (["verify", "--engine", "torch", "--plan", "flash"], "--plan requires a model"),
        (["verify", "mha", "--engine", "torch", "--seq-len", "4"], "--seq-len requires a model"),
        (
            ["verify", "atention", "--engine", "torch"],
            "no layer or model is called 'atention'; did you mean 'attention'",
        ),
        (["verify", "atention"], "no layer or model is called 'atention'; did you mean 'attention'"),
        (["verify", "none.table"], "none.table cannot be read"),
        (["verify", "gpt2", "--engine", "tensorflow"], "tensorflow"),
        (["verify", "gpt2", "--engine", "torch", "--seq-len", "1"], "seq-len must be at least 2"),
        (["verify", "bert-base-uncased", "--engine", "torch"], "no output to learn from"),
    ],
)
def test_refusals(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--engine", "torch"]])
def test_a_file_in_the_notation(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.table"
    path.write_text("mine(X; W) -> Y\n  Y[B e] = X[B d] W[d e]\n", encoding="utf-8")
    assert main(["verify", str(path), *more]) == 0
    out = capsys.readouterr().out
    assert "mine" in out
    assert "comparisons passed" in out
    assert main(["cost", str(path)]) == 2
    assert "leaves B, d, e open: give --B N --d N --e N" in capsys.readouterr().err


@compiled
def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--n-layer", "1", "--n-embd", "24", "--n-head", "4", "--vocab-size", "61"]
    assert main(["verify", "gpt2", "--engine", "torch", "--plan", "fused", *flags]) == 0
    out = capsys.readouterr().out
    assert "forward executed with priced" in out
    assert "comparisons passed" in out


def test_unknown_engine() -> None:
    with pytest.raises(InputError, match="engine"):
        verify_engine("gpt2", "tensorflow")
