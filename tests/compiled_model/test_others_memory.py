"""Memory of other libraries that is freed, unsupported or absent; tests run separate programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from every_backend import needs_device, on_every_backend
from litegpu import BindingError, CompiledModel, CompiledModelError, GLBuffer, TensorBuffer
from litegpu.backends import dlpack
from robustness.programs import run_program
from simulated_cuda import SimulatedDriver
from small_models import chain

SHAPE = (1, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)

START = """
import os, sys, warnings
import numpy as np
from litegpu import BindingError, CompiledModel, ForkedProcessError, TensorBuffer
from small_models import chain
warnings.simplefilter("ignore")
SHAPE = (1, 4, 4, 4)
x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
model = CompiledModel.from_buffer(chain(["ABS"]), backend=os.environ["LITEGPU_BACKEND"])
(own,) = model.create_input_buffers(memory="device")
outputs = model.create_output_buffers()

def refused(call):
    try:
        call()
    except BindingError as error:
        print(error, flush=True)
    else:
        print("not refused", flush=True)
"""


def printed(source: str, backend: str) -> list[str]:
    """Run a program with a model to its end; return the lines that it prints."""
    ended = run_program(source, backend, start=START)
    assert ended.code == 0, ended.stderr
    return ended.stdout.splitlines()


@needs_device("opencl")
def test_what_pyopencl_releases_stays_for_the_buffer() -> None:
    source = """
    import pyopencl as cl
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    for bound in (False, True):
        theirs = cl.Buffer(own.handle.context, flags, hostbuf=x)
        buffer = TensorBuffer.of(theirs, np.float32, SHAPE)
        if bound:
            model.run_by_index(0, [buffer], outputs)
        theirs.release()
        outputs[0].write(x)
        model.run_by_index(0, [buffer], outputs)
        np.testing.assert_array_equal(outputs[0].read(), abs(x))
        np.testing.assert_array_equal(buffer.read(), x)
    theirs = cl.Buffer(own.handle.context, flags, hostbuf=x)
    buffer = TensorBuffer.of(theirs, np.float32, SHAPE)
    assert theirs.reference_count == 2
    del buffer
    print(theirs.reference_count)
    """
    assert printed(source, "opencl") == ["1"]


@needs_device("webgpu")
def test_a_buffer_of_wgpu_that_is_destroyed_or_mapped() -> None:
    source = """
    import wgpu
    usage, device = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST, own.handle._device
    theirs = device.create_buffer_with_data(data=x, usage=usage)
    mapped = device.create_buffer(size=x.nbytes, usage=usage, mapped_at_creation=True)
    buffer, other = (TensorBuffer.of(each, np.float32, SHAPE) for each in (theirs, mapped))
    model.run_by_index(0, [buffer], outputs)
    theirs.destroy()
    for each in (buffer, other):
        refused(lambda: model.run_by_index(0, [each], outputs))
        refused(lambda: model.submit_by_index(0, [own], [each]).result())
        refused(each.read)
        refused(lambda: each.write(x))
    mapped.unmap()
    other.write(x)
    model.run_by_index(0, [other], outputs)
    np.testing.assert_array_equal(outputs[0].read(), abs(x))
    """
    lines = printed(source, "webgpu")
    assert len(lines) == 8
    for line, state in zip(lines, ["destroyed"] * 4 + ["mapped"] * 4, strict=True):
        assert line.startswith(f"A bound WebGPU buffer is {state}. Unmap a buffer"), line


@needs_device("opengl")
def test_a_buffer_of_opengl_that_is_deleted() -> None:
    pytest.importorskip("moderngl")
    source = """
    import litegpu, moderngl
    application = moderngl.create_standalone_context(backend="egl")
    info = litegpu.share_opengl_context()
    theirs, others = (application.buffer(x.tobytes()) for _ in range(2))
    model = CompiledModel.from_buffer(chain(["ABS"]), backend="opengl", device=info.index)
    buffer = TensorBuffer.of(theirs, np.float32, SHAPE)
    number = TensorBuffer.of(litegpu.GLBuffer(np.int64(others.glo)), np.float32, SHAPE)
    model.run_by_index(0, [buffer], [number])
    theirs.release()
    kept = []
    for _ in range(2):
        refused(lambda: model.run_by_index(0, [buffer], outputs))
        refused(lambda: model.submit_by_index(0, [buffer], outputs).result())
        refused(buffer.read)
        kept.append(application.buffer(x.tobytes()))  # its number may be the same
    others.orphan(16)
    refused(number.read)
    np.testing.assert_array_equal(model(x), abs(x))
    """
    *deleted, smaller = printed(source, "opengl")
    assert len(deleted) == 6
    assert all("bytes is deleted. Do not delete" in line for line in deleted)
    assert "bytes now has 16 bytes. Do not delete" in smaller


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@on_every_backend
def test_a_forked_child_is_told(backend: str) -> None:
    source = """
    own.write(x)
    ended = model.submit(x)
    ended.result()
    future = model.submit(x)
    child = os.fork()
    if not child:
        for call in (own.read, lambda: own.write(x), future.result, future.done, future.wait):
            try:
                call()
            except ForkedProcessError as error:
                assert "before" in str(error) and "forked" in str(error) and "spawn" in str(error)
                print("refused", flush=True)
        assert ended.done() and (ended.result() == abs(x)).all()
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert (future.result() == abs(x)).all() and (own.read() == x).all()
    print("parent works")
    """
    assert printed(source, backend) == ["refused"] * 5 + ["parent works"]


# Elsewhere


class Elsewhere:
    """An array of a library in device memory."""

    def __init__(self, *device: int) -> None:
        self.device = device

    def __dlpack_device__(self) -> tuple[int, ...]:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack.lend(X, 0x100000, X.dtype, SHAPE, self.device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(4, "OPENCL"), (7, "VULKAN"), (8, "METAL"), (10, "ROCM"), (14, "ONEAPI"), (12, "device type")],
)
def test_memory_of_a_device_is_not_the_hosts(kind: int, name: str) -> None:
    with pytest.raises(BindingError, match=rf"Elsewhere is on DLPack's {name} .*3, where lite"):
        TensorBuffer.of(Elsewhere(kind, 3))
    assert len(dlpack._loans) == 0, "it was given back"


# None


@needs_emulator
def test_an_interface_of_cuda_that_tells_nothing(driver: SimulatedDriver) -> None:
    class Array:
        pass

    good = {"typestr": "<f4", "shape": (4,), "data": (0, False)}
    array = Array()
    for wrong in ({}, 3, {**good, "typestr": "zz"}, {**good, "data": None}, {**good, "shape": "a"}):
        array.__cuda_array_interface__ = wrong  # type: ignore[attr-defined]
        with pytest.raises(BindingError, match=r"Array has the __cuda_array_interface__ .*, which"):
            TensorBuffer.of(array)
    array.__cuda_array_interface__ = {**good, "strides": (4, 4)}  # type: ignore[attr-defined]
    with pytest.raises(BindingError, match=r"strides of \[1, 1\] elements is not in C order"):
        TensorBuffer.of(array)
    array.__cuda_array_interface__ = None  # type: ignore[attr-defined]
    with pytest.raises(CompiledModelError, match=r"A Array is neither an array nor a GPU buffer"):
        TensorBuffer.of(array)


ANY: Any = "ab"


def test_an_array_is_taken_as_told() -> None:
    raw = np.zeros(12, np.uint8)
    buffer = TensorBuffer.of(raw, np.float32, (3,))
    assert buffer.dtype == np.float32 and buffer.shape == (3,)
    buffer.array[:] = 1
    np.testing.assert_array_equal(raw.view(np.float32), 1)
    assert TensorBuffer.of(X, shape=(4, 16)).shape == (4, 16)
    with pytest.raises(CompiledModelError, match=r"takes 16 bytes, and the ndarray has 12"):
        TensorBuffer.of(raw, np.float32, (4,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TensorBuffer.of(X, shape=(-1,)), r"shape=\(-1,\): give whole numbers from 0 on"),
        (lambda: TensorBuffer.of(X, None, ANY), r"shape='ab': give whole numbers from 0 on"),
        (lambda: TensorBuffer.of(X, "zz"), r"Unsupported dtype: 'zz'. Give a type of NumPy's"),
        (lambda: TensorBuffer.of(X, object), r"no buffer has elements of object. Convert them"),
        (lambda: TensorBuffer.of(np.array([None])), r"no buffer has elements of object"),
        (lambda: TensorBuffer.of(np.array(["a"])), r"no buffer has elements of <U1"),
        (
            lambda: TensorBuffer.create_from_host_memory(np.zeros(3, "M8[s]")),
            r"no buffer has elements of datetime64\[s\]",
        ),
        (
            lambda: TensorBuffer.create_from_host_memory(X[..., ::2]),
            r"data_array must be C-contiguous",
        ),
        (
            lambda: GLBuffer(ANY),
            r"GLBuffer\('ab'\) is not the name of a buffer: glGenBuffers returns",
        ),
        (lambda: GLBuffer(-1), r"GLBuffer\(-1\) is not the name of a buffer"),
        (lambda: GLBuffer(1 << 32), r"GLBuffer\(4294967296\) is not the name of a buffer"),
    ],
)
def test_what_makes_no_buffer(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((CompiledModelError, BindingError), match=message):
        call()


def test_how_much_is_read() -> None:
    buffer = TensorBuffer.of(X)
    np.testing.assert_array_equal(buffer.read((2, 3), np.float32), X.reshape(-1)[:6].reshape(2, 3))
    np.testing.assert_array_equal(buffer.read(np.int64(3)), X.reshape(-1)[:3])
    assert buffer.read(0).shape == (0,)
    for wrong in (-1, 2.0, "3", (2, -1)):
        with pytest.raises(CompiledModelError, match=r"num_elements=.*: give whole numbers from 0"):
            buffer.read(wrong, np.float32)  # type: ignore[arg-type]
    with pytest.raises(CompiledModelError, match=r"read: 65 elements are more than the 64 that"):
        buffer.read((5, 13))
    with pytest.raises(CompiledModelError, match=r"Unsupported dtype: 'zz'"):
        buffer.read(3, "zz")


@needs_device("opencl")
def test_opencls_read_only_buffers_are_inputs() -> None:
    cl = pytest.importorskip("pyopencl")
    arrays = pytest.importorskip("pyopencl.array")
    with CompiledModel.from_buffer(chain(["ABS"]), backend="opencl") as model:
        (own,) = model.create_input_buffers(memory="device")
        context = own.handle.context
        theirs = cl.Buffer(context, cl.mem_flags.READ_ONLY, X.nbytes)
        buffer = TensorBuffer.of(theirs, np.float32, SHAPE)
        buffer.write(X)  # the host may
        np.testing.assert_array_equal(model(buffer).read(), np.abs(X))
        assert not buffer.writable
        with pytest.raises(CompiledModelError, match=r"Output .* is read-only"):
            model.run_by_index(0, [own], [buffer])
        queue = cl.CommandQueue(context)
        shared = arrays.zeros(queue, 64, np.float32)
        shared.base_data = SimpleNamespace()  # memory of another kind, such as shared virtual one
        with pytest.raises(
            BindingError, match=r"An array is in a Simple.*, which is not an OpenCL buffer"
        ):
            TensorBuffer.of(shared)
