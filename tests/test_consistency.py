"""A request, or a trainer's file, has one answer: in Python, on the command line, in a report, from the server."""

import json
import os
import random
import shlex
from dataclasses import replace

import pytest
import yaml

import learncost as lc
from learncost.cli.command import COMMANDS
from learncost.reports.question import flags_typed, in_flags
from learncost.reports.request import Request
from learncost.viz.document import document
from learncost.viz.serve.answers import answer
from requests_drawn import SMALL, draw, draw_file, draw_memory, typed

SEED = int(os.environ.get("LEARNCOST_TEST_SEED") or random.randrange(2**32))
print(f"LEARNCOST_TEST_SEED={SEED}")


def in_python(function, request, **flags):
    """An answer about a request, or a trainer's file with flags, as data; or the line with which it is refused."""
    model, given = (request.model, request.given) if type(request) is Request else (request, flags)
    try:
        found = function(model, **given)
    except lc.InputError as error:
        return " ".join(error.written.split())
    return json.loads(json.dumps(found.to_dict(), default=str))


def of_document(request):
    """The data of a report, or the line with which it is refused."""
    try:
        return document(request)
    except lc.InputError as error:
        return " ".join(error.written.split())


def numbers(found):
    """What an answer and a page say of a step."""
    return found if isinstance(found, str) else [found["total"]["maccs"], found["total"]["flops"], found["parameters"]]


def of_page(read):
    """The same of a document: JavaScript's numbers, of which large ones are texts."""
    return [int(read["totals"][name]) for name in ("maccs", "flops", "parameters")]


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("number", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 300))])
def test_one_request_has_one_answer_whoever_asks(number, capsys):
    request = draw(random.Random(f"{SEED} {number}"))
    shown = f"LEARNCOST_TEST_SEED={SEED} {request.command('cost')}"
    for name, function in (("cost", lc.cost), ("memory", lc.memory)):
        asked = request if name == "cost" else Request(request.model, sizes=request.sizes, **fields_of_memory(request))
        assert typed(capsys, asked.command(name)) == flagged(in_python(function, asked), asked.command(name)), shown
    expected = in_python(lc.cost, request)
    page = of_document(request)
    if isinstance(page, str):
        assert page == expected or isinstance(in_python(lc.memory, request), str), shown
        return
    assert of_page(page) == numbers(expected), shown
    without_pages = replace(request, page_size=None)  # which change bytes of the cache, that the explorer does not show
    pairs = [("model", request.model), *((name, str(value)) for name, value in without_pages.given.items())]
    reply = answer("document", pairs)
    assert reply.status == 200, (shown, reply.content)
    assert of_page(json.loads(reply.content)) == numbers(expected), shown


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("number", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 300))])
def test_one_request_about_memory_has_one_answer_over_devices_too(number, capsys):
    asked = drawn_memory(number)
    command = asked.command("memory")
    found = typed(capsys, command)
    assert found == flagged(in_python(lc.memory, asked), command), f"LEARNCOST_TEST_SEED={SEED} {command}"
    if not isinstance(found, str):
        assert sum(found["split"].values()) == found["peak"]


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("number", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 300))])
def test_the_server_has_the_memory_of_the_engine_or_refuses_what_the_explorer_does_not_have(number):
    asked = drawn_memory(number)
    shown = f"LEARNCOST_TEST_SEED={SEED} {asked.command('memory')}"
    pairs = [("model", asked.model), *((name, str(value)) for name, value in asked.given.items())]
    reply = answer("document", pairs)
    read = json.loads(reply.content)
    if reply.status == 200:
        if "peak" in read["memory"]:  # the page states the peak of graph where no engine is named
            found = in_python(lc.memory, replace(asked, engine=read["memory"]["engine"]))
            assert (read["memory"]["peak"], read["memory"]["split"]) == (found["peak"], found["split"]), shown
        return
    if read["error"].startswith("the explorer does not support "):
        name = read["error"].split()[5].rstrip(":")
        assert name in ("mesh", "placement"), shown  # a page is of one device; its view of devices has a mesh
        assert asked.given[name], shown
        return
    refusals = [in_python(function, asked_of(asked, function)) for function in (lc.cost, lc.memory)]
    assert reply.status == 400
    assert any(isinstance(refusal, str) for refusal in refusals), (shown, read["error"])


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("number", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 300))])
def test_a_file_of_a_trainer_has_one_answer_whoever_asks_and_its_printed_command_the_same(number, capsys, tmp_path):
    file, flags = draw_file(random.Random(f"{SEED} file {number}"))
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(file))
    shown, answers = f"LEARNCOST_TEST_SEED={SEED} {file} {flags}", {}
    for name, function in (("memory", lc.memory), ("cost", lc.cost)):
        command = shlex.join(["learncost", name, str(path), *flags_typed(flags)])
        found = typed(capsys, command)
        answers[name] = in_python(function, str(path), **flags)
        if isinstance(found, str):
            assert found == flagged(answers[name], command), shown
            continue
        read = found.pop("trainer_files")
        assert found == answers[name] == in_python(function, lc.request_of(str(path), **flags)), shown
        assert found == typed(capsys, read["command"]), (shown, read["command"])
    try:
        page = document(str(path), **flags)
    except lc.InputError as error:
        page = error.written
    reply = answer("files", (), json.dumps({"file.yaml": path.read_text()}))
    chosen = json.loads(reply.content)
    if reply.status == 200:
        pairs = [*chosen["chosen"].items(), *((name, str(value)) for name, value in flags.items())]
        reply = answer("document", pairs, chosen["config"])
    if isinstance(page, str):
        assert reply.status == 400, shown
        is_refused = any(isinstance(found, str) for found in answers.values())
        assert is_refused or "which only learncost memory, cost and run-cost support" in page, (shown, page)
        return
    for memory in (page["memory"], json.loads(reply.content)["memory"]):
        assert [memory["peak"], memory["split"]] == [answers["memory"]["peak"], answers["memory"]["split"]], shown
    assert of_page(page) == of_page(json.loads(reply.content)) == numbers(answers["cost"]), shown


def asked_of(asked, function):
    """The same request without what only memory is asked with, for the cost."""
    only = dict.fromkeys(("engine", "accumulate", "clip"))
    usual = {name: getattr(Request(asked.model), name) for name in only}
    return replace(asked, **usual) if function is lc.cost else asked


def drawn_memory(number):
    """A request about memory, over devices, by an engine and in microbatches."""
    chance = random.Random(f"{SEED} memory {number}")
    request = draw(chance)
    return draw_memory(chance, Request(request.model, sizes=request.sizes, **fields_of_memory(request)))


def flagged(found, command):
    """A refusal as the command line spells it; an answer as it is."""
    words = shlex.split(command)
    return in_flags(found, COMMANDS[words[1]].flags, words) if isinstance(found, str) else found


def fields_of_memory(request):
    """The fields of a request that `memory` has."""
    names = (
        "procedure",
        "batch_size",
        "seq_len",
        "optimizer",
        "precision",
        "plan",
        "lora",
        "dropout",
        "context",
        "page_size",
    )
    return {name: getattr(request, name) for name in names}


KINDS = {"gpt2": {}, "llama-3.2-1b": {"seq_len": 512}, "bert-base": {}, "vit-b-16": {}, "t5-small": {}}


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("model", KINDS)
def test_a_plan_that_is_the_default_has_the_same_time_and_memory_when_given(model):
    """The engine decides who runs the step: that a plan was written changes neither the time nor the memory."""

    def answers(**plan):
        more, on = {**KINDS[model], **plan}, {"on": "A100-SXM4-80GB"}
        (row,) = lc.fit(model, **on, procedures="bp", **({"plan": "flash"} | more)).rows
        return (
            lc.cost(model, **more, **on).timing.seconds,
            lc.memory(model, **more, **on).peak,
            lc.memory(model, **more).peak,
            lc.run_cost(model, "1e9", **more, **on).days,
            lc.compare(model, "bp", **more, **on).first.timing.seconds,
            lc.trace(model, **more, **on).timeline.facts["seconds"],
            row.ram,
        )

    assert answers(plan="flash") == answers()
    if model == "gpt2":
        over = {"mesh": "dp=2", "placement": "ddp", "on": "DGX-H100"}
        one, other = (lc.cost(model, **over, **plan) for plan in ({}, {"plan": "flash"}))
        assert (one.over_time.seconds, one.memory.peak) == (other.over_time.seconds, other.memory.peak)
        run = lc.run_cost(model, "1e9", **over, batch_size=2, plan="flash")
        assert run.figures["step"].value == one.over_time.seconds
        graph = lc.cost(model, plan="flash", on="A100-SXM4-80GB", engine="graph")
        assert graph.timing.seconds > 1.05 * answers()[0]  # norms are no operators of their own there


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", KINDS)
def test_checkpoints_of_blocks_are_the_procedure_recompute_and_cost_time(model):
    """`torch.utils.checkpoint` of every block: a plan and a procedure, whose operations again are no part of MFU."""

    def answers(**asked):
        more, on = {**KINDS[model], **asked}, {"on": "A100-SXM4-80GB"}
        run = lc.run_cost(model, "1e9", **more, **on)
        figures = [run.figures[name].value for name in ("flops", "step", "steps", "time")]
        return [lc.memory(model, **more).peak, lc.cost(model, **more, **on).timing.seconds, *figures]

    usual, plan, procedure = (
        answers(**asked) for asked in ({}, {"plan": "recompute=block"}, {"procedure": "recompute"})
    )
    assert plan == pytest.approx(procedure, rel=1e-12)
    assert plan[1] > usual[1]
    assert plan[2] == usual[2]
    assert plan[3] * plan[4] / 86400 == pytest.approx(plan[5])


LAYERS = {"num_hidden_layers": 2}
PIPELINE = {"procedure": "recompute", "schedule": "zb-h1", "microbatch": 1, **LAYERS}
STEPS = [
    ("llama-3.2-1b", "pp=2,dp=2", "pp,zero-3", PIPELINE),
    ("llama-3.2-1b", "dp=4", "fsdp", {"procedure": "recompute", **LAYERS}),
    ("llama-3.2-1b", "dp=2,tp=2", "zero-1,megatron-sp", {"vocab_size": 128_255, **LAYERS}),  # which tp pads
    ("llama-3.2-1b", "dp=2", "zero-1", {"optimizer": "sgd", "lora": "all-linear", "microbatch": 2, **LAYERS}),
    ("llama-3-8b", "dp=2,cp=2", "zero-1,cp", {"plan": "flash,fused,ring", "precision": "bf16-true", **LAYERS}),
    ("mixtral-8x7b", "dp=2,ep=2", "ep,zero-2", {**LAYERS, "plan": "flash,fused,recompute=block"}),
    ("deepseek-v2-lite", "ep=4", "ep", {**LAYERS}),
    ("bert-base", "tp=4", "megatron", {"procedure": "pepita", "architecture": "BertForMaskedLM", **LAYERS}),
    ("gpt2", "dp=2", "zero-3", {"procedure": "head-only", "n_layer": 2}),
    ("llama-3.2-1b", "dp=4", "fsdp", {"procedure": "recompute", "engine": "eager", "microbatch": 1, **LAYERS}),
    ("t5-small", "dp=2,tp=2", "zero-1,megatron", {"target_len": 64}),
    ("vit-b-16", "dp=8", "ddp", {}),
]


@pytest.mark.one_in(every=12)
@pytest.mark.parametrize(("model", "mesh", "placement", "more"), STEPS)
def test_a_step_over_a_mesh_has_one_time_and_one_peak_whoever_is_asked(model, mesh, placement, more, capsys):
    """Also of a pipeline; the rows of `cost` are those of the device that takes longest."""
    asked = {"mesh": mesh, "placement": placement, "batch_size": 8, "on": "DGX-H100", **more}
    asked |= {} if model == "vit-b-16" else {"seq_len": 128}
    cost, run = lc.cost(model, **asked), lc.run_cost(model, "1e9", **asked)
    microbatches = run.spread.step.parallel.microbatches
    names = {name for name in asked if name in Request.__dataclass_fields__}
    sizes = {name: value for name, value in asked.items() if name not in names}
    command = Request(model, **{name: asked[name] for name in names}, sizes=sizes).command("cost")
    seconds = run.figures["step"].value
    assert cost.over_time.seconds == typed(capsys, command)["step"]["seconds"] == seconds
    asked.pop("microbatch", None)
    peak = lc.memory(model, **asked, accumulate=microbatches).peak
    assert run.spread.peak == peak == cost.memory.peak
    assert run.plan == more.get("plan", "flash")
    rows = sum(row.time or 0 for row in cost.rows)
    assert cost.over_time.lines == pytest.approx(cost.timing.seconds, rel=1e-6) == pytest.approx(rows, rel=1e-6)


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("plan", [None, "none", "fused-update", "recompute=block"])
@pytest.mark.parametrize("model", KINDS)
def test_the_plan_of_an_answer_gives_the_same_answer(model, plan):
    """The plan is the one that ran: that of the modules of PyTorch has fused attention unless it is asked not to."""
    asked = {"batch_size": 8, **KINDS[model]}
    found = lc.memory(model, plan=plan, **asked)
    again = lc.memory(model, plan=found.plan, engine=found.engine, **asked)
    assert (again.peak, again.split, again.plan) == (found.peak, found.split, found.plan)
    assert ("flash" in found.plan) == (plan != "none")


ASKED = {"run_cost": {"tokens": "1e6", "on": "A100-SXM4-80GB"}, "fit": {"budget": "1GB"}, "place": {"mesh": "dp=2"}}
ASKED |= {"cost": {}, "memory": {}, "compare": {}, "rules": {}, "conventions": {}, "explain": {}, "formulas": {}}


@pytest.mark.parametrize("name", ASKED)
def test_a_request_alone_has_the_answer_of_its_keywords(name, tmp_path):
    """Also where the question has another default, or arguments that no request has, and of a trainer's file."""
    function, request = getattr(lc, name), Request("gpt2", sizes=SMALL, seq_len=16, **ASKED[name])
    assert str(function(request)) == str(function(request.model, **request.given))
    if name in ("cost", "memory"):
        file = tmp_path / "axolotl.yml"
        file.write_text("base_model: gpt2\nsequence_len: 16\nmicro_batch_size: 2\n")
        assert str(function(Request(file, seq_len=32))) == str(function(file, seq_len=32))
