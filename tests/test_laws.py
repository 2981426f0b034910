"""Laws that answers to random requests obey, whatever is asked: growth, halves, intervals, what fits."""

import os
import random
from dataclasses import replace

import pytest

import learncost as lc
from requests_drawn import LAYERS, draw, draw_memory

SEED = int(os.environ.get("LEARNCOST_TEST_SEED") or random.randrange(2**32))
OF_WEIGHTS = ("mamba-130m", "t5-small")
"""Models with lines that have no sample: of A of Mamba, of the gradient of T5's biases by distance."""

FEW = [*range(6), *(pytest.param(number, marks=pytest.mark.slow) for number in range(6, 300))]


def training(number, **fixed):
    """A training step that is answered, and the line that asks for it again."""
    return drawn(number, ("bp", "bp", "recompute", "pepita", "mempepita"), dropout=0.0, **fixed)


def over_devices(number):
    """A training step over a mesh, by an engine and in microbatches, and the line that asks for it again."""
    chance = random.Random(f"{SEED} mesh {number}")
    for _ in range(200):
        procedure = chance.choice(("bp", "bp", "recompute", "pepita", "mempepita"))
        request = draw_memory(chance, draw(chance, procedure=procedure, dropout=0.0, page_size=None))
        if request.mesh and answered(lc.memory, request) is not None:
            return request, f"LEARNCOST_TEST_SEED={SEED} {request.command('memory')}"
    raise AssertionError("no request is answered")


def inference(number):
    """A pass of inference that is answered, and the line that asks for it again."""
    return drawn(number, ("prefill", "decode", "inference"))


def drawn(number, procedures, **fixed):
    """A request of one of the procedures that is answered, and the line that asks for it again."""
    chance = random.Random(f"{SEED} {number}")
    for _ in range(100):
        usual = {"procedure": chance.choice(procedures), "batch_size": chance.choice((4, 8))}
        request = draw(chance, **{**usual, **fixed})
        if answered(lc.cost, request) is not None and answered(lc.memory, request) is not None:
            return request, f"LEARNCOST_TEST_SEED={SEED} {request.command('memory')}"
    raise AssertionError("no request is answered")


def larger(request, batch, layers):
    """A larger batch, twice the length and more layers, each alone.

    The context of decode without a given one is what the new tokens leave of the positions.
    """
    given = request.seq_len and (request.procedure != "decode" or request.context)
    length = [{"seq_len": request.seq_len * 2}] if given else []
    decodes = request.model == "t5-small" and request.procedure == "decode"  # which runs no encoder
    name = "num_decoder_layers" if decodes else LAYERS.get(request.model, "num_hidden_layers")
    return [{"batch_size": batch}, *length, {name: layers}]


def answered(function, request, **changed):
    """The answer, or None where it is refused."""
    try:
        return function(request.model, **{**request.given, **changed})
    except lc.InputError:
        return None


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("number", FEW)
def test_more_never_takes_less_memory_operations_or_time(number):
    request, shown = training(number)
    on = "V100" if request.precision == "fp64" else "H100-SXM"
    more = larger(request, request.batch_size + 4, layers=3)
    needs, flops = lc.memory(request.model, **request.given).peak, lc.cost(request.model, **request.given).total.flops
    known = answered(lc.cost, request, on=on)
    seconds = known.timing.seconds if known else None
    for changed in more:
        assert answered(lc.memory, request, **changed).peak >= needs, (shown, changed)
        assert answered(lc.cost, request, **changed).total.flops > flops, (shown, changed)
        if seconds is not None:  # a device has the type
            assert answered(lc.cost, request, **changed, on=on).timing.seconds >= seconds, (shown, changed)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("number", FEW)
def test_more_of_inference_never_takes_less_memory_operations_or_time(number):
    request, shown = inference(number)
    on = "V100" if request.precision == "fp64" else "H100-SXM"
    more = larger(request, request.batch_size + 4, layers=3)
    more += [{"context": request.context * 2}] if request.context else []
    needs, flops = lc.memory(request.model, **request.given).peak, lc.cost(request.model, **request.given).total.flops
    known = answered(lc.cost, request, on=on)
    for changed in more:
        assert answered(lc.memory, request, **changed).peak >= needs, (shown, changed)
        after = answered(lc.cost, request, **changed).total.flops
        # A recurrence reads its state, whose size is that of any context.
        assert after > flops or ("context" in changed and after == flops), (shown, changed)
        if known is not None:  # a device has the type
            seconds = answered(lc.cost, request, **changed, on=on).timing.seconds
            assert seconds >= known.timing.seconds, (shown, changed)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("number", FEW)
def test_the_largest_batch_of_inference_fits_and_one_more_does_not(number):
    request, shown = inference(number)
    budget = 3 * lc.memory(request.model, **request.given).peak
    found = lc.memory(request.model, **request.given, budget=budget).fits["batch_size"]
    at, above = (answered(lc.memory, request, batch_size=batch).peak for batch in (found, found + 1))
    assert at <= budget < above, shown
    if request.procedure != "inference":  # of which `fit` asks for both passes
        asked = {name: value for name, value in request.given.items() if name not in ("procedure", "batch_size")}
        asked["seq_len"] = request.seq_len
        (row,) = lc.fit(request.model, budget, procedures=request.procedure, **asked).rows
        assert row.largest == found, shown


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", FEW)
def test_operations_of_inference_grow_with_the_batch(number):
    """Twice at twice the batch, exactly: no line of a pass joins samples; and the cache is twice as large."""
    request, shown = inference(number)
    one, two, three = (answered(lc.cost, request, batch_size=batch) for batch in (4, 8, 12))
    assert three.total.flops - two.total.flops == two.total.flops - one.total.flops, shown
    assert two.total.flops == 2 * one.total.flops or request.model in OF_WEIGHTS, shown
    assert (one.cache is None) == (two.cache is None)
    assert one.cache is None or two.cache.count == 2 * one.cache.count, shown


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", FEW)
def test_operations_of_the_passes_grow_with_the_batch(number):
    """Twice at twice the batch: no line of these models joins samples."""
    request, shown = training(number)
    one, two, three = (
        answered(lc.cost, request, batch_size=times * request.batch_size).macro_operations for times in (1, 2, 3)
    )
    for name in {"forward", "backward", "recomputation", "error_projection"} & {*one}:
        first, second, third = (of[name][1].flops for of in (one, two, three))
        assert third - second == second - first, (shown, name)
        assert second == 2 * first or (second < 2 * first and request.model in OF_WEIGHTS), (shown, name)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("number", FEW)
def test_a_time_lies_in_its_interval(number):
    request, shown = training(number)
    for device in ("H100-SXM", "A100-SXM-40GB", "RTX 4090"):
        if (answer := answered(lc.cost, request, on=device)) is None:
            continue  # a device may not have the type
        timing = answer.timing
        assert 0 < timing.time.low <= timing.seconds <= timing.time.high, (shown, device)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("number", FEW)
def test_the_largest_batch_fits_and_one_more_does_not(number):
    request, shown = training(number, plan=None)
    needs = lc.memory(request.model, **request.given)
    budget = 3 * needs.peak
    found = lc.memory(request.model, **request.given, budget=budget).fits["batch_size"]
    at, above = (answered(lc.memory, request, batch_size=batch).peak for batch in (found, found + 1))
    assert at <= budget < above, shown
    asked = {name: value for name, value in request.given.items() if name not in ("procedure", "batch_size", "plan")}
    (row, *_) = lc.fit(request.model, budget, procedures=request.procedure, **asked).rows
    assert row.largest == found, shown


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("number", FEW)
def test_more_never_takes_less_memory_over_devices(number):
    request, shown = over_devices(number)
    needs = lc.memory(request.model, **request.given)
    for changed in larger(request, 2 * needs.batch_size, layers=4):
        assert answered(lc.memory, request, **changed).peak >= needs.peak, (shown, changed)


@pytest.mark.slow  # tests/test_mesh_account.py has one that fits over devices
@pytest.mark.parametrize("number", FEW)
def test_the_largest_batch_over_devices_fits_and_the_next_does_not(number):
    request, shown = over_devices(number)
    needs = lc.memory(request.model, **request.given)
    # the largest batch is that of as many microbatches: of one sequence each any number fits over stages
    request, budget = replace(request, accumulate=needs.accumulate), 3 * needs.peak
    found = lc.memory(request.model, **request.given, budget=budget).fits["batch_size"]
    unit = next(more for more in range(1, 65) if answered(lc.memory, request, batch_size=found + more))
    at, above = (answered(lc.memory, request, batch_size=batch).peak for batch in (found, found + unit))
    assert at <= budget < above, shown
    asked = {name: value for name, value in request.given.items() if name not in ("procedure", "batch_size", "clip")}
    if request.clip is None:
        (row, *_) = lc.fit(request.model, budget, procedures=request.procedure, **asked).rows
        assert row.largest == found, shown


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("engine", ["graph", "eager"])
@pytest.mark.parametrize("number", FEW)
def test_more_devices_never_take_more_each(number, engine):
    """With the same sequences on each device: what is sharded is sharded further, by FSDP and by HSDP."""
    request, shown = training(number, procedure="bp")
    for placement, meshes in (("fsdp", ("dp=2", "dp=4", "dp=8")), ("hsdp", ("dp=2,shard=2", "dp=2,shard=4"))):
        devices = [2 ** (place + 1 if placement == "fsdp" else place + 2) for place in range(len(meshes))]
        asked = [{"mesh": m, "batch_size": 2 * n} for m, n in zip(meshes, devices, strict=True)]
        found = [answered(lc.memory, request, **each, placement=placement, engine=engine) for each in asked]
        peaks = [each.peak for each in found if each]
        assert peaks == sorted(peaks, reverse=True), (placement, peaks, shown)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", FEW)
def test_clipping_and_states_of_8_bits(number):
    """Clipping never takes less memory; states of 8 bits never take more than those of fp32."""
    request, shown = training(number, procedure="bp", plan=None, lora=None, optimizer="adamw", precision="fp32")
    needs = lc.memory(request.model, **request.given)
    assert lc.memory(request.model, **request.given, clip=1.0).peak >= needs.peak, shown
    quantized = lc.memory(request.model, **{**request.given, "optimizer": "adamw8bit"})
    assert quantized.split["optimizer state"] < needs.split["optimizer state"], shown


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", FEW)
def test_a_mesh_of_one_device_is_no_mesh(number):
    request, shown = training(number, plan="none")
    request = replace(request, sizes={**request.sizes, LAYERS.get(request.model, "num_hidden_layers"): number % 3 + 1})
    counts, memory = answered(lc.cost, request), answered(lc.memory, request, engine="graph")
    if "pepita" in request.procedure and number % 3 == 0:
        memory = None  # of one block: over a mesh its input is held through the second pass, as of the first of several
    for one in ({"mesh": "dp=1", "placement": "ddp"}, {"mesh": "dp=1,tp=1", "placement": "zero-1,megatron"}):
        over = answered(lc.cost, request, **one)
        assert over is None or (counts.total.flops, counts.total.maccs) == (over.total.flops, over.total.maccs), shown
        over = answered(lc.memory, request, engine="graph", **one)
        assert over is None or memory is None or memory.peak == over.peak, (shown, number % 3 + 1)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", FEW)
def test_microbatches_never_take_more_than_the_undivided_batch(number):
    request, shown = training(number, procedure="bp", plan=None, precision="fp32", batch_size=8, seq_len=64)
    whole = lc.memory(request.model, **request.given)
    four = lc.memory(request.model, **request.given, accumulate=4)
    if whole.split["activations"] >= 3 * whole.peak / 4:
        assert four.peak <= whole.peak, shown
    assert four.peak <= whole.peak + whole.split.get("weights", 0), shown
