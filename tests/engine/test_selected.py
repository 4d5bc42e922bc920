"""Kernels are selected for the storages of values; values that kernels round are stored as half."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any
from unittest import mock

import pytest

from agreement import disagreements
from cuda_emulator import INFO
from litegpu import (
    CompilationError,
    GpuDelegate,
    ModelError,
)
from litegpu.backends.base import DeviceInfo
from litegpu.engine import partition
from litegpu.engine.program import build_program
from litegpu.engine.selected import Selected, place
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, Graph
from litegpu.kernels.examples import ConvExample
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy
from litegpu.ops.common import conv_spec
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.models import find_model
from paper_device import on_paper
from passes.graphs import RELU, GraphBuilder

AMPERE = dataclasses.replace(INFO, compute_capability=(8, 0))


def placed(graph: Graph, device: DeviceInfo = INFO, policy: NumericPolicy = FP16) -> Any:
    return place(graph, DeviceTarget(device, policy), device.half_lanes)


def templates(selected: Selected, device: DeviceInfo = INFO) -> list[str]:
    layout = selected.layout
    ends = layout.graph.inputs, layout.graph.outputs
    launches = build_program(layout, device, *ends, selected=selected).launches
    assert not disagreements(selected, launches)
    return [launch.template for launch in launches]


@pytest.mark.parametrize("device", [INFO, AMPERE], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(
    ("size", "channels", "kernel", "dtype", "template"),
    [
        (102, (64, 60), 1, DType.FLOAT16, "cuda/conv_tile"),
        # 2 * 102 * 512 * 60 * 64 is just above 4e8, where rounding begins.
        (101, (64, 60), 1, DType.FLOAT32, "cuda/conv_mma"),
        # Much work, but tiles too few for the device: floats are split, nothing is rounded.
        ((7, 7), (512, 1024), 3, DType.FLOAT32, "cuda/conv_mma"),
        ((14, 14), (256, 512), 3, DType.FLOAT32, "cuda/conv_mma"),
    ],
)
def test_what_a_kernel_rounds_is_stored_as_half(
    size: Any,
    channels: tuple[int, int],
    kernel: int,
    dtype: DType,
    template: str,
    device: DeviceInfo,
) -> None:
    builder = GraphBuilder()
    height, width = size if isinstance(size, tuple) else (size, 512)
    source = builder.input(1, height, width, 3)
    between = builder.conv(source, channels[0])
    graph = builder.graph(builder.conv(between, channels[1], kernel=kernel))
    # So large that nothing is half but for a kernel.
    selected = placed(graph, device, NumericPolicy(1 << 30))
    assert selected.layout.storages[between].dtype is dtype
    assert templates(selected, device)[-1] == template


@pytest.mark.parametrize(("siblings", "dtype"), [(1, DType.FLOAT16), (2, DType.FLOAT32)])
def test_siblings_are_rounded_if_one_of_them_would_be(siblings: int, dtype: DType) -> None:
    builder = GraphBuilder()
    between = builder.conv(builder.input(1, 102, 512, 3), 64)
    output = builder.conv(between, 60)
    builder.values[output] = dataclasses.replace(builder.values[output], siblings=siblings)
    selected = placed(builder.graph(builder.conv(output, 4)), policy=NumericPolicy(1 << 30))
    assert selected.layout.storages[between].dtype is dtype
    assert ("cuda/conv_tile" in templates(selected)) == (siblings == 1)


def test_what_is_not_read_by_such_a_kernel_in_the_end_stays_float32() -> None:
    """Here its part of a concatenation follows the whole."""
    builder = GraphBuilder()
    source = builder.input(1, 102, 512, 3)
    first, second = builder.conv(source, 32), builder.conv(source, 32)
    whole = builder.concat(3, first, second)
    graph = builder.graph(builder.conv(whole, 60), builder.conv(first, 8))
    selected = placed(graph)
    kinds = {selected.layout.storages[v].dtype for v in (first, second, whole)}
    assert kinds == {DType.FLOAT16}
    assert "cuda/conv_tile" in templates(selected)


def test_a_selection_is_made_once_where_nothing_moved() -> None:
    builder = GraphBuilder()
    between = builder.conv(builder.input(1, 102, 512, 3), 64)
    graph = builder.graph(builder.conv(builder.elementwise(builder.conv(between, 60), RELU), 4))
    seen: list[Any] = []
    original = conv_spec.ConvSpec.obstacle

    def count(spec: conv_spec.ConvSpec, target: Any) -> Any:
        seen.append((spec.src, spec.dst))
        return original(spec, target)

    with mock.patch.object(conv_spec.ConvSpec, "obstacle", count):
        selected = placed(graph)
        of_placing = len(seen)
        templates(selected)
    assert len(seen) == of_placing, "lowering takes what was selected"


@pytest.mark.parametrize("policy", [FP32, FP16, FP16_ALL])
def test_what_nothing_computes_in_its_place_is_taken_apart(
    policy: NumericPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only once it has its place is it known that a kernel does not take it there."""
    builder = GraphBuilder()
    between = builder.depthwise(builder.input(1, 6, 6, 16))
    graph = builder.graph(builder.conv(between, 8))
    monkeypatch.setattr(partition, "normalize", lambda given: given)
    target = DeviceTarget(INFO, policy)
    whole, selected = partition._rewrite_and_place(graph, target, False, ())
    assert len(whole.nodes) == 1
    assert templates(selected) == ["cuda/conv_mma"]

    def refuse(given: Selected) -> list[Any]:
        return [node for node in given.layout.graph.nodes if node.op == "CONV_2D"][:1]

    with mock.patch.object(Selected, "not_accepted", refuse):
        apart, selected = partition._rewrite_and_place(graph, target, False, ())
    assert [node.op for node in apart.nodes] == ["DEPTHWISE_CONV_2D", "CONV_2D"]
    assert len(templates(selected)) == 2


@pytest.mark.timeout(60)
def test_what_nobody_takes_apart_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was merged before any pass: no pass takes it apart, in whatever turn."""
    graph = ConvExample((16, 112, 112, 16), 24, depthwise=True, expand=96).graph()
    monkeypatch.setattr(partition, "normalize", lambda given: given)
    rewritten, selected = partition._rewrite_and_place(graph, DeviceTarget(AMPERE, FP16), False, ())
    ends = rewritten.inputs, rewritten.outputs
    with pytest.raises(CompilationError, match="No kernel computes CONV_2D here"):
        build_program(selected.layout, AMPERE, *ends, selected=selected)


def captured(content: bytes, device: DeviceInfo, policy: NumericPolicy) -> list[str]:
    """Return the templates of a model's kernels; each must be what its storage suits."""
    found: list[str] = []

    def capture(graph: Graph, *_: Any, **__: Any) -> None:
        target = DeviceTarget(device, policy)
        _whole, selected = partition._rewrite_and_place(graph, target, False, ())
        found.extend(templates(selected, device))
        raise CompilationError("captured")

    # The CPU may have no kernels for what was captured.
    stop = contextlib.suppress(ModelError)
    with stop, on_paper(), mock.patch.object(partition, "compile_partition", capture):
        runtime.interpreter(content, GpuDelegate(backend="opencl"), builtin_kernels=True)
    return found


@pytest.mark.parametrize(
    "name", ["mobilenet_v1_1.0_224?batch=8", "mobilenet_v2_1.0_224?batch=16", "resnet50?batch=8"]
)
def test_storage_and_kernels_agree_in_models(name: str) -> None:
    found = captured(find_model(f"zoo:{name}").content, INFO, FP16)
    assert {"cuda/conv_tile", "cuda/conv_mma"} <= set(found)
