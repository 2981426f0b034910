"""The page of learning procedures: its formulas equal the costs of the tables; its lists equal cost and memory."""

import re
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.lists.listing import listing
from learncost.procedures import procedure

PAGE, SAVING = (
    (Path(__file__).parents[1] / "docs" / f"{name}.md").read_text() for name in ("procedures", "saving-procedures")
)
FORMULAS = {
    cell.strip(): columns[3].strip().strip("`")
    for columns in (line.split("|") for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 5)
    if "`" in columns[3]
    for cell in columns[1].split(",")
}


def value(formula, **letters):
    """A printed formula with letters beside each other as products."""
    spelled = formula.replace("^", "**").replace(" (", " * (")
    for _ in range(2):
        spelled = re.sub(r"([\w)]) ([A-Za-z])", r"\1 * \2", spelled)
    return eval(spelled.replace("- * (", "- (").replace("+ * (", "+ ("), {}, letters)


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("procedure", FORMULAS)
def test_a_block_costs_what_the_page_says(procedure):
    M, d, f, C = 5, 24, 32, 13
    expected = value(FORMULAS[procedure], M=M, d=d, f=f, C=C, P=4 * d * d + 2 * d * f, A=2 * M * d, r=min(128, d))
    architecture = "bert-base-uncased" if procedure in ("skip-blocks", "skip-branches") else "gpt2"
    first, second = (
        lc.cost(
            architecture,
            architecture={"gpt2": "GPT2LMHeadModel"}.get(architecture, "BertForMaskedLM"),
            num_hidden_layers=blocks,
            hidden_size=d,
            num_attention_heads=2,
            intermediate_size=f,
            vocab_size=C,
            seq_len=M,
            procedure=procedure,
            price_book="matmul",
            optimizer="sgd",
        ).total.maccs
        for blocks in (2, 4)
    )
    assert second - first == 2 * expected


def test_blocks_that_take_turns_cost_what_the_page_says():
    rows = {
        row[1].strip(): row[2].strip().strip("`")
        for row in (r.split("|") for r in SAVING.splitlines())
        if len(row) == 4
    }
    M, d, f, C, L = 5, 24, 32, 13, 4
    letters = {"M": M, "d": d, "f": f, "C": C, "L": L, "P": 4 * d * d + 2 * d * f, "A": 2 * M * d}
    sizes = {
        "num_hidden_layers": L,
        "hidden_size": d,
        "num_attention_heads": 2,
        "intermediate_size": f,
        "vocab_size": C,
    }
    flags = {"architecture": "GPT2LMHeadModel", "seq_len": M, "price_book": "matmul", "optimizer": "sgd", **sizes}
    counts = [lc.cost("gpt2", train_layers=iteration, **flags).total.maccs - 2 * M * d * C for iteration in range(L)]
    assert counts == [value(rows["block l learns"], l=iteration, **letters) for iteration in range(L)]
    assert sum(counts) / L == value(rows["mean over all blocks"], **letters)


def test_the_page_has_every_procedure():
    from learncost.procedures.procedure import LEARNING

    assert FORMULAS.keys() | {"head-only"} == set(LEARNING)


def test_the_list_of_a_model_is_what_cost_and_memory_say():
    entries = {entry["name"]: entry for entry in listing("procedures", of="bert-base-uncased").to_dict()}
    for name in ("bp", "skip-out"):
        held = lc.memory("bert-base-uncased", procedure=name, engine="graph").peak
        assert entries[name]["flops"] == lc.cost("bert-base-uncased", procedure=name).total.flops
        assert entries[name]["bytes"] == held
    assert entries["skip-out"]["flops_of_bp"] < 1
    assert "has no output to learn from" in entries["mezo"]["refused"]
    with pytest.raises(lc.InputError, match="of applies to procedures"):
        listing("models", of="gpt2")


def test_the_list_of_a_model_takes_its_sizes(monkeypatch):
    monkeypatch.setattr(procedure, "LEARNING", {name: procedure.LEARNING[name] for name in ("bp", "mezo")})
    listed = listing("procedures", of="gpt2", like="mezo", n_layer=2, n_embd=16, n_head=2, vocab_size=50, seq_len=8)
    (entry,) = listed.entries
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "seq_len": 8}
    assert entry["flops"] == lc.cost("gpt2", "mezo", **sizes).total.flops
    with pytest.raises(lc.InputError, match="seq_len requires a model: learncost list procedures --of MODEL"):
        listing("devices", seq_len=8)
