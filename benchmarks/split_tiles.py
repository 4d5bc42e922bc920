"""Times the tiles of cuda/inverted_split for blocks of one picture, beside two kernels and a model.

    python benchmarks/split_tiles.py measure --out benchmarks/results/h100_split_tiles.json
    python benchmarks/split_tiles.py compare benchmarks/results/h100_split_tiles.json

`measure` needs a GPU with clusters (Hopper): microseconds of a launch, in a chain of 24 that
overlap as in a run; "pairs" are those of the two kernels that do the same. `compare` needs none:
what the model chooses for each layer, beside the best tile that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from conv_tiles import PAPER, chain_microseconds, run_commands
from inverted_tiles import Block, write
from litegpu import GpuDelegate
from litegpu.kernels.cuda import inverted_split
from litegpu.kernels.cuda.inverted_split.tile import SplitProblem, SplitTile, candidates
from litegpu.ops.common.window import Window
from litegpu.runtime_abi.interpreter import interpreter
from tile_measurements import TileMeasurements

_BEST, _OTHERS = 9, 6
"""Tiles of a layer that are worth a measurement: the best by the model, and some of the rest."""
_HALF_WEIGHTS = 1 << 16
"""Weights from which on they are kept as halves."""
_BLOCKS: tuple[Block, ...] = (
    *((112, 16, 96, 24, 3, 2), (56, 24, 144, 24, 3, 1), (56, 24, 144, 32, 3, 2)),
    *((28, 32, 192, 32, 3, 1), (28, 32, 192, 64, 3, 2), (14, 64, 384, 64, 3, 1)),
    *((14, 96, 576, 96, 3, 1), (14, 96, 576, 160, 3, 2), (7, 160, 960, 160, 3, 1)),
    *((7, 160, 960, 320, 3, 1), (28, 40, 240, 40, 5, 1), (14, 112, 672, 112, 5, 1)),
)
LAYERS = {
    f"{size}{'/2' if stride == 2 else ''} {inputs}>{middle}>{outputs} {kernel}x{kernel}": block
    for block in _BLOCKS
    for size, inputs, middle, outputs, kernel, stride in [block]
}


def problem_of(block: Block) -> SplitProblem:
    """Return the problem that the block poses."""
    size, inputs, middle, outputs, kernel, stride = block
    output = -(-size // stride)
    pads = max((output - 1) * stride + kernel - size, 0) // 2
    parts = [
        2 if inputs * middle < _HALF_WEIGHTS else 1,
        2 if middle * outputs < _HALF_WEIGHTS else 1,
    ]
    return SplitProblem(
        inputs=inputs,
        middle=(1, output, output, middle),
        outputs=outputs,
        window=Window((kernel, kernel), (stride, stride), pads=(pads, pads)),
        parts=2,
        weight_parts=(parts[0], parts[1]),
        ranged=True,
    )


def _interpreter(block: Block, precision: str) -> Any:
    return interpreter(
        write(block, 1), GpuDelegate(backend="cuda", precision=precision, cache=False)
    )


def microseconds(block: Block, precision: str, tile: SplitTile) -> float:
    """Return the device's time of one launch of a tile in a chain."""
    with (
        mock.patch.object(inverted_split, "best_tiles", lambda *_: [tile]),
        mock.patch.object(inverted_split, "_MARGIN", 0.0),
        mock.patch.object(inverted_split, "_TOO_MANY", 1 << 30),
    ):
        return chain_microseconds(_interpreter(block, precision), 1)


def pair_microseconds(block: Block, precision: str) -> float:
    """Return the device's time of the two kernels that do the same."""
    with mock.patch.object(inverted_split, "_MARGIN", math.inf):
        return chain_microseconds(_interpreter(block, precision), 2)


def _tiles(block: Block) -> list[SplitTile]:
    fitting = [tile for tile in candidates(problem_of(block), PAPER) if tile.fits(PAPER)]
    fitting.sort(key=lambda tile: tile.clocks(PAPER))
    others = fitting[_BEST:]
    return fitting[:_BEST] + others[:: max(len(others) // _OTHERS, 1)][:_OTHERS]


def _shape(tile: SplitTile) -> dict[str, Any]:
    """Return what tells a tile from others of its problem."""
    return {
        "patch": list(tile.patch),
        "depth": tile.depth,
        "groups": tile.groups,
        "warps": tile.warps,
    }


def _text(tile: Mapping[str, Any]) -> str:
    return "{patch[0]}x{patch[1]}/{depth}/{warps}".format(**tile)


MEASUREMENTS = TileMeasurements(LAYERS, _tiles, microseconds, _shape, _text)


def measure(out: Path, precision: str, part: str) -> None:
    """Time pairs of kernels, then all tiles, of layers with `part` in their name."""
    MEASUREMENTS.measure_beside(pair_microseconds, out, precision, part)


if __name__ == "__main__":
    run_commands(__doc__, measure, MEASUREMENTS.compare)
