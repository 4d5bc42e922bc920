"""Removes the computation of pixels that no node reads.

If all readers of a value read every second pixel, the pass lets the producer compute only these
pixels. Examples of such readers are the strided 1x1 convolutions at the end of a residual stage.
The pass continues with earlier producers, through epilogues and convolutions, up to values whose
pixels are all needed; their reader then reads a strided slice in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, has
from litegpu.ops.common.functions import depends_on_position
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import Pair
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label

_ALL = (1, 1)


def drop_dead_pixels(graph: Graph) -> PassResult:
    """Walk backwards, so that the readers of a value are visited before its producer."""
    edit = Editor(graph)
    thinner = _Thinner(edit)
    for position in reversed(range(len(graph.nodes))):
        thinner.visit(position)
    for v in graph.inputs:
        thinner.cut(v, 0)
    return edit.result()


@dataclass
class _Thinner:
    edit: Editor
    wanted: dict[int, dict[Pair, int]] = field(default_factory=dict)
    """The strided values that rewritten nodes read, by source value and stride."""

    def __post_init__(self) -> None:
        """Record the positions of the readers of each value."""
        self.graph = replace(self.edit.graph, values=self.edit.values)  # including added nodes
        self.positions: dict[int, list[int]] = {}
        for position, node in enumerate(self.graph.nodes):
            for v in dict.fromkeys(node.operands):
                self.positions.setdefault(v, []).append(position)

    def visit(self, position: int) -> None:
        """Let a node compute fewer pixels, or slice the requested pixels from its result."""
        node = self.graph.nodes[position]
        output = node.outputs[0]
        readers = [p for p in self.positions.get(output, ()) if self._reads(p, output)]
        strides = {self._stride(p, output) for p in readers} | self.wanted.get(output, {}).keys()
        if not strides <= {_ALL}:
            reason = self._obstacle(node, strides)
            if not reason:
                self._thin(position, strides.pop(), readers)
                return
            self.edit.declined.append(f"{label(node)}: {reason}")
        for v in node.outputs:
            self.cut(v, position + 1)

    def cut(self, value: int, position: int) -> None:
        """Insert the requested slices of a value before a position."""
        for (rows, columns), part in self.wanted.pop(value, {}).items():
            attributes = CopyAttributes(step=(1, rows, columns, 1))
            slice_ = Node(-1, STRIDED_SLICE, 1, (value,), (part,), attributes=attributes)
            self.edit.insert_before(position, slice_)

    def _thin(self, position: int, stride: Pair, readers: list[int]) -> None:
        node = self.graph.nodes[position]
        part = self._part(node.outputs[0], stride)
        for reader in readers:
            self._let_read(reader, part)
        del self.wanted[node.outputs[0]]
        epilogue = tuple(self._sliced(epilogue_op, stride) for epilogue_op in node.epilogue)
        thinned = replace(node, outputs=(part,), epilogue=epilogue)
        if node.op == COPY:
            thinned = replace(thinned, inputs=(self._part(node.inputs[0], stride),))
        else:
            window = node.attributes.window
            step = (window.stride[0] * stride[0], window.stride[1] * stride[1])
            attributes = replace(node.attributes, window=replace(window, stride=step))
            thinned = replace(thinned, attributes=attributes)
        self.edit.nodes[position] = thinned
        self.edit.applied.append(f"{label(node)}: only pixels {stride} apart are read")

    def _let_read(self, position: int, part: int) -> None:
        """Let a strided reader read, with stride 1, a value that has only the needed pixels."""
        node = self._now(position)
        if node.op == STRIDED_SLICE:
            plain = replace(node, op=COPY, inputs=(part,), attributes=None)
            self.edit.nodes[position] = plain
            return
        window = replace(node.attributes.window, stride=_ALL)
        attributes = replace(node.attributes, window=window)
        self.edit.nodes[position] = replace(
            node, inputs=(part, *node.inputs[1:]), attributes=attributes
        )

    def _sliced(self, epilogue_op: EpilogueOp, stride: Pair) -> EpilogueOp:
        return epilogue_op.with_operands(lambda v: self._part(v, stride))

    def _part(self, value: int, stride: Pair) -> int:
        """Return the value that consists of every `stride`-th pixel of a value."""
        value_ = self.graph.values[value]
        own_strides = _operand_strides(value_.shape, stride)
        if all(step == 1 for step in own_strides):
            return value
        if value_.data is not None:
            data = np.ascontiguousarray(
                value_.data[tuple(slice(None, None, s) for s in own_strides)]
            )
            return self.edit.new_value(value_, shape=data.shape, data=data)
        parts = self.wanted.setdefault(value, {})
        rows, columns = ([1, 1, 1, *own_strides])[-3:-1]
        if (rows, columns) not in parts:
            shape = tuple(-(-n // step) for n, step in zip(value_.shape, own_strides, strict=True))
            parts[rows, columns] = self.edit.new_value(value_, shape=shape)
        return parts[rows, columns]

    def _obstacle(self, node: Node, strides: set[Pair]) -> str:
        if len(strides) > 1 or node.outputs[0] in self.graph.outputs:
            return "other nodes read other pixels"
        single = node.op == COPY or has(node, Trait.WINDOWED)
        if not single or len(self.graph.values[node.outputs[0]].shape) != 4:
            return "the node does not compute each pixel independently"
        if depends_on_position(node.epilogue):
            return "the epilogue depends on the positions of elements"
        return ""

    def _now(self, position: int) -> Node:
        node = self.edit.nodes[position]
        assert node is not None  # this pass drops none
        return node

    def _reads(self, position: int, value: int) -> bool:
        node = self._now(position)
        # Operands that were not replaced are skipped: a node may have thousands.
        return node is self.graph.nodes[position] or value in node.operands

    def _stride(self, position: int, value: int) -> Pair:
        """Return the stride with which a node reads a value's pixels; _ALL if it may read all."""
        node = self._now(position)
        if node.inputs[0] != value or node.operands.count(value) > 1:
            return _ALL
        if node.op == STRIDED_SLICE:
            return self._slice_stride(node)
        if not has(node, Trait.WINDOWED):
            return _ALL
        window = node.attributes.window
        single = replace(window, stride=_ALL).pointwise and window.plain
        _, height, width, _ = self.graph.values[value].shape4
        rows, columns = window.stride if single else _ALL
        return (rows if height > 1 else 1, columns if width > 1 else 1)

    def _slice_stride(self, node: Node) -> Pair:
        image, part = (self.graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
        _, rows, columns, _ = step = node.attributes.step
        if len(image) != 4 or min(step) < 1 or any(node.attributes.begin):
            return _ALL
        whole = tuple(-(-n // s) for n, s in zip(image, (1, rows, columns, 1), strict=True))
        return (rows, columns) if part == whole else _ALL


def _operand_strides(shape: tuple[int, ...], stride: Pair) -> list[int]:
    """Return the strides along the axes of an image operand; 1 along broadcast axes."""
    along = [1] * len(shape) + [*stride, 1]
    own_strides = along[-len(shape) :] if shape else []
    return [step if size > 1 else 1 for size, step in zip(shape, own_strides, strict=True)]
