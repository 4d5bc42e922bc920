"""Normalizes grouped convolutions whose groups do not consist of whole channel blocks.

Kernels read and write blocks of 4 channels. Groups with one input channel are depthwise
convolutions. Groups with several channels are padded to whole blocks, or expanded to dense weights
if that costs little more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import ABSENT, Graph, Node, Value
from litegpu.ops.base import NewValue
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, MixedRadix, Source, plain
from litegpu.ops.pack_weights import whole_groups

_BLOCK = 4
_MAX_DENSE = 4
"""Maximum number of products with dense weights, relative to the products with padded groups."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a convolution with weights of `shape` [O, H, W, I / groups]."""

    shape: Shape4
    count: int

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one input channel."""
        return self.count > 1 and self.shape[3] == 1

    @property
    def is_padded(self) -> bool:
        """Whether the channels of each group are padded to whole blocks."""
        if whole_groups(self.shape, self.count) or self.is_depthwise:
            return False
        dense = self.shape[0] * self.shape[3] * self.count
        return dense > _MAX_DENSE * self.padded_shape[0] * self.padded_shape[3]

    @property
    def outputs(self) -> int:
        """Number of output channels of each group."""
        return self.shape[0] // self.count

    @property
    def padded_shape(self) -> Shape4:
        """The shape of the weights after padding."""
        _, height, width, depth = self.shape
        padded = self.count * round_up(self.outputs, _BLOCK)
        return padded, height, width, round_up(depth, _BLOCK)

    def pad_image(self, node: Node, image: Value, new_value: NewValue) -> tuple[int, list[Node]]:
        """Return an image [N, H, W, I] (value id) with padded groups, and the nodes for it.

        A padding channel repeats the last channel of its group, and its weights are zero.
        """
        depth, padded = self.shape[3], self.padded_shape[3]
        if depth == padded:
            return image.id, []
        table = [g * depth + min(c, depth - 1) for g in range(self.count) for c in range(padded)]
        shape = (*image.shape[:3], len(table))
        sources = [Source(((axis, 1),)) for axis in range(3)]
        attributes = IndexMapAttributes(
            plain(shape), (*sources, Source(((3, 1),), table=tuple(table)))
        )
        v = new_value(shape, dtype=image.dtype, precise=image.precise)
        return v, [Node(node.index, INDEX_MAP, 1, (image.id,), (v,), attributes=attributes)]

    def pad_weights(
        self, node: Node, weights: Value, new_value: NewValue, zero: int = 0
    ) -> tuple[int, list[Node]]:
        """Return padded weights (value id), with `zero` in the padding, and the nodes for it.

        The function pads constant weights itself, without a node.
        """
        shape, added = self.padded_shape, self.padded_shape[3] - self.shape[3]
        if weights.data is not None:
            pads = ((0, 0), (0, shape[0] // self.count - self.outputs), (0, 0), (0, 0), (0, added))
            parted = np.reshape(weights.data, (self.count, self.outputs, *self.shape[1:]))
            data = np.pad(parted, pads, constant_values=zero).reshape(shape)
            return new_value(shape, data), []
        digits = (
            MixedRadix((self.count, shape[0] // self.count)),
            *(MixedRadix((size,)) for size in shape[1:]),
        )
        # Padding outputs get the weights of another group; their results are never read.
        sources = (
            Source(((0, self.outputs), (1, 1)), bounded=True),
            *(Source(((axis, 1),)) for axis in (2, 3)),
            Source(((4, 1),), bounded=True),
        )
        v = new_value(shape, dtype=weights.dtype)
        attributes = IndexMapAttributes(digits, sources)
        return v, [Node(node.index, INDEX_MAP, 1, (weights.id,), (v,), attributes=attributes)]

    def pad_bias(self, graph: Graph, bias: int, new_value: NewValue) -> int:
        """Return a constant bias (value id or ABSENT) with padded groups."""
        if bias == ABSENT:
            return bias
        data = np.reshape(np.asarray(graph.values[bias].data), (self.count, self.outputs))
        pads = ((0, 0), (0, self.padded_shape[0] // self.count - self.outputs))
        padded = np.pad(data, pads).ravel()
        return new_value(padded.shape, padded)

    def unpad_result(self, node: Node, result: Value, new_value: NewValue) -> list[Node]:
        """Return the convolution of padded groups and the node that removes the padding channels.

        The value `result` has the dtype of the sums. The last returned node has the epilogue.
        """
        if self.padded_shape[0] == self.shape[0]:
            return [node]
        shape = (*result.shape[:3], self.padded_shape[0])
        sums = new_value(shape, dtype=result.dtype, precise=True)
        digits = (
            *plain(result.shape[:3]),
            MixedRadix((self.count, self.outputs)),
        )
        last = Source(((3, self.padded_shape[0] // self.count), (4, 1)))
        sources = (*(Source(((axis, 1),)) for axis in range(3)), last)
        attributes = IndexMapAttributes(digits, sources)
        return [
            replace(node, outputs=(sums,), epilogue=()),
            Node(
                node.index,
                INDEX_MAP,
                1,
                (sums,),
                node.outputs,
                attributes=attributes,
                epilogue=node.epilogue,
            ),
        ]


def depthwise_taps(node: Node, weights: Value, new_value: NewValue) -> tuple[int, list[Node]]:
    """Return weights [O, H, W, 1] in depthwise layout [1, H, W, O], and the nodes for it.

    The function transposes constant weights itself, without a node.
    """
    outputs, height, width, _ = weights.shape
    shape = (1, height, width, outputs)
    if weights.data is not None:
        data: npt.NDArray[Any] = np.ascontiguousarray(np.transpose(weights.data, (3, 1, 2, 0)))
        return new_value(shape, data), []
    sources = [Source(((axis, 1),)) for axis in (3, 1, 2, 0)]
    attributes = IndexMapAttributes(plain(shape), tuple(sources))
    v = new_value(shape, dtype=weights.dtype)
    return v, [Node(node.index, INDEX_MAP, 1, (weights.id,), (v,), attributes=attributes)]
