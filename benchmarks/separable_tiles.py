"""Times the tiles that cuda/separable could use for layers of large batches, beside its cost model.

Blocks that stay (cuda/separable_stream) are timed by separable_stream.py.

    python benchmarks/separable_tiles.py measure --out benchmarks/results/h200_separable_tiles.json
    python benchmarks/separable_tiles.py compare benchmarks/results/h200_separable_tiles.json

`measure` needs a GPU with groups of warps (Hopper): microseconds of a launch, in a chain of
24 that overlap as in a run, for 64 pictures whose values are halves. `compare` needs none: what the
model chooses for each layer, beside the best tile that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np

from conv_tiles import PAPER, chain_microseconds, constants, run_commands, window
from litegpu import GpuDelegate
from litegpu.kernels.cuda import separable
from litegpu.kernels.cuda.separable.stream import StreamTile
from litegpu.kernels.cuda.separable.tile import SeparableProblem, SeparableTile, candidates
from litegpu.ops.common.window import Window
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter
from tile_measurements import BATCH, Sizes, TileMeasurements, by_name

LAYERS = by_name(
    (
        *((112, 32, 64, 3, 1), (112, 64, 128, 3, 2), (56, 128, 128, 3, 1), (56, 128, 256, 3, 2)),
        *((28, 256, 256, 3, 1), (112, 32, 16, 3, 1), (112, 96, 24, 3, 2), (56, 144, 24, 3, 1)),
        *((56, 144, 32, 3, 2), (28, 192, 32, 3, 1), (56, 72, 40, 5, 2), (28, 120, 40, 5, 1)),
    )
)


def write(layer: Sizes) -> bytes:
    """Return a model whose last two convolutions are the layer, which reads halves from memory."""
    size, inputs, outputs, kernel, stride = layer
    random, writer = np.random.default_rng(0), ModelWriter()
    value = writer.input((BATCH, size, size, 8), name="x")
    before = random.normal(0, 1 / math.sqrt(8), (inputs, 1, 1, 8))
    shape = (BATCH, size, size, inputs)
    operands = [value, *constants(writer, before, inputs, "before")]
    value = writer.op("CONV_2D", operands, [shape], options=window(1))
    taps = random.normal(0, 1 / kernel, (1, kernel, kernel, inputs))
    size = -(-size // stride)
    operands = [value, *constants(writer, taps, inputs, "depthwise")]
    options = window(stride) | {"depth_multiplier": 1}
    value = writer.op("DEPTHWISE_CONV_2D", operands, [(BATCH, size, size, inputs)], options=options)
    weights = random.normal(0, 1 / math.sqrt(inputs), (outputs, 1, 1, inputs))
    operands = [value, *constants(writer, weights, outputs, "layer")]
    shape = (BATCH, size, size, outputs)
    writer.output(writer.op("CONV_2D", operands, [shape], options=window(1)))
    return writer.build()


def problem_of(layer: Sizes) -> SeparableProblem:
    """Return the problem that the layer poses."""
    size, inputs, outputs, kernel, stride = layer
    output = -(-size // stride)
    pads = max((output - 1) * stride + kernel - size, 0) // 2
    seen = Window((kernel, kernel), (stride, stride), pads=(pads, pads))
    image, middle = (BATCH, size, size, inputs), (BATCH, output, output, inputs)
    return SeparableProblem(image, "float16", middle, outputs, seen)


def interpreter_of(layer: Sizes, precision: str, tile: SeparableTile | StreamTile) -> Any:
    """Return an interpreter of the layer on the GPU, its separable convolution by that tile."""
    delegate = GpuDelegate(backend="cuda", precision=precision, cache=False)
    with (
        mock.patch.object(separable, "candidates", lambda *_: [tile]),
        mock.patch.object(separable, "streams", lambda *_: []),
    ):
        return interpreter(write(layer), delegate)


def microseconds(layer: Sizes, precision: str, tile: SeparableTile) -> float:
    """Return the device's time of one launch of a tile in a chain."""
    return chain_microseconds(interpreter_of(layer, precision, tile), 1)


def _tiles(layer: Sizes) -> list[SeparableTile]:
    tiles = dict.fromkeys(candidates(problem_of(layer), PAPER.model))
    return [tile for tile in tiles if tile.fits(PAPER)]


def _shape(tile: SeparableTile) -> dict[str, Any]:
    """Return what tells a tile from others of its problem."""
    names = ("columns", "warps", "depth", "prefetch")
    return {"patch": list(tile.patch)} | {name: getattr(tile, name) for name in names}


def _text(tile: Mapping[str, Any]) -> str:
    return "{patch[0]}x{patch[1]}x{columns}/{warps}".format(**tile)


MEASUREMENTS = TileMeasurements(LAYERS, _tiles, microseconds, _shape, _text)


if __name__ == "__main__":
    run_commands(__doc__, MEASUREMENTS.measure, MEASUREMENTS.compare)
