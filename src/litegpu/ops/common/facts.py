"""Device-independent facts about operations: work, shapes, results of constant folding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.common.traits import Trait

Array = npt.NDArray[Any]

KNOWN_LATE = "The operands of this operation are known only when the model runs."
"""The reason why ops with data-dependent result shapes stay on the CPU."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Folded results: `make` computes the results; their number of elements is known in advance."""

    elements: int
    make: Callable[[], Sequence[Array]]


class OpFacts:
    """Facts about an op of the model format. This base class defines the default of each fact.

    `flops` and `states` are also called for nodes that stay on the CPU, which may lack operands.
    """

    name: ClassVar[str]
    code: ClassVar[str] = ""
    """The version of a user's op, which changes with the op's code; empty for built-in ops of
    litegpu.
    """
    no_kernel: ClassVar[str] = "Operation is not supported."
    """The reason why nodes of an op without a kernel stay on the CPU."""
    traits: ClassVar[Trait] = Trait.NONE
    launches: ClassVar[int] = 1
    """Typical number of kernels per node; 0 if nodes of the op are usually fused as epilogue ops.
    """
    cpu_bytes_per_second: ClassVar[float] = 40e9
    """Throughput of the runtime's CPU kernel in bytes of operands and results per second and thread
    (decision 13).
    """
    shape_operands: ClassVar[tuple[int, ...]] = ()
    """Positions of the inputs whose data determine the shape of the result."""
    may_be_empty: ClassVar[tuple[int, ...]] = ()
    """Positions of the inputs that may be constants without elements."""
    shape_unknown: ClassVar[bool] = False
    """Whether the shape of the result depends on the data of any input, or on a subgraph."""
    shape_stated: ClassVar[bool] = False
    """Whether the result always has the shape in the file, independent of the inputs."""

    def flops(self, graph: Graph, node: Node) -> int:
        """Return the operations of a node (a multiply-add is two), estimated from shapes.

        The default estimate is one operation per element of the results.
        """
        return sum(elements(graph, v) for v in node.outputs)

    def work(self, graph: Graph, node: Node) -> tuple[int, int, int]:
        """Return a node's number of operations, of kernels, and of executed nodes in subgraphs.

        The last number counts node executions on the CPU: nodes of a loop count once per iteration.
        """
        return self.flops(graph, node), self.launches, 0

    def states(self, node: Node) -> tuple[int, ...]:
        """Return the inputs that the node updates (value ids).

        Before normalization, the node gets an additional output for each updated input.
        """
        return ()

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        """Return the results of a node with constant inputs, or None if a kernel must compute them.

        `operands` are the data of the constant inputs; the list is empty for an op that reads only
        shapes. Folded results must be exact, so only moved elements, integers and bools are folded.
        Invalid operands may raise ArithmeticError, LookupError, RuntimeError, TypeError or
        ValueError.
        """
        return None


def operand(values: Sequence[int], position: int) -> int:
    """Return an input or output of a node by position, or ABSENT if it is missing."""
    return values[position] if position < len(values) else ABSENT


def elements(graph: Graph, v: int) -> int:
    """Return the number of elements of a value; 0 if its shape is unknown."""
    value = graph.values.get(v)
    return max(value.elements, 0) if value is not None else 0


def rows(graph: Graph, v: int) -> int:
    """Return the number of channel rows of a value (pixels); 0 if its shape is unknown."""
    value = graph.values.get(v)
    return elements(graph, v) // max(value.shape[-1], 1) if value and value.shape else 0


def of_window(graph: Graph, node: Node) -> int:
    """Return the operations of a node in which each output element reads all taps of a window."""
    taps = int(node.params.get("filter_height", 1) * node.params.get("filter_width", 1))
    return taps * elements(graph, operand(node.outputs, 0))


def of_input(graph: Graph, node: Node) -> int:
    """Return the operations of a node that uses each element of its first input once."""
    return elements(graph, operand(node.inputs, 0))


def product_by_output(graph: Graph, node: Node) -> int:
    """Return the operations of a node that multiplies each output row by all weights (input 1)."""
    return 2 * rows(graph, operand(node.outputs, 0)) * elements(graph, operand(node.inputs, 1))


def product_by_input(graph: Graph, node: Node, data: int, weights: Sequence[int]) -> int:
    """Return the operations of a node that multiplies each row of input `data` by some weights."""
    met = sum(elements(graph, operand(node.inputs, i)) for i in weights)
    return 2 * rows(graph, operand(node.inputs, data)) * met


def as_many(operands: Sequence[Array], make: Callable[[], Sequence[Array]]) -> Folded:
    """Return folded results that have at most as many elements as the operands."""
    return Folded(sum(each.size for each in operands), make)


def integers(
    function: Callable[..., Any], graph: Graph, node: Node, operands: Sequence[Array]
) -> Folded | None:
    """Fold with an element-wise function of integers and bools; return None for floats.

    The function broadcasts the operands. The result has the dtype that the file states.
    """
    if any(each.dtype.kind not in "ib" for each in operands):
        return None
    if node.params.get("activation", "none") != "none":
        return None
    dtype = graph.values[node.outputs[0]].dtype.value
    size = math.prod(np.broadcast_shapes(*(each.shape for each in operands)))
    return Folded(size, lambda: [np.asarray(function(*operands)).astype(dtype)])
