"""Compiles CUDA kernels with NVRTC on all cores."""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from queue import PriorityQueue
from typing import Any, NamedTuple

from litegpu import progress
from litegpu.backends.cuda import compile_processes as cuda_processes
from litegpu.backends.cuda.driver import call
from litegpu.backends.cuda.presence import missing_bindings
from litegpu.codegen import Dialect, KernelText
from litegpu.device_model import Capability, model_of
from litegpu.errors import CompilationError, KernelError
from litegpu.host.daemon_pool import DaemonPool
from litegpu.host.disk_cache import DiskCache
from litegpu.host.private_files import Folder

_KERNEL_EFFORT, _UNROLLED_EFFORT = 2000, 700
"""Compile costs in characters of source: fixed cost of a kernel, cost of an unrolled loop."""
_MODULES_A_KERNEL = 0.75
"""Expected number of modules per kernel, which determines how many processes are started."""
_MINIMAL_SINCE = (12, 4)
"""The first NVRTC that can omit unused functions, which saves 4 of 20 ms per module."""
_FAST, _FAST_SINCE = "--Ofast-compile=mid", (12, 9)
"""The option that makes NVRTC 35 % faster, and the first NVRTC version with this option.

The generated code computes the same results, but more slowly: on an H200, models at batch 1 take 5
times as long. The option's value `min` saves only a tenth of the compile time; with `max`, models
take 100 times as long.
"""


@cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise missing_bindings("nvidia-cuda-nvrtc", "Compiling CUDA kernels") from error
    return nvrtc


@cache
def compiler_versions() -> tuple[str, ...]:
    """Return the compilers' versions from package metadata, without loading the compilers."""
    found = []
    for name in ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    if len(found) > 1:
        return tuple(found)
    major, minor = _nvrtc_version()
    return (*found, f"NVRTC {major}.{minor}")


def effort_of(kernel: KernelText) -> int:
    """Return the estimated compile time of a kernel, in characters of source: about 8 µs each.

    >>> effort_of(KernelText("f", (), (1, 1, 1), (), "#pragma unroll"))
    2714
    """
    unrolled = kernel.body.count("#pragma unroll")
    return _KERNEL_EFFORT + len(kernel.body) + _UNROLLED_EFFORT * unrolled


class _Efforts(NamedTuple):
    """The minimum effort of a kernel in a separate module, and the effort of a shared module."""

    own: int
    module: int


_ALONE, WITH_PROCESSES = _Efforts(24 << 10, 40 << 10), _Efforts(16 << 10, 20 << 10)
"""Module sizes for compilation in this process only, and with compiler processes.

NVRTC holds a process-wide lock for 28 ms per module, independent of the module's size. Example: on
16 cores of an H200's host, 46 modules of 80 ms each finished in sequence, 28 ms apart.
"""


class KernelCompiler:
    """Compiles kernels for a compute capability on all cores, while further kernels are rendered.

    A kernel that is slow to compile gets a separate module, so that no module takes much longer
    than others. Modules with the longest compile time start first. Kernels that are fast to compile
    share modules.

    No compilation starts after the end of the compiler's `with` block.
    """

    def __init__(
        self,
        dialect: Dialect,
        capability: Capability,
        cache_dir: Folder | None,
        unusable: str = "",
        *,
        fast_compile: bool = False,
        aside: bool = False,
    ) -> None:
        """Cache cubins in `cache_dir`; if `unusable` is a reason, cached cubins are recompiled.

        With `fast_compile`, uncached kernels are compiled fast, without caching the cubins. With
        `aside`, only other processes compile, at low priority on some of the cores, and `close`
        does not wait for these processes.
        """
        self._dialect = dialect
        self._aside = aside
        self._processes = cuda_processes.processes(_nvrtc_version, aside)
        self._efforts = WITH_PROCESSES if self._processes.wanted else _ALONE
        self._here = threading.Lock()
        """The lock for compiling in this process; each separate process has another lock."""
        self._options = options_for(capability)
        self._fast_compile = fast_compile and can_compile_fast()
        self.fast_compiled = False
        """Whether any cubin was compiled with the fast option."""
        self._cache, self._unusable = DiskCache(cache_dir, ".cubin"), unusable
        self._pool = (
            DaemonPool(max(self._processes.wanted, 1), "litegpu-nvrtc-aside")
            if aside
            else ThreadPoolExecutor(cuda_processes.cores(), "litegpu-nvrtc")
        )
        self._names: set[str] = set()
        self._waiting: list[KernelText] = []
        self._modules: PriorityQueue[tuple[int, int, str]] = PriorityQueue()
        """Modules that are waiting for a core: negative effort, number and source."""
        self._kernels: list[Sequence[KernelText]] = []
        """The kernels of each module, by its number."""
        self._compiling: list[Future[tuple[int, bytes | CompilationError]]] = []
        self._cubins: dict[int, bytes] = {}
        """The results of finished modules, by number."""

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, kernels: int) -> None:
        """Start processes for about `kernels` kernels, unless all may be cached."""
        if not self._cache.has_files():
            for _ in range(min(int(kernels * _MODULES_A_KERNEL), self._processes.wanted)):
                self._pool.submit(self._processes.start)

    def add(self, kernel: KernelText) -> None:
        """Add a kernel; compile it immediately, or later in a module with other kernels."""
        if kernel.name in self._names:
            return
        self._names.add(kernel.name)
        if effort_of(kernel) >= self._efforts.own:
            self._begin([kernel])
            return
        self._waiting.append(kernel)
        if sum(map(effort_of, self._waiting)) >= self._efforts.module:
            self.flush()

    def flush(self) -> None:
        """Start compiling the kernels that are waiting for a shared module."""
        if self._waiting:
            self._begin(self._waiting)
            self._waiting = []

    def cubins(self, kernels: Iterable[KernelText]) -> list[bytes]:
        """Return the cubins of these kernels, which may have been added before.

        Raises KernelError for the kernels that do not compile even as separate modules. After this
        error, the failed kernels are removed, so that callers can request the cubins of all others.
        """
        wanted = {kernel.name: kernel for kernel in kernels}
        for kernel in wanted.values():
            self.add(kernel)
        self.flush()
        logs: dict[str, str] = {}
        while self._compiling:
            finished = (each.result() for each in self._compiling)
            modules = list(progress.steps("compile", finished, len(self._compiling)))
            self._compiling = []
            for number, result in modules:
                if isinstance(result, bytes):
                    self._cubins[number] = result
                elif len(self._kernels[number]) > 1:
                    for kernel in self._kernels[number]:
                        self._begin([kernel])
                else:
                    (kernel,) = self._kernels[number]
                    self._names.discard(kernel.name)
                    logs[kernel.name] = str(result)
        if logs:
            raise KernelError("NVRTC", logs)
        return [
            self._cubins[number]
            for number in sorted(self._cubins)
            if any(kernel.name in wanted for kernel in self._kernels[number])
        ]

    def close(self) -> None:
        """Wait for the compilation that runs in this process, and start no other compilation."""
        self._processes.close()
        self._pool.shutdown(cancel_futures=True)

    def _begin(self, kernels: Sequence[KernelText]) -> None:
        effort = sum(map(effort_of, kernels))
        self._modules.put((-effort, len(self._kernels), self._dialect.source(kernels)))
        self._kernels.append(tuple(kernels))
        self._compiling.append(self._pool.submit(self._compile_longest))

    def _compile_longest(self) -> tuple[int, bytes | CompilationError]:
        """Compile the waiting module with the most effort; return its number and its result."""
        _, number, source = self._modules.get_nowait()
        try:
            return number, self._cubin(source)
        except CompilationError as error:
            return number, error.with_traceback(None)

    def _cubin(self, source: str) -> bytes:
        """Return the cubin of a module, from the cache if possible."""
        version = _nvrtc_version()
        options = (*self._options, *(("--minimal",) if version >= _MINIMAL_SINCE else ()))
        key = (source, options, version)
        if self._unusable:
            self._cache.discard(self._unusable, *key)
        cubin = self._cache.load(*key)
        if cubin is None and self._fast_compile:
            # NVRTC 13.5 rejects some kernels only with this option, such as dot products of bytes.
            with contextlib.suppress(CompilationError):
                cubin = self._compile(source, (*options, _FAST))
                self.fast_compiled = True
                return cubin
        if cubin is None:
            cubin = self._compile(source, options)
            self._cache.store(cubin, *key)
        return cubin

    def _compile(self, source: str, options: Sequence[str]) -> bytes:
        """Compile a module in another process, or one at a time in this process."""
        if not self._aside and self._here.acquire(blocking=False):
            try:
                return compile_source(source, options)
            finally:
                self._here.release()
        cubin = self._processes.compile(source, options)
        if cubin is None and self._processes.closed:
            raise CompilationError("The compilation was cancelled.")
        if cubin is None and self._aside:
            raise CompilationError(
                "The kernel cannot be compiled, because no compiler process could be started."
            )
        return compile_source(source, options) if cubin is None else cubin


def compile_kernels(
    dialect: Dialect,
    kernels: Iterable[KernelText],
    capability: Capability,
    cache_dir: Folder | None,
    unusable: str = "",
) -> list[bytes]:
    """Compile kernels, all at once; return their cubins. See KernelCompiler."""
    with KernelCompiler(dialect, capability, cache_dir, unusable) as compiler:
        return compiler.cubins(kernels)


def can_compile_fast() -> bool:
    """Return whether kernels can first be compiled fast, then optimized in the background."""
    return _nvrtc_version() >= _FAST_SINCE and cuda_processes.are_possible()


@cache
def _nvrtc_version() -> tuple[int, ...]:
    return call(_nvrtc().nvrtcVersion)


def options_for(capability: Capability) -> tuple[str, ...]:
    """Return NVRTC's options for a compute capability."""
    major, minor = capability
    # sm_90a has the instructions of Hopper's tensor cores.
    suffix = "a" if model_of(capability).warp_groups else ""
    return (
        f"--gpu-architecture=sm_{major}{minor}{suffix}",
        "--std=c++17",
        "--fmad=false",
        "--define-macro=OVERLAPPED",
    )


def compile_source(source: str, options: Sequence[str]) -> bytes:
    """Compile one source to a cubin. Raises CompilationError with the compiler's log."""
    nvrtc = _nvrtc()
    (program,) = call(nvrtc.nvrtcCreateProgram, source.encode(), b"litegpu.cu", 0, [], [])
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status.value:
            (size,) = call(nvrtc.nvrtcGetProgramLogSize, program)
            log = bytearray(size)
            call(nvrtc.nvrtcGetProgramLog, program, log)
            text = log.rstrip(b"\0").decode(errors="replace")
            raise CompilationError(
                f"NVRTC rejects a kernel ({status.name}, {' '.join(options)}): {text}"
            )
        (size,) = call(nvrtc.nvrtcGetCUBINSize, program)
        cubin = bytearray(size)
        call(nvrtc.nvrtcGetCUBIN, program, cubin)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
