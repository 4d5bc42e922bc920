"""Models rebuilt in PyTorch for the benchmarks give what the CPU's kernels give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cases
from benchmark_modules import load_benchmark
from litegpu.graph import Quantization
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo import load, names
from op_runner import write
from small_models import chain

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

TOLERANCE = 1e-4
LEFT_OUT = (
    r"RESIZE_BILINEAR with neither aligned corners nor pixel centers\.",
    r"STRIDED_SLICE with new axes, an ellipsis or offsets\.",
    r"STRIDED_SLICE that goes backwards\.",
    r"\w+ of computed values of different ranks\.",
    r"\w+ \(node \d+\) has no PyTorch layer here\.",
    r"\w+ with computed input \d\.",
    r"\w+ \(node \d+\) has over 4 dimensions\.",
    r"\w+ \(node \d+\) is quantized\.",
    r"Output '[^']+' is a constant\.",
)
"""Why a case of the op table may have no counterpart."""


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("torch_models", monkeypatch)


@pytest.fixture
def read_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("model_graph", monkeypatch).read_model


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("measuring", monkeypatch)


def rebuilt(network: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run a network as it is benchmarked: in channels_last, without gradients."""
    network = network.eval().to(memory_format=torch.channels_last)
    with torch.inference_mode():
        return [result.numpy() for result in network(*map(torch.from_numpy, inputs))]


def compare(converter: Any, measuring: Any, graph: Any, content: bytes) -> dict[str, Any]:
    """Return the errors of a rebuilt model against the CPU's built-in kernels."""
    network = converter.TorchModel(graph)
    reference = interpreter(content, builtin_kernels=True)
    inputs = measuring.make_inputs(reference, None)
    expected = measuring.call(reference, inputs)
    found: dict[str, Any] = measuring.errors(rebuilt(network, inputs), expected)
    return found


@pytest.mark.parametrize("name", [n for n in names() if "ssd" not in n])
def test_zoo_models_agree(converter: Any, measuring: Any, read_model: Any, name: str) -> None:
    content = load(name)
    found = compare(converter, measuring, read_model(content), content)
    assert found["finite"]
    assert max(found["max_error"], found["norm_error"]) < TOLERANCE


def test_the_float_part_of_a_detector_agrees(converter: Any, read_model: Any) -> None:
    content = load("zoo:ssd_mobilenet_v1_300?width=0.25&size=96")
    graph = read_model(content)
    with pytest.raises(
        converter.NotExpressibleError,
        match=r"^TFLite_Detection_PostProcess \(node 63\) has no PyTorch layer here\.$",
    ):
        converter.TorchModel(graph)
    decode = graph.nodes[-1]
    parts = tuple(v for v in decode.inputs if not graph.values[v].is_constant)
    part = replace(graph, nodes=graph.nodes[:-1], outputs=parts)
    target = interpreter_with_all_values(content)
    (detail,) = target.get_input_details()
    image = np.random.default_rng(0).uniform(-1, 1, detail["shape"]).astype(np.float32)
    target.set_tensor(detail["index"], image)
    target.invoke()
    for value, got in zip(parts, rebuilt(converter.TorchModel(part), [image]), strict=True):
        np.testing.assert_allclose(got, target.get_tensor(value), rtol=0, atol=TOLERANCE)


def interpreter_with_all_values(content: bytes) -> Any:
    """Return an interpreter whose intermediate tensors can be read."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    target = Interpreter(
        model_content=content,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    target.allocate_tensors()
    return target


def test_op_cases_agree(converter: Any, measuring: Any, read_model: Any) -> None:
    compared: set[str] = set()
    for case in cases.TABLE.values():
        if isinstance(case, cases.base.NumpyCase):
            continue  # the runtime does not have the operation either
        written = write((case,))
        try:
            graph = read_model(written.reference)
            found = compare(converter, measuring, graph, written.reference)
        except converter.NotExpressibleError as error:
            assert any(re.fullmatch(text, str(error)) for text in LEFT_OUT), case.name
            continue
        except RuntimeError:
            continue  # the CPU refuses what benchmarks give it: a divisor of 0
        if case.name.startswith("Unary-op=RSQRT"):
            continue  # benchmarks give it negative numbers
        assert found["max_error"] < TOLERANCE, case.name
        compared |= written.ops
    assert compared >= converter._BUILDERS.keys()


def test_symmetric_padding_keeps_the_shapes(converter: Any, read_model: Any) -> None:
    graph = read_model(load("zoo:mobilenet_v1_0.25_128?size=64"))
    image = np.zeros((1, 64, 64, 3), np.float32)
    uneven, even = (converter.TorchModel(graph, symmetric) for symmetric in (False, True))
    assert (uneven.changed, even.changed) == (False, True)
    pads = [sum(isinstance(m, torch.nn.ConstantPad2d) for m in n.modules()) for n in (uneven, even)]
    assert pads == [5, 0]
    (a,), (b,) = rebuilt(uneven, [image]), rebuilt(even, [image])
    assert a.shape == b.shape


def test_explicit_padding_becomes_that_of_the_layers(converter: Any, read_model: Any) -> None:
    """As in the ResNet of torchvision: its maximum follows a RELU, so it may pad too."""
    network = converter.TorchModel(read_model(load("zoo:resnet50?size=32")))
    stem, pool = network.layers[0][0], network.layers[1]
    assert (stem.kernel_size, stem.stride, stem.padding) == ((7, 7), (2, 2), (3, 3))
    assert (pool.kernel_size, pool.stride, pool.padding) == ((3, 3), (2, 2), (1, 1))


def test_quantised_models_are_refused(converter: Any, read_model: Any) -> None:
    graph = read_model(chain(["RELU"]))
    (v,) = graph.outputs
    quantised = replace(graph.values[v], quantization=Quantization((0.5,), (0,)))
    graph = replace(graph, values={**graph.values, v: quantised})
    with pytest.raises(converter.NotExpressibleError, match=r"^RELU \(node 0\) is quantized\.$"):
        converter.TorchModel(graph)
