"""Tiles: the part of a result that a block computes, its resources, and its estimated time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from litegpu.codegen import LaunchAttributes
from litegpu.codegen.dialect import SHARED_SIZES
from litegpu.device_model import DeviceModel
from litegpu.graph import Node
from litegpu.kernels.base import Plan, Rejected
from litegpu.ops.base import KernelRequest, LowerContext

_CANDIDATES = 6
"""Maximum number of tiles to measure."""

_CLUSTER_UNITS = 18
"""Number of multiprocessors per GPC (a group of multiprocessors).

A cluster runs in one GPC; multiprocessors of a GPC that cannot form a whole cluster are idle.
"""

TOO_LARGE = Rejected("the operands do not fit into shared memory and registers")


_BYTES = {
    **SHARED_SIZES,
    **{"unsigned long long": 8, "uint2": 8, "unsigned int": 4, "unsigned short": 2},
}
"""Sizes in bytes of the element types of regions."""


class Region(NamedTuple):
    """A part of a block's shared memory: `elements` elements of a CUDA C++ type.

    `start` is the offset of the region in units of 16 bytes.
    """

    name: str
    type: str
    elements: int
    start: int = 0

    @property
    def end(self) -> int:
        """Return the offset at which the next region may start, in units of 16 bytes."""
        return self.start + -(-self.elements * _BYTES[self.type] // 16)


def consecutive(*parts: tuple[str, str, int], start: int = 0) -> tuple[Region, ...]:
    """Return consecutive regions from (name, type, elements), beginning at offset `start`."""
    regions: list[Region] = []
    for part in parts:
        regions.append(Region(*part, regions[-1].end if regions else start))
    return tuple(regions)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The shared memory of a block.

    Regions of shared memory may overlap if the kernel uses them at different times.
    """

    regions: tuple[Region, ...]

    @property
    def nbytes(self) -> int:
        """Return the total size in bytes, a multiple of 16."""
        return 16 * max((region.end for region in self.regions), default=0)

    @property
    def arrays(self) -> tuple[tuple[str, str, int], ...]:
        """Return the array that the kernel must declare; none if the memory is empty."""
        return (("uint4", "scratch", self.nbytes // 16),) if self.nbytes else ()

    def pointer(self, name: str, type_name: str, count: int) -> str:
        """Return the text of a pointer to a region, of which a template uses `count` elements.

        Raises ValueError if the region is smaller than `count` elements.
        """
        found = next((region for region in self.regions if region.name == name), None)
        room = 0 if found is None else found.elements * _BYTES[found.type]
        if found is None or count * _BYTES[type_name] > room:
            raise ValueError(
                f"The kernel uses {count} {type_name} of the region {name} of shared memory, "
                f"for which its tile has {room} bytes"
            )
        return f"({type_name} *)(scratch + {found.start})"


class TileTarget(Protocol):
    """The properties of a Target that determine tiles."""

    @property
    def max_work_group_size(self) -> int: ...

    @property
    def local_memory_bytes(self) -> int: ...

    @property
    def compute_units(self) -> int: ...

    @property
    def model(self) -> DeviceModel: ...


@dataclass(frozen=True, slots=True)
class TileFacts:
    """A TileTarget as plain data; targets with equal facts have the same tiles."""

    max_work_group_size: int
    local_memory_bytes: int
    compute_units: int
    model: DeviceModel

    @classmethod
    def of(cls, target: TileTarget) -> TileFacts:
        """Return the facts of a target."""
        memory, units = target.local_memory_bytes, target.compute_units
        return cls(target.max_work_group_size, memory, units, target.model)


class Tile(ABC):
    """The part of a problem that one block computes, and the resources of the block."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """The number of threads per block."""

    @property
    @abstractmethod
    def blocks(self) -> tuple[int, int]:
        """The number of blocks of the launch on the template's x and y axes."""

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of a block's shared memory."""
        return ()

    @property
    def shared(self) -> SharedMemory:
        """The shared memory of a block, as its kernel declares it."""
        return SharedMemory(self.regions)

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block in bytes, a multiple of 16."""
        return self.shared.nbytes

    @property
    def cluster_size(self) -> int:
        """Number of blocks, adjacent on the x axis, that can access each other's shared memory."""
        return 1

    def min_blocks(self, target: TileTarget) -> int:
        """Return the minimum number of resident blocks per multiprocessor; 0: unspecified."""
        return 0

    @abstractmethod
    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of the busiest multiprocessor.

        Tiles that are only compared with tiles of the same family may use any unit for `clocks`.
        """

    def fits(self, target: TileTarget) -> bool:
        """Whether the device permits the tile's threads and shared memory per block."""
        small = self.shared_bytes <= target.local_memory_bytes
        return small and self.threads <= target.max_work_group_size

    def attributes(self, target: TileTarget) -> LaunchAttributes:
        """Return the launch attributes of the tile."""
        return LaunchAttributes(self.cluster_size, self.min_blocks(target))


class PersistentTile(Tile):
    """A persistent block whose warps iterate over `positions` and keep their channels' data.

    `warps_n` warps compute adjacent channels of a position, and `warps_m` warps divide the
    positions; `column_blocks` blocks compute all channels, and `workers` of each are resident.
    """

    resident: int
    """Number of blocks per multiprocessor."""
    units: int
    """Number of multiprocessors of the device among which the blocks are distributed."""
    most_warps: ClassVar[int]
    """Maximum number of warps per block."""

    @property
    @abstractmethod
    def warps_of_channels(self) -> int:
        """The number of warps that compute all channels of a position."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """The number of positions over which warps iterate."""

    @property
    def column_blocks(self) -> int:
        return -(-self.warps_of_channels // self.most_warps)

    @property
    def warps_n(self) -> int:
        return -(-self.warps_of_channels // self.column_blocks)

    @property
    def warps_m(self) -> int:
        return self.most_warps // self.warps_n

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def workers(self) -> int:
        """Number of blocks that iterate over the positions; their shares differ by at most one."""
        turns = -(-self.positions // self.warps_m)
        at_once = max(1, self.units * self.resident // self.column_blocks)
        return -(-turns // -(-turns // at_once))

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, self.workers * self.column_blocks

    def min_blocks(self, target: TileTarget) -> int:
        return self.resident


def units_for(cluster: int, target: TileTarget) -> int:
    """Return the number of multiprocessors that can run blocks in clusters of that size."""
    clustered = _CLUSTER_UNITS // cluster * cluster
    return max(target.compute_units * clustered // _CLUSTER_UNITS, 1)


_Tile = TypeVar("_Tile", bound=Tile)


def choose(
    candidates: Iterable[_Tile],
    target: TileTarget,
    rejected: Rejected = TOO_LARGE,
    error: float = 0.0,
) -> list[_Tile] | Rejected:
    """Return the tiles that fit the device and should be measured, the best first.

    The best tile has the fewest estimated clocks. Estimates within the relative `error` of the best
    count as equal; among equal estimates, the function prefers earlier candidates. The result is
    `rejected` if no tile fits the device.
    """
    fitting = [tile for tile in dict.fromkeys(candidates) if tile.fits(target)]
    if not fitting:
        return rejected
    clocks = [tile.clocks(target) for tile in fitting]
    ranks = [int(each / min(clocks) / error) for each in clocks] if error else clocks
    order = sorted(range(len(fitting)), key=ranks.__getitem__)
    return [fitting[number] for number in order[:_CANDIDATES]]


@dataclass(frozen=True, slots=True)
class TilePlan(Plan):
    """The tiles for a problem, best first, and `kernel`, which creates the launch of a tile."""

    problem: Hashable
    """Plain data that determines the tiles, and the name of the implementation."""
    tiles: Sequence[Tile]
    kernel: Callable[[Node, LowerContext, Any], KernelRequest]
    clocks: float = Plan.clocks
    max_clock_ratio: float = Plan.max_clock_ratio
    rounds_input: bool = False

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        return self.kernel(node, ctx, ctx.choose(self.problem, self.tiles))
