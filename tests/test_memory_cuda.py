"""What PyTorch's autograd takes on a GPU: predicted, beside the bytes that were asked of the allocator on an H100.

`python benchmarks/on_cuda.py --only memory` measured them: PyTorch 2.11, transformers 5.17, two steps with fused AdamW.
"""

import io
import json
from pathlib import Path
from statistics import median

import pytest

import learncost as lc
from learncost.devices.device import devices
from learncost.models.configuration import configure
from sampling import sampled

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 32000}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 4, "num_hidden_layers": 12, "intermediate_size": 2816, "vocab_size": 32000,
}  # fmt: skip
PLAIN = {**LLAMA, "num_key_value_heads": 16, "max_position_embeddings": 1024}
PHI = {
    "model_type": "phi", "architectures": ["PhiForCausalLM"], "hidden_size": 256, "num_attention_heads": 4,
    "num_hidden_layers": 3, "intermediate_size": 1024, "vocab_size": 256,
}  # fmt: skip

MEASURED = [
    # a norm in one kernel
    (PLAIN, 8, 1024, {"module": "plain", "precision": "fp32"}, 14_312_747_316),
    (PLAIN, 8, 1024, {"module": "plain", "precision": "bf16-true"}, 7_159_994_864),
    # heads in groups: composed attention in fp32, fused in bf16
    (LLAMA, 4, 1024, {"precision": "fp32"}, 11_483_214_536),
    (LLAMA, 4, 1024, {"precision": "bf16-true"}, 4_979_530_632),
    (LLAMA, 4, 1024, {"precision": "fp32", "lora": "q_proj,v_proj"}, 8_457_490_892),
    # masks of dropout as booleans, attention fused all the same
    (GPT2, 4, 1024, {"precision": "fp32", "dropout": 0.1}, 7_534_795_356),
    (GPT2, 4, 1024, {"precision": "bf16-true", "dropout": 0.1}, 4_594_777_884),
    # attention in fp32 lies with positions before heads
    (PHI, 4, 128, {"precision": "fp32"}, 77_001_032),
]


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(("keys", "batch", "length", "asked", "measured"), MEASURED)
def test_the_predicted_peak_is_the_measured_one(keys, batch, length, asked, measured):
    configuration = configure("-", {}, io.StringIO(json.dumps(keys)))
    needs = lc.memory(configuration, "bp", batch, length, optimizer="adamw", engine="eager", on="cuda", **asked)
    assert needs.peak == pytest.approx(measured, rel=5e-4)
    assert sum(needs.split.values()) == needs.peak
    assert "on a GPU" in needs.convention


STEPS = json.loads((Path(__file__).parents[1] / "benchmarks" / "steps_on_gpu.json").read_text(encoding="utf-8"))["rows"]
"""By optimizer, microbatches, clipping and checkpoints: bytes predicted before the run, and measured on the H100.
Muon stepped all matrices there, embeddings among them, of which it now leaves all but those of blocks to AdamW."""


@pytest.fixture(scope="module")
def predictions():
    pytest.importorskip("transformers")
    import peaks  # noqa: F401  benchmarks/peaks.py, which puts tests on the path of benchmarks
    from on_gpu.asked import Asked
    from on_gpu.memory import cases

    return {name: predicted for name, _, predicted in cases("steps", Asked("cuda", False, ("",)))}


@pytest.mark.parametrize("name", sampled([name for name in STEPS if " muon," not in name], 29))
def test_a_step_of_every_optimizer_takes_what_was_measured(predictions, name):
    _, measured, _ = STEPS[name]
    assert predictions[name]() == pytest.approx(measured, rel=2e-3)


def test_every_step_was_predicted_before_it_was_measured():
    assert len(STEPS) == 299
    differences = [abs(predicted / measured - 1) for predicted, measured, _ in STEPS.values()]
    assert max(differences) < 1.3e-3
    assert median(differences) < 3e-5


def test_a_module_that_was_read_says_where_it_ran():
    torch = pytest.importorskip("torch")
    layer = lc.from_module(torch.nn.Linear(8, 8), {"input": torch.ones(2, 8)})
    convention = lc.memory(layer, engine="eager", on="cuda").convention
    assert (
        torch.cuda.is_available()
        or "Not run on a GPU: PyTorch chooses kernels for a GPU where there is one." in convention
    )


def test_a_question_about_a_gpu_has_the_gpus_kernels():
    configuration = configure("-", {}, io.StringIO(json.dumps(PHI)))
    length = {"seq_len": 128, "engine": "eager", "precision": "fp32"}
    place = {"batch_size": 4, **length}
    measured = next(measured for keys, *_, measured in MEASURED if keys is PHI)
    there, here = (lc.memory(configuration, on=on, **place) for on in ("H100-SXM", None))
    assert there.peak == pytest.approx(measured, rel=5e-4) != here.peak
    assert there.budget == 80_000_000_000
    (row,) = lc.fit(configuration, on="H100-SXM", procedures="bp", plan="flash", **length).rows
    assert row.largest == there.fits["batch_size"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"engine": "graph", "optimizer_implementation": "foreach"}, "give engine='eager'"),
        ({"engine": "eager", "optimizer_implementation": "each"}, "there are fused, foreach, for-loop"),
    ],
)
def test_the_implementation_of_the_optimizer_is_pytorchs(flags, message):
    with pytest.raises(lc.InputError, match=message):
        lc.memory("gpt2", **flags)


def test_devices_that_run_pytorchs_kernels_for_gpus_are_those_of_its_makers():
    """NVIDIA's and AMD's are `cuda` to PyTorch; TPUs, Gaudi, Apple's and microcontrollers are not."""
    makers = {name.split()[0] for name, device in devices().items() if device.torch}
    assert makers == {"NVIDIA", "AMD"}
    assert not [name for name, device in devices().items() if name.split()[0] in makers and not device.torch]


@pytest.mark.parametrize(("seq_len", "fits"), [(128, True), (1024, False)])
def test_the_first_line_says_what_does_not_fit(seq_len, fits):
    found = lc.memory("gpt2", batch_size=4, seq_len=seq_len, n_layer=2, budget="2GB")
    assert (found.fits["batch_size"] >= 4) == fits  # by bisection, not by this peak
    assert ("does not fit:" in found.sheets()[0].title) == (not fits)
    assert found.sheets()[0].title.endswith(" of 2.00 GB") == (not fits)


def test_a_step_that_fits_at_no_size_has_its_peak_all_the_same():
    found = lc.memory("gpt2", n_layer=2, seq_len=64, budget="10MB")
    assert found.nothing_fits
    assert found.peak == lc.memory("gpt2", n_layer=2, seq_len=64).peak
    sheet, *_ = found.sheets()
    assert sheet.title.endswith(" of 10.0 MB")
    needed = int(sheet.answer.split("alone need ")[1].split(";")[0].replace(",", ""))
    assert needed in (3 * found.split["weights"], 4 * found.split["weights"])  # two moments; and gradients at the peak


def test_the_largest_batch_lays_a_step_out_once_for_each_batch_and_plan(monkeypatch):
    from learncost.reports.memory.engines import emitted

    asked, lay_out = [], emitted.laid_out_on_gpu

    def counted(step, sizes, check=True, plan=None):
        asked.append((sizes["B"], step.plan if plan is None else plan))
        return lay_out(step, sizes, check, plan)

    monkeypatch.setattr(emitted, "laid_out_on_gpu", counted)
    flags = {"seq_len": 8, "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "engine": "cuda"}
    (row,) = lc.fit("gpt2", "100MB", on="H100-SXM", procedures="bp", **flags).rows
    assert {row.largest, row.largest + 1} <= {batch for batch, _ in asked}  # one fits, and one more does not
    assert len(asked) == len({*asked})
