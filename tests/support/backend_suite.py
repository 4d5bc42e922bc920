"""What every backend must do: import these tests into a module that has a `device` fixture.

Memory in these programs is cut into cells of `CELL` bytes, whatever the alignment of the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu import BindingError, DeviceMemoryError
from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings, DeviceBuffer, HostBuffer
from litegpu.backends.execution import ExecutionContext
from litegpu.backends.program import BufferRange, Launch, Program, Update
from litegpu.codegen import Argument, KernelText
from litegpu.errors import KernelError
from litegpu.host.private_files import Folder

__all__ = [
    "test_a_kernel_that_does_not_compile_is_named",
    "test_an_input_is_updated_where_it_is",
    "test_bound_calls_follow_their_pointers",
    "test_buffers_are_copied_on_the_device",
    "test_chains_take_as_long_as_their_kernels",
    "test_closing_twice_is_harmless",
    "test_constants_reach_the_kernels",
    "test_contexts_are_independent",
    "test_contexts_in_threads",
    "test_durations_are_positive",
    "test_facts_are_sane",
    "test_half_storage_is_loaded_and_stored",
    "test_inputs_and_outputs_in_order",
    "test_launches_wait_for_each_other",
    "test_memory_starts_as_nan",
    "test_more_memory_than_the_device_has",
    "test_nothing_to_launch",
    "test_one_kernel_on_several_ranges",
    "test_profiled_runs_give_the_same_answers",
    "test_the_device_is_opened_once",
    "test_what_was_compiled_is_loaded_again",
    "test_work_group_memory_is_shared",
    "test_work_items_and_groups_are_those_asked_for",
]

Floats = npt.NDArray[np.float32]
CELL = 4096
FLOATS = CELL // 4
SIZE = (FLOATS // 4, 1, 1)
GROUP = (64, 1, 1)

ADD_ONE = "    STORE4_F32(dst, GLOBAL_X, LOAD4_F32(src, GLOBAL_X) + SPLAT4(1.0f));\n"
ADD = "    STORE4_F32(dst, GLOBAL_X, LOAD4_F32(src, GLOBAL_X) + LOAD4_F32(other, GLOBAL_X));\n"
HALVE = "    STORE4_F16(dst, GLOBAL_X, LOAD4_F32(src, GLOBAL_X));\n"
WIDEN = "    STORE4_F32(dst, GLOBAL_X, LOAD4_F16(src, GLOBAL_X));\n"
REVERSE = """\
    scratch[LOCAL_X] = LOAD1_F32(src, GLOBAL_X);
    BARRIER();
    STORE1_F32(dst, GLOBAL_X, scratch[63 - LOCAL_X]);
"""
WHERE = """\
    const int at = (GLOBAL_Z * 4 + GLOBAL_Y) * 16 + GLOBAL_X;
    STORE1_F32(dst, at, TO_FLOAT(GLOBAL_X + 100 * GLOBAL_Y + 10000 * GLOBAL_Z + 1000000 * GROUP_X));
"""


def kernel(
    name: str,
    body: str,
    reads: Sequence[str] = ("src",),
    *,
    kinds: tuple[str, str] = ("F32", "F32"),
    vector: bool = True,
    local_size: tuple[int, int, int] = GROUP,
    shared: tuple[tuple[str, str, int], ...] = (),
) -> KernelText:
    """Return a kernel that writes `dst`; `kinds` are the element types written and read."""
    arguments = (
        Argument("dst", kinds[0], vector, True),
        *(Argument(word, kinds[1], vector, False) for word in reads),
    )
    return KernelText(name, arguments, local_size, shared, body)


def cell(number: int, constant: bool = False) -> BufferRange:
    return BufferRange(constant, number * CELL, CELL)


def program(
    kernels: Sequence[KernelText],
    launches: Sequence[Launch],
    inputs: Sequence[int],
    outputs: Sequence[int],
    constants: Floats | None = None,
    memory_bytes: int = 8 * CELL,
) -> Program:
    block = np.zeros(0, np.uint8) if constants is None else constants.view(np.uint8)
    return Program(
        tuple(kernels),
        tuple(launches),
        memory_bytes,
        block,
        tuple(map(cell, inputs)),
        tuple(map(cell, outputs)),
    )


def launch(name: str, *cells: int | BufferRange) -> Launch:
    parts = tuple(cell(c) if isinstance(c, int) else c for c in cells)
    return Launch(name, parts, SIZE, GROUP)


def ready(device: Device, program: Program, cache_dir: Folder | None = None) -> ExecutionContext:
    """Return a context of a program, which alone keeps what is compiled."""
    executable = device.compile(program, cache_dir)
    try:
        return executable.context()
    finally:
        executable.close()


def run(context: ExecutionContext, inputs: Sequence[Floats], outputs: int = 1) -> list[Floats]:
    results = [np.full(FLOATS, -7, np.float32) for _ in range(outputs)]
    context.run(Bindings.of(inputs, results))
    return results


def floats(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=FLOATS).astype(np.float32)


def adding(times: int) -> Program:
    """Return a program that adds one `times` times, back and forth between two cells."""
    sequence = [launch("add_one", 1 - i % 2, i % 2) for i in range(times)]
    return program([kernel("add_one", ADD_ONE)], sequence, [0], [times % 2])


def test_facts_are_sane(device: Device) -> None:
    info = device.info
    assert info.name and info.platform and info.driver
    assert info.title == f"{info.backend}:{info.index} {info.name}"
    assert info.to_dict()["name"] == info.name
    assert info.compute_units >= 1
    assert info.max_allocation_bytes >= 1 << 26
    assert info.memory_bytes == 0 or info.max_allocation_bytes <= info.memory_bytes
    assert info.max_work_group_size >= 64
    assert info.local_memory_bytes >= 1 << 14
    assert info.buffer_alignment >= 16
    assert info.buffer_alignment & (info.buffer_alignment - 1) == 0
    assert CELL % info.buffer_alignment == 0, "the programs of this suite need larger cells"
    assert info.max_arguments >= 8


def test_what_was_compiled_is_loaded_again(device: Device) -> None:
    executable = device.compile(adding(3))
    context = executable.context()
    (expected,) = run(context, [floats()])
    again = device.load(executable.program, executable.binaries())
    executable.close()
    with contextlib.closing(context), contextlib.closing(again.context()) as loaded:
        again.close()
        np.testing.assert_array_equal(run(loaded, [floats()])[0], expected)


def test_the_device_is_opened_once(device: Device) -> None:
    from litegpu import backends

    opened: list[Any] = []
    backend = backends.BACKENDS[device.info.backend]

    def work() -> None:
        opened.append(backend.open(device.info.index))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert opened == [device] * 4


def test_inputs_and_outputs_in_order(device: Device) -> None:
    launched = launch("add", 3, 1, 2)
    context = ready(
        device, program([kernel("add", ADD, ("src", "other"))], [launched], [2, 1], [3, 1])
    )
    first, second = floats(1), floats(2)
    for _ in range(3):
        total, back = run(context, [first, second], outputs=2)
        np.testing.assert_array_equal(total, first + second)
        np.testing.assert_array_equal(back, second)
        first = floats(int(abs(total[0]) * 100))
    context.close()


def test_bound_calls_follow_their_pointers(device: Device) -> None:
    context = ready(device, adding(2))
    source, target = ctypes.c_void_p(), ctypes.c_void_p()
    call = context.bind(Bindings((HostBuffer(source, CELL),), (HostBuffer(target, CELL),))).run
    for seed in range(3):
        x, result = floats(seed), np.zeros(FLOATS, np.float32)
        source.value, target.value = x.ctypes.data, result.ctypes.data
        call()
        np.testing.assert_array_equal(result, x + 1 + 1)
    context.close()


@pytest.mark.parametrize("bound", ["same", "other", "host", "crossed", "once", "partly"])
def test_an_input_is_updated_where_it_is(device: Device, bound: str) -> None:
    """Two inputs are updated; a third one reads what an update makes of the first."""
    texts = [
        kernel("add_one", ADD_ONE.replace("src", "dst"), ()),
        kernel("add", ADD, ("src", "other")),
    ]
    launches = [launch("add_one", 0), launch("add", 3, 0, 2), launch("add_one", 1)]
    built = replace(
        program(texts, launches, [0, 1, 2], [3, 1, 0]),
        updates={2: Update(0, ((0, 0), (1, 1))), 1: Update(1, ((2, 0),))},
    )
    x, y, z = floats(), floats() * 2, floats() + 3
    buffers = [device.allocate(2 * CELL) for _ in range(3)]
    assert all(isinstance(each, DeviceBuffer) for each in buffers)
    first, second, third = (b.part(0, CELL) for b in buffers)  # type: ignore[attr-defined]
    host = HostBuffer.of(np.zeros(FLOATS, np.float32))
    summed = HostBuffer.of(np.zeros(FLOATS, np.float32))
    ins, outs = {
        "same": ((first, second, third), (summed, second, first)),
        "other": ((first, second, third), (summed, *(b.part(CELL, CELL) for b in buffers[:2]))),  # type: ignore[attr-defined]
        "host": ((host, second, third), (summed, second, first)),
        "crossed": ((first, second, third), (summed, first, second)),
        "once": ((first, second, first), (summed, second, first)),
        "partly": (
            (first, second, third),
            (summed, second, buffers[0].part(CELL // 2, CELL)),  # type: ignore[attr-defined]
        ),
    }[bound]
    given = (x, y, x if bound == "once" else z)
    with contextlib.closing(ready(device, built)) as context:
        submission = context.bind_cached(Bindings(ins, outs))
        for begin in (submission.run, submission.submit):
            for buffer, data in zip(ins, given, strict=True):
                buffer.write(data)
            event = begin()
            if event is not None:
                event.wait()
            found = [each.read().view(np.float32) for each in outs]
            np.testing.assert_array_equal(found[0], x + 1 + given[2])
            np.testing.assert_array_equal(found[1], y + 1)
            np.testing.assert_array_equal(found[2], x + 1)
    for each in buffers:
        each.close()


@pytest.mark.parametrize("nbytes", [CELL, CELL - 16, CELL - 2])
def test_buffers_are_copied_on_the_device(device: Device, nbytes: int) -> None:
    source, target = device.allocate(2 * CELL), device.allocate(2 * CELL)
    assert isinstance(source, DeviceBuffer) and isinstance(target, DeviceBuffer)
    data = np.random.default_rng(0).integers(0, 256, 2 * CELL, np.uint8)
    source.write(data)
    expected = np.full(2 * CELL, 7, np.uint8)
    target.write(expected)
    target.part(16, 2 * CELL - 16).copy_from(source.part(CELL, nbytes))
    expected[16 : 16 + nbytes] = data[CELL : CELL + nbytes]
    np.testing.assert_array_equal(target.read(), expected)
    target.part(CELL, CELL).copy_from(target.part(CELL // 2, CELL))
    expected[CELL:] = expected[CELL // 2 : CELL // 2 + CELL].copy()
    np.testing.assert_array_equal(target.read(), expected)
    host = HostBuffer.of(np.arange(CELL, dtype=np.uint8))
    target.copy_from(host)
    np.testing.assert_array_equal(target.read()[:CELL], host.read())
    with pytest.raises(BindingError, match=f"{2 * CELL} bytes do not fit a buffer of {CELL}"):
        target.part(0, CELL).copy_from(source)
    source.close()
    with pytest.raises(BindingError, match="closed"):
        target.copy_from(source)
    target.close()


def test_launches_wait_for_each_other(device: Device) -> None:
    context = ready(device, adding(40))
    for _ in range(10):
        np.testing.assert_array_equal(run(context, [np.zeros(FLOATS, np.float32)])[0], 40)
    context.close()


def test_one_kernel_on_several_ranges(device: Device) -> None:
    sequence = [launch("add_one", 1, 0), launch("add_one", 2, 1), launch("add_one", 3, 0)]
    context = ready(device, program([kernel("add_one", ADD_ONE)], sequence, [0], [1, 2, 3]))
    results = run(context, [np.zeros(FLOATS, np.float32)], outputs=3)
    assert [set(result) for result in results] == [{1.0}, {2.0}, {1.0}]
    context.close()


def test_constants_reach_the_kernels(device: Device) -> None:
    constants = np.concatenate([floats(1), floats(2)])
    sequence = [launch("add", 1, 0, cell(1, True)), launch("add", 2, 1, cell(0, True))]
    context = ready(
        device, program([kernel("add", ADD, ("src", "other"))], sequence, [0], [2], constants)
    )
    constants[:] = 0  # the device has a copy
    x = floats(3)
    np.testing.assert_array_equal(run(context, [x])[0], x + floats(2) + floats(1))
    context.close()


def test_nothing_to_launch(device: Device) -> None:
    context = ready(device, program([], [], [0], [0]))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats())
    assert context.profiler().durations() == []
    assert context.profiler().chain_seconds() in (None, 0.0)
    context.close()


@pytest.mark.parametrize("vector", [True, False])
def test_half_storage_is_loaded_and_stored(device: Device, vector: bool) -> None:
    if not vector and not device.info.half_lanes:
        pytest.skip("single halves cannot be stored there")
    halve, widen = (body if vector else body.replace("4_F", "1_F") for body in (HALVE, WIDEN))
    kernels = [
        kernel("halve", halve, kinds=("F16", "F32"), vector=vector),
        kernel("widen", widen, kinds=("F32", "F16"), vector=vector),
    ]
    items = SIZE if vector else (FLOATS, 1, 1)
    sequence = [
        Launch("halve", (cell(1), cell(0)), items, GROUP),
        Launch("widen", (cell(2), cell(1)), items, GROUP),
    ]
    context = ready(device, program(kernels, sequence, [0], [2]))
    x = floats() * np.float32(30)
    special = [0.0, -0.0, 1e-7, 6.1e-5, 65504.0, 1e6, -1e6, np.inf, -np.inf, 1 / 3]
    x[: len(special)] = special
    expected = x.astype(np.float64)
    finite = np.isfinite(expected)
    expected[finite] = np.clip(expected[finite], -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(run(context, [x])[0], expected.astype(np.float32))
    context.close()


def test_work_group_memory_is_shared(device: Device) -> None:
    text = kernel("reverse", REVERSE, vector=False, shared=(("float", "scratch", 64),))
    launched = Launch("reverse", (cell(1), cell(0)), (FLOATS, 1, 1), GROUP)
    context = ready(device, program([text], [launched], [0], [1]))
    expected = floats().reshape(-1, 64)[:, ::-1].ravel()
    np.testing.assert_array_equal(run(context, [floats()])[0], expected)
    context.close()


def test_work_items_and_groups_are_those_asked_for(device: Device) -> None:
    text = kernel("where", WHERE, (), vector=False, local_size=(8, 2, 1))
    launched = Launch("where", (cell(1),), (16, 4, 3), (8, 2, 1))
    context = ready(device, program([text], [launched], [], [1]))
    z, y, x = np.meshgrid(range(3), range(4), range(16), indexing="ij")
    expected = x + 100 * y + 10000 * z + 1000000 * (x // 8)
    np.testing.assert_array_equal(run(context, [])[0][: expected.size], expected.ravel())
    context.close()


def test_memory_starts_as_nan(device: Device) -> None:
    """A kernel that reads what nobody wrote shows, instead of finding zeros by chance."""
    context = ready(device, adding(1))
    memory = context.read_memory().view(np.float32)
    assert memory.size == 8 * FLOATS
    assert np.isnan(memory).all()
    run(context, [floats()])
    memory = context.read_memory().view(np.float32)
    np.testing.assert_array_equal(memory[:FLOATS], floats())
    np.testing.assert_array_equal(memory[FLOATS : 2 * FLOATS], floats() + 1)
    assert np.isnan(memory[2 * FLOATS :]).all()
    context.close()


def test_durations_are_positive(device: Device) -> None:
    context = ready(device, adding(3))
    for _ in range(2):
        durations = context.profiler().durations()
        assert len(durations) == 3
        assert all(0 < seconds < 10 for seconds in durations)
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1 + 1 + 1)
    context.close()


def test_chains_take_as_long_as_their_kernels(device: Device) -> None:
    context = ready(device, adding(50))
    chain = context.profiler().chain_seconds()
    if chain is not None:  # a device may be unable to tell
        assert sum(context.profiler().durations()) / 100 < chain < 10
    context.close()


def test_profiled_runs_give_the_same_answers(device: Device) -> None:
    """Whatever is measured about a run, the run itself is a whole one."""
    context = ready(device, adding(3))
    source, result = floats(), np.zeros(FLOATS, np.float32)
    bindings = Bindings.of([source], [result])
    phases = context.profiler().phases(bindings)
    np.testing.assert_array_equal(result, source + 1 + 1 + 1)
    assert phases and all(0 <= seconds < 10 for seconds in phases.values())
    source[:] = floats(1)
    seconds = context.profiler().device_seconds(bindings)
    if seconds is not None:
        assert 0 < seconds < 10
    np.testing.assert_array_equal(run(context, [source])[0], source + 1 + 1 + 1)
    context.close()


def test_contexts_are_independent(device: Device) -> None:
    first, second = ready(device, adding(1)), ready(device, adding(2))
    zeros = np.zeros(FLOATS, np.float32)
    assert (run(first, [zeros])[0] == 1).all()
    assert (run(second, [zeros])[0] == 2).all()
    first.close()
    assert (run(second, [zeros])[0] == 2).all()
    del first
    gc.collect()
    assert (run(second, [zeros])[0] == 2).all()
    second.close()


def test_contexts_in_threads(device: Device) -> None:
    wrong: list[str] = []

    def work(times: int) -> None:
        try:
            context = ready(device, adding(times))
            for i in range(30):
                start = np.full(FLOATS, i, np.float32)
                if not (run(context, [start])[0] == i + times).all():
                    wrong.append(f"{times} times, run {i}")
            context.close()
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong


def test_closing_twice_is_harmless(device: Device) -> None:
    context = ready(device, adding(1))
    run(context, [floats()])
    context.close()
    context.close()


def test_a_kernel_that_does_not_compile_is_named(device: Device) -> None:
    texts = [kernel("good_one", ADD_ONE), kernel("bad_one", "    this is no kernel;\n")]
    with pytest.raises(KernelError) as caught:
        ready(device, program(texts, [launch("good_one", 1, 0)], [0], [1]))
    assert list(caught.value.reasons) == ["bad_one"], "and no other"
    message = str(caught.value)
    assert "bad_one" in message
    assert device.info.name in message
    assert "LITEGPU_DEBUG=2" in message


def test_more_memory_than_the_device_has(device: Device) -> None:
    nbytes = 1 << 50
    with pytest.raises(DeviceMemoryError) as caught:
        ready(device, program([], [], [0], [0], memory_bytes=nbytes))
    assert str(nbytes) in str(caught.value)
    assert device.info.name in str(caught.value)
    assert "fp16" in str(caught.value)
