"""Isolated lines are counted once per shape, without the lines around them: the counts are those of all lines."""

import pytest

from learncost.cost_models import executed, price
from learncost.cost_models.books import book
from learncost.ir.loop import beginnings, walk
from learncost.ir.polynomial import Polynomial, total
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.passes.lower import _is_normal, _Lowering, lower
from learncost.passes.normal_forms import alone, shape
from learncost.procedures.step import step

MODELS = ["gpt2", "transformer-base", "bert-base", "distilbert-base", "gpt3-jiang"]
PROCEDURES = ["bp", "recompute", "pepita", "mempepita"]
CASES = [(m, p) for m in MODELS for p in PROCEDURES if not (m.endswith("bert-base") and "pepita" in p)]


def tables(model, procedure):
    for dropout, padding, jacobian in ((False, False, False), (True, True, False), (False, False, True)):
        built = build(configure(model), dropout=dropout, padding=padding)
        yield step(built, procedure, "adamw", jacobian)


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize(("model", "procedure"), CASES)
def test_counts_are_those_of_the_whole_normal_form(model, procedure):
    for table in tables(model, procedure):
        rows = price(table, {}, book("run")).rows
        maccs, flops = [], []
        normal = lower(table)
        begun = {id(line): iterations for line, iterations in beginnings(normal.lines)}
        for line, nest in walk(normal.lines):
            times = Polynomial.of(nest.counts)
            if id(line) in begun:  # what begins a total is added to nothing
                times = times - Polynomial.of(begun[id(line)])
            counted = executed(line)
            maccs.append(counted[0] * times)
            flops.append(counted[1] * times)
        assert total(row.maccs for row in rows) == total(maccs)
        assert total(row.flops for row in rows) == total(flops)


@pytest.mark.parametrize(("model", "procedure"), CASES)
def test_what_is_normal_lowers_to_itself(model, procedure):
    normal_lines = 0
    for table in tables(model, procedure):
        for line, _ in walk(table.lines):
            if _is_normal(line):
                work = _Lowering({}, frozenset())
                work.line(line)
                assert work.out == [line]
                normal_lines += 1
    assert normal_lines > 50


def test_lines_under_a_condition_do_not_stand_alone():
    table = step(build(configure("gpt2")), "bp")
    free = alone(table)
    lines = [line for line, _ in walk(table.lines)]
    assert not any(free(line) for line in lines if line.where)
    scores = next(line for line in lines if line.where)
    assert not any(free(line) for line in lines if scores.name in line.reads)
    assert sum(map(free, lines)) > 70
    assert len({shape(line) for line in lines if free(line)}) < 60
