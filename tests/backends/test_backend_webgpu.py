"""The WebGPU backend: adapters, features, a lost device, timestamps."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cases
import op_runner
from alarms import Alarm, alarms, needs_timers
from backend_suite import adding, floats, kernel, launch, program, ready, run
from cases.base import Case
from comparing import mismatch
from litegpu import (
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    GpuDelegate,
    InvokeTimeoutError,
    UnsupportedDeviceError,
    backends,
)
from litegpu.backends.buffers import Bindings, DeviceBuffer, HostBuffer
from litegpu.backends.execution import ExecutionContext
from litegpu.backends.webgpu import buffers as webgpu_buffers
from litegpu.backends.webgpu import device as webgpu
from litegpu.backends.webgpu import library as webgpu_library
from litegpu.backends.webgpu import profile as webgpu_profile
from litegpu.backends.webgpu import submission as webgpu_submission
from litegpu.backends.webgpu.device import WebGPUDevice
from litegpu.backends.webgpu.library import Reader
from litegpu.errors import BindingError
from op_runner import MODES, groups
from robustness.programs import START, run_program
from small_models import assert_close, fully_convolutional, interpreter, random, reference
from small_models import run as run_model


@pytest.fixture
def device() -> WebGPUDevice:
    status = next(each for each in backends.status() if each.name == "webgpu")
    if not status.devices:
        pytest.skip(f"no WebGPU device: {status.reason}")
    opened = backends.BACKENDS["webgpu"].open(0)
    assert isinstance(opened, WebGPUDevice)
    return opened


@pytest.fixture
def own_device(device: WebGPUDevice) -> WebGPUDevice:
    """Return a device that no other test uses."""
    return WebGPUDevice(device.info, webgpu._adapters()[0])


@pytest.fixture
def looked_for_anew() -> Iterator[None]:
    """Make the backend search for adapters again, now and after the test."""
    webgpu._adapters.cache_clear()
    yield
    webgpu._adapters.cache_clear()


PLAYED = "played wgpu"


def played(enumerate_adapters: Callable[[], object]) -> Any:
    """Return a replacement for the package wgpu."""
    gpu = SimpleNamespace(enumerate_adapters_sync=enumerate_adapters)
    return SimpleNamespace(gpu=gpu, logger=logging.getLogger(PLAYED))


class Card(SimpleNamespace):
    """An adapter that does not exist on this machine."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def adapter(
    api: str, kind: str = "DiscreteGPU", features: tuple[str, ...] = (), **limits: int
) -> Any:
    """Return wgpu's description of an adapter that does not exist on this machine."""
    info = {
        "vendor": "creation",
        "device": f"{api} card",
        "description": "driver 1",
        "adapter_type": kind,
        "backend_type": api,
    }
    known = dict.fromkeys(webgpu._LIMITS, 1 << 16)
    found = {name.replace("_", "-"): number for name, number in limits.items()}
    return Card(info=info, features=set(features), limits=known | found)


def offer(monkeypatch: pytest.MonkeyPatch, *adapters: Any) -> None:
    monkeypatch.setattr(webgpu, "_wgpu", lambda: played(lambda: list(adapters)))


def reason() -> str:
    return next(each for each in backends.status() if each.name == "webgpu").reason


# Why there is no device


def test_without_wgpu(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu", None)
    status = next(each for each in backends.status() if each.name == "webgpu")
    assert "needs the Python package 'wgpu', which is not installed" in status.reason
    assert status.remedy == "pip install 'litegpu[webgpu]'"


def test_wgpu_that_cannot_be_loaded(
    looked_for_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wgpu.py").write_text("raise OSError('libwgpu_native.so: wrong ELF class')")
    monkeypatch.delitem(sys.modules, "wgpu", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (
        "installed but cannot be loaded (OSError: libwgpu_native.so: wrong ELF class)" in reason()
    )
    assert "pip install --force-reinstall wgpu" in reason()


def test_no_adapter(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    assert "WebGPU has no adapter for Vulkan, Metal or Direct3D 12. Install" in reason()
    assert "apt-get install libvulkan1" in reason()


def test_adapters_on_opengl_do_not_count(
    looked_for_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, adapter("OpenGL"))
    assert "(found: OpenGL card (OpenGL))" in reason()


def test_wgpu_that_fails(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise RuntimeError("the loader crashed")

    monkeypatch.setattr(webgpu, "_wgpu", lambda: played(fail))
    assert "WebGPU is not usable: the loader crashed. Install" in reason()


def test_a_device_that_is_refused(device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise RuntimeError("Request device failed (3): no memory")

    card = adapter("Vulkan")
    card.request_device_sync = refuse
    wanted = r"cannot be opened: Request device failed \(3\).*`litegpu devices` lists the others"
    with pytest.raises(UnsupportedDeviceError, match=wanted):
        WebGPUDevice(device.info, card)


# Adapters and what follows from their features


def test_gpus_come_first(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [adapter("Vulkan", "CPU"), adapter("D3D12"), adapter("OpenGL"), adapter("Metal")]
    offer(monkeypatch, *cards)
    infos = backends.BACKENDS["webgpu"].devices()
    assert [(info.title, info.platform, info.software) for info in infos] == [
        ("webgpu:0 D3D12 card", "WebGPU on Direct3D 12", False),
        ("webgpu:1 Metal card", "WebGPU on Metal", False),
        ("webgpu:2 Vulkan card", "WebGPU on Vulkan", True),
    ]


@pytest.mark.parametrize("present", [None, "/run/user/7"])
def test_libraries_of_displays_are_kept_quiet(
    monkeypatch: pytest.MonkeyPatch, present: str | None
) -> None:
    name, seen = "XDG_RUNTIME_DIR", []
    if present is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, present)

    def enumerate_adapters() -> list[Any]:
        seen.append(os.environ[name])
        return []

    webgpu._enumerate(played(enumerate_adapters))
    assert seen == [present or os.devnull]
    assert os.environ.get(name) == present


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_wgpu_says_nothing_about_displays_that_it_does_not_find(
    level: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger(PLAYED)
    monkeypatch.setattr(log, "level", level)

    def enumerate_adapters() -> list[Any]:
        log.warning("No config found!")
        log.error("the driver is broken")
        return []

    webgpu._enumerate(played(enumerate_adapters))
    assert [record.getMessage() for record in caplog.records] == ["the driver is broken"]
    assert log.level == level


def test_limits_become_facts() -> None:
    info = webgpu._describe(
        3,
        adapter(
            "Vulkan",
            "IntegratedGPU",
            ("shader-f16",),
            max_buffer_size=1 << 28,
            max_storage_buffer_binding_size=1 << 27,
            max_compute_invocations_per_workgroup=256,
            max_compute_workgroup_size_x=128,
            max_compute_workgroup_storage_size=1 << 14,
            max_storage_buffers_per_shader_stage=8,
            min_storage_buffer_offset_alignment=256,
        ),
    )
    assert (info.index, info.max_allocation_bytes, info.max_binding_bytes) == (3, 1 << 28, 1 << 27)
    assert (info.max_work_group_size, info.max_arguments, info.buffer_alignment) == (128, 8, 256)
    assert info.half_lanes and info.half_arithmetic and not info.software
    assert info.local_memory_bytes == 1 << 14, "without any feature of subgroups"
    assert info.compute_units < webgpu._describe(0, adapter("Vulkan")).compute_units


def test_an_alias_opens_it(device: WebGPUDevice) -> None:
    api = device.info.platform.removeprefix("WebGPU on ")
    alias = {name: alias for alias, name in backends.ALIASES.items()}[api]
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = GpuDelegate(backend=alias)
    assert delegate.device.platform == device.info.platform
    assert_close(run_model(interpreter(model, delegate), x), reference(model, x))


# A device that fails


def test_a_lost_device(own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    monkeypatch.setitem(webgpu._opened.devices, 0, own_device)
    delegate = GpuDelegate(backend="webgpu", device=0)
    target = interpreter(model, delegate)
    assert_close(run_model(target, x), reference(model, x))
    context = ready(own_device, adding(1))
    own_device.device.destroy()
    lost = r"Device webgpu:0 .* is lost: .*Create a new GpuDelegate and interpreter"
    for fails in (
        lambda: run(context, [floats()]),
        lambda: ready(own_device, adding(1)),
        context.profiler().durations,
        context.read_memory,
    ):
        with pytest.raises(DeviceLostError, match=lost):
            fails()
    context.close()
    assert_close(run_model(target, x), reference(model, x))
    assert delegate.error is None, "the interpreter goes on with a new device"
    late = GpuDelegate(backend="webgpu", device=0)
    assert late._device is not own_device, "the next delegate gets a new device"
    assert_close(run_model(interpreter(model, late), x), reference(model, x))


def test_a_device_that_is_lost_before_the_first_run_is_opened_anew(
    own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(webgpu._opened.devices, 0, own_device)
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = GpuDelegate(backend="webgpu", device=0)
    own_device.device.destroy()
    assert_close(run_model(interpreter(model, delegate), x), reference(model, x))
    assert delegate.error is None and delegate.report is not None and delegate.report.whole_graph


def test_too_little_memory(own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise own_device.wgpu.GPUOutOfMemoryError("Not enough memory left")

    monkeypatch.setattr(own_device.device, "create_buffer", refuse)
    wanted = r"Device webgpu:0 .* cannot provide \d+ bytes: Not enough memory left\. Close"
    with pytest.raises(DeviceMemoryError, match=wanted):
        ready(own_device, adding(1))


def test_a_device_at_the_end_of_a_program(own_device: WebGPUDevice) -> None:
    context = ready(own_device, adding(1))
    own_device.worker.stop()
    with pytest.raises(DeviceLostError, match=r"Device webgpu:0 .* is lost: The thread 'litegpu-"):
        ready(own_device, adding(1))
    context.close()


def test_another_failure_is_no_loss(device: WebGPUDevice) -> None:
    error = device.failure(RuntimeError("Could not map buffer (2 : aborted)."))
    assert "failed with a partition: Could not map buffer (2 : aborted)." in str(error)
    assert not device.lost


def test_a_shortage_that_wgpu_calls_something_else(
    own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of wgpu 0.32, such as "Validation Error ... In wgpuDeviceCreateBuffer ..."."""
    context = ready(own_device, adding(1))

    def refuse(*_: object, **__: object) -> Any:
        raise own_device.wgpu.GPUValidationError("Validation Error\n  Not enough memory left.")

    wanted = r"cannot provide \d+ bytes: Validation Error Not enough memory left\.\. Close other"
    for position, name in (
        (own_device.device, "create_buffer"),
        (own_device.device, "create_compute_pipeline"),
        (own_device.calls.checked, "wgpuQueueWriteBuffer"),
    ):
        own_device.pipelines.clear()
        with monkeypatch.context() as short:
            short.setattr(position, name, refuse)
            with pytest.raises(DeviceMemoryError, match=wanted):
                ready(own_device, adding(1))
    with monkeypatch.context() as short:
        short.setattr(own_device.calls.checked, "wgpuQueueWriteBuffer", refuse)
        with pytest.raises(DeviceMemoryError, match=wanted):
            run(context, [floats()])
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()


def reader_of(context: ExecutionContext) -> Reader:
    reader = context._reader  # type: ignore[attr-defined]
    assert isinstance(reader, Reader)
    return reader


def test_results_that_cannot_be_read(device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ready(device, adding(1))
    reader = reader_of(context)
    with monkeypatch.context() as refused:
        refused.setattr(reader, "map", lambda: reader._statuses.append(4))
        with pytest.raises(ExecutionError, match=r"Could not map buffer \(status 4\)"):
            run(context, [floats()])
    reader._statuses.clear()
    with monkeypatch.context() as silent:
        silent.setattr(webgpu_library, "_PATIENCE", 0.01)
        silent.setattr(reader, "map", lambda: None)
        with pytest.raises(ExecutionError, match="map buffer: the device does not answer"):
            run(context, [floats()])
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()


def test_a_run_that_takes_too_long(
    own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, result = ready(own_device, adding(1)), np.zeros_like(floats())
    context.timeout = 60.0
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.timeout = 0.02
    monkeypatch.setattr(own_device.calls, "is_idle", lambda device: False)
    wanted = (
        r"Device webgpu:0 .* did not answer within invoke_timeout_ms \(20 ms\) and counts as lost"
    )
    with pytest.raises(InvokeTimeoutError, match=wanted):
        context.run(Bindings.of([floats()], [result]))
    assert own_device.lost and not result.any()
    before = [*context._buffers.created]  # type: ignore[attr-defined]
    context.close()
    assert context._buffers.created == before, "the device may still use them"  # type: ignore[attr-defined]


def test_a_submission_that_takes_too_long(
    own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout of `wait` abandons nothing; only the context's timeout does."""
    context, result = ready(own_device, adding(1)), np.zeros_like(floats())
    monkeypatch.setattr(own_device.calls, "is_idle", lambda device: False)
    event = context.submit(Bindings.of([floats()], [result]))
    assert not event.wait(timeout=0.01)
    assert (event.done(), own_device.lost) == (False, False)
    context.timeout = 0.02
    for _ in range(2):
        with pytest.raises(InvokeTimeoutError, match=r"within invoke_timeout_ms \(20 ms\)"):
            event.wait()
    assert (event.done(), own_device.lost) == (True, True)
    context.close()


def test_a_submission_on_a_device_that_is_lost_meanwhile(own_device: WebGPUDevice) -> None:
    context = ready(own_device, adding(1))
    event = context.submit(Bindings.of([floats()], [np.zeros_like(floats())]))
    event.wait()
    own_device.device.destroy()
    with pytest.raises(DeviceLostError, match="is lost"):
        context.submit(Bindings.of([floats()], [np.zeros_like(floats())]))
    context.close()


@pytest.mark.parametrize("older", [False, True])
def test_shaders_keep_to_their_buffers(
    older: bool, own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel with wrong indices accesses only the ranges that are bound to it."""
    if older:
        monkeypatch.setattr(own_device.calls, "_make_module", None)
    else:
        assert own_device.calls._make_module is not None
    lost = "    STORE4_F32(dst, GLOBAL_X + 4096, LOAD4_F32(src, GLOBAL_X + 8192) + SPLAT4(1.0f));\n"
    far = "    STORE4_F32(dst, GLOBAL_X + 300000000, LOAD4_F32(src, GLOBAL_X + 300000000));\n"
    for text in (lost, far):
        astray = program([kernel("astray", text)], [launch("astray", 1, 0)], [0], [1])
        context = ready(own_device, astray)
        run(context, [floats()])
        memory = context.read_memory().view(np.float32)
        np.testing.assert_array_equal(memory[: floats().size], floats())
        assert np.isnan(memory[2 * floats().size :]).all()
        context.close()


# Interrupts


@needs_timers
def test_interrupted_runs(own_device: WebGPUDevice) -> None:
    """After each of many interrupts, the next run gives the correct result for another input."""
    context = ready(own_device, adding(9))
    inputs = [np.full(floats().size, number, np.float32) for number in range(4)]
    draw = np.random.default_rng(0)
    for count in range(100):
        with alarms(webgpu_submission, float(draw.uniform(3e-4, 1e-3))) as raised:
            while raised[0] < 4:
                with contextlib.suppress(Alarm):
                    run(context, [inputs[count % 4]])
        after = inputs[(count + 1) % 4]
        np.testing.assert_array_equal(run(context, [after])[0], after + 9)
    context.close()


STEPS = ["wgpuCommandEncoderFinish", "wgpuQueueSubmit", "wgpuBufferMapAsync", "memmove", "unmap"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_ends_at_a_step(
    step: str, after: bool, own_device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an exception before or after any step, the next run is correct."""
    context = ready(own_device, adding(1))
    position: Any = own_device.calls.checked
    if step == "memmove":
        position = ctypes
    elif step == "unmap":
        position = reader_of(context)
    make = getattr(position, step)

    def stop(*arguments: Any) -> Any:
        if after:
            make(*arguments)
        raise Alarm

    for number in range(3):
        with monkeypatch.context() as broken:
            broken.setattr(position, step, stop)
            with pytest.raises(Alarm):
                run(context, [floats(number)])
        np.testing.assert_array_equal(run(context, [floats(7)])[0], floats(7) + 1)
    with monkeypatch.context() as broken:
        broken.setattr(position, step, stop)
        with pytest.raises(Alarm):
            run(context, [floats()])
    context.close()


def test_an_inherited_context_is_harmless() -> None:
    """A forked child closes and deletes an interpreter, and exits."""
    source = """
        import os
        from litegpu import ForkedProcessError, backends
        opened = backends.BACKENDS["webgpu"].open(0)
        first, second, third = (ready(opened, adding(1)) for _ in range(3))
        child = os.fork()
        if child == 0:
            for act in (backends.BACKENDS["webgpu"].devices, lambda: GpuDelegate()):
                try:
                    act()
                except ForkedProcessError as error:
                    print(str(error)[:26], flush=True)
            first.close()
            del second
            raise SystemExit(3)
        print(os.waitpid(child, 0)[1] >> 8)
        np.testing.assert_array_equal(run_context(third, [floats()])[0], floats() + 1)
    """
    start = START + (
        "import numpy as np\nfrom backend_suite import adding, floats, ready, run as run_context\n"
    )
    ended = run_program(source, "webgpu", start=start)
    assert (ended.code, ended.stdout, ended.stderr) == (
        *(0, "WebGPU was opened before t\n" * 2 + "3\n", ""),
    )


def test_a_released_partition_says_so(device: WebGPUDevice) -> None:
    context = ready(device, adding(1))
    context.close()
    with pytest.raises(ExecutionError, match="This partition was released"):
        run(context, [floats()])


# The rest


def test_ranges_of_buffers_begin_at_words(device: WebGPUDevice) -> None:
    context, buffer = ready(device, adding(1)), device.allocate(floats().nbytes + 4)
    assert isinstance(buffer, DeviceBuffer)
    part, wanted = buffer.part(2, floats().nbytes), "begins at byte 2 of its WebGPU buffer. Use a m"
    host = HostBuffer.of(floats())
    for fails in (
        lambda: context.bind(Bindings((part,), (host,))),
        lambda: context.bind(Bindings((host,), (part,))),
        lambda: part.write(floats()),
        part.read,
    ):
        with pytest.raises(BindingError, match=wanted):
            fails()
    context.close()
    buffer.close()


def test_durations_without_time_stamps(own_device: WebGPUDevice) -> None:
    own_device.timed = False
    context = ready(own_device, adding(3))
    durations = context.profiler().durations()
    assert len(durations) == 3
    assert all(0 < seconds < 10 for seconds in durations)
    context.close()


def test_more_launches_than_a_set_of_time_stamps_holds(
    device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webgpu_profile, "_STAMPS", 4)
    context = ready(device, adding(5))
    assert len(context.profiler().durations()) == 5
    context.close()


def test_large_memory_and_constants_are_filled_in_pieces(
    device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webgpu_buffers, "_CHUNK", 1 << 12)
    context = ready(device, adding(2))
    assert np.isnan(context.read_memory().view(np.float32)).all()
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1 + 1)
    context.close()


PACKED = [
    group
    for group in groups(cases.TABLE)
    if type(group[0]).__name__ in {"Concat", "Reshape", "Resize", "Slice"}
]


@pytest.mark.parametrize("group", PACKED, ids=lambda group: group[0].name)
def test_packed_halves_where_the_device_has_no_others(
    group: tuple[Case, ...], device: WebGPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = dataclasses.replace(device.info, half_lanes=False)
    packed = WebGPUDevice(info, webgpu._adapters()[0])
    assert "unpackHalf2x16" in packed.dialect.prelude
    assert "f16vec4" not in packed.dialect.prelude
    monkeypatch.setitem(webgpu._opened.devices, 0, packed)
    mode = next(mode for mode in MODES if mode.half)
    for name, outcome in op_runner.run(group, device.info, mode).items():
        if isinstance(outcome, Exception):
            raise outcome
        for expected, got in zip(outcome.expected, outcome.got, strict=True):
            assert not mismatch(expected, got, cases.TABLE[name].limit(half=True)), name
        assert not outcome.faults, name
