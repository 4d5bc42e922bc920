"""From a graph to a program: order of passes, packed constants, shared memory."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.device_model import Capability
from litegpu.engine import partition
from litegpu.engine.layout import assign
from litegpu.engine.lowering import Constants
from litegpu.engine.program import build_program
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, EpilogueOp, Graph
from litegpu.numeric_policy import FP16_ALL, FP32, NumericPolicy
from litegpu.ops.base import get
from litegpu.passes import PassResult
from paper_device import DEVICE, PaperDevice, build
from passes.graphs import RELU, GraphBuilder


def constant_bytes(graph: Graph, policy: NumericPolicy = FP32) -> npt.NDArray[np.uint8]:
    """Return the packed constants of a graph."""
    return build(assign(graph, policy)).program.constants


# Rewriting


def separable(channels: int = 16, side: int = 6) -> Graph:
    """Return a depthwise convolution, a pointwise one and a RELU, normalized."""
    builder = GraphBuilder()
    between = builder.depthwise(builder.input(1, side, side, channels))
    return builder.graph(builder.elementwise(builder.conv(between, 8), RELU))


@pytest.fixture
def _normalized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `rewrite` take graphs as normalized: nodes made by hand have their attributes."""
    monkeypatch.setattr(partition, "normalize", lambda graph: graph)


@pytest.mark.usefixtures("_normalized")
@pytest.mark.parametrize(
    ("side", "capability", "policy", "kernels"),
    [
        (6, None, FP16_ALL, 2),
        (6, (8, 0), FP32, 1),
        (400, (8, 0), FP16_ALL, 2),
        (400, (9, 0), FP32, 2),
        (400, (9, 0), FP16_ALL, 1),
    ],
)
def test_some_passes_run_only_for_some_devices(
    side: int, capability: Capability | None, policy: NumericPolicy, kernels: int
) -> None:
    target = DeviceTarget(replace(DEVICE, backend="cuda", compute_capability=capability), policy)
    assert len(partition.rewrite(separable(side=side), target).nodes) == kernels


@pytest.mark.usefixtures("_normalized")
def test_passes_say_what_they_did(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 4)
    output = builder.conv(source, 4)
    graph = builder.graph(
        builder.elementwise(output, RELU), builder.elementwise(source, EpilogueOp("NEG"))
    )
    monkeypatch.setenv("LITEGPU_DEBUG", "1")
    with caplog.at_level(logging.INFO, "litegpu"):
        partition.rewrite(graph)
    assert caplog.messages == [
        "pass fuse_elementwise: RELU 1 into CONV_2D 0",
        "pass fuse_elementwise declined: COPY 2 (NEG): no earlier kernel can include the operation",
    ]
    caplog.clear()
    monkeypatch.setenv("LITEGPU_DEBUG", "0")
    with caplog.at_level(logging.INFO, "litegpu"):
        partition.rewrite(graph)
    assert caplog.messages == []


@pytest.mark.usefixtures("_normalized")
def test_a_pass_that_breaks_the_graph_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(given: Graph) -> PassResult:
        return PassResult(replace(given, nodes=given.nodes[::-1]))

    monkeypatch.setattr(partition, "PASSES", (reverse,))
    with pytest.raises(ValueError, match="before a node produces it"):
        partition.rewrite(separable())


def test_nodes_that_no_op_stands_for_are_not_lowered() -> None:
    with pytest.raises(KeyError, match="NO_SUCH_OP"):
        get("NO_SUCH_OP")


# Constants


def test_a_constant_that_two_kernels_read_is_packed_once() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 8)
    scale = builder.constant(4, 4, 8)
    one = builder.elementwise(source, EpilogueOp("MUL", (scale,)))
    once = constant_bytes(builder.graph(one)).size
    two = builder.elementwise(source, EpilogueOp("ADD", (scale,)))
    assert constant_bytes(builder.graph(one, two)).size == once


def test_scalars_are_part_of_the_text() -> None:
    builder = GraphBuilder()
    out = builder.elementwise(
        builder.input(1, 4, 4, 8), EpilogueOp("MUL", (builder.constant(1, 1),))
    )
    built = build(assign(builder.graph(out), FP32))
    assert built.program.constants.size == 0
    assert "SPLAT4(1.0f)" in built.program.kernels[0].body


def test_operands_are_padded_as_their_storage_is() -> None:
    builder = GraphBuilder()
    scale = builder.constant(2, 3)
    out = builder.elementwise(builder.input(1, 4, 2, 3), EpilogueOp("MUL", (scale,)))
    packed = constant_bytes(builder.graph(out)).view(np.float32)
    np.testing.assert_array_equal(packed[:8].reshape(2, 4), [[1, 2, 3, 0], [4, 5, 6, 0]])


@pytest.mark.parametrize("largest", [1e9, 1e-6])
def test_constants_out_of_the_range_of_half_are_kept_as_floats(largest: float) -> None:
    data = np.array([largest, -largest / 2, 1e-3 * largest, 0.0], np.float32)
    np.testing.assert_array_equal(packed_operand(data).view(np.float32)[:4], data)


def test_constants_of_half_keep_what_is_infinite() -> None:
    data = np.array([np.inf, -np.inf, 1.5, 65504.0], np.float32)
    np.testing.assert_array_equal(packed_operand(data).view(np.float16)[:4], data)


def packed_operand(data: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return what is kept of a constant where all is stored as half."""
    builder = GraphBuilder()
    large = builder.constant(data.size)
    builder.values[large] = replace(builder.values[large], data=data)
    out = builder.elementwise(builder.input(1, 1, 1, data.size), EpilogueOp("MUL", (large,)))
    return constant_bytes(builder.graph(out), FP16_ALL)


@pytest.mark.parametrize(
    ("stored", "loaded"), [("float16", "float32"), ("float32", "float32"), ("int64", "int64")]
)
def test_constants_among_the_outputs_are_as_the_runtime_holds_computed_tensors(
    stored: str, loaded: str
) -> None:
    builder = GraphBuilder()
    same = builder.constant(2, 3, dtype=stored)
    out = builder.elementwise(builder.input(1, 1, 1, 4), RELU)
    compiled = partition.compile_partition(builder.graph(out, same), PaperDevice(), FP32)
    expected = np.arange(1, 7, dtype=loaded).reshape(2, 3)
    np.testing.assert_array_equal(compiled.constants[same], expected, strict=True)


def test_packed_constants_begin_where_the_device_wants_them() -> None:
    constants = Constants()
    arrays = [np.arange(n, dtype=np.float32) for n in (3, 64, 1)]
    assert [constants.add(array) for array in arrays] == [0, 1, 2]
    block, _, parts = constants.pack(256)
    assert [(part.offset, part.size) for part in parts] == [(0, 12), (256, 256), (512, 4)]
    for part, array in zip(parts, arrays, strict=True):
        assert part.constant
        stored = block[part.offset : part.offset + part.size].view(np.float32)
        np.testing.assert_array_equal(stored, array)


# Programs


def test_memory_can_be_kept_apart() -> None:
    builder = GraphBuilder()
    value = builder.input(1, 8, 8, 8)
    for _ in range(5):
        value = builder.conv(value, 8)
    layout = assign(builder.graph(value), FP32)
    graph = layout.graph
    shared = build(layout)
    apart = build_program(layout, DEVICE, graph.inputs, graph.outputs, share_memory=False)
    size = 8 * 8 * 8 * 4
    assert (shared.program.memory_bytes, shared.lower_bound) == (2 * size, 2 * size)
    assert (apart.program.memory_bytes, apart.lower_bound) == (6 * size, 2 * size)
    assert len(set(apart.offsets.values())) == 6
    assert apart.program.inputs[0].offset != apart.program.outputs[0].offset


def test_copies_are_as_long_as_the_tensors() -> None:
    builder = GraphBuilder()
    out = builder.conv(builder.input(1, 1, 1, 3), 5)
    program = build(assign(builder.graph(out), FP32)).program
    assert [part.size for part in (*program.inputs, *program.outputs)] == [12, 20]


def test_launches_cover_the_grid_in_whole_groups() -> None:
    builder = GraphBuilder()
    out = builder.elementwise(builder.input(1, 5, 3, 7), RELU)
    (launch,) = build(assign(builder.graph(out), FP32)).program.launches
    assert all(
        size % local == 0 for size, local in zip(launch.global_size, launch.local_size, strict=True)
    )
    assert launch.global_size[0] >= 2
    assert launch.global_size[1] >= 15


def test_kinds_of_buffers_follow_the_storage() -> None:
    builder = GraphBuilder()
    between = builder.conv(builder.input(1, 4, 4, 3), 8)
    layout = assign(builder.graph(builder.conv(between, 5)), FP16_ALL)
    assert layout.storages[between].dtype is DType.FLOAT16
    first, second = (launch.kernel.arguments for launch in build(layout).launches)
    assert [(a.name, a.kind, a.vector, a.written, a.constant) for a in first] == [
        ("dst", "F16", True, True, False),
        ("src", "F32", False, False, False),
        ("weights", "F16", True, False, True),
        ("range_words", "U32", False, True, False),
    ]
    assert [(a.name, a.kind, a.vector) for a in second][:2] == [
        ("dst", "F32", False),
        ("src", "F16", True),
    ]


def test_a_program_says_which_arguments_read_an_input() -> None:
    builder = GraphBuilder()
    image, other = builder.input(1, 4, 4, 8), builder.input(1, 4, 4, 8)
    both = builder.conv(image, 8), builder.conv(image, 4)
    graph = replace(builder.graph(*both), outputs=(*both, other))
    program = build(assign(graph, FP32)).program
    assert list(program.readers) == [0], "the other is an output"
    assert len(program.readers[0]) == 2
    for launch, argument in program.readers[0]:
        assert program.launches[launch].ranges[argument] == program.inputs[0]


def test_a_program_says_which_argument_alone_writes_an_output() -> None:
    builder = GraphBuilder()
    image = builder.input(1, 4, 4, 8)
    first = builder.conv(image, 8)
    second = builder.conv(first, 8)
    graph = replace(builder.graph(second), outputs=(first, second, image))
    program = build(assign(graph, FP32)).program
    assert list(program.sole_writers) == [1], "one is read, one is an input"
    launch, argument = program.sole_writers[1]
    assert program.launches[launch].ranges[argument] == program.outputs[1]
    kernels = {kernel.name: kernel for kernel in program.kernels}
    assert kernels[program.launches[launch].kernel].arguments[argument].written
