"""A compiled program on an NVIDIA GPU: its modules, their functions and its constants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.cuda.buffers import provide
from litegpu.backends.cuda.context import CUDAContext
from litegpu.backends.cuda.driver import TITLE, UNLAUNCHABLE, Handles, call, driver
from litegpu.backends.cuda.occupancy import shared_bytes
from litegpu.backends.cuda.transfer import transfer_kernel
from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.errors import CompilationError, CudaError, KernelError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.cuda.device import CUDADevice


@dataclass(frozen=True, slots=True)
class Code:
    """Loaded modules, and their functions."""

    cubins: tuple[bytes, ...]
    functions: Mapping[str, Any]
    """The functions by kernel name, including the transfer kernels."""
    shared: tuple[int, ...]
    """The shared memory of each of the program's launches, in bytes."""


def numbered(cubins: Iterable[bytes]) -> dict[str, bytes]:
    """Return modules in the format of Executable.binaries."""
    return {str(number): cubin for number, cubin in enumerate(cubins)}


def refused(device: str, error: CudaError) -> CompilationError:
    """Return the error for modules that a device cannot load."""
    return CompilationError(f"CUDA device '{device}' rejects cached kernels: {error}")


def transfers(program: Program) -> tuple[KernelText, ...]:
    """Return the kernels that copy a program's inputs and outputs."""
    kernels = [transfer_kernel(part.size) for part in (*program.inputs, *program.outputs)]
    return tuple({kernel.name: kernel for kernel in kernels}.values())


class CUDAExecutable(Executable):
    """Loaded modules, and small constants in GPU memory."""

    def __init__(
        self,
        device: CUDADevice,
        program: Program,
        cubins: Sequence[bytes],
        fast_compile: bool = False,
    ) -> None:
        """Load modules and upload small constants; for `fast_compile` see Executable.

        Raises KernelError, DeviceMemoryError, CudaError or DeviceLostError.
        """
        super().__init__(program, device)
        self.device, self.fast_compiled = device, fast_compile
        self.constants = 0
        """The address of the small constants in GPU memory; 0 if there are none."""
        self._owned = Handles()
        keep_in_children(self)
        device.holders.add(self)
        try:
            self.code: Code = device.within(partial(self._load, cubins))
            device.within(self._upload)
        except BaseException:
            with contextlib.suppress(CudaError):
                self.close()
            raise

    def _load(self, cubins: Sequence[bytes]) -> Code:
        cu, make, program = driver(), self._owned.make, self.program
        modules = [make(cu.cuModuleLoadData, cu.cuModuleUnload, cubin) for cubin in cubins]
        kernels = (*program.kernels, *transfers(program))
        functions = find_functions(modules, (kernel.name for kernel in kernels))
        texts = {kernel.name: kernel for kernel in program.kernels}
        shared: list[int] = []
        reasons: dict[str, str] = {}
        for launch in program.launches:
            name = launch.kernel
            try:
                shared.append(shared_bytes(launch, texts[name], functions[name], self.device))
            except KernelError as error:
                reasons |= error.reasons
            except CudaError as error:
                if error.code not in UNLAUNCHABLE:
                    raise
                reasons[name] = str(error)
        if reasons:
            raise self.device.rejects(reasons)
        return Code(tuple(cubins), functions, tuple(shared))

    def _upload(self) -> None:
        constants = self.program.constants
        if constants.size:
            cu, nbytes = driver(), constants.nbytes
            making = (cu.cuMemAlloc, cu.cuMemFree, nbytes)
            self.constants = provide(self.device, self._owned, nbytes, "", *making)
            call(cu.cuMemcpyHtoD, self.constants, constants.ctypes.data, nbytes)
            # The source is not pinned, so its last bytes may still be in flight, and the streams
            # of contexts do not wait for them.
            call(cu.cuStreamSynchronize, 0)

    def binaries(self) -> Mapping[str, bytes]:
        """Return the modules. See Executable.binaries."""
        return numbered(self.code.cubins)

    def _exchange(self, binaries: Mapping[str, bytes]) -> None:
        """Load new modules without unloading the old modules, which existing graphs still use."""
        try:
            self.code = self.device.within(
                partial(_unseen, partial(self._load, [*binaries.values()]))
            )
        except CudaError as error:
            raise refused(self.device.info.name, error) from error
        for context in self._contexts:
            if isinstance(context, CUDAContext):
                context.look_again()

    def _make_context(self) -> ExecutionContext:
        return CUDAContext(self)

    def _release(self) -> None:
        if not is_inherited(TITLE):
            self.device.release(self, self._owned)

    @finalizer
    def __del__(self) -> None:
        """Release the resources that `close` did not release."""
        self.close()


def _unseen(work: Callable[[], Code]) -> Code:
    """Call `work`, which loads modules, while other threads may be capturing graphs."""
    cu = driver()
    relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (before,) = call(cu.cuThreadExchangeStreamCaptureMode, relaxed)
    try:
        return work()
    finally:
        call(cu.cuThreadExchangeStreamCaptureMode, before)


def find_functions(modules: Iterable[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the functions of modules by kernel name. Raises CudaError for a missing function."""
    cu = driver()
    functions: dict[str, Any] = {}
    for module in modules:
        (count,) = call(cu.cuModuleGetFunctionCount, module)
        for function in call(cu.cuModuleEnumerateFunctions, count, module)[0]:
            (name,) = call(cu.cuFuncGetName, function)
            functions[name.decode()] = function
    missing = set(names) - functions.keys()
    if missing:
        raise CudaError(f"The compiled modules lack the kernels {sorted(missing)}.", 500)
    return functions
