"""A compiled program on an OpenGL device: its linked shaders and its constants."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.folding import fold_launches
from litegpu.backends.opengl.buffers import Buffers
from litegpu.backends.opengl.context import OpenGLContext
from litegpu.backends.program import Program
from litegpu.backends.shaders import kernels_of
from litegpu.errors import CompilationError
from litegpu.host.disk_cache import DiskCache
from litegpu.host.finalizers import finalizer
from litegpu.host.private_files import Folder

if TYPE_CHECKING:
    from litegpu.backends.opengl.device import LinkedProgram, OpenGLDevice


class OpenGLExecutable(Executable):
    """Linked programs and a buffer of small constants. The worker creates the executable."""

    def __init__(
        self,
        device: OpenGLDevice,
        program: Program,
        cache_dir: Folder | None,
        binaries: Mapping[str, bytes] | None = None,
    ) -> None:
        """Compile kernels, or load `binaries` by kernel name, and upload the constants.

        Raises KernelError or DeviceMemoryError.
        """
        super().__init__(fold_launches(program, (device.group_limit,) * 3), device)
        self.device = device
        self.programs: dict[str, LinkedProgram] = {}
        """The linked programs by kernel name."""
        self._buffers = Buffers(device)
        device.gl.error()  # discard earlier errors: later ones are due to the calls below
        try:
            if binaries:
                self._restore(binaries)
            else:
                self._link(DiskCache(cache_dir, ".glbin"))
            self.constants = self._buffers.make(program.constants.nbytes, program.constants)
        except BaseException:
            self.close()
            raise

    def _link(self, cache: DiskCache) -> None:
        device, logs = self.device, dict[str, str]()
        for text in kernels_of(self.program):
            device.worker.check()
            source = device.dialect.source((text,))
            key = (source, device.info.name, device.info.driver)
            binary = cache.load(*key)
            try:
                linked = device.programs.get(source, partial(device.link, source, binary))
            except CompilationError as error:
                logs[text.name] = str(error)
                continue
            if binary is not None and binary == linked.refused:
                cache.discard("the driver rejects it", *key)
                binary = None
            if cache.wanted and binary is None:
                cache.store(device.gl.binary(linked.number), *key)
            self.programs[text.name] = linked
        if logs:
            raise device.rejects(logs)

    def _restore(self, binaries: Mapping[str, bytes]) -> None:
        device = self.device
        for text in self.program.kernels:
            device.worker.check()
            number = device.gl.program_of(binaries.get(text.name, b""))
            if number is None:
                raise device.rejects({text.name: "the driver rejects the cached binary"})
            self.programs[text.name] = device.linked(number)

    def binaries(self) -> Mapping[str, bytes]:
        """Return the binaries of the linked programs. See Executable.binaries."""
        gl, programs = self.device.gl, self.programs
        found = self.device.call(
            lambda: {name: gl.binary(linked.number) for name, linked in programs.items()}
        )
        return found if all(found.values()) else {}

    def _make_context(self) -> ExecutionContext:
        return self.device.call(partial(OpenGLContext, self))

    def _release(self) -> None:
        self.programs.clear()
        self._buffers.release()

    @finalizer
    def __del__(self) -> None:
        """Release the buffers that `close` did not release."""
        self.close()
