"""The configurations of a training on the devices of a cluster: those that fit, and the fastest."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.candidates import (
    NO_CONTEXT_PARALLELISM,
    NO_RECOMPUTATION,
    PLANS,
    Candidate,
    ConfigTime,
    ShardedStructure,
    StructureCost,
    axes_of,
    configs,
    is_apart,
    meshes,
    sharded_axes,
    structures,
)
from learncost.autoshard.step import ParallelConfig
from learncost.devices.cluster import Cluster
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import Precision
from learncost.models.model import Model
from learncost.sharding.mesh import Mesh
from learncost.timing.rates import Rates

EQUAL = 1 + 1e-5
"""The ratio of times of which a mesh's own account decides which is less: they differ by padding or rounding alone."""


@dataclass
class EvaluatedConfigs:
    """The evaluated configurations: those that fit, the number of others, and the smallest of these.

    known  those that fit under an earlier plan, and those whose static memory alone is too large: by their keys
    """

    fit: list[Candidate]
    too_large: int = 0
    nearest: Candidate | None = None
    known: set[tuple[Any, ...]] = field(default_factory=set)


class SearchSpace:
    """The configurations of a training on devices, and their placed structures."""

    def __init__(self, model: Model, sizes: Mapping[str, int], cluster: Cluster, kinds: Sequence[Precision]) -> None:
        self.model, self.sizes, self.cluster, self.kinds = model, sizes, cluster, kinds
        self.axes, self.placed, self.refused = _placed(model, sizes, kinds[0], cluster)

    def cost(self, structure: ShardedStructure) -> StructureCost | None:
        """Return a placed structure; None if it shards attention or axes in an unsupported combination."""
        if structure not in self.placed:
            try:
                self.placed[structure] = StructureCost(self.model, self.sizes, structure, self.cluster)
            except InputError:
                if len(structure.axes) == 1:
                    raise
                return None
        return self.placed[structure]

    def account(self, candidate: Candidate) -> MeshAccount:
        """Return the account of a configuration as in run-cost.

        It is that of the structure, unless `*` shards other axes over a mesh of this size, as those that it divides.
        """
        found, parallel = self.placed[candidate.structure].account, candidate.parallel
        inner = Mesh(tuple((axis, parallel.mesh.get(axis, 1)) for axis in candidate.structure.axes))
        sizes = {**self.sizes, "B": parallel.microbatch * inner.devices}
        if found.step.is_alike(inner, sizes):
            return found
        return MeshAccount(self.model, sizes, inner, candidate.structure.config)

    def shapes(self, devices: int, batch: int) -> list[dict[str, int]]:
        """Return the meshes of a number of devices. Raises `InputError` if there are none."""
        layers = sum(int(size_of(base(loop.count), self.sizes)) for loop in self.model.table.repeats)
        if not layers:
            raise InputError(
                "search requires a model with a stack of blocks: use learncost cost --mesh --placement for the cost "
                "of one placement"
            )
        whole = [axis for cost in self.placed.values() for axis in cost.account.sizes.cut_over("tp")]
        node = self.cluster.devices
        shapes = list(meshes(devices, self.axes, self.sizes, node, layers, batch, [*dict.fromkeys(whole)]))
        if not shapes:
            raise InputError(
                f"{batch:,} sequences cannot be split over {devices:,} devices: give a divisible --batch-size, such as "
                f"{devices:,}"
            )
        return shapes

    def look(self, devices: int, batch: int, capacity: float) -> EvaluatedConfigs:
        """Return the configurations that fit: those without recomputation, else those that recompute.

        Activations are not evaluated where static memory alone is too large, unless nothing fits.
        """
        several: dict[tuple[str, ...], list[dict[str, int]]] = {}
        for shape in self.shapes(devices, batch):
            several.setdefault(sharded_axes(shape), []).append(shape)
        looked = self._look(several, batch, capacity, capacity)
        return looked if looked.fit else self._look(several, batch, capacity, inf)

    def _look(
        self, several: Mapping[tuple[str, ...], list[dict[str, int]]], batch: int, capacity: float, static: float
    ) -> EvaluatedConfigs:
        """Return the configurations that fit a capacity; `static` is the limit of static memory."""
        looked, static_only = EvaluatedConfigs([]), 0
        for plan in PLANS:
            looked.too_large = 0
            for axes, shapes in several.items():
                for structure in structures(self.model, self.kinds, [plan], axes):
                    static_only += self._add(looked, structure, self._ways(structure, shapes, batch), capacity, static)
        looked.too_large += static_only
        return looked

    def _ways(
        self, structure: ShardedStructure, shapes: Sequence[Mapping[str, int]], batch: int
    ) -> Iterator[ParallelConfig]:
        layers = sum(int(size_of(base(loop.count), self.sizes)) for loop in self.model.table.repeats)
        for shape in shapes:
            if is_apart(structure, shape):
                yield from configs(shape, batch, layers)

    def _add(
        self,
        looked: EvaluatedConfigs,
        structure: ShardedStructure,
        several: Iterable[ParallelConfig],
        capacity: float,
        static: float,
    ) -> int:
        """Add the configurations of a structure; return how many have too much static memory."""
        apart = structure.zero, structure.context, structure.kind.name
        configurations = [parallel for parallel in several if (*apart, *key_of(parallel)) not in looked.known]
        cost = self.cost(structure) if configurations else None
        if cost is None:
            return 0
        allowed = [parallel for parallel in configurations if cost.allows(parallel)]
        alone = cost.static(allowed) if static < inf else [0] * len(allowed)
        configurations = [parallel for parallel, size in zip(allowed, alone, strict=True) if size <= static]
        looked.known |= {
            (*apart, *key_of(parallel)) for parallel, size in zip(allowed, alone, strict=True) if size > static
        }
        if configurations and not self._places(structure):
            return 0
        for parallel, size in zip(configurations, cost.memory(configurations) if configurations else (), strict=True):
            candidate = Candidate(structure, parallel, size)
            if size <= capacity:
                looked.fit.append(candidate)
                looked.known.add((*apart, *key_of(parallel)))
                continue
            looked.too_large += 1
            if looked.nearest is None or size < looked.nearest.memory:
                looked.nearest = candidate
        return len(allowed) - len(configurations)

    def _places(self, structure: ShardedStructure) -> bool:
        """Return whether a structure can be placed: some shardings of attention and pairs of axes are unsupported."""
        try:
            return bool(self.placed[structure].account.step.placed)
        except InputError:
            if len(structure.axes) == 1:
                raise
            return False

    def fastest(
        self, several: Sequence[Candidate], rates: Mapping[str, Rates], few: int
    ) -> list[tuple[Candidate, ConfigTime]]:
        """Return the fastest configurations, and others as fast as the last of them.

        Pipelines are simulated in the order of lower bounds, until none that is left can be faster than those found.
        """
        timed: list[tuple[Candidate, ConfigTime]] = []
        for structure, cost in self.placed.items():
            mine = [each for each in several if each.structure == structure]
            times = cost.times([each.parallel for each in mine], rates[structure.kind.values]) if mine else []
            timed += zip(mine, times, strict=True)
        found: list[tuple[Candidate, ConfigTime]] = []
        for least, number in sorted((time.least, number) for number, (_, time) in enumerate(timed)):
            if len(found) >= few and least > found[few - 1][1].seconds * EQUAL:
                break
            insort(found, timed[number], key=lambda pair: pair[1].seconds)
        return [pair for pair in found if len(found) <= few or pair[1].seconds <= found[few - 1][1].seconds * EQUAL]


def key_of(parallel: ParallelConfig) -> tuple[Any, ...]:
    """Return the key that distinguishes a configuration from others of its structure."""
    return str(parallel), parallel.schedule, parallel.chunks, parallel.microbatch


def _placed(
    model: Model, sizes: Mapping[str, int], kind: Precision, cluster: Cluster
) -> tuple[tuple[str, ...], dict[ShardedStructure, StructureCost], tuple[str, ...]]:
    """Return the axes over which the model can be sharded, with their structures, and why others cannot be used."""
    axes, refused, placed = list[str](), list[str](), dict[ShardedStructure, StructureCost]()
    for axis in axes_of(model, sizes):
        structure = structures(
            model, [kind], [NO_RECOMPUTATION], [*dict.fromkeys(("dp", axis))], [NO_CONTEXT_PARALLELISM]
        )[0]
        try:
            cost = StructureCost(model, sizes, structure, cluster)
            if cost.account.step.placed:  # raises where it cannot be
                placed[structure] = cost
            axes.append(axis)
        except InputError as error:
            if axis == "dp":
                raise
            refused.append(f"Not sharded over {axis}: {str(error).partition(' (sharding rule')[0]}.")
    return tuple(axes), placed, tuple(refused)
