"""Times blocks of separable convolutions that stay beside those that do not, and compares results.

    python benchmarks/separable_stream.py --out benchmarks/results/h200_separable_stream.json

It needs a GPU with groups of warps (Hopper): microseconds of a launch, in a chain of 24 that
overlap as in a run, for 64 pictures whose values are halves. Of each layer the two tiles of
cuda/separable that its cost model likes best come first, then those of cuda/separable_stream;
`same` tells whether the results are, bit by bit, those of the first. What was measured is written
down after each tile, and nothing new begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import machine
from conv_tiles import PAPER, chain_microseconds
from litegpu.kernels.cuda.separable.stream import StreamTile, streams
from litegpu.kernels.cuda.separable.tile import SeparableTile, candidates
from separable_tiles import LAYERS, interpreter_of, problem_of
from tile_measurements import Sizes, by_name

_OF_MOBILEVIT = ((128, 32, 16, 3, 1), (128, 32, 24, 3, 2), (64, 48, 24, 3, 1), (64, 48, 48, 3, 2))
_FIRST = 5
"""Layers, those of MobileNet v1, of which more tiles are timed."""


def contenders(layer: Sizes, thorough: bool) -> list[SeparableTile | StreamTile]:
    """Return the tiles of a layer that are timed: of those that stay, one of each kind."""
    problem = problem_of(layer)
    others = [tile for tile in candidates(problem, PAPER.model) if tile.fits(PAPER)]
    others.sort(key=lambda tile: tile.clocks(PAPER))
    found = streams(problem, PAPER.model, PAPER.compute_units)
    staying = sorted((t for t in found if t.fits(PAPER)), key=lambda tile: tile.clocks(PAPER))
    return [*others[: 2 if thorough else 1], *_kinds(staying, thorough)]


def _kinds(tiles: list[StreamTile], thorough: bool) -> Iterator[StreamTile]:
    """Yield the best tile for each kind of warps, and what differs from the best of all."""
    best = tiles[0]
    yield best
    kinds = dict.fromkeys(_warps(tile) for tile in tiles)
    yield from (next(t for t in tiles if _warps(t) == kind) for kind in [*kinds][1:])
    if thorough:
        for name in ("columns", "rows"):
            differing = (t for t in tiles if getattr(t, name) != getattr(best, name))
            yield from itertools.islice(differing, 1)


def _warps(tile: StreamTile) -> tuple[int, int]:
    return tile.producers, tile.multipliers


def shape_of(tile: SeparableTile | StreamTile) -> dict[str, Any]:
    """Return what tells a tile from others of its problem."""
    names = (field.name for field in fields(tile) if field.name not in ("problem", "units"))
    return {name: getattr(tile, name) for name in names}


def measure(out: Path, seconds: float) -> None:
    """Time tiles of all layers, one after the other, and write each down."""
    end = time.monotonic() + seconds
    result: dict[str, Any] = {
        "machine": machine.facts(),
        "commit": machine.commit(),
        "layers": {},
    }
    for number, (name, layer) in enumerate({**LAYERS, **by_name(_OF_MOBILEVIT)}.items()):
        first: Any = None
        rows = result["layers"].setdefault(name, [])
        for tile in contenders(layer, number < _FIRST):
            if time.monotonic() > end:
                return
            target = interpreter_of(layer, "fp16", tile)
            us = chain_microseconds(target, 1)
            results = target.get_tensor(target.get_output_details()[0]["index"])
            first = results if first is None else first
            same = bool(np.array_equal(first, results))
            del target  # or the next one shares its executable
            expected = tile.clocks(PAPER)
            rows.append({"us": us, "same": same, "clocks": expected, "tile": shape_of(tile)})
            text = f"{name:20} {us:7.2f} us {'' if same else 'DIFFERS '}"
            print(f"{text}{math.ceil(expected)} clocks {shape_of(tile)}", flush=True)
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long rows may begin")
    arguments = parser.parse_args()
    measure(arguments.out, arguments.seconds)


if __name__ == "__main__":
    main()
