"""Whether CUDA's compiler is installed: `make setup` installs it if NVIDIA has wheels for it."""

from __future__ import annotations

from functools import cache

import pytest

from litegpu import MissingDependencyError
from litegpu.backends.cuda.compiler import compile_source, options_for

GENERATIONS = {"sm_75": (7, 5), "sm_80": (8, 0), "sm_86": (8, 6), "sm_90": (9, 0)}
"""The compute capabilities for which kernels are compiled, by the compiler's names."""


@cache
def _missing() -> str:
    try:
        compile_source("", options_for((9, 0)))
    except MissingDependencyError as error:
        return str(error)
    return ""


needs_nvrtc = pytest.mark.needs.with_args(_missing)
