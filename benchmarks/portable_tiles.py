"""Times the tiles of conv_2d_tiles for typical layers on the portable backends.

    python benchmarks/portable_tiles.py --backend opencl --seconds 100 --out opencl_tiles.json

Each figure is that of a layer in a chain of equal ones: microseconds of a whole call, divided by
the number of layers. `direct` is the kernel without shared memory. `error` is the largest
difference from `direct`, in parts of its largest value.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import no_cache  # noqa: F401
from conv_tiles import constants, window
from litegpu import GpuDelegate
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.portable import conv
from litegpu.kernels.portable.conv.tiles import Tile
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter


@dataclass(frozen=True)
class Layer:
    """A convolution that preserves its image."""

    rows: tuple[int, int, int]
    """Batch, height and width."""
    channels: int
    kernel: int = 1

    def write(self, length: int) -> bytes:
        """Return a model of `length` such layers."""
        random, writer = np.random.default_rng(0), ModelWriter()
        shape = (*self.rows, self.channels)
        value = writer.input(shape, name="x")
        spread = (self.channels * self.kernel**2) ** -0.5
        size = (self.channels, self.kernel, self.kernel, self.channels)
        for _ in range(length):
            weights = random.normal(0, spread, size)
            operands = [value, *constants(writer, weights, self.channels, "conv")]
            value = writer.op("CONV_2D", operands, [shape], options=window(1))
        writer.output(value)
        return writer.build()


LAYERS = [
    Layer((1, 56, 56), 64, 3),
    Layer((1, 28, 28), 128, 3),
    Layer((1, 14, 14), 256, 3),
    Layer((1, 7, 7), 512, 3),
    Layer((1, 14, 14), 512),
    Layer((1, 1, 197), 192),
    Layer((1, 1, 1500), 384),
    Layer((1, 128, 128), 32, 3),
    Layer((1, 7, 7), 1024),
    Layer((1, 56, 56), 128),
    Layer((1, 1, 128), 768),
    Layer((64, 28, 28), 128, 3),
    Layer((64, 14, 14), 512),
]


def measure(layer: Layer, backend: str, tile: Tile | None, length: int) -> tuple[float, Any]:
    """Return microseconds of a layer, and what the model computes."""
    plan = conv.ConvTiles.plan

    def only(self: Any, spec: Any, target: Any) -> Any:
        with (
            mock.patch.object(conv, "tiles", lambda *_: [tile]),
            mock.patch.object(conv, "direct_clocks", lambda *_: math.inf),
        ):
            return plan(self, spec, target)

    def never(*_: Any) -> Rejected:
        return Rejected("it is not measured")

    with (
        mock.patch.object(conv.ConvTiles, "plan", never if tile is None else only),
        mock.patch.object(DeviceTarget, "failure", lambda *_, **__: ""),
    ):
        delegate = GpuDelegate(backend=backend, precision="fp16", cache=False)
        target = interpreter(layer.write(length), delegate)
    detail = target.get_input_details()[0]
    values = np.random.default_rng(1).normal(size=detail["shape"]).astype(np.float32)
    target.set_tensor(detail["index"], values)
    target.invoke()
    times = []
    for _ in range(15):
        start = time.perf_counter()
        target.invoke()
        times.append(time.perf_counter() - start)
    found = target.get_tensor(target.get_output_details()[0]["index"])
    return sorted(times)[4] * 1e6, found


def main() -> None:
    """Measure all tiles of all layers until time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--only", type=int, nargs="*")
    chosen = parser.parse_args()
    end, found = time.monotonic() + chosen.seconds, []
    for number, layer in enumerate(LAYERS):
        if chosen.only is not None and number not in chosen.only:
            continue
        row = _row(layer, chosen.backend, chosen.length, end)
        found.append(row)
        best = sorted(row["tiles"], key=lambda each: float(each["us"]))[:4]
        print(layer, f"direct {row['direct']:.1f} us", flush=True)
        for each in best:
            print("   ", each, flush=True)
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(found, indent=1))


def _row(layer: Layer, backend: str, length: int, end: float) -> dict[str, Any]:
    base, expected = measure(layer, backend, None, 1)[0], None
    direct, expected = measure(layer, backend, None, 1 + length)
    row: dict[str, Any] = {"layer": astuple(layer), "direct": (direct - base) / length}
    row["tiles"] = []
    for tile in _tiles(layer, backend):
        if time.monotonic() > end:
            break
        try:
            us, got = measure(layer, backend, tile, 1 + length)
        except Exception as error:
            print(tile, type(error).__name__, error, flush=True)
            continue
        error = float(np.abs(got - expected).max() / np.abs(expected).max())
        row["tiles"].append({"tile": astuple(tile), "us": (us - base) / length, "error": error})
    return row


def _tiles(layer: Layer, backend: str) -> list[Tile]:
    """Return all tiles that the backend's device can compute for a layer, likely ones first."""
    found: list[Tile] = []
    plan = conv.ConvTiles.plan

    def spy(self: Any, spec: Any, target: DeviceTarget) -> Any:
        shape, groups = conv.weights.spread_shape(spec.weights)
        problem = conv.TileProblem.of_conv("conv_2d_tiles", spec.dst, spec.src, shape, groups)
        every = conv.tiles(problem, target)
        units = target.compute_units
        found.extend(sorted(every, key=lambda tile: tile.clocks(problem, units)))
        return plan(self, spec, target)

    with mock.patch.object(conv.ConvTiles, "plan", spy):
        interpreter(layer.write(1), GpuDelegate(backend=backend, precision="fp16", cache=False))
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
