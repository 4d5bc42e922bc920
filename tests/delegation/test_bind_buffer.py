"""Buffers that are bound to tensors of an interpreter."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from every_backend import present
from litegpu import BindingError, GpuDelegate, InterpreterError, TensorBuffer
from litegpu.backends import BACKENDS
from litegpu.zoo.writer import ModelWriter
from small_models import (
    ALL_HALF,
    CPU_ONLY,
    ONE,
    RUNTIME,
    chain,
    interpreter,
    reference,
    scaled,
    step,
)

SHAPE = (1, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


def ends(target: Any) -> tuple[int, int]:
    return target.get_input_details()[0]["index"], target.get_output_details()[0]["index"]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_inputs_and_outputs_are_those_of_buffers(backend: str, kind: str) -> None:
    gpu = GpuDelegate(backend=backend)
    target = interpreter(chain(["ABS", "NEG"]), gpu)
    source, result = ends(target)
    if kind == "host":
        buffers = [TensorBuffer.of(np.zeros(SHAPE, np.float32)) for _ in range(2)]
    else:
        device = BACKENDS[backend].open(0)
        buffers = [TensorBuffer(device.allocate(X.nbytes), np.float32, SHAPE) for _ in range(2)]
    target.set_tensor(source, X * 7)
    target.invoke()
    before = target.get_tensor(result).copy()
    gpu.bind_buffer(target, source, buffers[0])
    gpu.bind_buffer(target, result, buffers[1])
    for scale in (1, 2):
        buffers[0].write(X * scale)
        target.invoke()
        np.testing.assert_array_equal(buffers[1].read(), -np.abs(X * scale))
    np.testing.assert_array_equal(target.get_tensor(result), before)
    for index in (source, result):
        gpu.bind_buffer(target, index, None)
    target.invoke()
    np.testing.assert_array_equal(target.get_tensor(result), -np.abs(X * 7))
    gpu.bind_buffer(target, source, X)
    target.invoke()
    np.testing.assert_array_equal(target.get_tensor(result), -np.abs(X))


def test_what_half_cannot_hold_is_computed_again_from_the_buffer(backend: str) -> None:
    content = scaled()
    x = np.random.default_rng(1).normal(size=(1, 8, 8, 12)).astype(np.float32)
    up, down = np.full(ONE, 1e5, np.float32), np.full(ONE, 1e-5, np.float32)
    gpu = GpuDelegate(backend=backend, **ALL_HALF)
    target = interpreter(content, gpu)
    source, result = ends(target)
    _, first, second = (each["index"] for each in target.get_input_details())
    target.set_tensor(first, up)
    target.set_tensor(second, down)
    (expected,) = reference(content, x, up, down)
    output = TensorBuffer.of(np.zeros_like(expected))
    gpu.bind_buffer(target, source, x)
    gpu.bind_buffer(target, result, output)
    target.invoke()
    np.testing.assert_allclose(output.array, expected, rtol=5e-3)


def test_constants_reach_the_buffer(backend: str) -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    constant = writer.constant(np.arange(64, dtype=np.float16).reshape(SHAPE))
    writer.output(writer.op("NEG", [value], [SHAPE]), writer.op("DEQUANTIZE", [constant], [SHAPE]))
    gpu = GpuDelegate(backend=backend)
    target = interpreter(writer.build(), gpu)
    output = TensorBuffer.of(np.zeros(SHAPE, np.float32))
    gpu.bind_buffer(target, target.get_output_details()[1]["index"], output)
    target.invoke()
    np.testing.assert_array_equal(output.array.reshape(-1), np.arange(64))


def test_what_cannot_be_bound() -> None:
    gpu = GpuDelegate(max_delegated_partitions=2)
    target = interpreter(chain(["ABS", CPU_ONLY, "NEG"]), gpu)
    source, result = ends(target)
    buffer = TensorBuffer.of(np.zeros(SHAPE, np.float32))
    for wrong in (source + 1, 99, -1):
        with pytest.raises(BindingError, match=rf"Tensor {wrong} cannot be bound: only"):
            gpu.bind_buffer(target, wrong, buffer)
    for unlike in (np.zeros(SHAPE), np.zeros((1, 4, 4, 5), np.float32)):
        with pytest.raises(BindingError, match=r"float32 of \[1, 4, 4, 4\], and its buffer float"):
            gpu.bind_buffer(target, source, unlike)
    constant = np.zeros(SHAPE, np.float32)
    constant.flags.writeable = False
    with pytest.raises(BindingError, match=r"is an output, but its buffer is read-only"):
        gpu.bind_buffer(target, result, constant)
    with pytest.raises(InterpreterError, match=r"bind_buffer\(\) takes the interpreter that"):
        gpu.bind_buffer("interpreter", source, buffer)
    with pytest.raises(
        InterpreterError, match=r"Give bind_buffer\(\) an interpreter with the delegate in"
    ):
        gpu.bind_buffer(interpreter(chain(["ABS"])), source, buffer)
    if len(present()) > 1:
        other = next(name for name in present() if name != gpu.device.backend)
        memory = BACKENDS[other].open(0).allocate(X.nbytes)
        with pytest.raises(BindingError, match=rf"for tensor {source} belongs to another device"):
            gpu.bind_buffer(target, source, TensorBuffer(memory, np.float32, SHAPE))
    gpu.bind_buffer(target, source, X)
    target.invoke()


def test_the_tensor_is_that_of_the_interpreter(backend: str) -> None:
    gpu = GpuDelegate(backend=backend)
    targets = [interpreter(chain(["ABS", "NEG"]), gpu) for _ in range(3)]
    source, result = ends(targets[0])
    for scale, target in enumerate(targets, 1):
        target.set_tensor(source, X * scale)
        gpu.bind_buffer(target, source, X * 7 * scale)
    gpu.bind_buffer(targets[1], source, None)
    del target, targets[2]
    gc.collect()
    for target, scale in zip(targets, (7, 2), strict=True):
        target.invoke()
        np.testing.assert_array_equal(target.get_tensor(result), -np.abs(X * scale))
    gpu.bind_buffer(targets[0], source, None)
    targets[0].invoke()
    np.testing.assert_array_equal(targets[0].get_tensor(result), -np.abs(X))


def test_interpreters_that_are_not_allocated_look_alike() -> None:
    gpu = GpuDelegate()
    make = partial(RUNTIME.Interpreter, model_content=chain(["ABS"]), experimental_delegates=[gpu])
    target = make()
    source, result = ends(target)
    gpu.bind_buffer(target, source, X)  # there is no other one
    other = make()
    with pytest.raises(InterpreterError, match=r"2 interpreters use .* Call allocate_tensors\(\)"):
        gpu.bind_buffer(other, source, X * 2)
    other.allocate_tensors()
    gpu.bind_buffer(other, source, X * 2)
    target.allocate_tensors()
    for each, scale in ((target, 1), (other, 2)):
        each.invoke()
        np.testing.assert_array_equal(each.get_tensor(result), np.abs(X) * scale)


def test_a_model_that_only_the_cpu_runs_has_no_tensor_to_bind() -> None:
    gpu = GpuDelegate()
    running = interpreter(chain(["ABS"]), gpu)
    target = interpreter(chain([CPU_ONLY]), gpu)
    with pytest.raises(BindingError, match=r"cannot be bound: .* can be bound, \[\]"):
        gpu.bind_buffer(target, ends(target)[0], X)
    gpu.close()
    with pytest.raises(BindingError, match=r"cannot be bound: .* can be bound, \[\]"):
        gpu.bind_buffer(running, ends(running)[0], X)


def test_streams_are_cudas(backend: str) -> None:
    gpu = GpuDelegate(backend=backend)
    target = interpreter(chain(["ABS"]), gpu)
    source, result = ends(target)
    if backend == "cuda":
        gpu.bind_buffer(target, source, X, stream=0)
        gpu.bind_buffer(target, source, None)
    else:
        with pytest.raises(BindingError, match=r"This device has no streams"):
            gpu.bind_buffer(target, source, X, stream=3)
    target.set_tensor(source, X * 2)
    target.invoke()  # nothing is bound
    np.testing.assert_array_equal(target.get_tensor(result), np.abs(X) * 2)


def test_tensors_that_the_cpu_reads_stay_its_own() -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    negative = writer.op("NEG", [value], [SHAPE])
    writer.output(negative, step(writer, CPU_ONLY, negative))
    gpu = GpuDelegate()
    target = interpreter(writer.build(), gpu)
    source, result = ends(target)
    with pytest.raises(BindingError, match=rf"Tensor {result} cannot be .* bound, \[{source}\]"):
        gpu.bind_buffer(target, result, X)


def test_other_shapes_need_other_buffers() -> None:
    gpu = GpuDelegate()
    target = interpreter(chain(["ABS"]), gpu)
    source, result = ends(target)
    gpu.bind_buffer(target, source, X)
    target.resize_tensor_input(source, (2, 4, 4, 4))
    target.allocate_tensors()
    with pytest.raises(
        RuntimeError, match=rf"Tensor {source} has 512 bytes now, but its bound buffer"
    ):
        target.invoke()
    twice = np.concatenate([X, X])
    gpu.bind_buffer(target, source, twice)
    target.invoke()
    np.testing.assert_array_equal(target.get_tensor(result), np.abs(twice))


def test_a_state_is_the_interpreters(backend: str) -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    writer.output(writer.op("NEG", [value], [SHAPE]))
    gpu = GpuDelegate(backend=backend)
    target = interpreter(writer.build(), gpu)
    (kernel,) = gpu._living()
    source, _ = ends(target)
    kernel.compiled = replace(kernel.compiled, outputs=kernel.compiled.inputs)
    with pytest.raises(BindingError, match=rf"Tensor {source} is a state, which the interpreter"):
        gpu.bind_buffer(target, source, X)
