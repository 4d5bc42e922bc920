"""Fuses a pointwise convolution into the kernel that gathers its input channels.

For example, the kernel converts Y, U and V bytes to R, G and B when it reads them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.codegen import FLOAT, register_of
from litegpu.graph import DType, Graph, Node
from litegpu.ops.channel_maps import CHANNEL_MAPS, MAX_CHANNELS
from litegpu.ops.common import affine
from litegpu.ops.common.functions import cast_name
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def matrix_into_channels(graph: Graph) -> PassResult:
    """Merge each pointwise convolution that is the only reader of a few gathered channels."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != CHANNEL_MAPS:
            continue
        reader = only_consumer(node.outputs[0], consumers, graph.outputs)
        matrix = _matrix(graph, node, reader)
        if reader is None or isinstance(matrix, str):
            edit.declined.append(f"{label(node)}: {matrix}")
            continue
        edit.nodes[edit.position(reader)] = replace(
            node,
            index=reader.index,
            outputs=reader.outputs,
            attributes=replace(node.attributes, matrix=matrix),
            epilogue=reader.epilogue,
            merged=(*node.merged, node.index, *reader.merged),
        )
        edit.nodes[position] = None
        edit.applied.append(f"{label(reader)} into {label(node)}")
    return edit.result()


def _matrix(graph: Graph, node: Node, reader: Node | None) -> tuple[tuple[float, ...], ...] | str:
    """Return the rows of a convolution's matrix, each with its bias, or why it cannot be merged."""
    if reader is None or reader.op != "CONV_2D" or reader.operands.count(node.outputs[0]) > 1:
        return "not read by one convolution alone"
    attributes = reader.attributes
    if not attributes.window.pointwise or attributes.groups > 1 or node.attributes.matrix:
        return f"{label(reader)} is not only a matrix product over all channels"
    register = register_of(graph.values[node.inputs[0]].dtype)
    casts = [] if register is FLOAT else [cast_name(register, DType.FLOAT32)]
    if [epilogue_op.function for epilogue_op in node.epilogue] != casts:
        return "epilogue ops follow it"
    operands = affine.operands_of(graph, reader)
    if operands is None or attributes.shape[0] > MAX_CHANNELS:
        return f"{label(reader)} has computed weights, or more than {MAX_CHANNELS} results"
    rows = operands.weights.reshape(attributes.shape[0], -1)
    whole = np.concatenate((rows, operands.bias[:, np.newaxis]), axis=1)
    return tuple(tuple(map(float, row)) for row in whole)
