"""Counts and measures what fusing the parts of transformers gives.

    python benchmarks/transformer_launches.py [--backend NAME] [--precision fp32] [--model NAME ...]

Each model runs with all passes, without the one that makes attention one kernel, and without those
that find normalizations either: launches, GFLOP, bytes that the launches must move and memory for
values are counted; milliseconds of an invoke are the least of `--rounds` rounds of `--invokes`, in
which the ways take turns. The results are written as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import machine
from litegpu import GpuDelegate
from litegpu.cache import partitions
from litegpu.engine import partition
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model

MODELS = ("zoo:vit_tiny", "zoo:mobilevit_xxs", "zoo:whisper_tiny_encoder")
WAYS: Mapping[str, tuple[str, ...]] = {
    "all passes": (),
    "without attention": ("fuse_attention",),
    "without normalizations, too": ("fuse_attention", "find_normalization"),
}
"""The passes that are left out."""
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "transformers.json"


@dataclass
class Figures:
    """What a model takes in one way."""

    launches: int
    gflop: float
    moved_mb: float
    memory_mb: float
    ms: float = float("inf")


def interpreter(content: bytes, left_out: tuple[str, ...], **options: Any) -> tuple[Any, Figures]:
    """Return a model that runs without some passes, and what is counted of it."""
    with ExitStack() as patched:
        for group in ("BEFORE_NORMALIZE", "FUSIONS"):
            passes = getattr(partition, group)
            remaining = tuple(run for run in passes if run.__name__ not in left_out)
            patched.enter_context(mock.patch.object(partition, group, remaining))
        # A model that runs already would lend its executable, made with other passes.
        alone = mock.patch.object(partitions, "shared_or_new", lambda *start: start[-1](bytes))
        patched.enter_context(alone)
        delegate = GpuDelegate(cache=False, **options)
        found = runtime.interpreter(content, delegate)
    assert delegate.report is not None
    (whole,) = delegate.report.partitions
    (profile,) = delegate.profile(repeats=1, peaks=False).partitions
    figures = Figures(
        whole.kernels,
        round(sum(kernel.flops for kernel in profile.kernels) / 1e9, 3),
        round(sum(kernel.nbytes for kernel in profile.kernels) / 1e6, 1),
        round(whole.arena_bytes / 1e6, 1),
    )
    (detail,) = found.get_input_details()
    values = np.random.default_rng(0).uniform(-1, 1, detail["shape"])
    found.set_tensor(detail["index"], values.astype(detail["dtype"]))
    return found, figures


def measure(name: str, rounds: int, invokes: int, **options: Any) -> dict[str, Figures]:
    """Return the figures of each way."""
    content = resolve_model(name)
    ways = {way: interpreter(content, out, **options) for way, out in WAYS.items()}
    for _ in range(rounds):
        for model, figures in ways.values():
            for _ in range(invokes):
                began = time.perf_counter()
                model.invoke()
                figures.ms = min(figures.ms, round((time.perf_counter() - began) * 1e3, 3))
    return {way: figures for way, (_, figures) in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", help="path or zoo:NAME; may be repeated")
    parser.add_argument("--backend", default=None)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--invokes", type=int, default=3)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    args = parser.parse_args()
    result = {
        "machine": machine.facts(),
        "commit": machine.commit(),
        "settings": machine.settings(args),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "models": {},
    }
    options = {"backend": args.backend, "precision": args.precision}
    for name in args.model or MODELS:
        ways = measure(name, args.rounds, args.invokes, **options)
        result["models"][name] = {way: asdict(figures) for way, figures in ways.items()}
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(name)
        rows = [(way, *map(str, asdict(figures).values())) for way, figures in ways.items()]
        print_table(("way", ">launches", ">GFLOP", ">MB moved", ">MB of memory", ">ms"), rows)


if __name__ == "__main__":
    main()
