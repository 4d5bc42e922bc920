"""What the benchmarks share: calls from NumPy to NumPy, their inputs, medians and errors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import no_cache  # noqa: F401
from litegpu.errors import ModelError
from litegpu.runtime_abi.interpreter import interpreter

SLOW_SECONDS = 5e-3
"""A call that takes longer may be repeated less often."""

NO_DRIVER_CACHES = {
    "CUDA_CACHE_DISABLE": "1",
    "MESA_SHADER_CACHE_DISABLE": "true",
    "POCL_KERNEL_CACHE": "0",
    "__GL_SHADER_DISK_CACHE": "0",
}
"""Keeps drivers from writing down compiled kernels, on which creation times would depend."""
_SLOW_BUDGET = 2.0
_FEWEST = 3
_WARM_UP_SECONDS = 0.2


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of a call in milliseconds, after a warm-up."""
    for _ in range(max(repeats // 5, 3)):
        run()
    return statistics.median(_wall_times(run, repeats)) * 1e3


def time_calls(run: Callable[[], object], repeats: int) -> tuple[float, int]:
    """Return the median wall time of a call in milliseconds, and of how many calls.

    The warm-up lasts 0.2 s or `repeats` calls, and one call at least. Calls of more than 5 ms are
    repeated for about two seconds, at least three times and at most `repeats` times.
    """
    deadline = time.perf_counter() + _WARM_UP_SECONDS
    seconds = 0.0
    for _ in range(repeats):
        (seconds,) = _wall_times(run, 1)
        if time.perf_counter() > deadline:
            break
    count = repeats
    if seconds > SLOW_SECONDS:
        count = min(repeats, max(_FEWEST, int(_SLOW_BUDGET / seconds)))
    return statistics.median(_wall_times(run, count)) * 1e3, count


def _wall_times(run: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def reference_interpreter(model: bytes, threads: int) -> Any:
    """Return an interpreter with the built-in kernels, or with XNNPACK's where they lack an op.

    Raises:
        ModelError: neither runs the model.
    """
    try:
        return interpreter(model, threads=threads, builtin_kernels=True)
    except ModelError:
        return interpreter(model, threads=threads)


def make_inputs(target: Any, picture: Path | None, seed: int = 0) -> list[Any]:
    """Return one array per input: the picture in [-1, 1] where it fits, else seeded noise.

    Those of an input of 8 bits fill its range: what lies in [-1, 1] is scaled to all its numbers.
    """
    generator = np.random.default_rng(seed)
    found = []
    for detail in target.get_input_details():
        shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
        data = generator.uniform(-1, 1, shape)
        if picture and len(shape) == 4 and shape[3] == 3:
            from PIL import Image

            image = Image.open(picture).convert("RGB").resize((shape[2], shape[1]))
            data = np.broadcast_to(np.asarray(image, np.float32) / 127.5 - 1, shape)
        if dtype.itemsize == 1 and dtype.kind in "iu":
            data = np.rint((data + 1) * 127.5) + np.iinfo(dtype).min
        found.append(np.ascontiguousarray(data, dtype))
    return found


def caller(target: Any, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
    """Return a call that runs set_tensor, invoke, get_tensor.

    Tensors are asked for once: to describe them takes the runtime 10 µs.
    """
    given = [
        (detail["index"], x) for detail, x in zip(target.get_input_details(), inputs, strict=True)
    ]
    results = [detail["index"] for detail in target.get_output_details()]

    def run() -> list[Any]:
        for index, data in given:
            target.set_tensor(index, data)
        target.invoke()
        return [target.get_tensor(index) for index in results]

    return run


def call(target: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run set_tensor, invoke, get_tensor, once."""
    return caller(target, inputs)()


def errors(got: Sequence[Any], expected: Sequence[Any]) -> dict[str, Any]:
    """Return the worst max|a-b|/max|b| and ‖a-b‖/‖b‖ of the outputs, and if all are finite.

    Raises ValueError when the outputs are not of the expected number and shapes.
    """
    shapes = [[list(array.shape) for array in arrays] for arrays in (got, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"The outputs have the shapes {shapes[0]}, the reference's {shapes[1]}.")
    worst_max = worst_norm = 0.0
    for a, b in zip(got, expected, strict=True):
        difference, reference = np.float64(a) - np.float64(b), np.float64(b)
        if not difference.any():
            continue
        with np.errstate(divide="ignore"):
            largest = np.abs(difference).max() / np.abs(reference).max()
            norm = np.linalg.norm(difference) / np.linalg.norm(reference)
        # Unlike max(), this keeps a NaN.
        worst_max = float(np.maximum(worst_max, largest))
        worst_norm = float(np.maximum(worst_norm, norm))
    finite = all(bool(np.isfinite(array).all()) for array in got)
    return {"max_error": worst_max, "norm_error": worst_norm, "finite": finite}
