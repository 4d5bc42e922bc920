"""Tries a model with the runtime alone, in a separate process that may crash."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.errors import LitegpuError
from litegpu.host.children import run_module
from litegpu.runtime_abi import interpreter as runtime

_SECONDS = 60.0
"""Timeout of a trial in seconds; an unfinished trial counts as success."""
_STEPS = ("loading it", "allocating its tensors", "running it on zeros")
_REJECTED = 3
"""The exit status of the process if the runtime has rejected the model."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of running a model without a delegate; the text is empty on success.

    `fatal` means that an interpreter of the model would also crash this process.
    """

    problem: str = ""
    fatal: bool = False


def try_model(content: bytes) -> Trial:
    """Load a model, allocate its tensors and run it on zeros, without a delegate."""
    ended = run_module(__name__, [], _SECONDS, content)
    step = next((each for each in reversed(_STEPS) if each in ended.output), "")
    if ended.status in (0, None) or not step:
        return Trial()
    lines = (line for line in ended.errors.splitlines() if not line.startswith("INFO:"))
    why = " ".join(" ".join(lines).split()).rstrip(".")[-_LONGEST:]
    if ended.status == _REJECTED:
        return Trial(f"{_ALONE} rejects this model while {step}: {why}.")
    said = f" It says: {why}." if why else ""
    problem = f"{_ALONE} {ended.how()} with this model, while {step}.{said}"
    return Trial(problem, fatal=step != _STEPS[-1])


_ALONE = "The runtime itself, without litegpu,"
_LONGEST = 1000
"""Maximum length of the runtime's message in characters."""


def main(arguments: Sequence[str]) -> int:
    """Try the model on stdin; print the steps to stdout and errors to stderr."""
    content = sys.stdin.buffer.read()
    try:
        print(_STEPS[0], flush=True)
        target = runtime.interpreter(content, threads=None, allocate=False)
        print(_STEPS[1], flush=True)
        target.allocate_tensors()
        print(_STEPS[2], flush=True)
        target.invoke()
    except (LitegpuError, RuntimeError, ValueError) as error:
        print(error.__cause__ or error, file=sys.stderr)
        return _REJECTED
    return 0
