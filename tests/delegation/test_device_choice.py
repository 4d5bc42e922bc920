"""The device that a delegate opens, and the error if none matches."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import small_models
from host_device import HostDevice
from litegpu import (
    CompilationError,
    GpuDelegate,
    MissingDependencyError,
    OptionsError,
    UnsupportedDeviceError,
    backends,
    list_devices,
)
from litegpu.backends.base import Backend, Device, DeviceInfo
from litegpu.errors import missing_dependency
from litegpu.host.private_files import Folder


def info(backend: str, index: int, name: str, software: bool = False) -> DeviceInfo:
    return DeviceInfo(
        backend=backend,
        index=index,
        name=name,
        platform=f"{backend} platform",
        driver="1.0",
        software=software,
        compute_units=4,
        memory_bytes=1 << 30,
        max_allocation_bytes=1 << 28,
        max_work_group_size=256,
        local_memory_bytes=1 << 15,
        half_arithmetic=False,
        buffer_alignment=256,
        max_arguments=32,
    )


class FakeDevice(HostDevice):
    def __init__(self, device_info: DeviceInfo) -> None:
        self.info = device_info

    def compile(self, program: Any, cache_dir: Folder | None = None) -> Any:
        raise AssertionError


class FakeBackend(Backend):
    package = "pyfake"

    def __init__(
        self, name: str, found: list[DeviceInfo] | BaseException, broken: tuple[int, ...] = ()
    ) -> None:
        self.name = name  # type: ignore[misc]
        self._found = found
        self._broken = broken

    def devices(self) -> list[DeviceInfo]:
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def open(self, index: int) -> Device:
        if index in self._broken:
            raise UnsupportedDeviceError(f"number {index} is asleep.")
        return FakeDevice(self.devices()[index])


FIRST = FakeBackend("first", [info("first", 0, "Soft CPU", software=True)])
SECOND = FakeBackend(
    "second", [info("second", 0, "Fast 4090"), info("second", 1, "Slow Radeon")], broken=(1,)
)
ABSENT = FakeBackend("absent", missing_dependency("pyabsent", "absent", "The absent backend"))
NO_DRIVER = FakeBackend("bare", UnsupportedDeviceError("There is no driver. Install one."))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FIRST, SECOND, ABSENT, NO_DRIVER)


def offer(monkeypatch: pytest.MonkeyPatch, *offered: FakeBackend) -> None:
    monkeypatch.delenv("LITEGPU_BACKEND", raising=False)
    monkeypatch.delenv("LITEGPU_DEVICE", raising=False)
    monkeypatch.setattr(backends, "_said", {})
    monkeypatch.setattr(backends, "BACKENDS", {backend.name: backend for backend in offered})


def chosen(backend: str | None = None, device: int | str | None = None) -> str:
    return backends.select(backend, device).info.title


def test_no_backend_is_asked_after_one_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    queried = []

    class Last(FakeBackend):
        def devices(self) -> list[DeviceInfo]:
            queried.append(self.name)
            return super().devices()

    last = Last("last", [info("last", 0, "Arc")])
    offer(monkeypatch, FIRST, SECOND, last)
    assert chosen() == "second:0 Fast 4090"
    assert queried == []
    offer(monkeypatch, FIRST, last)
    assert chosen() == "last:0 Arc"
    assert queried[:1] == ["last"]


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [
        (None, None, "second:0 Fast 4090"),
        ("", "", "second:0 Fast 4090"),
        ("first", None, "first:0 Soft CPU"),
        (None, 0, "second:0 Fast 4090"),
        (None, "0", "second:0 Fast 4090"),
        (None, 2, "first:0 Soft CPU"),
        ("first", 0, "first:0 Soft CPU"),
        ("second", 0, "second:0 Fast 4090"),
        ("SECOND", "0", "second:0 Fast 4090"),
        (None, "4090", "second:0 Fast 4090"),
        (None, "SOFT", "first:0 Soft CPU"),
        (None, "second:0", "second:0 Fast 4090"),
        (None, "first:0", "first:0 Soft CPU"),
        (None, "first", "first:0 Soft CPU"),
        ("auto", "SECOND", "second:0 Fast 4090"),
        ("gpu", None, "second:0 Fast 4090"),
        (None, "First:0 Soft CPU", "first:0 Soft CPU"),
    ],
)
def test_the_choice(
    fakes: None, backend: str | None, device: int | str | None, expected: str
) -> None:
    assert chosen(backend, device) == expected


def test_the_environment_decides_where_the_options_do_not(
    fakes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITEGPU_BACKEND", "first")
    assert chosen() == "first:0 Soft CPU"
    assert chosen("second") == "second:0 Fast 4090"
    monkeypatch.setenv("LITEGPU_BACKEND", "second")
    monkeypatch.setenv("LITEGPU_DEVICE", "fast")
    assert chosen() == "second:0 Fast 4090"
    monkeypatch.setenv("LITEGPU_DEVICE", "toaster")
    with pytest.raises(UnsupportedDeviceError, match="No device matches 'toaster'"):
        chosen()
    assert chosen(device="4090") == "second:0 Fast 4090"


def test_names_are_matched_and_not_what_stands_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`WebGPU on Vulkan` is no GPU called GPU."""
    pipe = dataclasses.replace(info("webgpu", 0, "llvmpipe", True), platform="WebGPU on Vulkan")
    offer(monkeypatch, FakeBackend("webgpu", [pipe]))
    for text in ("GPU", "vulkan", "webgpu:", "platform"):
        with pytest.raises(UnsupportedDeviceError, match=f"No device matches '{text}'"):
            chosen(None, text)
        with pytest.raises(UnsupportedDeviceError, match=f"No device matches '{text}'"):
            chosen("webgpu", text)


def test_a_real_gpu_comes_first_whatever_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    software = FakeBackend("opencl", [info("opencl", 0, "AMD EPYC", True)])
    mixed = [info("opengl", 0, "AMD pipe", True), info("opengl", 1, "AMD Radeon")]
    offer(monkeypatch, software, FakeBackend("opengl", mixed))
    assert chosen() == chosen(None, "AMD") == chosen(None, 0) == "opengl:1 AMD Radeon"
    assert chosen("opengl") == chosen("opengl", "amd") == "opengl:1 AMD Radeon"
    assert chosen("opengl", 0) == "opengl:0 AMD pipe", "numbers count within a named backend"
    assert [device.title for device in list_devices()] == [
        "opengl:1 AMD Radeon",
        "opencl:0 AMD EPYC",
        "opengl:0 AMD pipe",
    ]
    for number, device in enumerate(list_devices()):
        assert chosen(None, number) == device.title


@pytest.mark.parametrize("short", ["cl", "CL", "OpenCL"])
def test_backends_have_short_names_in_any_case(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FIRST, FakeBackend("opencl", [info("opencl", 0, "Radeon")]))
    assert chosen(short) == "opencl:0 Radeon"
    monkeypatch.setenv("LITEGPU_BACKEND", short)
    assert chosen() == "opencl:0 Radeon"


@pytest.mark.parametrize(
    ("backend", "device", "variable"),
    [(None, None, ""), ("first", None, ""), (None, "soft", ""), (None, 1, ""), (None, None, "cpu")],
)
def test_a_software_device_that_is_used_is_announced_once(
    backend: str | None,
    device: int | str | None,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pocl = FakeBackend("other", [info("other", 0, "Other CPU", software=True)])
    offer(monkeypatch, FIRST, pocl)
    monkeypatch.setenv("LITEGPU_DEVICE", variable)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: chosen(backend, device), range(16)))
    chosen("other")
    assert caplog.text.count("is a software device: the runtime's CPU kernels") == 1


def test_a_gpu_is_chosen_without_a_warning(fakes: None, caplog: pytest.LogCaptureFixture) -> None:
    chosen()
    chosen(device="4090")
    assert not caplog.records


@pytest.mark.parametrize("device", ["absent", "absent:0", "bare:1"])
def test_a_device_of_a_backend_that_has_none(fakes: None, device: str) -> None:
    reason = {"absent": "The absent backend needs the Python", "bare": "There is no driver"}
    text = f"No device matches '{device}'. {reason[device.partition(':')[0]]}.*Usable devices: 0 "
    with pytest.raises(UnsupportedDeviceError, match=text) as found:
        chosen(None, device)
    assert found.value.remedy == ("pip install 'litegpu[absent]'" if "absent" in device else "")


def test_a_cpu_is_no_backend(fakes: None) -> None:
    with pytest.raises(OptionsError, match=r"Unknown backend 'CPU'. litegpu runs on GPUs: without"):
        chosen("CPU")


BROKEN = [AttributeError("no FFI"), OSError("wrong class"), SystemError("no result"), KeyError(3)]


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
def test_any_error_of_a_backend_is_its_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, FakeBackend("broken", error), SECOND)
    assert chosen() == chosen(None, 0) == chosen(None, "4090") == "second:0 Fast 4090"
    status, _ = backends.status()
    expected = f"The Python package 'pyfake' or the driver behind it fails ({type(error).__name__}"
    assert status.reason.startswith(expected)
    assert status.remedy == "pip install --force-reinstall pyfake"
    with pytest.raises(UnsupportedDeviceError, match="pip install --force-reinstall pyfake"):
        chosen("broken")


def test_any_error_while_a_device_opens_leads_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = FakeBackend("bad", [info("bad", 0, "Bad")])

    def fail(index: int) -> Device:
        raise AttributeError("context has no queue")

    monkeypatch.setattr(bad, "open", fail)
    offer(monkeypatch, bad, SECOND)
    assert chosen() == "second:0 Fast 4090"
    assert "(AttributeError: context has no queue)" in caplog.text
    with pytest.raises(UnsupportedDeviceError, match="context has no queue"):
        chosen("bad", 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_is_no_reason(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FakeBackend("slow", error), SECOND)
    for ask in (chosen, list_devices, backends.status):
        with pytest.raises(type(error)):
            ask()


def test_a_device_that_cannot_be_opened_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = FakeBackend("second", [info("second", 0, "Fast 4090")], broken=(0,))
    offer(monkeypatch, broken, FIRST)
    assert chosen() == "first:0 Soft CPU"
    expected = "second:0 Fast 4090: number 0 is asleep. first:0 Soft CPU is used instead."
    assert expected in caplog.text


def test_no_device_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FakeBackend("second", [info("second", 0, "Fast 4090")], broken=(0,)))
    with pytest.raises(UnsupportedDeviceError, match="second:0 Fast 4090: number 0 is asleep"):
        chosen()


def test_a_device_that_was_asked_for_and_cannot_be_opened(fakes: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match="number 1 is asleep"):
        chosen("second", 1)


@pytest.mark.parametrize("device", [7, "7", "-1", "toaster"])
def test_a_device_that_is_not_there(fakes: None, device: int | str) -> None:
    with pytest.raises(UnsupportedDeviceError) as caught:
        chosen(None, device)
    assert str(caught.value) == (
        f"No device matches '{device}'. Usable devices: 0 Fast 4090 (second); "
        "1 Slow Radeon (second); 2 Soft CPU (first). Give a number, part of a name, or "
        "BACKEND:NUMBER."
    )


def test_an_unknown_backend(fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = r"first, second, absent, bare, metal, vulkan, d3d12, cl, gl, auto, gpu\."
    hint = rf"Did you mean 'second'\? Known: {known}"
    with pytest.raises(OptionsError, match=rf"Unknown backend 'sceond'\. {hint}"):
        chosen("sceond")
    monkeypatch.setenv("LITEGPU_BACKEND", "sceond")
    expected = rf"LITEGPU_BACKEND names an unknown backend 'sceond'\. {hint}"
    with pytest.raises(OptionsError, match=expected):
        chosen()


def test_a_backend_whose_package_is_missing(fakes: None) -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[absent\]'"):
        chosen("absent")


def test_a_backend_without_devices(fakes: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match=r"There is no driver\. Install one\."):
        chosen("bare")


def test_nothing_usable_names_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ABSENT, NO_DRIVER)
    with pytest.raises(UnsupportedDeviceError, match="`litegpu doctor` says") as caught:
        chosen()
    assert "absent: The absent backend needs the Python package 'pyabsent'" in str(caught.value)
    assert "bare: There is no driver. Install one." in str(caught.value)


def test_the_status_of_every_backend(fakes: None) -> None:
    first, second, absent, bare = backends.status()
    assert first.devices[0].software
    assert [device.name for device in second.devices] == ["Fast 4090", "Slow Radeon"]
    assert absent.devices == () and "'pyabsent', which is not installed" in absent.reason
    assert absent.remedy == "pip install 'litegpu[absent]'"
    assert bare.reason == "There is no driver. Install one."
    assert [device.title for device in list_devices()] == [
        "second:0 Fast 4090",
        "second:1 Slow Radeon",
        "first:0 Soft CPU",
    ]


@pytest.mark.parametrize(
    "fields",
    [{"backend": "opencl"}, {"experimental_flags": 2}, {"backend": "opencl", "device": 0}],
)
def test_the_delegate_opens_what_the_options_say(fields: dict[str, Any]) -> None:
    assert GpuDelegate(**fields).device.backend == "opencl"


def test_the_delegate_passes_errors_on(fakes: None) -> None:
    with pytest.raises(OptionsError, match="Unknown backend 'opengl'"):
        GpuDelegate(experimental_flags=4)
    with pytest.raises(UnsupportedDeviceError, match="No device matches 'toaster'"):
        GpuDelegate(device="toaster")
    with pytest.raises(MissingDependencyError, match="'pyabsent'"):
        GpuDelegate(backend="absent")


# Fallback


def of_api(api: str) -> DeviceInfo:
    return dataclasses.replace(info("webgpu", 0, f"GPU on {api}"), platform=f"WebGPU on {api}")


@pytest.mark.parametrize(
    ("alias", "api"), [("metal", "Metal"), ("vulkan", "Vulkan"), ("d3d12", "Direct3D 12")]
)
def test_an_alias_picks_the_device_on_that_api(
    alias: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"Metal", "Vulkan", "Direct3D 12"} - {api}
    found = [dataclasses.replace(of_api(each), index=i) for i, each in enumerate([*others, api])]
    offer(monkeypatch, FIRST, FakeBackend("webgpu", found))
    assert chosen(alias) == f"webgpu:2 GPU on {api}"
    monkeypatch.setenv("LITEGPU_BACKEND", alias)
    assert chosen() == f"webgpu:2 GPU on {api}"
    offer(monkeypatch, FIRST, FakeBackend("webgpu", found[:2]))
    with pytest.raises(UnsupportedDeviceError, match=f"WebGPU has no device on {api} here. It has"):
        chosen(alias)


def test_what_leaves_the_choice_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITEGPU_BACKEND", raising=False)
    monkeypatch.delenv("LITEGPU_DEVICE", raising=False)
    assert backends.is_free(None, None) and backends.is_free("", "")
    assert not backends.is_free("opencl", None) and not backends.is_free(None, 0)
    monkeypatch.setenv("LITEGPU_DEVICE", "Radeon")
    assert not backends.is_free(None, None)


def test_the_next_api_has_another_backend_and_the_same_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = [info("opencl", 0, "Radeon"), info("opencl", 1, "Slower")]
    asleep = FakeBackend("webgpu", [info("webgpu", 0, "Radeon")], broken=(0,))
    last = FakeBackend("opengl", [info("opengl", 0, "Radeon"), info("opengl", 1, "pipe", True)])
    offer(monkeypatch, FakeBackend("opencl", cards), asleep, last, FIRST)
    device = backends.next_after(cards[0])
    assert device is not None and device.info.title == "opengl:0 Radeon"
    assert backends.next_after(device.info) is None, "software does not help a GPU"
    software = backends.next_after(last.devices()[1])
    assert software is not None and software.info.title == "first:0 Soft CPU"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make OpenCL reject every program; return the next backend on this machine."""
    monkeypatch.delenv("LITEGPU_BACKEND", raising=False)
    monkeypatch.delenv("LITEGPU_DEVICE", raising=False)
    opened = GpuDelegate(backend="opencl").device
    device = backends.BACKENDS["opencl"].open(opened.index)

    def refuse(*_: Any) -> Any:
        raise CompilationError("OpenCL has a bad day")

    following = backends.next_after(opened)
    if following is None:
        pytest.skip("no other API has a device of the same kind here")
    monkeypatch.setattr(device, "compile", refuse)
    return following.info.backend


def test_the_next_api_takes_over(refusing: str, caplog: pytest.LogCaptureFixture) -> None:
    model, x = small_models.fully_convolutional(), small_models.random(1, 9, 7, 3)
    delegate = GpuDelegate()
    if delegate.device.backend != "opencl":
        pytest.skip("OpenCL is not the first choice here")
    target = small_models.interpreter(model, delegate)
    small_models.assert_close(small_models.run(target, x), small_models.reference(model, x))
    title = backends.TITLES[refusing]
    texts = [record.message for record in caplog.records]
    assert texts.index("OpenCL has a bad day") + 1 == texts.index(f"Falling back to {title}")
    assert delegate.error is None
    assert delegate.report is not None and delegate.report.backend == refusing
    assert delegate.device.backend == refusing


@pytest.mark.parametrize("fields", [{"backend": "opencl"}, {"experimental_flags": 2}])
def test_no_other_api_takes_over_where_one_was_asked_for(
    fields: dict[str, Any], refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = small_models.fully_convolutional(), small_models.random(1, 9, 7, 3)
    delegate = GpuDelegate(**fields)
    target = small_models.interpreter(model, delegate)
    small_models.assert_close(small_models.run(target, x), small_models.reference(model, x))
    assert "Falling back" not in caplog.text
    assert isinstance(delegate.error, CompilationError)


def test_the_api_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offer(monkeypatch, FakeBackend("opengl", [info("opengl", 0, "Radeon")]))
    with caplog.at_level("INFO", logger="litegpu"):
        chosen()
        chosen()
    assert caplog.text.count("Initialized OpenGL-based API.") == 1
