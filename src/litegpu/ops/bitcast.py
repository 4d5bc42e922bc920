"""BITCAST: reinterprets the bytes of a tensor as elements of another dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.codegen import LONG, register_of
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    InternalOp,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    register,
)
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.functions import wraps
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import MOVED, VIEWED_AS, Types
from litegpu.ops.reshape import reshape_node

_BITS = "BITS"
_GIVEN = Types(MOVED.dtypes)
# For bool results, the CPU keeps bytes that are neither 0 nor 1.
_RESULTS = Types(_GIVEN.dtypes - {DType.BOOL})
_AS_BITS = {
    DType.FLOAT32: "FLOAT_BITS(%s)",
    DType.FLOAT16: "HALF_BITS(%s)",
    DType.BOOL: "TO_INT(%s)",
}
_OF_BITS = {DType.FLOAT32: "BITS_FLOAT(%s)", DType.FLOAT16: "BITS_HALF(%s)"}


@register
class Bitcast(Op):
    """Reinterprets bytes as another dtype; wider dtypes remove an axis, narrower add an axis."""

    name = "BITCAST"
    max_version = 1
    traits = Trait.READS_BITS | Trait.COMPLEX_PAIRS
    takes = (_GIVEN,)
    gives = _RESULTS

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        target = graph.values[node.outputs[0]].dtype
        if target is DType.FLOAT16:
            return None  # a constant of halves represents float32 weights
        (shape,), flat = self.infer(graph, node), np.ascontiguousarray(operands[0]).reshape(-1)
        return Folded(math.prod(shape), lambda: [flat.view(target.value).reshape(shape)])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_sizes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        source, target = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
        if source.dtype.size > target.dtype.size:
            return ((*source.shape, source.dtype.size // target.dtype.size),)
        return (source.shape if source.dtype.size == target.dtype.size else source.shape[:-1],)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, target = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
        types = [VIEWED_AS.get(each.dtype, each.dtype) for each in (source, target)]
        if types[0] is types[1]:
            return (reshape_node(node, source.id, target.id),)
        return (replace(node, op=_BITS, epilogue=wraps(types[1])),)


def _check_sizes(graph: Graph, node: Node) -> str:
    source, target = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
    ratio = target.dtype.size // source.dtype.size
    if ratio > 1 and source.shape[-1:] != (ratio,):
        return (
            f"{list(source.shape)} of {source.dtype.name} cannot be reinterpreted as "
            f"{target.dtype.name}."
        )
    return ""


@register
class Bits(InternalOp):
    """Reinterprets the bits of elements inside a partition; only BITCAST creates this op."""

    name = _BITS
    traits = Trait.READS_BITS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        given, target = (ctx.value(v).dtype for v in (node.inputs[0], node.outputs[0]))
        register = register_of(target)
        request = KernelRequest(
            template="bits",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "split": given.size // target.size,
                "joined": target.size // given.size,
                "given_bits": 8 * given.size,
                "target_bits": 8 * target.size,
                "long_source": register_of(src.dtype) is LONG,
                "as_bits": _AS_BITS.get(given, "%s"),
                "of_bits": _OF_BITS.get(target, "%s"),
                "target": register,
            },
            accumulator=register,
        )
        return (request,)
