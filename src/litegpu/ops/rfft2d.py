"""RFFT2D, and the ops on its complex result: REAL, IMAG and COMPLEX_ABS.

A complex value is stored as alternating real and imaginary parts (`common/bit_view.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    InternalOp,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    add,
    constant_list,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import FLOATS, INTEGERS, Types
from litegpu.ops.common.units import Unit
from litegpu.ops.reshape import reshape_node, reshaped

_COMPLEX = Types(frozenset({DType.COMPLEX64}))
_DFT = "DFT"
_MAX_LENGTH = 1 << 14
_MAX_BITS = 4
"""The base-2 logarithm of the maximum radix, the number of elements that one step combines."""


@dataclass(frozen=True, slots=True)
class DftAttributes:
    """A step of a Fourier transform of `length`, along H (`along_rows`) or along the channels.

    The step combines transforms of `before` elements to transforms of `before * radix` elements.
    Only the first `present` input elements are stored; all others are zero. `of_reals` states that
    the input elements are real numbers.
    """

    length: int
    before: int
    radix: int
    present: int
    along_rows: bool
    of_reals: bool


@register
class RealFourier2D(Op):
    """Computes the first half of the columns of a real 2-D Fourier transform over the last axes.

    The op crops or zero-pads the input to the lengths of the transform.
    """

    name = "RFFT2D"
    max_version = 1
    traits = Trait.COMPLEX_PAIRS
    shape_operands = (1,)
    cpu_bytes_per_second = 1e9
    takes = (FLOATS, INTEGERS)
    gives = _COMPLEX

    def flops(self, graph: Graph, node: Node) -> int:
        count = facts.elements(graph, facts.operand(node.outputs, 0))
        return 10 * count * max(count, 2).bit_length()

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.computed(graph, node, 0, "The input"),
            checks.integers(graph, node, 1, "The length", kinds=(DType.INT32,)),
            lambda: _check_lengths(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        height, width = constant_list(graph, node.inputs[1])
        return ((*graph.values[node.inputs[0]].shape[:-2], height, width // 2 + 1),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        *outer, height, width = graph.values[node.inputs[0]].shape
        rows, columns = constant_list(graph, node.inputs[1])
        batch, count = math.prod(outer), 2 * (columns // 2 + 1)
        present = min(rows, height)
        flat = [(batch, height, 1, width)]
        (source,), nodes = reshaped(graph, node, node.inputs[:1], flat, new_value)
        steps = _steps(columns, min(columns, width), along_rows=False)
        for step in steps:
            channels = count if step is steps[-1] else 2 * columns
            target = new_value((batch, present, 1, channels), dtype=DType.FLOAT32, precise=True)
            nodes.append(Node(node.index, _DFT, 1, (source,), (target,), attributes=step))
            source = target
        for step in _steps(rows, present, along_rows=True):
            target = new_value((batch, rows, 1, count), dtype=DType.FLOAT32, precise=True)
            nodes.append(Node(node.index, _DFT, 1, (source,), (target,), attributes=step))
            source = target
        return (*nodes, reshape_node(node, source, node.outputs[0]))


def _steps(length: int, present: int, *, along_rows: bool) -> list[DftAttributes]:
    """Return the steps of a transform, with a minimum number of steps and similar radices."""
    bits = length.bit_length() - 1
    count = -(-bits // _MAX_BITS)
    found, before = [], 1
    for i in range(count):
        radix = 1 << (bits // count + (i < bits % count))
        there = present if i == 0 else length
        reals = i == 0 and not along_rows
        found.append(DftAttributes(length, before, radix, there, along_rows, reals))
        before *= radix
    return found


def _check_lengths(graph: Graph, node: Node) -> str:
    shape, lengths = graph.values[node.inputs[0]].shape, constant_list(graph, node.inputs[1])
    if len(shape) < 2 or len(lengths) != 2:
        return (
            f"A transform of {list(shape)} with the lengths {lengths} is not one of 2 dimensions."
        )
    if any(n < 1 or n & (n - 1) for n in lengths):
        return f"The lengths {lengths} are not powers of two, which the CPU requires, too."
    if lengths[1] < 2 or max(lengths) > _MAX_LENGTH:
        return f"Lengths from [1, 2] to {[_MAX_LENGTH] * 2} are supported, not {lengths}."
    return ""


@register
class FourierStep(InternalOp):
    """A step of a Fourier transform; only RFFT2D creates this op."""

    name = _DFT
    traits = Trait.SUMS_PRODUCTS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        step: DftAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="dft",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants={"roots": _roots(step.length)},
            variables={
                "before": step.before,
                "radix": step.radix,
                "after": step.length // (step.before * step.radix),
                "length": step.length,
                "present": step.present,
                "along_rows": step.along_rows,
                "of_reals": step.of_reals,
            },
            work={Unit.FP32: 4 * dst.rows * dst.channels * step.radix},
        )
        return (request,)


def _roots(length: int) -> npt.NDArray[np.float32]:
    """Return cosines and sines of all multiples of the angle, each pair in a block of 4."""
    angles = 2 * np.pi * np.arange(length) / length
    found = np.zeros((length, 4), np.float32)
    found[:, 0], found[:, 1] = np.cos(angles), np.sin(angles)
    return found


@dataclass(frozen=True)
class ComplexPart(Op):
    """Computes the real part, imaginary part or magnitude of each complex number."""

    name: str  # type: ignore[misc]
    part: str
    """The name of the part in the template."""
    max_version = 1
    traits = Trait.COMPLEX_PAIRS
    takes = (_COMPLEX,)
    gives = FLOATS

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="complex_part",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={"part": self.part},
            work={Unit.FP32: 6 * dst.rows * dst.channels if self.part == "magnitude" else 0},
        )
        return (request,)


for _name, _part in (("COMPLEX_ABS", "magnitude"), ("IMAG", "im"), ("REAL", "re")):
    add(ComplexPart(_name, _part))
