"""Pipelines: the orders that are generated, run, against the formulas that publications print."""

import os
import random
from fractions import Fraction

import pytest

import learncost as lc
from learncost.program.pipeline import KINDS, StageTimes, least_seconds, peak, run, schedule, seconds


def bubble(name, devices, microbatches, chunks=1):
    """Of stages that are all alike: F = 1, B = 1, W = 1, whatever the schedule does with W."""
    stages = [Fraction(1, chunks)] * (devices * chunks)
    return run(
        schedule(name, devices, microbatches, chunks), stages, stages, stages, Fraction(0)
    ).bubble  # in floats: begins are 0.0


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_bubbles_are_the_printed_formulas(devices, iterations):
    """Narayanan et al. 2021, section 2.2: (p-1)/m and (p-1)/(v m); Qi et al. 2023, table 2: (p-1)/(3m)."""
    m = devices * iterations
    assert bubble("gpipe", devices, m) == pytest.approx(float(Fraction(devices - 1, m)), abs=1e-12)
    assert bubble("1f1b", devices, m) == pytest.approx(float(Fraction(devices - 1, m)), abs=1e-12)
    assert bubble("zb-h1", devices, m) == pytest.approx(float(Fraction(devices - 1, 3 * m)), abs=1e-12)
    for chunks in (2, 4):
        assert bubble("interleaved", devices, m, chunks) == pytest.approx(
            float(Fraction(devices - 1, chunks * m)), abs=1e-12
        )


@pytest.mark.parametrize(("p", "m", "v", "printed"), [(4, 8, 2, 0.1875), (8, 32, 1, 0.21875), (8, 32, 4, 0.0546875)])
def test_bubbles_of_narayanan(p, m, v, printed):
    assert bubble("interleaved" if v > 1 else "1f1b", p, m, v) == pytest.approx(float(Fraction(printed)), abs=1e-12)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_microbatches_in_flight(devices):
    m = 4 * devices
    plain = schedule("1f1b", devices, m)
    assert [plain.in_flight(device) for device in range(devices)] == [devices - device for device in range(devices)]
    assert [schedule("gpipe", devices, m).in_flight(device) for device in range(devices)] == [m] * devices
    # ZB-H1 keeps to the memory of 1F1B's first stage on every device (Qi et al. 2023, section 2.2).
    assert {schedule("zb-h1", devices, m).in_flight(device) for device in range(devices)} == {devices}
    for chunks in (2, 4):
        first = schedule("interleaved", devices, m, chunks).in_flight(0)
        assert first == devices * (1 + (devices - 1) / (devices * chunks))  # Korthikanti et al. 2022, section 4.2.3


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (2, 2), (3, 6), (4, 4), (4, 12)])
def test_every_pass_runs_once_after_what_it_needs(name, devices, microbatches):
    chunks = 3 if KINDS[name].several else 1
    made = schedule(name, devices, microbatches, chunks)
    kinds = ("F", "B", "W") if made.splits_backward else ("F", "B")
    every = {(kind, c, m) for kind in kinds for c in range(chunks) for m in range(microbatches)}
    for order in made.orders:
        assert len(order) == len(every)
        assert {(task.kind, task.chunk, task.microbatch) for task in order} == every
    ran = run(made, [1.0] * made.stages, [2.0] * made.stages, [0.5] * made.stages, 0.25)
    ends = {}
    for device, times in enumerate(ran.times):
        for task, begin, end in times:
            ends[task.kind, task.chunk * devices + device, task.microbatch] = begin, end
    for (kind, stage, microbatch), (begin, _) in ends.items():
        if kind == "F" and stage:
            assert begin >= ends["F", stage - 1, microbatch][1] + 0.25
        if kind == "B":
            assert begin >= ends["F", stage, microbatch][1]
            if stage < made.stages - 1:
                assert begin >= ends["B", stage + 1, microbatch][1] + 0.25
        if kind == "W":
            assert begin >= ends["B", stage, microbatch][1]


def test_an_uneven_stage_sets_the_pace():
    """One stage twice as slow: once the pipeline is full, only it counts; it begins after 1, and waits 1 once."""
    forward, backward = [1.0, 2.0, 1.0], [2.0, 4.0, 2.0]
    ran = run(schedule("1f1b", 3, 30), forward, backward)
    assert ran.seconds == pytest.approx(1 + 1 + 30 * 6 + 2)


def test_bytes_in_flight_are_of_the_stages_chunks():
    made = schedule("interleaved", 2, 4, 2)
    held, most = 0, 0
    kept = [1, 10, 100, 1000]
    for task in made.orders[1]:
        held += kept[2 * task.chunk + 1] * {"F": 1, "B": -1}[task.kind]
        most = max(most, held)
    assert peak(made, 1, kept) == most


SEED = int(os.environ.get("LEARNCOST_TEST_SEED") or random.randrange(2**32))
print(f"LEARNCOST_TEST_SEED={SEED}")


def drawn(number):
    """A schedule and the cost of each of its stages by pass, five columns."""
    chance = random.Random(f"{SEED} {number}")
    name, devices = chance.choice([*KINDS]), chance.choice([2, 3, 4, 8])
    chunks = chance.choice([1, 2, 3]) if KINDS[name].several else 1
    microbatches = devices * chance.randint(1, 9) + (chance.randrange(devices) if chunks == 1 else 0)
    columns = [[chance.randint(1, 1000) for _ in range(devices * chunks)] for _ in range(5)]
    return (name, devices, microbatches, chunks), columns, chance.choice([0.0, 50.0])


@pytest.mark.parametrize("number", range(40))
def test_the_peak_of_a_device_is_that_of_walking_through_its_order(number):
    arguments, (kept, forward, backward, waiting, update), _ = drawn(number)
    made, devices = schedule(*arguments), arguments[1]
    peaks = []
    for device, order in enumerate(made.orders):
        held = most = 0
        for task in order:
            stage = task.chunk * devices + device
            held -= {"F": 0, "B": kept[stage], "W": waiting[stage]}[task.kind]
            most = max(most, held + {"F": forward, "B": backward, "W": update}[task.kind][stage])
            held += {"F": kept[stage], "B": waiting[stage] if made.splits_backward else 0, "W": 0}[task.kind]
            most = max(most, held)
        peaks.append(most)
        assert peak(made, device, kept, forward, backward, waiting, update) == most, (SEED, arguments)
    same = [column[:1] * len(column) for column in (kept, forward, backward, waiting, update)]
    of_same = [peak(made, device, *same) for device in range(devices)]
    assert all(of_same[device] <= of_same[device - 1] for device in made.lighter), (SEED, arguments)


@pytest.mark.parametrize("number", range(100))
def test_no_step_is_faster_than_its_lower_bound(number):
    arguments, (forward, backward, update, *_), send = drawn(number)
    ran = run(schedule(*arguments), forward, backward, update, send).seconds
    assert least_seconds(*arguments, StageTimes(forward, backward, update, send)) <= ran * (1 + 1e-12), (
        SEED,
        arguments,
    )
    found = seconds(*arguments, StageTimes(forward, backward, update, send))
    assert least_seconds(*arguments, StageTimes(forward, backward, update, send)) <= found * (1 + 1e-12), (
        SEED,
        arguments,
    )


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("microbatches", [100, 101, 128])
def test_many_microbatches_as_if_all_ran(name, microbatches):
    chunks = 2 if KINDS[name].several else 1
    if chunks > 1 and microbatches % 4:
        microbatches += 4 - microbatches % 4
    stages = 4 * chunks
    times = [1.0 + 0.1 * (stage % 3) for stage in range(stages)], [2.0] * stages, [0.7] * stages
    whole = run(schedule(name, 4, microbatches, chunks), *times, 0.05).seconds
    assert seconds(name, 4, microbatches, chunks, StageTimes(*times, 0.05)) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_very_many_passes_are_counted_as_they_run(name, monkeypatch):
    chunks = 2 if KINDS[name].several else 1
    stages = 8 * chunks
    times = [1.0 + 0.05 * (stage % 3) for stage in range(stages)], [2.0] * stages, [0.9] * stages
    exact = seconds(name, 8, 128, chunks, StageTimes(*times, 0.02))
    monkeypatch.setattr("learncost.program.pipeline.ESTIMATED_FROM", 10)
    assert seconds(name, 8, 128, chunks, StageTimes(*times, 0.02)) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2f2b", 4, 8), "no schedule is called '2f2b'"),
        (("1f1b", 0, 8), "devices of a pipeline must be at least 1"),
        (("1f1b", 4, 8, 2), "1f1b has one stage per device, not 2"),
        (("interleaved", 4, 10, 2), "interleaved pipeline: use 12"),
    ],
)
def test_schedules_that_there_are_not(arguments, message):
    with pytest.raises(lc.InputError, match=message):
        schedule(*arguments)
