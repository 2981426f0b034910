"""What fits: one answer, whoever is asked, for presets of every kind; and all advice fits when it is tried."""

import json
import re
import shlex

import pytest

import learncost as lc
from learncost.cli.command import main
from on_operators import on_operators

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
KINDS = {
    "decoder": ("gpt2", SMALL | {"vocab_size": 300, "max_position_embeddings": 64}),
    "grouped": ("qwen2.5-7b", SMALL | {"vocab_size": 300, "num_key_value_heads": 2, "head_dim": 8, "seq_len": 48}),
    "experts": ("mixtral-8x7b", SMALL | {"vocab_size": 300, "num_key_value_heads": 2, "head_dim": 8, "seq_len": 32}),
    "encoder": ("bert-base", SMALL | {"vocab_size": 300, "architecture": "BertForMaskedLM", "seq_len": 32}),
    "encoder-decoder": ("t5-small", SMALL | {"vocab_size": 300, "seq_len": 32, "head_dim": 8}),
    "speech": ("whisper-tiny", {"target_len": 20}),
    "vision": ("vit-b-16", {}),
}
ASKED = (
    {},
    {"procedure": "recompute"},
    {"plan": "flash,fused,fused-update", "engine": "graph"},
    {"dtype": "bf16-masters"},
    {"dtype": "bf16-masters", "lora": "attention", "optimizer": "sgd"},
    {"dtype": "int8", "optimizer": "lion", "engine": "graph"},
)
LIMITED = ("numpy", "eager", pytest.param("torch", marks=pytest.mark.slow), "operators")


def asked_of(kind, given):
    model, sizes = KINDS[kind]
    return model, {**{name.replace("_", "-"): value for name, value in sizes.items()}, **given}


def of_memory(kind, given, **more):
    model, sizes = KINDS[kind]
    return lc.memory(model, **{**sizes, **given, **more})


def of_fit(kind, given, room):
    model, sizes = KINDS[kind]
    answer = of_memory(kind, given, budget=room)  # a planner chooses for what there is
    settings = {"plan": answer.plan or "none", **given}
    if settings.get("engine") == "torch" and "plan" not in given:
        settings.pop("plan")
    (row,) = lc.fit(model, room, procedures=settings.pop("procedure", "bp"), **{**sizes, **settings}).rows
    assert row.plan == answer.plan
    return row


@pytest.mark.one_in(every=15)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", ASKED)
def test_memory_and_fit_say_the_same_batch_and_it_is_the_largest(kind, settings):
    if "lora" in settings and kind in ("encoder-decoder", "speech"):
        pytest.skip("attention of two inputs has no low-rank paths here")
    single, more = (of_memory(kind, settings, batch_size=size).peak for size in (1, 2))
    room = single + 5 * (more - single) + 17
    answer = of_memory(kind, settings, budget=room)
    row = of_fit(kind, settings, room)
    assert (row.largest, row.engine) == (answer.fits["batch_size"], answer.engine)
    assert of_memory(kind, settings, batch_size=row.largest).peak <= room
    assert of_memory(kind, settings, batch_size=row.largest + 1).peak > room
    assert of_fit(kind, settings, single - 1).largest == 0


@pytest.mark.slow
def test_so_do_they_where_the_planner_chooses_for_every_batch():
    room = 2 * of_memory("decoder", {"plan": "auto", "engine": "graph"}, batch_size=3).peak
    answer, row = (
        of_memory("decoder", {"plan": "auto", "engine": "graph"}, budget=room),
        of_fit("decoder", {"plan": "auto", "engine": "graph"}, room),
    )
    assert row.largest == answer.fits["batch_size"]
    at, over = (
        of_memory("decoder", {"plan": "auto", "engine": "graph"}, budget=room, batch_size=row.largest + n).peak
        for n in (0, 1)
    )
    assert at <= room < over


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("engine", LIMITED)
def test_so_do_they_of_a_runner_that_is_named(engine):
    if engine == "operators":
        with on_operators():
            _agree("torch", plan="")
    else:
        _agree(engine)


def _agree(engine, **more):
    settings = {"engine": engine, "optimizer": "sgd", **more}
    room = 2 * of_memory("decoder", settings, batch_size=3).peak
    answer, row = of_memory("decoder", settings, budget=room), of_fit("decoder", settings, room)
    assert (row.largest, row.engine) == (answer.fits["batch_size"], engine)
    planned = engine == "torch" and not more  # its planner chooses for every batch
    own_settings = settings | {"budget": room} if planned else settings
    assert of_memory("decoder", own_settings, batch_size=row.largest).peak <= room
    assert of_memory("decoder", own_settings, batch_size=row.largest + 1).peak > room


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_sequence_is_the_longest(kind):
    for settings in ({}, {"engine": "graph"}, {"dtype": "bf16-masters"}):
        most = of_memory(kind, settings, batch_size=64).peak
        room = int(0.7 * most)
        length = of_memory(kind, settings, batch_size=64, budget=room).fits["seq_len"]
        if kind in ("vision", "speech", "encoder-decoder"):
            assert length is None
            continue
        assert of_memory(kind, settings, batch_size=64, seq_len=length).peak <= room
        assert of_memory(kind, settings, batch_size=64, seq_len=length + 1).peak > room


ROOMS = [(flags, share) for flags in ([], ["--dtype", "bf16-masters"]) for share in (0.5, 0.95)]


@pytest.mark.parametrize(
    ("kind", "rooms"),
    [("decoder", ROOMS[:1]), *(pytest.param(kind, ROOMS, marks=pytest.mark.slow) for kind in KINDS)],
)
def test_all_advice_fits_when_it_is_tried(kind, rooms, capsys):
    """Of every procedure that does not fit; the runner, lengths and sizes are those that were asked for."""
    model, sizes = KINDS[kind]
    flags = [text for name, value in sizes.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    least = min(row.ram for row in lc.fit(model, "1TB", procedures="bp", **sizes).rows)
    tried = 0
    for flags_given, room in rooms:
        ram = str(int(room * least))
        assert main(["fit", model, "--budget", ram, *flags, *flags_given, "--procedure", "inference,bp", "--json"]) == 0
        for text in json.loads(capsys.readouterr().out)["advice"]:
            names = re.match(r"([\w, -]+?) do(?:es)? not fit\.", text)
            match = re.search(r"It fits with (--.*) \((?:each )?verified\)\.", text)
            for name in names[1].split(", ") if names and match else ():
                for change in re.split(r", or with | or with ", match[1]):
                    call = ["fit", model, "--budget", ram, *_without(flags, change), *_without(flags_given, change)]
                    assert main([*call, "--procedure", name, *shlex.split(change), "--json"]) == 0
                    rows = json.loads(capsys.readouterr().out)["rows"]
                    assert any(row["fits"] for row in rows), (kind, name, ram, flags_given, change)
                    tried += 1
    assert tried


def _without(flags, change):
    """The flags but for the one that is changed."""
    name = change.split()[0]
    place = flags.index(name) if name in flags else len(flags)
    return flags[:place] + flags[place + 2 :]
