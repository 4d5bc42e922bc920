"""Measures what users wait for: from `python script.py` to the first result, in whole processes.

    python benchmarks/first_answer.py --output OUT.json [--backends cuda] [--models NAME ...]

A process imports NumPy and the runtime, makes an interpreter, sets its inputs, invokes it and has
the outputs as arrays. It does so without litegpu (`plain`), with litegpu and an empty cache
(`cold`), and with the cache that an earlier process left (`warm`); drivers keep what they compile
as they do for users, in a folder that is empty at the cold start. `driver` is what a process takes
to do nothing but start Python and open CUDA's context, with no package of Python. Figures are
medians of `--rounds` processes; of cold starts, which take a new cache each, of `--cold-rounds`.
`stages` in the JSON are the seconds since the command was given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
from creation import CACHE_FOLDERS, NO_BYTECODE, compile_once
from litegpu import list_devices
from litegpu.tools.console import print_table
from litegpu.tools.models import find_model
from measuring import NO_DRIVER_CACHES

MODELS = (
    *("zoo:mobilenet_v1_1.0_224", "zoo:resnet50", "zoo:vit_tiny"),
    *("mobilenet_v2_1.0_224_quant", "zoo:whisper_tiny_encoder"),
)
STAGES = ("python", "runtime", "litegpu", "interpreter", "result")
SCRIPT = """\
import time
stages = [time.monotonic()]
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
stages.append(time.monotonic())
path, backend, precision = sys.argv[1:]
delegates = []
if backend:
    from litegpu import GpuDelegate
    delegates = [GpuDelegate(backend=backend, precision=precision)]
stages.append(time.monotonic())
interpreter = Interpreter(path, experimental_delegates=delegates)
interpreter.allocate_tensors()
stages.append(time.monotonic())
for each in interpreter.get_input_details():
    interpreter.set_tensor(each["index"], np.ones(each["shape"], each["dtype"]))
interpreter.invoke()
outputs = [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]
stages.append(time.monotonic())
assert all(np.isfinite(each).all() for each in outputs)
if backend and not delegates[0].report.partitions:
    sys.exit(f"Nothing runs on the device: {delegates[0].report}")
print(*stages)
"""
DRIVER = """\
import time
import ctypes, sys
cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
for status in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
):
    if status:
        sys.exit(f"CUDA failed with status {status}")
print(time.monotonic())
"""
"""Opens the context that all users of a device share."""


def stages_of(script: str, *arguments: str, folder: str) -> list[float]:
    """Run a program in a new process; return the seconds from the command to each of its stages."""
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    for name in (*NO_DRIVER_CACHES, "LITEGPU_CACHE"):
        environment.pop(name, None)
    environment |= {"LITEGPU_CACHE_PATH": f"{folder}/litegpu"}
    environment |= {name: f"{folder}/driver" for name in CACHE_FOLDERS}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments}: {done.stderr[-2000:]}")
    return [float(each) - began for each in done.stdout.split()]


def medians(runs: list[list[float]]) -> dict[str, float]:
    """Return the median seconds until each stage."""
    columns = zip(*runs, strict=True)
    return dict(zip(STAGES, map(statistics.median, columns), strict=True))


def measure(
    path: str, backend: str, precision: str, rounds: int, cold_rounds: int
) -> dict[str, Any]:
    """Return the seconds of a model's plain, cold and warm processes."""
    with tempfile.TemporaryDirectory() as folder:
        plain = [stages_of(SCRIPT, path, "", "", folder=folder) for _ in range(rounds)]
    cold = []
    for _ in range(cold_rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(stages_of(SCRIPT, path, backend, precision, folder=folder))
    with tempfile.TemporaryDirectory() as folder:
        # The first process compiles, and ends once the better code is written, too.
        stages_of(SCRIPT, path, backend, precision, folder=folder)
        stages_of(SCRIPT, path, backend, precision, folder=folder)
        warm = [stages_of(SCRIPT, path, backend, precision, folder=folder) for _ in range(rounds)]
    kinds = {"plain": plain, "cold": cold, "warm": warm}
    return {kind: {"stages": medians(runs), "runs": runs} for kind, runs in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the results")
    parser.add_argument("--backends", nargs="+", default=None)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cold-rounds", type=int, default=3)
    args = parser.parse_args()
    compile_once()
    there = dict.fromkeys(each.backend for each in list_devices())
    result: dict[str, Any] = {**machine.about(args), "rows": []}
    rows = []
    if "cuda" in there:
        with tempfile.TemporaryDirectory() as folder:
            driver = [stages_of(DRIVER, folder=folder)[0] for _ in range(args.rounds)]
        result["driver"] = driver
        print(f"Python and CUDA's context alone: {statistics.median(driver) * 1e3:.0f} ms")
    with tempfile.TemporaryDirectory() as models:
        for number, model in enumerate(args.models):
            path = Path(models, f"{number}.tflite")
            path.write_bytes(find_model(model).content)
            for backend in args.backends or there:
                numbers = args.rounds, args.cold_rounds
                found = measure(str(path), backend, args.precision, *numbers)
                result["rows"].append({"model": model, "backend": backend, **found})
                times = [found[kind]["stages"]["result"] * 1e3 for kind in found]
                rows.append((backend, model, *(f"{each:.0f}" for each in times)))
                print(*rows[-1], flush=True)
                if args.output:
                    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(("backend", "model", ">plain, ms", ">cold", ">warm"), rows)


if __name__ == "__main__":
    main()
