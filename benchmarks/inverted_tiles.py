"""Times the tiles of cuda/inverted for blocks of large batches, beside two kernels and a model.

    python benchmarks/inverted_tiles.py measure --out benchmarks/results/h200_inverted_tiles.json
    python benchmarks/inverted_tiles.py compare benchmarks/results/h200_inverted_tiles.json

`measure` needs a GPU with groups of warps (Hopper): microseconds of a launch, in a chain
of 24 that overlap as in a run, for 64 pictures whose values are halves; "pairs" are those of the
two kernels that do the same. `compare` needs none: what the model chooses for each layer, beside
the best tile that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from conv_tiles import PAPER, chain_microseconds, constants, run_commands, window
from litegpu import GpuDelegate
from litegpu.kernels.cuda import inverted
from litegpu.kernels.cuda.inverted.tile import InvertedProblem, InvertedTile, candidates
from litegpu.ops.common.window import Window
from litegpu.options import InferencePriority
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter
from tile_measurements import BATCH, TileMeasurements

Block = tuple[int, int, int, int, int, int]
"""Height and width, inputs, expanded channels, outputs, kernel and stride."""
_TILES = 12
"""Tiles of a layer that are worth a measurement."""
_BLOCKS: tuple[Block, ...] = (
    *((112, 16, 96, 24, 3, 2), (56, 24, 144, 24, 3, 1), (56, 24, 144, 32, 3, 2)),
    *((28, 32, 192, 32, 3, 1), (28, 32, 192, 64, 3, 2)),
    *((56, 24, 144, 40, 5, 2), (28, 40, 240, 40, 5, 1)),
)
LAYERS = {
    f"{size}{'/2' if stride == 2 else ''} {inputs}>{middle}>{outputs} {kernel}x{kernel}": block
    for block in _BLOCKS
    for size, inputs, middle, outputs, kernel, stride in [block]
}


def write(block: Block, batch: int = BATCH) -> bytes:
    """Return a model whose last three convolutions are the block, which reads halves."""
    size, inputs, middle, outputs, kernel, stride = block
    random, writer = np.random.default_rng(0), ModelWriter()

    def normal(terms: int, *shape: int) -> Any:
        return random.normal(0, 2 / math.sqrt(terms), shape)

    def conv(value: Any, size: int, channels: int, weights: Any, name: str, activation: str) -> Any:
        operands = [value, *constants(writer, weights, channels, name)]
        options = window(1) | {"fused_activation_function": activation}
        return writer.op("CONV_2D", operands, [(batch, size, size, channels)], options=options)

    value = writer.input((batch, size, size, 8), name="x")
    value = conv(value, size, inputs, normal(8, inputs, 1, 1, 8), "before", "NONE")
    value = conv(value, size, middle, normal(inputs, middle, 1, 1, inputs), "expand", "RELU6")
    taps = normal(kernel * kernel, 1, kernel, kernel, middle)
    operands = [value, *constants(writer, taps, middle, "depthwise")]
    size = -(-size // stride)
    options = window(stride) | {"depth_multiplier": 1}
    shape = (batch, size, size, middle)
    value = writer.op("DEPTHWISE_CONV_2D", operands, [shape], options=options)
    weights = normal(middle, outputs, 1, 1, middle)
    writer.output(conv(value, size, outputs, weights, "project", "NONE"))
    return writer.build()


def problem_of(block: Block) -> InvertedProblem:
    """Return the problem that the block poses."""
    size, inputs, middle, outputs, kernel, stride = block
    output = -(-size // stride)
    pads = max((output - 1) * stride + kernel - size, 0) // 2
    seen = Window((kernel, kernel), (stride, stride), pads=(pads, pads))
    return InvertedProblem(
        (BATCH, size, size, inputs), (BATCH, output, output, middle), outputs, seen
    )


def _interpreter(block: Block, precision: str) -> Any:
    # So that images of 28 x 28 are halves, too.
    smallest = InferencePriority.MIN_MEMORY_USAGE if precision == "fp16" else InferencePriority.AUTO
    delegate = GpuDelegate(
        backend="cuda", precision=precision, cache=False, inference_priority1=smallest
    )
    return interpreter(write(block), delegate)


def microseconds(block: Block, precision: str, tile: InvertedTile) -> float:
    """Return the device's time of one launch of a tile in a chain."""
    with (
        mock.patch.object(inverted, "candidates", lambda _: [tile]),
        mock.patch.object(inverted, "_MARGIN", 0.0),
    ):
        return chain_microseconds(_interpreter(block, precision), 1)


def pair_microseconds(block: Block, precision: str) -> float:
    """Return the device's time of the two kernels that do the same."""
    with mock.patch.object(inverted, "_MARGIN", math.inf):
        return chain_microseconds(_interpreter(block, precision), 2)


def _tiles(block: Block) -> list[InvertedTile]:
    fitting = [tile for tile in candidates(problem_of(block)) if tile.fits(PAPER)]
    return sorted(fitting, key=lambda tile: tile.clocks(PAPER))[:_TILES]


def _shape(tile: InvertedTile) -> dict[str, Any]:
    """Return what tells a tile from others of its problem."""
    return {"patch": list(tile.patch), "strip": tile.strip, "groups": tile.groups}


def _text(tile: Mapping[str, Any]) -> str:
    return "{patch[0]}x{patch[1]}/{strip}/{groups}".format(**tile)


MEASUREMENTS = TileMeasurements(LAYERS, _tiles, microseconds, _shape, _text)


def measure(out: Path, precision: str, part: str) -> None:
    """Time pairs of kernels, then all tiles, of layers with `part` in their name."""
    MEASUREMENTS.measure_beside(pair_microseconds, out, precision, part)


if __name__ == "__main__":
    run_commands(__doc__, measure, MEASUREMENTS.compare)
