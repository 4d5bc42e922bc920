"""A backend for tests: CUDA kernels as C++ functions on the CPU, one fiber for each thread."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulated_memory import EmulatedMemory, Places, shared_arrays
from host_device import HostContext, HostDevice, HostExecutable
from litegpu.backends.base import Backend, Device, DeviceInfo
from litegpu.backends.buffers import Bindings, Buffer, HostBuffer
from litegpu.backends.execution import Executable
from litegpu.backends.folding import fold_launches
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import GRID_LIMITS, CUDADialect
from litegpu.host.private_files import Folder
from paper_device import DEVICE

LIBRARIES = os.environ.get("LITEGPU_TEST_LIBRARIES", "")
"""A folder for compiled kernels that other processes find there again, if any."""
HEADER = Path(__file__).with_name("cuda_emulator.h")
CALL = """\
template <class... A, size_t... I>
static void call_with(void (*f)(A...), void **a, std::index_sequence<I...>) { f((A)a[I]...); }
template <class... A> static void call(void (*f)(A...), void **a) {
    call_with(f, a, std::index_sequence_for<A...>());
}
"""
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


@cache
def is_usable() -> bool:
    """Whether a compiler is here that can make what the header needs."""
    try:
        _build("", "usable")
    except (OSError, RuntimeError):
        return False
    return True


NOTHING_AHEAD = (0, 0)
"""What each launch tells of constants of later ones, after its arguments: there are none."""
ORDERS = range(3)
"""Orders of threads: one after the other, backwards, and in one that is drawn for each turn."""


class EmulatedBackend(Backend):
    """Has one device, like a Hopper GPU."""

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or EmulatedDevice()

    name = "cuda"
    extra = "cuda12"

    def devices(self) -> list[DeviceInfo]:
        return [self._device.info]

    def open(self, index: int) -> Device:
        return self._device


class EmulatedDevice(HostDevice):
    """Compiles kernels with a C++ compiler.

    If `checked`, a launch fails by a race or an access beyond its buffers (cuda_checks.h). `order`
    tells which of ORDERS threads take turns in.
    """

    def __init__(self, info: DeviceInfo = INFO, checked: bool = False, order: int = 0) -> None:
        self.info = info
        self._checked, self._order = checked, order

    dialect = CUDADialect()
    limits = GRID_LIMITS

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        context = partial(EmulatedContext, checked=self._checked, order=self._order)
        return HostExecutable(fold_launches(program, self.limits), context)


class EmulatedContext(HostContext):
    """Runs launches one after the other on memory of its own."""

    def __init__(self, executable: Executable, checked: bool = False, order: int = 0) -> None:
        super().__init__(executable)
        self._order = order
        self._kernels = compiled(self.program.kernels, checked)
        self._memory = EmulatedMemory(self.program)

    def execute(self, bindings: Bindings) -> None:
        for part, buffer in zip(self.program.inputs, bindings.inputs, strict=True):
            ctypes.memmove(self._memory.at(part), address_of(buffer), part.size)
        for launch in self.program.launches:
            pairs = zip(launch.global_size, launch.local_size, strict=True)
            x, y, z = (-(-whole // part) for whole, part in pairs)
            pointers = [*(self._memory.at(part) for part in launch.ranges), *NOTHING_AHEAD]
            positions = self._memory.places(launch)
            kernel = (self._kernels, launch.kernel)
            call_kernel(*kernel, pointers, (y, x, z), launch.local_size, positions, self._order)
        for part, buffer in zip(self.program.outputs, bindings.outputs, strict=True):
            ctypes.memmove(address_of(buffer), self._memory.at(part), part.size)

    def read_memory(self) -> npt.NDArray[np.uint8]:
        return self._memory.arena


def address_of(buffer: Buffer) -> int:
    """Return where a buffer of the host lies."""
    assert isinstance(buffer, HostBuffer)
    return buffer.address


_LAUNCHING = threading.Lock()
"""The fibers of a library are those of one launch; threads wait for each other."""


def call_kernel(
    library: Any,
    name: str,
    pointers: Sequence[int],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    positions: Places | None = None,
    order: int = 0,
) -> None:
    """Launch a kernel of a compiled library, and wait; what it may touch is for checked ones."""
    launch = library[f"launch_{name}"]
    launch.restype = ctypes.c_char_p
    with _LAUNCHING:
        ctypes.c_uint.in_dll(library, "fiber_order").value = order
        fault = launch(
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            None if positions is None else ctypes.byref(positions),
        )
    assert not fault, f"{name}: {fault.decode()}"


_BUILDING = threading.Lock()


@cache
def compiled(kernels: tuple[KernelText, ...], checked: bool = False) -> Any:
    """Return a library of kernels, for `call_kernel`."""
    dialect = CUDADialect()
    parts = []
    for kernel in kernels:
        arrays = shared_arrays(kernel)
        text = _with_shared(dialect.kernel(kernel), arrays)
        shared = max((end for _, _, end in arrays), default=0)
        cluster = kernel.attributes.cluster_size
        parts.append(f"""{text}
extern "C" __attribute__((visibility("default")))
const char *launch_{kernel.name}(void **a, const unsigned *grid, const unsigned *local,
                                 const Places *places) {{
    return launch([](void **a) {{ call({kernel.name}, a); }}, a, grid, local, {cluster}, {shared},
                  places);
}}""")
    source = "\n".join(parts)
    name = hashlib.sha256(f"{checked} {source}".encode()).hexdigest()[:16]
    with _BUILDING:  # threads that begin together want the same library
        return ctypes.CDLL(str(_build(source, name, checked)))


def _build(source: str, name: str, checked: bool = False) -> Path:
    """Compile a source text to a shared library, of which each process has its own unless kept."""
    file = _folder() / f"{name}.cpp"
    library = file.with_suffix(".so")
    if (shared := _shared_library(source, checked)) and shared.exists():
        return shared
    file.write_text(source, encoding="utf-8")
    output = str(file.with_suffix(".o"))
    _compile(file, "-include", str(_common(checked)), "-c", "-o", output, checked=checked)
    # Linked without the sanitizer's library, which wants a process of its own.
    _run(file, "-shared", output, str(_launches(checked)), "-o", str(library))
    if shared:
        shutil.copy(library, shared.with_suffix(f".{os.getpid()}"))
        shared.with_suffix(f".{os.getpid()}").replace(shared)
    return library


def _shared_library(source: str, checked: bool) -> Path | None:
    """Return where the library of a source text is kept, named by all that it is made of."""
    if not LIBRARIES:
        return None
    headers = [each.read_text(encoding="utf-8") for each in sorted(HEADER.parent.glob("cuda_*.h"))]
    text = "\n".join([source, _before_all(), *headers, str(_flags(checked))])
    return Path(LIBRARIES, f"{hashlib.sha256(text.encode()).hexdigest()}.so")


@cache
def _common(checked: bool) -> Path:
    """Write what goes before all kernels, precompiled: it takes longer than most of them."""
    file = _folder() / f"common{checked:d}.h"
    file.write_text(f'#include "{HEADER}"\n{_before_all()}', encoding="utf-8")
    _compile(file, "-x", "c++-header", "-o", f"{file}.gch", checked=checked)
    return file


@cache
def _launches(checked: bool) -> Path:
    """Compile what launches kernels, which all libraries have."""
    file = _folder() / f"launches{checked:d}.cpp"
    file.write_text(f'#define LAUNCHES\n#include "{HEADER}"\n', encoding="utf-8")
    output = file.with_suffix(".o")
    _compile(file, "-c", "-o", str(output), checked=checked)
    return output


@cache
def _before_all() -> str:
    """Return what goes before all kernels, after the header."""
    dialect = CUDADialect()
    return "\n".join((_without_assembly(dialect.prelude), dialect.integers, CALL))


def _compile(file: Path, *arguments: str, checked: bool) -> None:
    _run(file, *_flags(checked), *arguments, str(file))


def _flags(checked: bool) -> list[str]:
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-fno-exceptions"]
    # Symbols of one library are none of another.
    flags += ["-fvisibility=hidden"]
    flags += ["-ffp-contract=off", "-fno-threadsafe-statics"]
    return [*flags, "-DCHECKED=1", "-fsanitize=thread,bounds"] if checked else flags


def _run(file: Path, *arguments: str) -> None:
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The C++ compiler refuses {file}: {done.stderr[:2000]}")


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _without_assembly(prelude: str) -> str:
    """Drop the functions that are made of inline assembly: the header has others."""
    function = re.compile(r"^(?:template <[^>]*> )?__device__ [^{]*?\{\n.*?^\}\n", re.M | re.S)
    return function.sub(lambda m: "" if re.search("asm|__cvta", m[0]) else m[0], prelude)


def _with_shared(text: str, arrays: Sequence[tuple[str, int, int]]) -> str:
    """Let shared arrays lie in the memory of the block."""
    for name, start, _ in arrays:
        declared = rf"(?:extern )?__shared__ (?:__align__\(\d+\) )?(\w+) {name}\[\d*\];"
        position = rf"\1 *const {name} = (\1 *)shared_memory({start});"
        text, count = re.subn(declared, position, text)
        assert count == 1, f"{count} declarations of {name}"
    return text


def _missing_compiler() -> str:
    if is_usable():
        return ""
    return "no C++ compiler here that makes x86-64 code and knows _Float16 (apt-get install g++)"


needs_emulator = pytest.mark.needs.with_args(_missing_compiler)
"""Skips a test where kernels of CUDA cannot run on the CPU."""
