"""Counts the steps of creation for models of some nodes and of four times as many.

python -m hostile.steps NODES NAME,NAME          in a process of its own: tests watch each program
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import litegpu
from hostile.growing import ALL
from litegpu import GpuDelegate
from litegpu.engine import memory
from litegpu.runtime_abi import interpreter as runtime
from paper_device import on_paper

_SOURCE = Path(litegpu.__file__).parent
_WATCHED = tuple(
    str(_SOURCE / each) for each in ("delegation", "engine", "graph", "passes", "runtime_abi")
)
_FILES = frozenset(map(str, _SOURCE.glob("*.py"))) | {
    str(_SOURCE / "ops" / "common" / "support.py")
}
"""What sees whole graphs; the text of kernels is written for one node at a time."""


def load(content: bytes) -> GpuDelegate:
    """Apply a delegate of a device on paper to a model.

    The memory of some hundred values is searched for, in steps that grow with the square of their
    number; here it is planned as that of thousands is.
    """
    with (
        on_paper(),
        mock.patch.object(memory, "_MAX_SEARCHED", 0),
    ):
        delegate = GpuDelegate(backend="opencl", inference_preference=0, cache=False)
        runtime.interpreter(content, delegate, builtin_kernels=True)
    return delegate


def lines(work: Callable[[], object]) -> int:
    """Return how many lines of litegpu run that see whole graphs."""
    count = 0

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return local

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return local if name.startswith(_WATCHED) or name in _FILES else None

    sys.settrace(watch)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def main(nodes: int, names: str) -> None:
    """Print the steps of each pattern as a line of JSON; what a first use takes comes before."""
    logging.getLogger("litegpu").setLevel(logging.CRITICAL)
    for name in names.split(","):
        write = ALL[name]
        load(write(nodes))
        few, many = (lines(partial(load, write(count))) for count in (nodes, 4 * nodes))
        print(json.dumps({"name": name, "few": few, "many": many}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
