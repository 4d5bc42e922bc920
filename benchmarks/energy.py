"""Measures joules per inference of litegpu, its rivals and the CPU, on one machine.

    python benchmarks/energy.py --output benchmarks/results/energy.json

The energy of the whole board is read by NVML, that of the CPU's packages by RAPL; a meter that
cannot be read is named in the results. The machine rests first, with the GPU's driver loaded and
its context open. Then each way runs each model from NumPy arrays to NumPy arrays, call after call,
for `--seconds` after a lead-in; meters are read at both ends only. The results are written after
each row, as JSON and, with the suffix .txt, as a table. A way that cannot run a model becomes a
row with the reason, and the script says what it did not reach within `--time-limit`.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine
from litegpu import DeviceInfo, __version__, list_devices
from litegpu.tools.benchmark_model.energy import Meter, MeterError, Meters, Rest
from litegpu.tools.benchmark_model.energy_cpu import cpu_meter
from litegpu.tools.benchmark_model.energy_gpu import gpu_meter
from measuring import errors
from rivals import load_model, use_once, with_batches
from ways import LeftOutError, Model, Way, ways

MODELS = ("zoo:mobilenet_v1_1.0_224", "zoo:resnet50")
WAYS = (
    *("litegpu cuda fp16", "litegpu cuda fp32", "XNNPACK 8 threads"),
    *("LiteRT accelerator fp16", "LiteRT accelerator fp32", "torch fp16 graph", "torch fp32 graph"),
)
"""In the order of their importance: what there is no time for is left out at the end."""
KINDS = ("GPU", "CPU")
HEADINGS = (
    *("model", "batch", "way", "ms a call"),
    *(f"{kind} {what}" for kind in KINDS for what in ("W", "mJ a picture", "above rest")),
)


def find_meters() -> tuple[list[Meter], list[str]]:
    """Return the meters of the first GPU and of the CPU, and why there are no others."""
    found: list[Meter] = []
    missing = []
    for meter in (_gpu_meter, cpu_meter):
        try:
            found.append(meter())
        except MeterError as error:
            missing.append(str(error))
    return found, missing


def _gpu_meter() -> Meter:
    gpus: list[DeviceInfo] = [each for each in list_devices() if not each.software]
    if not gpus:
        raise MeterError("The energy of the GPU is not measured: there is none.")
    return gpu_meter(gpus[0])


def measure(way: Way, model: Model, meters: Meters, rest: Rest, seconds: float) -> dict[str, Any]:
    """Return the row of one way and one model: its energy, or why it has none."""
    runner = None
    try:
        runner = way(model)
        row = errors(runner.call(), model.expected)
        return row | asdict(meters.work(runner.call, seconds, rest))
    except LeftOutError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    finally:
        close = runner.close if runner else gc.collect
        runner = None
        gc.collect()
        close()


def run(settings: argparse.Namespace) -> dict[str, Any]:
    """Measure everything, row by row, and return the results."""
    started = time.monotonic()
    facts = machine.facts()
    every = ways(["cuda", "opencl"])
    chosen = {name: every[name] for name in settings.ways}
    found, missing = find_meters()
    results: dict[str, Any] = {
        "version": __version__,
        "commit": machine.commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "settings": machine.settings(settings),
        "machine": facts,
        "meters": [meter.name for meter in found],
        "rows": [],
        "left_out": [],
    }
    models = []
    for name in with_batches(settings.models, settings.models if settings.batches else []):
        models.append(load_model(name, None))
        _say(f"{name}: ready")
    use_once(chosen)
    with Meters(found, missing) as meters:
        rest = meters.rest(settings.rest)
        results["missing"] = meters.missing
        results["idle_watts"] = {meter.kind: watts for meter, watts in rest.watts.items()}
        for way_name, way in chosen.items():
            for model, about in models:
                row = {"model": model.title, "batch": about["batch"], "way": way_name}
                if time.monotonic() - started > settings.time_limit:
                    results["left_out"].append(row)
                    continue
                _say(f"{model.title}: {way_name}")
                results["rows"].append(row | measure(way, model, meters, rest, settings.seconds))
                save(settings.output, results)
    save(settings.output, results)
    return results


def table(results: dict[str, Any]) -> str:
    """Return the results as text; joules are millijoules of one picture of the batch."""
    idle = ", ".join(f"{kind} {watts:.1f} W" for kind, watts in results["idle_watts"].items())
    lines = [
        f"litegpu {results['version']} {results['commit']}, {results['date']}",
        f"meters: {'; '.join(results['meters']) or 'none'}. At rest: {idle or 'unknown'}",
        *(f"not measured: {reason}" for reason in results["missing"]),
        "",
    ]
    titles = list(dict.fromkeys(row["model"] for row in results["rows"]))
    ordered = sorted(results["rows"], key=lambda row: titles.index(row["model"]))
    cells = [HEADINGS, *(_cells(row) for row in ordered if "error" not in row)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        texts = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
        texts += [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join(texts))
    lines += [f"{_title(row)}: {row['error']}" for row in ordered if "error" in row]
    lines += [f"{_title(row)}: there was no time left" for row in results["left_out"]]
    return "\n".join(lines)


def _title(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['way']}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    by_kind = {each["kind"]: each for each in row["meters"]}
    if row["way"].startswith("XNNPACK"):
        by_kind.pop("GPU", None)  # it only waits
    found = [row["model"].removeprefix("zoo:").partition("?")[0], str(row["batch"]), row["way"]]
    found.append(f"{row['busy_seconds'] / row['runs'] * 1e3:.3f}")
    for kind in KINDS:
        if each := by_kind.get(kind):
            joules = (each["joules"], each["above_idle_joules"])
            found += [f"{each['busy_watts']:.0f}"]
            found += [f"{value * 1e3 / row['batch']:.4g}" for value in joules]
        else:
            found += ["-"] * 3
    return tuple(found)


def save(path: Path, results: dict[str, Any]) -> None:
    """Write both files anew; a process that dies in between leaves the old ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, text in (
        (path, json.dumps(results, indent=1)),
        (path.with_suffix(".txt"), table(results)),
    ):
        draft = target.with_name(f"{target.name}.part")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(target)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", default=list(MODELS), help="paths and zoo names")
    add("--batches", type=int, default=1, choices=(0, 1), help="1: batch 64 of zoo names, too")
    add("--ways", nargs="+", default=list(WAYS), help="names as in ways.py")
    add("--seconds", type=float, default=2.0, help="that each row works for, after a lead-in")
    add("--rest", type=float, default=3.0, help="seconds of rest, after a lead-in")
    add("--time-limit", type=float, default=200.0, help="seconds; then no row begins")
    add("--output", type=Path, default=Path(__file__).parent / "results" / "energy.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the results, and print the table."""
    print(table(run(parse(arguments))))


if __name__ == "__main__":
    main()
