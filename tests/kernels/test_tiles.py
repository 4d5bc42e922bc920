"""Selection of tiles of CUDA kernels; the tiles fit every architecture."""

from __future__ import annotations

import dataclasses
import math

import pytest

from conv_graphs import built, convolution
from cuda_emulator import INFO
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.device_model import MODELS, Capability, DeviceModel
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda.conv_mma.quantized import QuantizedConvMma
from litegpu.kernels.cuda.conv_mma.tile import (
    MmaProblem,
    MmaTile,
    _best_tiles,
    best_tiles,
    candidates,
)
from litegpu.kernels.cuda.conv_tile.quantized import QuantizedConvTile
from litegpu.kernels.cuda.tiles import (
    TOO_LARGE,
    Region,
    SharedMemory,
    Tile,
    TileFacts,
    TileTarget,
    choose,
    consecutive,
)
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy
from litegpu.ops.common.window import Window
from paper_device import nvidia_gpu, planned

TARGET = DeviceTarget(INFO, FP32)


@dataclasses.dataclass(frozen=True)
class PlainTile(Tile):
    """A tile that takes what it is told to."""

    time: float
    threads: int = 128
    shared_bytes: int = 0
    blocks: tuple[int, int] = (1, 1)

    def clocks(self, target: TileTarget) -> float:
        return self.time


def times(*tiles: Tile, error: float = 0.0) -> list[float]:
    """Return the estimates of the tiles that are chosen, in their order."""
    found = choose(tiles, TARGET, error=error)
    assert not isinstance(found, Rejected)
    return [tile.clocks(TARGET) for tile in found]


def test_the_fastest_come_first_each_of_them_once() -> None:
    assert times(*map(PlainTile, (3, 1, 2, 1))) == [1, 2, 3]
    assert times(*map(PlainTile, range(1, 10))) == [1, 2, 3, 4, 5, 6], (
        "more are not worth a measurement"
    )


def test_tiles_of_a_problem_are_found_once_for_each_kind_of_device() -> None:
    problem = MmaProblem(196, 512, 32, 2, 1, 2, 9, 184)
    _best_tiles.cache_clear()
    facts = TileFacts.of(TARGET)
    others = (
        dataclasses.replace(facts, compute_units=2 * facts.compute_units),
        dataclasses.replace(facts, local_memory_bytes=facts.local_memory_bytes // 2),
        dataclasses.replace(facts, max_work_group_size=facts.max_work_group_size // 2),
        dataclasses.replace(facts, model=MODELS[8, 6]),
    )
    for each in (facts, *others, *others):
        assert best_tiles(problem, each) == choose(candidates(problem, each), each)
    found = _best_tiles.cache_info()
    assert (found.misses, found.hits) == (5, 4)


POINTWISE = MmaProblem(3136, 64, 24, 2, 2, 3, 1, 40)
DEPTHWISE = MmaProblem(3136, 128, 8, 2, 2, 3, 9, 184)
TF32 = dataclasses.replace(POINTWISE, products=6)


def tile(problem: MmaProblem, n_tiles: int, steps: int, prefetch: int, cluster: int = 1) -> MmaTile:
    """Return a tile of 32 pixels and 256 threads; `cluster` blocks share out the k-steps."""
    warps = (1, 16 // n_tiles, n_tiles // 2)
    return MmaTile(
        *(problem, 32, *warps, n_tiles, steps, steps, cluster, prefetch), split_k=cluster > 1
    )


@pytest.mark.parametrize(
    "problem, n_tiles, prefetch, compiled",
    [
        (POINTWISE, 2, 8, 128),
        (POINTWISE, 2, 6, 96),
        (POINTWISE, 4, 4, 176),
        (POINTWISE, 4, 3, 120),
        (DEPTHWISE, 2, 8, 168),
        (DEPTHWISE, 2, 4, 126),
        (TF32, 4, 4, 178),
    ],
)
def test_registers_are_estimated_as_compiled(
    problem: MmaProblem, n_tiles: int, prefetch: int, compiled: int
) -> None:
    """By NVRTC for compute capability 9.0: as many blocks share a multiprocessor."""
    estimated = tile(problem, n_tiles, 8, prefetch).registers
    room = [INFO.model.resident_blocks(256, each, 0) for each in (estimated, compiled)]
    assert room[0] == room[1]


def test_clusters_leave_multiprocessors_idle() -> None:
    """Those of four lie in a group of up to 18: 32 of them are not on 132 at the same time."""
    few, many = (
        tile(MmaProblem(rows, 128, 32, 2, 1, 2, 1, 40), 2, 8, 8, cluster=4).clocks(TARGET)
        for rows in (29 * 32, 32 * 32)
    )
    assert many > 1.2 * few
    single, others = (
        tile(MmaProblem(rows, 128, 8, 2, 1, 2, 1, 40), 2, 8, 8).clocks(TARGET)
        for rows in (116 * 32, 128 * 32)
    )
    assert others == pytest.approx(single, rel=0.01)


@pytest.mark.parametrize(
    "problem, steps, pieces, turns",
    [
        *((POINTWISE, 8, 4, 4), (POINTWISE, 24, 12, 12), (POINTWISE, 18, 9, 10)),
        *((DEPTHWISE, 8, 4, 4), (DEPTHWISE, 10, 5, 6), (DEPTHWISE, 18, 9, 9)),
    ],
)
def test_loads_of_several_turns_are_on_their_way_together(
    problem: MmaProblem, steps: int, pieces: int, turns: int
) -> None:
    """Up to 8, or 4 for a depthwise convolution; as many each time, so some may be too many."""
    found = tile(problem, 2, steps, 8)
    assert found.gathered == pieces * found.threads
    assert found.turns == turns


def test_few_threads_wait_for_their_own_instructions() -> None:
    """A depthwise convolution of 48 x 48 x 32: one place for each thread was faster than two."""
    problem = MmaProblem(2304, 32, 1, 2, 2, 3, 9, 184, ranged=True)
    one, two = (
        MmaTile(problem, pixels, 1, 2, 1, 2, 1, 1, 1, 1).clocks(TARGET) for pixels in (16, 32)
    )
    assert 1.3 < two / one < 1.45


def test_what_differs_by_less_than_the_error_keeps_its_order() -> None:
    assert times(*map(PlainTile, (1.01, 1.0, 1.2, 1.1)), error=0.02) == [1.01, 1.0, 1.1, 1.2]


def test_tiles_must_fit_the_device() -> None:
    large = PlainTile(1, shared_bytes=INFO.local_memory_bytes + 16)
    wide = PlainTile(2, threads=INFO.max_work_group_size + 1)
    assert times(large, wide, PlainTile(3)) == [3]
    assert choose([large], TARGET) is TOO_LARGE
    assert choose([], TARGET, Rejected("there are none")) == Rejected("there are none")


def test_templates_use_no_more_of_a_region_than_its_tile_has() -> None:
    """Regions lie one after the other in units of 16 bytes, or over each other."""
    parts = consecutive(("a", "unsigned short", 20), ("b", "float4", 2))
    shared = SharedMemory((*parts, Region("c", "float", 16)))
    assert (shared.nbytes, shared.arrays) == (80, (("uint4", "scratch", 5),))
    assert shared.pointer("b", "float4", 2) == "(float4 *)(scratch + 3)"
    assert shared.pointer("c", "int", 16) == "(int *)(scratch + 0)"
    message = "uses 3 float4 of the region b of shared memory, for which its tile has 32 bytes"
    with pytest.raises(ValueError, match=message):
        shared.pointer("b", "float4", 3)
    with pytest.raises(ValueError, match=r"region d .* its tile has 0 bytes"):
        shared.pointer("d", "int", 1)
    assert SharedMemory(()).arrays == ()


@pytest.mark.parametrize(("units", "least"), [(200, 1), (25, 1), (24, 2), (1, 3)])
def test_threads_get_the_registers_that_their_blocks_leave(units: int, least: int) -> None:
    problem = MmaProblem(28 * 28, 64, 8, 1, 1, 1, 1, 20)
    small = tile(problem, 2, 8, 1)
    assert math.prod(small.blocks) == 25
    facts = dataclasses.replace(TileFacts.of(TARGET), compute_units=units)
    room = facts.model.registers // (small.threads * small.registers)
    assert room >= 3
    assert small.min_blocks(facts) == min(-(-25 // units), room) >= least


def test_a_tile_says_how_it_is_launched() -> None:
    attributes = PlainTile(1).attributes(TARGET)
    assert (attributes.cluster_size, attributes.min_blocks, attributes.folded) == (1, 0, None)


GRAPHS = [
    ((1, 4, 4, 1580), 512, Window((1, 1), (1, 1))),
    ((2, 7, 7, 256), 64, Window((3, 3), (1, 1), pads=(1, 1))),
    ((1, 96, 96, 32), 32, Window((3, 3), (1, 1), pads=(1, 1))),
    ((64, 224, 224, 3), 32, Window((3, 3), (2, 2), pads=(1, 1))),
    ((16, 56, 56, 128), 256, Window((1, 1), (1, 1))),
]


@pytest.mark.parametrize("policy", [FP32, FP16, FP16_ALL])
@pytest.mark.parametrize(("capability", "model"), MODELS.items())
def test_blocks_fit_every_architecture(
    capability: Capability, model: DeviceModel, policy: NumericPolicy
) -> None:
    device = dataclasses.replace(
        INFO,
        compute_capability=capability,
        local_memory_bytes=model.shared_bytes_per_block,
    )
    for graph in GRAPHS:
        for launch in built(convolution(*graph), policy, device).launches:
            kernel = launch.kernel
            assert launch.template.startswith("cuda/")
            assert dynamic_shared_bytes(kernel) <= model.shared_bytes_per_block
            assert kernel.attributes.cluster_size == 1 or model.clusters
            registers = -(-model.registers // max(kernel.attributes.min_blocks, 1))
            assert kernel.local_size[0] * 24 <= registers


@pytest.mark.parametrize("rows", [1, 31, 32])
def test_few_rows_of_bytes_are_left_to_the_gathering_kernel(rows: int) -> None:
    example = QuantizedConvExample((1, 1, rows, 1152), 6912)
    found = planned(QuantizedConvTile(), nvidia_gpu((9, 0)), example)
    wasteful = found == Rejected("most rows of a tile would be empty")
    assert wasteful == (rows < 32)
    assert not isinstance(planned(QuantizedConvMma(), nvidia_gpu((9, 0)), example), Rejected)
