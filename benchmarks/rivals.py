"""Times litegpu beside other ways to run the same .tflite files, in one process on one machine.

    python benchmarks/rivals.py --out benchmarks/results/rivals.json MODEL...

A time is a whole call, from NumPy arrays to NumPy arrays: the median of `--repeats`. Rivals that
are not there are left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check import call, make_inputs, median_ms
from litegpu import GpuDelegate, __version__, list_devices
from litegpu.tools.runtime import interpreter
from litegpu.zoo import resolve_model

Run = Callable[[], Any]
"""One whole call."""


def litegpu_run(backend: str, precision: str) -> Callable[[bytes, list[Any]], Run]:
    """Return what makes a call through litegpu."""

    def make(content: bytes, inputs: list[Any]) -> Run:
        target = interpreter(content, GpuDelegate(backend=backend, precision=precision))
        return lambda: call(target, inputs)

    return make


def cpu_run(threads: int) -> Callable[[bytes, list[Any]], Run]:
    """Return what makes a call on the CPU, through XNNPACK."""

    def make(content: bytes, inputs: list[Any]) -> Run:
        target = interpreter(content, threads=threads)
        return lambda: call(target, inputs)

    return make


def accelerator_run(float32: bool) -> Callable[[bytes, list[Any]], Run]:
    """Return what makes a call through LiteRT's own GPU accelerator."""

    def make(content: bytes, inputs: list[Any]) -> Run:
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.gpu_options import GpuOptions
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import Options

        options = Options(
            hardware_accelerators=HardwareAccelerator.GPU,
            gpu_options=GpuOptions(enforce_f32=float32),
        )
        model = CompiledModel.from_buffer(content, options=options)
        sources, targets = model.create_input_buffers(0), model.create_output_buffers(0)
        shapes = _output_shapes(content)

        def run() -> list[Any]:
            for buffer, data in zip(sources, inputs, strict=True):
                buffer.write(data)
            model.run_by_index(0, sources, targets)
            sizes = [int(np.prod(shape)) for shape in shapes]
            return [b.read(n, np.float32) for b, n in zip(targets, sizes, strict=True)]

        return run

    return make


def _output_shapes(content: bytes) -> list[Any]:
    target = interpreter(content, builtin_kernels=True)
    return [detail["shape"] for detail in target.get_output_details()]


WAYS: dict[str, Callable[[bytes, list[Any]], Run]] = {
    "litegpu cuda fp16": litegpu_run("cuda", "fp16"),
    "litegpu cuda fp32": litegpu_run("cuda", "fp32"),
    "litegpu opencl fp16": litegpu_run("opencl", "fp16"),
    "litegpu opencl fp32": litegpu_run("opencl", "fp32"),
    "LiteRT accelerator fp16": accelerator_run(False),
    "LiteRT accelerator fp32": accelerator_run(True),
    "XNNPACK, 8 threads": cpu_run(8),
    "XNNPACK, 1 thread": cpu_run(1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.models:
        content = resolve_model(name)
        reference = interpreter(content, builtin_kernels=True)
        inputs = make_inputs(reference, arguments.picture)
        row: dict[str, float] = {}
        for way in arguments.way or WAYS:
            try:
                row[way] = median_ms(WAYS[way](content, inputs), arguments.repeats)
            except Exception as error:
                print(f"{name}: {way} is left out: {str(error).splitlines()[0]}")
        title = name if name.startswith("zoo:") else Path(name).stem
        rows[title] = row
        times = "  ".join(f"{way} {ms:.3f}" for way, ms in row.items())
        print(f"{title:36} ms: {times}", flush=True)
    if arguments.out:
        devices = [device.to_dict() for device in list_devices()]
        result = {
            "version": __version__,
            "machine": platform.platform(),
            "repeats": arguments.repeats,
            "devices": devices,
            "median_ms": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
