"""DEQUANTIZE of float16 constants is folded away."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.graph import DType, Graph, Node, Value
from litegpu.passes.fold_constants import fold_constants
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.writer import ModelWriter
from passes.graphs import GraphBuilder, applied, ops, untouched


def test_the_output_becomes_the_constant() -> None:
    builder = GraphBuilder()
    weights = builder.constant(2, 1, 1, 3, dtype="float16")
    full = builder.node("DEQUANTIZE", [weights], (2, 1, 1, 3))
    graph = builder.graph(builder.node("CONV_2D", [builder.input(1, 4, 4, 3), full], (1, 4, 4, 2)))
    result = applied(fold_constants, graph)
    assert ops(result) == ["CONV_2D"]
    folded = result.graph.values[full]
    assert folded.dtype is DType.FLOAT16, "float16 weights stay half the size"
    assert folded.data is not None
    np.testing.assert_array_equal(folded.data, graph.values[weights].data)
    assert result.applied == ("DEQUANTIZE 0 folded",)


def test_one_constant_may_feed_many() -> None:
    builder = GraphBuilder()
    weights = builder.constant(4, dtype="float16")
    first = builder.node("DEQUANTIZE", [weights], (4,))
    second = builder.node("DEQUANTIZE", [weights], (4,))
    source = builder.input(1, 4)
    outputs = [builder.node("ADD", [source, v], (1, 4)) for v in (first, second, first)]
    result = applied(fold_constants, builder.graph(*outputs))
    assert ops(result) == ["ADD", "ADD", "ADD"]


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_other_inputs_are_declined(dtype: str | None) -> None:
    builder = GraphBuilder()
    source = builder.constant(1, 4, dtype=dtype) if dtype else builder.input(1, 4)
    result = untouched(fold_constants, builder.graph(builder.node("DEQUANTIZE", [source], (1, 4))))
    assert result.declined == ("DEQUANTIZE 0: its input is no float16 constant",)


def test_other_nodes_are_left_alone() -> None:
    builder = GraphBuilder()
    result = untouched(fold_constants, builder.graph(builder.conv(builder.input(1, 4, 4, 3), 2)))
    assert result.declined == ()


def test_a_node_without_inputs_is_left_alone() -> None:
    values = {0: Value(0, "v0", (1,), DType.FLOAT32)}
    graph = Graph(values, (Node(0, "VAR_HANDLE", 1, (), (0,)),), (), (0,))
    assert untouched(fold_constants, graph).declined == ()


def test_keeps_the_numbers() -> None:
    writer = ModelWriter(float16_weights=True)
    source = writer.input((1, 3, 3, 5))
    weights = writer.weights(np.arange(20, dtype=np.float32).reshape(4, 1, 1, 5) - 9, name="w")
    scale = writer.weights(np.arange(4, dtype=np.float32), name="scale")
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    bias = writer.weights(np.arange(4, dtype=np.float32) - 2, name="bias")
    computed = writer.op("CONV_2D", [source, weights, bias], [(1, 3, 3, 4)], options=options)
    writer.output(writer.op("MUL", [computed, scale], [(1, 3, 3, 4)]))
    content = writer.build()
    values = np.arange(45, dtype=np.float32).reshape(1, 3, 3, 5)
    results = []
    for delegate in (None, GpuDelegate(precision="fp32")):
        target = runtime.interpreter(content, delegate, builtin_kernels=True)
        runtime.set_inputs(target, [values])
        target.invoke()
        results.append(runtime.outputs(target)[0].values)
    np.testing.assert_array_equal(results[0], results[1])
