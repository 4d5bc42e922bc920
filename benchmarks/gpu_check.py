"""Checks and times models on a GPU machine: accuracy against the CPU, device and whole-call time.

python benchmarks/gpu_check.py --ops --out result.json zoo:mobilenet_v1_1.0_224 DIR/MODEL.tflite ...

All backends take part, unless `--backend` names some; `--ops` also runs the op table of the tests.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from litegpu import GpuDelegate, LitegpuError, Profile, __version__, list_devices
from litegpu.backends import BACKENDS
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo import resolve_model
from measuring import call, make_inputs, median_ms, reference_interpreter

_REFERENCE_THREADS = 8
_PROFILED = 20
"""Runs of which the device's times are medians, at most."""


@functools.lru_cache(maxsize=1)
def reference(name: str, picture: Path | None) -> tuple[bytes, list[Any], list[Any]]:
    """Return a model, inputs for it, and what the CPU makes of them."""
    content = resolve_model(name)
    cpu = reference_interpreter(content, _REFERENCE_THREADS)
    inputs = make_inputs(cpu, picture)
    return content, inputs, call(cpu, inputs)


def check(
    name: str, backend: str, precision: str, picture: Path | None, repeats: int
) -> dict[str, Any]:
    """Return accuracy and times of one model."""
    content, inputs, expected = reference(name, picture)
    start = time.perf_counter()
    delegate = GpuDelegate(backend=backend, precision=precision)
    gpu = interpreter(content, delegate)
    created = time.perf_counter() - start
    got = call(gpu, inputs)
    errors = [
        float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30)
        for a, b in zip(got, expected, strict=True)
    ]
    again = call(gpu, inputs)
    report = delegate.report
    row: dict[str, Any] = {
        "model": Path(name).stem,
        "backend": backend,
        "precision": precision,
        "create_ms": created * 1e3,
        "whole_call_ms": median_ms(lambda: call(gpu, inputs), repeats),
        "errors": errors,
        "finite": all(bool(np.isfinite(a).all()) for a in got),
        "repeatable": all(np.array_equal(a, b) for a, b in zip(got, again, strict=True)),
        "kernels": [part.kernels for part in report.partitions] if report else [],
        "rejected": len(report.rejected) if report else 0,
    }
    if report and report.partitions:
        add_device_times(row, delegate.profile(repeats=min(repeats, _PROFILED)))
    return row


def add_device_times(row: dict[str, Any], profile: Profile) -> None:
    """Add the device's times and the slowest kernels, where the backend can tell."""
    for name, seconds in (
        ("device_ms", profile.device_seconds),
        ("chain_ms", profile.chain_seconds),
        ("kernel_sum_ms", profile.kernel_seconds),
        ("floor_ms", profile.floor_seconds),
    ):
        if seconds is not None:
            row[name] = seconds * 1e3
    kernels = [kernel for part in profile.partitions for kernel in part.kernels]
    row["slowest"] = [
        {
            "us": round(kernel.seconds * 1e6, 2),
            "kernel": kernel.name,
            "op": kernel.op,
            "node": kernel.node,
            "gflops": round(kernel.flops_per_second / 1e9, 1),
            "of_floor": round(kernel.floor_share or 0.0, 2),
        }
        for kernel in sorted(kernels, key=lambda kernel: -kernel.seconds)[:8]
    ]


def check_ops(backend: str) -> dict[str, Any]:
    """Run the op table on a backend; return the counts of pytest, and the end of a bad log."""
    table = Path(__file__).parents[1] / "tests" / "ops" / "test_ops.py"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", str(table), "-k", f"{backend}-"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(os.cpu_count())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|errors?)", done.stdout)}
    good = done.returncode == 0
    return {"backend": backend, **counts, **({} if good else {"log": done.stdout[-3000:]})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--ops", action="store_true", help="run the op table too")
    parser.add_argument("--backend", action="append")
    parser.add_argument("--precision", action="append")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--kernels", action="store_true", help="list the slowest kernels")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    backends = arguments.backend or [*BACKENDS]
    result: dict[str, Any] = {
        "version": __version__,
        "machine": platform.platform(),
        "devices": [device.title for device in list_devices() if device.backend in backends],
        "ops": [],
        "rows": [],
    }

    def save() -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps(result, indent=1), encoding="utf-8")

    for backend in backends if arguments.ops else ():
        result["ops"].append(check_ops(backend))
        print(result["ops"][-1], flush=True)
        save()
    for name in arguments.models:
        for backend in backends:
            for precision in arguments.precision or ["fp32", "fp16"]:
                try:
                    row = check(name, backend, precision, arguments.picture, arguments.repeats)
                except (LitegpuError, RuntimeError) as error:
                    row = {"model": name, "backend": backend, "error": str(error)}
                result["rows"].append(row)
                print(line(row), flush=True)
                if arguments.kernels:
                    for each in row.get("slowest", []):
                        print("   ", each)
        save()


def line(row: dict[str, Any]) -> str:
    """Return a row as one line of text."""
    if "error" in row:
        return f"{row['model']:36} {row['backend']:7} ERROR {row['error']}"
    return (
        f"{row['model'][:36]:36} {row['backend']:7} {row['precision']} "
        f"whole {row['whole_call_ms']:.3f} ms  device {row.get('device_ms', float('nan')):.3f} ms  "
        f"sum {row.get('kernel_sum_ms', float('nan')):.3f} ms  kernels {sum(row['kernels']):3} "
        f"create {row['create_ms']:.0f} ms  worst error {max(row['errors']):.1e} "
        f"{'' if row['finite'] else 'NOT FINITE '}{'' if row['repeatable'] else 'NOT REPEATABLE'}"
    )


if __name__ == "__main__":
    main()
