"""Times the tiles of attention on tensor cores for several sizes, beside their cost model.

    python benchmarks/attention.py --out benchmarks/results/h200_attention.json
    python benchmarks/attention.py --kernel attention_flash --out out/flash.json

It needs a GPU with tensor cores: microseconds of a launch, in a chain of 24 that overlap as in a
run, at fp16: values of large batches are halves. First come the tiles that the cost model likes
best, one for each layer, then the next ones and the best of each kind, then the kernel of all
devices. `error` is how far the results are from those of the first tile. What was measured is
written down after each tile, and nothing new begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

import machine
from conv_tiles import PAPER, chain_microseconds
from litegpu import GpuDelegate
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda import attention_flash, attention_mma
from litegpu.kernels.cuda.attention_mma.tile import AttentionTile, candidates
from litegpu.numeric_policy import NumericPolicy
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter, TensorRef

_BEST = 3
"""Tiles that are timed because the model likes them best."""
_MOST = 8


@dataclass(frozen=True)
class Layer:
    """Attention of `batch` sequences of keys; queries are the first tokens of these."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int

    def write(self) -> bytes:
        """Return a model whose last kernel is the layer, which reads values from memory."""
        writer, channels = ModelWriter(), self.heads * self.depth
        shape = (self.batch, self.keys, channels)
        source = writer.input(shape, name="x")
        first = source
        if self.queries < self.keys:
            size = (self.batch, self.queries, channels)
            ranges = (np.asarray(each, np.int32) for each in ((0, 0, 0), size))
            first = writer.op("SLICE", [source, *map(writer.constant, ranges)], [size])
        sources = (("COS", first), ("TANH", source), ("SIN", source))
        query, key, value = (self._heads(writer, op, each) for op, each in sources)
        scores = (self.batch, self.heads, self.queries, self.keys)
        options = {"adj_x": False, "adj_y": True}
        found = writer.op("BATCH_MATMUL", [query, key], [scores], options=options)
        scale = writer.constant(np.asarray(1 / math.sqrt(self.depth), np.float32))
        plain = {"fused_activation_function": "NONE"}
        found = writer.op("MUL", [found, scale], [scores], options=plain)
        found = writer.op("SOFTMAX", [found], [scores], options={"beta": 1.0})
        heads = (self.batch, self.heads, self.queries, self.depth)
        options = {"adj_x": False, "adj_y": False}
        found = writer.op("BATCH_MATMUL", [found, value], [heads], options=options)
        writer.output(self._turned(writer, found, (self.batch, self.queries, *heads[1::2])))
        return writer.build()

    def _heads(self, writer: ModelWriter, op: str, source: TensorRef) -> TensorRef:
        tokens = self.queries if op == "COS" else self.keys
        found = writer.op(op, [source], [(self.batch, tokens, self.heads * self.depth)])
        shape = (self.batch, tokens, self.heads, self.depth)
        sizes = writer.constant(np.asarray(shape, np.int32))
        found = writer.op("RESHAPE", [found, sizes], [shape], options={"new_shape": shape})
        return self._turned(writer, found, (self.batch, self.heads, tokens, self.depth))

    def _turned(self, writer: ModelWriter, source: TensorRef, shape: Sequence[int]) -> TensorRef:
        order = writer.constant(np.asarray((0, 2, 1, 3), np.int32))
        return writer.op("TRANSPOSE", [source, order], [tuple(shape)])


LAYERS = {
    "vit_tiny": Layer(1, 3, 197, 197, 64),
    "mobilevit 256": Layer(4, 4, 256, 256, 16),
    "mobilevit 64": Layer(4, 4, 64, 64, 20),
    "mobilevit 16": Layer(4, 4, 16, 16, 24),
    "whisper": Layer(1, 6, 1500, 1500, 64),
    "vit_tiny 64": Layer(64, 3, 197, 197, 64),
    "mobilevit 64 x 256": Layer(256, 4, 256, 256, 16),
    "one token": Layer(1, 8, 1, 512, 64),
    "eight tokens": Layer(1, 8, 8, 512, 128),
    "vit_b": Layer(1, 12, 197, 197, 64),
    "vit_tiny 8": Layer(8, 3, 197, 197, 64),
    "bert 384": Layer(1, 12, 384, 384, 64),
    "swin": Layer(64, 3, 49, 49, 32),
    "deep 2048": Layer(1, 16, 2048, 2048, 128),
    "long 1024": Layer(4, 16, 1024, 1024, 64),
}


KERNELS = ("attention_mma", "attention_flash")
_OTHERS = {"attention_mma": (attention_flash.AttentionFlash,)}
_ALL = (attention_mma.AttentionMma, attention_flash.AttentionFlash)


def contenders(kernel: str, problem: Any, target: Any = PAPER) -> list[Any]:
    """Return the tiles that are timed: the best ones, then the best of each kind."""
    flash = kernel == "attention_flash"
    found = attention_flash.candidates(problem) if flash else candidates(problem, target)
    tiles = sorted(set(found), key=lambda tile: tile.clocks(target))
    if flash:
        return tiles
    kinds: dict[tuple[int, int, bool, bool], AttentionTile] = {}
    for tile in tiles:
        assert isinstance(tile, AttentionTile)
        kind = (tile.queries, tile.turn, tile.once, tile.key_warps > 1)
        kinds.setdefault(kind, tile)
    return list(dict.fromkeys([*tiles[:_BEST], *kinds.values()]))[:_MOST]


Pick = Callable[..., list[Any]]


def interpreter_of(layer: Layer, kernel: str, pick: Pick | None) -> Any:
    """Return an interpreter of the layer on the GPU, by a tile, or by the kernel of all devices."""
    delegate = GpuDelegate(backend="cuda", precision="fp16", cache=False)
    other = Rejected("the other kernel is timed")
    with ExitStack() as stack:
        replaced = stack.enter_context
        for each in _ALL if pick is None else _OTHERS.get(kernel, ()):
            replaced(mock.patch.object(each, "plan", lambda *_: other))
        if pick is not None:
            module = {"attention_mma": attention_mma, "attention_flash": attention_flash}[kernel]
            replaced(mock.patch.object(module, "candidates", pick))
            # Small problems are declined; here they are timed, too.
            if kernel == "attention_mma":
                replaced(mock.patch.object(attention_mma, "_FEWEST", 1))
            else:
                replaced(mock.patch.object(attention_flash, "is_busy", lambda *_: True))
                replaced(mock.patch.object(NumericPolicy, "may_round", lambda p, _: p.uses_fp16))
        return interpreter(layer.write(), delegate)


class Measurement:
    """Times of layers, which are written down one by one."""

    def __init__(self, out: Path, kernel: str, layers: dict[str, Layer] = LAYERS) -> None:
        self.out, self.kernel, self.layers = out, kernel, layers
        self.result: dict[str, Any] = {"machine": machine.facts(), "commit": machine.commit()}
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in layers}
        self._tiles: dict[str, list[Any]] = {}
        self._first: dict[str, npt.NDArray[Any]] = {}

    def run(self, seconds: float) -> None:
        """Time all there is, as long as there is time."""
        end = time.monotonic() + seconds
        for number in (0, -1, *range(1, _MOST)):  # -1: the kernel of all devices
            for name in self.layers:
                if time.monotonic() > end:
                    return
                if number < max(1, len(self._tiles.get(name, ()))):
                    self.time(name, number)

    def time(self, name: str, number: int) -> None:
        """Time a layer's tile of that number, or the kernel of all devices."""

        def pick(problem: Any, target: Any = PAPER) -> list[Any]:
            self._tiles[name] = contenders(self.kernel, problem, target)
            return [self._tiles[name][number]]

        target = interpreter_of(self.layers[name], self.kernel, None if number < 0 else pick)
        us = chain_microseconds(target, 1)
        results = target.get_tensor(target.get_output_details()[0]["index"])
        del target  # or the next one shares its executable
        first = self._first.setdefault(name, results)
        error = float(np.linalg.norm(results - first) / np.linalg.norm(first))
        tile = self._tiles[name][number] if number >= 0 else None
        row = {"us": us, "error": error, "tile": tile and shape_of(tile)}
        row["clocks"] = tile and tile.clocks(PAPER)
        self.rows[name].append(row)
        text = f"{row['clocks']:.0f} clocks {row['tile']}" if tile else "the kernel of all devices"
        print(f"{name:20} {us:8.2f} us {error:.1e} {text}", flush=True)
        content = {**self.result, "layers": self.rows}
        self.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def shape_of(tile: Any) -> dict[str, Any]:
    """Return what tells a tile from others of its problem."""
    return {each.name: getattr(tile, each.name) for each in fields(tile) if each.name != "problem"}


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernel", choices=KERNELS, default=KERNELS[0], help="whose tiles")
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long rows may begin")
    arguments = parser.parse_args()
    Measurement(arguments.out, arguments.kernel).run(arguments.seconds)


if __name__ == "__main__":
    main()
