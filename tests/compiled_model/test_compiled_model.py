"""CompiledModel compared with the interpreter: whole models, split models, whole programs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every_backend import on_every_backend
from litegpu import CompiledModel, CompiledModelError, ForkedProcessError, TensorBuffer
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import resolve_model
from litegpu.zoo.writer import ModelWriter
from places import python_path
from small_models import CPU_ONLY, chain

SHAPE = (1, 4, 4, 4)


def noise(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_interpreter(content: bytes, *inputs: Any) -> list[Any]:
    interpreter = runtime.interpreter(content, builtin_kernels=True)
    runtime.set_inputs(interpreter, list(inputs))
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def runs_directly(model: CompiledModel) -> bool:
    return any(context._runs for context in model._pool.all)


@on_every_backend
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_buffers_are_read_and_written_in_place(backend: str, precision: str) -> None:
    content = chain(["ABS", "NEG"])
    with CompiledModel.from_buffer(content, backend=backend, precision=precision) as model:
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        for seed in range(3):
            inputs[0].array[:] = noise(seed=seed)
            model.run_by_index(0, inputs, outputs)
            (expected,) = by_interpreter(content, noise(seed=seed))
            np.testing.assert_allclose(outputs[0].array, expected, rtol=1e-3)
        assert runs_directly(model)
        own = np.full(SHAPE, np.nan, np.float32)
        model.run_by_index(0, inputs, [TensorBuffer.create_from_host_memory(own)])
        np.testing.assert_array_equal(own, outputs[0].array)
        assert str(model.report)
    assert outputs[0].read(3).tolist() == own.reshape(-1)[:3].tolist()


@on_every_backend
def test_a_model_of_which_the_cpu_runs_a_part(backend: str) -> None:
    content = chain(["ABS", "SQRT", CPU_ONLY, "ABS", "SQRT"])
    with CompiledModel.from_buffer(content, backend=backend) as model:
        assert not model.is_fully_accelerated()
        np.testing.assert_allclose(model(noise()), by_interpreter(content, noise())[0], rtol=1e-5)
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        inputs[0].write(noise())
        model.run_by_index(0, inputs, outputs)
        assert not runs_directly(model)
        np.testing.assert_array_equal(outputs[0].read(), model(noise()))


def test_the_short_way() -> None:
    writer = ModelWriter()
    a, b = writer.input(SHAPE, name="a"), writer.input(SHAPE, name="b")
    writer.output(writer.op("SUB", [a, b], [SHAPE]), writer.op("MUL", [a, b], [SHAPE]))
    x, y = noise(seed=1), noise(seed=2)
    with CompiledModel.from_buffer(writer.build()) as model:
        found = model(x, b=y)
        np.testing.assert_allclose([*found.values()], [x - y, x * y], rtol=1e-6)
        np.testing.assert_allclose([*model(b=y, a=x).values()], [x - y, x * y], rtol=1e-6)
        with pytest.raises(CompiledModelError, match=r"Input 'a' is given twice\. Give it once"):
            model(x, a=x)
        with pytest.raises(CompiledModelError, match=r"'a' has the shape \[1, 4, 4, 4\], and was"):
            model(x[0], y)
        with pytest.raises(CompiledModelError, match="'a' is float32, and was given complex128"):
            model(x.astype(complex), y)


def test_a_model_of_bytes() -> None:
    name = "zoo:mobilenet_v1_0.25_128?weights=int8"
    with CompiledModel.from_file(name) as model:
        (buffer,) = model.create_input_buffers()
        assert buffer.array.dtype == np.int8
        x = np.random.default_rng(0).integers(-128, 127, buffer.array.shape).astype(np.int8)
        expected = by_interpreter(resolve_model(name), x)[0]
        np.testing.assert_array_equal(model(x), expected)


def test_what_cannot_be() -> None:
    content = chain(["ABS"])
    model = CompiledModel.from_buffer(content)
    inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
    wrong = TensorBuffer.create_from_host_memory(np.zeros(SHAPE, np.float64))
    with pytest.raises(CompiledModelError, match=r"Input .* is float32 .* and its buffer float64"):
        model.run_by_index(0, [wrong], outputs)
    with pytest.raises(CompiledModelError, match=r"cannot have the shape \[2, 4, 4, 4\]"):
        model.resize_input_tensor(0, (2, 4, 4, 4))
    with pytest.raises(CompiledModelError, match="map is missing some input"):
        model.run_by_name(model.get_signature_by_index(0)["key"], {}, {})
    inputs[0].destroy()
    inputs[0].destroy()
    assert repr(inputs[0]) == "<TensorBuffer: destroyed>"
    for call in (lambda: inputs[0].array, lambda: model.run_by_index(0, inputs, outputs)):
        with pytest.raises(CompiledModelError, match="TensorBuffer has been destroyed"):
            call()
    model.close()
    model.close()
    with pytest.raises(CompiledModelError, match="The model was closed"):
        model.get_num_signatures()
    with pytest.raises(CompiledModelError, match="The model was closed"):
        model.run_by_index(0, [TensorBuffer.create_from_host_memory(noise())], outputs)
    with pytest.raises(CompiledModelError, match="hardware_accel is NPU alone"):
        CompiledModel.from_buffer(content, hardware_accel=4)
    for number in (0, 8, -1, "gpu"):
        with pytest.raises(CompiledModelError, match=r"hardware_accel is .*. Use CPU \(1\), GPU"):
            CompiledModel.from_buffer(content, hardware_accel=number)  # type: ignore[arg-type]
    for data in (5, "model.tflite", None):
        text = rf"from_buffer takes the bytes of a .tflite file, not {data!r}\. CompiledModel"
        for make in (CompiledModel.from_buffer, CompiledModel):
            with pytest.raises(CompiledModelError, match=text):
                make(data)  # type: ignore[arg-type]
    with CompiledModel.from_buffer(np.frombuffer(content, np.uint8)) as model:  # type: ignore
        assert model.get_num_signatures() == 1
    with pytest.raises(CompiledModelError, match="precision: these are options of the GPU"):
        CompiledModel.from_buffer(content, hardware_accel=1, precision="fp16")
    with pytest.raises(CompiledModelError, match="nowhere"):
        CompiledModel.from_file("/nowhere.tflite")


def test_views_outlive_buffer_and_model() -> None:
    model = CompiledModel.from_buffer(chain(["ABS"]))
    inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
    inputs[0].write(noise())
    model.run_by_index(0, inputs, outputs)
    view = outputs[0].array[0]
    model.close()
    outputs[0].destroy()
    del model, inputs, outputs
    gc.collect()
    np.testing.assert_array_equal(view, np.abs(noise())[0])


def test_threads_share_a_model() -> None:
    wrong: list[int] = []
    with CompiledModel.from_buffer(chain(["ABS", "NEG"])) as model:

        def work(seed: int) -> None:
            for number in range(20):
                x = noise(seed=seed * 100 + number)
                if not np.array_equal(model(x), -np.abs(x)):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told() -> None:
    model = CompiledModel.from_buffer(chain(["ABS"]))
    inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            model.run_by_index(0, inputs, outputs)
        except ForkedProcessError as error:
            status = 0 if "compiled before the process was forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    model.run_by_index(0, inputs, outputs)


PROGRAM = """
import sys, numpy as np
from litegpu import CompiledModel
model = CompiledModel.from_file(sys.argv[1])
inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
inputs[0].array[:] = -2
model.run_by_index(0, inputs, outputs)
print(float(outputs[0].array.sum()))
if sys.argv[2] == "fails":
    raise SystemExit(model.run_by_index(0, [], outputs))
"""


@pytest.mark.parametrize(("way", "status"), [("ends", 0), ("fails", 1)])
def test_a_program_that_just_ends(way: str, status: int, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS"]))
    command = [sys.executable, "-c", PROGRAM, str(path), way]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert (done.stdout, done.returncode) == ("128.0\n", status), done.stderr
    assert ("CompiledModelError: Input buffer size mismatch" in done.stderr) == (way == "fails")
