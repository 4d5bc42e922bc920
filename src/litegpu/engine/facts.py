"""Plain data about a compiled partition, for reports, profiles and later runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.engine.ranges import RangeWords
from litegpu.graph import DType
from litegpu.ops.common.units import Operations

if TYPE_CHECKING:  # a stored partition is read without what compiles
    from litegpu.engine.layout import Layout
    from litegpu.engine.lowering import KernelLaunch
    from litegpu.engine.program import BuiltProgram


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """One kernel launch: the nodes that the kernel computes, and its work."""

    kernel: str
    template: str
    node: int
    """The index of the node in the model; -1 for a copy that litegpu inserted."""
    op: str
    """The operation of the node after all passes."""
    merged: tuple[int, ...]
    """Nodes that were fused into the launch's node."""
    has_epilogue: bool
    shape: Shape4
    """Shape of the output, [N, H, W, C]."""
    work: Operations
    """The minimum number of operations, as in KernelRequest."""
    products: int
    """Number of matrix-unit products per product of values, as in KernelRequest."""
    nbytes: int
    """The minimum number of bytes to move: each buffer read once, and the output written once."""

    @classmethod
    def of(cls, launch: KernelLaunch) -> LaunchFacts:
        """Return the facts of a launch."""
        node = launch.node
        return cls(
            launch.kernel.name,
            launch.template,
            node.index,
            node.op,
            node.merged,
            bool(node.epilogue),
            launch.shape,
            launch.work,
            launch.products,
            launch.nbytes,
        )

    @property
    def flops(self) -> int:
        """The minimum number of operations of the launch, summed over all units."""
        return sum(self.work.values())

    @property
    def operations(self) -> Operations:
        """The operations that each unit executes, including all products of split values."""
        return {
            unit: count * (self.products if unit.is_matrix else 1)
            for unit, count in self.work.items()
        }


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A computed value: the model's tensor, and the storage of the value."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    storage: Storage
    node: int | None
    """Index of the node that computes the value; -1 for a copy inserted by litegpu; None for an
    input.
    """

    @property
    def is_rounded(self) -> bool:
        """Whether a value that is float32 in the model is stored as half."""
        halves = self.dtype is DType.FLOAT16
        return self.storage.dtype is DType.FLOAT16 and not halves


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The launches of a partition in order, and its computed values by number, inputs first."""

    launches: tuple[LaunchFacts, ...]
    values: Mapping[int, StoredValue]
    lower_bound: int
    """The maximum number of live bytes at any time."""
    words: RangeWords | None
    """The range words of values that kernels round to half; None if there are no such values."""
    replaced: tuple[str, ...]
    """One line per implementation that failed on the device and was replaced, with the reason."""

    @classmethod
    def of(
        cls, layout: Layout, built: BuiltProgram, replaced: tuple[str, ...] = ()
    ) -> PartitionFacts:
        """Return the facts of a built partition."""
        graph = layout.graph
        order: dict[int, int | None] = dict.fromkeys(graph.inputs)
        order.update((v, node.index) for node in graph.nodes for v in node.outputs)
        values = {
            v: StoredValue(
                graph.values[v].name,
                graph.values[v].shape,
                graph.values[v].dtype,
                layout.storages[v],
                node,
            )
            for v, node in order.items()
        }
        launches = tuple(map(LaunchFacts.of, built.launches))
        return cls(launches, values, built.lower_bound, built.words, replaced)

    @property
    def allocations(self) -> list[StoredValue]:
        """The values that have a separate allocation; all other values are views of such values."""
        return [value for v, value in self.values.items() if value.storage.base == v]

    def written_after(self, values: Collection[int]) -> list[int]:
        """Return `values` and all half values computed after the first of these values."""
        order = [v for v, value in self.values.items() if value.node is not None]
        first = min((order.index(v) for v in values), default=len(order))
        return [
            v
            for index, v in enumerate(order)
            if v in values or (index >= first and self.values[v].is_rounded)
        ]

    def allocated_with(self, value_id: int) -> set[int]:
        """Return the values that share the allocation of a computed value, including itself."""
        base = self.values[value_id].storage.base
        return {v for v, value in self.values.items() if value.storage.base == base}
