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
"""Why operations stay on the CPU whose results have shapes that depend on values."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Folded results: `make` computes them, and the number of elements is known before it runs."""

    elements: int
    make: Callable[[], Sequence[Array]]


class OpFacts:
    """An operation of the model format. Instances of this class itself have no special properties.

    Nodes that stay on the CPU may lack operands: `flops` and `states` are called for them, too.
    """

    name: ClassVar[str]
    code: ClassVar[str] = ""
    """For a user's operation: a version that changes with its code. Empty for litegpu's own ops."""
    no_kernel: ClassVar[str] = "Operation is not supported."
    """Why a node stays on the CPU if the operation has no kernel."""
    traits: ClassVar[Trait] = Trait.NONE
    launches: ClassVar[int] = 1
    """Typical number of kernels of a node; 0 if it usually becomes part of an epilogue."""
    cpu_bytes_per_second: ClassVar[float] = 40e9
    """Bytes of operands and results that one thread of the runtime's kernel processes per second
    (decision 13).
    """
    shape_operands: ClassVar[tuple[int, ...]] = ()
    """The inputs whose data determine the shape of the result, by position."""
    may_be_empty: ClassVar[tuple[int, ...]] = ()
    """The inputs that may be constants without elements, by position."""
    shape_unknown: ClassVar[bool] = False
    """Whether the shape of the result depends on the data of any input, or on a subgraph."""
    shape_stated: ClassVar[bool] = False
    """Whether the result always has the shape in the file, independent of the inputs."""

    def flops(self, graph: Graph, node: Node) -> int:
        """Return the operations of a node (a multiply-add is two), estimated from shapes.

        By default, this is one for each element of the results.
        """
        return sum(elements(graph, v) for v in node.outputs)

    def work(self, graph: Graph, node: Node) -> tuple[int, int, int]:
        """Return a node's operations, its kernels, and the number of nodes it runs in other graphs.

        The last number counts executions on the CPU: a loop's nodes count once for each pass.
        """
        return self.flops(graph, node), self.launches, 0

    def states(self, node: Node) -> tuple[int, ...]:
        """Return the inputs that the node updates (value ids).

        Before it is normalized, the node gets an additional output for each of them.
        """
        return ()

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        """Return the results of a node whose inputs are constants; None leaves it to a kernel.

        `operands` are their data, empty for an op that reads only shapes. Results must be exact:
        moved elements, or integers and bools. Invalid operands may raise ArithmeticError,
        LookupError, RuntimeError, TypeError or ValueError.
        """
        return None


def operand(values: Sequence[int], position: int) -> int:
    """Return one of a node's inputs or outputs, ABSENT if it is missing."""
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

    The operands are broadcast; the result has the type in the file.
    """
    if any(each.dtype.kind not in "ib" for each in operands):
        return None
    if node.params.get("activation", "none") != "none":
        return None
    dtype = graph.values[node.outputs[0]].dtype.value
    size = math.prod(np.broadcast_shapes(*(each.shape for each in operands)))
    return Folded(size, lambda: [np.asarray(function(*operands)).astype(dtype)])
