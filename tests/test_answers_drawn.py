"""The pictures of sweeps, fits, complexities and contests: what is drawn is what the answers say."""

from __future__ import annotations

from dataclasses import replace

import pytest

import learncost as lc
from contests import held
from learncost.training.contest.entrant import entrants
from learncost.viz.figures import figure_row


def test_a_sweep_is_a_line_for_each_procedure_and_other_size() -> None:
    sweep = lc.sweep("gpt2", seq_len=[8, 16], n_layer=[1, 2], procedures="bp,pepita", optimizer="sgd")
    drawn = figure_row("sweep").of(sweep)
    assert len(drawn.lines) == 4
    for line in drawn.lines:
        ops = line.name.replace(",", "").split()
        assert (drawn.x, ops[-1]) == ("tokens", "block" if ops[1] == "1" else "blocks")
        for place, flops in zip(line.places, line.values, strict=True):
            sizes = {"seq_len": int(place), "n_layer": int(ops[1])}
            assert flops == lc.cost("gpt2", ops[0], optimizer="sgd", **sizes).total.flops
    assert sweep.plot().rests_on["Title"] == drawn.finding
    with pytest.raises(lc.InputError, match="requires a size with several values"):
        lc.sweep("gpt2", seq_len=[8]).plot()
    with pytest.raises(lc.InputError, match="more than 12 distinguishable ones"):
        lc.sweep("gpt2", seq_len=list(range(1, 20)), n_layer=list(range(1, 15))).plot()


def test_what_follows_from_the_size_that_is_drawn_is_no_line_of_its_own() -> None:
    sweep = lc.sweep("gpt2", n_embd=[96, 192], seq_len=8, n_head=12)
    (line,) = figure_row("sweep").of(sweep).lines
    assert line.places == (96.0, 192.0)


def test_kinds_of_layers_are_drawn_as_they_count() -> None:
    complexity = lc.complexity(hidden_size=64, kernel_size=3)
    at = lc.complexity(hidden_size=64, kernel_size=3, seq_len=256)
    lines = figure_row("complexity").of(complexity).lines
    assert {line.name for line in lines} >= {"self-attention", "convolution", "recurrent"}
    for line in lines:
        assert line.values[line.places.index(256)] == at.value(at.kind(line.name).maccs)
    assert complexity.plot(columns=2).rests_on["Sentences"]


@pytest.mark.parametrize("ram", ["64MB", "64kB"])
def test_what_fits_is_drawn_beside_what_there_is(ram: str) -> None:
    fit = lc.fit("gpt2", ram, procedures="bp", seq_len=8, n_layer=1, n_embd=64, n_head=4, vocab_size=64)
    drawn = figure_row("fit").of(fit)
    assert [(bar.ram, bar.largest) for bar in drawn.bars] == [(row.ram, row.largest) for row in fit.rows]
    assert drawn.limit == fit.budget
    assert fit.plot().rests_on["Title"] == drawn.finding


def test_a_contest_has_its_losses_against_flops() -> None:
    answer = held("mlp", "steps:5", entrants("bp,head-only", "stable"), seeds=(0, 1))
    drawn = figure_row("contest").of(answer)
    for line, result in zip(drawn.lines, answer.results, strict=True):
        assert line.name == result.entrant.name
        assert line.places == tuple(result.share.cost.flops * (step + 1) for step in range(5))
        losses = [outcome.losses for outcome in result.outcomes]
        assert line.values == pytest.approx([sum(each) / 2 for each in zip(*losses, strict=True)])
    assert answer.plot().rests_on["Title"].endswith("FLOPs")
    with pytest.raises(lc.InputError, match="no training run of the contest is complete"):
        replace(answer, results=()).plot()
