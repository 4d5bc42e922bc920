"""Measures images/s of each stage of the local engine, with one GPU and with all of a machine.

    python benchmarks/engines.py --output benchmarks/results/engines.json

Pictures are JPEG files of 500×375 pixels, made for the purpose; models are the zoo's, with random
weights. For each model and number of workers three runs take turns, of `--seconds` each after a
lead-in, so that the start of the workers does not count:

- decode: pictures are decoded, cropped and resized; the model behind is one number.
- infer: the model runs on one input that is ready, copied into batches as if it were decoded.
- whole: pictures are decoded for the model, as by `litegpu batch`.

A whole run that keeps up with the slower of the two has stages that overlap. The last column says
whether the first results are those of one worker, bit for bit. The results are written after each
row, as JSON and, with the suffix .txt, as a table.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import machine
from litegpu import DeviceInfo, GpuDelegate, __version__, list_devices, zoo
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import engines
from litegpu.tools.batch.arrays import from_picture
from litegpu.tools.engines.jobs import DECODE_IN
from litegpu.tools.engines.places import gpus_of
from litegpu.zoo.writer import ModelWriter

MODELS = ("zoo:mobilenet_v1_1.0_224", "zoo:resnet50")
STAGES = ("decode", "infer", "whole")
PICTURES = 256
COMPARED = 256
"""Results at the beginning of a whole run that are compared with those of one worker."""
_ENDLESS = 1 << 22
"""Samples of a run, which ends by time."""
HEADINGS = (
    *("model", "batch", "GPUs", "workers", "threads", *(f"{stage}/s" for stage in STAGES)),
    *("of the slower", "same"),
)


def tiny_model() -> bytes:
    """Return a model of one number, which takes no time."""
    writer = ModelWriter()
    x = writer.input((1, 1))
    writer.output(writer.op("ABS", [x], [(1, 1)]))
    return writer.build()


def make_pictures(folder: Path, count: int) -> list[str]:
    """Write JPEG files with some detail, as photographs have it; return their paths."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(count):
        coarse = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(picture, np.int16) + random.integers(-12, 13, (375, 500, 3))
        stored = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stored, "JPEG", quality=90)
        paths.append(str(folder / f"{number:04}.jpg"))
        Path(paths[-1]).write_bytes(stored.getvalue())
    return paths


def open_model(model: bytes, place: engines.Place, options: dict[str, Any] | None) -> Any:
    """Return a model with the delegate, or on the CPU without options."""
    if options is None:
        return runtime.interpreter(model, allocate=False)
    if place.backend:
        options = {**options, "backend": place.backend, "device": place.device}
    delegate = GpuDelegate(**options)
    return engines.Opened(runtime.interpreter(model, delegate, allocate=False), delegate)


@dataclass(frozen=True)
class Preparation:
    """Makes inputs of the pictures: for the model, or to be thrown away."""

    paths: tuple[str, ...]
    stage: str
    target: engines.Tensor

    def __call__(self, number: int, plan: engines.Plan) -> engines.Arrays:
        """Return the inputs of a sample."""
        if self.stage == "infer":
            return _ready(tuple(self.target.shape))
        path = self.paths[number % len(self.paths)]
        picture = from_picture(path, self.target, 127.5, 127.5)
        return [picture if self.stage == "whole" else np.zeros(1, np.float32)]


@functools.cache
def _ready(shape: tuple[int, ...]) -> engines.Arrays:
    return [np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)]


def digest(number: int, outputs: engines.Arrays) -> bytes:
    """Return what two results have in common if they are the same; of the first ones only."""
    if number >= COMPARED:
        return b""
    return hashlib.sha256(b"".join(each.tobytes() for each in outputs)).digest()


def steady(run: engines.Run[bytes], lead_in: float, seconds: float) -> tuple[float, list[bytes]]:
    """Return results a second after a lead-in, and the first results."""
    first: list[bytes] = []
    begun = counted = begun_at = 0.0
    try:
        for number, result in enumerate(run.results):
            if result.error:
                raise RuntimeError(result.error)
            now = time.perf_counter()
            if len(first) < COMPARED and result.value:
                first.append(result.value)
            begun = begun or now
            if not counted and now - begun > lead_in:
                counted, begun_at = now, number
            elif counted and now - counted > seconds and number >= COMPARED:
                return (number - begun_at) / (now - counted), first
    finally:
        run.results.close()
    raise RuntimeError("The samples ended before the time.")


def measure(
    stage: str, plan: engines.Plan, settings: engines.Settings, paths: Sequence[str], args: Any
) -> tuple[engines.Run[bytes], float, list[bytes]]:
    """Run one stage, or all of them; return images/s and the first results."""
    used, options = plan, {"precision": args.precision}
    if args.backend:
        options["backend"] = args.backend
    if stage == "decode":
        used, options = engines.plan(tiny_model(), args.batch), None
    job = engines.Job(
        used,
        functools.partial(open_model, options=options),
        Preparation(tuple(paths), stage, plan.inputs[0]),
        digest,
    )
    pieces = engines.chunks(range(_ENDLESS), used)
    run = engines.start(job, pieces, settings, args.backend, args.device)
    return (run, *steady(run, args.lead_in, args.seconds))


def layouts(gpus: Sequence[DeviceInfo], backend: str | None) -> list[dict[str, Any]]:
    """Return how many GPUs and workers there are to be in each row, one of each first."""
    one = {"gpus": 1, "workers": 1, "device": gpus[0].index if gpus else None}
    if not gpus:
        return [{**one, "gpus": 0}, {**one, "gpus": 0, "workers": 2}]
    shared = {**one, "workers": 2}
    if len(gpus) == 1:
        return [one, shared]
    every = {"gpus": len(gpus), "device": None}
    return [one, *({**every, "workers": count * len(gpus)} for count in (1, 2))]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything, row by row, and return the results."""
    gpus = gpus_of(args.backend)
    args.backend = args.backend or (gpus[0].backend if gpus else None)
    results: dict[str, Any] = {
        "version": __version__,
        "commit": machine.commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "settings": machine.settings(args),
        "machine": machine.facts(),
        "devices": [each.title for each in gpus or list_devices()[:1]],
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = make_pictures(Path(folder), args.pictures)
        for name in args.models:
            plan = engines.plan(zoo.load(name), args.batch)
            expected: list[bytes] = []
            for layout in layouts(gpus, args.backend):
                row = {"model": name, "batch": plan.batch, **layout}
                args.device = layout["device"]
                settings = engines.Settings(
                    *("local", layout["workers"], args.decode_threads), decode_in=args.decode_in
                )
                for stage in STAGES:
                    _say(f"{name}, {layout['gpus']} GPUs, {layout['workers']} workers: {stage}")
                    started, row[stage], first = measure(stage, plan, settings, paths, args)
                    row["threads"] = started.meter.decode_threads
                expected = expected or first
                row["same"] = first == expected
                results["rows"].append(row)
                save(args.output, results)
    return results


def table(results: dict[str, Any]) -> str:
    """Return the results as text; threads are those of a worker that decode."""
    cells = [HEADINGS, *map(_cells, results["rows"])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        f"litegpu {results['version']} {results['commit']}, {results['date']}",
        f"devices: {'; '.join(results['devices'])}",
        "",
    ]
    for row in cells:
        model, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([model.strip().ljust(widths[0]), *others]))
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    slower = min(row["decode"], row["infer"])
    return (
        row["model"].removeprefix("zoo:"),
        *(str(row[name]) for name in ("batch", "gpus", "workers", "threads")),
        *(f"{row[stage]:.0f}" for stage in STAGES),
        f"{row['whole'] / slower:.0%}",
        "yes" if row["same"] else "NO",
    )


def save(path: Path, results: dict[str, Any]) -> None:
    """Write both files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".txt").write_text(table(results) + "\n", encoding="utf-8")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", default=list(MODELS), help="zoo names with a picture as input")
    add("--backend", default=None, help="the GPU API; without it, the best one that has a GPU")
    add("--precision", default="fp16", choices=("fp16", "fp32"))
    add("--batch", type=int, default=64)
    add("--decode-threads", type=int, default=0, help="of a worker; 0: its share of the CPUs")
    add("--decode-in", default="auto", choices=DECODE_IN, help="as of `litegpu batch`")
    add("--pictures", type=int, default=PICTURES, help="how many there are, again and again")
    add("--lead-in", type=float, default=3.0, help="seconds before each measurement")
    add("--seconds", type=float, default=3.0, help="of each measurement")
    add("--output", type=Path, default=Path(__file__).parent / "results" / "engines.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the results, and print the table."""
    print(table(run(parse(arguments))))


if __name__ == "__main__":
    main()
