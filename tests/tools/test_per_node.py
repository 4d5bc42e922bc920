"""`litegpu inference_diff --per_node` finds the node with an injected error."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest

from litegpu.ops.common import affine, functions
from litegpu.runtime_abi.interpreter import interpreter, set_inputs
from litegpu.tools import cli
from litegpu.tools.inference_diff import per_node as per_node_tool
from litegpu.tools.inference_diff.per_node import PerNode
from litegpu.tools.inference_diff.per_node_text import print_finding
from litegpu.tools.registrar import Delegates
from litegpu.zoo.cuts import CuttableModel
from litegpu.zoo.writer import ModelWriter, Shape, TensorRef
from small_models import convolution, random, step

Finding = dict[str, Any]
RENDER = importlib.import_module("litegpu.codegen.render")
"""The module, whose package has a function of this name."""
QUICK = ("--num_runs=1", "--per_node")
FP16, FP32 = "--precision=fp16", "--precision=fp32"


def pool(writer: ModelWriter, x: TensorRef, size: int = 2) -> TensorRef:
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    windows = {"filter_height": size, "filter_width": size}
    return writer.op("MAX_POOL_2D", [x], [x.shape], options={**options, **windows}, name="pooled")


def pointwise(writer: ModelWriter, x: TensorRef, channels: int) -> TensorRef:
    """Add a 1x1 CONV_2D without an activation."""
    weights = random(channels, 1, 1, x.shape[3], seed=4)
    operands = [x, writer.constant(weights), writer.constant(random(channels, seed=5))]
    sizes = ("stride_h", "stride_w", "dilation_h_factor", "dilation_w_factor")
    options = {"padding": "VALID", **dict.fromkeys(sizes, 1)}
    return writer.op("CONV_2D", operands, [(*x.shape[:3], channels)], options=options)


def branched(wrong: float = 0.0) -> bytes:
    """Return a model of two branches; `wrong` is added to one weight of node 4.

    Nodes: 0 CONV_2D, 1 MAX_POOL_2D, 2 SIN, 3 CONV_2D, 4 MUL by a constant, 5 CONCATENATION,
    6 CONV_2D.
    """
    writer = ModelWriter()
    x = writer.input((1, 8, 6, 4))
    first = convolution(writer, x, 8, seed=1)
    pooled = pool(writer, first)
    wave = step(writer, "SIN", pooled, name="wave")
    other = pointwise(writer, x, 8)
    factors = np.linspace(0.5, 2, 8, dtype=np.float32)
    factors[3] += wrong
    factor = writer.constant(factors, name="factors")
    scaled = writer.op("MUL", [other, factor], [other.shape], name="scaled")
    joined = writer.op(
        "CONCATENATION", [wave, scaled], [(1, 8, 6, 16)], options={"axis": 3}, name="joined"
    )
    writer.output(convolution(writer, joined, 4, seed=3))
    return writer.build()


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.tflite"
    path.write_bytes(branched())
    return str(path)


def per_node(
    capsys: pytest.CaptureFixture[str], model: str, *flags: str, delegate: str = "gpu"
) -> Finding:
    """Return what the tool finds."""
    command = ["inference_diff", model, *QUICK, f"--delegate={delegate}"]
    capsys.readouterr()
    status = cli.main([*command, "--json", *flags])
    found: Finding = json.loads(capsys.readouterr().out)["per_node"]
    assert status == (1 if found else 0)
    return found


def as_finding(found: Finding) -> per_node_tool.Finding:
    """Return the finding that JSON tells of."""
    kinds = {
        "tensors": per_node_tool.TensorRange,
        "kernels": per_node_tool.KernelRecord,
        "trials": per_node_tool.Trial,
    }
    lists = {name: tuple(kind(**each) for each in found[name]) for name, kind in kinds.items()}
    return per_node_tool.Finding(**{**found, **lists})


def helping(found: Finding) -> dict[str, bool]:
    return {trial["flag"]: trial["helps"] for trial in found["trials"]}


def tensors(found: Finding) -> dict[str, Finding]:
    return {each["name"]: each for each in found["tensors"]}


# Who is guilty


def test_a_broken_template(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = RENDER._environment()
    assert environment.loader
    text, *_ = environment.loader.get_source(environment, "small_pool_2d.jinja")
    broken = text.replace("kx in range(kernel[1])", "kx in range(kernel[1] - 1)")
    assert broken != text
    of_broken = jinja2.DictLoader({"small_pool_2d.jinja": broken})
    loader = jinja2.ChoiceLoader([of_broken, environment.loader])
    monkeypatch.setattr(RENDER, "_environment", lambda: environment.overlay(loader=loader))
    found = per_node(capsys, model, FP32)
    assert (found["node"], found["op"], found["nodes"]) == (1, "MAX_POOL_2D", [1])
    assert (found["place"], found["alone"]) == ("GPU", True)
    assert "small_pool_2d" in {kernel["template"] for kernel in found["kernels"]}
    result = tensors(found)["pooled"]
    assert result["role"] == "result" and result["test_high"] <= result["high"]
    assert helping(found)["--last_delegate_node_index=0"]
    assert helping(found)["--first_delegate_node_index=2"]
    assert FP32 not in helping(found)
    # Flags that were given stay, and leave no nodes to some of these.
    only = ("--first_delegate_node_index=1", "--last_delegate_node_index=1")
    found = per_node(capsys, model, FP32, *only, "--min_nodes_per_partition=1")
    assert found["nodes"] == [1]
    assert not [flag for flag in helping(found) if "delegate_node_index" in flag]
    assert not any(trial["failure"] for trial in found["trials"])
    other = per_node(capsys, model, FP32, "--device=0")
    assert not [flag for flag in helping(other) if "--backend" in flag]


def test_a_broken_step_that_is_fused(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = functions.FUNCTIONS["COS"]
    monkeypatch.setitem(functions.FUNCTIONS, "SIN", wrong)
    found = per_node(capsys, model, FP32)
    assert (found["node"], found["op"], found["nodes"]) == (2, "SIN", [2])
    (kernel,) = found["kernels"]
    assert 2 in kernel["nodes"]
    assert tensors(found)["pooled"]["role"] == "input"


def test_a_pass_that_goes_wrong_only_where_nodes_are_fused(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = affine.after

    def twice(*args: Any) -> affine.Operands:
        stored = right(*args)
        return affine.Operands(2 * stored.weights, stored.bias)

    monkeypatch.setattr(affine, "after", twice)
    found = per_node(capsys, model, FP32)
    assert (found["node"], found["nodes"], found["ops"]) == (4, [3, 4], ["CONV_2D", "MUL"])
    assert not found["alone"]
    assert helping(found)["--last_delegate_node_index=2"]


def test_digits_that_half_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = ModelWriter()
    shape: Shape = (1, 512, 1024, 4)
    x = writer.input(shape)
    offset = [writer.constant(np.float32(value)) for value in (3000.0, -3000.0)]
    far = writer.op("ADD", [pool(writer, x), offset[0]], [shape], name="far")
    back = writer.op("ADD", [pool(writer, far), offset[1]], [shape], name="back")
    writer.output(step(writer, "ABS", back))
    path = tmp_path / "digits.tflite"
    path.write_bytes(writer.build())
    found = per_node(capsys, str(path), FP16)
    assert (found["node"], found["nodes"], found["alone"]) == (3, [1, 2, 3], False)
    assert tensors(found)["far"]["float16_step"] == 2
    assert tensors(found)["far"]["role"] == "between"
    assert helping(found)[FP32]
    print_finding(as_finding(found), 0.02)
    words = " ".join(capsys.readouterr().out.split())
    assert "the results agree if each is read" in words
    assert "At float32 it agrees: float16 has steps of 2 at numbers such as 3001 in 'far'." in words


@pytest.fixture
def beyond_half(tmp_path: Path) -> str:
    """A model whose 'far', the result of node 1, is stored as half and reaches a million."""
    writer = ModelWriter()
    shape: Shape = (1, 512, 1024, 4)
    factor = [writer.constant(np.float32(value)) for value in (1e6, 1e-6)]
    near = pool(writer, writer.input(shape))
    far = writer.op("MUL", [near, factor[0]], [shape], name="far")
    writer.output(writer.op("MUL", [pool(writer, far), factor[1]], [shape]))
    path = tmp_path / "far.tflite"
    path.write_bytes(writer.build())
    return str(path)


def test_what_half_cannot_hold_is_noticed_before_anyone_looks(
    beyond_half: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["inference_diff", beyond_half, FP16, *QUICK]) == 0
    assert "float16 overflow in 'far': elements beyond 65504. These values are" in caplog.text
    assert "All outputs are within the tolerance" in capsys.readouterr().out


def test_what_half_cannot_hold_where_that_goes_unnoticed(
    beyond_half: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("litegpu.engine.ranges.RangeWatch.lost", lambda watch: {})
    found = per_node(capsys, beyond_half, FP16)
    assert (found["node"], found["nodes"], found["alone"]) == (2, [1, 2], False)
    assert (found["place"], found["error"]) == ("GPU", pytest.approx(0.93, abs=0.03))
    assert tensors(found)["far"]["float16_step"] is None, "JSON has no infinity"
    assert tensors(found)["far"]["high"] == pytest.approx(1e6, rel=0.01)
    assert helping(found)[FP32]
    tensors(found)["far"]["float16_step"] = float("inf")
    print_finding(as_finding(found), 0.02)
    words = " ".join(capsys.readouterr().out.split())
    assert "At float32 it agrees: float16 ends at 65504, and 'far' has numbers such as 99" in words


def test_a_wrong_weight(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.tflite"
    path.write_bytes(branched(wrong=0.75))
    found = per_node(capsys, str(path), f"--reference={model}")
    assert (found["node"], found["op"], found["nodes"]) == (4, "MUL", [4])
    factors = tensors(found)["factors"]
    assert (factors["role"], factors["difference"], factors["index"]) == ("constant", 0.75, [3])
    assert helping(found)["no delegate at all"] is False


def test_a_wrong_weight_on_the_cpu(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.tflite"
    path.write_bytes(branched(wrong=0.75))
    flags = (f"--reference={model}", "--last_delegate_node_index=2", "--min_nodes_per_partition=1")
    found = per_node(capsys, str(path), *flags)
    assert (found["node"], found["place"], found["kernels"]) == (4, "CPU", [])
    assert list(helping(found)) == ["no delegate at all"]
    found = per_node(capsys, str(path), f"--reference={model}", delegate="xnnpack")
    assert (found["node"], found["place"]) == (4, "CPU")


# Nobody is


def test_two_sides_that_agree(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert per_node(capsys, model, FP32) is None
    assert cli.main(["inference_diff", model, "--delegate=gpu", "--per_node", FP32]) == 0
    text = "INFO: All outputs are within the tolerance, so there is no wrong node to find.\n"
    assert capsys.readouterr().out.endswith(text)


def test_errors_that_no_part_shows(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [random(1, 8, 6, 4)]
    sides = PerNode(branched(), branched(), Delegates((), 1, builtin_kernels=True), inputs)
    assert sides.find(1e-9) is None
    print_finding(None, 1e-9)
    assert "small errors accumulate" in " ".join(capsys.readouterr().out.split())


def test_a_reference_of_other_nodes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = ModelWriter()
    x = writer.input((1, 8, 6, 4))
    writer.output(step(writer, "ABS", x))
    other = tmp_path / "other.tflite"
    other.write_bytes(writer.build())
    command = ["inference_diff", model, "--delegate=gpu", "--num_runs=1", "--per_node"]
    assert cli.main([*command, f"--reference={other}"]) == 1
    error = capsys.readouterr().err
    assert "the reference has 1 nodes, which do not match the 7 of the model one by one" in error
    assert "Leave --per_node out" in error


def test_what_is_printed(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.tflite"
    path.write_bytes(branched(wrong=0.75))
    command = ["inference_diff", str(path), "--delegate=gpu", "--num_runs=1", "--per_node", FP32]
    assert cli.main([*command, f"--reference={model}"]) == 1
    text = capsys.readouterr().out
    words = " ".join(text.split())
    assert "The first node that differs from the CPU is node 4, MUL, on the GPU: its" in words
    assert "The node is also wrong alone, with the CPU's values as inputs." in words
    lines = [line.split() for line in text.splitlines()]
    assert next(line[:6] for line in lines if line[:1] == ["factors"]) == [
        "factors",
        "constant",
        "8",
        "float32",
        "0.5",
        "2",
    ]
    assert any(line[:4] == ["no", "delegate", "at", "all"] and line[-1] == "no" for line in lines)


# Cutting


def test_every_part_of_a_model_computes_what_the_whole_does() -> None:
    content, x = branched(), random(1, 8, 6, 4)
    model = CuttableModel(content)
    assert model.ops[:2] == ["CONV_2D", "MAX_POOL_2D"]
    whole = interpreter(content, builtin_kernels=True, keep_tensors=True)
    set_inputs(whole, [x])
    whole.invoke()
    computed = [t for node in range(7) for t in model.node_outputs[node]]
    values = {t: whole.get_tensor(t) for t in [*model.read_from_outside(range(7)), *computed]}
    for first in range(7):
        for last in range(first, 7):
            nodes = range(first, last + 1)
            outputs = model.read_by_others(nodes)
            assert outputs
            cut = model.cut(nodes, outputs, values)
            part = interpreter(cut.content, builtin_kernels=True)
            for tensor in cut.inputs:
                part.set_tensor(tensor, values[tensor])
            part.invoke()
            for tensor in cut.outputs:
                assert np.array_equal(part.get_tensor(tensor), values[tensor])


def test_a_part_has_only_its_own_constants() -> None:
    content = branched()
    model = CuttableModel(content)
    values = {0: random(1, 8, 6, 4)}
    alone = model.cut([0], model.written_by([0]), values).content
    everything = model.cut(range(7), model.written_by([6]), values).content
    assert len(alone) < len(everything) - 3 * 3 * 8 * 4 * 4
