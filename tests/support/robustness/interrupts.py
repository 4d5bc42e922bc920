"""Interrupts invokes at random moments, and counts what becomes of that. The tests run some.

By hand, in `tests/support/`: LITEGPU_BACKEND=opencl python -m robustness.interrupts 10000
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from litegpu import GpuDelegate
from small_models import CPU_ONLY, Array, chain, fully_convolutional, interpreter
from small_models import random as noise

MODELS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "whole": (fully_convolutional(), (1, 9, 7, 3)),
    # The CPU is at work when a signal comes, and litegpu is called next, three times.
    "split": (
        chain([CPU_ONLY, "ABS", CPU_ONLY, "NEG", CPU_ONLY, "ABS", "NEG"], (1, 64, 64, 16)),
        (1, 64, 64, 16),
    ),
}
GOOD = {"interrupted", "finished"}


def outcomes(count: int, model: str, options: dict[str, Any] | None = None) -> Counter[str]:
    """Interrupt `count` invokes, each once; return how often each thing happened.

    "finished" are those that were through before the signal came.
    """
    content, shape = MODELS[model]
    delegate = GpuDelegate(**{"max_delegated_partitions": 9, **(options or {})})
    target = interpreter(content, delegate)
    inputs = [noise(*shape, seed=seed) for seed in range(3)]
    expected = [invoke(target, x) for x in inputs]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    span = 1.5 * typical_seconds(lambda: invoke(target, inputs[0]))
    draw = random.Random(7)
    found: Counter[str] = Counter()
    for number in range(count):
        position = number % 3
        result: Array | None = None
        try:
            signal.setitimer(signal.ITIMER_REAL, max(draw.random() * span, 1e-6))
            result = invoke(target, inputs[position])
            wait_for_signal()
            found["lost signal"] += 1
        except KeyboardInterrupt:
            found["interrupted" if result is None else "finished"] += 1
        except RuntimeError as error:
            found[f"RuntimeError: {error}"[:200]] += 1
            time.sleep(0.01)
        if result is not None and not np.array_equal(result, expected[position]):
            found[kind(result, expected, "during")] += 1
        try:
            after = invoke(target, inputs[position - 1])
        except (RuntimeError, KeyboardInterrupt) as error:
            found[f"next invoke: {type(error).__name__} {error}"[:200]] += 1
        else:
            if not np.array_equal(after, expected[position - 1]):
                found[kind(after, expected, "after")] += 1
    return found


def wait_for_signal(seconds: float = 10.0) -> None:
    """Sleep in steps: a signal that a driver's thread receives does not wake the main one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1e-4)


def kind(result: Array, expected: list[Array], moment: str) -> str:
    """Name what is wrong with a result."""
    stale = any(np.array_equal(result, other) for other in expected)
    return f"{'stale' if stale else 'wrong'} result {moment}"


def invoke(target: Any, x: Array) -> Array:
    """Return the output for an input."""
    target.set_tensor(target.get_input_details()[0]["index"], x)
    target.invoke()
    result: Array = target.get_tensor(target.get_output_details()[0]["index"])
    return result


def typical_seconds(work: Callable[[], object]) -> float:
    """Return how long something takes, most of the time."""
    chosen = []
    for _ in range(15):
        start = time.perf_counter()
        work()
        chosen.append(time.perf_counter() - start)
    return sorted(chosen)[7]


def main(count: int) -> None:
    """Print the counts for each model."""
    logging.getLogger("litegpu").setLevel(logging.ERROR)
    for model in MODELS:
        print(json.dumps({"model": model, **outcomes(count, model)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
