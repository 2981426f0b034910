"""One request has one answer: in Python, on the command line, in the data of a report, from the explorer's server."""

import json
import os
import random
from dataclasses import replace

import pytest

import learncost as lc
from learncost.cli.command import COMMANDS
from learncost.reports.question import in_flags
from learncost.reports.request import Request
from learncost.viz.document import document
from learncost.viz.serve.answers import answer
from requests_drawn import draw, draw_memory, typed

SEED = int(os.environ.get("LEARNCOST_TEST_SEED") or random.randrange(2**32))
print(f"LEARNCOST_TEST_SEED={SEED}")


def in_python(function, request):
    """An answer as data, or the line with which it is refused."""
    try:
        found = function(request.model, **request.given)
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


@pytest.mark.parametrize("number", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 200))])
def test_one_request_has_one_answer_whoever_asks(number, capsys):
    request = draw(random.Random(f"{SEED} {number}"))
    shown = f"LEARNCOST_TEST_SEED={SEED} {request.command('cost')}"
    for name, function in (("cost", lc.cost), ("memory", lc.memory)):
        asked = request if name == "cost" else Request(request.model, sizes=request.sizes, **fields_of_memory(request))
        assert typed(capsys, asked.command(name)) == flagged(in_python(function, asked), name), shown
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


@pytest.mark.parametrize("number", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 200))])
def test_one_request_about_memory_has_one_answer_over_devices_too(number, capsys):
    chance = random.Random(f"{SEED} memory {number}")
    request = draw(chance)
    asked = draw_memory(chance, Request(request.model, sizes=request.sizes, **fields_of_memory(request)))
    command = asked.command("memory")
    found = typed(capsys, command)
    assert found == flagged(in_python(lc.memory, asked), "memory"), f"LEARNCOST_TEST_SEED={SEED} {command}"
    if not isinstance(found, str):
        assert sum(found["split"].values()) == found["peak"]


def flagged(found, command):
    """A refusal as the command line spells it; an answer as it is."""
    return in_flags(found, COMMANDS[command].flags) if isinstance(found, str) else found


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
