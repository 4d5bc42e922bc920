"""What wgpu's native library can do and wgpu-py's public methods cannot, or only slowly.

They cost some 8 µs each, which a run of a partition would pay for each of its launches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

TITLE = "WebGPU"
_PATIENCE = 10.0
"""Seconds to wait for a buffer after the device has done everything."""


class NativeCalls:
    """Calls of the native library with the handles of wgpu-py's objects."""

    def __init__(self, wgpu: Any) -> None:
        """Take the library that wgpu-py has loaded."""
        self._native = wgpu.backends.wgpu_native
        self.lib, self.ffi = self._native.lib, self._native.ffi
        self.checked = self._native._api.libf
        """The same functions in wgpu-py's own wrappers, which raise its errors."""
        self._trusted = getattr(self.checked, "wgpuDeviceCreateShaderModuleTrusted", None)

    def shader_module(self, device: Any, label: str, code: str) -> Any:
        """Return the module of a GLSL compute shader, without checks while it runs.

        By default each index is compared with the buffer's length and each loop counts its rounds.
        """
        if self._trusted is None:  # an older wgpu-py
            # It takes a label with "comp" in it as the stage of a GLSL shader.
            return device.create_shader_module(label=f"compute {label}", code=code)
        ffi, lib = self.ffi, self.lib
        texts = [ffi.new("char[]", text.encode()) for text in (code, label)]
        source = ffi.new("WGPUShaderSourceGLSL *")
        source.chain.sType = lib.WGPUSType_ShaderSourceGLSL
        source.stage = lib.WGPUShaderStage_Compute
        source.code = {"data": texts[0], "length": len(texts[0]) - 1}
        wanted = ffi.new("WGPUShaderModuleDescriptor *")
        wanted.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        wanted.label = {"data": texts[1], "length": len(texts[1]) - 1}
        made = self._trusted(device._internal, wanted, 0)
        return self._native.GPUShaderModule(label, made, device)

    def write(self, queue: Any, buffer: Any, offset: int, address: int, nbytes: int) -> None:
        """Queue a copy from a host address into a buffer; `nbytes` is a multiple of 4."""
        data = self.ffi.cast("uint8_t *", address)
        self.lib.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, data, nbytes)

    def wait(self, device: Any) -> None:
        """Wait until a device has done everything that was submitted.

        wgpu-py's own method for it does not fit its library (0.32).
        """
        self.lib.wgpuDevicePoll(device._internal, True, self.ffi.NULL)

    def timestamp_period(self, queue: Any) -> float:
        """Return the nanoseconds that a step of the device's time stamps takes."""
        period: float = self.lib.wgpuQueueGetTimestampPeriod(queue._internal)
        return period


class Commands:
    """What a run of a partition hands to the device: launches, then copies into a buffer to read.

    A launch is the handles of a pipeline and a bind group, and the work groups on each axis; a copy
    is where it begins in the source, where in the target, and its bytes.
    """

    def __init__(
        self, calls: NativeCalls, device: Any, launches: Sequence[tuple[Any, ...]]
    ) -> None:
        """Take launches that read and write what their bind groups hold."""
        self._lib, self._checked, self._none = calls.lib, calls.checked, calls.ffi.NULL
        self._ffi = calls.ffi
        self._device, self._queue = device._internal, device.queue._internal
        self._launches = launches

    def submit(self, source: Any, target: Any, copies: Sequence[tuple[int, int, int]]) -> None:
        """Encode and submit everything, in one submission. Raises wgpu's errors."""
        lib, none = self._lib, self._none
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._device, none)
        if self._launches:
            self._encode(encoder)
        for start, to, nbytes in copies:
            lib.wgpuCommandEncoderCopyBufferToBuffer(
                encoder, source._internal, start, target._internal, to, nbytes
            )
        try:
            commands = self._checked.wgpuCommandEncoderFinish(encoder, none)
        finally:
            lib.wgpuCommandEncoderRelease(encoder)
        self._checked.wgpuQueueSubmit(
            self._queue, 1, self._ffi.new("WGPUCommandBuffer *", commands)
        )
        lib.wgpuCommandBufferRelease(commands)

    def _encode(self, encoder: Any) -> None:
        """Add the launches in a pass. The loop is all the Python that a launch costs."""
        lib, none = self._lib, self._none
        compute = lib.wgpuCommandEncoderBeginComputePass(encoder, none)
        add_launches(lib, none, compute, self._launches)
        lib.wgpuComputePassEncoderEnd(compute)
        lib.wgpuComputePassEncoderRelease(compute)


def add_launches(lib: Any, none: Any, compute: Any, launches: Sequence[tuple[Any, ...]]) -> None:
    """Add launches to the native library's compute pass."""
    set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    set_group = lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    for pipeline, group, x, y, z in launches:
        set_pipeline(compute, pipeline)
        set_group(compute, 0, group, 0, none)
        dispatch(compute, x, y, z)


class Reader:
    """Maps a buffer into the host's memory, again and again."""

    def __init__(self, calls: NativeCalls, device: Any, buffer: Any, nbytes: int) -> None:
        """Prepare for the first `nbytes` of a buffer that may be mapped."""
        self._calls, self._device, self._buffer, self._nbytes = calls, device, buffer, nbytes
        done = self._done = threading.Event()
        found = self._found = [0]

        @calls.ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")  # type: ignore[untyped-decorator]
        def note(status: int, _message: Any, _first: Any, _second: Any) -> None:
            found[0] = status
            done.set()

        self._note = note  # the library keeps its address
        self._info = calls.ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = calls.lib.WGPUCallbackMode_AllowProcessEvents
        self._info.callback = note

    def map(self) -> None:
        """Ask for the buffer when everything that was submitted is done."""
        lib = self._calls.lib
        self._done.clear()
        info, read = self._info[0], lib.WGPUMapMode_Read
        self._calls.checked.wgpuBufferMapAsync(self._buffer._internal, read, 0, self._nbytes, info)

    def wait(self) -> int:
        """Return the host address of the buffer's content. Raises RuntimeError."""
        calls = self._calls
        calls.wait(self._device)
        # Another thread, which waits too, may be the one that takes note.
        if not self._done.wait(_PATIENCE):
            raise RuntimeError("Could not map buffer: the device is lost or does not answer.")
        if self._found[0] != calls.lib.WGPUMapAsyncStatus_Success:
            raise RuntimeError(f"Could not map buffer (status {self._found[0]}).")
        address = calls.lib.wgpuBufferGetConstMappedRange(self._buffer._internal, 0, self._nbytes)
        return int(calls.ffi.cast("uintptr_t", address))

    def unmap(self) -> None:
        """Give the buffer back to the device."""
        self._calls.lib.wgpuBufferUnmap(self._buffer._internal)
