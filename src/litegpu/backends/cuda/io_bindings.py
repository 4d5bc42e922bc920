"""Selects the external buffers that a CUDA graph uses directly, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.backends.buffers import Bindings, Buffer, DeviceBuffer, HostBuffer, MemoryKind
from litegpu.backends.cuda.buffers import UNIT, CUDABuffer, CUDAPinnedBuffer
from litegpu.backends.program import BufferRange, Program

_LARGE = 4 << 20
"""Minimum size in bytes of host memory that the GPU's copy engine copies, not a kernel.

On an H200, a kernel copied 38.5 MB in 0.79 ms, and the copy engine in 0.74 ms. The copy engine has
an overhead of 5 to 10 µs.
"""
Span = tuple[int, int]
"""The address and the size in bytes of a pinned buffer of the context; 0 for a missing buffer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory that a graph's kernels use as an input or an output."""

    address: int
    on_host: bool


IoBindings = tuple[tuple[Place | None, ...], tuple[Place | None, ...]]
"""The memory of each input and output of a graph; None for a copy outside of the graph."""


def is_external(buffer: Buffer, span: Span) -> bool:
    """Return whether the GPU can access a buffer directly, and it is not the staging buffer."""
    if isinstance(buffer, HostBuffer):
        return buffer.kind is MemoryKind.PINNED and buffer.address != span[0]
    return True


def staged(spans: Sequence[Span]) -> tuple[Place | None, ...]:
    """Return a context's pinned buffers as places; None for a missing buffer."""
    return tuple(Place(address, True) if address else None for address, _ in spans)


def copied_bindings(
    bindings: Bindings, inputs: Sequence[Span], outputs: Sequence[Span]
) -> IoBindings:
    """Return a graph's bindings, with external memory copied outside of the graph."""

    def side(buffers: Sequence[Buffer], spans: Sequence[Span]) -> tuple[Place | None, ...]:
        pairs = zip(buffers, spans, staged(spans), strict=True)
        return tuple(None if is_external(buffer, span) else own for buffer, span, own in pairs)

    return side(bindings.inputs, inputs), side(bindings.outputs, outputs)


def direct_bindings(bindings: Bindings, program: Program, copied: IoBindings) -> IoBindings:
    """Return bindings with external memory in place of copies, where kernels can use it.

    Kernels access whole 16-byte units, so directly bound memory must consist of whole units. Large
    host memory is copied. An output in GPU memory that a single launch writes may have any size. An
    input that overlaps an output is copied first, unless the output updates the input in place.
    """
    spans = [_bytes_of(buffer) for buffer in bindings.outputs]
    updated = {update.input: spans[number][0] for number, update in program.updates.items()}

    def whole(buffer: Buffer, part: BufferRange) -> bool:
        if isinstance(buffer, HostBuffer) and part.size >= _LARGE:
            return False
        return part.size % UNIT == 0 or isinstance(buffer, (CUDABuffer, CUDAPinnedBuffer))

    def source(number: int, buffer: Buffer, part: BufferRange, own: Place | None) -> Place | None:
        span = _bytes_of(buffer)
        overlapping = [start for start, end in spans if span[0] < end and start < span[1]]
        in_place = isinstance(buffer, DeviceBuffer) and updated.get(number) == span[0]
        free = overlapping == ([span[0]] if in_place else [])
        return own or (_place(buffer) if whole(buffer, part) and free else None)

    def target(number: int, buffer: Buffer, part: BufferRange, own: Place | None) -> Place | None:
        place = own or _place(buffer)
        written = place is not None and not place.on_host and number in program.sole_writers
        return place if own or written or whole(buffer, part) else None

    inputs = enumerate(zip(bindings.inputs, program.inputs, copied[0], strict=True))
    outputs = enumerate(zip(bindings.outputs, program.outputs, copied[1], strict=True))
    return (
        tuple(source(number, *each) for number, each in inputs),
        tuple(target(number, *each) for number, each in outputs),
    )


def _place(buffer: Buffer) -> Place | None:
    start, _ = _bytes_of(buffer)
    aligned = start and start % UNIT == 0
    return Place(start, isinstance(buffer, HostBuffer)) if aligned else None


def _bytes_of(buffer: Buffer) -> tuple[int, int]:
    """Return the address of the first byte, and the address after the last."""
    if isinstance(buffer, HostBuffer):
        start = buffer.address
    else:
        assert isinstance(buffer, DeviceBuffer)
        start = buffer.handle + buffer.offset
    return start, start + buffer.nbytes
