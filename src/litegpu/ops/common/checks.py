"""Checks shared by several ops. A check returns a reason, or an empty text if the node passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from litegpu.codegen import round_up
from litegpu.graph import ABSENT, DType, Graph, Node
from litegpu.ops.base import Shape
from litegpu.ops.common.types import FLOATS, Types, joined

MAX_RANK = 8
MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of a tensor: kernels use 32-bit indices, and may pad rows to 8
channels.
"""

FUSED_ACTIVATIONS = ("none", "relu", "relu_n1_to_1", "relu6", "tanh", "sigmoid")
READABLE_CONSTANTS = (DType.FLOAT32, DType.FLOAT16)


def version(node: Node, highest: int) -> str:
    """Require an op version whose meaning is known."""
    if node.version <= highest:
        return ""
    return f"Max version supported: {highest}. Requested version {node.version}."


def operands(graph: Graph, node: Node, runtime: tuple[int, ...], outputs: int = 1) -> str:
    """Require a valid number of runtime inputs, and a valid number of outputs."""
    count = sum(not graph.values[v].is_constant for v in node.inputs if v != ABSENT)
    if count not in runtime:
        wanted = " or ".join(map(str, runtime))
        return f"Expected {wanted} runtime input tensor(s), but node has {count} runtime input(s)."
    if len(node.outputs) != outputs:
        return f"Expected {outputs} output tensor(s), but node has {len(node.outputs)} output(s)."
    return ""


def input_count(node: Node, lowest: int, highest: int) -> str:
    """Require a number of inputs from `lowest` to `highest`, as in the op's signature."""
    if lowest <= len(node.inputs) <= highest:
        return ""
    wanted = str(lowest) if lowest == highest else f"{lowest} to {highest}"
    return f"Expected {wanted} inputs, but node has {len(node.inputs)} inputs."


def unscaled(graph: Graph, node: Node) -> str:
    """Reject quantized tensors, for ops in which the CPU ignores scales."""
    values = [graph.values[v] for v in (*node.inputs, *node.outputs)]
    seen = [each.id for each in values if each.dtype is DType.FLOAT32 and each.quantization]
    return f"tensor {seen[0]} has a scale, which this operation ignores." if seen else ""


def activation(node: Node) -> str:
    """Require a fused activation that kernels support."""
    found = node.params.get("activation", "none")
    if found in FUSED_ACTIVATIONS:
        return ""
    return f"Unsupported fused activation: {found}"


def shapes(graph: Graph, node: Node, may_be_empty: Collection[int] = ()) -> str:
    """Require tensors of at most `MAX_RANK` axes and of a supported number of elements.

    `may_be_empty` contains the positions of inputs that may be constants without elements. All
    constants may be empty that a node passes to graphs, whose nodes are checked.
    """
    for position, v in enumerate((*node.inputs, *node.outputs)):
        if v == ABSENT:
            continue
        value = graph.values[v]
        allowed = bool(node.graphs) or (position in may_be_empty and value.shape == (0,))
        if allowed and value.is_constant and not value.elements:
            continue
        if reason := size(v, graph.values[v].shape):
            return reason
    return ""


def size(tensor: int, shape: Shape) -> str:
    """Require a tensor of at most `MAX_RANK` axes and of a supported number of elements."""
    if len(shape) > MAX_RANK:
        return (
            f"OP is supported, but tensor type/shape isn't compatible: tensor {tensor} has "
            f"{len(shape)} dimensions, at most {MAX_RANK} are supported."
        )
    if min(shape, default=1) <= 0:
        return f"tensor {tensor} has no elements or an unknown size: {list(shape)}."
    channels = shape[-1] if shape else 1
    if math.prod(shape) // channels * round_up(channels, 8) > MAX_ELEMENTS:
        return f"tensor {tensor} has {math.prod(shape)} elements, too many to index."
    return ""


def operand(
    graph: Graph,
    node: Node,
    position: int,
    what: str,
    dtypes: Sequence[DType] = READABLE_CONSTANTS,
) -> str:
    """Require that input `position` is computed, or a constant of floats (or of `dtypes`)."""
    if len(node.inputs) <= position or node.inputs[position] == ABSENT:
        return f"{what} (input {position}) is missing."
    value = graph.values[node.inputs[position]]
    if value.is_constant and value.dtype not in dtypes:
        return f"{what} (input {position}) is {value.dtype.name} instead of {joined(dtypes)}."
    return ""


def computed(graph: Graph, node: Node, position: int, what: str) -> str:
    """Require that input `position` is not a constant."""
    reason = operand(graph, node, position, what)
    if not reason and graph.values[node.inputs[position]].is_constant:
        reason = f"{what} (input {position}) is constant; only computed ones are supported."
    return reason


def constant(graph: Graph, node: Node, position: int, what: str, rule: Types = FLOATS) -> str:
    """Require that input `position` is a constant of floats or of the types of `rule`."""
    reason = operand(graph, node, position, what, (*READABLE_CONSTANTS, *rule.dtypes))
    if not reason and not graph.values[node.inputs[position]].is_constant:
        reason = f"{what} (input {position}) must be constant, but it is computed at run time."
    return reason


def constants(graph: Graph, node: Node, what: str, rule: Types = FLOATS) -> str:
    """Require that every input is computed, or a constant of floats or of the types of `rule`."""
    dtypes = (*READABLE_CONSTANTS, *rule.dtypes)
    reasons = (operand(graph, node, number, what, dtypes) for number in range(len(node.inputs)))
    return next(filter(None, reasons), "")


def integers(
    graph: Graph,
    node: Node,
    position: int,
    what: str,
    constant: bool = True,
    kinds: Sequence[DType] = (DType.INT32, DType.INT64),
) -> str:
    """Require that input `position` has integers and, by default, is a constant.

    `kinds` lists the accepted types. An op may accept other integer types if the CPU's kernel reads
    them as int32.
    """
    if len(node.inputs) <= position or node.inputs[position] == ABSENT:
        return f"{what} (input {position}) is missing."
    value = graph.values[node.inputs[position]]
    if constant and not value.is_constant:
        return f"{what} (input {position}) must be constant, but it is computed at run time."
    if value.dtype not in kinds:
        return f"{what} (input {position}) is {value.dtype.name} instead of {joined(kinds)}."
    return ""


def axis(graph: Graph, value: int, number: int, added: int = 0) -> str:
    """Require an axis number that is valid for a value: -rank to rank - 1.

    `added` is the number of axes by which the op increases the rank.
    """
    rank = len(graph.values[value].shape) + added
    if -rank <= number < rank:
        return ""
    return f"Index for axis out of range: {number} with {rank} dimensions."


def constant_axis(graph: Graph, node: Node, position: int, of: int = 0, added: int = 0) -> str:
    """Require that constant input `position` contains the number of an axis of input `of`."""
    numbers = np.ravel(np.asarray(graph.values[node.inputs[position]].data))
    if numbers.size != 1:
        return f"The axis (input {position}) has {numbers.size} elements instead of one."
    return axis(graph, node.inputs[of], int(numbers[0]), added)


def equal_shapes(graph: Graph, node: Node) -> str:
    """Require that all inputs have the same shape."""
    shapes = {graph.values[v].shape for v in node.inputs}
    return "" if len(shapes) == 1 else f"The shapes {sorted(map(list, shapes))} are not equal."


def weighted(
    graph: Graph,
    node: Node,
    weights: str,
    check_shapes: Callable[[Graph, Node], str],
    image: int = 0,
) -> str:
    """Require a computed image (input `image`), weights (input 1) and a supported activation.

    An optional third input is the bias. The callback `check_shapes` checks the shapes and the bias;
    the function calls it last.
    """
    least = max(image, 1) + 1
    return first_of(
        input_count(node, least, least + 1),
        operands(graph, node, (1, 2, 3)),
        computed(graph, node, image, "The input"),
        operand(graph, node, 1, weights),
        activation(node),
        lambda: check_shapes(graph, node),
    )


def states(graph: Graph, node: Node, positions: tuple[int, ...], shape: Shape) -> str:
    """Require states of a shape: computed inputs that the node updates and no other node reads."""
    for position in positions:
        reason = computed(graph, node, position, "The state")
        if reason:
            return reason
        value = graph.values[node.inputs[position]]
        readers = graph.reads()[value.id]
        if readers > 1:
            return (
                f"The state (input {position}) is read {readers} times; the values that other "
                "nodes read would depend on the order of the nodes."
            )
        if value.shape != shape:
            return (
                f"The state (input {position}) has the shape {list(value.shape)} instead of "
                f"{list(shape)}."
            )
    return ""


def first_of(*reasons: str | Callable[[], str]) -> str:
    """Return the first reason that is not empty.

    A check that depends on earlier checks is passed as a function. The function is called only if
    all earlier checks passed.
    """
    for given in reasons:
        reason = given if isinstance(given, str) else given()
        if reason:
            return reason
    return ""
