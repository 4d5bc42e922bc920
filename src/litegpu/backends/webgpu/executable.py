"""A compiled program on a WebGPU device: its pipelines and its constants."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.folding import fold_launches
from litegpu.backends.program import Program
from litegpu.backends.shaders import kernels_of
from litegpu.backends.webgpu.buffers import Buffers, Typed
from litegpu.backends.webgpu.context import WebGPUContext
from litegpu.backends.webgpu.library import TITLE
from litegpu.codegen import KernelText
from litegpu.codegen.macros import TranslationError
from litegpu.host.fork_safety import is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.webgpu.device import WebGPUDevice

_COMPUTE = 4
"""The visibility of bindings in a layout: the compute stage."""


class WebGPUExecutable(Executable):
    """Pipelines with layouts, and a buffer of small constants. The worker creates executables."""

    def __init__(self, device: WebGPUDevice, program: Program) -> None:
        """Compile and upload. Raises KernelError, DeviceMemoryError or ExecutionError."""
        super().__init__(fold_launches(program, (device.group_limit,) * 3), device)
        keep_in_children(self)
        self.device = device
        self.pipelines: dict[str, Any] = {}
        """The pipelines by kernel name."""
        self._layouts: dict[tuple[str, ...], Any] = {}
        self._buffers = Buffers(device)
        try:
            with Typed(device, (program.constants.nbytes,)):
                self._compile()
                self.constants = self._buffers.storage(program.constants.nbytes)
                self._buffers.upload(self.constants, program.constants)
        except BaseException:
            self.close()
            raise

    def _compile(self) -> None:
        device, logs = self.device, dict[str, str]()
        for text in kernels_of(self.program):
            device.worker.check()
            try:
                pipeline = device.pipelines.get(text, partial(self._pipeline, text))
            except TranslationError as error:
                logs[text.name] = str(error)
                continue
            except device.wgpu.GPUError as error:
                if device.is_loss(error) or device.is_shortage(error):
                    raise
                logs[text.name] = str(error)
                continue
            self.pipelines[text.name] = pipeline
        if logs:
            raise device.rejects(logs)

    def _pipeline(self, text: KernelText) -> Any:
        device, source = self.device.device, self.device.dialect.source((text,))
        module = self.device.calls.shader_module(device, text.name, source)
        return device.create_compute_pipeline(
            label=text.name,
            layout=device.create_pipeline_layout(bind_group_layouts=[self.layout(text)]),
            compute={"module": module, "entry_point": "main"},
        )

    def layout(self, text: KernelText) -> Any:
        """Return the bind group layout of a kernel, shared by kernels with equal arguments."""
        kinds = tuple(
            "read-only-storage" if self.device.dialect.fixed(argument) else "storage"
            for argument in text.arguments
        )
        if kinds not in self._layouts:
            self._layouts[kinds] = self.device.device.create_bind_group_layout(
                entries=[
                    {"binding": binding, "visibility": _COMPUTE, "buffer": {"type": kind}}
                    for binding, kind in enumerate(kinds)
                ]
            )
        return self._layouts[kinds]

    def _make_context(self) -> ExecutionContext:
        return self.device.make(partial(WebGPUContext, self))

    def _release(self) -> None:
        if is_inherited(TITLE):
            return
        with self.device.lock:
            resources = [self._buffers.destroy(), self._layouts, self.pipelines]
        # An error's traceback may reference this object, but must not reference wgpu's objects.
        self._layouts, self.pipelines, self.constants = {}, {}, None
        self.device.worker.post(resources.clear)
