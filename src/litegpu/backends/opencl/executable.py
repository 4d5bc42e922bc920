"""A compiled program on an OpenCL device: the built programs and the constants."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.limits import check_sizes
from litegpu.backends.opencl.build import Built, binary_of
from litegpu.backends.opencl.context import OpenCLContext
from litegpu.backends.opencl.library import TITLE, Handles
from litegpu.backends.program import Program
from litegpu.errors import ExecutionError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.opencl.device import OpenCLDevice


class OpenCLExecutable(Executable):
    """Built programs and a buffer of small constants."""

    def __init__(
        self, cl: Any, device: OpenCLDevice, program: Program, built: Built | None
    ) -> None:
        """Upload the small constants; `built` is None without kernels.

        Raises DeviceMemoryError if memory is insufficient.
        """
        super().__init__(program, device)
        self.device, self.built = device, built
        self.constants: Any = None
        """The buffer of small constants; None if there are none."""
        self._owned = Handles()
        check_sizes(program, device.info)
        keep_in_children(self)
        try:
            if program.constants.size:
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
                handle = self._owned.hold(methodcaller("release"))
                make = partial(cl.Buffer, device.context, flags, hostbuf=program.constants)
                handle.creation(make)()
                self.constants = handle.result
        except BaseException as error:
            with contextlib.suppress(ExecutionError, cl.Error):
                self.close()
            if isinstance(error, cl.Error):
                raise device.typed(error, int(program.constants.size)) from error
            raise

    def program_of(self, kernel: str) -> Any:
        """Return the built program that contains a kernel."""
        return self.built and self.built.program_of(kernel)

    def binaries(self) -> Mapping[str, bytes]:
        """Return the binaries, named by compiler options and numbers. See Executable.binaries."""
        cl, built = self.device.cl, self.built
        if built is None:
            return {}
        try:
            binaries = [binary_of(cl, each) for each in built.programs]
        except cl.Error as error:
            raise self.device.typed(error, 0, "return its compiled binaries") from error
        if not all(binaries):
            return {}
        return {f"{built.options} #{number}": binary for number, binary in enumerate(binaries)}

    def _make_context(self) -> ExecutionContext:
        return OpenCLContext(self)

    def _release(self) -> None:
        if not is_inherited(TITLE):
            self.constants = None
            self._owned.release()

    @finalizer
    def __del__(self) -> None:
        """Release the handles that `close` did not release."""
        self.close()
