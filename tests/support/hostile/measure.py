"""Loads models in a process of its own; says for each how long that took and how much memory.

python -m hostile.measure NAME,NAME [BACKEND]       without a backend the plain interpreter
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from hostile.models import ALL
from litegpu import GpuDelegate
from litegpu.runtime_abi import interpreter as runtime
from small_models import fully_convolutional


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def load(content: bytes, backend: str) -> dict[str, Any]:
    """Load a model with a delegate, or without one.

    `nbytes` is how far the memory of this process has grown beyond what it ever was.
    """
    options: dict[str, Any] = {"backend": backend, "inference_preference": 0}
    before, start, refused = peak_bytes(), time.perf_counter(), ""
    delegate = GpuDelegate(**options) if backend else None
    try:
        runtime.interpreter(content, delegate, builtin_kernels=True)
    except (RuntimeError, ValueError, MemoryError) as error:
        refused = f"{type(error).__name__}: {error}"[:200]
    found: dict[str, Any] = {"refused": refused, "error": "", "delegated": 0}
    found |= {"seconds": time.perf_counter() - start, "nbytes": peak_bytes() - before}
    if delegate is not None:
        found["error"] = str(delegate.error or "")[:300]
        report = delegate.report
        found["delegated"] = len(report.delegated_nodes) if report else 0
    return found


def main(names: str, backend: str = "") -> None:
    """Print a line of JSON for each model; what a first use takes comes before."""
    logging.getLogger("litegpu").setLevel(logging.CRITICAL)
    contents = {name: ALL[name]() for name in names.split(",")}
    load(fully_convolutional(), backend)
    for name, content in contents.items():
        print(json.dumps({"name": name, "size": len(content), **load(content, backend)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
