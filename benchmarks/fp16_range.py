"""What half's range costs and whether it is kept: two states of the code beside each other.

    python benchmarks/fp16_range.py times --before ../other-checkout/src
    python benchmarks/fp16_range.py ops --backend cuda --jobs 12
    python benchmarks/fp16_range.py drawn --backend cuda --count 1000
    python benchmarks/fp16_range.py models --backend cuda MODEL.tflite ...

`times` measures MobileNet v1 and ResNet-50 on CUDA at fp16, in processes that take turns between
the two checkouts, and writes what they found to `results/h200_fp16_range.json`. `ops` runs the op
table of the tests with inputs and weights scaled by 1e-8 to 1e6, `drawn` operations that are drawn
at random as in the tests. `models` runs models whose inputs
are scaled by 4, 100 and 1000. These end with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu import (
    GpuDelegate,
    list_devices,
)
from litegpu.engine import partition
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo import resolve_model
from machine import facts
from measuring import call, errors, make_inputs, reference_interpreter

MODELS = ("zoo:mobilenet_v1_1.0_224", "zoo:resnet50")
BATCHES = (1, 64)
ROUNDS, REPEATS = 7, 100
INPUT_SCALES = (4.0, 100.0, 1000.0)
LIMIT = 5e-3
"""Relative error of a model's output at fp16."""
ROOT = Path(__file__).parents[1]
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "h200_fp16_range.json"


# Times


def measure() -> dict[str, Any]:
    """Return milliseconds of each model on the device, and microseconds of its kernels by node.

    No values share memory: otherwise others would lie where the input was while kernels are timed,
    and the kernels that read it would look for their range.
    """
    apart = functools.partial(partition.compile_partition, share_memory=False)
    partition.compile_partition = apart  # type: ignore[assignment]
    found = {}
    for model in MODELS:
        for batch in BATCHES:
            content = resolve_model(f"{model}?batch={batch}")
            delegate = GpuDelegate(backend="cuda", precision="fp16")
            target = interpreter(content, delegate)
            call(target, make_inputs(target, None))
            profile = delegate.profile(repeats=REPEATS)
            chain = profile.chain_seconds
            if chain is None:
                raise RuntimeError(f"{model} does not run on the device: {delegate.report}")
            kernels = [kernel for part in profile.partitions for kernel in part.kernels]
            found[f"{model}?batch={batch}"] = {
                "chain_ms": chain * 1e3,
                "kernels": [
                    [k.node, k.name.rpartition("_")[0], round(k.seconds * 1e6, 2)] for k in kernels
                ],
            }
    return found


def compare(before: Path, rounds: int, output: Path) -> None:
    """Let processes with either source folder measure in turns, and write what they found."""
    sources = {"before": before.resolve(), "now": ROOT / "src"}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    for number in range(rounds):
        for name in sorted(sources, reverse=bool(number % 2)):
            runs[name].append(_in_a_process(sources[name]))
            print(f"round {number + 1}, {name}", flush=True)
    rows = {}
    for model in runs["now"][0]:
        times = {name: [each[model]["chain_ms"] for each in found] for name, found in runs.items()}
        medians = {name: statistics.median(each) for name, each in times.items()}
        change = medians["now"] / medians["before"] - 1
        print(f"{model:36} {medians['before']:.4f} → {medians['now']:.4f} ms, {change:+.2%}")
        rows[model] = {
            **{f"{name}_ms": each for name, each in times.items()},
            "change": change,
            **{f"{name}_kernels": found[-1][model]["kernels"] for name, found in runs.items()},
        }
    result = {"machine": facts(), "rounds": rounds, "repeats": REPEATS, "models": rows}
    output.write_text(json.dumps(result, indent=1), encoding="utf-8")


def _in_a_process(source: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "measure"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# The op table


def check_group(task: tuple[int, int, str, str]) -> dict[str, str]:
    """Run one group of cases at one scale; return what is wrong, by what it is about."""
    sys.path[:0] = [str(ROOT / "tests" / "support")]
    import cases
    from magnitudes import SCALES, problems
    from op_runner import MODES, groups

    group, number, backend, mode_name = task
    device = next(each for each in list_devices() if each.backend == backend)
    mode = next(each for each in MODES if each.name == mode_name)
    scale = SCALES[number]
    found = problems(groups(cases.TABLE)[group], device, mode, scale)
    return {f"{backend} {mode_name} {scale.name} {name}": text for name, text in found.items()}


def check_ops(backend: str, modes: Sequence[str], every: int, jobs: int) -> bool:
    """Run the op table at all scales, or every so many pairs of both; return if all is right."""
    sys.path[:0] = [str(ROOT / "tests" / "support")]
    import cases
    from magnitudes import SCALES
    from op_runner import groups

    count = len(groups(cases.TABLE))
    pairs = [(g, s) for s in range(len(SCALES)) for g in range(count)][::every]
    tasks = [(g, s, backend, mode) for mode in modes for g, s in pairs]
    return all_right(check_group, tasks, jobs, backend)


def check_drawn(task: tuple[int, str]) -> dict[str, str]:
    """Run a few drawn cases at a drawn scale and mode; return what is wrong."""
    sys.path[:0] = [str(ROOT / "tests" / "support")]
    from dice import Seeded
    from magnitudes import SCALES, problems
    from op_runner import MODES
    from random_cases import FAMILIES

    seed, backend = task
    dice = Seeded(seed)
    device = next(each for each in list_devices() if each.backend == backend)
    mode, scale = dice.one_of(*MODES[2:]), dice.one_of(*SCALES)
    drawn = [dice.one_of(*FAMILIES)(dice) for _ in range(dice.number(1, 3))]
    found = problems(tuple({case.name: case for case in drawn}.values()), device, mode, scale)
    about = f"{backend} {mode.name} {scale.name} draw {seed}"
    return {f"{about} {name}": text for name, text in found.items()}


def all_right(
    check: Callable[[Any], dict[str, str]], tasks: Sequence[Any], jobs: int, backend: str
) -> bool:
    """Run tasks in processes, print what is wrong, and return whether nothing is."""
    wrong = 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done, found in enumerate(pool.imap_unordered(check, tasks), 1):
            for name, text in found.items():
                print(f"{name}: {text}", flush=True)
            wrong += len(found)
            if done % 100 == 0:
                print(f"{done} of {len(tasks)} runs, {wrong} wrong", flush=True)
    print(f"{len(tasks)} runs on {backend}, {wrong} wrong")
    return not wrong


# Models


def check_models(names: Sequence[str], backends: Sequence[str]) -> bool:
    """Run models with scaled inputs at fp16; return if all results are right."""
    right = True
    for name in names:
        content = resolve_model(name)
        cpu = reference_interpreter(content, os.cpu_count() or 1)
        inputs = make_inputs(cpu, None)
        for scale in INPUT_SCALES:
            about = f"{Path(name).stem:36} x {scale:<5g}"
            scaled = [each * each.dtype.type(scale) for each in inputs]
            expected = call(cpu, scaled)
            if not all(np.isfinite(each).all() for each in expected):
                print(f"{about} the CPU's own result is not finite")
                continue
            for backend in backends:
                target = interpreter(content, GpuDelegate(backend=backend, precision="fp16"))
                found = errors(call(target, scaled), expected)
                again = errors(call(target, scaled), expected)
                good = found["finite"] and max(found["norm_error"], again["norm_error"]) <= LIMIT
                right &= good
                error = f"{found['norm_error']:.1e}, then {again['norm_error']:.1e}"
                verdict = "" if good else "   WRONG"
                print(f"{about} {backend:7} error {error}{verdict}", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    tools.add_parser("measure", help="what `times` runs in each process")
    times = tools.add_parser("times", help="device times, beside those of another checkout")
    times.add_argument("--before", type=Path, required=True, help="its source folder")
    times.add_argument("--rounds", type=int, default=ROUNDS)
    times.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    ops = tools.add_parser("ops", help="the op table at other magnitudes")
    ops.add_argument("--backend", action="append", required=True)
    ops.add_argument("--mode", action="append", help="fp16-direct and fp16-staged, unless given")
    ops.add_argument("--every", type=int, default=1, help="1: all pairs of group and scale")
    ops.add_argument("--jobs", type=int, default=os.cpu_count())
    drawn = tools.add_parser("drawn", help="operations drawn at random, at other magnitudes")
    drawn.add_argument("--backend", action="append", required=True)
    drawn.add_argument("--count", type=int, default=1000)
    drawn.add_argument("--seed", type=int, default=0, help="the first draw")
    drawn.add_argument("--jobs", type=int, default=os.cpu_count())
    models = tools.add_parser("models", help="models with scaled inputs")
    models.add_argument("--backend", action="append", required=True)
    models.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    if arguments.tool == "measure":
        print(json.dumps(measure()))
        return 0
    if arguments.tool == "times":
        compare(arguments.before, arguments.rounds, arguments.output)
        return 0
    if arguments.tool == "models":
        return not check_models(arguments.names, arguments.backend)
    if arguments.tool == "drawn":
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        return not all(
            [
                all_right(check_drawn, [(s, backend) for s in seeds], arguments.jobs, backend)
                for backend in arguments.backend
            ]
        )
    modes = arguments.mode or ["fp16-direct", "fp16-staged"]
    checks = [check_ops(each, modes, arguments.every, arguments.jobs) for each in arguments.backend]
    return not all(checks)


if __name__ == "__main__":
    sys.exit(main())
