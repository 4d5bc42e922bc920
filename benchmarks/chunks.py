"""Measures large batches from pinned memory: copied whole, in chunks, or read by kernels.

    python benchmarks/chunks.py [--out FILE] [--model NAME ...] [--chunks K ...] [--backend NAME]

Milliseconds of a call from pinned memory to pinned memory, medians of `--repeats` after a warm-up,
for inputs of float32 and (`pictures`) of a picture's bytes. The results are written as JSON:

- device: buffers in the GPU's memory; what no way with copies can come below.
- copied: the GPU's copy engine moves the whole batch, then all kernels run.
- moved: a kernel that moves the batch is the first of the graph.
- read: zero copy. The kernels that read the input read the host's memory themselves.
- K chunks copied, moved, read: the same for a K-th of the rows each, in K contexts with a stream
  of its own each, which share weights; all are submitted, and then waited for. Copies of a chunk
  take place while the kernels of another run.

`default` is what a run does by itself, and `different` the largest difference from its outputs:
other rows may choose other tiles, which sum in another order. The ways take turns in `--rounds`.
On other backends than CUDA copied, moved and read are one way.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import machine
from litegpu import CompiledModel
from litegpu.backends.buffers import Buffer, HostBuffer, MemoryKind
from litegpu.backends.cuda import io_bindings as cuda_ends
from litegpu.tensor_buffer import TensorBuffer
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model

MODELS = ("zoo:mobilenet_v1_1.0_224?batch=64",)
CHUNKS = (2, 4, 8)
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "chunks.json"
_COPIED_FROM, _NEVER = 1 << 20, 1 << 60
"""Bytes of an end that the copy engine moves: all inputs here, no outputs; and none at all."""
Call = Callable[[], None]


def _readable(buffer: Buffer) -> cuda_ends.Place | None:
    """Call memory of the host the GPU's own, so that kernels read it without a copy."""
    own = _place(buffer)
    return own and cuda_ends.Place(own.address, on_host=False)


_place = cuda_ends._place
_MOVING: dict[str, dict[str, Any]] = {
    "copied": {"_LARGE": _COPIED_FROM},
    "moved": {"_LARGE": _NEVER},
    "read": {"_LARGE": _NEVER, "_place": _readable},
}
"""What runs are prepared with so that inputs are moved in each way."""


@contextlib.contextmanager
def moving(way: str) -> Iterator[None]:
    """Let runs that are prepared meanwhile move their inputs in one way."""
    with patch.multiple(cuda_ends, **_MOVING[way]):
        yield


def pieces_of(buffer: TensorBuffer, count: int) -> list[TensorBuffer]:
    """Return the rows of a buffer of the host in so many buffers, which are the same memory."""
    size, (rows, *shape) = buffer.nbytes // count, buffer.shape
    start = buffer.array.ctypes.data
    kind = MemoryKind.PINNED if buffer.kind == "pinned" else MemoryKind.HOST
    memories = (
        HostBuffer(ctypes.c_void_p(start + number * size), size, kind, buffer)
        for number in range(count)
    )
    return [TensorBuffer(each, buffer.dtype, (rows // count, *shape)) for each in memories]


def in_chunks(
    model: CompiledModel, inputs: Sequence[TensorBuffer], outputs: Sequence[TensorBuffer]
) -> Call:
    """Return a call that submits all chunks of a batch, and waits for them in order."""
    count = len(model._pool.all)
    sides = [[pieces_of(buffer, count) for buffer in side] for side in (inputs, outputs)]
    ends = [[[cut[number] for cut in side] for side in sides] for number in range(count)]

    def call() -> None:
        for future in [model.submit_by_index(0, *each) for each in ends]:
            future.result()

    return call


def fill(buffers: Sequence[TensorBuffer]) -> None:
    generator = np.random.default_rng(0)
    for buffer in buffers:
        low, high = (0, 256) if buffer.dtype.kind in "iu" else (-1, 1)
        buffer.write(generator.uniform(low, high, buffer.shape).astype(buffer.dtype))


def calls_of(
    model: CompiledModel, counts: Sequence[int], opened: contextlib.ExitStack
) -> tuple[dict[str, Call], dict[str, float]]:
    """Return a call for each way, and how far the outputs of each are from the default's."""
    inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
    fill(inputs)
    on_device = (
        model.create_input_buffers(memory="device"),
        model.create_output_buffers(memory="device"),
    )
    for target, source in zip(on_device[0], inputs, strict=True):
        target.write(source.array)
    model.run_by_index(0, inputs, outputs)
    expected = [np.array(buffer.array) for buffer in outputs]
    calls: dict[str, Call] = {
        "default": lambda: model.run_by_index(0, inputs, outputs),
        "device": lambda: model.run_by_index(0, *on_device),
    }
    different: dict[str, float] = {}

    def add(title: str, way: str, call: Call) -> None:
        for buffer in outputs:
            buffer.array[...] = 0
        with moving(way):
            call()  # which prepares what the later ones do
        gaps = (
            np.abs(np.float64(buffer.array) - np.float64(array)).max(initial=0)
            for buffer, array in zip(outputs, expected, strict=True)
        )
        calls[title], different[title] = call, float(max(gaps))

    rows = inputs[0].shape[0]
    for way in _MOVING:
        # Other buffers of the same memory, for which the run is prepared anew.
        own = [[pieces_of(buffer, 1)[0] for buffer in side] for side in (inputs, outputs)]
        add(way, way, lambda own=own: model.run_by_index(0, *own))  # type: ignore[misc]
    for count in counts:
        if rows % count:
            continue
        part = opened.enter_context(model.at_batch(rows // count, contexts=count))
        for way in _MOVING:
            add(f"{count} chunks {way}", way, in_chunks(part, inputs, outputs))
    return calls, different


def measure(model: CompiledModel, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a model, which is closed."""
    with contextlib.ExitStack() as opened:
        opened.enter_context(model)
        calls, different = calls_of(model, args.chunks or CHUNKS, opened)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(args.rounds):
            for name, call in calls.items():
                call()
                for _ in range(args.repeats):
                    began = time.perf_counter()
                    call()
                    seconds[name].append(time.perf_counter() - began)
        nbytes = sum(each.nbytes for each in (*model.signature.inputs, *model.signature.outputs))
        medians = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
        return {"bytes": nbytes, "ms": medians, "different": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", help="path or zoo:NAME; may be repeated")
    parser.add_argument("--chunks", action="append", type=int, help="may be repeated")
    parser.add_argument("--backend", default=None)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--output", "--out", type=Path, default=DEFAULT_OUTPUT)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "machine": machine.facts(),
        "commit": machine.commit(),
        "settings": machine.settings(args),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "models": {},
    }
    options: dict[str, Any] = {"backend": args.backend, "precision": args.precision}
    for name in args.model or MODELS:
        content = resolve_model(name)
        title = name if name.startswith("zoo:") else Path(name).stem
        for suffix, front in (("", {}), (", pictures", {"input_format": "rgb8"})):
            model = CompiledModel.from_buffer(content, **options | front)
            figures = measure(model, args)
            result["models"][title + suffix] = figures
            args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(f"{title}{suffix}: {figures['bytes'] / 1e6:.1f} MB")
            rows = [
                (way, f"{ms:.4f}", f"{figures['different'].get(way, 0):.2g}")
                for way, ms in figures["ms"].items()
            ]
            print_table(("way", ">ms", ">different"), rows)


if __name__ == "__main__":
    main()
