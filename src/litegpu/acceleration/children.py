"""The processes that a program of `litegpu exec` creates, and what it prints at the end."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from litegpu import config
from litegpu.acceleration import AcceleratedModel, accelerate
from litegpu.errors import LitegpuError
from litegpu.progress import Progress
from litegpu.runtime_abi.kernels import RUNTIMES

_log = logging.getLogger("litegpu")
_STARTUP = Path(__file__).parent / "startup"
"""The folder of the module that Python imports when a process starts."""
_QUIET_S = 2.0
"""Seconds of compiling without a message."""


@contextmanager
def reached(options: Mapping[str, Any]) -> Iterator[None]:
    """Accelerate new processes of this Python environment, by their environment variables.

    `options` are those of GpuDelegate, as numbers, texts and bools.
    """
    wanted = {"prefix": sys.prefix, "options": dict(options), "runtimes": RUNTIMES}
    path = os.pathsep.join(filter(None, [str(_STARTUP), config.environment().get("PYTHONPATH")]))
    with config.changed({"LITEGPU_EXEC": json.dumps(wanted), "PYTHONPATH": path}):
        yield


def start(options: Mapping[str, Any]) -> None:
    """Accelerate this process, and print its models when it exits; on failure, log a warning."""
    try:
        acceleration = accelerate(**options, on_progress=Announcement())
    except LitegpuError as error:
        _log.warning("The interpreters of process %d run on the CPU: %s", os.getpid(), error)
        return
    atexit.register(lambda: _print(summary(acceleration.models)))


class Announcement:
    """A progress callback that prints one line, if compiling takes more than two seconds."""

    def __init__(self) -> None:
        self._printed = False

    def __call__(self, now: Progress) -> None:
        """Print the line once."""
        if now.seconds >= _QUIET_S and now.stage != "end" and not self._printed:
            self._printed = True
            _print(["compiling the kernels of a model"])


def summary(models: Sequence[AcceleratedModel]) -> list[str]:
    """Return a line for each model, with the number of its interpreters if there are several."""
    counts = Counter(map(_line, models)).items()
    return [line + f" ({count} interpreters)" * (count > 1) for line, count in counts]


def _line(model: AcceleratedModel) -> str:
    if model.error:
        return f"{model.model}: on the CPU. {model.error}"
    nodes = len(model.report.delegated_nodes) if model.report else 0
    total = f" of {model.report.total_nodes}" if model.report else ""
    return f"{model.model}: {nodes}{total} nodes on {model.device}"


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"litegpu: {line}", file=sys.stderr, flush=True)
