"""Models of the capacity and speed of a GPU's multiprocessors, by architecture.

Sizes and features come from the tables "Feature Support" and "Technical Specifications per Compute
Capability" in NVIDIA's CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

Capability = tuple[int, int]
"""The compute capability of an NVIDIA GPU: major and minor number."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clock cycles and bytes per clock cycle of one multiprocessor, as measured in kernels.

    The figures are fitted to kernels on an H200; other architectures use the same figures. Costs
    that concern a single family of kernels are defined in the module of the family's tiles.
    """

    load: float = 335.0
    """Latency in clocks of several loads that are in flight together."""
    instruction: float = 2.0 / 128
    """Clocks per instruction of one thread."""
    product: float = 3.9
    """Clocks of a warp's 16x16 by 16x8 product of float16, including the wait for operands."""
    cached_bytes: float = 35.0
    """Bytes per clock from the L2 cache, which all multiprocessors share."""
    memory_bytes: float = 15.0
    """Bytes per clock from and to device memory."""
    remote_bytes: float = 2900.0
    """Bytes per clock of all clusters, from or to the shared memory of other blocks."""
    overlapped_bytes: int = 200 << 10
    """Shared memory of the blocks of a multiprocessor that compute while other blocks wait."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A GPU architecture: the capacity of one multiprocessor (sizes in bytes), and its features."""

    max_threads: int
    """Maximum number of resident threads per multiprocessor."""
    max_blocks: int
    """Maximum number of resident blocks per multiprocessor."""
    shared_bytes: int
    """Shared memory for all resident blocks, including the bytes that the system reserves per
    block.
    """
    registers: int = 64 << 10
    """Number of 32-bit registers of a multiprocessor."""
    reserved_bytes: int = 1 << 10
    """Shared memory that the system reserves for each block."""
    tensor_cores: bool = True
    """Whether the GPU has matrix instructions for float16 and tf32 (compute capability 8.0)."""
    clusters: bool = False
    """Whether blocks can access each other's shared memory (compute capability 9.0)."""
    warp_groups: bool = False
    """Whether four warps can multiply matrices together (only compute capability 9.0)."""
    overlapped_launches: bool = False
    """Whether a kernel may start while the previous one runs (compute capability 9.0)."""
    clocks: Clocks = field(default_factory=Clocks)

    @property
    def shared_bytes_per_block(self) -> int:
        """Maximum shared memory of one block; a kernel must request this much explicitly."""
        return self.shared_bytes - self.reserved_bytes

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks of `threads` threads fit a multiprocessor.

        `registers` is the number of registers per thread, `shared_bytes` the shared memory per
        block.
        """
        return min(
            self.max_blocks,
            self.max_threads // threads,
            self.registers // (registers * threads),
            self.shared_bytes // (shared_bytes + self.reserved_bytes),
        )

    def overlapped_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks compute while others wait: all resident blocks, or fewer."""
        resident = self.resident_blocks(threads, registers, shared_bytes)
        return min(resident, self.clocks.overlapped_bytes // shared_bytes)


GENERIC = DeviceModel(1024, 16, 64 << 10, tensor_cores=False)
"""A GPU of which litegpu knows only the limits, and NVIDIA GPUs before Ampere."""

MODELS = {
    # Ampere
    (8, 0): DeviceModel(2048, 32, 164 << 10),
    (8, 6): DeviceModel(1536, 16, 100 << 10),
    (8, 7): DeviceModel(1536, 16, 164 << 10),
    # Ada
    (8, 9): DeviceModel(1536, 24, 100 << 10),
    # Hopper
    (9, 0): DeviceModel(
        2048, 32, 228 << 10, warp_groups=True, clusters=True, overlapped_launches=True
    ),
    # Blackwell
    (10, 0): DeviceModel(2048, 32, 228 << 10, clusters=True, overlapped_launches=True),
    (12, 0): DeviceModel(1536, 24, 100 << 10, clusters=True, overlapped_launches=True),
}
"""The GPU architectures by their first compute capability."""


@cache
def model_of(capability: Capability | None) -> DeviceModel:
    """Return the model of a compute capability; the generic model if the capability is None.

    A compute capability that is not in the table uses the newest older entry.
    """
    known = [each for each in MODELS if capability is not None and each <= capability]
    return MODELS[max(known)] if known else GENERIC
