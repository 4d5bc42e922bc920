"""Fixtures, and readable assertions, for tests that share code."""

from __future__ import annotations

import typing

import pytest

pytest.register_assert_rewrite("backend_suite", "small_models")

if typing.TYPE_CHECKING:
    from litegpu.backends.opencl import OpenCLDevice


@pytest.fixture
def opencl_device() -> OpenCLDevice:
    """Return the first OpenCL device."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    from litegpu.backends.opencl import OpenCLBackend, OpenCLDevice

    opened = OpenCLBackend().open(0)
    assert isinstance(opened, OpenCLDevice)
    return opened
