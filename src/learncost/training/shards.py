"""Arrays as PyTorch's distributed checkpoints take them: a tensor of the whole shape that holds a process's shards.

A shard has its offsets in the whole array, for any nesting of mesh axes, which the placements of a DTensor cannot say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from learncost.training.parts import ArrayPart, Parts


class ShardedTensor(torch.Tensor):
    """A tensor without values whose shards the default planners of a checkpoint read and write.

    The methods in double underscores are those by which planners ask tensors for their shards.
    """

    shards: Mapping[torch.Size, torch.Tensor]

    @staticmethod
    def __new__(cls, parts: tuple[ArrayPart, ...]) -> ShardedTensor:
        """Return the tensor of one array's parts."""
        shards = {torch.Size(part.first): torch.from_numpy(part.array) for part in parts}
        dtype = next(iter(shards.values())).dtype
        whole: ShardedTensor = torch.Tensor._make_wrapper_subclass(cls, parts[0].whole, dtype=dtype)
        whole.shards = shards
        return whole

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(first, shard.shape) for first, shard in self.shards.items()]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, TensorProperties.create_from_tensor(shard), self.shape),
            )
            for chunk, shard in zip(self.__create_chunk_list__(), self.shards.values(), strict=True)
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return self.shards[index.offset or torch.Size([0] * self.dim())]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a tensor without values")


def nested(parts: Parts) -> dict[str, dict[str, ShardedTensor]]:
    """Return the tensors of parts by kind and name, as PyTorch nests the state of a model and an optimizer."""
    by_kind: dict[str, dict[str, ShardedTensor]] = {}
    for name, several in parts.items():
        kind, _, rest = name.partition(".")
        by_kind.setdefault(kind, {})[rest] = ShardedTensor(several)
    return by_kind


class CheckpointWriter(FileSystemWriter):
    """Writes files, and raises the system's error if they cannot be written, which PyTorch's archive hides."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the parts of this process. Raises OSError."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None
