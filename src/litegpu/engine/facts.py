"""What reports, profiles and later runs need to know of a compiled partition, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.engine.layout import Layout
from litegpu.engine.lowering import KernelLaunch
from litegpu.engine.program import BuiltProgram
from litegpu.engine.ranges import RangeWords
from litegpu.graph import DType
from litegpu.ops.common.units import Operations


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """One kernel launch: which nodes it was made for, and the work that it must do."""

    kernel: str
    template: str
    node: int
    """Number of the node in the model; -1 for a copy that litegpu added."""
    op: str
    """The operation that it computes, after all passes."""
    merged: tuple[int, ...]
    """Nodes that were fused into it."""
    has_epilogue: bool
    shape: Shape4
    """What is written, [N, H, W, C]."""
    work: Operations
    """Operations that must be done, see KernelRequest."""
    products: int
    """See KernelRequest."""
    nbytes: int
    """Bytes that must be moved at the least: what is read of each buffer once, and the output."""

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
        """The operations that must be done, on whatever units."""
        return sum(self.work.values())

    @property
    def operations(self) -> Operations:
        """What each unit does for them, with all products of split values."""
        return {
            unit: count * (self.products if unit.is_matrix else 1)
            for unit, count in self.work.items()
        }


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A computed value: what it is to the model, and where it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    storage: Storage
    node: int | None
    """Number of the node that makes it, -1 for a copy that litegpu added; None: an input."""

    @property
    def is_rounded(self) -> bool:
        """Whether it is stored as half and the model has it as float32."""
        halves = self.dtype is DType.FLOAT16
        return self.storage.dtype is DType.FLOAT16 and not halves


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Launches in order, and computed values by number: inputs first, then as nodes make them."""

    launches: tuple[LaunchFacts, ...]
    values: Mapping[int, StoredValue]
    lower_bound: int
    """The most bytes that are needed at one time."""
    words: RangeWords | None
    """Where kernels tell the range of what they round to half; None where none does."""
    replaced: tuple[str, ...]
    """A line for each implementation that has failed on the device and was replaced, with why."""

    @classmethod
    def of(
        cls, layout: Layout, built: BuiltProgram, replaced: tuple[str, ...] = ()
    ) -> PartitionFacts:
        """Return the facts of a placed and built partition."""
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
        """The values that fill memory of their own; all others lie in theirs."""
        return [value for v, value in self.values.items() if value.storage.base == v]

    def written_after(self, values: Collection[int]) -> list[int]:
        """Return `values`, and what is stored as half and made after the first of them."""
        order = [v for v, value in self.values.items() if value.node is not None]
        first = min((order.index(v) for v in values), default=len(order))
        return [
            v
            for index, v in enumerate(order)
            if v in values or (index >= first and self.values[v].is_rounded)
        ]

    def allocated_with(self, value_id: int) -> set[int]:
        """Return the values that lie in the same allocation as a computed one, itself included."""
        base = self.values[value_id].storage.base
        return {v for v, value in self.values.items() if value.storage.base == base}
