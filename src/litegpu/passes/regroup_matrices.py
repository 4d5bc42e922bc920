"""Lets the matrix products around a softmax use the axes of its scores.

litert-torch multiplies matrices of shape [batch * heads, rows, columns]. A RESHAPE, or a mask with
more axes, converts the product to the softmax's shape [batch, heads, rows, columns], and another
RESHAPE converts the softmax's result back. Masks of windowed attention have one more axis. The pass
moves these reshapes to the operands, the masks and the result, where they merge with the transposes
of heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape
from litegpu.ops.common.types import is_quantized
from litegpu.ops.reshape import RESHAPE, reshape_node
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_MATMUL = "BATCH_MATMUL"
_MAX_DIMS = 4
_MAX_MATRICES = 1 << 16
"""Maximum number of score matrices, since the pass lists the mask of each matrix."""
_MAX_STEPS = 32
"""Maximum number of operations between a product and its softmax."""
_ELEMENTWISE = frozenset(
    (
        *("ADD", "CAST", "DIV", "LOGISTIC", "MAXIMUM", "MINIMUM", "MUL", "NEG", "RELU", "SELECT"),
        *("SELECT_V2", "SUB", "TANH"),
    )
)
BETWEEN = _ELEMENTWISE | {RESHAPE}
"""Operations that may occur between a product and the softmax of its scores."""


def reaches_softmax(graph: Graph, consumers: Mapping[int, list[Node]], product: Node) -> bool:
    """Whether a chain of nodes with single readers connects a product to a softmax."""
    reader: Node | None = product
    while reader is not None and (reader is product or reader.op in BETWEEN):
        reader = only_consumer(reader.outputs[0], consumers, graph.outputs)
    return _is_softmax(reader)


def regroup_matrices(graph: Graph) -> PassResult:
    """Swap reshapes that regroup matrices with the products before or after them."""
    regrouper = _Regrouper(graph, Editor(graph))
    for position, node in enumerate(graph.nodes):
        if node.op == _MATMUL and not regrouper.before(position, node):
            regrouper.after(position, node)
    return regrouper.edit.result()


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of an elementwise op on scores, with its shape after regrouping.

    `matrices` lists, for each score matrix, the matrix of a constant operand that it uses.
    """

    value: int
    shape: Shape
    matrices: npt.NDArray[np.int64] | None = None


@dataclass
class _Regrouper:
    graph: Graph
    edit: Editor

    def __post_init__(self) -> None:
        self._producers: Mapping[int, Node] = self.graph.producers()
        self._consumers = self.graph.consumers()
        self._done: set[int] = set()
        """The old value ids of scores that the pass has regrouped."""

    def before(self, place: int, product: Node) -> bool:
        """Let a product and the ops on its scores use the axes of the softmax.

        Return whether the product was rewritten.
        """
        *steps, softmax = self._to_softmax(product) or (product,)
        (scores,) = product.outputs
        if softmax is product or softmax.outputs[0] in self._done:
            return False
        given, own = (self.graph.values[v].shape for v in (softmax.inputs[0], scores))
        shape = given if len(given) <= _MAX_DIMS else own
        shapes = {self.graph.values[each.outputs[0]].shape for each in (product, *steps)}
        if shapes | {given} == {shape} or not self._regroups(product, own, shape):
            return False
        if any(each[-2:] != shape[-2:] for each in shapes):
            return False
        regrouped = self._steps(steps, scores, shape)
        if regrouped is None:
            self.edit.declined.append(f"{label(softmax)}: the masks cannot be regrouped")
            return False
        self._done.add(softmax.outputs[0])
        operands = tuple(self._regrouped(place, product, v, shape) for v in product.inputs)
        scores = self._like(scores, shape)
        self.edit.nodes[place] = replace(product, inputs=operands, outputs=(scores,))
        for step, others in regrouped:
            at = self.edit.position(step)
            if step.op == RESHAPE:
                self.edit.nodes[at] = None
                continue
            inputs = tuple(scores if v is None else self._operand(at, step, v) for v in others)
            scores = self._like(step.outputs[0], shape)
            self.edit.nodes[at] = replace(step, inputs=inputs, outputs=(scores,))
        at = self.edit.position(softmax)
        if given == shape:
            self.edit.nodes[at] = replace(softmax, inputs=(scores,))
        else:
            result = self._like(softmax.outputs[0], shape)
            self.edit.insert_before(at, replace(softmax, inputs=(scores,), outputs=(result,)))
            self.edit.nodes[at] = reshape_node(softmax, result, softmax.outputs[0])
        self.edit.applied.append(f"{label(product)} as {label(softmax)} reads it")
        return True

    def _to_softmax(self, product: Node) -> list[Node]:
        """Return the ops on the scores and their softmax, if no value has another reader."""
        found = [product]
        size = self.graph.values[product.outputs[0]].elements
        while not _is_softmax(found[-1]) and len(found) < _MAX_STEPS:
            (value,) = found[-1].outputs
            reader = only_consumer(value, self._consumers, self.graph.outputs)
            if reader is None or not (reader.op in BETWEEN or _is_softmax(reader)):
                return []
            if self.graph.values[reader.outputs[0]].elements != size:
                return []
            if reader.inputs.count(value) > 1 or (
                reader.op == RESHAPE and reader.inputs[0] != value
            ):
                return []
            found.append(reader)
        return found[1:] if _is_softmax(found[-1]) else []

    def _steps(
        self, steps: list[Node], scores: int, shape: Shape
    ) -> list[tuple[Node, tuple[_Operand | None, ...]]] | None:
        """Return ops and their operands for scores of this shape; operand None is the scores."""
        found = []
        for step in steps:
            (result,) = step.outputs
            own = self.graph.values[result].shape
            operands: list[_Operand | None] = []
            if step.op == "SELECT" and self.graph.values[step.inputs[0]].shape != own:
                return None  # its condition is of whole rows
            for v in step.inputs if step.op != RESHAPE else ():
                operand = None if v == scores else self._aligned(v, own, shape)
                if operand is None and v != scores:
                    return None
                operands.append(operand)
            found.append((step, tuple(operands)))
            scores = result
        return found

    def _aligned(self, v: int, own: Shape, shape: Shape) -> _Operand | None:
        """Return an operand of scores of shape `own`, adapted to scores of the other shape."""
        value = self.graph.values[v]
        *batch, rows, keys = (1,) * (len(own) - len(value.shape)) + value.shape
        count = math.prod(batch)
        if count == 1:
            # Without leading axes of size 1: the scores may now have fewer axes.
            return _Operand(v, value.shape[-len(shape) :])
        if math.prod(own[:-2]) > _MAX_MATRICES:
            return None
        matrices = np.broadcast_to(np.arange(count).reshape(batch), own[:-2]).reshape(shape[:-2])
        for axis in range(matrices.ndim):
            first = matrices.take([0], axis)
            if (matrices == first).all():
                matrices = first
        whole = (*matrices.shape, rows, keys)
        if matrices.size == count:
            return _Operand(v, whole)
        return _Operand(v, whole, matrices.ravel()) if value.is_constant else None

    def _operand(self, place: int, step: Node, operand: _Operand) -> int:
        """Return an operand in its new shape; a reshape before the op adapts a computed operand."""
        value = self.edit.values[operand.value]
        if value.shape == operand.shape:
            return value.id
        if value.data is not None:
            data = value.data
            if operand.matrices is not None:
                data = data.reshape(-1, *operand.shape[-2:])[operand.matrices]
            data = data.reshape(operand.shape)
            return self.edit.new_value(value, shape=operand.shape, data=data)
        found = self.edit.new_value(value, shape=operand.shape)
        self.edit.insert_before(place, reshape_node(step, value.id, found))
        return found

    def _like(self, value: int, shape: Shape) -> int:
        return self.edit.new_value(self.graph.values[value], shape=shape)

    def after(self, position: int, product: Node) -> None:
        """Let a product read the result of a softmax directly instead of through a reshape."""
        reshape = self._producers.get(product.inputs[0])
        if reshape is None or reshape.op != RESHAPE or not self._alone(reshape.outputs[0]):
            return
        scores = reshape.inputs[0]
        softmax = self._producers.get(scores)
        before, own = (self.graph.values[v].shape for v in (scores, reshape.outputs[0]))
        if softmax is None or not _is_softmax(softmax) or not self._regroups(product, own, before):
            return
        self._done.add(product.outputs[0])
        result = self.graph.values[product.outputs[0]]
        found = self.edit.new_value(result, shape=(*before[:-2], *result.shape[-2:]))
        second = self._regrouped(position, product, product.inputs[1], before)
        regrouped = replace(product, inputs=(scores, second), outputs=(found,))
        self.edit.insert_before(position, regrouped)
        self.edit.nodes[position] = reshape_node(product, found, product.outputs[0])
        self.edit.nodes[self.edit.position(reshape)] = None
        self.edit.applied.append(f"{label(product)} as {label(softmax)} gives its operand")

    def _alone(self, value: int) -> bool:
        """Whether a value has exactly one reader."""
        return only_consumer(value, self._consumers, self.graph.outputs) is not None

    def _regroups(self, product: Node, own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a reshape regroups the matrices of a batched product and preserves their number.

        All products may use an operand that is a single matrix. Several products may use any
        operand if only the ops between product and softmax have other axes.
        """
        if product.op != _MATMUL or is_quantized(self.graph, product):
            return False
        of_operands = [self.graph.values[v].shape[:-2] for v in product.inputs]
        batches = {batch for batch in of_operands if math.prod(batch) > 1}
        batches.add(self.graph.values[product.outputs[0]].shape[:-2])
        same = min(len(own), len(shape)) > 1 and own[-2:] == shape[-2:]
        shared = own == shape or len(batches) == 1
        return same and max(len(own), len(shape)) <= _MAX_DIMS and shared

    def _regrouped(self, place: int, product: Node, operand: int, shape: tuple[int, ...]) -> int:
        """Return an operand reshaped to matrices with the batch axes of `shape`."""
        value = self.edit.values[operand]
        whole = (*shape[:-2], *value.shape[-2:])
        if value.elements != math.prod(whole):
            whole = value.shape[-len(shape) :]  # one matrix for all products
        if value.shape == whole:
            return operand
        if value.data is not None:
            return self.edit.new_value(value, shape=whole, data=value.data.reshape(whole))
        found = self.edit.new_value(value, shape=whole)
        self.edit.insert_before(place, reshape_node(product, operand, found))
        return found


def _is_softmax(node: Node | None) -> bool:
    return node is not None and node.op == "SOFTMAX"
