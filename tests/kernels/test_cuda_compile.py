"""Every CUDA kernel of the op table compiles for each supported GPU generation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import cases
import turns
from agreement import disagreements
from cases.base import SMALL
from cases.conv_2d import Conv
from cases.quantized_conv import QuantizedConv
from cases.separable import Separable
from litegpu import (
    CompilationError,
    GpuDelegate,
    ModelError,
)
from litegpu.backends.base import DeviceInfo
from litegpu.backends.cuda.compiler import compile_kernels
from litegpu.backends.cuda.transfer import transfer_kernel
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import CUDADialect
from litegpu.engine import partition
from litegpu.engine.partition import rewrite
from litegpu.engine.program import build_program
from litegpu.engine.selected import place
from litegpu.engine.states import expose_states
from litegpu.engine.target import DeviceTarget
from litegpu.graph import Graph
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy
from litegpu.ops.variables import resolve_variables
from litegpu.ops.while_loop import inline_graphs
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import resolve_model
from nvrtc import GENERATIONS, needs_nvrtc
from op_runner import forced, groups, kept_busy_by, write
from paper_device import nvidia_gpu, on_paper
from sass import BRANCH, EXIT, LOAD, MULTIPLY, WAIT, instructions, loads_a_constant, opcode

pytestmark = needs_nvrtc

GROUPS = groups(cases.TABLE)
STORAGES = {"fp32": FP32, "fp16": FP16, "half": FP16_ALL}
# What is left out is chosen as for another pair: without tensor cores no kernel depends on where
# half storage begins, sm_80 multiplies floats as sm_90 does but in large tiles (compiled below, as
# candidates), and sm_90 differs in its tiles.
RUNS = [("sm_75", "half"), ("sm_80", "fp16"), ("sm_90", "fp32"), ("sm_90", "half")]
EVERY = {("sm_75", "half"): 12, ("sm_80", "fp16"): 6, ("sm_90", "fp32"): 4, ("sm_90", "half"): 3}
"""Of these only every so many groups of cases: most of their kernels are those of another pair."""
SELECTED = [
    pytest.param(group, *pair, id=f"{type(GROUPS[group][0]).__name__}-{group}-{'-'.join(pair)}")
    for group in range(len(GROUPS))
    for number, pair in enumerate(RUNS)
    if turns.ALL or (group + number) % EVERY.get(pair, 1) == 0
]


def programs(
    content: bytes, info: DeviceInfo, policy: NumericPolicy, items: int | None
) -> Iterator[Program]:
    """Yield the programs that a device of that kind would be given for a model."""
    found: list[Program] = []

    def capture(graph: Graph, *_: Any, **__: Any) -> None:
        graph, _assigned = resolve_variables(inline_graphs(graph))
        outputs = tuple(v for v in graph.outputs if not graph.values[v].is_constant)
        graph, _states = expose_states(dataclasses.replace(graph, outputs=outputs))
        rewritten = rewrite(graph, DeviceTarget(info, policy))
        selected = place(rewritten, DeviceTarget(info, policy), info.half_lanes)
        ends = rewritten.inputs, rewritten.outputs
        built = build_program(selected.layout, info, *ends, selected=selected)
        assert not disagreements(selected, built.launches)
        found.append(built.program)
        raise CompilationError("captured")

    # The CPU has no kernels for some of these models; they are captured before it finds out.
    stop = contextlib.suppress(ModelError)
    patched = mock.patch.object(partition, "compile_partition", capture)
    with stop, patched, kept_busy_by(items), on_paper():
        runtime.interpreter(content, GpuDelegate(backend="opencl"), builtin_kernels=True)
    yield from found


@functools.cache
def device(generation: str) -> DeviceInfo:
    """Return the facts of a large GPU of a generation."""
    return nvidia_gpu(GENERATIONS[generation])


@pytest.mark.parametrize(("group", "generation", "storage"), SELECTED)
def test_kernels_compile(group: int, generation: str, storage: str) -> None:
    selected = GROUPS[group]
    if not turns.ALL:  # a quarter, for time: which one changes with the generation and the commit
        place = RUNS.index((generation, storage)) + turns.of_commit(4)
        selected = turns.share(selected, place % 4, 4)
    content = write(selected).content
    compiled = 0
    items = GROUPS[group][0].items
    for program in programs(content, device(generation), STORAGES[storage], items):
        capability = GENERATIONS[generation]
        cubins = compile_kernels(CUDADialect(), program.kernels, capability, None)
        assert all(cubin.startswith(b"\x7fELF") for cubin in cubins)
        compiled += len(program.kernels)
    assert compiled


TILED = (
    Conv(image=(2, 9, 8, 72), filters=65),
    Conv(image=(2, 9, 8, 20), filters=70, kernel=(3, 3)),
    Conv(image=(2, 33, 40, 3), filters=40, kernel=(7, 7), stride=(2, 2)),
    Conv(image=(2, 33, 41, 3), filters=20, kernel=(3, 3)),
    Separable(image=(1, 14, 14, 96), filters=130),
    QuantizedConv(channels=48, filters=65, kernel=(1, 1)),
    QuantizedConv(channels=20, filters=70, dtype="uint8"),
    QuantizedConv(channels=3, filters=40, size=(33, 40), kernel=(7, 7), stride=(2, 2), batch=2),
    QuantizedConv(channels=3, filters=33, size=(33, 41), dtype="uint8", batch=2),
)


@pytest.mark.parametrize(
    ("generation", "storage", "items", "most"),
    [
        ("sm_80", "fp32", None, 6),
        ("sm_80", "fp32", SMALL, 2),
        ("sm_80", "half", SMALL, 3),
        ("sm_90", "fp32", None, 6),
        ("sm_90", "fp16", None, 6),
        ("sm_90", "half", None, 6),
        ("sm_90", "fp32", SMALL, 5),
        ("sm_90", "half", SMALL, 6),
    ],
)
def test_every_candidate_compiles(
    generation: str, storage: str, items: int | None, most: int
) -> None:
    """Up to 6 tiles of few pixels; 3 of many, where these keep the device busy, of both kinds."""
    content = write(TILED).content
    kernels: dict[str, KernelText] = {}
    for number in range(1, most):
        with forced(number) as chosen:
            for program in programs(content, device(generation), STORAGES[storage], items):
                kernels |= {kernel.name: kernel for kernel in program.kernels}
        assert number in chosen
    capability = GENERATIONS[generation]
    assert compile_kernels(CUDADialect(), [*kernels.values()], capability, None)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_kernels_that_move_inputs_and_outputs_compile(generation: str) -> None:
    kernels = [transfer_kernel(nbytes) for nbytes in (1, 16, 4004, 1 << 26)]
    capability = GENERATIONS[generation]
    assert compile_kernels(CUDADialect(), kernels, capability, None)


def kernels_with_weights_ahead(policy: NumericPolicy) -> list[KernelText]:
    """Return those kernels of a network that load weights before they wait for the one before."""
    content = resolve_model("zoo:mobilenet_v1_0.25_128")
    found = programs(content, device("sm_90"), policy, None)
    kernels = {kernel.name: kernel for program in found for kernel in program.kernels}
    split = ((each, each.body.partition("BEGIN_KERNEL")[0]) for each in kernels.values())
    return [kernel for kernel, before in split if "load_ahead(weights" in before]


@pytest.mark.parametrize("policy", [FP16, FP32], ids=["fp16", "fp32"])
def test_weights_are_on_their_way_while_a_kernel_waits(policy: NumericPolicy) -> None:
    kernels = kernels_with_weights_ahead(policy)
    assert len(kernels) > 3
    for kernel in kernels[:6]:
        (cubin,) = compile_kernels(CUDADialect(), [kernel], GENERATIONS["sm_90"], None)
        code = list(instructions(cubin))
        wait = [opcode(each) for each in code].index(WAIT)
        assert sum(map(loads_a_constant, code[:wait])) >= 2, kernel.name
        straight = itertools.takewhile(
            lambda each: opcode(each) not in (BRANCH, EXIT), code[wait + 1 :]
        )
        assert not any(map(loads_a_constant, straight)), f"{kernel.name}: moved behind the wait"


def loads_of(case: Any) -> tuple[list[int], int]:
    """Return how many loads of a case's last kernel lie between its branches, after it has waited.

    And how many come after the last product. What never changes does not count.
    """
    (program,) = programs(write((case,)).content, device("sm_90"), FP16, None)
    (cubin,) = compile_kernels(CUDADialect(), program.kernels[-1:], GENERATIONS["sm_90"], None)
    code = [each for each in instructions(cubin) if not loads_a_constant(each)]
    names = [opcode(each) for each in code]
    runs = [0]
    for name in names[names.index(WAIT) :]:
        runs[-1] += name == LOAD
        if name == BRANCH:
            runs.append(0)
    last = max(number for number, name in enumerate(names) if name == MULTIPLY)
    return list(filter(None, runs)), names[last:].count(LOAD)


@pytest.mark.parametrize("kernel", [3, 5])
def test_no_load_of_a_window_waits_behind_a_branch(kernel: int) -> None:
    """All of the depthwise convolution of some pixels are on their way at a time.

    Where the image ends, compilers would move the loads of one line into the branch that needs it.
    """
    (first, *_), _late = loads_of(
        Separable(image=(1, 14, 14, 96), kernel=(kernel, kernel), filters=128)
    )
    assert first % kernel**2 == 0


def test_values_of_a_thread_are_gathered_together() -> None:
    """Of a convolution with a window, zeros where the image ends."""
    (first, *_), _late = loads_of(Conv(image=(1, 14, 14, 64), filters=64, kernel=(3, 3)))
    assert first > 1


def test_nothing_is_loaded_after_the_products() -> None:
    """What is added in the end has been on its way since the kernel began."""
    _runs, late = loads_of(Separable(image=(1, 14, 14, 128), filters=128, residual=True))
    assert late == 0
