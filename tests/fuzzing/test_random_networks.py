"""Some random networks; `tests/support/fuzz.py --kind networks` runs any number."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cases.base import Case
from cases.conv_2d import Conv
from cases.elementwise import Binary, Unary
from cases.resize_bilinear import Resize
from cuda_emulator import INFO
from every_backend import present
from fuzz import causes
from fuzzing import storing
from fuzzing.drawing import draw
from fuzzing.network import Layer, Network, Written, run
from fuzzing.network_oracle import (
    KINDS,
    WAYS,
    NetworkOracle,
    _difference,
    _is_undecided,
    checked,
    modes,
    save,
    stored,
)
from fuzzing.oracle import Finding
from fuzzing.worker import Task
from litegpu import GpuDelegate
from litegpu.codegen.cuda import CUDADialect
from litegpu.errors import ModelError
from litegpu.graph.ir import Quantization
from litegpu.ops.common import functions
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import objects
from litegpu.zoo.writer import ModelWriter
from paper_device import PaperDevice, on_paper
from places import SUPPORT

OPENCL = {"backend": "opencl"}


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> NetworkOracle:
    """Return an oracle that runs networks here, where a test may have changed litegpu."""
    monkeypatch.setenv("LITEGPU_COMPILE_PROCESSES", "0")
    return NetworkOracle({}, OPENCL, here=True)


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let litegpu compute another function than TANH."""
    wrong = dataclasses.replace(
        functions.FUNCTIONS["TANH"], expression="TANH4({a} * SPLAT4(1.01f))"
    )
    monkeypatch.setitem(functions.FUNCTIONS, "TANH", wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_drawn_again_from_its_seed(kind: str) -> None:
    first, second, other = (stored(draw(kind, seed)) for seed in (3, 3, 4))
    assert first.content == second.content != other.content
    for one, two in zip(first.inputs, second.inputs, strict=True):
        np.testing.assert_array_equal(one, two)


def chain(*cases: Case) -> Network:
    """Return a network of cases, each of which reads what the last one made."""
    layers = [
        Layer(number, case, ((number - 1, 0),) if number else ())
        for number, case in enumerate(cases)
    ]
    return Network("small-float", 1, tuple(layers))


IMAGE = (2, 6, 5, 8)
CHAIN = chain(
    Conv(image=IMAGE, filters=8, kernel=(3, 3), activation="RELU6"),
    Unary(op="ABS", shape=IMAGE),
    Unary(op="TANH", shape=IMAGE),
    Binary(op="ADD", first=IMAGE, second=IMAGE, constant=1),
    Conv(image=IMAGE, filters=12),
)


def test_a_wrong_kernel_is_found_and_its_layer_remains(
    oracle: NetworkOracle, wrong_tanh: None, tmp_path: Path
) -> None:
    assert oracle.goes_wrong(CHAIN)
    builder = oracle.shrunk(CHAIN, seconds=math.inf)
    (layer,) = builder.network.layers
    assert layer.case == Unary(op="TANH", shape=(1, 1, 1, 1))
    assert builder.lines() == ("2: Unary-op=TANH-shape=1x1x1x1 of input -> 1x1x1x1",)
    content = save(builder, tmp_path / "smallest.tflite").read_bytes()
    details = runtime.interpreter(content, builtin_kernels=True)._get_ops_details()
    assert [each["op_name"] for each in details] == ["TANH"]


# A hundred and fifty of them

_SHARES, _SHARE, _RUN = 5, 30, 15
"""How many tests share the networks, how many each has, and one of how many of these it runs."""


@pytest.mark.parametrize("share", range(_SHARES))
def test_networks_run_as_on_the_cpu_or_are_sound_programs_for_cuda(share: int) -> None:
    """Software devices take their turns; a GPU is on paper, where nobody compiles the kernels."""
    results = Counter[str]()
    for number in range(share * _SHARE, (share + 1) * _SHARE):
        name, seed = f"small-{WAYS[(number + number // _RUN) % len(WAYS)]}", number
        if number % _RUN:
            results[_plan(name, seed)] += 1
            continue
        found = present()
        options = {"backend": found[share % len(found)]}
        result = checked(Task(pickle.dumps((name, seed)), 0, options=options))
        assert not result.fault, f"{name}:{seed} on {options}: {result.fault}"
        results[result.text if result.status == "refused" else "compared"] += 1
    assert results["planned"] > _SHARE // 2, results
    assert results["compared"], results


def _plan(name: str, seed: int) -> str:
    """Let litegpu write the kernels of a network for a GPU; the fixture verifies each program."""
    builder = draw(name, seed)
    content = stored(builder).content
    for mode in modes(builder.network):
        with on_paper(PaperDevice(INFO, CUDADialect())):
            delegate = GpuDelegate(backend="cuda", min_nodes_per_partition=1, **mode.options)
            try:
                runtime.interpreter(content, delegate, builtin_kernels=True)
            except ModelError as error:
                return str(error)
        assert delegate.error is None, f"{name}:{seed}, {mode.name}: {delegate.error!r}"
        assert delegate.report is not None
        assert delegate.report.partitions, f"{name}:{seed}, {mode.name}: {delegate.report}"
    return "planned"


def test_tensors_of_a_kernels_own_are_no_values_of_a_network() -> None:
    """BATCH_MATMUL has buffers that it writes in part."""
    left, right = np.ones((1, 2, 3), np.float32), np.ones((1, 3, 4), np.float32)
    writer = ModelWriter()
    operands = [writer.input(each.shape) for each in (left, right)]
    writer.output(writer.op("BATCH_MATMUL", operands, [(1, 2, 4)]))
    assert len(storing.all_tensors(writer.build(), [left, right])) == 3


def test_integers_as_floats_are_simulated_on_the_cpu() -> None:
    """Of exact sums the simulation makes what the CPU's integers do."""
    builder = draw("small-int8", 5)
    written = stored(builder)
    content = storing.simulated(written.content)
    outputs = [
        run(runtime.interpreter(each, builtin_kernels=True), written.inputs)
        for each in (written.content, content)
    ]
    for integers, simulated in zip(*outputs, strict=True):
        assert integers.dtype == simulated.dtype and integers.shape == simulated.shape
        steps = np.abs(integers.astype(np.int64) - simulated)
        assert steps.mean() < 1.0
    operations = runtime.interpreter(content, builtin_kernels=True)._get_ops_details()
    assert len(operations) > len(objects.parse(written.content).subgraphs[0].operators)


def test_integers_are_exact_where_no_floats_lead_to_them() -> None:
    """A float elsewhere in the network is no excuse."""
    writer, scale = ModelWriter(), Quantization((0.1,), (0,))
    x = writer.input((4,), np.int8, quantization=scale)
    twice = writer.op("ABS", [x], [(4,)], dtype=np.int8, quantization=scale)
    real = writer.op("DEQUANTIZE", [twice], [(4,)])
    back = writer.op("QUANTIZE", [real], [(4,)], dtype=np.int8, quantization=scale)
    writer.output(twice, back)
    wanted = np.arange(90, 94, dtype=np.int8)
    written = Written(writer.build(), (wanted,))
    exact, *_ = modes(Network("small-int8", 0, ()))
    for changed in range(2):
        got = [(wanted + (number == changed)).astype(np.int8) for number in range(2)]
        assert bool(_difference(written, [wanted] * 2, got, exact)) == (changed == 0)


def test_a_result_is_undecided_where_rounding_leads_to_nan_alone() -> None:
    """A root of what cancels; a sum that is NaN on a device alone is wrong."""
    writer = ModelWriter()
    a, b = writer.input((16,)), writer.input((16,))
    root = writer.op("SQRT", [writer.op("SUB", [a, b], [(16,)])], [(16,)])
    writer.output(root, writer.op("ADD", [a, b], [(16,)]))
    ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
    written, (mode,) = Written(writer.build(), (ones, ones)), list(modes(Network("", 0, ())))[1:]
    expected = [zeros, 2 * ones]
    assert _is_undecided(written, expected, [3 * ones, 2 * ones], mode)
    assert not _is_undecided(written, expected, [zeros, np.nan * ones], mode)
    assert not _is_undecided(written, expected, [3 * ones, 3 * ones], mode)


def test_a_result_is_undecided_where_halves_are_equal_and_floats_are_not() -> None:
    writer, size = ModelWriter(), 1024
    x = writer.input((size,))
    values = np.linspace(1, 2, size, dtype=np.float32) + np.float32(2**-12)
    near = values + np.where(np.arange(size) % 512, 1, 2**-14).astype(np.float32)
    y = writer.op("ABS", [writer.op("NEG", [x], [(size,)])], [(size,)])
    writer.output(writer.op("EQUAL", [y, writer.constant(near)], [(size,)], dtype=np.bool_))
    written = Written(writer.build(), (values,))
    full, half = modes(Network("", 1, ()))
    expected, equal = np.zeros(size, np.bool_), np.float16(values) == np.float16(near)
    assert np.count_nonzero(equal) == 2
    assert _is_undecided(written, [expected], [equal], half)
    assert not _is_undecided(written, [expected], [equal], full)
    assert not _is_undecided(written, [expected], [~expected], half)


def test_resizes_that_leave_their_image_are_left_out() -> None:
    layer = Layer(0, Resize(image=(1, 2, 2, 3), size=(2, 195)))
    result = checked(Task(pickle.dumps(Network("small-int8", 0, (layer,))), 0, options=OPENCL))
    assert (result.status, result.text) == (
        "refused",
        "left out: the CPU reads pixels beyond an image",
    )


def test_findings_are_counted_by_their_cause() -> None:
    texts = (
        "fp32: KeyError(35) at a.py:3",
        "fp32: KeyError(7) at a.py:3",
        "exact: output 0 differs",
    )
    findings = [Finding(f"small-float:{n}", (), text) for n, text in enumerate(texts)]
    found = causes(findings)
    assert list(found.values()) == [["small-float:0", "small-float:1"], ["small-float:2"]]


def test_the_command_line_in_one_process() -> None:
    command = [sys.executable, str(SUPPORT / "fuzz.py"), "--sanitizer", "--only", "small-float:3"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "small-float:3 runs" in found.stdout and "1 small-float: the same" in found.stdout
