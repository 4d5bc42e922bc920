"""Measures language models that have the sizes of public ones, and random weights.

    python benchmarks/language_models.py --models llama_1b --weights int8 int4 --output OUT.json

A row has the bytes of weights that a token reads, the seconds of the creation, the time of a token
of a `Session`, the weights read in this time, and the tokens per second of a prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import machine
from litegpu import LanguageModel
from litegpu.graph.ir import Quantization
from litegpu.tools.console import print_table
from litegpu.zoo import language
from litegpu.zoo.language import LanguageNet, Sizes
from litegpu.zoo.language_file import language_file
from litegpu.zoo.weights import Moments
from litegpu.zoo.writer import ModelWriter, TensorRef


@dataclass(frozen=True)
class Shape:
    """A public model's sizes; its vocabulary is cut, so that the file stays below 2 GiB."""

    sizes: Sizes
    layers: int


MODELS = {
    "smollm_135m": Shape(
        Sizes(576, heads=9, cache_heads=3, depth=64, rotary=64, hidden=1536, words=49152), 30
    ),
    "gemma3_1b": Shape(
        Sizes(1152, heads=4, cache_heads=1, depth=256, rotary=256, hidden=6912, words=65536), 26
    ),
    "llama_1b": Shape(
        Sizes(2048, heads=32, cache_heads=8, depth=64, rotary=64, hidden=8192, words=32768), 16
    ),
}
_LARGEST = {"int8": 127, "int4": 7}


class RandomNet(LanguageNet):
    """Draws the integers of each matrix, which is faster than rounding floats of random weights."""

    def linear(
        self, x: TensorRef, units: int, name: str, source: Moments, result: Moments
    ) -> TensorRef:
        kind = self.sizes.weights
        if kind == "float32":
            return super().linear(x, units, name, source, result)
        random = np.random.default_rng(zlib.crc32(name.encode()))
        most = _LARGEST[kind]
        matrix = random.integers(-most, most + 1, (units, x.shape[-1]), np.int8)
        # The variance of uniform integers up to `most` is most * (most + 1) / 3.
        power = x.shape[-1] * source.variance * most * (most + 1) / 3
        scale = float(np.float32((result.variance / power) ** 0.5))
        weights = self.writer.constant(
            matrix, kind, name=name, quantization=Quantization((scale,) * units, (0,) * units)
        )
        shape = (*x.shape[:-1], units)
        options = {"keep_num_dims": True}
        return self.op("FULLY_CONNECTED", [x, weights, None], shape, name, options, version=5)


def write(
    name: str, weights: str, context: int, prefill: list[int], folder: Path
) -> tuple[Path, int]:
    """Write the file of a model. Return its path and the bytes of weights that a token reads."""
    shape = MODELS[name]

    class Net(RandomNet):
        sizes = replace(shape.sizes, weights=weights)

    net = Net(name, ModelWriter())
    language.build(net, layers=shape.layers, context=context, embedder=0, prefill=prefill)
    path = folder / f"{name}_{weights}.litertlm"
    path.write_bytes(language_file(net.writer.build(), context))
    return path, matrix_bytes(net.sizes, shape.layers)


def matrix_bytes(sizes: Sizes, layers: int) -> int:
    """Return the bytes of all matrices of linear layers."""
    heads = sizes.depth * (2 * sizes.heads + 2 * sizes.cache_heads)
    elements = sizes.channels * (layers * (heads + 3 * sizes.hidden) + sizes.words)
    return elements * {"float32": 32, "int8": 8, "int4": 4}[sizes.weights] // 8


def measure(path: Path, options: dict[str, Any], prompt: int, answer: int) -> dict[str, Any]:
    """Return the seconds of the creation, of a prompt and of a token."""
    began = time.perf_counter()
    with LanguageModel(str(path), **options) as model, model.session() as session:
        created = time.perf_counter() - began
        tokens = [
            *map(int, np.random.default_rng(0).integers(0, model.vocabulary, prompt + answer))
        ]
        prompts, steps = [], []
        for _ in range(4):
            session.rewind(0)
            began = time.perf_counter()
            session.append(tokens[:prompt])
            session.logits()
            prompts.append(time.perf_counter() - began)
        for each in tokens[prompt:]:
            began = time.perf_counter()
            session.append([each])
            session.logits()
            steps.append(time.perf_counter() - began)
        place = model.place
    return {
        "place": place,
        "created": created,
        "prompt": statistics.median(prompts[1:]),
        "token": statistics.median(steps[4:]),
    }


def main() -> None:
    """Measure, print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=MODELS)
    parser.add_argument("--weights", nargs="+", default=["int8"], choices=["float32", *_LARGEST])
    parser.add_argument("--backends", nargs="+", default=["cuda"])
    parser.add_argument("--precision", default="fp16", choices=["fp32", "fp16"])
    parser.add_argument("--quantized", nargs="+", default=["exact", "float"])
    parser.add_argument("--context", type=int, default=2048, help="positions of the caches")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens that are decoded")
    parser.add_argument("--prefill", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--output", type=Path, help="the JSON to write")
    args = parser.parse_args()
    rows, found = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            for weights in args.weights:
                path, nbytes = write(name, weights, args.context, args.prefill, Path(folder))
                for backend in args.backends:
                    for quantized in args.quantized:
                        options = {
                            "backend": backend,
                            "precision": args.precision,
                            "quantized": quantized,
                            "cache": False,
                        }
                        measured = measure(path, options, args.prompt, args.answer)
                        found.append(
                            {
                                "model": name,
                                "weights": weights,
                                "bytes": nbytes,
                                **options,
                                **measured,
                            }
                        )
                        rows.append(
                            (
                                *(name, weights, backend, quantized, f"{nbytes / 1e6:.0f}"),
                                f"{measured['created']:.1f}",
                                f"{1e3 * measured['token']:.2f}",
                                f"{nbytes / measured['token'] / 1e9:.0f}",
                                f"{args.prompt / measured['prompt']:.0f}",
                            )
                        )
                        print(rows[-1], flush=True)
                path.unlink()
    heads = (
        "model",
        "weights",
        "API",
        "quantized",
        ">MB",
        ">create s",
        ">ms/token",
        ">GB/s",
        ">pp t/s",
    )
    print_table(heads, rows)
    if args.output:
        args.output.write_text(json.dumps({"machine": machine.facts(), "results": found}, indent=1))


if __name__ == "__main__":
    main()
