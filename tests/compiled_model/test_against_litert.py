"""One script gives the same results with LiteRT's CompiledModel and with litegpu's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from every_backend import needs_device
from litegpu import CompiledModelError
from litegpu import compiled_model as ours
from litegpu.backends import BACKENDS
from litegpu.zoo.writer import ModelWriter

theirs = pytest.importorskip("ai_edge_litert.compiled_model", reason="no LiteRT of today")

SHAPE = (1, 2, 3, 4)
X = np.arange(24, dtype=np.float32).reshape(SHAPE)


def two_by_two(signature: bool, batch: int = 1) -> bytes:
    """Return a model of two inputs and two outputs; a signature names them in another order."""
    writer = ModelWriter()
    shape = (batch, *SHAPE[1:])
    a, b = writer.input(shape, name="a"), writer.input(shape, name="b")
    total = writer.op("ADD", [a, b], [shape])
    product = writer.op("MUL", [a, b], [shape])
    writer.output(total, product)
    if signature:
        writer.signature("main", {"second": b, "first": a}, {"product": product, "total": total})
    return writer.build()


def script(module: Any, content: bytes, place: dict[str, Any]) -> list[Any]:
    """Call everything once; return what it gave, or that it raised."""
    model = module.CompiledModel.from_buffer(content, **place)
    key = model.get_signature_by_index(0)["key"]
    names = model.get_signature_list()[key]
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    found: list[Any] = []

    def note(call: Callable[[], Any]) -> None:
        try:
            result = call()
        except Exception as error:
            found.append(error)
            return
        found.append(result.tolist() if isinstance(result, np.ndarray) else result)

    for call in (
        lambda: (key, names, model.get_num_signatures()),
        lambda: [model.get_signature_index(name) for name in (key, "none")],
        lambda: [model.get_input_tensor_details(key), model.get_output_tensor_details(key)],
        lambda: model.get_input_buffer_requirements(1),
        lambda: model.get_output_buffer_requirements(0, 0),
        model.is_fully_accelerated,
        lambda: [each.get_tensor_details() for each in (*inputs, *outputs)],
        lambda: inputs[0].write(X),
        lambda: inputs[1].write(X[::-1] + 1),
        lambda: model.run_by_index(0, inputs, outputs),
        lambda: outputs[0].read(24, np.float32),
        lambda: outputs[1].read(5, np.dtype("float32")),
        lambda: inputs[0].write(X[:, :1]),
        lambda: inputs[0].read(24, np.float32),
        lambda: model.run_by_name(
            key,
            dict(zip(names["inputs"], inputs, strict=True)),
            dict(zip(names["outputs"], outputs, strict=True)),
        ),
        lambda: outputs[0].read(24, np.float32),
        lambda: model.run_by_name(
            key,
            {**dict(zip(names["inputs"], inputs, strict=True)), "other": inputs[0]},
            {**dict(zip(names["outputs"], outputs, strict=True)), "another": outputs[0]},
        ),
        lambda: outputs[1].read(24, np.float32),
        lambda: model.resize_input_tensor_by_name("none", "a", SHAPE),
        lambda: model.resize_input_tensor_by_name(key, "none", SHAPE),
        lambda: model.resize_input_tensor(0, [2, *SHAPE[1:]]),
        lambda: model.resize_input_tensor(9, SHAPE, strict=False),
        lambda: model.get_output_buffer_requirements(5),
        lambda: model.get_input_tensor_details("none"),
        lambda: model.create_input_buffers(4),
        lambda: model.create_input_buffer_by_name(key, "none"),
        lambda: model.run_by_index(0, inputs[:1], outputs),
        lambda: model.run_by_index(0, inputs, outputs[:1]),
        lambda: model.run_by_index(2, inputs, outputs),
        lambda: model.run_by_name("none", {}, {}),
        lambda: model.run_by_name(key, {}, {}),
        lambda: outputs[0].read(30, np.float32),
        lambda: inputs[0].write(np.zeros(30, np.float32)),
        lambda: inputs[0].write(X.astype(np.float64)),
        lambda: inputs[0].write([1.0, 2.0]),
        lambda: module.TensorBuffer.create_from_host_memory(X[:, :, ::2]),
        lambda: module.TensorBuffer.create_from_host_memory([1.0]),
        lambda: model.resize_input_tensor(0, [2, *SHAPE[1:]], strict=False),
        lambda: model.resize_input_tensor(1, [2, *SHAPE[1:]], strict=False),
        lambda: [model.get_input_tensor_details(key), model.get_output_tensor_details(key)],
        lambda: model.run_by_index(0, inputs, outputs),
        lambda: model.create_output_buffer_by_name(key, names["outputs"][1]).get_tensor_details(),
    ):
        note(call)
    larger = [model.create_input_buffer_by_name(key, name) for name in names["inputs"]]
    results = model.create_output_buffers(0)
    for number, buffer in enumerate(larger):
        buffer.write(np.concatenate([X, X + number]))
    note(lambda: model.run_by_index(0, larger, results))
    note(lambda: results[1].read(48, np.float32))
    larger[0].destroy()
    note(lambda: model.run_by_index(0, larger, results))
    model.close()
    note(lambda: results[0].read(3, np.float32))
    note(lambda: module.CompiledModel.from_buffer(b"abc", **place))
    return found


@pytest.mark.parametrize(
    "backend", ["cpu", *(pytest.param(name, marks=needs_device(name)) for name in BACKENDS)]
)
@pytest.mark.parametrize("signature", [False, True], ids=["unnamed", "named"])
def test_a_script_for_litert_gives_the_same(signature: bool, backend: str) -> None:
    on_cpu: dict[str, Any] = {"hardware_accel": ours.HardwareAccelerator.CPU}
    place = on_cpu if backend == "cpu" else {"backend": backend}
    content = two_by_two(signature)
    expected = script(theirs, content, {"hardware_accel": theirs.HardwareAccelerator.CPU})
    found = script(ours, content, place)
    assert len(found) == len(expected) > 40
    for number, (own, other) in enumerate(zip(found, expected, strict=True)):
        if isinstance(other, Exception):
            # All of litegpu's are of both kinds, of which LiteRT has one here and one there.
            assert isinstance(own, CompiledModelError), f"call {number}: {other}"
            assert isinstance(own, type(other)), f"call {number}: {other}"
        else:
            assert own == other, f"call {number}"


@pytest.mark.parametrize("number", [0, 8])
def test_accelerators_that_there_are_not(number: int) -> None:
    for module in (ours, theirs):
        with pytest.raises(RuntimeError):
            module.CompiledModel.from_buffer(two_by_two(False), hardware_accel=number)


def test_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    content = two_by_two(False)
    model = ours.CompiledModel.from_buffer(content)
    default = model.environment
    assert isinstance(default, ours.Environment)
    assert model.environment is default
    shared = ours.CompiledModel.from_buffer(content, environment=default)
    assert shared.environment is default
    assert theirs.CompiledModel.from_buffer(content, 1, environment=default).environment is default
    monkeypatch.setitem(sys.modules, "ai_edge_litert.environment", None)
    assert ours.CompiledModel.from_buffer(content).environment is None


def test_options_of_litert_are_read(caplog: pytest.LogCaptureFixture) -> None:
    gpu = theirs.GpuOptions(enforce_f32=True, benchmark_mode=True)
    options = ours.Options(
        hardware_accelerators=theirs.HardwareAccelerator.GPU | theirs.HardwareAccelerator.CPU,
        cpu_options=ours.CpuOptions(num_threads=2),
        gpu_options=gpu,
    )
    with ours.CompiledModel.from_buffer(two_by_two(False), options=options) as model:
        assert model.report is not None
        assert model.report.precision == "fp32"
    assert "no meaning for litegpu: gpu_options.benchmark_mode" in caplog.text
    with ours.CompiledModel.from_buffer(two_by_two(False), options=ours.Options()) as model:
        assert model.report is None
    for module in (ours, theirs):
        with pytest.raises(ValueError, match="Pass either options or hardware_accel, not both"):
            module.CompiledModel.from_buffer(b"", hardware_accel=1, options=ours.Options())
    assert int(ours.HardwareAccelerator.NPU) == int(theirs.HardwareAccelerator.NPU)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        ours.Nothing  # noqa: B018
