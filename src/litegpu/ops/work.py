"""How much work a node is, whoever does it: an estimate from shapes, made before any kernel is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import find
from litegpu.ops.elementwise import Binary, Unary
from litegpu.ops.reshape import Reshape


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations (a multiply-add is two), bytes to move, kernels that it takes."""

    flops: int
    nbytes: int
    launches: int


def work_of(graph: Graph, node: Node) -> Work:
    """Estimate a node of an examined graph; what no one knows before the model runs counts 0."""
    touched = dict.fromkeys((*node.inputs, *node.outputs))
    nbytes = sum(tensor_bytes(graph, touched))
    results = sum(_elements(graph, v) for v in node.outputs)
    count = _FLOPS.get(node.op)
    flops = results if count is None else count(graph, node)
    # Element-wise steps join the kernel before them, other views of the same data need none.
    free = isinstance(find(node.op), Unary | Binary | Reshape)
    return Work(flops, nbytes, 0 if free else 1)


def tensor_bytes(graph: Graph, values: Iterable[int]) -> list[int]:
    """Return the bytes of tensors as the runtime holds them, 0 for those of unknown shape."""
    return [
        _elements(graph, v) * graph.values[v].dtype.size
        for v in values
        if v != ABSENT and v in graph.values
    ]


def states_of(node: Node) -> tuple[int, ...]:
    """Return the inputs that a node changes, also of one that stays on the CPU."""
    op = find(node.op)
    try:
        found = op.states(node) if op is not None else ()
    except LookupError:  # operands are missing: the runtime will say what is wrong
        return ()
    return tuple(v for v in found if v != ABSENT)


def _at(operands: Sequence[int], position: int) -> int:
    """Return an operand; a node that stays on the CPU may have fewer than it should."""
    return operands[position] if position < len(operands) else ABSENT


def _elements(graph: Graph, v: int) -> int:
    value = graph.values.get(v)
    return max(value.elements, 0) if value is not None else 0


def _rows(graph: Graph, v: int) -> int:
    value = graph.values.get(v)
    return _elements(graph, v) // max(value.shape[-1], 1) if value and value.shape else 0


def _by_output(graph: Graph, node: Node) -> int:
    """Every row of the output needs each weight once."""
    return 2 * _rows(graph, _at(node.outputs, 0)) * _elements(graph, _at(node.inputs, 1))


def _by_input(data: int, *weights: int) -> Callable[[Graph, Node], int]:
    """Every row of an input meets each of the weights once."""

    def flops(graph: Graph, node: Node) -> int:
        met = sum(_elements(graph, _at(node.inputs, i)) for i in weights)
        return 2 * _rows(graph, _at(node.inputs, data)) * met

    return flops


def _matmul(graph: Graph, node: Node) -> int:
    """Every element of the output is a sum as long as the inner dimension."""
    value = graph.values.get(_at(node.inputs, 0))
    inner = -2 if node.params.get("adj_x") else -1
    depth = value.shape[inner] if value is not None and len(value.shape) > 1 else 0
    return 2 * _elements(graph, _at(node.outputs, 0)) * depth


def _window(graph: Graph, node: Node) -> int:
    taps = int(node.params.get("filter_height", 1) * node.params.get("filter_width", 1))
    return taps * _elements(graph, _at(node.outputs, 0))


def _reduction(graph: Graph, node: Node) -> int:
    return _elements(graph, _at(node.inputs, 0))


_LSTM = _by_input(0, *range(1, 9), 16)
_FLOPS: Mapping[str, Callable[[Graph, Node], int]] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"), _by_output),
    "CONV_3D": _by_output,
    **dict.fromkeys(("CONV_3D_TRANSPOSE", "TRANSPOSE_CONV"), _by_input(2, 1)),
    "Convolution2DTransposeBias": _by_input(0, 1),
    "BATCH_MATMUL": _matmul,
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _window),
    **dict.fromkeys(("UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM"), _LSTM),
    **dict.fromkeys(("UNIDIRECTIONAL_SEQUENCE_RNN", "RNN", "SVDF"), _by_input(0, 1, 2)),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), _reduction),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN", "CUMSUM"), _reduction),
}
"""Operations whose results take more than one operation an element."""
