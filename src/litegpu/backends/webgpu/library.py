"""Functions of wgpu's native library that wgpu-py lacks, or whose wgpu-py wrappers are slow.

A wgpu-py method takes about 8 µs per call, and a run makes such a call for each launch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

TITLE = "WebGPU"
Copy = tuple[Any, int, Any, int, int]

_CHECKS = 1
"""The only enabled runtime check in shaders: bounds checks (WGPUShaderRuntimeChecks)."""
_PATIENCE = 10.0
"""Seconds to wait for a mapped buffer after the device is idle."""
_PAUSE = 0.0001
"""Seconds between two checks of a device without a blocking wait."""


class NativeCalls:
    """Calls of the native library with the handles of wgpu-py's objects."""

    def __init__(self, wgpu: Any) -> None:
        """Use the library that wgpu-py has loaded."""
        self._native = wgpu.backends.wgpu_native
        self.lib, self.ffi = self._native.lib, self._native.ffi
        self.checked = self._native._api.libf
        """The library's functions in wgpu-py's wrappers, which raise wgpu-py's errors."""
        self.error: type[Exception] = wgpu.GPUError
        self._make_module = getattr(self.checked, "wgpuDeviceCreateShaderModuleTrusted", None)

    def shader_module(self, device: Any, label: str, code: str) -> Any:
        """Return the module of a WGSL shader with bounds checks, but without loop counters.

        By default, wgpu also counts loop iterations to stop endless loops, which litegpu's kernels
        do not have.
        """
        if self._make_module is None:  # an older wgpu-py
            return device.create_shader_module(label=label, code=code)
        ffi, lib = self.ffi, self.lib
        texts = [ffi.new("char[]", text.encode()) for text in (code, label)]
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        source.code = {"data": texts[0], "length": len(texts[0]) - 1}
        wanted = ffi.new("WGPUShaderModuleDescriptor *")
        wanted.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        wanted.label = {"data": texts[1], "length": len(texts[1]) - 1}
        module = self._make_module(device._internal, wanted, _CHECKS)
        return self._native.GPUShaderModule(label, module, device)

    def write(self, queue: Any, buffer: Any, offset: int, address: int, nbytes: int) -> None:
        """Queue a copy from a host address into a buffer; `nbytes` is a multiple of 4.

        Raises wgpu's errors, for example about insufficient memory for a pending copy.
        """
        data = self.ffi.cast("uint8_t *", address)
        self.checked.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, data, nbytes)

    def unusable(self, buffer: Any) -> str | None:
        """Return why a buffer must not be submitted ("mapped" or "destroyed"), or None.

        The library aborts the process for a mapped or destroyed buffer, and cannot report a
        buffer's state. However, unmapping a buffer that is not mapped fails with an error text that
        contains the state.
        """
        if buffer.map_state != "unmapped":
            return "mapped"
        try:
            self.checked.wgpuBufferUnmap(buffer._internal)
        except self.error as error:
            return "destroyed" if "has been destroyed" in str(error) else None
        return None

    def wait(self, device: Any) -> None:
        """Wait until a device has completed all submitted work.

        The corresponding method of wgpu-py 0.32 does not match its native library.
        """
        self.lib.wgpuDevicePoll(device._internal, True, self.ffi.NULL)

    def is_idle(self, device: Any) -> bool:
        """Return whether a device has completed all submitted work, without waiting."""
        return bool(self.lib.wgpuDevicePoll(device._internal, False, self.ffi.NULL))

    def timestamp_period(self, queue: Any) -> float:
        """Return the nanoseconds per tick of the device's time stamps."""
        period: float = self.lib.wgpuQueueGetTimestampPeriod(queue._internal)
        return period


class Commands:
    """The commands that a run submits: input copies, launches, and output copies.

    A launch consists of the handles of a pipeline and a bind group, and the work groups on each
    axis. A copy consists of the source's handle and offset, the target's handle and offset, and the
    number of bytes.
    """

    def __init__(
        self, calls: NativeCalls, device: Any, launches: Sequence[tuple[Any, ...]]
    ) -> None:
        """Store launches that read and write the buffers of their bind groups."""
        self._lib, self._checked, self._none = calls.lib, calls.checked, calls.ffi.NULL
        self._ffi = calls.ffi
        self._device, self._queue = device._internal, device.queue._internal
        self._launches = launches

    def submit(self, before: Sequence[Copy], after: Sequence[Copy]) -> None:
        """Encode and submit all commands in one submission. Raises wgpu's errors."""
        lib, none = self._lib, self._none
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._device, none)
        try:
            for copy in before:
                lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, *copy)
            if self._launches:
                self._encode(encoder)
            for copy in after:
                lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, *copy)
            commands = self._checked.wgpuCommandEncoderFinish(encoder, none)
        finally:
            lib.wgpuCommandEncoderRelease(encoder)
        try:
            self._checked.wgpuQueueSubmit(
                self._queue, 1, self._ffi.new("WGPUCommandBuffer *", commands)
            )
        finally:
            lib.wgpuCommandBufferRelease(commands)

    def _encode(self, encoder: Any) -> None:
        """Encode the launches in a compute pass, in a loop with minimal Python code per launch."""
        lib, none = self._lib, self._none
        compute = lib.wgpuCommandEncoderBeginComputePass(encoder, none)
        try:
            add_launches(lib, none, compute, self._launches)
            lib.wgpuComputePassEncoderEnd(compute)
        finally:
            lib.wgpuComputePassEncoderRelease(compute)


def add_launches(lib: Any, none: Any, compute: Any, launches: Sequence[tuple[Any, ...]]) -> None:
    """Add launches to a compute pass of the native library."""
    set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    set_group = lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    for pipeline, group, x, y, z in launches:
        set_pipeline(compute, pipeline)
        set_group(compute, 0, group, 0, none)
        dispatch(compute, x, y, z)


class Reader:
    """Maps a buffer into the host's memory repeatedly.

    The library aborts the process if a mapped buffer is submitted, or if the address of an unmapped
    buffer is requested. A KeyboardInterrupt can occur between any two steps, so the reader records
    the buffer's possible state before each step. `release_mapping` restores a known state.
    """

    def __init__(self, calls: NativeCalls, device: Any, buffer: Any, nbytes: int) -> None:
        """Prepare for reading the first `nbytes` of a buffer that can be mapped."""
        self._calls, self._device, self._buffer, self._nbytes = calls, device, buffer, nbytes
        self._busy = False
        """Whether the buffer may be mapped now, or soon."""
        self._info = calls.ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = calls.lib.WGPUCallbackMode_AllowProcessEvents
        self._listen()

    def _listen(self) -> None:
        """Make the library append the status of each mapping to a new list.

        The library calls `append` directly, because an interrupt could stop a Python function
        before it records the status. The callback ignores its other arguments.
        """
        self._statuses: list[int] = []
        self._note = self._calls.ffi.callback("void(uint32_t)", self._statuses.append)
        self._info.callback = self._calls.ffi.cast("WGPUBufferMapCallback", self._note)

    @property
    def is_mapped(self) -> bool:
        """Whether the mapping has completed or failed."""
        return bool(self._statuses)

    @property
    def busy(self) -> bool:
        """Whether the buffer may be mapped now, or soon."""
        return self._busy

    def release_mapping(self) -> None:
        """Unmap the buffer, whatever its state after an interrupt."""
        if self._busy:
            with contextlib.suppress(self._calls.error):  # the buffer may not be mapped
                self._calls.checked.wgpuBufferUnmap(self._buffer._internal)
            _late.append(self._note)
            self._listen()
            self._busy = False

    def map(self) -> None:
        """Request a mapping after all submitted work. Raises wgpu's errors."""
        calls = self._calls
        self._statuses.clear()
        self._busy = True
        calls.checked.wgpuBufferMapAsync(
            self._buffer._internal, calls.lib.WGPUMapMode_Read, 0, self._nbytes, self._info[0]
        )

    def wait(self, timeout: float | None = None) -> int:
        """Return the host address of the buffer's content.

        Raises RuntimeError if the mapping fails, TimeoutError after `timeout` seconds.
        """
        calls = self._calls
        if timeout is None:
            calls.wait(self._device)
            self._wait_for_status()
        else:
            self._wait_within(timeout)
        if self._statuses[0] != calls.lib.WGPUMapAsyncStatus_Success:
            raise RuntimeError(f"Could not map buffer (status {self._statuses[0]}).")
        address = calls.lib.wgpuBufferGetConstMappedRange(self._buffer._internal, 0, self._nbytes)
        return int(calls.ffi.cast("uintptr_t", address))

    def _wait_for_status(self) -> None:
        """Wait until another thread, which is waiting for the device, has recorded the status."""
        until = time.monotonic() + _PATIENCE
        while not self._statuses:
            if time.monotonic() > until:
                raise RuntimeError("Could not map buffer: the device does not answer.")
            self._calls.is_idle(self._device)
            time.sleep(_PAUSE)

    def _wait_within(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._calls.is_idle(self._device)
        while not self._statuses:
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(_PAUSE)
            self._calls.is_idle(self._device)

    def unmap(self) -> None:
        """Unmap the buffer, so that the device can use it again."""
        self._calls.lib.wgpuBufferUnmap(self._buffer._internal)
        self._busy = False


_late: list[Any] = []
"""Callbacks of interrupted mappings, kept alive forever: another thread may still call them."""
