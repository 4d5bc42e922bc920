"""Executables, contexts, buffers and events on every backend."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from backend_suite import (
    ADD,
    CELL,
    FLOATS,
    Floats,
    adding,
    cell,
    floats,
    kernel,
    launch,
    program,
    ready,
    run,
)
from cuda_emulator import needs_emulator
from every_backend import needs_device, open_device
from litegpu import backends
from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings, Buffer, DeviceBuffer, HostBuffer, MemoryKind
from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.backends.program import BufferRange, Program
from litegpu.errors import BindingError, ExecutionError
from simulated_cuda import SimulatedDriver, put_in_place

SIMULATED = "cuda on the CPU"
KINDS = list(MemoryKind)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    return put_in_place(monkeypatch)


@pytest.fixture(params=[*backends.BACKENDS, pytest.param(SIMULATED, marks=needs_emulator)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == SIMULATED:
        request.getfixturevalue("driver")
        return backends.BACKENDS["cuda"].open(0)
    return open_device(request.param)


def weighted() -> tuple[Program, Floats]:
    """Return a program that adds constants to its input, and these."""
    constants = floats(9)
    text = kernel("add", ADD, ("src", "other"))
    return program([text], [launch("add", 1, 0, cell(0, True))], [0], [1], constants), constants


# Executables and their contexts


def test_contexts_share_an_executable(device: Device) -> None:
    wanted, constants = weighted()
    executable = device.compile(wanted)
    contexts = [executable.context() for _ in range(3)]
    for number in range(4):
        for index, context in enumerate(contexts):
            x = floats(10 * number + index)
            np.testing.assert_array_equal(run(context, [x])[0], x + constants)
    memory = [context.read_memory().view(np.float32)[:FLOATS] for context in contexts]
    for index, array in enumerate(memory):
        np.testing.assert_array_equal(array, floats(30 + index), "each has memory of its own")
    for context in contexts:
        context.close()
    executable.close()


def test_an_executable_stays_for_the_contexts_that_it_has(device: Device) -> None:
    wanted, constants = weighted()
    executable = device.compile(wanted)
    first, second = executable.context(), executable.context()
    executable.close()
    executable.close()
    with pytest.raises(ExecutionError, match=r"This executable was released\. Compile its pro"):
        executable.context()
    del executable
    first.close()
    gc.collect()
    np.testing.assert_array_equal(run(second, [floats()])[0], floats() + constants)
    second.close()
    second.close()


def test_contexts_of_an_executable_in_threads(device: Device) -> None:
    wanted, constants = weighted()
    executable = device.compile(wanted)
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            context = executable.context()
            for number in range(20):
                x = floats(seed * 100 + number)
                if not np.array_equal(run(context, [x])[0], x + constants):
                    wrong.append(f"thread {seed}, run {number}")
            context.close()
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    executable.close()
    assert not wrong


@needs_emulator
def test_constants_are_on_a_gpu_once(driver: SimulatedDriver) -> None:
    wanted, _ = weighted()
    device = backends.BACKENDS["cuda"].open(0)
    executable = device.compile(wanted)
    uploads = driver.calls.count("cuMemcpyHtoD"), driver.calls.count("cuModuleLoadData")
    assert uploads == (1, 1)
    before = driver.calls.count("cuMemAlloc")
    contexts = [executable.context() for _ in range(3)]
    assert driver.calls.count("cuMemAlloc") - before == 3, "the memory of each"
    assert (driver.calls.count("cuMemcpyHtoD"), driver.calls.count("cuModuleLoadData")) == uploads
    executable.close()
    for number, context in enumerate(contexts):
        context.close()
        assert ("cuModuleUnload" in driver.calls) == (number == 2)
    assert driver.live == {} and driver.faults == []


@needs_device("opencl")
def test_constants_are_in_an_opencl_context_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    real, uploaded, computed = cl.Buffer, list[int](), list[int]()

    def spy(context: object, flags: int, *arguments: object, **named: object) -> object:
        (uploaded if "hostbuf" in named else computed).append(flags)
        return real(context, flags, *arguments, **named)

    monkeypatch.setattr(cl, "Buffer", spy)
    executable = open_device("opencl").compile(weighted()[0])
    contexts = [executable.context() for _ in range(3)]
    assert (len(uploaded), len(computed)) == (1, 3)
    for context in contexts:
        context.close()
    executable.close()


# Buffers


def filled(device: Device, kind: MemoryKind, data: Floats) -> Buffer:
    buffer = device.allocate(data.nbytes, kind)
    buffer.write(data)
    return buffer


@pytest.mark.parametrize(
    "kinds", [*product(KINDS, KINDS)], ids=lambda kinds: f"{kinds[0].name}-{kinds[1].name}"
)
def test_runs_between_all_kinds_of_buffers(
    device: Device, kinds: tuple[MemoryKind, MemoryKind]
) -> None:
    context = ready(device, adding(3))
    source = filled(device, kinds[0], floats())
    target = filled(device, kinds[1], np.full(FLOATS, -7, np.float32))
    submission = context.bind(Bindings((source,), (target,)))
    for seed in range(3):
        source.write(floats(seed))
        if seed == 1:
            assert submission.submit().wait()
        else:
            submission.run()
        got = target.read().view(np.float32)
        np.testing.assert_array_equal(got, floats(seed) + 1 + 1 + 1)
    context.close()
    for buffer in (source, target):
        buffer.close()
        buffer.close()


def test_data_stays_on_the_device_between_programs(device: Device) -> None:
    first, second = ready(device, adding(1)), ready(device, adding(2))
    between = device.allocate(CELL)
    first.run(Bindings((HostBuffer.of(floats()),), (between,)))
    result = np.zeros(FLOATS, np.float32)
    second.run(Bindings((between,), (HostBuffer.of(result),)))
    np.testing.assert_array_equal(result, floats() + 1 + 1 + 1)
    first.close()
    second.close()


def test_mixed_buffers_and_parts_of_one(device: Device) -> None:
    launched = launch("add", 3, 1, 2)
    wanted = program([kernel("add", ADD, ("src", "other"))], [launched], [2, 1], [3, 1])
    context = ready(device, wanted)
    whole = device.allocate(4 * CELL)
    whole.write(np.concatenate([floats(i) for i in range(4)]))
    assert isinstance(whole, DeviceBuffer | HostBuffer)
    if isinstance(whole, HostBuffer):
        pytest.skip("this device has no memory of its own")
    back = np.zeros(FLOATS, np.float32)
    inputs = (whole.part(CELL, CELL), HostBuffer.of(floats(7)))
    context.run(Bindings(inputs, (whole.part(3 * CELL, CELL), HostBuffer.of(back))))
    array = whole.read().view(np.float32).reshape(4, FLOATS)
    np.testing.assert_array_equal(array[:3], [floats(i) for i in range(3)], "not touched")
    np.testing.assert_array_equal(array[3], floats(1) + floats(7))
    np.testing.assert_array_equal(back, floats(7))
    np.testing.assert_array_equal(whole.part(CELL, CELL).read().view(np.float32), floats(1))
    context.close()


def test_sizes_that_are_no_words(device: Device) -> None:
    """For small types such as bool, no bytes beyond the buffer are copied."""
    part = BufferRange(False, 0, 5)
    context = ready(device, Program((), (), CELL, np.zeros(0, np.uint8), (part,), (part,)))
    data = np.arange(1, 6, dtype=np.uint8)
    for kind in KINDS:
        source, target = device.allocate(5, kind), device.allocate(5, kind)
        source.write(data)
        context.run(Bindings((source,), (target,)))
        np.testing.assert_array_equal(target.read(), data)
        target.write(np.full(3, 9, np.uint8))
        np.testing.assert_array_equal(target.read(), [9, 9, 9, 4, 5])
    context.close()


def test_memory_of_a_context_that_needs_no_copying(device: Device) -> None:
    context = ready(device, adding(2))
    pinned = context.pinned()
    if pinned is None:
        context.close()
        pytest.skip("this device has no such memory")
    pinned.inputs[0].write(floats())
    context.run(pinned)
    np.testing.assert_array_equal(pinned.outputs[0].read().view(np.float32), floats() + 1 + 1)
    context.close()


def test_buffers_that_do_not_fit_are_refused(device: Device) -> None:
    context = ready(device, adding(1))
    small, large = device.allocate(CELL - 4), device.allocate(CELL)
    refused: list[tuple[Bindings, str]] = [
        (Bindings((), (large,)), r"There are 0 buffers for 1 inputs\. Bind one to each"),
        (Bindings((large,), ()), r"There are 0 buffers for 1 outputs\. Bind one to each"),
        (Bindings((large,), (small,)), rf"output 0 has {CELL} bytes, and its buffer {CELL - 4}\."),
    ]
    if isinstance(large, DeviceBuffer):
        other = large.part(0, CELL)
        other.device = object()
        refused.append((Bindings((other,), (large,)), "for input 0 belongs to another device"))
        with pytest.raises(
            BindingError, match=rf"Bytes 4 to {CELL + 4} are outside of a buffer of"
        ):
            large.part(4, CELL)
    for bindings, message in refused:
        with pytest.raises(BindingError, match=message):
            context.bind(bindings)
    with pytest.raises(BindingError, match=rf"{CELL} bytes do not fit a buffer of {CELL - 4}\."):
        small.write(floats())
    with pytest.raises(BindingError, match="array in C order without gaps"):
        Bindings.of([floats().reshape(2, -1).T], [])
    parts = [large.part(0, CELL)] if isinstance(large, DeviceBuffer) else []
    large.close()
    for closed in (large, *parts):
        for late in (
            partial(context.bind, Bindings((HostBuffer.of(floats()),), (closed,))),
            partial(closed.write, floats()),
            closed.read,
        ):
            with pytest.raises(BindingError, match=r"buffer was closed\. Allocate another one"):
                late()
    context.close()


# Events


def test_runs_of_several_contexts_are_in_flight_at_once(device: Device) -> None:
    executable = device.compile(adding(20))
    contexts = [executable.context() for _ in range(3)]
    results = [np.zeros(FLOATS, np.float32) for _ in contexts]
    for _ in range(3):
        for result in results:
            result[:] = 0
        events = []
        for number, (context, result) in enumerate(zip(contexts, results, strict=True)):
            x = floats(number)
            events.append(context.submit(Bindings.of([x], [result])))
            x[:] = -1  # it was copied
        for number in (1, 0, 2):
            assert events[number].wait()
            assert events[number].done()
            expected = floats(number)
            for _ in range(20):
                expected += 1
            np.testing.assert_array_equal(results[number], expected)
    for context in contexts:
        context.close()
    executable.close()


def test_an_event_comes_to_its_end_by_itself(device: Device) -> None:
    context, result = ready(device, adding(2)), np.zeros(FLOATS, np.float32)
    event = context.submit(Bindings.of([floats()], [result]))
    until = time.monotonic() + 30
    while not event.done():
        assert time.monotonic() < until
    assert event.wait(timeout=30) and event.wait()
    np.testing.assert_array_equal(result, floats() + 1 + 1)
    context.close()


def test_what_comes_next_waits_for_what_is_in_flight(device: Device) -> None:
    context = ready(device, adding(2))
    first, second = (np.zeros(FLOATS, np.float32) for _ in range(2))
    event = context.submit(Bindings.of([floats(1)], [first]))
    later = context.submit(Bindings.of([floats(2)], [second]))
    np.testing.assert_array_equal(first, floats(1) + 1 + 1)
    np.testing.assert_array_equal(run(context, [floats(3)])[0], floats(3) + 1 + 1)
    np.testing.assert_array_equal(second, floats(2) + 1 + 1)
    assert event.wait() and later.wait()
    first[:] = 0
    event = context.submit(Bindings.of([floats(4)], [first]))
    context.close()
    assert event.done() and event.wait()
    np.testing.assert_array_equal(first, floats(4) + 1 + 1)
    for late in (context.read_memory, lambda: run(context, [floats()])):
        with pytest.raises(
            ExecutionError, match=r"This partition was released\. Create a new inter"
        ):
            late()


def test_an_event_that_nobody_waits_for_is_harmless(device: Device) -> None:
    for _ in range(3):
        context = ready(device, adding(2))
        context.submit(Bindings.of([floats()], [np.zeros(FLOATS, np.float32)]))
        del context
        gc.collect()
    context = ready(device, adding(1))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()


def test_limited_runs_are_the_same(device: Device) -> None:
    context = ready(device, adding(2))
    context.timeout = 60.0
    result = np.zeros(FLOATS, np.float32)
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1 + 1)
    assert context.submit(Bindings.of([floats(1)], [result])).wait()
    np.testing.assert_array_equal(result, floats(1) + 1 + 1)
    context.close()


def in_blocks(*constants: ConstantBlock) -> Program:
    """Return a program that adds the last of its large constants to its input."""
    text = kernel("add", ADD, ("src", "other"))
    part = BufferRange(True, 0, CELL, len(constants) - 1)
    added = program([text], [launch("add", 1, 0, part)], [0], [1])
    return replace(added, blocks=constants)


def block(seed: int, reads: list[int]) -> ConstantBlock:
    """Return a block of floats whose seed joins `reads` whenever its bytes are read."""

    def read() -> npt.NDArray[np.uint8]:
        reads.append(seed)
        return floats(seed).view(np.uint8)

    return ConstantBlock(CELL, read)


def test_programs_share_large_constants(device: Device) -> None:
    reads: list[int] = []
    first = block(1, reads)
    x, sums = floats(5), []
    executables = []
    for blocks in ([first], [block(2, reads), first], [block(1, reads)], [block(3, reads)]):
        executables.append(device.compile(in_blocks(*blocks)))
        sums += run(executables[-1].context(), [x])
    for seed, result in zip((1, 1, 1, 3), sums, strict=True):
        np.testing.assert_array_equal(result, x + floats(seed))
    assert reads == [1, 2, 1, 3], "a block that the device has is not read again"
    handles = [each.constants_of(each.program.launches[0].ranges[2]) for each in executables]
    assert handles[0] is handles[1] is handles[2]
    assert handles[3] is not handles[0]


def test_large_constants_are_released_with_their_last_program(device: Device) -> None:
    reads: list[int] = []
    shared, x = block(11, reads), floats(6)
    first, second = device.compile(in_blocks(shared)), device.compile(in_blocks(shared))
    contexts = [first.context(), second.context()]
    contexts[0].close()
    first.close()
    np.testing.assert_array_equal(run(contexts[1], [x])[0], x + floats(11))
    contexts[1].close()
    second.close()
    assert reads == [11]
    gc.collect()
    third = device.compile(in_blocks(shared))
    context = third.context()
    assert reads == [11, 11], "the block was released, and is uploaded again"
    np.testing.assert_array_equal(run(context, [x])[0], x + floats(11))
    context.close()
    third.close()


def test_large_constants_leave_the_host(device: Device) -> None:
    values = np.resize(floats(4), 5 << 20).copy()
    constant = ConstantBlock.of(values.view(np.uint8))
    executable = device.compile(in_blocks(constant))
    context, x = executable.context(), floats(7)
    executable.free_constants()
    (freed,) = executable.program.blocks
    assert (freed.nbytes, freed.digest) == (constant.nbytes, constant.digest)
    assert not freed.read().any()
    data = weakref.ref(values)
    del values, constant
    gc.collect()
    assert data() is None
    values = np.resize(floats(4), 5 << 20)
    np.testing.assert_array_equal(run(context, [x])[0], x + values[:FLOATS])
    other = executable.context()
    np.testing.assert_array_equal(run(other, [x])[0], x + values[:FLOATS])


def test_large_constants_that_cannot_be_read(device: Device) -> None:
    def read() -> npt.NDArray[np.uint8]:
        raise MemoryError("no room for a copy")

    executable = device.compile(in_blocks(ConstantBlock(CELL, read)))
    with pytest.raises(MemoryError, match="no room for a copy"):
        executable.context()
    executable.close()


def test_a_block_travels_between_processes() -> None:
    sent = block(3, [])
    received = pickle.loads(pickle.dumps(sent))
    assert received.digest == sent.digest
    np.testing.assert_array_equal(received.read(), sent.read())
