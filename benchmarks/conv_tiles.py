"""Times tiles that cuda/conv_mma could use for typical layers, beside what the cost model expects.

    python benchmarks/conv_tiles.py measure --out benchmarks/results/h100_conv_tiles.json
    python benchmarks/conv_tiles.py compare benchmarks/results/h100_conv_tiles.json

`measure` needs a GPU: microseconds of a launch, in a chain of 24 that overlap as in a run.
`compare` needs none: what the model chooses for each layer, beside the best tile that was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import no_cache  # noqa: F401
from litegpu import GpuDelegate
from litegpu.device_model import model_of
from litegpu.kernels.cuda import conv_mma
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem, MmaTile
from litegpu.kernels.cuda.conv_mma.tile import candidates as tile_candidates
from litegpu.kernels.cuda.tiles import choose
from litegpu.runtime_abi import kernel_slots
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter

_CHAIN = 24
_UNITS = 132
"""Multiprocessors of an H200."""


@dataclass(frozen=True)
class Layer:
    """A convolution, perhaps of a depthwise one with `depthwise` x `depthwise` taps."""

    size: int
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    depthwise: int = 0
    depthwise_stride: int = 1
    batch: int = 1

    def write(self) -> bytes:
        """Return the model of this layer alone, with seeded weights."""
        random, writer, size = np.random.default_rng(0), ModelWriter(), self.size
        value = writer.input((self.batch, size, size, self.inputs), name="x")
        if self.depthwise:
            size = -(-size // self.depthwise_stride)
            taps = random.normal(0, 0.3, (1, self.depthwise, self.depthwise, self.inputs))
            options = window(self.depthwise_stride) | {"depth_multiplier": 1}
            operands = [value, *constants(writer, taps, self.inputs, "depthwise")]
            shape = (self.batch, size, size, self.inputs)
            value = writer.op("DEPTHWISE_CONV_2D", operands, [shape], options=options)
        size = -(-size // self.stride)
        spread = 1 / math.sqrt(self.inputs * self.kernel**2)
        weights = random.normal(0, spread, (self.outputs, self.kernel, self.kernel, self.inputs))
        operands = [value, *constants(writer, weights, self.outputs, "conv")]
        shape = (self.batch, size, size, self.outputs)
        writer.output(writer.op("CONV_2D", operands, [shape], options=window(self.stride)))
        return writer.build()


def window(stride: int) -> dict[str, Any]:
    """Return the options of a convolution."""
    strides = {"stride_h": stride, "stride_w": stride}
    return {"padding": "SAME", "fused_activation_function": "RELU6", **strides}


def constants(writer: ModelWriter, weights: Any, outputs: int, name: str) -> Iterator[Any]:
    """Yield weights, and a bias of zeros."""
    yield writer.constant(weights.astype(np.float32), name=f"{name}_weights")
    yield writer.constant(np.zeros(outputs, np.float32), name=f"{name}_bias")


LAYERS = {
    "mobilenet_v1 112 32>64": Layer(112, 32, 64, depthwise=3),
    "mobilenet_v1 112/2 64>128": Layer(112, 64, 128, depthwise=3, depthwise_stride=2),
    "mobilenet_v1 56 128>128": Layer(56, 128, 128, depthwise=3),
    "mobilenet_v1 56/2 128>256": Layer(56, 128, 256, depthwise=3, depthwise_stride=2),
    "mobilenet_v1 28 256>256": Layer(28, 256, 256, depthwise=3),
    "mobilenet_v1 28/2 256>512": Layer(28, 256, 512, depthwise=3, depthwise_stride=2),
    "mobilenet_v1 14 512>512": Layer(14, 512, 512, depthwise=3),
    "mobilenet_v1 14/2 512>1024": Layer(14, 512, 1024, depthwise=3, depthwise_stride=2),
    "mobilenet_v1 7 1024>1024": Layer(7, 1024, 1024, depthwise=3),
    "first 224/2 3>32": Layer(224, 3, 32, kernel=3, stride=2),
    "classifier 1024>1001": Layer(1, 1024, 1001),
    "resnet50 56 64>64 3x3": Layer(56, 64, 64, kernel=3),
    "resnet50 28 128>128 3x3": Layer(28, 128, 128, kernel=3),
    "resnet50 14 256>256 3x3": Layer(14, 256, 256, kernel=3),
    "resnet50 7 512>512 3x3": Layer(7, 512, 512, kernel=3),
    "resnet50 56 64>256": Layer(56, 64, 256),
    "resnet50 14 1024>256": Layer(14, 1024, 256),
    "resnet50 7 2048>512": Layer(7, 2048, 512),
    "resnet50 7 512>2048": Layer(7, 512, 2048),
    "mobilenet_v2 56 144>24": Layer(56, 144, 24, depthwise=3),
    "mobilenet_v2 14 384>64": Layer(14, 384, 64, depthwise=3),
    "mobilenet_v2 14 96>576": Layer(14, 96, 576),
    "mobilenet_v2 7 960>160": Layer(7, 960, 160, depthwise=3),
    "mobilenet_v2 7 320>1280": Layer(7, 320, 1280),
    "deeplab 33 960>160": Layer(33, 960, 160, depthwise=3),
    "pose 8 576>96": Layer(8, 576, 96, depthwise=5),
    "mobilenet_v2 16 x 14 576>96": Layer(14, 576, 96, batch=16),
    "mobilenet_v2 16 x 14 384>64": Layer(14, 384, 64, batch=16),
    "mobilenet_v2 16 x 14 96>576": Layer(14, 96, 576, batch=16),
    "mobilenet_v2 16 x 7 960>160": Layer(7, 960, 160, batch=16),
    "mobilenet_v2 8 x 28 192>32": Layer(28, 192, 32, batch=8),
    "resnet50 2 x 28 512>128": Layer(28, 512, 128, batch=2),
    "resnet50 28 512>128": Layer(28, 512, 128),
    "resnet50 28 128>512": Layer(28, 128, 512),
    "resnet50 14 256>1024": Layer(14, 256, 1024),
    "resnet50 56 256>64": Layer(56, 256, 64),
    "resnet50 28/2 256>256 3x3": Layer(28, 256, 256, kernel=3, stride=2),
    "vit_tiny 14 192>192": Layer(14, 192, 192),
    "vit_tiny 14 192>768": Layer(14, 192, 768),
    "vit_tiny 14 768>192": Layer(14, 768, 192),
    "mobilevit 16 64>64": Layer(16, 64, 64),
    "mobilevit 16 64>192": Layer(16, 64, 192),
    "mobilevit 16 128>64": Layer(16, 128, 64),
    "mobilevit 16 48>64 3x3": Layer(16, 48, 64, kernel=3),
    "mobilevit 8 80>80": Layer(8, 80, 80),
    "mobilevit 8 80>240": Layer(8, 80, 240),
    "mobilevit 8 160>80": Layer(8, 160, 80),
    "mobilevit 8 96>96": Layer(8, 96, 96),
    "hair 256/2 4>8": Layer(512, 4, 8, kernel=3, stride=2),
    "hair 128 16>16": Layer(128, 16, 16),
}


class Paper:
    """What the cost model asks about an H200."""

    compute_units = _UNITS
    model = model_of((9, 0))
    local_memory_bytes = model.shared_bytes_per_block
    max_work_group_size = 1024


PAPER: Any = Paper()


def candidates(problem: MmaProblem) -> list[MmaTile]:
    """Return tiles worth a measurement: the best of all by the model, and of each kind."""
    fitting = {tile for tile in tile_candidates(problem, PAPER) if tile.fits(PAPER)}
    tiles = sorted(fitting, key=lambda t: t.clocks(PAPER))
    kinds: list[Callable[[MmaTile], bool]] = [lambda t: t.cluster == 1]
    kinds += [lambda t: t.cluster > 1 and not t.split_k]
    kinds += [lambda t, depth=depth: t.split_k and t.cluster == depth for depth in (2, 4, 8)]  # type: ignore[misc]
    picked = tiles[:14]
    for kind in kinds:
        picked += [tile for tile in tiles if kind(tile)][:4]
    return list(dict.fromkeys(picked))


def build(layer: Layer, precision: str, result: Callable[[MmaProblem, Any], Any]) -> Any:
    """Return an interpreter of the layer on the GPU, its tile among those that `result` gives.

    They count as no time, so that no other kernel is chosen in their place.
    """

    def best_tiles(problem: MmaProblem, target: Any) -> Any:
        return choose(result(problem, target), target)

    instantly = mock.patch.object(MmaTile, "clocks", lambda _tile, _target: 0.0)
    with mock.patch.object(conv_mma, "best_tiles", best_tiles), instantly:
        return interpreter(layer.write(), GpuDelegate(backend="cuda", precision=precision))


def problem_of(layer: Layer, precision: str) -> MmaProblem:
    """Return the problem that the layer poses."""
    seen: list[MmaProblem] = []

    def keep(problem: MmaProblem, target: Any) -> Any:
        seen.append(problem)
        return tile_candidates(problem, target)

    build(layer, precision, keep)
    return seen[0]


def microseconds(layer: Layer, precision: str, tile: MmaTile) -> float:
    """Return the device's time of one launch in a chain."""
    return chain_microseconds(build(layer, precision, lambda _problem, _target: [tile]))


def chain_microseconds(target: Any, last: int | None = None) -> float:
    """Return the device's time of one round of an interpreter's `last` kernels, or of all.

    Many rounds overlap as in a run.
    """
    detail = target.get_input_details()[0]
    noise = np.random.default_rng(1).normal(size=detail["shape"]).astype(np.float32)
    target.set_tensor(detail["index"], noise)
    target.invoke()
    kernel: Any = kernel_slots.kernels()[-1]
    context = kernel.compiled.context
    profiler, kernels = context.profiler(), context.host_graph().kernels
    chain = kernels[-last if last else 0 :] * _CHAIN
    times = [context.synchronized(partial(profiler.of_nodes, chain)) for _ in range(5)]
    return statistics.median(times) / _CHAIN * 1e6


def measure(out: Path, precision: str, part: str) -> None:
    """Time all candidates of all layers with `part` in their name and write them down."""
    found: dict[str, Any] = {}
    for name, layer in LAYERS.items():
        if part not in name:
            continue
        problem = problem_of(layer, precision)
        rows = [
            {"us": microseconds(layer, precision, tile), "tile": _shape(tile)}
            for tile in candidates(problem)
        ]
        rows.sort(key=lambda row: row["us"])
        found[name] = {"problem": asdict(problem), "rows": rows}
        print(f"{name:28} best {rows[0]['us']:6.2f} us of {len(rows)}", flush=True)
    out.write_text(json.dumps({"precision": precision, "layers": found}, indent=1) + "\n")


def _shape(tile: MmaTile) -> dict[str, Any]:
    """Return what tells a tile from others of its problem."""
    return {name: value for name, value in asdict(tile).items() if name != "problem"}


def compare(path: Path) -> float:
    """Print what the model chooses; return how much longer it takes than the best, in the mean."""
    losses = []
    for name, layer in json.loads(path.read_text())["layers"].items():
        problem = MmaProblem(**layer["problem"])
        tiles = (tile for tile in tile_candidates(problem, PAPER) if tile.fits(PAPER))
        chosen = min(tiles, key=lambda t: t.clocks(PAPER))
        rows = layer["rows"]
        best = rows[0]["us"]
        times = [row["us"] for row in rows if row["tile"] == _shape(chosen)]
        measured_text = f"{times[0]:6.2f}" if times else "  not measured"
        print(f"{name:28} best {best:6.2f} us, chosen {measured_text}  {_shape(chosen)}")
        losses += [math.log(time / best) for time in times]
    mean = math.expm1(statistics.mean(losses))
    print(f"in the mean {mean:.1%} longer than the best of a layer")
    return mean


def run_commands(
    text: str | None, measure: Callable[[Path, str, str], None], compare: Callable[[Path], object]
) -> None:
    """Do what the command line says: measure layers, or compare results with the cost model."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--precision", default="fp16")
    measuring.add_argument("--layers", default="", help="only those with this in their name")
    commands.add_parser("compare").add_argument("results", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.out, arguments.precision, arguments.layers)
    else:
        compare(arguments.results)


if __name__ == "__main__":
    run_commands(__doc__, measure, compare)
