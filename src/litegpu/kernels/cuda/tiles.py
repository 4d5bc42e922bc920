"""Tiles: what a block of a kernel makes, what that takes of a multiprocessor, and how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from litegpu.codegen import LaunchAttributes
from litegpu.device_model import DeviceModel
from litegpu.graph import Node
from litegpu.kernels.base import Plan, Rejected
from litegpu.ops.base import KernelRequest, LowerContext

_CANDIDATES = 6
"""Tiles that are worth a measurement."""

_CLUSTER_UNITS = 18
"""Multiprocessors of a group of them (GPC). A cluster lies in one; what it leaves over is idle."""

TOO_LARGE = Rejected("its operands do not fit on the chip")


class TileTarget(Protocol):
    """What of a Target decides about tiles, and nothing else."""

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
    """A TileTarget by its values: equal ones have the same tiles."""

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
    """What one block of a launch makes of a problem."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def blocks(self) -> tuple[int, int]:
        """Blocks of the launch on the x and the y axis of the template."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Shared memory of a block, a multiple of 16 bytes."""

    @property
    def cluster_size(self) -> int:
        """Blocks, neighbours on the x axis, that reach each other's shared memory."""
        return 1

    def min_blocks(self, target: TileTarget) -> int:
        """Return for how many blocks a multiprocessor must have registers at a time; 0: any."""
        return 0

    @abstractmethod
    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of the multiprocessor that is busy longest.

        Where a family compares its tiles with no other family's, any unit will do.
        """

    def fits(self, target: TileTarget) -> bool:
        """Whether a block of the device may have so many threads, and so much shared memory."""
        small = self.shared_bytes <= target.local_memory_bytes
        return small and self.threads <= target.max_work_group_size

    def attributes(self, target: TileTarget) -> LaunchAttributes:
        """Return how the blocks are launched."""
        return LaunchAttributes(self.cluster_size, self.min_blocks(target))


class PersistentTile(Tile):
    """A block whose warps take turns over `places`, with what they need of their channels kept.

    Its `warps_n` warps make neighbouring channels of the places that its `warps_m` warps share out;
    `column_blocks` such blocks make all channels, `workers` of each are on the device at a time.
    """

    resident: int
    """Blocks that share a multiprocessor."""
    units: int
    """Multiprocessors of the device, over which the blocks are spread."""
    most_warps: ClassVar[int]
    """Warps that a block has at most."""

    @property
    @abstractmethod
    def warps_of_channels(self) -> int:
        """Warps that make all channels of a place."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """What warps take turns over."""

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
        """Blocks that take turns over the places, each of them as often, or once less."""
        turns = -(-self.positions // self.warps_m)
        at_once = max(1, self.units * self.resident // self.column_blocks)
        return -(-turns // -(-turns // at_once))

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, self.workers * self.column_blocks

    @property
    def shared_bytes(self) -> int:
        return 0

    def min_blocks(self, target: TileTarget) -> int:
        return self.resident


def units_for(cluster: int, target: TileTarget) -> int:
    """Return how many multiprocessors get blocks of clusters of that size."""
    clustered = _CLUSTER_UNITS // cluster * cluster
    return max(target.compute_units * clustered // _CLUSTER_UNITS, 1)


_Tile = TypeVar("_Tile", bound=Tile)


def choose(
    candidates: Iterable[_Tile],
    target: TileTarget,
    rejected: Rejected = TOO_LARGE,
    error: float = 0.0,
) -> list[_Tile] | Rejected:
    """Return the tiles that fit the device and are worth a measurement, the best first.

    That is the one of the least estimated clocks. What differs by less than a part `error` of these
    counts as equal: candidates that come first are preferred then. If none fits, return `rejected`.
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
    """Tiles for a problem, the best first, and `kernel`, which makes the launch of one."""

    problem: Hashable
    """Plain data that decides about the tiles, and the name of the implementation."""
    tiles: Sequence[Tile]
    kernel: Callable[[Node, LowerContext, Any], KernelRequest]
    clocks: float = Plan.clocks
    margin: float = Plan.margin
    rounds_input: bool = False

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        return self.kernel(node, ctx, ctx.choose(self.problem, self.tiles))
