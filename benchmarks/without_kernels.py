"""Measures what each special kernel of CUDA brings: models with and without it, in turns.

    python benchmarks/without_kernels.py [--model NAME ...] [--batch 1 64] [--precision fp16]

Each implementation that a model uses is left out in turn: others take its place. Both ways run in
one process, in turns; figures are medians of the chain of launches on the device. A kernel that
brings less than 3 % on several models is not worth its code. The results are written as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import machine
from litegpu import GpuDelegate
from litegpu.cache import partitions
from litegpu.kernels import selector
from litegpu.kernels.cuda import separable
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model

MODELS = (
    "zoo:mobilenet_v1_1.0_224",
    "zoo:mobilenet_v2_1.0_224",
    "zoo:resnet50",
    "zoo:vit_tiny",
    "zoo:mobilevit_xxs",
    "zoo:whisper_tiny_encoder",
)
STREAM = "cuda/separable_stream"
"""A template that `cuda/separable` selects, and that can be left out alone."""
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "without_kernels.json"


class Way:
    """A model that runs on the device, and its times."""

    def __init__(self, content: bytes, left_out: str, options: dict[str, Any]) -> None:
        """Create it without an implementation; `left_out` is "" for all of them."""
        with ExitStack() as patched:
            for name, value in _replaced(left_out):
                patched.enter_context(mock.patch(name, value))
            # A model that runs already would lend its executable, made with other kernels.
            alone = mock.patch.object(partitions, "shared_or_new", lambda *start: start[-1](bytes))
            patched.enter_context(alone)
            self._delegate = GpuDelegate(backend="cuda", cache=False, quick_start=False, **options)
            self._interpreter = runtime.interpreter(content, self._delegate)
        self.milliseconds: list[float] = []
        parts = self._delegate.profile(repeats=1, peaks=False).partitions
        self.kernels = sorted(kernel.name.rpartition("_")[0] for p in parts for kernel in p.kernels)

    def measure(self, repeats: int) -> None:
        """Measure the chain of its launches once more."""
        seconds = self._delegate.profile(repeats=repeats, peaks=False).chain_seconds
        if seconds is None:
            raise RuntimeError(f"Nothing runs on the device: {self._delegate.report}")
        self.milliseconds.append(seconds * 1e3)

    @property
    def median(self) -> float:
        """The median of its times, in milliseconds."""
        return statistics.median(self.milliseconds)


def _replaced(left_out: str) -> Iterator[tuple[str, Any]]:
    if left_out == STREAM:
        yield f"{separable.__name__}.pays", lambda _problem: False
    elif left_out:
        remaining = {
            spec: tuple(each for each in each_of if each.name != left_out)
            for spec, each_of in selector.IMPLEMENTATIONS.items()
        }
        yield f"{selector.__name__}.IMPLEMENTATIONS", remaining


def _special() -> list[str]:
    listed = [each for group in selector.IMPLEMENTATIONS.values() for each in group]
    return [*(each.name for each in listed if each.backend == "cuda" and not each.general), STREAM]


def _uses(kernels: list[str], name: str) -> bool:
    return name.replace("/", "_") in kernels


def compare(name: str, rounds: int, repeats: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a model takes without each implementation that it uses."""
    content = resolve_model(name)
    whole = Way(content, "", options)
    used = [each for each in dict.fromkeys(_special()) if _uses(whole.kernels, each)]
    if STREAM in used and "cuda/separable" not in used:
        used.append("cuda/separable")
    ways = {each: Way(content, each, options) for each in used}
    for _ in range(rounds):
        for way in (whole, *ways.values()):
            way.measure(repeats)
    return [
        {
            "without": each,
            "launches": [len(whole.kernels), len(way.kernels)],
            "ms": [whole.milliseconds, way.milliseconds],
            "gain": round(1 - whole.median / way.median, 4),
        }
        for each, way in ways.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", help="path or zoo:NAME; may be repeated")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    args = parser.parse_args()
    result: dict[str, Any] = {**machine.about(args), "models": {}}
    for model in args.model or MODELS:
        zoo = model.startswith("zoo:")
        for batch in args.batch if zoo else args.batch[:1]:
            name = f"{model}{'&' if '?' in model else '?'}batch={batch}" if zoo else model
            rows = compare(name, args.rounds, args.repeats, {"precision": args.precision})
            result["models"][name] = rows
            args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(name, flush=True)
            columns = ("without", ">launches", ">ms with", ">ms without", ">gain %")
            table = [
                (
                    row["without"],
                    str(row["launches"][1] - row["launches"][0]),
                    *(f"{statistics.median(times):.4f}" for times in row["ms"]),
                    f"{row['gain'] * 100:.1f}",
                )
                for row in rows
            ]
            print_table(columns, table)


if __name__ == "__main__":
    main()
