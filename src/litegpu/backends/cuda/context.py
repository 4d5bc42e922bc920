"""An execution context on an NVIDIA GPU: memory, pinned buffers, a stream and CUDA graphs."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from litegpu.backends.buffers import Bindings, Bytes, HostBuffer, MemoryKind
from litegpu.backends.cuda.buffers import NO_TIMES, PINNED, UNIT, provide
from litegpu.backends.cuda.driver import (
    TITLE,
    UNLAUNCHABLE,
    Handles,
    KernelNode,
    call,
    driver,
    ready,
)
from litegpu.backends.cuda.io_bindings import IoBindings, Span, is_external, staged
from litegpu.backends.cuda.l2_prefetch import prefetch_bytes, prefetch_ranges
from litegpu.backends.cuda.occupancy import launch_config
from litegpu.backends.cuda.profile import CUDAProfiler
from litegpu.backends.cuda.submission import CUDASubmission
from litegpu.backends.cuda.transfer import transfer_items, transfer_kernel
from litegpu.backends.execution import ExecutionContext
from litegpu.backends.program import BufferRange
from litegpu.codegen import round_up
from litegpu.device_model import model_of
from litegpu.errors import CudaError, ExecutionError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import Living, is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.cuda.executable import CUDAExecutable

_log = logging.getLogger("litegpu")
_Result = TypeVar("_Result")
_Sizes = tuple[int, int, int]
_DIRECT_BYTES = 4 << 10
"""Maximum size in bytes of an output that a kernel writes directly to host memory.

A kernel stores rows float by float if their size is not a multiple of 16 bytes. Writing 64 KiB of
such rows to host memory took 28 µs more than writing to GPU memory. A kernel that copies the output
from GPU memory to host memory takes 1 to 2 µs.
"""
_EARLY_BYTES = 1 << 20
"""Maximum size in bytes of an input or output with a pinned buffer before a run needs it.

The signatures of a language model have caches of hundreds of MB, which stay in device memory.
"""


@dataclass(eq=False)
class Graph:
    """A captured CUDA graph that uses the memory of certain inputs and outputs.

    A context captures its graphs again when the executable's code changes.
    """

    io: IoBindings
    owned: Handles
    """The handles that the graph owns."""
    handle: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)
    """The executable graph's handle; each launch reads it from here."""
    copies_in: tuple[KernelNode, ...] = ()
    """The graph's launches that copy inputs."""
    kernels: tuple[KernelNode, ...] = ()
    """The graph's launches of the program's kernels."""
    direct: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Addresses that replace arguments, by launch and argument number; see Program."""


class CUDAContext(ExecutionContext):
    """Device memory, pinned staging buffers, and a stream on which captured graphs run."""

    executable: CUDAExecutable
    has_streams = True

    def __init__(self, executable: CUDAExecutable) -> None:
        """Allocate and capture. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        super().__init__(executable)
        self.device = executable.device
        self.owned = Handles()
        self.ready = False
        """Whether a run may start: the context is open, and no submitted run is in flight."""
        self.wait: partial[int] = partial(int)
        """Waits for the stream and returns the status."""
        self._closed = False
        self._code = executable.code
        """The code that the context's graphs launch."""
        self._captured = Living[Graph]()
        self._graphs: dict[IoBindings, Graph] = {}
        self._bound: Graph | None = None
        keep_in_children(self)
        self.device.holders.add(self)
        try:
            executable.enter(self)
            self.device.within(self._build)
        except BaseException:
            with contextlib.suppress(CudaError):
                self.close()
            raise

    def _build(self) -> None:
        cu, program, make = driver(), self.program, self.owned.make
        self.stream: Any = make(cu.cuStreamCreate, cu.cuStreamDestroy, 1)
        self.wait = ready("cuStreamSynchronize", int(self.stream))
        nbytes = program.memory_bytes
        making = (cu.cuMemAlloc, cu.cuMemFree, nbytes)
        self._memory = provide(self.device, self.owned, nbytes, "", *making)
        call(cu.cuMemsetD8Async, self._memory, 0xFF, nbytes, self.stream)
        self.inputs = [*map(self._early, program.inputs)]
        """The address of each input's pinned buffer, 0 before a run needs it, and its size."""
        self.outputs = [*map(self._early, program.outputs)]
        self._bound = self._graphs[self._staged()] = self._graph_of(self._staged())
        self.ready = True

    def _early(self, part: BufferRange) -> Span:
        """Stage an input or output unless it is large; a run may bind device memory to it."""
        return (0, part.size) if part.size > _EARLY_BYTES else self._stage(part)

    def stage(self, bindings: Bindings | None = None) -> None:
        """Allocate the missing pinned buffers of a run, or all of them without `bindings`.

        Raises DeviceMemoryError if memory is insufficient.
        """
        given = (None, None) if bindings is None else (bindings.inputs, bindings.outputs)
        sides = (self.inputs, self.program.inputs), (self.outputs, self.program.outputs)
        for buffers, (spans, parts) in zip(given, sides, strict=True):
            for number, (span, part) in enumerate(zip(spans, parts, strict=True)):
                external = buffers is not None and is_external(buffers[number], span)
                if not span[0] and not external:
                    spans[number] = self.device.within(partial(self._stage, part))

    def _stage(self, part: BufferRange) -> Span:
        cu, nbytes = driver(), round_up(part.size, UNIT)
        making = (cu.cuMemHostAlloc, cu.cuMemFreeHost, nbytes, 0)
        return provide(self.device, self.owned, nbytes, PINNED, *making), part.size

    def _staged(self) -> IoBindings:
        return staged(self.inputs), staged(self.outputs)

    def host_graph(self) -> Graph:
        """Return the graph that copies all inputs and outputs."""
        self.stage()
        return self._graph(self._staged())

    def graph_of(self, io: IoBindings) -> Graph:
        """Return the graph for bindings of the context's memory, which is captured only once."""
        self.check_alive()
        self._bound = self._graph(io)
        return self._bound

    def _graph(self, io: IoBindings) -> Graph:
        if io not in self._graphs:
            self._graphs[io] = self.device.within(partial(self._graph_of, io))
        return self._graphs[io]

    def graph_on(self, io: IoBindings, owned: Handles) -> Graph:
        """Capture a graph that uses external memory; `owned` owns the graph."""
        self.check_alive()
        graph: Graph = self.device.within(partial(self._graph_of, io, owned))
        return graph

    def _graph_of(self, io: IoBindings, owned: Handles | None = None) -> Graph:
        graph = Graph(io, self.owned if owned is None else owned)
        self._capture(graph)
        self._captured.add(graph)
        return graph

    def _capture(self, graph: Graph) -> None:
        """Capture a graph to replace an earlier graph, without releasing it (may be in flight)."""
        inputs, outputs = graph.io
        program = self.program
        direct: dict[tuple[int, int], int] = {}
        for number, writer in program.sole_writers.items():
            place, part = outputs[number], program.outputs[number]
            if place is not None and (part.size <= _DIRECT_BYTES or not place.on_host):
                direct[writer] = place.address + self._offset_in(part, writer)
        for number, readers in program.readers.items():
            place, part = inputs[number], program.inputs[number]
            if place is not None and not place.on_host:
                for use in readers:
                    direct[use] = place.address + self._offset_in(part, use)
        updated: dict[int, int] = {}
        for number, update in program.updates.items():
            place, part = outputs[number], program.outputs[number]
            if place is not None and not place.on_host:
                updated[update.input] = place.address
                for use in update.uses:
                    direct[use] = place.address + self._offset_in(part, use)
        copies_in = []
        for number, (place, part) in enumerate(zip(inputs, program.inputs, strict=True)):
            own = self.address(part)
            source = own if place is None else place.address  # the run copies it there, if needed
            target = updated.get(number, source if place is None else own)
            if source != target and not direct.keys() & program.readers.get(number, ()):
                copies_in.append(self._transfer(source, target, part.size))
        copies_out = [
            self._transfer(self.address(part), place.address, part.size)
            for number, (place, part) in enumerate(zip(outputs, program.outputs, strict=True))
            if place is not None
            and program.sole_writers.get(number) not in direct
            and not (number in program.updates and program.updates[number].input in updated)
        ]
        kernels = tuple(self.kernel_nodes(direct, overlap=True))
        nodes = [*copies_in, *kernels, *copies_out]
        try:
            graph.handle.value = int(graph.owned.capture(self.stream, nodes))
        except CudaError as error:
            number = -1 if error.launch is None else error.launch - len(copies_in)
            if error.code not in UNLAUNCHABLE or not 0 <= number < len(kernels):
                raise
            raise self.device.rejects({program.launches[number].kernel: str(error)}) from error
        graph.copies_in, graph.kernels, graph.direct = tuple(copies_in), kernels, direct

    def _offset_in(self, part: BufferRange, use: tuple[int, int]) -> int:
        number, argument = use
        return self.program.launches[number].offset_in(part, argument)

    def look_again(self) -> None:
        """Make the next run check for new code of the executable. Any thread may call this."""
        self.ready = False

    def _take_code(self) -> None:
        """Capture all graphs again with the executable's current code; called between two runs."""
        self._code = self.executable.code
        try:
            self.device.within(lambda: [*map(self._capture, self._captured)])
        except CudaError as error:  # the graphs captured before still work
            _log.info(
                "Background recompilation failed; keeping the quickly compiled kernels: %s", error
            )

    def address(self, part: BufferRange) -> int:
        """Return the GPU address of a buffer range."""
        whole = self.executable.constants_of(part) if part.constant else self._memory
        return int(whole) + part.offset

    def kernel_nodes(
        self, direct: Mapping[tuple[int, int], int], overlap: bool
    ) -> Iterator[KernelNode]:
        """Yield the program's launches. For `direct` see Graph, for `overlap` see `_launch`."""
        launches = self.program.launches
        later = prefetch_ranges(self.program, self.device.cache_bytes)
        asking = zip(launches, self._code.shared, later, strict=True)
        for number, (launch, shared, ahead) in enumerate(asking):
            pointers = tuple(
                direct.get((number, argument)) or self.address(part)
                for argument, part in enumerate(launch.ranges)
            )
            sizes = (launch.global_size, launch.local_size)
            yield self._launch(launch.kernel, pointers, *sizes, shared, overlap, ahead)

    def _transfer(self, source: int, target: int, nbytes: int) -> KernelNode:
        kernel = transfer_kernel(nbytes)
        items = (transfer_items(nbytes), 1, 1)
        return self._launch(kernel.name, (source, target), items, kernel.local_size)

    def _launch(
        self,
        kernel: str,
        pointers: tuple[int, ...],
        items: _Sizes,
        local: _Sizes,
        shared: int = 0,
        overlap: bool = True,
        ahead: BufferRange | None = None,
    ) -> KernelNode:
        """Return one launch; with `overlap`, the kernel may start while the previous one runs.

        The launch requests `shared` bytes of shared memory, and prefetches the range `ahead`.
        """
        cu = driver()
        config = launch_config(items, local, shared)
        config.hStream = self.stream
        if overlap and model_of(self.device.capability).overlapped_launches:
            attribute = cu.CUlaunchAttribute()
            attribute.id = (
                cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        blocks = (config.gridDimX, config.gridDimY, config.gridDimZ)
        part = (self.address(ahead), prefetch_bytes(ahead, blocks)) if ahead else (0, 0)
        given = (*pointers, *part)
        arguments = (given, (ctypes.c_void_p,) * len(given))
        return config, self._code.functions[kernel], arguments

    def pinned(self) -> Bindings:
        """Return the staging buffers. See ExecutionContext.pinned."""

        def host_buffers(spans: list[tuple[int, int]]) -> tuple[HostBuffer, ...]:
            kind = MemoryKind.PINNED
            return tuple(HostBuffer(ctypes.c_void_p(at), size, kind) for at, size in spans)

        self.stage()
        return Bindings(host_buffers(self.inputs), host_buffers(self.outputs))

    def bind(self, bindings: Bindings) -> CUDASubmission:
        """Prepare the calls that stage inputs, launch a graph, wait and copy outputs."""
        return self._bind(bindings)

    def bind_after(self, bindings: Bindings, stream: int) -> CUDASubmission:
        """Prepare a run that waits for a stream's work. See ExecutionContext.bind_after."""
        return self._bind(bindings, stream)

    def bind_cached(self, bindings: Bindings, stream: int | None = None) -> CUDASubmission:
        """Prepare a graph whose kernels access the bound buffers directly where possible."""
        return self._bind(bindings, stream, repeated=True)

    def _bind(
        self, bindings: Bindings, stream: int | None = None, repeated: bool = False
    ) -> CUDASubmission:
        self.check_alive()
        bindings.check(self.program, self.device)
        self.stage(bindings)
        return CUDASubmission(self, bindings, stream, repeated)

    def make_event(self) -> int:
        """Return an event without timing, which the context owns."""
        cu = driver()
        making = (cu.cuEventCreate, cu.cuEventDestroy, NO_TIMES)
        return int(self.device.within(partial(self.owned.make, *making)))

    def check_alive(self) -> None:
        """Raise ExecutionError if the context cannot run; wait if another run is in flight."""
        if self.in_flight is not None:
            self.synchronize()
        if self.device.lost:
            raise self.device.loss()
        if self._closed:
            raise ExecutionError("This partition was released. Create a new interpreter.")
        self.ready = True  # set before the check: a thread that changes the code then resets it
        if self._code is not self.executable.code:
            self._take_code()

    def synchronized(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` in the device's context; after an error, wait until the stream is idle."""

        def synchronize() -> _Result:
            try:
                return work()
            finally:
                self.wait()

        self.check_alive()
        return self.device.within(synchronize)

    def profiler(self) -> CUDAProfiler:
        return CUDAProfiler(self)

    def read_memory(self) -> Bytes:
        host = np.empty(self.program.memory_bytes, np.uint8)
        io = (host.ctypes.data, self._memory, host.nbytes)
        self.synchronized(partial(call, driver().cuMemcpyDtoH, *io))
        # Outputs that kernels write directly to the host also have a range of memory, with their
        # padding channels.
        direct = self._bound.direct if self._bound else {}
        for number, writer in self.program.sole_writers.items():
            if writer in direct:
                part = self.program.outputs[number]
                target = host[part.offset :].ctypes.data
                source = direct[writer] - self._offset_in(part, writer)
                ctypes.memmove(target, source, round_up(part.size, UNIT))
        return host

    def close(self) -> None:
        """Release the graphs, the stream and all memory, unless the device is lost."""
        if is_inherited(TITLE):
            return
        self.synchronize()
        self._closed, self.ready = True, False
        try:
            self.device.release(self, self.owned, self.wait)
        finally:
            self.executable.leave(self)

    @finalizer
    def __del__(self) -> None:
        """Release the resources that `close` did not release."""
        self.close()
