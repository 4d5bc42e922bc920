"""Tiles of cuda/conv_tile: pixels and columns that are multiplied in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from litegpu.codegen.storage import Shape4
from litegpu.graph import DType
from litegpu.kernels.cuda.packing import BYTE_PART, CHUNKS, PART
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.units import Unit
from litegpu.ops.quantized_conv import QuantizedConvSpec

NARROWEST = 32
"""Number of columns of the smallest tile."""
PREFETCH = 3
"""Number of steps in flight while the kernel multiplies one step."""
_DEEP = 2
"""Number of k-tiles per step if no other block can run while this block waits at a barrier."""
_COLUMNS_PER_BLOCK = 24
"""The fixed cost of a k-tile per block, expressed in columns."""
_ENDS = 600
"""Cost of first loads and last stores without an overlapping block: in columns of a k-tile.

On an H200, these numbers rank the best tile of 128, 64 or 32 columns first for 27 of 31
convolutions of floats. For the other four convolutions, the best tile was 10, 9, 1 and 1 % faster
than the first one.
"""


@dataclass(frozen=True, slots=True)
class _GroupCosts:
    """Costs of warp groups for halves and bytes, in columns of a k-tile.

    The costs are fitted to benchmarks/results/h200_wide_tiles.json.
    """

    fixed: float
    """Fixed cost per k-tile, without the cost of its columns."""
    chain: float
    """Minimum cost per k-tile from one copy to the next, without the cost of its columns."""
    ends: float
    """Cost per column of first loads and last stores."""


_SHARED = _GroupCosts(80, 108, 4)
_ALONE = {128: _GroupCosts(85, 0, 14), 192: _GroupCosts(165, 0, 14)}
"""Costs of tiles that are alone on a multiprocessor, by the number of pixels."""
_SHORT = _GroupCosts(85, 0, 1)
"""Costs of lone tiles with few columns and short sums, which leave shared memory for other blocks.

Tiles with short sums were the best of all warp-group tiles, by up to 28 %, for all 13 pointwise
convolutions of halves with two or four k-tiles. The results are in
benchmarks/results/h200_short_sums.json.
"""
_SHORT_SUM = 4
"""Maximum number of k-tiles of a short sum."""
_SHORT_BLOCKS = 4
"""Number of blocks with short sums and few columns that fit the memory of a multiprocessor."""


@dataclass(frozen=True, slots=True)
class WideProblem:
    """The properties that determine the tiles: an image, weights [O, H, W, I] and the result."""

    image: Shape4
    stored: str
    result: Shape4
    weights: Shape4
    split: bool
    """Whether floats are split into two parts without loss; otherwise the kernel rounds them."""
    copied: bool = True
    """Whether the kernel copies the image to shared memory unchanged; otherwise it converts the
    image.
    """

    @classmethod
    def of(cls, spec: ConvSpec | QuantizedConvSpec, split: bool) -> WideProblem:
        """Return the problem of a convolution."""
        src, shape = spec.src, spec.dst.shape
        found = cls(src.shape, src.dtype.value, shape, spec.weights.shape, split)
        unconverted = src.dtype is DType.FLOAT16 or found.floats or found.of_bytes
        return replace(found, copied=unconverted and src.aligned(found.part))

    @property
    def taps(self) -> int:
        return self.weights[1] * self.weights[2]

    @property
    def floats(self) -> bool:
        """Whether the kernel multiplies floats, with their full range."""
        return self.stored == DType.FLOAT32.value

    @property
    def of_bytes(self) -> bool:
        """Whether the kernel multiplies bytes, with integer sums."""
        return self.stored in (DType.INT8.value, DType.UINT8.value)

    @property
    def part(self) -> int:
        """Number of channels that a thread moves at a time."""
        return BYTE_PART if self.of_bytes else PART[self.floats]

    @property
    def parts(self) -> int:
        """Return the number of parts of `part` channels per input pixel."""
        return -(-self.weights[3] // self.part)

    @property
    def k_chunks(self) -> int:
        return self.taps * self.parts

    @property
    def grouped(self) -> bool:
        """Whether the kernel multiplies a k-tile of channels with all taps before the next k-tile.

        On an H200, this order makes 3 x 3 convolutions of ResNet-50 1 to 14 % faster if copies
        bypass the L1 cache. The order makes copies through the L1 cache slower, since that cache
        would otherwise hold most of the data.
        """
        return self.taps > 1 and self.parts % CHUNKS == 0

    @property
    def k_tiles(self) -> int:
        return -(-self.k_chunks // CHUNKS)

    @property
    def products(self) -> int:
        """Number of products on the matrix unit per product of values."""
        return 3 if self.split and self.floats else 1

    @property
    def unit(self) -> Unit:
        """The matrix unit that multiplies bytes, floats (rounded or split) or halves."""
        if self.of_bytes:
            return Unit.INT8_MATRIX
        return Unit.TF32_MATRIX if self.floats else Unit.FP16_MATRIX


@dataclass(frozen=True, slots=True)
class WideTile(Tile):
    """A block of `warps_m` x `warps_n` warps that computes `pixels` x `columns` outputs.

    With `warp_groups`, groups of four warps multiply directly from shared memory. A block with
    `warp_groups` that is `alone` on its multiprocessor uses longer steps.
    """

    problem: WideProblem
    columns: int
    warps_m: int
    warps_n: int
    warp_groups: bool = False
    alone: bool = False
    pixels: int = 128
    adds: bool = False
    """Whether the epilogue reads another tensor of the size of the result."""

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def column_blocks(self) -> int:
        return -(-self.problem.result[3] // self.columns)

    @property
    def blocks(self) -> tuple[int, int]:
        n, height, width, _ = self.problem.result
        return 1, -(-n * height * width // self.pixels) * self.column_blocks

    def min_blocks(self, target: TileTarget) -> int:
        """Return the blocks per multiprocessor: while one block waits, the others run."""
        if self._is_short:
            return _SHORT_BLOCKS
        if not self.warp_groups or self.alone:
            return 1
        return (2 if self.columns > 64 else 3) - self.problem.floats

    @property
    def depth(self) -> int:
        """Number of k-tiles per step, after which all threads synchronize."""
        return _DEEP if self.alone else 1

    @property
    def stages(self) -> int:
        """Number of steps in shared memory.

        Warp groups multiply halves asynchronously, so the previous step may still be in use.
        """
        busy = 2 if self.warp_groups and not self.problem.floats else 1
        return min(PREFETCH + busy, self.problem.k_tiles // self.depth)

    @property
    def rows_at_once(self) -> int:
        """Number of pixels whose sums pass through shared memory together; 0 for direct stores.

        If lanes store directly, four lanes store 32 bytes of a pixel, or 16 bytes for 8-bit
        results. The lanes read added operands in pieces of the same size, from four times as many
        lines at once as with whole rows of channels. In blocks with little other work, direct
        stores took up to a fifth longer on an H200; otherwise the difference was small
        (benchmarks/results/h200_register_stores.json).
        """
        if not self.problem.of_bytes and not (self.adds and self._is_short):
            return 0
        return self.pixels if self.alone else 64

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: inputs and weights of all steps, and the sums in their place."""
        chunks = self.stages * self.depth * CHUNKS
        steps = consecutive(
            ("values", "uint4", chunks * self.pixels),
            ("weights", "uint4", chunks * self.columns * (1 + self.problem.split)),
        )
        return *steps, Region("sums", "float", self.rows_at_once * (self.columns + 4))

    def clocks(self, target: TileTarget) -> float:
        """Return the estimated time of the busiest multiprocessor, in columns of a k-tile."""
        most = -(-self.blocks[1] // target.compute_units)
        resident = self.min_blocks(target)
        if not self.warp_groups or self.problem.floats:
            ends = _ENDS / self.problem.k_tiles if self.warp_groups and resident == 1 else 0
            return most * (self.columns + _COLUMNS_PER_BLOCK + ends)
        costs = self._costs
        k_tile = self.columns + costs.fixed
        ends = self.columns * costs.ends / self.problem.k_tiles
        return most * (max(k_tile, (self.columns + costs.chain) / min(most, resident)) + ends)

    @property
    def _costs(self) -> _GroupCosts:
        """The costs of warp groups per k-tile for this tile."""
        if not self.alone:
            return _SHARED
        return _SHORT if self._is_short else _ALONE[self.pixels]

    @property
    def _is_short(self) -> bool:
        """Whether the sums are so short that other blocks fit next to a block that is `alone`."""
        return self.alone and self.columns < 128 and self.problem.k_tiles <= _SHORT_SUM


_WARPS = {
    (False, False): {128: (2, 2), 64: (2, 2), 32: (4, 1)},
    (False, True): {64: (4, 2), 32: (4, 1)},
    (True, False): {128: (8, 1), 64: (8, 1), 32: (8, 1)},
    (True, True): {128: (8, 1), 64: (8, 1), 32: (8, 1)},
}
"""Numbers of warps of tiles by their columns: with or without warp groups, for floats or halves."""

_ALONE_ON_A_MULTIPROCESSOR = {192: (128,), 128: (128, 64)}
"""Columns of tiles of halves and bytes by pixels; each tile fills a multiprocessor alone."""


def candidates(problem: WideProblem, warp_groups: bool) -> Iterator[WideTile]:
    """Yield the tiles of one kind that are not too wide, and always the narrowest tile."""
    for columns, warps in _WARPS[warp_groups, problem.floats].items():
        if columns < 2 * problem.result[3] or columns == NARROWEST:
            yield WideTile(problem, columns, *warps, warp_groups)
    # Converted values fill one k-tile at a time.
    deep = problem.copied and problem.k_tiles % _DEEP == 0
    if warp_groups and not problem.floats and deep:
        for pixels, widths in _ALONE_ON_A_MULTIPROCESSOR.items():
            for columns in widths:
                if columns < 2 * problem.result[3]:
                    yield WideTile(problem, columns, pixels // 16, 1, True, True, pixels)
