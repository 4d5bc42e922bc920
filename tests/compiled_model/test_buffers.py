"""Buffers of every kind of memory, of litegpu and of other libraries, on every backend."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from every_backend import needs_device, present
from litegpu import CompiledModel, CompiledModelError, TensorBuffer
from litegpu.backends import BACKENDS
from litegpu.backends.buffers import DeviceBuffer
from litegpu.compiled_model.cached_runs import MAX_RUNS, CachedRuns, key_of
from litegpu.errors import BindingError
from litegpu.zoo.writer import ModelWriter
from simulated_cuda import SimulatedDriver
from small_models import CPU_ONLY, chain

SHAPE = (1, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


class OnGPU:
    """A GPU array with the interface of PyTorch or CuPy."""

    def __init__(self, buffer: TensorBuffer, **changes: Any) -> None:
        self.buffer, self.changes = buffer, changes
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        self.streams.append(stream)
        return self.buffer.__dlpack__()


class OfNumba:
    """A GPU array with the interface of Numba."""

    def __init__(self, buffer: TensorBuffer, **changes: Any) -> None:
        self.owner = buffer
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, **changes}


@pytest.mark.parametrize("memory", ["host", "pinned", "device"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_kind_of_memory(backend: str, memory: str, precision: str) -> None:
    with CompiledModel.from_buffer(
        chain(["ABS", "NEG"]), backend=backend, precision=precision
    ) as model:
        inputs = model.create_input_buffers(memory=memory)
        outputs = model.create_output_buffers(memory=memory)
        assert {each.kind for each in (*inputs, *outputs)} == {memory}
        assert not outputs[0].read().any()
        for scale in (1, 3):
            inputs[0].write(X * scale)
            model.run_by_index(0, inputs, outputs)
            np.testing.assert_allclose(outputs[0].read(), -np.abs(X * scale), rtol=1e-3)
        np.testing.assert_allclose(outputs[0].read(5), -np.abs(X * 3).reshape(-1)[:5], rtol=1e-3)
        assert outputs[0].get_tensor_details() == {"dtype": "float32", "shape": [*SHAPE]}
        model(X)
        key = model.get_signature_by_index(0)["key"]
        one = model.create_input_buffer_by_name(key, "input", memory)
        assert one.kind == memory
    view = outputs[0].read()
    assert view.any()


def test_memory_of_a_device_is_copied_only_on_request(backend: str) -> None:
    with CompiledModel.from_buffer(chain(["ABS"]), backend=backend) as model:
        (buffer,) = model.create_input_buffers(memory="device")
        assert repr(buffer) == "<TensorBuffer: float32 [1, 4, 4, 4] on a device>"
        assert isinstance(buffer.memory, DeviceBuffer)
        assert buffer.handle == buffer.memory.handle
        with pytest.raises(
            CompiledModelError, match=r"is on a device. Copy the elements with read\(\) and"
        ):
            buffer.array  # noqa: B018
        with pytest.raises(CompiledModelError, match=r"There is no memory 'gpu'. Use one of"):
            model.create_input_buffers(memory="gpu")
        result = model(buffer)
        assert isinstance(result, TensorBuffer)
        assert result.kind == "device"
        found = model.submit(buffer).result()
        assert not found.read().any()


def test_a_small_write_leaves_the_rest(backend: str) -> None:
    with CompiledModel.from_buffer(chain(["ABS"]), backend=backend) as model:
        (buffer,) = model.create_input_buffers(memory="device")
        buffer.write(X)
        buffer.write(np.array([7, 8, 9], np.float32))
        expected = X.reshape(-1).copy()
        expected[:3] = 7, 8, 9
        np.testing.assert_array_equal(buffer.read().reshape(-1), expected)


def test_numpy_takes_buffers(backend: str) -> None:
    with CompiledModel.from_buffer(chain(["ABS"]), backend=backend) as model:
        for memory in ("host", "device"):
            (buffer,) = model.create_input_buffers(memory=memory)
            buffer.write(X)
            np.testing.assert_array_equal(np.asarray(buffer), X)
            assert np.asarray(buffer, np.float64).dtype == np.float64
            assert np.shares_memory(np.asarray(buffer), np.asarray(buffer)) == (memory == "host")
            copied = buffer.__array__(copy=True)
            copied[:] = 0
            np.testing.assert_array_equal(buffer.read(), X)
        with pytest.raises(ValueError, match=r"requires a copy of the buffer"):
            buffer.__array__(copy=False)


@pytest.mark.parametrize("memory", ["host", "device"])
def test_an_output_that_is_named_twice(backend: str, memory: str) -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    once, other = (writer.op(name, [value], [SHAPE]) for name in ("NEG", "ABS"))
    writer.output(once, other, once)
    with CompiledModel.from_buffer(writer.build(), backend=backend) as model:
        outputs = model.create_output_buffers(memory=memory)
        inputs = model.create_input_buffers()
        inputs[0].write(X)
        model.run_by_index(0, inputs, outputs)
        for buffer, expected in zip(outputs, (-X, np.abs(X), -X), strict=True):
            np.testing.assert_array_equal(buffer.read(), expected)


def test_results_that_depend_on_no_input_reach_a_device(backend: str) -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    constant = writer.constant(np.arange(64, dtype=np.float16).reshape(SHAPE))
    writer.output(writer.op("NEG", [value], [SHAPE]), writer.op("DEQUANTIZE", [constant], [SHAPE]))
    with CompiledModel.from_buffer(writer.build(), backend=backend) as model:
        outputs = model.create_output_buffers(memory="device")
        inputs = model.create_input_buffers()
        inputs[0].write(X)
        model.run_by_index(0, inputs, outputs)
        np.testing.assert_array_equal(outputs[0].read(), -X)
        np.testing.assert_array_equal(outputs[1].read().reshape(-1), np.arange(64))


# Other libraries


def test_arrays_of_the_host_are_lent_both_ways() -> None:
    own = X.copy()
    buffer = TensorBuffer.from_dlpack(OfNobody(own))
    assert np.shares_memory(buffer.array, own)
    lent = np.from_dlpack(buffer)
    assert np.shares_memory(lent, own)
    del buffer, own
    gc.collect()
    np.testing.assert_array_equal(lent, X)
    assert TensorBuffer.of(X).kind == "host"


class OfNobody:
    """An array of an unknown library."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@needs_emulator
def test_arrays_on_a_gpu_go_in_and_come_out(driver: SimulatedDriver) -> None:
    with CompiledModel.from_buffer(chain(["ABS", "NEG"]), backend="cuda") as model:
        (theirs,) = model.create_input_buffers(memory="device")
        theirs.write(X)
        for array in (OnGPU(theirs), OfNumba(theirs), OfNumba(theirs, stream=1)):
            before = len(driver.calls)
            result = model(array)
            calls = driver.calls[before:]
            assert isinstance(result, TensorBuffer)
            assert result.__dlpack_device__() == (2, 0)
            facts = result.__cuda_array_interface__
            assert facts["shape"] == SHAPE
            assert facts["typestr"] == "<f4"
            assert facts["data"] == (result.handle, False)
            np.testing.assert_array_equal(result.read(), -np.abs(X))
            ordered = not isinstance(array, OfNumba) or array.__cuda_array_interface__["stream"]
            # The GPU waits for the stream; the host does not.
            assert ("cuStreamWaitEvent" in calls) == bool(ordered)
            assert "cuEventSynchronize" not in calls
            if isinstance(array, OnGPU):
                assert array.streams[0] not in (None, 0)
        again = TensorBuffer.from_dlpack(result)
        del result, array
        gc.collect()
        np.testing.assert_array_equal(again.read(), -np.abs(X))
        again.write(X)
        np.testing.assert_array_equal(again.read(), X)
    del again, theirs
    gc.collect()
    assert not driver.faults


@needs_emulator
def test_a_run_begins_after_what_is_on_a_stream(driver: SimulatedDriver) -> None:
    with CompiledModel.from_buffer(chain(["ABS"]), backend="cuda") as model:
        inputs = model.create_input_buffers(memory="device")
        outputs = model.create_output_buffers(memory="device")
        inputs[0].write(X)
        streams = (5, SimpleNamespace(cuda_stream=5), SimpleNamespace(ptr=5))
        for stream in (*streams, SimpleNamespace(__cuda_stream__=lambda: (0, 5))):
            before = len(driver.calls)
            model.run_by_index(0, inputs, outputs, stream)
            order = ["cuEventRecord", "cuStreamWaitEvent", "cuGraphLaunch"]
            order += ["cuStreamSynchronize", "cuCtxPopCurrent"]
            assert driver.calls[-len(order) :] == order
            assert len(driver.calls) > before
            np.testing.assert_array_equal(outputs[0].read(), np.abs(X))
        future = model.submit_by_index(0, inputs, outputs, stream=5)
        assert future.result() is None
        with pytest.raises(BindingError, match=r"A str is no stream"):
            model.run_by_index(0, inputs, outputs, "5")


@needs_emulator
def test_what_a_gpus_array_cannot_be(driver: SimulatedDriver) -> None:
    with CompiledModel.from_buffer(chain(["ABS"]), backend="cuda") as model:
        (theirs,) = model.create_input_buffers(memory="device")
        outputs = model.create_output_buffers(memory="device")
        for changes, message in (
            ({"strides": (16, 4, 1, 4)}, r"strides of \[4, 1, 0, 1\] elements is not in C order"),
            ({"mask": theirs}, "The array is masked"),
        ):
            with pytest.raises(BindingError, match=message):
                TensorBuffer.of(OfNumba(theirs, **changes))
        wrong = TensorBuffer.of(OfNumba(theirs, typestr="<i4"))
        with pytest.raises(CompiledModelError, match=r"is float32 .* and its buffer int32"):
            model.run_by_index(0, [wrong], outputs)
        with pytest.raises(CompiledModelError, match=r"shape \[1, 4, 4, 4\], and was given \[64\]"):
            model(OfNumba(theirs, shape=(64,)))
        constant = TensorBuffer.of(OfNumba(theirs, data=(theirs.handle, True)))
        with pytest.raises(CompiledModelError, match=r"Output .* is read-only"):
            model.run_by_index(0, [theirs], [constant])
        with pytest.raises(CompiledModelError, match=r"is read-only"):
            constant.write(X)
        with pytest.raises(BufferError, match=r"is read-only"):
            constant.__dlpack__()
        for keywords in ({"copy": True}, {"dl_device": (1, 0)}):
            with pytest.raises(BufferError, match=r"exports its own memory without a copy"):
                theirs.__dlpack__(**keywords)
        if "opencl" in present():
            other = TensorBuffer(BACKENDS["opencl"].open(0).allocate(256), np.float32, SHAPE)
            with pytest.raises(BindingError, match=r"belongs to another device"):
                model.run_by_index(0, [other], outputs)


@needs_device("opencl")
def test_arrays_and_buffers_of_pyopencl() -> None:
    cl = pytest.importorskip("pyopencl")
    arrays = pytest.importorskip("pyopencl.array")
    with CompiledModel.from_buffer(chain(["ABS"]), backend="opencl") as model:
        (own,) = model.create_input_buffers(memory="device")
        context = own.handle.context
        queue = cl.CommandQueue(context)
        array = arrays.to_device(queue, np.concatenate([np.zeros(4, np.float32), X.reshape(-1)]))
        part = array[4:].reshape(SHAPE)
        result = model(part)
        assert isinstance(result.handle, cl.Buffer)
        np.testing.assert_array_equal(result.read(), np.abs(X))
        target = arrays.zeros(queue, 64, np.float32)
        queue.finish()  # a buffer by itself does not tell what its queue still does to it
        outputs = [TensorBuffer.of(target.base_data, np.float32, SHAPE)]
        model.run_by_index(0, [TensorBuffer.of(part)], outputs)
        np.testing.assert_array_equal(target.get(), np.abs(X).reshape(-1))
        with pytest.raises(CompiledModelError, match=r"Buffer has no type of elements and no"):
            TensorBuffer.of(target.base_data)
        with pytest.raises(CompiledModelError, match=r"takes 512 bytes, and the Buffer has 256"):
            TensorBuffer.of(target.base_data, np.float32, (128,))
        with pytest.raises(BindingError, match=r"is not in C order without gaps. Copy it: array"):
            TensorBuffer.of(arrays.to_device(queue, np.asfortranarray(np.zeros((3, 4)))))
        foreign = cl.Buffer(cl.Context(context.devices), cl.mem_flags.READ_WRITE, 256)
        with pytest.raises(BindingError, match=r"belongs to another OpenCL context than litegpu's"):
            TensorBuffer.of(foreign, np.float32, SHAPE)
        with pytest.raises(BufferError, match=r"is on opencl:0 .*, which DLPack does not"):
            own.__dlpack__()
        assert not hasattr(own, "__cuda_array_interface__")
        with pytest.raises(BindingError, match=r"This device has no streams"):
            model.run_by_index(0, [own], outputs, stream=0)


@needs_device("webgpu")
def test_buffers_of_wgpu() -> None:
    wgpu = pytest.importorskip("wgpu")
    with CompiledModel.from_buffer(chain(["ABS"]), backend="webgpu") as model:
        (own,) = model.create_input_buffers(memory="device")
        device = own.handle._device
        usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        buffer = device.create_buffer_with_data(data=X, usage=usage)
        given = TensorBuffer.of(buffer, np.float32, SHAPE)
        np.testing.assert_array_equal(model(given).read(), np.abs(X))
        useless = device.create_buffer(size=256, usage=wgpu.BufferUsage.COPY_DST)
        with pytest.raises(BindingError, match=r"has the usage .*, which does not permit copies"):
            TensorBuffer.of(useless, np.float32, SHAPE)
        other = wgpu.gpu.request_adapter_sync().request_device_sync()
        foreign = other.create_buffer(size=256, usage=usage)
        with pytest.raises(BindingError, match=r"belongs to another WebGPU device than litegpu's"):
            TensorBuffer.of(foreign, np.float32, SHAPE)


def test_what_is_no_memory() -> None:
    with pytest.raises(CompiledModelError, match=r"A dict is neither an array nor a GPU buffer"):
        TensorBuffer.of({})
    with pytest.raises(CompiledModelError, match=r"A dict has no `__dlpack__`. Use TensorBuffer"):
        TensorBuffer.from_dlpack({})
    with pytest.raises(BindingError, match=r"is not in C order without gaps"):
        TensorBuffer.of(OfNobody(np.zeros((4, 4))[:, ::2]))
    with pytest.raises(
        BindingError, match=r"DLPack's type 5 with 128 bits|does not export its memory"
    ):
        TensorBuffer.of(OfNobody(np.zeros(4, np.longdouble)))


def test_memory_that_may_only_be_read() -> None:
    constant = X.copy()
    constant.flags.writeable = False
    buffer = TensorBuffer.create_from_host_memory(constant)
    with CompiledModel.from_buffer(chain(["ABS"])) as model:
        inputs = model.create_input_buffers()
        np.testing.assert_array_equal(model(constant), np.abs(X))
        with pytest.raises(CompiledModelError, match=r"Output .* is read-only"):
            model.run_by_index(0, inputs, [buffer])
        with pytest.raises(CompiledModelError, match=r"is read-only"):
            buffer.write(X)
        with pytest.raises(ValueError, match=r"read-only"):
            buffer.array[:] = 0


def test_what_is_no_buffer() -> None:
    with CompiledModel.from_buffer(chain(["ABS"])) as model:
        outputs = model.create_output_buffers()
        for wrong in (X, None, "text"):
            with pytest.raises(CompiledModelError, match=r"is not a litegpu TensorBuffer. Create"):
                model.run_by_index(0, [wrong], outputs)  # type: ignore[list-item]
        assert model.get_num_signatures() == 1


def test_a_device_holds_nothing_for_what_the_cpu_runs() -> None:
    with CompiledModel.from_buffer(chain(["ABS", CPU_ONLY, "ABS"])) as model:
        with pytest.raises(
            CompiledModelError, match=r"requires that the GPU runs the whole model; the report"
        ):
            model.create_input_buffers(memory="device")
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        with pytest.raises(BindingError, match=r"`stream` requires that one partition on"):
            model.run_by_index(0, inputs, outputs, stream=0)


def test_buffers_that_nobody_holds_leave_nothing() -> None:
    with CompiledModel.from_buffer(chain(["ABS"])) as model:
        (context,) = model._pool.all
        for _ in range(3):
            inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
            model.run_by_index(0, inputs, outputs)
            assert len(context._runs) == 1
            inputs[0].destroy()
            assert not context._runs
        for _ in range(3):
            model.run_by_index(0, model.create_input_buffers(), outputs)
            gc.collect()
            assert not context._runs
        assert len(outputs[0]._users) == 1


def test_many_buffers_in_turns_are_prepared_once() -> None:
    with CompiledModel.from_buffer(chain(["ABS"])) as model:
        (context,) = model._pool.all
        ends = [(model.create_input_buffers(), model.create_output_buffers()) for _ in range(24)]
        with mock.patch.object(context, "prepared", wraps=context.prepared) as prepared:
            for _ in range(3):
                for inputs, outputs in ends:
                    model.run_by_index(0, inputs, outputs)
        assert prepared.call_count == len(ends)


def test_the_run_that_was_not_used_for_the_longest_time_is_dropped() -> None:
    runs, buffers = CachedRuns[int](), [TensorBuffer.of(X.copy())]
    keys = [key_of(index, buffers, [], None) for index in range(MAX_RUNS + 1)]
    for number, key in enumerate(keys[:-1]):
        runs.add(key, number, buffers)
    assert runs.find(keys[0]) == 0
    runs.add(keys[-1], MAX_RUNS, buffers)
    assert [runs.find(key) for key in (keys[0], keys[1], keys[-1])] == [0, None, MAX_RUNS]
    assert len(runs) == MAX_RUNS


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_buffer_keeps_no_model(backend: str, chunks: int, closed: bool) -> None:
    shape = (2, *SHAPE[1:])
    (inputs, outputs) = ([TensorBuffer.of(np.zeros(shape, np.float32))] for _ in range(2))
    model = CompiledModel.from_buffer(chain(["ABS"], shape), backend=backend, chunks=chunks)
    model.run_by_index(0, inputs, outputs)
    instance = weakref.ref(model._main)
    if closed:
        model.close()
    del model
    gc.collect()
    assert instance() is None
    assert not inputs[0]._users
    assert not outputs[0]._users
