"""Transposed convolutions on tensor cores, divided into phases that are ordinary convolutions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mediapipe_reference as reference
from kernel_text import evaluate, execute, lanes
from litegpu.codegen import Storage
from litegpu.engine.layout import Layout, assign
from litegpu.engine.lowering import KernelLaunch
from litegpu.engine.program import build_program
from litegpu.graph import ABSENT, DType, EpilogueOp
from litegpu.numeric_policy import FP16_ALL, FP32, NumericPolicy
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.weights import Weights
from litegpu.ops.common.window import Pair, Window, leading_pad, output_size
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.transpose_conv import Phase, phases
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder

Array = npt.NDArray[Any]
TENSOR_CORES = replace(
    DEVICE, backend="cuda", compute_capability=(8, 0), local_memory_bytes=163 << 10
)


def scattered(image: Array, taps: Array, view: Window, size: Pair) -> Array:
    """Return the transposed convolution: each input pixel adds to all outputs that it reaches."""
    computed = np.zeros((image.shape[0], *size, taps.shape[0]))
    for y, x, ky, kx in np.ndindex(*image.shape[1:3], *taps.shape[1:3]):
        oy, ox = y * view.stride[0] + ky - view.pads[0], x * view.stride[1] + kx - view.pads[1]
        if 0 <= oy < size[0] and 0 <= ox < size[1]:
            computed[:, oy, ox] += image[:, y, x] @ taps[:, ky, kx].T
    return computed


def gathered(image: Array, phase: Phase, src: Storage) -> Array:
    """Return the convolution of a phase as the kernels read their operand.

    They go by row numbers, or clamp places and drop what was outside, if anything can be.
    """
    n, height, width, outputs = phase.dst.shape
    view = phase.window
    weights_of_phase = Weights(phase.weights.shape, array=phase.weights)
    if ConvSpec(src, phase.dst, weights_of_phase, view, image=True).keeps_rows:
        rows = image.reshape(-1, image.shape[3])[: n * height * width]
        return np.asarray(rows @ phase.weights[:, 0, 0].T).reshape(n, height, width, outputs)
    padded = view.leaves((image.shape[1], image.shape[2]), (height, width))
    computed = np.zeros((n, height, width, outputs))
    for y, x, ky, kx in np.ndindex(height, width, *view.kernel):
        iy, ix = y - view.pads[0] + ky, x - view.pads[1] + kx
        inside = 0 <= iy < image.shape[1] and 0 <= ix < image.shape[2]
        assert inside or padded
        if inside:
            computed[:, y, x] += image[:, iy, ix] @ phase.weights[:, ky, kx].T
    return computed


def images(padding: str, output: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return how many inputs belong to an output of a size, and the padding before it."""
    size = output_size(output, kernel, stride, 1, padding)
    same = padding == "same"
    return size, leading_pad(output, size, kernel, stride, 1) if same else 0


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("stride", [*itertools.product(range(1, 5), repeat=2)], ids=str)
def test_phases_make_the_transposed_convolution(padding: str, stride: Pair) -> None:
    random = np.random.default_rng(stride[0] * 8 + stride[1])
    sizes, checked = ((9, 7), (5, 6), (2, 3), (1, 8)), 0
    for kernel, size in itertools.product(itertools.product(range(1, 6), range(1, 6)), sizes):
        axes = [images(padding, size[i], kernel[i], stride[i]) for i in (0, 1)]
        if min(axes[0][0], axes[1][0]) < 1:
            continue  # the window does not fit
        checked += 1
        view = Window(kernel, stride, pads=(axes[0][1], axes[1][1]))
        image = random.integers(-4, 5, (2, axes[0][0], axes[1][0], 3)).astype(np.float64)
        taps = random.integers(-4, 5, (5, *kernel, 3)).astype(np.float32)
        src = Storage.create(1, DType.FLOAT32, (2, axes[0][0], axes[1][0], 3), 4)
        dst = Storage.create(0, DType.FLOAT32, (2, *size, 5), 4)
        memory = np.full(dst.elements, np.nan)
        for phase in phases(taps, view, dst):
            computed = gathered(image, phase, src)
            strides = tuple(8 * step for step in (*phase.dst.strides, 1))
            start = memory[phase.dst.offset :]
            position = np.lib.stride_tricks.as_strided(start, computed.shape, strides)
            assert np.isnan(position).all(), "phases overlap"
            position[...] = computed
        whole = memory.reshape(2, *size, 8)[..., :5]
        np.testing.assert_array_equal(whole, scattered(image, taps, view, size))
    assert checked >= 25


def test_scattering_agrees_with_the_other_reference() -> None:
    random = np.random.default_rng(0)
    image = random.integers(-4, 5, (2, 4, 3, 2)).astype(np.float32)
    taps = random.integers(-4, 5, (3, 3, 2, 2)).astype(np.float32)
    expected = reference.transpose_conv(image, taps, None, (2, 3), False)
    size = (expected.shape[1], expected.shape[2])
    got = scattered(image.astype(np.float64), taps, Window((3, 2), (2, 3)), size)
    np.testing.assert_array_equal(got, expected)


def test_pixels_that_no_tap_reaches_read_nothing() -> None:
    """An input that is infinite must not become NaN there."""
    taps = np.ones((8, 1, 1, 16), np.float32)
    dst = Storage.create(0, DType.FLOAT32, (1, 4, 4, 8), 4)
    first, *others = phases(taps, Window((1, 1), (2, 2)), dst)
    assert first.window.pads == (0, 0)
    src = Storage.create(1, DType.FLOAT32, (1, 2, 2, 16), 4)
    image = np.full((1, 2, 2, 16), np.inf)
    assert np.isinf(gathered(image, first, src)).all()
    for other in others:
        assert not other.weights.any()
        assert (gathered(image, other, src) == 0).all()


# Choice of kernels


def transposed(
    builder: GraphBuilder,
    source: int,
    filters: int,
    kernel: Pair,
    stride: Pair,
    size: Pair,
    epilogue: Sequence[EpilogueOp] = (),
) -> int:
    """Add a transposed convolution with padding SAME that makes (H, W) = `size`."""
    n, *size_of_source, depth = builder.shape(source)
    shape = (filters, *kernel, depth)
    weights = builder.constant(*shape)
    pads = [leading_pad(size[i], size_of_source[i], kernel[i], stride[i], 1) for i in (0, 1)]
    view = Window(kernel, stride, pads=(pads[0], pads[1]))
    attributes = ConvAttributes(view, weights, ABSENT, shape)
    return builder.node("TRANSPOSE_CONV", [source], (n, *size, filters), epilogue, attributes)


def lowered(layout: Layout, **facts: Any) -> tuple[KernelLaunch, ...]:
    graph = layout.graph
    device = replace(TENSOR_CORES, **facts)
    return build_program(layout, device, graph.inputs, graph.outputs).launches


@pytest.mark.parametrize(
    ("policy", "units", "template"),
    [(FP32, 132, "conv_mma"), (FP32, 1, "conv_tile"), (FP16_ALL, 1, "conv_tile")],
)
def test_each_phase_is_a_kernel(policy: NumericPolicy, units: int, template: str) -> None:
    builder = GraphBuilder()
    inside = builder.elementwise(builder.input(1, 16, 16, 32), RELU)
    out = transposed(builder, inside, 64, (3, 3), (2, 2), (31, 32))
    layout = assign(builder.graph(out), policy)
    _, *computed = lowered(layout, compute_units=units)
    assert [launch.template for launch in computed] == [f"cuda/{template}"] * 4
    shapes = [(1, 16, 16, 64), (1, 16, 16, 64), (1, 15, 16, 64), (1, 15, 16, 64)]
    assert [launch.shape for launch in computed] == shapes
    taps = [
        sum(launch.work.values()) // (2 * 32 * 64 * 16 * launch.shape[1]) for launch in computed
    ]
    assert sorted(taps) == [1, 2, 2, 4]
    _, plain = lowered(layout, compute_capability=None)
    assert plain.template == "transpose_conv"


def test_a_step_that_reads_each_pixel_keeps_the_output_whole() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 32)
    row, map_ = builder.input(1, 1, 1, 8), builder.input(1, 8, 8, 8)
    found = []
    for operand in (builder.constant(8), builder.constant(1), row, map_, builder.input(1, 1, 8, 8)):
        epilogue = [EpilogueOp("ADD", (operand,)), RELU]
        found.append(transposed(builder, source, 8, (2, 2), (2, 2), (8, 8), epilogue))
    launches = lowered(assign(builder.graph(*found), FP32))
    used = [
        {launch.template for launch in launches if launch.node.outputs == (out,)} for out in found
    ]
    assert used == [{"cuda/conv_mma"}] * 3 + [{"transpose_conv"}] * 2


def test_steps_that_find_no_room_come_after_all_phases() -> None:
    """Once: a copy of the whole output after each phase would apply them several times."""
    builder = GraphBuilder()
    epilogue = [EpilogueOp("ADD", (builder.input(1, 1, 1, 8),)) for _ in range(3)]
    source = builder.input(1, 4, 4, 32)
    out = transposed(builder, source, 8, (2, 2), (2, 2), (8, 8), epilogue)
    computed = lowered(assign(builder.graph(out), FP32), max_arguments=5)
    assert [launch.template for launch in computed] == ["cuda/conv_mma"] * 4 + ["copy"]
    assert [len(launch.node.epilogue) for launch in computed] == [2, 2, 2, 2, 1]
    assert computed[-1].shape == (1, 8, 8, 8)


@pytest.mark.parametrize(
    ("channels", "filters"), [(12, 8), (16, 7)], ids=["few inputs", "few outputs"]
)
def test_small_sums_do_not_pay(channels: int, filters: int) -> None:
    builder = GraphBuilder()
    out = transposed(builder, builder.input(1, 4, 4, channels), filters, (2, 2), (2, 2), (8, 8))
    (launch,) = lowered(assign(builder.graph(out), FP32))
    assert launch.template == "transpose_conv"


# Kernel text

WORDS: dict[str, Any] = {
    "src": "src",
    "dst": "dst",
    "min": min,
    "clamp": lambda v, low, high: min(max(v, low), high),
    "inside": lambda v, size: 0 <= v < size,
    "either": lambda first, this, other: this if first else other,
    "in_register": lambda number: number,
    "beside": 0,
}
Read = Callable[[str, Phase, int, int, Array], Array]


def value_of(body: str, position: str, variables: dict[str, Any], image: Array) -> Any:
    """Return what the kernel gives to the variable (or element) that a pattern matches."""
    (text,) = {*re.findall(rf"{position} = (.*?);", body)}  # where it stands twice, it is the same
    text = text.replace("&&", "and").removeprefix("(const uint4 *)src + ")
    return evaluate(text, image, {**WORDS, **variables})


def read_few(body: str, phase: Phase, p: int, block: int, image: Array) -> Array:
    """Return slice number `slice_` of all taps of pixel p, as cuda/conv_mma reads it."""
    at: dict[str, Any] = {"p": p, "ks": block}
    if "const int tap" in body:
        for name in ("tap", "i", "n", "iy", "ix"):
            at[name] = value_of(body, f"const int {name}", at, image)
    if "int places" in body:
        at["places"] = [[value_of(body, r"places\[beside\]\[0\]", at, image)]]
    if "const int tap" in body:
        at["found"] = value_of(body, "const float4 found", at, image)
    return np.asarray(value_of(body, r"float4 v(?= = [^*])", at, image))


def read_many(body: str, phase: Phase, p: int, block: int, image: Array) -> Array:
    """Return the same, as cuda/conv_tile reads it.

    Halves come in pairs of slices, whole ones for each tap.
    """
    channel_blocks = phase.weights.shape[3] // 4
    halves = "float4 high" in body
    pairs = -(-channel_blocks // 2)
    chunk = block // channel_blocks * pairs + block % channel_blocks // 2 if halves else block
    at: dict[str, Any] = {"p": p, "chunk": chunk, "i": 0, "row": [p], "inside_k": True}
    at |= {"part": chunk, "dy": 0, "dx": 0}
    if "const int tap" in body:
        for name in ("tap", "part", "dy", "dx"):
            at[name] = value_of(body, f"const int {name}", at, image)
    inside = True
    if "y0[i] = " in body:
        for name in ("n", "y0", "x0"):
            at[name] = [value_of(body, rf"\b{name}\[i\]", at, image)]
        at["iy"], at["ix"] = at["y0"][0] + at["dy"], at["x0"][0] + at["dx"]
        inside = value_of(body, "const bool in", at, image)
    if halves:
        name = ("low", "high")[block % channel_blocks % 2]
        return np.asarray(value_of(body, f"float4 {name}", at, image)) * inside
    # Floats are copied by the hardware, 4 at a time.
    first = 4 * value_of(body, r"uint4 \*const from", at, image)
    return image[first : first + 4] * inside


def ran(launch: KernelLaunch, phase: Phase, read: Read, image: Array, memory: Array) -> None:
    """Run a kernel: its own places of loads and stores, with sums made here."""
    body = launch.kernel.body
    outputs, *_, depth = phase.weights.shape
    taps = phase.weights.reshape(outputs, -1, 4)
    assert depth % 4 == 0
    stores = next(line for line in body.splitlines() if re.search(r"STORE\w+\(dst", line))
    store = re.sub(r"^.*?\{ (.*) \}$", r"\1", stores).replace("outputs[r][u]", "result")
    number = [argument.name for argument in launch.kernel.arguments].index("dst")
    memory = memory[launch.offsets[number] // phase.dst.dtype.size :]
    for p in range(phase.dst.rows):
        sums = np.zeros(-(-outputs // 4) * 4)
        for block in range(taps.shape[1]):
            sums[:outputs] += taps[:, block] @ read(body, phase, p, block, image)
        for s in range(sums.size // 4):
            result = lanes(sums[4 * s :][:4])
            execute(store, memory, {**WORDS, "p": p, "s": s, "result": result})


@pytest.mark.parametrize(
    ("policy", "units", "template", "read"),
    [
        (FP32, 132, "conv_mma", read_few),
        (FP32, 1, "conv_tile", read_many),
        (FP16_ALL, 1, "conv_tile", read_many),
    ],
    ids=["few", "many floats", "many halves"],
)
@pytest.mark.parametrize("filters", [8, 9])
@pytest.mark.parametrize(
    ("kernel", "stride", "size"),
    [
        ((3, 3), (2, 2), (5, 4)),
        ((2, 2), (2, 2), (3, 4)),
        ((1, 1), (3, 2), (4, 3)),
        ((5, 2), (2, 1), (4, 3)),
        ((4, 5), (1, 3), (2, 7)),
    ],
)
def test_the_kernels_load_and_store_the_right_places(
    kernel: Pair,
    stride: Pair,
    size: Pair,
    filters: int,
    policy: NumericPolicy,
    units: int,
    template: str,
    read: Read,
) -> None:
    size_of_source = tuple(-(-n // step) for n, step in zip(size, stride, strict=True))
    builder = GraphBuilder()
    source = builder.input(2, *size_of_source, 20)
    out = transposed(builder, source, filters, kernel, stride, size)
    layout = assign(builder.graph(out), policy)
    attributes = builder.nodes[0].attributes
    taps = np.asarray(builder.values[attributes.weights].data)
    image = np.random.default_rng(0).integers(-4, 5, (2, *size_of_source, 20)).astype(np.float64)
    memory = np.full(2 * size[0] * size[1] * filters, np.nan)
    parts = phases(taps, attributes.window, layout.storages[out])
    for launch, phase in zip(lowered(layout, compute_units=units), parts, strict=True):
        assert launch.template == f"cuda/{template}"
        ran(launch, phase, read, image.ravel(), memory)
    expected = scattered(image, taps, attributes.window, size)
    np.testing.assert_array_equal(memory.reshape(expected.shape), expected)
