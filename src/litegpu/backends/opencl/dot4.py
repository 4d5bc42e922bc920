"""Determines which int8 dot-product instructions an OpenCL device computes correctly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.buffers import Bindings
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import Argument, KernelText
from litegpu.codegen.opencl import OpenCLDialect
from litegpu.codegen.opencl_dot4 import ARM, ARM_ACCUMULATE, KHR, PLAIN, PTX, ByteDot
from litegpu.errors import LitegpuError

if TYPE_CHECKING:
    from litegpu.backends.opencl.device import OpenCLDevice

_log = logging.getLogger("litegpu")

NVIDIA_FACTS = "cl_nv_device_attribute_query"
"""The extension that reports the device's compute capability."""
_FIRST_DP4A = (6, 1)
"""The first compute capability with the dot-product instruction."""
_SAMPLES = 32
_BYTES = 4 * _SAMPLES
"""Bytes of the samples for each operand, a multiple of the alignment of ranges."""


def byte_dot(device: OpenCLDevice) -> ByteDot:
    """Return the first dot-product form that the device reports and computes correctly, or PLAIN.

    The function logs a warning for a reported form that fails. Raises LitegpuError if the device is
    lost.
    """
    for dot in _reported(device):
        failure = _failure(device, dot)
        if not failure:
            return dot
        _log.warning(
            "%s reports %s, but %s. 8-bit products are computed without this instruction.",
            *(device.info.title, dot.name, failure),
        )
    return PLAIN


def _reported(device: OpenCLDevice) -> Iterator[ByteDot]:
    """Yield the forms of the dot product that the device reports, in order of preference."""
    (raw,) = device.context.devices
    extensions = raw.extensions.split()
    yield from (dot for dot in (KHR, ARM_ACCUMULATE, ARM) if dot.name in extensions)
    if NVIDIA_FACTS in extensions:
        facts: Any = device.cl.device_info
        names = (facts.COMPUTE_CAPABILITY_MAJOR_NV, facts.COMPUTE_CAPABILITY_MINOR_NV)
        if tuple(int(raw.get_info(name)) for name in names) >= _FIRST_DP4A:
            yield PTX


def _failure(device: OpenCLDevice, dot: ByteDot) -> str:
    """Return how a dot-product form fails on a device; empty if the form is correct."""
    a, b, c = _samples()
    found = np.empty_like(c)
    try:
        executable = device.compile_in(OpenCLDialect(dot), _PROGRAM)
        try:
            context = executable.context()
            try:
                context.run(Bindings.of((a, b, c), (found,)))
            finally:
                context.close()
        finally:
            executable.close()
    except LitegpuError as error:
        if device.lost:
            raise
        return f"a kernel with this instruction fails: {str(error).splitlines()[0]}"
    expected = c + (a.astype(np.int32) * b).sum(1, np.int32)
    wrong = np.flatnonzero(found != expected)
    if not wrong.size:
        return ""
    at = wrong[0]
    return f"returns {found[at]} for {a[at]}, {b[at]} and {c[at]}, not {expected[at]}"


_Bytes = npt.NDArray[np.int8]


def _samples() -> tuple[_Bytes, _Bytes, npt.NDArray[np.int32]]:
    """Return two arrays of bytes [_SAMPLES, 4], and the addends; the first sums wrap around."""
    random = np.random.default_rng(0)
    a, b = random.integers(-128, 128, (2, _SAMPLES, 4), np.int8)
    c = random.integers(-(2**31), 2**31, _SAMPLES, np.int32)
    a[:3], b[:3] = -128, [[-128], [127], [-1]]
    c[:3] = 2**31 - 1, -(2**31), -1
    return a, b, c


def _range(number: int) -> BufferRange:
    return BufferRange(False, number * _BYTES, _BYTES)


_GROUP = (_SAMPLES, 1, 1)
_NAMES = ("dst", "a", "b", "c")
_KERNEL = KernelText(
    "dot_products_of_bytes",
    tuple(Argument(name, "I32", False, name == "dst") for name in _NAMES),
    _GROUP,
    (),
    "    const int i = GLOBAL_X;\n"
    "    STORE1_I32(dst, i, DOT4_S8(LOAD1_I32(a, i), LOAD1_I32(b, i), LOAD1_I32(c, i)));\n",
)
_PROGRAM = Program(
    (_KERNEL,),
    (Launch(_KERNEL.name, tuple(map(_range, range(4))), _GROUP, _GROUP),),
    4 * _BYTES,
    np.zeros(0, np.uint8),
    tuple(map(_range, (1, 2, 3))),
    (_range(0),),
)
