"""A backend for tests: CUDA kernels as C++ functions on the CPU, one fiber for each thread."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from host_device import HostContext, HostDevice, HostExecutable
from litegpu.backends.base import Backend, Device, DeviceInfo
from litegpu.backends.buffers import Bindings, Buffer, HostBuffer
from litegpu.backends.execution import Executable
from litegpu.backends.folding import fold_launches
from litegpu.backends.program import BufferRange, Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import GRID_LIMITS, CUDADialect
from paper_device import DEVICE

HEADER = Path(__file__).with_name("cuda_emulator.h")
INFO = dataclasses.replace(
    DEVICE,
    backend="cuda",
    name="CUDA on the CPU",
    compute_units=132,
    max_work_group_size=1024,
    local_memory_bytes=227 << 10,
    buffer_alignment=256,
    compute_capability=(9, 0),
)
_SIZES = {"float": 4, "float4": 16, "uint4": 16}


@cache
def is_usable() -> bool:
    """Whether a compiler is here that can make what the header needs."""
    try:
        _build(f'#include "{HEADER}"\n', "usable")
    except (OSError, RuntimeError):
        return False
    return True


class EmulatedBackend(Backend):
    """Has one device, like a Hopper GPU."""

    name = "cuda"
    extra = "cuda12"

    def devices(self) -> list[DeviceInfo]:
        return [INFO]

    def open(self, index: int) -> Device:
        return EmulatedDevice()


class EmulatedDevice(HostDevice):
    """Compiles kernels with a C++ compiler."""

    info = INFO
    dialect = CUDADialect()
    limits = GRID_LIMITS

    def compile(self, program: Program, cache_dir: str | None = None) -> Executable:
        return HostExecutable(fold_launches(program, self.limits), EmulatedContext)


class EmulatedContext(HostContext):
    """Runs launches one after the other on memory of its own."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable)
        self._kernels = compiled(self.program.kernels)
        self._memory = _aligned(self.program.memory_bytes)
        self._constants = _aligned(len(self.program.constants))
        self._constants[:] = self.program.constants

    def execute(self, bindings: Bindings) -> None:
        for part, buffer in zip(self.program.inputs, bindings.inputs, strict=True):
            ctypes.memmove(self._at(part), address_of(buffer), part.size)
        for launch in self.program.launches:
            pairs = zip(launch.global_size, launch.local_size, strict=True)
            x, y, z = (-(-whole // part) for whole, part in pairs)
            pointers = [self._at(part) for part in launch.ranges]
            call_kernel(self._kernels, launch.kernel, pointers, (y, x, z), launch.local_size)
        for part, buffer in zip(self.program.outputs, bindings.outputs, strict=True):
            ctypes.memmove(address_of(buffer), self._at(part), part.size)

    def _at(self, part: BufferRange) -> int:
        held = self._constants if part.constant else self._memory
        return int(held.ctypes.data) + part.offset

    def read_memory(self) -> npt.NDArray[np.uint8]:
        return self._memory


def address_of(buffer: Buffer) -> int:
    """Return where a buffer of the host lies."""
    assert isinstance(buffer, HostBuffer)
    return buffer.address


def call_kernel(
    library: Any,
    name: str,
    pointers: Sequence[int],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
) -> None:
    """Launch a kernel of a compiled library, and wait."""
    library[f"launch_{name}"](
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_uint * 3)(*grid),
        (ctypes.c_uint * 3)(*block),
    )


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return bytes that read as NaN, at an address like the device's."""
    held = np.full(nbytes + 256, 0xFF, np.uint8)
    start = -held.ctypes.data % 256
    return held[start : start + nbytes]


@cache
def compiled(kernels: tuple[KernelText, ...]) -> Any:
    """Return a library of kernels, for `call_kernel`."""
    dialect = CUDADialect()
    parts = [f'#include "{HEADER}"', _without_assembly(dialect.prelude), dialect.integers]
    parts.append("""\
template <class... A, size_t... I>
static void call_with(void (*f)(A...), void **a, std::index_sequence<I...>) { f((A)a[I]...); }
template <class... A> static void call(void (*f)(A...), void **a) {
    call_with(f, a, std::index_sequence_for<A...>());
}""")
    for kernel in kernels:
        text, shared = _with_shared(dialect.kernel(kernel))
        cluster = kernel.attributes.cluster_size
        parts.append(f"""{text}
extern "C" void launch_{kernel.name}(void **a, const unsigned *grid, const unsigned *local) {{
    launch([](void **a) {{ call({kernel.name}, a); }}, a, grid, local, {cluster}, {shared});
}}""")
    source = "\n".join(parts)
    return ctypes.CDLL(str(_build(source, hashlib.sha256(source.encode()).hexdigest()[:16])))


def _build(source: str, name: str) -> Path:
    """Compile a source text to a shared library, of which each process has its own."""
    file = _folder() / f"{name}.cpp"
    file.write_text(source, encoding="utf-8")
    library = file.with_suffix(".so")
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing"]
    command = ["g++", *flags, "-ffp-contract=off", str(file), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The C++ compiler refuses {file}: {done.stderr[:2000]}")
    return library


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _without_assembly(prelude: str) -> str:
    """Drop the functions that are made of inline assembly: the header has others."""
    function = re.compile(r"^(?:template <[^>]*> )?__device__ [^{]*?\{\n.*?^\}\n", re.M | re.S)
    return function.sub(lambda m: "" if re.search("asm|__cvta", m[0]) else m[0], prelude)


def _with_shared(text: str) -> tuple[str, int]:
    """Let shared arrays lie in the memory of the block; return the text and their bytes."""
    end = 0

    def place(match: re.Match[str]) -> str:
        nonlocal end
        kind, name, length = match.groups()
        start, end = end, end + -(-_SIZES[kind] * int(length) // 16) * 16
        return f"{kind} *const {name} = ({kind} *)shared_memory({start});"

    text = re.sub(r"__shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[(\d+)\];", place, text)
    whole = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?uint4 dynamic_shared\[\];")
    if whole.search(text):
        text = whole.sub("uint4 *const dynamic_shared = (uint4 *)shared_memory(0);", text)
        end = 227 << 10
    return text, end


needs_emulator = pytest.mark.skipif(
    not is_usable(),
    reason="no C++ compiler here that makes x86-64 code and knows _Float16 (apt-get install g++)",
)
