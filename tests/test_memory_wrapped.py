"""Memory of modules of PyTorch over devices: predicted, and what its allocator hands out to one process of several."""

import io
import json
from contextlib import contextmanager, nullcontext
from functools import partial
from math import prod

import pytest
import torch
import torch.distributed
from torch.utils.checkpoint import checkpoint

import learncost as lc
from allocator import apart
from learncost.ir.errors import InputError
from learncost.models.configuration import configure

KIB = 2**10
WIDTH = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 600}
KEYS = {
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 600}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {**WIDTH, "intermediate_size": 176, "num_key_value_heads": 2},
}
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


@contextmanager
def one_of(mesh, alone):
    """A mesh of processes of which this one is the first; the others are none, and nothing is sent.

    DDP has no such backend: there this process is alone, and what it has is what each of several has.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shape = (1,) if alone else tuple(mesh.values())
    backend, store = ("gloo", torch.distributed.HashStore()) if alone else ("fake", FakeStore())
    torch.distributed.init_process_group(backend, rank=0, world_size=prod(shape), store=store)
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=tuple(mesh)[: len(shape)])
    finally:
        torch.distributed.destroy_process_group()


def train(name, dtype, placement, checkpoints, microbatches, no_sync, devices):
    """Two steps as a user of PyTorch writes them, the second with the optimizer's state there from the start."""
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    config = transformers.AutoConfig.for_model(name, **KEYS[name])
    kind = torch.bfloat16 if dtype == "bf16-true" else torch.float32
    module = getattr(transformers, CLASSES[name])._from_config(config, dtype=kind).train()
    if checkpoints == "reentrant":
        module.gradient_checkpointing_enable({"use_reentrant": True})
        module.enable_input_require_grads()
        module.config.use_cache = False
    elif checkpoints:
        module.activation_checkpointing_enable()
    if placement == "ddp":
        called = DistributedDataParallel(module)
    else:
        policy = (
            MixedPrecisionPolicy(torch.bfloat16, torch.float32) if dtype == "bf16-masters" else MixedPrecisionPolicy()
        )
        for block in module.transformer.h if name == "gpt2" else module.model.layers:
            fully_shard(block, mesh=devices, mp_policy=policy, reshard_after_forward=placement != "zero-2")
        called = fully_shard(module, mesh=devices, mp_policy=policy)
    steps = torch.optim.AdamW(module.parameters(), fused=True)
    tokens = torch.randint(0, 600, (4, 96))
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        for number in range(microbatches):
            if no_sync:
                module.set_requires_gradient_sync(number == microbatches - 1)
            called(input_ids=tokens, labels=tokens).loss.backward()
        steps.step()


def predicted(name, dtype, placement, mesh, number, checkpoints, microbatches, no_sync, how=""):
    keys = {"model_type": name, "architectures": [CLASSES[name]], **KEYS[name]}
    configuration = configure("-", {}, io.StringIO(json.dumps(keys)))
    flags = {"precision": dtype, "engine": "eager", "mesh": mesh, "placement": placement, "seq_len": 96}
    flags |= {"batch_size": 4 * number * microbatches, "accumulate": microbatches, "no_sync": no_sync}
    flags["optimizer_implementation"] = how
    flags |= {"module": "transformers-reentrant"} if checkpoints == "reentrant" else {}
    return lc.memory(configuration, "recompute" if checkpoints else "bp", optimizer="adamw", **flags)


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(
    ("name", "dtype", "placement", "mesh", "checkpoints", "microbatches", "no_sync"),
    [
        ("gpt2", "fp32", "ddp", {"dp": 2}, False, 1, False),
        ("llama", "bf16-true", "ddp", {"dp": 3}, False, 1, False),
        ("gpt2", "fp32", "fsdp", {"dp": 2}, False, 1, False),
        ("llama", "fp32", "zero-3", {"dp": 3}, False, 1, False),  # parts are filled up
        ("llama", "bf16-masters", "fsdp", {"dp": 2}, False, 3, False),  # gathered in bf16, summed in fp32
        ("gpt2", "fp32", "fsdp", {"dp": 2}, True, 2, False),
        ("llama", "fp32", "hsdp", {"dp": 2, "shard": 2}, False, 2, False),
        ("llama", "bf16-masters", "fsdp", {"dp": 4}, False, 3, True),  # whole sums in fp32
        ("gpt2", "fp32", "fsdp", {"dp": 4}, True, 2, True),
        ("llama", "bf16-true", "fsdp", {"dp": 4}, True, 3, True),
        ("llama", "bf16-masters", "zero-2", {"dp": 4}, False, 1, False),
        ("gpt2", "fp32", "zero-2", {"dp": 2}, True, 2, False),
        ("llama", "bf16-masters", "fsdp", {"dp": 4}, "reentrant", 1, False),
        ("gpt2", "fp32", "fsdp", {"dp": 3}, "reentrant", 2, False),
    ],
)
def test_the_predicted_peak_of_a_module_that_is_wrapped_is_that_of_the_allocator(
    name, dtype, placement, mesh, checkpoints, microbatches, no_sync
):
    pytest.importorskip("transformers")
    text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
    predicted_memory = predicted(name, dtype, placement, text, prod(mesh.values()), checkpoints, microbatches, no_sync)
    run = partial(train, name, dtype, placement, checkpoints, microbatches, no_sync)
    with one_of(mesh, placement == "ddp") as devices:
        # What a thread of gloo gives back last, no profiler sees: it can only add, so the least counts.
        most = min(apart(partial(run, devices))[1] for _ in range(3 if placement == "ddp" else 1))
    assert predicted_memory.peak == pytest.approx(most, rel=0.01)
    assert sum(predicted_memory.split.values()) == predicted_memory.peak
    assert ("buckets" in predicted_memory.split) == (placement == "ddp")


class Checkpointed(torch.nn.Module):
    """A reentrant checkpoint around a module, as transformers before 4.53 had it around FSDP's wrapper of a block."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden, **keywords):
        return checkpoint(partial(self.block, **keywords), hidden, use_reentrant=True)


def test_hooks_of_frozen_blocks_keep_what_reentrant_checkpoints_detach():
    transformers = pytest.importorskip("transformers")
    from torch.distributed.fsdp import FullyShardedDataParallel

    keys = KEYS["llama"] | {"num_hidden_layers": 6, "vocab_size": 64}
    tokens = torch.randint(0, 64, (2, 512))

    def run():
        module = transformers.LlamaForCausalLM(transformers.AutoConfig.for_model("llama", **keys)).train()
        module.config.use_cache = False
        for number, block in enumerate(module.model.layers):
            wrapped = FullyShardedDataParallel(block.requires_grad_(False), device_id=torch.device("cpu"))
            module.model.layers[number] = Checkpointed(wrapped)
        called = FullyShardedDataParallel(module, device_id=torch.device("cpu"))
        steps = torch.optim.AdamW([each for each in called.parameters() if each.requires_grad])
        for _ in range(2):
            steps.zero_grad()
            called(input_ids=tokens, labels=tokens).loss.backward()
            steps.step()

    configuration = configure("-", {}, io.StringIO(json.dumps({"model_type": "llama", **keys})))
    asked = {"mesh": "dp=2", "batch_size": 4, "seq_len": 512, "train": "embeddings,head", "engine": "eager"}
    asked |= {"optimizer": "adamw", "module": "transformers-4"}
    kept, freed = (lc.memory(configuration, "recompute", placement=each, **asked).peak for each in ("fsdp", "zero-3"))
    with one_of({"dp": 2}, False):
        most = apart(run)[1]
    assert kept == pytest.approx(most, rel=0.01)
    assert freed < 0.92 * most


def parallel(layers, sequences):
    """The plan of `parallelize_module` for a Llama, with sequences sharded between blocks or not."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

    between = {"output_layouts": Shard(1)} if sequences else {}
    head = {"input_layouts": Shard(1)} if sequences else {}
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **between),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False, **head),
    }
    plan |= {"model.norm": SequenceParallel()} if sequences else {}
    for number in range(layers):
        block = f"model.layers.{number}"
        columns = [*(f"self_attn.{letter}_proj" for letter in "qkv"), "mlp.gate_proj", "mlp.up_proj"]
        plan |= {f"{block}.{name}": ColwiseParallel() for name in columns}
        plan |= {f"{block}.{name}": RowwiseParallel(**between) for name in ("self_attn.o_proj", "mlp.down_proj")}
        if sequences:
            plan |= {f"{block}.{name}_layernorm": SequenceParallel() for name in ("input", "post_attention")}
            plan[f"{block}.mlp"] = PrepareModuleInput(
                input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
            )
            plan[f"{block}.self_attn"] = PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
                use_local_output=True,
            )
    return plan


def train_in_parallel(dtype, placement, checkpoints, microbatches, devices):
    """Two steps of a Llama whose tensors are parallel, also under `fully_shard`."""
    import transformers
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    config = transformers.AutoConfig.for_model("llama", **KEYS["llama"])
    kind = torch.bfloat16 if dtype == "bf16-true" else torch.float32
    module = transformers.LlamaForCausalLM._from_config(config, dtype=kind).train()
    if checkpoints:
        module.activation_checkpointing_enable()
    parallelize_module(module, devices["tp"], parallel(3, "sp" in placement))
    if "fsdp" in placement:
        for block in (*module.model.layers, module):
            fully_shard(block, mesh=devices["dp"])
    steps = torch.optim.AdamW(module.parameters(), foreach=False)
    tokens, places = torch.randint(0, 600, (4, 96)), torch.arange(96)[None]
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        for _ in range(microbatches):
            with loss_parallel():
                module(input_ids=tokens, labels=tokens, position_ids=places).loss.backward()
        steps.step()


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(
    ("dtype", "placement", "mesh", "checkpoints", "microbatches"),
    [
        ("fp32", "megatron", {"tp": 2}, False, 1),
        ("bf16-true", "megatron", {"tp": 2}, False, 2),
        ("fp32", "megatron", {"tp": 2}, True, 1),
        ("bf16-true", "megatron-sp", {"tp": 2}, False, 1),
        ("fp32", "megatron-sp", {"tp": 2}, True, 1),
        ("fp32", "fsdp,megatron-sp", {"dp": 2, "tp": 2}, False, 2),
        ("fp32", "fsdp,megatron-sp", {"dp": 2, "tp": 2}, True, 1),
    ],
)
def test_the_predicted_peak_of_parallel_tensors_is_that_of_the_allocator(
    dtype, placement, mesh, checkpoints, microbatches
):
    pytest.importorskip("transformers")
    text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
    predicted_memory = predicted(
        "llama", dtype, placement, text, mesh.get("dp", 1), checkpoints, microbatches, False, "for-loop"
    )
    with one_of(mesh, False) as devices:
        most = apart(partial(train_in_parallel, dtype, placement, checkpoints, microbatches, devices))[1]
    assert predicted_memory.peak == pytest.approx(most, rel=0.015)
    assert sum(predicted_memory.split.values()) == predicted_memory.peak


class StageOfLlama(torch.nn.Module):
    """The blocks of a stage of a pipeline, with the embedding before the first and the head behind the last."""

    def __init__(self, whole, stage, stages, blocks, checkpoints):
        super().__init__()
        self.blocks, self.rotary = whole.model.layers[stage * blocks : (stage + 1) * blocks], whole.model.rotary_emb
        self.embedding = whole.model.embed_tokens if stage == 0 else None
        last = stage == stages - 1
        self.norm, self.head, self.loss = (whole.model.norm, whole.lm_head, whole.loss_function) if last else [None] * 3
        self.checkpoints = checkpoints

    def forward(self, given, labels):
        hidden = embedded = self.embedding(given) if self.embedding else given
        angles = self.rotary(embedded, torch.arange(labels.shape[1])[None])
        for block in self.blocks:
            run = partial(block, position_embeddings=angles)
            hidden = checkpoint(run, hidden, use_reentrant=False) if self.checkpoints else run(hidden)
        if self.head is None:
            return hidden
        logits = self.head(self.norm(hidden))
        return self.loss(logits=logits, labels=labels, vocab_size=600)


def train_stages(device, stages, schedule, chunks, microbatches, checkpoints, devices):
    """Two steps of a device of a pipeline, in the order of a schedule; what a stage has sent is freed, as Megatron's
    deallocate_pipeline_outputs does it, and stages under `fully_shard` are as torch.distributed.pipelining has them."""
    import transformers
    from torch.distributed.fsdp import fully_shard

    from learncost.program.pipeline import schedule as schedule_named

    keys = {**KEYS["llama"], "num_hidden_layers": 6}
    whole = transformers.LlamaForCausalLM(transformers.AutoConfig.for_model("llama", **keys)).train()
    number = stages * chunks
    mine = [StageOfLlama(whole, stage, number, 6 // number, checkpoints) for stage in range(device, number, stages)]
    del whole.model, whole.lm_head
    for each in mine if devices else ():
        for module in (*each.blocks, each):
            fully_shard(module, mesh=devices, reshard_after_forward=False)
    steps = torch.optim.AdamW([weight for each in mine for weight in each.parameters()], foreach=False)
    tokens = torch.randint(0, 600, (2, 96))
    order = schedule_named(schedule, stages, microbatches, chunks).orders[device]
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        flying = {}
        for each in order:
            stage, place = mine[each.chunk], (each.chunk, each.microbatch)
            if each.kind == "F":
                given = tokens.clone() if stage.embedding else torch.zeros(2, 96, 64, requires_grad=True)
                made = stage(given, tokens)
                if stage.head is None:
                    made.data = torch.empty(1)
                flying[place] = given, made
                del given, made
                continue
            if devices:
                last = each.microbatch == microbatches - 1
                stage.set_is_last_backward(last)
                stage.set_reshard_after_backward(last)
                stage.set_requires_gradient_sync(last)
            given, made = flying.pop(place)
            seed = torch.zeros(2, 96, 64) if stage.head is None else torch.ones(())
            torch.autograd.Variable._execution_engine.run_backward(
                (made,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
            del given, made, seed
        steps.step()


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("stages", "schedule", "chunks", "microbatches", "checkpoints", "sharded"),
    [
        (2, "1f1b", 1, 4, False, False),
        (3, "1f1b", 1, 6, True, False),
        (2, "interleaved", 3, 4, False, False),
        (3, "gpipe", 1, 4, False, False),
        (2, "1f1b", 1, 4, False, True),
        (3, "1f1b", 1, 6, True, True),
    ],
)
def test_the_predicted_peak_of_stages_is_that_of_the_fullest_device(
    stages, schedule, chunks, microbatches, checkpoints, sharded
):
    pytest.importorskip("transformers")
    keys = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **KEYS["llama"], "num_hidden_layers": 6}
    flags = {"engine": "eager", "module": "transformers-uncached", "schedule": schedule, "seq_len": 96}
    flags |= {"mesh": f"pp={stages},dp=2", "placement": "fsdp,pp"} if sharded else {"mesh": f"pp={stages}"}
    flags |= {"batch_size": 2 * microbatches * (1 + sharded), "accumulate": microbatches, "optimizer": "adamw"}
    flags |= {"chunks": chunks} if chunks > 1 else {}
    configuration = configure("-", {}, io.StringIO(json.dumps(keys)))
    predicted_memory = lc.memory(
        configuration, "recompute" if checkpoints else "bp", optimizer_implementation="for-loop", **flags
    )
    most = 0
    for device in range(stages):
        run = partial(train_stages, device, stages, schedule, chunks, microbatches, checkpoints)
        with one_of({"dp": 2}, False) if sharded else nullcontext() as devices:
            most = max(most, apart(partial(run, devices))[1])
    assert predicted_memory.peak == pytest.approx(most, rel=0.015)
    assert sum(predicted_memory.split.values()) == predicted_memory.peak


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("dtype", ["bf16-masters", "fp32"])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_reference_model_is_sharded_as_the_model_that_learns(dtype, checkpoints):
    transformers = pytest.importorskip("transformers")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    keys = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **KEYS["llama"]}
    config = transformers.AutoConfig.for_model("llama", **KEYS["llama"])
    policy = MixedPrecisionPolicy(*((torch.bfloat16, torch.float32) if dtype == "bf16-masters" else ()))
    tokens = torch.randint(0, 600, (4, 64))

    def module(devices, checkpointed):
        made = transformers.LlamaForCausalLM(config).train()
        if checkpointed:
            made.activation_checkpointing_enable()
        for block in made.model.layers:
            fully_shard(block, mesh=devices, mp_policy=policy)
        return fully_shard(made, mesh=devices, mp_policy=policy)

    def scored(called):
        scores = called(input_ids=tokens, use_cache=False).logits
        if scores.dtype == torch.float32:
            every = torch.stack([torch.logsumexp(each, -1) for each in scores])
            return scores, (scores.gather(-1, tokens[..., None]).squeeze(-1) - every).sum(-1)
        logs = (each.log_softmax(-1).gather(-1, own[:, None]) for each, own in zip(scores, tokens, strict=True))
        return scores, torch.stack([*logs]).sum((-1, -2))

    def run(devices):
        policy_model, reference = module(devices, checkpoints), module(devices, False)
        steps = torch.optim.AdamW(policy_model.parameters(), fused=True)
        for _ in range(2):
            steps.zero_grad()
            kept, own = scored(policy_model)
            with torch.no_grad():
                ratios = own - scored(reference)[1]
            del kept  # `outputs` in DPOTrainer's compute_loss
            ratios = own - own.detach() + ratios
            (-torch.nn.functional.logsigmoid(ratios[:2] - ratios[2:]).mean()).backward()
            steps.step()

    flags = {"mesh": "dp=2", "placement": "fsdp", "engine": "eager", "task": "dpo", "precision": dtype}
    flags |= {"batch_size": 8, "seq_len": 64, "module": "transformers" if checkpoints else "transformers-uncached"}
    configuration = configure("-", {}, io.StringIO(json.dumps(keys)))
    found = lc.memory(configuration, "recompute" if checkpoints else "bp", **flags)
    with one_of({"dp": 2}, False) as devices:
        measured = apart(partial(run, devices))[1]
    assert found.peak == pytest.approx(measured, rel=0.025)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mesh": "dp=2", "place": "B over dp, * over dp of gradients"}, "no wrapper that shards only gradients"),
        (
            {"mesh": "tp=2", "loss": "liger", "vocab_size": 50000},
            "of heads that no axis splits by vocabulary: give place 'h g f over tp'",
        ),
        ({"mesh": "pp=2", "schedule": "zb-h1", "accumulate": 2, "batch_size": 2}, "does not support weight updates"),
        ({"mesh": "dp=2", "placement": "ddp", "no_sync": True}, "supports no_sync only for fully sharded weights"),
    ],
)
def test_what_no_wrapper_of_pytorch_does_is_refused(flags, message):
    with pytest.raises(InputError, match=message):
        lc.memory("gpt2", engine="eager", seq_len=16, **flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"engine": "eager"},
        {"engine": "graph"},
        {"mesh": "dp=2", "placement": "zero-1"},
        {"mesh": "dp=2", "placement": "fsdp", "engine": "eager"},
        {"mesh": "pp=2", "schedule": "interleaved", "accumulate": 2},
    ],
)
def test_communication_buffers_are_a_part_of_their_own(flags):
    asked = {"seq_len": 16, "batch_size": 4, "num_hidden_layers": 4, **flags}
    alone, sent = lc.memory("gpt2", **asked), lc.memory("gpt2", communication_buffers="1GB", **asked)
    assert sent.peak == alone.peak + 10**9 == sum(sent.split.values())
    assert {name: size for name, size in sent.split.items() if name != "communication buffers"} == alone.split
    assert [each.bytes for each in sent.live_at_peak if each.name == "communication buffers"] == [10**9]
    with pytest.raises(InputError, match="does not support communication_buffers"):
        lc.memory("gpt2", engine="numpy", seq_len=16, communication_buffers="1GB")


def test_communication_buffers_are_in_the_memory_of_a_run():
    asked = {"devices": 2, "mesh": "dp=2", "placement": "zero-1", "seq_len": 16, "batch_size": 2}
    asked["num_hidden_layers"] = 2
    alone = lc.run_cost("gpt2", 1e6, "H100-SXM", **asked)
    sent = lc.run_cost("gpt2", 1e6, "H100-SXM", **asked, communication_buffers="1GB")
    assert sent.spread.peak == alone.spread.peak + 10**9


def test_a_module_that_was_read_runs_itself_in_ddp():
    module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    layer = lc.from_module(module, {"input": torch.randn(8, 64)}, {"input": "B 64"})
    flags = {"engine": "eager", "mesh": "dp=2"}
    over, one = lc.memory(layer, B=16, placement="ddp", **flags), lc.memory(layer, B=8, engine="eager")
    buckets = 4 * sum(each.numel() for each in module.parameters())
    assert over.module == one.module == "itself"
    assert over.peak == one.peak + buckets == sum(over.split.values())
    with pytest.raises(InputError, match="a sharded step is recorded in another process"):
        lc.memory(layer, B=16, placement="fsdp", **flags)
