"""OpenCL kernels are built as several programs in parallel if the driver uses one core each."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import Any

import numpy as np
import pytest

from backend_suite import ADD_ONE, floats, kernel, launch, program, run
from litegpu import CompilationError
from litegpu.backends.execution import Executable
from litegpu.backends.opencl import build as opencl_build
from litegpu.backends.opencl import library as opencl_library
from litegpu.backends.opencl.build import parts_of
from litegpu.backends.opencl.device import OpenCLDevice
from litegpu.backends.opencl.library import OpenCLKernel
from litegpu.errors import KernelError

NAMES = ("add_one", "add_other", "add_third")


def result_of(executable: Executable) -> Any:
    context = executable.context()
    (found,) = run(context, [floats()])
    context.close()
    executable.close()
    return found


def test_a_device_is_asked_once_about_each_kernel(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried: list[OpenCLKernel] = []

    def obstacle(kernel: OpenCLKernel, *facts: Any, **more: Any) -> str:
        queried.append(kernel)
        return ""

    monkeypatch.setattr(OpenCLKernel, "obstacle", obstacle)
    launches = [launch(NAMES[i % 2], 1 - i % 2, i % 2) for i in range(5)]
    whole = program([kernel(name, ADD_ONE) for name in NAMES[:2]], launches, [0], [1])
    np.testing.assert_array_equal(
        result_of(opencl_device.compile(whole)), floats() + 1 + 1 + 1 + 1 + 1
    )
    assert len(queried) == 2


class _FewItems:
    """OpenCL's functions, but each kernel's maximum work-group size is reported as 16."""

    def __init__(self) -> None:
        self._real = opencl_library.library()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def clGetKernelWorkGroupInfo(  # noqa: N802
        self, kernel: Any, device: int, fact: int, size: int, value: Any, rest: Any
    ) -> int:
        status: int = self._real.clGetKernelWorkGroupInfo(kernel, device, fact, size, value, rest)
        if fact == opencl_library._WORK_GROUP_SIZE:
            value._obj.value = 16
        return status


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        ("Some Vendor", "needs 64 work items in a group, but the device has 16"),
        ("NVIDIA CUDA", ""),
    ],
)
def test_group_sizes_that_a_driver_reports(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, platform: str, reason: str
) -> None:
    monkeypatch.setattr(
        opencl_device, "info", dataclasses.replace(opencl_device.info, platform=platform)
    )
    functions = _FewItems()
    monkeypatch.setattr(opencl_library, "library", lambda: functions)
    whole = program([kernel(NAMES[0], ADD_ONE)], [launch(NAMES[0], 1, 0)], [0], [1])
    executable = opencl_device.compile(whole)
    expected = pytest.raises(KernelError, match=reason) if reason else contextlib.nullcontext()
    with expected:
        np.testing.assert_array_equal(run(executable.context(), [floats()])[0], floats() + 1)
    executable.close()


@pytest.mark.parametrize("builds", [1, 2, 3, 8])
def test_kernels_are_found_in_several_programs(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, builds: int
) -> None:
    compiled: list[str] = []
    from_source = opencl_build._from_source

    def keep(cl: Any, context: Any, source: str, options: str) -> Any:
        compiled.append(source)
        return from_source(cl, context, source, options)

    monkeypatch.setattr(opencl_build, "_from_source", keep)
    monkeypatch.setattr(OpenCLDevice, "builds_at_once", builds)
    launches = [launch(name, 1 - i % 2, i % 2) for i, name in enumerate(NAMES)]
    whole = program([kernel(name, ADD_ONE) for name in NAMES], launches, [0], [1])
    executable = opencl_device.compile(whole)
    assert len(compiled) == min(builds, 3)
    context = executable.context()
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1 + 1 + 1)
    binaries = dict(reversed(list(executable.binaries().items())))
    context.close()
    executable.close()
    assert len(binaries) == min(builds, 3)
    np.testing.assert_array_equal(
        result_of(opencl_device.load(whole, binaries)), floats() + 1 + 1 + 1
    )
    assert len(compiled) == min(builds, 3), "nothing is compiled again"
    name = next(iter(binaries))
    with pytest.raises(CompilationError, match="rejects kernels: add_one: clCreate"):
        opencl_device.load(whole, {**binaries, name: b"no binary"})
    with pytest.raises(CompilationError, match="unknown options of a binary, -cl-std=CL"):
        opencl_device.load(whole, {**binaries, "-cl-std=CL9.9 #7": binaries[name]})


def test_programs_are_built_at_once(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, from_source = threading.Barrier(2), opencl_build._from_source

    def wait(*arguments: Any) -> Any:
        both.wait(30)
        return from_source(*arguments)

    monkeypatch.setattr(opencl_build, "_from_source", wait)
    monkeypatch.setattr(OpenCLDevice, "builds_at_once", 2)
    sequence = [launch(NAMES[0], 1, 0), launch(NAMES[1], 0, 1)]
    whole = program([kernel(name, ADD_ONE) for name in NAMES[:2]], sequence, [0], [1])
    opencl_device.compile(whole).close()


def test_parts_are_of_about_one_length() -> None:
    kernels = [kernel(f"f{n}", "x" * length) for n, length in enumerate((10, 60, 20, 50, 30))]
    parts = parts_of(kernels, 3)
    assert sorted(sum(len(each.body) for each in part) for part in parts) == [50, 60, 60]
    assert sorted(each.name for part in parts for each in part) == ["f0", "f1", "f2", "f3", "f4"]
    assert len(parts_of(kernels, 9)) == 5
    assert parts_of(kernels[:1], 0) == [[kernels[0]]]


def test_how_many_programs_there_are(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setenv("LITEGPU_COMPILE_PROCESSES", "1")
    for software, found in ((True, 1), (False, 6)):
        info = dataclasses.replace(opencl_device.info, software=software)
        monkeypatch.setattr(opencl_device, "info", info)
        assert opencl_device.builds_at_once == found
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert opencl_device.builds_at_once == 8
    monkeypatch.setenv("LITEGPU_COMPILE_PROCESSES", "0")
    assert opencl_device.builds_at_once == 1
