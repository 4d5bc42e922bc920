"""Loads a model in a process of its own; says how long that took and how much memory.

python -m hostile.measure FILE [BACKEND]       without a backend the plain interpreter
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from litegpu import GpuDelegate
from litegpu.tools import runtime
from small_models import fully_convolutional


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def load(model: bytes, backend: str) -> dict[str, Any]:
    """Load a model with a delegate, or without one; what a first use takes comes before."""
    options: dict[str, Any] = {"backend": backend, "inference_preference": 0}

    def loaded(content: bytes) -> tuple[str, GpuDelegate | None]:
        delegate = GpuDelegate(**options) if backend else None
        try:
            runtime.interpreter(content, delegate, builtin_kernels=True)
        except (RuntimeError, ValueError, MemoryError) as error:
            return f"{type(error).__name__}: {error}"[:200], delegate
        return "", delegate

    loaded(fully_convolutional())
    before, start = peak_bytes(), time.perf_counter()
    refused, delegate = loaded(model)
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"seconds": seconds, "nbytes": peak_bytes() - before}
    found["refused"] = refused
    if delegate is not None and delegate.report is not None:
        found["delegated"] = len(delegate.report.delegated_nodes)
        found["nodes"] = delegate.report.total_nodes
    found["error"] = "" if delegate is None else str(delegate.error or "")[:300]
    return found


if __name__ == "__main__":
    logging.getLogger("litegpu").setLevel(logging.CRITICAL)
    print(json.dumps(load(Path(sys.argv[1]).read_bytes(), "".join(sys.argv[2:3]))))
