"""Launches a captured graph and waits for it, so that nothing stays in flight."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from litegpu.backends.calls import together, wait_until
from litegpu.backends.cuda_driver import NOT_READY, driver, failure, ready
from litegpu.errors import ExecutionError, InvokeTimeoutError

if TYPE_CHECKING:
    from litegpu.backends.cuda import CUDADevice


class Submission:
    """A graph on a stream, with its calls ready."""

    def __init__(self, device: CUDADevice, graph: Any, stream: Any) -> None:
        """Prepare the calls. Raises CudaError when the driver lacks one."""
        self._device = device
        self._popped = ctypes.c_void_p()
        self._push = ready("cuCtxPushCurrent", int(device.context))
        self._pop = ready("cuCtxPopCurrent", ctypes.byref(self._popped))
        self._launch = ready("cuGraphLaunch", int(graph), int(stream))
        self._query = ready("cuStreamQuery", int(stream))
        self.wait = ready("cuStreamSynchronize", int(stream))
        """Waits for the stream; returns the status."""
        self._all = (self._push, self._launch, self.wait, self._pop)
        self._closed = False

    def run(self) -> None:
        """Launch the graph and wait. No Python runs in between.

        Raises CudaError, or DeviceLostError when the device failed for good.
        """
        if self._closed or self._device.lost:
            self._check_alive()
        statuses = together(self._all)
        if any(statuses):
            self._fail(("cuCtxPushCurrent", "cuGraphLaunch", "cuStreamSynchronize"), statuses)

    def run_in_time(self, seconds: float) -> None:
        """Launch the graph and wait for `seconds` at most.

        Raises InvokeTimeoutError after that; the device is lost then.
        """
        self._check_alive()
        try:
            statuses = together((self._push, self._launch, self._pop))
            if any(statuses):
                self._fail(("cuCtxPushCurrent", "cuGraphLaunch"), statuses)
            in_time = wait_until(self._idle, seconds)
        except BaseException:
            with contextlib.suppress(ExecutionError):
                self._device.lost = not wait_until(self._idle, seconds) or self._device.lost
            raise
        if not in_time:
            self._device.lost = True
            raise InvokeTimeoutError(
                f"CUDA device '{self._device.info.name}' has not ended an invoke after "
                f"{seconds * 1e3:g} ms (invoke_timeout_ms). Make a new GpuDelegate and "
                "interpreter, with a longer limit if the device is not stuck."
            )

    def close(self) -> None:
        """Refuse to run from now on."""
        self._closed = True

    def _idle(self) -> bool:
        statuses = together((self._push, self._query, self._pop))
        if statuses[1] == NOT_READY:
            return False
        if any(statuses):
            self._fail(("cuCtxPushCurrent", "cuStreamQuery"), statuses)
        return True

    def _check_alive(self) -> None:
        if self._closed:
            raise ExecutionError("This partition was released. Make the interpreter anew.")
        if self._device.lost:
            raise self._device.loss()

    def _fail(self, names: Sequence[str], statuses: Sequence[int]) -> None:
        cu = driver()
        if statuses[0] and self._popped.value:  # what was popped is not what was not pushed
            ready("cuCtxPushCurrent", self._popped.value)()
        made = zip((*names, "cuCtxPopCurrent"), statuses, strict=True)
        name, status = next((name, status) for name, status in made if status)
        error = failure(getattr(cu, name), cu.CUresult(status))
        self._device.note(error)
        raise error
