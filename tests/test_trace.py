"""Traces: the predicted step slice by slice, in the Trace Event Format and as Perfetto's protobuf."""

import json
import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

import learncost as lc
from learncost.cli.command import main

ON = "A100-SXM-80GB"
SMALL = {"n_layer": 3, "seq_len": 32}
KINDS = [
    ("gpt2", {}),
    ("gpt2", {"procedure": "recompute"}),
    ("gpt2", {"procedure": "pepita"}),
    ("gpt2", {"procedure": "mempepita", "optimizer": "sgd"}),
    ("gpt2", {"procedure": "decode", "context": 7, "seq_len": 1}),
    ("gpt2", {"procedure": "prefill"}),
    ("gpt2", {"plan": "flash,chunked-loss", "batch_size": 2}),
    ("gpt2", {"plan": "fused-update", "dtype": "bf16-masters"}),
    ("llama-3.2-1b", {"lora": "q_proj,v_proj", "precision": "qlora"}),
    ("t5-small", {"n_layer": None, "target_len": 16}),
    ("bert-base", {}),
    ("vit-b-16", {"seq_len": None}),
    ("whisper-tiny", {"n_layer": None, "seq_len": None, "target_len": 16}),
    ("mixtral-8x7b", {}),
    ("gemma-3-1b", {"n_layer": 8}),
    ("deepseek-v3", {"n_layer": 5}),
    ("albert-base-v2", {}),
]


def traced(model, more):
    keywords = {name: value for name, value in (SMALL | more).items() if value is not None}
    return lc.trace(model, **keywords), keywords


def lines(trace):
    return [part for process in trace.timeline.processes for part in process.walk() if part.kind == "line"]


def check_events(trace):
    """What the Trace Event Format asks for: durations, nesting on every thread, counters that go on in time."""
    events = json.loads(json.dumps(trace.to_dict()))["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "C", "M"}
    threads = defaultdict(list)
    last = {}
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            continue
        assert event["ts"] >= 0
        if event["ph"] == "C":
            (value,) = event["args"].values()
            assert value > 0
            key = event["pid"], event["name"]
            assert event["ts"] > last.get(key, -1)
            last[key] = event["ts"]
            continue
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append(event)
    for thread in threads.values():
        around = []
        for event in thread:  # in the order in which they begin, a slice before those inside of it
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while around and start >= around[-1] and not (start == end == around[-1]):
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)
    return threads


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize(("model", "more"), KINDS, ids=str)
def test_a_line_is_as_long_as_it_has_flops_and_all_together_have_those_of_the_ledger(model, more):
    trace, keywords = traced(model, more)
    check_events(trace)
    cost = lc.cost(model, **keywords)
    assert sum(line.facts["flops"] for line in lines(trace)) == cost.total.flops
    assert sum(line.facts["maccs"] for line in lines(trace)) == cost.total.maccs
    assert sum(line.facts["bytes"] for line in lines(trace)) == sum(row.bytes for row in cost.rows)
    assert all(line.length == line.facts["flops"] for line in lines(trace))  # a nanosecond stands for one
    assert "no device" in trace.timeline.facts["length"]
    by_pass = Counter()
    for line in lines(trace):
        by_pass[line.category] += line.facts["flops"]
    assert by_pass == {
        name: operation.flops for name, (_, operation) in cost.macro_operations.items() if operation.flops
    } | {name: 0 for name in by_pass if not cost.macro_operations[name][1].flops}


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize(("model", "more"), KINDS, ids=str)
def test_on_a_device_slices_take_the_seconds_of_the_ledger(model, more):
    trace, keywords = traced(model, more | {"on": ON})
    check_events(trace)
    step = lc.cost(model, by="equation", **keywords)
    seconds = step.timing.seconds
    assert math.isclose(
        sum(line.facts["seconds"] for line in lines(trace)) + step.timing.time.step, seconds, rel_tol=1e-9
    )
    length = sum(slice_.length for slice_ in trace.timeline.processes[0].slices)
    assert abs(length - seconds * 1e9) <= 1  # of all slices together, in nanoseconds
    assert all(abs(line.length - line.facts["seconds"] * 1e9) <= 1 for line in lines(trace))
    kernels = [part for part in trace.timeline.processes[0].walk() if part.kind == "kernel"]
    assert all(len(kernel.parts) > 1 for kernel in kernels)
    assert trace.timeline.facts["length"] == "seconds, modelled"


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize(("model", "more"), KINDS, ids=str)
def test_memory_beside_the_lines_has_the_peak_that_memory_says(model, more):
    for on, plan in ((None, "none"), (ON, None)):  # a step on a device has fused attention, as memory has it
        trace, keywords = traced(model, more | {"on": on})
        (counter,) = trace.timeline.processes[0].counters
        levels = [line.facts["memory"] for line in lines(trace)]
        assert max(levels) == max(value for _, value in counter.values)
        if keywords.get("procedure") in ("decode", "prefill"):
            return
        keywords = {"optimizer": "adamw", **keywords, "plan": keywords.get("plan", plan)}
        assert max(levels) == lc.memory(model, engine="graph", **keywords).peak


def test_blocks_are_counted_as_they_run():
    trace, _ = traced("gpt2", {})
    blocks = [part.name for part in trace.timeline.processes[0].walk() if part.kind == "block"]
    assert blocks == ["block 0", "block 1", "block 2", "block 2", "block 1", "block 0"]
    trace, _ = traced("deepseek-v3", {"n_layer": 5})  # the first three are dense
    forward = [part.name for part in trace.timeline.processes[0].slices[0].walk() if part.kind == "block"]
    assert forward == [f"block {number}" for number in range(5)]
    backward = [part.name for part in trace.timeline.processes[0].slices[1].walk() if part.kind == "block"]
    assert backward == forward[::-1]
    trace, _ = traced("t5-small", {"n_layer": None, "target_len": 16})
    names = [part.name for part in trace.timeline.processes[0].slices[0].walk() if part.kind == "block"]
    assert names[5:7] == ["encoder block 5", "decoder block 0"]
    trace, _ = traced("gemma-3-1b", {"n_layer": 14})
    names = [part.name for part in trace.timeline.processes[0].slices[0].walk() if part.kind == "block"]
    assert names == ["blocks 0 to 5", "blocks 6 to 11", "block 12", "block 13"]


def test_lines_stand_in_layers_of_blocks_of_passes():
    trace, _ = traced("gpt2", {})
    forward, both, last = trace.timeline.processes[0].slices
    assert (forward.name, both.name, last.name) == ("forward", "backward, weight update", "optimizer step")
    block = next(part for part in forward.parts if part.name == "block 1")
    assert [part.name for part in block.parts] == ["norm", "attention", "residual", "norm", "feed_forward", "residual"]
    scores = next(part for part in block.parts[1].parts if part.name == "R")
    # 2 M N d: the scores of all heads
    assert (scores.facts["flops"], scores.facts["equation"]) == (2 * 32 * 32 * 768, "3")


def test_many_turns_of_an_inner_repeat_are_one_that_says_so(monkeypatch):
    monkeypatch.setattr("learncost.viz.predicted.MOST", 300)
    albert, _ = traced("albert-base-v2", {})
    (iterations,) = {
        part.facts["iterations"] for part in albert.timeline.processes[0].walk() if part.kind == "iteration"
    } - {1}
    assert iterations == 3
    monkeypatch.setattr("learncost.viz.predicted.MOST", 10)
    for on in (None, ON):
        trace, keywords = traced("gpt2", {"on": on})
        assert {part.name for part in trace.timeline.processes[0].walk() if part.kind == "iteration"} == {
            "3 iterations"
        }
        plan = "flash" if on else "none"  # what attention recomputes on a device is in its trace
        assert sum(line.facts["flops"] for line in lines(trace)) == lc.cost("gpt2", plan=plan, **keywords).total.flops
        check_events(trace)


def test_a_large_step_without_a_device_stays_within_what_viewers_count_exactly():
    trace = lc.trace("llama-3.1-405b", n_layer=2, seq_len=131072)
    (process,) = trace.timeline.processes
    scale = int(trace.timeline.facts["nanosecond"].split()[0].replace(",", ""))
    assert scale > 1
    assert process.slices[-1].end < 2**53
    flops = lc.cost("llama-3.1-405b", n_layer=2, seq_len=131072).total.flops
    assert abs(process.slices[-1].end * scale - flops) <= scale


# Perfetto's protobuf, read by its own classes.


def parsed(content):
    packets = perfetto.Trace()
    assert packets.ParseFromString(content) == len(content)
    return packets


@given(some.sampled_from(KINDS), some.booleans())
@settings(max_examples=2, deadline=None)
def test_perfetto_reads_what_the_json_says(kind, timed):
    model, more = kind
    trace, _ = traced(model, more | ({"on": ON} if timed else {}))
    packets = parsed(trace.to_bytes(".pftrace")).packet
    described = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in packets
        if packet.HasField("track_descriptor")
    }
    assert {track.parent_uuid for track in described.values()} <= {0, *described}
    around, slices, counted, times = defaultdict(list), [], [], defaultdict(int)
    for packet in packets:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in described
        assert packet.timestamp >= times[event.track_uuid]
        times[event.track_uuid] = packet.timestamp
        if event.type == perfetto.TrackEvent.TYPE_SLICE_BEGIN:
            around[event.track_uuid].append((packet.timestamp, event))
        elif event.type == perfetto.TrackEvent.TYPE_SLICE_END:
            start, begun = around[event.track_uuid].pop()
            slices.append((begun.name, list(begun.categories), start, packet.timestamp))
        else:
            assert event.type == perfetto.TrackEvent.TYPE_COUNTER
            counted.append((packet.timestamp, event.counter_value))
    assert not any(around.values())
    events = trace.to_dict()["traceEvents"]
    expected = [
        (event["name"], [event["cat"]], round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
        for event in events
        if event["ph"] == "X"
    ]
    assert sorted(slice_ for slice_ in slices if slice_[0] != "about this trace") == sorted(expected)
    assert counted == [(round(e["ts"] * 1000), *e["args"].values()) for e in events if e["ph"] == "C"]


def test_perfetto_has_all_facts_of_a_slice():
    trace, _ = traced("gpt2", {"on": ON})
    packets = parsed(trace.to_bytes(".pftrace")).packet
    kinds = {"int_value": int, "double_value": float, "string_value": str}
    for packet in packets:
        if packet.track_event.name == "about this trace":
            annotations = {each.name: each.string_value for each in packet.track_event.debug_annotations}
            assert annotations == trace.timeline.facts
    event = next(packet.track_event for packet in packets if packet.track_event.name == "R")
    facts = next(line for line in lines(trace) if line.name == "R").facts
    for each in event.debug_annotations[1:]:
        field = each.WhichOneof("value")
        assert getattr(each, field) == facts[each.name]
        assert isinstance(facts[each.name], kinds[field])
    assert len(event.debug_annotations) == len(facts) + 1


# The command.


def test_the_command_writes_either_form_and_says_what_opens_it(tmp_path, capsys):
    for name in ("trace.json", "trace.pftrace"):
        path = tmp_path / name
        assert main(["trace", "gpt2", "--n-layer", "1", "--seq-len", "8", "--on", ON, "-o", str(path)]) == 0
        out = capsys.readouterr().out
        assert str(path) in out.replace("\n", "")
        assert "perfetto" in out
    trace = lc.trace("gpt2", n_layer=1, seq_len=8, on=ON)
    assert json.loads((tmp_path / "trace.json").read_text()) == trace.to_dict()
    assert (tmp_path / "trace.pftrace").read_bytes() == trace.to_bytes(".pftrace")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-o", "trace.txt"], "a trace ends in .json or .pftrace, not 'trace.txt'"),
        (["-o", "no-such/trace.json"], "there is no folder no-such"),
        (["--on", "no-such"], "no-such"),
        (["--procedure", "decode", "--lora", "all-linear"], "do not apply to inference (decode)"),
        (["--context", "4"], "--context requires --procedure decode"),
    ],
)
def test_what_cannot_be_is_one_line(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "gpt2", "--n-layer", "1", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


# Steps that ran.


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 60)
    return path


RUNS = [
    ("numpy", {}),
    ("numpy", {"procedure": "pepita", "accumulate": 2}),
    ("numpy", {"procedure": "recompute"}),
    ("torch", {"plan": "fused-update"}),
    ("numpy", {"dtype": "bf16-masters"}),
]


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(("engine", "more"), RUNS, ids=str)
def test_a_training_is_traced_as_it_ran(engine, more, text, tmp_path, capsys):
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    run = tmp_path / "run"
    keywords = {"engine": engine, "batch_size": 4, "seq_len": 16, "steps": 4, "out": run, "trace": 2}
    result = lc.train(text, **keywords, **sizes, **more)
    assert "traced 2 steps" in capsys.readouterr().err
    answer = json.loads((run / "trace.json").read_text())
    assert "seconds, measured" in answer["otherData"]["length"]
    events = [event for event in answer["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["args"]["kind"] == "step"]
    assert [event["name"] for event in steps] == ["step 2", "step 3"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for event, row in zip(steps, rows[1:3], strict=True):
        assert 0 < event["dur"] / 1e6 < row["seconds"] + 1e-3
    line_events = [event for event in events if event["args"]["kind"] == "line"]
    if more.get("dtype") == "bf16-masters":  # NumPy has no program for it: the interpreter runs, whose lines are none
        assert not line_events
        return
    assert sum(event["dur"] for event in line_events) <= sum(event["dur"] for event in steps)
    blocks = [event["name"] for event in events if event["args"]["kind"] == "block"]
    assert blocks[:2] == ["block 0", "block 1"]
    assert {event["cat"] for event in line_events} >= {"forward", "weight_update"}
    names = [event["name"] for event in line_events]
    assert any(name.startswith("attn_Q") for name in names)
    assert any(event["args"].get("equation") == "45" for event in line_events)
    counters = {event["name"]: event["args"]["bytes"] for event in answer["traceEvents"] if event["ph"] == "C"}
    assert counters["memory of the process, measured"] > 10**6
    assert counters["weights, state and step, predicted"] == result.last.predicted
    parsed((run / "trace.pftrace").read_bytes())


def test_the_predicted_step_stands_beside_where_the_machine_is_known(text, tmp_path, monkeypatch):
    monkeypatch.setattr("learncost.viz.measured.THIS_MACHINE", ON)
    run = tmp_path / "run"
    lc.train(text, engine="numpy", num_hidden_layers=1, batch_size=2, seq_len=8, steps=2, out=run, trace=1)
    answer = json.loads((run / "trace.json").read_text())
    names = [event["args"]["name"] for event in answer["traceEvents"] if event["name"] == "process_name"]
    assert len(names) == 2
    beside = [event for event in answer["traceEvents"] if event["ph"] == "X" and event["pid"] == 2]
    seconds = lc.cost(str(run / "config.json"), batch_size=2, seq_len=8, on=ON, dtype="fp32").timing.seconds
    seconds_predicted = sum(event["args"]["seconds"] for event in beside if event["args"]["kind"] == "line")
    assert math.isclose(seconds_predicted, seconds, rel_tol=1e-9)


def test_tracing_leaves_the_numbers_as_they_are(text, tmp_path):
    keywords = {"engine": "numpy", "num_hidden_layers": 1, "batch_size": 2, "seq_len": 8, "steps": 4}
    result = lc.train(text, **keywords, out=tmp_path / "one")
    two = lc.train(text, **keywords, out=tmp_path / "two", trace=2)
    assert result.last.loss == two.last.loss
    assert not (tmp_path / "one" / "trace.json").exists()
    resumed = lc.train(resume=tmp_path / "one", steps=6, trace=1)
    assert resumed.steps == 6
    answer = json.loads((tmp_path / "one" / "trace.json").read_text())
    assert [e["name"] for e in answer["traceEvents"] if e["ph"] == "X" and e["args"]["kind"] == "step"] == ["step 6"]


@pytest.mark.parametrize("several", ["-1", "1001", "x"])
def test_steps_to_trace_are_a_whole_number(several, text, capsys):
    assert main(["train", str(text), "--trace", several]) == 2
    assert "trace must be a whole number" in capsys.readouterr().err
