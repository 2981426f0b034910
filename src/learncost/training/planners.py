"""Planners for torch.distributed.checkpoint: the shards that a process writes, and those it reads into its arrays.

The parts need no DTensor: a shard has its offsets in the global array, for any nesting of mesh axes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from learncost.training.parts import ArrayPart, Parts


def _tensor(part: ArrayPart) -> torch.Tensor:
    return torch.from_numpy(part.array)


def _chunk(part: ArrayPart) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(part.first), torch.Size(part.array.shape))


class Saving(DefaultSavePlanner):
    """Writes parts; one that several processes have is written by one of them."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Return the plan of all shards that this process can write."""
        self.plan = SavePlan([_written(name, part) for name, parts in self.state_dict.items() for part in parts])
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return the plan of every process; names are split into kind and name, as PyTorch nests dictionaries."""
        plans, metadata = super().create_global_plan(all_plans)
        nested = {name: tuple(name.split(".", 1)) for name in metadata.state_dict_metadata}
        self.metadata = replace(metadata, planner_data=nested)
        return plans, self.metadata

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """The tensor that is written."""
        return _at(self.state_dict, write_item.index)


def _at(parts: Parts, index: MetadataIndex) -> torch.Tensor:
    """The tensor of the part that begins where the index says."""
    return next(_tensor(part) for part in parts[index.fqn] if part.first == tuple(index.offset or ()))


def _written(name: str, part: ArrayPart) -> WriteItem:
    chunk, properties = _chunk(part), TensorProperties.create_from_tensor(_tensor(part))
    return WriteItem(
        MetadataIndex(name, chunk.offsets),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, properties, torch.Size(part.whole)),
    )


class CheckpointWriter(FileSystemWriter):
    """Writes files, and says it as the system does where they cannot be written: PyTorch's archive hides that."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """The parts of this process. Raises OSError."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None


class Loading(DefaultLoadPlanner):
    """Reads into the arrays of parts, from however many parts the whole was written in."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Set the shards to read, and the metadata of the checkpoint."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """Return the shards that this process reads. Raises ValueError for missing names and wrong shapes."""
        items: list[ReadItem] = []
        assert self.metadata is not None
        for name, parts in self.state_dict.items():
            there = self.metadata.state_dict_metadata.get(name)
            if not isinstance(there, TensorStorageMetadata):
                raise ValueError(f"{name} is missing")
            if wrong := next((part.whole for part in parts if part.whole != tuple(there.size)), None):
                raise ValueError(f"{name} is {tuple(there.size)}, but must be {wrong}")
            items += create_read_items_for_chunk_list(name, there, [_chunk(part) for part in parts])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The tensor that a part is read into."""
        return _at(self.state_dict, index)
