"""A program on an NVIDIA GPU: its modules, their functions and its constants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.cuda_buffers import provide
from litegpu.backends.cuda_context import CUDAContext
from litegpu.backends.cuda_driver import TITLE, Handles, call, driver
from litegpu.backends.cuda_transfer import transfer_kernel
from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.process import is_inherited, keep_in_children
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.errors import CudaError

if TYPE_CHECKING:
    from litegpu.backends.cuda import CUDADevice


def transfers(program: Program) -> tuple[KernelText, ...]:
    """Return the kernels that move a program's inputs and outputs."""
    kernels = [transfer_kernel(part.size) for part in (*program.inputs, *program.outputs)]
    return tuple({kernel.name: kernel for kernel in kernels}.values())


class CUDAExecutable(Executable):
    """Loaded modules and constants in the GPU's memory."""

    def __init__(self, device: CUDADevice, program: Program, cubins: Sequence[bytes]) -> None:
        """Load and upload. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        super().__init__(program)
        self.device = device
        self._cubins = tuple(cubins)
        self.constants = 0
        """Where the constants begin in the GPU's memory; 0 where there are none."""
        self.functions: dict[str, Any] = {}
        """By the names of the kernels, transfers among them."""
        self.shared: dict[str, int] = {}
        """Bytes of shared memory that each kernel is launched with."""
        self._owned = Handles()
        keep_in_children(self)
        device.holders.add(self)
        try:
            device.within(partial(self._load, program, cubins))
        except BaseException:
            with contextlib.suppress(CudaError):
                self.close()
            raise

    def _load(self, program: Program, cubins: Sequence[bytes]) -> None:
        cu, make = driver(), self._owned.make
        modules = [make(cu.cuModuleLoadData, cu.cuModuleUnload, cubin) for cubin in cubins]
        kernels = (*program.kernels, *transfers(program))
        self.functions = find_functions(modules, (kernel.name for kernel in kernels))
        self.shared = {kernel.name: dynamic_shared_bytes(kernel) for kernel in kernels}
        for name, nbytes in self.shared.items():
            if nbytes:
                limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call(cu.cuFuncSetAttribute, self.functions[name], limit, nbytes)
        if program.constants.size:
            nbytes = program.constants.nbytes
            making = (cu.cuMemAlloc, cu.cuMemFree, nbytes)
            self.constants = provide(self.device, self._owned, nbytes, "", *making)
            call(cu.cuMemcpyHtoD, self.constants, program.constants.ctypes.data, nbytes)
            # From memory that is not pinned, the last bytes may still be on their way; streams of
            # contexts do not wait for them.
            call(cu.cuStreamSynchronize, 0)

    def binaries(self) -> Mapping[str, bytes]:
        """Return the modules. See Executable.binaries."""
        return {str(number): cubin for number, cubin in enumerate(self._cubins)}

    def _make_context(self) -> ExecutionContext:
        return CUDAContext(self)

    def _release(self) -> None:
        if not is_inherited(TITLE):
            self.device.release(self, self._owned)

    def __del__(self) -> None:
        """Release what was never closed."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()


def find_functions(modules: Iterable[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the kernels of modules by name. Raises CudaError when one of `names` is missing."""
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
