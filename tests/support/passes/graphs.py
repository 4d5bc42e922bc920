"""Graphs built by hand, as input of the passes, and checks that every pass must fulfill."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, get
from litegpu.ops.common.window import DepthwiseAttributes, Window
from litegpu.ops.concatenation import ConcatAttributes
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.copy import CopyAttributes
from litegpu.passes import Pass, PassResult

Shape = tuple[int, ...]
RELU = EpilogueOp("RELU")
BY_POSITION = EpilogueOp("WRAP_INT16_IN_BODY", attributes=(("run", 16), ("end", 8)))
"""An epilogue op whose results depend on the positions of elements."""


@dataclass
class GraphBuilder:
    """Makes a graph node by node; every method returns the id of the value it makes."""

    values: dict[int, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    ids: itertools.count[int] = field(default_factory=itertools.count)

    def value(
        self,
        shape: Shape,
        data: npt.NDArray[Any] | None = None,
        *,
        dtype: DType | None = None,
        precise: bool = False,
    ) -> int:
        v = next(self.ids)
        output = DType.FLOAT32 if data is None else DType(data.dtype.name)
        self.values[v] = Value(v, f"v{v}", shape, dtype or output, data, precise=precise)
        return v

    def input(self, *shape: int) -> int:
        self.inputs.append(self.value(shape))
        return self.inputs[-1]

    def constant(self, *shape: int, dtype: str = "float32") -> int:
        return self.value(shape, np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape))

    def number(self, value: float) -> int:
        """Add a constant of one element."""
        return self.value((), np.asarray(value, np.float32))

    def integers(self, data: Any) -> int:
        """Add a constant that an op reads when it is normalized."""
        array = np.asarray(data, np.int32)
        return self.value(array.shape, array)

    def node(
        self,
        op: str,
        inputs: Sequence[int],
        shape: Shape,
        epilogue: Sequence[EpilogueOp] = (),
        attributes: Any = None,
    ) -> int:
        output = self.value(shape)
        index = len(self.nodes)
        self.nodes.append(
            Node(
                index,
                op,
                1,
                tuple(inputs),
                (output,),
                attributes=attributes,
                epilogue=tuple(epilogue),
            )
        )
        return output

    def elementwise(self, source: int, *epilogue: EpilogueOp, shape: Shape | None = None) -> int:
        """Add a COPY with an epilogue, as element-wise ops are normalized to."""
        return self.node(COPY, [source], shape or self.shape(source), epilogue)

    def conv(
        self, source: int, channels: int, kernel: int = 1, epilogue: Sequence[EpilogueOp] = ()
    ) -> int:
        """Add a convolution whose output has the size of its input."""
        *rest, depth = self.shape(source)
        shape = (channels, kernel, kernel, depth)
        weights = self.constant(*shape)
        pads = (kernel // 2, kernel // 2)
        window = Window((kernel, kernel), (1, 1), pads=pads)
        attributes = ConvAttributes(window, weights, ABSENT, shape)
        return self.node("CONV_2D", [source], (*rest, channels), epilogue, attributes)

    def depthwise(self, source: int, kernel: int = 3) -> int:
        """Add a depthwise convolution with padding VALID."""
        n, h, w, c = self.shape(source)
        weights = self.constant(1, kernel, kernel, c)
        attributes = DepthwiseAttributes(Window((kernel, kernel), (1, 1)), weights, ABSENT)
        shape = (n, h - kernel + 1, w - kernel + 1, c)
        return self.node("DEPTHWISE_CONV_2D", [source], shape, attributes=attributes)

    def pad(self, source: int, *pads: tuple[int, int], epilogue: Sequence[EpilogueOp] = ()) -> int:
        """Add a PAD with (before, after) of every dimension."""
        sizes = zip(self.shape(source), pads, strict=True)
        begin = [0] * (4 - len(pads)) + [-before for before, _ in pads]
        attributes = CopyAttributes(begin=(begin[0], begin[1], begin[2], begin[3]))
        shape = tuple(before + size + after for size, (before, after) in sizes)
        return self.node("PAD", [source], shape, epilogue, attributes)

    def reshape(self, source: int, *shape: int) -> int:
        return self.node("RESHAPE", [source], shape)

    def normalized(self, op: str, source: int, shape: Shape, *operands: Any, **params: Any) -> int:
        """Add what an op's node is normalized to; `operands` are constants after the source."""
        extra = [self.integers(each) for each in operands]
        output = self.node(op, [source, *extra], shape)
        node = replace(self.nodes.pop(), params=params)
        graph = Graph(self.values, (), (), ())
        self.nodes += get(op).normalize(graph, node, self.value)
        for v in extra:
            del self.values[v]
        return output

    def transpose(self, source: int, *order: int) -> int:
        shape = self.shape(source)
        return self.normalized("TRANSPOSE", source, tuple(shape[i] for i in order), order)

    def concat(self, axis: int, *parts: int, shape: Shape | None = None) -> int:
        """Join values along an axis of [N, H, W, C]; those of lower rank into one of `shape`."""
        whole = list(self.shape(parts[0]))
        if shape is None:
            whole[axis] = sum(self.shape(part)[axis] for part in parts)
        attributes = ConcatAttributes(axis)
        return self.node("CONCATENATION", parts, shape or tuple(whole), attributes=attributes)

    def shape(self, v: int) -> Shape:
        return self.values[v].shape

    def graph(self, *outputs: int) -> Graph:
        """Return the graph; it is sound."""
        graph = Graph(self.values, tuple(self.nodes), tuple(self.inputs), outputs)
        graph.verify()
        return graph


def applied(run: Pass, graph: Graph) -> PassResult:
    """Run a pass that must find something to do, and leave a sound graph."""
    result = run(graph)
    assert result.applied, f"nothing applied; declined: {result.declined}"
    result.graph.verify()
    assert result.graph.inputs == graph.inputs
    assert result.graph.outputs == graph.outputs
    read = {v for node in result.graph.nodes for v in (*node.operands, *node.outputs)}
    constants = {
        v for node in result.graph.nodes for v in getattr(node.attributes, "constants", ())
    }
    wanted = {*read, *constants, *graph.inputs, *graph.outputs} - {ABSENT}
    assert result.graph.values.keys() == wanted
    return result


def untouched(run: Pass, graph: Graph) -> PassResult:
    """Run a pass that must return the same nodes and values."""
    result = run(graph)
    assert result.applied == ()
    assert len(result.graph.nodes) == len(graph.nodes)
    assert all(a is b for a, b in zip(result.graph.nodes, graph.nodes, strict=True))
    assert result.graph.values.keys() == graph.values.keys()
    assert all(value is graph.values[v] for v, value in result.graph.values.items())
    assert (result.graph.inputs, result.graph.outputs) == (graph.inputs, graph.outputs)
    result.graph.verify()
    return result


def ops(result: PassResult) -> list[str]:
    """Return the op of each node that is left."""
    return [node.op for node in result.graph.nodes]


def functions(node: Node) -> list[str]:
    """Return the functions of a node's epilogue."""
    return [epilogue_op.function for epilogue_op in node.epilogue]
