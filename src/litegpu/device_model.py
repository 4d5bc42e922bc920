"""What the multiprocessors of a GPU hold and how fast they are, by their architecture.

Sizes and features are those of the tables "Feature Support" and "Technical Specifications per
Compute Capability" in NVIDIA's CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

Capability = tuple[int, int]
"""The compute capability of an NVIDIA GPU: major and minor number."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks of one multiprocessor, and bytes per clock, as kernels get them.

    Fitted to kernels that were measured on an H200: other architectures take these figures over.
    What only one family of kernels waits for stands beside its tiles.
    """

    load: float = 335.0
    """From the first of some loads that are on their way together to the last one's arrival."""
    instruction: float = 2.0 / 128
    """For an instruction of one thread."""
    product: float = 3.9
    """For a warp's product of 16 x 16 halves by 16 x 8, with waiting for its operands."""
    cached_bytes: float = 35.0
    """Bytes per clock from the cache that all multiprocessors share."""
    memory_bytes: float = 15.0
    """Bytes per clock from and to the device's memory."""
    remote_bytes: float = 2900.0
    """Bytes per clock that all clusters together store to, or load from, other blocks' memory."""
    overlapped_bytes: int = 200 << 10
    """Shared memory of the blocks that work while others of a multiprocessor wait."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """An architecture: what one multiprocessor holds (sizes are in bytes), and what it can do."""

    max_threads: int
    """Threads that may be resident."""
    max_blocks: int
    """Blocks that may be resident."""
    shared_bytes: int
    """Shared memory of all resident blocks, with what the system keeps for each."""
    registers: int = 64 << 10
    """Registers of 32 bits."""
    reserved_bytes: int = 1 << 10
    """Shared memory of each block that the system keeps."""
    tensor_cores: bool = True
    """Whether there are matrix instructions for halves and tf32 (compute capability 8.0)."""
    clusters: bool = False
    """Whether blocks can reach each other's shared memory (compute capability 9.0)."""
    warp_groups: bool = False
    """Whether four warps can multiply together (just compute capability 9.0)."""
    overlapped_launches: bool = False
    """Whether blocks of a kernel may begin while the one before runs (compute capability 9.0)."""
    clocks: Clocks = field(default_factory=Clocks)

    @property
    def shared_bytes_per_block(self) -> int:
        """Shared memory that one block may have, if it asks for it."""
        return self.shared_bytes - self.reserved_bytes

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks of so many threads a multiprocessor can hold at a time.

        `registers` are those of a thread, `shared_bytes` what a block asks for.
        """
        return min(
            self.max_blocks,
            self.max_threads // threads,
            self.registers // (registers * threads),
            self.shared_bytes // (shared_bytes + self.reserved_bytes),
        )

    def overlapped_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks work while others wait: those that are resident, or fewer."""
        resident = self.resident_blocks(threads, registers, shared_bytes)
        return min(resident, self.clocks.overlapped_bytes // shared_bytes)


GENERIC = DeviceModel(1024, 16, 64 << 10, tensor_cores=False)
"""A device of which nothing is known but its limits, and NVIDIA GPUs before Ampere."""

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
"""The architectures by the compute capability that brought them."""


@cache
def model_of(capability: Capability | None) -> DeviceModel:
    """Return the model for a compute capability, or None for devices that have none.

    What is not in the table counts as the newest that is not newer.
    """
    known = [each for each in MODELS if capability is not None and each <= capability]
    return MODELS[max(known)] if known else GENERIC
