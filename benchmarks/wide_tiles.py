"""Times the tiles that cuda/conv_tile could use for layers of large batches, beside its cost model.

    python benchmarks/wide_tiles.py measure --out benchmarks/results/h200_wide_tiles.json
    python benchmarks/wide_tiles.py compare benchmarks/results/h200_wide_tiles.json

`measure` needs a GPU with groups of warps (Hopper): microseconds of a launch, in a chain of
24 that overlap as in a run, for 64 pictures whose values are halves. `compare` needs none: what the
model chooses for each layer, beside the best tile that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from conv_tiles import chain_microseconds, constants, run_commands, window
from litegpu import GpuDelegate
from litegpu.kernels.cuda import conv_tile
from litegpu.kernels.cuda.conv_tile.tile import WideProblem, WideTile
from litegpu.kernels.cuda.conv_tile.tile import candidates as tile_candidates
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter
from tile_measurements import BATCH, Sizes, TileMeasurements, by_name

LAYERS = by_name(
    (
        *((56, 64, 64, 3, 1), (56, 64, 64, 3, 2), (28, 128, 128, 3, 1), (28, 128, 128, 3, 2)),
        *((14, 256, 256, 3, 1), (14, 256, 256, 3, 2), (7, 512, 512, 3, 1), (16, 64, 64, 3, 1)),
        *((33, 96, 96, 3, 1), (32, 64, 64, 5, 1), (56, 128, 128, 2, 1)),
        *((56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (28, 128, 512, 1, 1), (28, 512, 128, 1, 1)),
        *((28, 384, 512, 1, 1), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1)),
        *((14, 768, 1024, 1, 1), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1)),
        *((7, 1536, 2048, 1, 1), (14, 512, 512, 1, 1), (14, 256, 512, 1, 1)),
        *((7, 1024, 1024, 1, 1), (7, 512, 1024, 1, 1), (14, 96, 576, 1, 1), (14, 64, 384, 1, 1)),
        *((7, 160, 960, 1, 1), (28, 32, 192, 1, 1), (14, 192, 768, 1, 1), (14, 768, 192, 1, 1)),
    )
)


def write(layer: Sizes) -> bytes:
    """Return a model whose second convolution is the layer, which reads halves from memory."""
    size, inputs, outputs, kernel, stride = layer
    random, writer = np.random.default_rng(0), ModelWriter()
    value = writer.input((BATCH, size, size, inputs), name="x")
    before = random.normal(0, 1 / math.sqrt(inputs), (inputs, 1, 1, inputs))
    operands = [value, *constants(writer, before, inputs, "before")]
    shape = (BATCH, size, size, inputs)
    value = writer.op("CONV_2D", operands, [shape], options=window(1))
    weights = random.normal(0, 1 / (kernel * math.sqrt(inputs)), (outputs, kernel, kernel, inputs))
    operands = [value, *constants(writer, weights, outputs, "layer")]
    output = -(-size // stride)
    shape = (BATCH, output, output, outputs)
    writer.output(writer.op("CONV_2D", operands, [shape], options=window(stride)))
    return writer.build()


def problem_of(layer: Sizes) -> WideProblem:
    """Return the problem that the layer poses."""
    size, inputs, outputs, kernel, stride = layer
    output = -(-size // stride)
    image, result = (BATCH, size, size, inputs), (BATCH, output, output, outputs)
    return WideProblem(image, "float16", result, (outputs, kernel, kernel, inputs), False)


def microseconds(layer: Sizes, precision: str, tile: WideTile) -> float:
    """Return the device's time of one launch of a tile in a chain."""

    def only(problem: WideProblem, groups: bool) -> Iterator[WideTile]:
        if problem != tile.problem:
            yield from tile_candidates(problem, groups)
        elif groups == tile.warp_groups:
            yield tile

    delegate = GpuDelegate(backend="cuda", precision=precision, cache=False)
    with mock.patch.object(conv_tile, "candidates", only):
        target = interpreter(write(layer), delegate)
    return chain_microseconds(target, 1)


def _shape(tile: WideTile) -> dict[str, Any]:
    """Return what tells a tile of warp groups from others of its problem."""
    return {"pixels": tile.pixels, "columns": tile.columns, "alone": tile.alone}


def _text(tile: Mapping[str, Any]) -> str:
    return f"{tile['pixels']}x{tile['columns']}{' alone' * tile['alone']}"


MEASUREMENTS = TileMeasurements(
    LAYERS, lambda layer: [*tile_candidates(problem_of(layer), True)], microseconds, _shape, _text
)
compare = MEASUREMENTS.compare


if __name__ == "__main__":
    run_commands(__doc__, MEASUREMENTS.measure, compare)
