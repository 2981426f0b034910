"""The training step that trainers' files describe, in terms that all frameworks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.ir.dataclass import dataclass, replace

FULL, SELECTIVE = "full", "selective"  # checkpointing of every block; of some, or of some operators


@dataclass(frozen=True)
class Step:
    """A training step of a trainer. None: the file does not say it.

    micro_batch_size          samples of one device in one forward and backward pass
    global_batch_size         samples of all devices in one optimizer step
    accumulate                microbatches of one device in an optimizer step
    precision                 a name of `learncost list precisions`
    optimizer                 a name of `learncost list optimizers`
    optimizer_implementation  of AdamW and others: fused, foreach or for-loop
    offload                   what is not in the memory of the device, as of `learncost memory --offload`
    offload_activations       whether saved tensors are on the host up to the backward pass
    plan                      a plan of `learncost list plans`
    lora                      the modules with LoRA, or all-linear
    lora_dropout              the dropout probability of what these read
    also_trained              modules that are trained next to LoRA
    checkpointing             full, selective or none
    checkpoint_every          of so many blocks the first has a checkpoint; or op, torchtitan's selection of operators
    module                    the trainer's own code of the model, as of `learncost memory --module`
    reentrant                 whether checkpoints are PyTorch's reentrant ones
    loss                      the loss that is computed together with the head, as of `learncost memory --loss`
    packed                    whether sequences are filled to their length
    task                      what is trained for: sft, dpo, orpo and others
    teacher                   the model whose scores a distillation learns
    zero                      the stage of ZeRO, of which 3 is fully sharded
    dp, replicate, shard      devices over which batches are split: all, and those of HSDP's two axes
    devices                   of the whole run
    no_sync                   whether FSDP reduces gradients behind the last microbatch alone, and not behind each
    communication_buffers     bytes on each device
    chunks                    stages of the pipeline on each device
    sequence_parallel         whether tensor parallelism also splits the sequences between its products
    sizes                     the keys of a config.json, with its model_type where no model is named
    """

    model: str | None = None
    seq_len: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    accumulate: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    optimizer_implementation: str | None = None
    offload: str | None = None
    offload_activations: bool | None = None
    plan: str | None = None
    clip: float | None = None
    dropout: float | None = None
    lora: str | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float | None = None
    also_trained: str | None = None
    checkpointing: str | None = None
    checkpoint_every: int | str | None = None
    module: str | None = None
    reentrant: bool | None = None
    loss: str | None = None
    packed: bool | None = None
    task: str = "sft"
    teacher: str | None = None
    zero: int | None = None
    dp: int | None = None
    replicate: int | None = None
    shard: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    ep: int | None = None
    devices: int | None = None
    no_sync: bool | None = None
    communication_buffers: int | None = None
    chunks: int | None = None
    sequence_parallel: bool | None = None
    sizes: Mapping[str, Any] | None = None

    def get(self, name: str) -> Any:
        """Return the value of a field, or of one of the sizes, `sizes.NAME`."""
        field, _, size = name.partition(".")
        value = getattr(self, field)
        return (value or {}).get(size) if size else value

    def having(self, name: str, value: Any) -> Step:
        """Return the step with another value of a field, or of one of the sizes, `sizes.NAME`."""
        field, _, size = name.partition(".")
        changed: Any = {field: {**(self.sizes or {}), size: value} if size else value}
        return replace(self, **changed)
