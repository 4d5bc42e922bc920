"""Tiles of cuda/conv_tile: pixels and columns that pass through shared memory."""

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
"""Columns of the smallest tile."""
PREFETCH = 3
"""Steps that are on their way while one is multiplied."""
_DEEP = 2
"""k-tiles of a step where no other block works while one waits for its threads."""
_COLUMNS_PER_BLOCK = 24
"""The fixed cost of a k-tile in a block, in columns."""
_ENDS = 600
"""What first loads and last stores cost where no other block fills that time: columns of a k-tile.

On an H200 these figures put the best tile of 128, 64 or 32 columns first for 27 of 31 convolutions
of floats; it was 10, 9, 1 and 1 % faster for the others.
"""


@dataclass(frozen=True, slots=True)
class _GroupCosts:
    """What groups of warps take for halves and bytes, in columns of a k-tile.

    Fitted to benchmarks/results/h200_wide_tiles.json.
    """

    fixed: float
    """A k-tile, without its columns."""
    chain: float
    """The minimum for a k-tile, without its columns, from one copy to the next."""
    ends: float
    """First loads and last stores, for each column."""


_SHARED = _GroupCosts(80, 108, 4)
_ALONE = {128: _GroupCosts(85, 0, 14), 192: _GroupCosts(165, 0, 14)}
"""Costs of tiles that are alone on a multiprocessor, by pixels."""
_SHORT = _GroupCosts(85, 0, 1)
"""Costs of such tiles with few columns where sums are short: memory is left for other blocks then.

Of the tiles of groups of warps they were the best, by up to 28 %, for all 13 pointwise convolutions
of halves with two or four k-tiles in benchmarks/results/h200_short_sums.json.
"""
_SHORT_SUM = 4
"""Most k-tiles of a short sum."""
_SHORT_BLOCKS = 4
"""Blocks of short sums and few columns that share a multiprocessor, which has memory for them."""


@dataclass(frozen=True, slots=True)
class WideProblem:
    """What decides about tiles: an image, weights [O, H, W, I] and the result."""

    image: Shape4
    stored: str
    result: Shape4
    weights: Shape4
    split: bool
    """Whether floats are split into two parts, so that nothing is lost; otherwise rounded."""
    copied: bool = True
    """Whether parts of the image are copied to shared memory as they lie; otherwise converted."""

    @classmethod
    def of(cls, spec: ConvSpec | QuantizedConvSpec, split: bool) -> WideProblem:
        """Return the problem of a convolution."""
        src, shape = spec.src, spec.dst.shape
        found = cls(src.shape, src.dtype.value, shape, spec.weights.shape, split)
        as_it_lies = src.dtype is DType.FLOAT16 or found.floats or found.of_bytes
        return replace(found, copied=as_it_lies and src.aligned(found.part))

    @property
    def taps(self) -> int:
        return self.weights[1] * self.weights[2]

    @property
    def floats(self) -> bool:
        """Whether floats are multiplied, which keep their range."""
        return self.stored == DType.FLOAT32.value

    @property
    def of_bytes(self) -> bool:
        """Whether bytes are multiplied, and summed up as integers."""
        return self.stored in (DType.INT8.value, DType.UINT8.value)

    @property
    def part(self) -> int:
        """Channels that a thread moves at a time."""
        return BYTE_PART if self.of_bytes else PART[self.floats]

    @property
    def parts(self) -> int:
        """Return how many of these an input pixel has."""
        return -(-self.weights[3] // self.part)

    @property
    def k_chunks(self) -> int:
        return self.taps * self.parts

    @property
    def grouped(self) -> bool:
        """Whether each k-tile of channels meets all taps before the next one does.

        On an H200 that makes 3 x 3 convolutions of ResNet-50 1 to 14 % faster; copies by way of the
        multiprocessor's cache, which would have most of what they read, make them slower.
        """
        return self.taps > 1 and self.parts % CHUNKS == 0

    @property
    def k_tiles(self) -> int:
        return -(-self.k_chunks // CHUNKS)

    @property
    def products(self) -> int:
        """Products on the unit that make one of values."""
        return 3 if self.split and self.floats else 1

    @property
    def unit(self) -> Unit:
        """What multiplies bytes, floats, rounded or split, or halves."""
        if self.of_bytes:
            return Unit.INT8_MATRIX
        return Unit.TF32_MATRIX if self.floats else Unit.FP16_MATRIX


@dataclass(frozen=True, slots=True)
class WideTile(Tile):
    """A block makes `pixels` x `columns` outputs with `warps_m` x `warps_n` warps.

    With `warp_groups`, four warps together multiply from shared memory. Then, a block that is
    `alone` on its multiprocessor makes longer steps.
    """

    problem: WideProblem
    columns: int
    warps_m: int
    warps_n: int
    warp_groups: bool = False
    alone: bool = False
    pixels: int = 128
    adds: bool = False
    """Whether the epilogue reads another tensor of the size of the results."""

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
        """One block waits while others work."""
        if self._is_short:
            return _SHORT_BLOCKS
        if not self.warp_groups or self.alone:
            return 1
        return (2 if self.columns > 64 else 3) - self.problem.floats

    @property
    def depth(self) -> int:
        """k-tiles of a step, after which all threads wait for each other."""
        return _DEEP if self.alone else 1

    @property
    def stages(self) -> int:
        """Steps that lie in shared memory.

        Groups multiply halves while their threads go on: the step before is still in use then.
        """
        busy = 2 if self.warp_groups and not self.problem.floats else 1
        return min(PREFETCH + busy, self.problem.k_tiles // self.depth)

    @property
    def rows_at_once(self) -> int:
        """Pixels whose sums pass through shared memory together; 0 if lanes store their own.

        Four lanes store 32 bytes of a pixel, of bytes only 16. What is added they read in the same
        pieces: of four times as many lines at once as whole rows of channels. Where a block does
        little else, that took up to a fifth longer on an H200; else nothing, or less
        (benchmarks/results/h200_register_stores.json).
        """
        if not self.problem.of_bytes and not (self.adds and self._is_short):
            return 0
        return self.pixels if self.alone else 64

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return values and weights of all steps, and the sums that take their place."""
        chunks = self.stages * self.depth * CHUNKS
        steps = consecutive(
            ("values", "uint4", chunks * self.pixels),
            ("weights", "uint4", chunks * self.columns * (1 + self.problem.split)),
        )
        return *steps, Region("sums", "float", self.rows_at_once * (self.columns + 4))

    def clocks(self, target: TileTarget) -> float:
        """Estimate the time of the multiprocessor that gets most blocks, in columns of a k-tile."""
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
        """What groups of warps take for a k-tile of this tile."""
        if not self.alone:
            return _SHARED
        return _SHORT if self._is_short else _ALONE[self.pixels]

    @property
    def _is_short(self) -> bool:
        """Whether other blocks fit a multiprocessor with a block that is `alone` by its steps."""
        return self.alone and self.columns < 128 and self.problem.k_tiles <= _SHORT_SUM


_WARPS = {
    (False, False): {128: (2, 2), 64: (2, 2), 32: (4, 1)},
    (False, True): {64: (4, 2), 32: (4, 1)},
    (True, False): {128: (8, 1), 64: (8, 1), 32: (8, 1)},
    (True, True): {128: (8, 1), 64: (8, 1), 32: (8, 1)},
}
"""Warps of tiles by their columns: with warp groups or without, of floats or of halves."""

_ALONE_ON_A_MULTIPROCESSOR = {192: (128,), 128: (128, 64)}
"""Columns of tiles of halves and bytes by pixels, of which a multiprocessor has one at a time."""


def candidates(problem: WideProblem, warp_groups: bool) -> Iterator[WideTile]:
    """Yield the tiles of a sort that are not too wide; the narrowest always is one of them."""
    for columns, warps in _WARPS[warp_groups, problem.floats].items():
        if columns < 2 * problem.result[3] or columns == NARROWEST:
            yield WideTile(problem, columns, *warps, warp_groups)
    # What is converted fills one k-tile at a time.
    deep = problem.copied and problem.k_tiles % _DEEP == 0
    if warp_groups and not problem.floats and deep:
        for pixels, widths in _ALONE_ON_A_MULTIPROCESSOR.items():
            for columns in widths:
                if columns < 2 * problem.result[3]:
                    yield WideTile(problem, columns, pixels // 16, 1, True, True, pixels)
